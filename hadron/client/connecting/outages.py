"""Notices what no broken connection tells: that somebody else leads now.

An old leader that is cut off from its peers keeps its clients waiting for a majority that it will
never have again. So a client asks around while anything waits for an answer, and now and then when
nothing does, for the sake of members that wait for records. It also tells people who wait.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import anyio

from hadron.model.errors import HadronError

_log = logging.getLogger(__name__)

TELL_AFTER_S: Final = 2.0
"""What waits for longer than this is logged as a warning, which commands show: somebody who waits
should know for what. A leader's restart on this side of it goes unnoticed."""

_STILL_S: Final = 3.0
"""So much too late no event loop is that only has much to do; leaders begin to doubt its program
then (a member's heartbeats, a server's)."""

_LEISURE: Final = 5
"""Rounds of `TELL_AFTER_S` from one question to the next when nothing waits. One node is asked, so
that a thousand idle clients of three nodes cost each of them some thirty small answers a second."""


class Outage:
    """Says once that nothing comes from somewhere any more, and when something does again: who
    reads several would not notice otherwise.

    Args:
        what: a partition, or whatever else something comes from.
        lost, back: what is said of it.
    """

    def __init__(
        self, what: str, lost: str = "nothing is read from {}", back: str = "{} is read again"
    ) -> None:
        self._lost, self._back = lost.format(what), back.format(what)
        self._since_s: float | None = None
        self.told = False

    def trouble(self, error: HadronError) -> None:
        """Another try has failed."""
        now_s = anyio.current_time()
        if self._since_s is None:
            self._since_s = now_s
        if not self.told and now_s - self._since_s >= TELL_AFTER_S:
            self.told = True
            _log.warning("%s: %s", self._lost, error.message)

    def over(self) -> None:
        """It answers."""
        if self.told:
            _log.warning("%s", self._back)
        self._since_s, self.told = None, False


@dataclass(slots=True, eq=False)
class _Wait:
    what: str
    overdue_s: float
    told: bool = False


class Lookout:
    """Watches over one client's waiting.

    Args:
        ask_all: asks every node for the topology; returns when one has answered.
        ask_one: asks some node.
    """

    def __init__(
        self, ask_all: Callable[[], Awaitable[None]], ask_one: Callable[[], Awaitable[None]]
    ) -> None:
        self._ask_all = ask_all
        self._ask_one = ask_one
        self._waits: dict[_Wait, None] = {}
        self._hurried = False
        self._trying_s: dict[str, float] = {}
        """When that was said last, by the replica set."""

    @contextmanager
    def waiting(self, what: str, expected_s: float = 0.0) -> Iterator[None]:
        """For the length of the block somebody waits for `what`, which may take `expected_s`."""
        wait = _Wait(what, anyio.current_time() + expected_s + TELL_AFTER_S)
        self._waits[wait] = None
        try:
            yield
        finally:
            del self._waits[wait]

    def hurry(self) -> None:
        """Something waits for too long: ask around with the next round."""
        self._hurried = True

    def trying(self, replica_set: str, left_s: float, why: str) -> None:
        """Say that somebody asks its leader again and again, for so long: once for all who do."""
        now_s = anyio.current_time()
        said_s = self._trying_s.get(replica_set)
        if said_s is None or now_s - said_s >= _LEISURE * TELL_AFTER_S:
            self._trying_s[replica_set] = now_s
            _log.warning("trying for %.0f s more: %s", left_s, why)

    async def run(self) -> None:
        """Rounds, until cancelled."""
        rounds = 0
        while True:
            due_s = anyio.current_time() + TELL_AFTER_S
            await anyio.sleep(TELL_AFTER_S)
            rounds += 1
            if (late_s := anyio.current_time() - due_s) > _STILL_S:
                _log.warning(
                    "this program's event loop stood still for %.0f s: what it consumes and serves "
                    "goes to others then; what blocks the loop (`time.sleep`, a library that does "
                    "not await) belongs in a thread",
                    late_s,
                )
            try:
                if self._tell() or self._hurried:
                    self._hurried = False
                    await self._ask_all()
                elif rounds % _LEISURE == 0:
                    await self._ask_one()
            except HadronError as error:
                _log.debug("nobody said who leads: %s", error)

    def _tell(self) -> bool:
        """Say what is overdue, once for all who wait for the same; returns whether anything is."""
        now_s = anyio.current_time()
        overdue = [wait for wait in self._waits if wait.overdue_s <= now_s]
        said = {wait.what for wait in overdue if wait.told}
        for wait in overdue:
            wait.told = True
            if wait.what not in said:
                said.add(wait.what)
                _log.warning("waiting for %s; `hadron status` says what is in the way", wait.what)
        return bool(overdue)
