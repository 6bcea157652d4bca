"""Staged records: batches that are here already, in no stream, until a transaction publishes them.

A bulk writer of many tasks, such as a Spark job, cannot hold all of its records in a transaction:
that has 64 MiB at most, some minutes, and one leadership. So each task stages what it writes, as an
*attempt* of a *write*, and one statement, `PublishStaged`, appends those attempts of the write that
its transaction names: an entry of few bytes, however much they have. Safety rule: an attempt is
published whole or not at all, once, and only while nothing of it is missing; what is published is
staged no more, so nothing that ends staged records can undo it (PROTOCOL E10).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Final, NamedTuple, NoReturn

import msgspec

from hadron.model.errors import NotFoundError, RequestError
from hadron.model.limits import MAX_SET_STATEMENTS, TOKEN_BYTES
from hadron.model.ports import Database
from hadron.model.tables import PREFIX
from hadron.model.transactions import DELETED, Lock, StatementResult
from hadron.state import bodies
from hadron.state.bodies import Place
from hadron.state.machine import BatchShape, Command, Context, Event, Feature, NoChange, Statement
from hadron.state.names import label_of
from hadron.state.slices import SLICE_BATCHES, Dropped
from hadron.state.streams import keys as stream_keys
from hadron.state.streams import partitions as streams
from hadron.state.streams.appends import Append, append_all
from hadron.state.transactions import locks
from hadron.state.transactions.locks import LOCK

STAGED: Final = PREFIX + "staged"
STAGED_PART: Final = PREFIX + "staged_part"
_BY_WRITE: Final = PREFIX + "staged_by_write"
_EXPIRING: Final = PREFIX + "staged_expiring"

_TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS {STAGED}(
    staged_lsn INTEGER PRIMARY KEY,     -- of the entry with its first batches
    attempt BLOB NOT NULL UNIQUE,       -- 16 random bytes of whoever stages it
    write_id BLOB NOT NULL,             -- 16 random bytes: what the attempt is a part of
    label TEXT NOT NULL,                -- of the write, for people
    stream_id INTEGER NOT NULL,
    batches INTEGER NOT NULL, records INTEGER NOT NULL, bytes INTEGER NOT NULL,
    since_ms INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL         -- unless published; -1: it is given up, and may be partial
) STRICT;
CREATE INDEX IF NOT EXISTS {_BY_WRITE} ON {STAGED}(write_id);
CREATE INDEX IF NOT EXISTS {_EXPIRING} ON {STAGED}(expires_ms);
CREATE TABLE IF NOT EXISTS {STAGED_PART}(
    lsn INTEGER PRIMARY KEY,            -- of the entry that brought it; its body is held
    staged_lsn INTEGER NOT NULL,
    first_number INTEGER NOT NULL,      -- of the first of these batches
    bytes INTEGER NOT NULL,
    batches BLOB NOT NULL,              -- MessagePack [[records, bytes] …]
    UNIQUE (staged_lsn, first_number)
) STRICT;
"""

_FIND: Final = (
    "SELECT staged_lsn, attempt, write_id, label, stream_id, batches, records, bytes, since_ms,"
    f" expires_ms FROM {STAGED}"
)
_INSERT: Final = f"INSERT INTO {STAGED} VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_GROW: Final = (
    f"UPDATE {STAGED} SET batches = batches + ?, records = records + ?, bytes = bytes + ?,"
    " expires_ms = ? WHERE staged_lsn = ?"
)
_INSERT_PART: Final = f"INSERT INTO {STAGED_PART} VALUES(?, ?, ?, ?, ?)"
_PART: Final = f"SELECT batches FROM {STAGED_PART} WHERE staged_lsn = ? AND first_number = ?"
_PARTS: Final = (
    f"SELECT lsn, bytes, batches FROM {STAGED_PART} WHERE staged_lsn = ? ORDER BY first_number"
)
_DELETE_PARTS: Final = f"DELETE FROM {STAGED_PART} WHERE staged_lsn = ?"
_DELETE_PART: Final = f"DELETE FROM {STAGED_PART} WHERE lsn = ?"
_DELETE: Final = f"DELETE FROM {STAGED} WHERE staged_lsn = ?"
_GIVE_UP: Final = f"UPDATE {STAGED} SET expires_ms = -1 WHERE write_id = ? AND expires_ms >= 0"
_KIND: Final = "staged"
_EXPIRED: Final = (
    f"SELECT staged_lsn FROM {STAGED} s INDEXED BY {_EXPIRING} WHERE expires_ms < ?"
    f" AND NOT EXISTS (SELECT 1 FROM {LOCK} WHERE kind = '{_KIND}' AND owner_id = 0"
    " AND name = lower(hex(s.write_id))) ORDER BY expires_ms, staged_lsn LIMIT ?"
)
_COUNT: Final = f"SELECT count(*) FROM {STAGED}"
_SIZES: Final = f"SELECT lsn FROM {STAGED_PART} WHERE staged_lsn = ? ORDER BY lsn LIMIT ?"

