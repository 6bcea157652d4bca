"""Hands ready stages of one pipeline to runners, in micro-batches: what becomes ready while a
runner works goes into its next one, so they grow with the load, and nobody waits on a timer.

An instance's stages are those of the definition that it began with, so a runner may get a stage
that is declared no more; each micro-batch is of one definition, and says what its stage is.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import trio

from hadron.model.errors import ConflictError, HadronError, NotFoundError
from hadron.model.limits import MAX_MESSAGE_BYTES, MAX_MICRO_BATCH
from hadron.model.pipelines import StageSpec
from hadron.model.ports import Database
from hadron.model.schema import SchemaObject
from hadron.model.transactions import Lock, TransactionId
from hadron.partition.controller import Controller
from hadron.pipelines.assignments import Assignments, Runner, Work
from hadron.pipelines.runners import CODE_CHARACTERS, NAME_CHARACTERS, RunnerSession, RunnerSink
from hadron.state.pipelines import definitions
from hadron.state.pipelines import views as pipeline_views
from hadron.state.pipelines.stage_runs import FailStages
from hadron.state.pipelines.views import ReadyStage

_log: Final = logging.getLogger(__name__)

_INVOCATIONS_BYTES: Final = MAX_MESSAGE_BYTES // 2
"""One message to a runner. Invocations name streams and partitions, so many of them with long names
would not fit into a frame."""


_GRACE_S: Final = 2.0
"""Beyond a stage's timeout: what its runner says at the end of its time is on its way."""

_NEVER: Final = float("inf")

_LONGEST_SLEEP_S: Final = 600.0
"""The wall clock may jump; nothing is late by more than this because of it."""

_RUN_ID_BYTES: Final = 32

_MOST_SUSPECTED: Final = 1_000
"""That are read beyond what a runner takes."""

_NAMED: Final = 5
"""Of runners, and of versions of their code, in a warning."""


class _Ready(NamedTuple):
    """What may run of a stage.

    Attributes:
        due_ms: when there is more; None without any that waits for its time.
        is_all: nothing more may run than these.
    """

    version: int
    stage: StageSpec
    invocations: list[ReadyStage]
    due_ms: int | None
    is_all: bool


