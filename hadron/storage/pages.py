"""Giving damaged pages of a live database back the bytes that they were written with.

A page that SQLite cannot read takes every row on it along, and rows cannot be written to it
either. But what stands on the pages of `log` and `body` is known elsewhere, and a page has a
checksum: of the whole of it in the database file, of its frame in the write-ahead log. So the rows
that another member has are put where they stood, byte by byte, and the page is written only when
its own checksum says that this is what it was. Nothing else can be written by this, whatever the
page holds and whatever the other member sent; where no such bytes are found, the page is left to
those who replace the whole file. (Looking for the one bit that makes the checksum fit would need no
other member, and is wrong: for a word's upper bits hundreds of places fit.)

Everything here happens beneath SQLite, in the place where a reader that begins now finds the page:
its last frame in the log, unless a checkpoint has copied that into the file already, else the file.
What SQLite has in its caches stays right. The caller is the writer, outside of a transaction, and
lets no checkpoint run meanwhile.

The format is SQLite's (sqlite.org/fileformat2.html, sections 1.6, 2.1 and 4).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import apsw

from hadron.model.ports import Disk
from hadron.storage.bodies import BODY
from hadron.storage.checksums import RESERVED_BYTES
from hadron.storage.database import PAGE_BYTES
from hadron.storage.log import LOG, Entry, hash_body
from hadron.storage.wal_scan import LiveFrames, Slices

_USABLE: Final = PAGE_BYTES - RESERVED_BYTES
_MAX_LOCAL: Final = _USABLE - 35
_MIN_LOCAL: Final = (_USABLE - 12) * 32 // 255 - 23
_OVERFLOW: Final = _USABLE - 4
"""Bytes of a row on a page of their own, behind the number of the next such page."""

_INTERIOR: Final = 5
_LEAF: Final = 13
_NUMBER: Final = struct.Struct(">I")
_SHORT: Final = struct.Struct(">H")

_MAX_DEPTH: Final = 20

Known = Mapping[int, Entry]
"""Entries that another member has, by lsn."""


class _LostError(Exception):
    """A page that leads to the others is not what it was, and what it was is not to be found."""


@dataclass(frozen=True, slots=True)
class _Cell:
    """A row on a leaf: where its payload begins, and how long it is with what is elsewhere."""

    lsn: int
    begin: int
    size: int

    @property
    def local(self) -> int:
        if self.size <= _MAX_LOCAL:
            return self.size
        kept = _MIN_LOCAL + (self.size - _MIN_LOCAL) % _OVERFLOW
        return kept if kept <= _MAX_LOCAL else _MIN_LOCAL


class Mending:
    """One attempt at the pages of one entry's rows."""

    def __init__(self, db: apsw.Connection, path: Path, disk: Disk, known: Known) -> None:
        """
        Args:
            path: the database; the write-ahead log stands beside it.
            known: entries that may stand on the damaged pages.
        """
        self._db = db
        self._path = path
        self._disk = disk
        self._known = known
        wal = Path(f"{path}-wal")
        self._wal_path = wal
        size = wal.stat().st_size if wal.exists() else 0
        self._frames = LiveFrames(Slices(partial(disk.read_at, wal), size), PAGE_BYTES)
        # No reader that begins looks at a frame that was copied, though it stands there until the
        # log has begun anew.
        frames, copied = db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        self._uncopied = {
            page: frame for page, frame in self._frames.latest.items() if copied <= frame < frames
        }
        self.mended: dict[int, bytes] = {}
        """The pages that were given back what they were."""
        self.is_sound = True
        """Whether all pages that were looked at are what was written, or are so again."""
        self.wanted: set[int] = set()
        """Entries whose rows stand on a page that is still damaged, and are not known."""

    def mend(self, lsn: int) -> None:
        """Look at every page that leads to the rows of entry `lsn`, and at those that they stand
        on. Raises `apsw.Error` and `OSError` of the disk."""
        # By the VFS, whose descriptors share the locks on the file: to close another one would
        # let go of all that this process has on it.
        flags = apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READWRITE
        self._file = apsw.VFSFile(self._disk.vfs, str(self._path), [flags, 0])
        try:
            for table in (LOG, BODY):
                root = self._db.execute(
                    "SELECT rootpage FROM sqlite_schema WHERE type = 'table' AND name = ?", (table,)
                ).get
                try:
                    self._mend_rows(table, int(root), lsn)
                except (_LostError, IndexError, struct.error):
                    self.is_sound = False
            if self.mended:
                self._file.xSync(apsw.SQLITE_SYNC_FULL)
        finally:
            self._file.xClose()

    def _mend_rows(self, table: str, root: int, lsn: int) -> None:
        page = self._leaf(table, root, lsn)
        cell = next((each for each in _cells(page) if each.lsn == lsn), None)
        if cell is None:
            return
        payload = self._payload(table, lsn) or b""
        at = cell.local
        (number,) = _NUMBER.unpack_from(page, cell.begin + at) if at < cell.size else (0,)
        while at < cell.size:
            part = payload[at : at + _OVERFLOW] if len(payload) == cell.size else b""
            content = self._sound(number, partial(_with_part, part))
            (number,) = _NUMBER.unpack_from(content)
            at += _OVERFLOW

    def _leaf(self, table: str, root: int, lsn: int) -> bytes:
        number = root
        for _ in range(_MAX_DEPTH):
            content = self._sound(number, lambda content: self._with_rows(table, content))
            if content[0] == _LEAF:
                return content
            if content[0] != _INTERIOR:
                break
            number = _child(content, lsn)
        raise _LostError

    def _sound(self, number: int, candidates: Callable[[bytes], Any]) -> bytes:
        """The content of a page, which is what was written. Raises `_LostError`."""
        if number in self.mended:
            return self.mended[number]
        frame = self._uncopied.get(number)
        if frame is not None:
            content = self._frames.content(frame)

            def is_sound(content: bytes) -> bool:
                return self._frames.is_sound(frame, content)

        else:
            content = self._file.xRead(PAGE_BYTES, (number - 1) * PAGE_BYTES)

            def is_sound(content: bytes) -> bool:
                return bool(self._db.execute("SELECT verify_checksum(?)", (content,)).get == 1)

        if is_sound(content):
            return content
        wanted = set(self.wanted)
        for candidate in candidates(content):
            if is_sound(candidate):
                # Those that were not known did not matter.
                self.wanted = wanted
                return self._write(number, frame, candidate)
        raise _LostError

    def _write(self, number: int, frame: int | None, content: bytes) -> bytes:
        if frame is None:
            self._file.xWrite(content, (number - 1) * PAGE_BYTES)
        else:
            self._disk.write_at(self._wal_path, self._frames.offset(frame), content)
            self._disk.sync(self._wal_path)
            # Frames are not compared with their checksums when they are read.
            self._db.pragma("shrink_memory")
        self.mended[number] = content
        return content

    def _with_rows(self, table: str, content: bytes) -> Iterator[bytes]:
        """A leaf with one row after the other as it was."""
        if content[0] != _LEAF:
            return
        for cell in _cells(content):
            payload = self._payload(table, cell.lsn)
            if payload is None:
                if cell.lsn not in self._known:
                    self.wanted.add(cell.lsn)
            elif len(payload) == cell.size:
                row = payload[: cell.local]
                content = content[: cell.begin] + row + content[cell.begin + len(row) :]
                yield content

    def _payload(self, table: str, lsn: int) -> bytes | None:
        """A row as SQLite writes it; None where it is not known."""
        entry = self._known.get(lsn)
        if entry is None:
            return None
        if table == BODY:
            return _record(None, bytes(entry.body)) if len(entry.body) else None
        if not entry.chain:
            # Of an entry that was trimmed where it came from there is the body only.
            return None
        return _record(
            None,
            *entry.ballot,
            entry.now_ms,
            bytes(entry.command),
            hash_body(entry.body),
            entry.chain,
        )


