"""What every call does, whatever carries it: one suite for all that serve the port, whose calls are
opened by those of `wire.calling.Caller` that are their other end."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from hadron.client.connecting.ports import ClientPorts
from hadron.fakes.network import SimNetwork
from hadron.model.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    FrameError,
    HadronError,
    NotFoundError,
    UnknownMethodError,
)
from hadron.model.principals import NodeName, Principal
from hadron.server.forwarding import ForwardingService
from hadron.wire.calling import Caller, MessageStream
from hadron.wire.calls import AnyCall, Handler
from hadron.wire.connection import Connection
from hadron.wire.framed_calls import WINDOW_BYTES
from hadron.wire.local_calls import LocalConnection
from hadron.wire.messages import cluster_pb2, groups_pb2, method, streams_pb2
from hadron.wire.tunnel import Tunnel

STATUS, FETCH, SUBSCRIBE = method("Status"), method("Fetch"), method("Subscribe")
WHO = Principal(NodeName("local/p0", "n7"))
LEADER, BETWEEN = NodeName("eu/p0", "n1"), NodeName("us/p0", "n1")

Way = Callable[[dict[int, Handler]], AbstractAsyncContextManager[Caller]]
"""Opens calls that these handlers serve; of `WHO`."""


@asynccontextmanager
async def framed(handlers: dict[int, Handler]) -> AsyncIterator[Caller]:
    network = SimNetwork()
    listener = await network.host("server").listen("server:0")
    dialed = Connection(await network.host("client").dial(listener.address), dialed=True)
    accepted = Connection(await listener.accept(), dialed=False, handlers=handlers)
    accepted.principal = WHO
    async with trio.open_nursery() as nursery:
        nursery.start_soon(dialed.run)
        nursery.start_soon(accepted.run)
        yield dialed
        await wait_all_tasks_blocked()
        assert not dialed._calls
        assert not accepted._calls
        nursery.cancel_scope.cancel()
    listener.close()


@asynccontextmanager
async def local(handlers: dict[int, Handler]) -> AsyncIterator[Caller]:
    connection = LocalConnection(handlers, principal=WHO)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        yield connection
        await wait_all_tasks_blocked()
        assert not connection._calls
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def forwarded(
    handlers: dict[int, Handler], network: SimNetwork | None = None
) -> AsyncIterator[Caller]:
    """Through a node that the leader knows."""
    network = network or SimNetwork()
    listeners = [await network.host(each).listen(f"{each}:0") for each in ("leader", "between")]
    to_leader, to_between = (each.address for each in listeners)
    leader = ForwardingService(LEADER.replica_set, lambda _: None, ignore, ClientPorts())
    leader.serve(handlers)
    between = ForwardingService(
        "us/p0", lambda _: to_leader, ignore, ClientPorts(network=network.host("between"))
    )
    accepted: list[Connection] = []

    async def accept(service: ForwardingService, index: int, who: Principal) -> None:
        methods = {each.method.number: each.handle for each in service.methods()}
        transport = await listeners[index].accept()
        accepted.append(Connection(transport, dialed=False, handlers=methods | TOPOLOGY))
        accepted[-1].principal = who
        await accepted[-1].run()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept, leader, 0, Principal(BETWEEN))
        nursery.start_soon(accept, between, 1, WHO)
        nursery.start_soon(between.run)
        dialed = Connection(await network.host("client").dial(to_between), dialed=True)
        nursery.start_soon(dialed.run)
        yield Tunnel(dialed, LEADER.replica_set)
        await wait_all_tasks_blocked()
        assert not any(each._calls for each in (dialed, *accepted))
        nursery.cancel_scope.cancel()
    for listener in listeners:
        listener.close()


def ignore(_connection: Connection) -> None:
    pass


def greet(call: AnyCall, _request: Any, _attachment: memoryview) -> None:
    call.send(cluster_pb2.TopologyResponse(), end=True)


TOPOLOGY: dict[int, Handler] = {method("Topology").number: greet}


@pytest.fixture(params=[framed, local, forwarded], ids=["framed", "local", "forwarded"])
def way(request: pytest.FixtureRequest) -> Way:
    opens: Way = request.param
    return opens


def token(number: int) -> groups_pb2.SubscribeRequest:
    return groups_pb2.SubscribeRequest(ack=groups_pb2.SubscribeRequest.Ack(confirmation=number))


def acked(number: int) -> groups_pb2.SubscribeEvent:
    return groups_pb2.SubscribeEvent(acked=groups_pb2.SubscribeEvent.Acked(confirmation=number))


async def test_an_answer_has_its_message_and_attachments(
    way: Way, autojump_clock: MockClock
) -> None:
    def echo(call: AnyCall, request: Any, attachment: memoryview) -> None:
        call.send(streams_pb2.FetchResponse(next_offset=request.offset), [attachment], end=True)

    async with way({FETCH.number: echo}) as caller:
        answer, attachment = await caller.request(
            FETCH, streams_pb2.FetchRequest(offset=7), [b"one", memoryview(b"two")]
        )
        assert (answer.next_offset, bytes(attachment)) == (7, b"onetwo")


async def test_what_was_sent_may_be_filled_anew_at_once(
    way: Way, autojump_clock: MockClock
) -> None:
    def count(call: AnyCall, _request: Any, _attachment: memoryview) -> None:
        event = acked(1)
        call.send(event)
        event.acked.confirmation = 2
        call.send(event, end=True)

    async with (
        way({SUBSCRIBE.number: count}) as caller,
        caller.open_stream(SUBSCRIBE, token(0)) as stream,
    ):
        assert [message.acked.confirmation async for message, _ in stream] == [1, 2]


async def test_nothing_is_heard_while_a_call_is_being_opened(
    way: Way, autojump_clock: MockClock
) -> None:
    """Who opens it has not got it yet, and what it hears may be about it."""
    heard: list[str] = []

    def answer(call: AnyCall, _request: Any, _attachment: memoryview) -> None:
        call.send(cluster_pb2.StatusResponse(), end=True)

    async with way({STATUS.number: answer}) as caller:
        caller.call(
            STATUS,
            cluster_pb2.StatusRequest(),
            on_message=lambda *_: heard.append("answer"),
            on_end=lambda _: heard.append("end"),
        )
        heard.append("opened")
        await wait_all_tasks_blocked()
    assert heard == ["opened", "answer", "end"]


async def test_messages_go_both_ways_in_order(way: Way, autojump_clock: MockClock) -> None:
    ends: list[HadronError | None] = []

    def echo(call: AnyCall, request: Any, _attachment: memoryview) -> None:
        call.send(acked(request.ack.confirmation))
        call.on_message = lambda message, _: call.send(acked(message.ack.confirmation))

        def on_end(error: HadronError | None) -> None:
            ends.append(error)
            call.end()

        call.on_end = on_end

    heard: list[Any] = []
    async with way({SUBSCRIBE.number: echo}) as caller:
        call = caller.call(
            SUBSCRIBE,
            token(0),
            on_message=lambda message, _: heard.append(message.acked.confirmation),
            on_end=heard.append,
            end=False,
        )
        for number in range(1, 50):
            call.send(token(number))
        call.end()
        call.send(token(99))
        await wait_all_tasks_blocked()
        assert not call.is_open
    assert heard == [*range(50), None]
    assert ends == [None]


async def test_who_calls_is_known(way: Way, autojump_clock: MockClock) -> None:
    seen: list[Any] = []

    def look(call: AnyCall, _request: Any, _attachment: memoryview) -> None:
        seen.append((call.principal, call.peer))
        call.send(cluster_pb2.StatusResponse(), end=True)

    async with way({STATUS.number: look}) as caller:
        await caller.request(STATUS, cluster_pb2.StatusRequest())
    [(principal, peer)] = seen
    assert principal in (WHO, Principal(WHO.node, forwarded_by=BETWEEN))
    assert peer


def _refuse(_call: AnyCall, _request: Any, _attachment: memoryview) -> None:
    raise NotFoundError("there is no 'x'", "see `hadron status`")


def _refuse_later(call: AnyCall, _request: Any, _attachment: memoryview) -> None:
    async def refuse() -> None:
        await trio.sleep(1)
        raise NotFoundError("there is no 'x'", "see `hadron status`")

    call.spawn(refuse)


def _fail(call: AnyCall, _request: Any, _attachment: memoryview) -> None:
    call.fail(NotFoundError("there is no 'x'", "see `hadron status`"))


@pytest.mark.parametrize("handler", [_refuse, _refuse_later, _fail])
async def test_an_error_of_the_handler_is_raised_at_the_caller(
    way: Way, autojump_clock: MockClock, handler: Handler
) -> None:
    async with way({STATUS.number: handler}) as caller:
        with pytest.raises(NotFoundError, match="there is no 'x'") as caught:
            await caller.request(STATUS, cluster_pb2.StatusRequest())
        assert caught.value.hint == "see `hadron status`"


async def test_a_defect_of_the_handler_is_logged_and_costs_one_call(
    way: Way, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_call: AnyCall, _request: Any, _attachment: memoryview) -> None:
        raise ZeroDivisionError

    def answer(call: AnyCall, _request: Any, _attachment: memoryview) -> None:
        call.send(streams_pb2.FetchResponse(), end=True)

    async with way({STATUS.number: broken, FETCH.number: answer}) as caller:
        with pytest.raises(HadronError, match=r"failed inside the node.*see the node's log"):
            await caller.request(STATUS, cluster_pb2.StatusRequest())
        await caller.request(FETCH, streams_pb2.FetchRequest())
    assert sum(record.exc_info is not None for record in caplog.records) == 1
    caplog.clear()


async def test_an_unknown_method_is_named(way: Way, autojump_clock: MockClock) -> None:
    async with way({FETCH.number: _refuse}) as caller:
        with pytest.raises(UnknownMethodError, match=r"Cluster\.Status"):
            await caller.request(STATUS, cluster_pb2.StatusRequest())


async def test_nothing_may_follow_unless_the_handler_says_so(
    way: Way, autojump_clock: MockClock
) -> None:
    def deaf(_call: AnyCall, _request: Any, _attachment: memoryview) -> None:
        pass

    async with (
        way({SUBSCRIBE.number: deaf}) as caller,
        caller.open_stream(SUBSCRIBE, token(0)) as stream,
    ):
        await stream.send(token(1))
        with pytest.raises(FrameError, match="nothing may follow"):
            await stream.receive()


async def test_a_call_that_is_cancelled_ends_its_task_and_is_told_once(
    way: Way, autojump_clock: MockClock
) -> None:
    ended: list[Any] = []

    async def work() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("task")

    def start(call: AnyCall, _request: Any, _attachment: memoryview) -> None:
        call.on_end = lambda error: ended.append(type(error))
        call.spawn(work)

    heard: list[Any] = []
    async with way({SUBSCRIBE.number: start, STATUS.number: start}) as caller:
        call = caller.call(
            SUBSCRIBE, token(0), on_message=lambda *_: None, on_end=heard.append, end=False
        )
        await wait_all_tasks_blocked()
        call.cancel()
        call.cancel()
        await wait_all_tasks_blocked()
        assert sorted(map(str, ended)) == [str(ConnectionLostError), "task"]
        ended.clear()
        # One that has said END already was told so, and hears no more; its task ends all the same.
        with pytest.raises(DeadlineExceededError):
            await caller.request(STATUS, cluster_pb2.StatusRequest(), timeout_s=1)
        await wait_all_tasks_blocked()
        assert ended == [type(None), "task"]
    assert heard == []


async def test_a_stream_sends_no_more_than_it_has_credit_for(
    way: Way, autojump_clock: MockClock
) -> None:
    """The last message may go over the window, which is what a single large one needs."""
    sent: list[int] = []

    def pour(call: AnyCall, _request: Any, _attachment: memoryview) -> None:
        def pump() -> None:
            while call.writable:
                sent.append(100_000)
                call.send(acked(1), [bytes(100_000)])

        call.on_writable = pump
        pump()

    async with way({SUBSCRIBE.number: pour}) as caller:
        async with caller.open_stream(SUBSCRIBE, token(0)) as stream:
            await wait_all_tasks_blocked()
            # A node in between holds another window.
            hops = 2 if isinstance(caller, Tunnel) else 1
            assert WINDOW_BYTES <= sum(sent) < hops * (WINDOW_BYTES + 110_000)
            before = len(sent)
            for _ in range(before):
                await stream.receive()
            await wait_all_tasks_blocked()
            assert before + 7 <= len(sent) <= 2 * before
        await wait_all_tasks_blocked()


async def test_what_needs_room_gets_it(way: Way, autojump_clock: MockClock) -> None:
    def give(call: AnyCall, request: Any, _attachment: memoryview) -> None:
        assert call.has_room(request.max_bytes)

        async def answer() -> None:
            async with call.room(request.max_bytes) as size:
                call.send(streams_pb2.FetchResponse(), [bytes(size)], end=True)

        call.spawn_within(10, answer)

    async with way({FETCH.number: give}) as caller:
        _, attachment = await caller.request(FETCH, streams_pb2.FetchRequest(max_bytes=5_000))
        assert len(attachment) == 5_000


async def test_all_calls_end_with_the_connection(way: Way, autojump_clock: MockClock) -> None:
    ended: list[Any] = []

    def start(call: AnyCall, _request: Any, _attachment: memoryview) -> None:
        call.on_end = lambda error: ended.append(type(error))

    heard: list[Any] = []
    async with way({SUBSCRIBE.number: start}) as caller:
        caller.call(
            SUBSCRIBE,
            token(0),
            on_message=lambda *_: None,
            on_end=lambda error: heard.append(str(error)),
            end=False,
        )
        await wait_all_tasks_blocked()
        caller.close(ConnectionLostError("it was time"))
        await wait_all_tasks_blocked()
        assert heard == ["it was time"]
        assert ended == [ConnectionLostError]
        with pytest.raises(ConnectionLostError, match="it was time"):
            caller.call(STATUS, cluster_pb2.StatusRequest(), on_message=lambda *_: None)


async def test_a_stream_ends_with_its_error(way: Way, autojump_clock: MockClock) -> None:
    def start(call: AnyCall, _request: Any, _attachment: memoryview) -> None:
        call.on_message = lambda *_: call.fail(NotFoundError("gone"))
        call.send(acked(1))

    async def send(stream: MessageStream) -> None:
        await stream.send(token(2))

    async with (
        way({SUBSCRIBE.number: start}) as caller,
        caller.open_stream(SUBSCRIBE, token(0)) as stream,
    ):
        received = await stream.receive()
        assert received is not None
        await send(stream)
        with pytest.raises(NotFoundError, match="gone"):
            await stream.receive()
        with pytest.raises(NotFoundError, match="gone"):
            await send(stream)


async def test_a_node_in_between_gives_credit_back_though_more_is_ahead_of_it(
    autojump_clock: MockClock,
) -> None:
    """Answers that come faster than a far client's credit, and no faster than it takes them: the
    window to it stays used up for as long as they come."""
    network, large, refused = SimNetwork(), bytes(1 << 20), list[int]()

    def pour(call: AnyCall, _request: Any, _attachment: memoryview) -> None:
        async def pouring() -> None:
            for number in range(60):
                if not call.has_room(len(large)):
                    refused.append(number)
                call.send(acked(number), [large])
                await trio.sleep(0.05)
            call.end()

        call.spawn(pouring)

    async with forwarded({SUBSCRIBE.number: pour}, network) as caller:
        for ends in (("client", "between"), ("between", "client")):
            network.delay(*ends, 0.1)
            network.slow(*ends, math.inf, buffer_bytes=64 << 20)
        async with caller.open_stream(SUBSCRIBE, token(0)) as stream:
            for number in range(60):
                received = await stream.receive()
                assert received is not None, f"lost after {number}"
            assert await stream.receive() is None
        await trio.sleep(1)  # Until all have heard the end.
    assert not refused