MAX_STAGED_BATCHES: Final = MAX_SET_STATEMENTS
"""Of an attempt, and of all that are published together: that is one entry. Of 1 MiB each it is
10 GB for every replica set that a write goes to."""

MAX_STAGED_ATTEMPTS: Final = 100_000
"""At a replica set, of all writes: as many tasks as a large job has, and their lost attempts."""

MAX_KEPT_MS: Final = 7 * 24 * 3_600_000
"""Nothing that nobody publishes takes room for longer."""

_MAX_LABEL: Final = 300

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[BatchShape, ...]).decode


class StageBatches(Command[int], frozen=True, array_like=True, tag=70):
    """Stage batches, which are the entry's body, as part of an attempt. Sent again under the same
    number: `NoChange`. Returns how many batches the attempt has.

    Refused: `ConflictError` while the write is being published; `NotFoundError` when the stream has
    no partition here, `RequestError` for an attempt that was given up, other batches under known
    numbers, and over the limits.

    Attributes:
        first_number: of the first batch: those of an attempt are numbered from 0, in order.
        sizes: records and bytes of each batch.
        kept_ms: for so long the attempt is kept from now on, unless it is published.
        label: of the write, for people.
    """

    stream_id: int
    write_id: bytes
    attempt: bytes
    first_number: int
    sizes: tuple[BatchShape, ...]
    kept_ms: int
    label: str = ""

    @property
    def batches(self) -> tuple[BatchShape, ...]:
        return self.sizes


class GiveUpStaged(Command[int], frozen=True, array_like=True, tag=71):
    """Nobody will publish what a write has staged: it may go. Returns how many attempts that were;
    none: `NoChange`. `ConflictError` while a transaction that is prepared here publishes it."""

    uses_reserve: ClassVar[bool] = True

    write_id: bytes


class DropStaged(Command[Dropped], frozen=True, array_like=True, tag=72):
    """Drop what was given up, or had to be published before `before_ms`: one slice of it. What a
    prepared transaction publishes stays. Returns `slices.Dropped`."""

    uses_reserve: ClassVar[bool] = True

    before_ms: int


class PublishStaged(Command, frozen=True, array_like=True, tag=73):
    """In a transaction: append these attempts of a write, in this order, to the stream's partition
    here. Other attempts of the write are given up.

    Attributes:
        attempts: with the number of batches that each must have.
    """

    stream_id: int
    write_id: bytes
    attempts: tuple[tuple[bytes, int], ...]

    @property
    def rows(self) -> int:
        return sum(count for _, count in self.attempts)


class StagedChanged(Event, frozen=True):
    """There is something staged that was not there before, or was given up."""


class Staged(NamedTuple):
    """An attempt, as it stands.

    Attributes:
        expires_ms: -1 where it is given up.
    """

    staged_lsn: int
    attempt: bytes
    write_id: bytes
    label: str
    stream_id: int
    batches: int
    records: int
    bytes: int
    since_ms: int
    expires_ms: int


def apply_stage_batches(context: Context, command: StageBatches) -> int:
    _check(command)
    db, stream_id = context.db, command.stream_id
    locks.check_free(context, _lock(command.write_id))
    streams.bounds(db, stream_id)
    if stream_keys.is_indexed(db, stream_id):
        raise RequestError(
            f"{label_of(db, stream_id)} has an index of keys, and nothing can be staged for it",
            "publish to it with a producer, or in transactions",
        )
    known = find(db, command.attempt)
    packed = _encode(command.sizes)
    if known is not None:
        _check_follows(context, command, known, packed)
    elif command.first_number:
        raise RequestError(
            f"attempt {command.attempt.hex()} is not staged {context.place}, and goes on with "
            f"batch {command.first_number}",
            "it has expired, or was given up: stage all of it anew, as another attempt",
        )
    records = sum(each.records for each in command.sizes)
    size = sum(each.size for each in command.sizes)
    expires_ms = context.now_ms + command.kept_ms
    if known is None:
        _make_room(context)
        key = context.lsn, command.attempt, command.write_id, command.label, stream_id
        counts = len(command.sizes), records, size, context.now_ms, expires_ms
        db.execute(_INSERT, (*key, *counts))
    else:
        db.execute(_GROW, (len(command.sizes), records, size, expires_ms, known.staged_lsn))
    staged_lsn = context.lsn if known is None else known.staged_lsn
    db.execute(_INSERT_PART, (context.lsn, staged_lsn, command.first_number, size, packed))
    bodies.hold(context, size)
    context.emit(StagedChanged())
    return command.first_number + len(command.sizes)


