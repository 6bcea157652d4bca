"""Dead letters of instances: a record of each one that is given up, in a stream of the home.

That one is due is noted in the entry that gives the instance up; the leader, which has what it says
to write, sends it. Safety rule: sending letters and noting that is one entry, so each is sent once,
and none is forgotten (PIPELINES P11).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from hadron.model.ports import Database
from hadron.state.machine import BatchShape, Command, Context, NoChange
from hadron.state.pipelines import definitions
from hadron.state.pipelines.tables import INSTANCE, INSTANCE_LETTER, STAGE_RUN
from hadron.state.streams import partitions as streams
from hadron.state.streams.producers import Appended


class SendLetters(Command["Sent"], frozen=True, array_like=True, tag=48):
    """The entry's body has the letters of these instances, in this order. `NoChange` unless all of
    them are due: somebody else has sent some."""

    pipeline_id: int
    instance_ids: tuple[int, ...]
    out_stream_id: int
    size: int
    """Bytes of the body."""

    @property
    def batches(self) -> tuple[BatchShape, ...]:
        return (BatchShape(len(self.instance_ids), self.size),)


class Due(msgspec.Struct, frozen=True):
    """What a letter tells: which instance was given up, at which stage, and why; and its trigger.

    Attributes:
        attempts: at that stage.
    """

    instance_id: int
    stage: str
    reason: str
    attempts: int
    created_ms: int
    stream_id: int
    partition: str
    offset: int


def note(context: Context, pipeline_id: int, stage: str, ids: Sequence[int]) -> None:
    """These instances have just failed, at this stage."""
    if ids and definitions.spec_of(context.db, pipeline_id).dead_letters:
        context.db.execute(
            f"INSERT INTO {INSTANCE_LETTER} SELECT ?, value, ? FROM json_each(?) WHERE true"
            " ON CONFLICT DO UPDATE SET stage = excluded.stage",
            (pipeline_id, stage, json.dumps(list(ids))),
        )


class Sent(msgspec.Struct, frozen=True):
    """Where the letters are; None where they were not due."""

    appended: Appended | None


def apply_send_letters(context: Context, command: SendLetters) -> Sent:
    """Raises `NotFoundError` without the stream."""
    db = context.db
    ids = json.dumps(command.instance_ids)
    which = "pipeline_id = ? AND instance_id IN (SELECT value FROM json_each(?))"
    row = db.execute(
        f"SELECT count(*) FROM {INSTANCE_LETTER} WHERE {which}", (command.pipeline_id, ids)
    ).fetchone()
    if row is None or row[0] != len(command.instance_ids):
        raise NoChange(Sent(None))
    appended = streams.append(
        context, command.out_stream_id, len(command.instance_ids), command.size
    )
    db.execute(f"DELETE FROM {INSTANCE_LETTER} WHERE {which}", (command.pipeline_id, ids))
    return Sent(appended)


def due(db: Database, pipeline_id: int, limit: int) -> list[Due]:
    """Letters that are not sent yet, the oldest instances first."""
    rows: list[Any] = db.execute(
        "SELECT l.instance_id, l.stage, ifnull(r.reason, ''), ifnull(r.attempts, 0), i.created_ms,"
        f" i.stream_id, i.partition, i.offset FROM {INSTANCE_LETTER} l"
        f" JOIN {INSTANCE} i USING (pipeline_id, instance_id)"
        f" LEFT JOIN {STAGE_RUN} r USING (pipeline_id, stage, instance_id)"
        " WHERE l.pipeline_id = ? ORDER BY l.instance_id LIMIT ?",
        (pipeline_id, limit),
    ).fetchall()
    return [Due(*row) for row in rows]
