"""Telling a torn write-ahead log from a damaged one, before SQLite opens it (PROTOCOL B4).

SQLite ends a log at the first frame whose checksum does not fit, and says nothing: it cannot tell a
crash in the middle of a COMMIT from a bit that flipped in what was fsynced long ago. The frames
behind the bad one tell. A transaction is written only after the one before it was fsynced, so a
good frame *behind a later commit* means that what is bad was on the disk once.

Pure: it is given the file's bytes, or `Slices` of a file that may be long: a log cannot restart
while a copy of the database is made. Of either it keeps nothing for each frame. The format is
SQLite's (sqlite.org/fileformat2.html, section 4): a header of 32 bytes, then frames of 24 bytes and
a page. Every frame's checksum is seeded with its predecessor's. Its rule needs two things of
whoever writes the log: every commit is fsynced before the next is written, and after an unclean
stop the log is begun anew (new salts) before it is continued, or frames of a torn transaction could
stand behind a later one.

Left over, and documented: damage that reaches to the log's end looks torn, however many flushed
commits it takes. That is a bit in the last one, and a log that was cut, or is zeros up to its end.
"""

from __future__ import annotations

import enum
import operator
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

HEADER_BYTES: Final = 32
FRAME_HEADER_BYTES: Final = 24

_LITTLE: Final = 0x377F0682
_BIG: Final = 0x377F0683
_HEADER: Final = struct.Struct(">8I")
_FRAME: Final = struct.Struct(">6I")
_MASK: Final = 0xFFFFFFFF

_SLICE_BYTES: Final = 1 << 20
_BEHIND_BYTES: Final = 64 << 10
"""Of a slice, before what was asked for: frames are compared with the one before."""

Checksum = tuple[int, int]
Salts = tuple[int, int]


class Data(Protocol):
    """What a log holds; `bytes` are."""

    def __len__(self) -> int: ...

    def __getitem__(self, at: slice, /) -> bytes: ...


class Slices:
    """The bytes of a file that nobody changes meanwhile, of which one slice is in memory."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        """`read`: told (offset, size), as `ports.Disk.read_at` of the file."""
        self._read = read
        self._size = size
        self._begin = 0
        self._slice = b""

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, at: slice, /) -> bytes:
        begin, end, _ = at.indices(self._size)
        if not self._begin <= begin <= end <= self._begin + len(self._slice):
            self._slice = b""
            self._begin = max(0, begin - _BEHIND_BYTES)
            self._slice = self._read(self._begin, max(_SLICE_BYTES, end - self._begin))
        return self._slice[begin - self._begin : end - self._begin]


class Verdict(enum.Enum):
    """What a log's bytes say about the stop that left them."""

    CLEAN = "clean"
    """It ends with a whole transaction; nothing was begun after it."""
    TORN_TAIL = "torn tail"
    """A transaction behind the last whole one was not finished; nobody was told of it."""
    DAMAGED = "damaged"
    """Something that was fsynced is not what it was."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One page, as a transaction wrote it. `commit_pages` is the database's size for the last
    frame of a transaction, else 0."""

    page: int
    commit_pages: int
    salts: Salts
    stored: Checksum


@dataclass(frozen=True, slots=True)
class WalScan:
    """What a scan found."""

    verdict: Verdict
    frames: int
    """Those that SQLite will use: up to the last whole transaction."""
    reason: str = ""
    """For people, when it is damaged."""
    header_is_bad: bool = False
    """SQLite will use none of it. A log that was begun anew and whose header was torn looks the
    same, and loses nothing; see `latest_pages`."""


_BAD_HEADER: Final = WalScan(
    Verdict.DAMAGED, 0, "its header does not match its checksum", header_is_bad=True
)


