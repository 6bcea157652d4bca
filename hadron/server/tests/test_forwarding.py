"""Clients that reach one node only: calls to leaders through it, and directly once that works."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest
import trio

from hadron.client import Client, Producer, Subscription
from hadron.client.connecting import links, probes, session, tunnels
from hadron.client.connecting.topology import OneCluster
from hadron.client.producing import sender
from hadron.fakes.connections import SimTransport
from hadron.fakes.network import HostNetwork
from hadron.model.errors import (
    CallFailedError,
    ConnectionLostError,
    FrameError,
    HadronError,
    NotFoundError,
    NotLeaderError,
    NotReadyError,
    OutcomeUnknownError,
    OverloadedError,
    PeerError,
    RequestError,
    UnknownMethodError,
    UnreachableError,
)
from hadron.model.limits import MAX_ITEMS
from hadron.model.pipelines import PipelineSpec, StageSpec
from hadron.model.principals import ANONYMOUS, NodeName, Principal
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.model.transactions import MAX_NUMBER
from hadron.server import forwarding
from hadron.serving.entrance import Entrance, Led
from hadron.serving.leading import Leading
from hadron.testing.nodes import Cluster, host_of, running_cluster
from hadron.wire.calls import AnyCall
from hadron.wire.connection import Connection
from hadron.wire.framed_calls import WINDOW_BYTES, FramedCall
from hadron.wire.messages import (
    METHODS,
    Audience,
    cluster_pb2,
    forward_pb2,
    groups_pb2,
    method,
    pipelines_pb2,
    schema_pb2,
    streams_pb2,
)
from hadron.wire.services import Served
from hadron.wire.tunnel import Tunnel

SETS = {"eu/p0": 1, "us/p0": 1}
EU, US = SETS
_Way = TypeVar("_Way", Tunnel, Connection)
FORWARD, OFFSETS, WATCH = method("Forward"), method("Offsets"), method("WatchSchema")
STATUS = method("Status")


@asynccontextmanager
async def cut_off(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Cluster, Client]]:
    """A client that reaches the set in Europe, and a stream on the one in America."""
    monkeypatch.setattr(links, "DIAL_TIMEOUT_S", 0.1)
    monkeypatch.setattr(tunnels, "_AGAIN_S", 0.1)
    async with running_cluster(directory, SETS) as cluster:
        discovery = cluster[EU].node("n1").discovery

        def registered() -> bool:
            return [each.registered for each in discovery.sets() if each.name == US] == [True]

        await cluster.wait_for("both sets registered", registered)
        cluster.network.cut("client", cluster[US].host("n1"))
        async with cluster.client(through=[EU]) as client:
            stream = SchemaObject(kind="Stream", name="s", spec=StreamSpec(partitions=(US,)))
            await client.apply([stream])
            yield cluster, client


async def leader_that_does_not_read(
    cluster: Cluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> Connection:
    """The node's connection to it, whose bytes stay there from here on, a megabyte at most."""
    await client._session.connect(US)
    monkeypatch.setattr(forwarding, "_MAX_UNSENT_BYTES", 1_000_000)
    [way] = cluster[EU].node("n1").member._forwarding._ways.values()
    assert way.connection is not None
    cluster.network.cut(cluster[EU].host("n1"), cluster[US].host("n1"))
    return way.connection


def subscribed(connection: Connection, on_end: Callable[[HadronError | None], None]) -> FramedCall:
    """A member's call, through the node to the leader in America."""
    opening = groups_pb2.SubscribeRequest.Open(stream="s", group="g")
    return Tunnel(connection, US).call(
        method("Subscribe"),
        groups_pb2.SubscribeRequest(open=opening),
        on_message=lambda *_: None,
        on_end=on_end,
        end=False,
    )


def calls_at_leader(cluster: Cluster) -> int:
    """How many calls a node holds open at the leader in America."""
    service = cluster[EU].node("n1").member._forwarding
    connections = [way.connection for way in service._ways.values()]
    return sum(len(connection._calls) for connection in connections if connection is not None)


async def way_there(cluster: Cluster, client: Client, kind: type[_Way]) -> _Way:
    """The client's way to the leader in America, once it is a `kind`: on a slow machine a way may
    just be suspected, as one that does not answer within the tenths of a second that it has."""
    found: list[_Way] = []

    def is_there() -> bool:
        way = client._session.connection_now(US)
        if isinstance(way, kind):
            found.append(way)
        return bool(found)

    await cluster.wait_for(f"a {kind.__name__}", is_there)
    return found[0]


