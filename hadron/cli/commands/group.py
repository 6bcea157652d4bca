"""`hadron group`: consumer groups, how far they are, and moving or forgetting them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from hadron.cli.answers import ANSWER_WITHIN_S, heard, unheard
from hadron.cli.completing import WITHIN_S, ask_names, complete_partitions, names_of
from hadron.cli.positions import FROM_HELP, Position, PositionType
from hadron.cli.printing import output_option, print_json, print_rows
from hadron.cli.quantities import duration
from hadron.cli.session import connects, session_of
from hadron.cli.telling import Tells
from hadron.model.words import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hadron.cli.telling import Key
    from hadron.client import SyncClient
    from hadron.model.errors import IncompleteError
    from hadron.wire.messages import groups_pb2

_COLUMNS = {
    "stream": "STREAM",
    "group": "GROUP",
    "partition": "PARTITION",
    "floor": ">FLOOR",
    "next_offset": ">NEXT",
    "lag": ">LAG",
    "oldest": ">OLDEST",
    "skipped": ">SKIPPED",
    "dead_lettered": ">DEAD",
    "in_flight": ">IN FLIGHT",
    "members": ">MEMBERS",
    "trouble": "~TROUBLE",
}
_MEMBER_COLUMNS = {
    "partition": "PARTITION",
    "name": "MEMBER",
    "peer": "PEER",
    "in_flight": ">IN FLIGHT",
    "credit": ">CREDIT",
    "oldest": ">OLDEST",
    "silent": ">LAST SIGN",
    "delivered": ">DELIVERED",
    "acknowledged": ">ACKED",
    "state": "~STATE",
}
_ORDERS = ("none", "strict", "key")

_LETTERS_WITHIN_S: Final = 3.0
"""For the groups of each partition: a region that is away keeps nobody from deleting."""


def complete_groups(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Groups of the stream on the command line, else of all."""
    stream = ctx.params.get("stream") or ""
    return ask_names(
        ctx,
        incomplete,
        lambda client: (each.group for each in client.groups(stream, within_s=WITHIN_S)),
    )


_stream_option = click.option(
    "--stream",
    required=True,
    shell_complete=names_of("Stream"),
    metavar="STREAM",
    help="The stream that it reads.",
)
_partition_option = click.option(
    "--partition",
    "-p",
    "partitions",
    multiple=True,
    shell_complete=complete_partitions,
    metavar="PARTITION",
    help="Only at this partition; repeatable.",
)
_force_option = click.option("--force", is_flag=True, help="Also while members are connected.")


@click.group("group", short_help="Look at consumer groups, reset and delete them.")
def command() -> None:
    """Consumer groups: who reads what, and how far they are.

    The leaders of all partitions are asked at the same time, for a few seconds. When some do not
    answer, or refuse, the others' answers are shown and those named on stderr, in JSON as elements
    with "partition" and "error", and the status is 1. Any of these commands may be repeated.

    \b
    Examples:
      hadron group list --stream flights
      hadron group reset billing --stream flights --to earliest
    """


@command.command("list")
@click.option(
    "--stream",
    default="",
    shell_complete=names_of("Stream"),
    metavar="STREAM",
    help="Only groups of this stream.",
)
@output_option
@connects
@click.pass_context
def list_(ctx: click.Context, stream: str, output: str) -> None:
    """List groups, one row per partition.

    \b
    FLOOR      every record below this offset is acknowledged, or was SKIPPED
    NEXT       the offset of the partition's next record
    LAG        records below NEXT that are not acknowledged
    OLDEST     the age of the oldest record that is not acknowledged
    SKIPPED    records that retention dropped before they were acknowledged
    DEAD       records that went to the dead letter stream
    IN FLIGHT  delivered to a member, not acknowledged yet
    MEMBERS    members that are connected

    \b
    Examples:
      hadron group list
      hadron group list --stream flights -o json
    """
    with session_of(ctx).connect() as client:
        found, trouble = heard(lambda: client.groups(stream, within_s=ANSWER_WITHIN_S))
    rows = [group_row(each) for each in found]
    rows.sort(key=lambda row: (row["stream"], row["group"], row["partition"]))
    columns = _COLUMNS
    if not any(row["trouble"] for row in rows):
        columns = {field: heading for field, heading in columns.items() if field != "trouble"}
    _print(columns, rows, output, trouble)


def _print(
    columns: dict[str, str],
    rows: list[dict[str, Any]],
    output: str,
    trouble: IncompleteError | None,
) -> None:
    """Print the rows that there are; then raise the trouble, if any."""
    if output == "json":
        print_json([*rows, *unheard(trouble)])
    elif rows or trouble is None:
        print_rows(columns, rows, output)
    if trouble is not None:
        raise trouble


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
        "oldest_append_ms": group.oldest_append_ms,
        "oldest_age_ms": group.oldest_age_ms,
        "oldest": duration(group.oldest_age_ms) if group.oldest_append_ms else "",
        "in_flight": group.in_flight,
        "in_transactions": group.in_transactions,
        "oldest_transaction": group.oldest_transaction,
        "oldest_transaction_ms": group.oldest_transaction_ms,
        "members": group.members,
        "skipped": group.skipped,
        "dead_lettered": group.dead_lettered,
        "dead_letter_stream": group.dead_letter_stream,
        "ephemeral": group.ephemeral,
        "trouble": group.trouble,
    }


