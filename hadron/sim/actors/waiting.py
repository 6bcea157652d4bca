"""A pipeline whose stages wait, in a world that loses its leader: people order, and pay for that
under the same key, at once, later, too late or never; others approve what is paid. P14 is held
against what became of it (`checks.waits`).

Who has paid behind the answer to its order is waited for; so each is paid once, and whatever is
then left to wait for ever was missed. Only over several sets what was ordered at one that was away
for long may be missed: there it is paid again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import trio

from hadron.client import Client
from hadron.client.producing.producer import Producer
from hadron.model.errors import HadronError, RequestError
from hadron.model.pipelines import FAIL, Output, PipelineSpec, Retry, StageSpec, Wait
from hadron.model.record import NewRecord
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.sim.actors.clients import Actor, ClientActor
from hadron.sim.actors.part import Part
from hadron.sim.actors.pipelines import DrainingRunner, Places, RunnerActor
from hadron.sim.evidence.history import History
from hadron.sim.evidence.made import Keyed
from hadron.sim.world.replica_set import World

WAITING: Final = "waiting"
REQUESTS: Final = "requests"
PAYMENTS: Final = "payments"
_SHIPPED: Final = "shipped"
_MOST: Final = 15
_WORLDS: Final = 0.2

BUYS: Final = "order.placed"
PAYS: Final = "payment.made"
ASKS: Final = "question.asked"
"""Types of what comes under an order's key: its own, what is waited for, and what is not."""


def has_waits(seed: int | str) -> bool:
    """Whether a pipeline with stages that wait is at work in a random run."""
    return random.Random(f"waits/{seed}").random() < _WORLDS


def waiting_flow(home: str, paid: Wait, approved: Wait) -> SchemaObject:
    """What is ordered is shipped when it is paid and approved; or somebody is reminded, where that
    takes too long, or told, unless it fails then."""
    retry = Retry(max_attempts=3, backoff_ms=10)
    branches = {paid.on_timeout, approved.on_timeout} - {FAIL}
    stages = (
        StageSpec(name="paid", wait=paid),
        StageSpec(name="approved", wait=approved, after=("paid",)),
        StageSpec(
            name="ship",
            engine="handler",
            dependencies=("paid",),
            after=("approved",),
            output=Output(_SHIPPED),
            timeout_ms=2_000,
            retry=retry,
        ),
        *(StageSpec(name=name, engine="handler", retry=retry) for name in sorted(branches)),
    )
    flow = PipelineSpec(
        replica_set=home, input=REQUESTS, start="earliest", stages=stages, max_parallel=1_000
    )
    return SchemaObject(kind="Pipeline", name=WAITING, spec=flow)


@dataclass
class _Order:
    """By its key.

    Attributes:
        state: "ok" once it is known to be there.
        due_s: when it is paid; never where it is infinite.
    """

    key: str
    due_s: float = float("inf")
    state: Literal["unknown", "ok"] = "unknown"
    is_paid: bool = False


@dataclass
class _Book:
    """What its people have to do.

    Attributes:
        places: of the pipeline.
        paid_at: partitions that payments go to.
        longest_s: after its order something is paid.
        unpaid: the share that is never paid.
        may_miss: what was paid may have to be paid again.
    """

    places: Places
    paid_at: tuple[str, ...]
    longest_s: float
    unpaid: float
    may_miss: bool
    orders: list[_Order] = field(default_factory=list)

    def due(self) -> _Order | None:
        """The next one to be paid, which is there."""
        now = trio.current_time()
        return next(
            (e for e in self.orders if e.state == "ok" and not e.is_paid and e.due_s <= now), None
        )


class Waiting(Part):
    """Of one cluster.

    Args:
        world: whose clients these are.
        sets: all of the cluster.
    """

    def __init__(
        self, world: World, history: History, seed: int | str, sets: Sequence[str]
    ) -> None:
        self._world = world
        self._history = history
        self._seed = seed
        chance = random.Random(f"what waits/{seed}")
        paid_ms = chance.choice((0, 0, 1_000, 5_000, 20_000))
        late = "remind" if paid_ms and chance.random() < 0.6 else FAIL
        self._paid = Wait(
            stream=PAYMENTS, types=("payment.*",), timeout_ms=paid_ms, on_timeout=late
        )
        self._approved = Wait(
            signal=True,
            timeout_ms=chance.choice((500, 3_000, 10_000)),
            on_timeout=chance.choice((FAIL, "tell", "tell")),
        )
        home, *others = chance.sample(tuple(sets), len(sets))
        inputs, paid_at, outputs = (
            chance.choice(((home,), (home, *others), tuple(others) or (home,))) for _ in range(3)
        )
        self._book = _Book(
            Places(home, inputs, outputs, flow=WAITING, source=REQUESTS, sink=_SHIPPED),
            paid_at,
            longest_s=2 * paid_ms / 1_000 if paid_ms else 5.0,
            unpaid=0.2 if paid_ms else 0.0,
            may_miss=len(sets) > 1,
        )

    def objects(self) -> Sequence[SchemaObject]:
        places = self._book.places
        partitions = {
            REQUESTS: places.inputs,
            PAYMENTS: self._book.paid_at,
            _SHIPPED: tuple(dict.fromkeys((*places.outputs, places.home))),
        }
        return (
            *(
                SchemaObject(kind="Stream", name=name, spec=StreamSpec(partitions=where))
                for name, where in partitions.items()
            ),
            waiting_flow(places.home, self._paid, self._approved),
        )

    def actors(self) -> Iterator[Actor]:
        yield _Customer(*self._of("vo"), self._book)
        yield _Payer(*self._of("vp"), self._book)
        yield _Approver(*self._of("va"))
        for number in range(2):
            yield RunnerActor(*self._of(f"vw{number}")).at(self._book.places)

    def _of(self, host: str) -> tuple[World, History, str, str]:
        return self._world, self._history, host, f"{self._seed}/{host}"

    async def drain(self) -> None:
        last = _LastPayer(*self._of("vl"), self._book)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(last.run)
            await DrainingRunner(*self._of("vd")).at(self._book.places).run()
            nursery.cancel_scope.cancel()


