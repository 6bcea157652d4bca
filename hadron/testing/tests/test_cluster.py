"""A cluster behind the fault proxy: what cuts do to nodes and clients, from outside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

import hadron
from hadron.model.errors import HadronError
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.testing.cluster import FaultyCluster
from hadron.testing.proxy import Weather


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FaultyCluster]:
    with FaultyCluster(tmp_path, durability="os", clients=("c1",)) as running:
        yield running


async def test_cuts_are_felt_and_healed(cluster: FaultyCluster) -> None:
    spec = StreamSpec(partitions=(cluster.config.name,))
    async with (
        hadron.connect(cluster.url, ports=cluster.ports("anybody")) as client,
        hadron.connect(cluster.url, ports=cluster.ports("c1"), request_timeout_s=0.5) as cut_off,
    ):
        await client.apply([SchemaObject(kind="Stream", name="s", spec=spec)])
        async with client.producer("s") as producer:
            await producer.send(b"0")
            # One replica is enough; without any, nothing is acknowledged until healing.
            cluster.isolate("n2")
            await producer.send(b"1")
            cluster.isolate("n3")
            pending = await producer.send_soon(b"2")
            with trio.move_on_after(0.3) as scope:
                await pending.wait()
            assert scope.cancelled_caught
            cluster.heal_all()
            assert (await pending.wait()).offset == 2
            # A client that cannot reach the leader: no answer, although replicas name it.
            cluster.cut("c1", "n1")
            with pytest.raises(HadronError):
                await cut_off.offsets("s")
            cluster.heal_all()
            assert (await cut_off.offsets("s"))[0].next_offset == 3


@pytest.mark.long
async def test_connections_that_break_every_few_kilobytes(cluster: FaultyCluster) -> None:
    """In the middle of frames, between nodes and to the client: nothing is lost or doubled, and the
    order stays."""
    spec = StreamSpec(partitions=(cluster.config.name,))
    async with (
        hadron.connect(cluster.url, ports=cluster.ports("anybody")) as steady,
        hadron.connect(cluster.url, ports=cluster.ports("c1")) as client,
    ):
        await steady.apply([SchemaObject(kind="Stream", name="s", spec=spec)])
        leader, *replicas = cluster.names
        for number, name in enumerate(replicas):
            cluster.weather(leader, name, Weather(breaks_after=9_001 + number))
        cluster.weather("c1", leader, Weather(breaks_after=5_003))
        cluster.weather(leader, "c1", Weather(breaks_after=7_001))
        wanted = [b"%d" % number * 30 for number in range(90)]
        seen: list[bytes] = []
        with trio.fail_after(90):
            async with client.producer("s") as producer:
                for value in wanted:
                    await producer.send(value)
            async with client.subscribe(
                "s", group="g", start="earliest", max_in_flight=20
            ) as member:
                async for delivery in member:
                    seen.append(delivery.value)
                    await delivery.ack()
                    if delivery.offset == len(wanted) - 1:
                        break
        assert [record.value async for record in steady.read("s")] == wanted
        assert list(dict.fromkeys(seen)) == wanted
        assert cluster.connections("c1", leader) > 3
        for name in replicas:
            assert cluster.connections(leader, name) > 3


async def test_a_node_that_nobody_can_dial(cluster: FaultyCluster) -> None:
    for name in ("n1", "n3"):
        cluster.refuse(name, "n2")
        cluster.reset(name, "n2")
    async with hadron.connect(cluster.url, ports=cluster.ports("anybody")) as client:
        with trio.fail_after(30):
            # Another process: there is nothing to be woken by.
            while not any(  # noqa: ASYNC110
                "does not answer" in peer.trouble
                for peer in (await client.status(cluster.address("n1"))).peers
                if peer.name == "n2"
            ):
                await trio.sleep(0.02)
        cluster.heal_all()
        with trio.fail_after(30):
            while any(  # noqa: ASYNC110
                peer.state != "in sync"
                for peer in (await client.status(cluster.address("n1"))).peers
            ):
                await trio.sleep(0.02)
