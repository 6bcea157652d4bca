"""`hadron apply`: schema documents to the cluster, and what they change."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hadron.cli.objects import object_to_dict
from hadron.cli.printing import output_option, print_json
from hadron.cli.session import connects, session_of

if TYPE_CHECKING:
    from hadron.client.results import Applied
    from hadron.model.schema import SchemaObject

_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


@click.command("apply", short_help="Apply schema documents; print what changes.")
@click.option("--filename", "-f", "files", multiple=True, required=True, metavar="FILE",
              help="A YAML file of documents, or - for stdin; repeatable.")
@click.option("--dry-run", is_flag=True, help="Only say what would change.")
@click.option("--allow-destructive", is_flag=True,
              help="Permit changes that lose something, such as a stage with live instances.")
@output_option
@connects
@click.pass_context
def command(
    ctx: click.Context, files: tuple[str, ...], dry_run: bool, allow_destructive: bool,
    output: str,
) -> None:
    """Apply schema documents: all of them, or none when one is refused.

    \b
    Examples:
      hadron apply -f schema.yaml --dry-run
      hadron apply -f schema.yaml
    """
    documents = [found for name in files for found in _load(name)]
    with session_of(ctx).connect() as client:
        applied = client.apply(
            documents, dry_run=dry_run, allow_destructive=allow_destructive
        )
    if output == "json":
        print_json(_to_dict(applied, dry_run))
    else:
        _print_changes(applied, dry_run)


def _load(name: str) -> list[SchemaObject]:
    """The documents of a file. Raises `SchemaError` naming file and line of each problem."""
    from hadron.metadata.documents import load_documents, parse_documents

    if name == "-":
        return parse_documents(sys.stdin.read(), "stdin")
    return load_documents(Path(name))


def _to_dict(applied: Applied, dry_run: bool) -> dict[str, object]:
    changes = [
        {
            "action": change.action,
            "before": object_to_dict(change.before) if change.before else None,
            "after": object_to_dict(change.after) if change.after else None,
        }
        for change in applied.changes
    ]
    return {"dry_run": dry_run, "metadata_index": applied.metadata_index, "changes": changes}


def _print_changes(applied: Applied, dry_run: bool) -> None:
    from hadron.metadata.diff import render_diff

    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    for change in applied.changes:
        shown = change.after or change.before
        assert shown is not None
        click.echo(f"{shown.label} {change.action}{' (dry run)' if dry_run else ''}")
        if change.action != "changed":
            continue
        for line in render_diff([change]).splitlines():
            colour = _COLOURS.get(line[:1]) if coloured else None
            click.echo(click.style(f"  {line}", fg=colour) if colour else f"  {line}")
