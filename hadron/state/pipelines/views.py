"""What drivers and people read of pipelines: ready invocations, instances, counts."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from hadron.model.ids import NO_BALLOT, Ballot
from hadron.model.pipelines import StageSpec
from hadron.model.ports import Database
from hadron.state.pipelines import stories
from hadron.state.pipelines.stories import Attempt
from hadron.state.pipelines.tables import (
    INSTANCE,
    PIPELINE,
    PIPELINE_INPUT,
    STAGE_COUNT,
    STAGE_PUBLISHING,
    STAGE_RETRY,
    STAGE_RUN,
    STAGE_WAIT,
    StageStatus,
    WaitStatus,
)

_LARGEST: Final = (1 << 63) - 1
"""SQLite's largest integer; the wire carries larger ones."""


class OutputRef(msgspec.Struct, frozen=True):
    """Where a record is."""

    stream_id: int
    partition: str
    offset: int


class ReadyStage(msgspec.Struct, frozen=True):
    """A stage invocation that may run now; of its attempts `attempts_before` count no more. One
    that runs for what was given up has what was: a stage, and why."""

    instance_id: int
    attempt: int
    root: OutputRef
    dependencies: tuple[OutputRef, ...]
    created_ms: int
    attempts_before: int = 0
    failed_stage: str = ""
    failure: str = ""


class StageStory(msgspec.Struct, frozen=True):
    """Attributes:
    attempts: that failed, since the instance was retried if it was.
    ready_ms: not before then, or when it was.
    due_ms: until then it waits for a record or a signal, at most; 0 for ever.
    tried: the latest attempts, oldest first.
    """

    name: str
    status: int
    attempts: int
    output: OutputRef | None
    reason: str
    ready_ms: int = 0
    due_ms: int = 0
    tried: tuple[Attempt, ...] = ()


class InstanceStory(msgspec.Struct, frozen=True):
    """Attributes:
    stages: that have begun.
    came: of those that wait, whose record or signal has come.
    """

    instance_id: int
    version: int
    status: int
    root: OutputRef
    created_ms: int
    stages: tuple[StageStory, ...]
    came: tuple[str, ...] = ()


class InputCursor(msgspec.Struct, frozen=True):
    pipeline_id: int
    partition: str
    stream_id: int
    next_offset: int
    ballot: Ballot = NO_BALLOT
    truncations: int = 0


class PipelineCounts(msgspec.Struct, frozen=True):
    """`stages` maps a stage's name to (ready, done, failed), `publishing` to how many of those that
    are ready have a decided output that is on its way to another set."""

    live: int
    done: int
    failed: int
    stages: dict[str, tuple[int, int, int]]
    publishing: dict[str, int] = {}
    cancelled: int = 0


def cursors(db: Database, pipeline_id: int) -> list[InputCursor]:
    rows: Any = db.execute(
        "SELECT partition, stream_id, next_offset, epoch, incarnation, truncations"
        f" FROM {PIPELINE_INPUT} WHERE pipeline_id = ? ORDER BY partition",
        (pipeline_id,),
    )
    return [
        InputCursor(pipeline_id, partition, stream_id, offset, Ballot(*ballot), truncations)
        for partition, stream_id, offset, *ballot, truncations in rows
    ]


def counts(db: Database, pipeline_id: int) -> PipelineCounts:
    row = db.execute(
        f"SELECT live, done, failed, cancelled FROM {PIPELINE} WHERE pipeline_id = ?",
        (pipeline_id,),
    ).fetchone()
    stages = {
        name: (ready, done, failed)
        for name, ready, done, failed in db.execute(
            f"SELECT stage, ready, done, failed FROM {STAGE_COUNT} WHERE pipeline_id = ?",
            (pipeline_id,),
        )
    }
    live, done, failed, cancelled = row or (0, 0, 0, 0)
    publishing: dict[str, int] = dict(
        db.execute(
            f"SELECT stage, sum(json_array_length(ids)) FROM {STAGE_PUBLISHING}"
            " WHERE pipeline_id = ? GROUP BY stage",
            (pipeline_id,),
        ).fetchall()
    )
    return PipelineCounts(live, done, failed, stages, publishing, cancelled)


