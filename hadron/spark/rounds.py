"""Parts of a micro-batch on Spark: each runs by itself, no longer than its stage may take.

Safety rule: what a part ends with is known of all its rows and of nobody else's, however it ends.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import threading
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Sequence,
)
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import pyarrow as pa
import trio

from hadron.model.errors import HadronError
from hadron.model.pipelines import StageSpec
from hadron.model.words import counted
from hadron.spark.functions import StageCodeError, label
from hadron.spark.outputs import Refusal
from hadron.spark.parting import Parts
from hadron.spark.stage import StageRaisedError, StageResult, check_alive, is_alive, plan, run_stage
from hadron.spark.suspects import Suspects
from hadron.spark.threads import Threads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CANCEL_AGAIN_S: Final = 0.25
_CANCEL_PAUSE_S: Final = 8.0
"""Where it still has not ended: a thousand that hang must not keep Java busy."""

_TASKS_OF_A_JOB: Final = 64
"""Parts of one job: starting one costs as much as ten tasks, and all end when its time is up."""

_JOBS: Final = 2
"""Of many parts, at a time: one is started while the other works."""

_MOST_JOBS: Final = 8
"""Of one part, at a time: twice as many as Spark has cores hide what starting one takes."""

_TENTH: Final = 10
"""Parts of one that has failed, where each costs a task."""

_HALF: Final = 2
"""Where each costs a job, which is planned anew."""

_SEARCH_S: Final = 4.0
"""How long a worker looks for the rows that its function raises for: in one second, some hundreds
of pandas batches are tried."""

_SEARCH_SHARE: Final = 0.5
"""Of the time that a job has, for its workers to look one after the other."""

_BEGIN_EVERY_S: Final = 0.5
"""How often is told that parts are worked on; below the time that a leader adds to a timeout."""

_CORE_EVERY_S: Final = 0.5
"""How often Spark is asked whether it has begun: most end before that."""

_MOST_WAITING: Final = 20
"""Times its limit. What hangs in Java keeps its core for ever, and then nothing else begins."""

_PLAN_S: Final = 10.0
"""A function returns by then, on a busy machine too, when it only says what is to be computed."""

Ended = StageResult | StageRaisedError

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Part:
    """Some invocations of a micro-batch, and the table of their input.

    Attributes:
        is_suspect: one for which a worker has said that the function raises.
        is_cleared: some for which a worker has tried it, and it has not raised.
    """

    invocations: Sequence[Any]
    table: Any
    is_suspect: bool = False
    is_cleared: bool = False

    def __len__(self) -> int:
        return len(self.invocations)

    def only(self, instance_ids: Collection[int], *, among: bool = True) -> Part:
        """Those that are in `instance_ids`, or else those that are not."""
        kept = [(each.instance_id in instance_ids) is among for each in self.invocations]
        if all(kept):
            return self
        return Part(
            [each for each, keep in zip(self.invocations, kept, strict=True) if keep],
            self.table.filter(pa.array(kept, pa.bool_())),
        )

    def split(self, count: int) -> list[Part]:
        """In so many parts, or as many as there are invocations."""
        step = -(-len(self) // count) or 1
        whole = Part(self.invocations, self.table.combine_chunks())
        return [whole.between(at, at + step) for at in range(0, len(self), step)]

    def alone(self) -> list[Part]:
        """Each invocation by itself."""
        return self.split(len(self) or 1)

    def around(self, found: Suspects, count: int) -> list[Part]:
        """The suspects, each by itself, and the others: those that were tried are one part, those
        that were not are split in so many."""
        whole = Part(self.invocations, self.table.combine_chunks())
        suspects = [
            replace(whole.between(place, place + 1), is_suspect=True) for place in found.places
        ]
        ids = {each.invocations[0].instance_id for each in suspects}
        cleared = replace(whole.between(0, found.tried).only(ids, among=False), is_cleared=True)
        untried = whole.between(found.tried, len(whole))
        return [*suspects, *([cleared] if cleared else []), *untried.split(count)]

    def between(self, first: int, end: int) -> Part:
        return Part(self.invocations[first:end], self.table.slice(first, end - first))

    def refusals(self, reason: str) -> list[Refusal]:
        return [Refusal(each.instance_id, each.attempt, reason) for each in self.invocations]


class Rounds:
    """Of one micro-batch. `begin` is called when parts begin, and again while they run.

    Attributes:
        costs_a_task: whether a part may cost a task; it is found out that each costs a job.
        shares_jobs: whether many parts may be one job; it is found out that one takes it too long,
            or fails it.
        searches: whether workers look for the rows that raise; it is found out that they name the
            wrong ones, where the rows that reach them are in another order, or others.
        spark_s: how long Spark worked, in seconds, without waiting for a turn.
    """

    def __init__(
        self,
        spark: SparkSession,
        turn: trio.Lock,
        threads: Threads,
        stage: StageSpec,
        begin: Callable[[], None],
    ) -> None:
        self.costs_a_task = True
        self.shares_jobs = True
        self.searches = True
        self.spark_s = 0.0
        self._spark = spark
        self._turn = turn
        self._threads = threads
        self._stage = stage
        self._begin = begin
        self._begun_at = -math.inf
        self._limit_s = stage.timeout_ms / 1000 if stage.timeout_ms else math.inf
        self._hangs_with_rows_only = False

    async def run(self, parts: Sequence[Part]) -> list[Ended]:
        """Run each of these: all are tasks of one plan, or each is planned. Raises as `run_stage`
        does, but for what it raises for rows."""
        planned = await self.plan(parts) if len(parts) > 1 else None
        if planned is not None:
            ended = await self._tasks(planned, parts)
            self._judge(parts, ended)
            return ended
        ended = []
        for part in parts:
            call = partial(run_stage, self._spark, self._stage, part.table)
            async with self._in_turn():
                began = time.perf_counter()
                try:
                    end = await self._call(len(part), call)
                    if end is None:
                        # Others would take as long beside each other.
                        self.shares_jobs = False
                        await self._check_hanging(part)
                finally:
                    self.spark_s += time.perf_counter() - began
                ended.append(self._late(part) if end is None else end)
        return ended

    async def plan(self, parts: Sequence[Part]) -> Parts | None:
        """One plan for all of them; None where each needs its own."""
        if not self.costs_a_task:
            return None
        planned = Parts(self._spark, self._stage, [part.table for part in parts])
        async with self._in_turn():
            # It plans whatever the function raises, and has not when that takes too long.
            self.costs_a_task = await self._call(sum(map(len, parts)), planned.plan) is True
        return planned if self.costs_a_task else None

    def smaller(self, part: Part, end: StageRaisedError) -> list[Part]:
        """What runs instead of one that has ended so. What raises where it did not when it was
        tried is halved as if nobody had tried it: so the rounds stay few."""
        count = _TENTH if self.costs_a_task else _HALF
        found = end.suspects
        is_usable = found is not None and found.places and found.rows == len(part)
        if found is None or not is_usable or part.is_cleared or not self.searches:
            return part.split(count)
        return part.around(found, count)

    def _judge(self, parts: Sequence[Part], ended: Sequence[Ended]) -> None:
        innocent = [
            isinstance(end, StageResult)
            for part, end in zip(parts, ended, strict=True)
            if part.is_suspect
        ]
        if 2 * sum(innocent) > len(innocent):
            self.searches = False

    async def _tasks(self, planned: Parts, parts: Sequence[Part]) -> list[Ended]:
        found: list[Ended | None] = [None] * len(parts)

        async def run_job(indexes: Sequence[int]) -> None:
            count = sum(len(parts[index]) for index in indexes)
            search_s = 0.0
            if self.searches and count > len(indexes):
                search_s = min(_SEARCH_S, _SEARCH_SHARE * self._limit_s / len(indexes))
            ends = await self._call(count, partial(planned.run, indexes, search_s))
            if isinstance(ends, list):
                for index, end in zip(indexes, ends, strict=True):
                    found[index] = end
                return
            # What one of many parts has done to their job, each has to do alone.
            self.shares_jobs = False
            if len(indexes) == 1:
                found[indexes[0]] = ends or self._late(parts[indexes[0]])

        async with self._in_turn():
            began = time.perf_counter()
            if self.shares_jobs:
                await self._jobs(run_job, _some(range(len(parts)), _TASKS_OF_A_JOB), _JOBS)
            alone = [[index] for index, end in enumerate(found) if end is None]
            if alone:
                await self._jobs(run_job, alone, self._most_jobs())
            self.spark_s += time.perf_counter() - began
        return [end for end in found if end is not None]

    async def _jobs(
        self,
        run_job: Callable[[Sequence[int]], Awaitable[None]],
        jobs: Iterable[Sequence[int]],
        most: int,
    ) -> None:
        """So many at a time. Raises what one of them does."""
        room = trio.CapacityLimiter(most)
        trouble: list[HadronError] = []

        async def run_one(indexes: Sequence[int]) -> None:
            async with room:
                try:
                    await run_job(indexes)
                except HadronError as error:
                    trouble.append(error)
                    nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for indexes in jobs:
                nursery.start_soon(run_one, indexes)
        if trouble:
            raise trouble[0]

    def _most_jobs(self) -> int:
        with _told_when_gone(self._spark, self._stage):
            cores = int(self._spark.sparkContext.defaultParallelism)
        return max(2, min(2 * cores, _MOST_JOBS))

    @contextlib.asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[None]:
        """Spark is asked for nothing else meanwhile. What has begun is told to be worked on while
        it waits for that: another micro-batch, in which some hang, takes longer than a leader
        waits."""
        has_begun = self._begun_at > -math.inf
        while True:
            with trio.move_on_after(_BEGIN_EVERY_S if has_begun else math.inf):
                await self._turn.acquire()
                break
            self.tell()
        try:
            yield
        finally:
            self._turn.release()

    async def _call(
        self, count: int, function: Callable[[], _T], limit_s: float | None = None
    ) -> _T | StageRaisedError | None:
        """Run parts of so many invocations in a thread; None when it took too long, which is for
        longer than the stage may unless it is said."""
        call = _SparkCall(self._spark, self._stage, count, function)
        limit_s = self._limit_s if limit_s is None else limit_s
        self.tell()
        result: _T | StageRaisedError | None = None
        trouble: Exception | None = None
        async with trio.open_nursery() as nursery:
            scope = nursery.cancel_scope
            scope.deadline = trio.current_time() + limit_s
            nursery.start_soon(self._wait_for_core, call, scope, limit_s)
            try:
                result = await self._threads.run(self._stage, call.run)
            except StageRaisedError as error:
                result = error
            except Exception as error:
                # The nursery would make a group of it.
                trouble = error
            scope.cancel()
        if trouble is not None:
            raise trouble
        if result is None:
            call.cancel()
        else:
            # What it gave is handed in, or what is left runs.
            self.tell()
        return result

    async def _wait_for_core(
        self, call: _SparkCall[Any], scope: trio.CancelScope, limit_s: float
    ) -> None:
        """Its time begins once Spark has a core for it: others that hang have them all, until their
        own time is over and they were ended."""
        latest = trio.current_time() + _MOST_WAITING * limit_s
        with contextlib.suppress(Exception):  # Whatever it is, the call itself says so.
            while scope.deadline < latest:
                await trio.sleep(min(_CORE_EVERY_S, limit_s / 2))
                begun = await self._threads.ask(call.has_core)
                if begun is not None:
                    # It may have begun at any time since it was asked last.
                    self.tell()
                    scope.deadline = trio.current_time() + limit_s
                if begun:
                    return

    async def _check_hanging(self, part: Part) -> None:
        """Raises `StageCodeError` when the function does not return without any rows either: then
        no smaller part would do better, and each would leave a thread behind."""
        if self._hangs_with_rows_only:
            return
        empty = part.table.slice(0, 0)

        def returns() -> bool:
            # One that does not like that there are none has come back, too.
            with contextlib.suppress(BaseException):
                plan(self._spark, self._stage, empty)
            return True

        limit_s = max(self._limit_s, _PLAN_S)
        if await self._call(0, returns, limit_s):
            self._hangs_with_rows_only = True
            return
        raise StageCodeError(
            f"{label(self._stage)} does not return within {limit_s:g} s, not even without any rows",
            "let it build a DataFrame and return it: Spark runs that afterwards",
        )

    def _late(self, part: Part) -> StageRaisedError:
        return StageRaisedError(
            f"stage {self._stage.name!r} took longer than its timeout of {self._limit_s:g} s for "
            f"{counted(len(part), 'instance')}",
            "raise the stage's timeout, if it needs as long as that",
        )

    def tell(self) -> None:
        """That it is worked on. From then on that is told while it waits for its turn, too."""
        now = trio.current_time()
        if now >= self._begun_at + _BEGIN_EVERY_S:
            self._begun_at = now
            self._begin()


class _SparkCall(Generic[_T]):
    """One run of something in a thread, whose Spark jobs can be cancelled."""

    def __init__(
        self, spark: SparkSession, stage: StageSpec, count: int, function: Callable[[], _T]
    ) -> None:
        self._spark = spark
        self._stage = stage
        self._name = f"stage {stage.name}: {count}"
        self._function = function
        self._group = f"hadron-{secrets.token_hex(8)}"
        self._ended = threading.Event()

    def run(self) -> _T:
        """Blocks while Spark works."""
        try:
            # A group belongs to a thread: this one's jobs, and those of threads that it starts.
            with _told_when_gone(self._spark, self._stage):
                self._spark.sparkContext.setJobGroup(self._group, self._name)
            return self._function()
        finally:
            self._ended.set()

    def has_core(self) -> bool | None:
        """Whether a task of its jobs has begun; None as long as it has no jobs."""
        tracker = self._spark.sparkContext.statusTracker()
        jobs = [tracker.getJobInfo(each) for each in tracker.getJobIdsForGroup(self._group)]
        stages = [
            tracker.getStageInfo(each) for job in jobs if job is not None for each in job.stageIds
        ]
        begun = [
            stage.numActiveTasks + stage.numCompletedTasks + stage.numFailedTasks > 0
            for stage in stages
            if stage is not None
        ]
        return any(begun) if begun else None

    def cancel(self) -> None:
        """Stop its jobs, until `run` ends. Does not wait for that: a function may hang itself."""
        threading.Thread(target=self._cancel_until_ended, daemon=True).start()

    def _cancel_until_ended(self) -> None:
        # Again and again, because a job may still be planned while its time runs out. Spark can
        # cancel future jobs of a group itself, but forgets to for those of adaptive queries.
        pause_s = _CANCEL_AGAIN_S
        while not self._ended.wait(pause_s) and is_alive(self._spark):
            self._spark.sparkContext.cancelJobGroup(self._group)
            pause_s = min(2 * pause_s, _CANCEL_PAUSE_S)


def _some(indexes: Sequence[int], count: int) -> list[Sequence[int]]:
    return [indexes[at : at + count] for at in range(0, len(indexes), count)]


@contextlib.contextmanager
def _told_when_gone(spark: SparkSession, stage: StageSpec) -> Iterator[None]:
    """Java that is gone refuses connections, whatever it is asked: that says nothing to a user."""
    try:
        yield
    except Exception as error:
        check_alive(spark, stage, error)
        raise
