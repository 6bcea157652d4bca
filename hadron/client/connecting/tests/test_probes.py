"""A way that brings nothing is given up; one that brings anything is not."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from hadron.client.connecting import probes
from hadron.client.tests.fake_node import FakeNode
from hadron.client.tests.support import served, until
from hadron.model.errors import DeadlineExceededError


@pytest.fixture
def hushed(monkeypatch: pytest.MonkeyPatch) -> FakeNode:
    """A node that answers questions about the topology while `answers` is set."""
    monkeypatch.setattr(probes, "ASK_TIMEOUT_S", 0.2)
    node = FakeNode()
    topology = node.on_topology
    node.answers = True  # type: ignore[attr-defined]

    def on_topology(*call: Any) -> None:
        if node.answers:  # type: ignore[attr-defined]
            topology(*call)

    node.on_topology = on_topology  # type: ignore[method-assign, assignment]
    return node


async def test_who_says_nothing_is_left(hushed: FakeNode) -> None:
    async with served(hushed) as (node, client):
        way = await client._session.connect("local/p0")
        client._session.probes.start(way)
        assert (await probes.ask(way)).cluster == "fake"
        await until(lambda: not client._session.probes._asking)
        assert not way.is_closed
        node.answers = False  # type: ignore[attr-defined]
        with pytest.raises(DeadlineExceededError):
            await probes.ask(way)
        assert way.is_closed
        # No more than a question at a time, and none on a way that is closed.
        client._session.probes.start(way)
        assert not client._session.probes._asking


async def test_who_is_busy_with_other_answers_is_not(hushed: FakeNode) -> None:
    async with served(hushed) as (node, client), client.producer("s") as producer:
        way = await client._session.connect("local/p0")
        node.answers = False  # type: ignore[attr-defined]
        async with trio.open_nursery() as nursery:
            client._session.probes.start(way)
            client._session.probes.start(way)
            assert len(client._session.probes._asking) == 1
            nursery.start_soon(producer.send, b"0")
            await until(lambda: not client._session.probes._asking)
        assert not way.is_closed
