"""Checks of the log: what was acknowledged is there, once, in order, the same on every node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from hadron.sim.evidence.evidence import Evidence, Violation
from hadron.sim.evidence.history import Publish


def acknowledged_is_durable(evidence: Evidence) -> Iterator[Violation]:
    """acked ⇒ at its offset, with its bytes, on a majority's disks (on all for `acks=all`)."""
    for publish in evidence.acknowledged:
        if not evidence.must_survive(publish):
            continue
        contents = evidence.contents(publish.stream)
        needed = evidence.rules.majority
        if publish.acks == "all":
            needed = evidence.rules.members - len(evidence.damaged_since(0))
        for offset, value in publish.offsets():
            if evidence.rules.retention and offset < contents.first_offset:
                continue
            evidence.judged["acknowledged_is_durable"] += 1
            found = contents.values.get(offset)
            if found != value:
                yield Violation(
                    "acknowledged_is_durable",
                    f"{value!r} was acknowledged to {publish.client} at {publish.stream}@{offset} "
                    f"(acks={publish.acks}); the log has {found!r} there",
                )
                break
            holders = evidence.holders.get(contents.lsns[offset], [])
            if len(holders) < needed:
                yield Violation(
                    "acknowledged_is_durable",
                    f"{value!r} at {publish.stream}@{offset} (acks={publish.acks}) is on {holders} "
                    f"only, {needed} nodes are needed",
                )
                break


def refused_is_absent(evidence: Evidence) -> Iterator[Violation]:
    """What a producer was told is not in the log is not in the log."""
    places = _places(evidence)
    for publish in evidence.publishes:
        if publish.outcome == "refused":
            for value in publish.values:
                evidence.judged["refused_is_absent"] += 1
                if value in places:
                    yield Violation(
                        "refused_is_absent",
                        f"{value!r} was refused ({publish.error}) but is at {places[value]}",
                    )


def no_duplicates(evidence: Evidence) -> Iterator[Violation]:
    """Every record is in the log at most once, unless its producer prefers twice to unknown; the
    workload gives each another value."""
    may_be_twice = evidence.may_be_twice
    for stream, contents in evidence.streams.items():
        if stream in evidence.letter_streams:
            continue
        seen: dict[str, int] = {}
        for offset, value in sorted(contents.values.items()):
            evidence.judged["no_duplicates"] += 1
            if value in seen and value not in may_be_twice:
                yield Violation(
                    "no_duplicates", f"{value!r} is at {stream}@{seen[value]} and @{offset}"
                )
            seen[value] = offset


def producer_order(evidence: Evidence) -> Iterator[Violation]:
    """An idempotent producer's records are in the order of its calls, within a partition.

    One whose outcome was unknown may still arrive after later ones: its producer gave it up, and
    a copy of it was under way.
    """
    places = _places(evidence)
    last: dict[tuple[str, str, str], tuple[int, str]] = {}
    for publish in evidence.publishes:
        if not publish.producer or publish.failover == "duplicate":
            continue
        key = publish.producer, publish.stream, publish.partition
        for value in publish.values:
            if value not in places:
                continue
            offset = places[value][1]
            before = last.get(key)
            evidence.judged["producer_order"] += 1
            if before is not None and offset < before[0]:
                yield Violation(
                    "producer_order",
                    f"{publish.producer} sent {before[1]!r} before {value!r}, which is at "
                    f"{offset} before {before[0]}",
                )
            if publish.outcome == "ok":
                last[key] = offset, value


def real_time_order(evidence: Evidence) -> Iterator[Violation]:
    """What was acknowledged before another publish began has the smaller offset."""
    places = _places(evidence)
    began: list[tuple[int, str, str, int, str]] = []
    ended: list[tuple[int, str, str, int, str]] = []
    for publish in evidence.publishes:
        if publish.failover == "duplicate":
            continue
        offsets = [(places[value][1], value) for value in publish.values if value in places]
        if not offsets:
            continue
        began.append((publish.began, publish.stream, publish.partition, *min(offsets)))
        if publish.outcome == "ok":
            ended.append((publish.ended, publish.stream, publish.partition, *max(offsets)))
    began.sort()
    ended.sort(reverse=True)
    highest: dict[tuple[str, str], tuple[int, str]] = {}
    for time, stream, partition, offset, value in began:
        while ended and ended[-1][0] < time:
            _, its_stream, its_partition, other, what = ended.pop()
            key = its_stream, its_partition
            highest[key] = max(highest.get(key, (-1, "")), (other, what))
        before = highest.get((stream, partition))
        evidence.judged["real_time_order"] += 1
        if before is not None and before[0] > offset:
            yield Violation(
                "real_time_order",
                f"{before[1]!r} at {before[0]} was acknowledged before {value!r} was sent, which "
                f"is at {offset}",
            )


