"""One seed decides in which order tasks run and what time it is.

trio's scheduler shuffles each batch of runnable tasks with a random generator of its own; it gets a
seeded one. Ties between deadlines, which trio breaks by `id()`, are broken by age. Time stands
still while any task can run and then jumps to the next deadline. When no task can run and no
deadline is set, nothing can ever happen again: the run ends with `StuckError`, which says where
each task waits; trio's own MockClock would spin for ever.

Sleeping tasks are woken by the clock itself: trio sleeps by cancelling a scope at its deadline,
which was a sixth of all time that simulations took.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
from collections.abc import Awaitable, Callable, Iterator, MutableSequence
from heapq import heappop, heappush
from types import CoroutineType, FrameType
from typing import Any, Final, TypeVar

import trio
from trio import _core as trio_core

from hadron.fakes.trace import Trace

T = TypeVar("T")

_IDLE_S: Final = 999_999.0
"""Longer than any cushion of `wait_all_tasks_blocked`, whose waiters go before jumps of time."""

_SPIN_STEPS: Final = 300_000
"""Steps of tasks without time moving: about 5 s of CPU, hundreds of times more than ever needed."""

_SHOWN_TASKS: Final = 40


class StuckError(Exception):
    """The simulated world can make no progress: everybody waits, or somebody never does."""


class Waking:
    """A task that the clock will wake; `task` is None once it need not."""

    __slots__ = ("due_s", "task")

    def __init__(self, due_s: float, task: trio.lowlevel.Task) -> None:
        self.due_s = due_s
        self.task: trio.lowlevel.Task | None = task


class SimTime(trio.abc.Clock):
    """The simulated time, from 0. trio asks for it in every turn of its loop."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.steps = 0
        """Steps of tasks so far, counted by `Watch`."""
        self._spin_at = _SPIN_STEPS
        self._steps_when_idle = -1
        self._wakings: list[tuple[float, int, Waking]] = []
        self._order = itertools.count()
        self.on_stuck: Callable[[str], None] = lambda _reason: None

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        if self.steps > self._spin_at:
            self._spin_at = self.steps + _SPIN_STEPS
            self.on_stuck(f"{_SPIN_STEPS:,} steps of tasks, and time has not moved")
        return self.now_s

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Called by trio's loop when no task can run; jumps to the next deadline."""
        runner = trio_core._run.GLOBAL_RUN_CONTEXT.runner
        if runner.waiting_for_idle:
            return _IDLE_S
        deadline = min(deadline, self._next_waking_s())
        if deadline == math.inf:
            # trio's own tasks may have something under way that shows in the next turn.
            if self._steps_when_idle == self.steps:
                self.on_stuck("every task waits, and no deadline is set")
            self._steps_when_idle = self.steps
        elif deadline > self.now_s:
            self.now_s = deadline
            self._spin_at = self.steps + _SPIN_STEPS
        while self._next_waking_s() <= self.now_s:
            wake(heappop(self._wakings)[2])
        return 0.0

    def _next_waking_s(self) -> float:
        while self._wakings and self._wakings[0][2].task is None:
            heappop(self._wakings)
        return self._wakings[0][0] if self._wakings else math.inf

    def wake_at(self, due_s: float, task: trio.lowlevel.Task) -> Waking:
        """Reschedule `task`, which is about to wait, once it is `due_s` and nobody can run."""
        waking = Waking(due_s, task)
        heappush(self._wakings, (due_s, next(self._order), waking))
        return waking

    async def sleep_until(self, due_s: float) -> None:
        """As `trio.sleep_until`, for a moment to come."""
        waking = self.wake_at(due_s, trio.lowlevel.current_task())

        def abort(_: object) -> trio.lowlevel.Abort:
            waking.task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)


def wake(waking: Waking) -> None:
    """Reschedule the task, if it still waits."""
    task, waking.task = waking.task, None
    if task is not None:
        trio.lowlevel.reschedule(task)


