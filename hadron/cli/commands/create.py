"""`hadron create`: what needs no file, because a line says it all."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from hadron.cli.completing import complete_replica_sets, names_of
from hadron.cli.objects import object_to_dict
from hadron.cli.printing import output_of, print_json
from hadron.cli.quantities import Checked, Written
from hadron.cli.session import connects, session_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hadron.client import SyncClient
    from hadron.model.schema import SchemaObject


def _check_name(kind: str) -> Callable[[str], None]:
    def check(text: str) -> None:
        from hadron.model.ids import check_name

        check_name(kind, text)

    return check


def _named_sets(
    _ctx: click.Context, _parameter: click.Parameter, given: tuple[str, ...]
) -> list[str]:
    """Names that are separated by commas."""
    named = [each for listed in given for each in listed.split(",") if each]
    if given and not named:
        raise click.BadParameter(f"{','.join(given)!r} names no replica set")
    return named


def _creates(function: Callable[..., Any]) -> Callable[..., Any]:
    for decorate in (
        connects,
        output_of("table", "json", "yaml", help="How to print; yaml is a file for `hadron apply`."),
        click.option(
            "--if-not-exists", is_flag=True, help="Leave one as it is that has other settings."
        ),
        click.option("--dry-run", is_flag=True, help="Only say what would be created."),
        click.option("--description", default="", help="What people should know about it."),
    ):
        function = decorate(function)
    return function


_namespaced = click.option(
    "--namespace",
    "-n",
    default="",
    shell_complete=names_of("Namespace"),
    metavar="NAME",
    help="Where it stands; that of the server's URL else.",
)
_led = click.option(
    "--replica-set",
    metavar="NAME",
    shell_complete=complete_replica_sets,
    help="Whose leader connects those who use it. Default: the cluster's only one.",
)


@click.group("create", short_help="Create a stream, an endpoint, an exchange, a namespace.")
def command() -> None:
    """Create an object from the command line; `hadron apply` takes files, and changes what exists.

    One that exists with these settings is unchanged, with others it is refused.

    \b
    Examples:
      hadron create stream hello
      hadron create stream flights --max-age 7d --max-bytes 10GiB
      hadron create endpoint quote
      hadron create exchange prices
    """


@command.command("stream")
@click.argument("name", type=Checked("stream", _check_name("stream")))
@click.option(
    "--partitions",
    "-p",
    multiple=True,
    callback=_named_sets,
    metavar="NAME[,NAME]...",
    shell_complete=complete_replica_sets,
    help="Replica sets that hold a partition each. Default: the cluster's only one.",
)
@click.option(
    "--max-age",
    type=Written("duration"),
    metavar="TIME",
    help="Drop records that are older, such as 7d.",
)
@click.option(
    "--max-bytes",
    type=Written("size"),
    metavar="SIZE",
    help="Drop the oldest records of a partition that is larger, such as 10GiB.",
)
@click.option(
    "--keys",
    type=click.Choice(["indexed"]),
    help="Keep the latest record of each key known, from the first record on.",
)
@_namespaced
@_creates
@click.pass_context
def stream(
    ctx: click.Context,
    /,
    name: str,
    partitions: list[str],
    max_age: str | None,
    max_bytes: str | None,
    keys: str | None,
    namespace: str,
    **options: Any,
) -> None:
    """Create stream NAME.

    Where there is one replica set, it has the stream's one partition. Where there are several,
    name those that should have one: they may be in different regions.

    \b
    Examples:
      hadron create stream hello
      hadron create stream orders --partitions aws.us-east-1/p0,gcp.us-east4/p0
      hadron create stream flights --max-age 7d --dry-run -o yaml > flights.yaml
      hadron create stream accounts --keys indexed
    """
    with session_of(ctx).connect(namespace=namespace) as client:
        retention = {"max_age": max_age, "max_bytes": max_bytes}

        def fields(known: SchemaObject | None) -> dict[str, Any]:
            return {
                "partitions": partitions or _partitions(client, known),
                "retention": {key: text for key, text in retention.items() if text},
                "keys": keys or "",
            }

        _create(client, "Stream", name, options, fields)


@command.command("endpoint")
@click.argument("name", type=Checked("endpoint", _check_name("endpoint")))
@click.option("--stream-input", is_flag=True, help="A caller sends as many values as it likes.")
@click.option("--stream-output", is_flag=True, help="A server answers with as many.")
@click.option(
    "--idempotent",
    is_flag=True,
    help="A call may be run twice: it goes elsewhere when its server is lost.",
)
@click.option(
    "--hedge-after",
    type=Written("duration"),
    metavar="TIME",
    help="Give an idempotent call to a second server as well after so long, such as 200ms.",
)
@click.option(
    "--max-waiting",
    type=click.IntRange(min=0),
    metavar="N",
    help="Calls that wait while all servers are busy; more are refused. Default: 1000.",
)
@_led
@_namespaced
@_creates
@click.pass_context
def endpoint(
    ctx: click.Context,
    /,
    name: str,
    stream_input: bool,
    stream_output: bool,
    idempotent: bool,
    hedge_after: str | None,
    max_waiting: int | None,
    replica_set: str | None,
    namespace: str,
    **options: Any,
) -> None:
    """Create endpoint NAME, which `hadron serve` serves and `hadron call` calls.

    \b
    Examples:
      hadron create endpoint quote --idempotent --hedge-after 200ms
      hadron create endpoint rows --stream-output
    """
    from hadron.model.services import SINGLE, STREAM

    with session_of(ctx).connect(namespace=namespace) as client:
        given = {
            "input": STREAM if stream_input else SINGLE,
            "output": STREAM if stream_output else SINGLE,
            "idempotent": idempotent,
            "hedge_after": hedge_after,
            "max_waiting": max_waiting,
        }

        def fields(known: SchemaObject | None) -> dict[str, Any]:
            return given | {"replica_set": replica_set or _replica_set(client, known)}

        _create(client, "Endpoint", name, options, fields)


@command.command("exchange")
@click.argument("name", type=Checked("exchange", _check_name("exchange")))
@click.option(
    "--from-stream",
    metavar="STREAM",
    shell_complete=names_of("Stream"),
    help="Publish its records on the exchange, by their type.",
)
@click.option(
    "--topic",
    metavar="TOPIC",
    help="Of those; {type}, {stream} and {partition} are the record's. Default: its type.",
)
@click.option(
    "--to-stream",
    metavar="STREAM",
    shell_complete=names_of("Stream"),
    help="Log what is published, with the topic as its type.",
)
@_led
@_namespaced
@_creates
@click.pass_context
def exchange(
    ctx: click.Context,
    /,
    name: str,
    from_stream: str | None,
    topic: str | None,
    to_stream: str | None,
    replica_set: str | None,
    namespace: str,
    **options: Any,
) -> None:
    """Create exchange NAME, for `hadron exchange pub` and `hadron exchange sub`.

    \b
    Examples:
      hadron create exchange prices
      hadron create exchange flying --from-stream flights --topic 'flying.{type}'
    """
    with session_of(ctx).connect(namespace=namespace) as client:

        def fields(known: SchemaObject | None) -> dict[str, Any]:
            return {
                "replica_set": replica_set or _replica_set(client, known),
                "from_stream": from_stream,
                "topic": topic,
                "to_stream": to_stream,
            }

        _create(client, "Exchange", name, options, fields)


@command.command("namespace")
@click.argument("name", type=Checked("namespace", _check_name("namespace")))
@_creates
@click.pass_context
def namespace(ctx: click.Context, /, name: str, **options: Any) -> None:
    """Create namespace NAME; the server's URL ends in /NAME for those who work in it.

    \b
    Example:
      hadron create namespace billing
    """
    with session_of(ctx).connect() as client:
        _create(client, "Namespace", name, options, lambda _: {})


def _partitions(client: SyncClient, known: SchemaObject | None) -> list[str]:
    """Of a stream that names none: as it is, or the cluster's only replica set."""
    from hadron.model.schema import StreamSpec

    if known is not None and isinstance(known.spec, StreamSpec):
        return list(known.spec.partitions)
    several = "which of them should have a partition", "for all of them: --partitions {0}"
    return [_only_replica_set(client, *several)]