def ready_stages(
    db: Database,
    pipeline_id: int,
    version: int,
    stage: StageSpec,
    *,
    now_ms: int,
    limit: int,
    except_ids: Container[int] = (),
) -> list[ReadyStage]:
    """The longest waiting invocations of a stage that are due, leaving out `except_ids`."""
    # Most of what is left out is at runners, and is not looked up.
    rows = db.execute(
        f"SELECT instance_id FROM {STAGE_RUN} WHERE pipeline_id = ? AND version = ?"
        f" AND stage = ? AND status = {StageStatus.READY}"
        " AND ready_ms <= ? ORDER BY ready_ms, instance_id",
        (pipeline_id, version, stage.name, now_ms),
    )
    chosen = list(islice((each for (each,) in rows if each not in except_ids), limit))
    found: list[ReadyStage] = []
    for instance_id, attempt, stream_id, partition, offset, created_ms, before in db.execute(
        "SELECT r.instance_id, r.attempts + 1, i.stream_id, i.partition, i.offset,"
        " i.created_ms, ifnull(t.attempts_before, 0)"
        f" FROM json_each(?) j CROSS JOIN {STAGE_RUN} r ON r.instance_id = j.value"
        f" JOIN {INSTANCE} i USING (pipeline_id, instance_id)"
        f" LEFT JOIN {STAGE_RETRY} t USING (pipeline_id, stage, instance_id)"
        " WHERE r.pipeline_id = ? AND r.stage = ? ORDER BY j.key",
        (json.dumps(chosen), pipeline_id, stage.name),
    ):
        outputs = [_output(db, pipeline_id, name, instance_id) for name in stage.dependencies]
        known = tuple(output for output in outputs if output is not None)
        if len(known) == len(outputs):
            root = OutputRef(stream_id, partition, offset)
            found.append(ReadyStage(instance_id, attempt, root, known, created_ms, before))
    return found


def with_failures(
    db: Database, pipeline_id: int, ready: Sequence[ReadyStage], stages: Iterable[StageSpec]
) -> list[ReadyStage]:
    """The same, with what each instance was given up for: of these stages the first."""
    failures: dict[int, tuple[str, str]] = {}
    ids = json.dumps([each.instance_id for each in ready])
    for stage in stages:
        for instance_id, reason in db.execute(
            f"SELECT instance_id, reason FROM {STAGE_RUN} WHERE pipeline_id = ? AND stage = ?"
            f" AND status = {StageStatus.FAILED}"
            " AND instance_id IN (SELECT value FROM json_each(?))",
            (pipeline_id, stage.name, ids),
        ):
            failures.setdefault(instance_id, (stage.name, reason or ""))
    found = []
    for each in ready:
        name, reason = failures.get(each.instance_id, ("", ""))
        found.append(msgspec.structs.replace(each, failed_stage=name, failure=reason))
    return found


def _output(db: Database, pipeline_id: int, stage: str, instance_id: int) -> OutputRef | None:
    row = db.execute(
        f"SELECT out_stream_id, out_partition, out_offset FROM {STAGE_RUN}"
        " WHERE pipeline_id = ? AND stage = ? AND instance_id = ?",
        (pipeline_id, stage, instance_id),
    ).fetchone()
    return OutputRef(*row) if row is not None and row[2] is not None else None


def next_ready_ms(
    db: Database, pipeline_id: int, version: int, stage: str, after_ms: int
) -> int | None:
    """When the next invocation that is not yet due becomes due, None when none waits."""
    row = db.execute(
        f"SELECT ready_ms FROM {STAGE_RUN} WHERE pipeline_id = ? AND version = ? AND stage = ?"
        f" AND status = {StageStatus.READY} AND ready_ms > ? ORDER BY ready_ms LIMIT 1",
        (pipeline_id, version, stage, after_ms),
    ).fetchone()
    return None if row is None else row[0]


def instances(
    db: Database, pipeline_id: int, *, status: int | None, after_id: int, limit: int
) -> list[InstanceStory]:
    """Instances by id, each with the stages that have begun."""
    after_id = min(after_id, _LARGEST)
    # A literal: the index of failed instances is not used for a status that is bound.
    where = f"AND status = {int(status)}" if status is not None else ""
    rows = db.execute(
        "SELECT instance_id, version, status, stream_id, partition, offset, created_ms"
        f" FROM {INSTANCE} WHERE pipeline_id = ? AND instance_id > ? {where}"
        " ORDER BY instance_id LIMIT ?",
        (pipeline_id, after_id, limit),
    ).fetchall()
    return [
        InstanceStory(
            instance_id,
            version,
            state,
            OutputRef(stream_id, partition, offset),
            created_ms,
            _stages(db, pipeline_id, instance_id),
            _came(db, pipeline_id, instance_id),
        )
        for instance_id, version, state, stream_id, partition, offset, created_ms in rows
    ]


