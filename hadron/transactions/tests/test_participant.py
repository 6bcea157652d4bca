"""When drivers are asked about what is prepared here, whatever the wall clock does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio
from trio.testing import MockClock

from hadron.model.errors import CorruptionError
from hadron.model.transactions import TransactionId
from hadron.transactions.messages import Asked, Message
from hadron.transactions.participant import Participant

DRIVER = "eu/p0"
HELD = TransactionId(DRIVER, 1, 1, 7)
BEGAN_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


class Frozen:
    """A log whose time stands where it is put, its tables with one transaction, and its driver."""

    def __init__(self) -> None:
        self.now_ms = self.since_ms = BEGAN_MS
        self.asked_at: list[float] = []
        self.is_damaged = False
        """The next read meets it; the one after that does not."""

    def log_now_ms(self) -> int:
        return self.now_ms

    async def query(self, read: Callable[[Any], Any]) -> Any:
        await trio.lowlevel.checkpoint()
        is_damaged, self.is_damaged = self.is_damaged, False
        if is_damaged:
            raise CorruptionError("a page is damaged, until it is repaired")
        return read(self)

    def execute(self, _sql: str, given: tuple[int, int, int]) -> list[tuple[Any, ...]]:
        after_lsn, before_ms, _ = given
        is_wanted = after_lsn < 5 and self.since_ms < before_ms
        return [(5, *HELD, 1, 0, self.since_ms, 0)] if is_wanted else []

    def send(self, replica_set: str, message: Message) -> None:
        assert (replica_set, message) == (DRIVER, Asked((HELD,)))
        self.asked_at.append(trio.current_time())


async def watch(log: Any, seconds: float, then: Callable[[], None] = lambda: None) -> list[float]:
    """When the driver was asked, in seconds; `then` comes after three tenths of one."""
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Participant(log, "us/p0", log).run)
        await trio.sleep(0.3)
        then()
        await trio.sleep(seconds)
        nursery.cancel_scope.cancel()
    return [round(at - began, 1) for at in log.asked_at]


async def test_a_log_whose_time_stands_still_is_asked_about_on_time(
    autojump_clock: MockClock,  # noqa: ARG001 - time passes by it
) -> None:
    assert await watch(Frozen(), 20) == [1, 2, 4, 8, 16]


async def test_a_clock_that_was_ahead_for_a_moment_puts_nothing_off(
    autojump_clock: MockClock,  # noqa: ARG001 - time passes by it
) -> None:
    """Somebody sets the clock forward and back again: the log's time stands an hour ahead, and what
    is prepared then is as old as it has been there."""

    log = Frozen()

    def ahead() -> None:
        log.now_ms = log.since_ms = BEGAN_MS + HOUR_MS

    # It is noticed with the look after that, at half a second.
    assert await watch(log, 20, ahead) == [1.5, 2.5, 4.5, 8.5, 16.5]


async def test_what_could_not_be_read_is_asked_about_once_it_can(
    autojump_clock: MockClock,  # noqa: ARG001 - time passes by it
) -> None:
    """Nothing else is prepared here that would have the tables looked at again."""
    log = Frozen()

    def break_for_a_moment() -> None:
        log.is_damaged = True

    # Half a second, and a pause of one; then it counts from the start, as a new leader would.
    assert await watch(log, 20, break_for_a_moment) == [2.5, 3.5, 5.5, 9.5, 17.5]