async def test_everything_works_through_one_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [b"%07d" % n + b"x" * 4000 for n in range(1500)]
    async with cut_off(tmp_path, monkeypatch) as (cluster, client):
        async with client.producer("s", batch_bytes=64 << 10) as producer:
            receipts = await producer.send_many(values)
            assert {receipt.partition for receipt in receipts} == {US}
        await way_there(cluster, client, Tunnel)
        assert [record.value async for record in client.read("s")] == values
        # Six megabytes through a window of one: credit passes both ways.
        seen = []
        async with client.subscribe("s", group="g") as subscription:
            async for delivery in subscription:
                seen.append(delivery.value)
                await delivery.ack()
                if len(seen) == len(values):
                    break
        assert seen == values
        await cluster.wait_for("all calls over", lambda: calls_at_leader(cluster) == 0)


async def test_a_leader_that_can_be_dialed_again_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        cut_off(tmp_path, monkeypatch) as (cluster, client),
        client.producer("s") as producer,
    ):
        await producer.send(b"through a tunnel")
        cluster.network.heal_all()
        await way_there(cluster, client, Connection)
        assert (await producer.send(b"directly")).offset == 1


@pytest.mark.long
async def test_a_tunnel_that_falls_silent_is_left_for_a_leader_that_can_be_dialed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One region is back, and the one through which it was reached is cut off: neither the next try
    nor the end of its silence is waited for."""
    monkeypatch.setattr(probes, "ASK_TIMEOUT_S", 60.0)
    async with cut_off(tmp_path, monkeypatch) as (cluster, client):
        monkeypatch.setattr(tunnels, "_AGAIN_S", 60.0)
        async with client.producer("s") as producer:
            await producer.send(b"through a tunnel")
            await way_there(cluster, client, Tunnel)
            cluster.network.heal_all()
            cluster.network.cut("client", cluster[EU].host("n1"))
            with trio.fail_after(12.0):
                assert (await producer.send(b"directly")).offset == 1
            assert isinstance(client._session.connection_now(US), Connection)


async def test_a_tunnel_stays_in_use_while_its_leader_is_dialed_in_vain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packets to the leader are dropped, as by a firewall: each try to dial it takes seconds."""
    async with (
        cut_off(tmp_path, monkeypatch) as (cluster, client),
        client.producer("s") as producer,
    ):
        await producer.send(b"through a tunnel")
        tunnel = client._session.connection_now(US)
        host, used = cluster[US].host("n1"), set()

        def has_been_dialed_again() -> bool:
            used.add(client._session.connection_now(US))
            return cluster.network.dials("client", host) > before + 3

        before = cluster.network.dials("client", host)
        await cluster.wait_for("three vain tries", has_been_dialed_again)
        assert used == {tunnel}


async def test_a_tunnel_that_always_owes_an_answer_does_not_have_its_leader_dialed_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that has no majority: who waits doubts the way twice a second."""
    async with cut_off(tmp_path, monkeypatch) as (cluster, client):
        monkeypatch.setattr(tunnels, "_AGAIN_S", 60.0)
        async with client.producer("s") as producer:
            await producer.send(b"through a tunnel")
            tunnel = await way_there(cluster, client, Tunnel)
            host, failed = cluster[US].host("n1"), trio.Event()
            before = cluster.network.dials("client", host)
            connect_to = client._session.connect_to

            async def fails(address: str) -> Connection:
                try:
                    return await connect_to(address)
                finally:
                    failed.set()

            monkeypatch.setattr(client._session, "connect_to", fails)
            client._session.tunnels.doubt(tunnel)
            await failed.wait()
            for number in range(100):
                client._session.tunnels.doubt(tunnel)
                await producer.send(b"%d" % number)
            assert cluster.network.dials("client", host) == before + 1
            assert client._session.connection_now(US) is tunnel


@pytest.mark.parametrize("way", ["direct", "another tunnel"])
async def test_calls_that_are_still_in_a_tunnel_are_ended_when_somebody_else_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A leader that is cut off from its peers, but not from the node between, ends none of them."""
    async with (
        cut_off(tmp_path, monkeypatch) as (cluster, client),
        client.subscribe("s", group="g") as subscription,
    ):
        (member,) = subscription._consumer._memberships.values()
        channel, first = member.channel, client._session.connection_now(US)
        if way == "direct":
            cluster.network.heal_all()
        else:
            client._session.suspect(US)
            await client._session.connect(US)
        now = client._session.connection_now
        await cluster.wait_for("another way", lambda: now(US) not in (None, first))
        assert (isinstance(now(US), Connection), member.channel is channel) == (
            way == "direct",
            True,
        )
        client._session._leave(US, "n2 leads since epoch 2")
        await cluster.wait_for("left", lambda: member.channel is not channel, patience_s=10)


