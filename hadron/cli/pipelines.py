"""How pipelines are doing, as rows and as a live picture."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from hadron.model.errors import NotFoundError

if TYPE_CHECKING:
    from hadron.client.sync import SyncClient
    from hadron.wire.messages import pipelines_pb2

    _Pipeline = pipelines_pb2.PipelineProgressResponse.Pipeline
    _Instance = pipelines_pb2.ListInstancesResponse.Instance

_WATCH_EVERY_S: Final = 0.5


def progress_rows(client: SyncClient, name: str) -> list[dict[str, Any]]:
    """Progress of pipeline `name`, or of all when it is "". Raises `NotFoundError`."""
    found = client.pipeline_progress(name)
    if name and not found:
        raise NotFoundError(f"there is no pipeline {name!r}", "`hadron get pipelines` lists all")
    return [_progress_row(pipeline) for pipeline in found]


def _progress_row(pipeline: _Pipeline) -> dict[str, Any]:
    return {
        "namespace": pipeline.namespace,
        "name": pipeline.name,
        "id": pipeline.id,
        "instances": pipeline.instances,
        "live": pipeline.live,
        "done": pipeline.done,
        "failed": pipeline.failed,
        "input_offset": pipeline.input_offset,
        "input_next_offset": pipeline.input_next_offset,
        "input_lag": max(0, pipeline.input_next_offset - pipeline.input_offset),
        "untyped": pipeline.untyped,
        "stages": [
            {
                "name": stage.name, "ready": stage.ready, "running": stage.running,
                "done": stage.done, "failed": stage.failed, "runners": stage.runners,
            }
            for stage in pipeline.stages
        ],
    }


def picture(row: dict[str, Any]) -> Any:
    """One pipeline's progress, as a sentence above a table of its stages, for rich."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    columns = ("name", "ready", "running", "done", "failed", "runners")
    for column in columns:
        table.add_column(
            "STAGE" if column == "name" else column.upper(),
            justify="left" if column == "name" else "right",
        )
    for stage in row["stages"]:
        table.add_row(*(str(stage[column]) for column in columns))
    title = (
        f"{row['name']}: {row['done']:,} of {row['instances']:,} instances done, "
        f"{row['live']:,} live, {row['failed']:,} failed, {row['input_lag']:,} to come"
    )
    lines: list[Any] = [Text(title), table]
    if row["failed"]:
        lines.append(Text(
            f"failed: `hadron pipeline instances {row['name']} --status failed` says why, "
            f"`hadron pipeline retry {row['name']} --failed` lets them run again"
        ))
    if row["untyped"]:
        lines.append(Text(untyped_note(row)))
    return Group(*lines)


def untyped_note(row: dict[str, Any]) -> str:
    """Why records of the input make no instances, to who expected them to."""
    return (
        f"{row['untyped']:,} records without a type passed by: the triggers of {row['name']} match "
        "types only. Publish with a type (`hadron pub --type`), or declare no triggers: then every "
        "record makes an instance"
    )


def watch(client: SyncClient, name: str) -> None:
    """Show one pipeline's progress until interrupted."""
    from rich.live import Live

    with Live(picture(progress_rows(client, name)[0]), auto_refresh=False) as live:
        while True:
            live.update(picture(progress_rows(client, name)[0]), refresh=True)
            time.sleep(_WATCH_EVERY_S)


def tell_retried(count: int) -> None:
    """How many instances were retried so far, on one line of a terminal."""
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
            }
            for stage in instance.stages
        ],
    }


def reference(ref: pipelines_pb2.RecordRef) -> str:
    """`stream/partition/offset`, as a record's own id is written."""
    return f"{ref.stream}/{ref.partition}/{ref.offset}"
