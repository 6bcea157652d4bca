"""Schema objects as commands name, read and show them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from hadron.client import SyncClient
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

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The kind's proper name, or fail naming those that exist."""
        from hadron.model.errors import RequestError
        from hadron.model.kinds import proper_kind

        if self._takes_all and value.lower() == ALL_KINDS:
            return ""
        try:
            return proper_kind(value)
        except RequestError as error:
            others = f", {ALL_KINDS}" if self._takes_all else ""
            if value.lower() in {"group", "groups"}:
                others += "; of groups, see `hadron group --help`"
            self.fail(f"{error.message}; {error.hint}{others}", param, ctx)

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[Any]:
        """Kinds in lower case, as people type them."""
        from click.shell_completion import CompletionItem

        from hadron.model.kinds import KINDS

        names = [kind.lower() for kind in KINDS] + ([ALL_KINDS] if self._takes_all else [])
        return [CompletionItem(name) for name in names if name.startswith(incomplete.lower())]


def read_files(names: Iterable[str]) -> DocumentSet:
    """The documents in these files; `-` is stdin."""
    from hadron.cli.standard_streams import open_stdin
    from hadron.metadata.document_set import DocumentSet
    from hadron.model.marked_yaml import MAX_FILE_BYTES

    documents = DocumentSet()
    for name in names:
        if name == "-":
            documents.load_bytes(open_stdin().buffer.read(MAX_FILE_BYTES + 1), "stdin")
        else:
            documents.load(Path(name))
    return documents


def notes_on(client: SyncClient, objects: Iterable[SchemaObject]) -> list[str]:
    """What people should know of these, though they are as they should be."""
    from hadron.cli.telling import features
    from hadron.model.kinds import only_stored

    objects = list(objects)
    told = (note for each in features() for note in each.notes(client, objects))
    return [*only_stored(objects), *told]


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
    from hadron.client.schema.catalog import check_namespace

    check_namespace(name, client.objects("Namespace"))
