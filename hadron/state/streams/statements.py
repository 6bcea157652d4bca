"""Records that transactions publish (PROTOCOL E2, E9).

Safety rule: what a condition has found of a key stays so until the record has its offset. Of a
stream that was deleted between a statement's check and its end nothing is appended, and the
statement says so; its bytes are passed over where others' follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hadron.model.batch import NO_SEQUENCE
from hadron.model.errors import NotFoundError, RequestError
from hadron.model.transactions import DELETED, StatementResult
from hadron.state import bodies
from hadron.state.bodies import Place
from hadron.state.machine import Context, Feature, Statement
from hadron.state.names import label_of
from hadron.state.streams import keys as stream_keys
from hadron.state.streams import partitions as streams
from hadron.state.streams.appends import Append, append_all
from hadron.state.streams.partitions import AppendBatch, AppendGuarded
from hadron.state.transactions import key_locks


def _check_append(context: Context, command: AppendBatch) -> None:
    """Raises `NotFoundError` when the stream has no partition here."""
    if command.producer_id:
        raise RequestError(
            f"a batch of producer {command.producer_id.hex()} cannot stand in a transaction",
            "number statements instead: what is sent again under its number is known",
        )
    streams.bounds(context.db, command.stream_id)
    if stream_keys.is_indexed(context.db, command.stream_id):
        raise RequestError(
            f"{label_of(context.db, command.stream_id)} has an index of keys, and the batch does "
            "not say which keys it has",
            "an AppendGuarded does",
        )


def _check_guarded(context: Context, command: AppendGuarded) -> None:
    """Raises `NotFoundError` when the stream has no partition here, `OffsetMismatchError` for a key
    whose latest record is elsewhere, `RequestError` for what would have to hold until the
    transaction has ended, while others append."""
    if command.expect_offset is not None:
        raise RequestError(
            f"expect_offset {command.expect_offset} cannot stand in a transaction: until that is "
            "over, nobody else could write to the partition",
            "expect the offset of a key's latest record (expect_key_offset), or send it alone",
        )
    if command.producer_id or command.last_sequence != NO_SEQUENCE:
        raise RequestError(
            f"a batch of producer {command.producer_id.hex()} cannot stand in a transaction",
            "number statements instead: what is sent again under its number is known",
        )
    streams.bounds(context.db, command.stream_id)
    streams.check_conditions(context, command)


def _hold_keys(context: Context, command: AppendGuarded, prepared_lsn: int | None) -> None:
    if not command.key_hashes:
        return
    if prepared_lsn is None:
        key_locks.check_free(context, command.stream_id, command.key_hashes)
        return
    key_locks.take(
        context,
        prepared_lsn,
        command.stream_id,
        command.key_hashes,
        alone=command.expect_key_offset is not None,
    )


def _append_guarded(context: Context, command: AppendGuarded) -> StatementResult:
    result = _append(context, command)
    if command.key_hashes and result != DELETED:
        stream_keys.note(context, command.stream_id, result.base_offset, command.key_hashes)
    return result


def _append(context: Context, command: AppendBatch) -> StatementResult:
    try:
        appended = streams.append(context, command.stream_id, command.count, command.size)
    except NotFoundError:
        if streams.is_open(context.db, command.stream_id):
            raise  # Its bytes are not there: that is damage.
        return DELETED
    return StatementResult(appended.base_offset, appended.count, appended.append_ms)


def _append_all(context: Context, commands: Sequence[AppendBatch]) -> list[StatementResult]:
    """Of what is the same body's: those of an intent."""
    assert context.start is not None
    lsn, start = context.body_lsn or context.lsn, context.start
    is_open: dict[int, bool] = {}
    batches: list[Append] = []
    for each in commands:
        stream_id = each.stream_id
        if stream_id not in is_open:
            is_open[stream_id] = streams.is_open(context.db, stream_id)
        if is_open[stream_id]:
            batches.append(Append(stream_id, each.count, each.size, Place(lsn, start)))
        start += each.size
    if batches:
        bodies.take_all(context, lsn, batches=len(batches), end=start)
    bases = iter(append_all(context, batches))
    now_ms = context.now_ms
    return [
        StatementResult(next(bases), each.count, now_ms) if is_open[each.stream_id] else DELETED
        for each in commands
    ]


FEATURE: Final = Feature(
    name="stream statements",
    statements={
        AppendBatch: Statement(check=_check_append, apply=_append, apply_all=_append_all),
        AppendGuarded: Statement(check=_check_guarded, apply=_append_guarded, hold=_hold_keys),
    },
)
