"""Requests with absurd names and numbers: an error that says so in a few words, and nobody else on
the same connection notices."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from hadron.model.errors import HadronError
from hadron.node.tests.support import fetch
from hadron.server.tests.test_bad_input import one_node
from hadron.wire.messages import (
    cluster_pb2,
    common_pb2,
    exchanges_pb2,
    forward_pb2,
    groups_pb2,
    method,
    schema_pb2,
    sinks_pb2,
    streams_pb2,
    transactions_pb2,
)

LONG = "\0" * 1_500_000
"""Its `repr` is four times as long: over what fits into a frame."""

Name = schema_pb2.DeleteObjectsRequest.Name
Open = groups_pb2.SubscribeRequest.Open

REQUESTS: dict[str, tuple[str, Any]] = {
    "a group to join": (
        "Subscribe",
        groups_pb2.SubscribeRequest(open=Open(stream="events", group=LONG)),
    ),
    "a start": (
        "Subscribe",
        groups_pb2.SubscribeRequest(
            open=Open(stream="events", group="g", start=LONG, max_in_flight=1)
        ),
    ),
    "a group": ("DescribeGroup", groups_pb2.DescribeGroupRequest(stream="events", group=LONG)),
    "a group to reset": (
        "ResetGroup",
        groups_pb2.ResetGroupRequest(stream="events", group=LONG, to="earliest"),
    ),
    "a group to create": (
        "ResetGroup",
        groups_pb2.ResetGroupRequest(stream="events", group=LONG, to="earliest", create=True),
    ),
    "where to reset": (
        "ResetGroup",
        groups_pb2.ResetGroupRequest(stream="events", group="g", to=LONG),
    ),
    "a group to delete": (
        "DeleteGroup",
        groups_pb2.DeleteGroupRequest(stream="events", group=LONG),
    ),
    "a stream of groups": ("ListGroups", groups_pb2.ListGroupsRequest(stream=LONG)),
    "a stream": ("Produce", streams_pb2.ProduceRequest(stream=LONG)),
    "an object to delete": (
        "DeleteObjects",
        schema_pb2.DeleteObjectsRequest(names=[Name(kind="Stream", name=LONG)]),
    ),
    "an object to apply": (
        "ApplySchema",
        schema_pb2.ApplySchemaRequest(objects=[schema_pb2.SchemaObject(kind=LONG, name="x")]),
    ),
    "a cluster that pushes": ("AdoptSchema", schema_pb2.AdoptSchemaRequest(cluster=LONG)),
    "a set to forward to": (
        "Forward",
        forward_pb2.ForwardRequest(replica_set=LONG, method=method("Fetch").number),
    ),
    "a node to ask": ("Status", cluster_pb2.StatusRequest(replica_set=LONG, node="n1")),
    "a cluster that discovers": (
        "Discover",
        cluster_pb2.DiscoverRequest(speaker=cluster_pb2.Speaker(cluster=LONG)),
    ),
}


@pytest.mark.parametrize("name", list(REQUESTS))
async def test_a_text_as_long_as_a_frame(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """The error that repeats it fits into no frame: that must not end the connection, on which a
    node that forwards has the calls of others."""
    what, request = REQUESTS[name]
    async with one_node(tmp_path, caplog) as (_, connection):
        with pytest.raises(HadronError) as caught:
            await connection.request(method(what), request, timeout_s=10)
        assert len(caught.value.message) + len(caught.value.hint) < 140_000
        assert await fetch(connection) == [b"good"]


HUGE, HUGE32 = (1 << 64) - 1, (1 << 32) - 1
Options = groups_pb2.GroupOptions
Subscribe = groups_pb2.SubscribeRequest

OPENINGS: dict[str, tuple[Any, str]] = {
    "no window": (Open(), "max_in_flight is 0"),
    "a window": (Open(max_in_flight=HUGE32), f"max_in_flight is {HUGE32}"),
    "an offset to resume at": (Open(max_in_flight=1, resume_offset=HUGE), f"offset {HUGE}"),
    "a heartbeat": (Open(max_in_flight=1, heartbeat_interval_ms=HUGE32), f"{HUGE32}"),
    "a threshold": (Open(max_in_flight=1, heartbeat_threshold=HUGE32), f"{HUGE32}"),
    "a batch": (Open(max_in_flight=1, batch_size=HUGE32), f"batch_size is {HUGE32}"),
    "a wait": (Open(max_in_flight=1, batch_wait_ms=HUGE32), f"batch_wait_ms is {HUGE32}"),
    "a deadline": (
        Open(max_in_flight=1, options=Options(ack_deadline_ms=HUGE)),
        f"ack_deadline_ms is {HUGE}",
    ),
    "attempts": (
        Open(max_in_flight=1, options=Options(max_attempts=HUGE32)),
        f"max_attempts is {HUGE32}",
    ),
    "a stream by id": (Open(max_in_flight=1, stream_id=HUGE), f"the id {HUGE}"),
    "an index": (Open(max_in_flight=1, stream_id=HUGE, metadata_index=HUGE), f"at {HUGE}"),
}


@pytest.mark.parametrize("name", list(OPENINGS))
async def test_a_membership_with_an_absurd_number(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    opening, says = OPENINGS[name]
    opening.group = "g"
    if not opening.stream_id:
        opening.stream = "events"
    async with one_node(tmp_path, caplog) as (_, connection):
        with pytest.raises(HadronError, match=says):
            await connection.request(method("Subscribe"), Subscribe(open=opening), timeout_s=10)


def _range(first: int, last: int, delivery: int = HUGE) -> groups_pb2.Range:
    return groups_pb2.Range(delivery=delivery, first_offset=first, last_offset=last)


BALLOT = common_pb2.Ballot(epoch=1, incarnation=1)

MESSAGES: dict[str, tuple[Any, str]] = {
    "a range the wrong way round": (
        Subscribe(ack=Subscribe.Ack(ranges=[_range(5, 1)])),
        "5 to 1 are no range",
    ),
    "more ranges than are dealt with at once": (
        Subscribe(ack=Subscribe.Ack(ranges=[_range(0, 0, 1)] * 10_001)),
        "more than 10000",
    ),
    "a ballot": (
        Subscribe(ack=Subscribe.Ack(ranges=[_range(0, 0)], ballot=common_pb2.Ballot(epoch=HUGE))),
        f"epoch {HUGE}",
    ),
    "a window": (Subscribe(flow=Subscribe.Flow(max_in_flight=HUGE32)), f"{HUGE32}"),
    "a second opening": (Subscribe(open=Open()), "opened twice"),
    "nothing": (Subscribe(), "opened twice"),
    "an acknowledgement of everything": (
        Subscribe(ack=Subscribe.Ack(ranges=[_range(0, HUGE)], confirmation=HUGE)),
        "",
    ),
    "a late one": (
        Subscribe(ack=Subscribe.Ack(ranges=[_range(0, HUGE, 0)], confirmation=1, ballot=BALLOT)),
        "",
    ),
    "a delay and a reason": (
        Subscribe(nack=Subscribe.Nack(ranges=[_range(0, 0, 1)], delay_ms=HUGE32, reason=LONG)),
        "",
    ),
    "more time": (Subscribe(extend=Subscribe.Extend(ranges=[_range(0, HUGE)])), ""),
}


@pytest.mark.parametrize("name", list(MESSAGES))
async def test_a_member_that_says_something_absurd(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """It is refused, or changes nothing: the record is there for the next member."""
    message, says = MESSAGES[name]
    opening = Subscribe(open=Open(stream="events", group="g", max_in_flight=1))
    async with one_node(tmp_path, caplog) as (nodes, connection):
        async with connection.open_stream(method("Subscribe"), opening) as member:
            kinds = []
            while "delivery" not in kinds:
                event = await member.receive()
                assert event is not None
                kinds.append(event[0].WhichOneof("kind"))
            await member.send(message)
            if says:
                with pytest.raises(HadronError, match=says):
                    await member.receive()
            else:
                await member.send(Subscribe(heartbeat=Subscribe.Heartbeat()))
                while (event := await member.receive()) is not None:
                    if event[0].WhichOneof("kind") == "heartbeat":
                        break
        async with nodes.client() as client:
            (group,) = await client.groups()
            assert (group.floor, group.acknowledged_above) == (0, 0)


NUMBERS: dict[str, tuple[str, Any, str]] = {
    "groups behind a stream": (
        "ListGroups",
        groups_pb2.ListGroupsRequest(after_stream_id=HUGE),
        f"stream id {HUGE}",
    ),
    "so many groups": ("ListGroups", groups_pb2.ListGroupsRequest(limit=HUGE32), ""),
    "so many objects": ("GetObjects", schema_pb2.GetObjectsRequest(limit=HUGE32), ""),
    "objects behind an id": ("GetObjects", schema_pb2.GetObjectsRequest(after_id=HUGE), ""),
    "a group of a stream by id": (
        "DescribeGroup",
        groups_pb2.DescribeGroupRequest(stream_id=HUGE, group="g"),
        f"{HUGE}",
    ),
    "changes since an index": (
        "WatchSchema",
        schema_pb2.WatchSchemaRequest(from_index=HUGE),
        f"{HUGE}",
    ),
    "a method to forward": ("Forward", forward_pb2.ForwardRequest(method=HUGE32), f"{HUGE32}"),
}


@pytest.mark.parametrize("name", list(NUMBERS))
async def test_an_absurd_number(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    what, request, says = NUMBERS[name]
    async with one_node(tmp_path, caplog) as (_, connection):
        if says:
            with pytest.raises(HadronError, match=says):
                await connection.request(method(what), request, timeout_s=10)
        else:
            await connection.request(method(what), request, timeout_s=10)


Attend, Transact = exchanges_pb2.AttendRequest, transactions_pb2.TransactRequest
Statement = transactions_pb2.Statement
MANY = 1_001

CROWDED: dict[str, tuple[str, Any, Any, str]] = {
    "subscriptions": (
        "Attend",
        Attend(open=Attend.Open(exchange="x")),
        Attend(subscribe=Attend.Subscribe(subscriptions=[Attend.Subscription()] * MANY)),
        "1001 subscriptions",
    ),
    "ended subscriptions": (
        "Attend",
        Attend(open=Attend.Open(exchange="x")),
        Attend(unsubscribe=Attend.Unsubscribe(ids=range(MANY))),
        "1001 ended subscriptions",
    ),
    "gaps": (
        "Attend",
        Attend(open=Attend.Open(exchange="x")),
        Attend(dropped=exchanges_pb2.Missed(gaps=[exchanges_pb2.Missed.Gap()] * MANY)),
        "1001 gaps",
    ),
    "transactions": (
        "Transact",
        Transact(),
        Transact(parts=[Transact.Part()] * MANY),
        "1001 transactions",
    ),
    "transactions that share statements": (
        "Transact",
        Transact(),
        Transact(parts=[Transact.Part(records=[1] * 100)] * 11),
        "1100 transactions",
    ),
    "statements": (
        "Transact",
        Transact(),
        Transact(parts=[Transact.Part(statements=[Statement()] * 500)] * 2),
        "1002 transactions and statements",
    ),
    "acknowledged ranges": (
        "Transact",
        Transact(),
        Transact(
            parts=[
                Transact.Part(
                    statements=[
                        Statement(acknowledge=Statement.Acknowledge(ranges=[_range(0, 0)] * 5_000))
                    ]
                    * 2
                )
            ]
        ),
        "1003 transactions and statements",
    ),
    "staged batches": ("Stage", sinks_pb2.StageRequest(lengths=[1] * MANY), None, "1001 batches"),
}


@pytest.mark.parametrize("name", list(CROWDED))
async def test_a_small_message_that_asks_for_much(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """It would hold the leader's loop for as long as all of it takes (BOUNDS W1)."""
    what, opening, message, says = CROWDED[name]
    async with one_node(tmp_path, caplog) as (nodes, connection):
        async with nodes.client() as client:
            await client.apply({"kind": "Exchange", "name": "x", "replica_set": nodes.config.name})
            item = await client.stream("events")
        if message is None:
            opening.stream_id = item.id
            with pytest.raises(HadronError, match=says):
                await connection.request(method(what), opening, timeout_s=10)
            return
        async with connection.open_stream(method(what), opening) as stream:
            if what == "Attend":
                await stream.receive()
            await stream.send(message)
            # Behind what the opening is answered with, by some.
            with pytest.raises(HadronError, match=says):  # noqa: PT012
                while await stream.receive():
                    pass
