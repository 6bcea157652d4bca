"""`hadron pub`: records from arguments, a file or stdin into a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import click

from hadron.cli.completing import complete_partitions, names_of
from hadron.cli.printing import output_option, print_json
from hadron.cli.quantities import Duration, Whole, header_option, once, pairs
from hadron.cli.session import connects, session_of
from hadron.model.words import counted

if TYPE_CHECKING:
    from hadron import SyncProducer
    from hadron.client.producing.failover import Failover
    from hadron.client.terms.results import BatchReceipt
    from hadron.model.errors import HadronError
    from hadron.model.record import NewRecord

FORMATS = ("lines", "jsonl", "json", "csv", "cloudevents", "raw")


def _delimiter(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    from hadron.cli.inputs import NAMED_DELIMITERS

    meant = next((each for each, name in NAMED_DELIMITERS.items() if name == value), value)
    if meant is not None and (len(meant) != 1 or meant in '"\r\n'):
        raise click.BadParameter(f"{value!r} is not one character that can separate fields")
    return meant


_EVENT_OPTIONS = (
    click.option("--id", "event_id", default="", help="The id of the one record."),
    click.option("--source", help="Makes each record a CloudEvent of this source; needs --type."),
    click.option("--subject", help="CloudEvents: what in the source it is about."),
    click.option("--time", help="CloudEvents: when it happened, such as 2013-01-01T05:17:00Z."),
    click.option("--content-type", "datacontenttype", help="CloudEvents: the data's media type."),
    click.option("--data-schema", "dataschema", help="CloudEvents: where the data is described."),
    click.option(
        "--extension",
        "-E",
        "extensions",
        multiple=True,
        metavar="NAME=VALUE",
        callback=pairs,
        help="CloudEvents: an extension attribute; repeatable.",
    ),
)


def _event_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_EVENT_OPTIONS):
        function = option(function)
    return function


@click.command("pub", short_help="Publish records from arguments, a file or stdin.")
@click.argument("stream", shell_complete=names_of("Stream"))
@click.argument("values", nargs=-1, metavar="[VALUE]...")
@click.option(
    "--file",
    "-l",
    metavar="FILE",
    multiple=True,
    callback=once,
    help="Read records from FILE (.gz too); - is stdin.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="How input is divided: text lines, a JSON value a line, CSV rows as JSON "
    "objects, a CloudEvent in JSON a line, or not at all: json is one JSON value, raw one record, "
    "byte by byte. By default the file's name decides, else lines.",
)
@click.option(
    "--delimiter",
    metavar="CHARACTER",
    callback=_delimiter,
    help="What separates the fields of csv: a comma, when it is not said; '\\t' is a tab.",
)
@click.option("--key", "-k", help="The key of every record.")
@click.option("--key-field", metavar="FIELD", help="Take each key from this field (JSON, csv).")
@click.option("--type", "event_type", default="", help="The event type, such as order.placed.")
@header_option("A header of every record; repeatable.")
@click.option(
    "--partition",
    "-p",
    shell_complete=complete_partitions,
    metavar="PARTITION",
    help="Pin to this partition (a replica set's name).",
)
@click.option(
    "--expect-offset",
    type=Whole(),
    metavar="N",
    help="Publish the one record at this offset of its partition, or not at all.",
)
@click.option(
    "--expect-key-offset",
    type=Whole(-1),
    metavar="N",
    help="Publish the one record when the latest with its key is at this offset (-1: there is "
    "none), or not at all; of a stream with `keys: indexed`.",
)
@click.option("--region", help="Only partitions whose names begin so, up to a / or a dot.")
@click.option(
    "--failover",
    type=click.Choice(["unkeyed", "any", "none", "duplicate"]),
    default="unkeyed",
    show_default=True,
    help="What may go to another partition while its own is away: records without a "
    "key, any, none, or any and rather twice than not.",
)
@click.option(
    "--name",
    metavar="NAME",
    help="The name of this --file, or stdin: its records are numbered from its beginning, and "
    "what was published under the name is not published again: a run may be repeated, also "
    "once the input has grown. Another input has another name: one that does not begin with what "
    "was published is refused.",
)
@click.option(
    "--take-last",
    is_flag=True,
    help="With --name: also publish a last line, or CSV row, that has no end yet. Else it is left "
    "for the next run, by which more of it may have been written.",
)
@_event_options
@click.option(
    "--acks",
    type=click.Choice(["majority", "leader", "all"]),
    default="majority",
    show_default=True,
    help="Who has it on disk when it counts as published.",
)
@click.option(
    "--codec",
    "-z",
    type=click.Choice(["none", "zstd"]),
    default="none",
    show_default=True,
    help="Compression of record batches.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=Duration(is_above_zero=True),
    metavar="TIME",
    help="Give up after so long without an answer, or on a record without an "
    "acknowledgement. Default: 10s to connect, 30s for an answer, 2m for a record.",
)
@output_option
@connects
@click.pass_context
def command(
    ctx: click.Context,
    /,
    stream: str,
    values: tuple[str, ...],
    file: str | None,
    form: str | None,
    delimiter: str | None,
    key: str | None,
    key_field: str | None,
    event_type: str,
    headers: dict[str, str],
    partition: str | None,
    expect_offset: int | None,
    expect_key_offset: int | None,
    region: str | None,
    failover: Failover,
    name: str | None,
    event_id: str,
    acks: Literal["majority", "leader", "all"],
    codec: Literal["none", "zstd"],
    output: str,
    timeout_s: float | None,
    take_last: bool,
    **attributes: Any,
) -> None:
    """Publish records to STREAM and print how many.

    Without VALUE and --file, records are read from stdin as they arrive.

    \b
    Examples:
      hadron pub greetings hello world
      hadron pub orders --file orders.jsonl --key-field customer --type order.placed
      tail -f app.log | hadron pub logs
      hadron pub pictures --file cat.jpg --format raw --header name=cat.jpg
      hadron pub orders --file orders.jsonl --key-field customer --name orders-2026
      hadron pub accounts +5 --key anna --expect-key-offset 17
      hadron pub orders '{"n": 1}' --format jsonl --source /shop --type order.placed
    """
    from hadron.cli import inputs
    from hadron.client.producing.settings import DEFAULT_DELIVERY_TIMEOUT_S

    if key == "":
        raise click.UsageError("--key is empty; leave it out for records without a key", ctx)
    source = inputs.Source.choose(
        values, file, form, delimiter, leaves_last=name is not None and not take_last
    )
    conditions = expect_offset, expect_key_offset
    if key_field and (key or source.form not in ("json", "jsonl", "csv")):
        raise click.UsageError("--key-field needs --format json, jsonl or csv, and no --key", ctx)
    _check_one(ctx, source.is_one, event_id, conditions)
    _check_name(ctx, name, values, conditions, take_last)
    event_headers, timestamp_ms = _event(ctx, source.form, event_id, event_type, attributes)
    recipe = inputs.Recipe(
        None if key is None else inputs.argument(key), key_field, event_type,
        {**event_headers, **headers}, event_id, timestamp_ms, conditions,
    )  # fmt: skip
    chunks = source.chunks(recipe)
    if form is None and source.form == "lines":
        chunks = _noting_json(chunks, is_input=not values)
    delivery_timeout_s = DEFAULT_DELIVERY_TIMEOUT_S if timeout_s is None else timeout_s
    with session_of(ctx).connect(timeout_s=timeout_s) as client:
        client.stream(stream)
        with client.producer(
            stream, acks=acks, partition=partition, region=region, failover=failover,
            codec=codec, delivery_timeout_s=delivery_timeout_s, name=name,
        ) as producer:  # fmt: skip
            tally = _publish(producer, chunks, name)
    _tell(stream, tally, output)


def _noting_json(chunks: Iterable[list[NewRecord]], *, is_input: bool) -> Iterator[list[NewRecord]]:
    """The same; what looks like JSON, and was sent as text, may have been meant as JSON. Told once
    the first chunk is published: of a VALUE, or of an input's first line."""
    from hadron.cli.inputs import looks_like_json

    for number, chunk in enumerate(chunks):
        yield chunk
        looked_at = chunk[:1] if is_input else chunk
        if not number and any(looks_like_json(each.value) for each in looked_at):
            click.echo("note: sent as text; --format jsonl sends it as JSON", err=True)