def files_agree(evidence: Evidence) -> Iterator[Violation]:
    """Every node's log, up to its own watermark, is the reference's, where it is sound."""
    reference = evidence.reference
    for node in evidence.files:
        first = max(node.first_lsn, reference.first_lsn)
        for lsn in range(first, min(node.committed_lsn, reference.last_lsn) + 1):
            ours = node.log.get(lsn)
            damage = node.damage.keys() | reference.damage.keys()
            # Of the first row only the next one tells that its chain is not what it was.
            if lsn in damage or (lsn == first and lsn + 1 in damage):
                continue
            evidence.judged["files_agree"] += 1
            if ours is not None and ours.chain != reference.log[lsn].chain:
                yield Violation(
                    "files_agree",
                    f"entry {lsn} of {node.name} has chain {ours.chain.hex()}, "
                    f"{reference.name} has {reference.log[lsn].chain.hex()}",
                )
                break
        if node.committed_lsn > node.last_lsn and 0 not in node.damage:
            yield Violation(
                "files_agree",
                f"{node.name} says that {node.committed_lsn} is committed, its log ends at "
                f"{node.last_lsn}",
            )


def committed_is_on_a_majority(evidence: Evidence) -> Iterator[Violation]:
    """The watermark covers nothing that a majority does not hold."""
    for lsn in range(evidence.reference.first_lsn, evidence.committed + 1):
        holders = evidence.holders.get(lsn, [])
        evidence.judged["committed_is_on_a_majority"] += 1
        if len(holders) < evidence.rules.majority:
            yield Violation(
                "committed_is_on_a_majority",
                f"entry {lsn} is below the watermark {evidence.committed}, but only on {holders}",
            )
            return


def files_are_whole(evidence: Evidence) -> Iterator[Violation]:
    """Chains and bodies match, except on disks that were damaged on purpose."""
    damaged = evidence.damaged_since(0)
    for node in evidence.files:
        if node.name not in damaged:
            evidence.judged["files_are_whole"] += 1
            for lsn, what in sorted(node.damage.items()):
                yield Violation("files_are_whole", f"{node.name} at {lsn}: {what}")


def replicas_never_diverge(evidence: Evidence) -> Iterator[Violation]:
    """Replicas apply what is committed (PROTOCOL A1): only who led, who was given a leader's tables
    for want of a majority, or whose disk was damaged, may find that its tables went another way."""
    ahead = {event.subject for event in evidence.history.events("ahead")}
    if evidence.rules.leaders:
        evidence.judged["replicas_never_diverge"] += 1
    for event in evidence.history.events("diverged"):
        excused = event.subject in evidence.rules.leaders | ahead | evidence.damaged_since(0)
        if evidence.rules.leaders and not excused:
            yield Violation("replicas_never_diverge", f"{event.subject}: {event.detail}")


def _places(evidence: Evidence) -> dict[str, tuple[str, int]]:
    """Where each value is in the final log."""
    return {
        value: (stream, offset)
        for stream, contents in evidence.streams.items()
        if stream not in evidence.letter_streams
        for offset, value in contents.values.items()
    }


def published(evidence: Evidence) -> dict[str, Publish]:
    """Who published each value."""
    return {value: publish for publish in evidence.publishes for value in publish.values}


def nothing_from_nowhere(evidence: Evidence) -> Iterable[Violation]:
    """Every record in the log was published by somebody, to that stream."""
    known = published(evidence)
    for stream, contents in evidence.streams.items():
        for offset, value in contents.values.items():
            evidence.judged["nothing_from_nowhere"] += 1
            if value not in known and not evidence.tells_of_instance(stream, offset):
                yield Violation(
                    "nothing_from_nowhere", f"nobody sent {value!r} at {stream}@{offset}"
                )
            elif value in known and not (
                known[value].stream == stream or stream in evidence.letter_streams
            ):
                yield Violation(
                    "nothing_from_nowhere",
                    f"{value!r} at {stream}@{offset} was sent to {known[value].stream}",
                )


CHECKS: Final = (
    acknowledged_is_durable,
    refused_is_absent,
    no_duplicates,
    producer_order,
    real_time_order,
    files_agree,
    committed_is_on_a_majority,
    files_are_whole,
    nothing_from_nowhere,
    replicas_never_diverge,
)