async def test_a_leader_behind_something_that_takes_connections_and_answers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a forwarder of ports: what counts is that the node answers."""
    async with (
        cut_off(tmp_path, monkeypatch) as (cluster, client),
        client.producer("s") as producer,
    ):
        await producer.send(b"through a tunnel")
        cluster.network.heal_all()
        await way_there(cluster, client, Connection)
        monkeypatch.setattr(probes, "ASK_TIMEOUT_S", 0.5)
        hole = await cluster.network.host("hole").listen("hole:1")
        dial = cluster.network.dial

        async def into_the_hole(source: HostNetwork, address: str) -> SimTransport:
            leads_there = source.name == "client" and address.startswith(cluster[US].host("n1"))
            return await dial(source, "hole:1" if leads_there else address)

        monkeypatch.setattr(cluster.network, "dial", into_the_hole)
        cluster.network.break_connections("client", cluster[US].host("n1"))
        assert (await producer.send(b"through another one")).offset == 1
        await way_there(cluster, client, Tunnel)
        hole.close()


@asynccontextmanager
async def quick(
    directory: Path, monkeypatch: pytest.MonkeyPatch, *, heartbeat_s: float = 0.0
) -> AsyncIterator[tuple[Cluster, Client, Producer, Subscription]]:
    """A client that reaches all of three sets, a stream on the one in America, a producer that has
    published to it and a member that has read that. What takes seconds takes tenths; but the limit
    for silence, 15 s, is what it is."""
    monkeypatch.setattr(probes, "ASK_TIMEOUT_S", 0.3)
    monkeypatch.setattr(session, "_DIRECT_S", 0.2)
    monkeypatch.setattr(sender, "AWAY_AFTER_S", 0.2)
    sets = {**SETS, "ap/p0": 1}
    async with running_cluster(directory, sets) as cluster, cluster.client() as client:
        discovery = cluster[EU].node("n1").discovery
        await cluster.wait_for(
            "all sets registered",
            lambda: (
                [each.name for each in discovery.sets() if each.registered or each.name == EU]
                == sorted(sets)
            ),
        )
        stream = SchemaObject(kind="Stream", name="s", spec=StreamSpec(partitions=(US,)))
        await client.apply([stream])
        async with (
            client.producer("s") as producer,
            client.subscribe(
                "s", group="g", heartbeat_s=heartbeat_s, heartbeat_misses=5
            ) as members,
        ):
            await producer.send(b"0")
            await (await anext(members)).ack()
            await members.flush()
            await way_there(cluster, client, Connection)
            yield cluster, client, producer, members


@pytest.mark.long
async def test_a_way_that_goes_silent_is_left_long_before_the_limit_for_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packets are dropped: first between client and leader, then between that and the node that
    forwards; what was in doubt is not there twice."""
    async with quick(tmp_path, monkeypatch) as (cluster, client, producer, _):
        leader = cluster[US].host("n1")
        cluster.network.cut("client", leader)
        with trio.fail_after(8):
            assert (await producer.send(b"1")).offset == 1
        way = await way_there(cluster, client, Tunnel)
        [through] = [name for name in cluster if f"through {host_of(name, 'n1')}" in way.peer]
        cluster.network.cut(cluster[through].host("n1"), leader)
        with trio.fail_after(8):
            assert (await producer.send(b"2")).offset == 2
        assert await way_there(cluster, client, Tunnel) is not way
        # What was held back arrives now: copies of what was sent again.
        cluster.network.heal_all()
        assert (await producer.send(b"3")).offset == 3
        assert [each.value async for each in client.read("s")] == [b"%d" % n for n in range(4)]


