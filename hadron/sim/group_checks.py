"""Checks of consumer groups: nothing is skipped, and what was confirmed stays acknowledged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from hadron.model.errors import CorruptionError
from hadron.sim.evidence import Contents, Evidence, Violation
from hadron.sim.history import Deliver, Settle
from hadron.sim.node_files import GroupRow
from hadron.state import machine
from hadron.state.group_changes import ResetGroup
from hadron.state.groups import CreateGroup


@dataclass(slots=True)
class _Group:
    """A group at the partition here: its row, and where it began."""

    row: GroupRow
    stream: str
    contents: Contents
    start: int

    @property
    def acknowledged(self) -> set[int]:
        """Offsets that the table counts as acknowledged."""
        offsets = {offset for first, last in self.row.ranges for offset in range(first, last + 1)}
        offsets.update(range(self.start, self.row.floor))
        return offsets


def _groups(evidence: Evidence) -> dict[tuple[str, str], _Group]:
    by_id = {contents.stream_id: name for name, contents in evidence.streams.items()}
    found: dict[tuple[str, str], _Group] = {}
    for row in evidence.reference.groups:
        stream = by_id.get(row.stream_id)
        if stream is not None:
            start = _start(evidence, row)
            found[stream, row.name] = _Group(row, stream, evidence.contents(stream), start)
    return found


def _start(evidence: Evidence, row: GroupRow) -> int:
    """The floor that the group was created with; 0 where the log does not tell any more."""
    entry = evidence.reference.log.get(row.group_id)
    if entry is not None:
        try:
            command = machine.decode(entry.command)
        except CorruptionError:
            return 0
        if isinstance(command, CreateGroup | ResetGroup):
            return command.floor
    return 0


def _offsets(settle: Settle) -> Iterator[int]:
    for first, last in settle.ranges:
        yield from range(first, last + 1)


def confirmed_acks_stay(evidence: Evidence) -> Iterator[Violation]:
    """An acknowledgement that was confirmed is in the tables."""
    groups = _groups(evidence)
    for settle in evidence.history.of(Settle):
        if settle.how != "ack" or settle.outcome != "ok":
            continue
        group = groups.get((settle.stream, settle.group))
        if group is None:
            yield Violation("confirmed_acks_stay", f"group {settle.group} is gone")
            return
        lost = [
            offset for offset in _offsets(settle)
            if offset not in group.acknowledged and offset >= group.start
        ]
        if lost:
            yield Violation(
                "confirmed_acks_stay",
                f"{settle.member}'s acknowledgement of {lost[:5]} was confirmed, group "
                f"{settle.group} does not know it; its floor is {group.row.floor}",
            )


def nothing_acknowledged_by_nobody(evidence: Evidence) -> Iterator[Violation]:
    """The floor, and the ranges above it, cover only what a member acknowledged."""
    sent: dict[tuple[str, str], set[int]] = {}
    for settle in evidence.history.of(Settle):
        if settle.how == "ack":
            sent.setdefault((settle.stream, settle.group), set()).update(_offsets(settle))
    for key, group in _groups(evidence).items():
        extra = group.acknowledged - sent.get(key, set())
        if evidence.rules.retention:
            extra = {offset for offset in extra if offset >= group.contents.first_offset}
        if extra:
            yield Violation(
                "nothing_acknowledged_by_nobody",
                f"group {group.row.name} counts {sorted(extra)[:5]} as acknowledged (floor "
                f"{group.row.floor}); no member did that",
            )


def everything_is_delivered(evidence: Evidence) -> Iterator[Violation]:
    """Once a group has been drained up to an offset, it has been given each record below it; and
    that offset lies beyond everything acknowledged before."""
    delivered: dict[tuple[str, str], set[int]] = {}
    for delivery in evidence.history.of(Deliver):
        offsets = range(delivery.offset, delivery.offset + len(delivery.values))
        delivered.setdefault((delivery.stream, delivery.group), set()).update(offsets)
    groups = {group.row.name: (stream, group) for (stream, _), group in _groups(evidence).items()}
    for drained in evidence.history.events("drained"):
        if drained.subject not in groups:
            yield Violation("everything_is_delivered", f"group {drained.subject} is gone")
            continue
        stream, group = groups[drained.subject]
        end = int(drained.detail)
        first = max(group.start, group.contents.first_offset)
        missed = sorted(set(range(first, end)) - delivered.get((stream, drained.subject), set()))
        if missed:
            yield Violation(
                "everything_is_delivered",
                f"group {drained.subject} was never given {missed[:5]} of {stream}",
            )
        for publish in evidence.acknowledged:
            if publish.acks == "leader":
                continue  # Visible, and delivered, only once it is committed.
            beyond = [base + count for base, count in publish.runs if base + count > end]
            if beyond and publish.stream == stream and publish.ended < drained.at:
                yield Violation(
                    "everything_is_delivered",
                    f"group {drained.subject} ended at {end} of {stream}, but {max(beyond) - 1} "
                    f"was acknowledged before",
                )
                break


CHECKS: Final = (confirmed_acks_stay, nothing_acknowledged_by_nobody, everything_is_delivered)