@command.command("describe")
@click.argument("group", shell_complete=complete_groups)
@click.option(
    "--stream",
    default="",
    shell_complete=names_of("Stream"),
    metavar="STREAM",
    help="The stream that it reads; needed where several have a group of this name.",
)
@_partition_option
@output_option
@connects
@click.pass_context
def describe(
    ctx: click.Context, group: str, stream: str, partitions: tuple[str, ...], output: str
) -> None:
    """Show GROUP with its options, its members, and what was given back.

    \b
    Examples:
      hadron group describe billing
      hadron group describe billing --stream flights
    """
    with session_of(ctx).connect() as client:
        read = stream or _stream_of(client, group)
        found, trouble = heard(
            lambda: client.describe_group(
                read, group, partitions=partitions, within_s=ANSWER_WITHIN_S
            )
        )
    described = [_described(each) for each in found]
    if output == "json":
        _print(_COLUMNS, described, output, trouble)
        return
    if described:
        _print_descriptions(described)
    if trouble is not None:
        raise trouble


def _stream_of(client: SyncClient, group: str) -> str:
    """The one stream that has a group of this name. Raises `NotFoundError` and `RequestError` when
    none has one, or several, and what the listing raises while that is not known."""
    from hadron.model.errors import NotFoundError, RequestError
    from hadron.model.problems import did_you_mean

    known, trouble = heard(lambda: client.groups(within_s=ANSWER_WITHIN_S))
    streams: list[str] = sorted({each.stream for each in known if each.group == group})
    if len(streams) == 1:
        return streams[0]
    if streams:
        raise RequestError(
            f"{len(streams)} streams have a group {group!r}: {', '.join(streams)}",
            f"say which one: --stream {streams[0]}",
        )
    if trouble is not None:
        raise trouble
    raise NotFoundError(
        f"no stream has a group {group!r}{did_you_mean(group, {each.group for each in known})}",
        "`hadron group list` shows all",
    )


def _print_descriptions(described: list[dict[str, Any]]) -> None:
    columns = {field: heading for field, heading in _COLUMNS.items() if field != "trouble"}
    print_rows(columns, [each["group"] for each in described], "table")
    for each in described:
        click.echo(f"\n{each['group']['partition']}: {_in_words(each)}")
    members = [member for each in described for member in each["members"]]
    if members:
        click.echo()
        print_rows(_MEMBER_COLUMNS, members, "table")


def _described(answer: groups_pb2.DescribeGroupResponse) -> dict[str, Any]:
    options = answer.options
    return {
        "group": group_row(answer.group),
        "options": {
            "order": _ORDERS[options.order],
            "ack_deadline_ms": options.ack_deadline_ms,
            "max_attempts": options.max_attempts,
            "dead_letter_stream": options.dead_letter_stream,
            "ephemeral": options.ephemeral,
        },
        "created_ms": answer.created_ms,
        "waiting_again": answer.waiting_again,
        "delayed": answer.delayed,
        "behind_their_key": answer.behind_their_key,
        "held_back": answer.held_back,
        "attempts": [
            {
                "first_offset": each.first_offset,
                "last_offset": each.last_offset,
                "attempts": each.attempts,
            }
            for each in answer.attempts
        ],
        "members": [_member(answer.group.partition, each) for each in answer.members],
    }


def _member(partition: str, member: groups_pb2.DescribeGroupResponse.Member) -> dict[str, Any]:
    states = (
        (member.is_blocked, "does not read"),
        (member.is_stalled, "missed an ack deadline"),
        (member.gives_all_back, "gives everything back"),
        (member.is_alone, "gets nothing beside what it holds"),
        (not member.max_in_flight, "paused"),
    )
    return {
        "partition": partition,
        "name": member.name,
        "peer": member.peer,
        "connected_ms": member.connected_ms,
        "silent_ms": member.silent_ms,
        "silent": duration(member.silent_ms),
        "max_in_flight": member.max_in_flight,
        "credit": member.credit,
        "in_flight": member.in_flight,
        "oldest_delivery_ms": member.oldest_delivery_ms,
        "oldest": duration(member.oldest_delivery_ms) if member.in_flight else "",
        "heartbeat_interval_ms": member.heartbeat_interval_ms,
        "heartbeat_threshold": member.heartbeat_threshold,
        "delivered": member.delivered,
        "acknowledged": member.acknowledged,
        "state": ", ".join(text for holds, text in states if holds),
    }


