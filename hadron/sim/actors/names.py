"""Programs that start again and go on where they were, one of a name at a time; and programs that
add to what they have read, with others who do the same."""

from __future__ import annotations

import contextlib
from typing import Any, Final

from hadron.client import Client
from hadron.client.producing.producer import Producer
from hadron.client.terms.results import Receipt
from hadron.model.errors import ConflictError, HadronError, OffsetMismatchError, OutcomeUnknownError
from hadron.sim.actors.clients import ClientActor, text
from hadron.sim.actors.transactions import DEALS, Noted, Transactor
from hadron.sim.evidence.history import Publish
from hadron.sim.evidence.made import Numbered, numbered

COUNTS: Final = "counts"
"""The stream with an index of keys, each a number that is counted up."""

_MOST: Final = 20
"""Records of a task, or of all that one actor counts."""


class NamedActor(ClientActor):
    """One process of a task. Another one takes it for dead and begins; it does not know."""

    def __init__(self, *given: Any, task: str, partition: str) -> None:
        super().__init__(*given)
        self.partition = partition
        self._task = task

    async def session(self, client: Client) -> None:
        async with client.producer(
            DEALS,
            partition=self.partition,
            name=self._task,
            delivery_timeout_s=self.random.choice((1.0, 4.0, 15.0)),
        ) as producer:
            last = await producer.last_sequence()
            for number in range(last + 1, last + 1 + self.random.randint(1, 6)):
                if self.stopping or number >= _MOST:
                    break
                # One that has failed is left out by nobody: who comes after it begins there.
                value = str(Numbered(self._task, number, self.name))
                operation = self.history.publish(self.name, "", DEALS, self.partition, [value])
                try:
                    receipt = await send_numbered(producer, value, number)
                except HadronError as error:
                    self.history.unknown(operation, error)
                    raise
                _note(operation, receipt)
                self.history.ok(operation)
                await self.pause(0.3)
        await self.pause(1.5)


async def send_numbered(producer: Producer, value: str, number: int) -> Receipt:
    """A record of a producer with a name, whose last number is what is known to be in the log: who
    goes on behind it leaves nothing out, and sends nothing twice."""
    pending = await producer.send_soon(value, sequence=number)
    last = await producer.last_sequence()
    if last >= number and not pending.is_done:
        raise AssertionError(f"{value} is on its way, and called logged: {last}")
    receipt = await pending.wait()
    last = await producer.last_sequence()
    if last < number:
        raise AssertionError(f"{value} is in the log, and the last one is called {last}")
    return receipt


def _note(operation: Publish, receipt: Any) -> None:
    operation.partition, operation.duplicate = receipt.partition, receipt.duplicate
    operation.runs = [(receipt.offset, 1)]


class CountingActor(Transactor):
    """Reads the latest number of a key, and publishes the next one, if that is the latest still: by
    itself, or in a transaction."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._left = _MOST

    async def session(self, client: Client) -> None:
        await self.resolve(client)
        for _ in range(self.random.randint(1, 6)):
            if self.stopping or not self._left:
                break
            self._left -= 1
            count = self.random.choice((self._count, self._count, self._count_in_transaction))
            await count(client, self.random.choice(("a", "b")))
            await self.pause(0.5)
        await self.pause(1.0 if self._left else 20.0)

    async def _count(self, client: Client, key: str) -> None:
        value, expected = await self._next(client, key)
        operation = self.history.publish(self.name, "", COUNTS, "", [value])
        try:
            receipt = await client.send(COUNTS, value, key=key, expect_key_offset=expected)
        except OffsetMismatchError as error:
            self.history.refused(operation, error)
        except OutcomeUnknownError as error:
            self.history.unknown(operation, error)
        except HadronError as error:
            self.ended(operation, error)
            raise
        else:
            _note(operation, receipt)
            self.history.ok(operation)

    async def _count_in_transaction(self, client: Client, key: str) -> None:
        """Perhaps with a record elsewhere, which is there if the number is."""
        value, expected = await self._next(client, key)
        with contextlib.suppress(OffsetMismatchError, ConflictError, OutcomeUnknownError):
            async with client.transaction() as tx:
                noted = Noted(self.history, self.name, tx._work)
                try:
                    given = await tx.publish(COUNTS, value, key=key, expect_key_offset=expected)
                    noted.published(COUNTS, "", value, given)
                    if self.random.random() < 0.5:
                        place, other = self.place(), self.value()
                        given = await tx.publish(DEALS, other, partition=place or None)
                        noted.published(DEALS, place, other, given)
                    noted.asks()
                    await tx.commit()
                finally:
                    self.over(noted)

    async def _next(self, client: Client, key: str) -> tuple[str, int]:
        """The next number, and the offset of the one that it is made of."""
        latest = await client.latest(COUNTS, key)
        known = numbered(text(latest.value)) if latest is not None else None
        value = str(Numbered(key, known.number + 1 if known else 0, self._by()))
        return value, latest.offset if latest else -1

    def _by(self) -> str:
        """So that each try is another value."""
        return f"{self.name}.{self._left}"
