"""`hadron get`: schema objects of a kind, or one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hadron.cli.objects import KindType, object_to_dict
from hadron.cli.printing import output_option, print_rows
from hadron.cli.session import connects, session_of

if TYPE_CHECKING:
    from hadron.model.schema import SchemaObject

_COLUMNS = {
    "Stream": {"partitions": "PARTITIONS", "retention": "RETENTION"},
    "Pipeline": {"input": "INPUT", "replica_set": "REPLICA SET", "stages": "STAGES",
                 "max_parallel": ">MAX PARALLEL"},
    "Namespace": {"description": "~DESCRIPTION"},
}


@click.command("get", short_help="List schema objects of a kind.")
@click.argument("kind", type=KindType())
@click.argument("name", required=False)
@click.option("--namespace", "-n", default="", help="Only this namespace; all when left out.")
@output_option
@connects
@click.pass_context
def command(
    ctx: click.Context, kind: str, name: str | None, namespace: str, output: str
) -> None:
    """List objects of KIND (stream, pipeline, namespace), or the one called NAME.

    \b
    Examples:
      hadron get streams
      hadron get pipeline departures --output json
    """
    from hadron.model.errors import NotFoundError

    with session_of(ctx).connect() as client:
        found = client.objects(kind, namespace, name or "")
    if name and not found:
        raise NotFoundError(
            f"there is no {kind} {name!r}", f"`hadron get {kind.lower()}s` lists all"
        )
    if output == "json":
        print_rows({}, [object_to_dict(each) for each in found], output)
        return
    columns = {"namespace": "NAMESPACE", "name": "NAME", **_COLUMNS.get(kind, {}), "id": ">ID"}
    print_rows(columns, [_row(each) for each in found], output)


def _row(found: SchemaObject) -> dict[str, Any]:
    row = object_to_dict(found)
    if stages := row.get("stages"):
        row["stages"] = [stage["name"] for stage in stages]
    if "retention" in row:
        row["retention"] = _retention(row["retention"])
    return row


def _retention(retention: dict[str, int]) -> str:
    from hadron.model.units import format_duration, format_size

    shown = []
    if age := retention.get("max_age_ms"):
        shown.append(format_duration(age))
    if size := retention.get("max_bytes"):
        shown.append(format_size(size))
    return ", ".join(shown)
