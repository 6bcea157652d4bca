"""Serves `hadron.v1.Sinks`: what bulk writers stage, and how far their queries have published."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final, TypeAlias

from hadron.model.batch import judge_batch
from hadron.model.errors import HadronError, RecordTooLargeError, RequestError
from hadron.model.limits import GROUP_COMMIT_BYTES, MAX_BATCH_BYTES, MAX_MESSAGE_BYTES
from hadron.model.sinks import SinkProgress
from hadron.model.transactions import TransactionId
from hadron.server.statements import Reader
from hadron.serving.entrance import led
from hadron.serving.leading import Leading
from hadron.state.machine import BatchShape
from hadron.state.sinks import progress as sinks
from hadron.state.sinks import staging
from hadron.state.sinks.progress import AdvanceSink
from hadron.state.sinks.staging import GiveUpStaged, PublishStaged, StageBatches
from hadron.wire.calls import Call
from hadron.wire.messages import check_count, common_pb2, sinks_pb2, transactions_pb2

_Stage: TypeAlias = Call[sinks_pb2.StageRequest, common_pb2.Empty]
_GiveUp: TypeAlias = Call[sinks_pb2.GiveUpStagedRequest, common_pb2.Empty]
_ListSinks: TypeAlias = Call[sinks_pb2.ListSinksRequest, sinks_pb2.ListSinksResponse]
_ListStaged: TypeAlias = Call[sinks_pb2.ListStagedRequest, sinks_pb2.ListStagedResponse]

_PAGE: Final = 1_000

_MAX_STAGED_BYTES: Final = 2 * GROUP_COMMIT_BYTES
"""In one request, which is one entry: a largest batch and what has come together before it."""


def _stage(
    leading: Leading, call: _Stage, request: sinks_pb2.StageRequest, attachment: memoryview
) -> None:
    item = leading.partition_of(request.stream_id, request.metadata_index)
    if len(attachment) > _MAX_STAGED_BYTES:
        raise RecordTooLargeError(
            f"{len(attachment)} bytes of batches are over the limit of {_MAX_STAGED_BYTES} of one "
            "request",
            "stage fewer batches at a time",
        )
    check_count("batches", len(request.lengths))
    command = StageBatches(
        item.id,
        request.write_id,
        request.attempt,
        _bounded(request.first),
        tuple(_judged(request.lengths, attachment)),
        _bounded(request.kept_ms),
        request.label,
    )
    leading.controller.submit(command, attachment, done=partial(_done, call))


def _done(call: Call[Any, common_pb2.Empty], _result: object, error: HadronError | None) -> None:
    if error is not None:
        call.fail(error)
    else:
        call.send(common_pb2.Empty(), end=True)


def _judged(lengths: Any, attachment: memoryview) -> Iterator[BatchShape]:
    """What each batch is. Raises what makes one none (BOUNDS W4)."""
    start = 0
    for length in lengths:
        batch = attachment[start : start + length]
        start += length
        if not 0 < length <= MAX_BATCH_BYTES or len(batch) < length:
            raise RecordTooLargeError(
                f"a batch of {length} bytes is over the limit of {MAX_BATCH_BYTES}, or is not all "
                "there",
                "send fewer or smaller records per batch",
            )
        head = judge_batch(batch)
        if head.pid:
            raise RequestError(
                f"a batch of producer {head.pid.hex()} cannot be staged",
                "number batches instead: what is sent again under its number is known",
            )
        yield BatchShape(head.n, length)
    if start != len(attachment):
        raise RequestError(f"{len(attachment) - start} bytes follow the batches")


def _bounded(number: int) -> int:
    if number >> 63:
        raise RequestError(f"{number} is out of bounds", "use numbers below 2^63")
    return number


def _give_up(
    leading: Leading, call: _GiveUp, request: sinks_pb2.GiveUpStagedRequest, _: memoryview
) -> None:
    leading.controller.submit(GiveUpStaged(request.write_id), done=partial(_done, call))


# --- in transactions ----------------------------------------------------------------------------


def _publication(
    leading: Leading,
    _transaction: TransactionId,
    statement: transactions_pb2.Statement,
    _batch: memoryview,
) -> PublishStaged:
    """Raises `NotFoundError` without the stream's partition here."""
    publish = statement.publish_staged
    item = leading.partition_of(publish.stream_id, publish.metadata_index)
    attempts = tuple((each.attempt, each.batches) for each in publish.attempts)
    return PublishStaged(item.id, publish.write_id, attempts)


def _advance(
    _leading: Leading,
    _transaction: TransactionId,
    statement: transactions_pb2.Statement,
    _batch: memoryview,
) -> AdvanceSink:
    advance = statement.advance_sink
    name = _full_name(advance.namespace, advance.name)
    return AdvanceSink(name, advance.query, _bounded(advance.batch), advance.follows)


def _full_name(namespace: str, name: str) -> str:
    return f"{namespace}/{name}"


# --- looking ------------------------------------------------------------------------------------


def _list_sinks(
    leading: Leading, call: _ListSinks, request: sinks_pb2.ListSinksRequest, _: memoryview
) -> None:
    prefix = _full_name(request.namespace, "")

    def find(db: Any) -> list[SinkProgress]:
        if not request.name:
            return [each for each in sinks.all_sinks(db) if each.name.startswith(prefix)]
        found = sinks.find(db, prefix + request.name)
        return [found] if found is not None else []

    async def answer() -> None:
        await leading.controller.confirm_leadership()
        async with call.room(MAX_MESSAGE_BYTES):
            found = await leading.controller.query(find)
            shown = [
                sinks_pb2.ListSinksResponse.Sink(
                    name=each.name.removeprefix(prefix),
                    query=each.query,
                    batch=each.batch,
                    published_ms=each.published_ms,
                )
                for each in found
            ]
            call.send(sinks_pb2.ListSinksResponse(sinks=shown), end=True)

    call.spawn(answer)


def _list_staged(
    leading: Leading, call: _ListStaged, request: sinks_pb2.ListStagedRequest, _: memoryview
) -> None:
    after = _bounded(request.after) or -1

    async def answer() -> None:
        await leading.controller.confirm_leadership()
        async with call.room(MAX_MESSAGE_BYTES):
            read = partial(staging.all_staged, after_lsn=after, limit=_PAGE)
            found = await leading.controller.query(read)
            now_ms = leading.controller.log_now_ms()
            shown = [
                sinks_pb2.ListStagedResponse.Attempt(
                    write_id=each.write_id,
                    attempt=each.attempt,
                    label=each.label,
                    stream_id=each.stream_id,
                    batches=each.batches,
                    records=each.records,
                    bytes=each.bytes,
                    age_ms=max(0, now_ms - each.since_ms),
                    left_ms=max(0, each.expires_ms - now_ms),
                )
                for each in found
            ]
            following = found[-1].staged_lsn if len(found) == _PAGE else 0
            call.send(sinks_pb2.ListStagedResponse(attempts=shown, next=following), end=True)

    call.spawn(answer)


METHODS: Final = (
    led("Stage", sinks_pb2.StageRequest, common_pb2.Empty, _stage),
    led("GiveUpStaged", sinks_pb2.GiveUpStagedRequest, common_pb2.Empty, _give_up),
    led("ListSinks", sinks_pb2.ListSinksRequest, sinks_pb2.ListSinksResponse, _list_sinks),
    led("ListStaged", sinks_pb2.ListStagedRequest, sinks_pb2.ListStagedResponse, _list_staged),
)

STATEMENTS: Final = {"publish_staged": Reader(_publication), "advance_sink": Reader(_advance)}
