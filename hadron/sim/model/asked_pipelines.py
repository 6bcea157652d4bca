"""What leaders read of pipelines' tables to decide what runs, who is told and what is due, asked of
tables and of the model (PIPELINES P2, P6, P8, P10 to P14).

The tables may be right, and what is read of them wrong: then a stage runs too early, with another
one's inputs or never, a record wakes nobody, and a letter is not sent. In a run that shows only
where something is done with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from hadron.model.pipelines import PipelineSpec, StageSpec
from hadron.model.ports import Database
from hadron.sim.model.pipeline import FAILED, READY, Instance, Pipeline, parsed
from hadron.sim.model.pipelines import Pipelines
from hadron.sim.model.waits import ARMED, CAME, awaited_streams
from hadron.state.pipelines import (
    definitions,
    finished,
    letters,
    retries,
    views,
    wait_inputs,
    waiting,
)
from hadron.state.pipelines.letters import Due
from hadron.state.pipelines.stories import Attempt
from hadron.state.pipelines.views import (
    Chosen,
    InputCursor,
    InstanceStory,
    OutputRef,
    PipelineCounts,
    ReadyStage,
    StageStory,
)
from hadron.state.pipelines.wait_inputs import WaitCursor
from hadron.state.pipelines.waiting import Waiting

_HERE: Final = (
    "SELECT pipeline_id FROM hadron_pipeline JOIN hadron_schema_object ON id = pipeline_id"
    " ORDER BY pipeline_id"
)
_TIMES: Final = (
    "SELECT DISTINCT ready_ms FROM hadron_stage_run WHERE pipeline_id = ? AND stage = ?"
    " AND status = 1 ORDER BY ready_ms LIMIT 3"
)
_KEYS: Final = (
    "SELECT stream_id, key_hash FROM hadron_stage_wait WHERE pipeline_id = ?"
    " AND key_hash IS NOT NULL AND stream_id IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2 DESC"
)
_NAMES: Final = "SELECT stage FROM hadron_stage_count WHERE pipeline_id = ? ORDER BY stage"
_SOME: Final = "SELECT instance_id FROM hadron_instance WHERE pipeline_id = ? ORDER BY 1 LIMIT 40"

_GOING_ON: Final = (
    "SELECT instance_id FROM hadron_instance WHERE pipeline_id = ? AND status IN (1, 3)"
    " ORDER BY instance_id DESC LIMIT 40"
)
"""Of the others nobody needs the definition, and it may be gone."""

_ALL: Final = 1_000

Question = tuple[str, tuple[Any, ...], Any]
"""Its name, what was given, and the answer."""


def ask(db: Database) -> Iterator[Question]:
    """Of every pipeline that is here."""
    here: Any = db.execute(_HERE).fetchall()
    for (each,) in here:
        for name, given, answer in _of_one(db, each):
            yield name, (each, *given), _plain(answer)


def _plain(answer: object) -> str:
    """The same for equal ones, for people to see."""
    return msgspec.json.encode(answer, order="deterministic").decode()


def _of_one(db: Database, each: int) -> Iterator[Question]:
    yield "counts", (), views.counts(db, each)
    yield "cursors", (), views.cursors(db, each)
    yield "wait cursors", (), wait_inputs.cursors(db, each)
    yield "awaited", (), sorted(wait_inputs.all_awaited(db, each))
    yield "next due", (), waiting.next_due_ms(db, each)
    yield "oldest end", (), finished.oldest_end_ms(db, each)
    for limit in (1, _ALL):
        yield "letters", (limit,), letters.due(db, each, limit)
    yield from _of_stages(db, each)
    yield from _of_instances(db, each)
    rows: Any = db.execute(_KEYS, (each,)).fetchall()
    for stream_id in sorted({stream_id for stream_id, _ in rows}):
        keys = tuple(key for at, key in rows if at == stream_id)
        yield "waiting for", (stream_id, keys), [*waiting.waiting_for(db, each, stream_id, keys)]


def _of_stages(db: Database, each: int) -> Iterator[Question]:
    for version, stages in definitions.all_stages(db, each).items():
        told = definitions.on_failure(db, each)[version]
        for stage in stages:
            times: Any = db.execute(_TIMES, (each, stage.name)).fetchall()
            for (at_ms,) in times:
                of_stage = version, stage.name, at_ms
                due_ms = views.next_ready_ms(db, each, version, stage.name, at_ms)
                yield "next ready", of_stage, due_ms
                for limit, gone in ((_ALL, ()), (1, (1,))):
                    found = views.ready_stages(
                        db, each, version, stage, now_ms=at_ms, limit=limit, except_ids=gone
                    )
                    if stage.name == told:
                        others = [other for other in stages if other is not stage]
                        found = views.with_failures(db, each, found, others)
                    yield "ready", (*of_stage, limit, gone), found


def _of_instances(db: Database, each: int) -> Iterator[Question]:
    rows: Any = db.execute(_SOME, (each,)).fetchall()
    ids = tuple(number for (number,) in rows)
    if not ids:
        return
    yield "needed keys", (ids,), retries.needed_keys(db, each, ids)
    yield "roots", (ids,), sorted(views.roots(db, each, ids).items())
    rows = db.execute(_GOING_ON, (each,)).fetchall()
    going_on = tuple(number for (number,) in rows)
    if going_on:
        graphs = definitions.by_version(db, each, going_on)
        yield "by version", (going_on,), sorted(graphs.items())
    names: Any = db.execute(_NAMES, (each,)).fetchall()
    ways: list[tuple[str, str]] = [("", ""), *((name, "") for (name,) in names)]
    ways += [("", name) for (name,) in names]
    for status in (1, 2, 3, 4):
        for stage, failed_stage in ways:
            chosen = Chosen(status, stage=stage, failed_stage=failed_stage)
            found = views.ids_of(db, each, chosen, after_id=1, limit=3)
            yield "ids of", (status, stage, failed_stage), found
    for which, after in ((None, 0), (FAILED, 1)):
        stories = views.instances(db, each, status=which, after_id=after, limit=20)
        yield "instances", (which, after), stories


# --- what the model says --------------------------------------------------------------------------


def expected(pipelines: Pipelines, name: str, given: tuple[Any, ...]) -> Any:
    each, *more = given
    asked = _Asked(pipelines, each, pipelines.by_id[each])
    return _plain(_EXPECTED[name](asked, *more))


class _Asked(NamedTuple):
    pipelines: Pipelines
    id: int
    pipeline: Pipeline

    @property
    def now(self) -> PipelineSpec:
        return parsed(self.pipelines.objects[self.id].spec)

    def stage(self, version: int, name: str) -> StageSpec:
        return self.pipeline.stages_of(version, self.now)[name]


def _counts(asked: _Asked) -> PipelineCounts:
    pipeline = asked.pipeline
    ended = [made.status for made in pipeline.instances.values()]
    live, done, failed, cancelled = (ended.count(at) + pipeline.gone[at] for at in (1, 2, 3, 4))
    publishing: Counter[str] = Counter()
    for commands in asked.pipelines.publishing.values():
        for each in commands:
            if each is not None and each.pipeline_id == asked.id:
                publishing[each.stage] += len(each.instance_ids)
    stages = {name: pipeline.count(name) for name in pipeline.stages}
    return PipelineCounts(live, done, failed, stages, dict(publishing), cancelled)


def _cursors(asked: _Asked) -> list[InputCursor]:
    return [
        InputCursor(asked.id, name, at.stream_id, at.offset, at.ballot, at.truncations)
        for name, at in sorted(asked.pipeline.cursors.items())
    ]


def _wait_cursors(asked: _Asked) -> list[WaitCursor]:
    return [
        WaitCursor(*key, at.offset, at.ballot, at.truncations)
        for key, at in sorted(asked.pipeline.waits.cursors.items())
    ]


def _awaited(asked: _Asked) -> list[str]:
    return sorted(
        {
            name
            for version in asked.pipeline.definitions
            for name in awaited_streams(asked.pipeline.stages_of(version, asked.now).values())
        }
    )


def _next_due(asked: _Asked) -> int | None:
    if asked.pipeline.waits.lost():
        return 0
    waiting = asked.pipeline.waits.by_stage.values()
    due = [w.due_ms for w in waiting if w.status == ARMED and w.due_ms is not None]
    return min(due, default=None)


def _oldest_end(asked: _Asked) -> int | None:
    ended = [i.ended_ms for i in asked.pipeline.instances.values() if i.ended_ms is not None]
    return min(ended, default=None)


def _letters(asked: _Asked, limit: int) -> list[Due]:
    found = []
    for number, stage in sorted(asked.pipeline.letters.items()):
        made = asked.pipeline.instances[number]
        run = asked.pipeline.runs.get((stage, number))
        reason, attempts = (run.reason or "", run.attempts) if run is not None else ("", 0)
        found.append(Due(number, stage, reason, attempts, made.created_ms, *_root(made)))
    return found[:limit]


def _waiting_for(asked: _Asked, stream_id: int, keys: Sequence[int]) -> list[Waiting]:
    found = []
    for key in keys:
        for (number, stage), w in sorted(asked.pipeline.waits.by_stage.items()):
            if (w.status, w.stream_id, w.key) == (ARMED, stream_id, key):
                made = asked.pipeline.instances[number]
                found.append(Waiting(number, made.version, stage, key, _root(made)))
    return found


def _root(made: Instance) -> tuple[int, str, int]:
    return made.stream_id, made.partition, made.offset


def _next_ready(asked: _Asked, version: int, stage: str, after_ms: int) -> int | None:
    return min((at_ms for at_ms, _ in _waiting_runs(asked, version, stage, after_ms)), default=None)


def _waiting_runs(
    asked: _Asked, version: int, stage: str, after_ms: int = -1
) -> list[tuple[int, int]]:
    """(When, whose) of what is ready, or will be."""
    return sorted(
        (run.ready_ms, number)
        for (name, number), run in asked.pipeline.runs.items()
        if (name, run.version, run.status) == (stage, version, READY) and run.ready_ms > after_ms
    )


def _ready(
    asked: _Asked, version: int, stage: str, now_ms: int, limit: int, gone: Sequence[int]
) -> list[ReadyStage]:
    """Those that have waited for longest; each with its inputs, in the order that is declared, and
    the one for what is given up with what that was."""
    pipeline, spec = asked.pipeline, asked.stage(version, stage)
    runs = _waiting_runs(asked, version, stage)
    due = [number for at_ms, number in runs if at_ms <= now_ms and number not in gone]
    found = []
    for number in due[:limit]:
        made, run = pipeline.instances[number], pipeline.runs[stage, number]
        outputs = [
            OutputRef(*pipeline.runs[name, number].output)  # type: ignore[arg-type]
            for name in spec.dependencies
            if (name, number) in pipeline.runs and pipeline.runs[name, number].output[2] is not None
        ]
        if len(outputs) < len(spec.dependencies):
            continue
        is_told = stage == pipeline.on_failure(version)
        lost = _given_up(asked, version, stage, number) if is_told else ("", "")
        before = pipeline.retried.get((stage, number), 0)
        root, attempt = OutputRef(*_root(made)), run.attempts + 1
        found.append(
            ReadyStage(number, attempt, root, tuple(outputs), made.created_ms, before, *lost)
        )
    return found


def _given_up(asked: _Asked, version: int, told: str, number: int) -> tuple[str, str]:
    """The first stage that has failed, and why."""
    for name in asked.pipeline.stages_of(version, asked.now):
        run = asked.pipeline.runs.get((name, number))
        if name != told and run is not None and run.status == FAILED:
            return name, run.reason or ""
    return "", ""


def _needed_keys(asked: _Asked, ids: Sequence[int]) -> list[int]:
    present = parsed(asked.pipeline.definitions[max(asked.pipeline.definitions)])
    if not awaited_streams(present.stages):
        return []
    known = {n for (n, _), w in asked.pipeline.waits.by_stage.items() if w.key is not None}
    return [number for number in ids if number not in known]


def _roots(asked: _Asked, ids: Sequence[int]) -> list[tuple[int, OutputRef]]:
    return [(number, OutputRef(*_root(asked.pipeline.instances[number]))) for number in sorted(ids)]


def _by_version(asked: _Asked, ids: Sequence[int]) -> list[tuple[int, list[int]]]:
    found: dict[int, list[int]] = {}
    for number in ids:
        found.setdefault(asked.pipeline.instances[number].version, []).append(number)
    return sorted(found.items())


def _ids_of(asked: _Asked, status: int, stage: str, failed_stage: str) -> list[int]:
    def has(name: str, number: int, wanted: int) -> bool:
        run = asked.pipeline.runs.get((name, number))
        return not name or (run is not None and run.status == wanted)

    return [
        number
        for number, made in sorted(asked.pipeline.instances.items())
        if number > 1
        and made.status == status
        and has(stage, number, READY)
        and has(failed_stage, number, FAILED)
    ][:3]


def _instances(asked: _Asked, status: int | None, after_id: int) -> list[InstanceStory]:
    return [
        InstanceStory(
            number,
            made.version,
            made.status,
            OutputRef(*_root(made)),
            made.created_ms,
            tuple(_stories(asked.pipeline, number)),
            tuple(
                stage
                for stage, each in sorted(asked.pipeline.waits.of(number).items())
                if each.status == CAME
            ),
        )
        for number, made in sorted(asked.pipeline.instances.items())
        if number > after_id and status in (None, made.status)
    ][:20]


def _stories(pipeline: Pipeline, number: int) -> Iterator[StageStory]:
    for (name, of), run in sorted(pipeline.runs.items()):
        if of != number:
            continue
        waiting = pipeline.waits.by_stage.get((number, name))
        tried = sorted(
            (attempt, *told)
            for (stage, whose, attempt), told in pipeline.tried.items()
            if (stage, whose) == (name, number)
        )
        yield StageStory(
            name,
            run.status,
            run.attempts - pipeline.retried.get((name, number), 0),
            OutputRef(*run.output) if run.output[2] is not None else None,  # type: ignore[arg-type]
            run.reason or "",
            run.ready_ms,
            waiting.due_ms or 0 if waiting is not None else 0,
            tuple(Attempt(*told[:-1], told[-1] or "") for told in tried),
        )


_EXPECTED: Final[dict[str, Callable[..., Any]]] = {
    "counts": _counts,
    "cursors": _cursors,
    "wait cursors": _wait_cursors,
    "awaited": _awaited,
    "next due": _next_due,
    "oldest end": _oldest_end,
    "letters": _letters,
    "waiting for": _waiting_for,
    "next ready": _next_ready,
    "ready": _ready,
    "needed keys": _needed_keys,
    "roots": _roots,
    "by version": _by_version,
    "ids of": _ids_of,
    "instances": _instances,
}

QUESTIONS: Final = frozenset(_EXPECTED)
