"""Which file is the node's database, and how another one takes its place.

    <data>/hadron.db            the first one, or a symbolic link to
    <data>/gen-3/hadron.db      the one that was installed last
    <data>/gen-4/               the next one while it arrives, with its manifest
    <data>/outgoing/            copies that others fetch from this node

`hadron.db` stays the path that people and tools open. SQLite resolves links, so the write-ahead
log stands beside the real file and never meets another generation's. Ordering rule (PROTOCOL B6):
a generation is complete, verified, has a log of its own, and is synced before the link moves; the
link moves in one rename; what was before is removed once the next opening has succeeded: the link
may have been lost, and what it led to have everything. A crash at any moment leaves one or the
other, each with its log.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Final

import apsw

from hadron.model.errors import StorageError
from hadron.model.ports import Disk
from hadron.storage.database import open_writer, transaction, translated_errors
from hadron.storage.snapshot import Manifest, decode_manifest

DATABASE: Final = "hadron.db"
MANIFEST: Final = "manifest.json"
OUTGOING: Final = "outgoing"

_GENERATION: Final = re.compile(r"gen-([1-9][0-9]{0,8})")
_BESIDE: Final = ("-wal", "-shm", "-journal")


def current_database(directory: Path) -> Path:
    """The real file behind `<directory>/hadron.db`, which need not exist."""
    link = directory / DATABASE
    return directory / os.readlink(link) if link.is_symlink() else link


def current_number(directory: Path) -> int:
    """The generation that is in use; 0 is the file that the node made itself."""
    link = directory / DATABASE
    if not link.is_symlink():
        return 0
    match = _GENERATION.fullmatch(Path(os.readlink(link)).parent.name)
    return int(match[1]) if match is not None else 0


def next_generation(directory: Path) -> Path:
    """The directory into which the next generation is written; it may hold a part of it."""
    return directory / f"gen-{current_number(directory) + 1}"


def read_manifest(directory: Path) -> Manifest | None:
    """The manifest in a directory, None where there is none that can be used."""
    path = directory / MANIFEST
    try:
        return decode_manifest(path.read_bytes(), path)
    except (OSError, StorageError):
        return None


def switch_to(directory: Path, generation: Path, disk: Disk) -> None:
    """Make a whole, verified generation the node's database. No connection may be open.

    Raises `OSError` or `StorageError`; then the old one is still in place.
    """
    _begin_log(generation / DATABASE, disk)
    disk.sync(generation / DATABASE)
    disk.sync(generation)
    disk.sync(directory)
    disk.switch(directory / DATABASE, f"{generation.name}/{DATABASE}")


def _begin_log(path: Path, disk: Disk) -> None:
    """Give a file a write-ahead log with a flushed commit in it.

    What `node.db` says of the last stop stays as it is when the link moves, and may be that it was
    not in order: somebody who read the old file kept its log from being moved into it, or one who
    read `node.db` kept that from being written. Then a file without a log counts as damaged
    (PROTOCOL B4), and a disk that has everything would forget whose it is.
    """
    with (
        translated_errors(path),
        contextlib.closing(open_writer(path, sync="FULL", vfs=disk.vfs)) as database,
    ):
        database.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        with transaction(database):
            # Writes its page, and changes nothing.
            database.pragma("user_version", database.pragma("user_version"))


def clear_copies(directory: Path, disk: Disk) -> None:
    """Remove what is nobody's only copy, whichever file is in use. Raises `OSError`."""
    disk.remove(directory / OUTGOING)
    disk.remove(directory / f"{DATABASE}.new")


def clean_up(directory: Path, disk: Disk) -> None:
    """Remove what installations have left behind, but for a generation that is still arriving and
    can be resumed. The file in use must be known to be the right one. Raises `OSError`."""
    number = current_number(directory)
    spared = {f"gen-{number}"}
    following = directory / f"gen-{number + 1}"
    if read_manifest(following) is not None:
        spared.add(following.name)
    for path in sorted(directory.iterdir()):
        if _GENERATION.fullmatch(path.name) and path.name not in spared:
            disk.remove(path)
    if number:
        # Of the file that the link has replaced: nobody will ever open it again.
        for suffix in _BESIDE:
            with contextlib.suppress(FileNotFoundError):
                disk.remove(directory / f"{DATABASE}{suffix}")
