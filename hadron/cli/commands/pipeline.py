"""`hadron pipeline`: run a pipeline's stages, and look at its instances."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from hadron.cli.commands.backfill import command as backfill
from hadron.cli.commands.instances import cancel, instances, retry
from hadron.cli.completing import names_of
from hadron.cli.objects import require_namespace
from hadron.cli.printing import output_option, print_json, print_rich, print_rows
from hadron.cli.quantities import Whole
from hadron.cli.session import connects, session_of
from hadron.model.errors import HadronError
from hadron.model.limits import DEFAULT_MICRO_BATCH, MAX_MICRO_BATCH
from hadron.model.words import counted

if TYPE_CHECKING:
    from hadron.client import SyncClient
    from hadron.wire.messages import pipelines_pb2

_STAGE_COLUMNS = {
    "name": "STAGE",
    "status": "STATUS",
    "attempts": ">FAILED ATTEMPTS",
    "output": "OUTPUT",
    "why": "~REASON, OR WHAT IT WAITS FOR",
}


_ATTEMPT_COLUMNS = {
    "stage": "STAGE",
    "attempt": ">ATTEMPT",
    "ended": "ENDED",
    "took": ">TOOK",
    "runner": "RUNNER",
    "code_version": "CODE",
    "result": "~RESULT",
}

_STATS_COLUMNS = {
    "name": "STAGE",
    "per_s": ">PER S",
    "p50": ">P50",
    "p95": ">P95",
    "backlog": ">BACKLOG",
    "waiting": ">WAITING",
    "running": ">RUNNING",
    "done": ">DONE",
    "failed": ">FAILED",
    "runners": ">RUNNERS",
}


_STAGE_OPTIONS = ("stages", "max_batch")
_STREAM_OPTIONS = ("checkpoints", "reset")
"""Of `run`, each for pipelines of one mode."""


@click.group("pipeline", short_help="Run a pipeline's stages and watch its instances.")
def command() -> None:
    """Pipelines: stages that run for every record of a stream.

    \b
    Example:
      hadron pipeline run departures
      hadron pipeline show departures
      hadron pipeline retry departures --failed
    """


@command.command("run")
@click.argument("name", shell_complete=names_of("Pipeline"))
@click.option(
    "--master",
    default="local[*]",
    show_default=True,
    metavar="URL",
    help="Where Spark runs: on this machine, or a Spark cluster's URL.",
)
@click.option(
    "--stage", "stages", multiple=True, metavar="STAGE", help="Only this stage; repeatable."
)
@click.option(
    "--max-batch",
    type=click.IntRange(1, MAX_MICRO_BATCH),
    default=DEFAULT_MICRO_BATCH,
    show_default=True,
    metavar="N",
    help="Instances in one DataFrame, at most: it gets all that wait.",
)
@click.option(
    "--until-idle",
    "--once",
    "until_idle",
    is_flag=True,
    help="End when the input is read to its end, no backfill runs (a paused one is told), and "
    "nothing is ready, running or due for another attempt; exit status 1 when instances failed "
    "for good.",
)
@click.option(
    "--checkpoints",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="HADRON_CHECKPOINTS",
    metavar="DIR",
    help="Of a streaming query: where it keeps how far it is; ~/.local/state/hadron/checkpoints "
    "else. All machines of a Spark cluster have to see it.",
)
@click.option(
    "--reset",
    is_flag=True,
    help="Of a streaming query: forget how far it is, and begin anew at its `start`. What it reads "
    "again it publishes again.",
)
@connects
@click.pass_context
def run(ctx: click.Context, /, name: str, master: str, until_idle: bool, **given: Any) -> int:
    """Run the Spark stages of pipeline NAME, or its streaming query, until Ctrl-C, which lets it
    finish what it has.

    It needs Hadron's Spark extra: pip install '.[spark]' in a clone, 'CLONE[spark]' elsewhere.

    Any number of runners may run at once; what one leaves undone, another gets. A stage names its
    function with `run: package.module:function`; modules are looked for in the current directory,
    in PYTHONPATH and among the installed packages, once Spark has started. The runner ends when one
    of them cannot be loaded, or is wrong whatever its input (a column that does not exist, wrong
    columns returned): its instances wait, and no attempt of theirs is counted.

    The function takes a DataFrame with one row per instance and returns another one.

    \b
    Columns it gets:
      instance_id                 the instance; return it as it is
      root                        value of the record that triggered it
      one column per dependency   output of that stage, under the stage's name
      key, type, timestamp, partition, offset, headers    of the triggering record
      failed_stage, failure       only of the pipeline's `on_failure` stage: which was given up, why
    JSON values are strings, unless the stage declares `schema:`, a DDL that makes structs of some
    columns: schema: "root STRUCT<id: INT>, parse STRUCT<total: DOUBLE>". To run after a stage that
    has no output, a stage names it in `after: [NAME]` instead of `dependencies`.

    \b
    Columns it returns, exactly one row per instance:
      instance_id, value          without an output, a value is computed and let go
      key, type, partition        if wanted
      headers                     if wanted, MAP<STRING, STRING>
      error                       text where an instance fails; its value is let go

    An instance whose function raises for it, or returns no row, fails and is tried again as
    `retry: {max_attempts, backoff}` says: 5 attempts by default, the first pause 1 s, then twice as
    long each time. `hadron pipeline instances NAME --status failed` shows what was given up, and
    why; `hadron pipeline retry NAME --failed` lets it run again.

    Which instances share a DataFrame is chance, and where one raises, its parts run by themselves,
    down to single rows: a row must not depend on the others. Rows for instances that were not given
    are dropped, and told. A DataFrame may take as long as the stage's `timeout` says,
    5 minutes by default. SPARK_DRIVER_MEMORY=4g gives Spark more than its 1 GiB of memory.

    A pipeline with `mode: stream` is one streaming query (docs/SPARK.md): its function gets a
    streaming DataFrame, and returns one with the columns value, and, if wanted, key, type,
    partition, headers and timestamp. It has one runner at a time; another one ends with an error.

    \b
    Examples:
      hadron pipeline run departures
      hadron pipeline run departures --until-idle
      hadron pipeline run departures --master spark://10.0.0.7:7077 --stage verdict
      hadron pipeline run delays-by-hour --checkpoints /data/checkpoints
    """
    from hadron.spark.extra import check_extra

    # Before any node is asked: what is missing here is missing whatever they say.
    check_extra()
    from hadron.cli.pipelines.stage_running import run_stages
    from hadron.cli.pipelines.stream_running import run_stream
    from hadron.cli.pipelines.streaming import find_streaming
    from hadron.spark.session import check_master, see_current_directory

    check_master(master)
    see_current_directory()
    url = session_of(ctx).url
    found = find_streaming(url, name)
    given = _of_mode(ctx, name, found is not None, given)
    if found is None:
        return run_stages(url, name, master, **given, until_idle=until_idle)
    return run_stream(url, found, master, **given, until_idle=until_idle)


def _of_mode(ctx: click.Context, name: str, streams: bool, given: dict[str, Any]) -> dict[str, Any]:
    """The options that pipeline NAME's mode has; another one that was given is refused."""
    of_mode = _STREAM_OPTIONS if streams else _STAGE_OPTIONS
    for option in {*_STAGE_OPTIONS, *_STREAM_OPTIONS} - set(of_mode):
        if ctx.get_parameter_source(option) is ParameterSource.COMMANDLINE:
            shown = "--" + option.removesuffix("s" if option == "stages" else "").replace("_", "-")
            kind = "one streaming query" if streams else "stages"
            raise click.UsageError(f"{shown} has no meaning here: {name!r} is {kind}", ctx)
    return {option: given[option] for option in of_mode}


