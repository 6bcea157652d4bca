"""How pipelines are doing, as rows and as a live picture."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from hadron.cli.telling import Tells
from hadron.model.errors import NotFoundError
from hadron.model.words import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hadron.client import SyncClient
    from hadron.model.pipelines import PipelineSpec, StageSpec
    from hadron.model.schema import SchemaObject
    from hadron.wire.messages import pipelines_pb2

    _Pipeline = pipelines_pb2.PipelineProgressResponse.Pipeline
    _Stage = pipelines_pb2.PipelineProgressResponse.Stage
    _Instance = pipelines_pb2.ListInstancesResponse.Instance

_WATCH_EVERY_S: Final = 0.5


def _notes(client: SyncClient, objects: Sequence[SchemaObject]) -> list[str]:
    """Outputs that may start instances of their own pipeline again: that depends on their types."""
    from hadron.metadata.pipeline_loops import Loops

    pipelines = [each for each in objects if each.kind == "Pipeline"]
    if not pipelines:
        return []
    declared = {(each.namespace, each.name) for each in pipelines}
    others = client.objects("Pipeline", "", "")
    loops = Loops([*pipelines, *(o for o in others if (o.namespace, o.name) not in declared)])
    return [
        f"{found.label}: {loop}: an output whose type matches the triggers there starts another "
        "instance; give outputs a type of their own (column `type`), or none"
        for found in pipelines
        for loop in loops.of(found)
    ]


def progress_rows(client: SyncClient, name: str) -> list[dict[str, Any]]:
    """Progress of pipeline `name`, or of all when it is "". Raises `NotFoundError`."""
    found = client.pipeline_progress(name)
    if name and not found:
        raise NotFoundError(f"there is no pipeline {name!r}", "`hadron get pipelines` lists all")
    return [_progress_row(pipeline) for pipeline in found]


def _status(client: SyncClient, found: SchemaObject) -> dict[str, Any]:
    if found.kind != "Pipeline":
        return {}
    from hadron.cli.pipelines import streaming as stream_pipelines
    from hadron.model.pipelines import PipelineSpec

    if not isinstance(found.spec, PipelineSpec):
        return stream_pipelines.row_of(client, found)
    return {"graph": graph(found.spec), **next(iter(progress_rows(client, found.name)), {})}


def _checks(objects: Sequence[SchemaObject]) -> list[str]:
    from hadron.cli.pipelines.functions import check

    return check(objects)


TELLS: Final = Tells(notes=_notes, checks=_checks, status=_status)


def graph(spec: PipelineSpec) -> list[str]:
    """Its stages, each below the last of those that it follows, a line for each."""
    from hadron.model.pipelines import branch_of

    late = {branch_of(stage): stage.name for stage in spec.stages if branch_of(stage)}
    before = {
        stage.name: [
            *([late[stage.name]] if stage.name in late else []),
            *stage.dependencies,
            *stage.after,
        ]
        for stage in spec.stages
    }
    depth = _depths(before)
    below: dict[str, list[StageSpec]] = {}
    for stage in spec.stages:
        last = max(before[stage.name], key=depth.__getitem__) if depth[stage.name] else ""
        below.setdefault(last, []).append(stage)
    lines, left = [], below.get("", [])[::-1]
    while left:
        stage = left.pop()
        left += below.get(stage.name, [])[::-1]
        indent = "   " * depth[stage.name] + ("└─ " if depth[stage.name] else "")
        lines.append(indent + _told(stage, spec, late))
    return lines


def _depths(before: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """How many stages are one behind the other up to each, by what comes right before it."""
    depth: dict[str, int] = {}
    left = list(before)
    while left:
        for name in left:
            if all(each in depth for each in before[name]):
                depth[name] = max((depth[each] + 1 for each in before[name]), default=0)
        rest = [name for name in left if name not in depth]
        if len(rest) == len(left):
            # Nothing is left out, whatever is declared.
            depth.update(dict.fromkeys(rest, 0))
        left = [name for name in rest if name not in depth]
    return depth


def _told(stage: StageSpec, spec: PipelineSpec, late: Mapping[str, str]) -> str:
    """A stage, what it follows, and where its output goes. `late`: by a stage, the one that it runs
    for when that has waited for too long."""
    from hadron.model.units import format_duration

    parts = [stage.name]
    if stage.wait is not None:
        what = f"a record of {stage.wait.stream}" if stage.wait.stream else "a signal"
        within = stage.wait.timeout_ms
        parts.append(f"waits for {what}{f' for {format_duration(within)}' if within else ''}")
    if stage.name == spec.on_failure:
        parts.append("when an instance is given up")
    if stage.name in late:
        parts.append(f"when {late[stage.name]} has waited for too long")
    if stage.dependencies:
        parts.append(f"gets {', '.join(stage.dependencies)}")
    if stage.after:
        parts.append(f"after {', '.join(stage.after)}")
    if stage.output is not None:
        parts.append(f"output to {stage.output.stream}")
    return " · ".join(parts)


def _progress_row(pipeline: _Pipeline) -> dict[str, Any]:
    return {
        "namespace": pipeline.namespace,
        "name": pipeline.name,
        "id": pipeline.id,
        "instances": pipeline.instances,
        "live": pipeline.live,
        "done": pipeline.done,
        "failed": pipeline.failed,
        "cancelled": pipeline.cancelled,
        "input_offset": pipeline.input_offset,
        "input_next_offset": pipeline.input_next_offset,
        "input_lag": max(0, pipeline.input_next_offset - pipeline.input_offset),
        "inputs": [
            {
                "partition": each.partition,
                "offset": each.offset,
                "next_offset": each.next_offset,
                "trouble": each.trouble,
                "truncations": each.truncations,
            }
            for each in pipeline.inputs
        ],
        "backfills": backfill_rows(pipeline),
        "backfill_lag": sum(
            each.to_offset - each.next_offset
            for each in pipeline.backfills
            if each.status == "running"
        ),
        "skipped": pipeline.skipped,
        "untyped": pipeline.untyped,
        "stages": [
            {"name": stage.name, "ready": _ready(stage), **_counts(stage)}
            for stage in pipeline.stages
        ],
    }


def code_notes(row: dict[str, Any]) -> list[str]:
    """Of stages whose runners have different code."""
    return [
        f"runners of {stage['name']} have different code: {', '.join(stage['code_versions'])}; "
        f"`hadron pipeline show {row['name']} ID` tells who has run what"
        for stage in row["stages"]
        if len(stage["code_versions"]) > 1
    ]


def _ready(stage: _Stage) -> int:
    """Those that could run: none of those that wait."""
    return max(0, stage.ready - stage.waiting)


def _counts(stage: _Stage) -> dict[str, Any]:
    """How many instances are where at a stage, and who runs it."""
    return {
        "waiting": stage.waiting,
        "running": stage.running,
        "done": stage.done,
        "failed": stage.failed,
        "runners": stage.runners,
        "code_versions": list(stage.code_versions),
    }


def backfill_rows(pipeline: _Pipeline) -> list[dict[str, Any]]:
    """Its backfills, by number: those that have not ended, and the latest of the others."""
    return [
        {
            "number": each.number,
            "partition": each.partition,
            "from_offset": each.from_offset,
            "next_offset": each.next_offset,
            "to_offset": each.to_offset,
            "per_s": each.per_s,
            "again": each.again,
            "created": each.created,
            "status": each.status,
        }
        for each in pipeline.backfills
    ]


def backfill_notes(row: dict[str, Any]) -> list[str]:
    """How far the backfills of a pipeline are that run or are paused, a line for each."""
    notes = []
    for each in row["backfills"]:
        if each["status"] not in ("running", "paused"):
            continue
        note = (
            f"backfill {each['number']} of {each['partition']}: at {each['next_offset']:,} of "
            f"{each['to_offset']:,}, {each['to_offset'] - each['next_offset']:,} to come"
        )
        if each["status"] == "paused":
            note += (
                f", but it is paused: `hadron pipeline backfill {row['name']} --resume "
                f"{each['number']}` lets it go on"
            )
        elif each["per_s"]:
            note += f", {each['per_s']:,} instances/s at most"
        notes.append(note)
    return notes


def picture(row: dict[str, Any]) -> Any:
    """One pipeline's progress, as a sentence above a table of its stages, for rich."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    columns = ("name", "waiting", "ready", "running", "done", "failed", "runners")
    for column in columns:
        table.add_column(
            "STAGE" if column == "name" else column.upper(),
            justify="left" if column == "name" else "right",
        )
    for stage in row["stages"]:
        table.add_row(*(str(stage[column]) for column in columns))
    title = (
        f"{row['name']}: {row['done']:,} of {row['instances']:,} instances done, "
        f"{row['live']:,} live, {row['failed']:,} failed, "
        + (f"{row['cancelled']:,} cancelled, " if row["cancelled"] else "")
        + f"{row['input_lag']:,} to come"
    )
    lines: list[Any] = [Text(title), table]
    if row["failed"]:
        lines.append(
            Text(
                f"failed: `hadron pipeline instances {row['name']} --status failed` says why, "
                f"`hadron pipeline retry {row['name']} --failed` lets them run again"
            )
        )
    notes = (*backfill_notes(row), *_input_notes(row), *code_notes(row))
    lines += [Text(note) for note in notes]
    return Group(*lines)


