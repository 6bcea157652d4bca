"""Producers while whole replica sets go away: nothing twice, nothing lost, hardly a pause."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from hadron.client import Client
from hadron.client.terms.results import Receipt
from hadron.model.errors import HadronError, NotFoundError, OutcomeUnknownError
from hadron.model.record import NewRecord
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.testing.nodes import Cluster, running_cluster

SETS = {"eu/p0": 1, "us/p0": 1, "us/p1": 1}
EU, US, US1 = SETS
PAUSE_S = 3.0
"""The bar for a producer's pause when a set dies."""


async def declare(cluster: Cluster, client: Client, *partitions: str) -> None:
    """The stream `s` over these partitions, known to the nodes of all sets."""
    discovery = cluster[cluster.metadata].node("n1").discovery

    def registered() -> bool:
        known = [each.registered or each.name == cluster.metadata for each in discovery.sets()]
        return known == [True] * len(SETS)

    await cluster.wait_for("all sets registered", registered)
    stream = SchemaObject(kind="Stream", name="s", spec=StreamSpec(partitions=partitions))
    index = (await client.apply([stream])).metadata_index
    await cluster.wait_for(
        "the stream known everywhere",
        lambda: all(
            nodes.status(name).metadata_index >= index
            for nodes in cluster.values()
            for name in nodes.running
        ),
    )


@asynccontextmanager
async def declared(
    directory: Path, partitions: tuple[str, ...] = (EU, US), **options: Any
) -> AsyncIterator[tuple[Cluster, Client]]:
    async with running_cluster(directory, SETS) as cluster, cluster.client(**options) as client:
        await declare(cluster, client, *partitions)
        yield cluster, client


async def crash(cluster: Cluster, client: Client, name: str) -> None:
    """Stop a set, and return once the client knows that its connection is gone: what is sent
    before that is in doubt."""
    await cluster.crash(name)
    session = client._session
    await cluster.wait_for("noticed", lambda: session.connection_now(name) is None)


async def logged(client: Client, partition: str) -> list[bytes]:
    return [record.value async for record in client.read("s", partition=partition)]


class Load:
    """Sends numbered records at a steady pace, each from a task of its own."""

    def __init__(self, producer: Any, *, key: str | None = None) -> None:
        self.producer = producer
        self.key = key
        self.receipts: dict[bytes, Receipt] = {}
        self.errors: dict[bytes, HadronError] = {}
        self.latencies_s: list[float] = []
        self.sent = 0

    async def run(self, count: int, pace_s: float = 0.005) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(self._one, b"%d" % self.sent)
                self.sent += 1
                await trio.sleep(pace_s)

    async def _one(self, value: bytes) -> None:
        began_s = trio.current_time()
        try:
            self.receipts[value] = await self.producer.send(value, key=self.key)
            self.latencies_s.append(trio.current_time() - began_s)
        except HadronError as error:
            self.errors[value] = error

    def partitions(self, first: int) -> Counter[str]:
        """Where the records from number `first` on went."""
        return Counter(
            receipt.partition for value, receipt in self.receipts.items() if int(value) >= first
        )


async def test_a_set_that_dies_costs_a_short_pause_and_no_record(tmp_path: Path) -> None:
    async with declared(tmp_path) as (cluster, client):
        async with client.producer("s", delivery_timeout_s=60) as producer:
            load = Load(producer)
            await load.run(20)
            assert set(load.partitions(0)) == {EU, US}
            async with trio.open_nursery() as nursery:
                nursery.start_soon(load.run, 100)
                await trio.sleep(0.1)
                await cluster.crash(US)
                died_at = load.sent
                await trio.sleep(0.2)
                await cluster.start(US)
            assert load.errors == {}
            assert len(load.receipts) == load.sent == 120
            assert EU in load.partitions(died_at)
            # It is used again, by itself.
            with trio.fail_after(20):
                while US not in load.partitions(load.sent - 10):
                    await load.run(10)
        values = Counter(await logged(client, EU) + await logged(client, US))
        assert values == Counter(b"%d" % number for number in range(load.sent))


async def test_while_a_set_is_dead_new_records_go_elsewhere_at_once(tmp_path: Path) -> None:
    async with declared(tmp_path) as (cluster, client):
        async with client.producer("s", delivery_timeout_s=60) as producer:
            load = Load(producer)
            await load.run(20)
            await crash(cluster, client, US)
            await load.run(60)
            # Nothing was under way when it died, so nothing is in doubt.
            assert (load.errors, len(load.receipts)) == ({}, 80)
            assert set(load.partitions(20)) == {EU}
            assert max(load.latencies_s) < PAUSE_S
        async with client.producer("s") as late:
            began_s = trio.current_time()
            assert (await late.send(b"late")).partition == EU
            assert trio.current_time() - began_s < PAUSE_S