def _check(command: StageBatches) -> None:
    """Raises `RequestError` for what nobody could mean."""
    for name, token in (("write", command.write_id), ("attempt", command.attempt)):
        if len(token) != TOKEN_BYTES:
            raise RequestError(f"a {name} is named by {TOKEN_BYTES} random bytes, not {token!r}")
    first, count = command.first_number, len(command.sizes)
    if not count or not 0 <= first <= MAX_STAGED_BATCHES - count:
        raise RequestError(
            f"{count} batches from number {first} on cannot be staged",
            f"number them from 0 to {MAX_STAGED_BATCHES - 1}, one at least; let more tasks write "
            "what is more than that",
        )
    if not 0 < command.kept_ms <= MAX_KEPT_MS or len(command.label) > _MAX_LABEL:
        raise RequestError(
            f"nothing is staged for {command.kept_ms} ms, as {command.label[:_MAX_LABEL]!r}",
            f"for 1 ms to {MAX_KEPT_MS} ms, with a label of up to {_MAX_LABEL} characters",
        )


def _check_follows(context: Context, command: StageBatches, known: Staged, packed: bytes) -> None:
    """Raises `NoChange` when these batches are here."""
    if known.expires_ms < 0 or known[2:5:2] != (command.write_id, command.stream_id):
        raise RequestError(
            f"attempt {command.attempt.hex()} is given up {context.place}, or is another write's",
            "stage all of it anew, as another attempt",
        )
    if command.first_number == known.batches:
        return
    row = context.db.execute(_PART, (known.staged_lsn, command.first_number)).fetchone()
    if row is not None and row[0] == packed:
        raise NoChange(command.first_number + len(command.sizes))
    raise RequestError(
        f"attempt {command.attempt.hex()} has {known.batches} batches {context.place}, and other "
        f"ones than these from number {command.first_number} on",
        "number batches in order; one that is sent again is sent as it was",
    )


def _make_room(context: Context) -> None:
    row = context.db.execute(_COUNT).fetchone()
    if row is not None and row[0] >= MAX_STAGED_ATTEMPTS:
        raise RequestError(
            f"{row[0]} attempts are staged {context.place}, and {MAX_STAGED_ATTEMPTS} are the most",
            "what nobody publishes expires: see `hadron tx staged`",
        )


def apply_give_up_staged(context: Context, command: GiveUpStaged) -> int:
    locks.check_free(context, _lock(command.write_id))
    context.db.execute(_GIVE_UP, (command.write_id,))
    count = context.db.changes()
    if not count:
        raise NoChange(0)
    context.emit(StagedChanged())
    return int(count)


def apply_drop_staged(context: Context, command: DropStaged) -> Dropped:
    db = context.db
    attempts = parts = 0
    found = db.execute(_EXPIRED, (command.before_ms, SLICE_BATCHES)).fetchall()
    for (staged_lsn,) in found:
        left = SLICE_BATCHES - parts
        lsns: list[Any] = db.execute(_SIZES, (staged_lsn, left + 1)).fetchall()
        for (lsn,) in lsns[:left]:
            db.execute(_DELETE_PART, (lsn,))
            bodies.release(context, lsn)
        parts += min(left, len(lsns))
        if len(lsns) > left:
            # What has lost a part is never published.
            db.execute(f"UPDATE {STAGED} SET expires_ms = -1 WHERE staged_lsn = ?", (staged_lsn,))
            return Dropped(attempts + 1)
        db.execute(_DELETE, (staged_lsn,))
        attempts += 1
    is_done = len(found) < SLICE_BATCHES
    if not attempts:
        raise NoChange(Dropped(0, is_done=is_done))
    return Dropped(attempts, is_done=is_done)


def apply_publish_staged(_context: Context, _command: PublishStaged) -> NoReturn:
    raise RequestError("what is staged is published by a transaction", "put it into one")


