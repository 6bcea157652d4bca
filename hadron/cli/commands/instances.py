"""`hadron pipeline instances`, `retry` and `cancel`: a pipeline's instances, some or many."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from hadron.cli.completing import names_of
from hadron.cli.positions import MOMENT_HELP, MomentType
from hadron.cli.printing import output_option, print_json, print_rows
from hadron.cli.quantities import Whole
from hadron.cli.session import connects, session_of
from hadron.model.words import counted

if TYPE_CHECKING:
    from hadron.client import SyncClient


_INSTANCE_COLUMNS = {
    "id": ">ID",
    "status": "STATUS",
    "root": "TRIGGER",
    "stages": "STAGES",
    "reason": "~REASON",
}

_IDS = click.option(
    "--id",
    "ids",
    multiple=True,
    type=Whole(1),
    metavar="ID",
    help="Only this instance; repeatable.",
)
_BEFORE = click.option(
    "--before",
    "before_ms",
    type=MomentType(),
    metavar="TIME",
    help=f"Of these only those made before then: {MOMENT_HELP}",
)


@click.command("instances")
@click.argument("name", shell_complete=names_of("Pipeline"))
@click.option(
    "--status", type=click.Choice(["live", "done", "failed", "cancelled"]), help="Only these."
)
@click.option("--failed", is_flag=True, help="The same as --status failed.")
@click.option(
    "--after-id",
    type=Whole(),
    default=0,
    metavar="ID",
    help="Continue a listing after this instance.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1, max=10_000),
    metavar="N",
    default=100,
    show_default=True,
    help="At most so many.",
)
@output_option
@connects
@click.pass_context
def instances(
    ctx: click.Context,
    name: str,
    status: str | None,
    failed: bool,
    after_id: int,
    limit: int,
    output: str,
) -> None:
    """List instances of pipeline NAME in the order of their creation.

    \b
    Examples:
      hadron pipeline instances departures --status failed
      hadron pipeline instances departures --after-id 100 -o json
    """
    from hadron.cli.pipelines.shown import instance_row

    if failed and status not in (None, "failed"):
        raise click.UsageError(
            f"--failed is --status failed, and --status {status} is given: give one of them", ctx
        )
    if failed:
        status = "failed"
    with session_of(ctx).connect() as client:
        found = client.instances(name, status=status or "", after_id=after_id, limit=limit)
    rows = [instance_row(instance) for instance in found]
    if output == "table":
        rows = [_flat(row) for row in rows]
    print_rows(_INSTANCE_COLUMNS, rows, output)


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    stages = " ".join(f"{stage['name']}={stage['status']}" for stage in row["stages"])
    reasons = [stage["reason"] for stage in row["stages"] if stage["reason"]]
    return {**row, "stages": stages, "reason": "; ".join(reasons)}


@click.command("retry")
@click.argument("name", shell_complete=names_of("Pipeline"))
@click.option("--failed", is_flag=True, help="All instances that have failed.")
@click.option(
    "--stage",
    default="",
    metavar="STAGE",
    help="Of these only those in which this stage has failed.",
)
@_BEFORE
@_IDS
@click.option(
    "--from",
    "begin",
    type=click.Choice(["failed", "start"]),
    default="failed",
    show_default=True,
    help="From the stages that failed, or all over again: then outputs come once more.",
)
@output_option
@connects
@click.pass_context
def retry(
    ctx: click.Context,
    name: str,
    failed: bool,
    stage: str,
    before_ms: int | None,
    ids: tuple[int, ...],
    begin: str,
    output: str,
) -> None:
    """Let failed instances of pipeline NAME run again, once their cause is mended.

    What was done of them stays: only the stages that failed run again, with as many attempts as
    they declare, and with the stages that are declared now. It is safe to repeat: instances that
    were retried already and have not failed again are passed over.

    \b
    Examples:
      hadron pipeline instances departures --status failed
      hadron pipeline retry departures --failed
      hadron pipeline retry departures --failed --stage verdict --before 2026-01-01
      hadron pipeline retry departures --id 17 --id 23
      hadron pipeline retry departures --id 17 --from start
    """
    retried = _change(
        ctx,
        name,
        lambda client, **chosen: client.retry_instances(from_start=begin == "start", **chosen),
        groups={"--failed": failed},
        ids=ids,
        stage=stage,
        before_ms=before_ms,
    )
    if output == "json":
        print_json({"pipeline": name, "retried": retried})
    elif retried:
        run = counted(retried, "instance runs", "instances run")
        click.echo(f"{run} again; `hadron pipeline show {name}` tells how far")
    else:
        what = "nothing that was chosen" if stage or before_ms is not None else "nothing"
        click.echo("nothing to do: retried already" if ids else f"{what} of {name!r} has failed")


@click.command("cancel")
@click.argument("name", shell_complete=names_of("Pipeline"))
@click.option("--live", is_flag=True, help="All that are live.")
@click.option("--failed", is_flag=True, help="All that have failed.")
@click.option(
    "--stage",
    default="",
    metavar="STAGE",
    help="Of these only those that wait for this stage to be run.",
)
@_BEFORE
@_IDS
@output_option
@connects
@click.pass_context
def cancel(
    ctx: click.Context,
    name: str,
    live: bool,
    failed: bool,
    stage: str,
    before_ms: int | None,
    ids: tuple[int, ...],
    output: str,
) -> None:
    """End instances of pipeline NAME: nothing of them runs any more.

    What is done of them stays, what runners still make of them does not count. It is safe to
    repeat: those that have ended otherwise are passed over.

    \b
    Examples:
      hadron pipeline cancel departures --id 17
      hadron pipeline cancel departures --live --stage verdict --before -1h
    """
    cancelled = _change(
        ctx,
        name,
        lambda client, **chosen: client.cancel_instances(
            status="failed" if failed else "live", **chosen
        ),
        groups={"--live": live, "--failed": failed},
        ids=ids,
        stage=stage,
        before_ms=before_ms,
    )
    if output == "json":
        print_json({"pipeline": name, "cancelled": cancelled})
    else:
        told = f"{counted(cancelled, 'instance')} cancelled"
        click.echo(told if cancelled else "nothing to do")


def _change(
    ctx: click.Context,
    name: str,
    change: Callable[..., int],
    *,
    groups: Mapping[str, bool],
    ids: tuple[int, ...],
    stage: str,
    before_ms: int | None,
) -> int:
    """Have `change`, of a client, do something to the chosen instances; returns to how many.

    Args:
        groups: the options that choose all of a kind, and whether each is given.

    Raises `UsageError` unless one of those chooses, or ids do, `NotFoundError` for a stage that
    does not exist.
    """
    given = [*(each for each, is_given in groups.items() if is_given), *(["--id"] if ids else [])]
    if not given:
        either = " or ".join([", ".join(groups), "--id ID"])
        raise click.UsageError(f"say which instances: {either}", ctx)
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} are given: give one of them", ctx)
    if ids and (stage or before_ms is not None):
        raise click.UsageError(f"--stage and --before choose among {' or '.join(groups)} ones", ctx)
    from hadron.cli.pipelines.shown import tell_changed

    progress = tell_changed if sys.stderr.isatty() else None
    with session_of(ctx).connect() as client:
        changed = change(
            client,
            pipeline=name,
            instance_ids=ids or None,
            stage=stage,
            # Without one it is 0.
            before_ms=0 if before_ms is None else max(1, before_ms),
            on_progress=progress,
        )
        if progress is not None:
            click.echo(err=True)
        if stage and not changed:
            _check_stage(client, name, stage)
    return changed


def _check_stage(client: SyncClient, name: str, stage: str) -> None:
    """Raises `NotFoundError` for what was misspelt; nothing was found of it."""
    from hadron.cli.pipelines.shown import progress_rows
    from hadron.model.errors import NotFoundError
    from hadron.model.problems import did_you_mean

    (row,) = progress_rows(client, name)
    known = [each["name"] for each in row["stages"]]
    if stage not in known:
        raise NotFoundError(
            f"pipeline {name!r} has no stage {stage!r}{did_you_mean(stage, known)}",
            f"its stages are {', '.join(known)}",
        )