class Dispatcher:
    """Of one pipeline. `run` must be running.

    Attributes:
        definitions: by version, as of the last look.
    """

    def __init__(self, item: SchemaObject, controller: Controller) -> None:
        self.definitions: Mapping[int, tuple[StageSpec, ...]] = {}
        # Numbers of micro-batches are those of this leadership.
        self.assignments = Assignments(controller.ballot.incarnation << 32)
        self._item = item
        self._controller = controller
        self._sessions: dict[int, RunnerSession] = {}
        self._ended: set[tuple[str, int]] = set()
        """Since the last look began: what it read of these is over."""
        self._differ: set[str] = set()
        """Stages whose runners have different code, which was told."""
        self._moved = trio.Event()
        self._looks_at = _NEVER
        """When it looks again by itself."""

    def wake(self) -> None:
        """Stages became ready, a runner came, or takes more."""
        self._moved.set()

    # --- runners --------------------------------------------------------------------------------

    def join(
        self,
        sink: RunnerSink,
        engine: str,
        stages: Collection[str],
        max_batch: int,
        credit: int,
        declared: Sequence[StageSpec],
        *,
        counts_invocations: bool = False,
        name: str = "",
        code_version: str = "",
        run_id: bytes = b"",
    ) -> RunnerSession:
        """A runner came, for the `stages` of an engine, or for all of that engine when it names
        none.

        Args:
            max_batch: invocations at a time; 0 for as many as there may be.
            credit: how many messages it takes, or with `counts_invocations` invocations.
            declared: the stages that there are now; there are those, too, that instances have which
                began with others.
            name, code_version: of the runner, for people.
            run_id: the same whenever this run of a program joins; empty where it does not say.

        Raises `NotFoundError` for a stage that does not exist.
        """
        known = [*declared, *(each for some in self.definitions.values() for each in some)]
        names = {stage.name for stage in known if stage.engine == engine and stage.wait is None}
        unknown = set(stages) - names
        if unknown:
            others = {_whose(stage) for stage in known if stage.name in unknown}
            raise NotFoundError(
                f"pipeline {self._item.name!r} has no stage {', '.join(sorted(unknown))} with "
                f"engine {engine!r}",
                "; ".join(sorted(others)) or f"it has: {', '.join(sorted(names)) or 'none'}",
            )
        at_most = min(max_batch or MAX_MICRO_BATCH, MAX_MICRO_BATCH)
        runner = self.assignments.join(
            engine,
            stages,
            at_most,
            credit,
            lambda: sink.writable,
            counts_invocations=counts_invocations,
            name=name[:NAME_CHARACTERS],
            code_version=code_version[:CODE_CHARACTERS],
            run_id=run_id[:_RUN_ID_BYTES],
        )
        sink.on_writable = self.wake
        session = RunnerSession(runner, sink)
        self._sessions[runner.number] = session
        self._compare_codes(declared)
        self.wake()
        return session

    def grant(self, session: RunnerSession, credit: int) -> None:
        session.runner.credit += credit
        self.wake()

    def begin(
        self, session: RunnerSession, numbers: Collection[int], code_version: str = ""
    ) -> None:
        """A runner works on these micro-batches."""
        code = code_version[:CODE_CHARACTERS]
        before = dict(session.runner.codes)
        ends_at = self.assignments.begin(session.runner.number, numbers, trio.current_time(), code)
        if session.runner.codes != before:
            for stages in self.definitions.values():
                self._compare_codes(stages)
        if ends_at < self._looks_at:
            self.wake()

    def _compare_codes(self, stages: Iterable[StageSpec]) -> None:
        """Tell once where runners of one stage have different code."""
        for stage in stages:
            codes = self.assignments.codes(stage.name, stage.engine, stage.run)
            if len(codes) < 2:
                self._differ.discard(stage.name)
            elif stage.name not in self._differ:
                self._differ.add(stage.name)
                shown = "; ".join(
                    f"{code} at {', '.join(sorted(names)[:_NAMED])}"
                    for code, names in sorted(codes.items())[:_NAMED]
                )
                _log.warning(
                    "runners of stage %r of pipeline %r have different code, so what becomes of "
                    "an instance depends on which of them has it: %s",
                    stage.name,
                    self._item.name,
                    shown,
                )

    def work_on(self, stage: str, instance_id: int) -> Work:
        """Who runs a stage of an instance."""
        return self.assignments.work_on(stage, instance_id, trio.current_time())

    def leave(self, session: RunnerSession, *, is_lost: bool = True) -> None:
        """A runner is not there any more. `is_lost`: without having said so."""
        if self._sessions.pop(session.runner.number, None) is not None:
            self.assignments.leave(session.runner.number, is_lost=is_lost)
            self.wake()

    def stop(self, reason: HadronError) -> None:
        for session in list(self._sessions.values()):
            session.sink.fail(reason)
        self._sessions.clear()

    def settle(self, stage: str, ids: Collection[int], by_runner: bool) -> None:
        """These are completed, failed or cancelled, by whomever."""
        self.assignments.settle(stage, ids, by_runner)
        self._ended.update((stage, each) for each in ids)

    # --- transactions ---------------------------------------------------------------------------

    def take(self, transaction: TransactionId, lock: Lock) -> None:
        """The transaction ends these attempts, and is not over."""
        self.assignments.take(lock.name, transaction, _ids(lock))

    def untake(self, transaction: TransactionId, lock: Lock) -> None:
        """It was rolled back, or has ended them."""
        known = [each for some in self.definitions.values() for each in some]
        leases = [_lease_s(stage) for stage in known if stage.name == lock.name]
        now, lease_s = trio.current_time(), max(leases, default=0.0)
        self.assignments.untake(lock.name, transaction, _ids(lock), now, lease_s)
        self.wake()

    # --- handing out ----------------------------------------------------------------------------

    async def run(self) -> None:
        while True:
            moved = self._moved
            self.assignments.expire(trio.current_time())
            due_at = await self._hand_out()
            self._looks_at = min(due_at, self.assignments.next_deadline() or _NEVER)
            with trio.move_on_at(self._looks_at):
                await moved.wait()
            if moved.is_set():
                self._moved = trio.Event()

    async def _hand_out(self) -> float:
        """Hand out what is ready, a micro-batch of each stage in turn; returns when something that
        waits for its time becomes ready."""
        while True:
            now, now_ms = trio.current_time(), self._controller.log_now_ms()
            self._ended.clear()
            look = partial(
                _look,
                self._item.id,
                now_ms,
                self.assignments.able(),
                self.assignments.all_out(),
                self.assignments.losses.counts(),
            )
            self.definitions, found = await self._controller.query(look)
            # Where all that was there is handed out there is nothing to look for: what becomes
            # ready from here on wakes this.
            is_more = False
            for each in found:
                count = self._hand_to_one(each)
                is_more |= count > 0 and (not each.is_all or count < len(each.invocations))
                await self._give_up(each)
            if not is_more:
                due_ms = [each.due_ms for each in found if each.due_ms is not None]
                if not due_ms:
                    return _NEVER
                return now + min(max(min(due_ms) - now_ms, 1) / 1_000, _LONGEST_SLEEP_S)

    def _hand_to_one(self, found: _Ready) -> int:
        """How many a runner was given."""
        stage = found.stage
        # What was read is a moment old.
        hopeless = self._hopeless(found)
        ready = [each for each in self._still_ready(found) if each.instance_id not in hopeless]
        if not ready:
            return 0
        known = {each.instance_id: each for each in ready}
        offer = self.assignments.offer(stage.name, stage.engine, list(known))
        session = self._sessions.get(offer.runner.number) if offer is not None else None
        if offer is None or session is None:
            # Without a session leading has ended.
            return 0
        ready = [known[each] for each in offer.ids]
        draft = session.sink.draft(offer.runner, stage, found.version, ready)
        while draft.size > _INVOCATIONS_BYTES and len(ready) > 1:
            ready = ready[: len(ready) // 2]
            draft = session.sink.draft(offer.runner, stage, found.version, ready)
        draft.send(
            self.assignments.assign(
                offer.runner,
                stage.name,
                [each.instance_id for each in ready],
                _lease_s(stage),
                stage.run,
                is_apart=offer.is_apart,
            )
        )
        return len(ready)

    def _still_ready(self, found: _Ready) -> list[ReadyStage]:
        name = found.stage.name
        return [
            each
            for each in found.invocations
            if not self.assignments.is_out(name, each.instance_id)
            and (name, each.instance_id) not in self._ended
        ]

    def _hopeless(self, found: _Ready) -> set[int]:
        """Those whose runners were lost as often as they may have attempts."""
        stage, losses = found.stage, self.assignments.losses
        if not losses:
            return set()
        ids = [each.instance_id for each in found.invocations]
        return set(losses.hopeless(stage.name, ids, stage.retry.max_attempts))

    async def _give_up(self, found: _Ready) -> None:
        """Nobody else says of them that they fail."""
        hopeless = self._hopeless(found)
        failed = [each for each in self._still_ready(found) if each.instance_id in hopeless]
        if not failed:
            return
        name = found.stage.name
        ids = tuple(each.instance_id for each in failed)
        reason = (
            f"stage {name!r} has lost {found.stage.retry.max_attempts} runners that worked on this "
            "instance and on nothing else: each crashed, was killed, or was cut off"
        )
        _log.error("instances %s: %s", ", ".join(map(str, ids[:_NAMED])), reason)
        try:
            await self._controller.execute(
                FailStages(
                    self._item.id,
                    name,
                    ids,
                    tuple(each.attempt for each in failed),
                    reason,
                    tuple(each.created_ms for each in failed),
                    is_final=True,
                )
            )
        except ConflictError as error:
            # A transaction ends one of them.
            _log.info("%s", error)


def _look(
    pipeline_id: int,
    now_ms: int,
    runners: Sequence[Runner],
    out: Mapping[str, Container[int]],
    lost: Mapping[str, int],
    db: Database,
) -> tuple[dict[int, tuple[StageSpec, ...]], list[_Ready]]:
    """The definitions that there are, and what is ready of stages that some runner takes, but for
    what is out."""
    try:
        known = definitions.all_stages(db, pipeline_id)
        on_failure = definitions.on_failure(db, pipeline_id)
    except NotFoundError:
        # It is being deleted.
        return {}, []
    found = []
    for version, stages in known.items():
        for stage in stages:
            limit = max(
                (each.takes for each in runners if each.runs(stage.name, stage.engine)), default=0
            )
            if not limit or stage.wait is not None:
                continue
            # Behind suspected ones that wait for their turn others are to be seen.
            extra = min(lost.get(stage.name, 0), _MOST_SUSPECTED)
            ready = pipeline_views.ready_stages(
                db,
                pipeline_id,
                version,
                stage,
                now_ms=now_ms,
                limit=limit + extra,
                except_ids=out.get(stage.name, ()),
            )
            if stage.name == on_failure[version]:
                others = [each for each in stages if each is not stage]
                ready = pipeline_views.with_failures(db, pipeline_id, ready, others)
            due_ms = pipeline_views.next_ready_ms(db, pipeline_id, version, stage.name, now_ms)
            found.append(_Ready(version, stage, ready, due_ms, len(ready) < limit + extra))
    return known, found


def _whose(stage: StageSpec) -> str:
    """Who runs it, in words."""
    if stage.wait is not None:
        return f"{stage.name} waits, and nobody runs it"
    return f"{stage.name} has engine {stage.engine!r}"


def _lease_s(stage: StageSpec) -> float:
    return stage.timeout_ms / 1_000 + _GRACE_S


def _ids(lock: Lock) -> Iterator[int]:
    for first, last in lock.ranges:
        yield from range(first, last + 1)
