"""`hadron group`: consumer groups and how far they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hadron.cli.printing import output_option, print_rows
from hadron.cli.session import connects, session_of

if TYPE_CHECKING:
    from hadron.wire.messages import groups_pb2

_COLUMNS = {
    "stream": "STREAM", "group": "GROUP", "partition": "PARTITION", "floor": ">FLOOR",
    "next_offset": ">NEXT", "lag": ">LAG", "skipped": ">SKIPPED",
    "in_flight": ">IN FLIGHT", "members": ">MEMBERS",
}


@click.group("group", short_help="Look at consumer groups.")
def command() -> None:
    """Consumer groups: who reads what, and how far they are.

    \b
    Example:
      hadron group list --stream flights
    """


@command.command("list")
@click.option("--stream", default="", help="Only groups of this stream.")
@output_option
@connects
@click.pass_context
def list_(ctx: click.Context, stream: str, output: str) -> None:
    """List groups, one row per partition.

    \b
    FLOOR      every record below this offset is acknowledged, or was SKIPPED
    NEXT       the offset of the partition's next record
    LAG        records below NEXT that are not acknowledged
    SKIPPED    records that retention dropped before they were acknowledged
    IN FLIGHT  delivered to a member, not acknowledged yet
    MEMBERS    members that are connected

    \b
    Examples:
      hadron group list
      hadron group list --stream flights --output json
    """
    with session_of(ctx).connect() as client:
        rows = [group_row(each) for each in client.groups(stream)]
    rows.sort(key=lambda row: (row["stream"], row["group"], row["partition"]))
    print_rows(_COLUMNS, rows, output)


def group_row(group: groups_pb2.ListGroupsResponse.Group) -> dict[str, Any]:
    """One group at one partition; lag in records."""
    return {
        "namespace": group.namespace,
        "stream": group.stream,
        "group": group.group,
        "partition": group.partition,
        "floor": group.floor,
        "next_offset": group.next_offset,
        "acknowledged_above": group.acknowledged_above,
        "lag": max(0, group.next_offset - group.floor - group.acknowledged_above),
        "in_flight": group.in_flight,
        "members": group.members,
        "skipped": group.skipped,
    }