def _with_part(part: bytes, content: bytes) -> list[bytes]:
    """A page of a row's own with that part of the row, and the last one of a row also with nothing
    else on it."""
    rest = content[4 + len(part) :]
    empty = bytes(_USABLE - 4 - len(part)) + content[_USABLE:]
    return [content[:4] + part + rest, bytes(4) + part + empty]


def _cells(page: bytes) -> list[_Cell]:
    """The rows of a leaf, as far as they make sense."""
    found = []
    (count,) = _SHORT.unpack_from(page, 3)
    for index in range(min(count, (PAGE_BYTES - 8) // 2)):
        (at,) = _SHORT.unpack_from(page, 8 + 2 * index)
        if not 8 <= at < _USABLE:
            continue
        size, at = _read_varint(page, at)
        lsn, at = _read_varint(page, at)
        cell = _Cell(lsn, at, size)
        if at + cell.local + (4 if cell.local < size else 0) <= _USABLE:
            found.append(cell)
    return found


def _child(page: bytes, lsn: int) -> int:
    """The page below an interior one that leads to a row."""
    (count,) = _SHORT.unpack_from(page, 3)
    for index in range(count):
        (at,) = _SHORT.unpack_from(page, 12 + 2 * index)
        (child,) = _NUMBER.unpack_from(page, at)
        if lsn <= _read_varint(page, at + 4)[0]:
            return int(child)
    (child,) = _NUMBER.unpack_from(page, 8)
    return int(child)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """(a number, where it ends)."""
    value = 0
    for index in range(8):
        byte = data[at + index]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + index + 1
    return value << 8 | data[at + 8], at + 9


def _varint(value: int) -> bytes:
    """Of a number below 2^56."""
    parts = [value & 0x7F]
    while value := value >> 7:
        parts.append(value & 0x7F | 0x80)
    return bytes(reversed(parts))


def _record(*values: int | bytes | None) -> bytes:
    """A row in SQLite's record format."""
    types, contents = b"", b""
    for value in values:
        kind, content = _column(value)
        types += _varint(kind)
        contents += content
    size = len(types) + 1
    if size > 127:
        size += 1
    return _varint(size) + types + contents


def _column(value: int | bytes | None) -> tuple[int, bytes]:
    """(serial type, content)."""
    if value is None:
        return 0, b""
    if isinstance(value, bytes):
        return 12 + 2 * len(value), value
    if value in (0, 1):
        return 8 + value, b""
    for kind, size in enumerate((1, 2, 3, 4, 6, 8), 1):
        if -(1 << 8 * size - 1) <= value < 1 << 8 * size - 1:
            return kind, value.to_bytes(size, "big", signed=True)
    raise ValueError(value)
