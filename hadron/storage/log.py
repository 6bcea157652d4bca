"""The log inside a node's database: rows, bodies, and the hash chain over them.

    chain(lsn) = xxh3-128(chain(lsn - 1) | epoch | incarnation | lsn | now_ms |
                          xxh3-128(command) | body_hash)

with every number as 8 little-endian bytes, chain(0) = 16 zero bytes, and body_hash =
xxh3-128(body) or 16 zero bytes without one. The body's hash stands in the log row, so a chain can
still be checked after retention has dropped the body (PROTOCOL A6). xxh3 guards against disks and
bugs, not against somebody who forges entries on purpose.

A log need not begin at lsn 1: rows that nobody needs any more are trimmed, and the *anchor*, the
position of the last row that went, is kept in their place (PROTOCOL A7). A body that retention has
dropped leaves an empty row while its log row is here: so an absent row is damage, an empty one is
not.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import apsw
import xxhash

from hadron.model.errors import CorruptionError, TrimmedError
from hadron.model.ids import EMPTY_LOG, Ballot, LogPosition
from hadron.model.ports import Database
from hadron.model.tables import PREFIX
from hadron.storage import bodies
from hadron.storage.bodies import BODY, damaged_entry, reading_entry

LOG: Final = PREFIX + "log"
ANCHOR: Final = PREFIX + "anchor"
META: Final = PREFIX + "meta"

TABLES: Final = (
    bodies.TABLES
    + f"""
