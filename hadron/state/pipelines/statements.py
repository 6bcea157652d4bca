"""Stages that transactions end, and whose outputs they publish (PROTOCOL E2, E3).

Safety rule: a statement is refused, with all stages that it names, where one of them does not wait
for its attempt any more. A pipeline, or its outputs' stream, can only go by a deletion between a
statement's check and its end; then no stage ends, and the statement says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hadron.model.errors import StaleCompletionError
from hadron.model.transactions import DELETED, DONE, Lock, StatementResult
from hadron.state.machine import Command, Context, NoChange, Statement
from hadron.state.pipelines import definitions, publishing, stage_runs
from hadron.state.pipelines.publishing import PublishStages
from hadron.state.pipelines.stage_runs import Attempts, CompleteStages, FailStages
from hadron.state.pipelines.tables import is_here
from hadron.state.streams import partitions as streams


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


STATEMENTS: Final[Mapping[type[Command], Statement]] = {
    CompleteStages: Statement(check=_check_complete, apply=_complete, locks=_stage_locks),
    FailStages: Statement(check=_check_stages, apply=_fail, locks=_stage_locks),
    PublishStages: Statement(check=_check_stages, apply=publishing.begin, locks=_stage_locks),
}
