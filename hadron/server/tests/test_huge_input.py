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
    forward_pb2,
    groups_pb2,
    method,
    schema_pb2,
    streams_pb2,
)

LONG = "\0" * 1_500_000
"""Its `repr` is four times as long: over what fits into a frame."""

Name = schema_pb2.DeleteObjectsRequest.Name
Open = groups_pb2.SubscribeRequest.Open

REQUESTS: dict[str, tuple[str, Any]] = {
    "a group to join": (
        "Subscribe", groups_pb2.SubscribeRequest(open=Open(stream="events", group=LONG))
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
    "where to reset": (
        "ResetGroup", groups_pb2.ResetGroupRequest(stream="events", group="g", to=LONG)
    ),
    "a group to delete": (
        "DeleteGroup", groups_pb2.DeleteGroupRequest(stream="events", group=LONG)
    ),
    "a stream of groups": ("ListGroups", groups_pb2.ListGroupsRequest(stream=LONG)),
    "a stream": ("Produce", streams_pb2.ProduceRequest(stream=LONG)),
    "an object to delete": (
        "DeleteObjects", schema_pb2.DeleteObjectsRequest(names=[Name(kind="Stream", name=LONG)])
    ),
    "an object to apply": (
        "ApplySchema",
        schema_pb2.ApplySchemaRequest(objects=[schema_pb2.SchemaObject(kind=LONG, name="x")]),
    ),
    "a cluster that pushes": ("AdoptSchema", schema_pb2.AdoptSchemaRequest(cluster=LONG)),
    "a set to forward to": (
        "Forward", forward_pb2.ForwardRequest(replica_set=LONG, method=method("Fetch").number)
    ),
    "a node to ask": ("Status", cluster_pb2.StatusRequest(replica_set=LONG, node="n1")),
    "a cluster that discovers": (
        "Discover", cluster_pb2.DiscoverRequest(speaker=cluster_pb2.Speaker(cluster=LONG))
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
