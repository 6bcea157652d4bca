"""`hadron read`: the records that a stream has, from an offset to its end."""

from __future__ import annotations

import click

from hadron.cli.completing import complete_partitions, names_of
from hadron.cli.positions import FROM_HELP, Position, PositionType
from hadron.cli.quantities import Duration, Whole, once
from hadron.cli.records import TOKENS_HELP, RecordPrinter, records_output_option
from hadron.cli.session import Session, connects, session_of


@click.command("read", short_help="Read the records that a stream has, and stop at its end.")
@click.argument("stream", shell_complete=names_of("Stream"))
@click.option(
    "--partition",
    "-p",
    "partitions",
    multiple=True,
    shell_complete=complete_partitions,
    metavar="PARTITION",
    help="Only this one, all when left out; repeatable.",
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
@click.option(
    "--latest-of",
    "key",
    metavar="KEY",
    help="Only the latest record with this key, of a stream with `keys: indexed`; fails when there "
    "is none.",
)
@click.option("--limit", "-c", type=Whole(1), metavar="N", help="At most N records.")
@click.option("--format", "-f", "form", metavar="FORMAT", help=TOKENS_HELP)
@click.option(
    "--timeout",
    "timeout_s",
    type=Duration(is_above_zero=True),
    metavar="TIME",
    help="Give up after so long without an answer. Default: 10s to connect, 30s for an answer.",
)
@records_output_option
@connects
@click.pass_context
def command(
    ctx: click.Context,
    stream: str,
    partitions: tuple[str, ...],
    start: Position | None,
    key: str | None,
    limit: int | None,
    form: str | None,
    output: str | None,
    timeout_s: float | None,
) -> None:
    """Print the records of STREAM that are there now.

    \b
    Examples:
      hadron read flights --partition local/p0 --offset 1000 --limit 5
      hadron read flights --from -10 -o json
      hadron read accounts --latest-of anna
      hadron read flights --from -1h -f '%o %k %s\\n' | head
      hadron read orders -f cloudevents | hadron pub copies --format cloudevents
    """
    from hadron.cli.commands.sub import read_once

    if key is not None:
        if start or limit:
            raise click.UsageError("--latest-of is one record: no --from, and no --limit", ctx)
        if len(partitions) > 1:
            raise click.UsageError("--latest-of is one record: at most one --partition", ctx)
        partition = partitions[0] if partitions else None
        _read_latest(session_of(ctx), stream, key, partition, form, output, timeout_s)
        return
    read_once(
        session_of(ctx).url,
        stream,
        partitions,
        start or Position("earliest"),
        limit=limit,
        form=form,
        output=output,
        timeout_s=timeout_s,
    )


def _read_latest(
    session: Session,
    stream: str,
    key: str,
    partition: str | None,
    form: str | None,
    output: str | None,
    timeout_s: float | None,
) -> None:
    from hadron.cli.inputs import argument
    from hadron.model.errors import NotFoundError

    printer = RecordPrinter(form, output, None)
    with session.connect(timeout_s=timeout_s) as client:
        record = client.latest(stream, argument(key), partition=partition)
        if record is None:
            raise NotFoundError(
                f"stream {stream!r} has no record with the key {key!r}",
                "it never had one, or retention has dropped it",
            )
        printer.print([record])
