"""PROTOCOL D2: what a member is told of its acknowledgements, as its program hears it.

When `flush` returns, whatever the program had acknowledged before is in the group's tables, over
however many calls and leaders it went there; or it raises. Of what came before the group was made
or reset nothing is said: the fence tells it apart.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from hadron.client.consuming.acks import LateAcks, Token
from hadron.client.consuming.channel import Channel, Parcel
from hadron.client.consuming.membership import Membership
from hadron.model.ids import NO_BALLOT, Ballot
from hadron.sim.watch.ballots import Ballots
from hadron.sim.watch.entries import tables_lsn
from hadron.sim.watch.views import Complaints, NodeView

_GROUP = (
    "SELECT group_id, floor, fence_epoch, fence_incarnation, fence_delivery FROM hadron_group g"
    " JOIN hadron_schema_object o ON o.id = g.stream_id WHERE g.name = ? AND o.name = ?"
    " AND o.kind = 'Stream'"
)
_ABOVE = "SELECT 1 FROM hadron_group_ack WHERE group_id = ? AND ? BETWEEN first AND last"


class Said(NamedTuple):
    """Records that a program has acknowledged, in which history of the replica set."""

    token: Token
    first: int
    last: int
    history: int


class Confirming:
    """Every member."""

    def __init__(self, complaints: Complaints, ballots: Ballots) -> None:
        self._complaints = complaints
        self._ballots = ballots
        self._said: WeakKeyDictionary[LateAcks, list[Said]] = WeakKeyDictionary()
        """Of each member, since it was confirmed last, by what it keeps over its calls."""
        self._asked: WeakKeyDictionary[LateAcks, list[Said]] = WeakKeyDictionary()
        """What of it somebody waits for."""
        self._partitions: WeakKeyDictionary[LateAcks, str] = WeakKeyDictionary()
        self._histories: Counter[str] = Counter()
        """How often a replica set's log may have lost its end."""

    def opened(self, member: Membership) -> None:
        """A member begins a call."""
        self._partitions[member._late] = member.partition

    def forget(self, replica_set: str) -> None:
        """An operator takes what there is: what was committed may be gone."""
        self._histories[replica_set] += 1

    def acknowledged(self, channel: Channel, parcel: Parcel, first: int, last: int) -> None:
        """A program has dealt with these."""
        partition = self._partitions.get(channel._late)
        if channel.ballot != NO_BALLOT and partition is not None:
            token = channel.ballot, parcel.number
            said = Said(token, first, last, self._histories[partition])
            self._said.setdefault(channel._late, []).append(said)

    def asked(self, member: Membership) -> None:
        """A program waits for what it has acknowledged."""
        self._asked.setdefault(member._late, []).extend(self._said.pop(member._late, []))

    def refused(self, member: Membership) -> None:
        """It hears that some of that did not count, or that nobody knows."""
        self._asked.pop(member._late, None)
        self._said.pop(member._late, None)

    def confirmed(self, member: Membership) -> None:
        """It hears that all that it waited for counts."""
        said = self._asked.pop(member._late, [])
        view = self._latest(member.partition)
        if view is None:
            return
        name = member._opening.open.group
        row: Any = view.select(_GROUP, name, member.stream)
        if row is None:
            return  # It is ephemeral, or deleted.
        group_id, floor, epoch, incarnation, number = row
        fence = Ballot(epoch, incarnation), number
        for token, first, last, history in said:
            if token <= fence or history != self._histories[member.partition]:
                continue
            for offset in range(max(first, floor), last + 1):
                if view.select(_ABOVE, group_id, offset) is None:
                    self._complaints.add(
                        "D2 a confirmation is of all that was acknowledged",
                        f"a member of group {name} is told that its acknowledgements count; that "
                        f"of offset {offset} is not in {view.name}'s tables",
                    )
                    return

    def _latest(self, replica_set: str) -> NodeView | None:
        """Who leads by the highest ballot that has begun, while it has applied whatever a majority
        has of it; None otherwise."""
        marks = [mark for key, mark in self._ballots.marks.items() if key[0] == replica_set]
        mark = max((mark for mark in marks if mark.true_lsn), key=lambda one: one.key, default=None)
        if mark is None or not mark.view.is_alive:
            return None
        is_there = tables_lsn(mark.view.store.writer.connection) >= mark.true_lsn
        return mark.view if is_there else None
