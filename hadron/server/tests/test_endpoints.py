"""Callers and servers that speak nonsense: each ends its own stream, and nobody else notices."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from hadron.client import IncomingCall
from hadron.client.endpoints import calls
from hadron.endpoints.driver import Endpoints
from hadron.endpoints.port import Terms, Value
from hadron.endpoints.tests.support import KEY, Room
from hadron.model.errors import (
    CallFailedError,
    CallUnknownError,
    ConnectionLostError,
    DeadlineExceededError,
    FrameError,
    HadronError,
    MetadataBehindError,
    NotFoundError,
    RequestError,
)
from hadron.model.limits import MAX_CALL_MESSAGE_BYTES
from hadron.model.record import JSON, TEXT
from hadron.model.schema import SchemaObject
from hadron.model.services import STREAM, EndpointSpec
from hadron.server.endpoints import calls as module
from hadron.server.endpoints.streams import ServerStream
from hadron.serving.tests.stack import FakeOrigin
from hadron.testing.nodes import running_nodes
from hadron.wire.calling import MessageStream
from hadron.wire.messages import endpoints_pb2 as pb
from hadron.wire.messages import error_from_message, method

CALL, SERVE = method("Call"), method("Serve")
OPEN, VALUE, ERROR = pb.CallItem.OPEN, pb.CallItem.VALUE, pb.CallItem.ERROR


def opening(**told: Any) -> pb.CallOpening:
    return pb.CallOpening(**{"endpoint": "e", "timeout_ms": 5_000, "has_value": True, **told})


async def answer(stream: MessageStream) -> tuple[Any, memoryview]:
    found = await stream.receive()
    assert found is not None
    return found


async def _drained(stream: MessageStream) -> None:
    while True:
        await answer(stream)


def _item(**told: Any) -> Callable[[], Any]:
    return lambda: pb.CallItem(**told)


@pytest.mark.parametrize(
    ("item", "attachment", "error"),
    [
        (_item(number=1, kind=OPEN, open=opening(), length=5, end=True), b"1234", FrameError),
        (_item(number=1, kind=OPEN, open=opening(), length=1, end=True), b"12", FrameError),
        (_item(number=1, kind=ERROR), b"", FrameError),
        (_item(number=1, kind=99), b"", FrameError),
        (_item(number=1, kind=VALUE, length=1), b"1", RequestError),
        (_item(number=0, kind=OPEN, open=opening(), end=True), b"", RequestError),
    ],
)
async def test_a_caller_that_speaks_nonsense(
    tmp_path: Path, item: Callable[[], Any], attachment: bytes, error: type[HadronError]
) -> None:
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await _declare(client)
        async with client.serve("e", _echo), nodes.connection("n1", "stranger") as connection:
            async with connection.open_stream(CALL, pb.CallRequest()) as stream:
                await answer(stream)
                await stream.send(pb.CallRequest(items=[item()]), [attachment])
                with pytest.raises(error):
                    await _drained(stream)
            assert await client.call("e", "still here") == "still here"


async def test_what_is_wrong_with_one_call_ends_that_call(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await _declare(client)
        async with (
            client.serve("e", _echo),
            nodes.connection("n1", "caller") as connection,
            connection.open_stream(CALL, pb.CallRequest()) as stream,
        ):
            await answer(stream)
            wrong = [
                opening(endpoint="nothing"),
                opening(endpoint="later", metadata_index=1_000_000),
                opening(headers={"h": "x" * 9_000}),
                opening(has_value=False),
            ]
            items = [
                pb.CallItem(number=number, kind=OPEN, open=told, end=True)
                for number, told in enumerate(wrong, start=1)
            ]
            items.append(pb.CallItem(number=9, kind=OPEN, open=opening(), length=2, end=True))
            await stream.send(pb.CallRequest(items=items), [b"ok"])
            found: dict[int, Any] = {}
            while len(found) < 5:
                message, attachment = await answer(stream)
                for item in message.items:
                    found[item.number] = (
                        error_from_message(item.error) if item.kind == ERROR else bytes(attachment)
                    )
            assert [type(found[number]) for number in (1, 2, 3, 4)] == [
                NotFoundError,
                MetadataBehindError,
                FrameError,
                RequestError,
            ]
            assert found[9] == b"ok"


@pytest.mark.parametrize(
    ("first", "match"),
    [
        (pb.ServeRequest(), "begins with `open`"),
        (pb.ServeRequest(open=pb.ServeRequest.Open(endpoint="e")), "cannot have 0 calls"),
        (
            pb.ServeRequest(open=pb.ServeRequest.Open(endpoint="e", max_in_flight=10_001)),
            "cannot have 10001 calls",
        ),
        (
            pb.ServeRequest(
                open=pb.ServeRequest.Open(endpoint="e", max_in_flight=1, name="n" * 101)
            ),
            r"a server's name '(n{100})'... has 101 characters.*at most 100",
        ),
        (
            pb.ServeRequest(
                open=pb.ServeRequest.Open(endpoint="e", max_in_flight=1, region="r" * 101)
            ),
            r"a server's region '(r{100})'... has 101 characters.*at most 100",
        ),
        (
            pb.ServeRequest(open=pb.ServeRequest.Open(endpoint="x", max_in_flight=1)),
            "'x' does not exist",
        ),
    ],
)
async def test_a_server_that_cannot_be_one(
    tmp_path: Path, first: pb.ServeRequest, match: str
) -> None:
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await _declare(client)
        async with (
            nodes.connection("n1", "stranger") as connection,
            connection.open_stream(SERVE, first) as stream,
        ):
            with pytest.raises(RequestError, match=match):
                await answer(stream)


async def test_a_leader_that_is_behind_judges_nobody_by_what_it_knows(tmp_path: Path) -> None:
    """It would say of the call that it has the wrong shape, and end the server's program."""
    later = 1_000_000
    async with (
        running_nodes(tmp_path, 1) as nodes,
        nodes.client() as client,
        nodes.connection("n1", "stranger") as connection,
    ):
        await _declare(client)
        told = pb.ServeRequest.Open(
            endpoint="e", max_in_flight=1, metadata_index=later, input=STREAM, output=STREAM
        )
        async with connection.open_stream(SERVE, pb.ServeRequest(open=told)) as stream:
            with pytest.raises(MetadataBehindError):
                await answer(stream)
        async with connection.open_stream(CALL, pb.CallRequest()) as stream:
            await answer(stream)
            begun = opening(metadata_index=later, has_value=False)
            await stream.send(pb.CallRequest(items=[pb.CallItem(number=1, kind=OPEN, open=begun)]))
            (item,) = (await answer(stream))[0].items
            assert item.error.code == MetadataBehindError.__name__


