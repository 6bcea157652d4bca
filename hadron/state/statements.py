"""What may stand in a transaction: publish, acknowledge, complete or fail stages (PROTOCOL E2).

Alone, a command that was done before answers as it did then. In a transaction that is a refusal:
an acknowledgement of what somebody else has acknowledged would let both go on with their outputs.
What a statement is of can only go by a deletion between its check and its end, or, a group's
progress, by a reset; then it does nothing, and says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hadron.model.batch import NO_SEQUENCE
from hadron.model.errors import NotFoundError, RequestError, StaleCompletionError
from hadron.model.transactions import DELETED, DONE, Lock, StatementResult
from hadron.state import bodies
from hadron.state.bodies import Place
from hadron.state.groups import progress as groups
from hadron.state.groups.progress import AckRecords
from hadron.state.machine import Context, Feature, NoChange, Statement
from hadron.state.names import label_of
from hadron.state.pipelines import definitions, publishing, stage_runs
from hadron.state.pipelines.publishing import PublishStages
from hadron.state.pipelines.stage_runs import Attempts, CompleteStages, FailStages
from hadron.state.pipelines.tables import is_here
from hadron.state.streams import keys as stream_keys
from hadron.state.streams import partitions as streams
from hadron.state.streams.appends import Append, append_all
from hadron.state.streams.partitions import AppendBatch, AppendGuarded
from hadron.state.transactions import key_locks, locks
from hadron.state.transactions.events import RecordsAcknowledged


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


def _check_ack(context: Context, command: AckRecords) -> None:
    """Raises `NotFoundError` without the group, `RequestError` for what is acknowledged already, or
    does not exist."""
    group_id = command.group_id
    floor, next_offset = groups.reach(context.db, group_id)
    for first, last in command.ranges:
        if not 0 <= first <= last < next_offset:
            raise RequestError(
                f"offsets {first} to {last} cannot be acknowledged, the stream ends at "
                f"{next_offset}"
            )
        if first < floor or groups.unacknowledged(context.db, group_id, first, last) != [
            (first, last)
        ]:
            raise RequestError(
                f"of offsets {first} to {last}, consumer group {group_id} has acknowledged some",
                "they were delivered to somebody else meanwhile, who is done with them: roll back, "
                "and go on with what is delivered now",
            )


def _ack(context: Context, command: AckRecords) -> StatementResult:
    try:
        floor = groups.acknowledge(context.db, command.group_id, command.ranges)
    except NotFoundError:
        return DELETED
    context.emit(RecordsAcknowledged(command.group_id, command.ranges, floor))
    return DONE


def _ack_locks(command: AckRecords) -> tuple[Lock, ...]:
    return (locks.deliveries(command.group_id, command.ranges),)


def _check_complete(context: Context, command: CompleteStages) -> None:
    """Raises `NotFoundError` without the pipeline or the outputs' stream, `StaleCompletionError`
    for a stage that does not wait for this attempt."""
    _check_stages(context, command)
    if command.out_stream_id:
        streams.bounds(context.db, command.out_stream_id)


def _check_stages(context: Context, command: Attempts) -> None:
    definitions.spec_of(context.db, command.pipeline_id)
    stale = stage_runs.stale_of(context.db, command)
    if stale:
        more = f" (and {len(stale) - 1} more)" if len(stale) > 1 else ""
        raise StaleCompletionError(
            f"stage {command.stage!r} of instance {stale[0]}{more} of pipeline "
            f"{command.pipeline_id} does not wait for this attempt",
            "somebody else has ended it meanwhile: roll back",
        )


def _complete(context: Context, command: CompleteStages) -> StatementResult:
    out = command.out_stream_id
    if not is_here(context.db, command.pipeline_id) or (
        out and not streams.is_open(context.db, out)
    ):
        return DELETED
    try:
        completed = stage_runs.complete(context, command)
    except NoChange:
        return DELETED
    appended = completed.appended
    if appended is None:
        return DONE
    return StatementResult(appended.base_offset, appended.count, appended.append_ms)


def _fail(context: Context, command: FailStages) -> StatementResult:
    # Alone it would pass over those that do not wait.
    if not is_here(context.db, command.pipeline_id) or stage_runs.stale_of(context.db, command):
        return DELETED
    stage_runs.fail(context, command)
    return DONE


def _stage_locks(command: Attempts) -> tuple[Lock, ...]:
    return (stage_runs.stages_of(command),)


FEATURE: Final = Feature(
    name="statements",
    statements={
        AppendBatch: Statement(check=_check_append, apply=_append, apply_all=_append_all),
        AppendGuarded: Statement(check=_check_guarded, apply=_append_guarded, hold=_hold_keys),
        AckRecords: Statement(check=_check_ack, apply=_ack, locks=_ack_locks),
        CompleteStages: Statement(check=_check_complete, apply=_complete, locks=_stage_locks),
        FailStages: Statement(check=_check_stages, apply=_fail, locks=_stage_locks),
        PublishStages: Statement(check=_check_stages, apply=publishing.begin, locks=_stage_locks),
    },
)