def _check_name(
    ctx: click.Context,
    name: str | None,
    values: tuple[str, ...],
    conditions: tuple[int | None, int | None],
    take_last: bool,
) -> None:
    """Raises `click.UsageError`."""
    if name is not None and values:
        raise click.UsageError("--name is for --file or stdin, not for VALUEs", ctx)
    if name is not None and conditions != (None, None):
        raise click.UsageError("--name and a condition exclude each other", ctx)
    if name is None and take_last:
        raise click.UsageError("--take-last is for --name; without one the last line is taken", ctx)


def _check_one(
    ctx: click.Context, is_one: bool, event_id: str, conditions: tuple[int | None, int | None]
) -> None:
    """Raises `click.UsageError` for what is of one record, where there may be several."""
    if is_one:
        return
    if event_id:
        raise click.UsageError("--id is for one VALUE, or --format raw", ctx)
    if conditions != (None, None):
        raise click.UsageError("a condition is for one VALUE, or --format raw", ctx)


def _event(
    ctx: click.Context, form: str, event_id: str, event_type: str, attributes: dict[str, Any]
) -> tuple[Mapping[str, str], int | None]:
    """Headers and timestamp of records that are CloudEvents by the command's options."""
    from hadron.model.cloudevents import CloudEvent, to_record

    given = {name: value for name, value in attributes.items() if value}
    if form == "cloudevents" and (given or event_id or event_type):
        raise click.UsageError(
            "with --format cloudevents the input has all attributes, --id and --type too", ctx
        )
    if not given:
        return {}, None
    # What is wrong with a value is told before what is missing.
    named = {"source": "-", "type": event_type or "-", **given}
    record = to_record(CloudEvent(id="-", data=b"", **named))
    if not event_type or "source" not in given:
        raise click.UsageError("a CloudEvent needs --source and --type", ctx)
    return record.headers or {}, record.timestamp_ms