async def test_a_callers_region_has_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A client of ours does not even send it.
    monkeypatch.setattr(calls, "MAX_NAME_LENGTH", 1_000)
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await _declare(client)
        async with client.serve("e", _echo):
            with pytest.raises(
                RequestError, match=r"a caller's region '(r{100})'... has 101 characters"
            ) as found:
                await client.call("e", "far", region="r" * 101)
            assert found.value.hint == "at most 100"
            assert await client.call("e", "near", region="r" * 100) == "near"


async def test_a_server_that_speaks_nonsense_is_lost(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await _declare(client, idempotent=True)
        told = pb.ServeRequest.Open(endpoint="e", max_in_flight=1, name="odd")
        async with (
            nodes.connection("n1", "stranger") as connection,
            connection.open_stream(SERVE, pb.ServeRequest(open=told)) as stream,
        ):
            await answer(stream)
            async with trio.open_nursery() as nursery:
                answers: list[Any] = []

                async def call() -> None:
                    answers.append(await client.call("e", "x", timeout_s=10))

                nursery.start_soon(call)
                message, _ = await answer(stream)
                assert message.items[0].open.attempt == 1
                async with client.serve("e", _echo):
                    item = pb.CallItem(number=77, kind=VALUE, end=True)
                    await stream.send(pb.ServeRequest(items=[item]))
                    with pytest.raises(RequestError, match="77, which it was never given"):
                        await answer(stream)
                    with trio.fail_after(5):
                        while not answers:  # noqa: ASYNC110 - of a whole node
                            await trio.sleep(0.01)
                assert answers == ["x"]


async def test_a_server_that_never_answers_costs_its_caller_the_deadline(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await _declare(client)
        told = pb.ServeRequest.Open(endpoint="e", max_in_flight=1, name="mute")
        async with (
            nodes.connection("n1", "stranger") as connection,
            connection.open_stream(SERVE, pb.ServeRequest(open=told)) as stream,
        ):
            await answer(stream)
            with pytest.raises(DeadlineExceededError, match="'mute' has not answered"):
                await client.call("e", "x", timeout_s=0.2)
            kinds = [item.kind for item in (await answer(stream))[0].items]
            kinds += [item.kind for item in (await answer(stream))[0].items]
            assert kinds == [OPEN, pb.CallItem.CANCEL]
            # Late, twice: nobody hears of it.
            item = pb.CallItem(number=1, kind=VALUE, end=True)
            await stream.send(pb.ServeRequest(items=[item, item]))
            with trio.move_on_after(0.2):
                await client.call("e", "y", timeout_s=5)
            assert (await answer(stream))[0].items[0].number == 2


async def _echo(value: Any) -> Any:
    return value


async def _declare(client: Any, name: str = "e", **spec: Any) -> None:
    obj = SchemaObject(
        kind="Endpoint", name=name, spec=EndpointSpec(replica_set="local/p0", **spec)
    )
    await client.apply([obj])


async def test_whom_a_stranger_says_to_call_for_is_shown_with_its_own_address(
    tmp_path: Path,
) -> None:
    said = "somebody\x1b[2J\n\0" + "x" * 100_000
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await _declare(client)

        async def say_caller(_value: Any, call: IncomingCall) -> str:
            return call.caller

        async with (
            client.serve("e", say_caller),
            nodes.connection("n1", "stranger") as connection,
            connection.open_stream(CALL, pb.CallRequest()) as stream,
        ):
            await answer(stream)
            item = pb.CallItem(number=1, kind=OPEN, open=opening(caller=said), end=True)
            await stream.send(pb.CallRequest(items=[item]))
            _, value = await answer(stream)
            who = bytes(value).decode()
        assert who.startswith("a client at somebody?[2J??xxx")
        assert re.search(r"… through stranger:\d+$", who), who
        assert len(who) < 250
        assert who.isprintable()


async def test_a_message_is_bounded_in_items_and_names_in_length(tmp_path: Path) -> None:
    """A leader deals with a message in one turn, and what it answers to it has room in a frame."""
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await _declare(client)
        async with client.serve("e", _echo), nodes.connection("n1", "stranger") as connection:
            async with connection.open_stream(CALL, pb.CallRequest()) as stream:
                await answer(stream)
                long = opening(endpoint="\x01" * 20_000, has_value=False)
                items = [
                    pb.CallItem(number=1 + number, kind=OPEN, open=long) for number in range(80)
                ]
                items.append(pb.CallItem(number=99, kind=OPEN, open=opening(), end=True))
                await stream.send(pb.CallRequest(items=items))
                ended: dict[int, Any] = {}
                while len(ended) < 81:
                    message, _ = await answer(stream)
                    ended.update({item.number: item for item in message.items})
                assert "has 20000 characters" in ended[80].error.message
                assert ended.pop(99).kind == VALUE
                assert {item.kind for item in ended.values()} == {ERROR}
                many = [pb.CallItem(number=100 + each, kind=OPEN) for each in range(1_001)]
                await stream.send(pb.CallRequest(items=many))
                with pytest.raises(FrameError, match="1001 items in one message"):
                    await _drained(stream)
            assert await client.call("e", "still here") == "still here"


async def test_who_waits_with_much_in_the_headers_is_served_all_the_same(tmp_path: Path) -> None:
    """As many as wait are given to one server at once."""
    headers = {"token": "ü" * 4_000}
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await _declare(client)
        begun, go_on = trio.Event(), trio.Event()

        async def slow(value: Any) -> Any:
            begun.set()
            await go_on.wait()
            return value

        answers: list[Any] = []

        async def call(value: int) -> None:
            answers.append(await client.call("e", value, timeout_s=60, headers=headers))

        async with client.serve("e", slow, max_in_flight=1), trio.open_nursery() as nursery:
            nursery.start_soon(call, 0)
            await begun.wait()
            for value in range(1, 600):
                nursery.start_soon(call, value)
            while (await client.endpoints("e"))[0].waiting < 599:
                await wait_all_tasks_blocked()
            async with client.serve("e", _echo, max_in_flight=1_000, name="other"):
                while len(answers) < 599:
                    await wait_all_tasks_blocked(0.01)
                go_on.set()
        assert sorted(answers) == list(range(600))


def test_one_turn_gives_a_server_no_more_than_a_message_of_calls() -> None:
    """What its connection has no room for waits where others may take it."""
    room, turn, wire = Room(idempotent=True), Turn(), Wire()
    lost = room.serve(1_000, name="lost")
    stream = ServerStream(cast(Endpoints, turn), cast(Any, wire))
    for number in range(1, 61):
        room.caller.call(number, bytes(1 << 20))
    server = room.broker.attach_server(KEY, stream, Terms(1_000, "", "s", "s", 0.0), 1.0)
    stream.on_writable = lambda: room.broker.server_writable(server, 1.0)
    room.broker.detach_server(lost.it, ConnectionLostError("gone"), 2.0)
    turn.settle()
    assert (wire.calls, len(room.endpoint.waiting)) == (1, 59)
    while room.endpoint.waiting:
        wire.window = 3 << 20
        stream.flush()
        stream.on_writable()
        turn.settle()
        assert wire.window > -(2 << 20)
    assert wire.calls == 60


def test_more_of_an_input_waits_for_the_server_s_credit() -> None:
    """Else a node in between has it, and ends the server's stream with every call on it."""
    room, turn, wire = Room(input=STREAM), Turn(), Wire()
    stream = ServerStream(cast(Endpoints, turn), cast(Any, wire))
    server = room.broker.attach_server(KEY, stream, Terms(64, "", "s", "s", 0.0), 1.0)
    stream.on_writable = lambda: room.broker.server_writable(server, 1.0)
    for number in range(1, 13):
        room.caller.call(number, None)
        turn.settle()
    for number in range(1, 13):
        value = Value(0, bytes(MAX_CALL_MESSAGE_BYTES), False)
        room.broker.caller_value(room.caller.it, number, value)
        turn.settle()
    assert wire.calls == 13
    while wire.calls < 24:
        before, wire.window = wire.calls, 1 << 20
        stream.flush()
        stream.on_writable()
        turn.settle()
        assert wire.calls == before + 1
    assert not room.caller.told


class Turn:
    """Of `Endpoints` what a stream needs."""

    def __init__(self) -> None:
        self._touched: dict[Any, None] = {}
        self.attach = self.detach = self.due = lambda _told: None
        self.broker = SimpleNamespace(next_s=math.inf)

    def touch(self, stream: Any) -> None:
        self._touched[stream] = None

    def settle(self) -> None:
        Endpoints.settle(cast(Endpoints, self))


class Wire:
    """Of `Call` what a stream needs: a window of 1 MiB."""

    peer = "p"
    origin = FakeOrigin()

    def __init__(self) -> None:
        self.window = 1 << 20
        self.calls = 0

    @property
    def writable(self) -> bool:
        return self.window > 0

    def send(self, message: Any, chunks: Sequence[Any] = ()) -> None:
        self.window -= message.ByteSize() + sum(map(len, chunks))
        self.calls += len(message.items)


async def test_many_that_fail_at_once_with_long_texts_are_each_told(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await _declare(client)
        gathered = 0
        fail = trio.Event()

        async def handler(_value: Any) -> None:
            nonlocal gathered
            gathered += 1
            if gathered == 64:
                fail.set()
            await fail.wait()
            raise ValueError("no row for " + "ä" * 70_000)

        told: list[str] = []

        async def call() -> None:
            with pytest.raises(CallFailedError, match="no row for ä") as raised:
                await client.call("e", 1, timeout_s=60)
            told.append(raised.value.type)

        async with client.serve("e", handler), trio.open_nursery() as nursery:
            for _ in range(64):
                nursery.start_soon(call)
        assert told == ["ValueError"] * 64
        async with client.serve("e", _echo):
            assert await client.call("e", "still here") == "still here"


async def test_what_runs_while_its_endpoint_is_made_anew_is_not_run_again(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await _declare(client)
        begun, deleted = trio.Event(), trio.Event()
        runs: list[Any] = []

        async def pay(value: Any) -> str:
            runs.append(value)
            begun.set()
            await deleted.wait()
            return "paid"

        async def make_anew() -> None:
            await begun.wait()
            await client.delete([("Endpoint", "default", "e")])
            await _declare(client)
            deleted.set()
            async with client.serve("e", pay):
                await over.wait()

        over = trio.Event()
        async with trio.open_nursery() as nursery:
            async with client.serve("e", pay):
                nursery.start_soon(make_anew)
                with pytest.raises(CallUnknownError, match="was deleted"):
                    await client.call("e", 1, timeout_s=60)
            over.set()
        assert runs == [1]


async def test_a_description_of_many_endpoints_lists_fewer_servers_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that it has room in a message."""
    monkeypatch.setattr(module, "_MAX_ALL_LISTED", 4)
    async with (
        running_nodes(tmp_path, 1) as nodes,
        nodes.client() as client,
        AsyncExitStack() as up,
    ):
        await _declare(client)
        for number in range(3):
            await up.enter_async_context(client.serve("e", _echo, name=f"s{number}"))
        (alone,) = await client.endpoints("e")
        assert (len(alone.servers), alone.more_servers) == (3, 0)
        await _declare(client, "other")
        listed = {life.name: life for life in await client.endpoints()}
        assert (len(listed["e"].servers), listed["e"].more_servers) == (2, 1)


BROKEN = [
    (JSON, b'{"a"', "JSON"),
    (JSON, b"", "JSON"),
    (JSON, b'"\xff"', "JSON"),
    (JSON, b"[" * 100_000, "JSON"),
    (TEXT, b"\xff", "text"),
]


@pytest.mark.parametrize("form", ["coroutine", "thread", "annotated", "model", "stream"])
async def test_a_value_that_is_broken_is_its_callers_fault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, form: str
) -> None:
    async def streamed(values: AsyncIterator[Any]) -> list[Any]:
        return [each async for each in values]

    def annotated(value: dict[str, int]) -> Any:
        return value

    def model(value: _Model) -> Any:
        return value

    handlers: dict[str, Any] = {
        "annotated": annotated,
        "model": model,
        "stream": streamed,
        "coroutine": _echo,
    }
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await _declare(client, input=STREAM if form == "stream" else "single")
        async with (
            client.serve("e", handlers.get(form, lambda value: value)),
            nodes.connection("n1", "caller") as connection,
            connection.open_stream(CALL, pb.CallRequest()) as stream,
        ):
            await answer(stream)
            caplog.clear()
            for number, (encoding, data, said) in enumerate(BROKEN, start=1):
                told: dict[str, Any] = {"length": len(data), "encoding": encoding, "end": True}
                item = pb.CallItem(number=number, kind=OPEN, open=opening(), **told)
                await stream.send(pb.CallRequest(items=[item]), [data])
                message, _ = await answer(stream)
                [item] = message.items
                assert (item.kind, item.error_type) == (ERROR, "ValidationError")
                is_typed = form in ("annotated", "model")
                expected = "a value is no " if is_typed else f"a value is said to be {said}"
                assert item.error.message.startswith(expected)
            assert not caplog.records


class _Model:
    """As pydantic has them."""

    @staticmethod
    def model_validate(value: Any) -> Any:
        return value


async def test_the_first_server_that_falls_silent_is_lost_in_time(
    tmp_path: Path,
    autojump_clock: MockClock,  # noqa: ARG001
) -> None:
    """Though the leader had nobody to look after for long, and sleeps until a call is over."""
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await _declare(client)
        await trio.sleep(100)
        busy = pb.ServeRequest.Open(endpoint="e", max_in_flight=1)
        silent = pb.ServeRequest.Open(
            endpoint="e", max_in_flight=1, heartbeat_ms=500, heartbeat_misses=4
        )
        async with (
            nodes.connection("n1", "servers") as connection,
            connection.open_stream(SERVE, pb.ServeRequest(open=busy)) as at_work,
            trio.open_nursery() as nursery,
        ):
            await answer(at_work)

            async def wait_for_the_busy_one() -> None:
                with pytest.raises(DeadlineExceededError):
                    await client.call("e", 1, timeout_s=1.5)

            nursery.start_soon(wait_for_the_busy_one)
            await answer(at_work)
            async with connection.open_stream(SERVE, pb.ServeRequest(open=silent)) as stream:
                await answer(stream)
                began_s = trio.current_time()
                with pytest.raises(CallUnknownError):
                    await client.call("e", 2, timeout_s=60)
                assert trio.current_time() - began_s <= 3


async def test_a_call_that_has_waited_is_hedged_in_time(
    tmp_path: Path,
    autojump_clock: MockClock,  # noqa: ARG001
) -> None:
    """Though the leader sleeps until a call is over: servers here say nothing in between."""
    told = pb.ServeRequest.Open(endpoint="e", max_in_flight=1)
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await _declare(client, idempotent=True, hedge_after_ms=500)
        async with (
            nodes.connection("n1", "servers") as connection,
            connection.open_stream(SERVE, pb.ServeRequest(open=told)) as one,
            connection.open_stream(SERVE, pb.ServeRequest(open=told)) as other,
            trio.open_nursery() as nursery,
        ):
            for server in (one, other):
                await answer(server)
            for number in range(2):
                nursery.start_soon(partial(client.call, "e", number, timeout_s=60))
            for server in (one, other):
                await answer(server)
            nursery.start_soon(partial(client.call, "e", "waits", timeout_s=60))
            # What was given at once has had its time.
            await trio.sleep(5)
            item = pb.CallItem(number=1, kind=VALUE, end=True)
            for server in (one, other):
                await server.send(pb.ServeRequest(items=[item]))
            began_s = trio.current_time()
            for server, attempt in ((one, 1), (other, 2)):
                (opened,) = (await answer(server))[0].items
                assert (opened.kind, opened.open.attempt) == (OPEN, attempt)
            assert 0.5 <= trio.current_time() - began_s < 1
            await other.send(pb.ServeRequest(items=[pb.CallItem(number=2, kind=VALUE, end=True)]))
