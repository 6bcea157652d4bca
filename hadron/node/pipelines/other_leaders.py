"""Reading partitions of other replica sets: on a connection for each, which goes to whoever the
directory names as the leader when it begins."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from hadron.metadata.pusher import ReplicaSets, Wires
from hadron.model.batch import StampedBatch, read_head
from hadron.model.errors import (
    CorruptionError,
    FencedError,
    FrameError,
    LogTruncatedError,
    NotReadyError,
    OffsetOutOfRangeError,
    ShuttingDownError,
    UnreachableError,
)
from hadron.model.ids import NO_BALLOT, Ballot
from hadron.node.other_sets import address_of
from hadron.pipelines.sources import READ_BYTES, Gap, RemoteSource
from hadron.wire.connection import Connection
from hadron.wire.dialing import dial, talk
from hadron.wire.messages import (
    Method,
    ballot_from,
    ballot_to,
    check_number,
    method,
    offsets_of,
    pipelines_pb2,
    streams_pb2,
)

_FETCH: Final = method("Fetch")
_OFFSETS: Final = method("Offsets")
_START: Final = method("PipelineStart")

_WAIT_MS: Final = 10_000
"""Another leader is asked again after so long without news."""

Ask = Callable[[Method, Any], Awaitable[tuple[Any, memoryview]]]
"""Told (method, request), gives the answer and its attachment. Raises `HadronError`."""

_TIMEOUT_S: Final = 30.0
"""Of an answer: longer than whoever is asked may wait for news."""


class OtherLeaders:
    """`pipelines.sources.Others`."""

    def __init__(self, sets: ReplicaSets | None, wires: Wires | None) -> None:
        """Both are None where there is one set only."""
        self._sets = sets
        self._wires = wires

    async def converse(
        self,
        partition: str,
        stream_id: int,
        metadata_index: int,
        conversation: Callable[[RemoteSource], Awaitable[None]],
    ) -> None:
        wires, address = self._wires, address_of(self._sets, partition)
        if wires is None or not address:
            raise UnreachableError(f"nobody here knows who leads {partition}")

        async def converse(connection: Connection) -> None:
            async def ask(method: Method, request: Any) -> tuple[Any, memoryview]:
                return await connection.request(method, request, timeout_s=_TIMEOUT_S)

            wires.introduce(connection)
            await conversation(LeaderSource(ask, partition, stream_id, metadata_index))

        connection = await dial(
            wires.network,
            address,
            cork=wires.cork,
            keepalive_s=wires.keepalive_s,
            silence_limit_s=wires.silence_limit_s,
        )
        await talk(connection, converse)


class LeaderSource:
    """`pipelines.sources.RemoteSource`."""

    def __init__(self, ask: Ask, partition: str, stream_id: int, metadata_index: int) -> None:
        self._next_offset = 0
        self._ask = ask
        self._partition = partition
        self._stream_id = stream_id
        self._index = metadata_index

    @property
    def next_offset(self) -> int:
        return self._next_offset

    async def start(self, pipeline_id: int, *, awaited: int = 0) -> int:
        """Where a pipeline starts there, or where the awaited stream of this id begins for it."""
        request = pipelines_pb2.PipelineStartRequest(
            pipeline_id=pipeline_id, metadata_index=self._index, awaited_stream_id=awaited
        )
        answer, _ = await self._answer(_START, request)
        return check_number("offset", answer.offset)

    async def read(self, offset: int, after: Ballot) -> list[StampedBatch] | Gap:
        request = streams_pb2.FetchRequest(
            stream_id=self._stream_id,
            partition=self._partition,
            metadata_index=self._index,
            offset=offset,
            max_bytes=READ_BYTES,
            max_wait_ms=_WAIT_MS,
            after=None if after == NO_BALLOT else ballot_to(after),
        )
        try:
            answer, attachment = await self._answer(_FETCH, request)
        except LogTruncatedError:
            return await self._gap(offset, is_truncated=True)
        except OffsetOutOfRangeError:
            return await self._gap(offset, is_truncated=False)
        found = _batches(answer, attachment, offset)
        self._next_offset = check_number("offset", answer.next_offset)
        return found

    async def end(self) -> int:
        return int((await self._look()).next_offset)

    async def _answer(self, method: Method, request: Any) -> tuple[Any, memoryview]:
        try:
            return await self._ask(method, request)
        except (FencedError, ShuttingDownError) as error:
            # Of its leadership. Whoever reads here takes these for the end of their own.
            raise NotReadyError(
                f"who was asked leads {self._partition} no more: {error.message}",
                "its leader is looked for again",
            ) from error

    async def _look(self) -> streams_pb2.OffsetsResponse.Partition:
        """Where it begins and ends. A deposed leader's ends before its successor's, so it is asked
        for a majority's word (PROTOCOL A2)."""
        request = streams_pb2.OffsetsRequest(
            stream_id=self._stream_id,
            partition=self._partition,
            metadata_index=self._index,
            confirmed=True,
        )
        answer, _ = await self._answer(_OFFSETS, request)
        there = offsets_of(self._partition, answer)
        self._next_offset = check_number("offset", there.next_offset)
        return there

    async def _gap(self, offset: int, *, is_truncated: bool) -> Gap:
        there = await self._look()
        if not is_truncated and offset < there.first_offset:
            return Gap(there.first_offset, NO_BALLOT, is_truncated=False)
        ballot = ballot_from(there.ballot) if there.HasField("ballot") else NO_BALLOT
        return Gap(there.next_offset, ballot, is_truncated=True)


def _batches(
    answer: streams_pb2.FetchResponse, attachment: memoryview, offset: int
) -> list[StampedBatch]:
    """From `offset` on, without a gap: records that are passed over make no instances. Raises
    `FrameError` for others."""
    found, start, wanted = list[StampedBatch](), 0, offset
    for each in answer.batches:
        base, end = check_number("offset", each.base_offset), start + each.length
        is_next = base <= wanted < base + each.count if not found else base == wanted
        data = attachment[start:end]
        if not is_next or end > len(attachment) or _count_in(data) != each.count:
            raise FrameError(
                f"a batch of {each.count} records at offset {base} and {each.length} bytes is no "
                f"answer to who reads from offset {wanted} on"
            )
        stamp_ms = check_number("stamp", each.append_ms)
        found.append(StampedBatch(base, each.count, stamp_ms, *ballot_from(each.ballot), data))
        start, wanted = end, base + each.count
    if start != len(attachment):
        raise FrameError(f"{len(attachment) - start} bytes are left over after the last batch")
    return found


def _count_in(data: memoryview) -> int:
    try:
        return read_head(data).n
    except CorruptionError as error:
        raise FrameError(f"a batch came that is none: {error.message}") from error
