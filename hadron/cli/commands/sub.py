"""`hadron sub`: follow a stream, alone or as a member of a consumer group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from hadron.cli.commands.group import complete_groups
from hadron.cli.completing import complete_partitions, names_of
from hadron.cli.positions import FROM_HELP, Position, PositionType
from hadron.cli.quantities import Duration, Whole, once
from hadron.cli.records import TOKENS_HELP, records_output_option
from hadron.cli.session import connects, session_of

if TYPE_CHECKING:
    from hadron.cli.following import Request


_OF_MEMBERS: Final = (
    "max_in_flight",
    "batch_size",
    "batch_wait_s",
    "order",
    "ack_deadline_s",
    "max_attempts",
    "dead_letter",
    "ephemeral",
    "heartbeat_s",
    "heartbeat_misses",
    "member",
)
"""Options that `Client.subscribe` takes as they are; None is not given."""


@click.command("sub", short_help="Follow a stream, alone or as a member of a group.")
@click.argument("stream", shell_complete=names_of("Stream"))
@click.option(
    "--group",
    "-G",
    shell_complete=complete_groups,
    metavar="GROUP",
    help="Join this consumer group; without one nothing is remembered.",
)
@click.option(
    "--from",
    "start",
    type=PositionType(),
    metavar="POSITION",
    multiple=True,
    callback=once,
    help=f"Where to start: {FROM_HELP} Default: latest, or earliest for a new group. "
    "A group that exists goes on where it was; a new one begins at the end for a time yet to come.",
)
@click.option(
    "--partition",
    "-p",
    "partitions",
    multiple=True,
    shell_complete=complete_partitions,
    metavar="PARTITION",
    help="Only this one; repeatable.",
)
@click.option(
    "--ack",
    type=click.Choice(["auto", "none"]),
    default="auto",
    show_default=True,
    help="auto acknowledges what was printed, also into a pipe that nobody reads to its end (-c N "
    "takes N records); none leaves it to be delivered again.",
)
@click.option("--limit", "-c", type=Whole(1), metavar="N", help="Stop after N records.")
@click.option(
    "--exit",
    "-e",
    "exit_at_end",
    is_flag=True,
    help="Stop at the end of every partition (without --group).",
)
@click.option(
    "--max-in-flight",
    type=click.IntRange(1, 100_000),
    metavar="N",
    help="Records delivered and not acknowledged, per partition. Default: 1000.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(1, 100_000),
    metavar="N",
    help="Be given N records of a partition at a time. Default: as they come.",
)
@click.option(
    "--batch-wait",
    "batch_wait_s",
    type=Duration(),
    metavar="TIME",
    help="How long the first record of a batch waits for the others, such as 500ms. Default: 0s.",
)
@click.option(
    "--order",
    type=click.Choice(["none", "strict", "key"]),
    help="Of a new group. strict: one record in flight per partition; key: one per key. Default: "
    "none.",
)
@click.option(
    "--ack-deadline",
    "ack_deadline_s",
    type=Duration(),
    metavar="TIME",
    help="Give a record to another member when it is not acknowledged for so long; 0s, the "
    "default: never.",
)
@click.option(
    "--max-attempts",
    type=click.IntRange(0, 1_000),
    metavar="N",
    help="Deliveries without an acknowledgement before a record is a dead letter; 0, the default: "
    "as many as it takes.",
)
@click.option(
    "--dead-letter",
    metavar="STREAM",
    shell_complete=names_of("Stream"),
    help="Where dead letters go; needs a partition on each of STREAM's replica sets.",
)
@click.option(
    "--ephemeral/--durable",
    default=None,
    help="Whether a new group's progress is kept in the leader's memory only. Default: --durable.",
)
@click.option(
    "--heartbeat",
    "heartbeat_s",
    type=Duration(),
    metavar="TIME",
    help="Be heard of at least this often; 0s: never. Default: 3s.",
)
@click.option(
    "--heartbeat-misses",
    type=click.IntRange(1, 100),
    metavar="N",
    help="Missed heartbeats after which records go to other members. Default: 5.",
)
@click.option("--member", metavar="NAME", help="How descriptions and errors call this member.")
@click.option("--format", "-f", "form", metavar="FORMAT", help=TOKENS_HELP)
@records_output_option
@connects
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> None:
    """Print the records of STREAM as they come, those of partitions that are added too.

    A group keeps the order, deadline, attempts, dead letter stream and durability that it was
    created with; named otherwise later they are refused.

    \b
    Examples:
      hadron sub flights --from -10
      hadron sub flights -f '%k %s %o\\n' --from earliest -c 5
      hadron sub orders --group billing -o json
      hadron sub orders -G billing --order key --ack-deadline 30s --max-attempts 5 --dead-letter bad
    """
    from hadron.cli.following import Request

    if given["group"] == "":
        raise click.UsageError("--group has no name; leave it out to read without one", ctx)
    membership = {name: given.pop(name) for name in _OF_MEMBERS}
    named = {name: value for name, value in membership.items() if value is not None}
    request = Request(**given, membership=named)
    if named and not request.group:
        option = next(iter(named)).removesuffix("_s").replace("_", "-")
        raise click.UsageError(f"--{option} is for members of a group: name it with --group", ctx)
    if request.group and request.exit_at_end:
        raise click.UsageError("-e reads without a group: leave out --group, or use --limit", ctx)
    follow_stream(session_of(ctx).url, request)


def follow_stream(url: str, request: Request) -> None:
    """Run until done or interrupted."""
    import anyio

    from hadron.cli.following import run

    anyio.run(run, url, request, backend="trio")


def read_once(
    url: str,
    stream: str,
    partitions: Sequence[str],
    start: Position,
    *,
    limit: int | None,
    form: str | None,
    output: str | None,
    timeout_s: float | None = None,
) -> None:
    """Print what is there from `start` on, and stop at the end."""
    from hadron.cli.following import Request

    follow_stream(
        url,
        Request(
            stream=stream,
            group=None,
            start=start,
            partitions=tuple(partitions),
            ack="none",
            limit=limit,
            exit_at_end=True,
            form=form,
            output=output,
            timeout_s=timeout_s,
        ),
    )
