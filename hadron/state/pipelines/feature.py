"""Pipelines, put together: what a declared or deleted one means to their tables, and which commands
there are. What they do is in the modules that are named here.
"""

from __future__ import annotations

from typing import Final

from hadron.model.pipelines import PipelineSpec
from hadron.model.schema import SchemaObject
from hadron.state import schema, slices
from hadron.state.machine import Context, Feature
from hadron.state.pipelines import (
    backfills,
    cancellations,
    definitions,
    finished,
    publishing,
    retries,
    stage_runs,
    wait_inputs,
    waits,
)
from hadron.state.pipelines import inputs as pipeline_inputs
from hadron.state.pipelines import letters as instance_letters
from hadron.state.pipelines.backfills import ControlBackfill, StartBackfill, StepBackfill
from hadron.state.pipelines.cancellations import CancelInstances, StartInstances
from hadron.state.pipelines.finished import DropInstances
from hadron.state.pipelines.inputs import MoveInput, OpenInput, TriggerInstances
from hadron.state.pipelines.letters import SendLetters
from hadron.state.pipelines.publishing import PublishStages
from hadron.state.pipelines.retries import RetryInstances
from hadron.state.pipelines.stage_runs import CompleteStages, FailStages
from hadron.state.pipelines.statements import STATEMENTS
from hadron.state.pipelines.tables import (
    BACKFILL,
    DEFINITION,
    INSTANCE,
    INSTANCE_LETTER,
    LOOKED_AT,
    PIPELINE,
    PIPELINE_INPUT,
    PIPELINE_WAIT,
    STAGE_ATTEMPT,
    STAGE_COUNT,
    STAGE_PUBLISHING,
    STAGE_RETRY,
    STAGE_RUN,
    STAGE_WAIT,
    START_REQUEST,
    TABLES,
)
from hadron.state.pipelines.wait_inputs import OpenWait
from hadron.state.pipelines.waits import ExpireWaits, SignalInstance, SignalStages
from hadron.state.streams import skips

_LEFT: Final = tuple(
    slices.Owned(table, f"pipeline_id, {rest}", "pipeline_id = ?")
    for table, rest in (
        (STAGE_RUN, "stage, instance_id"),
        (STAGE_PUBLISHING, "lsn, position"),
        (STAGE_RETRY, "stage, instance_id"),
        (STAGE_ATTEMPT, "stage, instance_id, attempt"),
        (STAGE_WAIT, "instance_id, stage"),
        (INSTANCE, "instance_id"),
        (STAGE_COUNT, "stage"),
        (START_REQUEST, "request"),
        (INSTANCE_LETTER, "instance_id"),
        (LOOKED_AT, "partition, first"),
        (BACKFILL, "number"),
        (PIPELINE_INPUT, "partition"),
        (PIPELINE_WAIT, "stream_id, partition"),
        (DEFINITION, "version"),
    )
)
"""What a pipeline has besides its own row."""


def _adopt(context: Context, item: SchemaObject) -> None:
    """Make the tables of a new or changed pipeline.

    Raises `SchemaError` when a known pipeline is to read another stream.
    """
    if not isinstance(item.spec, PipelineSpec):
        # A streaming query: how far it is stands in its sink.
        return
    db = context.db
    # What is stored: an entry may declare it twice.
    spec = definitions.spec_of(db, item.id)
    source = schema.find(db, "Stream", item.namespace, spec.input)
    if source is None:
        return
    if context.is_here(spec.replica_set):
        pipeline_inputs.check_input(db, item.id, source.id)
        db.execute(
            f"INSERT INTO {PIPELINE} VALUES(?, ?, 0, 1, 0, 0, 0, 0) ON CONFLICT DO NOTHING",
            (item.id, source.id),
        )
        definitions.adopt(db, item.id)
        if not spec.dead_letters:
            # What waits to be sent would keep its instance for ever.
            db.execute(f"DELETE FROM {INSTANCE_LETTER} WHERE pipeline_id = ?", (item.id,))
        for stage in spec.stages:
            stage_runs.count(db, item.id, stage.name)
    pipeline_inputs.adopt(context, item.id, spec, source.id)
    wait_inputs.adopt(context, item.id, item.namespace, spec)


def _close(context: Context, pipeline_id: int) -> bool:
    """Nothing of a deleted pipeline runs any more."""
    skips.forget(context.db, "pipeline", pipeline_id)
    pipeline_inputs.close(context.db, pipeline_id)
    wait_inputs.close(context.db, pipeline_id)
    context.db.execute(f"DELETE FROM {PIPELINE} WHERE pipeline_id = ?", (pipeline_id,))
    return context.db.changes() > 0


def _skip_below(context: Context, stream_id: int, first_offset: int) -> None:
    pipeline_inputs.skip_below(context, stream_id, first_offset)
    wait_inputs.skip_below(context, stream_id, first_offset)


def _drop_some(context: Context, pipeline_id: int, portion: slices.Portion) -> slices.Dropped:
    """Of what a deleted pipeline has left."""
    rows = slices.delete_some(context.db, _LEFT, pipeline_id, portion.rows)
    return slices.Dropped(rows, is_done=rows < portion.rows)


FEATURE: Final = Feature(
    name="pipelines",
    tables=TABLES,
    commands={
        TriggerInstances: pipeline_inputs.apply_trigger_instances,
        OpenInput: pipeline_inputs.apply_open_input,
        MoveInput: pipeline_inputs.apply_move_input,
        CompleteStages: stage_runs.apply_complete_stages,
        FailStages: stage_runs.apply_fail_stages,
        PublishStages: publishing.apply_publish_stages,
        StartInstances: cancellations.apply_start_instances,
        CancelInstances: cancellations.apply_cancel_instances,
        SendLetters: instance_letters.apply_send_letters,
        DropInstances: finished.apply_drop_instances,
        StartBackfill: backfills.apply_start_backfill,
        StepBackfill: backfills.apply_step_backfill,
        ControlBackfill: backfills.apply_control_backfill,
        SignalStages: waits.apply_signal_stages,
        SignalInstance: waits.apply_signal_instance,
        ExpireWaits: waits.apply_expire_waits,
        OpenWait: wait_inputs.apply_open_wait,
        RetryInstances: retries.apply_retry_instances,
    },
    statements=STATEMENTS,
    declared={"Pipeline": _adopt},
    deleted={"Stream": wait_inputs.close_stream, "Pipeline": _close},
    leftovers={"Pipeline": _drop_some},
    opened=pipeline_inputs.adopt_stream,
    trimmed=_skip_below,
    finished=publishing.finished,
)
