"""What a leader says of groups that somebody wants to change (PROTOCOL A2)."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from hadron.model.errors import NotFoundError, PeerError
from hadron.testing.nodes import running_nodes
from hadron.wire.messages import groups_pb2, method

_REQUESTS: dict[str, Any] = {
    "ResetGroup": groups_pb2.ResetGroupRequest(stream="none", group="g", to="earliest"),
    "DeleteGroup": groups_pb2.DeleteGroupRequest(stream="none", group="g"),
    "DescribeGroup": groups_pb2.DescribeGroupRequest(stream="none", group="g"),
}


@pytest.mark.parametrize("name", _REQUESTS)
async def test_that_there_is_no_stream_is_said_with_a_majority_only(
    tmp_path: Path, clock: MockClock, name: str
) -> None:
    """Another leader may have it since long."""
    async with running_nodes(tmp_path, 3) as nodes, nodes.connection("n1") as connection:
        with pytest.raises(NotFoundError, match="stream 'none' does not exist"):
            await connection.request(method(name), _REQUESTS[name], timeout_s=30)
        await nodes.crash("n2", "n3")
        with pytest.raises(PeerError):
            await connection.request(method(name), _REQUESTS[name], timeout_s=30)
