"""Who calls hears what has become of the call, whatever breaks, and nothing is run twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
import trio
from load import ALONE, WORKERS, start_nodes
from regions import EU, SETS, US
from report import Row, quantile

import hadron
from hadron.client import Client
from hadron.model.errors import CallUnknownError, HadronError
from hadron.model.schema import SchemaObject
from hadron.model.services import EndpointSpec
from hadron.testing.cluster import FaultyCluster
from hadron.testing.fleet import FaultyFleet

CALLS: Final = 500
ONCE, TWICE = "once", "twice"
HOME: Final = "local/p0"

TOLD_S: Final = 2.0
"""The bar: who calls hears within that time that its server, or the leader, is lost."""

SERVERS: Final = 20
BACK_S: Final = 1.0
"""The bar: a second after a leader serves it has all servers again."""

LIMIT_S: Final = 30.0


@dataclass
class Book:
    """What handlers have run, and what callers were told.

    Attributes:
        runs: how often each call was begun.
        ended_s: when each call was over, in trio's time.
        ends: by the name of their error, "" for an answer.
        gate: handlers wait for it.
    """

    runs: Counter[str] = field(default_factory=Counter)
    ended_s: dict[str, float] = field(default_factory=dict)
    ends: dict[str, str] = field(default_factory=dict)
    gate: trio.Event = field(default_factory=trio.Event)

    async def handle(self, token: str) -> str:
        self.runs[token] += 1
        await self.gate.wait()
        return token

    async def call(self, client: Client, endpoint: str, token: str) -> None:
        try:
            answer = await client.call(endpoint, token, timeout_s=LIMIT_S)
            assert answer == token
            self.ends[token] = ""
        except HadronError as error:
            self.ends[token] = error.code
        self.ended_s[token] = trio.current_time()

    def are_over(self, tokens: list[str]) -> bool:
        return all(token in self.ends for token in tokens)

    def ends_of(self, tokens: list[str]) -> Counter[str]:
        return Counter(self.ends[token] for token in tokens if token in self.ends)


async def declare(client: Client, **homes: str) -> None:
    await client.apply(
        [
            SchemaObject(
                kind="Endpoint",
                name=name,
                spec=EndpointSpec(replica_set=home, idempotent=name == TWICE),
            )
            for name, home in homes.items()
        ]
    )


async def until(holds: Callable[[], bool]) -> None:
    with trio.fail_after(LIMIT_S):
        while not holds():  # noqa: ASYNC110 - of other processes
            await trio.sleep(0.005)


@asynccontextmanager
async def declared(client: Client, book: Book, server: Client, **homes: str) -> AsyncIterator[None]:
    """Endpoints, and one who serves all of them."""
    await declare(client, **homes)
    async with AsyncExitStack() as stack:
        for name in homes:
            serving = server.serve(name, book.handle, max_in_flight=CALLS, drain_s=0.1)
            await stack.enter_async_context(serving)
        yield


async def in_flight(
    nursery: trio.Nursery, book: Book, client: Client, endpoint: str, count: int
) -> list[str]:
    """So many calls that servers have."""
    tokens = [f"{endpoint}/{number}" for number in range(count)]
    for token in tokens:
        nursery.start_soon(book.call, client, endpoint, token)
    await until(lambda: all(book.runs[token] for token in tokens))
    return tokens


async def test_the_leader_is_killed_with_calls_in_flight(cluster: FaultyCluster, row: Row) -> None:
    book = Book()
    async with (
        hadron.connect(cluster.url) as server,
        hadron.connect(cluster.url) as client,
        declared(client, book, server, **{ONCE: HOME, TWICE: HOME}),
        trio.open_nursery() as nursery,
    ):
        once = await in_flight(nursery, book, client, ONCE, CALLS // 2)
        twice = await in_flight(nursery, book, client, TWICE, CALLS // 2)
        killed_s = trio.current_time()
        cluster.kill("n1")
        row.kills += 1
        await until(lambda: book.are_over(once))
        book.gate.set()
        await start_nodes(cluster, "n1")
        back_s = trio.current_time()
        await until(lambda: book.are_over(twice))
    told_s = [book.ended_s[token] - killed_s for token in once]
    assert max(told_s) <= TOLD_S
    assert book.ends_of(once) == {CallUnknownError.__name__: len(once)}
    assert max(book.runs[token] for token in once) == 1
    assert book.ends_of(twice) == {"": len(twice)}
    answered_s = max(book.ended_s[token] for token in twice) - back_s
    row.notes.append(
        f"{len(once)} callers heard of it within {max(told_s):.2f} s (p50 "
        f"{quantile(told_s, 0.5):.2f} s); {len(twice)} calls of an idempotent endpoint were "
        f"answered within {max(answered_s, 0.0):.2f} s of the leader's return"
    )
    row.verdict = "valid"


async def test_twenty_servers_are_back_with_the_leader(cluster: FaultyCluster, row: Row) -> None:
    """However they reach it, and a second after it serves: in one of three times at least, as the
    machine has other work too."""
    book = Book()
    book.gate.set()
    async with AsyncExitStack() as stack:
        ways = [await stack.enter_async_context(hadron.connect(cluster.url))]
        for side, node in zip((ALONE, next(iter(WORKERS))), ("n2", "n3"), strict=True):
            ways.append(await stack.enter_async_context(through(cluster, row, side, node)))
        await declare(ways[0], **{TWICE: HOME})
        for number in range(SERVERS):
            way = ways[number % len(ways)]
            await stack.enter_async_context(way.serve(TWICE, book.handle, drain_s=0.1))
        await listed(cluster, SERVERS)
        took_s, spare_s = [], []
        for time in range(3):
            cluster.kill("n1")
            row.kills += 1
            await start_nodes(cluster, "n1")
            back_s = trio.current_time()
            polled_s = await listed(cluster, SERVERS)
            took_s.append(trio.current_time() - back_s)
            spare_s.append(BACK_S + polled_s - took_s[-1])
            await call_each(ways[1], TWICE, f"back {time}", 10)
    row.notes.append(
        f"{SERVERS} servers were back {', '.join(f'{each:.2f} s' for each in took_s)} after the "
        "leader"
    )
    assert max(spare_s) >= 0
    row.verdict = "valid"


async def listed(cluster: FaultyCluster, count: int) -> float:
    """Wait until the leader has so many servers; how long the last look took, a connection to it
    with it."""
    with trio.fail_after(LIMIT_S):
        while True:
            began_s = trio.current_time()
            async with hadron.connect(f"hadron://{cluster.address('n1')}") as client:
                (found,) = await client.endpoints(TWICE)
            took_s = trio.current_time() - began_s
            if len(found.servers) == count:
                return took_s
            await trio.sleep(0.005)


@asynccontextmanager
async def through(cluster: FaultyCluster, row: Row, side: str, node: str) -> AsyncIterator[Client]:
    """A client that reaches this one alone."""
    for name in cluster.names:
        if name != node:
            cluster.cut(side, name)
            cluster.refuse(side, name)
            row.partitions += 1
    async with hadron.connect(cluster.url, ports=cluster.ports(side)) as client:
        yield client


@pytest.mark.long
async def test_the_node_in_between_is_killed(cluster: FaultyCluster, row: Row) -> None:
    """Who cannot reach the leader calls through a replica."""
    book = Book()
    async with (
        hadron.connect(cluster.url) as server,
        hadron.connect(cluster.url) as near,
        declared(near, book, server, **{ONCE: HOME, TWICE: HOME}),
        trio.open_nursery() as nursery,
        through(cluster, row, ALONE, "n2") as far,
    ):
        once = await in_flight(nursery, book, far, ONCE, CALLS)
        beside = await in_flight(nursery, book, near, TWICE, 10)
        killed_s = trio.current_time()
        cluster.kill("n2")
        row.kills += 1
        await until(lambda: book.are_over(once))
        assert not book.ends_of(beside)
        book.gate.set()
        await until(lambda: book.are_over(beside))
    told_s = [book.ended_s[token] - killed_s for token in once]
    assert max(told_s) <= TOLD_S
    assert book.ends_of(once) == {CallUnknownError.__name__: len(once)}
    assert max(book.runs.values()) == 1
    assert book.ends_of(beside) == {"": len(beside)}
    row.notes.append(f"{len(once)} callers heard of it within {max(told_s):.2f} s")
    row.verdict = "valid"


@pytest.mark.long
async def test_the_node_that_a_server_is_attached_through_is_killed(
    cluster: FaultyCluster, row: Row
) -> None:
    """What it has is lost, and told; the endpoint goes on with others, and with it once the node is
    back."""
    book = Book()
    async with (
        hadron.connect(cluster.url) as near,
        through(cluster, row, ALONE, "n2") as far,
        declared(near, book, far, **{ONCE: HOME, TWICE: HOME}),
        trio.open_nursery() as nursery,
    ):
        once = await in_flight(nursery, book, near, ONCE, CALLS // 2)
        twice = await in_flight(nursery, book, near, TWICE, CALLS // 2)
        async with (
            near.serve(ONCE, book.handle, max_in_flight=CALLS, drain_s=0.1),
            near.serve(TWICE, book.handle, max_in_flight=CALLS, drain_s=0.1),
        ):
            killed_s = trio.current_time()
            cluster.kill("n2")
            row.kills += 1
            await until(lambda: book.are_over(once))
            assert not book.ends_of(twice)
            book.gate.set()
            await until(lambda: book.are_over(twice))
            await call_each(near, ONCE, "goes on", 10)
            await start_nodes(cluster, "n2")
            await listed(cluster, 2)
            await call_each(near, ONCE, "and with both", 10)
    told_s = [book.ended_s[token] - killed_s for token in once]
    assert max(told_s) <= TOLD_S
    assert book.ends_of(once) == {CallUnknownError.__name__: len(once)}
    assert {book.runs[token] for token in once} == {1}
    assert book.ends_of(twice) == {"": len(twice)}
    assert {book.runs[token] for token in twice} == {2}
    row.notes.append(
        f"{len(once)} callers heard within {max(told_s):.2f} s that their server is out of reach"
    )
    row.verdict = "valid"


@pytest.mark.long
async def test_regions_that_are_cut_go_on_for_their_own_callers(tmp_path: Path, row: Row) -> None:
    """What lives in a region is called and served there while the other one is out of reach."""
    book, worst = Book(), dict[str, float]()
    book.gate.set()
    sides = {EU: "c1", US: "c2"}
    with FaultyFleet(tmp_path, SETS, clients=tuple(sides.values())) as fleet:
        async with AsyncExitStack() as stack:
            clients = {
                home: await stack.enter_async_context(
                    hadron.connect(fleet[home].url, ports=fleet.ports(side))
                )
                for home, side in sides.items()
            }
            names = {home: home.partition("/")[0] for home in sides}
            async with hadron.connect(fleet.url) as operator:
                await declare(operator, **{name: home for home, name in names.items()})
            for home, client in clients.items():
                serving = client.serve(names[home], book.handle, max_in_flight=CALLS, drain_s=0.1)
                await stack.enter_async_context(serving)
                await call_each(client, names[home], "before", 1)
            fleet.cut(EU, US)
            for home, side in sides.items():
                fleet.cut(side, next(other for other in sides if other != home))
            row.partitions += 3
            for home, client in clients.items():
                worst[home] = await call_each(client, names[home], "cut", 300)
            # Nobody is answered from beyond the cut, and is told so in time.
            with trio.fail_after(LIMIT_S):
                for home, client in clients.items():
                    away = next(name for other, name in names.items() if other != home)
                    await refused(client, away)
            fleet.heal_all()
            for home, client in clients.items():
                away = next(name for other, name in names.items() if other != home)
                await answered(client, away)
    row.notes.append(
        "the longest call of a region's own while it was cut off: "
        + ", ".join(f"{home} {each * 1_000:.1f} ms" for home, each in worst.items())
    )
    assert max(worst.values()) <= TOLD_S
    row.verdict = "valid"


async def call_each(client: Client, endpoint: str, token: str, count: int) -> float:
    """One after the other; the longest."""
    longest_s = 0.0
    for number in range(count):
        began_s = trio.current_time()
        asked = f"{token}/{number}"
        assert await client.call(endpoint, asked, timeout_s=LIMIT_S) == asked
        longest_s = max(longest_s, trio.current_time() - began_s)
    return longest_s


async def refused(client: Client, endpoint: str) -> None:
    try:
        await client.call(endpoint, "far", timeout_s=1.0)
    except HadronError:
        return
    raise AssertionError(f"{endpoint} answered over a wire that is cut")


async def answered(client: Client, endpoint: str) -> None:
    with trio.fail_after(LIMIT_S):
        while True:
            try:
                await client.call(endpoint, "again", timeout_s=1.0)
            except HadronError:
                await trio.sleep(0.05)
            else:
                return
