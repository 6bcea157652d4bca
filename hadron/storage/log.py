"""The log inside a node's database: rows, bodies, and the hash chain over them.

    chain(lsn) = xxh3-128(chain(lsn - 1) | epoch | incarnation | lsn | now_ms |
                          xxh3-128(command) | body_hash)

with every number as 8 little-endian bytes, chain(0) = 16 zero bytes, and body_hash =
xxh3-128(body) or 16 zero bytes without one. The body's hash stands in the log row, so a chain can
still be checked after retention has dropped the body (PROTOCOL A6). xxh3 guards against disks and
bugs, not against somebody who forges entries on purpose.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import apsw
import xxhash

from hadron.model.errors import CorruptionError
from hadron.model.ids import EMPTY_LOG, Ballot, LogPosition

TABLES: Final = """
CREATE TABLE IF NOT EXISTS log(
    lsn INTEGER PRIMARY KEY,
    epoch INTEGER NOT NULL, incarnation INTEGER NOT NULL,
    now_ms INTEGER NOT NULL,          -- the leader's clock, never below the entry before
    command BLOB NOT NULL,
    body_hash BLOB NOT NULL,
    chain BLOB NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS body(
    lsn INTEGER PRIMARY KEY,
    bytes BLOB NOT NULL               -- what the producer sent, untouched
) STRICT;
CREATE TABLE IF NOT EXISTS meta(
    key TEXT PRIMARY KEY,
    value ANY NOT NULL
) STRICT, WITHOUT ROWID;
"""

NO_BODY: Final = bytes(16)
_NUMBERS: Final = struct.Struct("<QQQQ")
_INSERT_LOG: Final = "INSERT INTO log VALUES(?, ?, ?, ?, ?, ?, ?)"
_INSERT_BODY: Final = "INSERT INTO body VALUES(?, ?)"
_SELECT: Final = (
    "SELECT l.lsn, l.epoch, l.incarnation, l.now_ms, l.command, b.bytes, l.chain, l.body_hash"
    " FROM log l LEFT JOIN body b USING (lsn) "
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
    return xxhash.xxh3_128_digest(
        previous + numbers + xxhash.xxh3_128_digest(command) + body_hash
    )


class Log:
    """The log of one database, over the one connection that writes it.

    The head is cached; `reload` must be called after a rollback or a dropped tail.
    """

    def __init__(self, connection: apsw.Connection) -> None:
        self._db = connection
        self.head = EMPTY_LOG
        self.last_ms = 0
        self.reload()

    def reload(self) -> None:
        """Take the head from the tables again."""
        row = self._db.execute(
            "SELECT lsn, epoch, incarnation, chain, now_ms FROM log ORDER BY lsn DESC LIMIT 1"
        ).fetchone()
        if row is None:
            self.head, self.last_ms = EMPTY_LOG, 0
        else:
            self.head = LogPosition(row[0], Ballot(row[1], row[2]), row[3])
            self.last_ms = row[4]

    def append(
        self, ballot: Ballot, now_ms: int, command: bytes, body: bytes | memoryview
    ) -> Entry:
        """Write the next entry and return it. The caller owns the transaction."""
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
        self, lsn: int, ballot: Ballot, now_ms: int, command: bytes, body: bytes | memoryview,
        body_hash: bytes, chain: bytes,
    ) -> None:
        self._db.execute(
            _INSERT_LOG,
            (lsn, ballot.epoch, ballot.incarnation, now_ms, command, body_hash, chain),
        )
        if len(body):
            self._db.execute(_INSERT_BODY, (lsn, body))
        self.head = LogPosition(lsn, ballot, chain)
        self.last_ms = now_ms

    def drop_after(self, lsn: int) -> None:
        """Drop the tail above `lsn`. The caller has checked that none of it was applied."""
        self._db.execute("DELETE FROM body WHERE lsn > ?", (lsn,))
        self._db.execute("DELETE FROM log WHERE lsn > ?", (lsn,))
        self.reload()

    def position_at(self, lsn: int) -> LogPosition | None:
        """The position at `lsn`, None where this log has no entry."""
        if lsn == self.head.lsn:
            return self.head
        return position_at(self._db, lsn)


def position_at(connection: apsw.Connection, lsn: int) -> LogPosition | None:
    """The position at `lsn`; 0 is the empty log's."""
    if lsn == 0:
        return EMPTY_LOG
    row = connection.execute(
        "SELECT epoch, incarnation, chain FROM log WHERE lsn = ?", (lsn,)
    ).fetchone()
    return None if row is None else LogPosition(lsn, Ballot(row[0], row[1]), row[2])


def read_entries(
    connection: apsw.Connection, from_lsn: int, *, max_bytes: int, until_lsn: int | None = None
) -> list[Entry]:
    """Entries from `from_lsn` on in order, up to `max_bytes` but at least one.

    Raises `CorruptionError` when a row does not match its own hashes.
    """
    entries: list[Entry] = []
    size = 0
    for row in connection.execute(
        _SELECT + "WHERE l.lsn >= ? AND l.lsn <= ? ORDER BY l.lsn",
        (from_lsn, until_lsn if until_lsn is not None else (1 << 62)),
    ):
        entry = _entry(row)
        entries.append(entry)
        size += entry.size
        if size >= max_bytes:
            break
    return entries


def read_commands(connection: apsw.Connection, from_lsn: int, until_lsn: int) -> list[Entry]:
    """Entries without their bodies, which `apply` does not look at."""
    rows = connection.execute(
        "SELECT lsn, epoch, incarnation, now_ms, command, chain FROM log"
        " WHERE lsn >= ? AND lsn <= ? ORDER BY lsn",
        (from_lsn, until_lsn),
    )
    return [
        Entry(lsn, Ballot(epoch, incarnation), now_ms, command, b"", chain)
        for lsn, epoch, incarnation, now_ms, command, chain in rows
    ]


def _entry(row: Sequence[Any]) -> Entry:
    lsn, epoch, incarnation, now_ms, command, body, chain, body_hash = row
    data = body or b""
    if hash_body(data) != body_hash:
        raise CorruptionError(f"the body of entry {lsn} does not match its hash")
    return Entry(lsn, Ballot(epoch, incarnation), now_ms, command, data, chain)


def first_lsn(connection: apsw.Connection) -> int:
    """The lowest lsn whose entry is still here; 1 for an empty log."""
    row = connection.execute("SELECT min(lsn) FROM log").fetchone()
    return row[0] if row is not None and row[0] is not None else 1


def get_meta(connection: apsw.Connection, key: str, default: int = 0) -> int:
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return default if row is None else row[0]


def set_meta(connection: apsw.Connection, key: str, value: int | bytes | str) -> None:
    connection.execute(
        "INSERT INTO meta VALUES(?, ?) ON CONFLICT(key) DO UPDATE SET value = excluded.value",
        (key, value),
    )


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
