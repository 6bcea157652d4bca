"""Serves `hadron.v1.Streams`: produce, claims of producers, fetch, offsets, latest of a key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import trio

from hadron.model.batch import NO_SEQUENCE, BatchHead, StampedBatch, judge_batch
from hadron.model.errors import (
    HadronError,
    LogTruncatedError,
    NotFoundError,
    OffsetMismatchError,
    RecordTooLargeError,
    RequestError,
)
from hadron.model.ids import Ballot
from hadron.model.limits import MAX_ATTACHMENT_BYTES, MAX_BATCH_BYTES, MAX_NAME_LENGTH, TOKEN_BYTES
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.model.transactions import TransactionId
from hadron.server.statements import Reader
from hadron.serving.entrance import led
from hadron.serving.leading import Leading
from hadron.state.streams.keys import NO_OFFSET, latest
from hadron.state.streams.partitions import AppendBatch, AppendGuarded
from hadron.state.streams.producers import Appended, Claimed, ClaimProducer, claim_of
from hadron.state.streams.retention import kept_bytes
from hadron.wire.calls import Call
from hadron.wire.messages import ballot_from, ballot_to, common_pb2, streams_pb2, transactions_pb2

_DEFAULT_FETCH_BYTES: Final = 1 << 20
_MAX_FETCH_BYTES: Final = MAX_ATTACHMENT_BYTES - MAX_BATCH_BYTES
"""A fetch may end with a batch that goes over what was asked for."""

_MAX_WAIT_MS: Final = 60_000
_ACKS: Final = frozenset(streams_pb2.Acks.values())


_Fetch: TypeAlias = Call[streams_pb2.FetchRequest, streams_pb2.FetchResponse]
_Offsets: TypeAlias = Call[streams_pb2.OffsetsRequest, streams_pb2.OffsetsResponse]
_Named = (
    streams_pb2.ProduceRequest
    | streams_pb2.FetchRequest
    | streams_pb2.OffsetsRequest
    | streams_pb2.LatestRequest
    | streams_pb2.ClaimProducerRequest
)
"""What names a partition."""


def _produce(
    leading: Leading,
    call: Call[streams_pb2.ProduceRequest, streams_pb2.ProduceResponse],
    request: streams_pb2.ProduceRequest,
    attachment: memoryview,
) -> None:
    item = _partition(leading, request)
    if request.acks not in _ACKS:
        raise RequestError(f"unknown acks {request.acks}", "use leader, majority or all")
    command = append_of(item, attachment, _guard_of(request))

    def done(appended: Appended, error: HadronError | None) -> None:
        if isinstance(error, OffsetMismatchError):
            call.send(streams_pb2.ProduceResponse(mismatch=_mismatch(error)), end=True)
        elif error is not None:
            call.fail(error)
        else:
            call.send(
                streams_pb2.ProduceResponse(
                    base_offset=appended.base_offset,
                    append_ms=appended.append_ms,
                    duplicate=appended.duplicate,
                ),
                end=True,
            )

    leading.controller.submit(command, attachment, acks=request.acks, done=done)


class Guard(NamedTuple):
    """What a batch is appended under, and with: see `AppendGuarded`."""

    expect_offset: int | None = None
    expect_key_offset: int | None = None
    last_sequence: int | None = None

    @property
    def is_conditional(self) -> bool:
        return self.expect_offset is not None or self.expect_key_offset is not None


_NO_GUARD: Final = Guard()
"""A batch that expects nothing."""


def _guard_of(request: streams_pb2.ProduceRequest) -> Guard:
    return Guard(
        request.expect_offset if request.HasField("expect_offset") else None,
        request.expect_key_offset if request.HasField("expect_key_offset") else None,
        request.last_sequence if request.HasField("last_sequence") else None,
    )


def append_of(item: SchemaObject, batch: memoryview, guard: Guard = _NO_GUARD) -> AppendBatch:
    """The command for a batch that is to be appended to a stream. Raises what makes it none
    (BOUNDS W4), and what its conditions forbid."""
    if len(batch) > MAX_BATCH_BYTES:
        raise RecordTooLargeError(
            f"a batch of {len(batch)} bytes is over the limit of {MAX_BATCH_BYTES}",
            "send fewer or smaller records per batch",
        )
    return _append(item, guard, judge_batch(batch), len(batch))


def _append(item: SchemaObject, guard: Guard, head: BatchHead, size: int) -> AppendBatch:
    """The command for a batch: the plain one, where there is nothing more to it."""
    assert isinstance(item.spec, StreamSpec)
    has_index = item.spec.has_key_index
    if guard == _NO_GUARD and not has_index:
        return AppendBatch.of(item.id, head, size)
    for number in (guard.expect_offset, guard.last_sequence):
        if number is not None and number >> 63:
            raise RequestError(f"{number} is out of bounds", "offsets and sequences are below 2^63")
    if guard.is_conditional and head.n != 1:
        raise RequestError(
            f"a condition is for one record, and the batch has {head.n}", "send each by itself"
        )
    if guard.expect_key_offset is not None:
        if not has_index:
            raise no_key_index(item)
        if not len(head.kh):
            raise RequestError(
                f"expect_key_offset {guard.expect_key_offset} of a record without a key",
                "give its key",
            )
    return AppendGuarded(
        item.id,
        head.n,
        size,
        head.pid,
        head.pep,
        head.seq,
        guard.expect_offset,
        guard.expect_key_offset,
        bytes(head.kh) if has_index else b"",
        NO_SEQUENCE if guard.last_sequence is None else guard.last_sequence,
    )


def no_key_index(item: SchemaObject) -> RequestError:
    return RequestError(
        f"stream {item.name!r} has no index of keys",
        "create one with `keys: indexed`: it is of all of a stream's records, or there is none",
    )


def _mismatch(error: OffsetMismatchError) -> streams_pb2.ProduceResponse.Mismatch:
    return streams_pb2.ProduceResponse.Mismatch(
        message=error.message, hint=error.hint, expected=error.expected, actual=error.actual
    )


def _publication(
    leading: Leading,
    _transaction: TransactionId,
    statement: transactions_pb2.Statement,
    batch: memoryview,
) -> AppendBatch:
    """In a transaction."""
    publish = statement.publish
    item = leading.partition_of(publish.stream_id, publish.metadata_index)
    if not publish.HasField("expect_key_offset"):
        return append_of(item, batch)
    return append_of(item, batch, Guard(expect_key_offset=publish.expect_key_offset))


def _claim_producer(
    leading: Leading,
    call: Call[streams_pb2.ClaimProducerRequest, streams_pb2.ClaimProducerResponse],
    request: streams_pb2.ClaimProducerRequest,
    _attachment: memoryview,
) -> None:
    item = _partition(leading, request)
    if not 0 < len(request.name) <= MAX_NAME_LENGTH:
        raise RequestError(
            f"a producer's name has {len(request.name)} characters", f"1 to {MAX_NAME_LENGTH}"
        )
    if len(request.token) > TOKEN_BYTES:
        raise RequestError(f"a token of {len(request.token)} bytes", f"at most {TOKEN_BYTES}")
    call.spawn(_answer_claim, leading, call, item.id, request)


async def _answer_claim(
    leading: Leading,
    call: Call[streams_pb2.ClaimProducerRequest, streams_pb2.ClaimProducerResponse],
    stream_id: int,
    request: streams_pb2.ClaimProducerRequest,
) -> None:
    name, controller = request.name, leading.controller
    if request.HasField("after"):
        command = ClaimProducer(stream_id, name, request.after, request.token)
        claimed: Claimed = await controller.execute(command)
    else:
        claimed = await controller.query(lambda db: claim_of(db, stream_id, name))
        # That nobody has it, or has taken it since, is in no table (PROTOCOL A2).
        await controller.confirm_leadership()
    call.send(
        streams_pb2.ClaimProducerResponse(claim=claimed.claim, last_sequence=claimed.last_sequence),
        end=True,
    )


def _latest(
    leading: Leading,
    call: Call[streams_pb2.LatestRequest, streams_pb2.LatestResponse],
    request: streams_pb2.LatestRequest,
    _attachment: memoryview,
) -> None:
    item = _partition(leading, request)
    assert isinstance(item.spec, StreamSpec)
    if not item.spec.has_key_index:
        raise no_key_index(item)
    call.spawn(_answer_latest, leading, call, item.id, request.key_hash)


async def _answer_latest(
    leading: Leading,
    call: Call[streams_pb2.LatestRequest, streams_pb2.LatestResponse],
    stream_id: int,
    key_hash: int,
) -> None:
    offset = await leading.controller.query(lambda db: latest(db, stream_id, key_hash))
    # That there is no later one is in no table: a deposed leader must not say so (PROTOCOL A2).
    await leading.controller.confirm_leadership()
    if offset == NO_OFFSET or offset < leading.visible.bounds(stream_id).first_offset:
        call.send(streams_pb2.LatestResponse(), end=True)
        return
    async with call.room(MAX_BATCH_BYTES):
        batch = (await leading.visible.read(stream_id, offset, 1))[0]
        call.send(
            streams_pb2.LatestResponse(batch=batch_info(batch), offset=offset),
            [batch.data],
            end=True,
        )


def _fetch(
    leading: Leading, call: _Fetch, request: streams_pb2.FetchRequest, _attachment: memoryview
) -> None:
    item = _partition(leading, request)
    max_bytes = min(request.max_bytes or _DEFAULT_FETCH_BYTES, _MAX_FETCH_BYTES)
    if request.HasField("after"):
        after = ballot_from(request.after)
        if leading.visible.recent_ballot(item.id, request.offset - 1) != after:
            call.spawn(_read_after, leading, call, item.id, request, max_bytes, after)
            return
    if leading.visible.ends_before(item.id, request.offset, exists=request.exists):
        call.spawn(_read_beyond, leading, call, item.id, request, max_bytes)
        return
    leading.visible.check(item.id, request.offset)
    found = leading.visible.recent(item.id, request.offset, max_bytes)
    if found is None or (found and not call.writable):
        call.spawn(_read, leading, call, item.id, request.offset, max_bytes)
    elif found or not request.max_wait_ms:
        _answer_fetch(leading, call, item.id, found)
    else:
        call.spawn(_wait_and_read, leading, call, item.id, request, max_bytes)


async def _read_after(
    leading: Leading,
    call: _Fetch,
    stream_id: int,
    request: streams_pb2.FetchRequest,
    max_bytes: int,
    after: Ballot,
) -> None:
    try:
        await leading.visible.check_after(stream_id, request.offset, after)
    except LogTruncatedError:
        await leading.controller.confirm_leadership()
        await leading.visible.check_after(stream_id, request.offset, after)
    if leading.visible.ends_before(stream_id, request.offset, exists=request.exists):
        await _read_beyond(leading, call, stream_id, request, max_bytes)
    else:
        leading.visible.check(stream_id, request.offset)
        await _wait_and_read(leading, call, stream_id, request, max_bytes)


async def _read_beyond(
    leading: Leading,
    call: _Fetch,
    stream_id: int,
    request: streams_pb2.FetchRequest,
    max_bytes: int,
) -> None:
    """Of an offset that the log here has not come to. It has been deposed, perhaps, and another
    one has more: that it ends there is said after a majority's word only (PROTOCOL D4)."""
    await leading.controller.confirm_leadership()
    leading.visible.check(stream_id, request.offset, exists=request.exists)
    await _read(leading, call, stream_id, request.offset, max_bytes)


