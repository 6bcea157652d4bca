"""A consistent copy of `hadron.db` as of one entry: what resync, backup and restore move around.

A copy is made from a live file without stopping its writer: SQLite's backup API on a connection of
its own, in slices that are synced one by one. Measured with 10 kB commits beside it, 200 MB and
1 GB: slices of 1 MB leave commits at p99 2.5 ms and at most 19 ms, where `VACUUM INTO` and a copy
in one go stall them for 120 to 340 ms, because one large fsync at the end holds up the small ones.

Safety rules (PROTOCOL B6): a copy holds no entry above its position S, whose effects are all in its
tables; it is given out only when the watermark covers S, or says that it does not, which is for the
caller to see to.
Identity, promises and boot number are in `node.db` and never part of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec
import xxhash
from msgspec.structs import replace

from hadron.model.errors import CorruptionError, DataDirectoryError, HadronError
from hadron.model.ids import Ballot, LogPosition
from hadron.model.ports import Disk
from hadron.storage.bodies import BODY
from hadron.storage.checksums import way_out
from hadron.storage.database import (
    FORMAT_VERSION,
    check_format,
    connect,
    in_words,
    is_damage,
    open_copy,
    open_reader,
    read_transaction,
    transaction,
    translated_errors,
    translated_os_errors,
)
from hadron.storage.log import (
    LOG,
    NO_BODY,
    chain_of_row,
    first_lsn,
    get_meta,
    get_text,
    hash_body,
    is_well_formed,
    last_lsn,
    position_at,
    set_meta,
)

CHUNK_BYTES: Final = 1 << 20
"""How much of a copy is hashed, sent and checked at a time."""

MANIFEST_FORMAT: Final = 1

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
        committed_lsn: up to where the log is known to be committed: `lsn`, or below it in a copy of
            a stopped leader's files, which may be ahead of everybody, and in one that leader and
            member of a ballot give each other for want of a majority.
        size: bytes of the file.
        created_ms: by the clock of the node that made it.
        version: of Hadron that made it.
        check: xxh3-128 in hexadecimal of the manifest as it is written, with "" for this value;
            only there, here it is "".
    """

    cluster: str
    replica_set: str
    node: str
    uuid: str
    lsn: int
    epoch: int
    incarnation: int
    chain: str
    committed_lsn: int
    size: int
    hash: str
    created_ms: int
    version: str
    format: int = MANIFEST_FORMAT
    check: str = ""

    @property
    def position(self) -> LogPosition:
        return LogPosition(self.lsn, Ballot(self.epoch, self.incarnation), _unhex(self.chain))

    @property
    def is_committed(self) -> bool:
        """Whether all that the tables hold is known to be committed."""
        return self.committed_lsn == self.lsn

    def encode(self) -> bytes:
        """As JSON, with its `check`."""
        plain = msgspec.json.format(msgspec.json.encode(self), indent=2)
        return _checked(plain, "", xxhash.xxh3_128_hexdigest(plain)) + b"\n"


def _checked(text: bytes, old: str, new: str) -> bytes:
    return text.replace(b'"check": "%b"' % old.encode(), b'"check": "%b"' % new.encode())


class _Format(msgspec.Struct):
    """What every format of the manifest has."""

    format: int


def decode_manifest(data: bytes, where: object) -> Manifest:
    """Raises `CorruptionError` naming `where` when it is none, or damaged, and
    `DataDirectoryError` when it is newer than this Hadron."""
    try:
        found = msgspec.json.decode(data, type=_Format).format
        if found > MANIFEST_FORMAT:
            raise DataDirectoryError(
                f"{where} has format {found}, this Hadron knows {MANIFEST_FORMAT}",
                "use the version of Hadron that made it, or a newer one",
            )
        manifest = msgspec.json.decode(data, type=Manifest)
        sound = (
            len(manifest.position.chain) == 16
            and len(_unhex(manifest.uuid)) in (0, 16)
            and manifest.size > 0
            and manifest.lsn > 0
        )
    except (msgspec.DecodeError, ValueError) as error:
        raise CorruptionError(f"{where} is not the manifest of a copy: {error}") from error
    plain = _checked(data.rstrip(b"\n"), manifest.check, "")
    if not sound or xxhash.xxh3_128_hexdigest(plain) != manifest.check:
        raise CorruptionError(f"{where} was damaged, or changed: its check does not match")
    return replace(manifest, check="")


def _unhex(text: str) -> bytes:
    return bytes.fromhex(text)


class NothingToCopyError(HadronError):
    """A node has no state of its own that another one could use."""

    default_retryable = True


