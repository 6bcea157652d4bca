"""Transactions on a leader: those that it drives, and what others drive here."""

from __future__ import annotations

from collections.abc import Callable

import trio

from hadron.model.errors import HadronError
from hadron.model.ports import Random
from hadron.model.transactions import TransactionId
from hadron.serving.leading import Part
from hadron.serving.lock_table import LockTable
from hadron.transactions.callers import Caller
from hadron.transactions.claims import HOME, Claims
from hadron.transactions.driver import Driver
from hadron.transactions.effects import Received, Unanswered
from hadron.transactions.limits import LIMITS, Limits
from hadron.transactions.messages import Abort, Answer, Finish, Forget, Message, Prepare, Told
from hadron.transactions.participant import Participant
from hadron.transactions.ports import Leaders, Log


class Transactions(Part):
    """All transactions of a leadership. `run` must be running."""

    def __init__(
        self,
        log: Log,
        home: str,
        leaders: Leaders,
        random: Random,
        limits: Limits = LIMITS,
        locks: LockTable | None = None,
    ) -> None:
        """
        Args:
            home: the own replica set.
            locks: of all that serves what statements end; None where nothing does.
        """
        self.claims = Claims(locks or LockTable((), log.log_now_ms))
        self._away: dict[str, str] = {}
        """Why a replica set's leader cannot be reached."""
        self.driver = Driver(log, home, leaders, random, limits)
        self.driver.on_over = self._over
        self.participant = Participant(log, home, leaders)

    async def run(self) -> None:
        """Drive and take part until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.driver.run)
            nursery.start_soon(self.participant.run)

    def stop(self, reason: HadronError) -> None:
        self.driver.stop(reason)
        self.driver.callers.stop(reason)

    @property
    def troubles(self) -> list[str]:
        """Who does not answer, and what waits for it: what it is to do, and what it is to say."""
        return self.driver.troubles + [
            f"{count} transactions of {name} wait for its decision: {self._away[name]}"
            for name, count in self.participant.waiting.items()
            if name in self._away
        ]

    def join(
        self, send: Callable[[Answer], None], end: Callable[[HadronError], None] | None = None
    ) -> Caller:
        """A client has opened a call; `send` takes the answers to it, `end` ends it."""
        return self.driver.callers.join(send, end)

    def _over(self, transaction: TransactionId) -> None:
        """A transaction that was driven here is rolled back, or done."""
        self.claims.settle((transaction, HOME))

    # --- other leaders --------------------------------------------------------------------------

    def receive(self, replica_set: str, message: Message) -> None:
        """A message came from the leader of a replica set."""
        self._away.pop(replica_set, None)
        if isinstance(message, Prepare | Finish | Abort | Forget | Told):
            self.participant.receive(replica_set, message)
        else:
            self.driver.step(Received(replica_set, message))

    def unanswered(self, replica_set: str, error: HadronError) -> None:
        """The leader of a replica set cannot be reached; what was sent there may be lost."""
        self._away[replica_set] = str(error)
        self.driver.step(Unanswered(replica_set, error))
