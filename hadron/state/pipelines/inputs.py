"""What pipelines consume: a cursor on each partition of the input, in the log of their home.

A partition lies where it lies; its set notes where a pipeline starts in it when it hears of the
pipeline, and the home opens its cursor there. Safety rule: consuming trigger records and creating
their instances is one entry, guarded by the cursor, so a record makes one instance, ever.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from hadron.model.errors import NotFoundError, SchemaError
from hadron.model.ids import NO_BALLOT, Ballot
from hadron.model.kinds import spec_from_json
from hadron.model.pipelines import PipelineSpec
from hadron.model.ports import Database
from hadron.model.schema import SchemaObject
from hadron.model.units import parse_time_ms
from hadron.state.machine import Command, Context, NoChange
from hadron.state.names import label_of
from hadron.state.pipelines import backfills, instances, wait_inputs, waits
from hadron.state.pipelines.events import InstancesChanged
from hadron.state.pipelines.tables import PIPELINE, PIPELINE_INPUT, PIPELINE_START, is_here
from hadron.state.schema import SCHEMA_OBJECT
from hadron.state.streams import partitions as streams
from hadron.state.streams import skips


class TriggerInstances(Command["Triggered"], frozen=True, array_like=True, tag=6):
    """Move the cursor of one input partition from `from_offset` to `to_offset`, and make an
    instance of each record in `offsets`."""

    pipeline_id: int
    partition: str
    from_offset: int
    to_offset: int
    offsets: tuple[int, ...]
    ballot: Ballot = NO_BALLOT
    """Of the batch before `to_offset`; none where the partition is in this log."""
    key_hashes: bytes = b""
    """Of the records: uint64, little-endian, 0 for none; empty where nothing is awaited by them."""


class OpenInput(Command[None], frozen=True, array_like=True, tag=43):
    """Begin to consume a partition of the input that another set has. `NoChange` where that has
    begun."""

    pipeline_id: int
    partition: str
    stream_id: int
    offset: int


class MoveInput(Command["Triggered"], frozen=True, array_like=True, tag=44):
    """Another set's partition does not have what follows the cursor: retention has dropped it
    there, or, where `is_truncated`, it has lost what was looked at, too. Go on at `to_offset`."""

    uses_reserve: ClassVar[bool] = True

    pipeline_id: int
    partition: str
    from_offset: int
    to_offset: int
    is_truncated: bool
    ballot: Ballot = NO_BALLOT


class Triggered(msgspec.Struct, frozen=True):
    """`stale`: the cursor had moved, nothing was done."""

    next_offset: int
    created: int
    stale: bool = False


# --- what is declared ---------------------------------------------------------------------------


def adopt(context: Context, pipeline_id: int, spec: PipelineSpec, stream_id: int) -> None:
    """A pipeline is declared, or was changed, that consumes a stream: open its cursor on the
    partition here, or, where it lives elsewhere, note where that starts; what is there is left
    alone."""
    if not streams.is_open(context.db, stream_id):
        return
    offset = _start(context.db, stream_id, spec.start)
    if context.is_here(spec.replica_set):
        _open(context.db, pipeline_id, context.replica_set, stream_id, offset)
        return
    context.db.execute(
        f"INSERT INTO {PIPELINE_START} VALUES(?1, ?2, ?3, ?4) ON CONFLICT DO UPDATE SET"
        " home = ?2, stream_id = ?3, next_offset = ?4 WHERE (home, stream_id) <> (?2, ?3)",
        (pipeline_id, spec.replica_set, stream_id, offset),
    )


def adopt_stream(context: Context, item: SchemaObject) -> None:
    """A stream has got a partition here: pipelines consume it from its beginning on."""
    rows: list[Any] = context.db.execute(
        f"SELECT id, spec FROM {SCHEMA_OBJECT} WHERE kind = 'Pipeline' AND namespace = ?"
        " ORDER BY id",
        (item.namespace,),
    ).fetchall()
    for pipeline_id, text in rows:
        spec = spec_from_json("Pipeline", text)
        if not isinstance(spec, PipelineSpec):
            continue
        is_known = input_of(context.db, pipeline_id) == item.id
        if spec.input == item.name and (is_known or not context.is_here(spec.replica_set)):
            adopt(context, pipeline_id, spec, item.id)
        if item.name in wait_inputs.awaited(spec.stages):
            wait_inputs.adopt(context, pipeline_id, item.namespace, spec)


def check_input(db: Database, pipeline_id: int, stream_id: int) -> None:
    """Raises `SchemaError` when a known pipeline is to read another stream."""
    if input_of(db, pipeline_id) not in (None, stream_id):
        raise SchemaError(
            f"{label_of(db, pipeline_id)} has consumed another stream, its instances belong to "
            "that",
            "declare a pipeline with another name for the new input",
        )


def input_of(db: Database, pipeline_id: int) -> int | None:
    """The stream that a pipeline here consumes; None before it was adopted."""
    row = db.execute(
        f"SELECT stream_id FROM {PIPELINE} WHERE pipeline_id = ?", (pipeline_id,)
    ).fetchone()
    return None if row is None else row[0]


def _start(db: Database, stream_id: int, start: str) -> int:
    limits = streams.bounds(db, stream_id)
    if start == "earliest":
        return limits.first_offset
    if start == "latest":
        return limits.next_offset
    if start.isdigit():
        return min(max(int(start), limits.first_offset), limits.next_offset)
    return streams.offset_at(db, stream_id, parse_time_ms(start))


def _open(db: Database, pipeline_id: int, partition: str, stream_id: int, offset: int) -> bool:
    """Whether it was not open."""
    db.execute(
        f"INSERT INTO {PIPELINE_INPUT} VALUES(?1, ?2, ?3, ?4, ?4, 0, 0, 0) ON CONFLICT DO NOTHING",
        (pipeline_id, partition, stream_id, offset),
    )
    return db.changes() > 0


def close(db: Database, pipeline_id: int) -> None:
    """It is deleted, and lived elsewhere."""
    db.execute(f"DELETE FROM {PIPELINE_START} WHERE pipeline_id = ?", (pipeline_id,))


def start_of(db: Database, pipeline_id: int) -> int | None:
    """Where a pipeline that lives elsewhere starts in the partition here; None while that is not
    known."""
    row = db.execute(
        f"SELECT next_offset FROM {PIPELINE_START} WHERE pipeline_id = ?", (pipeline_id,)
    ).fetchone()
    return None if row is None else row[0]


# --- cursors ------------------------------------------------------------------------------------


def skip_below(context: Context, stream_id: int, first_offset: int) -> None:
    """Move the cursors of pipelines over input that retention drops, and count what they had not
    looked at."""
    rows = context.db.execute(
        f"SELECT pipeline_id, next_offset FROM {PIPELINE_INPUT} WHERE stream_id = ?"
        f" AND partition = ?"
        " AND next_offset < ? ORDER BY pipeline_id",
        (stream_id, context.replica_set, first_offset),
    ).fetchall()
    context.db.execute(
        f"UPDATE {PIPELINE_INPUT} SET next_offset = ? WHERE stream_id = ? AND partition = ?"
        " AND next_offset < ?",
        (first_offset, stream_id, context.replica_set, first_offset),
    )
    for pipeline_id, cursor in rows:
        skips.note(context, "pipeline", pipeline_id, first_offset - cursor)


def apply_open_input(context: Context, command: OpenInput) -> None:
    """Raises `NotFoundError` for a pipeline that is not here, or consumes another stream."""
    db, pipeline_id = context.db, command.pipeline_id
    if input_of(db, pipeline_id) != command.stream_id:
        raise NotFoundError(
            f"{label_of(db, pipeline_id)} does not consume {label_of(db, command.stream_id)} here"
        )
    if not _open(db, pipeline_id, command.partition, command.stream_id, command.offset):
        raise NoChange(None)
    context.emit(InstancesChanged(pipeline_id))


def apply_move_input(context: Context, command: MoveInput) -> Triggered:
    """Raises `NotFoundError` for a partition that is not consumed."""
    _move(context, command)
    skipped = command.to_offset - command.from_offset
    if command.is_truncated:
        context.db.execute(
            f"UPDATE {PIPELINE_INPUT} SET truncations = truncations + 1,"
            " first_offset = next_offset WHERE pipeline_id = ? AND partition = ?",
            (command.pipeline_id, command.partition),
        )
        backfills.forget_partition(context.db, command.pipeline_id, command.partition)
    elif skipped > 0 and is_here(context.db, command.pipeline_id):
        skips.note(context, "pipeline", command.pipeline_id, skipped)
    context.emit(InstancesChanged(command.pipeline_id))
    return Triggered(command.to_offset, 0)


def apply_trigger_instances(context: Context, command: TriggerInstances) -> Triggered:
    if command.offsets and waits.lacks_keys(context.db, command.pipeline_id, command.key_hashes):
        raise NoChange(Triggered(command.from_offset, 0, stale=True))
    stream_id = _move(context, command)
    if command.offsets:
        instances.make(
            context,
            command.pipeline_id,
            stream_id,
            command.partition,
            command.offsets,
            command.key_hashes,
        )
    context.emit(InstancesChanged(command.pipeline_id))
    return Triggered(command.to_offset, len(command.offsets))


def _move(context: Context, command: TriggerInstances | MoveInput) -> int:
    """Move a cursor; returns the stream. Raises `NoChange` when it is elsewhere already."""
    db = context.db
    key = command.pipeline_id, command.partition
    row = db.execute(
        f"SELECT next_offset, stream_id FROM {PIPELINE_INPUT} WHERE pipeline_id = ?"
        f" AND partition = ?",
        key,
    ).fetchone()
    if row is None:
        raise NotFoundError(
            f"{label_of(db, command.pipeline_id)} does not read {command.partition}"
        )
    if row[0] != command.from_offset:
        raise NoChange(Triggered(row[0], 0, stale=True))
    db.execute(
        f"UPDATE {PIPELINE_INPUT} SET next_offset = ?, epoch = ?, incarnation = ?"
        " WHERE pipeline_id = ? AND partition = ?",
        (command.to_offset, *command.ballot, *key),
    )
    stream_id: int = row[1]
    return stream_id
