"""Exchanges on a leader alone: publishers, clients and a bridged stream by chance, against a
reference that knows only what each of them has said and heard (`docs/EXCHANGES.md`).

What waits, what is remembered and what is done in one turn has small bounds: so what goes over them
happens all the time. Every message has a number, and every subscription the numbers that it is to
get, or to be told of as missed, in their order.
"""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import trio

from hadron.exchanges.bridge import Bridge
from hadron.exchanges.driver import ExchangeDriver
from hadron.exchanges.machine import CUT_S, Room, Session
from hadron.exchanges.parcels import Gaps, Parcel, Published
from hadron.fakes.scheduling import run_seeded
from hadron.fakes.trace import Trace
from hadron.model.batch import StampedBatch
from hadron.model.batch_building import BatchBuilder
from hadron.model.errors import HadronError, NotFoundError, OffsetOutOfRangeError
from hadron.model.record import NewRecord
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.model.services import ExchangeSpec
from hadron.model.topics import matches
from hadron.sim.rooms.played import Played
from hadron.sim.runs.small_limits import ROOM_LIMITS, limited
from hadron.sim.watch.leftovers import leftovers

_STEPS: Final = 300
_CLIENTS: Final = 4
"""Of each exchange."""

_TOPICS: Final = ("a", "a.b", "b.b", "b.c.d")
_PATTERNS: Final = ("a", "a.*", "*.b", "b.>", ">", "*", "b.c.d", "a.b")
_STREAM: Final = SchemaObject(kind="Stream", name="s", spec=StreamSpec(partitions=("r",)), id=7)
_TURNS: Final = 12
"""Messages of a group, one by one, by which it shows that its members take turns."""


@dataclass(eq=False)
class _Subscription:
    """
    Attributes:
        due: messages that it is to get, or to be told of as missed; in a group all get these.
        latest: the last one that it got.
    """

    patterns: tuple[str, ...]
    group: str
    due: deque[int] = field(default_factory=deque)
    latest: int = -1

    def takes(self, topic: str) -> bool:
        return any(matches(each, topic) for each in self.patterns)


@dataclass
class _Group:
    """What its members were to get, have got, and were told of as missed, all together.

    Attributes:
        is_left: somebody went, perhaps with something that waited.
    """

    due: set[int] = field(default_factory=set)
    got: set[int] = field(default_factory=set)
    missed: int = 0
    is_left: bool = False


class FakeClient:
    """`exchanges.port.ClientSink`, and what it has heard. It reads `window` messages more."""

    peer = "somebody"

    def __init__(self, world: World, exchange: FakeExchange, window: int) -> None:
        self.on_writable: Callable[[], None] = lambda: None
        self.subscriptions: dict[int, _Subscription] = {}
        self.window = window
        self.heard_s = trio.current_time()
        self._world = world
        self._exchange = exchange
        self.session: Session = exchange.driver.attend(self)

    @property
    def writable(self) -> bool:
        return self.window > 0

    @property
    def is_idle(self) -> bool:
        """It has heard all there was, and reads on."""
        return self.writable and not self.session.waiting

    def deliver(self, parcel: Parcel) -> None:
        self.window -= 1
        self.heard_s = trio.current_time()
        for run in parcel.runs:
            base = self._world.bases[bytes(parcel.layout.batches[run.batch].data)]
            for number in range(base + run.first, base + run.last + 1):
                for id in run.ids:
                    self._got(id, number)

    def _got(self, id: int, number: int) -> None:
        known = self.subscriptions.get(id)
        topic = self._world.topics[number]
        if known is None or not known.takes(topic):
            self._world.complain("X1", f"{id} is told {number}, of {topic!r}, and takes it not")
            return
        if number <= known.latest:
            self._world.complain("X2", f"{id} is told {number} behind {known.latest}")
        known.latest = max(known.latest, number)
        if known.group:
            group = self._exchange.groups[known.group]
            if number in group.got or number not in group.due:
                self._world.complain("X1", f"a second one of {known.group} gets {number}")
            group.got.add(number)
        elif known.due and known.due[0] == number:
            known.due.popleft()
        else:
            rule = "X3" if number in known.due else "X1"
            what = f"{id} is told {number}, to come are {[*known.due][:3]}"
            self._world.complain(rule, what)

    def tell_missed(self, gaps: Gaps) -> None:
        self.window -= 1
        self.heard_s = trio.current_time()
        for id, count in gaps.messages.items():
            known = self.subscriptions.get(id)
            if known is None:
                self._world.complain("X1", f"{id}, which has ended, has missed {count}")
            elif known.group:
                self._exchange.groups[known.group].missed += count
            elif count > len(known.due):
                what = f"{id} is told that {count} are missed, of {len(known.due)}"
                self._world.complain("X3", what)
            else:
                for _ in range(count):
                    known.due.popleft()

    def confirm(self, ids: Sequence[int]) -> None:
        pass

    def refuse(self, id: int, error: HadronError) -> None:
        self._world.complain("X4", f"{id} is refused: {error.message}")

    def fail(self, error: HadronError) -> None:
        unread_s = trio.current_time() - self.heard_s
        if unread_s < CUT_S and not isinstance(error, _InterruptedError):
            self._world.complain("X4", f"who has read {unread_s} s ago is cut off: {error.message}")
        self._exchange.lose(self)