async def test_nodes_that_cannot_reach_the_leader_either_are_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with quick(tmp_path, monkeypatch) as (cluster, client, *_):
        leader = cluster[US].host("n1")
        cluster.network.cut("client", leader)
        cluster.network.cut("ap-p0-n1", leader)
        # Longer than the test may take: nobody says that there is no way.
        monkeypatch.setattr(probes, "ASK_TIMEOUT_S", 60.0)
        with trio.fail_after(10):
            for _ in range(4):
                tunnel = await client._session.tunnels.open(US)
                assert tunnel is not None
                assert tunnel.peer == f"{US} through eu-p0-n1:7000"
        cluster.network.heal_all()


@pytest.mark.long
async def test_a_member_notices_a_silent_way_by_the_first_heartbeat_without_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = quick(tmp_path, monkeypatch, heartbeat_s=0.3)
    async with opened as (cluster, client, _, members):
        cluster.network.cut("client", cluster[US].host("n1"))
        async with cluster.client("other") as other, other.producer("s") as producer:
            await producer.send(b"1")
        with trio.fail_after(8):
            assert (await anext(members)).value == b"1"
        await way_there(cluster, client, Tunnel)


async def test_a_node_that_forwards_says_so_when_the_leader_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "_KEEPALIVE_S", 0.1)
    monkeypatch.setattr(forwarding, "_SILENCE_LIMIT_S", 0.4)
    async with cut_off(tmp_path, monkeypatch) as (cluster, client):
        tunnel = await client._session.connect(US)
        outcome: list[Any] = []
        tunnel.call(
            WATCH,
            schema_pb2.WatchSchemaRequest(),
            on_message=lambda *_: None,
            on_end=outcome.append,
        )
        cluster.network.cut(cluster[EU].host("n1"), cluster[US].host("n1"))
        await cluster.wait_for("told", lambda: bool(outcome), patience_s=8)
        assert isinstance(outcome[0], ConnectionLostError)
        assert "silent for 0.4 s" in str(outcome[0])


async def test_a_cancelled_call_is_cancelled_at_the_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cut_off(tmp_path, monkeypatch) as (cluster, client):
        tunnel = await client._session.connect(US)
        assert isinstance(tunnel, Tunnel)
        before = calls_at_leader(cluster)
        async with tunnel.open_stream(WATCH, schema_pb2.WatchSchemaRequest()) as changes:
            assert await changes.receive() is not None
            assert calls_at_leader(cluster) == before + 1
        await cluster.wait_for("cancelled", lambda: calls_at_leader(cluster) == before)
        outcome: list[Any] = []
        tunnel.call(
            WATCH,
            schema_pb2.WatchSchemaRequest(),
            on_message=lambda *_: None,
            on_end=outcome.append,
        )
        tunnel.close(PeerError("somebody else leads"))
        assert [str(error) for error in outcome] == ["somebody else leads"]
        await cluster.wait_for("cancelled", lambda: calls_at_leader(cluster) == before)


async def test_what_is_not_forwarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        cut_off(tmp_path, monkeypatch) as (cluster, _),
        cluster[EU].connection("n1") as connection,
    ):
        for inner in METHODS.values():
            replica_set = US
            refusal: type[HadronError] = RequestError
            says = f"method {inner} is not forwarded"
            if inner.audience is Audience.CLIENTS:
                replica_set, refusal, says = "nobody/p9", NotFoundError, "nobody/p9"
            request = forward_pb2.ForwardRequest(replica_set=replica_set, method=inner.number)
            with pytest.raises(refusal, match=says):
                await connection.request(FORWARD, request)
        unknown = forward_pb2.ForwardRequest(replica_set=US, method=9_999)
        with pytest.raises(UnknownMethodError, match="method 9999 is not served here"):
            await connection.request(FORWARD, unknown)


