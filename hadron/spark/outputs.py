"""The output of a stage: rows that a function returned, as records and batches to be completed.

How a value is stored: binary as bytes; a string that is a JSON object or array as JSON, so that it
is read back as one, and any other string as text; everything else (structs, maps, numbers, null)
as JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from hadron.model.batch_building import BatchBuilder
from hadron.model.errors import InvalidRecordError, RecordTooLargeError
from hadron.model.ids import EVENT_TYPE_FORM, is_event_type
from hadron.model.json_values import json_text
from hadron.model.limits import MAX_BATCH_BYTES
from hadron.model.pipelines import StageSpec
from hadron.model.record import NewRecord
from hadron.model.words import counted
from hadron.spark.stage import StageResult

_TARGET_BYTES: Final = MAX_BATCH_BYTES // 2
"""Where an output batch is closed: a record may be half the limit itself."""

_MAX_COMPLETIONS: Final = 32_768
"""Completions in one call: their ids and attempts stay far below the message limit."""

_OF_AN_OUTPUT: Final = ("value", "key", "type", "partition", "headers")

_SHOWN: Final = 20
"""Bytes that are no text, in an error."""

_MAY_BE_DEEP: Final = 200
"""Brackets in a text; nobody refuses so many levels."""

_NAMED: Final = 10
"""Instance ids that an error lists; thousands would say no more."""


@dataclass(frozen=True, slots=True)
class Output:
    """What one instance produced; `record` is None for a stage without an output."""

    instance_id: int
    attempt: int
    partition: str
    record: NewRecord | None


@dataclass(frozen=True, slots=True)
class Refusal:
    """An instance that has no output that can be used, and why."""

    instance_id: int
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Matched:
    """The rows that a stage returned, given to the instances that it was given.

    Attributes:
        outputs: of those that have just one row, in their order.
        failed: those for which the function returned an error.
        odd: those with no row, or with several.
        dropped: what is told of rows that are nobody's; "" without any.
    """

    outputs: list[Output]
    failed: list[Refusal]
    odd: list[Refusal]
    dropped: str = ""


def match_rows(
    stage: StageSpec, result: StageResult, instance_ids: Sequence[int], attempts: Sequence[int]
) -> Matched:
    """Give each instance its one row. Rows that are nobody's are dropped: what they were made of
    has no row then, and the others are not to blame."""
    table = result.table
    found = np.asarray(table["instance_id"].fill_null(-1).to_numpy())
    null_count = table["instance_id"].null_count
    wanted = np.array(instance_ids, np.int64)
    known = np.isin(found, wanted)
    strangers = np.unique(found[~known & np.asarray(table["instance_id"].is_valid())])
    dropped = _dropped(stage, null_count, strangers)
    places = np.flatnonzero(known)
    returned, first, counts = np.unique(found[places], return_index=True, return_counts=True)
    missing = np.setdiff1d(wanted, returned)
    doubled = returned[counts > 1]
    reasons = dict.fromkeys(missing.tolist(), _row_error(stage, "no row", missing, dropped))
    reasons |= dict.fromkeys(doubled.tolist(), _row_error(stage, "several rows", doubled))
    place = dict(zip(returned.tolist(), places[first].tolist(), strict=True))
    both = list(zip(instance_ids, attempts, strict=True))
    kept = [each for each in both if each[0] not in reasons]
    rows = table.take(pa.array([place[instance] for instance, _ in kept], pa.int64()))
    odd = [Refusal(*each, reasons[each[0]]) for each in both if each[0] in reasons]
    columns, faults = _read(stage, rows)
    outputs: list[Output] = []
    failed: list[Refusal] = []
    for row, (instance, attempt) in enumerate(kept):
        try:
            if row in faults:
                raise InvalidRecordError(faults[row])
            outputs.append(_output(stage, columns, row, instance, attempt, result.values_are_json))
        except InvalidRecordError as error:
            reason = f"function {stage.run!r} of stage {stage.name!r} {error}"
            failed.append(Refusal(instance, attempt, reason))
    return Matched(outputs, failed, odd, dropped)


def _read(stage: StageSpec, rows: pa.Table) -> tuple[dict[str, list[Any]], dict[int, str]]:
    """The columns that are used, and what is wrong with rows: Spark's text may be any bytes."""
    columns: dict[str, list[Any]] = {}
    faults: dict[int, str] = {}
    wanted = ("error", *(_OF_AN_OUTPUT if stage.output is not None else ()))
    for name in wanted:
        if name not in rows.column_names:
            continue
        try:
            columns[name] = rows[name].to_pylist()
        except UnicodeDecodeError:
            columns[name] = [None] * rows.num_rows
            for row, scalar in enumerate(rows[name]):
                try:
                    columns[name][row] = scalar.as_py()
                except UnicodeDecodeError as error:
                    faults.setdefault(row, _no_text(name, error.object))
    for row, said in enumerate(columns.get("error", ())):
        if said is not None:
            faults[row] = f"says: {said}"
    return columns, faults


def _no_text(column: str, data: bytes) -> str:
    shown = f"{data[:_SHOWN]!r}{'…' if len(data) > _SHOWN else ''}"
    way = "decode it, or give it as binary" if column in ("value", "key") else "decode it"
    return f"returned {shown} as a string in the column {column}, which is not UTF-8 ({way})"


