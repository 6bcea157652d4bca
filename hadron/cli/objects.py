"""Schema objects as commands name, read and show them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from hadron.client.sync import SyncClient
    from hadron.metadata.diff import ShownChange
    from hadron.metadata.document_set import DocumentSet
    from hadron.model.schema import SchemaObject

ALL_KINDS: Final = "all"
"""What `hadron get` takes in place of a kind."""

_COLOURS: Final = {"+": "green", "-": "red", "@": "cyan"}


class KindType(click.ParamType[str]):
    """The click type of KIND: `stream`, `Streams` and `STREAM` all mean Stream.

    Args:
        takes_all: whether `all` will do, too; it is converted to "".
    """

    name = "kind"

    def __init__(self, *, takes_all: bool = False) -> None:
        self._takes_all = takes_all

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """The kind's proper name, or fail naming those that exist."""
        from hadron.model.schema import KINDS_AS_WRITTEN, SPECS

        kinds = KINDS_AS_WRITTEN | ({ALL_KINDS: ""} if self._takes_all else {})
        if value.lower() not in kinds:
            from hadron.model.problems import did_you_mean

            meant = did_you_mean(value.lower(), kinds)
            listed = ", ".join([*SPECS, *([ALL_KINDS] if self._takes_all else [])])
            if value.lower() in {"group", "groups"}:
                meant = " (see `hadron group --help`)"
            self.fail(f"{value!r} is no kind{meant}; there are {listed}", param, ctx)
        return kinds[value.lower()]

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str  # noqa: ARG002 - click's
    ) -> list[Any]:
        """Kinds in lower case, as people type them."""
        from click.shell_completion import CompletionItem

        from hadron.model.schema import SPECS

        names = [kind.lower() for kind in SPECS] + ([ALL_KINDS] if self._takes_all else [])
        return [CompletionItem(name) for name in names if name.startswith(incomplete.lower())]


def read_files(names: Iterable[str]) -> DocumentSet:
    """The documents in these files; `-` is stdin."""
    from hadron.cli.standard_streams import open_stdin
    from hadron.metadata.document_set import DocumentSet

    documents = DocumentSet()
    for name in names:
        if name == "-":
            documents.parse(open_stdin().read(), "stdin")
        else:
            documents.load(Path(name))
    return documents


def notes_on(client: SyncClient, objects: Iterable[SchemaObject]) -> list[str]:
    """What this version of Hadron does not do for these, though it stores them."""
    from hadron.model.schema import NOT_BUILT, PipelineSpec, StreamSpec, not_built

    objects = list(objects)
    notes = [
        not_built(kind)
        for kind in dict.fromkeys(found.kind for found in objects) if kind in NOT_BUILT
    ]
    streams = {(o.namespace, o.name): o.spec for o in objects if isinstance(o.spec, StreamSpec)}
    for found in objects:
        if not isinstance(found.spec, PipelineSpec):
            continue
        spec = streams.get((found.namespace, found.spec.input))
        if spec is None or not spec.partitions:
            # Left out, they are where the stream lies.
            known = client.objects("Stream", found.namespace, found.spec.input)
            spec = next((o.spec for o in known if isinstance(o.spec, StreamSpec)), None)
        partitions = spec.partitions if spec else ()
        unread = [each for each in partitions if each != found.spec.replica_set]
        if unread:
            notes.append(
                f"{found.label} reads what {found.spec.input} has at {found.spec.replica_set} "
                f"only, in this version of Hadron: nothing of {', '.join(unread)} yet"
            )
    return [*notes, *_notes_on_loops(client, objects)]


def _notes_on_loops(client: SyncClient, objects: list[SchemaObject]) -> list[str]:
    """Outputs that may start instances of their own pipeline again: that depends on their types."""
    from hadron.metadata.loops import Loops
    from hadron.model.schema import PipelineSpec

    pipelines = [each for each in objects if isinstance(each.spec, PipelineSpec)]
    if not pipelines:
        return []
    declared = {(each.namespace, each.name) for each in pipelines}
    others = client.objects("Pipeline", "", "")
    loops = Loops([*pipelines, *(o for o in others if (o.namespace, o.name) not in declared)])
    return [
        f"{found.label}: {loop}: an output whose type matches the triggers there starts another "
        "instance; give outputs a type of their own (column `type`), or none"
        for found in pipelines for loop in loops.of(found)
    ]


def object_to_dict(found: SchemaObject) -> dict[str, Any]:
    """For JSON: the document that declares it, and what the cluster adds."""
    from hadron.model.documents.rendering import to_document

    named = {"kind": found.kind, "namespace": found.namespace, "name": found.name}
    added = {"id": found.id, "metadata_index": found.metadata_index}
    return {**named, **to_document(found), **added}


def print_diff(change: ShownChange) -> None:
    """The lines of one object's document that change; in colour on a terminal, without NO_COLOR."""
    from hadron.metadata.diff import render_diff

    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    for line in render_diff([change]).splitlines():
        colour = _COLOURS.get(line[:1]) if coloured else None
        click.echo(click.style(f"  {line}", fg=colour) if colour else f"  {line}")


def require_namespace(client: SyncClient, name: str) -> None:
    """Raises `NotFoundError` when it does not exist; for those who have found nothing in it."""
    from hadron.client.catalog import check_namespace

    check_namespace(name, client.objects("Namespace"))
