"""Checks of time and room: entries have the time at which they were made, and retention drops what
is over a bound and nothing else (PROTOCOL B8, D2)."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from hadron.model.kinds import spec_from_json
from hadron.model.schema import Retention, StreamSpec
from hadron.sim.checks.done import Doings, has_own_batches
from hadron.sim.checks.tables import appended
from hadron.sim.evidence.evidence import Evidence, Violation
from hadron.sim.evidence.node_files import NodeFile
from hadron.state.features import MACHINE
from hadron.state.streams.retention import TrimStream

_SKEW_MS: Final = 16_000
"""5 s that a leader's clock may be off its peers', 5 s by which it may jump until it is looked at,
and as much as theirs may be off."""

_SKEW_ALONE_MS: Final = 80_000
"""Of a node without peers; faults set clocks up to a minute off."""


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
                if stamp is None:
                    continue
                evidence.judged["stamps_are_the_time"] += 1
                if not began - skew_ms <= stamp <= ended + skew_ms:
                    yield Violation(
                        "stamps_are_the_time",
                        f"{publish.stream}@{offset} was sent at {began} and acknowledged at "
                        f"{ended}; it is stamped {stamp}",
                    )
                    return


def retention_keeps_its_bounds(evidence: Evidence) -> Iterator[Violation]:
    """What a `TrimStream` dropped was too old by that entry's own time, or more was kept than the
    bound allows; and nothing else drops records."""
    reference = evidence.reference
    specs = {
        stream_id: spec_from_json(kind, reference.specs[stream_id][0])
        for stream_id, (kind, _, _) in reference.objects.items()
        if kind == "Stream"
    }
    sound = [node for node in evidence.files if node.log and not node.damage]
    # The log that reaches back farthest: when it came is known only of what is in it.
    node = min(sound, key=lambda node: (node.first_lsn, -node.applied_lsn), default=None)
    for stream_id, spec in specs.items():
        if node is None or not isinstance(spec, StreamSpec):
            continue
        limits = {spec.retention, *_earlier_limits(evidence, reference.objects[stream_id][2])}
        if limits != {Retention()}:
            for what in _dropped_wrongly(evidence, node, stream_id, limits):
                yield Violation("retention_keeps_its_bounds", f"stream {stream_id}: {what}")


def _earlier_limits(evidence: Evidence, stream: str) -> Iterator[Retention]:
    """Those that a stream may have had, as somebody has asked for them."""
    for change in evidence.history.events("retention"):
        if change.subject == stream:
            max_age_ms, max_bytes = map(int, change.detail.split())
            yield Retention(max_age_ms=max_age_ms, max_bytes=max_bytes)


def _dropped_wrongly(
    evidence: Evidence, node: NodeFile, stream_id: int, allowed: Collection[Retention]
) -> Iterator[str]:
    batches, trims = _logged(node, stream_id)
    first, following = node.bounds.get(stream_id, (0, 0))
    kept_from = following - sum(batch.records for batch in batches)
    for lsn, now_ms, first_offset in trims:
        left = sum(batch.size for batch in batches if batch.lsn < lsn)
        while batches and kept_from + batches[0].records <= first_offset:
            batch = batches.popleft()
            kept_from += batch.records
            evidence.judged["retention_keeps_its_bounds"] += 1
            age_ms = now_ms - batch.append_ms
            is_old = any(0 < each.max_age_ms < age_ms for each in allowed)
            # The newest batch stays, however large it is.
            is_over = batch.size < left and any(0 < each.max_bytes < left for each in allowed)
            if not is_old and not is_over:
                known = sorted((each.max_age_ms, each.max_bytes) for each in allowed)
                known = sorted((each.max_age_ms, each.max_bytes) for each in allowed)
                yield (
                    f"entry {lsn} drops offset {kept_from - 1}, {age_ms} ms old, of {left} bytes; "
                    f"the limits of ms and bytes are {known}"
                )
            left -= batch.size
    if first > kept_from:
        yield f"it begins at {first} on {node.name}; no command drops more than {kept_from}"


class _Logged(NamedTuple):
    lsn: int
    append_ms: int
    records: int
    size: int


def _logged(node: NodeFile, stream_id: int) -> tuple[deque[_Logged], list[tuple[int, float, int]]]:
    """A stream's batches in a node's log, and (lsn, time, first offset) of what drops them; for
    ever later where that time is not known."""
    batches: deque[_Logged] = deque()
    trims: list[tuple[int, float, int]] = []
    doings = Doings()
    before_ms = 0
    for lsn, row in node.log.items():
        if lsn > node.applied_lsn:
            break
        command = MACHINE.decode(row.command)
        if isinstance(command, TrimStream) and command.stream_id == stream_id:
            # Where the log's clock stands, the leader's has jumped back since it looked.
            now_ms = float("inf") if row.now_ms == before_ms else row.now_ms
            trims.append((lsn, now_ms, command.first_offset))
        before_ms = row.now_ms
        done = doings.of(command)
        if done is None:
            # What it has finished was prepared by entries that are trimmed: begin behind it.
            batches.clear()
            trims.clear()
            continue
        body = row.body if has_own_batches(command) else None
        for its_stream, *batch in appended(done, body):
            if its_stream == stream_id:
                batches.append(_Logged(lsn, row.now_ms, *batch))
    return batches, trims


CHECKS: Final = (stamps_are_the_time, retention_keeps_its_bounds)