def _dropped(stage: StageSpec, null_count: int, strangers: Any) -> str:
    what = [f"{null_count} without an id"] if null_count else []
    if strangers.size:
        what.append(f"some of instances that it was not given: {_some(strangers)}")
    if not what:
        return ""
    return (
        f"function {stage.run!r} of stage {stage.name!r} returned rows that are nobody's, "
        f"{' and '.join(what)} (pass instance_id through unchanged)"
    )


def _row_error(stage: StageSpec, what: str, instance_ids: Any, dropped: str = "") -> str:
    others = len(instance_ids) - 1
    beside = f", as for {counted(others, 'other')} beside it" if others > 0 else ""
    return (
        f"function {stage.run!r} of stage {stage.name!r} returned {what} for this instance{beside} "
        "(return exactly one row for each)" + (f"; {dropped}" if dropped else "")
    )


def _some(instance_ids: Any) -> str:
    shown = ", ".join(map(str, instance_ids[:_NAMED].tolist()))
    return f"{shown}, …" if len(instance_ids) > _NAMED else shown


def _output(
    stage: StageSpec,
    columns: dict[str, list[Any]],
    row: int,
    instance_id: int,
    attempt: int,
    value_is_json: bool,
) -> Output:
    """Raises `InvalidRecordError`."""
    if stage.output is None:
        return Output(instance_id, attempt, "", None)
    value, key, kind, partition, headers = (
        columns[name][row] if name in columns else None for name in _OF_AN_OUTPUT
    )
    record = NewRecord(
        value=_stored(value, value_is_json),
        key=key,
        type=kind or "",
        headers=dict(headers or ()) or None,
    )
    return Output(instance_id, attempt, partition or stage.output.partition, record)


def _stored(value: Any, is_json: bool) -> Any:
    """A value as `NewRecord` wants it; JSON text stays as it is. Raises `InvalidRecordError`."""
    if is_json:
        return _of_spark(value if value is not None else "null")
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return json_text(value)
        except ValueError:
            # Text, too, where its readers could not decode it as JSON.
            return value
    return value


def _of_spark(text: str) -> msgspec.Raw:
    """JSON that Spark has made is some, but a variant may have more levels than readers take."""
    if text.count("[") + text.count("{") < _MAY_BE_DEEP:
        return msgspec.Raw(text.encode())
    try:
        return json_text(text)
    except ValueError as error:
        raise InvalidRecordError(
            f"returned a value that readers could not decode: {error}"
        ) from error


@dataclass(frozen=True, slots=True)
class Completion:
    """What one call completes: outputs of one partition, and the batch that holds them."""

    outputs: list[Output]
    data: bytes | None


def pack(outputs: Iterable[Output], now_ms: int) -> tuple[list[Completion], list[Refusal]]:
    """Group outputs into completions: one partition and at most one batch each, order kept.

    Outputs over the size limit of a record are refused.
    """
    groups: dict[str, list[Output]] = {}
    for output in outputs:
        groups.setdefault(output.partition, []).append(output)
    packed: list[Completion] = []
    refused: list[Refusal] = []
    for group in groups.values():
        builder, current = BatchBuilder(), list[Output]()
        for output in group:
            if output.record is not None:
                try:
                    _check_record(output.record)
                    builder.add(output.record, now_ms)
                except (RecordTooLargeError, InvalidRecordError) as error:
                    refused.append(Refusal(output.instance_id, output.attempt, str(error)))
                    continue
            current.append(output)
            if builder.size >= _TARGET_BYTES or builder.full or len(current) >= _MAX_COMPLETIONS:
                _close(builder, current, now_ms, packed, refused)
                builder, current = BatchBuilder(), []
        if current:
            _close(builder, current, now_ms, packed, refused)
    return packed, refused


def _check_record(record: NewRecord) -> None:
    """Raises `InvalidRecordError` for what a column may hold, and no record."""
    if record.type and not is_event_type(record.type):
        raise InvalidRecordError(f"{record.type!r} is not a type", EVENT_TYPE_FORM)
    for name, content in (record.headers or {}).items():
        if content is None:
            raise InvalidRecordError(
                f"header {name!r} is null", "leave it out of the map, or give it a text"
            )


def _close(
    builder: BatchBuilder,
    outputs: list[Output],
    now_ms: int,
    packed: list[Completion],
    refused: list[Refusal],
) -> None:
    """Encode; what turns out too large after all (long type names count late) is halved."""
    try:
        data = builder.build() if len(builder) else None
    except RecordTooLargeError as error:
        if len(outputs) == 1:
            refused.append(Refusal(outputs[0].instance_id, outputs[0].attempt, str(error)))
            return
        middle = len(outputs) // 2
        for half in (outputs[:middle], outputs[middle:]):
            more, unusable = pack(half, now_ms)
            packed += more
            refused += unusable
        return
    packed.append(Completion(outputs, data))


def encode(outputs: Sequence[Output], now_ms: int) -> bytes | None:
    """One record batch with one record per output; None for a stage without an output."""
    builder = BatchBuilder()
    for output in outputs:
        if output.record is not None:
            builder.add(output.record, now_ms)
    return builder.build() if len(builder) else None
