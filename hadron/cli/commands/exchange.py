"""`hadron exchange`: publish on exchanges, and print what is published there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from hadron.cli.completing import names_of
from hadron.cli.printing import output_of, output_option, print_json
from hadron.cli.quantities import Checked, Whole, header_option
from hadron.cli.session import connects, session_of
from hadron.cli.telling import Tells
from hadron.model.words import counted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hadron.client import SyncClient
    from hadron.client.blocking.faces.exchange import SyncExchange
    from hadron.model.errors import HadronError
    from hadron.model.record import NewRecord
    from hadron.model.schema import SchemaObject

_LISTED: Final = 20
"""Subscriptions that a description shows: those that dropped most."""

_WITHIN_S: Final = 3.0


def _check_topic(text: str) -> None:
    from hadron.model.topics import check_topic

    check_topic(text)


def _check_pattern(text: str) -> None:
    from hadron.model.topics import check_pattern

    check_pattern(text)


@click.group("exchange", short_help="Publish on exchanges, and follow them.")
def command() -> None:
    """Exchanges: what is published reaches who is subscribed at that moment, at most once.

    Topics are dot segments such as eu.ibm; in patterns * is any one of them, and > at the end the
    rest. `hadron describe exchange NAME` shows who is subscribed, rates and drops.

    \b
    Examples:
      hadron exchange sub prices 'eu.*'
      hadron exchange pub prices eu.ibm 131.2
    """


@command.command("pub", short_help="Publish messages from arguments or stdin.")
@click.argument("name", shell_complete=names_of("Exchange"))
@click.argument("topic", type=Checked("topic", _check_topic))
@click.argument("values", nargs=-1, metavar="[VALUE]...")
@click.option(
    "--format",
    "form",
    type=click.Choice(["lines", "jsonl", "raw"]),
    default="lines",
    show_default=True,
    help="What values are: text, JSON, or all of stdin as one.",
)
@click.option("--key", "-k", help="The key of every message.")
@header_option("A header of every message; repeatable.")
@click.option(
    "--logged", is_flag=True, help="Wait until they are in the exchange's to_stream, on a majority."
)
@output_option
@connects
@click.pass_context
def pub(
    ctx: click.Context,
    /,
    name: str,
    topic: str,
    values: tuple[str, ...],
    form: str,
    key: str | None,
    headers: dict[str, str],
    output: str,
    *,
    logged: bool,
) -> None:
    """Publish messages on TOPIC of exchange NAME, and print how many subscriptions got them.

    Without VALUE, messages are read from stdin as they arrive.

    \b
    Examples:
      hadron exchange pub prices eu.ibm 131.2 131.4
      hadron exchange pub prices eu.ibm '{"bid": 131.2}' --format jsonl -H source=xetra
      tail -f ticks.jsonl | hadron exchange pub prices eu.ibm --format jsonl
    """
    from hadron.cli import inputs

    source = inputs.Source.choose(values, None, form, None)
    recipe = inputs.Recipe(None if key is None else inputs.argument(key), None, topic, headers)
    chunks = source.chunks(recipe)
    with session_of(ctx).connect() as client:
        published, deliveries, dropped = _publish(client.exchange(name), chunks, logged=logged)
    if output == "json":
        print_json({"published": published, "deliveries": deliveries, "dropped": dropped})
        return
    lost = f", {dropped} dropped" if dropped else ""
    to = counted(deliveries, "delivery", "deliveries")
    click.echo(f"published {counted(published, 'message')}: {to}{lost}")


def _publish(
    exchange: SyncExchange, chunks: Iterable[list[NewRecord]], *, logged: bool
) -> tuple[int, int, int]:
    """Returns how many were published, delivered and dropped. Who is cut off is told how many were
    published: what follows is to be sent again, and these are not."""
    from hadron.model.errors import HadronError

    published = deliveries = dropped = 0
    try:
        for chunk in chunks:
            found = exchange.publish_many(chunk, logged=logged)
            published += len(chunk)
            deliveries += found.deliveries
            dropped += found.dropped
    except HadronError as error:
        raise _cut_off(error, published) from error
    except KeyboardInterrupt:
        # Of the chunk that was under way nothing is known.
        click.echo(f"interrupted; {_were(published)} published before", err=True)
        raise
    return published, deliveries, dropped


def _cut_off(error: HadronError, published: int) -> HadronError:
    """`error` in words that say what was published before it, where that is anything, or it is
    about the input, of which some is always left."""
    from hadron.model.errors import HadronError, InvalidRecordError

    if not published and not isinstance(error, InvalidRecordError):
        return error
    return HadronError(f"{error.message}; {_were(published)} published before that", error.hint)


def _were(published: int) -> str:
    return counted(published, "message was", "messages were") if published else "no messages were"


@command.command("sub", short_help="Print messages as they are published.")
@click.argument("name", shell_complete=names_of("Exchange"))
@click.argument(
    "patterns", nargs=-1, metavar="[PATTERN]...", type=Checked("pattern", _check_pattern)
)
@click.option(
    "--group",
    "-G",
    metavar="GROUP",
    help="Share messages: of all subscriptions of this group one gets each.",
)
@click.option("--limit", "-c", type=Whole(1), metavar="N", help="Stop after N messages.")
@output_of(
    "value",
    "table",
    "json",
    help="The values, one a line; with their topics; or a JSON object a line.",
)
@connects
@click.pass_context
def sub(
    ctx: click.Context,
    /,
    name: str,
    patterns: tuple[str, ...],
    group: str | None,
    limit: int | None,
    output: str,
) -> None:
    """Print what is published on exchange NAME, on topics that one of the PATTERNs takes; all
    without any.

    What could not be taken fast enough is missed; stderr says how much.

    \b
    Examples:
      hadron exchange sub prices
      hadron exchange sub prices 'eu.*' 'us.>' -o json
      hadron exchange sub jobs --group workers -c 1
    """
    import anyio

    from hadron.cli.exchanges import follow

    url = session_of(ctx).url
    anyio.run(follow, url, name, patterns, group, output, limit, backend="trio")


def doing(client: SyncClient, name: str) -> dict[str, Any]:
    """How an exchange is doing at its leader, in a few numbers; an error in place of them."""
    from hadron.model.errors import HadronError

    try:
        found = client.exchange(name).describe(within_s=_WITHIN_S)
    except HadronError as error:
        return {"error": error.message}
    return {
        "clients": found.clients,
        "subscriptions": found.subscriptions,
        "published": found.published,
        "published_per_s": round(found.published_per_s, 1),
        "deliveries": found.deliveries,
        "deliveries_per_s": round(found.deliveries_per_s, 1),
        "dropped": found.dropped,
        "dropped_per_s": round(found.dropped_per_s, 1),
        "cut_off": found.cut_off,
        "without_topic": found.without_topic,
        "not_logged": found.not_logged,
        **({"trouble": found.trouble} if found.trouble else {}),
        "listed": [
            {
                "patterns": list(each.patterns),
                "group": each.group,
                "peer": each.peer,
                "dropped": each.dropped,
                "dropped_by_client": each.dropped_by_client,
                "waiting_bytes": each.waiting_bytes,
            }
            for each in found.listed[:_LISTED]
        ],
    }


def _status(client: SyncClient, found: SchemaObject) -> dict[str, Any]:
    return doing(client, found.name) if found.kind == "Exchange" else {}


TELLS: Final = Tells(status=_status)