@command.command("start")
@click.argument("name", shell_complete=names_of("Pipeline"))
@click.option(
    "--stream",
    required=True,
    shell_complete=names_of("Stream"),
    metavar="STREAM",
    help="Where the records are.",
)
@click.option(
    "--offset",
    "offsets",
    multiple=True,
    required=True,
    type=Whole(),
    metavar="N",
    help="A record; repeatable.",
)
@click.option(
    "--partition",
    "-p",
    default="",
    metavar="PARTITION",
    help="The records'. Default: the one of the pipeline's own replica set.",
)
@output_option
@connects
@click.pass_context
def start(
    ctx: click.Context,
    name: str,
    stream: str,
    offsets: tuple[int, ...],
    partition: str,
    output: str,
) -> None:
    """Start instances of pipeline NAME for records that need not trigger it.

    Each makes an instance, also one that has made some before, and beyond `max_parallel`.

    \b
    Example:
      hadron pipeline start departures --stream flights --offset 17 --offset 23
    """
    with session_of(ctx).connect() as client:
        made = client.start_instances(name, stream, offsets, partition=partition)
    if output == "json":
        print_json({"pipeline": name, "instances": made})
    else:
        click.echo(f"started: {', '.join(map(str, made))}")


@command.command("signal")
@click.argument("name", shell_complete=names_of("Pipeline"))
@click.argument("instance_id", metavar="ID", type=Whole(1))
@click.argument("stage")
@click.argument("value", required=False)
@click.option(
    "--format",
    "form",
    type=click.Choice(["lines", "json", "raw"]),
    help="What VALUE is, as of `hadron pub`: lines is text, json any JSON value, raw its bytes. By "
    "default an object or a list is JSON, all else text.",
)
@output_option
@connects
@click.pass_context
def signal(
    ctx: click.Context,
    name: str,
    instance_id: int,
    stage: str,
    value: str | None,
    form: str | None,
    output: str,
) -> None:
    """Signal STAGE of instance ID of pipeline NAME, which waits for it: `wait: {signal: true}`.

    VALUE becomes the stage's output, where it declares one: what is written as a JSON object or
    list arrives as one, all else as text, unless --format says otherwise.

    A signal that comes before the stage's turn counts, too, and only the first one does; one for an
    instance that is not there yet is refused. Of an instance that has failed it is kept until that
    is retried, and you are told.

    \b
    Examples:
      hadron pipeline signal refunds 17 approve
      hadron pipeline signal refunds 17 approve '{"by": "ann", "granted": true}'
      hadron pipeline signal refunds 17 approve true --format json
    """
    from hadron.cli.inputs import one_value

    if form is not None and value is None:
        raise click.UsageError("--format is of a VALUE", ctx)
    said = None if value is None else one_value(value, form)
    with session_of(ctx).connect() as client:
        is_first = client.signal(name, instance_id, stage, said)
        shown = []
        with suppress(HadronError):
            # It was taken, whatever becomes of this.
            shown = client.instances(name, after_id=instance_id - 1, limit=1)
    # Of one that is gone by now nothing is known.
    status = shown[0].status if shown and shown[0].id == instance_id else ""
    if output == "json":
        print_json(
            {
                "pipeline": name,
                "instance": instance_id,
                "stage": stage,
                "first": is_first,
                "status": status,
            }
        )
    elif is_first:
        click.echo(f"signalled: instance {instance_id}, stage {stage}")
    else:
        click.echo(
            f"stage {stage} of instance {instance_id} had been signalled before: that one counts"
        )
    if status == "failed" and output != "json":
        click.echo(_note(name, shown[0], stage), err=True)


