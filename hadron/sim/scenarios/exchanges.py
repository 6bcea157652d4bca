"""EXCHANGES X1 to X7: what subscribers may count on, whoever leads and whoever does not read."""

from __future__ import annotations

import trio

from hadron.client import Client
from hadron.exchanges import machine
from hadron.model.record_batch import decode_batch
from hadron.sim.actors.clients import STREAM
from hadron.sim.scenarios.exchange_play import EXCHANGE, ExchangePlay
from hadron.sim.scenarios.play import Play, scenario
from hadron.wire.calling import OpenedCall
from hadron.wire.connection import Connection
from hadron.wire.dialing import dial, talk
from hadron.wire.messages import exchanges_pb2, method


@scenario("X7: who is subscribed is again soon after the leader is back, and knows of it")
async def subscribers_and_a_leader_that_comes_and_goes(play: Play) -> None:
    """Two programs publish; some subscribe, alone and in a group, from three programs, one of which
    takes its time. n1 loses power twice; then it gets what one of the publishers says, and that one
    does not hear its answers."""
    world, exchange = play.world, ExchangePlay(play)
    await exchange.declare()
    async with (
        world.client("s0") as one,
        world.client("s1") as two,
        world.client("s2") as three,
        exchange.subscribed(one, [">"]) as everything,
        exchange.subscribed(one, ["*.b", "a"]) as some,
        exchange.subscribed(two, ["a.*", "a"], "g") as member,
        exchange.subscribed(three, ["*", "*.b"], "g"),
        exchange.subscribed(three, ["b.>"], pause_s=0.2),
    ):
        for turn in (1, 2):
            async with trio.open_nursery() as nursery:
                for publisher in ("p0", "p1"):
                    nursery.start_soon(_publish_slowly, exchange, publisher)
                await trio.sleep(0.3)
                await world.crash("n1", power=True)
                await world.start("n1")
            await world.wait_serving()
            await trio.sleep(1.5)
            seen = len(everything.got), len(some.got)
            await exchange.publish("p0", 1, topic="a.b")
            await trio.sleep(0.5)
            assert (len(everything.got), len(some.got)) == (seen[0] + 1, seen[1] + 1), (
                "X7: nobody is subscribed again"
            )
            told = sum(interrupted for *_, interrupted in everything.got)
            assert told == turn, "X7: nobody was told that something may be missing"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_publish_slowly, exchange, "p0")
            await trio.sleep(0.5)
            world.network.cut_one_way("n1", "p0")
            await trio.sleep(1.0)
            world.network.reset("p0", "n1")
            await trio.sleep(3.0)
            world.network.heal_all()
        await exchange.publish("p1", 5, pause_s=0.1)
        assert member.interruptions
    exchange.judge()


async def _publish_slowly(exchange: ExchangePlay, publisher: str) -> None:
    await exchange.publish(publisher, 20, pause_s=0.05)


@scenario("X3: a program that is too slow is told how much it has missed")
async def subscribers_that_are_too_slow(play: Play) -> None:
    """Messages come faster than one of three programs takes them; its neighbours, on the same
    connection, get all; so does a group, between two who share."""
    exchange = ExchangePlay(play)
    await exchange.declare()
    async with (
        play.world.client("s0") as one,
        play.world.client("s1") as two,
        exchange.subscribed(one, [">"], pause_s=0.05) as slow,
        exchange.subscribed(one, [">"]) as quick,
        exchange.subscribed(one, ["a", "b.>"], "g"),
        exchange.subscribed(two, [">"], "g"),
    ):
        for _ in range(3):
            await exchange.publish("p0", 10, many=30)
            await trio.sleep(10.0)
            await exchange.publish("p1", 1)
    exchange.judge()
    assert slow.missed
    assert not quick.missed
    assert any(missed for _, missed, _ in slow.got), "X3: nobody was told what is missing"


class _Raw:
    """A client that reads when it is told to, on a call of its own.

    Attributes:
        story: what it heard: messages by subscription and number, gaps as None and how many.
    """

    def __init__(self) -> None:
        self.story: list[tuple[int, int | None, int]] = []
        self.confirmed: set[int] = set()
        self.unread = 0
        self.call: OpenedCall | None = None

    def open(self, connection: Connection) -> OpenedCall:
        request = exchanges_pb2.AttendRequest()
        request.open.exchange = EXCHANGE
        self.call = connection.call(method("Attend"), request, on_message=self._hear, end=False)
        return self.call

    def subscribe(self, id: int, pattern: str) -> None:
        request = exchanges_pb2.AttendRequest()
        request.subscribe.subscriptions.add(id=id, patterns=[pattern])
        assert self.call is not None
        self.call.send(request)

    def unsubscribe(self, id: int) -> None:
        request = exchanges_pb2.AttendRequest()
        request.unsubscribe.ids.append(id)
        assert self.call is not None
        self.call.send(request)

    def read(self) -> None:
        assert self.call is not None
        size, self.unread = self.unread, 0
        self.call.consumed(size)

    def _hear(self, event: exchanges_pb2.AttendEvent, attachment: memoryview) -> None:
        self.unread += event.ByteSize() + len(attachment)
        self.confirmed.update(event.subscribed.ids)
        for gap in event.missed.gaps:
            self.story.append((gap.id, None, gap.messages))
        at = 0
        batches = []
        for each in event.messages.batches:
            batches.append(decode_batch(attachment[at : at + each.length]))
            at += each.length
        said = event.messages
        for batch, first, last, to in zip(said.at, said.firsts, said.lasts, said.to, strict=True):
            for record in batches[batch].records(first, last + 1):
                number = int(record.value_bytes.partition(b" ")[0])
                self.story += [(id, number, 1) for id in said.recipients[to].ids]

    async def wait_confirmed(self, id: int) -> None:
        while id not in self.confirmed:  # noqa: ASYNC110
            await trio.sleep(0.01)


