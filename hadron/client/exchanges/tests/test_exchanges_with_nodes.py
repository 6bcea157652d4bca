"""Exchanges from end to end: clients, a leader, and whatever comes between them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import trio

from hadron.client.connecting import outages
from hadron.client.exchanges import exchange as exchanges
from hadron.client.exchanges import inbox as inboxes
from hadron.client.exchanges.exchange import Exchange
from hadron.client.exchanges.message import Message
from hadron.client.exchanges.messages import Messages
from hadron.client.terms.results import Dispatched
from hadron.exchanges import machine
from hadron.model.errors import (
    NotFoundError,
    OutcomeUnknownError,
    OverloadedError,
    RecordTooLargeError,
    RequestError,
)
from hadron.model.limits import MAX_OFFSET
from hadron.model.record import NewRecord
from hadron.testing.nodes import running_nodes
from hadron.wire.messages import exchanges_pb2 as pb
from hadron.wire.messages import method

PLAIN = "kind: Exchange\nname: prices\nreplica_set: local/p0\n"


async def take(messages: Messages, count: int) -> list[Message]:
    with trio.fail_after(10):
        return [await anext(messages) for _ in range(count)]


async def subscribed(exchange: Exchange, count: int) -> None:
    """Until so many subscriptions are known to the leader."""
    with trio.fail_after(10):
        while (await exchange.describe()).subscriptions < count:  # noqa: ASYNC110
            await trio.sleep(0.005)


def values(messages: list[Message]) -> list[object]:
    return [each.value for each in messages]


async def test_whoever_is_subscribed_gets_what_matches(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await client.apply(PLAIN)
        prices = client.exchange("prices")
        found = await prices.publish("eu.ibm", 1)
        assert (found.deliveries, found.dropped, found.receipts) == (0, 0, [])
        async with (
            prices.subscribe("eu.*") as eu,
            prices.subscribe(["us.>", "*.ibm"]) as some,
            client.exchange("prices").subscribe() as all_of_them,
        ):
            found = await prices.publish("eu.ibm", {"p": 2}, headers={"h": "x"}, key="k")
            assert found.deliveries == 3
            assert (await prices.publish_many([("us.a.b", b"3"), ("asia", "4")])).deliveries == 3
            assert (await prices.publish_many([])).deliveries == 0
            (message,) = await take(eu, 1)
            assert (message.topic, message.value, message.headers, message.key) == (
                "eu.ibm",
                {"p": 2},
                {"h": "x"},
                "k",
            )
            assert (message.missed, message.interrupted) == (0, False)
            assert values(await take(some, 2)) == [{"p": 2}, b"3"]
            assert values(await take(all_of_them, 3)) == [{"p": 2}, b"3", "4"]
        assert (await prices.publish("eu.ibm", 5)).deliveries == 0


async def test_a_group_gets_each_message_once(tmp_path: Path) -> None:
    async with (
        running_nodes(tmp_path, 1) as nodes,
        nodes.client() as client,
        nodes.client() as other,
    ):
        await client.apply(PLAIN)
        prices = client.exchange("prices")
        async with (
            prices.subscribe("eu.*", group="g") as one,
            other.exchange("prices").subscribe("*.ibm", group="g") as two,
        ):
            for number in range(10):
                assert (await prices.publish("eu.ibm", number)).deliveries == 1
            assert (await prices.publish_many([("eu.ibm", 10 + n) for n in range(10)])).deliveries
            first, second = values(await take(one, 10)), values(await take(two, 10))
            assert sorted([*first, *second]) == list(range(20))  # type: ignore[type-var]
            assert first == sorted(first)  # type: ignore[type-var]
            assert second == sorted(second)  # type: ignore[type-var]


async def test_what_is_published_many_at_a_time_keeps_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanges, "_CALL_MESSAGES", 7)
    monkeypatch.setattr(exchanges, "_BATCH_BYTES", 100)
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await client.apply(PLAIN)
        prices = client.exchange("prices")
        async with prices.subscribe() as messages:
            sent = [(f"t.{number // 3 % 2}", number) for number in range(50)]
            records = [NewRecord(value=value, type=topic) for topic, value in sent]
            await prices.publish_many([*records[:25], *sent[25:]])
            assert [(each.topic, each.value) for each in await take(messages, 50)] == sent


async def test_a_program_that_does_not_take_its_messages_is_told_what_it_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await client.apply(PLAIN)
        prices = client.exchange("prices")
        async with prices.subscribe(max_buffer_bytes=5_000) as slow, prices.subscribe() as quick:
            for number in range(20):
                await prices.publish("a", [number, "x" * 1_000])
            assert [each.value[0] for each in await take(quick, 20)] == list(range(20))
            (first,) = await take(slow, 1)
            assert (first.value[0], first.missed) == (0, 0)
            missed = slow.missed
            assert 15 <= missed < 20
            kept = 20 - missed
            await take(slow, kept - 1)
            await prices.publish("a", "then")
            (message,) = await take(slow, 1)
            assert (message.value, message.missed, message.interrupted) == ("then", missed, False)
            told = await prices.describe()
            assert sum(each.dropped_by_client for each in told.listed) == missed
            assert (told.dropped, told.published, told.subscriptions) == (0, 21, 2)
            monkeypatch.setattr(inboxes, "CUT_S", 0.0)
            for _ in range(40):
                await prices.publish("a", "x" * 1_000)
            with pytest.raises(OverloadedError, match="nothing was taken from it"):
                await take(slow, 40)
            await take(quick, 41)
            assert (await prices.describe()).subscriptions == 1


async def test_bad_input_is_refused_and_nobody_else_notices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "SESSION_PATTERNS", 5)
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await client.apply(PLAIN)
        prices = client.exchange("prices")
        with pytest.raises(NotFoundError, match=r"no exchange is called 'price'.*prices"):
            await client.exchange("price").publish("a", 1)
        await client.apply({"kind": "Queue", "name": "jobs", "replica_set": "local/p0"})
        for name, hint in (
            ("prices", "`hadron exchange`, client.exchange('prices') are for that"),
            ("jobs", "kind Queue is only stored by this version"),
            ("nothing", "create it with `hadron create stream nothing`"),
        ):
            with pytest.raises(NotFoundError, match=f"no stream is called {name!r}") as caught:
                await client.send(name, 1)
            assert caught.value.hint.startswith(hint)
        with pytest.raises(NotFoundError):
            async with client.exchange("price").subscribe():
                pass
        await prices.publish("a", 0)
        elsewhere = partial(trio.run, prices.publish, "a", 1)
        with pytest.raises(RequestError, match="the event loop of another thread"):
            await trio.to_thread.run_sync(elsewhere)
        async with prices.subscribe() as messages:
            for topic in ("", "a..b", ".a", "a.", "*", "a.>", "a b", "x" * 256, ".".join("a" * 17)):
                with pytest.raises(RequestError, match="is not a topic"):
                    await prices.publish(topic, 1)
            with pytest.raises(RequestError, match="is not a topic"):
                await prices.publish_many([("a", 1), ("b.", 2)])
            for pattern in ("a..b", "a.>.b", ">.a", "a.b*", "x" * 256, ".".join("*" * 17)):
                with pytest.raises(RequestError, match="is not a pattern"):
                    prices.subscribe(pattern)
            for pattern in ("#", "eu.#", "#.ibm"):
                with pytest.raises(RequestError, match="# is no wildcard"):
                    prices.subscribe(pattern)
            with pytest.raises(RequestError, match="one of patterns b'a' is of type bytes"):
                prices.subscribe(b"a")  # type: ignore[arg-type]
            with pytest.raises(RequestError, match="5 are no messages"):
                await prices.publish_many(5)  # type: ignore[arg-type]
            with pytest.raises(RequestError, match="not a message"):
                await prices.publish_many(["abc"])  # type: ignore[list-item]
            with pytest.raises(RecordTooLargeError):
                await prices.publish("a", b"x" * (1 << 20))
            with pytest.raises(RequestError, match="logs nothing"):
                await prices.publish("a", 1, logged=True)
            with pytest.raises(RequestError, match="limit is 5"):
                async with prices.subscribe(["a", "b", "c", "d", "e"]):
                    pass
            for group in ("a/b", "g" * (5 << 20)):
                with pytest.raises(RequestError, match="group"):
                    prices.subscribe(group=group)
            await prices.publish("a", "still here")
            assert values(await take(messages, 1)) == ["still here"]
            await client.delete(("Exchange", "default", "prices"))
            with pytest.raises(NotFoundError, match="deleted"):
                await take(messages, 1)
            with pytest.raises(NotFoundError):
                await prices.publish("a", 1)


async def test_a_client_that_says_to_have_dropped_anything_breaks_no_description(
    tmp_path: Path,
) -> None:
    """What it says adds up to more than a number of the answer has."""
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await client.apply(PLAIN)
        prices = client.exchange("prices")
        opening = pb.AttendRequest(open=pb.AttendRequest.Open(exchange="prices"))
        subscribe = pb.AttendRequest.Subscribe()
        subscribe.subscriptions.add(id=1, patterns=[">"])
        dropped = pb.Missed(gaps=[pb.Missed.Gap(id=1, messages=(1 << 64) - 1)])
        async with (
            nodes.connection("n1", "mallory") as connection,
            connection.open_stream(method("Attend"), opening) as stream,
        ):
            await stream.send(pb.AttendRequest(subscribe=subscribe))
            await subscribed(prices, 1)
            for _ in range(2):
                await stream.send(pb.AttendRequest(dropped=dropped))
            with trio.fail_after(10):
                while not (told := (await prices.describe()).listed[0].dropped_by_client):  # noqa: ASYNC110
                    await trio.sleep(0.005)
            await stream.send(pb.AttendRequest(dropped=dropped))
            assert (await prices.describe()).listed[0].dropped_by_client == told == MAX_OFFSET


async def test_subscribers_come_back_to_a_leader_and_are_told(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 3) as nodes, nodes.client() as client:
        await client.apply(PLAIN)
        prices = client.exchange("prices")
        async with prices.subscribe() as one, prices.subscribe("b") as two:
            await prices.publish("a", 1)
            assert values(await take(one, 1)) == [1]
            await nodes.restart("n1")
            await nodes.wait_serving()
            await subscribed(prices, 2)
            await prices.publish_many([("b", 2), ("b", 3)])
            for messages in (one, two):
                first, second = await take(messages, 2)
                assert (first.value, first.interrupted) == (2, True)
                assert (second.value, second.interrupted) == (3, False)
                assert messages.interruptions == 1


async def test_subscribers_say_that_the_leader_is_away_and_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outages, "TELL_AFTER_S", 0.0)
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await client.apply(PLAIN)
        async with client.exchange("prices").subscribe():
            assert "exchange 'prices'" not in caplog.text
            await nodes.crash("n1")
            with trio.fail_after(10):
                while "nothing is read from exchange 'prices': " not in caplog.text:  # noqa: ASYNC110
                    await trio.sleep(0.005)
            await nodes.restart("n1")
            await nodes.wait_serving()
            with trio.fail_after(10):
                while "exchange 'prices' is read again" not in caplog.messages:  # noqa: ASYNC110
                    await trio.sleep(0.005)


async def test_who_publishes_many_hears_how_many_are_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_nodes(tmp_path, 1) as nodes, nodes.client(request_timeout_s=1.0) as client:
        await client.apply(PLAIN)
        publish = client._exchanges.publish

        async def once(name: str, batches: Sequence[bytes], *, logged: bool) -> Dispatched:
            found = await publish(name, batches, logged=logged)
            await nodes.crash("n1")
            return found

        monkeypatch.setattr(client._exchanges, "publish", once)
        with pytest.raises(OutcomeUnknownError, match="the first 5,000 messages are published"):
            await client.exchange("prices").publish_many([("t", 1)] * 10_000)


async def test_an_exchange_that_was_made_anew_is_found_by_who_knew_the_old_one(
    tmp_path: Path,
) -> None:
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client, nodes.client() as own:
        for _ in range(2):
            await own.apply(PLAIN)
            async with client.exchange("prices").subscribe("eu") as messages:
                await client.exchange("prices").publish("eu", 1)
                assert values(await take(messages, 1)) == [1]
            await own.delete([("Exchange", "default", "prices")])
        with pytest.raises(NotFoundError):
            async with client.exchange("prices").subscribe("eu"):
                pass
