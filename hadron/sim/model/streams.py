"""Partitions of streams, their batches, and what is remembered of producers (D1, D2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from hadron.model.batch import ONCE, producer_id_of
from hadron.model.errors import (
    ConflictError,
    NotFoundError,
    OffsetMismatchError,
    OverloadedError,
    ProducerFencedError,
    RequestError,
    SequenceError,
)
from hadron.model.ids import Ballot
from hadron.model.limits import (
    MAX_ONCE_KEYS,
    MAX_PRODUCER_NAMES,
    PRODUCER_IDLE_MS,
    PRODUCER_IDLE_STEP_MS,
    PRODUCER_NAME_IDLE_MS,
    PRODUCER_WINDOW,
)
from hadron.sim.model.entry import Entry, Known, Refused, Rows
from hadron.state.slices import SLICE_BATCHES, SLICE_BYTES, SLICE_ROWS
from hadron.state.streams.partitions import AppendBatch, AppendGuarded
from hadron.state.streams.producers import ClaimProducer

_MAX_EPOCH: Final = (1 << 63) - 1


@dataclass(slots=True)
class Batch:
    base: int
    count: int
    lsn: int
    append_ms: int
    size: int
    ballot: Ballot
    place: tuple[int, int] | None = None
    """(lsn of the entry, where in its body) where it is a part of one."""

    @property
    def end(self) -> int:
        return self.base + self.count


@dataclass(slots=True)
class Body:
    """One that batches are parts of, and the stamp of its entry."""

    size: int
    append_ms: int
    ballot: Ballot
    holds: int = 0


@dataclass(slots=True)
class Producer:
    """`last_ms`: its age as far as it is kept (D1). `recent`: its last batches, (base offset,
    records, time, sequence, False)."""

    epoch: int
    next_sequence: int
    last_ms: int
    recent: list[tuple[int, int, int, int, bool]]


@dataclass(slots=True)
class Name:
    """Of a producer: who has claimed it last, and what its program has logged."""

    name: str
    claim: int
    token: bytes
    last_sequence: int = -1


@dataclass(slots=True)
class Streams:
    """Attributes:
    open: (first offset, next offset) of each partition that is here.
    batches: by stream, the oldest first; those of deleted ones, too, until they are dropped.
    keys: by stream and hash: the offset of the latest record with such a key.
    key_locks: by stream and hash: who has it, by the entry of the first intent; whether alone.
    """

    open: dict[int, tuple[int, int]] = field(default_factory=dict)
    batches: dict[int, list[Batch]] = field(default_factory=dict)
    producers: dict[int, dict[bytes, Producer]] = field(default_factory=dict)
    once: dict[int, int] = field(default_factory=dict)
    """By stream, how many keys of what is sent once it remembers."""
    names: dict[int, dict[bytes, Name]] = field(default_factory=dict)
    keys: dict[int, dict[int, int]] = field(default_factory=dict)
    key_locks: dict[tuple[int, int], dict[int, bool]] = field(default_factory=dict)
    bodies: dict[int, Body] = field(default_factory=dict)

    def bounds(self, stream_id: int) -> tuple[int, int]:
        if stream_id not in self.open:
            raise Refused(NotFoundError)
        return self.open[stream_id]

    def append(self, entry: Entry, stream_id: int, count: int, size: int) -> int:
        """The entry's body gets the next offsets; returns the first of them."""
        first, base = self.bounds(stream_id)
        self.open[stream_id] = first, base + count
        place = (entry.body_lsn or entry.lsn, entry.start) if entry.start is not None else None
        self.batches.setdefault(stream_id, []).append(
            Batch(base, count, entry.lsn, entry.now_ms, size, entry.ballot, place)
        )
        return base

    def in_body(self, lsn: int) -> int:
        """How many batches are parts of a body."""
        return sum(
            batch.place is not None and batch.place[0] == lsn
            for batches in self.batches.values()
            for batch in batches
        )

    def _let_go(self, gone: list[Batch]) -> None:
        """Bodies go with the last batch in them, unless somebody holds them."""
        for lsn in {batch.place[0] for batch in gone if batch.place is not None}:
            if not self.in_body(lsn) and not self.bodies[lsn].holds:
                del self.bodies[lsn]

    def drop_bodies(self, until_lsn: int) -> tuple[int, int]:
        """(bodies, bytes) that were kept for nothing, and went."""
        idle = self.idle()
        gone: list[Body] = []
        for lsn in idle:
            if lsn > until_lsn or not _has_room(gone):
                break
            gone.append(self.bodies.pop(lsn))
        return len(gone), sum(body.size for body in gone)

    def idle(self) -> list[int]:
        return sorted(
            lsn for lsn, body in self.bodies.items() if not body.holds and not self.in_body(lsn)
        )

    def append_guarded(self, entry: Entry, command: AppendGuarded) -> dict[str, Any]:
        """D5: what is known already is answered before anything is asked of it."""
        stream_id = command.stream_id
        if command.producer_id and command.sequence != -1:
            self._producer(command)
        self.check_keys_free(command)
        self.check_conditions(command)
        if command.last_sequence != -1:
            name = self.names.get(stream_id, {}).get(command.producer_id)
            if name is None or command.last_sequence <= name.last_sequence:
                raise Refused(RequestError)
            self.bounds(stream_id)
            name.last_sequence = command.last_sequence
        result = self.append_batch(entry, command)
        self.note_keys(command, result["base_offset"])
        return result

    def check_conditions(self, command: AppendGuarded) -> None:
        stream_id, hashes = command.stream_id, _hashes(command)
        if command.expect_offset is not None and command.expect_offset != self.bounds(stream_id)[1]:
            raise Refused(OffsetMismatchError)
        if command.expect_key_offset is not None:
            found = self.latest(stream_id, hashes[0] if hashes else 0)
            if found != command.expect_key_offset:
                raise Refused(OffsetMismatchError)

    def check_keys_free(self, command: AppendGuarded) -> None:
        """E9: nobody logs a record of a key that a transaction relies on."""
        for each in _hashes(command):
            if each and any(self.key_locks.get((command.stream_id, each), {}).values()):
                raise Refused(ConflictError)

    def take_keys(self, command: AppendGuarded, lsn: int) -> None:
        alone = command.expect_key_offset is not None
        for each in filter(None, _hashes(command)):
            held = self.key_locks.setdefault((command.stream_id, each), {})
            if any(alone or theirs for owner, theirs in held.items() if owner != lsn):
                raise Refused(ConflictError)
            held[lsn] = held.get(lsn, False) or alone

    def free_keys(self, lsn: int) -> None:
        for held in self.key_locks.values():
            held.pop(lsn, None)

    def note_keys(self, command: AppendGuarded, base: int) -> None:
        new = {each: base + at for at, each in enumerate(_hashes(command)) if each}
        self.keys.setdefault(command.stream_id, {}).update(new)
        if new:
            self._forget_keys(command.stream_id, 2 * len(new))

    def claim(self, entry: Entry, command: ClaimProducer) -> dict[str, Any]:
        """D6: whoever knows the latest claim makes the next one, and shuts its maker out."""
        stream_id, producer_id = command.stream_id, producer_id_of(command.name)
        self.bounds(stream_id)
        known = self.names.setdefault(stream_id, {})
        name = known.get(producer_id)
        if name is not None and name.token == command.token:
            raise Known({"claim": name.claim, "last_sequence": name.last_sequence})
        if command.after != (name.claim if name is not None else 0):
            raise Refused(ProducerFencedError)
        producers = self.producers.setdefault(stream_id, {})
        if name is None:
            since_ms = entry.now_ms - PRODUCER_NAME_IDLE_MS - PRODUCER_IDLE_STEP_MS
            gone = [each for each in known if producers[each].last_ms < since_ms]
            if len(known) - len(gone) >= MAX_PRODUCER_NAMES:
                raise Refused(RequestError)
            for each in gone:
                del known[each], producers[each]
        last_sequence = name.last_sequence if name is not None else -1
        known[producer_id] = Name(command.name, entry.lsn, command.token, last_sequence)
        producers[producer_id] = Producer(entry.lsn, 0, entry.now_ms, [])
        return {"claim": entry.lsn, "last_sequence": last_sequence}

    def latest(self, stream_id: int, key_hash: int) -> int:
        """The offset of a key's latest record that is kept, or -1; of a stream that is being
        dropped none is, though its keys go in slices."""
        if stream_id not in self.open:
            return -1
        found = self.keys.get(stream_id, {}).get(key_hash, -1)
        return found if found >= self.open[stream_id][0] else -1

    def _forget_keys(self, stream_id: int, count: int) -> None:
        """Of records that were dropped, so many."""
        keys, first = self.keys.get(stream_id, {}), self.open[stream_id][0]
        gone = sorted((offset, key) for key, offset in keys.items() if offset < first)
        for _, key in gone[:count]:
            del keys[key]

    def append_batch(self, entry: Entry, command: AppendBatch) -> dict[str, Any]:
        """D1."""
        sequence, now_ms = command.sequence, entry.now_ms
        if not command.producer_id or sequence == -1:
            base = self.append(entry, command.stream_id, command.count, command.size)
            return appended(base, command.count, now_ms, -1)
        producer = self._producer(command)
        self._forget_idle(entry, command)
        base = self.append(entry, command.stream_id, command.count, command.size)
        recent = [*producer.recent, (base, command.count, now_ms, sequence, False)]
        known = self.producers.setdefault(command.stream_id, {})
        hours = {append_ms // PRODUCER_IDLE_STEP_MS for _, _, append_ms, *_ in recent[-2:]}
        last_ms = producer.last_ms if len(recent) > 1 and len(hours) == 1 else now_ms
        known[command.producer_id] = Producer(
            command.producer_epoch, sequence + command.count, last_ms, recent[-PRODUCER_WINDOW:]
        )
        return appended(base, command.count, now_ms, sequence)

    def _forget_idle(self, entry: Entry, command: AppendBatch) -> None:
        """D1, D7: a producer that is new has two forgotten that are old, and a key two."""
        stream_id, known = command.stream_id, self.producers.get(command.stream_id, {})
        if command.producer_id in known:
            return
        self.bounds(stream_id)
        is_key = command.producer_id.startswith(ONCE)
        old = sorted(
            (its.last_ms, each)
            for each, its in known.items()
            if each.startswith(ONCE) == is_key
            and each not in self.names.get(stream_id, {})
            and its.last_ms < entry.now_ms - PRODUCER_IDLE_MS - PRODUCER_IDLE_STEP_MS
        )[:2]
        if is_key:
            if self.once.get(stream_id, 0) - len(old) >= MAX_ONCE_KEYS:
                raise Refused(OverloadedError)
            self.once[stream_id] = self.once.get(stream_id, 0) + 1 - len(old)
        for _, each in old:
            del known[each]

    def _kind(self, stream_id: int, producer_id: bytes) -> int:
        """2: it has a name, 1: it is a key, 0: neither."""
        is_named = producer_id in self.names.get(stream_id, {})
        return 2 if is_named else int(producer_id.startswith(ONCE))

    def _producer(self, command: AppendBatch) -> Producer:
        """Whose next batch this is."""
        if command.producer_epoch > _MAX_EPOCH:
            raise Refused(SequenceError)
        known = self.producers.get(command.stream_id, {}).get(command.producer_id)
        if known is None or command.producer_epoch > known.epoch:
            if command.sequence != 0:
                raise Refused(SequenceError)
            return Producer(command.producer_epoch, 0, 0, [])
        if command.producer_epoch < known.epoch:
            is_named = command.producer_id in self.names.get(command.stream_id, {})
            raise Refused(ProducerFencedError if is_named else SequenceError)
        if command.sequence == known.next_sequence:
            return known
        for base, count, append_ms, sequence, _ in known.recent:
            if (sequence, count) == (command.sequence, command.count):
                raise Known(appended(base, count, append_ms, sequence, duplicate=True))
        raise Refused(SequenceError)

    def trim(self, stream_id: int, below: int) -> tuple[int, list[Batch]]:
        """Drop the oldest whole batches below an offset, a slice of them; returns where the
        partition begins now, and what went."""
        first, following = self.bounds(stream_id)
        kept = self.batches.get(stream_id, [])
        gone: list[Batch] = []
        while len(gone) < len(kept) and _has_room(gone) and kept[len(gone)].end <= below:
            gone.append(kept[len(gone)])
        if gone:
            first = gone[-1].end
            self.open[stream_id] = first, following
            self.batches[stream_id] = kept[len(gone) :]
            self._let_go(gone)
            self._forget_keys(stream_id, SLICE_ROWS)
        return first, gone

    def close(self, stream_id: int) -> bool:
        """The stream is deleted; whether anything of it is left."""
        self.open.pop(stream_id, None)
        kept = (self.batches, self.producers, self.names, self.keys)
        return stream_id in self.once or any(each.get(stream_id) for each in kept)

    def drop_batches(self, stream_id: int, until_lsn: int) -> tuple[int, int]:
        """(batches, bytes) of a deleted stream that went."""
        kept = self.batches.get(stream_id, [])
        gone: list[Batch] = []
        while len(gone) < len(kept) and _has_room(gone) and kept[len(gone)].lsn <= until_lsn:
            gone.append(kept[len(gone)])
        self.batches[stream_id] = kept[len(gone) :]
        self._let_go(gone)
        return len(gone), sum(batch.size for batch in gone)

    def offset_at(self, stream_id: int, at_ms: int) -> int:
        """The first offset that was appended then or later."""
        _, following = self.bounds(stream_id)
        for batch in self.batches.get(stream_id, []):
            if batch.append_ms >= at_ms:
                return batch.base
        return following

    def rows(self) -> Rows:
        return {
            "stream_partition": [
                (each, *bounds, sum(batch.size for batch in self.batches.get(each, [])))
                for each, bounds in self.open.items()
            ],
            "stream_batch": [
                (
                    each,
                    b.base,
                    b.count,
                    b.lsn,
                    b.append_ms,
                    b.size,
                    *b.ballot,
                    *(b.place or (None, None)),
                )
                for each, batches in self.batches.items()
                for b in batches
            ],
            "counted_body": [
                (lsn, b.size, self.in_body(lsn), b.holds, b.append_ms, *b.ballot)
                for lsn, b in self.bodies.items()
            ],
            "producer_name": [
                (each, producer_id, n.name, n.claim, n.token, n.last_sequence)
                for each, named in self.names.items()
                for producer_id, n in named.items()
            ],
            "producer_once": list(self.once.items()),
            "stream_key": [
                (each, key - (1 << 64) if key >= 1 << 63 else key, offset)
                for each, latest in self.keys.items()
                for key, offset in latest.items()
            ],
            "key_lock": [
                (each, key - (1 << 64) if key >= 1 << 63 else key, lsn, int(alone))
                for (each, key), held in self.key_locks.items()
                for lsn, alone in held.items()
            ],
            "producer": [
                (
                    each,
                    producer_id,
                    self._kind(each, producer_id),
                    p.epoch,
                    p.next_sequence,
                    p.last_ms,
                    tuple(p.recent),
                )
                for each, known in self.producers.items()
                for producer_id, p in known.items()
            ],
        }


def _hashes(command: AppendGuarded) -> list[int]:
    packed = command.key_hashes
    return [int.from_bytes(packed[at : at + 8], "little") for at in range(0, len(packed), 8)]


def _has_room(gone: Sequence[Batch | Body]) -> bool:
    """Whether one more belongs to a slice (F3)."""
    return len(gone) < SLICE_BATCHES and sum(batch.size for batch in gone) < SLICE_BYTES


def appended(
    base: int, count: int, append_ms: int, sequence: int, *, duplicate: bool = False
) -> dict[str, Any]:
    return {
        "base_offset": base,
        "count": count,
        "append_ms": append_ms,
        "sequence": sequence,
        "duplicate": duplicate,
    }
