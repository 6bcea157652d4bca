"""Who can make a ballot: what is decided from the members' own words about their disks. Pure.

Two things are needed. A majority must promise, so that no two ballots of an epoch are equal. And
so many must remember that they meet every majority, so that whatever was committed is in one of
their logs (PROTOCOL B3). With an odd number of members both are a majority; with an even one half
of them remembers enough, which lets two nodes start when one of them has lost its disk.
"""

from __future__ import annotations

from dataclasses import dataclass

from hadron.replication.membership import Membership


@dataclass(frozen=True, slots=True)
class Standing:
    """Which members can make a ballot now. `missing` says what is waited for, "" when it can."""

    founding: bool
    voters: tuple[str, ...]
    missing: str
    learners: tuple[str, ...] = ()
    """Connected, but without memory: they promise, and say nothing about what was committed."""


def stand(
    membership: Membership,
    *,
    own_is_member: bool,
    own_log_is_empty: bool,
    reports: dict[str, tuple[bool, bool]],
) -> Standing:
    """Decide who counts. Pure.

    Args:
        reports: for each connected peer, (it has a member record, its log is empty).
    """
    size = len(membership.members)
    all_empty = own_log_is_empty and all(empty for _, empty in reports.values())
    if all_empty and len(reports) == size - 1 and not own_is_member:
        return Standing(True, tuple(reports), "")
    if all_empty and len(reports) == size - 1 and not all(member for member, _ in reports.values()):
        # A founding that was cut short: nothing was ever logged, so it may begin again.
        return Standing(True, tuple(reports), "")
    voters = tuple(name for name, (member, _) in reports.items() if member)
    learners = tuple(name for name, (member, _) in reports.items() if not member)
    remembering = len(voters) + own_is_member
    if size == 1 and not own_is_member:
        missing = "the operator: this disk has a log but no member record (`hadron recover`)"
    elif not own_is_member and all_empty and not voters:
        missing = f"all {size} members, because the replica set is new"
    elif not own_is_member and remembering < membership.amnesia_quorum:
        missing = (
            f"{membership.amnesia_quorum} members that remember the log, because this node's disk "
            "is new"
        )
    elif 1 + len(reports) < membership.majority:
        missing = f"a majority of {membership.majority} of {size} members"
    elif remembering < membership.amnesia_quorum:
        # So many meet every majority, so one of them has what was committed.
        missing = f"{membership.amnesia_quorum} members that remember the log"
    else:
        return Standing(False, voters, "", learners)
    away = ", ".join(name for name in membership.peers if name not in reports)
    missing += f"; {away} cannot be reached" if away else ""
    return Standing(False, voters, missing, learners)
