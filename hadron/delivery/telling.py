"""Why a group's members get nothing, for those who ask: `hadron group describe`. Pure."""

from __future__ import annotations

from hadron.delivery.machine import Group


def held_back(group: Group, visible_end: int) -> str:
    """Why something is not delivered although members have credit; "" when it is."""
    return _new(group, visible_end) or _apart(group)


def _apart(group: Group) -> str:
    """What may end its member waits for one that holds nothing else (GROUPS G16)."""
    if not group.waiting.any_apart:
        return ""
    draining = ", and a member gets nothing more so that it is the one"
    return (
        "records that were held by members that died wait for a member that holds nothing"
        f"{draining if group.takers.draining is not None else ''}"
    )


def _new(group: Group, visible_end: int) -> str:
    """Nothing new is delivered."""
    if group.frontier.cursor >= visible_end:
        return ""
    if group.keys is not None and group.is_crowded:
        return (
            f"{group.keys.room.records} records of all groups here that keep the order of keys are "
            "in flight or behind their keys, which is the limit"
        )
    if group.has_enough_in_flight:
        count = group.in_flight + group.taken.records
        return f"{count} records are in flight, which is the limit"
    if group.is_full:
        unlogged = f", {group.unlogged} of which wait for a majority of the nodes"
        return (
            f"{group.unsettled} pieces are not acknowledged{unlogged if group.unlogged else ''}, "
            "which is the limit: acknowledge the oldest records"
        )
    if not group.rules.is_strict:
        return ""
    for first, _, transaction in group.taken.holders(0, group.frontier.cursor):
        return f"strict order: transaction {transaction} is acknowledging offset {first}"
    return "strict order: a record that was given back comes first" if group.waiting else ""
