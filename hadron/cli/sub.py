"""`hadron sub`: follow a stream, alone or as a member of a consumer group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from hadron.cli.positions import FROM_HELP, Position, PositionType
from hadron.cli.records import TOKENS_HELP
from hadron.cli.session import connects, session_of

if TYPE_CHECKING:
    from hadron.cli.following import Request


@click.command("sub", short_help="Follow a stream, alone or as a member of a group.")
@click.argument("stream")
@click.option("--group", "-G", help="Join this consumer group; without one nothing is remembered.")
@click.option("--from", "-o", "start", type=PositionType(), metavar="POSITION",
              help=f"Where to start: {FROM_HELP} Default: latest, or earliest for a new group. "
                   "A group that exists goes on where it was.")
@click.option("--partition", "-p", "partitions", multiple=True, help="Only this one; repeatable.")
@click.option("--ack", type=click.Choice(["auto", "none"]), default="auto", show_default=True,
              help="auto acknowledges what was printed; none leaves it to be delivered again.")
@click.option("--limit", "-c", type=click.IntRange(min=1), metavar="N",
              help="Stop after N records.")
@click.option("--exit", "-e", "exit_at_end", is_flag=True,
              help="Stop at the end of every partition (without --group).")
@click.option("--format", "-f", "form", metavar="FORMAT", help=TOKENS_HELP)
@click.option("--output", type=click.Choice(["table", "json"]),
              help="Columns, or a JSON object a line. Default: the values, one a line.")
@connects
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> None:
    """Print the records of STREAM as they come.

    \b
    Examples:
      hadron sub flights --from -10
      hadron sub flights -f '%k %s %o\\n' -o earliest -c 5
      hadron sub orders --group billing --output json
    """
    from hadron.cli.following import Request

    request = Request(**given)
    if request.group and request.exit_at_end:
        raise click.UsageError("-e reads without a group: leave out --group, or use --limit", ctx)
    follow_stream(session_of(ctx).url, request)


def follow_stream(url: str, request: Request) -> None:
    """Run until done or interrupted."""
    import anyio

    from hadron.cli.following import run

    anyio.run(run, url, request, backend="trio")


def read_once(
    url: str, stream: str, partitions: Sequence[str], start: Position, *,
    limit: int | None, form: str | None, output: str | None,
) -> None:
    """Print what is there from `start` on, and stop at the end."""
    from hadron.cli.following import Request

    follow_stream(url, Request(
        stream=stream, group=None, start=start, partitions=tuple(partitions), ack="none",
        limit=limit, exit_at_end=True, form=form, output=output,
    ))
