"""Producers of a stream's partition: how far each has come, its last batches, and the names that
some of them have (PROTOCOL D1, D6).

Safety rule: a batch is logged once. It follows what its producer has logged, or it is one of the
last few, which gets the first answer again, or it is refused. A name is one producer's: its id is
made of the name, and whoever claims it gets a higher producer epoch than anybody before, which
shuts the others out from that entry on.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from hadron.model.batch import NO_SEQUENCE, ONCE, producer_id_of
from hadron.model.errors import OverloadedError, ProducerFencedError, RequestError, SequenceError
from hadron.model.limits import (
    MAX_ONCE_KEYS,
    MAX_PRODUCER_NAMES,
    PRODUCER_IDLE_MS,
    PRODUCER_IDLE_STEP_MS,
    PRODUCER_NAME_IDLE_MS,
    PRODUCER_WINDOW,
)
from hadron.model.ports import Database
from hadron.model.tables import PREFIX
from hadron.state import slices
from hadron.state.machine import Command, Context, Feature, NoChange
from hadron.state.names import label_of, no_partition
from hadron.state.streams.tables import STREAM_PARTITION

PRODUCER: Final = PREFIX + "producer"
PRODUCER_NAME: Final = PREFIX + "producer_name"
PRODUCER_ONCE: Final = PREFIX + "producer_once"
_BY_AGE: Final = PREFIX + "producer_by_age"

_PLAIN: Final = 0
_KEY: Final = 1
"""One sending, whose id begins with `ONCE`."""
_NAMED: Final = 2
"""The highest, for a name is given to what is known, and stays (`_SET`)."""

_TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS {PRODUCER}(
    stream_id INTEGER NOT NULL,
    producer_id BLOB NOT NULL,
    kind INTEGER NOT NULL,              -- {_KEY}: a key, {_NAMED}: it has a name, {_PLAIN}: neither
    producer_epoch INTEGER NOT NULL,
    next_sequence INTEGER NOT NULL,
    last_ms INTEGER NOT NULL,           -- of its first batch in the latest hour with one
    recent BLOB NOT NULL,               -- MessagePack: the last batches, see Appended
    PRIMARY KEY (stream_id, producer_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS {PRODUCER_NAME}(
    stream_id INTEGER NOT NULL,
    producer_id BLOB NOT NULL,          -- made of the name; it is in {PRODUCER}, too
    name TEXT NOT NULL,
    claim INTEGER NOT NULL,             -- lsn of the latest: the producer epoch of who has it
    token BLOB NOT NULL,                -- of whoever claimed it then, and may ask again
    last_sequence INTEGER NOT NULL,     -- that its program has given; -1: none
    PRIMARY KEY (stream_id, producer_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS {_BY_AGE} ON {PRODUCER}(stream_id, kind, last_ms);
CREATE TABLE IF NOT EXISTS {PRODUCER_ONCE}(
    stream_id INTEGER PRIMARY KEY,
    keys INTEGER NOT NULL               -- of those in {PRODUCER} that are of kind {_KEY}
) STRICT;
"""

_SET: Final = (
    f"INSERT INTO {PRODUCER} VALUES(?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
    " kind = max(kind, excluded.kind), producer_epoch = excluded.producer_epoch,"
    " next_sequence = excluded.next_sequence, last_ms = excluded.last_ms, recent = excluded.recent"
)
_GO_ON: Final = (
    f"UPDATE {PRODUCER} SET next_sequence = ?, recent = ? WHERE stream_id = ? AND producer_id = ?"
)
"""It sets no column of the index: entries that move were up to a third of what commits wrote."""

_GET: Final = (
    f"SELECT producer_epoch, next_sequence, recent FROM {PRODUCER}"
    " WHERE stream_id = ? AND producer_id = ?"
)
_EVICTS: Final = 2
"""Idle producers that are forgotten with each new one, the oldest first, and keys with each new
key: so they end, and no append waits for many of them (PROTOCOL F3)."""

