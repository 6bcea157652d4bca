"""Who waits for a cluster is told for what, once, and not for what passes quickly; and looks around
meanwhile."""

from __future__ import annotations

import logging
import re
import time

import pytest
import trio
import trio.testing

from hadron.client import connect
from hadron.client.connecting import outages, session
from hadron.client.connecting.ports import ClientPorts
from hadron.client.producing import sender
from hadron.client.tests.fake_node import FakeNode
from hadron.client.tests.support import served, until
from hadron.model.errors import (
    DeadlineExceededError,
    DiskFullError,
    NotReadyError,
    OutcomeUnknownError,
    PeerError,
)
from hadron.wire.system import SystemRandom


@pytest.fixture
def told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    """What is logged as a warning, which a command shows by itself."""
    for module in (session, sender, outages):
        monkeypatch.setattr(module, "TELL_AFTER_S", 0.1)
    caplog.set_level(logging.WARNING)
    return caplog


async def serve(
    node: FakeNode,
    address: str = "127.0.0.1:0",
    *,
    task_status: trio.TaskStatus[tuple[str, trio.CancelScope]],
) -> None:
    """Listen until the scope is cancelled."""
    with trio.CancelScope() as scope:
        async with node.listen(address) as url:
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


@pytest.mark.long
async def test_records_without_a_leader(told: pytest.LogCaptureFixture) -> None:
    async with served() as (node, client), client.producer("s") as producer:
        node.refusals.append(NotReadyError("starting"))
        await producer.send(b"0")
        assert told.messages == [], "too short to be worth a word"
        node.refusals.extend([NotReadyError("no majority")] * 6)
        await producer.send(b"1")
        message, back = told.messages
        assert message == "waiting to send to local/p0 (1 unsent or unconfirmed): no majority"
        assert back == "records for local/p0 are sent again"
        # The next outage is another one.
        node.refusals.extend([NotReadyError("no majority again")] * 6)
        await producer.send(b"2")
        assert len(told.messages) == 4


