"""The input of a stage: the records that a micro-batch refers to, as one Arrow table.

Rows are picked from the columns of whole batches (`loading`), without touching single records.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from hadron.model.pipelines import StageSpec
from hadron.model.record import BYTES
from hadron.model.record_batch import RecordBatch
from hadron.spark import arrow
from hadron.spark.failures import StageError

ROOT_COLUMNS: Final = ("key", "type", "timestamp", "partition", "offset", "headers")
"""What a stage is told about the trigger, besides its value in the column `root`."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Records picked from batches: row i is record `index[i]` of all batches laid end to end.

    `lost` says of rows why nobody can read their record: it is gone, or was damaged at its source;
    `away` are those whose record's leader is away; for those in `later` there was no room. Such
    rows have index 0.
    """

    batches: list[RecordBatch]
    index: np.ndarray[Any, np.dtype[np.int64]]
    lost: Mapping[int, str]
    away: Collection[int] = ()
    later: Collection[int] = ()

    def only(self, kept: Sequence[bool]) -> Rows:
        """The rows that are marked in `kept`; none that is away, or comes later."""
        if all(kept):
            return self
        mask = np.array(kept, np.bool_)
        places = {row: place for place, row in enumerate(np.flatnonzero(mask).tolist())}
        lost = {places[row]: why for row, why in self.lost.items() if row in places}
        return Rows(self.batches, self.index[mask], lost)

    def take(self, columns: Sequence[pa.Array]) -> pa.Array:
        """One column: `columns` has one array per batch."""
        whole = pa.chunked_array(columns)
        length = len(self.index)
        first = int(self.index[0])
        if np.array_equal(self.index, np.arange(first, first + length)):
            return whole.slice(first, length).combine_chunks()
        return whole.take(pa.array(self.index)).combine_chunks()

    def values(self) -> pa.Array:
        """Values: strings, unless one of them was sent as bytes; then all are binary."""
        encodings = (batch.body.ve for batch in self.batches)
        return _text_if(
            self.take([arrow.values(batch) for batch in self.batches]), self._has_bytes(encodings)
        )

    def keys(self) -> pa.Array:
        """Keys, null where there is none: strings unless one of them was sent as bytes."""
        column = self.take([arrow.keys(batch) for batch in self.batches])
        keyed = np.asarray(column.is_valid())
        encodings = (batch.body.ke for batch in self.batches)
        return _text_if(column, self._has_bytes(encodings, keyed))

    def _has_bytes(self, encodings: Any, rows: Any = True) -> bool:
        columns = [np.frombuffer(bytes(each) or b"\x01", np.uint8) for each in encodings]
        if all(len(column) == 1 and column[0] != BYTES for column in columns):
            return False
        full = [
            np.resize(column, batch.count)
            for column, batch in zip(columns, self.batches, strict=True)
        ]
        return bool(((np.concatenate(full)[self.index] == BYTES) & rows).any())


def _text_if(column: pa.Array, has_bytes: bool) -> pa.Array:
    if has_bytes:
        return column
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        # Said to be text by its producer, and is not UTF-8: the stage still gets what is there.
        return column


def to_table(
    stage: StageSpec,
    instance_ids: Sequence[int],
    root: Rows,
    dependencies: Sequence[Rows],
    failures: Sequence[tuple[str, str]] = (),
) -> pa.Table:
    """The table that becomes the stage's DataFrame; one row per instance. One that runs for what
    was given up is told `failures`: of each instance the stage that was, and why.

    Raises `StageError` when a dependency's name is that of another column.
    """
    columns: dict[str, pa.Array] = {
        "instance_id": pa.array(instance_ids, pa.int64()),
        "root": root.values(),
    }
    _check_names(stage)
    for name, rows in zip(stage.dependencies, dependencies, strict=True):
        columns[name] = rows.values()
    columns["key"] = root.keys()
    columns["type"] = root.take([arrow.types(batch) for batch in root.batches])
    columns["timestamp"] = root.take([arrow.timestamps(batch) for batch in root.batches])
    columns["partition"] = root.take(
        [pa.repeat(batch.partition, batch.count) for batch in root.batches]
    )
    columns["offset"] = root.take(
        [pa.array(np.arange(batch.base_offset, batch.next_offset)) for batch in root.batches]
    )
    columns["headers"] = root.take([arrow.headers(batch, 0, batch.count) for batch in root.batches])
    if failures:
        names, reasons = zip(*failures, strict=True)
        columns["failed_stage"] = pa.array(names, pa.string())
        columns["failure"] = pa.array(reasons, pa.string())
    return pa.table(columns)


def _check_names(stage: StageSpec) -> None:
    """What was declared before `hadron apply` refused it."""
    columns = {name: name for name in ("instance_id", "root", *ROOT_COLUMNS)}
    for name in stage.dependencies:
        if other := columns.get(name.casefold()):
            raise StageError(
                f"stage {stage.name!r} depends on {name!r}, whose column Spark cannot tell from "
                f"the column {other!r} that it gets, too",
                "give that stage another name",
            )
        columns[name.casefold()] = name
