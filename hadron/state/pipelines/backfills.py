"""Backfills: instances of records that were there before a pipeline looked, in ranges that people
name.

What was looked at is known in ranges for each partition: from where the triggers have begun up to
their cursor, and what backfills have come by. Safety rule: a step is guarded by where its backfill
stands, and makes instances only of what no range has, so each record makes one, unless people want
it `again` (PIPELINES P13).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

import msgspec

from hadron.model.errors import NotFoundError, RequestError
from hadron.model.ports import Database
from hadron.state.machine import Command, Context, NoChange
from hadron.state.names import label_of
from hadron.state.pipelines import instances, waits
from hadron.state.pipelines.events import InstancesChanged
from hadron.state.pipelines.tables import (
    BACKFILL,
    LOOKED_AT,
    PIPELINE_INPUT,
    BackfillStatus,
    is_here,
)

MAX_BACKFILLS: Final = 1_000
"""Of a pipeline, that are kept: the oldest that have ended go."""


class StartBackfill(Command["Backfill"], frozen=True, array_like=True, tag=50):
    """Make instances of a partition's records from `from_offset` on, before `to_offset`, as far as
    the triggers have come. Asked again under the same `request`: `NoChange`."""

    pipeline_id: int
    partition: str
    from_offset: int
    to_offset: int
    per_s: int
    """Instances, at most; 0 is as many as there is room for."""
    again: bool
    """Also of records that were looked at."""
    request: bytes


class StepBackfill(Command["Stepped"], frozen=True, array_like=True, tag=51):
    """Move a backfill from `from_offset` to `to_offset`, and make an instance of each record in
    `offsets` that was not looked at."""

    pipeline_id: int
    number: int
    from_offset: int
    to_offset: int
    offsets: tuple[int, ...]
    key_hashes: bytes = b""
    """As of `TriggerInstances`."""


class ControlBackfill(Command[int], frozen=True, array_like=True, tag=52):
    """Let a backfill that has not ended run, pause or end. Returns its status."""

    uses_reserve: ClassVar[bool] = True

    pipeline_id: int
    number: int
    status: int


class Backfill(msgspec.Struct, frozen=True):
    """Attributes:
    next_offset: everything before, from `from_offset` on, was looked at.
    created: instances.
    """

    number: int
    partition: str
    from_offset: int
    next_offset: int
    to_offset: int
    per_s: int
    again: bool
    status: int
    created: int


class Stepped(msgspec.Struct, frozen=True):
    """`stale`: it stood elsewhere, or does not run, and nothing was done."""

    next_offset: int
    created: int
    stale: bool = False


def apply_start_backfill(context: Context, command: StartBackfill) -> Backfill:
    """Raises `NotFoundError` for a partition that is not consumed here, `RequestError` for a range
    without records that the triggers have come to."""
    db, key = context.db, (command.pipeline_id, command.partition)
    for known in backfills(db, command.pipeline_id, command.request):
        raise NoChange(known)
    row = db.execute(
        f"SELECT next_offset FROM {PIPELINE_INPUT} WHERE pipeline_id = ? AND partition = ?", key
    ).fetchone()
    if row is None or not is_here(db, command.pipeline_id):
        raise NotFoundError(
            f"{label_of(db, command.pipeline_id)} does not read {command.partition}"
        )
    end = min(command.to_offset, row[0])
    if not 0 <= command.from_offset < end:
        raise RequestError(
            f"offsets {command.from_offset} to {command.to_offset} of {command.partition} cannot "
            f"be filled in: the pipeline has looked at what is before {row[0]}",
            "name a range before that: what follows makes instances by itself",
        )
    ((number,),) = db.execute(
        f"SELECT ifnull(max(number), 0) + 1 FROM {BACKFILL} WHERE pipeline_id = ?", key[:1]
    ).fetchall()
    db.execute(
        f"INSERT INTO {BACKFILL} VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?)",
        (
            command.pipeline_id,
            number,
            command.partition,
            command.from_offset,
            command.from_offset,
            end,
            command.per_s,
            int(command.again),
            BackfillStatus.RUNNING,
            command.request,
        ),
    )
    db.execute(
        f"DELETE FROM {BACKFILL} WHERE pipeline_id = ? AND status > {BackfillStatus.PAUSED}"
        " AND number <= ?",
        (command.pipeline_id, number - MAX_BACKFILLS),
    )
    context.emit(InstancesChanged(command.pipeline_id))
    (made,) = backfills(db, command.pipeline_id, command.request)
    return made


def apply_step_backfill(context: Context, command: StepBackfill) -> Stepped:
    """Raises `NotFoundError` without the backfill."""
    db, pipeline_id = context.db, command.pipeline_id
    backfill = find(db, pipeline_id, command.number)
    is_due = (
        backfill.status == BackfillStatus.RUNNING and backfill.next_offset == command.from_offset
    )
    if not is_due or not is_here(db, pipeline_id):
        raise NoChange(Stepped(backfill.next_offset, 0, stale=True))
    offsets, packed = command.offsets, command.key_hashes
    if offsets and waits.lacks_keys(db, pipeline_id, packed):
        raise NoChange(Stepped(backfill.next_offset, 0, stale=True))
    if not backfill.again:
        offsets = _not_looked_at(db, pipeline_id, backfill.partition, offsets)
        kept = set(offsets)
        packed = b"".join(
            packed[8 * index : 8 * index + 8]
            for index, each in enumerate(command.offsets)
            if each in kept
        )
    if offsets:
        ((stream_id,),) = db.execute(
            f"SELECT stream_id FROM {PIPELINE_INPUT} WHERE pipeline_id = ? AND partition = ?",
            (pipeline_id, backfill.partition),
        ).fetchall()
        instances.make(context, pipeline_id, stream_id, backfill.partition, offsets, packed)
    _note_looked_at(db, pipeline_id, backfill.partition, command.from_offset, command.to_offset - 1)
    status = (
        BackfillStatus.DONE if command.to_offset >= backfill.to_offset else BackfillStatus.RUNNING
    )
    db.execute(
        f"UPDATE {BACKFILL} SET next_offset = ?, status = ?, created = created + ?"
        " WHERE pipeline_id = ? AND number = ?",
        (command.to_offset, status, len(offsets), pipeline_id, command.number),
    )
    context.emit(InstancesChanged(pipeline_id))
    return Stepped(command.to_offset, len(offsets))


def apply_control_backfill(context: Context, command: ControlBackfill) -> int:
    """Raises `NotFoundError` without the backfill."""
    backfill = find(context.db, command.pipeline_id, command.number)
    if backfill.status in (BackfillStatus.DONE, BackfillStatus.CANCELLED, command.status):
        raise NoChange(backfill.status)
    context.db.execute(
        f"UPDATE {BACKFILL} SET status = ? WHERE pipeline_id = ? AND number = ?",
        (command.status, command.pipeline_id, command.number),
    )
    context.emit(InstancesChanged(command.pipeline_id))
    return command.status


def forget_partition(db: Database, pipeline_id: int, partition: str) -> None:
    """It had lost what was looked at: its offsets mean other records now."""
    key = pipeline_id, partition
    db.execute(f"DELETE FROM {LOOKED_AT} WHERE pipeline_id = ? AND partition = ?", key)
    db.execute(
        f"UPDATE {BACKFILL} SET status = {BackfillStatus.CANCELLED} WHERE pipeline_id = ?"
        f" AND partition = ? AND status < {BackfillStatus.DONE}",
        key,
    )


def _not_looked_at(
    db: Database, pipeline_id: int, partition: str, offsets: Sequence[int]
) -> tuple[int, ...]:
    rows: list[Any] = db.execute(
        f"SELECT first, last FROM {LOOKED_AT} WHERE pipeline_id = ?1 AND partition = ?2"
        " UNION ALL SELECT first_offset, next_offset - 1"
        f" FROM {PIPELINE_INPUT} WHERE pipeline_id = ?1 AND partition = ?2",
        (pipeline_id, partition),
    ).fetchall()
    return tuple(each for each in offsets if not any(first <= each <= last for first, last in rows))


def _note_looked_at(db: Database, pipeline_id: int, partition: str, first: int, last: int) -> None:
    """Ranges neither overlap nor touch."""
    if last < first:
        return
    key = pipeline_id, partition
    touching = "pipeline_id = ? AND partition = ? AND first <= ? AND last >= ?"
    rows: list[Any] = db.execute(
        f"SELECT first, last FROM {LOOKED_AT} WHERE {touching}", (*key, last + 1, first - 1)
    ).fetchall()
    db.execute(f"DELETE FROM {LOOKED_AT} WHERE {touching}", (*key, last + 1, first - 1))
    first = min([first, *(each for each, _ in rows)])
    last = max([last, *(each for _, each in rows)])
    db.execute(f"INSERT INTO {LOOKED_AT} VALUES(?, ?, ?, ?)", (*key, first, last))


_COLUMNS: Final = (
    "number, partition, from_offset, next_offset, to_offset, per_s, again, status, created"
)


def find(db: Database, pipeline_id: int, number: int) -> Backfill:
    """Raises `NotFoundError`."""
    for each in backfills(db, pipeline_id):
        if each.number == number:
            return each
    raise NotFoundError(f"{label_of(db, pipeline_id)} has no backfill {number}")


def backfills(db: Database, pipeline_id: int, request: bytes | None = None) -> list[Backfill]:
    """All that are known, or that of a request."""
    rows: list[Any] = db.execute(
        f"SELECT {_COLUMNS} FROM {BACKFILL} WHERE pipeline_id = ? AND request = ? ORDER BY number"
        if request is not None
        else f"SELECT {_COLUMNS} FROM {BACKFILL} WHERE pipeline_id = ? ORDER BY number",
        (pipeline_id,) if request is None else (pipeline_id, request),
    ).fetchall()
    return [
        Backfill(number, partition, first, following, end, per_s, bool(again), status, created)
        for number, partition, first, following, end, per_s, again, status, created in rows
    ]
