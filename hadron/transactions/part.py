"""Transactions on a leader: those that it drives, and what others drive here."""

from __future__ import annotations

from collections.abc import Callable

import trio

from hadron.model.errors import HadronError
from hadron.model.ports import Random
from hadron.model.transactions import TransactionId
from hadron.model.words import counted
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
        self.away: dict[str, str] = {}
        """Why a replica set's leader cannot be reached."""
        self._home = home
        self._leaders = leaders
        self._own: set[TransactionId] = set()
        """Driven here, with intents here: an abort of those is on its way through the log, and
        until then it has their locks."""
        self.driver = Driver(log, home, self, random, limits)
        self.driver.on_over = self.settle
        self.participant = Participant(log, home, self)
        self.participant.on_aborted = self._aborted

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
            f"{name} is to decide {counted(count, 'transaction')}: {self.away[name]}"
            for name, count in self.participant.waiting.items()
            if name in self.away
        ]

    def join(
        self, send: Callable[[Answer], None], end: Callable[[HadronError], None] | None = None
    ) -> Caller:
        """A client has opened a call; `send` takes the answers to it, `end` ends it."""
        return self.driver.callers.join(send, end)

    def settle(self, transaction: TransactionId) -> None:
        """A transaction that was driven here is rolled back, or done, or never was: nothing is
        claimed for it any more, but what intents are on their way into the log with."""
        if transaction not in self._own:
            self.claims.settle((transaction, HOME))

    def _aborted(self, transaction: TransactionId) -> None:
        """All intents that were submitted before are gone from the log, or were never in it."""
        if transaction in self._own:
            self._own.discard(transaction)
            self.settle(transaction)

    # --- `Leaders`, of whom the own set's is this one -------------------------------------------

    def knows(self, replica_set: str) -> bool:
        return replica_set == self._home or self._leaders.knows(replica_set)

    def send(self, replica_set: str, message: Message) -> None:
        if replica_set != self._home:
            self._leaders.send(replica_set, message)
            return
        if isinstance(message, Prepare):
            self._own.add(message.transaction)
        elif isinstance(message, Forget):
            for each in message.transactions:
                self._own.discard(each)
                self.settle(each)
        self.receive(replica_set, message)

    # --- other leaders --------------------------------------------------------------------------

    def receive(self, replica_set: str, message: Message) -> None:
        """A message came from the leader of a replica set."""
        self.away.pop(replica_set, None)
        if isinstance(message, Prepare | Finish | Abort | Forget | Told):
            self.participant.receive(replica_set, message)
        else:
            self.driver.step(Received(replica_set, message))

    def unanswered(self, replica_set: str, error: HadronError) -> None:
        """The leader of a replica set cannot be reached; what was sent there may be lost."""
        self.away[replica_set] = str(error)
        self.driver.step(Unanswered(replica_set, error))
