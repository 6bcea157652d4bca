"""`hadron apply`: schema documents to the cluster, and what they change."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from hadron.cli.objects import notes_on, object_to_dict, print_diff, read_files
from hadron.cli.printing import output_option, print_json
from hadron.cli.session import connects, session_of
from hadron.cli.telling import features

if TYPE_CHECKING:
    from hadron.client import SyncClient
    from hadron.client.terms.results import Applied
    from hadron.metadata.document_set import DocumentSet
    from hadron.model.schema import SchemaObject

_ELSE_S: Final = 2.0
"""How long a node is asked what else is wrong, before what is known already is told alone."""


@click.command("apply", short_help="Apply schema documents; print what changes.")
@click.option(
    "--filename",
    "-f",
    "files",
    multiple=True,
    required=True,
    metavar="FILE",
    type=click.Path(),
    help="A YAML file of documents, or - for stdin; repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would change, as a diff.")
@click.option(
    "--allow-destructive",
    is_flag=True,
    help="Permit changes that lose something: a removed partition (its records stay on the disks, "
    "out of reach, until the stream is deleted), what a moved pipeline has under way, records that "
    "a shorter retention drops at once (--dry-run says how many).",
)
@output_option
@connects
@click.pass_context
def command(
    ctx: click.Context, files: tuple[str, ...], dry_run: bool, allow_destructive: bool, output: str
) -> None:
    """Apply schema documents: all of them, or none when one is refused.

    A new Token's secret is printed once; only its hash is stored. What this version
    only stores, and does nothing with, is named. The functions of Spark stages are looked for in
    modules that import here, by another process; what does not import here is named.

    \b
    Examples:
      hadron apply -f schema.yaml --dry-run
      hadron apply -f schema.yaml
    """
    from hadron.model.errors import SchemaError

    documents = read_files(files)
    objects = _objects(ctx, documents, allow_destructive)
    try:
        unseen = [each for feature in features() for each in feature.checks(objects)]
        with session_of(ctx).connect() as client:
            dropped: list[str] = []
            if dry_run or any(map(_has_limits, objects)):
                # Counted before: afterwards it may have gone already.
                planned = client.apply(objects, dry_run=True, allow_destructive=allow_destructive)
                dropped = _dropped(ctx, [(each.before, each.after) for each in planned.changes])
            applied = (
                planned if dry_run else client.apply(objects, allow_destructive=allow_destructive)
            )
            notes = notes_on(client, objects) + unseen + dropped
    except SchemaError as refusal:
        raise documents.located(refusal) from refusal
    if output == "json":
        print_json(_to_dict(applied, dry_run, notes))
        return
    _print_changes(applied, dry_run)
    for note in notes:
        click.echo(f"note: {note}", err=True)


def _objects(
    ctx: click.Context, documents: DocumentSet, allow_destructive: bool
) -> list[SchemaObject]:
    """What is declared. Raises `SchemaError` for mistakes in the files, and for those that the
    cluster would find in the rest, so that people hear of all at once."""
    from hadron.model.errors import HadronError, SchemaError

    try:
        return documents.objects
    except SchemaError:
        judgeable = documents.judgeable
        if judgeable:
            try:
                with session_of(ctx).connect(timeout_s=_ELSE_S) as client:
                    client.apply(judgeable, dry_run=True, allow_destructive=allow_destructive)
            except SchemaError as refusal:
                documents.add_problems(refusal)
            except HadronError:
                # Nobody there to ask; what is known is worth telling.
                pass
    return documents.objects


def _has_limits(declared: SchemaObject) -> bool:
    """Whether it is a stream that does not keep everything."""
    from hadron.model.schema import Retention, StreamSpec

    return isinstance(declared.spec, StreamSpec) and declared.spec.retention != Retention()


def _dropped(
    ctx: click.Context, changes: list[tuple[SchemaObject | None, SchemaObject | None]]
) -> list[str]:
    """What shorter retentions drop at once and later, in words; records are counted by their age,
    by this machine's clock."""
    from hadron.metadata.shortening import shortened
    from hadron.model.errors import HadronError
    from hadron.model.schema import StreamSpec
    from hadron.model.units import format_duration

    told: list[str] = []
    for before, after in changes:
        if before is None or after is None:
            continue
        old, new = before.spec, after.spec
        if not isinstance(old, StreamSpec) or not isinstance(new, StreamSpec):
            continue
        less = shortened(old.retention, new.retention)
        if not less:
            continue
        try:
            with session_of(ctx).connect(namespace=after.namespace, timeout_s=_ELSE_S) as client:
                older, kept = _count(client, after.name, new.retention.max_age_ms)
        except HadronError as error:
            count = f": how many is not known, {error.message}"
        else:
            if not kept:
                continue
            limit = format_duration(new.retention.max_age_ms)
            later = f", {kept - older} within {limit}" if older < kept else ""
            count = f": about {older} of {kept} records{later}"
        told += [
            f"{after.label}: {each.drops} goes at once{count if each.key == 'max_age' else ''}"
            for each in less
        ]
    return told


def _count(client: SyncClient, stream: str, max_age_ms: int) -> tuple[int, int]:
    """How many records are older, and how many there are."""
    found = client.offsets(stream, at_ms=max(1, int(time.time() * 1000) - max_age_ms))
    return (
        sum(max(0, each.at_offset - each.first_offset) for each in found),
        sum(each.next_offset - each.first_offset for each in found),
    )


def _to_dict(applied: Applied, dry_run: bool, notes: list[str]) -> dict[str, Any]:
    changes = []
    for change in applied.changes:
        shown: dict[str, Any] = {
            "action": change.action,
            "before": object_to_dict(change.before) if change.before else None,
            "after": object_to_dict(change.after) if change.after else None,
        }
        if change.secret:
            shown["secret"] = change.secret
        changes.append(shown)
    return {
        "dry_run": dry_run,
        "metadata_index": applied.metadata_index,
        "changes": changes,
        "notes": notes,
    }


def _print_changes(applied: Applied, dry_run: bool) -> None:
    for change in applied.changes:
        shown = change.after or change.before
        assert shown is not None
        click.echo(f"{shown.label} {change.action}{' (dry run)' if dry_run else ''}")
        if change.action == "changed" or dry_run:
            print_diff(change)
        if change.secret:
            click.echo(f"  secret: {change.secret}")
            click.echo(
                f"note: keep the secret of {shown.name}: only its hash is stored, it is not shown "
                "again",
                err=True,
            )