def scan_wal(data: Data, page_bytes: int) -> WalScan:
    """Judge the bytes of a write-ahead log.

    Args:
        page_bytes: the database's page size; a log with another is damaged.
    """
    if len(data) < HEADER_BYTES:
        return WalScan(Verdict.CLEAN if not data else Verdict.TORN_TAIL, 0)
    header = _HEADER.unpack(data[:HEADER_BYTES])
    magic, _version, header_page_bytes, _sequence, *rest = header
    salts, stored = (rest[0], rest[1]), (rest[2], rest[3])
    if magic not in (_LITTLE, _BIG):
        return _BAD_HEADER
    order = "<" if magic == _LITTLE else ">"
    if _sum(data[:24], (0, 0), order) != stored or header_page_bytes != page_bytes:
        return _BAD_HEADER
    return _Frames(data, page_bytes, order).judge(salts, stored)


def latest_pages(data: Data, page_bytes: int) -> Iterator[tuple[int, bytes]]:
    """(number, content) of the pages of all whole transactions, as the last of them left each,
    whatever the header says.

    Where all of these stand in the database file already, losing the log loses nothing.
    """
    frames = _Frames(data, page_bytes, _order_of(data, page_bytes))
    if not len(frames):
        return
    last = max(
        (index for index in frames.generation(frames[0].salts) if frames[index].commit_pages),
        default=-1,
    )
    latest = {frames[index].page: index for index in range(last + 1)}
    for number, index in sorted(latest.items(), key=operator.itemgetter(1)):
        yield number, frames.content(index)


class LiveFrames:
    """The frames that readers of a live log find: those of the present generation, up to its last
    whole transaction."""

    def __init__(self, data: Data, page_bytes: int) -> None:
        self._page_bytes = page_bytes
        self.latest: dict[int, int] = {}
        """The last frame of each page."""
        if len(data) < HEADER_BYTES:
            return
        magic, _, _, _, *rest = _HEADER.unpack(data[:HEADER_BYTES])
        self._frames = _Frames(data, page_bytes, "<" if magic == _LITTLE else ">")
        self._seed = rest[2], rest[3]
        pages: dict[int, int] = {}
        for index in range(len(self._frames)):
            frame = self._frames[index]
            if frame.salts != (rest[0], rest[1]):
                break
            pages[frame.page] = index
            if frame.commit_pages:
                self.latest.update(pages)
                pages.clear()

    def content(self, index: int) -> bytes:
        return self._frames.content(index)

    def offset(self, index: int) -> int:
        """Where the page of a frame stands in the file."""
        return HEADER_BYTES + index * (FRAME_HEADER_BYTES + self._page_bytes) + FRAME_HEADER_BYTES

    def is_sound(self, index: int, content: bytes) -> bool:
        """Whether a frame with this page would be the one that was written."""
        seed = self._frames[index - 1].stored if index else self._seed
        return self._frames.checksum(index, seed, content=content) == self._frames[index].stored


def _order_of(data: Data, page_bytes: int) -> str:
    """The byte order of the checksums, for which any frame fits its predecessor."""
    for order in "<>":
        frames = _Frames(data, page_bytes, order)
        if any(frames.fits(index) for index in range(1, min(len(frames), 64))):
            return order
    return "<"


