"""Checks of time and room: entries have the time at which they were made, and retention drops what
is over a bound and nothing else (PROTOCOL B8, D2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hadron.sim.evidence import SECOND, Evidence, Violation

_SKEW_MS: Final = 16_000
"""5 s that a leader's clock may be off its peers', 5 s by which it may jump until it is looked at,
and as much as theirs may be off."""

_SKEW_ALONE_MS: Final = 80_000
"""Of a node without peers; faults set clocks up to a minute off."""

_RECORD_BYTES: Final = 120
"""Of a record beside its value, at most: key, type, headers, and its part of the batch's head."""


def stamps_are_the_time(evidence: Evidence) -> Iterator[Violation]:
    """A record that was acknowledged has the time at which it was sent, as far as clocks that agree
    can tell."""
    skew_ms = _SKEW_MS if evidence.rules.members > 1 else _SKEW_ALONE_MS
    stamps = {
        (batch.stream_id, offset): batch.append_ms
        for batch in evidence.reference.batches
        for offset in (batch.base_offset, batch.base_offset + batch.count - 1)
    }
    for publish in evidence.acknowledged:
        began, ended = evidence.wall_ms(publish.began), evidence.wall_ms(publish.ended)
        if began is None or ended is None:
            return
        stream_id = evidence.contents(publish.stream).stream_id
        for base, count in publish.runs:
            for offset in (base, base + count - 1):
                stamp = stamps.get((stream_id, offset))
                if stamp is not None and not began - skew_ms <= stamp <= ended + skew_ms:
                    yield Violation(
                        "stamps_are_the_time",
                        f"{publish.stream}@{offset} was sent at {began} and acknowledged at "
                        f"{ended}; it is stamped {stamp}",
                    )
                    return


def retention_keeps_its_bounds(evidence: Evidence) -> Iterator[Violation]:
    """What was dropped was too old, or there is as much as the bound allows without it."""
    limits, stream = evidence.rules.limits, evidence.rules.stream
    contents = evidence.contents(stream)
    if limits is None or not contents.first_offset:
        return
    dropped = [
        (offset, publish) for publish in evidence.acknowledged if publish.stream == stream
        for offset, _ in publish.offsets() if offset < contents.first_offset
    ]
    if not dropped:
        return
    # The latest to go: what is here now was here then, or came after it.
    offset, publish = max(dropped, key=lambda each: each[0])
    last = max((entry.ended for entry in evidence.publishes), default=0) + 120 * SECOND
    sent_ms, end_ms = evidence.wall_ms(publish.began), evidence.wall_ms(last)
    if sent_ms is None or end_ms is None:
        return
    if 0 < limits.max_age_ms < end_ms - sent_ms + _SKEW_MS:
        return
    kept = sum(
        batch.size for batch in evidence.reference.batches
        if batch.stream_id == contents.stream_id
    )
    # Of what was dropped, or may have been logged and dropped without anybody hearing of it.
    gone = [each for _, each in dropped] + [
        each for each in evidence.publishes if each.stream == stream and each.outcome == "unknown"
    ]
    largest = max(sum(len(value) + _RECORD_BYTES for value in each.values) for each in gone)
    if not limits.max_bytes or kept + largest + 1_000 < limits.max_bytes:
        yield Violation(
            "retention_keeps_its_bounds",
            f"{stream}@{offset} was dropped, and {kept} bytes are left; the limits are "
            f"{limits.max_age_ms} ms and {limits.max_bytes} bytes",
        )


CHECKS: Final = (stamps_are_the_time, retention_keeps_its_bounds)
