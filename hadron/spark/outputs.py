"""The output of a stage: rows that a function returned, as records and batches to be completed.

How a value is stored: binary as bytes; a string that is a JSON object or array as JSON, so that it
is read back as one, and any other string as text; everything else (structs, maps, numbers, null)
as JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from hadron.model.batch_building import BatchBuilder
from hadron.model.errors import InvalidRecordError, RecordTooLargeError
from hadron.model.ids import EVENT_TYPE_FORM, is_event_type
from hadron.model.limits import MAX_BATCH_BYTES
from hadron.model.pipelines import StageSpec
from hadron.model.record import NewRecord
from hadron.model.words import counted
from hadron.spark.stage import StageResult

_TARGET_BYTES: Final = MAX_BATCH_BYTES // 2
"""Where an output batch is closed: a record may be half the limit itself."""

_MAX_COMPLETIONS: Final = 32_768
"""Completions in one call: their ids and attempts stay far below the message limit."""

_NAMED: Final = 10
"""Instance ids that an error lists; thousands would say no more."""

_raw_json = msgspec.json.Decoder(msgspec.Raw).decode


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
    failed: list[Refusal] = []
    if "error" in rows.column_names:
        errors = rows["error"].to_pylist()
        failed = [
            Refusal(*each, f"function {stage.run!r} of stage {stage.name!r} says: {error}")
            for each, error in zip(kept, errors, strict=True)
            if error is not None
        ]
        kept = [each for each, error in zip(kept, errors, strict=True) if error is None]
        rows = rows.filter(rows["error"].is_null())
    outputs = list(_outputs(stage, rows, kept, result.values_are_json))
    return Matched(outputs, failed, odd, dropped)


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


def _outputs(
    stage: StageSpec, rows: pa.Table, kept: Sequence[tuple[int, int]], values_are_json: bool
) -> Iterator[Output]:
    fixed = stage.output.partition if stage.output is not None else ""
    count = rows.num_rows
    if stage.output is None or not count:
        yield from (Output(instance, attempt, "", None) for instance, attempt in kept)
        return
    values = rows["value"].to_pylist()
    keys, types, partitions, headers = (
        rows[name].to_pylist() if name in rows.column_names else [None] * count
        for name in ("key", "type", "partition", "headers")
    )
    for row, (instance, attempt) in enumerate(kept):
        record = NewRecord(
            value=_stored(values[row], values_are_json),
            key=keys[row],
            type=types[row] or "",
            headers=dict(headers[row] or ()) or None,
        )
        yield Output(instance, attempt, fixed or partitions[row] or "", record)


def _stored(value: Any, is_json: bool) -> Any:
    """A value as `NewRecord` wants it; JSON text stays as it is, unparsed."""
    if is_json:
        return msgspec.Raw((value if value is not None else "null").encode())
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return _raw_json(value)
        except (msgspec.DecodeError, RecursionError):
            # Text, too, where it is nested so deeply that nobody could read it as JSON.
            return value
    return value


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
