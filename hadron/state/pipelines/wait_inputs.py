"""How far the streams were looked at whose records stages wait for: a cursor for each partition, in
the log of the pipeline's home, as inputs have them (PIPELINES P5, P14).

They begin at the end: each partition's set notes where that was when it heard of the pipeline. A
stream that nothing waits for any more is forgotten, and begins at its end once more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec

from hadron.model.errors import NotFoundError
from hadron.model.ids import Ballot
from hadron.model.pipelines import PipelineSpec, StageSpec
from hadron.model.ports import Database
from hadron.state import schema
from hadron.state.machine import Command, Context, NoChange
from hadron.state.names import label_of
from hadron.state.pipelines import definitions
from hadron.state.pipelines.events import InstancesChanged
from hadron.state.pipelines.tables import PIPELINE_WAIT, PIPELINE_WAIT_START, is_here
from hadron.state.schema import SCHEMA_OBJECT
from hadron.state.streams import partitions as streams
from hadron.state.streams import skips


class OpenWait(Command[None], frozen=True, array_like=True, tag=56):
    """Begin to look at another set's partition of an awaited stream. `NoChange` where that has
    begun."""

    pipeline_id: int
    stream_id: int
    partition: str
    offset: int


class WaitCursor(msgspec.Struct, frozen=True):
    """How far a partition of an awaited stream was looked at."""

    stream_id: int
    partition: str
    next_offset: int
    ballot: Ballot
    truncations: int


class Moved(msgspec.Struct, frozen=True):
    """`stale`: the cursor had moved, nothing was done."""

    next_offset: int
    stale: bool = False


def awaits(stages: Iterable[StageSpec]) -> bool:
    """Whether one of them waits for records."""
    return any(stage.wait is not None and stage.wait.stream for stage in stages)


def awaited(stages: Iterable[StageSpec]) -> set[str]:
    """The streams whose records they wait for."""
    return {stage.wait.stream for stage in stages if stage.wait is not None and stage.wait.stream}


def adopt(context: Context, pipeline_id: int, namespace: str, spec: PipelineSpec) -> None:
    """A pipeline is declared, or was changed: note where the partitions here of what it awaits
    begin for it; what is there is left alone. What is awaited no more begins at its end once it is
    again; until then instances that began before may ask for where it began for them."""
    db = context.db
    db.execute(
        f"UPDATE {PIPELINE_WAIT_START} SET home = '' WHERE pipeline_id = ?"
        " AND stream_id NOT IN (SELECT value FROM json_each(?))",
        (pipeline_id, json.dumps(_ids(db, namespace, awaited(spec.stages)))),
    )
    for name in sorted(awaited(spec.stages)):
        stream = schema.find(db, "Stream", namespace, name)
        if stream is None or not streams.is_open(db, stream.id):
            continue
        offset = streams.bounds(db, stream.id).next_offset
        if context.is_here(spec.replica_set):
            if is_here(db, pipeline_id):
                _open(db, pipeline_id, stream.id, context.replica_set, offset)
            continue
        db.execute(
            f"INSERT INTO {PIPELINE_WAIT_START} VALUES(?1, ?2, ?3, ?4) ON CONFLICT DO UPDATE SET"
            " home = ?3, next_offset = ?4 WHERE home <> ?3",
            (pipeline_id, stream.id, spec.replica_set, offset),
        )


def _open(db: Database, pipeline_id: int, stream_id: int, partition: str, offset: int) -> bool:
    """Whether it was not open."""
    db.execute(
        f"INSERT INTO {PIPELINE_WAIT} VALUES(?, ?, ?, ?, 0, 0, 0) ON CONFLICT DO NOTHING",
        (pipeline_id, stream_id, partition, offset),
    )
    return db.changes() > 0


def forget(db: Database, pipeline_id: int) -> None:
    """A definition of a pipeline here is gone: what nothing waits for now is not looked at, and its
    retention skips nothing."""
    db.execute(
        f"DELETE FROM {PIPELINE_WAIT} WHERE pipeline_id = ?"
        " AND stream_id NOT IN (SELECT value FROM json_each(?))",
        (pipeline_id, json.dumps(_awaited_ids(db, pipeline_id))),
    )


def _awaited_ids(db: Database, pipeline_id: int) -> list[int]:
    """Of the streams whose records some instance of a pipeline here may wait for."""
    ((namespace,),) = db.execute(
        f"SELECT namespace FROM {SCHEMA_OBJECT} WHERE id = ?", (pipeline_id,)
    ).fetchall()
    return _ids(db, namespace, all_awaited(db, pipeline_id))


def _ids(db: Database, namespace: str, names: Iterable[str]) -> list[int]:
    found = (schema.find(db, "Stream", namespace, name) for name in names)
    return sorted(stream.id for stream in found if stream is not None)


def close(db: Database, pipeline_id: int) -> None:
    """It is deleted, and lived elsewhere."""
    db.execute(f"DELETE FROM {PIPELINE_WAIT_START} WHERE pipeline_id = ?", (pipeline_id,))


def close_stream(context: Context, stream_id: int) -> bool:
    """A stream is deleted: nobody looks at its partitions any more. Who waits for its records is
    given up behind this, slice by slice (`waits.apply_expire_waits`)."""
    for table in (PIPELINE_WAIT, PIPELINE_WAIT_START):
        context.db.execute(f"DELETE FROM {table} WHERE stream_id = ?", (stream_id,))
    return False


def start_of(db: Database, pipeline_id: int, stream_id: int) -> int | None:
    """Where a pipeline that lives elsewhere begins in the partition here; None while that is not
    known."""
    row = db.execute(
        f"SELECT next_offset FROM {PIPELINE_WAIT_START} WHERE pipeline_id = ? AND stream_id = ?",
        (pipeline_id, stream_id),
    ).fetchone()
    return None if row is None else row[0]


def skip_below(context: Context, stream_id: int, first_offset: int) -> None:
    """Retention drops records here that were not looked at: that is counted."""
    rows: list[Any] = context.db.execute(
        f"SELECT pipeline_id, next_offset FROM {PIPELINE_WAIT} WHERE stream_id = ?"
        " AND partition = ? AND next_offset < ? ORDER BY pipeline_id",
        (stream_id, context.replica_set, first_offset),
    ).fetchall()
    for pipeline_id, cursor in rows:
        context.db.execute(
            f"UPDATE {PIPELINE_WAIT} SET next_offset = ? WHERE pipeline_id = ? AND stream_id = ?"
            " AND partition = ?",
            (first_offset, pipeline_id, stream_id, context.replica_set),
        )
        skips.note(context, "pipeline", pipeline_id, first_offset - cursor)


def apply_open_wait(context: Context, command: OpenWait) -> None:
    """Raises `NotFoundError` for a pipeline that is not here, or waits for nothing there."""
    db = context.db
    if not is_here(db, command.pipeline_id):
        raise NotFoundError(f"{label_of(db, command.pipeline_id)} does not live here")
    if command.stream_id not in _awaited_ids(db, command.pipeline_id):
        raise _not_awaited(db, command.pipeline_id, command.stream_id)
    key = command.pipeline_id, command.stream_id, command.partition
    if not _open(db, *key, command.offset):
        raise NoChange(None)
    context.emit(InstancesChanged(command.pipeline_id))


def move(
    context: Context,
    key: tuple[int, int, str],
    from_offset: int,
    to_offset: int,
    ballot: Ballot,
    *,
    is_truncated: bool,
) -> None:
    """Move a cursor, of (pipeline, stream, partition). Raises `NoChange` when it is elsewhere
    already, `NotFoundError` without one."""
    db = context.db
    row = db.execute(
        f"SELECT next_offset FROM {PIPELINE_WAIT} WHERE pipeline_id = ? AND stream_id = ?"
        " AND partition = ?",
        key,
    ).fetchone()
    if row is None or not is_here(db, key[0]):
        raise _not_awaited(db, *key[:2])
    if row[0] != from_offset:
        raise NoChange(Moved(row[0], stale=True))
    db.execute(
        f"UPDATE {PIPELINE_WAIT} SET next_offset = ?, epoch = ?, incarnation = ?,"
        " truncations = truncations + ? WHERE pipeline_id = ? AND stream_id = ? AND partition = ?",
        (to_offset, *ballot, int(is_truncated), *key),
    )


def _not_awaited(db: Database, pipeline_id: int, stream_id: int) -> NotFoundError:
    return NotFoundError(
        f"{label_of(db, pipeline_id)} waits for no records of {label_of(db, stream_id)}"
    )


def cursors(db: Database, pipeline_id: int) -> list[WaitCursor]:
    rows: Any = db.execute(
        "SELECT stream_id, partition, next_offset, epoch, incarnation, truncations"
        f" FROM {PIPELINE_WAIT} WHERE pipeline_id = ? ORDER BY stream_id, partition",
        (pipeline_id,),
    )
    return [
        WaitCursor(stream_id, partition, offset, Ballot(*ballot), truncations)
        for stream_id, partition, offset, *ballot, truncations in rows
    ]


def all_awaited(db: Database, pipeline_id: int) -> set[str]:
    """The streams whose records some instance may wait for."""
    known = definitions.all_stages(db, pipeline_id)
    return awaited(stage for stages in known.values() for stage in stages)
