"""Who waits for a cluster is told for what: once, and not for what passes quickly."""

from __future__ import annotations

import logging

import pytest
import trio

from hadron.client import connect, sender, session
from hadron.client.tests.fake_node import FakeNode
from hadron.client.tests.support import served
from hadron.model.errors import NotReadyError, PeerError


@pytest.fixture
def told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    """What is logged as a warning, which a command shows by itself."""
    for module in (session, sender):
        monkeypatch.setattr(module, "TELL_AFTER_S", 0.1)
    caplog.set_level(logging.WARNING)
    return caplog


async def serve(
    node: FakeNode, task_status: trio.TaskStatus[tuple[str, trio.CancelScope]]
) -> None:
    """Listen until the scope is cancelled."""
    with trio.CancelScope() as scope:
        async with node.listen() as url:
            task_status.started((url, scope))
            await trio.sleep_forever()


async def test_a_request_without_a_leader(
    told: pytest.LogCaptureFixture, nursery: trio.Nursery
) -> None:
    node = FakeNode()
    url, serving = await nursery.start(serve, node)
    async with connect(url, request_timeout_s=1.0) as client:
        await client.objects()
        assert told.messages == []
        serving.cancel()
        with pytest.raises(PeerError):
            await client.objects()
    (message,) = told.messages
    assert "s more: " in message
    assert node.address in message


async def test_records_without_a_leader(told: pytest.LogCaptureFixture) -> None:
    async with served() as (node, client), client.producer("s") as producer:
        node.refusals.append(NotReadyError("starting"))
        await producer.send(b"0")
        assert told.messages == [], "too short to be worth a word"
        node.refusals.extend([NotReadyError("no majority")] * 6)
        await producer.send(b"1")
        (message,) = told.messages
        assert message == "waiting to send to local/p0 (1 unsent or unconfirmed): no majority"
        # The next outage is another one.
        node.refusals.extend([NotReadyError("no majority again")] * 6)
        await producer.send(b"2")
        assert len(told.messages) == 2
