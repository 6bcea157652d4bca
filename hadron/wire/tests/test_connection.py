"""Calls over a connection: both peers tested as a pair, on a clock that jumps."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from hadron.fakes.connections import SimTransport
from hadron.fakes.network import SimNetwork
from hadron.model.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    FrameError,
    HadronError,
    NotFoundError,
    UnknownMethodError,
)
from hadron.model.limits import MAX_ATTACHMENT_BYTES
from hadron.model.version import VERSION
from hadron.wire import connection, failures, frames
from hadron.wire.calling import MessageStream
from hadron.wire.calls import AnyCall, Handler
from hadron.wire.connection import Connection, Cork
from hadron.wire.framed_calls import WINDOW_BYTES
from hadron.wire.frames import END, NO_MESSAGE, Kind
from hadron.wire.messages import Method, cluster_pb2, common_pb2, groups_pb2, method, streams_pb2

STATUS, FETCH, SUBSCRIBE = method("Status"), method("Fetch"), method("Subscribe")


class Pair:
    """A client's and a server's connection, and the raw ends for bad bytes."""

    def __init__(self, network: SimNetwork, client: Connection, server: Connection) -> None:
        self.network, self.client, self.server = network, client, server


@asynccontextmanager
async def connected(
    handlers: dict[int, Handler], **options: Any
) -> AsyncIterator[tuple[Pair, trio.Nursery]]:
    network = SimNetwork()
    listener = await network.host("server").listen("server:0")
    dialed = await network.host("client").dial(listener.address)
    accepted = await listener.accept()
    pair = Pair(
        network,
        Connection(dialed, dialed=True, **options),
        Connection(accepted, dialed=False, handlers=handlers, **options),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pair.client.run)
        nursery.start_soon(pair.server.run)
        yield pair, nursery
        pair.client.close()
        pair.server.close()
        nursery.cancel_scope.cancel()
    listener.close()


@asynccontextmanager
async def raw_peer(
    handlers: dict[int, Handler], **options: Any
) -> AsyncIterator[tuple[SimTransport, Connection]]:
    """A server's connection whose other end is ours, byte by byte."""
    network = SimNetwork()
    listener = await network.host("server").listen("server:0")
    dialed = await network.host("client").dial(listener.address)
    server = Connection(await listener.accept(), dialed=False, handlers=handlers, **options)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        yield dialed, server
        dialed.close()
        server.close()
        nursery.cancel_scope.cancel()
    listener.close()


async def read_frames(transport: SimTransport) -> list[frames.Frame]:
    """Everything until the other side closes, or nothing more comes for a while."""
    decoder = frames.FrameDecoder()
    found: list[frames.Frame] = []
    with trio.move_on_after(1):
        while count := await transport.receive_into(decoder.buffer()):
            found.extend(decoder.received(count))
    return found


def write(transport: SimTransport, *args: Any, **options: Any) -> None:
    transport.send_some(frames.encode(*args, **options))


def answer_status(call: AnyCall, _request: Any, _attachment: memoryview) -> None:
    call.send(cluster_pb2.StatusResponse(node="n1"), end=True)


def echo_fetch(call: AnyCall, request: Any, attachment: memoryview) -> None:
    call.send(streams_pb2.FetchResponse(next_offset=request.offset), [attachment], end=True)


def never(_call: AnyCall, _request: Any, _attachment: memoryview) -> None:
    pass


# --- requests -----------------------------------------------------------------------------------


async def test_a_question_is_answered(autojump_clock: MockClock) -> None:
    async with connected({STATUS.number: answer_status, FETCH.number: echo_fetch}) as (pair, _):
        answer, _ = await pair.client.request(STATUS, cluster_pb2.StatusRequest())
        assert answer.node == "n1"
        data = bytes(range(256)) * 4096
        answer, attachment = await pair.client.request(
            FETCH, streams_pb2.FetchRequest(offset=7), [data, b"tail"]
        )
        assert answer.next_offset == 7
        assert bytes(attachment) == data + b"tail"
        assert not pair.client._calls
        assert not pair.server._calls


