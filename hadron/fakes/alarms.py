"""What a task waits for that must wake at a moment which others may put forward.

In the simulated time without any scope, see `fakes.scheduling`; in another loop, as tests of single
parts run in, with one.
"""

from __future__ import annotations

import math

import trio

from hadron.fakes.scheduling import SimTime, Waking, wake


class Alarm:
    """For one task at a time.

    Args:
        shield: whether cancellation must wait until it has rung.
    """

    def __init__(self, *, shield: bool = False) -> None:
        self._shield = shield
        self._time: SimTime | None = None
        self._waking: Waking | None = None
        self._scope: trio.CancelScope | None = None

    async def wait(self, due_s: float = math.inf) -> None:
        """Until it is `due_s`, or was to be by `bring_forward`, or `ring` is called."""
        clock = trio.lowlevel.current_clock()
        if not isinstance(clock, SimTime):
            with trio.CancelScope(deadline=due_s, shield=self._shield) as self._scope:
                await trio.sleep_forever()
            return
        self._time = clock
        self._waking = clock.wake_at(due_s, trio.lowlevel.current_task())
        await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        if self._shield:
            return trio.lowlevel.Abort.FAILED
        if self._waking is not None:
            self._waking.task = None
        return trio.lowlevel.Abort.SUCCEEDED

    def bring_forward(self, due_s: float) -> None:
        """Let it ring at `due_s`, if that is earlier than it would."""
        if self._scope is not None:
            self._scope.deadline = min(self._scope.deadline, due_s)
        old, time = self._waking, self._time
        if old is None or time is None or old.task is None or due_s >= old.due_s:
            return
        if due_s <= time.now_s:
            wake(old)
        else:
            self._waking = time.wake_at(due_s, old.task)
            old.task = None

    def ring(self) -> None:
        """Let it ring now."""
        if self._scope is not None:
            self._scope.cancel()
        if self._waking is not None:
            wake(self._waking)