class Copying:
    """Copies the database at `source`, which others may be writing, to `target`, step by step.

    The source's state is the one of the first step. What is left over after an error, or a crash,
    is worth nothing: `close`, and begin again.
    """

    def __init__(
        self, source: Path, target: Path, disk: Disk, *, is_committed: bool = True
    ) -> None:
        """Nothing is opened before the first step.

        Args:
            is_committed: the copy is not used before the watermark covers its last entry.
        """
        self._is_committed = is_committed
        self._source, self._target, self._disk = source, target, disk
        self._open = contextlib.ExitStack()
        self._backup: apsw.Backup | None = None
        self._copy: apsw.Connection | None = None

    def step(self) -> LogPosition | None:
        """Copy and sync the next slice; once all is copied and durable, the entry as of which the
        copy is.

        Raises `NothingToCopyError` when the source has applied nothing or its tables have
        diverged, and what the disk gives: `CorruptionError`, `StorageError`.
        """
        with translated_os_errors(self._target), translated_errors(self._target):
            try:
                backup = self._backup or self._begin()
                done = backup.done or backup.step(_SLICE_PAGES)
            except apsw.Error as error:
                if not is_damage(error):
                    raise
                # Of the target nothing is read.
                raise CorruptionError(
                    f"{self._source} is damaged: {in_words(error)}", way_out(self._source)
                ) from error
            if not done:
                self._disk.sync(self._target)
                return None
            self._open.close()
            assert self._copy is not None
            # The pages came with the mark of a write-ahead log; a copy is one file.
            self._copy.pragma("journal_mode", "delete")
            self._copy.pragma("journal_mode", "off")
            position = _cut_off_tail(self._copy, is_committed=self._is_committed)
            self.close()
            self._disk.sync(self._target)
            return position

    def _begin(self) -> apsw.Backup:
        self._disk.remove(self._target)
        # It is thrown away after a crash: it needs no journal.
        self._copy = open_copy(self._target, vfs=self._disk.vfs)
        reader = open_reader(self._source, vfs=self._disk.vfs)
        self._open.callback(reader.close, True)
        # Commits during the copy would make it start over; a read transaction does not see them.
        self._open.enter_context(read_transaction(reader))
        reader.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        self._backup = self._copy.backup("main", reader, "main")
        # Forced: what has ended it is raised once more otherwise.
        self._open.callback(self._backup.close, True)
        return self._backup

    def close(self) -> None:
        """Let both files go, whatever has happened; may be called again."""
        self._open.close()
        if self._copy is not None:
            self._copy.close(True)


def take(source: Path, target: Path, disk: Disk, *, is_committed: bool = True) -> LogPosition:
    """All of `Copying` in one piece of blocking work; returns and raises what it does."""
    with contextlib.closing(Copying(source, target, disk, is_committed=is_committed)) as copying:
        while (position := copying.step()) is None:
            pass
    return position


def _cut_off_tail(copy: apsw.Connection, *, is_committed: bool) -> LogPosition:
    """Leave the entries whose effects are in the tables, and no others."""
    if reason := get_text(copy, DIVERGED):
        raise NothingToCopyError(f"this node's own tables have diverged: {reason}")
    lsn = get_meta(copy, "applied_lsn")
    position = position_at(copy, lsn)
    if lsn == 0 or position is None:
        raise NothingToCopyError("this node has applied nothing yet")
    with transaction(copy):
        copy.execute(f"DELETE FROM {BODY} WHERE lsn > ?", (lsn,))
        copy.execute(f"DELETE FROM {LOG} WHERE lsn > ?", (lsn,))
        committed = lsn if is_committed else min(lsn, get_meta(copy, "committed_lsn"))
        set_meta(copy, "committed_lsn", committed)
    return position