@pytest.mark.long
async def test_a_set_whose_packets_are_lost_is_noticed_by_its_silence(tmp_path: Path) -> None:
    async with declared(tmp_path) as (cluster, client):
        async with client.producer("s", delivery_timeout_s=60) as producer:
            load = Load(producer)
            await load.run(20)
            cluster.isolate(US, clients=["client"])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(load.run, 300)
                await trio.sleep(0.01 + PAUSE_S)
                soon = [value for value in load.receipts if int(value) >= 20]
                stuck = [n for n in range(20, load.sent - 10) if b"%d" % n not in load.receipts]
                # What was under way is in doubt; it stays where it is and comes through later.
                assert len(soon) > 100
                assert load.errors == {}
                assert len(stuck) <= 0.5 * len(soon)
                cluster.network.heal_all()
            assert load.errors == {}
            assert len(load.receipts) == load.sent
        values = Counter(await logged(client, EU) + await logged(client, US))
        assert values == Counter(b"%d" % number for number in range(load.sent))


async def in_doubt(cluster: Cluster, producer: Any, key: str) -> Any:
    """Send one record to the US whose answer is lost, and let the set die."""
    cluster.network.cut_one_way(cluster["us/p0"].host("n1"), "client")
    nodes = cluster[US]
    last = nodes.status("n1").committed_lsn
    pending = await producer.send_soon(b"doubtful", key=key)
    await cluster.wait_for("logged", lambda: nodes.status("n1").committed_lsn > last)
    await cluster.crash(US)
    cluster.network.break_connections(cluster[US].host("n1"), "client")
    cluster.network.heal_all()
    return pending


def key_of(producer: Any, partition: str) -> str:
    return next(
        f"k{n}"
        for n in range(100)
        if producer._publisher._router.choose(f"k{n}").accumulator.partition == partition
    )


@pytest.mark.long
async def test_a_record_in_doubt_is_never_published_elsewhere(tmp_path: Path) -> None:
    async with declared(tmp_path) as (cluster, client):
        async with client.producer("s", failover="any", delivery_timeout_s=2) as producer:
            await producer.send(b"first")
            pending = await in_doubt(cluster, producer, key_of(producer, US))
            assert (await producer.send(b"next", key=key_of(producer, EU))).partition == EU
            with pytest.raises(OutcomeUnknownError):
                await pending.wait()
        await cluster.start(US)
        await cluster.wait_serving(US)
        both = await logged(client, EU) + await logged(client, US)
        assert both.count(b"doubtful") == 1


async def test_a_record_in_doubt_is_confirmed_by_the_set_that_comes_back(tmp_path: Path) -> None:
    async with declared(tmp_path) as (cluster, client):
        async with client.producer("s") as producer:
            await producer.send(b"first")
            pending = await in_doubt(cluster, producer, key_of(producer, US))
            await cluster.start(US)
            receipt = await pending.wait()
            assert (receipt.partition, receipt.duplicate) == (US, True)
        both = await logged(client, EU) + await logged(client, US)
        assert both.count(b"doubtful") == 1


async def test_whoever_prefers_twice_to_unknown_gets_it_twice(tmp_path: Path) -> None:
    async with declared(tmp_path) as (cluster, client):
        async with client.producer("s", failover="duplicate") as producer:
            await producer.send(b"first")
            pending = await in_doubt(cluster, producer, key_of(producer, US))
            assert (await pending.wait()).partition == EU
        await cluster.start(US)
        await cluster.wait_serving(US)
        both = await logged(client, EU) + await logged(client, US)
        assert both.count(b"doubtful") == 2


@pytest.mark.parametrize("failover", ["unkeyed", "any", "none"])
async def test_records_with_a_key_wait_unless_told_otherwise(tmp_path: Path, failover: Any) -> None:
    async with declared(tmp_path) as (cluster, client):
        async with client.producer("s", failover=failover) as producer:
            key = key_of(producer, US)
            assert (await producer.send(b"0", key=key)).partition == US
            await crash(cluster, client, US)
            pending = [await producer.send_soon(b"%d" % n, key=key) for n in range(1, 4)]
            free = [await producer.send_soon(b"free") for _ in range(4)]
            producer._publisher.seal()
            if failover == "any":
                assert {(await each.wait()).partition for each in pending} == {EU}
            if failover != "none":
                assert {(await each.wait()).partition for each in free} == {EU}
            assert [each.is_done for each in pending] == [failover == "any"] * 3
            await cluster.start(US)
            expected = EU if failover == "any" else US
            assert {(await each.wait()).partition for each in pending} == {expected}
        values = [value for value in await logged(client, expected) if value != b"free"]
        assert values[-3:] == [b"1", b"2", b"3"]