async def test_many_questions_at_once_find_their_answers(autojump_clock: MockClock) -> None:
    async with connected({FETCH.number: echo_fetch}) as (pair, _), trio.open_nursery() as nursery:
        found: dict[int, int] = {}

        async def ask(number: int) -> None:
            answer, attachment = await pair.client.request(
                FETCH, streams_pb2.FetchRequest(offset=number), [bytes(number * 100)]
            )
            assert len(attachment) == number * 100
            found[number] = answer.next_offset

        for number in range(200):
            nursery.start_soon(ask, number)
    assert found == {number: number for number in range(200)}


async def test_an_error_keeps_its_class_message_and_hint(autojump_clock: MockClock) -> None:
    def refuse(_call: AnyCall, _request: Any, _attachment: memoryview) -> None:
        raise NotFoundError("no such thing", "look elsewhere")

    async with connected({STATUS.number: refuse}) as (pair, _):
        with pytest.raises(NotFoundError, match=r"no such thing \(look elsewhere\)"):
            await pair.client.request(STATUS, cluster_pb2.StatusRequest())
        assert not pair.server._calls


async def test_an_unknown_method_is_named(autojump_clock: MockClock) -> None:
    async with connected({}) as (pair, _):
        with pytest.raises(UnknownMethodError, match=r"Cluster\.Status is not served here"):
            await pair.client.request(STATUS, cluster_pb2.StatusRequest())


