"""What is told about groups: from tables and the leader's memory to messages."""

from __future__ import annotations

import itertools
from typing import Any, Final

import trio

from hadron.delivery.driver import GroupDriver
from hadron.delivery.groups import Groups
from hadron.delivery.sessions import MemberSession
from hadron.model.errors import NotFoundError
from hadron.model.transactions import DELIVERIES
from hadron.serving.leading import Leading
from hadron.state.group_views import GroupSummary
from hadron.state.groups import GroupOptions
from hadron.wire.messages import groups_pb2

_MAX_MEMBERS: Final = 1_000
"""That a description lists: under a megabyte."""

Listed = GroupSummary | GroupDriver
"""A durable group by what the tables have of it; an ephemeral one."""


def describe(leading: Leading, item: Listed) -> groups_pb2.ListGroupsResponse.Group | None:
    """None when its stream has just been deleted."""
    if isinstance(item, GroupDriver):
        return _ephemeral(leading, item)
    return _durable(leading, item)


def _durable(leading: Leading, summary: GroupSummary) -> groups_pb2.ListGroupsResponse.Group | None:
    try:
        item = leading.catalog.by_id(summary.stream_id)
        next_offset = leading.visible.bounds(item.id).next_offset
    except NotFoundError:
        return None
    live = leading.part(Groups).live(summary.stream_id, summary.name)
    letters, trouble = _letters(leading, summary.options)
    oldest_ms = summary.oldest_append_ms
    return groups_pb2.ListGroupsResponse.Group(
        namespace=item.namespace,
        stream=item.name,
        partition=leading.replica_set,
        group=summary.name,
        floor=summary.floor,
        next_offset=min(summary.next_offset, next_offset),
        acknowledged_above=summary.acknowledged_above,
        in_flight=live.machine.in_flight if live else 0,
        members=live.members if live else 0,
        skipped=summary.skipped,
        dead_lettered=summary.dead_lettered,
        oldest_append_ms=oldest_ms,
        oldest_age_ms=max(0, leading.controller.log_now_ms() - oldest_ms) if oldest_ms else 0,
        dead_letter_stream=letters,
        trouble=trouble,
        **_in_transactions(leading, summary.group_id),
    )


def _in_transactions(leading: Leading, group_id: int) -> dict[str, Any]:
    count, oldest = leading.locks.summary(DELIVERIES, group_id)
    if oldest is None:
        return {}
    return {
        "in_transactions": count,
        "oldest_transaction": str(oldest.transaction),
        "oldest_transaction_ms": max(0, leading.controller.log_now_ms() - oldest.since_ms),
    }


def _letters(leading: Leading, options: GroupOptions) -> tuple[str, str]:
    """Where the group's dead letters go, and what is wrong with that."""
    if not options.dead_letter_stream_id:
        return "", ""
    try:
        return leading.catalog.by_id(options.dead_letter_stream_id).name, ""
    except NotFoundError:
        name = leading.catalog.name_of(options.dead_letter_stream_id)
        return "", (
            f"its dead letter stream {name!r} was deleted: records whose attempts are used up are "
            "delivered again, ever more rarely; delete the group, and make it again with another "
            "one"
        )


def _ephemeral(leading: Leading, driver: GroupDriver) -> groups_pb2.ListGroupsResponse.Group | None:
    try:
        item = leading.catalog.by_id(driver.progress.stream_id)
        next_offset = leading.visible.bounds(item.id).next_offset
    except NotFoundError:
        return None
    letters, trouble = _letters(leading, driver.progress.options)
    return groups_pb2.ListGroupsResponse.Group(
        namespace=item.namespace,
        stream=item.name,
        partition=leading.replica_set,
        group=driver.progress.name,
        floor=driver.floor,
        next_offset=next_offset,
        acknowledged_above=driver.ledger.acknowledged_above,
        in_flight=driver.machine.in_flight,
        members=driver.members,
        ephemeral=True,
        dead_letter_stream=letters,
        trouble=trouble,
    )


def add_live(
    answer: groups_pb2.DescribeGroupResponse, driver: GroupDriver, next_offset: int
) -> None:
    """Add what only the leader's memory knows."""
    now = trio.current_time()
    machine = driver.machine
    answer.waiting_again = machine.waiting.records
    answer.delayed = machine.waiting.delayed(now)
    answer.behind_their_key = machine.keys.behind if machine.keys is not None else 0
    answer.held_back = machine.held_back(next_offset)
    shown = itertools.islice(driver.sessions.values(), _MAX_MEMBERS)
    answer.members.extend(_member(session, now) for session in shown)


def _member(session: MemberSession, now: float) -> groups_pb2.DescribeGroupResponse.Member:
    member = session.member
    oldest = min((each.since for each in member.deliveries.values()), default=now)
    return groups_pb2.DescribeGroupResponse.Member(
        name=session.label,
        peer=session.call.peer,
        connected_ms=round((now - session.joined) * 1_000),
        silent_ms=round((now - session.last_heard) * 1_000),
        max_in_flight=member.max_in_flight,
        credit=max(0, member.credit),
        in_flight=member.max_in_flight - member.credit,
        oldest_delivery_ms=round((now - oldest) * 1_000),
        heartbeat_interval_ms=session.heartbeat_interval_ms,
        heartbeat_threshold=session.heartbeat_threshold,
        is_blocked=not session.call.writable,
        is_stalled=member.is_stalled,
        delivered=member.delivered,
        acknowledged=member.acknowledged,
        gives_all_back=member.rests > 0,
    )
