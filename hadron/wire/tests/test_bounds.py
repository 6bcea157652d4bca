"""What a peer can make a connection hold: it pays for it with bytes of its own, or is cut off."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

import contextlib
import logging
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from hadron.fakes.connections import SimTransport
from hadron.model.errors import ConnectionLostError, FrameError, OverloadedError
from hadron.model.limits import MAX_ATTACHMENT_BYTES, MAX_MESSAGE_BYTES
from hadron.wire import frames
from hadron.wire.budget import CONNECTION_BYTES, LEAST_BYTES, Budget
from hadron.wire.calls import AnyCall, Handler
from hadron.wire.framed_calls import FramedCall
from hadron.wire.frames import END, FrameDecoder, Kind
from hadron.wire.messages import common_pb2, groups_pb2, streams_pb2
from hadron.wire.stalls import STALL_LIMIT_S
from hadron.wire.tests.test_connection import (
    FETCH,
    STATUS,
    SUBSCRIBE,
    answer_status,
    connected,
    never,
    raw_peer,
    read_frames,
    write,
)

MIB = 1 << 20
ANNOUNCED = frames._UNCHECKED.pack(
    b"HD", 1, 1, FETCH.number, 1, 1, MAX_MESSAGE_BYTES, MAX_ATTACHMENT_BYTES
) + bytes(8)
"""The head of a largest frame, and nothing else."""


# --- frames -------------------------------------------------------------------------------------


def test_an_announced_frame_takes_memory_only_as_it_comes() -> None:
    decoder = FrameDecoder()
    sent, most = 0, 0.0
    data = ANNOUNCED
    while sent < 20 * MIB:
        buffer = decoder.buffer()
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        buffer.release()
        sent += count
        if sent + 1_000 > MAX_MESSAGE_BYTES + MAX_ATTACHMENT_BYTES:
            break
        assert decoder.received(count) == []
        most = max(most, decoder.held_bytes / sent if sent > 64 << 10 else 0)
        assert decoder.held_bytes <= max(64 << 10, 4 * sent)
        assert len(decoder.buffer()) > 0
        data = bytes(4_000)
    assert most > 1


def test_a_small_attachment_does_not_keep_a_large_message() -> None:
    data = b"".join(map(bytes, frames.encode(Kind.OPEN, 1, bytes(MIB), [b"batch"])))
    decoder = FrameDecoder()
    found: list[frames.Frame] = []
    while data:
        buffer = decoder.buffer()
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        buffer.release()
        data = data[count:]
        found = decoder.received(count)
    (frame,) = found
    assert bytes(frame.attachment) == b"batch"
    assert len(frame.attachment.obj) == 5  # type: ignore[arg-type]


# --- calls --------------------------------------------------------------------------------------


async def test_calls_that_are_open_at_once_are_bounded(autojump_clock: MockClock) -> None:
    budget = Budget(max_calls=100)
    message = streams_pb2.FetchRequest().SerializeToString()
    async with raw_peer({FETCH.number: never}, budget=budget) as (transport, _):
        for number in range(1_000):
            write(transport, Kind.OPEN, 2 * number + 1, message, method=FETCH.number, flags=END)
        answers = await read_frames(transport)
        # As many as are left for all: half of them for one.
        assert budget.calls == 50
        refused = [common_pb2.Error.FromString(bytes(each.message)) for each in answers]
        assert {each.code for each in refused} == {OverloadedError.__name__}
        assert len(refused) == 950
    assert budget.calls == 0


async def test_a_call_that_has_ended_makes_room_for_another(autojump_clock: MockClock) -> None:
    budget = Budget(max_calls=4)
    async with connected({STATUS.number: answer_status}, budget=budget) as (pair, _):
        for _ in range(50):
            await pair.client.request(STATUS, streams_pb2.FetchRequest())
        assert budget.calls == 0


async def test_a_peer_cannot_open_calls_by_ids_of_ours(autojump_clock: MockClock) -> None:
    async with raw_peer({FETCH.number: never}) as (transport, server):
        write(transport, Kind.OPEN, 2, b"", method=FETCH.number, flags=END)
        (answer,) = await read_frames(transport)
        said = common_pb2.Error.FromString(bytes(answer.message))
        assert (answer.call, said.code) == (0, FrameError.__name__)
        assert server.is_closed


# --- answers ------------------------------------------------------------------------------------


class Reader:
    """Answers fetches with as much as they may have; counts what is in hand meanwhile."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.served = 0
        self.most = 0

    def fetch(self, call: AnyCall, request: Any, _attachment: memoryview) -> None:
        call.spawn(self._answer, call, request.max_bytes)

    async def _answer(self, call: AnyCall, size: int) -> None:
        async with call.room(size) as granted:
            await trio.sleep(0.01)
            self.served += 1
            call.send(streams_pb2.FetchResponse(), [bytes(min(granted, size))], end=True)
        self.most = max(self.most, self.budget.held_bytes)


