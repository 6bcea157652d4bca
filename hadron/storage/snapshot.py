"""A consistent copy of `hadron.db` as of one entry: what resync, backup and restore move around.

A copy is made from a live file without stopping its writer: SQLite's backup API on a connection of
its own, in slices that are synced one by one. Measured with 10 kB commits beside it, 200 MB and
1 GB: slices of 1 MB leave commits at p99 2.5 ms and at most 19 ms, where `VACUUM INTO` and a copy
in one go stall them for 120 to 340 ms, because one large fsync at the end holds up the small ones.

Safety rules (PROTOCOL B6): a copy holds no entry above its position S, whose effects are all in its
tables; it is given out only when the watermark covers S, which is for the caller to wait for.
Identity, promises and boot number are in `node.db` and never part of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec
import xxhash

from hadron.model.errors import CorruptionError, DataDirectoryError, HadronError
from hadron.model.ids import Ballot, LogPosition
from hadron.model.ports import Disk
from hadron.storage.database import open_reader, transaction, translated_errors
from hadron.storage.log import first_lsn, get_meta, hash_body, next_chain, position_at, set_meta

CHUNK_BYTES: Final = 1 << 20
"""How much of a copy is hashed, sent and checked at a time."""

DIVERGED: Final = "diverged"
"""Key in `meta`: why the tables are not what the log makes of them; absent when they are."""

_SLICE_PAGES: Final = 256
_ROWS_AT_A_TIME: Final = 32
"""Rows in memory: 64 MB with bodies of the largest size."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a copy of `hadron.db` is: written beside it as JSON, and told to whoever fetches it.

    Attributes:
        format: of the manifest; 1.
        uuid, chain, hash: in hexadecimal. `hash` is xxh3-128 over the whole file.
        lsn, epoch, incarnation, chain: the last entry, all of whose effects are in the tables.
        size: bytes of the file.
        created_ms: by the clock of the node that made it.
        version: of Hadron that made it.
    """

    cluster: str
    replica_set: str
    node: str
    uuid: str
    lsn: int
    epoch: int
    incarnation: int
    chain: str
    size: int
    hash: str
    created_ms: int
    version: str
    format: int = 1

    @property
    def position(self) -> LogPosition:
        return LogPosition(self.lsn, Ballot(self.epoch, self.incarnation), _unhex(self.chain))

    def encode(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


def decode_manifest(data: bytes, where: object) -> Manifest:
    """Raises `CorruptionError` naming `where` when it is none."""
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
        sound = len(manifest.position.chain) == 16 and manifest.size > 0 and manifest.lsn > 0
    except (msgspec.DecodeError, ValueError) as error:
        raise CorruptionError(f"{where} is not the manifest of a copy: {error}") from error
    if manifest.format != 1:
        raise CorruptionError(
            f"{where} has format {manifest.format}, this Hadron knows 1", "use a newer version"
        )
    if not sound:
        raise CorruptionError(f"{where} is not the manifest of a copy: its numbers make no sense")
    return manifest


def _unhex(text: str) -> bytes:
    return bytes.fromhex(text)


class NothingToCopyError(HadronError):
    """A node has no state of its own that another one could use."""

    default_retryable = True


def take(source: Path, target: Path, disk: Disk) -> LogPosition:
    """Copy the database at `source`, which others may be writing, to `target` in one piece of
    blocking work; returns the entry as of which the copy is. Durable on return.

    Raises `NothingToCopyError` when the source has applied nothing or its tables have diverged,
    and what the disk gives: `CorruptionError`, `StorageError`.
    """
    disk.remove(target)
    with translated_errors(target), contextlib.closing(_scratch(target, disk)) as copy:
        _copy_pages(source, copy, target, disk)
        return _cut_off_tail(copy)


def _scratch(path: Path, disk: Disk) -> apsw.Connection:
    """A new file that is thrown away after a crash: it needs no journal."""
    connection = apsw.Connection(str(path), vfs=disk.vfs)
    connection.pragma("journal_mode", "off")
    connection.pragma("synchronous", "full")
    return connection


def _copy_pages(source: Path, copy: apsw.Connection, target: Path, disk: Disk) -> None:
    with contextlib.closing(open_reader(source, vfs=disk.vfs)) as reader:
        # Commits during the copy would make it start over; a read transaction does not see them.
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        try:
            with copy.backup("main", reader, "main") as backup:
                while not backup.done:
                    backup.step(_SLICE_PAGES)
                    disk.sync(target)
        finally:
            reader.execute("ROLLBACK")
    # The pages came with the mark of a write-ahead log; a copy is one file.
    copy.pragma("journal_mode", "delete")
    copy.pragma("journal_mode", "off")


def _cut_off_tail(copy: apsw.Connection) -> LogPosition:
    """Leave the entries whose effects are in the tables, and no others."""
    reason = copy.execute("SELECT value FROM meta WHERE key = ?", (DIVERGED,)).fetchone()
    if reason is not None:
        raise NothingToCopyError(f"this node's own tables have diverged: {reason[0]}")
    lsn = get_meta(copy, "applied_lsn")
    position = position_at(copy, lsn)
    if lsn == 0 or position is None:
        raise NothingToCopyError("this node has applied nothing yet")
    with transaction(copy):
        copy.execute("DELETE FROM body WHERE lsn > ?", (lsn,))
        copy.execute("DELETE FROM log WHERE lsn > ?", (lsn,))
        set_meta(copy, "committed_lsn", lsn)
    return position


def measure(path: Path, disk: Disk) -> tuple[int, str]:
    """Size in bytes and xxh3-128 in hexadecimal of a whole file, read in chunks."""
    digest = xxhash.xxh3_128()
    size = 0
    while data := disk.read_at(path, size, CHUNK_BYTES):
        digest.update(data)
        size += len(data)
    return size, digest.hexdigest()


def verify(path: Path, manifest: Manifest, disk: Disk) -> None:
    """Check that a whole file is the copy that its manifest describes: its bytes, SQLite's own
    structure, and the hash chain of every entry that it still has up to the manifest's position.

    Raises `CorruptionError` naming what does not fit.
    """
    size, digest = measure(path, disk)
    if (size, digest) != (manifest.size, manifest.hash):
        raise CorruptionError(
            f"{path} has {size} bytes with hash {digest}, "
            f"its manifest says {manifest.size} with {manifest.hash}"
        )
    with translated_errors(path), contextlib.closing(open_reader(path, vfs=disk.vfs)) as copy:
        for (finding,) in copy.execute("PRAGMA quick_check(1)"):
            if finding != "ok":
                raise CorruptionError(f"{path} is damaged: {finding}")
        for key in ("applied_lsn", "committed_lsn"):
            if get_meta(copy, key) != manifest.lsn:
                raise CorruptionError(
                    f"{path} has {key} {get_meta(copy, key)}, its manifest says {manifest.lsn}"
                )
        end = chain_end(copy)
    if end != manifest.position:
        raise CorruptionError(
            f"the log in {path} ends at entry {end.lsn} with chain {end.chain.hex()}, "
            f"its manifest says {manifest.lsn} with {manifest.chain}"
        )


def chain_end(connection: apsw.Connection) -> LogPosition:
    """Recompute the hash chain over the whole log; returns where it ends.

    Raises `CorruptionError` naming the first entry, or body, that does not fit.
    """
    start = first_lsn(connection)
    at = position_at(connection, start - 1)
    if at is None:
        raise CorruptionError(f"the log begins at entry {start}, and nothing tells what was before")
    for lsn, epoch, incarnation, now_ms, command, body_hash, chain, body in _rows(connection):
        if lsn != at.lsn + 1:
            raise CorruptionError(f"entry {at.lsn + 1} is missing, the next one is {lsn}")
        ballot = Ballot(epoch, incarnation)
        if next_chain(at.chain, ballot, lsn, now_ms, command, body_hash) != chain:
            raise CorruptionError(f"entry {lsn} does not continue the hash chain")
        if body and hash_body(body) != body_hash:
            raise CorruptionError(f"the body of entry {lsn} does not match its hash")
        at = LogPosition(lsn, ballot, chain)
    return at


def _rows(connection: apsw.Connection) -> Iterator[tuple[Any, ...]]:
    after = -1
    while rows := _rows_after(connection, after, _ROWS_AT_A_TIME):
        yield from rows
        after = rows[-1][0]


def _rows_after(connection: apsw.Connection, lsn: int, limit: int) -> list[Any]:
    """Rows of the log with the body, None where there is none."""
    rows: list[Any] = connection.execute(
        "SELECT l.lsn, epoch, incarnation, now_ms, command, body_hash, chain, bytes"
        " FROM log l LEFT JOIN body b ON b.lsn = l.lsn WHERE l.lsn > ? ORDER BY l.lsn LIMIT ?",
        (lsn, limit),
    ).fetchall()
    return rows


def copy_tail(source: Path, target: Path, disk: Disk) -> int:
    """Give a verified copy at `target` the entries of `source` that follow it; returns how many.

    What this node's disk has acknowledged above the copy's position must not be lost with the old
    file: others may have counted it (PROTOCOL C). Nothing is copied where the two logs differ.
    Raises `CorruptionError` when the source's rows do not continue the chain.
    """
    with (
        translated_errors(source),
        contextlib.closing(open_reader(source, vfs=disk.vfs)) as old,
        translated_errors(target),
        contextlib.closing(apsw.Connection(str(target), vfs=disk.vfs)) as new,
    ):
        new.pragma("journal_mode", "delete")
        new.pragma("synchronous", "full")
        at = _head(new)
        if position_at(old, at.lsn) != at:
            return 0
        return _append_rows(old, new, at)


def _append_rows(old: apsw.Connection, new: apsw.Connection, at: LogPosition) -> int:
    copied = 0
    while rows := _rows_after(old, at.lsn, _ROWS_AT_A_TIME):
        with transaction(new):
            for lsn, epoch, incarnation, now_ms, command, body_hash, chain, body in rows:
                ballot = Ballot(epoch, incarnation)
                right = next_chain(at.chain, ballot, lsn, now_ms, command, body_hash)
                if lsn != at.lsn + 1 or right != chain:
                    raise CorruptionError(f"entry {lsn} of the old log does not continue its chain")
                if body and hash_body(body) != body_hash:
                    raise CorruptionError(
                        f"the body of entry {lsn} of the old log does not match its hash"
                    )
                new.execute(
                    "INSERT INTO log VALUES(?, ?, ?, ?, ?, ?, ?)",
                    (lsn, epoch, incarnation, now_ms, command, body_hash, chain),
                )
                if body is not None:
                    new.execute("INSERT INTO body VALUES(?, ?)", (lsn, body))
                at = LogPosition(lsn, ballot, chain)
        copied += len(rows)
    return copied


def _head(connection: apsw.Connection) -> LogPosition:
    last: Any = connection.execute("SELECT max(lsn) FROM log").fetchone()
    lsn = get_meta(connection, "applied_lsn") if last is None or last[0] is None else last[0]
    head = position_at(connection, lsn)
    if head is None:
        raise DataDirectoryError(f"a log without entry {lsn}, where its tables are", "")
    return head