_EVICT: Final = (
    f"DELETE FROM {PRODUCER} WHERE (stream_id, producer_id) IN ("
    f"SELECT stream_id, producer_id FROM {PRODUCER} INDEXED BY {_BY_AGE}"
    " WHERE stream_id = ? AND kind = ? AND last_ms < ?"
    f" ORDER BY last_ms, producer_id LIMIT {_EVICTS})"
)
_COUNT_ONCE: Final = (
    f"INSERT INTO {PRODUCER_ONCE} VALUES(?, ?)"
    " ON CONFLICT(stream_id) DO UPDATE SET keys = keys + excluded.keys"
)
_GET_ONCE: Final = f"SELECT keys FROM {PRODUCER_ONCE} WHERE stream_id = ?"
_OWNED: Final = (
    slices.Owned(PRODUCER, "stream_id, producer_id", "stream_id = ?"),
    slices.Owned(PRODUCER_NAME, "stream_id, producer_id", "stream_id = ?"),
    slices.Owned(PRODUCER_ONCE, "stream_id", "stream_id = ?"),
)
_GET_NAME: Final = (
    f"SELECT claim, token, last_sequence, name FROM {PRODUCER_NAME}"
    " WHERE stream_id = ? AND producer_id = ?"
)
_SET_NAME: Final = (
    f"INSERT INTO {PRODUCER_NAME} VALUES(?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
    " claim = excluded.claim, token = excluded.token"
)
_SET_LAST: Final = (
    f"UPDATE {PRODUCER_NAME} SET last_sequence = ? WHERE stream_id = ? AND producer_id = ?"
)
_IDLE_NAMES: Final = (
    f"SELECT producer_id FROM {PRODUCER} INDEXED BY {_BY_AGE}"
    f" WHERE stream_id = ? AND kind = {_NAMED} AND last_ms < ?"
)

_MAX_PRODUCER_EPOCH: Final = (1 << 63) - 1
"""SQLite's largest integer."""


NO_CLAIM: Final = 0
"""Of a name that nobody has claimed."""


class ClaimProducer(Command["Claimed"], frozen=True, array_like=True, tag=41):
    """Give a name to whoever asks, and shut out who has it.

    Attributes:
        after: the claim that is known to be the latest. One that comes late finds another there,
            and shuts nobody out.
        token: random, of this one claim: who repeats it, because the answer was lost, has it.
    """

    stream_id: int
    name: str
    after: int
    token: bytes


class Claimed(msgspec.Struct, frozen=True, array_like=True):
    """A name's latest claim: the producer epoch of who made it; and the last sequence that its
    program has given to a record which is in the log here, -1 for none."""

    claim: int
    last_sequence: int


class Appended(msgspec.Struct, frozen=True, array_like=True):
    """Where a batch went: the result of `AppendBatch`, and what dedupe remembers of it."""

    base_offset: int
    count: int
    append_ms: int
    sequence: int = NO_SEQUENCE
    duplicate: bool = False


class Numbered(Protocol):
    """A batch that its producer has numbered, as its command tells of it."""

    @property
    def stream_id(self) -> int: ...

    @property
    def count(self) -> int: ...

    @property
    def producer_id(self) -> bytes: ...

    @property
    def producer_epoch(self) -> int: ...

    @property
    def sequence(self) -> int: ...


_encode_recent = msgspec.msgpack.Encoder().encode
_decode_recent = msgspec.msgpack.Decoder(list[Appended]).decode


