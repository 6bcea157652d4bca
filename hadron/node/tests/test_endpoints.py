"""Endpoints through whole nodes: all four shapes, and calls of which somebody is lost."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from hadron.client import Client, IncomingCall
from hadron.client.connecting import outages
from hadron.client.terms.results import EndpointServer
from hadron.endpoints.endpoint import MAX_ATTEMPTS
from hadron.model.errors import (
    CallFailedError,
    CallUnknownError,
    DeadlineExceededError,
    HadronError,
    NoServerError,
    NotFoundError,
    OverloadedError,
    RequestError,
)
from hadron.model.schema import SchemaObject
from hadron.model.services import STREAM, EndpointSpec
from hadron.testing.nodes import Nodes, running_cluster, running_nodes

SET = "local/p0"
LIMIT_S = 20.0


async def declare(client: Client, name: str, **spec: Any) -> None:
    obj = SchemaObject(kind="Endpoint", name=name, spec=EndpointSpec(replica_set=SET, **spec))
    await client.apply([obj])


@asynccontextmanager
async def one_node(tmp_path: Path) -> AsyncIterator[tuple[Nodes, Client, Client]]:
    """A node, a client that serves and one that calls."""
    with trio.fail_after(LIMIT_S):
        async with (
            running_nodes(tmp_path, 1) as nodes,
            nodes.client("server") as server,
            nodes.client() as client,
        ):
            yield nodes, server, client


async def start(nursery: trio.Nursery, call: Callable[[], Awaitable[Any]]) -> list[Any]:
    """A call as a task; its answer or its error appears in the list."""
    outcome: list[Any] = []

    async def run() -> None:
        try:
            outcome.append(await call())
        except HadronError as error:
            outcome.append(error)

    nursery.start_soon(run)
    return outcome


async def called(client: Client, name: str, is_stream: bool) -> Any:
    """Its answer to one value, by either way to call."""
    if not is_stream:
        return await client.call(name, 1, timeout_s=5)
    async with client.call_stream(name, 1, timeout_s=5) as call:
        return await call.result()


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - of whole nodes
        await trio.sleep(0.005)


class Gate:
    """A handler that answers when it is told to."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.ended: list[Any] = []
        self.open = trio.Event()

    async def __call__(self, value: Any) -> Any:
        self.begun.append(value)
        try:
            await self.open.wait()
        finally:
            self.ended.append(value)
        return value


# --- shapes -----------------------------------------------------------------------------------


@dataclass
class Order:
    amount: int
    item: str = "tea"


