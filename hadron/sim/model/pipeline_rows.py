"""The tables of pipelines, as the model has them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hadron.model.ranges import runs
from hadron.sim.model.entry import Rows
from hadron.sim.model.pipeline import CANCELLED, DONE, FAILED, LIVE, Pipeline

if TYPE_CHECKING:
    from hadron.sim.model.pipelines import Pipelines


def rows_of(pipelines: Pipelines) -> Rows:
    found: Rows = {
        name: []
        for name in (
            "pipeline",
            "pipeline_input",
            "pipeline_start",
            "definition",
            "instance",
            "stage_run",
            "stage_publishing",
            "start_request",
            "instance_letter",
            "looked_at",
            "backfill",
            "stage_retry",
            "stage_attempt",
            "stage_wait",
            "pipeline_wait",
            "pipeline_wait_start",
            "stage_count",
        )
    }
    found["stage_publishing"] = [
        (lsn, at, c.pipeline_id, c.stage, c.stream_id, c.partition, _json(c.instance_ids))
        for lsn, commands in pipelines.publishing.items()
        for at, c in enumerate(commands)
        if c is not None
    ]
    found["pipeline_start"] = [(each, *start) for each, start in pipelines.starts.items()]
    found["pipeline_wait_start"] = [(*key, *start) for key, start in pipelines.wait_starts.items()]
    for each, pipeline in pipelines.by_id.items():
        _add(found, each, pipeline)
    return found


def _add(found: Rows, each: int, pipeline: Pipeline) -> None:
    if pipeline.is_here:
        ended = [made.status for made in pipeline.instances.values()]
        version, following = max(pipeline.definitions), pipeline.next_instance
        ended_as = [ended.count(at) + pipeline.gone[at] for at in (LIVE, DONE, FAILED, CANCELLED)]
        found["pipeline"].append((each, pipeline.input, version, following, *ended_as))
    found["definition"] += [
        (each, version, pipeline.definitions[version], count)
        for version, count in (pipeline.needed() if pipeline.is_here else pipeline.held).items()
    ]
    found["instance_letter"] += [
        (each, instance_id, stage) for instance_id, stage in pipeline.letters.items()
    ]
    found["start_request"] += [(each, request, *made) for request, made in pipeline.started.items()]
    found["pipeline_input"] += [
        (each, name, at.stream_id, at.first, at.offset, *at.ballot, at.truncations)
        for name, at in pipeline.cursors.items()
    ]
    _add_backfills(found, each, pipeline)
    found["instance"] += [
        (
            each,
            number,
            i.version,
            i.status,
            i.stream_id,
            i.partition,
            i.offset,
            i.created_ms,
            i.ended_ms,
        )
        for number, i in pipeline.instances.items()
    ]
    for (stage, number), run in pipeline.runs.items():
        found["stage_run"].append(
            (
                each,
                stage,
                number,
                run.version,
                run.status,
                run.ready_ms,
                run.attempts,
                *run.output,
                run.reason,
            )
        )
    found["stage_wait"] += [
        (each, *key, w.status, w.stream_id, w.key, w.due_ms, *w.output)
        for key, w in pipeline.waits.by_stage.items()
    ]
    found["pipeline_wait"] += [
        (each, *key, at.offset, *at.ballot, at.truncations)
        for key, at in pipeline.waits.cursors.items()
    ]
    found["stage_attempt"] += [(each, *key, *told) for key, told in pipeline.tried.items()]
    found["stage_retry"] += [(each, *key, at) for key, at in pipeline.retried.items()]
    counts = pipeline.counted
    if pipeline.is_here:
        counts = {stage: pipeline.count(stage) for stage in pipeline.stages}
    found["stage_count"] += [(each, stage, *count) for stage, count in counts.items()]


def _add_backfills(found: Rows, each: int, pipeline: Pipeline) -> None:
    found["looked_at"] += [
        (each, name, first, last)
        for name, offsets in pipeline.looked_at.items()
        for first, last in runs(sorted(offsets))
    ]
    found["backfill"] += [
        (
            each,
            number,
            b.partition,
            b.first,
            b.at,
            b.end,
            b.per_s,
            int(b.again),
            b.status,
            b.created,
            b.request,
        )
        for number, b in pipeline.backfills.items()
    ]


def _json(ids: Sequence[int]) -> str:
    return json.dumps(list(ids))
