"""Clients that do transactions: they commit, roll back, leave them open, die in the midst of one,
and ask later what became of those that they do not know about.

Where they publish: to streams that nothing is ever dropped from, so that what is there at the end
tells whether all of a transaction was done, or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import trio

from hadron.client import Client
from hadron.client.terms.results import BatchReceipt
from hadron.model.errors import HadronError
from hadron.sim.actors.clients import ClientActor
from hadron.sim.evidence.history import History, Publish, Settle, Transact
from hadron.sim.world.replica_set import World

DEALS: Final = "deals"
"""The stream that transactions publish to, and that others make something of."""

OUTPUTS: Final = "outputs"
"""What is made of each of them."""

_MOST: Final = 10
"""Transactions of one actor in a run."""

_ASKS: Final = 3
"""About so many transactions an actor asks when it has connected."""


class Published(Protocol):
    """`client.transactions.contents.Published`."""

    @property
    def receipt(self) -> Any: ...


class Noted:
    """One transaction, as the history has it."""

    def __init__(self, history: History, client: str, work: Any) -> None:
        """`work`: a `client.transactions.work.Work`."""
        self.operation: Transact = history.transact(client)
        self.is_settled = False
        self._history = history
        self._client = client
        self._work = work
        self._published: list[tuple[Publish, Published]] = []
        self._settles: list[Settle] = []

    def published(self, stream: str, partition: str, value: str, given: Published) -> None:
        """It is to publish a record, at a partition or, "", at any."""
        operation = self._history.publish(self._client, "", stream, partition, [value])
        self._published.append((operation, given))
        self.operation.values.append(value)

    def acknowledged(self, settle: Settle, stream: str, partition: str, group: str) -> None:
        """It is to acknowledge what `settle` says."""
        self._settles.append(settle)
        self.operation.acks += [
            (stream, partition, group, first, last) for first, last in settle.ranges
        ]

    def asks(self) -> None:
        """Its client wants it committed from here on."""
        self.operation.asked = self._history.tick()

    @property
    def has_ended(self) -> bool:
        """Whether its client knows what became of it, or that it does not know."""
        return self._work.state.value not in ("open", "committing")

    def end(self) -> None:
        """Note what its client knows, now that it does nothing more for it."""
        state, operation = self._work.state.value, self.operation
        operation.transaction = "" if self._work.id is None else str(self._work.id)
        if state == "committed":
            self.tell("committed")
        elif state == "rolled back" or not operation.asked:
            self.tell("rolled back", str(self._work.error or "it was not asked for"))

    def tell(self, outcome: str, why: str = "", receipts: Sequence[BatchReceipt] = ()) -> None:
        """Somebody was told how it ended, and where its records are."""
        operation, history = self.operation, self._history
        operation.told.append(outcome)
        offsets = self._told_offsets(receipts)
        if self.is_settled:
            return
        self.is_settled = True
        if outcome == "committed":
            history.ok(operation)
            for settle in self._settles:
                history.ok(settle)
        else:
            history.refused(operation, why)
            for settle in self._settles:
                history.unknown(settle, why)
        for index, (publish, given) in enumerate(self._published):
            if outcome != "committed":
                history.refused(publish, why)
            elif (receipt := given.receipt) is not None:
                publish.partition, publish.runs = receipt.partition, [(receipt.offset, 1)]
                history.ok(publish)
            elif offsets:
                publish.runs = [(offsets[index], 1)]
                history.ok(publish)

    def _told_offsets(self, receipts: Sequence[BatchReceipt]) -> list[int]:
        """Of its records, in order, where all of them went to one partition that it named; none
        otherwise. Raises `AssertionError` when its client was told of others."""
        offsets = [each.base_offset + index for each in receipts for index in range(each.count)]
        places = {(publish.stream, publish.partition) for publish, _ in self._published}
        if not offsets or len(places) != 1 or ("" in next(iter(places))):
            return []
        known = [publish.runs[0][0] for publish, _ in self._published if publish.runs]
        if len(offsets) != len(self._published) or (known and known != offsets):
            raise AssertionError(
                f"the {len(self._published)} records of {self.operation.transaction} are at "
                f"{known}, and at {offsets}, says its driver"
            )
        return offsets


class Transactor(ClientActor):
    """One who does transactions, and asks what became of them."""

    def __init__(
        self, world: World, history: History, host: str, seed: str, partitions: Sequence[str]
    ) -> None:
        """`partitions`: of the streams."""
        super().__init__(world, history, host, seed)
        self.partitions = tuple(partitions)
        self.unresolved: list[Noted] = []
        self.has_ended = False
        self._values = 0

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            self.has_ended = True

    def value(self, of: str = "") -> str:
        """A new one: unique, and naming who made it, and of what."""
        self._values += 1
        made = f"{of}{self.host}/{self._values}:"
        return made.ljust(self.random.randrange(100), ".")

    def over(self, noted: Noted) -> None:
        """It does nothing more for this transaction."""
        noted.end()
        if not noted.is_settled and noted.operation.transaction:
            self.unresolved.append(noted)

    async def resolve(self, client: Client, most: int = _ASKS) -> None:
        """Ask about transactions whose outcome nobody has told."""
        for noted in self.unresolved[:most]:
            await self.ask(client, noted)

    async def ask(self, client: Client, noted: Noted) -> None:
        """What became of a transaction that has an id."""
        outcome = await client.outcome(noted.operation.transaction)
        if outcome.state == "committed":
            noted.tell("committed", receipts=outcome.receipts)
        elif outcome.state == "aborted":
            noted.tell("rolled back", "its driver says so")
        # Its own session and `until_resolved` may have asked at the same time.
        if outcome.state != "open" and noted in self.unresolved:
            self.unresolved.remove(noted)

    async def until_resolved(self) -> None:
        """Once all is healed, and it is to stop."""
        while not self.has_ended or self.unresolved:
            try:
                async with self.world.client(f"{self.host}a", connect_timeout_s=3.0) as client:
                    await self.resolve(client, len(self.unresolved))
            except HadronError:
                pass
            await trio.sleep(0.5)

    async def rest(self) -> None:
        """Until `stop`: it has done all that it does in a run."""
        while not self.stopping:  # noqa: ASYNC110 - simulated time
            await trio.sleep(1.0)

    def place(self) -> str:
        """A partition, or "", for any."""
        if len(self.partitions) == 1:
            return self.partitions[0]
        return self.random.choice(("", *self.partitions, *self.partitions))


class _AbandonedError(Exception):
    """What a program raises in the midst of a transaction."""


class TransactionActor(Transactor):
    """Publishes to some partitions at a time; `drivers` may drive."""

    def __init__(self, *given: Any, drivers: Sequence[str]) -> None:
        super().__init__(*given)
        self._drivers = (None, None, *drivers)
        self._left = _MOST

    async def session(self, client: Client) -> None:
        await self.resolve(client)
        for _ in range(self.random.randint(1, 5)):
            if self.stopping or not self._left:
                break
            self._left -= 1
            try:
                await self._transact(client)
            except _AbandonedError:
                pass
            except HadronError:
                if self.random.random() < 0.3:
                    raise
            if self.unresolved and self.random.random() < 0.5:
                await self.resolve(client)
            await self.pause(0.3)
        if not self._left:
            await self.rest()

    async def _transact(self, client: Client) -> None:
        ends = self.random.choices(("commit", "rollback", "raise", "idle"), (9, 1, 1, 1))[0]
        async with client.transaction(driver=self.random.choice(self._drivers)) as tx:
            noted = Noted(self.history, self.name, tx._work)
            try:
                for _ in range(self.random.randint(1, 4)):
                    await self._publish(tx, noted)
                    if self.random.random() < 0.3:
                        await self.pause(0.1)
                if ends == "raise":
                    raise _AbandonedError
                if ends == "idle":
                    await self._wait(self.random.choice((2.0, 8.0, 40.0)))
                if ends == "rollback":
                    await tx.rollback()
                else:
                    noted.asks()
                    await tx.commit()
            finally:
                self.over(noted)

    async def _wait(self, most_s: float) -> None:
        until_s = trio.current_time() + most_s
        while not self.stopping and trio.current_time() < until_s:  # noqa: ASYNC110 - simulated
            await trio.sleep(0.5)

    async def _publish(self, tx: Any, noted: Noted) -> None:
        stream = self.random.choice((DEALS, DEALS, OUTPUTS))
        place = self.place()
        key = self.random.choice((None, None, "a", "b", "c"))
        value = self.value()
        given = await tx.publish(stream, value, key=key, partition=place or None)
        noted.published(stream, place, value, given)
