"""`hadron pipeline backfill`: instances of records that were there before a pipeline looked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from hadron.cli.completing import complete_replica_sets, names_of
from hadron.cli.positions import FROM_HELP, Position, PositionType
from hadron.cli.printing import output_option, print_json, print_rows
from hadron.cli.quantities import Whole
from hadron.cli.session import connects, session_of

if TYPE_CHECKING:
    from hadron.client import SyncClient

_LARGEST: Final = (1 << 32) - 1
"""Of a backfill its number and its pace are short fields."""

_DONE_BY_HAND: Final = {"paused": "paused", "running": "resumed", "cancelled": "cancelled"}
"""A status that is asked for → what is done to the backfill."""

_COLUMNS = {
    "number": ">NUMBER",
    "partition": "PARTITION",
    "from_offset": ">FROM",
    "next_offset": ">NEXT",
    "to_offset": ">TO",
    "created": ">INSTANCES",
    "status": "STATUS",
}


@click.command("backfill")
@click.argument("name", shell_complete=names_of("Pipeline"))
@click.option(
    "--from",
    "start",
    type=PositionType(),
    metavar="POSITION",
    help=f"The first record: {FROM_HELP}",
)
@click.option(
    "--to",
    "end",
    type=PositionType(),
    metavar="POSITION",
    help="Likewise, not included; else up to where the pipeline is.",
)
@click.option(
    "--partition",
    "-p",
    default="",
    shell_complete=complete_replica_sets,
    metavar="PARTITION",
    help="Only this partition of the input.",
)
@click.option(
    "--per-second",
    "per_s",
    type=Whole(0, _LARGEST),
    default=0,
    metavar="N",
    help="Instances, at most; 0, the default: as many as there is room for.",
)
@click.option("--again", is_flag=True, help="Also of records that the pipeline has looked at.")
@click.option("--pause", type=Whole(1, _LARGEST), metavar="NUMBER", help="Pause this one.")
@click.option("--resume", type=Whole(1, _LARGEST), metavar="NUMBER", help="Let it go on.")
@click.option("--cancel", type=Whole(1, _LARGEST), metavar="NUMBER", help="End it.")
@output_option
@connects
@click.pass_context
def command(
    ctx: click.Context,
    name: str,
    start: Position | None,
    end: Position | None,
    partition: str,
    per_s: int,
    again: bool,
    pause: int | None,
    resume: int | None,
    cancel: int | None,
    output: str,
) -> None:
    """Let pipeline NAME make instances of old records, or show such backfills.

    A pipeline that was declared with `start: latest` has not looked at what was there before; this
    makes up for it, behind new records, each record once. It goes on by itself, whoever leads.

    \b
    Examples:
      hadron pipeline backfill departures --from earliest
      hadron pipeline backfill departures --from 2013-01-01 --to -1h --per-second 100
      hadron pipeline backfill departures
      hadron pipeline backfill departures --pause 1
    """
    acts = [
        (number, status)
        for number, status in ((pause, "paused"), (resume, "running"), (cancel, "cancelled"))
        if number is not None
    ]
    if len(acts) + (start is not None) > 1:
        raise click.UsageError("one of --from, --pause, --resume and --cancel at a time", ctx)
    if start is None and (end is not None or partition or per_s or again):
        raise click.UsageError("--from says where a backfill starts", ctx)
    from hadron.cli.pipelines.shown import backfill_rows

    with session_of(ctx).connect() as client:
        for number, status in acts:
            _control(client, name, number, status)
        if start is not None:
            _start(client, name, start, end, partition, per_s, again=again)
        (found,) = client.pipeline_progress(name)
    rows = backfill_rows(found)
    if output == "json":
        print_json(rows)
    else:
        print_rows(_COLUMNS, rows, output)


def _control(client: SyncClient, name: str, number: int, wanted: str) -> None:
    """Raises `RequestError` for one that has ended otherwise."""
    from hadron.model.errors import RequestError

    status = client.control_backfill(name, number, wanted)
    if status != wanted:
        raise RequestError(
            f"backfill {number} is {status}: it cannot be {_DONE_BY_HAND[wanted]} any more",
            f"`hadron pipeline backfill {name} --from …` starts another one",
        )
    click.echo(f"{number}: {status}", err=True)


def _start(
    client: SyncClient,
    name: str,
    start: Position,
    end: Position | None,
    partition: str,
    per_s: int,
    *,
    again: bool,
) -> None:
    from hadron.cli.pipelines.shown import progress_rows
    from hadron.model.errors import NotFoundError, RequestError

    (row,) = progress_rows(client, name)
    inputs = [each for each in row["inputs"] if partition in ("", each["partition"])]
    if not inputs:
        known = ", ".join(each["partition"] for each in row["inputs"])
        raise NotFoundError(f"{name} does not read {partition!r}", f"it reads: {known}")
    (stream,) = [
        each.spec.input  # type: ignore[attr-defined]
        for each in client.objects("Pipeline", client.namespace, name)
    ]
    begun = 0
    ranges = []
    for each in inputs:
        first = _offset(client, stream, each["partition"], start)
        last = each["offset"] if end is None else _offset(client, stream, each["partition"], end)
        ranges.append((first, last))
        if first < min(last, each["offset"]):
            client.start_backfill(
                name, first, last, partition=each["partition"], per_s=per_s, again=again
            )
            begun += 1
    if end is not None and all(first >= last for first, last in ranges):
        (first, last), where = ranges[0], inputs[0]["partition"]
        raise RequestError(
            f"--from is not before --to: in {where} they are the offsets {first:,} and {last:,}",
            "put the earlier one first",
        )
    if not begun:
        reached = ", ".join(f"{each['partition']} {each['offset']:,}" for each in inputs)
        click.echo(
            f"nothing to do: {name} has read up to {reached}, and makes instances of all that "
            "comes behind by itself",
            err=True,
        )


def _offset(client: SyncClient, stream: str, partition: str, position: Position) -> int:
    """Which it is in a partition. One that is given as a number is asked of nobody: it may be of a
    partition that is away."""
    if position.kind == "offset":
        return position.number
    (there,) = client.offsets(stream, partition=partition, at_ms=position.at_ms)
    return position.resolve(there.first_offset, there.next_offset, there.at_offset)