def _replica_set(client: SyncClient, known: SchemaObject | None) -> str:
    """Of what names none: as it is, or the cluster's only one."""
    from hadron.model.services import EndpointSpec, ExchangeSpec

    if known is not None and isinstance(known.spec, EndpointSpec | ExchangeSpec):
        return known.spec.replica_set
    return _only_replica_set(client, "which of them has it", "--replica-set, one of {0}")


def _only_replica_set(client: SyncClient, question: str, way_out: str) -> str:
    """Raises `RequestError` with these words when there are several, `NotFoundError` while nobody
    knows of the one that owns the schema: there may be others, too."""
    from hadron.client.connecting.topology import owner_not_found
    from hadron.model.errors import RequestError

    topology = client.topology()
    names = sorted({each.name for each in topology.replica_sets})
    if topology.metadata not in names:
        raise owner_not_found(topology.metadata, names)
    if len(names) == 1:
        return names[0]
    raise RequestError(
        f"the cluster has {len(names)} replica sets: {question}?", way_out.format(",".join(names))
    )


def _create(
    client: SyncClient,
    kind: str,
    name: str,
    options: dict[str, Any],
    fields: Callable[[SchemaObject | None], dict[str, Any]],
) -> None:
    """`fields` gives what its document has besides, by what exists."""
    from hadron.model.documents.rendering import differences
    from hadron.model.errors import RequestError

    within = "" if kind == "Namespace" else client.namespace
    known = next(iter(client.objects(kind, within, name)), None)
    given = fields(known)
    with _told_in_options():
        declared = _declare(kind, name, within, options["description"], given)
    if known is not None:
        other = differences(known, declared)
        if other and not options["if_not_exists"]:
            raise RequestError(
                f"{known.label} exists with other settings: {other}",
                f"`hadron describe {kind.lower()} {name}` shows it, `hadron apply` changes it, "
                "--if-not-exists leaves it as it is",
            )
        _print(known, "exists" if other else "unchanged", options)
        return
    with _told_in_options():
        (change,) = client.apply([declared], dry_run=options["dry_run"]).changes
    _print(change.after or declared, change.action, options)