def note_committed(path: Path, lsn: int, disk: Disk) -> None:
    """Have a copy say that its log is known to be committed up to `lsn` only."""
    with translated_errors(path), contextlib.closing(connect(path, vfs=disk.vfs)) as copy:
        copy.pragma("journal_mode", "delete")
        copy.pragma("synchronous", "full")
        with transaction(copy):
            set_meta(copy, "committed_lsn", lsn)


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

    Raises `CorruptionError` naming what does not fit, `DataDirectoryError` for a newer format.
    """
    size, digest = measure(path, disk)
    if (size, digest) != (manifest.size, manifest.hash):
        raise CorruptionError(
            f"{path} has {size} bytes with hash {digest}, "
            f"its manifest says {manifest.size} with {manifest.hash}"
        )
    with translated_errors(path), contextlib.closing(open_reader(path, vfs=disk.vfs)) as copy:
        check_format(copy, path, FORMAT_VERSION)
        for (finding,) in copy.execute("PRAGMA quick_check(1)"):
            if finding != "ok":
                raise CorruptionError(f"{path} is damaged: {finding}")
        for key, said in (("applied_lsn", manifest.lsn), ("committed_lsn", manifest.committed_lsn)):
            if get_meta(copy, key) != said:
                raise CorruptionError(
                    f"{path} has {key} {get_meta(copy, key)}, its manifest says {said}"
                )
        end = chain_end(copy)
    if end != manifest.position:
        raise CorruptionError(
            f"the log in {path} ends at entry {end.lsn} with chain {end.chain.hex()}, "
            f"its manifest says {manifest.lsn} with {manifest.chain}"
        )


def chain_end(connection: apsw.Connection) -> LogPosition:
    """Recompute the hash chain over the whole log; returns where it ends.

    Raises `CorruptionError` naming the first entry, or body, that does not fit or is missing.
    """
    start = first_lsn(connection)
    at = position_at(connection, start - 1)
    if at is None:
        raise CorruptionError(f"the log begins at entry {start}, and nothing tells what was before")
    for row in _rows(connection):
        at = _following(at, row)
    return at


def _following(at: LogPosition, row: Sequence[Any]) -> LogPosition:
    """The position of a row of the log, with its body, which continues `at`. Raises
    `CorruptionError` when it does not, or has values that no entry has: a page that came from a
    damaged frame has a checksum that is right."""
    *logged, body = row
    lsn, epoch, incarnation, *_, body_hash, chain = logged
    if lsn != at.lsn + 1:
        raise CorruptionError(f"entry {at.lsn + 1} is missing, the next one is {lsn}")
    if not is_well_formed(logged):
        raise CorruptionError(f"entry {lsn} has values that no entry has")
    if chain_of_row(at.chain, logged) != chain:
        raise CorruptionError(f"entry {lsn} does not continue the hash chain")
    if body is None and body_hash != NO_BODY:
        raise CorruptionError(f"the body of entry {lsn} is missing")
    if body and (type(body) is not bytes or hash_body(body) != body_hash):
        raise CorruptionError(f"the body of entry {lsn} does not match its hash")
    return LogPosition(lsn, Ballot(epoch, incarnation), chain)


def _rows(connection: apsw.Connection) -> Iterator[tuple[Any, ...]]:
    after = -1
    while rows := _rows_after(connection, after, _ROWS_AT_A_TIME):
        yield from rows
        after = rows[-1][0]


def _rows_after(connection: apsw.Connection, lsn: int, limit: int) -> list[Any]:
    """Rows of the log with the body, None where there is none."""
    rows: list[Any] = connection.execute(
        "SELECT l.lsn, epoch, incarnation, now_ms, command, body_hash, chain, bytes"
        f" FROM {LOG} l LEFT JOIN {BODY} b ON b.lsn = l.lsn WHERE l.lsn > ? ORDER BY l.lsn LIMIT ?",
        (lsn, limit),
    ).fetchall()
    return rows


def copy_tail(source: Path, target: Path, base: LogPosition, disk: Disk) -> int:
    """Give a verified copy at `target`, made at `base`, the entries of `source` that follow it;
    returns how many were added. It may be called again when the source has moved on.

    What this node's disk has acknowledged above the copy's position must not be lost with the old
    file: others may have counted it (PROTOCOL C). Where `source` does not hold `base`, it holds
    nothing that follows it, or was trimmed beyond it, which the caller looks at. Raises
    `CorruptionError` when its rows do not continue the chain.
    """
    with (
        translated_errors(source),
        contextlib.closing(open_reader(source, vfs=disk.vfs)) as old,
        translated_errors(target),
        contextlib.closing(connect(target, vfs=disk.vfs)) as new,
    ):
        new.pragma("journal_mode", "delete")
        new.pragma("synchronous", "full")
        at = head_of(new)
        if position_at(old, at.lsn) != at:
            # A tail copied before was dropped since.
            with transaction(new):
                new.execute(f"DELETE FROM {BODY} WHERE lsn > ?", (base.lsn,))
                new.execute(f"DELETE FROM {LOG} WHERE lsn > ?", (base.lsn,))
            at = base
        if position_at(old, at.lsn) != at:
            return 0
        return _append_rows(old, new, at)


def _append_rows(old: apsw.Connection, new: apsw.Connection, at: LogPosition) -> int:
    copied = 0
    while rows := _rows_after(old, at.lsn, _ROWS_AT_A_TIME):
        with transaction(new):
            for lsn, *others, body in rows:
                at = _following(at, (lsn, *others, body))
                new.execute(f"INSERT INTO {LOG} VALUES(?, ?, ?, ?, ?, ?, ?)", (lsn, *others))
                if body is not None:
                    new.execute(f"INSERT INTO {BODY} VALUES(?, ?)", (lsn, body))
        copied += len(rows)
    return copied


def head_of(connection: apsw.Connection) -> LogPosition:
    """Where a file's log ends. Raises `DataDirectoryError` for one that lacks its last entry."""
    lsn = last_lsn(connection)
    head = position_at(connection, lsn)
    if head is None:
        raise DataDirectoryError(f"a log without entry {lsn}, where its tables are", "")
    return head