class _InterruptedError(NotFoundError):
    """What ends all calls."""


class FakeExchange:
    """A driver, its clients, and what its groups are to get."""

    def __init__(self, world: World, driver: ExchangeDriver) -> None:
        self.driver = driver
        self.clients: list[FakeClient] = []
        self.groups: dict[str, _Group] = {}
        self._world = world

    def attend(self) -> None:
        window = self._world.random.choice((0, 1, 3, 50))
        self.clients.append(FakeClient(self._world, self, window))

    def lose(self, client: FakeClient) -> None:
        """It has gone, with all that it was to get."""
        if client in self.clients:
            self.clients.remove(client)
            for id in list(client.subscriptions):
                self.end(client, id)

    def end(self, client: FakeClient, id: int) -> None:
        known = client.subscriptions.pop(id)
        if known.group:
            self.groups[known.group].is_left = True

    def expect(self, number: int, topic: str) -> int:
        """It is published; returns how many are to get it."""
        groups: set[str] = set()
        count = 0
        for client in self.clients:
            for each in client.subscriptions.values():
                if each.takes(topic) and each.group:
                    groups.add(each.group)
                elif each.takes(topic):
                    each.due.append(number)
                    count += 1
        for name in groups:
            self.groups[name].due.add(number)
        return count + len(groups)

    def read_for(self, topic: str) -> set[str]:
        """Groups that have somebody for this topic who reads."""
        return {
            each.group
            for client in self.clients
            if client.is_idle
            for each in client.subscriptions.values()
            if each.group and each.takes(topic)
        }


class _Bounds(NamedTuple):
    first_offset: int
    next_offset: int


