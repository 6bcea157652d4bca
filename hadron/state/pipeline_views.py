"""What drivers and people read of pipelines: ready invocations, instances, counts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from hadron.model.ports import Database
from hadron.state.pipelines import (
    INSTANCE,
    PIPELINE,
    PIPELINE_INPUT,
    STAGE_COUNT,
    STAGE_RETRY,
    STAGE_RUN,
)

_LARGEST: Final = (1 << 63) - 1
"""SQLite's largest integer; the wire carries larger ones."""


class OutputRef(msgspec.Struct, frozen=True):
    """Where a record is."""

    stream_id: int
    partition: str
    offset: int


class ReadyStage(msgspec.Struct, frozen=True):
    """A stage invocation that may run now; of its attempts `attempts_before` count no more."""

    instance_id: int
    attempt: int
    root: OutputRef
    dependencies: tuple[OutputRef, ...]
    created_ms: int
    attempts_before: int = 0


class StageStatus(msgspec.Struct, frozen=True):
    """`attempts`: that failed, since the instance was retried if it was."""

    name: str
    status: int
    attempts: int
    output: OutputRef | None
    reason: str


class InstanceStatus(msgspec.Struct, frozen=True):
    instance_id: int
    status: int
    root: OutputRef
    created_ms: int
    stages: tuple[StageStatus, ...]


class InputCursor(msgspec.Struct, frozen=True):
    pipeline_id: int
    partition: str
    stream_id: int
    next_offset: int


class PipelineCounts(msgspec.Struct, frozen=True):
    """`stages` maps a stage's name to (ready, done, failed)."""

    live: int
    done: int
    failed: int
    stages: dict[str, tuple[int, int, int]]


def cursors(db: Database) -> list[InputCursor]:
    rows = db.execute(
        f"SELECT pipeline_id, partition, stream_id, next_offset FROM {PIPELINE_INPUT}"
        " ORDER BY pipeline_id, partition"
    )
    return [InputCursor(*row) for row in rows]


def counts(db: Database, pipeline_id: int) -> PipelineCounts:
    row = db.execute(
        f"SELECT live, done, failed FROM {PIPELINE} WHERE pipeline_id = ?", (pipeline_id,)
    ).fetchone()
    stages = {
        name: (ready, done, failed)
        for name, ready, done, failed in db.execute(
            f"SELECT stage, ready, done, failed FROM {STAGE_COUNT} WHERE pipeline_id = ?",
            (pipeline_id,),
        )
    }
    live, done, failed = row or (0, 0, 0)
    return PipelineCounts(live, done, failed, stages)


def ready_stages(
    db: Database,
    pipeline_id: int,
    stage: str,
    dependencies: tuple[str, ...],
    *,
    now_ms: int,
    limit: int,
    except_ids: Collection[int] = (),
) -> list[ReadyStage]:
    """The longest waiting invocations of a stage that are due, leaving out `except_ids`.

    Also left out, for good: those that depend on a stage which was done before it was declared to
    have an output.
    """
    found: list[ReadyStage] = []
    rows = db.execute(
        "SELECT r.instance_id, r.attempts + 1, i.stream_id, i.partition, i.offset,"
        " i.created_ms, ifnull(t.attempts_before, 0)"
        f" FROM {STAGE_RUN} r JOIN {INSTANCE} i USING (pipeline_id, instance_id)"
        f" LEFT JOIN {STAGE_RETRY} t USING (pipeline_id, stage, instance_id)"
        " WHERE r.pipeline_id = ? AND r.stage = ? AND r.status = 1 AND r.ready_ms <= ?"
        " ORDER BY r.ready_ms, r.instance_id",
        (pipeline_id, stage, now_ms),
    )
    for instance_id, attempt, stream_id, partition, offset, created_ms, before in rows:
        if instance_id in except_ids:
            continue
        outputs = [_output(db, pipeline_id, name, instance_id) for name in dependencies]
        known = tuple(output for output in outputs if output is not None)
        if len(known) < len(outputs):
            continue
        root = OutputRef(stream_id, partition, offset)
        found.append(ReadyStage(instance_id, attempt, root, known, created_ms, before))
        if len(found) >= limit:
            break
    return found


def _output(db: Database, pipeline_id: int, stage: str, instance_id: int) -> OutputRef | None:
    row = db.execute(
        f"SELECT out_stream_id, out_partition, out_offset FROM {STAGE_RUN}"
        " WHERE pipeline_id = ? AND stage = ? AND instance_id = ?",
        (pipeline_id, stage, instance_id),
    ).fetchone()
    return OutputRef(*row) if row is not None and row[2] is not None else None


def next_ready_ms(db: Database, pipeline_id: int, stage: str, after_ms: int) -> int | None:
    """When the next invocation that is not yet due becomes due, None when none waits."""
    row = db.execute(
        f"SELECT min(ready_ms) FROM {STAGE_RUN}"
        " WHERE pipeline_id = ? AND stage = ? AND status = 1 AND ready_ms > ?",
        (pipeline_id, stage, after_ms),
    ).fetchone()
    return None if row is None else row[0]


def instances(
    db: Database, pipeline_id: int, *, status: int | None, after_id: int, limit: int
) -> list[InstanceStatus]:
    """Instances by id, each with the stages that have begun."""
    after_id = min(after_id, _LARGEST)
    # A literal: the index of failed instances is not used for a status that is bound.
    where = f"AND status = {int(status)}" if status is not None else ""
    rows = db.execute(
        f"SELECT instance_id, status, stream_id, partition, offset, created_ms FROM {INSTANCE}"
        f" WHERE pipeline_id = ? AND instance_id > ? {where} ORDER BY instance_id LIMIT ?",
        (pipeline_id, after_id, limit),
    ).fetchall()
    return [
        InstanceStatus(
            instance_id,
            state,
            OutputRef(stream_id, partition, offset),
            created_ms,
            _stages(db, pipeline_id, instance_id),
        )
        for instance_id, state, stream_id, partition, offset, created_ms in rows
    ]


def failed_ids(db: Database, pipeline_id: int, *, after_id: int, limit: int) -> list[int]:
    """Failed instances behind `after_id`."""
    rows = db.execute(
        f"SELECT instance_id FROM {INSTANCE} WHERE pipeline_id = ? AND instance_id > ?"
        " AND status = 3 ORDER BY instance_id LIMIT ?",
        (pipeline_id, min(after_id, _LARGEST), limit),
    )
    return [instance_id for (instance_id,) in rows]


def _stages(db: Database, pipeline_id: int, instance_id: int) -> tuple[StageStatus, ...]:
    rows = db.execute(
        "SELECT c.stage, r.status, r.attempts - ifnull(t.attempts_before, 0), r.out_stream_id,"
        f" r.out_partition, r.out_offset, r.reason FROM {STAGE_COUNT} c CROSS JOIN {STAGE_RUN} r"
        " ON r.pipeline_id = c.pipeline_id AND r.stage = c.stage AND r.instance_id = ?"
        f" LEFT JOIN {STAGE_RETRY} t USING (pipeline_id, stage, instance_id)"
        " WHERE c.pipeline_id = ? ORDER BY c.stage",
        (instance_id, pipeline_id),
    )
    return tuple(
        StageStatus(
            name,
            status,
            attempts,
            OutputRef(stream_id, partition, offset) if offset is not None else None,
            reason or "",
        )
        for name, status, attempts, stream_id, partition, offset, reason in rows
    )