async def test_records_that_wait_for_a_dead_set_leave_room_for_the_others(tmp_path: Path) -> None:
    """They would fill the buffer, and every sender would wait for the delivery timeout."""
    async with (
        declared(tmp_path) as (cluster, client),
        client.producer("s", max_buffer_bytes=20_000) as producer,
    ):
        dead, alive = key_of(producer, US), key_of(producer, EU)
        await producer.send(b"0", key=dead)
        await crash(cluster, client, US)
        held: list[Any] = []

        async def flood() -> None:
            for _ in range(100):
                pending = await producer.send_soon(b"x" * 1_000, key=dead)
                held.append(pending)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(flood)
            nursery.start_soon(flood)
            with trio.fail_after(10):
                for _ in range(20):
                    await producer.send(b"y" * 1_000, key=alive)
                    await producer.send(b"y" * 1_000)
                await producer.send_many([NewRecord(value=b"y", key=alive)] * 20)
            assert 5 < len(held) < 15, "half of what there is"
            await cluster.start(US)
        assert {(await each.wait()).partition for each in held} == {US}
        assert len(held) == 200


async def test_a_partition_or_a_region_that_was_asked_for_is_never_left(tmp_path: Path) -> None:
    async with declared(tmp_path, (EU, US, US1)) as (cluster, client):
        async with (
            client.producer("s", partition=US) as pinned,
            client.producer("s", region="us") as regional,
        ):
            await crash(cluster, client, US)
            waiting = await pinned.send_soon(b"pinned")
            places = {(await regional.send(b"%d" % n)).partition for n in range(10)}
            assert places == {US1}
            await crash(cluster, client, US1)
            held = [await regional.send_soon(b"held") for _ in range(5)]
            await trio.sleep(0.3)
            assert not any(each.is_done for each in (waiting, *held))
            await cluster.start(US, US1)
            assert (await waiting.wait()).partition == US
            assert {(await each.wait()).partition for each in held} <= {US, US1}
        assert await logged(client, EU) == []


@pytest.mark.parametrize("failover", ["unkeyed", "any"])
async def test_a_record_goes_to_the_partition_that_it_names_and_stays_there(
    tmp_path: Path, failover: Any
) -> None:
    async with declared(tmp_path) as (cluster, client):
        async with client.producer("s", failover=failover) as producer:
            for partition in (EU, US, US, EU):
                key = key_of(producer, US)
                receipt = await producer.send(b"named", key=key, partition=partition)
                assert receipt.partition == partition
            record = NewRecord(value=b"whole", partition=US)
            assert (await producer.send(record)).partition == US
            assert (await producer.send(record, partition=EU)).partition == EU
            many = [NewRecord(value=b"many", partition=each) for each in (EU, US, EU)]
            runs = await producer.send_many(many)
            assert Counter(run.partition for run in runs) == {EU: 2, US: 1}
            with pytest.raises(NotFoundError, match="no partition 'us/p1'"):
                await producer.send(b"nowhere", partition=US1)
            await crash(cluster, client, US)
            waiting = await producer.send_soon(b"waits", partition=US)
            assert {(await producer.send(b"%d" % n)).partition for n in range(5)} == {EU}
            assert not waiting.is_done
            await cluster.start(US)
            assert (await waiting.wait()).partition == US
        assert await logged(client, US) == [b"named"] * 2 + [b"whole", b"many", b"waits"]


async def test_partitions_that_are_added_are_used_by_open_producers(tmp_path: Path) -> None:
    async with (
        declared(tmp_path, (EU,)) as (cluster, client),
        client.producer("s") as producer,
        client.producer("s", region="eu") as regional,
        client.producer("s", partition=EU) as pinned,
    ):
        assert {(await producer.send(b"%d" % n)).partition for n in range(3)} == {EU}
        async with cluster.client("other") as other:
            await declare(cluster, other, EU, US)
        load = Load(producer)
        with trio.fail_after(20):
            while US not in load.partitions(0):
                await load.run(5)
        keyed = {(await producer.send(b"k", key=f"{n}")).partition for n in range(20)}
        assert keyed == {EU, US}
        for other_producer in (regional, pinned):
            assert {(await other_producer.send(b"x")).partition for _ in range(4)} == {EU}
