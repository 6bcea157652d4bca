"""Checks of consumer groups: nothing is skipped, and what was confirmed stays acknowledged.

Where leaders were listened to (`group_notes`), what they gave to members is judged as well, and a
group is judged from its creation or last reset on: what was acknowledged before counts no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from hadron.model.errors import CorruptionError
from hadron.sim.evidence.evidence import Contents, Evidence, Violation
from hadron.sim.evidence.group_replay import Generation, Group
from hadron.sim.evidence.history import Deliver, Event, Regroup, Settle
from hadron.sim.evidence.node_files import GroupRow
from hadron.state.features import MACHINE
from hadron.state.groups.changes import ResetGroup
from hadron.state.groups.progress import CreateGroup


@dataclass(slots=True)
class _Group:
    """A group at the partition here: its row, and where it began.

    Attributes:
        now: what leaders did with it since its creation or last reset; None when none was heard.
    """

    row: GroupRow
    stream: str
    contents: Contents
    start: int
    now: Generation | None

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
            heard = _heard(evidence, stream, row.name)
            now = heard.generations.get(row.group_id) if heard is not None else None
            if now is not None:
                start = now.start
            else:
                start = _start(evidence, row, is_heard=heard is not None)
            found[stream, row.name] = _Group(row, stream, evidence.contents(stream), start, now)
    return found


def _heard(evidence: Evidence, stream: str, name: str) -> Group | None:
    """What leaders did with a group."""
    groups = evidence.replay.groups.items()
    return next((group for key, group in groups if (key[0], key[2]) == (stream, name)), None)


def _start(evidence: Evidence, row: GroupRow, *, is_heard: bool) -> int:
    """The floor that a group was created with, or reset to, which no leader has served since. Where
    the log does not tell any more it stands there still, if leaders were listened to; else it is
    taken for 0."""
    entry = evidence.reference.log.get(row.group_id)
    if entry is not None:
        try:
            command = MACHINE.decode(entry.command)
        except CorruptionError:
            command = None
        if isinstance(command, CreateGroup | ResetGroup):
            return command.floor
    return row.floor if is_heard else 0


def _offsets(settle: Settle) -> Iterator[int]:
    for first, last in settle.ranges:
        yield from range(first, last + 1)


def groups_stay(evidence: Evidence) -> Iterator[Violation]:
    """A group that a leader has served is there, unless somebody may have deleted it."""
    known = _groups(evidence)
    for (stream, _, name), group in evidence.replay.groups.items():
        if group.is_ephemeral or stream not in evidence.streams:
            continue
        evidence.judged["groups_stay"] += 1
        if (stream, name) not in known and _change(evidence, name, 0, ("delete",)) is None:
            yield Violation("groups_stay", f"group {name} of {stream} is gone, nobody deleted it")


def confirmed_acks_stay(evidence: Evidence) -> Iterator[Violation]:
    """An acknowledgement that was confirmed is in the tables."""
    groups = _groups(evidence)
    for group in groups.values():
        evidence.judged["confirmed_acks_stay"] += 1
        if group.now is not None and (
            lost := sorted(group.now.confirmed.keys() - group.acknowledged)
        ):
            yield _lost(group, "an", lost)
    for settle in evidence.history.of(Settle):
        if settle.how != "ack" or settle.outcome != "ok":
            continue
        if _heard(evidence, settle.stream, settle.group) is not None:
            continue
        known = groups.get((settle.stream, settle.group))
        if known is None:
            yield Violation("confirmed_acks_stay", f"group {settle.group} is gone")
            return
        missing = known.acknowledged
        lost = [
            offset for offset in _offsets(settle) if offset not in missing and offset >= known.start
        ]
        if lost:
            yield _lost(known, f"{settle.member}'s", lost)


def _lost(group: _Group, whose: str, offsets: list[int]) -> Violation:
    return Violation(
        "confirmed_acks_stay",
        f"{whose} acknowledgement of {offsets[:5]} was confirmed, group {group.row.name} does not "
        f"know it; its floor is {group.row.floor}",
    )


def nothing_acknowledged_by_nobody(evidence: Evidence) -> Iterator[Violation]:
    """The floor, and the ranges above it, cover only what a member acknowledged, or what became a
    dead letter."""
    sent: dict[tuple[str, str], set[int]] = {}
    for settle in evidence.history.of(Settle):
        if settle.how == "ack":
            sent.setdefault((settle.stream, settle.group), set()).update(_offsets(settle))
    for key, group in _groups(evidence).items():
        evidence.judged["nothing_acknowledged_by_nobody"] += 1
        extra = group.acknowledged - (group.now.sent if group.now else sent.get(key, set()))
        extra.difference_update(evidence.dead_letters.get(key, ()))
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
    groups = _groups(evidence)
    for drained in evidence.history.events("drained"):
        end = int(drained.detail)
        name, _, stream = drained.subject.partition("@")
        found = _named(groups, drained.subject)
        if found is not None:
            stream, group = found
            first, given = group.start, delivered.get((stream, name), set())
            if group.now is not None:
                given = set(group.now.given)
            if _is_another_since(evidence, group, drained.at):
                yield from _drained_too_early(evidence, drained, stream, end)
                continue
        elif ephemeral := _ephemeral(evidence, name, stream):
            stream, latest = ephemeral.key[0], ephemeral.latest
            if latest.generation.began > drained.at:
                continue  # Reset since then, or served by another leader.
            first, given = latest.serve.floor, ephemeral.sent | set(latest.generation.given)
        elif deletion := _change(evidence, name, drained.at, ("delete",)):
            yield from _drained_too_early(evidence, drained, deletion.stream, end)
            continue
        else:
            yield Violation("everything_is_delivered", f"group {name} is gone")
            continue
        evidence.judged["everything_is_delivered"] += 1
        first = max(first, evidence.contents(stream).first_offset)
        missed = sorted(set(range(first, end)) - given)
        if missed:
            yield Violation(
                "everything_is_delivered", f"group {name} was never given {missed[:5]} of {stream}"
            )
        yield from _drained_too_early(evidence, drained, stream, end)


def _named(groups: dict[tuple[str, str], _Group], subject: str) -> tuple[str, _Group] | None:
    """A group that an event is about, and its stream: `group`, or `group@stream`."""
    name, _, stream = subject.partition("@")
    return next(
        (
            (key[0], group)
            for key, group in groups.items()
            if key[1] == name and stream in ("", key[0])
        ),
        None,
    )


def _ephemeral(evidence: Evidence, name: str, stream: str) -> Group | None:
    return next(
        (
            group
            for key, group in evidence.replay.groups.items()
            if key[2] == name and stream in ("", key[0]) and group.is_ephemeral
        ),
        None,
    )


def _is_another_since(evidence: Evidence, group: _Group, at: int) -> bool:
    """Whether the group may have been reset, or deleted and made anew, after a moment: then what it
    was given before is not what it lacks now. Leaders are not heard of that before a member comes.
    """
    if group.now is not None:
        return group.now.began > at
    return _change(evidence, group.row.name, at, ("reset", "delete")) is not None


def _change(
    evidence: Evidence, name: str, after: int, kinds: tuple[Literal["reset", "delete"], ...]
) -> Regroup | None:
    """Of a group, one of these kinds that may have come to pass after a moment."""
    return next(
        (
            each
            for each in evidence.history.of(Regroup)
            if each.group == name
            and each.what in kinds
            and each.outcome != "refused"
            and (each.outcome == "unknown" or each.ended > after)
        ),
        None,
    )


def _drained_too_early(
    evidence: Evidence, drained: Event, stream: str, end: int
) -> Iterator[Violation]:
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
            return


def everything_is_settled(evidence: Evidence) -> Iterator[Violation]:
    """A group that somebody empties to its end comes to its end: every record is acknowledged, or
    a dead letter, or is given to somebody until it is."""
    drained = {event.subject: event.at for event in evidence.history.events("drained")}
    rows = _groups(evidence)
    for draining in evidence.history.events("draining"):
        evidence.judged["everything_is_settled"] += 1
        if drained.get(draining.subject, 0) > draining.at:
            continue
        left = ""
        if found := _named(rows, draining.subject):
            _, group = found
            kept = range(
                max(group.row.floor, group.contents.first_offset), group.contents.next_offset
            )
            missing = [offset for offset in kept if offset not in group.acknowledged][:5]
            left = f": its floor is {group.row.floor}, it lacks {missing}"
        yield Violation("everything_is_settled", f"group {draining.subject} is not emptied{left}")


def deliveries_keep_the_rules(evidence: Evidence) -> Iterator[Violation]:
    """What leaders gave to whom, when, in which order, and what counted; see `group_replay`."""
    if evidence.replay.groups:
        evidence.judged["deliveries_keep_the_rules"] += 1
    for rule, message in evidence.replay.broken:
        yield Violation(rule, message)


CHECKS: Final = (
    groups_stay,
    confirmed_acks_stay,
    nothing_acknowledged_by_nobody,
    everything_is_delivered,
    everything_is_settled,
    deliveries_keep_the_rules,
)