async def test_one_value_for_one(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (_, server, client):
        await declare(client, "quote")

        async def quote(order: Order, call: IncomingCall) -> dict[str, Any]:
            assert 0 < call.left_s <= 2
            call.answer_headers["seen"] = "yes"
            return {"price": order.amount * 3, "item": order.item, "headers": dict(call.headers)}

        async with server.serve("quote", quote):
            headers = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
            answer = await client.call("quote", {"amount": 2}, timeout_s=2, headers=headers)
            assert answer == {"price": 6, "item": "tea", "headers": headers}
            async with client.call_stream("quote", {"amount": 2}, timeout_s=2) as call:
                assert (await call.result())["price"] == 6
                assert call.headers == {"seen": "yes"}
            for value in (b"", "", None, [1], "x" * 3_000_000):
                with pytest.raises(CallFailedError) as raised:
                    await client.call("quote", value, timeout_s=2)
                assert raised.value.type == "ValidationError"
                assert not raised.value.retryable


async def test_values_come_back_as_they_were_sent(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (_, server, client):
        await declare(client, "echo")

        async def echo(value: Any) -> Any:
            return value

        async with server.serve("echo", echo):
            for value in (b"", "", None, b"\0" * 3_000_000, {"a": [1, None]}, "é" * 100_000):
                assert await client.call("echo", value) == value
            assert await client.call("echo") is None


async def test_a_client_calls_in_its_own_loop_only(tmp_path: Path) -> None:
    """Another one's would never hear of the answer; also where nothing has to be dialed."""
    async with one_node(tmp_path) as (_, server, client):
        await declare(client, "echo")
        async with server.serve("echo", lambda value: value):
            assert await client.call("echo", 1) == 1
            elsewhere = partial(trio.run, client.call, "echo", 2)
            with pytest.raises(RequestError, match="the event loop of another thread"):
                await trio.to_thread.run_sync(elsewhere)
            assert await client.call("echo", 3) == 3


async def test_streams_either_way(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (_, server, client):
        await declare(client, "sum", input=STREAM)
        await declare(client, "count", output=STREAM)
        await declare(client, "upper", input=STREAM, output=STREAM)

        async def sum_up(values: AsyncIterator[int]) -> int:
            return sum([value async for value in values])

        async def count(to: int, call: IncomingCall) -> AsyncIterator[int]:
            call.answer_headers["to"] = str(to)
            for number in range(to):
                yield number

        async def upper(values: AsyncIterator[str]) -> AsyncIterator[str]:
            async for value in values:
                yield value.upper()

        async with (
            server.serve("sum", sum_up),
            server.serve("count", count),
            server.serve("upper", upper),
        ):
            async with client.call_stream("sum") as call:
                for number in range(1_000):
                    await call.send(number)
                assert await call.result() == 499_500
            async with client.call_stream("sum") as call:
                assert await call.result() == 0
            async with client.call_stream("count", 30_000) as call:
                assert [value async for value in call] == list(range(30_000))
                assert call.headers == {"to": "30000"}
            async with client.call_stream("upper") as call:
                for text in ("a", "b"):
                    await call.send(text)
                    assert await anext(call) == text.upper()
                await call.end()
                assert [value async for value in call] == []
            with pytest.raises(RequestError, match="takes one value, and a stream was begun"):
                async with client.call_stream("count") as call:
                    await call.result()


async def test_a_call_of_another_shape_runs_nothing(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (_, server, client):
        await declare(client, "count", output=STREAM)
        await declare(client, "sum", input=STREAM)
        begun: list[Any] = []

        async def count(to: int) -> AsyncIterator[int]:
            begun.append(to)
            yield to

        async def sum_up(values: AsyncIterator[int]) -> int:
            begun.append(values)
            return sum([value async for value in values])

        async with server.serve("count", count), server.serve("sum", sum_up):
            answers = r"output: stream.*answers with a stream"
            with pytest.raises(RequestError, match=answers) as told:
                await client.call("count", 3)
            assert "call_stream" in told.value.hint
            with pytest.raises(RequestError, match=r"input: stream.*takes a stream"):
                await client.call("sum", 3)
            with pytest.raises(RequestError, match=r"input: stream.*takes a stream"):
                async with client.call_stream("sum", 3):
                    raise AssertionError("it is open")
            with pytest.raises(RequestError, match="takes one value, and a stream was begun"):
                async with client.call_stream("count"):
                    raise AssertionError("it is open")
            assert begun == []


async def test_who_knows_an_endpoint_as_it_was_runs_nothing_of_it(tmp_path: Path) -> None:
    """The leader looks as well; and who remembers a stream looks anew before it refuses."""
    async with one_node(tmp_path) as (_, server, client):
        await declare(client, "e")
        begun: list[Any] = []

        async def echo(value: Any) -> Any:
            begun.append(value)
            return value

        async with server.serve("e", echo) as serving:
            assert await client.call("e", 1) == 1
            await declare(server, "e", output=STREAM)
            with pytest.raises(RequestError, match=r"output: stream.*answers with a stream"):
                await client.call("e", 2)
            assert begun == [1]
            client._endpoints._known["e"] = await client._endpoints.find("e")
            with pytest.raises(RequestError, match="declared anew, with `input: single`"):
                await serving.wait()
        await declare(server, "e")
        async with server.serve("e", echo):
            assert await client.call("e", 3) == 3


async def test_a_large_stream_waits_for_who_takes_it(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (_, server, client):
        await declare(client, "much", output=STREAM)
        made: list[int] = []

        async def much(_value: Any) -> AsyncIterator[bytes]:
            for number in range(200):
                made.append(number)
                yield bytes(20_000)

        async with server.serve("much", much), client.call_stream("much", None) as call:
            assert len(await anext(call)) == 20_000
            await trio.sleep(0.2)
            assert len(made) < 30  # 256 kB, and what the first values have given back
            assert len([value async for value in call]) == 199


async def test_functions_run_in_threads(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (_, server, client):
        await declare(client, "double")
        await declare(client, "squares", input=STREAM, output=STREAM)

        def squares(values: Any) -> Any:
            for value in values:
                yield value * value

        async with (
            server.serve("double", lambda value: value * 2),
            server.serve("squares", squares),
        ):
            assert await client.call("double", 21) == 42
            async with client.call_stream("squares") as call:
                for number in (1, 2, 3):
                    await call.send(number)
                await call.end()
                assert [value async for value in call] == [1, 4, 9]


# --- what goes wrong --------------------------------------------------------------------------


async def test_what_a_handler_raises_reaches_its_caller(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with one_node(tmp_path) as (_, server, client):
        await declare(client, "fail")

        async def fail(what: str) -> None:
            if what == "own":
                raise CallFailedError("no tea", "drink water", retryable=True, type="NoTea")
            raise KeyError(what)

        async with server.serve("fail", fail):
            with pytest.raises(CallFailedError) as raised:
                await client.call("fail", "own")
            error = raised.value
            assert (error.message, error.hint, error.type) == ("no tea", "drink water", "NoTea")
            assert error.retryable
            assert not caplog.records
            assert str(error) == "endpoint 'fail' failed: NoTea: no tea (drink water)"
            with pytest.raises(CallFailedError) as raised:
                await client.call("fail", "x")
            assert str(raised.value) == "endpoint 'fail' failed: KeyError: 'x'"
            assert raised.value.type == "KeyError"
            assert "Traceback" not in str(raised.value)
            assert "raise KeyError(what)" in caplog.text


async def test_nobody_serves_it(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (_, server, client):
        with pytest.raises(NotFoundError, match="no endpoint is called 'quote'"):
            await client.call("quote", 1)
        with pytest.raises(NotFoundError, match="no endpoint is called 'quote'"):
            async with server.serve("quote", abs):
                pass
        await declare(client, "quote")
        # A leader that has just begun waits a second for servers to come back.
        with pytest.raises(NoServerError, match="nobody serves endpoint default/quote") as raised:
            await client.call("quote", 1)
        assert raised.value.retryable
        began_s = trio.current_time()
        with pytest.raises(NoServerError):
            await client.call("quote", 1)
        assert trio.current_time() - began_s < 0.5
        gate = Gate()
        async with server.serve("quote", gate), trio.open_nursery() as nursery:
            outcome = await start(nursery, lambda: client.call("quote", 1))
            await until(lambda: gate.begun)
            await client.delete([("Endpoint", "default", "quote")], allow_destructive=True)
            await until(lambda: outcome)
            assert isinstance(outcome[0], CallUnknownError)
            gate.open.set()


async def test_busy_servers_and_deadlines(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (_, server, client):
        await declare(client, "slow", max_waiting=1)
        gate = Gate()
        async with server.serve("slow", gate, max_in_flight=2), trio.open_nursery() as nursery:
            first = await start(nursery, lambda: client.call("slow", 1))
            await start(nursery, lambda: client.call("slow", 2))
            await until(lambda: len(gate.begun) == 2)
            waits = await start(nursery, lambda: client.call("slow", 3, timeout_s=0.2))
            life = (await client.endpoints("slow"))[0]
            assert (life.in_flight, life.waiting) == (2, 1)
            with pytest.raises(OverloadedError, match="all servers of endpoint default/slow"):
                await client.call("slow", 4)
            await until(lambda: waits)
            assert isinstance(waits[0], DeadlineExceededError)
            assert "it waited for a server" in waits[0].message
            with pytest.raises(DeadlineExceededError):
                await client.call("slow", 5, timeout_s=0.05)
            assert sorted(gate.begun) == [1, 2]
            gate.open.set()
            await until(lambda: first)
            assert first == [1]


async def test_a_call_that_nobody_waits_for_is_cancelled(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (_, server, client):
        await declare(client, "slow")
        gate = Gate()
        async with server.serve("slow", gate, max_in_flight=1):
            with trio.move_on_after(0.1):
                await client.call("slow", "given up")
            await until(lambda: gate.ended == ["given up"])
            with pytest.raises(DeadlineExceededError, match="has not answered"):
                await client.call("slow", "late", timeout_s=0.1)
            await until(lambda: gate.ended == ["given up", "late"])
            gate.open.set()
            # Both have given their slot back.
            assert await client.call("slow", "next", timeout_s=5) == "next"


async def test_a_thread_that_waits_for_values_ends_with_its_call(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (_, server, client):
        await declare(client, "sum", input=STREAM)
        begun: list[int] = []
        ended: list[bool] = []

        def total(values: Iterator[int], call: IncomingCall) -> None:
            try:
                begun.extend(values)
            finally:
                ended.append(call.is_cancelled)

        async with server.serve("sum", total, max_in_flight=1):
            async with client.call_stream("sum") as call:
                await call.send(1)
                await until(lambda: begun)
            await until(lambda: ended == [True])


async def test_a_server_that_stops_waits_for_no_thread(tmp_path: Path) -> None:
    may_end, begun = threading.Event(), threading.Event()

    def hang(_: str) -> None:
        begun.set()
        may_end.wait(60)

    try:
        async with one_node(tmp_path) as (nodes, _, client), trio.open_nursery() as nursery:
            await declare(client, "slow")
            async with nodes.client("leaves") as leaves, leaves.serve("slow", hang, drain_s=0.0):
                outcome = await start(nursery, lambda: client.call("slow", "x"))
                await until(begun.is_set)
            await until(lambda: outcome)
            assert isinstance(outcome[0], CallUnknownError)
    finally:
        may_end.set()


async def lose_server(nodes: Nodes, client: Client, gate: Gate, name: str) -> list[Any]:
    """A call that is at a server whose host is cut off, which a second one would do."""
    other = Gate()
    other.open.set()
    async with trio.open_nursery() as nursery, nodes.client("lost") as lost:
        outcome: list[Any] = []
        async with lost.serve(name, gate, drain_s=0.0):
            outcome = await start(nursery, lambda: client.call(name, "x", timeout_s=10))
            await until(lambda: gate.begun)
            async with nodes.client("stays") as stays, stays.serve(name, other):
                nodes.network.cut("lost", nodes.host("n1"))
                with trio.fail_after(4):
                    await until(lambda: outcome)
            nodes.network.heal_all()
        outcome.append(len(other.begun))
    return outcome


@pytest.mark.long
async def test_a_server_is_lost(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (nodes, _, client):
        await declare(client, "once")
        error, again = await lose_server(nodes, client, Gate(), "once")
        assert isinstance(error, CallUnknownError)
        assert not error.retryable
        assert "is not declared idempotent" in error.hint
        assert again == 0
        await declare(client, "twice", idempotent=True)
        assert await lose_server(nodes, client, Gate(), "twice") == ["x", 1]


async def test_a_leader_is_lost(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (nodes, server, client):
        await declare(client, "once")
        await declare(client, "twice", idempotent=True)
        gate, again = Gate(), Gate()
        async with (
            server.serve("once", gate),
            server.serve("twice", again),
            trio.open_nursery() as nursery,
        ):
            once = await start(nursery, lambda: client.call("once", 1))
            twice = await start(nursery, lambda: client.call("twice", 2))
            await until(lambda: gate.begun and again.begun)
            await nodes.crash("n1")
            await until(lambda: once)
            assert isinstance(once[0], CallUnknownError)
            gate.open.set()
            again.open.set()
            await nodes.restart("n1")
            await nodes.wait_serving()
            began_s = trio.current_time()
            assert await client.call("once", 3) == 3
            assert trio.current_time() - began_s < 2
            await until(lambda: twice)
            assert twice == [2]
            assert again.begun == [2, 2]


async def test_a_server_that_was_away_while_its_endpoint_got_another_shape_is_not_taken_back(
    tmp_path: Path,
) -> None:
    """Its handler was made for one value, and would be run without one."""
    async with one_node(tmp_path) as (nodes, server, client), trio.open_nursery() as nursery:
        await declare(client, "sum")
        ran: list[Any] = []

        async def handler(value: Any) -> Any:
            ran.append(value)

        async with server.serve("sum", handler) as serving:
            host = nodes.host("n1")
            nodes.network.isolate("server", host)
            nodes.network.break_connections("server", host)
            while found := (await client.endpoints("sum"))[0].servers:
                assert len(found) == 1
                await trio.sleep(0.01)
            await declare(client, "sum", input=STREAM)
            nodes.network.heal_all()
            ended = await start(nursery, serving.wait)
            await until(lambda: ended)
            assert isinstance(ended[0], RequestError)
        assert not ran


async def test_a_server_says_that_the_leader_is_away_and_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outages, "TELL_AFTER_S", 0.0)
    async with one_node(tmp_path) as (nodes, server, client):
        await declare(client, "quote")
        async with server.serve("quote", Gate()):
            assert "calls" not in caplog.text
            await nodes.crash("n1")
            await until(lambda: "no calls come of endpoint 'quote': " in caplog.text)
            await nodes.restart("n1")
            await nodes.wait_serving()
            await until(lambda: "calls of endpoint 'quote' come again" in caplog.messages)


async def test_a_leader_that_does_not_come_back_in_time(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (nodes, server, client), trio.open_nursery() as nursery:
        await declare(client, "once")
        await declare(client, "twice", idempotent=True)
        gate = Gate()
        async with server.serve("once", gate), server.serve("twice", gate):
            once = await start(nursery, lambda: client.call("once", 1, timeout_s=2))
            twice = await start(nursery, lambda: client.call("twice", 2, timeout_s=2))
            await until(lambda: len(gate.begun) == 2)
            await nodes.crash("n1")
            await until(lambda: once and twice)
            assert isinstance(once[0], CallUnknownError)
            assert not once[0].retryable
            assert isinstance(twice[0], CallUnknownError)
            assert twice[0].retryable
            assert twice[0].message.endswith(
                "the call was tried again, as its endpoint is idempotent: it was not answered "
                "within 2 s"
            )


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_call_may_have_run_under_a_leader_that_was_lost_whoever_serves_now(
    tmp_path: Path, is_stream: bool
) -> None:
    """The next leader has nobody to give it to, and does not know of the first time."""
    async with one_node(tmp_path) as (nodes, server, client), trio.open_nursery() as nursery:
        await declare(client, "twice", idempotent=True)
        gate = Gate()
        with trio.CancelScope() as serving:
            async with server.serve("twice", gate):
                outcome = await start(nursery, lambda: called(client, "twice", is_stream))
                await until(lambda: gate.begun)
                await nodes.crash("n1")
                serving.cancel()
                await trio.lowlevel.checkpoint()
        await nodes.restart("n1")
        await until(lambda: outcome)
        assert isinstance(outcome[0], CallUnknownError)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_call_that_kills_its_servers_kills_no_more_than_the_leader_gives_it_to(
    tmp_path: Path, is_stream: bool
) -> None:
    """The client does not begin anew what the leader has given up."""
    async with one_node(tmp_path) as (_, server, client):
        await declare(client, "poison", idempotent=True)
        killed: list[str] = []

        async with AsyncExitStack() as stack:
            servings: dict[str, Any] = {}
            for name in [f"s{number}" for number in range(12)]:

                async def die(_value: Any, name: str = name) -> None:
                    killed.append(name)
                    servings[name].close()

                opening = server.serve("poison", die, name=name)
                servings[name] = await stack.enter_async_context(opening)
            with pytest.raises(CallUnknownError, match="not run again, as it was run 5 times"):
                await called(client, "poison", is_stream)
        assert len(killed) == len(set(killed)) == MAX_ATTEMPTS


async def test_who_leaves_ends_what_it_has_begun(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (_, server, client):
        await declare(client, "slow")
        gate = Gate()
        async with trio.open_nursery() as nursery:
            async with server.serve("slow", gate):
                outcome = await start(nursery, lambda: client.call("slow", 1))
                await until(lambda: gate.begun)
                nursery.start_soon(_open_later, gate)
            await until(lambda: outcome)
            assert outcome == [1]
        with pytest.raises(NoServerError):
            await client.call("slow", 2)


async def test_a_block_that_is_left_while_another_task_drains_waits_as_well(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (_, server, client), trio.open_nursery() as nursery:
        await declare(client, "slow")
        gate = Gate()
        async with server.serve("slow", gate) as serving:
            outcome = await start(nursery, lambda: client.call("slow", 1))
            await until(lambda: gate.begun)
            for _ in range(2):
                nursery.start_soon(serving.drain)
            await wait_all_tasks_blocked()
            nursery.start_soon(_open_later, gate)
        await until(lambda: outcome)
        assert outcome == [1]


async def test_who_has_drained_waits_no_more_and_is_told_of_to_the_next_leader(
    tmp_path: Path,
) -> None:
    async with one_node(tmp_path) as (nodes, server, client), trio.open_nursery() as nursery:
        await declare(client, "slow")
        gate = Gate()
        async with server.serve("slow", gate, drain_s=0.2) as serving:
            outcome = await start(nursery, lambda: client.call("slow", 1))
            await until(lambda: gate.begun)
            nursery.start_soon(serving.drain)
            await serving.wait()
            assert not outcome
            # That is all the time it has: it goes on, but nobody waits for it once more.
            with trio.fail_after(0.1):
                await serving.drain()
            await nodes.crash("n1")
            await nodes.restart("n1")
            await nodes.wait_serving()
            found: list[EndpointServer] = []
            while not (found and found[0].is_leaving):
                found = list((await client.endpoints("slow"))[0].servers)
                await trio.sleep(0.01)
            with pytest.raises(NoServerError):
                await client.call("slow", 2)


async def _open_later(gate: Gate) -> None:
    await trio.sleep(0.1)
    gate.open.set()


async def test_calls_go_where_least_is_to_do_and_to_the_region(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (nodes, server, client), nodes.client("other") as other:
        await declare(client, "where")

        async def east(_value: Any) -> str:
            return "east"

        async def west(_value: Any) -> str:
            return "west"

        async with (
            server.serve("where", east, region="aws.us-east-1"),
            other.serve("where", west, region="aws.us-west-2"),
        ):
            for region, where in (("aws.us-east-1", "east"), ("aws.us-west-2", "west")):
                for _ in range(20):
                    assert await client.call("where", region=region) == where
            assert {await client.call("where") for _ in range(50)} == {"east", "west"}
            assert await client.call("where", region="gcp") in ("east", "west")
            life = (await client.endpoints())[0]
            assert sum(each.answered for each in life.servers) == 91
            assert life.p50_ms > 0


async def test_a_call_in_a_handler_takes_over_time_and_trace(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (_, server, client):
        await declare(client, "outer")
        await declare(client, "inner")

        async def inner(_value: Any, call: IncomingCall) -> Any:
            return [dict(call.headers), call.left_s]

        async def outer(_value: Any) -> Any:
            return await server.call("inner", timeout_s=60)

        async with server.serve("inner", inner), server.serve("outer", outer):
            trace = {"traceparent": "00-1", "tracestate": "a=b"}
            headers, left_s = await client.call(
                "outer", timeout_s=3, headers={**trace, "other": "x"}
            )
            assert headers == trace
            assert 0 < left_s <= 3


async def test_a_task_that_a_handler_leaves_behind_has_time_of_its_own(tmp_path: Path) -> None:
    async with one_node(tmp_path) as (_, server, client), trio.open_nursery() as nursery:
        await declare(client, "outer")
        await declare(client, "inner")
        outers: list[IncomingCall] = []
        outcome: list[Any] = []

        async def inner(_value: Any, call: IncomingCall) -> Any:
            return call.headers.get("traceparent")

        async def behind() -> None:
            await until(lambda: not outers[0].left_s)
            outcome.append(await server.call("inner", timeout_s=5))

        async def outer(_value: Any, call: IncomingCall) -> None:
            outers.append(call)
            nursery.start_soon(behind)

        async with server.serve("inner", inner), server.serve("outer", outer):
            await client.call("outer", timeout_s=0.5, headers={"traceparent": "00-1"})
            await until(lambda: outcome)
            assert outcome == ["00-1"]


class _MuteError(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


async def test_whatever_a_handler_says_its_call_gets_a_last_word(tmp_path: Path) -> None:
    """And so the next one gets the slot."""
    async with one_node(tmp_path) as (_, server, client):
        await declare(client, "odd")

        async def odd(value: Any, call: IncomingCall) -> Any:
            if value == "header":
                # As of a file's name that is no UTF-8.
                call.answer_headers["file"] = "\udcff.txt"
            elif value == "mute":
                raise _MuteError
            return value

        async with server.serve("odd", odd, max_in_flight=1):
            with pytest.raises(CallFailedError, match="lone surrogate"):
                await client.call("odd", "header")
            with pytest.raises(CallFailedError, match="_MuteError"):
                await client.call("odd", "mute")
            assert await client.call("odd", "fine") == "fine"
        with pytest.raises(RequestError, match="lone surrogate"):
            await client.call("odd", 1, headers={"\udcff": "x"})


async def test_a_streamed_call_finds_an_endpoint_that_has_moved(tmp_path: Path) -> None:
    sets = {"meta": 1, "eu/p0": 1, "us/p0": 1}

    async def echo(value: Any) -> Any:
        return value

    with trio.fail_after(LIMIT_S):
        async with (
            running_cluster(tmp_path, sets) as cluster,
            cluster.client("server") as server,
            cluster.client() as client,
            cluster.client("other") as other,
        ):

            async def live_at(home: str) -> None:
                spec = EndpointSpec(replica_set=home)
                await other.apply([SchemaObject(kind="Endpoint", name="e", spec=spec)])

            async def stream(value: Any) -> Any:
                async with client.call_stream("e", value, timeout_s=10) as call:
                    return await call.result()

            await live_at("eu/p0")
            async with server.serve("e", echo):
                assert await stream(1) == 1
                await live_at("us/p0")
            async with server.serve("e", echo):
                assert await stream(2) == 2


async def test_a_streamed_call_with_one_value_is_run_again_where_that_may_be(
    tmp_path: Path,
) -> None:
    """Until a part of its answer has come."""
    async with one_node(tmp_path) as (nodes, server, client):
        await declare(client, "rows", output=STREAM, idempotent=True)
        begun: list[Any] = []
        gate = trio.Event()

        async def rows(value: Any) -> AsyncIterator[Any]:
            begun.append(value)
            if len(begun) == 1:
                await trio.sleep_forever()
            yield value
            await gate.wait()
            yield "more"

        async with server.serve("rows", rows), client.call_stream("rows", 7) as call:
            await until(lambda: begun)
            await nodes.restart("n1")
            assert await anext(call) == 7
            assert begun == [7, 7]
            await nodes.restart("n1")
            with pytest.raises(CallUnknownError):
                await anext(call)