# --- in a transaction ---------------------------------------------------------------------------


def _lock(write_id: bytes) -> Lock:
    return Lock(_KIND, 0, write_id.hex(), ((0, 0),))


def _locks(command: PublishStaged) -> tuple[Lock, ...]:
    return (_lock(command.write_id),)


def _check_publish(context: Context, command: PublishStaged) -> None:
    """Raises `NotFoundError` for an attempt that is not staged here as a whole (any more)."""
    streams.bounds(context.db, command.stream_id)
    names = {attempt for attempt, _ in command.attempts}
    if not names or len(names) < len(command.attempts) or command.rows > MAX_STAGED_BATCHES:
        raise RequestError(
            f"{len(command.attempts)} attempts with {command.rows} batches cannot be published "
            "together",
            f"name one at least, each once, with {MAX_STAGED_BATCHES} batches at most",
        )
    for attempt, batches in command.attempts:
        known = find(context.db, attempt)
        fits = known is not None and known.expires_ms >= 0
        if known is None or not fits or known.write_id != command.write_id:
            raise NotFoundError(
                f"attempt {attempt.hex()} is not staged {context.place}",
                "it was published, given up, or has expired: write anew",
            )
        if known.batches != batches or known.stream_id != command.stream_id:
            raise RequestError(
                f"attempt {attempt.hex()} has {known.batches} batches {context.place}, not "
                f"{batches}, or is for another stream",
                "write anew",
            )


def _publish(context: Context, command: PublishStaged) -> StatementResult:
    db, stream_id = context.db, command.stream_id
    result = DELETED
    if streams.is_open(db, stream_id):
        batches: list[Append] = []
        found = [find(db, attempt) for attempt, _ in command.attempts]
        for known in found:
            # It is locked since its check, or this is the entry of it.
            assert known is not None, command
            batches += _appends(context, stream_id, known)
        bases = append_all(context, batches)
        records = sum(each.records for each in batches)
        result = StatementResult(bases[0], records, context.now_ms)
        for known in found:
            assert known is not None
            _forget(context, known)
    db.execute(_GIVE_UP, (command.write_id,))
    context.emit(StagedChanged())
    return result


def _appends(context: Context, stream_id: int, known: Staged) -> list[Append]:
    appends: list[Append] = []
    parts: list[Any] = context.db.execute(_PARTS, (known.staged_lsn,)).fetchall()
    for lsn, size, packed in parts:
        start = 0
        shapes = _decode(packed)
        for shape in shapes:
            place = Place(lsn, start)
            appends.append(Append(stream_id, shape.records, shape.size, place))
            start += shape.size
        bodies.take_all(context, lsn, batches=len(shapes), end=size)
    return appends


def _forget(context: Context, known: Staged) -> None:
    for lsn, *_ in context.db.execute(_PARTS, (known.staged_lsn,)).fetchall():
        bodies.release(context, lsn)
    context.db.execute(_DELETE_PARTS, (known.staged_lsn,))
    context.db.execute(_DELETE, (known.staged_lsn,))


FEATURE: Final = Feature(
    name="staging",
    tables=_TABLES,
    commands={
        StageBatches: apply_stage_batches,
        GiveUpStaged: apply_give_up_staged,
        DropStaged: apply_drop_staged,
        PublishStaged: apply_publish_staged,
    },
    statements={PublishStaged: Statement(check=_check_publish, apply=_publish, locks=_locks)},
)


# --- reading ------------------------------------------------------------------------------------


def find(db: Database, attempt: bytes) -> Staged | None:
    """None of what was never staged here, is published, or is dropped."""
    row = db.execute(f"{_FIND} WHERE attempt = ?", (attempt,)).fetchone()
    return None if row is None else Staged(*row)


def all_staged(db: Database, *, after_lsn: int = -1, limit: int = 1_000) -> list[Staged]:
    """By `staged_lsn`, from behind `after_lsn` on; for people."""
    query = f"{_FIND} WHERE staged_lsn > ? ORDER BY staged_lsn LIMIT ?"
    rows: Iterable[Any] = db.execute(query, (after_lsn, limit))
    return [Staged(*row) for row in rows]


def next_expiry(db: Database) -> int | None:
    """When the first attempt expires, by the clock of the log; None: nothing is staged."""
    row: Any = db.execute(f"SELECT min(expires_ms) FROM {STAGED}").fetchone()
    return row[0] if row is not None else None