class _Frames:
    """The frames of a log, by their index; the first is 0."""

    def __init__(self, data: Data, page_bytes: int, order: str) -> None:
        self._data = data
        self._page_bytes = page_bytes
        self._step = FRAME_HEADER_BYTES + page_bytes
        self._order = order

    def __len__(self) -> int:
        return (len(self._data) - HEADER_BYTES) // self._step

    def __getitem__(self, index: int) -> Frame:
        start = self._start(index)
        numbers = _FRAME.unpack(self._data[start : start + FRAME_HEADER_BYTES])
        page, commit_pages, salt_1, salt_2, sum_1, sum_2 = numbers
        return Frame(page, commit_pages, (salt_1, salt_2), (sum_1, sum_2))

    def _start(self, index: int) -> int:
        return HEADER_BYTES + index * self._step

    def content(self, index: int) -> bytes:
        start = self._start(index) + FRAME_HEADER_BYTES
        return self._data[start : start + self._page_bytes]

    def checksum(
        self, index: int, seed: Checksum, *, head: bytes = b"", content: bytes = b""
    ) -> Checksum:
        """The frame's checksum by its content; `head` replaces its page and size numbers, `content`
        its page."""
        start = self._start(index)
        first = head or self._data[start : start + 8]
        return _sum(content or self.content(index), _sum(first, seed, self._order), self._order)

    def generation(self, salts: Salts, since: int = 0) -> Iterator[int]:
        return (index for index in range(since, len(self)) if self[index].salts == salts)

    def fits(self, index: int) -> bool:
        """Whether the frame validates when seeded with what its predecessor has stored."""
        return self.checksum(index, self[index - 1].stored) == self[index].stored

    def judge(self, salts: Salts, seed: Checksum) -> WalScan:
        """Follow the chain to the first frame that does not continue it, and look behind it."""
        whole = good = 0
        while good < len(self) and self[good].salts == salts:
            if self.checksum(good, seed) != self[good].stored:
                break
            seed = self[good].stored
            good += 1
            if self[good - 1].commit_pages:
                whole = good
        witness = self._witness(good, salts, seed)
        if witness is not None:
            reason = (
                f"frame {good + 1} is not what was written, but frame {witness + 1}, of a later "
                "transaction, is"
            )
            return WalScan(Verdict.DAMAGED, whole, reason)
        begun = good > whole or next(self.generation(salts, good), None) is not None
        return WalScan(Verdict.TORN_TAIL if begun else Verdict.CLEAN, whole)

    def _witness(self, bad: int, salts: Salts, seed: Checksum) -> int | None:
        """A good frame behind a commit that is at or behind the bad frame."""
        committed = False
        for index in range(bad, len(self)):
            frame = self[index]
            current = frame.salts == salts
            if committed and current and self._follows(index, bad, seed):
                return index
            if index == bad:
                committed = self._ended_a_transaction(index, salts, seed)
            else:
                committed = committed or (current and frame.commit_pages > 0)
        return None

    def _follows(self, index: int, bad: int, seed: Checksum) -> bool:
        """Whether the frame continues its predecessor, as stored or, where it is the stored sum
        that flipped, as computed."""
        if self.fits(index):
            return True
        if index - 1 != bad:
            return False
        return self.checksum(index, self.checksum(bad, seed)) == self[index].stored

    def _ended_a_transaction(self, bad: int, salts: Salts, seed: Checksum) -> bool:
        """Whether the bad frame was a commit frame of this generation, its flipped bit aside."""
        frame = self[bad]
        after = bad + 1
        if frame.salts != salts and not (
            after < len(self) and self[after].salts == salts and self.fits(after)
        ):
            # Left from before. Were it continued by the next frame, its salts would have flipped.
            return False
        if frame.commit_pages:
            return True
        # One bit of the size may be what flipped.
        return any(
            self.checksum(bad, seed, head=struct.pack(">2I", frame.page, 1 << bit)) == frame.stored
            for bit in range(32)
        )


def _sum(data: bytes, seed: Checksum, order: str) -> Checksum:
    """SQLite's checksum of a multiple of 8 bytes."""
    first, second = seed
    whole = len(data) // 32 * 32
    # In four rounds the sums outgrow 32 bits by eight: it is enough to cut them after those, which
    # makes a page cost a third. A node that starts after a crash sums up its whole log.
    for a, b, c, d, e, f, g, h in struct.iter_unpack(f"{order}8I", memoryview(data)[:whole]):
        first += a + second
        second += b + first
        first += c + second
        second += d + first
        first += e + second
        second += f + first
        first += g + second
        second += h + first
        first &= _MASK
        second &= _MASK
    for a, b in struct.iter_unpack(f"{order}2I", memoryview(data)[whole:]):
        first = (first + a + second) & _MASK
        second = (second + b + first) & _MASK
    return first, second
