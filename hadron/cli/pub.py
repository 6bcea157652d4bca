"""`hadron pub`: records from arguments, a file or stdin into a stream."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

import click

from hadron.cli.printing import output_option, print_json
from hadron.cli.session import connects, session_of

if TYPE_CHECKING:
    from hadron.client.sync_producer import SyncProducer
    from hadron.model.record import NewRecord

FORMATS = ("lines", "jsonl", "csv")


def _headers(
    _ctx: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    headers = {}
    for value in values:
        name, equals, content = value.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{value!r} is not NAME=VALUE")
        headers[name] = content
    return headers


@click.command("pub", short_help="Publish records from arguments, a file or stdin.")
@click.argument("stream")
@click.argument("values", nargs=-1, metavar="[VALUE]...")
@click.option("--file", "-l", metavar="FILE", help="Read records from FILE (.gz too); - is stdin.")
@click.option("--format", "form", type=click.Choice(FORMATS),
              help="How input is divided: text lines, a JSON value a line, or CSV rows as JSON "
                   "objects. By default the file's name decides, else lines.")
@click.option("--key", "-k", help="The key of every record.")
@click.option("--key-field", metavar="FIELD", help="Take each key from this field (jsonl, csv).")
@click.option("--type", "event_type", default="", help="The event type, such as order.placed.")
@click.option("--header", "-H", "headers", multiple=True, metavar="NAME=VALUE", callback=_headers,
              help="A header of every record; repeatable.")
@click.option("--partition", "-p", help="Pin to this partition (a replica set's name).")
@click.option("--acks", type=click.Choice(["majority", "leader", "all"]), default="majority",
              show_default=True, help="Who has it on disk when it counts as published.")
@click.option("--codec", "-z", type=click.Choice(["none", "zstd"]), default="none",
              show_default=True, help="Compression of record batches.")
@output_option
@connects
@click.pass_context
def command(
    ctx: click.Context, stream: str, values: tuple[str, ...], file: str | None, form: str | None,
    key: str | None, key_field: str | None, event_type: str, headers: dict[str, str],
    partition: str | None, acks: Literal["majority", "leader", "all"],
    codec: Literal["none", "zstd"], output: str,
) -> None:
    """Publish records to STREAM and print how many.

    Without VALUE and --file, records are read from stdin as they arrive.

    \b
    Examples:
      hadron pub greetings hello world
      hadron pub orders --file orders.jsonl --key-field customer --type order.placed
      tail -f app.log | hadron pub logs
    """
    from hadron.cli import inputs

    source = inputs.Source.choose(values, file, form)
    if key_field and (key or source.form == "lines"):
        raise click.UsageError("--key-field needs --format jsonl or csv, and no --key", ctx)
    recipe = inputs.Recipe(key, key_field, event_type, headers)
    with session_of(ctx).connect() as client:
        client.stream(stream)
        with client.producer(stream, acks=acks, partition=partition, codec=codec) as producer:
            tally = _publish(producer, source.chunks(recipe))
    _print_tally(stream, tally, output)


def _publish(
    producer: SyncProducer, chunks: Iterable[list[NewRecord]]
) -> dict[str, tuple[int, int, int]]:
    """Send the chunks; return partition → (count, first offset, last offset)."""
    from hadron.model.errors import HadronError, InvalidRecordError, RequestError

    tally: dict[str, tuple[int, int, int]] = {}
    try:
        for chunk in chunks:
            for receipt in producer.send_many(chunk):
                last = receipt.base_offset + receipt.count - 1
                count, first, _ = tally.get(receipt.partition, (0, receipt.base_offset, 0))
                tally[receipt.partition] = (count + receipt.count, first, last)
    except RequestError as error:
        published = sum(count for count, _, _ in tally.values())
        if not published and not isinstance(error, InvalidRecordError):
            raise
        many = "1 record was" if published == 1 else f"{published or 'no'} records were"
        raise HadronError(f"{error.message}; {many} published before that", error.hint) from error
    return tally


def _print_tally(stream: str, tally: dict[str, tuple[int, int, int]], output: str) -> None:
    total = sum(count for count, _, _ in tally.values())
    if output == "json":
        partitions = [
            {"partition": name, "count": count, "first_offset": first, "last_offset": last}
            for name, (count, first, last) in tally.items()
        ]
        print_json({"stream": stream, "count": total, "partitions": partitions})
        return
    where = ", ".join(
        f"{name} at {first}" if first == last else f"{name} at {first} to {last}"
        for name, (_, first, last) in tally.items()
    )
    records = "record" if total == 1 else "records"
    click.echo(f"published {total} {records} to {stream}" + (f" ({where})" if where else ""))
