"""Exchanges that are bridged to streams, and what stands between a client and their leader."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from hadron.client.exchanges.message import Message
from hadron.client.exchanges.tests.test_exchanges_with_nodes import PLAIN, subscribed, take, values
from hadron.exchanges import machine
from hadron.model.errors import (
    CorruptionError,
    HadronError,
    OutcomeUnknownError,
    OverloadedError,
    RequestError,
    SchemaError,
)
from hadron.model.record import NewRecord
from hadron.node.tests.test_promotion import changed, file_of
from hadron.testing.nodes import running_cluster, running_nodes
from hadron.wire.messages import exchanges_pb2, method

SETS = ("meta", "eu/p0")

BRIDGED = """
kind: Stream
name: orders
partitions: [local/p0]
---
kind: Stream
name: audit
partitions: [local/p0]
---
kind: Exchange
name: news
replica_set: local/p0
from_stream: orders
to_stream: audit
---
kind: Exchange
name: named
replica_set: local/p0
from_stream: orders
topic: orders.{type}
"""


async def test_a_streams_records_are_published_as_they_become_visible(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await client.apply(BRIDGED)
        await client.send("orders", "too early", type="order.placed")
        news, named = client.exchange("news"), client.exchange("named")
        async with (
            news.subscribe("order.*") as messages,
            named.subscribe("orders.order.placed") as placed,
            client.producer("orders") as producer,
        ):
            await producer.send({"n": 1}, type="order.placed", key="k", headers={"h": "x"})
            await producer.send(b"2")
            await producer.send("3", type="order.shipped")
            async with client.transaction() as tx:
                await tx.publish("orders", "4", type="order.placed")
                await tx.publish("orders", "5", type="other")
            async with client.transaction() as tx:
                await tx.publish("orders", "never", type="order.placed")
                await tx.rollback()
            found = await take(messages, 3)
            assert [(each.topic, each.value) for each in found] == [
                ("order.placed", {"n": 1}),
                ("order.shipped", "3"),
                ("order.placed", "4"),
            ]
            assert (found[0].key, found[0].headers) == ("k", {"h": "x"})
            found = await take(placed, 2)
            assert [(each.topic, each.type) for each in found] == [
                ("orders.order.placed", "order.placed")
            ] * 2
            assert values(found) == [{"n": 1}, "4"]
            # What is published goes the other way, and does not come back.
            sent = await news.publish("order.x", "6", logged=True)
            assert (sent.deliveries, [each.base_offset for each in sent.receipts]) == (1, [0])
            sent = await news.publish_many([("a", "7"), ("a", "8"), ("b", "9")], logged=True)
            assert [(each.stream, each.base_offset, each.count) for each in sent.receipts] == [
                ("audit", 1, 2),
                ("audit", 3, 1),
            ]
            assert values(await take(messages, 1)) == ["6"]
            await news.publish("order.y", "10")
            assert values(await take(messages, 1)) == ["10"]
            with trio.fail_after(10):
                logged = [
                    (each.type, each.value)
                    async for each in client.read("audit", follow=True, limit=5)
                ]
            assert logged == [
                ("order.x", "6"),
                ("a", "7"),
                ("a", "8"),
                ("b", "9"),
                ("order.y", "10"),
            ]
            assert (await news.describe()).without_topic == 1


async def test_a_stream_is_bridged_that_comes_with_the_declaration(tmp_path: Path) -> None:
    """In one entry: the exchange is in use, and hears of it first."""
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await client.apply("kind: Exchange\nname: news\nreplica_set: local/p0\n")
        async with client.exchange("news").subscribe(">") as messages:
            await client.apply(BRIDGED)
            await client.send("orders", "1", type="order.placed")
            assert values(await take(messages, 1)) == ["1"]
            assert list(nodes.status("n1").cluster_trouble) == []


async def test_a_stream_is_bridged_that_was_made_anew_while_a_set_was_away(
    tmp_path: Path, clock: MockClock
) -> None:
    """The set hears of the last declaration only, which is the first one, of another stream."""

    def exchange(stream: str) -> str:
        return f"kind: Exchange\nname: news\nreplica_set: eu/p0\nfrom_stream: {stream}\n"

    stream = "kind: Stream\nname: orders\npartitions: [eu/p0]\n"
    async with (
        running_cluster(tmp_path, dict.fromkeys(SETS, 1)) as cluster,
        cluster.client() as client,
        cluster.client("admin", through=["meta"]) as admin,
    ):
        await client.apply(f"{stream}---\n{exchange('orders')}")
        async with client.exchange("news").subscribe(">") as messages:
            await client.send("orders", "1", type="order.placed")
            assert values(await take(messages, 1)) == ["1"]
            meta, eu = cluster["meta"].host("n1"), cluster["eu/p0"].host("n1")
            cluster.network.isolate(meta, eu)
            cluster.network.break_connections(meta, eu, lose_all=True)
            await admin.apply(exchange("''"))
            await admin.delete(("Stream", "default", "orders"), allow_destructive=True)
            await admin.apply(f"{stream}---\n{exchange('orders')}")
            cluster.network.heal_all()
            await cluster.wait_for(
                "the new stream",
                lambda: len({cluster[each].status("n1").metadata_index for each in SETS}) == 1,
            )
            # The other one may have a producer of the first stream yet, and hear that it is gone.
            async with cluster.client("later") as later:
                await later.send("orders", "2", type="order.placed")
            assert values(await take(messages, 1)) == ["2"]


async def test_a_bridge_follows_its_declaration(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await client.apply(BRIDGED)
        news = client.exchange("news")
        async with news.subscribe() as messages:
            await client.send("orders", 1, type="a")
            assert values(await take(messages, 1)) == [1]
            await client.apply(PLAIN.replace("prices", "news"))
            await client.send("orders", 2, type="a")
            await client.apply(PLAIN.replace("prices", "news") + "from_stream: audit\n")
            await client.send("audit", 3, type="a")
            assert values(await take(messages, 1)) == [3]
            with pytest.raises(SchemaError, match="audit"):
                await client.delete(("Stream", "default", "audit"), allow_destructive=True)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("from_stream: x", "no stream 'x'"),
        ("from_stream: orders\nto_stream: orders", "would come twice"),
        ("topic: a", "no from_stream"),
        ("from_stream: orders\ntopic: a..{type}", "makes no topic"),
        ("from_stream: orders\ntopic: 'a.{typ}'", "is no placeholder"),
    ],
)
async def test_declarations_that_make_no_sense(tmp_path: Path, more: str, told: str) -> None:
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await client.apply("kind: Stream\nname: orders\npartitions: [local/p0]\n")
        with pytest.raises(SchemaError, match=told):
            await client.apply(f"{PLAIN}{more}\n")


async def test_a_bridged_stream_has_a_partition_at_the_exchange(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, {"meta": 1, "eu/p0": 1}) as cluster:
        discovery = cluster["meta"].node("n1").discovery
        await cluster.wait_for("registered", lambda: len(discovery.sets()) == 2)
        async with cluster.client() as client:
            await client.apply("kind: Stream\nname: s\npartitions: [meta]\n")
            with pytest.raises(SchemaError, match="no partition on 'eu/p0'"):
                await client.apply("kind: Exchange\nname: x\nreplica_set: eu/p0\nfrom_stream: s\n")


@pytest.mark.long
async def test_clients_attend_through_another_node(tmp_path: Path, clock: MockClock) -> None:
    async with running_nodes(tmp_path, 3) as nodes, nodes.client("far") as client:
        await client.apply(PLAIN)
        nodes.network.cut("far", nodes.host("n1"))
        prices = client.exchange("prices")
        async with prices.subscribe("a.*") as messages:
            assert (await prices.publish("a.b", 1)).deliveries == 1
            await prices.publish_many([("a.c", 2), ("b", 3), ("a.d", 4)])
            assert values(await take(messages, 3)) == [1, 2, 4]


async def test_a_client_that_does_not_read_is_cut_off_and_nobody_else_notices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "SESSION_BYTES", 100_000)
    monkeypatch.setattr(machine, "CUT_S", 0.2)
    async with (
        running_nodes(tmp_path, 1) as nodes,
        nodes.client() as client,
        nodes.connection("n1", "stuck") as connection,
    ):
        await client.apply(PLAIN)
        prices = client.exchange("prices")
        opening = exchanges_pb2.AttendRequest()
        opening.open.exchange = "prices"
        heard: list[exchanges_pb2.AttendEvent] = []
        ended: list[object] = []
        call = connection.call(
            method("Attend"),
            opening,
            on_message=lambda message, _: heard.append(message),
            on_end=ended.append,
            end=False,
        )
        wanted = exchanges_pb2.AttendRequest()
        wanted.subscribe.subscriptions.add(id=5, patterns=[">"])
        call.send(wanted)
        await subscribed(prices, 1)
        async with prices.subscribe() as messages:
            sent = 0
            with trio.fail_after(20):
                # It gives no credit: what it gets is a window, what waits is bounded.
                while not ended:
                    await prices.publish("a", b"x" * 50_000)
                    sent += 1
                    assert values(await take(messages, 1)) == [b"x" * 50_000]
            assert isinstance(ended[0], OverloadedError)
            assert "has read nothing" in ended[0].message
            found = await prices.describe()
            assert (found.cut_off, found.subscriptions) == (1, 1)
            received = sum(len(each.messages.at) for each in heard)
            assert found.dropped > 0
            assert received < sent


async def test_what_no_client_says_ends_its_call_only(tmp_path: Path) -> None:
    async with (
        running_nodes(tmp_path, 1) as nodes,
        nodes.client() as client,
        nodes.connection("n1", "rude") as connection,
    ):
        await client.apply(PLAIN)
        first = exchanges_pb2.AttendRequest()
        first.subscribe.subscriptions.add(id=5, patterns=[">"])
        attend, publish = method("Attend"), method("PublishMessages")
        with pytest.raises(RequestError, match="begins with `open`"):
            await connection.request(attend, first)
        request = exchanges_pb2.PublishMessagesRequest(exchange="prices")
        for attachment in (b"", b"nonsense", b"HRB1" + bytes(100)):
            with pytest.raises(CorruptionError, match="a batch"):
                await connection.request(publish, request, [attachment])
        async with client.exchange("prices").subscribe() as messages:
            await client.exchange("prices").publish("a", 1)
            assert values(await take(messages, 1)) == [1]


async def test_a_batch_of_many_types_counts_once(tmp_path: Path) -> None:
    """And not as often as it has runs of one type."""
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await client.apply(BRIDGED)
        async with client.exchange("named").subscribe() as messages:
            async with client.producer("orders") as producer:
                await producer.send_many(
                    [NewRecord("x" * 50, type="ab"[number % 2]) for number in range(2_000)]
                )
            with trio.fail_after(20):
                for _ in range(2_000):
                    assert not (await anext(messages)).missed


async def test_what_was_published_and_not_logged_is_not_published_again(tmp_path: Path) -> None:
    """By a leader that is replaced, and of which its client hears that before it hears of the next
    one."""
    with trio.fail_after(60):
        async with running_nodes(tmp_path, 3) as nodes, nodes.client() as client:
            await client.apply(BRIDGED)
            await nodes.wait_in_step()
            news = client.exchange("news")
            async with news.subscribe() as messages, trio.open_nursery() as nursery:
                nodes.network.isolate("n1", "n2", "n3")
                nodes.network.isolate("client", "n2", "n3")
                promoted = changed(nodes.config, "n1", "n2", "n3", leader="n2", epoch=2)
                file_of(nodes, promoted, "n2", "n3")
                await nodes.restart("n2", "n3")
                await nodes.wait_for("serving", lambda: nodes.status("n2").state == "serving")
                outcome: list[object] = []

                async def publish() -> None:
                    try:
                        outcome.append(await news.publish("order", "ship it", logged=True))
                    except HadronError as error:
                        outcome.append(type(error))

                nursery.start_soon(publish)
                assert values(await take(messages, 1)) == ["ship it"]
                for name in ("n2", "n3"):
                    nodes.network.heal("n1", name)
                await nodes.wait_for("told", lambda: bool(outcome))
                assert outcome == [OutcomeUnknownError]
                nodes.network.heal_all()
                heard: Message | None = None
                while heard is None:
                    # Until it is subscribed at the new one.
                    with suppress(OutcomeUnknownError):
                        await news.publish("order", "the next")
                    with trio.move_on_after(0.2):
                        heard = await anext(messages)
                assert heard.value == "the next"