class Watch(dict[str, None]):
    """Puts every step of a task into the trace.

    It stands in for the loop's whole collection of instruments, which trio asks six times per step
    which of them want to hear of what: a plain dictionary answers at a tenth of the cost.
    """

    def __init__(self, time: SimTime, trace: Trace) -> None:
        super().__init__({"before_task_step": None})
        self._time = time
        self._trace = trace
        self._first: int | None = None

    def call(self, _hook: str, task: trio.lowlevel.Task) -> None:
        """Called by trio's loop before each step, the only thing it is asked to tell."""
        if self._first is None:
            # trio numbers tasks for the life of the process.
            self._first = task._counter
        self._time.steps += 1
        self._trace.step(task._counter - self._first)


class _Shuffler(random.Random):
    """`Random`, with less ado about the many batches of one task."""

    def shuffle(self, x: MutableSequence[Any]) -> None:
        if len(x) > 1:
            super().shuffle(x)


@contextlib.contextmanager
def _seeded_scheduler(seed: int, time: SimTime) -> Iterator[None]:
    """trio's order of things, decided by `seed` for the length of the block."""
    scheduler: Any = trio_core._run
    timeouts: Any = trio._timeouts
    counter = itertools.count()
    kept = scheduler._r, scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler.Deadlines.add
    trio_sleep_until = timeouts.sleep_until

    def add(self: Any, deadline: float, cancel_scope: trio.CancelScope) -> None:
        heappush(self._heap, (deadline, next(counter), cancel_scope))
        self._active += 1

    async def sleep_until(deadline: float) -> None:
        if time.now_s < deadline < math.inf:
            await time.sleep_until(deadline)
        else:
            await trio_sleep_until(deadline)

    # A generator of our own: Hypothesis re-seeds the one that trio has registered with it.
    scheduler._r = _Shuffler(f"scheduler/{seed}")
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True
    scheduler.Deadlines.add = add
    timeouts.sleep_until = sleep_until
    try:
        yield
    finally:
        (scheduler._r, scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler.Deadlines.add) = kept
        timeouts.sleep_until = trio_sleep_until


def run_seeded(seed: int, main: Callable[[SimTime], Awaitable[T]], trace: Trace) -> T:
    """Run `main` in a loop where `seed` decides. Raises what `main` raises, and `StuckError`."""
    time = SimTime()
    trace.now_s = time.current_time
    reasons: list[str] = []

    async def guarded() -> T | None:
        runner: Any = trio_core._run.GLOBAL_RUN_CONTEXT.runner
        runner.instruments = Watch(time, trace)
        with trio.CancelScope() as scope:

            def stuck(reason: str) -> None:
                if reasons:
                    # Not even cancelled tasks come to an end. trio passes this on.
                    raise StuckError(reasons[0])
                reasons.append(
                    f"nothing moves any more at {time.now_s:.3f} simulated seconds: {reason}\n"
                    + "\n".join(describe_tasks())
                )
                scope.cancel()

            time.on_stuck = stuck
            return await main(time)
        return None

    with _seeded_scheduler(seed, time):
        try:
            result = trio.run(guarded, clock=time)
        except BaseException as error:
            if reasons:
                raise StuckError(reasons[0]) from error
            raise
    if reasons:
        raise StuckError(reasons[0])
    return result  # type: ignore[return-value]


def describe_tasks() -> list[str]:
    """Where each task of the running loop waits, one line per task."""
    root = trio.lowlevel.current_root_task()
    lines: list[str] = []
    tasks = [root] if root is not None else []
    while tasks:
        task = tasks.pop()
        for nursery in task.child_nurseries:
            tasks.extend(sorted(nursery.child_tasks, key=lambda child: child._counter))
        where = _innermost(task.coro)
        if where is not None and not task.name.startswith("trio."):
            lines.append(f"  {task.name} waits in {where}")
    lines.sort()
    more = len(lines) - _SHOWN_TASKS
    return lines[:_SHOWN_TASKS] + ([f"  … and {more} more"] if more > 0 else [])


def _innermost(coro: Any) -> str | None:
    """The last line of Hadron's own code in a suspended coroutine, and what it waits for."""
    frames: list[FrameType] = []
    while isinstance(coro, CoroutineType):
        if coro.cr_frame is not None:
            frames.append(coro.cr_frame)
        coro = coro.cr_await
    own = [frame for frame in frames if "/trio/" not in frame.f_code.co_filename]
    if not own:
        return None
    return " < ".join(
        f"{frame.f_code.co_qualname}:{frame.f_lineno}" for frame in list(reversed(own))[:3]
    )
