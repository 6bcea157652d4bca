"""Transactions on a leader: those that it drives, and what others drive here."""

from __future__ import annotations

from collections.abc import Callable

import trio

from hadron.model.errors import HadronError
from hadron.model.ports import Random
from hadron.serving.leading import Part
from hadron.transactions.callers import Caller
from hadron.transactions.driver import Driver
from hadron.transactions.effects import Received, Unanswered
from hadron.transactions.limits import LIMITS, Limits
from hadron.transactions.messages import Abort, Answer, Finish, Forget, Message, Prepare, Told
from hadron.transactions.participant import Participant
from hadron.transactions.ports import Leaders, Log


class Transactions(Part):
    """All transactions of a leadership. `run` must be running."""

    def __init__(
        self, log: Log, home: str, leaders: Leaders, random: Random, limits: Limits = LIMITS
    ) -> None:
        """
        Args:
            home: the own replica set.
        """
        self.driver = Driver(log, home, leaders, random, limits)
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
        return self.driver.troubles

    def join(
        self, send: Callable[[Answer], None], end: Callable[[HadronError], None] | None = None
    ) -> Caller:
        """A client has opened a call; `send` takes the answers to it, `end` ends it."""
        return self.driver.callers.join(send, end)

    # --- other leaders --------------------------------------------------------------------------

    def receive(self, replica_set: str, message: Message) -> None:
        """A message came from the leader of a replica set."""
        if isinstance(message, Prepare | Finish | Abort | Forget | Told):
            self.participant.receive(replica_set, message)
        else:
            self.driver.step(Received(replica_set, message))

    def unanswered(self, replica_set: str, error: HadronError) -> None:
        """The leader of a replica set cannot be reached; what was sent there may be lost."""
        self.driver.step(Unanswered(replica_set, error))
