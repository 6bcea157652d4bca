"""What another set's leader may answer to a pipeline's home: nothing else ends, or is passed over
(BOUNDS W5)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from hadron.model.batch import StampedBatch
from hadron.model.batch_building import encode_values
from hadron.model.errors import FencedError, FrameError, NotReadyError, PeerError, ShuttingDownError
from hadron.model.ids import NO_BALLOT
from hadron.node.pipelines.other_leaders import LeaderSource
from hadron.server.streams import batch_info
from hadron.wire.messages import Method, streams_pb2

THREE = encode_values([b"a", b"b", b"c"], 1)


def batch(base: int, count: int = 3, data: bytes = THREE) -> StampedBatch:
    return StampedBatch(base, count, 1, 1, 1, data)


def source(*batches: StampedBatch, more: bytes = b"", partitions: int = 1) -> LeaderSource:
    async def ask(what: Method, request: Any) -> tuple[Any, memoryview]:
        await trio.lowlevel.checkpoint()
        if what.name == "Offsets":
            assert request.confirmed, "a deposed leader's log may end before its successor's"
            there = streams_pb2.OffsetsResponse.Partition(next_offset=9)
            return streams_pb2.OffsetsResponse(partitions=[there] * partitions), memoryview(b"")
        answer = streams_pb2.FetchResponse(batches=map(batch_info, batches), next_offset=9)
        return answer, memoryview(b"".join(bytes(each.data) for each in batches) + more)

    return LeaderSource(ask, "other/p1", 1, 1)


async def test_what_follows_one_another_is_read() -> None:
    for batches in ((), (batch(3),), (batch(3), batch(6))):
        assert await source(*batches).read(4, NO_BALLOT) == list(batches)
    assert await source().end() == 9


@pytest.mark.parametrize(
    "there",
    [
        source(batch(5)),
        source(batch(1)),
        source(batch(3, 0)),
        source(batch(3, 2)),
        source(batch(3), batch(7)),
        source(batch(3), batch(3)),
        source(batch(1 << 63)),
        source(batch(3, 3, b"no batch")),
        source(batch(3), more=b"x"),
    ],
    ids=["above", "below", "nothing", "fewer", "gap", "again", "huge", "garbage", "more"],
)
async def test_nothing_else_is(there: LeaderSource) -> None:
    with pytest.raises(FrameError):
        await there.read(4, NO_BALLOT)


@pytest.mark.parametrize("partitions", [0, 2])
async def test_it_tells_of_one_partition(partitions: int) -> None:
    with pytest.raises(FrameError, match="not of one"):
        await source(partitions=partitions).end()


@pytest.mark.parametrize("reason", [FencedError("n2 leads"), ShuttingDownError("n1 stops")])
async def test_that_another_leadership_is_over_is_not_said_of_ones_own(reason: PeerError) -> None:
    """Consumers wait for good to be cancelled when their own is."""

    async def ask(_what: Method, _request: Any) -> tuple[Any, memoryview]:
        raise reason

    there = LeaderSource(ask, "other/p1", 1, 1)
    for question in (there.start(7), there.read(4, NO_BALLOT), there.end()):
        with pytest.raises(NotReadyError, match="leads other/p1 no more"):
            await question
