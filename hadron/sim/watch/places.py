"""PROTOCOL D2: where each record of a group is, on the leader that serves the group.

Between the floor and the cursor a record is acknowledged, or is to be; or it is in one other place:
with a member, on its way to one once more, taken by a transaction, or in line behind one of its
key. In none of them it is
forgotten; in two it is dealt with twice. A key is busy for the sake of such a record, or for ever.

What is between two places for a moment is there the next time that somebody looks.
"""

from __future__ import annotations

from collections import Counter
from typing import Any
from weakref import WeakKeyDictionary

from hadron.delivery.driver import GroupDriver
from hadron.delivery.machine import Group
from hadron.sim.watch.marks import Mark
from hadron.sim.watch.views import Complaints

_ACKNOWLEDGED = (
    "SELECT floor > ?2 OR EXISTS (SELECT * FROM hadron_group_ack a WHERE a.group_id = ?1"
    " AND ?2 BETWEEN first AND last),"
    " ?2 < (SELECT first_offset FROM hadron_stream_partition s WHERE s.stream_id = g.stream_id)"
    " FROM hadron_group g WHERE group_id = ?1"
)
"""Retention raises floors, too: what it drops is visible until that is committed."""


class Places:
    """Every durable group on every leader."""

    def __init__(self, complaints: Complaints) -> None:
        self._complaints = complaints
        self._odd: WeakKeyDictionary[GroupDriver, dict[int, str]] = WeakKeyDictionary()
        """What looked wrong the last time, by offset."""

    def delivered(self, driver: GroupDriver, mark: Mark, first: int, last: int) -> None:
        """Records are given to a member: nobody has dealt with them."""
        for offset in range(first, last + 1):
            if _is_acknowledged(driver, mark, offset, counts_dropped=False):
                self._complaints.add(
                    "D2 what was dealt with is delivered no more",
                    f"{mark.view.name} delivers offset {offset} of group {driver.progress.name}, "
                    "which is acknowledged, or a dead letter",
                )

    def settled(self, driver: GroupDriver, mark: Mark, first: int, last: int) -> None:
        """Records are over for the group: each is acknowledged by now, or a dead letter."""
        for offset in range(first, last + 1):
            if not _is_acknowledged(driver, mark, offset):
                self._complaints.add(
                    "D2 what is settled is acknowledged",
                    f"{mark.view.name} takes offset {offset} of group {driver.progress.name} for "
                    "dealt with; it is neither acknowledged nor a dead letter",
                )
                return

    def look(self, driver: GroupDriver, mark: Mark, settling: set[int]) -> None:
        """Now and then; `settling` are offsets that are to be acknowledged, or dead letters."""
        machine = driver.machine
        places = _places(machine)
        odd = {offset: "is in two places" for offset, count in places.items() if count > 1}
        kept = max(machine.floor, machine.dropped_below)
        for offset in range(kept, machine.frontier.cursor):
            is_somewhere = offset in places or offset in settling
            if not is_somewhere and not _is_acknowledged(driver, mark, offset):
                odd[offset] = "is with nobody, and comes to nobody"
        if machine.keys is not None:
            for offset in machine.keys._current:
                if offset not in places and offset not in settling:
                    odd[offset] = "is over, and keeps others of its key from their turn"
        before, self._odd[driver] = self._odd.get(driver, {}), odd
        for offset, what in odd.items():
            if before.get(offset) == what:
                self._complaints.add(
                    "D2 each record is in one place",
                    f"{mark.view.name}: offset {offset} of group {driver.progress.name} {what}",
                )


def _places(machine: Group) -> Counter[int]:
    found: Counter[int] = Counter()
    for delivery in machine.held:
        for first, last in delivery.held.ranges():
            found.update(range(first, last + 1))
    for first, last in machine.waiting.ranges():
        found.update(range(first, last + 1))
    for first, last, taken in machine.taken.ranges():
        if taken.place is not None:
            found.update(range(first, last + 1))
    if machine.keys is not None:
        for line in machine.keys._lines.values():
            found.update(offset for offset in line or () if offset >= machine.dropped_below)
    return found


def _is_acknowledged(
    driver: GroupDriver, mark: Mark, offset: int, *, counts_dropped: bool = True
) -> bool:
    row: Any = mark.view.select(_ACKNOWLEDGED, driver.progress.group_id, offset)
    return row is not None and bool(row[0]) and (counts_dropped or not row[1])
