"""Consumer groups: what is acknowledged is a set of offsets, what was given back a number for each
(D2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hadron.model.errors import NotFoundError, OffsetOutOfRangeError, RequestError
from hadron.sim.model.entry import Entry, Known, Refused, Rows
from hadron.sim.model.streams import Streams, appended
from hadron.state.groups.changes import SLICE_ROWS, DeleteGroup, ResetGroup
from hadron.state.groups.endings import DeadLetterRecords, EndDeliveries
from hadron.state.groups.progress import AckRecords, CreateGroup

Ranges = Iterable[tuple[int, int]]


@dataclass(slots=True)
class Group:
    """Attributes:
    acknowledged: above the floor.
    attempts: by offset, how many deliveries have ended in vain.
    """

    stream_id: int
    name: str
    floor: int
    created_ms: int
    options: tuple[int, int, int, int]
    fence: tuple[int, int, int]
    dead_lettered: int = 0
    acknowledged: set[int] = field(default_factory=set)
    attempts: dict[int, int] = field(default_factory=dict)

    def raise_floor(self, floor: int) -> None:
        """To there, and over what is acknowledged from there on."""
        while floor in self.acknowledged:
            floor += 1
        self.floor = floor
        self.acknowledged = {each for each in self.acknowledged if each >= floor}

    def is_done(self, offset: int) -> bool:
        return offset < self.floor or offset in self.acknowledged


@dataclass(slots=True)
class Groups:
    """Attributes:
    by_id: those that there are.
    garbage: former ids: since when, and the ranges and attempts that are left.
    skipped: by ("group" or "pipeline", id): records that retention has dropped unseen, and when
        it did last.
    """

    streams: Streams
    by_id: dict[int, Group] = field(default_factory=dict)
    garbage: dict[int, tuple[int, list[tuple[int, ...]], list[tuple[int, ...]]]] = field(
        default_factory=dict
    )
    skipped: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)

    def find(self, group_id: int) -> Group:
        if group_id not in self.by_id:
            raise Refused(NotFoundError)
        return self.by_id[group_id]

    def create(self, entry: Entry, command: CreateGroup) -> dict[str, Any]:
        for group_id, group in self.by_id.items():
            if (group.stream_id, group.name) == (command.stream_id, command.name):
                skipped, _ = self.skipped.get(("group", group_id), (0, 0))
                raise Known(_progress(group_id, group, skipped))
        self._check_start(command.stream_id, command.floor)
        given = command.options
        options = (
            given.order,
            given.ack_deadline_ms,
            given.max_attempts,
            given.dead_letter_stream_id,
        )
        group = self.by_id[entry.lsn] = Group(
            command.stream_id,
            command.name,
            command.floor,
            entry.now_ms,
            options,
            (*entry.ballot, command.last_delivery),
        )
        return _progress(entry.lsn, group, 0)

    def _check_start(self, stream_id: int, floor: int) -> None:
        first, following = self.streams.bounds(stream_id)
        if not first <= floor <= following:
            raise Refused(OffsetOutOfRangeError)

    def acknowledge(self, _entry: Entry, command: AckRecords) -> int:
        return self._acknowledge(command.group_id, command.ranges)

    def _acknowledge(self, group_id: int, ranges: Ranges) -> int:
        group = self.find(group_id)
        self._check_offsets(group, ranges)
        for first, last in ranges:
            for offset in range(first, last + 1):
                group.acknowledged.add(offset)
                group.attempts.pop(offset, None)
        group.raise_floor(group.floor)
        return group.floor

    def _check_offsets(self, group: Group, ranges: Ranges) -> None:
        _, following = self.streams.bounds(group.stream_id)
        if any(not 0 <= first <= last < following for first, last in ranges):
            raise Refused(RequestError)

    def end_deliveries(self, _entry: Entry, command: EndDeliveries) -> int:
        group = self.find(command.group_id)
        if command.acknowledged:
            self._check_offsets(group, command.acknowledged)
        for first, last, number in command.attempts:
            for offset in range(first, last + 1):
                if not group.is_done(offset):
                    group.attempts[offset] = number
        if not command.acknowledged:
            return group.floor
        return self._acknowledge(command.group_id, command.acknowledged)

    def dead_letter(self, entry: Entry, command: DeadLetterRecords) -> dict[str, Any]:
        count = sum(last - first + 1 for first, last in command.ranges)
        group = None
        if command.group_id:
            group = self.find(command.group_id)
            if any(
                group.is_done(offset)
                for first, last in command.ranges
                for offset in range(first, last + 1)
            ):
                raise Refused(RequestError)
        self.streams.bounds(command.out_stream_id)
        if group is not None:
            following = self.streams.bounds(group.stream_id)[1]
            if group.stream_id == command.out_stream_id:
                following += count
            if any(not 0 <= first <= last < following for first, last in command.ranges):
                raise Refused(RequestError)
        base = self.streams.append(entry, command.out_stream_id, count, command.size)
        floor = 0
        if group is not None:
            group.dead_lettered += count
            floor = self._acknowledge(command.group_id, command.ranges)
        return {"appended": appended(base, count, entry.now_ms, -1), "floor": floor}

    def reset(self, entry: Entry, command: ResetGroup) -> int:
        """G8: it is another group from here on, with the same options."""
        group = self.find(command.group_id)
        self._check_start(group.stream_id, command.floor)
        self._leave(entry, command.group_id, group)
        self.by_id[entry.lsn] = Group(
            group.stream_id,
            group.name,
            command.floor,
            group.created_ms,
            group.options,
            (*entry.ballot, command.last_delivery),
            group.dead_lettered,
        )
        return entry.lsn

    def delete(self, entry: Entry, command: DeleteGroup) -> None:
        self._leave(entry, command.group_id, self.find(command.group_id))

    def _leave(self, entry: Entry, group_id: int, group: Group) -> None:
        del self.by_id[group_id]
        self.skipped.pop(("group", group_id), None)
        acknowledged, attempts = ranges_of(group.acknowledged), numbered(group.attempts)
        if acknowledged or attempts:
            self.garbage[group_id] = entry.lsn, list(acknowledged), list(attempts)

    def collect(self) -> bool:
        """A step of one of them: some ranges, or some attempts, or its id. Whether any is left."""
        if not self.garbage:
            raise Known(result=False)
        group_id = min(self.garbage)
        since, acknowledged, attempts = self.garbage[group_id]
        if acknowledged:
            self.garbage[group_id] = since, acknowledged[SLICE_ROWS:], attempts
        elif attempts:
            self.garbage[group_id] = since, acknowledged, attempts[SLICE_ROWS:]
        else:
            del self.garbage[group_id]
        return bool(self.garbage)

    def trimmed(self, entry: Entry, stream_id: int, first_offset: int) -> list[dict[str, Any]]:
        """Retention has moved a stream's beginning: whom that moved over what it had not seen."""
        skipped = []
        for group_id, group in sorted(self.by_id.items()):
            if group.stream_id != stream_id or group.floor >= first_offset:
                continue
            unseen = sum(not group.is_done(offset) for offset in range(group.floor, first_offset))
            if unseen:
                self.skip(entry, "group", group_id, unseen)
                skipped.append(
                    {"kind": "group", "id": group_id, "records": unseen, "name": group.name}
                )
            group.attempts = {
                offset: number
                for offset, number in group.attempts.items()
                if offset >= first_offset
            }
            group.raise_floor(first_offset)
        return skipped

    def skip(self, entry: Entry, kind: str, item_id: int, records: int) -> None:
        before = self.skipped.get((kind, item_id), (0, 0))[0]
        self.skipped[kind, item_id] = before + records, entry.now_ms

    def of_stream(self, stream_id: int) -> list[int]:
        return sorted(
            group_id for group_id, group in self.by_id.items() if group.stream_id == stream_id
        )

    # --- of a deleted stream, row by row ---------------------------------------------------------

    def left_acknowledged(self, group_id: int) -> list[Callable[[], Any]]:
        known = self.by_id[group_id].acknowledged
        return [partial(known.difference_update, range(a, b + 1)) for a, b in ranges_of(known)]

    def left_attempts(self, group_id: int) -> list[Callable[[], Any]]:
        known = self.by_id[group_id].attempts

        def forget(first: int, last: int) -> None:
            for offset in range(first, last + 1):
                del known[offset]

        return [partial(forget, a, b) for a, b, _ in numbered(known)]

    # --- all -------------------------------------------------------------------------------------

    def rows(self) -> Rows:
        acknowledged: list[tuple[Any, ...]] = []
        attempts: list[tuple[Any, ...]] = []
        for group_id, group in self.by_id.items():
            acknowledged += [(group_id, *each) for each in ranges_of(group.acknowledged)]
            attempts += [(group_id, *each) for each in numbered(group.attempts)]
        for group_id, (_, some, others) in self.garbage.items():
            acknowledged += [(group_id, *each) for each in some]
            attempts += [(group_id, *each) for each in others]
        return {
            "group": [
                (
                    each,
                    g.stream_id,
                    g.name,
                    g.floor,
                    g.created_ms,
                    *g.options,
                    g.dead_lettered,
                    *g.fence,
                )
                for each, g in self.by_id.items()
            ],
            "group_ack": acknowledged,
            "group_attempt": attempts,
            "group_garbage": [(each, left[0]) for each, left in self.garbage.items()],
            "retention_skip": [(*key, *known) for key, known in self.skipped.items()],
        }


