"""Who can make a ballot: what is decided from the members' own words about their disks. Pure.

Two things are needed. A majority must promise, so that no two ballots of an epoch are equal. And
so many must remember that they meet every majority, so that whatever was committed is in one of
their logs (PROTOCOL B3). With an odd number of members both are a majority; with an even one half
of them remembers enough, which lets two nodes start when one of them has lost its disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hadron.replication.configurations import what_is_missing
from hadron.replication.membership import Membership
from hadron.state.leadership import Configuration


@dataclass(frozen=True, slots=True)
class Standing:
    """Which members can make a ballot now. `missing` says what is waited for, "" when it can."""

    founding: bool
    voters: tuple[str, ...]
    missing: str
    learners: tuple[str, ...] = ()
    """Connected, but without memory: they promise, and say nothing about what was committed."""
    memories_missing: int = 0
    """How many more members that remember the log must be heard, where that is what is missing."""


def stand(
    membership: Membership,
    *,
    own_is_member: bool,
    own_log_is_empty: bool,
    reports: dict[str, tuple[bool, bool]],
    configurations: Sequence[Configuration] = (),
) -> Standing:
    """Decide who counts. Pure.

    Args:
        reports: for each connected peer, (it has a member record, its log is empty).
        configurations: those that the members' logs say are needed (PROTOCOL B5), as far as is
            known before the logs are compared. Where the own epoch is not among them nobody has
            begun with it: nothing was committed by its members, and none of them must remember.
    """
    begins = bool(configurations) and all(
        known.epoch != membership.epoch for known in configurations
    )
    memories = 0 if begins else membership.amnesia_quorum
    size = len(membership.members)
    all_empty = own_log_is_empty and all(empty for _, empty in reports.values())
    # When all remember, nothing was logged since they founded the set. When only some do, founding
    # it was cut short, and may begin again.
    forgetful = not own_is_member or not all(member for member, _ in reports.values())
    if all_empty and len(reports) == size - 1 and forgetful:
        return _found(membership, tuple(reports))
    voters = tuple(name for name, (member, _) in reports.items() if member)
    learners = tuple(name for name, (member, _) in reports.items() if not member)
    remembering = len(voters) + own_is_member
    memories_missing = 0
    if size == 1 and not own_is_member:
        missing = "the operator: this disk has a log but no member record (`hadron recover`)"
    elif not own_is_member and all_empty and not voters:
        missing = f"all {size} members, because the replica set is new"
    elif not own_is_member and remembering < memories:
        missing = f"{memories} members that remember the log, because this node's disk does not"
        memories_missing = memories - remembering
    elif 1 + len(reports) < membership.majority:
        missing = f"a majority of {membership.majority} of {size} members"
    elif remembering < memories:
        # So many meet every majority, so one of them has what was committed.
        missing = f"{memories} members that remember the log"
        memories_missing = memories - remembering
    else:
        there = {membership.node, *reports}
        with_memory = {*voters, membership.node} if own_is_member else set(voters)
        missing = what_is_missing(configurations, there, with_memory)
        if not missing:
            return Standing(False, voters, "", learners)
        if not what_is_missing(configurations, there, there):
            memories_missing = max(
                known.amnesia_quorum - len(known.names & with_memory) for known in configurations
            )
        missing += _never(membership, configurations)
    away = ", ".join(name for name in membership.peers if name not in reports)
    missing += f"; {away} cannot be reached" if away else ""
    return Standing(False, voters, missing, learners, memories_missing)


def _never(membership: Membership, configurations: Sequence[Configuration]) -> str:
    """That waiting does not help, in words, where it does not."""
    own = {name for name, _ in membership.members}
    for known in configurations:
        left = sorted(known.names & own)
        if len(left) < known.majority:
            return (
                f"; this file has only {', '.join(left) or 'none'} of them: take the change back, "
                "and exchange members in steps, so that a majority of the old ones stays"
            )
    return ""


def _found(membership: Membership, peers: tuple[str, ...]) -> Standing:
    """All disks are empty. With a later epoch there was a log, which others have: an empty one must
    not take its place because all members were exchanged at once."""
    if membership.epoch == 1:
        return Standing(True, peers, "")
    return Standing(
        False,
        (),
        f"members that have the log: all of epoch {membership.epoch} are empty, and a replica set "
        "begins with epoch 1; exchange members in steps, so that a majority of the old ones stays",
        peers,
    )