async def test_errors_of_the_leader_and_its_absence_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cut_off(tmp_path, monkeypatch) as (cluster, client):
        tunnel = await client._session.connect(US)
        with pytest.raises(NotFoundError, match="'missing'"):
            await tunnel.request(OFFSETS, streams_pb2.OffsetsRequest(stream="missing"))
        await cluster.crash(US)
        [way] = cluster[EU].node("n1").member._forwarding._ways.values()
        connection = way.connection
        assert connection is not None
        await cluster.wait_for("the node has noticed", lambda: connection.is_closed)
        with pytest.raises(UnreachableError, match="us-p0-n1"):
            await tunnel.request(OFFSETS, streams_pb2.OffsetsRequest(stream="s"))
        client._session.suspect(US)
        with pytest.raises(PeerError, match="us-p0-n1"):
            await client._session.connect(US)


async def test_what_waits_to_be_forwarded_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches for a leader that is being dialed, or does not read, are kept by the node that is to
    forward: of all clients together, and no more than the leader itself would keep."""
    async with cut_off(tmp_path, monkeypatch) as (cluster, client):
        monkeypatch.setattr(links, "DIAL_TIMEOUT_S", 60.0)
        monkeypatch.setattr(forwarding, "_MAX_UNSENT_BYTES", 10_000)
        cluster.network.cut(cluster[EU].host("n1"), cluster[US].host("n1"))
        ways = cluster[EU].node("n1").member._forwarding._ways
        for way in ways.values():
            assert way.connection is not None
            way.connection.close()
        answers: list[Any] = []
        async with cluster[EU].connection("n1") as connection:
            tunnel = Tunnel(connection, US)
            for _ in range(4):
                tunnel.call(
                    method("Produce"),
                    streams_pb2.ProduceRequest(stream="s"),
                    [bytes(4_000)],
                    on_message=lambda *_: None,
                    on_end=answers.append,
                )
            await cluster.wait_for("refusals", lambda: len(answers) == 2)
            assert {type(each) for each in answers} == {OverloadedError}
            assert "10000" in str(answers[0])
        cluster.network.heal_all()
        async with client.producer("s") as producer:
            await producer.send(b"goes on")


def nack(size: int) -> groups_pb2.SubscribeRequest:
    return groups_pb2.SubscribeRequest(nack=groups_pb2.SubscribeRequest.Nack(reason="x" * size))


async def test_what_follows_first_messages_counts_among_what_waits_to_be_forwarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cut_off(tmp_path, monkeypatch) as (cluster, client):
        await client._session.connect(US)
        monkeypatch.setattr(links, "DIAL_TIMEOUT_S", 60.0)
        monkeypatch.setattr(forwarding, "_MAX_UNSENT_BYTES", 100_000)
        cluster.network.cut(cluster[EU].host("n1"), cluster[US].host("n1"))
        [way] = cluster[EU].node("n1").member._forwarding._ways.values()
        assert way.connection is not None
        way.connection.close()
        ends: list[Any] = []
        async with cluster[EU].connection("n1") as connection:
            opening = groups_pb2.SubscribeRequest.Open(stream="s", group="g")
            calls = [
                Tunnel(connection, US).call(
                    method("Subscribe"),
                    groups_pb2.SubscribeRequest(open=opening),
                    on_message=lambda *_: None,
                    on_end=ends.append,
                    end=False,
                )
                for _ in range(3)
            ]
            for call in calls:
                call.send(nack(40_000))
            await cluster.wait_for("a refusal", lambda: len(ends) == 1)
            assert isinstance(ends[0], OverloadedError)
            assert "100000" in str(ends[0])
            assert way._waiting_bytes > 80_000
            calls[0].cancel()
            await cluster.wait_for("room", lambda: way._waiting_bytes < 50_000)
            calls[1].send(nack(40_000))
            await cluster.wait_for("more", lambda: way._waiting_bytes > 80_000)
        await cluster.wait_for("nothing", lambda: way._waiting_bytes == 0 and not way._waiting)


@pytest.mark.parametrize("dialing", [True, False])
async def test_a_client_that_waits_for_no_credit_is_refused_by_the_node_that_forwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dialing: bool
) -> None:
    async with cut_off(tmp_path, monkeypatch) as (cluster, client):
        await client._session.connect(US)
        monkeypatch.setattr(links, "DIAL_TIMEOUT_S", 60.0)
        monkeypatch.setattr(forwarding, "MAX_OWED_BYTES", 3_000_000)
        [way] = cluster[EU].node("n1").member._forwarding._ways.values()
        assert way.connection is not None
        cluster.network.cut(cluster[EU].host("n1"), cluster[US].host("n1"))
        if dialing:
            way.connection.close()
        ends: list[Any] = []
        async with cluster[EU].connection("n1") as connection:
            call = subscribed(connection, ends.append)
            for _ in range(30):
                call.send(nack(500_000))
            await cluster.wait_for("a refusal", lambda: bool(ends))
            # What the leader was sent may have been done: only before that it is refused.
            assert isinstance(ends[0], OverloadedError if dialing else ConnectionLostError)
            assert "3000000" in str(ends[0])
            await cluster.wait_for("nothing", lambda: way._waiting_bytes == 0)
            if (leader := way.connection) is not None:
                assert leader.backlog_bytes < 5_000_000


async def test_what_comes_on_open_calls_counts_among_what_waits_to_be_forwarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sends within its credit, and all of them together too much for a leader that does not
    read."""
    async with cut_off(tmp_path, monkeypatch) as (cluster, client):
        leader = await leader_that_does_not_read(cluster, client, monkeypatch)
        ends: list[Any] = []
        async with cluster[EU].connection("n1") as connection:
            for call in [subscribed(connection, ends.append) for _ in range(20)]:
                call.send(nack(400_000))
            await cluster.wait_for("most are ended", lambda: len(ends) > 10)
            # The leader may have done what was sent before.
            assert {type(each) for each in ends} == {ConnectionLostError}
            assert "the limit is 1000000" in str(ends[0])
            assert 500_000 < leader.backlog_bytes < 1_100_000