def _input_notes(row: dict[str, Any]) -> list[str]:
    """What people must know of the input."""
    notes = [
        f"{each['partition']} is not being read: {each['trouble']}"
        for each in row["inputs"]
        if each["trouble"]
    ]
    notes += [
        f"{each['partition']} had lost records that were looked at, by a recovery or a restored "
        f"backup ({counted(each['truncations'], 'time')}): it went on at its end"
        for each in row["inputs"]
        if each["truncations"]
    ]
    if row["skipped"]:
        skipped = counted(row["skipped"], "record was", "records were")
        notes.append(f"{skipped} dropped by retention before being read")
    if row["untyped"]:
        notes.append(untyped_note(row))
    return notes


def untyped_note(row: dict[str, Any]) -> str:
    """Why records of the input make no instances, to who expected them to."""
    return (
        f"{counted(row['untyped'], 'record')} without a type passed by: the triggers of "
        f"{row['name']} match types only. Publish with a type (`hadron pub --type`), "
        "or declare no triggers: then every record makes an instance"
    )


def watch(client: SyncClient, name: str) -> None:
    """Show one pipeline's progress until interrupted."""
    from rich.live import Live

    with Live(picture(progress_rows(client, name)[0]), auto_refresh=False) as live:
        while True:
            live.update(picture(progress_rows(client, name)[0]), refresh=True)
            time.sleep(_WATCH_EVERY_S)


