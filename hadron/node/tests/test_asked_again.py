"""The schema, changed by who has to ask again: the answer was lost, and others went on."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from hadron.client import Client
from hadron.client.terms.arguments import ObjectName
from hadron.model.errors import NotFoundError, PeerError, SchemaError
from hadron.model.schema import StreamSpec
from hadron.server.schema import SchemaService
from hadron.testing.nodes import Nodes, running_nodes


class LostAnswer:
    """A call whose answer is lost, with the connection."""

    def __init__(self, nodes: Nodes, is_lost: trio.Event) -> None:
        self._nodes = nodes
        self._is_lost = is_lost

    def send(self, *_: Any, **__: Any) -> None:
        self._nodes.network.isolate("a", "n1")
        self._nodes.network.reset("a", "n1")
        self._is_lost.set()


async def asked_again(
    nodes: Nodes,
    monkeypatch: pytest.MonkeyPatch,
    handler: str,
    ask: Callable[[], Awaitable[Any]],
    meanwhile: Callable[[], Awaitable[Any]],
) -> Any:
    """What `ask`, a's, comes to: its first answer is lost, and `meanwhile` done before it asks
    again."""
    original, is_lost = getattr(SchemaService, handler), trio.Event()
    outcome: list[Any] = []

    async def once(self: SchemaService, leading: Any, _: Any, *request: Any) -> None:
        monkeypatch.setattr(SchemaService, handler, original)
        await original(self, leading, LostAnswer(nodes, is_lost), *request)

    async def first() -> None:
        try:
            outcome.append(await ask())
        except SchemaError as error:
            outcome.append(error)

    monkeypatch.setattr(SchemaService, handler, once)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first)
        await is_lost.wait()
        await meanwhile()
        nodes.network.heal_all()
    return outcome[0]


async def kept_bytes(client: Client) -> int:
    (stream,) = await client.objects("Stream")
    assert isinstance(stream.spec, StreamSpec)
    return stream.spec.retention.max_bytes


def limited(gigabytes: int) -> dict[str, Any]:
    return {"kind": "Stream", "name": "x", "retention": {"max_bytes": f"{gigabytes}GiB"}}


async def test_a_deletion_that_is_asked_for_again_deletes_nothing_else(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_nodes(tmp_path, 1) as nodes, nodes.client("a") as a, nodes.client("b") as b:
        first = await a.create_stream("x")

        async def make_anew() -> None:
            assert (await b.create_stream("x")).id != first.id
            await b.send("x", "acknowledged")

        deleted = await asked_again(
            nodes,
            monkeypatch,
            "_answer_delete",
            lambda: a.delete(("Stream", "default", "x"), allow_destructive=True),
            make_anew,
        )
        assert deleted == [first]
        assert [record.value async for record in b.read("x")] == ["acknowledged"]


async def test_a_deletion_that_is_asked_for_again_is_done(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_nodes(tmp_path, 1) as nodes, nodes.client("a") as a, nodes.client("b") as b:
        streams = [await a.create_stream(name) for name in ("x", "y")]
        names: list[ObjectName] = [("Stream", "default", "x"), streams[1]]
        deleted = await asked_again(
            nodes,
            monkeypatch,
            "_answer_delete",
            lambda: a.delete(names, allow_destructive=True),
            trio.lowlevel.checkpoint,
        )
        assert deleted == streams
        assert await b.objects("Stream") == []
        with pytest.raises(SchemaError, match="it does not exist"):
            await a.delete(streams[1], allow_destructive=True)


async def test_an_object_that_is_given_as_itself_is_the_one_that_goes(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_nodes(tmp_path, 1) as nodes, nodes.client("a") as a:
        first = await a.create_stream("x")
        await a.delete(first, allow_destructive=True)
        second = await a.create_stream("x")
        await a.send("x", "kept")
        with pytest.raises(SchemaError, match=f"made at index {second.id}: it is another one"):
            await a.delete(first, allow_destructive=True)
        assert await a.delete(second, dry_run=True, allow_destructive=True) == [second]
        assert await a.delete([second], allow_destructive=True) == [second]
        with pytest.raises(NotFoundError):
            await a.stream("x")


async def test_an_apply_that_is_asked_for_again_undoes_nothing(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_nodes(tmp_path, 1) as nodes, nodes.client("a") as a, nodes.client("b") as b:
        await a.apply(limited(1))

        async def ask(meanwhile: Callable[[], Awaitable[Any]], wanted: int) -> Any:
            return await asked_again(
                nodes, monkeypatch, "_answer_apply", lambda: a.apply(limited(wanted)), meanwhile
            )

        applied = await ask(trio.lowlevel.checkpoint, 2)
        assert [change.action for change in applied.changes] == ["unchanged"]
        assert await kept_bytes(b) == 2 << 30
        refused = await ask(lambda: b.apply(limited(5)), 3)
        assert "it was changed at index 4, after this was asked for at 2" in str(refused)
        assert await kept_bytes(b) == 5 << 30
        refused = await ask(lambda: b.delete(("stream", "default", "x"), allow_destructive=True), 6)
        assert "it was deleted at index" in str(refused)
        assert await b.objects("Stream") == []
        await a.apply(limited(7))
        assert await kept_bytes(b) == 7 << 30


async def test_of_two_who_create_a_stream_one_hears_that_it_is_another(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_nodes(tmp_path, 1) as nodes, nodes.client("a") as a, nodes.client("b") as b:
        told: list[Any] = []

        async def create(client: Client, **settings: Any) -> None:
            try:
                told.append(await client.create_stream("x", **settings))
            except SchemaError as error:
                told.append(error)

        settings: list[dict[str, Any]] = [{"max_age": "1h"}, {}]
        for wanted in settings:
            told.clear()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(create, a)
                nursery.start_soon(partial(create, b, **wanted))
            (made,) = await a.objects("Stream")
            if wanted:
                (refused,) = [each for each in told if each != made]
                assert "exists with other settings" in str(refused)
                await a.delete(made, allow_destructive=True)
            else:
                assert told == [made, made]


async def test_a_stream_that_is_there_needs_no_leader(tmp_path: Path, clock: MockClock) -> None:
    """A program that creates what it needs starts while the leader is away."""
    async with running_nodes(tmp_path, 3) as nodes, nodes.client("a") as a:
        made = await a.create_stream("x")
        await nodes.wait_in_step()
        await nodes.crash("n1")
        async with nodes.client("b") as b:
            assert await b.create_stream("x") == made
            assert await b.create_stream("x", partitions="local/p0") == made
            with pytest.raises(PeerError):
                await b.create_stream("x", max_age="1h")
