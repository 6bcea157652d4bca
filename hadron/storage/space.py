"""Refusing ordinary writes before the disk is full (PROTOCOL B7).

What makes room again needs room itself: acknowledgements, retention and a new leader's first entry
are logged like everything else, and a file that cannot grow cannot be cleaned up. So a part of the
disk is kept for them. What retention drops does not make a SQLite file smaller; its free pages are
written again before the file grows, and count as room. The write-ahead log has none to use again:
a quarter of the reserve has to be room on the file system itself. Once refused, writes go on with a
quarter more than that of each: else every record would change it.

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
        self,
        disk: Disk,
        directory: Path,
        reserve_bytes: int,
        count_free_pages: Callable[[], int | None],
    ) -> None:
        """
        Args:
            reserve_bytes: room that ordinary writes leave; 0 for no limit.
            count_free_pages: of the database; None while that cannot be told. Not called from here.
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
        self._measure()
        self._judge()

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
        """What to tell those whose writes are refused: how much there is of what is too little, why
        that is needed, and with how much they are accepted again."""
        within = self._free_pages * PAGE_BYTES
        lacks_room, lacks_disk = self._lacks(is_low=True)
        least = self._least(is_low=True)
        needed, on_disk = format_size(least), f"{format_size(least // 4)} on the disk itself"
        there = f"room for {_rounded(self._free_bytes)}"
        why = f"{format_size(self._reserve_bytes)} are kept for what makes room again"
        if within:
            there += f", and its database {_rounded(within)} of its own to use again"
            needed += " in all"
        if within and lacks_disk:
            log = "the write-ahead log cannot use that"
            why = f"{log}, and {why}" if lacks_room else log
            needed = f"{needed}, {on_disk}" if lacks_room else on_disk
        return DiskFullError(
            f"the disk of {self._directory} has {there}; {why}: "
            f"a leader's writes go on with {needed}",
            "make room on that disk, let retention drop records, or lower `disk_reserve_bytes`; "
            "writing goes on by itself then",
        )

    def wrote(self, size: int) -> None:
        """Called with what each transaction writes, inside it."""
        if not self._reserve_bytes:
            return
        self._unseen_bytes += size
        if self.is_low or self._unseen_bytes >= _LOOK_EVERY_BYTES:
            self._count()
            if self._measure():
                self._judge()

    def look(self) -> None:
        """See how much room there is."""
        if self._measure():
            if any(self._lacks(is_low=self.is_low)):
                # What retention has dropped since, perhaps in the last transaction of all.
                self._count()
            self._judge()

    def _measure(self) -> bool:
        if not self._reserve_bytes:
            return False
        self._unseen_bytes = 0
        try:
            self._free_bytes = self._disk.free_bytes(self._directory)
        except OSError as error:
            _log.warning("the room on the disk of %s is unknown: %s", self._directory, error)
            return False
        return True

    def _count(self) -> None:
        count = self._count_free_pages()
        if count is not None:
            self._free_pages = count

    def _least(self, *, is_low: bool) -> int:
        """The room with which ordinary writes are accepted."""
        return self._reserve_bytes + (self._reserve_bytes // 4 if is_low else 0)

    def _lacks(self, *, is_low: bool) -> tuple[bool, bool]:
        """Whether there is too little room in all, and on the file system itself."""
        least = self._least(is_low=is_low)
        room = self._free_bytes + self._free_pages * PAGE_BYTES
        return room < least, self._free_bytes < least // 4

    def _judge(self) -> None:
        is_low = any(self._lacks(is_low=self.is_low))
        if is_low == self.is_low:
            return
        self.is_low = is_low
        if is_low:
            _log.error("a leader takes no writes here: %s", self.refusal().message)
        else:
            _log.warning(
                "the disk of %s has room for %s again; writes are accepted",
                self._directory,
                _rounded(self._free_bytes + self._free_pages * PAGE_BYTES),
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
