"""What an exchange promises holds while its leader is killed, and nodes are paused: a message comes
once, in its publisher's order, what is missing is told, bridges log and publish what they say, and
subscribers hear again soon after each fault (X1 to X7 in docs/EXCHANGES.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Final

import pytest
import trio
from load import ALONE, PROGRESS_S, start_nodes
from report import Row

import hadron
from hadron.client import Client
from hadron.model.errors import HadronError, OutcomeUnknownError
from hadron.model.record import NewRecord
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.model.services import ExchangeSpec
from hadron.sim.actors.messages import PLAIN, TOPICS, MessageBook, Taken
from hadron.testing.cluster import FaultyCluster

HOME: Final = "local/p0"
LOGGED, AUDIT = "logged", "audit"
BRIDGED, TICKS = "bridged", "ticks"

PUBLISHERS: Final = 2
AT_ONCE: Final = 7
MORE: Final = 500
"""Messages from when all hear again to the next fault."""

PAUSE_S: Final = 0.03
"""Between two calls of a publisher."""

SLOW_S: Final = 0.03
"""For each message: one that takes so long misses some."""

PAUSED_S: Final = 3.0


@dataclass
class Crowd:
    """Publishers, subscribers, and what each has noted.

    Attributes:
        book: of an exchange without a bridge.
        alone, group: subscriptions there.
        logged: what became of each message of `LOGGED`, by its value: its offset in `AUDIT`, or how
            it failed.
        ticks: where each acknowledged record of `TICKS` is.
        heard: from `BRIDGED`, in order.
    """

    book: MessageBook = field(default_factory=lambda: MessageBook(PLAIN))
    alone: list[Taken] = field(default_factory=list)
    group: list[Taken] = field(default_factory=list)
    logged: dict[str, int | str] = field(default_factory=dict)
    ticks: dict[str, int] = field(default_factory=dict)
    heard: list[str] = field(default_factory=list)

    async def publish(self, client: Client, name: str) -> None:
        for number in count():
            topics = [TOPICS[(number + each) % len(TOPICS)] for each in range(AT_ONCE)]
            await self.book.publish(client, name, topics)
            await trio.sleep(PAUSE_S)

    async def log(self, client: Client, name: str) -> None:
        exchange = client.exchange(LOGGED)
        for number in count():
            value = f"{name}/{number}"
            self.logged[value] = "unknown"
            try:
                sent = await exchange.publish("a", value, logged=True)
                self.logged[value] = sent.receipts[0].base_offset
            except OutcomeUnknownError:
                pass
            except HadronError:
                self.logged[value] = "refused"
            await trio.sleep(PAUSE_S)

    async def tick(self, client: Client) -> None:
        async with client.producer(TICKS) as producer:
            for number in count():
                value = f"tick {number}"
                receipt = await producer.send(NewRecord(value=value, type="tick"))
                self.ticks[value] = receipt.offset
                await trio.sleep(PAUSE_S)

    async def hear(self, client: Client) -> None:
        async with client.exchange(BRIDGED).subscribe(">") as messages:
            async for message in messages:
                self.heard.append(message.value)

    def ears(self) -> list[Callable[[], int]]:
        """How much each subscriber has heard by now; a group's members together."""
        return [
            *(lambda taken=taken: len(taken.got) for taken in self.alone),
            lambda: sum(len(taken.got) for taken in self.group),
            lambda: len(self.heard),
        ]

    async def hear_again(self, row: Row) -> None:
        """All is well from now on: until everybody has heard something that is new, and then some
        more was said."""
        began_s = trio.current_time()
        for ear in self.ears():
            before = ear()
            with trio.move_on_after(3 * PROGRESS_S):
                while ear() == before:  # noqa: ASYNC110 - of other processes
                    await trio.sleep(0.01)
        row.progress_s.append(trio.current_time() - began_s)
        said = len(self.book.sent) + MORE
        with trio.move_on_after(3 * PROGRESS_S):
            while len(self.book.sent) < said:  # noqa: ASYNC110 - of other processes
                await trio.sleep(0.01)


def objects() -> list[SchemaObject]:
    exchanges = {
        PLAIN: ExchangeSpec(replica_set=HOME),
        LOGGED: ExchangeSpec(replica_set=HOME, to_stream=AUDIT),
        BRIDGED: ExchangeSpec(replica_set=HOME, from_stream=TICKS),
    }
    return [
        *(
            SchemaObject(kind="Stream", name=name, spec=StreamSpec(partitions=(HOME,)))
            for name in (AUDIT, TICKS)
        ),
        *(SchemaObject(kind="Exchange", name=name, spec=spec) for name, spec in exchanges.items()),
    ]


def connected(cluster: FaultyCluster) -> Client:
    """One whose way to each node goes through no other node's proxy."""
    return hadron.connect(cluster.url, ports=cluster.ports(ALONE))


@asynccontextmanager
async def crowd_at(cluster: FaultyCluster) -> AsyncIterator[Crowd]:
    """Everybody at work for the length of a block."""
    crowd = Crowd()
    async with (
        connected(cluster) as publishing,
        connected(cluster) as subscribing,
        connected(cluster) as member,
        AsyncExitStack() as ears,
    ):
        await publishing.apply(objects())
        heard = crowd.book.subscribed
        for patterns, pause_s in ((">",), 0.0), (("a.*", "a"), 0.0), ((">",), SLOW_S):
            each = heard(subscribing, patterns, pause_s=pause_s)
            crowd.alone.append(await ears.enter_async_context(each))
        for client in (subscribing, member):
            each = heard(client, (">",), group="workers")
            crowd.group.append(await ears.enter_async_context(each))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(crowd.hear, member)
            for number in range(PUBLISHERS):
                nursery.start_soon(crowd.publish, publishing, f"p{number}")
                nursery.start_soon(crowd.log, publishing, f"l{number}")
            nursery.start_soon(crowd.tick, publishing)
            yield crowd
            nursery.cancel_scope.cancel()


