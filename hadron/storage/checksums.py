"""Checksums in every page of a SQLite file, by SQLite's own VFS shim `cksumvfs`.

A page read with a wrong checksum is an I/O error (`SQLITE_IOERR_DATA`) and is never served. The
sum stands in the last 8 bytes of a page, which a file reserves when it is created; the shim leaves
files without them alone. It sums pages when they are written to the database file and not in the
write-ahead log, whose frames have sums of their own: those are checked when the log is recovered
(`wal_scan`), not when a page is read from it.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from pathlib import Path
from typing import Final

import apsw
import apsw.sqlite_extra

from hadron.model.errors import CorruptionError, StorageError

RESERVED_BYTES: Final = 8
"""What the shim needs at the end of every page, exactly."""

_EXTENSION: Final = "cksumvfs"
_SHIM: Final = "cksmvfs"

_lock = threading.Lock()
_shims: dict[str, str] = {}


def with_checksums(base: str) -> str:
    """The name of a VFS that adds checksums to `base`, which must stay registered for good.

    Raises `StorageError` when this apsw comes without the extension.
    """
    with _lock:
        if base not in _shims:
            _shims[base] = _load(base)
        return _shims[base]


def _load(base: str) -> str:
    """The shim wraps what is SQLite's default VFS when it is loaded, once per loaded library."""
    before = apsw.vfs_names()[0]
    try:
        library = Path(apsw.sqlite_extra.path(_EXTENSION))
        apsw.set_default_vfs(base)
        try:
            if not _shims:
                _load_library(library)
                return _SHIM
            return _load_copy(library, len(_shims))
        finally:
            apsw.set_default_vfs(before)
    except (apsw.Error, apsw.sqlite_extra.NotAvailable, LookupError, OSError) as error:
        raise StorageError(
            f"SQLite's checksum extension cannot be loaded over {base}: {error}",
            "install apsw from its wheels on PyPI, which have it",
        ) from error


def _load_copy(library: Path, number: int) -> str:
    """A second base (a simulator's, beside the real one) takes a second copy of the library: the
    shim is one static object, with one base and one name."""
    name = f"cksm{number:03d}"
    assert len(name) == len(_SHIM)
    directory = Path(tempfile.mkdtemp(prefix="hadron-"))
    try:
        code = library.read_bytes().replace(f"{_SHIM}\0".encode(), f"{name}\0".encode())
        copy = directory / library.name
        copy.write_bytes(code)
        _load_library(copy)
    finally:
        shutil.rmtree(directory)
    return name


def _load_library(path: Path) -> None:
    connection = apsw.Connection(":memory:", vfs="unix")
    try:
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 1)
        connection.load_extension(str(path))
    finally:
        connection.close()


def has_checksums(connection: apsw.Connection) -> bool:
    """Whether what this connection reads is checked."""
    return bool(connection.pragma("checksum_verification") == "1")


def require_checksums(connection: apsw.Connection, path: Path) -> None:
    """Raise `CorruptionError` when this connection would look at no checksum.

    One byte of the file's header decides that, about its own page too: one flipped bit would turn
    all of them off. A file that is no database at all is SQLite's to refuse.
    """
    connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if not has_checksums(connection):
        raise CorruptionError(
            f"{path} is damaged: its header does not reserve {RESERVED_BYTES} bytes of each page, "
            "so that no page's checksum would be looked at",
            way_out(path),
        )


def way_out(path: Path) -> str:
    """What to do about a damaged file of a data directory."""
    return (
        f"of a node with peers move all of {path.parent} away: it then rebuilds itself from its "
        "peers; of one without put a backup in its place (`hadron restore`)"
    )