class _Keyed(ClientActor):
    """Publishes what somebody does whose key is known."""

    def __init__(self, world: World, history: History, host: str, seed: str, book: _Book) -> None:
        super().__init__(world, history, host, seed)
        self.book = book
        self._sent = 0

    async def publish(self, producer: Producer, stream: str, key: str, does: str) -> None:
        """At one of the stream's partitions."""
        self._sent += 1
        value = f"{Keyed(key, does)}{self.host}/{self._sent}"
        book = self.book
        at = self.random.choice(book.places.inputs if stream == REQUESTS else book.paid_at)
        noted = self.history.publish(self.name, self.name, stream, at, [value])
        try:
            receipt = await producer.send(NewRecord(value=value, key=key, type=does, partition=at))
        except HadronError as error:
            self.ended(noted, error)
            raise
        except trio.Cancelled:
            self.history.unknown(noted, "its client is gone")
            raise
        self.history.published(noted, receipt.offset, duplicate=receipt.duplicate)

    async def pay(self, producer: Producer, order: _Order) -> None:
        """Until that is known to be there: who does not know pays once more; so does who has paid
        before the order was known to be there, which may have come behind."""
        was_there = order.state == "ok"
        await self.publish(producer, PAYMENTS, order.key, PAYS)
        order.is_paid = was_there


class _Customer(_Keyed):
    """Orders; now and then it says something else under the same key, or has paid before."""

    async def session(self, client: Client) -> None:
        async with (
            client.producer(REQUESTS, delivery_timeout_s=4.0) as ordering,
            client.producer(PAYMENTS, delivery_timeout_s=4.0) as saying,
        ):
            while len(self.book.orders) < _MOST and not self.stopping:
                order = _Order(f"k{len(self.book.orders)}")
                self.book.orders.append(order)
                if self.random.random() < 0.1:
                    await self.publish(saying, PAYMENTS, order.key, PAYS)
                await self.publish(ordering, REQUESTS, order.key, BUYS)
                if self.random.random() < 0.2:
                    await self.publish(saying, PAYMENTS, order.key, ASKS)
                if self.random.random() >= self.book.unpaid:
                    wait_s = self.random.choice((0.0, self.random.uniform(0, self.book.longest_s)))
                    order.due_s = trio.current_time() + wait_s
                order.state = "ok"
                await self.pause(0.4)
        await trio.sleep(1.0)


class _Payer(_Keyed):
    """Pays for what is there, when it is due."""

    async def session(self, client: Client) -> None:
        async with client.producer(PAYMENTS, delivery_timeout_s=4.0) as producer:
            while not self.stopping:
                order = self.book.due()
                if order is None:
                    await trio.sleep(0.1)
                else:
                    await self.pay(producer, order)


class _LastPayer(_Payer):
    """Once all is healed: pays for the rest, and again and again for what nobody knows to be there,
    which may come yet, or for what may have been missed, until it is stopped."""

    async def session(self, client: Client) -> None:
        async with client.producer(PAYMENTS, delivery_timeout_s=4.0) as producer:
            while True:
                for order in self.book.orders:
                    is_due = order.due_s < float("inf") and not order.is_paid
                    if order.state == "unknown" or is_due or self.book.may_miss:
                        await self.pay(producer, order)
                await trio.sleep(1.0)


class _Approver(ClientActor):
    """Signals instances, some of them twice, and some that wait no more."""

    async def session(self, client: Client) -> None:
        while not self.stopping:
            await self.pause(0.5)
            (flow,) = await client.pipeline_progress(WAITING)
            known = await client.instances(WAITING, limit=100)
            for each in self.random.sample(known, min(2, len(known))):
                await self._signal(client, f"{WAITING}#{flow.id}", each.id)
                if self.random.random() < 0.2:
                    await self._signal(client, f"{WAITING}#{flow.id}", each.id)

    async def _signal(self, client: Client, flow: str, instance_id: int) -> None:
        noted = self.history.settle(
            self.name,
            flow,
            "approved",
            REQUESTS,
            self.partition,
            [(instance_id, instance_id)],
            how="signal",
        )
        try:
            await client.signal(WAITING, instance_id, "approved")
        except RequestError as error:
            self.history.refused(noted, error)
        except HadronError as error:
            self.history.unknown(noted, error)
            raise
        else:
            self.history.ok(noted)
