"""A client that commits several transactions at the same time, most of which publish to the same
partition and do nothing else: those share a batch, and are one entry."""

from __future__ import annotations

from typing import Any, Final

import trio

from hadron.client import Client
from hadron.model.errors import HadronError, NotFoundError
from hadron.model.schema import StreamSpec
from hadron.sim.actors.transactions import DEALS, OUTPUTS, Noted, Transactor
from hadron.sim.evidence.labels import PASSING, label

_BURSTS: Final = 10
"""Of one actor in a run."""

_CUT: Final = 0.25
"""Of bursts: while which the client's connections break, so that answers do not come."""

_ASKS_ALL: Final = 0.4
"""Of bursts: after which it asks what became of each, also of those that it knows about."""


class BurstActor(Transactor):
    """Some of a burst are rolled back, or have said something before the others; some bursts go to
    a stream that may be deleted under its hands."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._left = _BURSTS

    async def session(self, client: Client) -> None:
        await self.resolve(client)
        for _ in range(self.random.randint(1, 4)):
            if self.stopping or not self._left:
                break
            self._left -= 1
            await self._burst(client)
            if self.unresolved and self.random.random() < 0.5:
                await self.resolve(client)
            await self.pause(0.5)
        if not self._left:
            await self.rest()

    async def _burst(self, client: Client) -> None:
        stream, place = await self._place(client)
        made: list[Noted] = []
        async with trio.open_nursery() as nursery:
            for _ in range(self.random.randint(2, 9)):
                nursery.start_soon(self._transact, client, stream, place, made)
            if self.random.random() < _CUT:
                nursery.start_soon(self._lose_connections)
        if self.random.random() < _ASKS_ALL:
            for noted in made:
                if noted.operation.transaction:
                    await self.ask(client, noted)

    async def _lose_connections(self) -> None:
        await trio.sleep(self.random.uniform(0.0, 0.003))
        lose_all = self.random.random() < 0.5
        self.world.network.break_connections(self.host, lose_all=lose_all)

    async def _place(self, client: Client) -> tuple[str, str]:
        """A stream that the client knows from here on, so that no transaction waits for that, and a
        partition of it."""
        stream = self.random.choice((DEALS, OUTPUTS, OUTPUTS, *PASSING))
        try:
            item = await client.stream(stream)
        except NotFoundError:
            stream = OUTPUTS
            item = await client.stream(stream)
        assert isinstance(item.spec, StreamSpec)
        return stream, self.random.choice(item.spec.partitions)

    async def _transact(self, client: Client, stream: str, place: str, made: list[Noted]) -> None:
        ends = self.random.choices(("commit", "late", "rollback"), (16, 1, 1))[0]
        try:
            async with client.transaction() as tx:
                noted = Noted(self.history, self.name, tx._work)
                made.append(noted)
                try:
                    for _ in range(self.random.randint(1, 3)):
                        await self._publish(tx, noted, stream, place)
                    if ends == "late":
                        # What it does has left, and is its own.
                        await trio.sleep(0.01)
                    if ends == "rollback":
                        await tx.rollback()
                    else:
                        noted.asks()
                        await tx.commit()
                finally:
                    self.over(noted)
        except HadronError:
            # Its leader, or its stream, is gone; `over` has noted what that means.
            return

    async def _publish(self, tx: Any, noted: Noted, stream: str, place: str) -> None:
        value = self.value()
        key = self.random.choice((None, "a", "b"))
        given = await tx.publish(stream, value, key=key, partition=place)
        if stream in PASSING:
            # Which of those that had this name, says what is to be sent.
            stream = label(stream, given._batch.place.publish.stream_id)
        noted.published(stream, place, value, given)