def _note(name: str, instance: pipelines_pb2.ListInstancesResponse.Instance, stage: str) -> str:
    """To who has signalled a stage of one that has failed, before that or since."""
    failed = [f" at stage {each.name}" for each in instance.stages if each.status == "failed"]
    has_failed = f"instance {instance.id} has failed{', and'.join(failed)}"
    again = f"hadron pipeline retry {name} --id {instance.id}"
    if any(each.name == stage and each.status == "done" for each in instance.stages):
        return (
            f"note: stage {stage} is done, and {has_failed}; it goes on once it is retried: {again}"
        )
    return (
        f"note: nothing waits for it now: {has_failed}; it goes on, with this signal, once it is "
        f"retried: {again}"
    )


@command.command("show")
@click.argument("name", default="", shell_complete=names_of("Pipeline"))
@click.argument("instance_id", metavar="[ID]", required=False, type=Whole(1))
@click.option("--watch", "-w", is_flag=True, help="Keep showing until Ctrl-C.")
@output_option
@connects
@click.pass_context
def show(ctx: click.Context, name: str, instance_id: int | None, watch: bool, output: str) -> None:
    """Show how far pipeline NAME is, or all of them; with an ID, where that instance is.

    Of a streaming query: its latest batch that is published, and, where its checkpoint is on this
    machine, how much of its input is to come.

    Of an instance: what triggered it, and of each stage its status, how many attempts failed, where
    its output is, why it failed, and what it waits for; then its attempts, the latest five of each
    stage: who ran them, for how long, and with what code.

    \b
    Examples:
      hadron pipeline show
      hadron pipeline show departures --watch
      hadron pipeline show departures 17
    """
    from hadron.cli.pipelines import shown as pipelines
    from hadron.cli.pipelines import streaming as stream_pipelines

    if watch and (not name or output == "json"):
        raise click.UsageError("--watch needs the NAME of one pipeline and a table", ctx)
    if watch and instance_id is not None:
        raise click.UsageError("--watch shows a pipeline, not one instance", ctx)
    with session_of(ctx).connect() as client:
        if instance_id is not None:
            _show_one(client, name, instance_id, output)
            return
        queries = stream_pipelines.rows(client, name)
        if watch and queries:
            raise click.UsageError(
                "--watch shows stages; of a streaming query `hadron pipeline run` tells", ctx
            )
        if watch:
            pipelines.watch(client, name)
        rows = [] if name and queries else pipelines.progress_rows(client, name)
        if not rows and not queries:
            require_namespace(client, client.namespace)
    if output == "json":
        print_json([*rows, *queries])
        return
    for row in rows:
        print_rich(pipelines.picture(row))
    for row in queries:
        click.echo(stream_pipelines.sentence(row))
    if not rows and not queries:
        click.echo("there is no pipeline here; `hadron apply` declares one", err=True)