async def test_small_messages_of_open_calls_pass_while_values_find_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others have filled what a node keeps for a leader: whose calls say next to nothing keeps
    them."""
    async with cut_off(tmp_path, monkeypatch) as (cluster, client):
        leader = await leader_that_does_not_read(cluster, client, monkeypatch)
        ends: list[Any] = []
        async with cluster[EU].connection("n1") as connection:

            def open_call(name: str) -> FramedCall:
                return subscribed(connection, lambda _: ends.append(name))

            small, other = open_call("small"), open_call("other")
            for _ in range(5):
                open_call("large").send(nack(400_000))
            await cluster.wait_for("no room", lambda: "large" in ends)
            before = leader.backlog_bytes
            for _ in range(200):
                small.send(nack(1_000))
            await cluster.wait_for("they pass", lambda: leader.backlog_bytes > before + 200_000)
            assert "small" not in ends
            for _ in range(1_000):
                other.send(nack(1_000))
            await cluster.wait_for("a bound", lambda: "other" in ends)
            assert leader.backlog_bytes < 2_100_000


async def test_answers_that_a_client_has_no_room_for_end_their_calls_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many large ones at once, for who is far behind a node in between: that keeps some, and would
    end the stream with all calls on it for the others (ENDPOINTS N6)."""
    async with cut_off(tmp_path, monkeypatch) as (cluster, client):
        await client.apply({"kind": "Endpoint", "name": "rows", "replica_set": US})
        begun, given = 0, trio.Event()
        outcomes: list[HadronError | bytes] = []

        async def handle(value: object) -> object:
            nonlocal begun
            if value is None:
                return None
            begun += 1
            await given.wait()
            return bytes(4 << 20)

        async def call() -> None:
            try:
                outcomes.append(await client.call("rows", 1, timeout_s=60.0))
            except HadronError as error:
                outcomes.append(error)

        async with (
            cluster.client("near") as near,
            near.serve("rows", handle),
            trio.open_nursery() as nursery,
        ):
            for _ in range(16):
                nursery.start_soon(call)
            await cluster.wait_for("all begun", lambda: begun == 16)
            await way_there(cluster, client, Tunnel)
            # What it is sent arrives, and its credit is under way for long.
            cluster.network.cut_one_way("client", cluster[EU].host("n1"))
            given.set()
            await cluster.wait_for("all ended", lambda: len(outcomes) == 16, patience_s=20)
            cluster.network.heal("client", cluster[EU].host("n1"))
            lost = [each for each in outcomes if isinstance(each, CallFailedError)]
            assert len(lost) + outcomes.count(bytes(4 << 20)) == 16, outcomes
            assert 0 < len(lost) < 14
            assert {each.type for each in lost} == {"AnswerLost"}
            assert await client.call("rows", None, timeout_s=10.0) is None