class FakeStream:
    """`VisibleStreams`, of one stream whose latest batches are in memory."""

    def __init__(self, rng: random.Random) -> None:
        self.batches: list[StampedBatch] = []
        self.recent_from = 0
        self.limits = _Bounds(0, 0)
        self._random = rng
        self._told: dict[Callable[[], None], None] = {}

    def bounds(self, _stream_id: int) -> _Bounds:
        return self.limits

    def watch(self, _stream_id: int, told: Callable[[], None]) -> Callable[[], None]:
        self._told[told] = None
        return lambda: self._told.pop(told, None)

    def append(self, batch: StampedBatch) -> None:
        self.batches.append(batch)
        self.limits = self.limits._replace(next_offset=batch.next_offset)
        for told in list(self._told):
            told()

    def drop(self) -> None:
        """By retention: the oldest one that there is."""
        left = [each for each in self.batches if each.next_offset > self.limits.first_offset]
        if left:
            self.limits = self.limits._replace(first_offset=left[0].next_offset)
            self.recent_from = max(self.recent_from, self.limits.first_offset)

    def recent(self, _stream_id: int, offset: int, max_bytes: int) -> list[StampedBatch] | None:
        if offset >= self.limits.next_offset:
            return []
        return None if offset < self.recent_from else self._from(offset, max_bytes)

    async def read(self, _stream_id: int, offset: int, max_bytes: int) -> list[StampedBatch]:
        found = self._from(offset, max_bytes)
        await trio.sleep(self._random.choice((0.0, 0.1, 0.5)))
        if offset < self.limits.first_offset:
            raise OffsetOutOfRangeError(f"offset {offset} was dropped")
        return found

    def _from(self, offset: int, max_bytes: int) -> list[StampedBatch]:
        found: list[StampedBatch] = []
        for each in self.batches:
            if each.next_offset > offset and sum(len(one.data) for one in found) < max_bytes:
                found.append(each)
        return found