def check(context: Context, batch: Numbered) -> list[Appended]:
    """Return the producer's recent batches, or say that this one is known or does not follow."""
    if batch.producer_epoch > _MAX_PRODUCER_EPOCH:
        raise SequenceError(
            f"producer epoch {batch.producer_epoch} is over the limit of {_MAX_PRODUCER_EPOCH}"
        )
    row = context.db.execute(_GET, (batch.stream_id, batch.producer_id)).fetchone()
    name = batch.producer_id.hex()
    if row is None or batch.producer_epoch > row[0]:
        if batch.sequence != 0:
            raise SequenceError(
                f"producer {name} is not known here but continues at sequence {batch.sequence}",
                "its state was evicted or lost; start a new producer",
            )
        if row is None:
            _forget_idle(context, batch)
        return []
    epoch, next_sequence, packed = row
    if batch.producer_epoch < epoch:
        named = context.db.execute(_GET_NAME, (batch.stream_id, batch.producer_id)).fetchone()
        if named is not None:
            raise fenced(named[3], context.place)
        raise SequenceError(
            f"producer {name} has epoch {batch.producer_epoch}, a newer one has {epoch}",
            "another process took over this producer's name",
        )
    recent = _decode_recent(packed)
    if batch.sequence == next_sequence:
        return recent
    for known in recent:
        if known.sequence == batch.sequence and known.count == batch.count:
            raise NoChange(msgspec.structs.replace(known, duplicate=True))
    raise SequenceError(
        f"producer {name} sent sequence {batch.sequence}, expected {next_sequence}",
        "a batch before it was refused or lost; start a new producer",
    )


def note(context: Context, batch: Numbered, recent: list[Appended], appended: Appended) -> None:
    """Remember a batch behind those that `check` has returned."""
    db, stream_id, producer_id = context.db, batch.stream_id, batch.producer_id
    # So is `last_ms`, which an earlier batch of this hour has set.
    is_in_its_hour = bool(recent) and _hour(recent[-1].append_ms) == _hour(context.now_ms)
    recent.append(appended)
    next_sequence = batch.sequence + batch.count
    packed = _encode_recent(recent[-PRODUCER_WINDOW:])
    if is_in_its_hour:
        db.execute(_GO_ON, (next_sequence, packed, stream_id, producer_id))
        return
    kind, epoch = _kind(producer_id), batch.producer_epoch
    db.execute(_SET, (stream_id, producer_id, kind, epoch, next_sequence, context.now_ms, packed))


def _hour(at_ms: int) -> int:
    return at_ms // PRODUCER_IDLE_STEP_MS


def _kind(producer_id: bytes) -> int:
    """Of one that nobody has named."""
    return _KEY if producer_id.startswith(ONCE) else _PLAIN


def _forget_idle(context: Context, batch: Numbered) -> None:
    """For a producer, or a key, that is new here: forget some that are old enough. Raises
    `OverloadedError` where other keys are too many (PROTOCOL D7)."""
    db, stream_id, kind = context.db, batch.stream_id, _kind(batch.producer_id)
    old_ms = context.now_ms - PRODUCER_IDLE_MS - PRODUCER_IDLE_STEP_MS
    db.execute(_EVICT, (stream_id, kind, old_ms))
    if kind != _KEY:
        return
    gone = db.changes()
    db.execute(_COUNT_ONCE, (stream_id, 1 - gone))
    row = db.execute(_GET_ONCE, (stream_id,)).fetchone()
    assert row is not None
    keys = row[0]
    if keys > MAX_ONCE_KEYS:
        raise OverloadedError(
            f"{label_of(db, stream_id)} remembers {keys - 1} keys of what is sent once "
            f"{context.place}, and {MAX_ONCE_KEYS} are the most",
            "they are forgotten after a day; give a key to several records at once",
        )


def fenced(name: str, place: str) -> ProducerFencedError:
    return ProducerFencedError(
        f"producer {name!r} was opened again, and that one has the name {place} now",
        "a name is for one process at a time: let this one end, or give it another name",
    )


def claim_of(db: Database, stream_id: int, name: str) -> Claimed:
    """A name's latest claim; `NO_CLAIM` for one that is not known."""
    row = db.execute(_GET_NAME, (stream_id, producer_id_of(name))).fetchone()
    return Claimed(row[0], row[2]) if row is not None else Claimed(NO_CLAIM, NO_SEQUENCE)