@scenario("X3: what is dropped at the leader is told before what follows; who leaves gets no more")
async def a_client_that_does_not_read(play: Play) -> None:
    """A client with two subscriptions gives no credit, until a window is on its way, what may wait
    waits, and more is dropped. It ends one of them, and reads again: of the other, what it was told
    and what it was told it had missed is all there was, in order."""
    world, exchange = play.world, ExchangePlay(play)
    await exchange.declare()
    size = 100_000
    count = ((1 << 20) + machine.SESSION_BYTES) // size + 20

    async def talk_raw(connection: Connection) -> None:
        raw = _Raw()
        raw.open(connection)
        raw.subscribe(1, "a")
        raw.subscribe(2, "a")
        await raw.wait_confirmed(2)
        async with world.client("p0") as client:
            published = client.exchange(EXCHANGE)
            for number in range(count):
                await published.publish("a", b"%d " % number + b"x" * size)
            assert len(raw.story) < 2 * count
            raw.unsubscribe(2)
            raw.subscribe(3, "b")
            await raw.wait_confirmed(3)
            ended_at = len(raw.story)
            for _ in range(100):
                raw.read()
                await trio.sleep(0.05)
            await published.publish("a", b"%d then" % count)
            raw.read()
            await trio.sleep(0.5)
        late = [each for each in raw.story[ended_at:] if each[0] == 2]
        assert not late, "X1: a subscription that has ended gets messages"
        at = 0
        told = 0
        for id, heard, messages in raw.story:
            if id != 1:
                continue
            if heard is None:
                told += messages
                at += messages
            else:
                assert heard == at, "X3: a gap is not told before what follows it"
                at += 1
        assert told, "X4: nothing was dropped, however much waits"
        assert at == count + 1, "X3: a drop that is not told"

    connection = await dial(world.network.boot("raw"), world.config.node("n1").address)
    await talk(connection, talk_raw)


@scenario("X6: a bridged stream's records come once they are visible, in order, and no others")
async def messages_of_a_bridged_stream(play: Play) -> None:
    """Records are published to a stream that is bridged, by transactions too, of which some are
    rolled back; n1 crashes in between. A subscriber gets what the stream has, but for what comes
    while it is not subscribed."""
    world = play.world
    home = world.config.name
    got: list[str] = []
    interrupted: list[int] = []
    async with world.client("o1") as client:
        await client.apply(
            f"kind: Exchange\nname: {EXCHANGE}\nreplica_set: {home}\nfrom_stream: {STREAM}\n"
            "topic: n.{stream}\n"
        )

        async def take() -> None:
            async with client.exchange(EXCHANGE).subscribe("n.*") as messages:
                ready.set()
                async for message in messages:
                    assert message.topic == f"n.{STREAM}"
                    if message.interrupted:
                        interrupted.append(len(got))
                    got.append(message.value)

        async with trio.open_nursery() as nursery:
            ready = trio.Event()
            nursery.start_soon(take)
            await ready.wait()
            for turn in range(3):
                for number in range(10):
                    await play.publish(play.value())
                    await _publish_in_one(play, client, is_kept=number % 3 > 0)
                if turn == 1:
                    await world.crash("n1", power=True)
                    await world.start("n1")
                    await world.wait_serving()
                    await trio.sleep(1.5)
            await trio.sleep(1.0)
            nursery.cancel_scope.cancel()
        has = [record.value async for record in client.read(STREAM)]
    assert len(got) == len(set(got)), "X1: a record came twice"
    assert set(got) <= set(has), "X6: a record came that is not in the stream"
    at = [has.index(each) for each in got]
    assert at == sorted(at), "X2: records came out of order"
    assert len(interrupted) == 1, "X7: nobody was told that something may be missing"
    begun = at[interrupted[0]]
    assert at == [*range(interrupted[0]), *range(begun, len(has))], (
        "X6: a visible record is missing"
    )


async def _publish_in_one(play: Play, client: Client, *, is_kept: bool) -> None:
    """A record by a transaction, which commits or is rolled back."""
    value, home = play.value(), play.world.config.name
    async with client.transaction() as transaction:
        await transaction.publish(STREAM, value)
        if not is_kept:
            await transaction.rollback()
            return
        operation = play.history.publish("o1", "", STREAM, home, (value,), acks="majority")
    operation.runs = [(each.offset, 1) for each in transaction.receipts]
    play.history.ok(operation)