def ask(transport: Any, count: int, size: int) -> None:
    message = streams_pb2.FetchRequest(max_bytes=size).SerializeToString()
    for number in range(count):
        write(transport, Kind.OPEN, 2 * number + 1, message, method=FETCH.number, flags=END)


async def test_answers_wait_for_room_before_they_are_read(autojump_clock: MockClock) -> None:
    reader = Reader(Budget())
    async with raw_peer({FETCH.number: reader.fetch}, budget=reader.budget) as (transport, server):
        ask(transport, 1_000, 14 * MIB)
        await trio.sleep(1)
        assert reader.served <= 4
        assert server.held <= CONNECTION_BYTES + LEAST_BYTES
        assert reader.most <= CONNECTION_BYTES + LEAST_BYTES
        server.close()
        await wait_all_tasks_blocked()
        assert reader.budget.held_bytes == 0


async def read(transport: SimTransport, count: int) -> list[frames.Frame]:
    """So many frames."""
    decoder = FrameDecoder()
    found: list[frames.Frame] = []
    with trio.fail_after(100):
        while len(found) < count:
            found.extend(decoder.received(await transport.receive_into(decoder.buffer())))
    return found


async def test_who_reads_gets_all_that_was_asked_for(autojump_clock: MockClock) -> None:
    reader = Reader(Budget())
    async with raw_peer({FETCH.number: reader.fetch}, budget=reader.budget) as (transport, _):
        ask(transport, 40, MIB)
        answers = await read(transport, 40)
        assert all(len(each.attachment) == MIB for each in answers)
        assert reader.budget.held_bytes == 0


async def test_those_that_read_nothing_leave_room_for_who_reads(autojump_clock: MockClock) -> None:
    budget = Budget(max_bytes=64 * MIB)
    reader = Reader(budget)
    options: dict[str, Any] = {"budget": budget}
    handlers: dict[int, Handler] = {FETCH.number: reader.fetch}
    async with (
        raw_peer(handlers, **options) as (one, _),
        raw_peer(handlers, **options) as (two, _),
        raw_peer(handlers, **options) as (three, _),
        raw_peer(handlers, **options) as (four, _),
        connected(handlers, **options) as (pair, _),
    ):
        for silent in (one, two, three, four):
            ask(silent, 100, 14 * MIB)
        await trio.sleep(1)
        assert budget.held_bytes <= 64 * MIB
        for _ in range(5):
            with trio.fail_after(1):
                _, data = await pair.client.request(FETCH, streams_pb2.FetchRequest(max_bytes=MIB))
            assert len(data) == MIB


async def test_a_cancelled_fetch_gives_its_room_back(autojump_clock: MockClock) -> None:
    reader = Reader(Budget(max_bytes=8 * MIB))
    async with connected({FETCH.number: reader.fetch}, budget=reader.budget) as (pair, _):
        for _ in range(20):
            with trio.move_on_after(0.005):
                await pair.client.request(FETCH, streams_pb2.FetchRequest(max_bytes=8 * MIB))
        await wait_all_tasks_blocked()
        assert reader.budget.held_bytes == 0
        await pair.client.request(FETCH, streams_pb2.FetchRequest(max_bytes=8 * MIB))


