"""The input of a stage: the records that a micro-batch refers to, as one Arrow table.

References of one micro-batch lie close together (instances are made in the order of the trigger
stream), so whole batches are fetched once, kept decoded for the stages that follow, and rows are
picked from their columns without touching single records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from hadron.model.errors import (
    DamagedRecordError,
    HadronError,
    NotFoundError,
    OffsetOutOfRangeError,
    RequestError,
)
from hadron.model.ids import Ballot
from hadron.model.pipelines import StageSpec
from hadron.model.record import BYTES
from hadron.model.record_batch import RecordBatch, decode_batch
from hadron.spark import arrow
from hadron.spark.batch_cache import BatchCache, Place, Run
from hadron.spark.failures import StageError

ROOT_COLUMNS: Final = ("key", "type", "timestamp", "partition", "offset", "headers")
"""What a stage is told about the trigger, besides its value in the column `root`."""

_FETCH_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Rows:
    """Records picked from batches: row i is record `index[i]` of all batches laid end to end.

    `lost` says for each row whether its record is gone, or was damaged at its source; such rows
    have index 0. `damage` says what is wrong with those.
    """

    batches: list[RecordBatch]
    index: np.ndarray[Any, np.dtype[np.int64]]
    lost: np.ndarray[Any, np.dtype[np.bool_]]
    damage: str = ""

    def only(self, kept: Sequence[bool]) -> Rows:
        """The rows that are marked in `kept`."""
        if all(kept):
            return self
        mask = np.array(kept, np.bool_)
        return Rows(self.batches, self.index[mask], self.lost[mask])

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


async def load(client: Any, cache: BatchCache, references: Sequence[Any]) -> Rows:
    """Fetch what `references` (`RecordRef`s) point at, in their order.

    Raises what the client raises, except that records which are gone are marked as lost.
    """
    count = len(references)
    index, lost = np.zeros(count, np.int64), np.zeros(count, np.bool_)
    places: dict[Place, list[int]] = {}
    for row, reference in enumerate(references):
        place = (reference.stream, reference.stream_id, reference.partition)
        places.setdefault(place, []).append(row)
    batches: list[RecordBatch] = []
    known: set[Run] = set()
    base_row, damage = 0, ""
    for place, rows in places.items():
        order = np.array(rows)
        offsets = np.array([references[row].offset for row in rows], np.int64)
        sorting = np.argsort(offsets, kind="stable")
        order, offsets = order[sorting], offsets[sorting]
        done = 0
        while done < len(order):
            single = offsets[done] == offsets[-1]
            batch = await _batch_at(client, cache, known, place, int(offsets[done]), single)
            if isinstance(batch, int):
                stop = int(np.searchsorted(offsets, max(batch, offsets[done] + 1)))
                lost[order[done:stop]] = True
            elif batch.damage:
                stop = int(np.searchsorted(offsets, batch.next_offset))
                lost[order[done:stop]] = True
                damage = str(batch.damaged(int(offsets[done]) - batch.base_offset, batch.damage))
            else:
                stop = int(np.searchsorted(offsets, batch.next_offset))
                index[order[done:stop]] = offsets[done:stop] - batch.base_offset + base_row
                batches.append(batch)
                base_row += batch.count
            done = stop
    return Rows(batches, index, lost, damage)


async def _batch_at(
    client: Any, cache: BatchCache, known: set[Run], place: Place, offset: int, single: bool
) -> RecordBatch | int:
    """The batch that holds `offset`; when that is gone, the first offset that is still kept.
    `known`: what the log has been asked for since the references came."""
    while (cached := cache.find(place, offset)) is not None:
        batch, run = cached
        if run in known or await _has(client, place, run):
            known.add(run)
            return batch
        cache.drop(place, run)
    stream, stream_id, partition = place
    try:
        fetched = await client.fetch(
            stream, partition, offset, max_bytes=1 if single else _FETCH_BYTES, stream_id=stream_id
        )
    except OffsetOutOfRangeError:
        bounds = await client.offsets(stream, partition=partition)
        return int(bounds[0].first_offset) if bounds else 0
    found = [
        decode_batch(each.data, base_offset=each.base_offset, stream=stream, partition=partition)
        for each in fetched.batches
    ]
    if not found:
        return int(fetched.first_offset)
    last = fetched.batches[-1]
    known.add(cache.add(place, found, Ballot(last.epoch, last.incarnation)))
    return found[0]


async def _has(client: Any, place: Place, run: Run) -> bool:
    """Whether the log of a place has these batches now, as its leader says."""
    stream, stream_id, partition = place
    try:
        found = await client.offsets(stream, partition=partition, before=run.end)
    except HadronError as error:
        if error.retryable:
            raise
        return False  # What it is that has gone is said when the record is fetched.
    return any(each.stream_id == stream_id and each.ballot == run.ballot for each in found)


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


def lost_records(stage: StageSpec, rows: Rows, references: Sequence[Any]) -> RequestError:
    """The error for instances of `stage` whose records retention deleted, or nobody can read."""
    if rows.damage:
        return DamagedRecordError(rows.damage)
    first = references[int(np.flatnonzero(rows.lost)[0])]
    return NotFoundError(
        f"record {first.stream}/{first.partition}/{first.offset}, "
        f"which stage {stage.name!r} needs, is not kept any more",
        "let the stream keep its records for longer than the pipeline is behind",
    )
