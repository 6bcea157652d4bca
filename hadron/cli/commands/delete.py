"""`hadron delete`: objects by name, or those that files declare."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hadron.cli.completing import names_of
from hadron.cli.objects import KindType, object_to_dict, read_files
from hadron.cli.printing import output_option, print_json
from hadron.cli.session import connects, session_of
from hadron.cli.telling import features

if TYPE_CHECKING:
    from hadron.cli.telling import Key
    from hadron.client import SyncClient
    from hadron.model.schema import SchemaObject


@click.command("delete", short_help="Delete schema objects, by name or by file.")
@click.argument("kind", type=KindType(), required=False)
@click.argument("names", nargs=-1, metavar="NAME...", shell_complete=names_of())
@click.option(
    "--filename",
    "-f",
    "files",
    multiple=True,
    metavar="FILE",
    type=click.Path(),
    help="Delete what this YAML file declares, - for stdin; repeatable.",
)
@click.option(
    "--namespace",
    "-n",
    default="",
    shell_complete=names_of("Namespace"),
    metavar="NAME",
    help="Where KIND NAME stands; that of the server's URL else.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@click.option(
    "--allow-destructive",
    is_flag=True,
    help="Permit to lose what is in them: records, groups, instances, jobs.",
)
@click.option("--ignore-not-found", is_flag=True, help="Let objects be missing.")
@output_option
@connects
@click.pass_context
def command(
    ctx: click.Context,
    kind: str | None,
    names: tuple[str, ...],
    files: tuple[str, ...],
    namespace: str,
    dry_run: bool,
    allow_destructive: bool,
    ignore_not_found: bool,
    output: str,
) -> None:
    """Delete the KIND called NAME, or what FILE declares: all of it, or nothing.

    What other objects refer to is not deleted before these are.

    \b
    Examples:
      hadron delete stream flights --allow-destructive
      hadron delete -f schema.yaml --dry-run
    """
    if bool(files) == bool(kind):
        raise click.UsageError("give either KIND NAME or -f FILE", ctx)
    if kind and not names:
        raise click.UsageError(f"which {kind.lower()}? give a NAME", ctx)
    documents = read_files(files)
    keys = [(obj.kind, obj.namespace, obj.name) for obj in documents.objects] if files else []
    from hadron.model.errors import SchemaError

    try:
        with session_of(ctx).connect() as client:
            keys += [(kind or "", namespace or client.namespace, name) for name in names]
            if ignore_not_found:
                keys = _existing(client, keys)
            losses = [lost for each in features() for lost in each.losses(client, keys)]
            deleted = (
                client.delete(keys, dry_run=dry_run, allow_destructive=allow_destructive)
                if keys
                else []
            )
    except SchemaError as refusal:
        raise documents.located(refusal) from refusal
    for lost in losses:
        click.echo(f"warning: {lost}", err=True)
    _print(deleted, dry_run, output)


def _existing(client: SyncClient, keys: list[Key]) -> list[Key]:
    found = {(obj.kind, obj.namespace, obj.name) for obj in client.objects()}
    # A namespace stands in none, whatever the URL says.
    return [
        key
        for key in keys
        if key in found
        or (
            key[0] == "Namespace"
            and any(each[0] == "Namespace" and each[2] == key[2] for each in found)
        )
    ]


def _print(deleted: list[SchemaObject], dry_run: bool, output: str) -> None:
    if output == "json":
        print_json({"dry_run": dry_run, "deleted": [object_to_dict(each) for each in deleted]})
        return
    for each in deleted:
        click.echo(f"{each.label} deleted{' (dry run)' if dry_run else ''}")
    if not deleted:
        click.echo("nothing to delete")
