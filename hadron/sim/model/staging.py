"""What bulk writers stage, and how far their sinks are (E10, E11)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from hadron.model.errors import ConflictError, NotFoundError, RequestError
from hadron.model.kinds import spec_from_json
from hadron.model.limits import MAX_SET_STATEMENTS, TOKEN_BYTES
from hadron.model.schema import StreamSpec
from hadron.model.transactions import MAX_NUMBER
from hadron.sim.model.entry import Entry, Known, Refused, Rows
from hadron.sim.model.pipelines import Declared
from hadron.sim.model.streams import Body, Streams
from hadron.state.sinks.progress import MAX_SINKS, SINK_IDLE_MS, AdvanceSink
from hadron.state.sinks.staging import (
    MAX_KEPT_MS,
    DropStaged,
    GiveUpStaged,
    PublishStaged,
    StageBatches,
)
from hadron.state.slices import SLICE_BATCHES

_FORGOTTEN: Final = "none"
_MOST: Final = MAX_SET_STATEMENTS
"""Batches of an attempt, and of a publication."""
_LONGEST: Final = 300
"""Of names, and of what is for people."""


@dataclass(slots=True)
class Part:
    """What one entry has brought: (records, bytes) of its batches, from such a number on."""

    lsn: int
    first: int
    batches: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        return sum(size for _, size in self.batches)


@dataclass(slots=True)
class Attempt:
    """One that is staged; `expires_ms` is None where it is given up, and may lack parts.

    Attributes:
        counts: batches, records and bytes that came.
    """

    lsn: int
    write: bytes
    label: str
    stream_id: int
    since_ms: int
    expires_ms: int | None = None
    counts: tuple[int, int, int] = (0, 0, 0)
    parts: list[Part] = field(default_factory=list)


@dataclass(slots=True)
class Sink:
    """The highest batch that is published, whose it is, and since when it is so; and its place."""

    place: int
    query: str
    batch: int
    published_ms: int


def _never(_write: bytes) -> bool:
    return False


@dataclass(slots=True)
class Staging:
    """Attributes:
    is_locked: whether a transaction that is prepared publishes a write.
    attempts, sinks: by name.
    """

    streams: Streams
    objects: Mapping[int, Declared]
    is_locked: Callable[[bytes], bool] = _never
    attempts: dict[bytes, Attempt] = field(default_factory=dict)
    sinks: dict[str, Sink] = field(default_factory=dict)

    # --- commands --------------------------------------------------------------------------------

    def stage(self, entry: Entry, command: StageBatches) -> int:
        first, count = command.first_number, len(command.sizes)
        is_named = len(command.write_id) == len(command.attempt) == TOKEN_BYTES
        is_bounded = 0 < command.kept_ms <= MAX_KEPT_MS and len(command.label) <= _LONGEST
        if not is_named or not is_bounded or not count or not 0 <= first <= _MOST - count:
            raise Refused(RequestError)
        if self.is_locked(command.write_id):
            raise Refused(ConflictError)
        self.streams.bounds(command.stream_id)
        spec = spec_from_json("Stream", self.objects[command.stream_id].spec)
        if isinstance(spec, StreamSpec) and spec.has_key_index:
            raise Refused(RequestError)
        batches = tuple((each.records, each.size) for each in command.sizes)
        known, of = self.attempts.get(command.attempt), (command.write_id, command.stream_id)
        if known is None:
            if first:
                raise Refused(RequestError)
            known = self.attempts[command.attempt] = Attempt(
                entry.lsn, command.write_id, command.label, command.stream_id, entry.now_ms
            )
        elif known.expires_ms is None or of != (known.write, known.stream_id):
            raise Refused(RequestError)
        elif first != known.counts[0]:
            if any((part.first, part.batches) == (first, batches) for part in known.parts):
                raise Known(first + count)
            raise Refused(RequestError)
        part = Part(entry.lsn, first, batches)
        added = count, sum(records for records, _ in batches), part.size
        known.counts = _sum(known.counts, added)
        known.expires_ms = entry.now_ms + command.kept_ms
        known.parts.append(part)
        self.streams.bodies[entry.lsn] = Body(part.size, entry.now_ms, entry.ballot, holds=1)
        return known.counts[0]

    def give_up(self, _entry: Entry, command: GiveUpStaged) -> int:
        if self.is_locked(command.write_id):
            raise Refused(ConflictError)
        count = self._lose(command.write_id)
        if not count:
            raise Known(0)
        return count

    def drop(self, _entry: Entry, command: DropStaged) -> dict[str, Any]:
        """Those first that were given up, then by the clock: so many parts, and attempts."""
        due = sorted(
            (-1 if each.expires_ms is None else each.expires_ms, each.lsn, name)
            for name, each in self.attempts.items()
            if (each.expires_ms is None or each.expires_ms < command.before_ms)
            and not self.is_locked(each.write)
        )
        attempts = 0
        left = SLICE_BATCHES
        for _, _, name in due[:SLICE_BATCHES]:
            attempts += 1
            known = self.attempts[name]
            for part in known.parts[:left]:
                self.streams.bodies[part.lsn].holds -= 1
            left, known.parts = max(left - len(known.parts), 0), known.parts[left:]
            if known.parts:
                known.expires_ms = None
                return {"rows": attempts, "bytes": 0, "is_done": False}
            del self.attempts[name]
        result = {"rows": attempts, "bytes": 0, "is_done": len(due) < SLICE_BATCHES}
        if not attempts:
            raise Known(result)
        return result

    def _lose(self, write: bytes) -> int:
        """Nobody will publish what is left of a write; of how many attempts that is so now."""
        found = [
            each
            for each in self.attempts.values()
            if each.write == write and each.expires_ms is not None
        ]
        for each in found:
            each.expires_ms = None
        return len(found)

    # --- statements ------------------------------------------------------------------------------

    def check_publication(self, command: PublishStaged) -> None:
        """Whole, and nothing that was published, given up or dropped."""
        self.streams.bounds(command.stream_id)
        names = [name for name, _ in command.attempts]
        batches = sum(count for _, count in command.attempts)
        if not names or len(set(names)) < len(names) or batches > _MOST:
            raise Refused(RequestError)
        for name, count in command.attempts:
            known = self.attempts.get(name)
            if known is None or known.expires_ms is None or known.write != command.write_id:
                raise Refused(NotFoundError)
            if known.counts[0] != count or known.stream_id != command.stream_id:
                raise Refused(RequestError)

    def publish(self, entry: Entry, command: PublishStaged) -> tuple[int, int] | None:
        """(Base offset, records); None: the stream was deleted."""
        offsets: list[int] = []
        records = 0
        if command.stream_id in self.streams.open:
            for name, _ in command.attempts:
                known = self.attempts.pop(name)
                for part in known.parts:
                    offsets += self._append(entry, command.stream_id, part)
                records += known.counts[1]
        self._lose(command.write_id)
        return (offsets[0], records) if offsets else None

    def _append(self, entry: Entry, stream_id: int, part: Part) -> list[int]:
        start, found = 0, []
        for records, size in part.batches:
            placed = replace(entry, start=start, body_lsn=part.lsn)
            found.append(self.streams.append(placed, stream_id, records, size))
            start += size
        self.streams.bodies[part.lsn].holds -= 1
        return found

    def check_advance(self, command: AdvanceSink) -> None:
        """Forward only, with the query that is known, or with who says which one it follows."""
        query, follows = command.query, command.follows
        is_named = 0 < len(command.name) <= _LONGEST and len(query) <= _LONGEST
        if not is_named or query == _FORGOTTEN or not 0 <= command.batch <= MAX_NUMBER:
            raise Refused(RequestError)
        known = self.sinks.get(command.name)
        if known is None:
            goes_on = bool(query) and command.batch > 0
            is_fit = not goes_on or follows == _FORGOTTEN
        elif known.query == query:
            is_fit = command.batch > known.batch
        else:
            is_fit = bool(known.query) and follows == known.query
        if not is_fit:
            raise Refused(RequestError)

    def advance(self, entry: Entry, command: AdvanceSink) -> None:
        """Where there is no room, the sink goes to which nobody has published for longest."""
        known = self.sinks.get(command.name)
        place = known.place if known is not None else len(self.sinks) + 1
        if known is None and len(self.sinks) >= MAX_SINKS:
            since_ms = entry.now_ms - SINK_IDLE_MS
            ages = [(each.published_ms, name) for name, each in self.sinks.items()]
            if (oldest := min(ages))[0] < since_ms:
                place = self.sinks.pop(oldest[1]).place
        self.sinks[command.name] = Sink(place, command.query, command.batch, entry.now_ms)

    # --- what there is ---------------------------------------------------------------------------

    def rows(self) -> Rows:
        return {
            "staged": [
                (
                    each.lsn,
                    name,
                    each.write,
                    each.label,
                    each.stream_id,
                    *each.counts,
                    each.since_ms,
                    -1 if each.expires_ms is None else each.expires_ms,
                )
                for name, each in self.attempts.items()
            ],
            "staged_part": [
                (part.lsn, each.lsn, part.first, part.size, msgspec.msgpack.encode(part.batches))
                for each in self.attempts.values()
                for part in each.parts
            ],
            "sink": [
                (each.place, name, each.query, each.batch, each.published_ms)
                for name, each in self.sinks.items()
            ],
        }


def _sum(some: tuple[int, int, int], others: tuple[int, int, int]) -> tuple[int, int, int]:
    batches, records, size = (a + b for a, b in zip(some, others, strict=True))
    return batches, records, size