async def test_a_stage_runner_is_granted_what_it_has_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small messages, and in some hours many of them: the node between has no room for all."""
    async with cut_off(tmp_path, monkeypatch) as (_, client):
        stage = StageSpec(name="a", engine="handler")
        pipeline = PipelineSpec(replica_set=US, input="s", stages=(stage,))
        await client.apply([SchemaObject(kind="Pipeline", name="p", spec=pipeline)])
        tunnel = await client._session.connect(US)
        assert isinstance(tunnel, Tunnel)
        begun = pipelines_pb2.RunStagesRequest(begun=[MAX_NUMBER] * MAX_ITEMS)
        opening = pipelines_pb2.RunStagesRequest(pipeline="p", engine="handler", max_batch=1)
        async with tunnel.open_stream(method("RunStages"), opening) as call:
            with trio.fail_after(10):
                for _ in range(4 * WINDOW_BYTES // begun.ByteSize()):
                    await call.send(begun)


async def test_an_answer_that_has_no_room_here_is_lost_and_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was done: a client that took it for refused would do it again (EXCHANGES X5)."""
    async with cut_off(tmp_path, monkeypatch) as (cluster, client):
        await client.apply({"kind": "Exchange", "name": "x", "replica_set": US})
        async with (
            cluster.client("near", through=[US]) as near,
            near.exchange("x").subscribe(">") as messages,
        ):
            await client.exchange("x").publish("first", 1)
            await way_there(cluster, client, Tunnel)
            no_room = True

            def has_room(self: FramedCall, size: int) -> bool:
                nonlocal no_room
                had, no_room = no_room, False
                return not had and self._connection.has_room(size)

            monkeypatch.setattr(FramedCall, "has_room", has_room)
            with pytest.raises(OutcomeUnknownError, match="not read the answers"):
                await client.exchange("x").publish("second", 2)
            await client.exchange("x").publish("third", 3)
            heard = [await anext(messages) for _ in range(3)]
            assert [each.value for each in heard] == [1, 2, 3]