async def _read(
    leading: Leading, call: _Fetch, stream_id: int, offset: int, max_bytes: int
) -> None:
    async with call.room(max_bytes) as size:
        batches = await leading.visible.read(stream_id, offset, size)
        _answer_fetch(leading, call, stream_id, batches)


async def _wait_and_read(
    leading: Leading,
    call: _Fetch,
    stream_id: int,
    request: streams_pb2.FetchRequest,
    max_bytes: int,
) -> None:
    with trio.move_on_after(min(request.max_wait_ms, _MAX_WAIT_MS) / 1000):
        await leading.visible.wait_beyond(stream_id, request.offset)
    await _read(leading, call, stream_id, request.offset, max_bytes)


def _offsets(
    leading: Leading, call: _Offsets, request: streams_pb2.OffsetsRequest, _attachment: memoryview
) -> None:
    item = _kept(leading, request) if request.with_bytes else _partition(leading, request)
    call.spawn(_answer_offsets, leading, call, item.id, request)


async def _answer_offsets(
    leading: Leading, call: _Offsets, stream_id: int, request: streams_pb2.OffsetsRequest
) -> None:
    at_ms = request.at_ms
    if request.confirmed:
        # First: that there is nothing here is an answer too.
        await leading.controller.confirm_leadership()
    try:
        limits = leading.visible.bounds(stream_id)
    except NotFoundError:
        if not request.with_bytes:
            raise
        nothing = streams_pb2.OffsetsResponse.Partition(partition=leading.replica_set, bytes=0)
        call.send(streams_pb2.OffsetsResponse(partitions=[nothing]), end=True)
        return
    at_offset = await leading.visible.offset_at(stream_id, at_ms) if at_ms > 0 else 0
    size = None
    if request.with_bytes:
        size = await leading.controller.query(lambda db: kept_bytes(db, stream_id))
    before = request.before if request.HasField("before") else limits.next_offset
    ballot = await leading.visible.ballot_before(stream_id, before)
    call.send(
        streams_pb2.OffsetsResponse(
            partitions=[
                streams_pb2.OffsetsResponse.Partition(
                    partition=leading.replica_set,
                    first_offset=limits.first_offset,
                    next_offset=limits.next_offset,
                    at_offset=at_offset,
                    ballot=ballot_to(ballot) if ballot is not None else None,
                    bytes=size,
                )
            ]
        ),
        end=True,
    )