def _in_words(described: dict[str, Any]) -> str:
    options = described["options"]
    parts = [f"order {options['order']}"]
    if options["ephemeral"]:
        parts.append("ephemeral")
    if options["ack_deadline_ms"]:
        parts.append(f"ack deadline {duration(options['ack_deadline_ms'])}")
    if options["max_attempts"]:
        out, trouble = options["dead_letter_stream"], described["group"]["trouble"]
        parts.append(
            counted(options["max_attempts"], "attempt")
            + (f"; {trouble}" if trouble else f", then to {out}")
        )
    for field, text in (
        ("waiting_again", "wait to be delivered again"),
        ("delayed", "of them delayed"),
        ("behind_their_key", "wait behind their key"),
    ):
        if described[field]:
            parts.append(f"{described[field]} {text}")
    group = described["group"]
    if group["in_transactions"]:
        age = duration(group["oldest_transaction_ms"])
        parts.append(
            f"{group['in_transactions']} in transactions, the oldest one for {age}: "
            f"{group['oldest_transaction']}"
        )
    if described["held_back"]:
        parts.append(f"held back: {described['held_back']}")
    given_back = [
        f"{each['first_offset']}"
        + (f" to {each['last_offset']}" if each["last_offset"] > each["first_offset"] else "")
        + f" ({each['attempts']} attempts)"
        for each in described["attempts"][:10]
    ]
    if given_back:
        parts.append(f"given back: {', '.join(given_back)}")
    return "; ".join(parts)


@command.command("reset")
@click.argument("group", shell_complete=complete_groups)
@_stream_option
@click.option("--to", required=True, type=PositionType(), help=f"Where it goes on: {FROM_HELP}")
@_partition_option
@_force_option
@click.option("--create", is_flag=True, help="Make GROUP where a partition does not know it.")
@output_option
@connects
@click.pass_context
def reset(
    ctx: click.Context,
    group: str,
    stream: str,
    to: Position,
    partitions: tuple[str, ...],
    force: bool,
    create: bool,
    output: str,
) -> None:
    """Move GROUP's progress: forget what it has acknowledged, and go on elsewhere.

    It is refused while members are connected. With --force they are sent away, and join again;
    what they still acknowledge of before does not count.

    \b
    Examples:
      hadron group reset billing --stream flights --to earliest
      hadron group reset billing --stream flights --to 2026-01-31T12:00:00Z
    """
    with session_of(ctx).connect() as client:
        done, trouble = heard(
            lambda: client.reset_group(
                stream,
                group,
                _start(to),
                partitions=partitions,
                force=force,
                create=create,
                within_s=ANSWER_WITHIN_S,
            )
        )
    rows = [
        {"partition": each.partition, "floor_before": each.floor_before, "floor": each.floor}
        for each in done
    ]
    columns = {"partition": "PARTITION", "floor_before": ">WAS AT", "floor": ">IS AT"}
    _print(columns, rows, output, trouble)


def _start(to: Position) -> str | int:
    if to.kind == "time":
        return f"@{to.number}"
    if to.kind == "last":
        # The last 0: where the next record comes.
        return -to.number if to.number else "latest"
    return str(to.number) if to.kind == "offset" else to.kind


@command.command("delete")
@click.argument("group", shell_complete=complete_groups)
@_stream_option
@_partition_option
@_force_option
@output_option
@connects
@click.pass_context
def delete(
    ctx: click.Context,
    group: str,
    stream: str,
    partitions: tuple[str, ...],
    force: bool,
    output: str,
) -> None:
    """Forget GROUP and all that it has acknowledged.

    It is refused while members are connected; with --force they fail.

    \b
    Example:
      hadron group delete billing --stream flights
    """
    with session_of(ctx).connect() as client:
        gone, trouble = heard(
            lambda: client.delete_group(
                stream, group, partitions=partitions, force=force, within_s=ANSWER_WITHIN_S
            )
        )
    rows = [{"partition": name} for name in gone]
    _print({"partition": "DELETED AT"}, rows, output, trouble)


def _losses(client: SyncClient, keys: Sequence[Key]) -> list[str]:
    """Of groups that write to one of the streams that are to be deleted. Those of partitions that
    do not answer are not known."""
    from hadron.model.errors import HadronError

    gone = {(namespace, name) for kind, namespace, name in keys if kind == "Stream"}
    if not gone:
        return []
    try:
        groups, _ = heard(lambda: client.groups(within_s=_LETTERS_WITHIN_S))
    except HadronError:
        return []
    bereft = {
        (each.group, each.stream, each.dead_letter_stream)
        for each in groups
        if (each.namespace, each.dead_letter_stream) in gone
        and (each.namespace, each.stream) not in gone
    }
    return [
        f"group {group} of {stream} has its dead letters in {letters}: without it they are "
        "delivered again and again; delete the group, and make it with another one"
        for group, stream, letters in sorted(bereft)
    ]


TELLS: Final = Tells(losses=_losses)