async def harm(cluster: FaultyCluster, crowd: Crowd, row: Row, kills: int) -> None:
    """Kill the leader so often, every third time with a replica paused; and pause the leader."""
    await crowd.hear_again(Row(""))
    for turn in range(kills):
        is_paused = turn % 3 == 2
        if is_paused:
            cluster.pause("n3")
        cluster.kill("n1")
        row.kills += 1
        await start_nodes(cluster, "n1")
        await crowd.hear_again(row)
        if is_paused:
            cluster.resume("n3")
    cluster.pause("n1")
    await trio.sleep(PAUSED_S)
    cluster.resume("n1")
    await crowd.hear_again(row)


# --- judging --------------------------------------------------------------------------------------


def missing(book: MessageBook, taken: Taken) -> list[str]:
    """X3, X7: what did not come between two messages, neither told as missed nor as interrupted.

    Of each publisher, as only its own messages come in its order."""
    found = []
    stretches: list[list[tuple[int, int]]] = [[]]
    for number, missed, interrupted in taken.got:
        if interrupted:
            stretches.append([])
        stretches[-1].append((number, missed))
    for stretch in stretches:
        got = {number for number, _ in stretch}
        told = sum(missed for _, missed in stretch[1:])
        ends: dict[str, list[int]] = {}
        for number in got:
            ends.setdefault(book.sent[number].publisher, []).append(number)
        lacking = sum(
            sent.publisher == publisher and sent.state == "ok" and taken.takes(sent.topic)
            for publisher, numbers in ends.items()
            for each in range(min(numbers), max(numbers))
            if each not in got
            for sent in [book.sent[each]]
        )
        if lacking > told:
            found.append(f"X3 {lacking} messages did not come, {told} are told")
    return found


async def judge_audit(client: Client, logged: dict[str, int | str], row: Row) -> list[str]:
    """X5: what was acknowledged is where it is said to be, once, and what was refused nowhere."""
    there = {record.offset: record.value async for record in client.read(AUDIT)}
    times = Counter(there.values())
    acked = {value: at for value, at in logged.items() if isinstance(at, int)}
    row.acked += len(acked)
    row.unknown += sum(state == "unknown" for state in logged.values())
    row.refused += sum(state == "refused" for state in logged.values())
    lost = [value for value, at in acked.items() if there.get(at) != value]
    twice = [value for value, time in times.items() if time > 1]
    never = [value for value in times if logged.get(str(value), "refused") == "refused"]
    row.lost, row.duplicated = len(lost), len(twice)
    return [
        f"{rule}: {len(values)}, as {values[0]!r}"
        for rule, values in (("lost", lost), ("logged twice", twice), ("refused, and there", never))
        if values
    ]


async def judge_bridge(client: Client, crowd: Crowd) -> list[str]:
    """X6: each record once, in the stream's order, and none that is not there."""
    there = {record.value: record.offset async for record in client.read(TICKS)}
    found = [f"lost: {value}" for value, at in crowd.ticks.items() if there.get(value) != at]
    if unknown := [value for value in crowd.heard if value not in there]:
        return [*found, f"X6 {unknown[0]} was heard, and is not in the stream"]
    offsets = [there[value] for value in crowd.heard]
    if offsets != sorted(set(offsets)):
        found.append("X6 records came twice, or in another order than the stream's")
    return found


async def play(cluster: FaultyCluster, row: Row, kills: int) -> None:
    async with crowd_at(cluster) as crowd:
        await harm(cluster, crowd, row, kills)
    book = crowd.book
    found = book.complaints(gaps=True)
    for taken in crowd.alone:
        found += missing(book, taken)
        # Each has heard something between two kills.
        if (told := sum(interrupted for *_, interrupted in taken.got)) < row.kills:
            found.append(f"X7 {told} interruptions are told of {row.kills} kills")
    async with connected(cluster) as client:
        found += await judge_audit(client, crowd.logged, row)
        found += await judge_bridge(client, crowd)
    row.delivered = sum(len(taken.got) for taken in book.taken) + len(crowd.heard)
    states = Counter(sent.state for sent in book.sent)
    row.notes.append(
        f"{len(book.sent):,} messages ({states['unknown']:,} of unknown outcome, "
        f"{states['refused']:,} refused); {sum(taken.missed for taken in book.taken):,} told as "
        f"missed, {sum(taken.interruptions for taken in book.taken):,} interruptions; "
        f"{len(crowd.heard):,} of {len(crowd.ticks):,} records heard through a bridge"
    )
    assert not found, found[:5]
    assert sum(taken.missed for taken in book.taken) > 0, "nobody was slow enough to miss anything"
    assert max(row.progress_s) <= PROGRESS_S, row.progress_s
    row.verdict = "valid"


async def test_a_leader_is_killed_under_subscribers(cluster: FaultyCluster, row: Row) -> None:
    await play(cluster, row, 3)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_twenty_leader_kills_under_subscribers(cluster: FaultyCluster, row: Row) -> None:
    await play(cluster, row, 20)