async def test_a_loop_that_stood_still_is_told_once(
    told: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what blocks it, or because the process or its machine was stopped."""
    monkeypatch.setattr(outages, "_STILL_S", 0.3)
    async with served():
        await trio.testing.wait_all_tasks_blocked()
        time.sleep(0.6)  # noqa: ASYNC251 - that is what it is about
        await until(lambda: bool(told.messages))
        await trio.sleep(0.3)
        (message,) = told.messages
        assert message.startswith("this program's event loop stood still for ")


class _WholePauses(SystemRandom):
    def uniform(self, low: float, high: float) -> float:
        return max(low, high)


@pytest.mark.usefixtures("told")
async def test_a_leader_whose_disk_is_full_gives_its_own_hint_and_every_record_is_counted() -> None:
    full = DiskFullError("the disk has room for 1KiB", "make room on that disk")
    # Tries 20, 60, 140, 300 and 620 ms after the first: none is under way when time is up, of which
    # nobody would know.
    ports = ClientPorts(random=_WholePauses())
    async with (
        served(ports=ports) as (node, client),
        client.producer("s", delivery_timeout_s=0.5, batch_bytes=4_000) as producer,
    ):
        node.refusals.extend([None, None, *[full] * 10_000])
        with pytest.raises(DeadlineExceededError) as caught:
            await producer.send_many([b"%d" % number * 100 for number in range(200)])
        assert caught.value.message.startswith("not sent, and not in the log: ")
        assert caught.value.hint == "make room on that disk"
        fates = caught.value.fates
        assert fates is not None
        there = node.partition("s", "local/p0").next_offset
        assert (fates.published, fates.unknown, fates.lost) == (there, 0, 200 - there)
        assert 0 < there < 200
        # Of what was sent and not answered nobody knows.
        node.refusals.clear()
        node.hold_answers = True
        with pytest.raises(OutcomeUnknownError) as unknown:
            await producer.send_many([b"last"])
        assert unknown.value.fates == (0, 1, 0)


async def test_a_silent_leader(told: pytest.LogCaptureFixture) -> None:
    """It is cut off from its peers: the connection is whole, and nothing is answered."""
    async with served() as (node, client), client.producer("s") as producer:
        node.hold_answers = True
        pending = await producer.send_soon(b"0")
        await until(lambda: bool(told.messages))
        (message,) = told.messages
        node.release_answers()
        # It does not know why: what the leader waits for, only the leader can tell.
        assert re.fullmatch(
            r"waiting to send to local/p0 \(1 unsent or unconfirmed\): the leader has not answered "
            r"for \d s; `hadron status` says what it waits for",
            message,
        )
        await pending.wait()


async def test_a_block_that_fails_tells_what_became_of_its_records(
    told: pytest.LogCaptureFixture,
) -> None:
    async with served() as (node, client):

        async def interrupted() -> None:
            async with client.producer("s", delivery_timeout_s=0.5) as producer:
                node.hold_answers = True
                await producer.send_soon(b"0")
                await until(lambda: bool(told.messages))
                raise KeyError("the user's own")

        with pytest.raises(KeyError):
            await interrupted()
        assert told.messages[1].startswith(
            "1 record to s/local/p0 may or may not be in the log: the delivery timeout passed"
        )


@pytest.mark.long
async def test_partitions_that_readers_wait_for(
    told: pytest.LogCaptureFixture, nursery: trio.Nursery
) -> None:
    """Members and plain readers have records of other partitions meanwhile: nothing else tells."""
    node = FakeNode()
    url, serving = await nursery.start(serve, node)
    async with (
        connect(url) as client,
        client.subscribe("s", group="g", start="earliest") as subscription,
    ):
        reader = client.read("s", follow=True)
        async with client.producer("s") as producer:
            await producer.send(b"0")
        assert (await anext(reader)).value == (await anext(subscription)).value == b"0"
        nursery.start_soon(anext, reader)
        assert told.messages == []
        serving.cancel()
        lost = f"nothing is read from local/p0: cannot connect to {node.address}"
        await until(lambda: sum(lost in each for each in told.messages) == 2)
        _, serving = await nursery.start(serve, node, node.address)
        await until(lambda: told.messages.count("local/p0 is read again") == 2)
        nursery.cancel_scope.cancel()


async def test_a_question_that_nobody_answers(told: pytest.LogCaptureFixture) -> None:
    node = FakeNode()
    node.on_groups = lambda *_: None  # type: ignore[method-assign]
    async with served(node, request_timeout_s=1.0) as (_, client):
        with pytest.raises(DeadlineExceededError):
            await client.groups("s")
    (message,) = told.messages
    assert message.startswith(f"waiting for {node.address} to answer; ")


@pytest.mark.parametrize("waits", [True, False])
async def test_another_leader_is_found(
    told: pytest.LogCaptureFixture, nursery: trio.Nursery, waits: bool
) -> None:
    """The old one keeps the connection and answers nothing; members and idle clients do not even
    ask it."""
    old, new = FakeNode(), FakeNode()
    await nursery.start(serve, new)
    url, _ = await nursery.start(serve, old)
    new.first_leader, new.logs = old, old.logs
    async with (
        connect(f"{url},{new.address}") as client,
        client.subscribe("s", group="g", start="earliest") as subscription,
        client.producer("s") as producer,
    ):
        await producer.send(b"to the old one")
        old.hold_answers = True
        if waits:
            pending = await producer.send_soon(b"0")
            await until(lambda: bool(told.messages))
        new.promoted = new
        await until(lambda: bool(new.groups))
        if waits:
            await pending.wait()
        else:
            await producer.send(b"0")
        assert (await anext(aiter(subscription))).value == b"to the old one"
        assert (await anext(aiter(subscription))).value == b"0"
    nursery.cancel_scope.cancel()


async def test_many_who_wait_for_the_same_are_told_of_once(
    told: pytest.LogCaptureFixture, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nobody says that a time has passed which has not."""
    node = FakeNode()
    monkeypatch.setattr(node, "on_objects", lambda *_silent: None)
    url, serving = await nursery.start(serve, node)
    async with connect(url, request_timeout_s=2.0) as client, trio.open_nursery() as asking:
        for _ in range(50):
            asking.start_soon(client.objects)
        await trio.sleep(1.7)
        asking.cancel_scope.cancel()
    first = [message.partition(" ")[0] for message in told.messages]
    assert first.count("trying") == 1
    # One for each try of a second.
    assert 1 <= first.count("waiting") <= 2
    assert "no answer from the leader of local/p0 yet" in told.text
    serving.cancel()
