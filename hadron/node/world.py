"""The real disk behind its port; `wire` has the rest of the machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Final, TypeVar

import trio

from hadron.model.ports import FileId

T = TypeVar("T")

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

_THREADS: Final = 40
"""That work at a disk at the same time; others wait for one."""


class SystemDisk:
    """`ports.Disk` of this machine."""

    vfs: Final = "unix"
    has_threads: Final = True

    @cached_property
    def _threads(self) -> trio.CapacityLimiter:
        """Its own: a lookup of a name that no server answers keeps a thread for half a minute, and
        some forty of these would keep a node from its files."""
        return trio.CapacityLimiter(_THREADS)

    async def do(self, work: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(work, limiter=self._threads)

    def free_bytes(self, path: Path) -> int:
        return shutil.disk_usage(path).free

    def file_id(self, path: Path) -> FileId | None:
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_dev, found.st_ino

    def boot_id(self) -> str:
        try:
            return _BOOT_ID.read_text("ascii").strip()
        except OSError:
            return ""

    def write_file(self, path: Path, data: bytes) -> None:
        scratch = path.with_name(f"{path.name}.new")
        with open(scratch, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
        self.sync(path.parent)

    def read_at(self, path: Path, offset: int, size: int) -> bytes:
        with open(path, "rb", buffering=0) as file:
            pieces: list[bytes] = []
            while size > 0 and (piece := os.pread(file.fileno(), size, offset)):
                pieces.append(piece)
                offset += len(piece)
                size -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def write_at(self, path: Path, offset: int, data: bytes | memoryview) -> None:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            left = memoryview(data)
            while left:
                written = os.pwrite(file, left, offset)
                offset += written
                left = left[written:]
        finally:
            os.close(file)

    def sync(self, path: Path) -> None:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(file)
        finally:
            os.close(file)

    def make_directory(self, path: Path) -> None:
        if path.is_dir():
            return
        self.make_directory(path.parent)
        path.mkdir(exist_ok=True)
        self.sync(path.parent)

    def remove(self, path: Path) -> None:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def switch(self, link: Path, target: str) -> None:
        scratch = link.with_name(f"{link.name}.new")
        scratch.unlink(missing_ok=True)
        scratch.symlink_to(target)
        scratch.replace(link)
        self.sync(link.parent)