async def test_an_unknown_method_is_told_with_the_versions_of_both_sides(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either may be the older one. Each says its own: when the answer was written, it was 0.9."""
    make = failures.not_served

    def not_served(method: Method | int) -> UnknownMethodError:
        with monkeypatch.context() as patch:
            patch.setattr(failures, "VERSION", "0.9")
            return make(method)

    monkeypatch.setattr(connection, "not_served", not_served)
    async with connected({}) as (pair, _):
        with pytest.raises(UnknownMethodError) as raised:
            await pair.client.request(STATUS, cluster_pb2.StatusRequest())
    assert raised.value.message == "method Cluster.Status is not served here, by Hadron 0.9"
    assert raised.value.hint.startswith(f"it was called by Hadron {VERSION}: the older one is")


async def test_no_answer_in_time_cancels_the_call_on_both_sides(autojump_clock: MockClock) -> None:
    async with connected({STATUS.number: never}) as (pair, _):
        with pytest.raises(
            DeadlineExceededError, match=r"^\S+ does not answer \(within 3 s\)"
        ) as e:
            await pair.client.request(STATUS, cluster_pb2.StatusRequest(), timeout_s=3)
        assert e.value.__notes__ == ["the call was Cluster.Status"]
        await wait_all_tasks_blocked()
        assert not pair.client._calls
        assert not pair.server._calls


async def test_a_cancelled_question_ends_the_task_that_works_on_it(
    autojump_clock: MockClock,
) -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await trio.sleep(1_000)
        finally:
            ended.append("cancelled")

    def start(call: AnyCall, _request: Any, _attachment: memoryview) -> None:
        call.spawn(work)

    async with connected({STATUS.number: start}) as (pair, _):
        with pytest.raises(DeadlineExceededError):
            await pair.client.request(STATUS, cluster_pb2.StatusRequest(), timeout_s=1)
        await wait_all_tasks_blocked()
        assert ended == ["cancelled"]
        assert not pair.server._calls
        assert not pair.server._scopes


async def test_a_handler_that_fails_costs_one_call(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_call: AnyCall, _request: Any, _attachment: memoryview) -> None:
        raise ZeroDivisionError

    async def broken_later() -> None:
        await trio.sleep(1)
        raise ZeroDivisionError

    def spawn_broken(call: AnyCall, _request: Any, _attachment: memoryview) -> None:
        call.spawn(broken_later)

    handlers = {STATUS.number: broken, SUBSCRIBE.number: spawn_broken, FETCH.number: echo_fetch}
    async with connected(handlers) as (pair, _):
        for what, request in (
            (STATUS, cluster_pb2.StatusRequest()),
            (SUBSCRIBE, groups_pb2.SubscribeRequest()),
        ):
            with pytest.raises(HadronError, match=r"failed inside the node.*see the node's log"):
                await pair.client.request(what, request)
        await pair.client.request(FETCH, streams_pb2.FetchRequest())
    assert sum(record.exc_info is not None for record in caplog.records) == 2
    caplog.clear()


async def test_calls_end_when_the_connection_does(autojump_clock: MockClock) -> None:
    ends: list[HadronError | None] = []

    def start(call: AnyCall, _request: Any, _attachment: memoryview) -> None:
        call.on_end = ends.append

    async with connected({SUBSCRIBE.number: start}) as (pair, nursery):

        def broken_end(_error: HadronError | None) -> None:
            raise ZeroDivisionError

        pair.client.call(
            SUBSCRIBE,
            groups_pb2.SubscribeRequest(),
            on_message=ignore,
            on_end=broken_end,
            end=False,
        )
        failed: list[HadronError] = []

        async def ask() -> None:
            try:
                await pair.client.request(SUBSCRIBE, groups_pb2.SubscribeRequest())
            except HadronError as error:
                failed.append(error)

        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        pair.network.break_connections("client")
        await wait_all_tasks_blocked()
        assert [type(error) for error in failed] == [ConnectionLostError]
        # One caller had said END already, the other is cut off.
        assert {type(error) for error in ends} == {type(None), ConnectionLostError}
        with pytest.raises(ConnectionLostError):
            await pair.client.request(STATUS, cluster_pb2.StatusRequest())


def ignore(_message: Any, _attachment: memoryview) -> None:
    pass


# --- streams ------------------------------------------------------------------------------------


def echo_acks(call: AnyCall, _request: Any, _attachment: memoryview) -> None:
    """Answers each message of a Subscribe call with its token."""

    def on_message(message: Any, attachment: memoryview) -> None:
        call.send(
            groups_pb2.SubscribeEvent(
                acked=groups_pb2.SubscribeEvent.Acked(confirmation=message.ack.confirmation)
            )
        )
        call.consumed(message.ByteSize() + len(attachment))

    call.on_message = on_message
    call.on_end = lambda _error: call.end()


def token(number: int) -> groups_pb2.SubscribeRequest:
    return groups_pb2.SubscribeRequest(ack=groups_pb2.SubscribeRequest.Ack(confirmation=number))


async def test_messages_flow_both_ways_and_leaving_cancels(autojump_clock: MockClock) -> None:
    async with connected({SUBSCRIBE.number: echo_acks}) as (pair, _):
        async with pair.client.open_stream(SUBSCRIBE, groups_pb2.SubscribeRequest()) as stream:
            for number in range(1, 50):
                await stream.send(token(number))
                received = await stream.receive()
                assert received is not None
                assert received[0].acked.confirmation == number
        await wait_all_tasks_blocked()
        assert not pair.client._calls
        assert not pair.server._calls


async def test_a_stream_sends_no_more_than_it_has_credit_for(autojump_clock: MockClock) -> None:
    opened: list[AnyCall] = []

    def start(call: AnyCall, _request: Any, _attachment: memoryview) -> None:
        opened.append(call)
        call.on_message = lambda _message, attachment: arrived.append(len(attachment))

    arrived: list[int] = []
    async with (
        connected({SUBSCRIBE.number: start}) as (pair, nursery),
        pair.client.open_stream(SUBSCRIBE, groups_pb2.SubscribeRequest()) as stream,
    ):
        nursery.start_soon(send_many, stream, 40, 100_000)
        await wait_all_tasks_blocked()
        # The last message may go over the window, which is what a single large one needs.
        assert WINDOW_BYTES <= sum(arrived) < WINDOW_BYTES + 110_000
        before = len(arrived)
        opened[0].consumed(500_000)
        await wait_all_tasks_blocked()
        assert len(arrived) == before + 5
        # However much a peer grants, no more than a window is on its way.
        opened[0].consumed(1 << 30)
        await wait_all_tasks_blocked()
        assert len(arrived) == before + 5 + -(-WINDOW_BYTES // 100_000)
        while len(arrived) < 40:
            opened[0].consumed(1 << 30)
            await wait_all_tasks_blocked()


async def send_many(stream: MessageStream, count: int, size: int) -> None:
    for number in range(count):
        await stream.send(token(number), [bytes(size)])


async def test_what_fits_into_no_frame_takes_nothing_of_the_window(
    autojump_clock: MockClock,
) -> None:
    async with (
        connected({SUBSCRIBE.number: echo_acks}) as (pair, _),
        pair.client.open_stream(SUBSCRIBE, groups_pb2.SubscribeRequest()) as stream,
    ):
        with pytest.raises(FrameError, match="over the limits"):
            await stream.send(token(1), [bytes(MAX_ATTACHMENT_BYTES + 1)])
        await stream.send(token(2))
        received = await stream.receive()
        assert received is not None
        assert received[0].acked.confirmation == 2


async def test_a_writer_without_credit_hears_of_the_end(autojump_clock: MockClock) -> None:
    async with connected({SUBSCRIBE.number: never_consumes}) as (pair, nursery):
        failed: list[HadronError] = []
        async with pair.client.open_stream(SUBSCRIBE, groups_pb2.SubscribeRequest()) as stream:

            async def writer() -> None:
                try:
                    await send_many(stream, 100, 100_000)
                except HadronError as error:
                    failed.append(error)

            nursery.start_soon(writer)
            await wait_all_tasks_blocked()
            pair.network.break_connections("server")
            await wait_all_tasks_blocked()
            assert failed


def never_consumes(call: AnyCall, _request: Any, _attachment: memoryview) -> None:
    call.on_message = ignore


# --- keepalive, gate, backlog, cork -------------------------------------------------------------


async def test_an_idle_connection_lives_on_pings(autojump_clock: MockClock) -> None:
    async with connected({STATUS.number: answer_status}) as (pair, _):
        await trio.sleep(10_000)
        await pair.client.request(STATUS, cluster_pb2.StatusRequest())


async def test_a_silent_peer_is_given_up(autojump_clock: MockClock) -> None:
    async with connected({STATUS.number: never}, keepalive_s=5, silence_limit_s=15) as (pair, _):
        start = trio.current_time()
        pair.network.cut("client", "server")
        with pytest.raises(ConnectionLostError, match=r"silent for 15 s.*stopped or cut off"):
            await pair.client.request(STATUS, cluster_pb2.StatusRequest())
        assert 15 <= trio.current_time() - start <= 25


class ClosedGate:
    """`wire.connection.Gate`."""

    def __init__(self) -> None:
        self.is_open = True
        self.opened = trio.Event()

    async def wait_turn(self) -> None:
        await trio.lowlevel.checkpoint()

    async def wait_open(self) -> None:
        await self.opened.wait()


async def test_a_closed_gate_holds_requests_back_and_is_not_silence(
    autojump_clock: MockClock,
) -> None:
    gate = ClosedGate()
    async with raw_peer({STATUS.number: answer_status}, gate=gate) as (transport, server):
        request = cluster_pb2.StatusRequest().SerializeToString()
        write(transport, Kind.OPEN, 1, request, method=STATUS.number, flags=END)
        assert len(await read_frames(transport)) == 1
        gate.is_open = False
        # What the reading task is waiting for already may still be served.
        write(transport, Kind.OPEN, 3, request, method=STATUS.number, flags=END)
        await read_frames(transport)
        write(transport, Kind.OPEN, 5, request, method=STATUS.number, flags=END)
        await trio.sleep(1_000)
        assert not server.is_closed
        assert all(frame.kind is Kind.PING for frame in await read_frames(transport))
        assert server.deaf_s > 1_000
        gate.is_open = True
        gate.opened.set()
        kinds = [frame.call for frame in await read_frames(transport) if frame.call]
        assert kinds == [5]


async def test_a_connection_says_for_how_long_its_peer_was_not_listened_to(
    autojump_clock: MockClock,
) -> None:
    """More than it sends at a time waits for the peer, whose own words are not read meanwhile: of
    who speaks every now and then that is no silence (ENDPOINTS N7, GROUPS G13)."""
    calls: list[AnyCall] = []

    def keep(call: AnyCall, _request: Any, _attachment: memoryview) -> None:
        calls.append(call)

    async with raw_peer({SUBSCRIBE.number: keep}) as (transport, server):
        request = groups_pb2.SubscribeRequest().SerializeToString()
        write(transport, Kind.OPEN, 1, request, method=SUBSCRIBE.number)
        await trio.sleep(1)
        [call] = calls
        heard: list[Any] = []
        call.on_message = lambda message, _attachment: heard.append(message)
        call.send(groups_pb2.SubscribeEvent(), [bytes(9 << 20)])
        assert call.origin.deaf_s == 0
        for _ in range(6):
            write(transport, Kind.MESSAGE, 1, request)
            await trio.sleep(0.5)
        assert len(heard) == 1, "its reading task had waited for this one"
        assert call.origin.deaf_s == pytest.approx(3)
        await read_frames(transport)
        assert len(heard) == 6
        assert call.origin.deaf_s == pytest.approx(3)
        assert not server.is_closed


@pytest.mark.parametrize(("text", "before"), [("", 64), ("x" * 3_000, 4)])
async def test_many_small_messages_of_one_peer_keep_no_other_waiting(
    autojump_clock: MockClock, text: str, before: int
) -> None:
    """They come in one read; between them others have their turns, the sooner the more they say."""
    served: list[str] = []

    def note(whose: str) -> dict[int, Handler]:
        def handler(call: AnyCall, request: Any, attachment: memoryview) -> None:
            served.append(whose)
            answer_status(call, request, attachment)

        return {STATUS.number: handler}

    gate = ClosedGate()
    request = cluster_pb2.StatusRequest(node=text).SerializeToString()
    async with (
        raw_peer(note("noisy"), gate=gate) as (noisy, _),
        raw_peer(note("quiet"), gate=gate) as (quiet, _),
    ):
        await wait_all_tasks_blocked()
        for number in range(50 if text else 500):
            write(noisy, Kind.OPEN, 2 * number + 1, request, method=STATUS.number, flags=END)
        write(quiet, Kind.OPEN, 1, request, method=STATUS.number, flags=END)
        await wait_all_tasks_blocked()
        assert served.count("noisy") == (50 if text else 500)
        assert served.index("quiet") <= before
        assert len(await read_frames(noisy)) == (50 if text else 500)


@pytest.mark.long
async def test_a_peer_that_does_not_read_is_not_read_from(autojump_clock: MockClock) -> None:
    served = 0

    def large(call: AnyCall, _request: Any, _attachment: memoryview) -> None:
        nonlocal served
        served += 1
        call.send(streams_pb2.FetchResponse(), [bytes(1 << 20)], end=True)

    async with raw_peer({FETCH.number: large}, keepalive_s=1e6, silence_limit_s=2e6) as (
        transport,
        server,
    ):
        request = streams_pb2.FetchRequest().SerializeToString()
        for number in range(100):
            write(transport, Kind.OPEN, 2 * number + 1, request, method=FETCH.number, flags=END)
            await wait_all_tasks_blocked()
        assert served < 20
        assert server.backlog_bytes < 20 << 20
        received = 0
        buffer = memoryview(bytearray(1 << 20))
        with trio.move_on_after(5):
            while True:
                received += await transport.receive_into(buffer)
        assert served == 100
        assert received > 100 << 20


async def test_a_cork_sends_in_the_order_of_writing(autojump_clock: MockClock) -> None:
    cork = Cork()
    calls: list[AnyCall] = []

    def keep(call: AnyCall, _request: Any, _attachment: memoryview) -> None:
        calls.append(call)

    async with (
        connected({SUBSCRIBE.number: keep}, cork=cork) as (pair, _),
        pair.client.open_stream(SUBSCRIBE, groups_pb2.SubscribeRequest()) as stream,
    ):
        await wait_all_tasks_blocked()
        with cork:
            with cork:
                for number in range(10):
                    calls[0].send(acked(number))
            assert pair.server.backlog_bytes > 0
            calls[0].send(acked(10))
        assert pair.server.backlog_bytes == 0
        for number in range(11):
            received = await stream.receive()
            assert received is not None
            assert received[0].acked.confirmation == number


def acked(number: int) -> groups_pb2.SubscribeEvent:
    return groups_pb2.SubscribeEvent(acked=groups_pb2.SubscribeEvent.Acked(confirmation=number))


# --- bad bytes ----------------------------------------------------------------------------------


OPEN_STATUS = {"method": STATUS.number, "flags": END}


@pytest.mark.parametrize(
    "send",
    [
        lambda transport: transport.send_some([b"nonsense, and a lot of it\r\n" * 3]),
        lambda transport: write(transport, Kind.OPEN, 0, b"", **OPEN_STATUS),
        lambda transport: write(
            transport, Kind.OPEN, 1, flags=END | NO_MESSAGE, method=STATUS.number
        ),
        lambda transport: write(transport, Kind.ERROR, 0, b"\xff\xff\xff"),
        lambda transport: write(
            transport,
            Kind.ERROR,
            0,
            common_pb2.Error(code="OutbidError", message="?").SerializeToString(),
        ),
    ],
    ids=["nonsense", "call 0", "open without a message", "garbled error", "error"],
)
async def test_bytes_that_make_no_sense_end_the_connection(
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    send: Callable[[SimTransport], None],
) -> None:
    async with raw_peer({STATUS.number: answer_status}) as (transport, server):
        send(transport)
        found = await read_frames(transport)
        assert [(frame.kind, frame.call) for frame in found] == [(Kind.ERROR, 0)]
        assert common_pb2.Error.FromString(bytes(found[0].message)).code == "FrameError"
        assert server.is_closed
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize(
    "kind", [Kind.MESSAGE, Kind.ERROR, Kind.CREDIT], ids=lambda kind: kind.name
)
async def test_garbage_inside_a_call_ends_the_call_only(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, kind: Kind
) -> None:
    async with raw_peer({SUBSCRIBE.number: echo_acks, STATUS.number: answer_status}) as (
        transport,
        server,
    ):
        opening = groups_pb2.SubscribeRequest().SerializeToString()
        write(transport, Kind.OPEN, 1, opening, method=SUBSCRIBE.number)
        write(transport, kind, 1, b"\xff\xff\xff\xff\xff")
        write(transport, Kind.OPEN, 3, b"", **OPEN_STATUS)
        found = {frame.call: frame for frame in await read_frames(transport)}
        assert found[3].kind is Kind.MESSAGE
        assert found[1].kind is Kind.ERROR
        assert common_pb2.Error.FromString(bytes(found[1].message)).code == "FrameError"
        assert not server._calls
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_garbled_request_is_refused(autojump_clock: MockClock) -> None:
    async with raw_peer({FETCH.number: echo_fetch}) as (transport, server):
        write(transport, Kind.OPEN, 1, b"\xff\xff", method=FETCH.number, flags=END)
        found = await read_frames(transport)
        assert found[0].kind is Kind.ERROR
        assert not server._calls


async def test_nothing_may_follow_a_question(autojump_clock: MockClock) -> None:
    served = 0

    def count(_call: AnyCall, _request: Any, _attachment: memoryview) -> None:
        nonlocal served
        served += 1

    async with raw_peer({STATUS.number: count}) as (transport, _):
        write(transport, Kind.OPEN, 1, b"", method=STATUS.number)
        write(transport, Kind.MESSAGE, 1, b"")
        found = await read_frames(transport)
        assert found[0].kind is Kind.ERROR
        assert served == 1


async def test_late_frames_of_a_call_that_has_ended_are_ignored(autojump_clock: MockClock) -> None:
    async with raw_peer({STATUS.number: answer_status}) as (transport, server):
        write(transport, Kind.OPEN, 1, b"", **OPEN_STATUS)
        for kind in (Kind.MESSAGE, Kind.CREDIT, Kind.CANCEL, Kind.ERROR):
            write(transport, kind, 1, b"\xff")
        write(transport, Kind.OPEN, 3, b"", **OPEN_STATUS)
        found = await read_frames(transport)
        assert [(frame.kind, frame.call) for frame in found] == [
            (Kind.MESSAGE, 1),
            (Kind.MESSAGE, 3),
        ]
        assert not server.is_closed


async def test_a_client_told_that_its_bytes_were_damaged_says_so(autojump_clock: MockClock) -> None:
    async with connected({STATUS.number: never}) as (pair, nursery):
        failed: list[HadronError] = []

        async def ask() -> None:
            try:
                await pair.client.request(STATUS, cluster_pb2.StatusRequest())
            except HadronError as error:
                failed.append(error)

        nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        pair.client._transport.send_some([b"damage" * 10])
        await wait_all_tasks_blocked()
        assert isinstance(failed[0], FrameError)
        assert "refused our bytes" in failed[0].message
