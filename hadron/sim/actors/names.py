"""Programs that start again and go on where they were, one of a name at a time; and programs that
add to what they have read, with others who do the same."""

from __future__ import annotations

from typing import Any, Final

from hadron.client import Client
from hadron.model.errors import HadronError, OffsetMismatchError, OutcomeUnknownError
from hadron.sim.actors.clients import ClientActor, text
from hadron.sim.actors.transactions import DEALS
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
                    receipt = await producer.send(value, sequence=number)
                except HadronError as error:
                    self.history.unknown(operation, error)
                    raise
                _note(operation, receipt)
                self.history.ok(operation)
                await self.pause(0.3)
        await self.pause(1.5)


def _note(operation: Publish, receipt: Any) -> None:
    operation.partition, operation.duplicate = receipt.partition, receipt.duplicate
    operation.runs = [(receipt.offset, 1)]


class CountingActor(ClientActor):
    """Reads the latest number of a key, and publishes the next one, if that is the latest still."""

    def __init__(self, *given: Any, task: str) -> None:
        super().__init__(*given)
        self._task = task
        self._left = _MOST

    async def session(self, client: Client) -> None:
        for _ in range(self.random.randint(1, 6)):
            if self.stopping or not self._left:
                break
            self._left -= 1
            await self._count(client, self.random.choice(("a", "b")))
            await self.pause(0.5)
        await self.pause(1.0 if self._left else 20.0)

    async def _count(self, client: Client, key: str) -> None:
        latest = await client.latest(COUNTS, key)
        known = numbered(text(latest.value)) if latest is not None else None
        value = str(Numbered(key, known.number + 1 if known else 0, self._by()))
        operation = self.history.publish(self.name, "", COUNTS, "", [value])
        try:
            receipt = await client.send(
                COUNTS, value, key=key, expect_key_offset=latest.offset if latest else -1
            )
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

    def _by(self) -> str:
        """So that each try is another value."""
        return f"{self.name}.{self._left}"