def ranges_of(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """As few ranges as hold all of them, both ends inclusive."""
    return [(first, last) for first, last, _ in numbered(dict.fromkeys(offsets, 0))]


def numbered(numbers: dict[int, int]) -> list[tuple[int, int, int]]:
    """As few ranges of one number as hold all of them."""
    found: list[tuple[int, int, int]] = []
    for offset in sorted(numbers):
        if found and found[-1][1:] == (offset - 1, numbers[offset]):
            found[-1] = found[-1][0], offset, numbers[offset]
        else:
            found.append((offset, offset, numbers[offset]))
    return found


def _progress(group_id: int, group: Group, skipped: int) -> dict[str, Any]:
    options = dict(
        zip(
            ("order", "ack_deadline_ms", "max_attempts", "dead_letter_stream_id"),
            group.options,
            strict=True,
        )
    )
    return {
        "group_id": group_id,
        "stream_id": group.stream_id,
        "name": group.name,
        "floor": group.floor,
        "options": options,
        "fence": group.fence,
        "window": Window(ranges_of(group.acknowledged), numbered(group.attempts)),
        "skipped": skipped,
    }


@dataclass(frozen=True, slots=True)
class Window:
    """All that is known of a group above an offset; a leader reads some of it at a time."""

    acknowledged: list[tuple[int, int]]
    attempts: list[tuple[int, int, int]]

    def holds(self, found: Any) -> bool:
        """Whether that is the beginning of this."""
        end = found.end if found.end is not None else float("inf")
        return list(found.acknowledged) == [
            (a, min(b, end - 1)) for a, b in self.acknowledged if a < end
        ] and list(found.attempts) == [
            (a, min(b, end - 1), number) for a, b, number in self.attempts if a < end
        ]
