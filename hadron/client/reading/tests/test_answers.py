"""Answers that make no sense: said so at once, not asked for again for ever."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from hadron.client.reading.calls import _split
from hadron.client.reading.prefetch import Prefetch
from hadron.client.tests.support import both, served
from hadron.model.batch_building import encode_values
from hadron.model.errors import PeerError
from hadron.wire.calls import AnyCall
from hadron.wire.messages import common_pb2, streams_pb2

BALLOT = common_pb2.Ballot(epoch=1, incarnation=1)
DATA = encode_values([b"a", b"b"], 1)


def answer(base_offset: int, count: int) -> streams_pb2.FetchResponse:
    return streams_pb2.FetchResponse(
        batches=[
            common_pb2.BatchInfo(
                base_offset=base_offset, count=count, length=len(DATA), ballot=BALLOT
            )
        ],
        next_offset=100,
    )


@pytest.mark.parametrize(("base", "count"), [(10, 0), (5, 2), (0, 10)])
def test_a_fetch_that_brings_what_comes_before(base: int, count: int) -> None:
    request = streams_pb2.FetchRequest(partition="local/p0", offset=10)
    with pytest.raises(PeerError, match="was asked for offset 10") as caught:
        _split(answer(base, count), memoryview(DATA), request)
    assert not caught.value.retryable


def test_batches_that_do_not_follow_each_other() -> None:
    both = answer(9, 2)
    both.batches.append(answer(9, 2).batches[0])
    request = streams_pb2.FetchRequest(partition="local/p0", offset=10)
    with pytest.raises(PeerError):
        _split(both, memoryview(DATA + DATA), request)


@both
async def test_a_reader_that_is_answered_with_what_comes_before() -> None:
    """It ends at the error; before, it asked for the same again and again."""
    async with served() as (node, client):
        async with client.producer("s") as producer:
            await producer.send_many([b"1", b"2", b"3"])
        asked = 0

        def say_the_same(call: AnyCall, _request: Any, _log: Any) -> None:
            nonlocal asked
            asked += 1
            call.send(answer(0, 2), [DATA], end=True)

        node._answer_fetch = say_the_same  # type: ignore[assignment,method-assign]
        with anyio.fail_after(10), pytest.raises(PeerError, match="asked for offset 2"):
            async for _ in client.read("s"):
                pass
        assert asked == 2


async def test_what_cannot_be_asked_is_told_by_the_very_question() -> None:
    """Nobody tells it a second time: who waited for that behind it waited for ever."""
    gone = PeerError("gone", retryable=False)

    class Refusing:
        def call(self, *_: Any, **__: Any) -> None:
            raise gone

    session: Any = SimpleNamespace(
        connection_now=lambda _: Refusing(),
        closed=None,
        request_timeout_s=8.0,
        ports=SimpleNamespace(random=None),
    )
    request = streams_pb2.FetchRequest(partition="local/p0")
    prefetch = Prefetch(session, request, stop=None, on_ready=lambda: None)
    with pytest.raises(PeerError, match="gone"):
        prefetch.take()