@pytest.mark.long
async def test_a_stream_waits_for_what_others_have_not_read(autojump_clock: MockClock) -> None:
    """Each call has a window of its own: a thousand of them must not be sent at once."""
    sent = 0

    def subscribe(call: AnyCall, _request: Any, _attachment: memoryview) -> None:
        assert isinstance(call, FramedCall)

        def pump() -> None:
            nonlocal sent
            while call.writable:
                sent += 1
                call.send(streams_pb2.FetchResponse(), [bytes(MIB)])

        call.on_writable = pump
        pump()

    budget = Budget(max_bytes=256 * MIB)
    async with raw_peer({SUBSCRIBE.number: subscribe}, budget=budget) as (transport, server):
        for number in range(200):
            write(transport, Kind.OPEN, 2 * number + 1, b"", method=SUBSCRIBE.number)
        await trio.sleep(1)
        assert server.backlog_bytes < CONNECTION_BYTES
        await read(transport, 200)
        assert sent == 200


async def test_what_streams_send_while_a_socket_is_full_counts_for_all_connections(
    autojump_clock: MockClock,
) -> None:
    """Nobody reads: the first stream fills the socket, and what follows only waits behind it."""

    def subscribe(call: AnyCall, _request: Any, _attachment: memoryview) -> None:
        while call.writable:
            call.send(streams_pb2.FetchResponse(), [bytes(MIB)])

    budget = Budget(max_bytes=16 * MIB)
    handlers: dict[int, Handler] = {SUBSCRIBE.number: subscribe}
    async with contextlib.AsyncExitStack() as stack:
        peers = [
            await stack.enter_async_context(raw_peer(handlers, budget=budget)) for _ in range(4)
        ]
        for first, last in ((0, 1), (1, 21)):
            for transport, _ in peers:
                for number in range(first, last):
                    write(transport, Kind.OPEN, 2 * number + 1, b"", method=SUBSCRIBE.number)
            await wait_all_tasks_blocked(0.01)
        held = sum(server.held for _, server in peers)
        assert held == budget.held_bytes
        assert 8 * MIB < held <= (16 + len(peers)) * MIB


async def test_what_a_stream_sends_once_there_is_room_leaves_by_itself(
    autojump_clock: MockClock,
) -> None:
    """No other frame is needed to push it out."""
    sent = 0

    def subscribe(call: AnyCall, _request: Any, _attachment: memoryview) -> None:
        assert isinstance(call, FramedCall)

        def pump() -> None:
            nonlocal sent
            while sent < 60 and call.writable:
                sent += 1
                call._window = 1 << 30
                call.send(streams_pb2.FetchResponse(), [bytes(MIB)])

        call.on_writable = pump
        pump()

    async with raw_peer({SUBSCRIBE.number: subscribe}, keepalive_s=1_000) as (transport, _):
        write(transport, Kind.OPEN, 1, b"", method=SUBSCRIBE.number)
        assert len(await read(transport, 60)) == 60


# --- standing still -----------------------------------------------------------------------------


