"""What a power loss leaves of a file: its synced content and some of the writes after it.

No file is touched here. A write that was not followed by a sync is kept, dropped, or torn: of
a torn one some 512-byte sectors reach the disk, as disks write sectors whole and promise no more.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import Final, Literal

SECTOR_BYTES: Final = 512

Fate = Literal["kept", "dropped", "torn"]
Style = Literal["kept", "dropped", "prefix", "scattered", "gap"]
"""How a crash treats unsynced writes: all kept (the process died, the kernel lives), all dropped,
those before a point kept and the one there torn, each by itself, or all but one kept."""

STYLES: Final[tuple[Style, ...]] = ("kept", "dropped", "prefix", "scattered")
"""Those that chance chooses from. A gap is one of the things that "scattered" may leave, for
scenarios that are about it."""


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes at an offset; with `data` None the file was cut to `offset` bytes."""

    offset: int
    data: bytes | None


class SimFile:
    """One file of a simulated disk: what is on the platter, and what only the kernel has."""

    def __init__(self, durable: bytes = b"", *, is_linked: bool = False) -> None:
        self.durable = bytearray(durable)
        self.pending: list[Write] = []
        self.size = len(durable)
        """As the running process sees it."""
        self.is_linked = is_linked
        """Whether its directory entry is known to be on the platter."""

    def write(self, offset: int, data: bytes) -> None:
        self.pending.append(Write(offset, data))
        self.size = max(self.size, offset + len(data))

    def truncate(self, size: int) -> None:
        self.pending.append(Write(size, None))
        self.size = size

    def sync(self) -> None:
        """Everything written so far is on the platter."""
        for write in self.pending:
            apply_write(self.durable, write)
        self.pending.clear()

    def fail_sync(self, rng: random.Random) -> None:
        """A sync failed: the kernel has dropped what it could not write, and tells nobody again.

        What the process reads until it ends is what it wrote; a later sync will not save it.
        """
        for write in self.pending:
            if rng.random() < 0.5:
                apply_write(self.durable, write)
        self.pending.clear()

    def image(self, style: Style, rng: random.Random, fates: Counter[str]) -> bytes:
        """The content after a crash; `fates` counts what became of unsynced writes."""
        content = bytearray(self.durable)
        turn = rng.randrange(len(self.pending)) if self.pending else 0
        for number, write in enumerate(self.pending):
            fate: Fate
            if style == "prefix":
                fate = "kept" if number < turn else "torn" if number == turn else "dropped"
            elif style == "gap":
                fate = "dropped" if number == turn else "kept"
            elif style == "scattered":
                fate = rng.choice(("kept", "dropped", "torn"))
            else:
                fate = style
            fates[f"write {fate}"] += 1
            leave(content, write, fate, rng)
        return bytes(content)


def leave(content: bytearray, write: Write, fate: Fate, rng: random.Random) -> None:
    """Do to `content` what a write of that fate has done to the platter."""
    if fate == "dropped":
        return
    if fate == "kept" or write.data is None:
        # Cutting a file is one change of its inode: whole or not at all.
        if fate == "kept" or rng.random() < 0.5:
            apply_write(content, write)
        return
    pieces = _sectors(write)
    if rng.random() < 0.5:
        chosen = pieces[: rng.randrange(len(pieces) + 1)]
    else:
        chosen = [piece for piece in pieces if rng.random() < 0.5]
    for piece in chosen:
        apply_write(content, piece)


def _sectors(write: Write) -> list[Write]:
    """A write in pieces that lie in one sector each."""
    assert write.data is not None
    pieces, position = [], 0
    while position < len(write.data):
        offset = write.offset + position
        size = min(SECTOR_BYTES - offset % SECTOR_BYTES, len(write.data) - position)
        pieces.append(Write(offset, write.data[position : position + size]))
        position += size
    return pieces


def apply_write(content: bytearray, write: Write) -> None:
    """Do a whole write."""
    if write.data is None:
        if write.offset < len(content):
            del content[write.offset :]
        else:
            content.extend(bytes(write.offset - len(content)))
        return
    if write.offset > len(content):
        content.extend(bytes(write.offset - len(content)))
    content[write.offset : write.offset + len(write.data)] = write.data
