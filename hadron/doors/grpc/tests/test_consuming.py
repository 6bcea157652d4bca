"""What one Subscribe call holds, and what its leader takes back."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from hadron.client.consuming.subscription import Subscription
from hadron.doors.grpc import consuming
from hadron.doors.grpc.consuming import Member
from hadron.doors.grpc.rpc import Talk
from hadron.model.errors import RequestError
from hadron.model.limits import SUBSCRIPTION_BATCH_MEMORY
from hadron.model.record_batch import RecordBatch
from hadron.testing.nodes import Nodes
from hadron.wire._pb import groups_pb2
from hadron.wire._pb import records_pb2 as pb
from hadron.wire.framed_calls import FramedCall


class Heard:
    """Notes what a member is handed; `sent` has ids and offsets. Its program says what is in
    `said`."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int]] = []
        self.said: list[bytes] = []

    async def send(self, data: bytes) -> None:
        delivery = pb.ConsumeEvent.FromString(data).delivery
        self.sent.append((delivery.id, delivery.record.offset))

    async def receive(self) -> bytes | None:
        return self.said.pop(0) if self.said else None

    async def until(self, count: int) -> None:
        with trio.fail_after(10):
            while len(self.sent) < count:  # noqa: ASYNC110 - the door has no event for it
                await trio.sleep(0.01)


@asynccontextmanager
async def consumed(
    directory: Path, **options: Any
) -> AsyncIterator[tuple[Member, Heard, Subscription]]:
    """Two records, and a member that may hold two at a time."""
    async with trio.open_nursery() as nursery:
        nodes = Nodes(directory, 1, nursery)
        await nodes.start()
        await nodes.wait_serving()
        async with nodes.client() as client:
            await client.create_stream("s")
            for value in ("a", "b"):
                await client.send("s", value)
            heard = Heard()
            member = Member(cast(Talk, heard), client)
            async with client.subscribe("s", group="g", **options) as subscription:
                subscription._consumer.on_gone = member.gone
                nursery.start_soon(member.deliver, subscription)
                await heard.until(2)
                yield member, heard, subscription
                nursery.cancel_scope.cancel()


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consuming, "MAX_IN_FLIGHT", 2)


async def test_what_is_taken_back_by_a_deadline_makes_room(tmp_path: Path) -> None:
    async with consumed(tmp_path, ack_deadline_s=0.5) as (member, heard, subscription):
        await heard.until(4)
        assert heard.sent == [(1, 0), (2, 1), (3, 0), (4, 1)]
        # It had them last, so a late acknowledgement counts.
        for each in member.take([1, 4]):
            await each.ack()
        await subscription.flush()
        with pytest.raises(RequestError, match="delivery 1 was acknowledged before"):
            member.take([1])
        assert len(member._out) + len(member._gone) == len(heard.sent) - 2


async def test_what_a_lost_connection_has_brought_makes_room(tmp_path: Path) -> None:
    async with consumed(tmp_path) as (member, heard, subscription):
        [membership] = subscription._consumer._memberships.values()
        [connection] = [link.connection for link in subscription._consumer._session._links.values()]
        assert connection is not None
        connection.close()
        await heard.until(4)
        assert [offset for _, offset in heard.sent] == [0, 1, 0, 1]
        assert sorted(member._out) == [3, 4]
        for each in member.take([3, 4]):
            await each.ack()
        await subscription.flush()
        assert membership.is_open
        assert not member._out
        assert not member._places


async def test_no_more_is_kept_of_what_was_taken_back_than_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consuming, "_MAX_GONE", 3)
    async with consumed(tmp_path, ack_deadline_s=0.2) as (member, heard, _):
        await heard.until(8)
        assert len(member._gone) <= 3
        with pytest.raises(RequestError, match=r"delivery 1 was acknowledged .* or taken back"):
            member.take([1])
        with pytest.raises(RequestError, match="delivery 99 was never handed out"):
            member.take([99])


def batches() -> int:
    """Decoded ones, in this process."""
    gc.collect()
    return sum(isinstance(each, RecordBatch) for each in gc.get_objects())


async def test_what_is_out_keeps_no_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member may have 100,000 deliveries, each from a batch of 1 MiB."""
    monkeypatch.setattr(consuming, "MAX_IN_FLIGHT", 100)
    before = batches()
    async with consumed(tmp_path) as (member, heard, subscription):
        for _ in range(50):
            await member.client.send("s", bytes(1_000))
        await heard.until(52)
        assert len(member._out) == 52
        # Those that a call's two sides remember, and the last one.
        assert batches() - before <= SUBSCRIPTION_BATCH_MEMORY + 1
        first, *others = member.take(range(1, 53))
        await first.nack(0)
        for each in others:
            await each.ack()
        await subscription.flush()
        await heard.until(53)
        assert heard.sent[-1] == (53, 0)


async def test_who_names_much_in_a_request_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consuming, "MAX_IN_FLIGHT", 2_000)
    sent: list[groups_pb2.SubscribeRequest] = []
    send = FramedCall.send

    def note(call: FramedCall, message: Any, *others: Any, **more: Any) -> None:
        if isinstance(message, groups_pb2.SubscribeRequest):
            sent.append(message)
        send(call, message, *others, **more)

    async def count(turns: list[None]) -> None:
        while True:
            turns.append(None)
            await trio.lowlevel.checkpoint()

    async with consumed(tmp_path, max_in_flight=2_000) as (member, heard, subscription):
        async with member.client.producer("s") as producer:
            await producer.send_many([b"x"] * 998)
        await heard.until(1_000)
        monkeypatch.setattr(FramedCall, "send", note)
        ids = list(range(1, 1_001))
        for said in (
            pb.ConsumeRequest(extend=pb.ConsumeRequest.Extend(ids=ids * 10)),
            pb.ConsumeRequest(nack=pb.ConsumeRequest.Nack(ids=ids, reason="x" * (1 << 20))),
        ):
            turns: list[None] = []
            sent.clear()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(count, turns)
                heard.said = [said.SerializeToString()]
                await member.listen(subscription)
                nursery.cancel_scope.cancel()
            assert len(sent) <= len(ids) + 1
            assert len(turns) > len(ids) // 200
            assert max(len(each.nack.reason) for each in sent) <= 500


@pytest.mark.parametrize("kind", ["Ack", "Nack", "Extend"])
async def test_a_request_names_ten_thousand_deliveries_at_most(tmp_path: Path, kind: str) -> None:
    async with consumed(tmp_path) as (member, heard, subscription):
        of_kind = getattr(pb.ConsumeRequest, kind)
        said = pb.ConsumeRequest(**{kind.lower(): of_kind(ids=[1] * 10_001)})
        heard.said = [said.SerializeToString()]
        with pytest.raises(RequestError, match="10001 deliveries in one message") as refused:
            await member.listen(subscription)
        assert refused.value.hint == "send them in several messages"
        said = pb.ConsumeRequest(**{kind.lower(): of_kind(ids=[1] * 10_000)})
        heard.said = [said.SerializeToString()]
        await member.listen(subscription)
        with pytest.raises(RequestError, match="10001 deliveries in one message"):
            member.claim([2] * 10_001)