def _show_one(client: SyncClient, name: str, instance_id: int, output: str) -> None:
    """Raises `NotFoundError`."""
    from hadron.cli.pipelines.shown import attempt_rows, instance_row
    from hadron.model.errors import NotFoundError
    from hadron.model.units import format_time

    found = client.instances(name, after_id=instance_id - 1, limit=1)
    if not found or found[0].id != instance_id:
        raise NotFoundError(
            f"pipeline {name!r} has no instance {instance_id}",
            "what has ended is kept for the pipeline's `keep_finished`; "
            f"`hadron pipeline instances {name}` lists those that are there",
        )
    row = instance_row(found[0])
    if output == "json":
        print_json(row)
        return
    made = format_time(row["created_ms"])
    click.echo(f"instance {instance_id} of {name}: {row['status']}, made {made} of {row['root']}")
    stages = [
        {**each, "why": each["reason"] or each["waits_for"], "output": each["output"] or ""}
        for each in row["stages"]
    ]
    print_rows(_STAGE_COLUMNS, stages, output)
    if attempts := attempt_rows(row):
        click.echo()
        print_rows(_ATTEMPT_COLUMNS, attempts, output)


@command.command("stats")
@click.argument("name", shell_complete=names_of("Pipeline"))
@output_option
@connects
@click.pass_context
def stats(ctx: click.Context, name: str, output: str) -> None:
    """Show how fast pipeline NAME is: attempts that ended in a second, within the last minute, and
    how long half of the latest ones took, and 95 of a hundred.

    BACKLOG could run now, or is at a runner that has not begun with it; WAITING waits for its time,
    a record or a signal. Times are those of the latest 2,000 instances at a stage.

    \b
    Examples:
      hadron pipeline stats departures
      hadron pipeline stats departures -o json
    """
    from hadron.cli.pipelines import streaming as stream_pipelines
    from hadron.cli.pipelines.shown import code_notes, seconds_columns, stats_row

    with session_of(ctx).connect() as client:
        queries = stream_pipelines.rows(client, name)
        row = queries[0] if queries else stats_row(client, name)
    if queries and output != "json":
        click.echo(stream_pipelines.sentence(row))
        return
    if output == "json":
        print_json(row)
        return
    click.echo(
        f"{row['name']}: {row['triggered_per_s']:,.1f} instances/s, {row['live']:,} live, "
        f"{row['failed']:,} failed, {counted(row['input_lag'], 'record')} of the input to go"
        + (f", {row['backfill_lag']:,} of backfills" if row["backfill_lag"] else "")
    )
    print_rows(_STATS_COLUMNS, [seconds_columns(each) for each in row["stages"]], output)
    for note in code_notes(row):
        click.echo(note)


for _each in (instances, retry, cancel, backfill):
    command.add_command(_each)
