"""What members say and are told, between the wire and the port of a group's leader."""

from __future__ import annotations

from typing import Any

import pytest

from hadron.delivery.effects import Assignment
from hadron.delivery.port import (
    Ack,
    DeliveryRange,
    Extend,
    Flow,
    Heartbeat,
    MemberSink,
    Nack,
    Opened,
    Said,
)
from hadron.model.batch import StampedBatch
from hadron.model.errors import FrameError, RequestError
from hadron.model.ids import Ballot
from hadron.model.transactions import TransactionId
from hadron.server.groups.messages import CallSink, said_of
from hadron.serving.tests.stack import FakeCall
from hadron.state.groups.progress import ORDER_KEY, GroupOptions
from hadron.wire.messages import common_pb2, groups_pb2

Request, Event = groups_pb2.SubscribeRequest, groups_pb2.SubscribeEvent
ITEM = groups_pb2.Range(delivery=7, first_offset=3, last_offset=5)

SAID: list[tuple[dict[str, Any], Said]] = [
    ({"ack": Request.Ack(ranges=[ITEM], confirmation=9)}, Ack([DeliveryRange(7, 3, 5)], 9)),
    (
        {"ack": Request.Ack(ballot=common_pb2.Ballot(epoch=1, incarnation=2))},
        Ack([], 0, Ballot(1, 2)),
    ),
    (
        {"nack": Request.Nack(ranges=[ITEM], reason="no")},
        Nack([DeliveryRange(7, 3, 5)], None, "no"),
    ),
    ({"nack": Request.Nack(delay_ms=0)}, Nack([], 0.0)),
    ({"nack": Request.Nack(delay_ms=1_500, unseen=True)}, Nack([], 1.5, "", True)),
    ({"extend": Request.Extend(ranges=[ITEM])}, Extend([DeliveryRange(7, 3, 5)])),
    ({"heartbeat": Request.Heartbeat()}, Heartbeat()),
    ({"flow": Request.Flow(max_in_flight=4)}, Flow(4)),
]


@pytest.mark.parametrize(("message", "said"), SAID)
def test_what_a_member_says(message: dict[str, Any], said: Said) -> None:
    heard = said_of(Request.FromString(Request(**message).SerializeToString()))
    assert (type(heard), heard) == (type(said), said)


def test_a_member_opens_once() -> None:
    for message in (Request(open=Request.Open()), Request()):
        with pytest.raises(RequestError, match="opened twice"):
            said_of(message)


def test_a_ballot_that_no_node_makes() -> None:
    ballot = common_pb2.Ballot(epoch=1 << 63)
    with pytest.raises(FrameError, match="out of range"):
        said_of(Request(ack=Request.Ack(ballot=ballot)))


class TestCallSink:
    def told(self) -> tuple[MemberSink, FakeCall]:
        call: Any = FakeCall()
        return CallSink(call), call

    def test_the_opening_names_every_option(self) -> None:
        sink, call = self.told()
        sink.open(
            Opened(
                Ballot(2, 3), 17, GroupOptions(ORDER_KEY, 9_000, 2, 4), "letters", True, (1, 2, 30)
            )
        )
        opened = call.sent[0][0].opened
        assert (opened.ballot.epoch, opened.ballot.incarnation, opened.floor) == (2, 3, 17)
        assert [value for _, value in opened.options.ListFields()] == [2, 9_000, 2, "letters", True]
        fence = opened.fence
        assert (fence.ballot.epoch, fence.ballot.incarnation, fence.delivery) == (1, 2, 30)

    def test_a_plain_group_has_every_option_set_too(self) -> None:
        sink, call = self.told()
        sink.open(Opened(Ballot(1, 1), 0, GroupOptions(), "", False, (0, 0, 0)))
        options = call.sent[0][0].opened.options
        assert all(options.HasField(field.name) for field in options.DESCRIPTOR.fields)

    def test_nothing_of_a_delivery_stays_in_the_next_one(self) -> None:
        """One message says them all, and batches that are not attached have no length."""
        sink, call = self.told()
        one, other = (
            StampedBatch(0, 3, 11, 1, 2, b"abc"),
            StampedBatch(3, 1, 12, 1, 3, memoryview(b"de")),
        )
        sink.deliver(Assignment(1, 50, 0, 1, 1), one, attach=True)
        sink.deliver(Assignment(1, 51, 2, 2, 4, ends_batch=True), one, attach=False)
        sink.deliver(Assignment(1, 52, 3, 3, 1), other, attach=True)
        told = [
            (each.delivery, each.first_offset, each.last_offset, each.attempt, each.ends_batch)
            for each in (message.delivery for message, _ in call.sent)
        ]
        assert told == [(50, 0, 1, 1, False), (51, 2, 2, 4, True), (52, 3, 3, 1, False)]
        batches = [
            (info.base_offset, info.count, info.append_ms, info.ballot.incarnation, info.length)
            for info in (message.delivery.batch for message, _ in call.sent)
        ]
        assert batches == [(0, 3, 11, 2, 3), (0, 3, 11, 2, 0), (3, 1, 12, 3, 2)]
        assert [data for _, data in call.sent] == [b"abc", b"", b"de"]

    def test_what_became_of_records(self) -> None:
        sink, call = self.told()
        sink.confirm(9, [DeliveryRange(7, 3, 5)], 17)
        sink.revoke([DeliveryRange(7, 3, 3), DeliveryRange(7, 5, 5)], "ack deadline")
        sink.tell_conflict(DeliveryRange(7, 4, 4), TransactionId("local/p1", 1, 7, 1))
        sink.end_batch()
        sink.beat()
        assert [message for message, _ in call.sent] == [
            Event(acked=Event.Acked(confirmation=9, refused=[ITEM], floor=17)),
            Event(
                revoked=Event.Revoked(
                    ranges=[
                        groups_pb2.Range(delivery=7, first_offset=3, last_offset=3),
                        groups_pb2.Range(delivery=7, first_offset=5, last_offset=5),
                    ],
                    reason="ack deadline",
                )
            ),
            Event(
                conflict=Event.Conflict(
                    ranges=[groups_pb2.Range(delivery=7, first_offset=4, last_offset=4)],
                    transaction=str(TransactionId("local/p1", 1, 7, 1)),
                )
            ),
            Event(batch_end=Event.BatchEnd()),
            Event(heartbeat=Event.Heartbeat()),
        ]

    def test_writable_and_failed_as_its_call_is(self) -> None:
        sink, call = self.told()
        times: list[int] = []
        sink.on_writable = lambda: times.append(1)
        call.on_writable()
        call.writable = False
        assert (times, sink.writable) == ([1], False)
        sink.fail(RequestError("go"))
        assert str(call.failure) == "go"