def roots(db: Database, pipeline_id: int, ids: Sequence[int]) -> dict[int, OutputRef]:
    """The triggers of those of these instances that are there."""
    rows: Any = db.execute(
        "SELECT instance_id, stream_id, partition, offset"
        f" FROM {INSTANCE} WHERE pipeline_id = ?"
        " AND instance_id IN (SELECT value FROM json_each(?))",
        (pipeline_id, json.dumps(list(ids))),
    )
    return {instance_id: OutputRef(*root) for instance_id, *root in rows}


def version_of(db: Database, pipeline_id: int, instance_id: int) -> int:
    """The definition's that an instance goes by; 0 without it."""
    row = db.execute(
        f"SELECT version FROM {INSTANCE} WHERE pipeline_id = ? AND instance_id = ?",
        (pipeline_id, min(instance_id, _LARGEST)),
    ).fetchone()
    return 0 if row is None else int(row[0])


class Chosen(msgspec.Struct, frozen=True):
    """Instances by what they are.

    Attributes:
        before_ms: made before then; 0 is whenever.
        stage: one of which this stage is ready; "" is any.
        failed_stage: one in which this stage has failed; "" is any.
    """

    status: int
    before_ms: int = 0
    stage: str = ""
    failed_stage: str = ""


def ids_of(
    db: Database, pipeline_id: int, chosen: Chosen, *, after_id: int, limit: int
) -> list[int]:
    """Those instances behind `after_id`."""
    after_id = min(after_id, _LARGEST)
    more = ""
    bindings: list[int | str] = [pipeline_id, after_id]
    if chosen.before_ms:
        more += " AND i.created_ms < ?"
        bindings.append(chosen.before_ms)
    for stage, status in ((chosen.stage, 1), (chosen.failed_stage, 3)):
        if stage:
            more += (
                f" AND EXISTS (SELECT 1 FROM {STAGE_RUN} r WHERE r.pipeline_id = i.pipeline_id"
                f" AND r.stage = ? AND r.instance_id = i.instance_id AND r.status = {status})"
            )
            bindings.append(stage)
    # A literal: the index of failed instances is not used for a status that is bound.
    rows: list[Any] = db.execute(
        f"SELECT instance_id FROM {INSTANCE} i WHERE pipeline_id = ? AND instance_id > ?"
        f" AND status = {int(chosen.status)}{more} ORDER BY instance_id LIMIT ?",
        (*bindings, limit),
    ).fetchall()
    return [instance_id for (instance_id,) in rows]


def _came(db: Database, pipeline_id: int, instance_id: int) -> tuple[str, ...]:
    rows = db.execute(
        f"SELECT stage FROM {STAGE_WAIT} WHERE pipeline_id = ? AND instance_id = ?"
        f" AND status = {WaitStatus.CAME} ORDER BY stage",
        (pipeline_id, instance_id),
    ).fetchall()
    return tuple(stage for (stage,) in rows)


def _stages(db: Database, pipeline_id: int, instance_id: int) -> tuple[StageStory, ...]:
    rows = db.execute(
        "SELECT c.stage, r.status, r.attempts - ifnull(t.attempts_before, 0), r.out_stream_id,"
        f" r.out_partition, r.out_offset, r.reason, r.ready_ms, ifnull(w.due_ms, 0)"
        f" FROM {STAGE_COUNT} c CROSS JOIN {STAGE_RUN} r"
        " ON r.pipeline_id = c.pipeline_id AND r.stage = c.stage AND r.instance_id = ?"
        f" LEFT JOIN {STAGE_RETRY} t USING (pipeline_id, stage, instance_id)"
        f" LEFT JOIN {STAGE_WAIT} w USING (pipeline_id, stage, instance_id)"
        " WHERE c.pipeline_id = ? ORDER BY c.stage",
        (instance_id, pipeline_id),
    ).fetchall()
    return tuple(
        StageStory(
            name,
            status,
            attempts,
            OutputRef(stream_id, partition, offset) if offset is not None else None,
            reason or "",
            ready_ms,
            due_ms,
            stories.of_stage(db, pipeline_id, name, instance_id),
        )
        for name, status, attempts, stream_id, partition, offset, reason, ready_ms, due_ms in rows
    )