@dataclass(slots=True)
class _Tally:
    """What was published: by partition (count, first offset, last offset); and how many records
    had been before, under the same name."""

    here: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    before: int = 0

    @property
    def published(self) -> int:
        return sum(count for count, _, _ in self.here.values())

    def add(self, receipt: BatchReceipt) -> None:
        if receipt.base_offset < 0:
            self.before += receipt.count
            return
        last = receipt.base_offset + receipt.count - 1
        count, first, _ = self.here.get(receipt.partition, (0, receipt.base_offset, 0))
        self.here[receipt.partition] = (count + receipt.count, first, last)

    def __str__(self) -> str:
        return ", ".join(
            f"{name} at {first}" if first == last else f"{name} at {first} to {last}"
            for name, (_, first, last) in self.here.items()
        )


def _publish(
    producer: SyncProducer, chunks: Iterable[list[NewRecord]], name: str | None = None
) -> _Tally:
    from hadron.cli.heads import numbered
    from hadron.model.errors import HadronError

    tally = _Tally()
    if name is not None:
        chunks = numbered(chunks, producer.last_sequences().values(), name)
    chunk: list[NewRecord] = []
    try:
        for chunk in chunks:
            for receipt in producer.send_many(chunk):
                tally.add(receipt)
    except HadronError as error:
        published = tally.published
        raise _cut_off(error, published, len(chunk)) from error
    except KeyboardInterrupt:
        # What of the last chunk is in the log, the producer says.
        click.echo(
            f"interrupted; acknowledged before: {tally if tally.here else 'nothing'}", err=True
        )
        raise
    return tally


def _cut_off(error: HadronError, published: int, sent: int) -> HadronError:
    """`error` in words that say what became of all records, not only of those that it is about.

    Args:
        published: in the calls before.
        sent: records of the call that has failed.
    """
    from hadron.model.errors import HadronError, InvalidRecordError

    fates = error.fates
    if fates is None:
        # Of a call that fails by what it was given nothing else is in doubt.
        if not published and not isinstance(error, InvalidRecordError):
            return error
        were = counted(published, "record was", "records were") if published else "no records were"
        return HadronError(f"{error.message}; {were} published before that", error.hint)
    if published + sent == 1:
        return error
    told = f"{error.message}; in all {published + fates.published} records were published"
    if fates.lost:
        told += f", {fates.lost} were not"
    if fates.unknown:
        told += f", {fates.unknown} may or may not have been"
    return HadronError(f"{told}; nothing after these was tried", error.hint)


def _tell(stream: str, tally: _Tally, output: str) -> None:
    """Print what was published; raises `HadronError` that says it where stdout does not take it."""
    try:
        _print_tally(stream, tally, output)
    except BrokenPipeError:
        raise
    except OSError as error:
        from hadron.model.errors import HadronError

        told = f"published {tally.published} to {stream}"
        raise HadronError(
            f"stdout cannot be written: {error.strerror}; {told} ({tally})",
            "do not send them again",
        ) from error


def _print_tally(stream: str, tally: _Tally, output: str) -> None:
    total, before = tally.published, tally.before
    if output == "json":
        partitions = [
            {"partition": name, "count": count, "first_offset": first, "last_offset": last}
            for name, (count, first, last) in tally.here.items()
        ]
        told = {"stream": stream, "count": total, "partitions": partitions}
        print_json({**told, "before": before} if before else told)
        return
    where = f" ({tally})" if tally.here else ""
    line = f"published {counted(total, 'record')} to {stream}{where}"
    if before:
        line += f"; {before:,} had been before, under this name"
    click.echo(line)
