"""`hadron read`: the records that a stream has, from an offset to its end."""

from __future__ import annotations

import click

from hadron.cli.completing import complete_partitions, names_of
from hadron.cli.positions import FROM_HELP, Position, PositionType
from hadron.cli.quantities import once
from hadron.cli.records import TOKENS_HELP, records_output_option
from hadron.cli.session import connects, session_of


@click.command("read", short_help="Read the records that a stream has, and stop at its end.")
@click.argument("stream", shell_complete=names_of("Stream"))
@click.option(
    "--partition",
    "-p",
    shell_complete=complete_partitions,
    help="Which partition; all when left out.",
)
@click.option(
    "--offset",
    "--from",
    "start",
    type=PositionType(),
    multiple=True,
    callback=once,
    metavar="POSITION",
    help=f"Where to start: {FROM_HELP} Default: earliest.",
)
@click.option("--limit", "-c", type=click.IntRange(min=1), metavar="N", help="At most N records.")
@click.option("--format", "-f", "form", metavar="FORMAT", help=TOKENS_HELP)
@records_output_option
@connects
@click.pass_context
def command(
    ctx: click.Context,
    stream: str,
    partition: str | None,
    start: Position | None,
    limit: int | None,
    form: str | None,
    output: str | None,
) -> None:
    """Print the records of STREAM that are there now.

    \b
    Examples:
      hadron read flights --partition local/p0 --offset 1000 --limit 5
      hadron read flights --from -10 -o json
      hadron read flights --from -1h -f '%o %k %s\\n' | head
      hadron read orders -f cloudevents | hadron pub copies --format cloudevents
    """
    from hadron.cli.sub import read_once

    read_once(
        session_of(ctx).url,
        stream,
        (partition,) if partition else (),
        start or Position("earliest"),
        limit=limit,
        form=form,
        output=output,
    )
