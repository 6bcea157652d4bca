"""Refusing ordinary writes before the disk is full (PROTOCOL B7).

What makes room again needs room itself: acknowledgements, retention and a new leader's first entry
are logged like everything else, and a file that cannot grow cannot be cleaned up. So a part of the
disk is kept for them. What retention drops does not make a SQLite file smaller; its free pages are
written again before the file grows, and count as room. The write-ahead log has none to use again:
a quarter of the reserve has to be room on the file system itself.

A disk that fills up all the same, because of other programs, ends the node at its first failed
write, as any failing disk does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio

from hadron.model.errors import DiskFullError
from hadron.model.ports import Disk
from hadron.model.units import format_size
from hadron.storage.database import PAGE_BYTES

_log = logging.getLogger(__name__)

_EXHAUSTED_PART: Final = 8
"""Of the reserve: with less than this part of it on the file system nothing is written any more."""

SPARE_BYTES: Final = 64 << 20
"""Room that a copy of a database leaves on the disk, for the log to go on."""

_LOOK_EVERY_BYTES: Final = 1 << 20
"""Written between two looks at the disk: far below any reserve, and a look takes microseconds."""

_LOOK_EVERY_S: Final = 1.0
"""Others write to the disk too, and make room on it."""


def least_reserve(checkpoint_bytes: int) -> int:
    """The smallest reserve with which a checkpoint has room even when nothing more is written: then
    the write-ahead log may still have to go into the database file, which may have to grow for it.
    """
    return _EXHAUSTED_PART * checkpoint_bytes


class Space:
    """The room of one database. `run` must be running."""

    def __init__(
        self, disk: Disk, directory: Path, reserve_bytes: int, count_free_pages: Callable[[], int]
    ) -> None:
        """
        Args:
            reserve_bytes: room that ordinary writes leave; 0 for no limit.
            count_free_pages: of the database; called only from `wrote`.
        """
        self._disk = disk
        self._directory = directory
        self._reserve_bytes = reserve_bytes
        self._count_free_pages = count_free_pages
        self._free_bytes = 0
        self._free_pages = 0
        self._unseen_bytes = 0
        self.is_low = False
        """Ordinary writes are to be refused."""
        self.look()

    @property
    def is_exhausted(self) -> bool:
        """Not even the reserve is left: nothing more is to be written here."""
        return self._free_bytes < self._reserve_bytes // _EXHAUSTED_PART

    @property
    def spare_bytes(self) -> int:
        """Room that a copy leaves here: no more than ordinary writes do, or none would ever fit
        onto a small disk."""
        return min(SPARE_BYTES, self._reserve_bytes)

    @property
    def trouble(self) -> str:
        """For people; "" while there is room."""
        return self.refusal().message if self.is_low else ""

    def refusal(self) -> DiskFullError:
        """What to tell those whose writes are refused."""
        room = self._free_bytes + self._free_pages * PAGE_BYTES
        return DiskFullError(
            f"the disk of {self._directory} has room for {_rounded(room)}, and "
            f"{format_size(self._reserve_bytes)} are kept for what makes room again",
            "make room on that disk, let retention drop records, or lower `disk_reserve_bytes`; "
            "writing goes on by itself then",
        )

    def wrote(self, size: int) -> None:
        """Called with what each transaction writes, inside it."""
        if not self._reserve_bytes:
            return
        self._unseen_bytes += size
        if self.is_low or self._unseen_bytes >= _LOOK_EVERY_BYTES:
            self._free_pages = self._count_free_pages()
            self.look()

    def look(self) -> None:
        """See how much room there is."""
        if not self._reserve_bytes:
            return
        self._unseen_bytes = 0
        try:
            self._free_bytes = self._disk.free_bytes(self._directory)
        except OSError as error:
            _log.warning("the room on the disk of %s is unknown: %s", self._directory, error)
            return
        # Once refused, not before there is a little more: else every record would change it.
        least = self._reserve_bytes + (self._reserve_bytes // 4 if self.is_low else 0)
        room = self._free_bytes + self._free_pages * PAGE_BYTES
        is_low = room < least or self._free_bytes < least // 4
        if is_low == self.is_low:
            return
        self.is_low = is_low
        if is_low:
            _log.error("%s; writes are refused until there is more", self.refusal().message)
        else:
            _log.warning(
                "the disk of %s has room for %s again; writes are accepted",
                self._directory, _rounded(room),
            )

    async def run(self) -> None:
        """Look now and then, for ever."""
        while self._reserve_bytes:
            await trio.sleep(_LOOK_EVERY_S)
            self.look()


def _rounded(size: int) -> str:
    """For people: whole MiB, or KiB where that would be none."""
    if size < 1 << 10:
        return "less than 1KiB"
    unit = 1 << 20 if size >> 20 else 1 << 10
    return format_size(size // unit * unit)