def _declare(
    kind: str, name: str, namespace: str, description: str, fields: dict[str, Any]
) -> SchemaObject:
    """What a document with these fields declares."""
    from hadron.model.documents.reading import declared

    document = {"kind": kind, "name": name, "namespace": namespace, "description": description}
    # A number that is 0 was given, a flag that is False was not.
    given = {
        key: value
        for key, value in (document | fields).items()
        if value or (value == 0 and value is not False)
    }
    return declared(given)[0]


@contextmanager
def _told_in_options() -> Iterator[None]:
    """What is wrong with a setting is told of the option that gave it: there is no document."""
    from hadron.cli.flags import flags_of
    from hadron.model.errors import SchemaError

    flags = flags_of(click.get_current_context().command)
    flags |= {"input": "--stream-input", "output": "--stream-output"}
    setting = re.compile(rf"(?<=: )(?:retention\.)?({'|'.join(flags)})(?:\[\d+\])?(?=: )")
    try:
        yield
    except SchemaError as error:
        lines = error.message.split("\n")
        told = [setting.sub(lambda found: flags[found[1]], line, count=1) for line in lines]
        raise SchemaError("\n".join(told), error.hint) from None


def _print(shown: SchemaObject, action: str, options: dict[str, Any]) -> None:
    output = options["output"]
    if output == "json":
        print_json({"dry_run": options["dry_run"], "action": action, **object_to_dict(shown)})
    elif output == "yaml":
        from hadron.model.documents.rendering import to_yaml

        click.echo(to_yaml(shown), nl=False)
    else:
        click.echo(f"{shown.label} {action}{' (dry run)' if options['dry_run'] else ''}")