CREATE TABLE IF NOT EXISTS {LOG}(
    lsn INTEGER PRIMARY KEY,
    epoch INTEGER NOT NULL, incarnation INTEGER NOT NULL,
    now_ms INTEGER NOT NULL,          -- the leader's clock, never below the entry before
    command BLOB NOT NULL,
    body_hash BLOB NOT NULL,
    chain BLOB NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS {ANCHOR}(    -- of the last row that was trimmed; no row before that
    only INTEGER PRIMARY KEY CHECK (only = 1),
    lsn INTEGER NOT NULL,
    epoch INTEGER NOT NULL, incarnation INTEGER NOT NULL,
    now_ms INTEGER NOT NULL,
    chain BLOB NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS {META}(
    key TEXT PRIMARY KEY,
    value ANY NOT NULL
) STRICT, WITHOUT ROWID;
"""
)

NO_BODY: Final = bytes(16)
NEEDS_SNAPSHOT: Final = "whoever lacks it needs a snapshot"
ENTRY_OVERHEAD_BYTES: Final = 64
"""Of a log row beside its command and body: two hashes and five numbers."""

_NUMBERS: Final = struct.Struct("<QQQQ")
_INSERT_LOG: Final = f"INSERT INTO {LOG} VALUES(?, ?, ?, ?, ?, ?, ?)"
_ROW: Final = "lsn, epoch, incarnation, now_ms, command, body_hash, chain"
_SELECT_ENTRIES: Final = (
    f"SELECT {_ROW}, bytes FROM {LOG} LEFT JOIN {BODY} USING (lsn)"
    " WHERE lsn >= ? AND lsn <= ? ORDER BY lsn"
)
_SELECT_ROWS: Final = f"SELECT {_ROW} FROM {LOG} WHERE lsn >= ? AND lsn <= ? ORDER BY lsn"
_GET_ANCHOR: Final = f"SELECT lsn, epoch, incarnation, chain, now_ms FROM {ANCHOR}"
_GET_META: Final = f"SELECT value FROM {META} WHERE key = ?"
_SET_META: Final = (
    f"INSERT INTO {META} VALUES(?, ?) ON CONFLICT(key) DO UPDATE SET value = excluded.value"
)


class Entry(NamedTuple):
    """One entry of the log. `body` is empty when the command has none."""

    lsn: int
    ballot: Ballot
    now_ms: int
    command: bytes
    body: bytes | memoryview
    chain: bytes

    @property
    def position(self) -> LogPosition:
        return LogPosition(self.lsn, self.ballot, self.chain)

    @property
    def size(self) -> int:
        return len(self.command) + len(self.body)


def hash_body(body: bytes | memoryview) -> bytes:
    return xxhash.xxh3_128_digest(body) if len(body) else NO_BODY


def next_chain(
    previous: bytes, ballot: Ballot, lsn: int, now_ms: int, command: bytes, body_hash: bytes
) -> bytes:
    """The chain's value at `lsn`."""
    numbers = _NUMBERS.pack(ballot.epoch, ballot.incarnation, lsn, now_ms)
    return xxhash.xxh3_128_digest(previous + numbers + xxhash.xxh3_128_digest(command) + body_hash)


def is_well_formed(row: Sequence[Any]) -> bool:
    """Whether a row of `log`, in the table's order, has values that a log can have: a damaged page
    may hand out any others."""
    lsn, epoch, incarnation, now_ms, command, body_hash, chain = row
    return (
        type(lsn) is type(epoch) is type(incarnation) is type(now_ms) is int
        and lsn >= 0 <= epoch
        and incarnation >= 0 <= now_ms
        and type(command) is type(body_hash) is type(chain) is bytes
        and len(body_hash) == 16 == len(chain)
    )


def chain_of_row(previous: bytes, row: Sequence[Any]) -> bytes:
    """The chain that follows from `previous` and a well-formed row of `log`."""
    lsn, epoch, incarnation, now_ms, command, body_hash, _ = row
    return next_chain(previous, Ballot(epoch, incarnation), lsn, now_ms, command, body_hash)


class Log:
    """The log of one database, over the one connection that writes it.

    Head and anchor are cached; `reload` must be called after a rollback or a dropped tail.
    """

    def __init__(self, connection: apsw.Connection) -> None:
        self._db = connection
        self.anchor = EMPTY_LOG
        """What the first row here continues."""
        self.head = EMPTY_LOG
        self.last_ms = 0
        self.reload()

    def reload(self) -> None:
        """Take head and anchor from the tables again. Raises `CorruptionError` when the last entry
        is damaged: whatever was appended to it would be as wrong."""
        anchor, anchor_ms = _anchor(self._db)
        row = self._db.execute(
            f"SELECT lsn, now_ms FROM {LOG} ORDER BY lsn DESC LIMIT 1"
        ).fetchone()
        head, last_ms = anchor, anchor_ms
        if row is not None:
            last = position_at(self._db, row[0])
            assert last is not None
            head, last_ms = last, row[1]
        self.anchor, self.head, self.last_ms = anchor, head, last_ms

    def append(
        self, ballot: Ballot, now_ms: int, command: bytes, body: bytes | memoryview
    ) -> Entry:
        """Write the next entry and return it. The caller owns the transaction."""
        assert ballot >= self.head.ballot, (ballot, self.head)
        assert now_ms >= self.last_ms, (now_ms, self.last_ms)
        lsn = self.head.lsn + 1
        body_hash = hash_body(body)
        chain = next_chain(self.head.chain, ballot, lsn, now_ms, command, body_hash)
        self._insert(lsn, ballot, now_ms, command, body, body_hash, chain)
        return Entry(lsn, ballot, now_ms, command, body, chain)

    def append_copy(self, entry: Entry) -> None:
        """Write an entry that another node made, after checking that it continues this log.

        Raises `CorruptionError` when its chain does not follow from its content.
        """
        if entry.lsn != self.head.lsn + 1:
            raise CorruptionError(
                f"entry {entry.lsn} does not follow {self.head.lsn}, the end of this log"
            )
        body_hash = hash_body(entry.body)
        chain = next_chain(
            self.head.chain, entry.ballot, entry.lsn, entry.now_ms, entry.command, body_hash
        )
        if chain != entry.chain:
            raise CorruptionError(
                f"entry {entry.lsn} arrived with chain {entry.chain.hex()}, its content gives "
                f"{chain.hex()}"
            )
        self._insert(
            entry.lsn, entry.ballot, entry.now_ms, entry.command, entry.body, body_hash, chain
        )

    def _insert(
        self,
        lsn: int,
        ballot: Ballot,
        now_ms: int,
        command: bytes,
        body: bytes | memoryview,
        body_hash: bytes,
        chain: bytes,
    ) -> None:
        self._db.execute(
            _INSERT_LOG, (lsn, ballot.epoch, ballot.incarnation, now_ms, command, body_hash, chain)
        )
        if len(body):
            bodies.insert(self._db, lsn, body)
        self.head = LogPosition(lsn, ballot, chain)
        self.last_ms = now_ms

    def drop_after(self, lsn: int) -> None:
        """Drop the tail above `lsn`. The caller has checked that none of it was applied."""
        assert lsn >= self.anchor.lsn, (lsn, self.anchor)
        self._db.execute(f"DELETE FROM {BODY} WHERE lsn > ?", (lsn,))
        self._db.execute(f"DELETE FROM {LOG} WHERE lsn > ?", (lsn,))
        self.reload()
        assert self.head.lsn <= lsn, (lsn, self.head)

    def trim(self, until_lsn: int, *, max_rows: int) -> None:
        """Drop the rows up to `until_lsn`, at most `max_rows` of the oldest, and move the anchor.

        The caller owns the transaction, and has checked that all of it is committed, applied and
        not needed by others (PROTOCOL A7). Bodies stay: they belong to their streams.
        """
        last = min(until_lsn, self.anchor.lsn + max_rows, self.head.lsn)
        if last <= self.anchor.lsn:
            return
        row = self._db.execute(f"SELECT now_ms FROM {LOG} WHERE lsn = ?", (last,)).fetchone()
        anchor = position_at(self._db, last)
        if row is None or anchor is None:
            raise damaged_entry(last, f"entry {last} is missing from the log")
        set_anchor(self._db, anchor, row[0])
        self._db.execute(
            f"DELETE FROM {BODY} WHERE lsn > ? AND lsn <= ? AND length(bytes) = 0",
            (self.anchor.lsn, last),
        )
        self._db.execute(f"DELETE FROM {LOG} WHERE lsn <= ?", (last,))
        self.anchor = anchor

    def position_at(self, lsn: int) -> LogPosition | None:
        """The position at `lsn`, None where this log has no entry."""
        if lsn == self.head.lsn:
            return self.head
        return position_at(self._db, lsn)


def _anchor(connection: apsw.Connection) -> tuple[LogPosition, int]:
    row = connection.execute(_GET_ANCHOR).fetchone()
    if row is None:
        return EMPTY_LOG, 0
    return LogPosition(row[0], Ballot(row[1], row[2]), row[3]), row[4]


def read_anchor(connection: apsw.Connection) -> LogPosition:
    """What the first row of this log continues; the empty log's position before any trimming."""
    return _anchor(connection)[0]


def set_anchor(connection: apsw.Connection, anchor: LogPosition, now_ms: int) -> None:
    """Let the log begin after `anchor`, whose entry had the stamp `now_ms`."""
    connection.execute(
        f"INSERT INTO {ANCHOR} VALUES(1, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE"
        f" SET lsn = excluded.lsn,"
        " epoch = excluded.epoch, incarnation = excluded.incarnation, now_ms = excluded.now_ms,"
        " chain = excluded.chain",
        (anchor.lsn, *anchor.ballot, now_ms, anchor.chain),
    )


def position_at(connection: apsw.Connection, lsn: int) -> LogPosition | None:
    """The position at `lsn`, also at the anchor and at 0; None where it is not known (any more).

    Raises `CorruptionError` when the entry does not give the chain that it says.
    """
    if lsn == 0:
        return EMPTY_LOG
    with reading_entry(lambda: lsn):
        rows: list[Any] = connection.execute(_SELECT_ROWS, (lsn - 1, lsn)).fetchall()
    if len(rows) == 2:
        return _checked(rows[1], rows[0][6]).position
    anchor = read_anchor(connection)
    if rows and rows[0][0] == lsn:
        return _checked(rows[0], anchor.chain if anchor.lsn == lsn - 1 else None).position
    return anchor if anchor.lsn == lsn else None


def lacks(connection: apsw.Connection, position: LogPosition) -> bool:
    """Whether an entry that this log had and did not drop is neither here nor trimmed: the file is
    an older one. A damaged entry is here."""
    if position.lsn <= read_anchor(connection).lsn:
        return False
    try:
        return position_at(connection, position.lsn) != position
    except CorruptionError:
        return False


def last_lsn(connection: apsw.Connection) -> int:
    """Where the log ends; the anchor's lsn when all rows were trimmed."""
    row = connection.execute(f"SELECT max(lsn) FROM {LOG}").fetchone()
    if row is None or row[0] is None:
        return read_anchor(connection).lsn
    lsn: int = row[0]
    return lsn


def read_entries(
    connection: apsw.Connection, from_lsn: int, *, max_bytes: int, until_lsn: int | None = None
) -> list[Entry]:
    """Entries from `from_lsn` on in order, up to `max_bytes` but at least one.

    Raises `TrimmedError` when the first of them is not here any more, or not its body;
    `CorruptionError` when a row does not match its own hashes, or does not continue the chain of
    the one before it: what leaves this node has been checked.
    """
    anchor = read_anchor(connection)
    if from_lsn <= anchor.lsn:
        raise TrimmedError(
            f"entry {from_lsn} was trimmed, this log begins after {anchor.lsn}", NEEDS_SNAPSHOT
        )
    entries: list[Entry] = []
    size = 0
    before = position_at(connection, from_lsn - 1)
    previous = None if before is None else before.chain
    with reading_entry(lambda: entries[-1].lsn + 1 if entries else from_lsn):
        for row in connection.execute(
            _SELECT_ENTRIES, (from_lsn, until_lsn if until_lsn is not None else (1 << 62))
        ):
            _check_lsn(row[0], entries[-1].lsn + 1 if entries else from_lsn)
            try:
                entry = _checked(row, previous, _sound_body(row))
            except TrimmedError:
                if entries:
                    break
                raise
            previous = entry.chain
            entries.append(entry)
            size += entry.size
            if size >= max_bytes:
                break
    return entries


def read_after(
    connection: apsw.Connection, from_lsn: int, *, max_bytes: int
) -> tuple[LogPosition, list[Entry]]:
    """The position before `from_lsn`, and `read_entries` from there on; raises what it raises, and
    `TrimmedError` when that position is not known here."""
    previous = position_at(connection, from_lsn - 1)
    if previous is None:
        raise TrimmedError(
            f"entry {from_lsn - 1} is not in this log, it begins at {first_lsn(connection)}",
            NEEDS_SNAPSHOT,
        )
    return previous, read_entries(connection, from_lsn, max_bytes=max_bytes)


def read_commands(connection: apsw.Connection, from_lsn: int, until_lsn: int) -> list[Entry]:
    """Entries without their bodies, which `apply` does not look at.

    Raises `CorruptionError` like `read_entries`: tables are not made of damaged commands.
    """
    entries: list[Entry] = []
    before = position_at(connection, from_lsn - 1)
    previous = None if before is None else before.chain
    expected = from_lsn
    with reading_entry(lambda: expected):
        for row in connection.execute(_SELECT_ROWS, (from_lsn, until_lsn)):
            _check_lsn(row[0], expected)
            entry = _checked(row, previous)
            previous = entry.chain
            entries.append(entry)
            expected += 1
    return entries


def _checked(row: Sequence[Any], previous: bytes | None, body: bytes = b"") -> Entry:
    lsn, epoch, incarnation, now_ms, command, _, chain = row[:7]
    if not is_well_formed(row[:7]):
        raise damaged_entry(lsn, f"entry {lsn} has values that no entry has")
    if previous is not None and chain_of_row(previous, row[:7]) != chain:
        raise damaged_entry(lsn, f"entry {lsn} does not continue the hash chain")
    return Entry(lsn, Ballot(epoch, incarnation), now_ms, command, body, chain)


def _sound_body(row: Sequence[Any]) -> bytes:
    lsn, body_hash, body = row[0], row[5], row[7]
    if body == b"" and body_hash != NO_BODY:
        raise TrimmedError(f"retention has dropped the body of entry {lsn}", NEEDS_SNAPSHOT)
    data = b"" if body is None else body
    if type(data) is not bytes or hash_body(data) != body_hash:
        raise damaged_entry(lsn, f"the body of entry {lsn} does not match its hash")
    return data


def _check_lsn(lsn: int, expected: int) -> None:
    if lsn != expected:
        raise damaged_entry(expected, f"entry {expected} is missing, the next one here is {lsn}")


def first_lsn(connection: apsw.Connection) -> int:
    """The lowest lsn whose row was not trimmed; 1 for an empty log."""
    return read_anchor(connection).lsn + 1


def drop_bodies(db: Database, lsns: Sequence[int]) -> None:
    """Drop bodies that retention does not keep; inside the caller's transaction.

    An empty row is left where the log row is still here, so that a body which is missing for
    another reason is known to be damage.
    """
    row = db.execute(f"SELECT lsn FROM {ANCHOR}").fetchone()
    anchor_lsn = row[0] if row is not None else 0
    db.executemany(
        f"INSERT INTO {BODY} VALUES(?, x'') ON CONFLICT DO UPDATE SET bytes = excluded.bytes",
        [(lsn,) for lsn in lsns if lsn > anchor_lsn],
    )
    bodies.delete(db, [lsn for lsn in lsns if lsn <= anchor_lsn])


def sizes(connection: apsw.Connection, from_lsn: int, *, max_rows: int) -> list[tuple[int, int]]:
    """(lsn, bytes) of the entries from `from_lsn` on, body and a row's overhead included."""
    rows = connection.execute(
        "SELECT l.lsn, length(l.command) + ? + coalesce(length(b.bytes), 0)"
        f" FROM {LOG} l LEFT JOIN {BODY} b USING (lsn) WHERE l.lsn >= ? ORDER BY l.lsn LIMIT ?",
        (ENTRY_OVERHEAD_BYTES, from_lsn, max_rows),
    )
    return [(lsn, size) for lsn, size in rows]


def get_meta(connection: apsw.Connection, key: str, default: int = 0) -> int:
    row = connection.execute(_GET_META, (key,)).fetchone()
    return default if row is None else row[0]


def get_text(connection: apsw.Connection, key: str) -> str:
    """A text in `meta`, "" where there is none."""
    row = connection.execute(_GET_META, (key,)).fetchone()
    return "" if row is None else str(row[0])


def set_meta(connection: apsw.Connection, key: str, value: int | bytes | str) -> None:
    connection.execute(_SET_META, (key, value))


def verify_chain(entries: Iterable[Entry], start: LogPosition) -> LogPosition:
    """Recompute the chain over `entries` from `start`; return where it ends.

    Raises `CorruptionError` naming the first entry that does not fit.
    """
    chain, lsn, ballot = start.chain, start.lsn, start.ballot
    for entry in entries:
        if entry.lsn != lsn + 1:
            raise CorruptionError(f"entry {lsn + 1} is missing, the next one here is {entry.lsn}")
        chain = next_chain(
            chain, entry.ballot, entry.lsn, entry.now_ms, entry.command, hash_body(entry.body)
        )
        if chain != entry.chain:
            raise CorruptionError(f"entry {entry.lsn} does not continue the hash chain")
        lsn, ballot = entry.lsn, entry.ballot
    return LogPosition(lsn, ballot, chain)