async def test_a_member_through_a_tunnel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its acknowledgements, late ones too, its nacks and its leaving arrive as they do directly."""
    async with cut_off(tmp_path, monkeypatch) as (cluster, client):
        async with client.producer("s") as producer:
            await producer.send_many([b"%d" % n for n in range(5)])
        tunnelled = client.subscribe("s", group="g", max_in_flight=2, ack_deadline_s=20.0)
        async with tunnelled as subscription:
            await way_there(cluster, client, Tunnel)
            first, second = await anext(subscription), await anext(subscription)
            assert [first.value, second.value] == [b"0", b"1"]
            await first.ack()
            await subscription.flush()
            await cluster.crash(US)
            # Nobody is there to hear it: it goes out with the ballot of its delivery, later.
            await second.ack()
            await cluster.start(US)
            third = await anext(subscription)
            assert (third.value, third.attempt) == (b"2", 1)
            await third.nack()
            attempts: dict[bytes, int] = {}
            while len(attempts) < 3:
                delivery = await anext(subscription)
                attempts[delivery.value] = delivery.attempt
                await delivery.ack()
            assert attempts == {b"2": 2, b"3": 1, b"4": 1}
            await subscription.flush()
            (group,) = await client.groups("s")
            assert (group.floor, group.members) == (5, 1)
        (group,) = await client.groups("s")
        assert group.members == 0
        await cluster.wait_for("all calls over", lambda: calls_at_leader(cluster) == 0)


@dataclass
class Entered:
    """Calls that have entered some node, as who its handlers are told calls."""

    calls: list[tuple[str, Principal, str]]

    def of(self, name: str) -> list[tuple[Principal, str]]:
        return [(principal, peer) for each, principal, peer in self.calls if each == name]


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> Entered:
    found, enter = Entered([]), Entrance.enter

    def note(entrance: Entrance, each: Served | Led, call: AnyCall) -> Leading | None:
        found.calls.append((each.method.name, call.principal, call.peer))
        return enter(entrance, each, call)

    monkeypatch.setattr(Entrance, "enter", note)
    return found


async def test_the_leader_is_told_who_calls_through_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entered: Entered
) -> None:
    async with cut_off(tmp_path, monkeypatch) as (_, client):
        tunnel = await client._session.connect(US)
        entered.calls.clear()
        await tunnel.request(STATUS, cluster_pb2.StatusRequest())
        [(principal, peer)] = entered.of("Status")
        assert principal == Principal(forwarded_by=NodeName(EU, "n1"))
        assert peer.startswith("client")
        assert peer.endswith(" through node n1 of eu/p0")


CLAIMED = forward_pb2.ForwardRequest.Caller(peer="somebody", replica_set=US, node="n1")
"""What a client would like to be taken for."""


async def test_a_client_that_says_who_calls_is_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entered: Entered
) -> None:
    """It speaks as a node that forwards, for a node; and gets what it gets without."""
    forged = forward_pb2.ForwardRequest(replica_set=US, method=STATUS.number, caller=CLAIMED)
    async with (
        cut_off(tmp_path, monkeypatch) as (cluster, _),
        cluster[US].connection("n1", "mallory") as connection,
    ):
        answer, _ = await connection.request(FORWARD, forged)
        assert cluster_pb2.StatusResponse.FromString(answer.message).replica_set == US
        [(principal, peer)] = entered.of("Status")
        assert principal == ANONYMOUS
        assert peer.startswith("mallory")
        assert "somebody" not in peer


async def test_a_client_that_says_who_calls_gets_nothing_that_only_nodes_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        cut_off(tmp_path, monkeypatch) as (cluster, _),
        cluster[US].connection("n1", "mallory") as connection,
    ):
        for inner in METHODS.values():
            if inner.audience is not Audience.CLIENTS:
                forged = forward_pb2.ForwardRequest(
                    replica_set=US, method=inner.number, caller=CLAIMED
                )
                with pytest.raises(RequestError, match=f"method {inner} is not forwarded"):
                    await connection.request(FORWARD, forged)
            if inner.audience is Audience.MEMBERS:
                # Nor does it count for anything that it does next.
                with pytest.raises(NotReadyError, match="shake hands first"):
                    await connection.request(inner, inner.request())


async def test_what_came_through_another_node_goes_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entered: Entered
) -> None:
    forged = forward_pb2.ForwardRequest(replica_set=US, method=STATUS.number, caller=CLAIMED)
    async with (
        cut_off(tmp_path, monkeypatch) as (cluster, _),
        cluster[EU].connection("n1") as connection,
    ):
        with pytest.raises(NotLeaderError, match="a node of eu/p0, a call to us/p0"):
            await connection.request(FORWARD, forged)
        assert entered.of("Status") == []


async def test_a_message_that_makes_no_sense_is_named_as_the_leader_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nonsense = forward_pb2.ForwardRequest(
        replica_set=US, method=OFFSETS.number, message=b"\xff\xff\xff"
    )
    async with (
        cut_off(tmp_path, monkeypatch) as (cluster, _),
        cluster[EU].connection("n1") as connection,
    ):
        with pytest.raises(FrameError, match=r"the message of Streams\.Offsets does not decode"):
            await connection.request(FORWARD, nonsense)


class _Opened:
    """A call that notes when it is opened at the leader."""

    waiting_bytes = 1

    def __init__(self, name: str, opened: list[str]) -> None:
        self._name, self._opened = name, opened

    def open(self, _connection: object) -> None:
        self._opened.append(self._name)


class _Dialed:
    """A link whose dial has succeeded before who waits for it hears of that."""

    connection: Any = None

    def __init__(self) -> None:
        self.heard = trio.Event()

    async def open(self) -> Any:
        await self.heard.wait()
        return self.connection


async def test_calls_are_opened_in_the_order_in_which_they_came() -> None:
    """A producer's fifth batch comes when the leader has just been dialed, and the four before it
    wait for that still: opened first, it would follow nothing."""
    opened: list[str] = []
    async with trio.open_nursery() as nursery:
        background: Any = SimpleNamespace(start=nursery.start_soon)
        way = forwarding._Way(
            "leader:7000", cast(Any, None), background, lambda _: None, OneCluster().recognize
        )
        link = _Dialed()
        way._link = cast(Any, link)
        for name in "abcd":
            way.take(cast(Any, _Opened(name, opened)))
        link.connection = SimpleNamespace(is_closed=False)
        way.take(cast(Any, _Opened("e", opened)))
        link.heard.set()
    way.take(cast(Any, _Opened("f", opened)))
    assert opened == list("abcdef")
