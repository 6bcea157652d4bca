"""The SQLite VFS under every simulated node: real files, seen and spoiled by `fakes.volume`.

One VFS for all nodes and all lives, because the checksum VFS stacks on whatever is there when it
is loaded, once in a process. Nodes are told apart by the directory that a file lies in; files
outside of volumes go straight to the operating system. The write-ahead log's shared memory
bypasses a Python VFS, which is why a crash leaves databases and write-ahead logs only
(PROTOCOL F4).
"""

from __future__ import annotations

import errno
import os
import random
from typing import Final

import apsw

from hadron.fakes.files import SimFile
from hadron.fakes.volume import VFS_NAME, Volume, volume_of
from hadron.storage.checksums import with_checksums
from hadron.storage.tables import wanted_shapes

_BASE: Final = "unix"


class _File(apsw.VFSFile):
    """One open file of a volume."""

    def __init__(
        self, volume: Volume, path: str, name: str | apsw.URIFilename, flags: list[int]
    ) -> None:
        created = not os.path.exists(path)
        super().__init__(_BASE, name, flags)
        self._is_read_only = bool(flags[0] & apsw.SQLITE_OPEN_READONLY)
        self._volume = volume
        self._path = path
        self._file: SimFile = volume.file(path, created=created)

    def xLock(self, level: int) -> None:  # noqa: N802
        if self._is_read_only and level > apsw.SQLITE_LOCK_SHARED:
            # Tried by every reader that closes a file last. The system refuses it with an error
            # that SQLite ignores; from a Python VFS it would come through to the caller.
            raise apsw.BusyError
        super().xLock(level)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        try:
            self._volume.will_read(self._path)
        except OSError as error:
            raise apsw.exception_for(apsw.SQLITE_IOERR_READ) from error
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        try:
            self._volume.will_write(self._path, self._file, offset + len(data))
        except OSError as error:
            full = error.errno == errno.ENOSPC
            code = apsw.SQLITE_FULL if full else apsw.SQLITE_IOERR_WRITE
            raise apsw.exception_for(code) from error
        super().xWrite(data, offset)
        self._volume.written(self._path, self._file, offset, bytes(data))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        super().xTruncate(newsize)
        self._volume.truncated(self._path, self._file, newsize)

    def xSync(self, _flags: int) -> None:  # noqa: N802
        # Not passed on: the files are in memory, and what counts as synced is simulated.
        try:
            self._volume.synced(self._path, self._file)
        except OSError as error:
            raise apsw.exception_for(apsw.SQLITE_IOERR_FSYNC) from error


class _Vfs(apsw.VFS):
    def __init__(self) -> None:
        super().__init__(VFS_NAME, _BASE, makedefault=True)
        self.random = random.Random(0)

    def xOpen(  # noqa: N802
        self, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> apsw.VFSFile:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        volume = volume_of(path) if path else None
        if volume is None:
            return apsw.VFSFile(_BASE, name, flags)
        assert path is not None
        assert name is not None
        return _File(volume, path, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        volume = volume_of(filename)
        if volume is not None:
            volume.removed(filename, synced=syncdir)
        super().xDelete(filename, syncdir)

    def xRandomness(self, numbytes: int) -> bytes:  # noqa: N802
        return self.random.randbytes(numbytes)

    def xSleep(self, microseconds: int) -> int:  # noqa: N802
        # Whom one waits for runs on the same thread: real sleeping could not help.
        return microseconds


_installed: list[_Vfs] = []


def install(seed: int) -> None:
    """Make the simulated VFS the process's default, and SQLite's own random numbers the seed's.

    Those choose the salts of write-ahead logs, and come from the default VFS.
    """
    if not _installed:
        _installed.append(_Vfs())
    # Before the seed is planted: the first call for each base loads a library, which draws random
    # numbers. Who changes or judges a node's files opens them as they are on the real disk.
    with_checksums(VFS_NAME)
    with_checksums(_BASE)
    # In each world anew: it draws some, too.
    wanted_shapes.cache_clear()
    apsw.set_default_vfs(VFS_NAME)
    _installed[0].random = random.Random(f"sqlite/{seed}")
    apsw.randomness(0)


def uninstall() -> None:
    """Give the process its own default VFS back."""
    apsw.set_default_vfs(_BASE)
    apsw.randomness(0)