class World:
    """One run.

    Attributes:
        topics: of each message, by its number.
        bases: by the bytes of a batch the number of its first message.
    """

    def __init__(self, seed: int, nursery: trio.Nursery) -> None:
        self.random = random.Random(f"exchanges/{seed}")
        self.complaints: list[tuple[str, str]] = []
        self.did: list[str] = []
        self.topics: list[str] = []
        self.bases: dict[bytes, int] = {}
        self.stream = FakeStream(self.random)
        self._nursery = nursery
        self._room = Room()
        self._ids = 0
        self._late: list[FakeClient] = []
        self.plain = self._exchange(ExchangeSpec(replica_set="r"))
        bridge = ExchangeSpec(replica_set="r", from_stream="s", topic="{type}")
        self.bridged = self._exchange(bridge)

    def _exchange(self, spec: ExchangeSpec) -> FakeExchange:
        item = SchemaObject(kind="Exchange", name="x", spec=spec, id=1)

        def make(driver: ExchangeDriver, stream: SchemaObject, topic: str) -> Bridge:
            visible: Any = self.stream
            return Bridge(stream, topic, "r", visible, driver, self._nursery.start_soon)

        driver = ExchangeDriver(item, self._room, lambda *_: _STREAM, make)
        interrupt = driver.interrupt
        # Who is cut off is told from who is interrupted with everybody else.
        told: Any = lambda reason: interrupt(_InterruptedError(reason.message))  # noqa: E731
        driver.interrupt = told  # type: ignore[method-assign]
        return FakeExchange(self, driver)

    def complain(self, rule: str, text: str) -> None:
        self.complaints.append((rule, f"at {trio.current_time():.2f} s: {text}"))

    # --- what happens -----------------------------------------------------------------------------

    async def step(self) -> None:
        ways: tuple[tuple[Callable[[], Awaitable[None] | None], int], ...] = (
            (self._publish, 40),
            (self._append, 30),
            (self._subscribe, 12),
            (self._unsubscribe, 6),
            (self._read, 30),
            (self._stall, 8),
            (self._leave, 2),
            (self._forget, 4),
            (self._pass, 10),
        )
        happen = self.random.choices([way for way, _ in ways], [often for _, often in ways])[0]
        self.did.append(happen.__name__)
        if self._late and self.random.random() < 0.3:
            self._late.pop().on_writable()
        for exchange in (self.plain, self.bridged):
            while len(exchange.clients) < _CLIENTS:
                exchange.attend()
        done = happen()
        if done is not None:
            await done

    def _publish(self) -> None:
        batches = [
            [self.random.choice(_TOPICS) for _ in range(self.random.choice((1, 1, 3, 6)))]
            for _ in range(self.random.choice((1, 1, 1, 3)))
        ]
        self.publish(batches)

    def publish(self, batches: Sequence[Sequence[str]]) -> None:
        """Batches of records with these topics, in one call."""
        wanted: dict[int, set[str]] = {}
        published, count = [], 0
        for topics in batches:
            base = len(self.topics)
            data = b"%d " % base + b"x" * self.random.choice((10, 300, 900))
            self.bases[data] = base
            self.topics += topics
            for number, topic in enumerate(topics, base):
                wanted[number] = self.plain.read_for(topic)
                count += self.plain.expect(number, topic)
            runs = [(topic, at, at) for at, topic in enumerate(topics)]
            published.append(Published(data, runs))
        deliveries, dropped = self.plain.driver.publish(published)
        if deliveries + dropped != count:
            self.complain("X3", f"{deliveries} delivered and {dropped} dropped, of {count}")
        for number, names in wanted.items():
            for name in names:
                group = self.plain.groups[name]
                if number not in group.got and not group.is_left:
                    self.complain("X1", f"somebody of {name} reads, and does not get {number}")

    def _append(self) -> None:
        """Records become visible in the stream, some of them without a topic."""
        builder, base = BatchBuilder(), len(self.topics)
        topics = [self.random.choice((*_TOPICS, "")) for _ in range(self.random.choice((1, 2, 5)))]
        for number, topic in enumerate(topics, base):
            value = b"%d " % number + b"x" * self.random.choice((1, 200))
            builder.add(NewRecord(value=value, type=topic), 1)
            self.topics.append(topic)
            if topic:
                self.bridged.expect(number, topic)
        data = builder.build()
        self.bases[bytes(data)] = base
        offset = self.stream.limits.next_offset
        if self.random.random() < 0.3:
            # Its bytes have come with an earlier entry, and are read from the disk.
            self.stream.recent_from = offset + len(topics)
        self.stream.append(StampedBatch(offset, len(topics), 1, 1, 1, memoryview(data)))

    def _subscribe(self) -> None:
        exchange = self.random.choice((self.plain, self.bridged))
        client = self.random.choice(exchange.clients)
        self._ids += 1
        patterns = tuple(self.random.choices(_PATTERNS, k=self.random.choice((1, 1, 2))))
        # Of a bridge's a group would have to know when it has published what.
        group = self.random.choice(("", "", "g", "h")) if exchange is self.plain else ""
        known = _Subscription(patterns, group)
        if exchange is self.bridged and exchange.driver.has_subscriptions:
            known.due.extend(self._not_published(known))
        if group:
            exchange.groups.setdefault(group, _Group())
        client.subscriptions[self._ids] = known
        exchange.driver.subscribe(client.session, [(self._ids, list(patterns), group)])

    def _not_published(self, known: _Subscription) -> Iterator[int]:
        """What is visible, and the bridge has still to publish: who comes gets that, too. Nobody
        but the bridge knows where it is."""
        bridge = self.bridged.driver._bridge
        assert bridge is not None
        for each in self.stream.batches:
            base = self.bases[bytes(each.data)]
            first = max(0, bridge._position - each.base_offset)
            for number in range(base + first, base + each.count):
                if self.topics[number] and known.takes(self.topics[number]):
                    yield number

    def _unsubscribe(self) -> None:
        exchange = self.random.choice((self.plain, self.bridged))
        client = self.random.choice(exchange.clients)
        if client.subscriptions:
            id = self.random.choice(list(client.subscriptions))
            exchange.end(client, id)
            exchange.driver.unsubscribe(client.session, [id])

    def _read(self) -> None:
        """Somebody reads; its connection may say so a while after it has room."""
        client = self._some_client()
        client.window = max(client.window, 0) + self.random.choice((1, 2, 20))
        if self.random.random() < 0.5:
            self._late.append(client)
        else:
            client.on_writable()

    def _stall(self) -> None:
        self._some_client().window = 0

    def _leave(self) -> None:
        exchange = self.random.choice((self.plain, self.bridged))
        client = self.random.choice(exchange.clients)
        exchange.lose(client)
        exchange.driver.leave(client.session)

    def _some_client(self) -> FakeClient:
        return self.random.choice([*self.plain.clients, *self.bridged.clients])

    def _forget(self) -> None:
        """What is in memory of the stream, or now and then what is there."""
        if self.random.random() < 0.1:
            self.stream.drop()
        else:
            self.stream.recent_from = self.stream.limits.next_offset

    async def _pass(self) -> None:
        await trio.sleep(self.random.choice((0.0, 0.1, 0.6, 4.0)))

    # --- what must be so --------------------------------------------------------------------------

    async def finish(self) -> None:
        """Everybody reads: who is subscribed has heard of all, and nothing waits any more."""
        for _ in range(2):
            for client in [*self.plain.clients, *self.bridged.clients]:
                client.window = 10_000
                client.on_writable()
            await trio.sleep(60.0)
        for exchange in (self.plain, self.bridged):
            for client in exchange.clients:
                known = [*client.subscriptions.values()]
                if client.session.patterns != sum(len({*each.patterns}) for each in known):
                    self.complain("X4", f"{client.session.patterns} patterns count for {known}")
                for id, each in client.subscriptions.items():
                    if each.due:
                        self.complain("X3", f"{id} was never told of {[*each.due][:3]}")
            for name, group in exchange.groups.items():
                left = len(group.due - group.got) - group.missed
                if left and not group.is_left:
                    self.complain("X3", f"{name} was never told of {left}")
        self._take_turns()
        for exchange in (self.plain, self.bridged):
            exchange.driver.close(_InterruptedError("the end"))
            for text in leftovers(exchange.driver, nodes=0, objects=0):
                self.complain("W9", text)
        held = self._room.held_bytes, self._room.patterns
        if any(held):
            self.complain("X4", f"{held} bytes and patterns are held for nobody")

    def _take_turns(self) -> None:
        """A group's messages go to each of those that read."""
        some = self.plain.clients[:2]
        got = [0, 0]
        self.plain.groups["turns"] = _Group()
        for place, client in enumerate(some):
            self._ids += 1
            known = client.subscriptions[self._ids] = _Subscription(("turns",), "turns")
            self.plain.driver.subscribe(client.session, [(self._ids, ["turns"], "turns")])
            for _ in range(_TURNS * place):
                before = known.latest
                self.publish([["turns"]])
                got[place] += known.latest > before
        if len(some) == 2 and not 0 < got[1] < _TURNS:
            self.complain("X1", f"of {_TURNS} messages to a group of two one gets {got[1]}")


async def _run(seed: int, found: list[World], _time: object) -> None:
    try:
        async with trio.open_nursery() as nursery:
            world = World(seed, nursery)
            found.append(world)
            for _ in range(_STEPS):
                await world.step()
            await world.finish()
            nursery.cancel_scope.cancel()
    except Exception as error:  # a bug may break anything
        (world,) = found
        world.complain("raised", f"{type(error).__name__}: {error}")


def play(seed: int) -> Played:
    """A run of that seed."""
    found: list[World] = []
    rng = random.Random(f"bounds of exchanges/{seed}")
    small = {
        name: rng.choice(limit.values) for name, limit in ROOM_LIMITS.items() if rng.random() < 0.7
    }
    with limited(small):
        run_seeded(seed, partial(_run, seed, found), Trace())
    (world,) = found
    heard = [world.plain.driver.machine.deliveries, world.bridged.driver.machine.deliveries]
    digest = hashlib.blake2b(f"{' '.join(world.did)} {heard}".encode(), digest_size=8)
    return Played(
        [f"{rule}: exchanges {seed}: {text}" for rule, text in world.complaints],
        len(world.did),
        digest.hexdigest(),
    )
