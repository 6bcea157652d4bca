"""What the stop before this start has left: whether the disk may still count (PROTOCOL B3, B4).

Looked at before SQLite opens the log's file, because opening is what hides the damage: SQLite ends
a log at the first bad frame, and what follows is gone with the next checkpoint.

A node whose disk may lack what it acknowledged is *amnesiac*: it counts in no majority until its
leader has taught it again. Where the file may also be a mix of old and new pages (a damaged log
whose later frames were already copied into it, or a log that somebody removed), it is set aside as
well, and the node rebuilds itself from nothing. A power loss in `os` mode leaves a whole file,
only an old one: it is kept, and what it shares with the leader's log need not be sent again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import apsw

from hadron.model.errors import CorruptionError, DataDirectoryError
from hadron.model.ports import Disk
from hadron.storage.checksums import RESERVED_BYTES
from hadron.storage.database import PAGE_BYTES
from hadron.storage.identity import LastStop
from hadron.storage.wal_scan import HEADER_BYTES, Slices, Verdict, latest_pages, scan_wal

_log = logging.getLogger(__name__)

ASIDE: Final = "hadron.db.aside"
"""The file that was set aside, with its `-wal`; the next damage replaces them."""


@dataclass(frozen=True, slots=True)
class Aftermath:
    """What a start has to do about the stop before it."""

    unclean: bool
    """The process was killed, or the machine lost its power."""
    amnesia: str = ""
    """Why this disk may lack what it acknowledged; "" when it has all of it."""
    is_unusable: bool = False
    """The file may be damaged as well: it must not be opened."""


def examine(path: Path, disk: Disk, stop: LastStop, *, was_member: bool) -> Aftermath:
    """Judge the files of a database that nobody has open. Changes nothing.

    Args:
        path: the database; its log stands beside it.

    Raises `OSError`.
    """
    boot_id = disk.boot_id()
    unclean = not stop.clean
    if stop.suspect:
        return Aftermath(unclean, stop.suspect, is_unusable=True)
    if not _has_content(path):
        lost = was_member or unclean
        return Aftermath(unclean, f"{path} is missing or empty" if lost else "", lost)
    if unclean and stop.kernel is not None and (not boot_id or stop.kernel != boot_id):
        # Frames were never fsynced, so the scan's rule does not hold; the file is whole (SQLite
        # flushes the log before it copies from it).
        return Aftermath(True, "the machine was started anew, and commits were not flushed")
    wal = Path(f"{path}-wal")
    data = Slices(partial(disk.read_at, wal), wal.stat().st_size if wal.exists() else 0)
    if len(data) < HEADER_BYTES:
        gone = f"{wal} is gone, though the node was not stopped in order" if unclean else ""
        return Aftermath(unclean, gone, is_unusable=unclean)
    scan = scan_wal(data, PAGE_BYTES)
    if scan.verdict is not Verdict.DAMAGED:
        return Aftermath(unclean)
    if scan.header_is_bad and _is_copied(path, disk, data, or_empty=not unclean):
        return Aftermath(unclean)
    return Aftermath(unclean, f"{wal} is damaged: {scan.reason}", is_unusable=True)


def _is_copied(path: Path, disk: Disk, wal: Slices, *, or_empty: bool) -> bool:
    """Whether the file has every page of its log: so it has when the log was being begun anew."""
    summed = PAGE_BYTES - RESERVED_BYTES
    is_empty = True
    for number, content in latest_pages(wal, PAGE_BYTES):
        is_empty = False
        if disk.read_at(path, (number - 1) * PAGE_BYTES, summed) != content[:summed]:
            return False
    return or_empty or not is_empty


def set_aside(path: Path, directory: Path, disk: Disk) -> None:
    """Move a database out of the way, to `directory`; for good on return. Raises `OSError`. Its own
    directory, a generation's, may be gone: it is there on return.

    A log never meets another file, at whatever crash: what stands there goes first, its file last;
    then the log comes, and then the file.
    """
    aside = directory / ASIDE
    disk.make_directory(path.parent)
    if is_left(path, directory):
        clear_aside(directory, disk)
        path.touch()
        for ending in ("-wal", ""):
            if Path(f"{path}{ending}").exists():
                Path(f"{path}{ending}").replace(f"{aside}{ending}")
                for changed in (directory, path.parent):
                    disk.sync(changed)
    for ending in ("", "-wal", "-shm"):
        disk.remove(Path(f"{path}{ending}"))
    disk.sync(path.parent)


def is_left(path: Path, directory: Path) -> bool:
    """Whether there is something of a database that could be set aside."""
    return _has_content(path) or _has_content(Path(f"{path}-wal")) or is_cut_short(directory)


def is_cut_short(directory: Path) -> bool:
    """Whether a crash has come while a database was being set aside: its log is, and not yet its
    file."""
    return Path(f"{directory / ASIDE}-wal").exists() and not (directory / ASIDE).exists()


def clear_aside(directory: Path, disk: Disk) -> None:
    """Remove what was set aside, unless that was cut short. Raises `OSError`."""
    aside = directory / ASIDE
    if aside.exists():
        for each in (Path(f"{aside}-wal"), aside):
            disk.remove(each)
            disk.sync(directory)


def _has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def refuse_alone(path: Path, found: Aftermath) -> None:
    """Without peers there is nobody to learn from: leave everything as it is.

    Raises `CorruptionError`, or `DataDirectoryError` when there is no file at all.
    """
    way_out = (
        "put a backup in its place (`hadron restore --all`); there are no peers to rebuild it from"
    )
    if not _has_content(path):
        raise DataDirectoryError(
            f"{path} is missing or empty, but this node has been a member of its replica set",
            f"put the file back, or {way_out}",
        )
    if found.is_unusable:
        raise CorruptionError(
            f"{path} cannot be trusted: {found.amnesia}",
            f"{way_out}; or go on with what is left of it (`hadron recover`)",
        )


def begin_log_anew(connection: apsw.Connection) -> None:
    """Copy what the stop left in the log into the file, so that the next commit restarts it.

    Frames of a torn transaction must not stand behind those of a later one: the next scan could
    not tell them from frames that were fsynced.
    """
    try:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
    except apsw.BusyError:
        _log.warning("another program reads the database; its log is continued as it is")
