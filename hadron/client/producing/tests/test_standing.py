"""The producers that a client keeps for its own `send`."""

from __future__ import annotations

import pytest

from hadron.client.tests.fake_node import FakeNode
from hadron.client.tests.support import both, served, until
from hadron.model.errors import NotFoundError


def recreate(node: FakeNode) -> None:
    """Stream `s` is deleted, and another one has its name."""
    stream = node.objects.pop(("Stream", "s"))
    stream.id = stream.metadata_index = stream.id + 1_000
    node.objects["Stream", "s"] = stream


def delete(node: FakeNode) -> None:
    """There is as much in the schema as before: its index does not sink."""
    stream = node.objects.pop(("Stream", "s"))
    stream.name = "other"
    node.objects["Stream", "other"] = stream


@both
async def test_a_stream_that_is_another_one_by_now_is_sent_to() -> None:
    async with served() as (node, client):
        await client.send("s", b"0")
        for _ in range(3):
            recreate(node)
            await client.send("s", b"x")
        assert node.values() == [b"0", b"x", b"x", b"x"]


@both
async def test_what_is_not_found_is_told_where_the_stream_is_the_same() -> None:
    async with served() as (node, client):
        await client.send("s", b"0")
        producer = await client._standing.producer("s")
        with pytest.raises(NotFoundError, match="no partition 'nowhere/p0'"):
            await client.send("s", b"1", partition="nowhere/p0")
        assert await client._standing.producer("s") is producer
        delete(node)
        with pytest.raises(NotFoundError, match="no stream is called 's'"):
            await client.send("s", b"2")


@both
async def test_nothing_is_kept_of_streams_that_are_gone_and_of_names_that_never_were() -> None:
    async with served(FakeNode(streams=("s", "t"))) as (node, client):
        await client.send("s", b"0")
        kept = len(client._session.on_close), len(client._catalog._listeners)
        old = await client._standing.producer("s")
        recreate(node)
        await client.send("s", b"1")
        await until(lambda: old._publisher.is_closed)
        assert (len(client._session.on_close), len(client._catalog._listeners)) == kept
        old = await client._standing.producer("s")
        delete(node)
        for name in ("s", "never", "x" * 100_000):
            with pytest.raises(NotFoundError):
                await client.send(name, b"2")
        assert client._standing._opening == {}
        await client.send("t", b"0")
        await until(lambda: old._publisher.is_closed)
        assert list(client._standing._open) == ["t"]
        assert (len(client._session.on_close), len(client._catalog._listeners)) == kept