async def test_who_reads_nothing_is_cut_off_and_named(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    reader = Reader(Budget())
    async with raw_peer({FETCH.number: reader.fetch}, budget=reader.budget) as (transport, server):
        ask(transport, 10, 14 * MIB)
        for _ in range(6):
            # It is not silent.
            await trio.sleep(STALL_LIMIT_S / 5)
            write(transport, Kind.PING, 0)
        with trio.fail_after(STALL_LIMIT_S):
            error = await server.wait_closed()
        assert "read next to nothing for 15 s" in str(error)
        assert reader.budget.held_bytes == 0
    (record,) = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert "cut off client" in record.getMessage()
    assert "bytes wait for it" in record.getMessage()


async def test_a_frame_that_comes_a_byte_at_a_time_is_cut_off(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with raw_peer({STATUS.number: answer_status}) as (transport, server):
        transport.send_some([ANNOUNCED])
        with trio.move_on_after(60), contextlib.suppress(OSError):
            while True:
                await trio.sleep(1)
                transport.send_some([b"x"])
        assert trio.current_time() < 3 * STALL_LIMIT_S
        assert "it began a frame" in str(await server.wait_closed())


async def test_a_slow_reader_and_a_slow_writer_are_not_cut_off(autojump_clock: MockClock) -> None:
    """16 kB a second each way."""
    reader = Reader(Budget())
    async with raw_peer({FETCH.number: reader.fetch}, budget=reader.budget) as (transport, server):
        message = streams_pb2.FetchRequest(max_bytes=MIB).SerializeToString()
        data = b"".join(
            map(
                bytes,
                frames.encode(Kind.OPEN, 1, message, [bytes(MIB)], method=FETCH.number, flags=END),
            )
        )
        for start in range(0, len(data), 16_000):
            transport.send_some([data[start : start + 16_000]])
            await trio.sleep(1)
        buffer, read = memoryview(bytearray(16_000)), 0
        while read < MIB:
            read += await transport.receive_into(buffer)
            await trio.sleep(1)
            transport.send_some(frames.encode(Kind.PONG, 0))
        assert not server.is_closed


async def test_frames_under_way_are_bounded_for_all_connections(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    budget = Budget(max_incomplete_bytes=6 * MIB)
    handlers: dict[int, Handler] = {STATUS.number: answer_status}
    async with (
        raw_peer(handlers, budget=budget) as (one, first),
        raw_peer(handlers, budget=budget) as (two, second),
        connected(handlers, budget=budget) as (pair, _),
    ):
        for transport in (one, two):
            transport.send_some([ANNOUNCED])
            for _ in range(100):
                transport.send_some([bytes(16_000)])
                await trio.sleep(0.001)
        await wait_all_tasks_blocked()
        # Who began first.
        assert first.is_closed
        assert not second.is_closed
        assert isinstance(await first.wait_closed(), ConnectionLostError)
        await pair.client.request(STATUS, streams_pb2.FetchRequest())


# --- a server that says too much ----------------------------------------------------------------


@pytest.mark.long
async def test_a_server_that_ignores_its_credit_is_not_believed(autojump_clock: MockClock) -> None:
    """A member takes a window of records unread, and not all that somebody sends."""

    def pour(call: AnyCall, _request: Any, _attachment: memoryview) -> None:
        assert isinstance(call, FramedCall)
        for _ in range(100):
            call._window = 1 << 30
            call.send(groups_pb2.SubscribeEvent(), [bytes(MIB)])

    async with connected({SUBSCRIBE.number: pour}) as (pair, _):
        received = 0

        def on_message(_message: Any, attachment: memoryview) -> None:
            nonlocal received
            received += len(attachment)

        ended: list[Any] = []
        over = trio.Event()

        def on_end(error: Any) -> None:
            ended.append(error)
            over.set()

        pair.client.call(
            SUBSCRIBE,
            groups_pb2.SubscribeRequest(),
            on_message=on_message,
            on_end=on_end,
            end=False,
        )
        with trio.fail_after(60):
            await over.wait()
        assert isinstance(ended[0], FrameError)
        assert received < 32 * MIB


async def test_a_second_answer_to_a_question_is_dropped(autojump_clock: MockClock) -> None:
    def answer_again_and_again(call: AnyCall, _request: Any, _attachment: memoryview) -> None:
        for number in range(20):
            call.send(streams_pb2.FetchResponse(next_offset=number), [bytes(MIB)])

    async with connected({FETCH.number: answer_again_and_again}) as (pair, _):
        answer, _ = await pair.client.request(FETCH, streams_pb2.FetchRequest(), timeout_s=5)
        assert answer.next_offset == 0
        assert not pair.client._calls
