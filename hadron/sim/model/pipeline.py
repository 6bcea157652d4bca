"""One pipeline as the model has it: its definitions, its instances, and what was done of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

from hadron.model.ids import NO_BALLOT, Ballot
from hadron.model.kinds import spec_from_json
from hadron.model.pipelines import PipelineSpec, StageSpec, graph_of, place_of
from hadron.sim.model.waits import (
    ARMED,
    CAME,
    LATE,
    NO_KEY,
    PASSED,
    SKIPPED,
    WAS_GONE,
    Waits,
    deleted,
    other_way,
    other_ways,
)
from hadron.state.pipelines.publishing import PublishStages
from hadron.state.pipelines.stage_runs import CompleteStages, FailStages

LIVE: Final = 1
WAITING: Final = 0
READY: Final = 1
DONE: Final = 2
FAILED: Final = 3
PUBLISHING: Final = 4
CANCELLED: Final = 4
"""Of an instance."""


@dataclass(slots=True)
class Instance:
    version: int
    status: int
    stream_id: int
    partition: str
    offset: int
    created_ms: int
    ended_ms: int | None = None

    def end(self, status: int, now_ms: int) -> None:
        """It is live, or was."""
        self.status, self.ended_ms = status, now_ms


@dataclass(slots=True)
class Run:
    """A stage of an instance, once it may run."""

    version: int
    ready_ms: int
    status: int = READY
    attempts: int = 0
    output: tuple[int | None, str | None, int | None] = (None, None, None)
    reason: str | None = None


class Cursor(NamedTuple):
    """`first`: where triggers have begun."""

    stream_id: int
    first: int
    offset: int
    ballot: Ballot = NO_BALLOT
    truncations: int = 0


@dataclass(slots=True)
class Backfill:
    partition: str
    first: int
    at: int
    end: int
    per_s: int
    again: bool
    request: bytes
    status: int = 1
    created: int = 0


@dataclass(slots=True)
class Pipeline:
    """Attributes:
    is_here: false once it was deleted, and its rows are being dropped.
    stages: every one that was ever declared.
    definitions: by version: with which graph instances began, as last declared.
    input: the stream.
    cursors: by partition: the stream, up to where all was looked at, the ballot before that, and
        how often the partition had lost it.
    runs: by (stage, instance id).
    tried: by stage, instance and attempt, what is told of the latest attempts.
    retried: by that, how many attempts there were before the last retry.
    counted: by stage, what its runs were when the pipeline was deleted.
    started: by request: the first id of what was started by hand, and how many.
    backfills: by number.
    looked_at: by partition: offsets that backfills have come by.
    gone: how many have been dropped, by status; and of their stages, by (stage, status).
    letters: that are due: by instance, at which stage it was given up.
    held: by version of a definition, how many instances might go on with it then.
    """

    input: int
    is_here: bool = True
    next_instance: int = 1
    stages: set[str] = field(default_factory=set)
    definitions: dict[int, str] = field(default_factory=dict)
    cursors: dict[str, Cursor] = field(default_factory=dict)
    instances: dict[int, Instance] = field(default_factory=dict)
    runs: dict[tuple[str, int], Run] = field(default_factory=dict)
    retried: dict[tuple[str, int], int] = field(default_factory=dict)
    tried: dict[tuple[str, int, int], tuple[int, int, str, str, str | None]] = field(
        default_factory=dict
    )
    counted: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    started: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    backfills: dict[int, Backfill] = field(default_factory=dict)
    looked_at: dict[str, set[int]] = field(default_factory=dict)
    gone: Counter[object] = field(default_factory=Counter)
    letters: dict[int, str] = field(default_factory=dict)
    held: dict[int, int] = field(default_factory=dict)
    waits: Waits = field(default_factory=Waits)

    def tell(
        self, now_ms: int, command: CompleteStages | FailStages | PublishStages, index: int
    ) -> None:
        """P16: of the attempt at `index`; five of each stage of an instance are kept."""
        attempt, instance_id = command.attempts[index], command.instance_ids[index]
        took = command.took_ms or (-1,)
        took_ms = took[index] if len(took) == len(command.instance_ids) else took[0]
        reason = command.reason[:200] or None if isinstance(command, FailStages) else None
        told = now_ms, took_ms, command.runner, command.code_version, reason
        self.tried[command.stage, instance_id, attempt] = told
        for key in list(self.tried):
            if key[:2] == (command.stage, instance_id) and key[2] <= attempt - 5:
                del self.tried[key]

    def has_done(
        self, stages: set[str], instance_id: int, statuses: tuple[int, ...] = PASSED
    ) -> bool:
        return all(
            (run := self.runs.get((stage, instance_id))) is not None and run.status in statuses
            for stage in stages
        )

    def declare(self, spec: str) -> None:
        """P6: what began keeps its graph."""
        version = max(self.definitions, default=0)
        known = self.definitions.get(version)
        is_same = known is not None and graph_of(parsed(known)) == graph_of(parsed(spec))
        self.definitions[version if is_same else version + 1] = spec

    def make(
        self, stream_id: int, partition: str, offsets: Sequence[int], now_ms: int
    ) -> list[int]:
        """An instance of each record; returns their ids."""
        version = max(self.definitions)
        made = list(range(self.next_instance, self.next_instance + len(offsets)))
        for instance_id, offset in zip(made, offsets, strict=True):
            self.instances[instance_id] = Instance(
                version, LIVE, stream_id, partition, offset, now_ms
            )
        self.next_instance += len(made)
        return made

    def needed(self) -> dict[int, int]:
        """By version, how many instances may go on with it; those that none needs are left out."""
        used = Counter(
            each.version for each in self.instances.values() if each.status in (LIVE, FAILED)
        )
        last = max(self.definitions, default=0)
        return {each: used[each] for each in self.definitions if used[each] or each == last}

    def stages_of(self, version: int, now: PipelineSpec) -> dict[str, StageSpec]:
        """Each as it is declared now, where it is the same step of the graph."""
        present = {stage.name: stage for stage in now.stages}
        return {
            stage.name: present[stage.name]
            if stage.name in present and place_of(present[stage.name]) == place_of(stage)
            else stage
            for stage in parsed(self.definitions[version]).stages
        }

    def on_failure(self, version: int) -> str:
        """The stage that runs for what is given up."""
        return parsed(self.definitions[version]).on_failure

    def ordinary(self, version: int, now: PipelineSpec) -> dict[str, StageSpec]:
        """The others."""
        stages = self.stages_of(version, now)
        stages.pop(self.on_failure(version), None)
        return stages

    def give_up(self, now: PipelineSpec, stage: str, instance_id: int, now_ms: int) -> None:
        """P11: it has failed, and what is declared for that runs; P10: unless it was cancelled."""
        instance = self.instances[instance_id]
        if instance.status == CANCELLED:
            return
        if instance.status == LIVE:
            instance.end(FAILED, now_ms)
            if now.dead_letters:
                self.letters[instance_id] = stage
        name = self.on_failure(instance.version)
        following = self.stages_of(instance.version, now).get(name)
        if following is not None and name != stage:
            self.begin(now, following, instance_id, now_ms)

    def step(self, now: PipelineSpec, instance_ids: list[int], now_ms: int) -> None:
        """Whatever may run now is ready; whoever has nothing left is done."""
        for instance_id in instance_ids:
            instance = self.instances[instance_id]
            stages = self.ordinary(instance.version, now)
            for stage in stages.values():
                self.choose_ways(now, stage, instance_id, now_ms)
            for stage in stages.values():
                self.let_run(now, stage, instance_id, now_ms)
            if instance.status == LIVE and self.has_done(set(stages), instance_id):
                instance.end(DONE, now_ms)

    def let_run(self, now: PipelineSpec, stage: StageSpec, instance_id: int, now_ms: int) -> None:
        """It is ready, if all that it waits for is done, and it has not begun."""
        stages = self.ordinary(self.instances[instance_id].version, now)
        is_way = stage.name in other_ways(stages.values())
        if not is_way and self.has_done(before(stage), instance_id):
            self.begin(now, stage, instance_id, now_ms)

    def hold_back(self, now: PipelineSpec, instance_id: int) -> None:
        """What is ready and has something to wait for again, waits."""
        stages = self.ordinary(self.instances[instance_id].version, now)
        early = [
            stage.name
            for stage in stages.values()
            if stage.name not in other_ways(stages.values())
            and (run := self.runs.get((stage.name, instance_id))) is not None
            and run.status == READY
            and not self.has_done(before(stage), instance_id)
        ]
        for name in early:
            self.wait_again(name, instance_id)

    def wait_again(self, stage: str, instance_id: int) -> None:
        """It was ready, or done: it begins anew, under a number that was not used."""
        run = self.runs[stage, instance_id]
        run.status, run.attempts = WAITING, run.attempts + 1
        self.retried[stage, instance_id] = run.attempts

    def begin(self, now: PipelineSpec, stage: StageSpec, instance_id: int, now_ms: int) -> None:
        """It is ready, unless it has begun."""
        known = self.runs.get((stage.name, instance_id))
        ready_ms = now_ms + stage.delay_ms
        if known is None:
            version = self.instances[instance_id].version
            self.runs[stage.name, instance_id] = Run(version, ready_ms)
        elif known.status == WAITING:
            known.status, known.ready_ms = READY, ready_ms
        if stage.wait is not None and self.runs[stage.name, instance_id].status == READY:
            self._await(now, stage, instance_id, now_ms)

    # --- waits ----------------------------------------------------------------------------------

    def _await(self, now: PipelineSpec, stage: StageSpec, instance_id: int, now_ms: int) -> None:
        """It is its turn."""
        assert stage.wait is not None
        awaited = self.waits.by_stage[instance_id, stage.name]
        if awaited.status == CAME:
            self.came(now, stage.name, instance_id, now_ms)
        elif awaited.is_deleted:
            self.give_up_waiting(now, stage.name, instance_id, deleted(stage.wait), now_ms)
        elif awaited.key is None and stage.wait.stream:
            was_retried = any(number == instance_id for _, number in self.retried)
            reason = NO_KEY.format(WAS_GONE if was_retried else "")
            self.give_up_waiting(now, stage.name, instance_id, reason, now_ms)
        elif stage.wait.timeout_ms and awaited.due_ms is None:
            awaited.due_ms = now_ms + stage.wait.timeout_ms

    def give_up_waiting(
        self, now: PipelineSpec, stage: str, instance_id: int, reason: str, now_ms: int
    ) -> None:
        run = self.runs[stage, instance_id]
        run.status, run.reason = FAILED, reason
        self.waits.by_stage[instance_id, stage].end()
        self.give_up(now, stage, instance_id, now_ms)

    def came(self, now: PipelineSpec, stage: str, instance_id: int, now_ms: int) -> None:
        """What it waits for is there: it is done, and the other way is not taken."""
        run, awaited = self.runs[stage, instance_id], self.waits.by_stage[instance_id, stage]
        run.status, run.reason, run.output, awaited.due_ms = DONE, None, awaited.output, None
        stages = self.ordinary(self.instances[instance_id].version, now)
        way = stages.get(other_way(stages[stage]) or "")
        if way is not None:
            self.skip(now, way, instance_id, now_ms)
        self.advance(now, stage, instance_id, now_ms)

    def advance(self, now: PipelineSpec, stage: str, instance_id: int, now_ms: int) -> None:
        """A stage is done: only what waited for it is looked at."""
        instance = self.instances[instance_id]
        if stage == self.on_failure(instance.version):
            return
        stages = self.ordinary(instance.version, now)
        for following in stages.values():
            if stage in before(following):
                self.let_run(now, following, instance_id, now_ms)
        if instance.status == LIVE and self.has_done(set(stages), instance_id):
            instance.end(DONE, now_ms)

    def skip(self, now: PipelineSpec, stage: StageSpec, instance_id: int, now_ms: int) -> None:
        """It does not run, unless it has begun."""
        version = self.instances[instance_id].version
        run = self.runs.setdefault((stage.name, instance_id), Run(version, now_ms, WAITING))
        if run.status != WAITING:
            return
        run.status, run.reason = SKIPPED, None
        if stage.wait is not None:
            awaited = self.waits.by_stage[instance_id, stage.name]
            if awaited.status == ARMED:
                awaited.end()
        way = self.ordinary(version, now).get(other_way(stage) or "")
        if way is not None:
            self.skip(now, way, instance_id, now_ms)
        self.pass_by(now, stage.name, instance_id, now_ms)

    def pass_by(self, now: PipelineSpec, ended: str, instance_id: int, now_ms: int) -> None:
        """It was skipped, or has waited for too long."""
        stages = self.ordinary(self.instances[instance_id].version, now)
        for following in stages.values():
            if ended not in before(following) or following.name in other_ways(stages.values()):
                continue
            is_lost = ended in following.dependencies
            if is_lost or self.has_done(before(following), instance_id, (SKIPPED, LATE)):
                self.skip(now, following, instance_id, now_ms)
            else:
                self.let_run(now, following, instance_id, now_ms)

    def choose_ways(
        self, now: PipelineSpec, stage: StageSpec, instance_id: int, now_ms: int
    ) -> None:
        """Of an instance that may have got other stages."""
        run = self.runs.get((stage.name, instance_id))
        if run is None or run.status not in PASSED:
            return
        if run.status in (SKIPPED, LATE):
            self.pass_by(now, stage.name, instance_id, now_ms)
        stages = self.ordinary(self.instances[instance_id].version, now)
        way = stages.get(other_way(stage) or "")
        if way is not None and run.status == LATE:
            self.begin(now, way, instance_id, now_ms)
        elif way is not None:
            self.skip(now, way, instance_id, now_ms)

    def expire(
        self, now: PipelineSpec, stage: StageSpec, instance_id: int, reason: str, now_ms: int
    ) -> None:
        """It has waited for too long."""
        stages = self.ordinary(self.instances[instance_id].version, now)
        way = stages.get(other_way(stage) or "")
        if way is None:
            self.give_up_waiting(now, stage.name, instance_id, reason, now_ms)
            return
        run = self.runs[stage.name, instance_id]
        run.status, run.reason = LATE, reason
        self.waits.by_stage[instance_id, stage.name].end()
        self.pass_by(now, stage.name, instance_id, now_ms)
        self.begin(now, way, instance_id, now_ms)

    def count(self, stage: str) -> tuple[int, int, int]:
        found = [run.status for (name, _), run in self.runs.items() if name == stage]
        ready = found.count(READY) + found.count(PUBLISHING)
        done, failed = (self.gone[stage, each] for each in (DONE, FAILED))
        return ready, found.count(DONE) + done, found.count(FAILED) + failed


def before(stage: StageSpec) -> set[str]:
    return {*stage.dependencies, *stage.after}


@lru_cache(maxsize=256)
def parsed(spec: str) -> PipelineSpec:
    found = spec_from_json("Pipeline", spec)
    assert isinstance(found, PipelineSpec)
    return found
