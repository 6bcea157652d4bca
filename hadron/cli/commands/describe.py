"""`hadron describe`: one schema object, and how it is doing."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from hadron.cli.completing import names_of
from hadron.cli.objects import KindType, notes_on, object_to_dict, require_namespace
from hadron.cli.printing import output_of, print_json
from hadron.cli.session import connects, session_of
from hadron.cli.telling import features

if TYPE_CHECKING:
    from hadron.client import SyncClient
    from hadron.model.schema import SchemaObject, StreamSpec


@click.command("describe", short_help="Show one schema object and how it is doing.")
@click.argument("kind", type=KindType())
@click.argument("name", shell_complete=names_of())
@click.option(
    "--namespace",
    "-n",
    default="",
    shell_complete=names_of("Namespace"),
    metavar="NAME",
    help="Its namespace; that of the server's URL else.",
)
@output_of("yaml", "json")
@connects
@click.pass_context
def command(ctx: click.Context, kind: str, name: str, namespace: str, output: str) -> None:
    """Show the KIND called NAME: its declaration, and what is in it or where it stands.

    \b
    Examples:
      hadron describe stream flights
      hadron describe pipeline departures -o json
    """
    from hadron.model.errors import NotFoundError
    from hadron.model.kinds import how_to_make

    with session_of(ctx).connect(namespace=namespace) as client:
        # A namespace stands in none.
        found = client.objects(kind, "" if kind == "Namespace" else client.namespace, name)
        if not found:
            everywhere = kind == "Namespace"
            if not everywhere:
                require_namespace(client, client.namespace)
            where = "" if everywhere else f" in namespace {client.namespace!r}"
            listing = f"hadron get {kind.lower()}s{'' if everywhere else ' --all-namespaces'}"
            raise NotFoundError(
                f"there is no {kind} {name!r}{where}",
                f"`{listing}` lists all; or {how_to_make(kind, client.namespace, name)}",
            )
        status = _status(client, found[0])
    if output == "json":
        print_json({**object_to_dict(found[0]), "status": status})
    else:
        click.echo(_to_yaml(found[0], status), nl=False)


def _status(client: SyncClient, found: SchemaObject) -> dict[str, Any]:
    from hadron.model.schema import NamespaceSpec, StreamSpec

    if isinstance(found.spec, NamespaceSpec):
        within = client.objects("", found.name)
        kinds = Counter(each.kind for each in within if each.kind != "Namespace")
        return {"objects": dict(kinds)}
    notes = notes_on(client, [found])
    status: dict[str, Any] = {"note": notes[0]} if notes else {}
    if isinstance(found.spec, StreamSpec):
        status |= _stream_status(client, found.name, found.spec)
    for each in features():
        status |= each.status(client, found)
    return {**status, "referred_by": _referring(client, found)}


def _referring(client: SyncClient, found: SchemaObject) -> list[str]:
    """What has to go, or change, before `found` can be deleted."""
    from hadron.metadata.deletion import references
    from hadron.metadata.judging import key_of

    return [
        each.label
        for each in client.objects("", found.namespace)
        if key_of(found) in references(each)
    ]


def _stream_status(client: SyncClient, name: str, spec: StreamSpec) -> dict[str, Any]:
    """Partitions that do not answer have an error in place of their offsets."""
    from hadron.cli.answers import ANSWER_WITHIN_S, heard, unheard
    from hadron.cli.commands.group import group_row

    groups, trouble = heard(lambda: client.groups(name, within_s=ANSWER_WITHIN_S))
    away = {each["partition"]: each for each in unheard(trouble)}
    partitions: list[dict[str, Any]] = []
    for partition in spec.partitions:
        if partition in away:
            partitions.append(away[partition])
            continue
        (there,) = client.offsets(name, partition=partition)
        partitions.append(
            {
                "partition": partition,
                "first_offset": there.first_offset,
                "next_offset": there.next_offset,
                "records": there.next_offset - there.first_offset,
            }
        )
    return {"partitions": partitions, "groups": [group_row(each) for each in groups]}


def _to_yaml(found: SchemaObject, status: dict[str, Any]) -> str:
    """The declaring document, and in a second one what the cluster says about it."""
    import yaml

    from hadron.model.documents.rendering import to_yaml

    added = {"id": found.id, "metadata_index": found.metadata_index, "status": status}
    shown = yaml.safe_dump(added, sort_keys=False, allow_unicode=True, width=100)
    return f"{to_yaml(found)}---\n{shown}"