def tell_changed(count: int) -> None:
    """How many instances were retried or cancelled so far, on one line of a terminal."""
    click.echo(f"\r{count:,} so far", nl=False, err=True)


def instance_row(instance: _Instance) -> dict[str, Any]:
    """One instance: its trigger, its stages and their outputs, times in milliseconds."""
    return {
        "id": instance.id,
        "status": instance.status,
        "root": reference(instance.root),
        "created_ms": instance.created_ms,
        "stages": [
            {
                "name": stage.name,
                "status": stage.status,
                "attempts": stage.attempts,
                "output": reference(stage.output) if stage.HasField("output") else None,
                "reason": stage.reason,
                "waits_for": stage.waits_for,
                "runner": stage.runner,
                "running_ms": stage.running_ms,
                "code_version": stage.code_version,
                "tried": [
                    {
                        "attempt": each.number,
                        "ended_ms": each.ended_ms,
                        "took_ms": each.took_ms if each.HasField("took_ms") else None,
                        "runner": each.runner,
                        "code_version": each.code_version,
                        "reason": each.reason,
                    }
                    for each in stage.tried
                ],
            }
            for stage in instance.stages
        ],
    }


def attempt_rows(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Of an instance: each attempt that has ended, or runs, in the order of their ends."""
    from hadron.model.units import format_time

    found = [
        {
            "stage": stage["name"],
            **each,
            "ended": format_time(each["ended_ms"]),
            "took": _seconds(each["took_ms"]),
            "result": each["reason"] or "done",
        }
        for stage in row["stages"]
        for each in stage["tried"]
    ]
    found.sort(key=lambda each: each["ended_ms"])
    found += [
        {
            "stage": stage["name"],
            "attempt": (stage["tried"][-1]["attempt"] if stage["tried"] else 0) + 1,
            "ended": "",
            "took": _seconds(stage["running_ms"]),
            "runner": stage["runner"],
            "code_version": stage["code_version"],
            "result": "runs",
        }
        for stage in row["stages"]
        if stage["status"] == "running"
    ]
    return found


def stats_row(client: SyncClient, name: str) -> dict[str, Any]:
    """How fast pipeline `name` is. Raises `NotFoundError`."""
    found = client.pipeline_progress(name, with_pace=True)
    if not found:
        raise NotFoundError(f"there is no pipeline {name!r}", "`hadron get pipelines` lists all")
    (pipeline,) = found
    row = _progress_row(pipeline)
    kept = ("name", "live", "done", "failed", "cancelled", "input_lag", "backfill_lag")
    return {
        **{key: row[key] for key in kept},
        "triggered_per_s": round(pipeline.triggered_per_s, 2),
        "stages": [
            {
                "name": stage.name,
                "per_s": round(stage.per_s, 2),
                "p50_ms": stage.p50_ms if stage.HasField("p50_ms") else None,
                "p95_ms": stage.p95_ms if stage.HasField("p95_ms") else None,
                "backlog": _ready(stage),
                **_counts(stage),
            }
            for stage in pipeline.stages
        ],
    }


def seconds_columns(stage: dict[str, Any]) -> dict[str, Any]:
    """A stage of `stats_row`, for people."""
    return {**stage, "p50": _seconds(stage["p50_ms"]), "p95": _seconds(stage["p95_ms"])}


def _seconds(ms: int | None) -> str:
    return "" if ms is None else f"{ms / 1_000:,.3f} s"


def reference(ref: pipelines_pb2.RecordRef) -> str:
    """`stream/partition/offset`, as a record's own id is written."""
    return f"{ref.stream}/{ref.partition}/{ref.offset}"
