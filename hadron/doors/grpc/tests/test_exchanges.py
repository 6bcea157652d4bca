"""Exchanges: programs with plain grpcio publish and subscribe, over a real node."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
import trio
import trio.testing

import hadron
from hadron.doors.grpc.bridge import Lane
from hadron.doors.grpc.exchanging import send_or_end
from hadron.doors.grpc.limits import SMALL_BYTES, WINDOW_BYTES
from hadron.doors.grpc.rpc import Rpc, Talk
from hadron.doors.grpc.tests.support import MESSAGES, Program, until
from hadron.doors.held import Held
from hadron.model.errors import OverloadedError
from hadron.node.supervision.cluster import LocalCluster
from hadron.wire._pb import messages_pb2 as pb
from hadron.wire._pb import records_pb2


def message(topic: str, text: str = "x", **more: Any) -> pb.NewMessage:
    return pb.NewMessage(topic=topic, value=records_pb2.Value(text=text), **more)


def publish(program: Program, exchange: str, *messages: pb.NewMessage) -> pb.MessagesResponse:
    call = program.unary(MESSAGES + "Publish", pb.MessagesResponse)
    answer: pb.MessagesResponse = call(
        pb.MessagesRequest(exchange=exchange, messages=messages), timeout=30
    )
    return answer


def a_call(sent: list[bytes]) -> Rpc:
    """Whose other half takes nothing but what it is handed."""
    other: Any = SimpleNamespace(send=sent.append)
    return Rpc(Lane(lambda drain: drain()), other, "/", {}, "")


class Subscriber:
    def __init__(self, program: Program, exchange: str, *patterns: str, **more: Any) -> None:
        request = pb.SubscriptionRequest(exchange=exchange, patterns=patterns, **more)
        call = program.stream(MESSAGES + "Subscribe", pb.SubscriptionEvent)
        self.events = call(iter([request]), timeout=90)
        assert next(self.events).HasField("subscribed")
        self.messages = self._messages()

    def _messages(self) -> Iterator[pb.ArrivedMessage]:
        for event in self.events:
            yield from event.arrived.messages

    def take(self, count: int) -> list[str]:
        return [next(self.messages).value.text for _ in range(count)]


def test_what_is_published_reaches_who_is_subscribed(program: Program, exchange: str) -> None:
    publish(program, exchange, message("eu.early"))
    some = Subscriber(program, exchange, "eu.*", "us.>")
    everything = Subscriber(program, exchange)
    headers = {"source": "xetra"}
    key = records_pb2.Key(text="ibm")
    first = message("eu.ibm", "131", headers=headers, key=key, timestamp_ms=1_700_000_000_000)
    sent = publish(program, exchange, first, message("asia.x", "1"), message("us.a.b", "2"))
    assert (sent.deliveries, sent.dropped) == (5, 0)
    found = next(some.messages)
    assert (found.topic, found.type, found.value.text) == ("eu.ibm", "eu.ibm", "131")
    assert found.key == key
    assert found.headers == headers
    assert found.timestamp_ms == 1_700_000_000_000
    assert (found.missed, found.interrupted) == (0, False)
    assert some.take(1) == ["2"]
    assert everything.take(3) == ["131", "1", "2"]
    some.events.cancel()
    everything.events.cancel()


def test_a_group_shares_messages_and_python_takes_part(
    program: Program, exchange: str, cluster: LocalCluster
) -> None:
    members = [Subscriber(program, exchange, group="g") for _ in range(2)]
    with (
        hadron.connect_sync(f"hadron://{cluster.config.leader.address}") as client,
        client.exchange(exchange).subscribe("a") as messages,
    ):
        for number in range(10):
            client.exchange(exchange).publish("a", {"n": number})
        assert [next(messages).value for _ in range(10)] == [{"n": n} for n in range(10)]
        publish(program, exchange, message("a", "from a program"))
        assert next(messages).value == "from a program"
    seen = [[next(each.messages).value.json for _ in range(5)] for each in members]
    assert sorted(seen[0] + seen[1]) == [f'{{"n":{number}}}' for number in range(10)]
    for each in members:
        each.events.cancel()


def test_many_messages_keep_their_order(program: Program, exchange: str) -> None:
    subscriber = Subscriber(program, exchange)
    texts = [str(number) for number in range(5_000)]
    publish(program, exchange, *(message(f"t.{len(text)}", text) for text in texts))
    assert subscriber.take(5_000) == texts
    subscriber.events.cancel()


def test_a_slow_reader_is_told_what_it_has_missed_and_is_in_nobodys_way(
    program: Program, exchange: str
) -> None:
    count, chunk = 400, 10
    text = "x" * (100 << 10)
    with Program(program.address) as other:
        slow = Subscriber(other, exchange, max_buffer_bytes=1 << 20)
        quick = Subscriber(program, exchange)
        for number in range(0, count, chunk):
            some = [message("t", f"{each} {text}") for each in range(number, number + chunk)]
            publish(program, exchange, *some)
            numbers = [found.split()[0] for found in quick.take(chunk)]
            assert numbers == [str(each) for each in range(number, number + chunk)]
        missed = 0
        # Once it has taken some there is room for what comes then: that tells of the gap.
        for taken, found in enumerate(slow.messages):
            missed += found.missed
            assert int(found.value.text.split()[0]) == taken + missed, "the gap is told before"
            if taken + missed >= count:
                break
            publish(program, exchange, message("t", str(count + taken)))
        assert missed > 100
        slow.events.cancel()
        quick.events.cancel()


@pytest.mark.parametrize(
    ("request_", "code", "told"),
    [
        (pb.SubscriptionRequest(exchange="nowhere"), "NOT_FOUND", "nowhere"),
        (pb.SubscriptionRequest(), "INVALID_ARGUMENT", "exchange"),
        (pb.SubscriptionRequest(exchange="{}", patterns=["a..b"]), "INVALID_ARGUMENT", "a..b"),
        (pb.SubscriptionRequest(exchange="{}", max_buffer_bytes=1 << 30), "INVALID_ARGUMENT", "at"),
        (pb.MessagesRequest(exchange="{}"), "INVALID_ARGUMENT", "0 messages"),
        (pb.MessagesRequest(exchange="{}", messages=[message("a b")]), "INVALID_ARGUMENT", "a b"),
        (
            pb.MessagesRequest(exchange="{}", messages=[pb.NewMessage(topic="a")]),
            "INVALID_ARGUMENT",
            "no value",
        ),
        (
            pb.MessagesRequest(exchange="{}", messages=[message("a", "x" * (2 << 20))]),
            "INVALID_ARGUMENT",
            "bytes",
        ),
        (
            pb.MessagesRequest(exchange="{}", messages=[message("a")], logged=True),
            "INVALID_ARGUMENT",
            "to_stream",
        ),
    ],
)
def test_requests_that_make_no_sense_are_refused(
    program: Program, exchange: str, request_: Any, code: str, told: str
) -> None:
    request_.exchange = request_.exchange.format(exchange)
    method = "Publish" if isinstance(request_, pb.MessagesRequest) else "Subscribe"
    call = program.stream(MESSAGES + method, records_pb2.Value)
    with pytest.raises(grpc.RpcError) as caught:
        list(call(iter([request_]), timeout=30))
    assert caught.value.code().name == code, caught.value
    assert told in caught.value.details()


def test_subscriptions_have_so_much_room_together(program: Program, exchange: str) -> None:
    most = [Subscriber(program, exchange, max_buffer_bytes=4 << 20) for _ in range(64)]
    with pytest.raises(grpc.RpcError) as caught:
        Subscriber(program, exchange)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    most.pop().events.cancel()

    def fits() -> bool:
        try:
            most.append(Subscriber(program, exchange))
        except grpc.RpcError:
            return False
        return True

    until(fits)
    for each in most:
        each.events.cancel()


async def test_a_subscription_that_was_cut_off_ends_though_nobody_reads(
    autojump_clock: trio.testing.MockClock,  # noqa: ARG001 - time passes by it
) -> None:
    talk = Talk(a_call([]))
    await talk.send(bytes(WINDOW_BYTES))
    inbox = SimpleNamespace(failure=None)
    messages: Any = SimpleNamespace(_inbox=inbox)

    async def cut_off() -> None:
        await trio.sleep(40)
        inbox.failure = OverloadedError("nothing was taken")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(cut_off)
        with pytest.raises(OverloadedError, match="nothing was taken"):
            await send_or_end(talk, messages, b"x")
    assert 40 <= trio.current_time() <= 61


async def test_an_answer_that_has_no_room_is_lost_and_not_refused() -> None:
    """Libraries repeat what was refused; this was done."""
    sent: list[bytes] = []
    told: list[Any] = []
    rpc = a_call(sent)
    rpc._other.cut = told.append  # type: ignore[method-assign, assignment]
    held = Held(10, "answers", "read them")
    held.take(10)
    rpc.share = held.share()
    rpc.send(bytes(SMALL_BYTES + 1))
    assert not sent
    assert [each.code for each in told] == [grpc.StatusCode.UNKNOWN]
    assert "may have been done" in told[0].message


async def test_each_task_that_waits_for_room_is_woken(
    autojump_clock: trio.testing.MockClock,  # noqa: ARG001 - time passes by it
) -> None:
    sent: list[bytes] = []
    rpc = a_call(sent)
    talk = Talk(rpc)
    await talk.send(bytes(WINDOW_BYTES))
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(talk.send, bytes([number]))
            await trio.sleep(1)
            rpc.written(WINDOW_BYTES)
    assert sorted(sent[1:]) == [b"\x00", b"\x01", b"\x02"]
    await talk.send(bytes(WINDOW_BYTES))
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(talk.send, b"x")
            await trio.sleep(1)
            rpc.over()