def _partition(leading: Leading, request: _Named) -> SchemaObject:
    return leading.partition(
        request.namespace,
        request.stream,
        request.partition,
        request.stream_id,
        request.metadata_index,
    )


def _kept(leading: Leading, request: streams_pb2.OffsetsRequest) -> SchemaObject:
    """The stream, also where its partition here was taken from it, or is yet to come: what is kept
    of it is asked before it has one again (CLUSTER R9)."""
    if not request.stream_id or request.partition not in ("", leading.replica_set):
        return _partition(leading, request)
    return leading.find("Stream", "", "", request.stream_id, request.metadata_index)


def _answer_fetch(
    leading: Leading, call: _Fetch, stream_id: int, batches: Sequence[StampedBatch]
) -> None:
    limits = leading.visible.bounds(stream_id)
    call.send(
        streams_pb2.FetchResponse(
            batches=[batch_info(batch) for batch in batches],
            first_offset=limits.first_offset,
            next_offset=limits.next_offset,
        ),
        [batch.data for batch in batches],
        end=True,
    )


def batch_info(batch: StampedBatch) -> common_pb2.BatchInfo:
    """How a batch is announced beside its bytes."""
    return common_pb2.BatchInfo(
        base_offset=batch.base_offset,
        count=batch.count,
        append_ms=batch.append_ms,
        ballot=common_pb2.Ballot(epoch=batch.epoch, incarnation=batch.incarnation),
        length=len(batch.data),
    )


METHODS: Final = (
    led("Produce", streams_pb2.ProduceRequest, streams_pb2.ProduceResponse, _produce),
    led("ProduceIf", streams_pb2.ProduceRequest, streams_pb2.ProduceResponse, _produce),
    led(
        "ClaimProducer",
        streams_pb2.ClaimProducerRequest,
        streams_pb2.ClaimProducerResponse,
        _claim_producer,
    ),
    led("Latest", streams_pb2.LatestRequest, streams_pb2.LatestResponse, _latest),
    led("Fetch", streams_pb2.FetchRequest, streams_pb2.FetchResponse, _fetch),
    led("Offsets", streams_pb2.OffsetsRequest, streams_pb2.OffsetsResponse, _offsets),
)

STATEMENTS: Final = {"publish": Reader(_publication, takes_batch=True)}
