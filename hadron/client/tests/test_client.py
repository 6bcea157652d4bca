"""Connecting, closing, schema and pipeline calls."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import anyio.abc
import pytest

from hadron.client import connect
from hadron.client.connecting.url import _warn_of_token
from hadron.client.tests.fake_node import FakeNode
from hadron.client.tests.support import both, served, start, until
from hadron.model.errors import NotFoundError, OtherClusterError, PeerError, RequestError
from hadron.model.schema import SchemaObject, StreamSpec


def unused_address() -> str:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{sock.getsockname()[1]}"


@both
async def test_nobody_there_is_said_with_the_addresses_and_a_hint() -> None:
    first, second = unused_address(), unused_address()
    with pytest.raises(PeerError) as caught:
        async with connect(f"hadron://{first},{second}", connect_timeout_s=0.1):
            pass
    assert first in caught.value.message
    assert second in caught.value.message
    assert "hadron dev" in caught.value.hint


@both
async def test_the_client_waits_for_a_node_that_is_starting() -> None:
    address = unused_address()
    node = FakeNode()
    async with anyio.create_task_group() as tasks:
        opened = anyio.Event()

        async def open_client() -> None:
            async with connect(f"hadron://{address}"):
                opened.set()

        tasks.start_soon(open_client)
        await anyio.sleep(0.05)
        async with node.listen(address):
            await opened.wait()


@both
async def test_one_address_of_several_is_enough() -> None:
    node = FakeNode()
    async with node.listen(), connect(f"hadron://{unused_address()},{node.address}") as client:
        assert (await client.topology()).cluster == "fake"
        assert (await client.status()).state == "serving"
        assert (await client.status(node.address)).node == "n1"
        with pytest.raises(PeerError):
            await client.status(unused_address())


@both
async def test_nothing_is_said_to_another_cluster_that_has_the_address() -> None:
    """Its streams have the same names, and the same ids."""
    mine, other = FakeNode(), FakeNode()
    other.cluster = "other"

    async def serve(
        node: FakeNode, address: str, *, task_status: anyio.abc.TaskStatus[Callable[[], None]]
    ) -> None:
        with anyio.CancelScope() as scope:
            async with node.listen(address):
                task_status.started(scope.cancel)
                await anyio.sleep_forever()
        ended.set()

    async with anyio.create_task_group() as tasks:
        ended = anyio.Event()
        stop = await tasks.start(serve, mine, "127.0.0.1:0")
        async with (
            connect(f"hadron://{mine.address}", request_timeout_s=0.3) as client,
            client.producer("s") as producer,
        ):
            await producer.send(b"first")
            stop()
            await ended.wait()
            ended = anyio.Event()
            stop = await tasks.start(serve, other, mine.address)
            with pytest.raises(PeerError, match="of cluster 'other', and not of 'fake'"):
                await client.offsets("s")
            sent = await producer.send_soon(b"second")
            with pytest.raises(PeerError, match="of cluster 'other', and not of 'fake'"):
                await client.offsets("s")
            assert not other.logs
            stop()
            await ended.wait()
            await tasks.start(serve, mine, mine.address)
            await sent.wait()
        tasks.cancel_scope.cancel()


@both
async def test_another_cluster_than_the_one_in_the_url_is_refused_at_once() -> None:
    node = FakeNode()
    async with node.listen() as url:
        with pytest.raises(OtherClusterError, match="of cluster 'fake', and not of 'eu'"):
            async with connect(f"{url}?cluster=eu"):
                pass
        async with connect(f"{url}?cluster=fake") as client:
            assert (await client.status()).state == "serving"


@both
async def test_a_host_that_is_no_name_is_one_that_does_not_answer() -> None:
    node, nameless = FakeNode(), "nöde_1:7000"
    async with node.listen(), connect(f"hadron://{nameless},{node.address}") as client:
        assert (await client.status()).node == "n1"
    with pytest.raises(PeerError, match="'nöde_1' is no host's name"):
        async with connect(f"hadron://{nameless}", connect_timeout_s=0.1):
            pass


def test_tls_is_refused_rather_than_left_out() -> None:
    with pytest.raises(RequestError, match="TLS") as caught:
        connect("hadron://secret@a?tls=1")
    assert "secret" not in str(caught.value)


def test_a_token_that_nobody_checks_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    _warn_of_token.cache_clear()
    connect("hadron://a")
    assert not caplog.text
    for _ in range(3):
        connect("hadron://secret@a")
    assert caplog.text.count("the token in the URL is checked by nobody") == 1
    assert "secret" not in caplog.text


@both
async def test_what_the_block_raises_comes_out_as_it_is() -> None:
    node = FakeNode()
    async with node.listen() as url:
        with pytest.raises(ZeroDivisionError):
            async with connect(url) as client, client.producer("s"):
                raise ZeroDivisionError
        with anyio.move_on_after(0.02) as scope:
            async with connect(url):
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        with anyio.fail_after(1):
            async with connect(url) as client:
                await client.objects()


@both
async def test_a_closed_client_says_so() -> None:
    node = FakeNode()
    async with node.listen() as url, anyio.create_task_group() as tasks:
        async with connect(url) as client:
            await client.objects()
            waiting = await start(tasks, lambda: client.fetch("s", "local/p0", 0, max_wait_ms=9999))
            await until(lambda: node.fetches == 1)
        await until(lambda: bool(waiting))
        assert isinstance(waiting[0], RequestError)
        with pytest.raises(RequestError, match="closed"):
            await client.objects()


@both
async def test_requests_survive_a_restart_of_the_node() -> None:
    node = FakeNode()
    async with node.listen() as url, connect(url) as client:
        for _ in range(3):
            await client.objects()
            node.cut()
        assert [entry.name for entry in await client.objects("Stream")] == ["s"]


@both
async def test_a_promotion_is_followed() -> None:
    """The old leader is gone; another node says, with a higher epoch, that it leads now."""
    old, new = FakeNode(), FakeNode()
    new.logs = old.logs
    async with new.listen(), anyio.create_task_group() as tasks:
        stop = anyio.Event()
        ready = anyio.Event()

        async def run_old() -> None:
            async with old.listen():
                ready.set()
                await stop.wait()

        tasks.start_soon(run_old)
        await ready.wait()
        url = f"hadron://{old.address},{new.address}"
        real_address, new.address = new.address, old.address
        async with connect(url) as client, client.producer("s") as producer:
            await producer.send(b"old")
            new.address = real_address
            stop.set()
            assert (await producer.send(b"new")).offset == 1
            assert new.values() == [b"old", b"new"]


@both
async def test_objects_are_applied_and_looked_up() -> None:
    async with served() as (node, client):
        wanted = SchemaObject(kind="Stream", name="t", spec=StreamSpec(partitions=("local/p0",)))
        dry = await client.apply([wanted], dry_run=True)
        assert dry.changes[0].action == "created"
        with pytest.raises(NotFoundError, match="'t'"):
            await client.stream("t")
        applied = await client.apply([wanted])
        assert [change.action for change in applied.changes] == ["created"]
        assert applied.changes[0].before is None
        again = await client.apply([wanted])
        assert again.changes[0].action == "unchanged"
        assert again.changes[0].before is not None
        found = await client.stream("t")
        assert found.spec == wanted.spec
        assert found.id > 0
        assert await client.stream("t") is found
        assert {entry.name for entry in await client.objects("Stream")} == {"s", "t"}
        assert node.objects["Stream", "t"].namespace == "default"


@both
async def test_pipeline_calls_reach_the_pipelines_leader() -> None:
    async with served() as (node, client):
        progress = await client.pipeline_progress("pipe")
        assert [entry.instances for entry in progress] == [3]
        assert len(await client.pipeline_progress()) == 1
        page = await client.instances("pipe", status="done", after_id=4)
        assert [(entry.id, entry.status) for entry in page] == [(5, "done")]
        with pytest.raises(RequestError, match="'odd'"):
            await client.instances("pipe", status="odd")
        with pytest.raises(NotFoundError):
            await client.pipeline_progress("nope")
        answer = await client.complete_stages(2, "a", [1, 2], [1, 1], [5, 6], b"batch", "local/p0")
        assert answer.base_offset == 7
        request, batch = node.completed[0]
        assert (list(request.created_ms), batch) == ([5, 6], b"batch")
        await client.complete_stages(2, "a", [1], [1], [5], None)
        await client.fail_stages(2, "a", [3], [2], [7], "because")
        assert (node.failed[0].reason, list(node.failed[0].created_ms)) == ("because", [7])


@both
async def test_failed_instances_are_retried_slice_by_slice() -> None:
    async with served() as (node, client):
        counts: list[int] = []
        assert await client.retry_instances("pipe", on_progress=counts.append) == 2_500
        assert counts == [1_000, 2_000, 2_500]
        assert [request.after_id for request in node.retries] == [0, 1_000, 2_000]
        assert all(request.pipeline_id == 2 for request in node.retries)
        assert not any(request.stage or request.before_ms for request in node.retries)
        assert await client.retry_instances("pipe", [*range(1, 1_500), 3]) == 1_499
        assert [len(request.instance_ids) for request in node.retries[3:]] == [1_000, 499]
        assert await client.retry_instances("pipe", []) == 0, "nobody is not everybody"
        assert len(node.retries) == 5
        assert await client.retry_instances("pipe", stage="a", before_ms=7) == 2_500
        assert [(each.stage, each.before_ms) for each in node.retries[5:]] == [("a", 7)] * 3
        for wrong in (0, -1, 1 << 63, True, "7"):
            with pytest.raises(RequestError, match="is no instance's id"):
                await client.retry_instances("pipe", [1, wrong])  # type: ignore[list-item]
        never: Any = counts
        with pytest.raises(RequestError, match=r"on_progress .* cannot be called"):
            await client.retry_instances("pipe", on_progress=never)
        assert len(node.retries) == 8, "nothing is retried"
        with pytest.raises(NotFoundError):
            await client.retry_instances("nope")
        with pytest.raises(NotFoundError, match="99"):
            await client.complete_stages(99, "a", [], [], [], None)
        with pytest.raises(RequestError, match="attempts"):
            await client.fail_stages(2, "a", [3], [], [7], "because")
        with pytest.raises(RequestError, match="`created_ms`"):
            await client.fail_stages(2, "a", [3], [2], [], "because")


@both
async def test_stages_are_run_within_the_credit_also_after_a_cut() -> None:
    async with served() as (node, client):
        async with client.run_stages("pipe", credit=2) as run:
            await until(lambda: bool(node.stage_calls))
            node.invoke(1)
            node.invoke(2)
            first = await run.__anext__()
            assert first.invocations[0].instance_id == 1
            await until(lambda: node.begun == [101])
            run.grant()
            await until(lambda: node.stage_calls[0][1][0] == 1)
            node.cut()
            await until(lambda: not node.stage_calls)
            await until(lambda: bool(node.stage_calls))
            # Invocation 2 was still waiting here, so its credit came back with the new call.
            assert node.stage_calls[0][1][0] == 2
            node.invoke(2)
            again = await run.__anext__()
            assert again.invocations[0].instance_id == 2
            with pytest.raises(RequestError):
                run.grant(0)
        await until(lambda: not node.stage_calls)
        node.begun.clear()
        async with client.run_stages("pipe", takes_ahead=True) as run:
            await until(lambda: bool(node.stage_calls))
            node.invoke(1)
            ahead = await run.__anext__()
            assert node.begun == []
            run.begin(ahead)
            await until(lambda: node.begun == [101])
        with pytest.raises(RequestError, match="'flink'"):
            client.run_stages("pipe", engine="flink")


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_what_is_open_is_not_entered_again(backend: str) -> None:
    async def main() -> None:
        node = FakeNode()
        async with node.listen() as url, connect(url) as client:
            opening = client.producer("s")
            async with opening as producer, client.subscribe("s", group="g") as subscription:
                for each in (client, opening, producer, subscription):
                    with pytest.raises(RequestError, match="has been opened"):
                        async with each:
                            pass
                await producer.send(b"x")
            async with opening as another:
                await another.send(b"y")

    anyio.run(main, backend=backend)


async def test_a_patience_that_is_none_is_named() -> None:
    for name in ("connect_timeout_s", "request_timeout_s"):
        with pytest.raises(RequestError, match=f"{name} '5' is of type str"):
            connect("hadron://127.0.0.1", **{name: "5"})  # type: ignore[arg-type]
    async with served() as (_, client):
        asked: list[Callable[..., Awaitable[object]]] = [
            client.groups,
            partial(client.describe_group, "s", "g"),
            partial(client.reset_group, "s", "g", to=0),
            partial(client.delete_group, "s", "g"),
            client.transactions,
            client.pipeline_progress,
            client.endpoints,
            client.exchange("e").describe,
        ]
        for ask in asked:
            with pytest.raises(RequestError, match="within_s '5' is of type str"):
                await ask(within_s="5")