def apply_claim_producer(context: Context, command: ClaimProducer) -> Claimed:
    """Raises `ProducerFencedError` when somebody else has claimed the name since, or it was
    forgotten, `NotFoundError` when the stream has no partition here, and `RequestError` when there
    are too many names."""
    db, stream_id, producer_id = context.db, command.stream_id, producer_id_of(command.name)
    # What raises below is kept until it may be told: it must keep no cursor with it, for no
    # checkpoint is made while one is open.
    here = f"SELECT 1 FROM {STREAM_PARTITION} WHERE stream_id = ?"
    if db.execute(here, (stream_id,)).fetchone() is None:
        raise no_partition(db, stream_id, context.place)
    row = db.execute(_GET_NAME, (stream_id, producer_id)).fetchone()
    claim, token, last_sequence, _ = row or (NO_CLAIM, b"", NO_SEQUENCE, "")
    if row is not None and token == command.token:
        raise NoChange(Claimed(claim, last_sequence))
    if command.after != claim:
        raise fenced(command.name, context.place)
    if row is None:
        _make_room(context, stream_id)
    # The entry's number: higher than any before, also where the name was forgotten in between.
    claim = context.lsn
    db.execute(
        _SET_NAME, (stream_id, producer_id, command.name, claim, command.token, last_sequence)
    )
    begun = (claim, 0, context.now_ms, _encode_recent([]))
    db.execute(_SET, (stream_id, producer_id, _NAMED, *begun))
    return Claimed(claim, last_sequence)


def _make_room(context: Context, stream_id: int) -> None:
    """Forget names that were idle for long; raises `RequestError` where the others are too many."""
    db = context.db
    old_ms = context.now_ms - PRODUCER_NAME_IDLE_MS - PRODUCER_IDLE_STEP_MS
    idle = db.execute(_IDLE_NAMES, (stream_id, old_ms)).fetchall()
    for (producer_id,) in idle:
        for table in (PRODUCER, PRODUCER_NAME):
            db.execute(
                f"DELETE FROM {table} WHERE stream_id = ? AND producer_id = ?",
                (stream_id, producer_id),
            )
    row = db.execute(
        f"SELECT count(*) FROM {PRODUCER_NAME} WHERE stream_id = ?", (stream_id,)
    ).fetchone()
    assert row is not None
    if row[0] >= MAX_PRODUCER_NAMES:
        raise RequestError(
            f"{label_of(db, stream_id)} knows {row[0]} names of producers {context.place}, and "
            f"{MAX_PRODUCER_NAMES} are the most",
            "name producers by their task, so that the next process has the name again; one that "
            f"is idle for {PRODUCER_NAME_IDLE_MS // (24 * 3600 * 1000)} days is forgotten",
        )


def note_last(context: Context, batch: Numbered, last_sequence: int) -> None:
    """The program of a named producer has given its last record this sequence. Raises
    `RequestError` where it does not rise."""
    row = context.db.execute(_GET_NAME, (batch.stream_id, batch.producer_id)).fetchone()
    if row is None:
        raise RequestError(
            f"the sequence {last_sequence} was given by a producer that has no name here",
            "open the producer with a name",
        )
    if last_sequence <= row[2]:
        raise RequestError(
            f"producer {row[3]!r} gives the sequence {last_sequence} where it was at {row[2]}",
            "sequences rise within a partition",
        )
    context.db.execute(_SET_LAST, (last_sequence, batch.stream_id, batch.producer_id))


def _close(context: Context, stream_id: int) -> bool:
    for table in (PRODUCER, PRODUCER_ONCE):
        left = context.db.execute(
            f"SELECT 1 FROM {table} WHERE stream_id = ? LIMIT 1", (stream_id,)
        )
        if left.fetchone() is not None:
            return True
    return False


def _drop_some(context: Context, stream_id: int, portion: slices.Portion) -> slices.Dropped:
    rows = slices.delete_some(context.db, _OWNED, stream_id, portion.rows)
    return slices.Dropped(rows, is_done=rows < portion.rows)


FEATURE: Final = Feature(
    name="producers",
    tables=_TABLES,
    commands={ClaimProducer: apply_claim_producer},
    deleted={"Stream": _close},
    leftovers={"Stream": _drop_some},
)
