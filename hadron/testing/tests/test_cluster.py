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
