"""One life of a simulated disk: the directory that a node works in from its start to its crash.

It is the node's `ports.Disk`, and `vfs` tells it of every read, write and sync of SQLite's. It
knows of each file what has reached the platter and what only the kernel has (`files`); the
bytes that the process sees are in a real file. Once the volume is dead, nothing that the node still
does is recorded: it reaches only this directory, which is thrown away.

Time: work asked for by `do` takes simulated time before and after it. Work that a node does on its
event loop cannot wait there; it makes the host's clock run ahead of the world's, and what the host
sends leaves that much later (`SimDisk.local_s`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from hadron.fakes.alarms import Alarm
from hadron.fakes.files import SimFile
from hadron.fakes.trace import SYNC, TRUNCATE, WRITE
from hadron.model.ports import FileId

if TYPE_CHECKING:
    from hadron.fakes.disk import SimDisk

T = TypeVar("T")

VFS_NAME: Final = "hadron-sim"

_NOT_LEFT: Final = ("-shm", ".lock", ".new")
"""Ends of the names of files that no crash leaves behind: shared memory, and files half written."""


class Volume:
    """`ports.Disk` of one life of a node."""

    has_threads: Final = False

    def __init__(self, path: Path, disk: SimDisk, vfs: str = VFS_NAME) -> None:
        self.path = path
        self.vfs = vfs
        self.is_dead = False
        self.has_failed = False
        """Whether it has answered with an error that was asked for."""
        self.files: dict[int, SimFile] = {}
        """By inode, so that renaming a file or its directory moves its state along."""
        self.unlinked: dict[str, SimFile] = {}
        """Removed, by name, from directories that have not been synced since."""
        self._disk = disk
        self.is_foreign = disk.is_foreign
        self._names: dict[str | Path, str] = {}
        self._alarms: dict[Alarm, None] = {}
        self._ids: dict[Path, FileId | None] = {}

    def name(self, path: str | Path) -> str:
        """A path as people and the trace know it: below the volume."""
        name = self._names.get(path)
        if name is None:
            name = self._names[path] = os.path.relpath(path, self.path)
        return name

    def file(self, path: str | Path, *, created: bool) -> SimFile:
        """The state of a file that exists. `created`: just now, and empty."""
        inode = os.stat(path).st_ino
        known = self.files.get(inode)
        if known is None or created:
            known = self.files[inode] = SimFile(
                b"" if created else Path(path).read_bytes(), is_linked=not created
            )
        return known

    def left_files(self) -> Iterator[tuple[str, Path]]:
        """What a crash may leave, in order: (name, path); directories before what is in them."""
        for path in sorted(self.path.rglob("*")):
            if not path.name.endswith(_NOT_LEFT):
                yield self.name(path), path

    def wall_s(self) -> float:
        """The simulated time on the host, and the date: what a clock without error goes by."""
        return self._disk.local_s() + self._disk.calendar_s

    def used_bytes(self) -> int:
        return sum(file.size for file in self.files.values())

    # --- ports.Disk -----------------------------------------------------------------------------

    async def do(self, work: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint()
        await self._pass(self._disk.hop_s())
        self._disk.begin_work()
        try:
            return work()
        finally:
            await self._pass(self._disk.end_work())

    async def _pass(self, seconds: float) -> None:
        """Let time pass, for as long as the host lives."""
        if self.is_dead:
            return
        alarm = Alarm(shield=True)
        self._alarms[alarm] = None
        await alarm.wait(trio.current_time() + seconds)
        self._alarms.pop(alarm, None)

    def die(self) -> None:
        """From here on nothing that the node does is recorded, and it waits for no disk."""
        self.is_dead = True
        for alarm in self._alarms:
            alarm.ring()

    def free_bytes(self, path: Path) -> int:
        del path
        return self._disk.free_bytes()

    def file_id(self, path: Path) -> FileId | None:
        if not self.is_dead:
            try:
                found = os.stat(path)
            except (FileNotFoundError, NotADirectoryError):
                self._ids[path] = None
            else:
                self._ids[path] = found.st_dev, found.st_ino
        return self._ids.get(path)

    def boot_id(self) -> str:
        return f"boot-{self._disk.boots}"

    def write_file(self, path: Path, data: bytes) -> None:
        if self.is_dead:
            path.write_bytes(data)
            return
        name = self.name(path)
        self._disk.fail_write(name, len(data))
        if self._disk.crashes_at_write(f"before the new {name}", late=False):
            return
        scratch = path.with_name(f"{path.name}.new")
        scratch.write_bytes(data)
        scratch.replace(path)
        self.files[path.stat().st_ino] = SimFile(data, is_linked=True)
        self._disk.trace.note(WRITE, f"{self._disk.name}/{name}", 0, data)
        self._disk.spend_sync()
        self._disk.crashes_at_write(f"after the new {name}", late=True)

    def read_at(self, path: Path, offset: int, size: int) -> bytes:
        self.will_read(path)
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(size)

    def write_at(self, path: Path, offset: int, data: bytes | memoryview) -> None:
        created = not path.exists()
        with open(path, "wb" if created else "r+b") as file:
            state = self.file(path, created=created)
            self.will_write(path, state, offset + len(data))
            file.seek(offset)
            file.write(data)
        self.written(path, state, offset, bytes(data))

    def sync(self, path: Path) -> None:
        if path.is_dir():
            self._disk.trace.note(SYNC, f"{self._disk.name}/{self.name(path)}/", 0)
            self.directory_synced(path)
        else:
            self.synced(path, self.file(path, created=False))

    def make_directory(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def remove(self, path: Path) -> None:
        if path.is_symlink() or path.is_file():
            self.removed(path, synced=False)
            path.unlink()
        elif path.is_dir():
            for below in sorted(path.rglob("*")):
                if below.is_file():
                    self.removed(below, synced=False)
            shutil.rmtree(path)

    def switch(self, link: Path, target: str) -> None:
        name = self.name(link)
        if not self.is_dead:
            self._disk.fail_write(name, 0)
            if self._disk.crashes_at_write(f"before {name} became {target}", late=False):
                return
        scratch = link.with_name(f"{link.name}.new")
        scratch.unlink(missing_ok=True)
        scratch.symlink_to(target)
        scratch.replace(link)
        if not self.is_dead:
            self._disk.trace.note(SYNC, f"{self._disk.name}/{name}", 0, target.encode())
            self.directory_synced(link.parent)
            self._disk.crashes_at_write(f"after {name} became {target}", late=True)

    # --- every access, SQLite's and others' -----------------------------------------------------

    @contextlib.contextmanager
    def unharmed(self) -> Iterator[None]:
        """For a watcher that reads by a program's own connection: a read that fails there may end
        the program's transaction, of which that would not hear."""
        self._disk.is_watched = True
        try:
            yield
        finally:
            self._disk.is_watched = False

    def will_read(self, path: str | Path) -> None:
        """Raises `OSError` when the read is to fail."""
        if not self.is_dead:
            self._disk.fail_read(self.name(path))

    def will_write(self, path: str | Path, file: SimFile, end: int) -> None:
        """Raises `OSError` when the write, which ends at `end`, is to fail."""
        if not self.is_dead:
            self._disk.fail_write(self.name(path), end - file.size)

    def written(self, path: str | Path, file: SimFile, offset: int, data: bytes) -> None:
        if self.is_dead:
            return
        name = self.name(path)
        trace = self._disk.trace
        # What names the run's directory is covered by its page's checksum, which is noted neither.
        noted = b"" if trace.is_hiding(data) else data
        trace.note(WRITE, f"{self._disk.name}/{name}", offset, noted)
        self._disk.spend_write()
        file.write(offset, data)
        self._disk.crashes_at_write(f"inside a write of {name}")

    def truncated(self, path: str | Path, file: SimFile, size: int) -> None:
        if not self.is_dead:
            self._disk.trace.note(TRUNCATE, f"{self._disk.name}/{self.name(path)}", size)
            file.truncate(size)

    def synced(self, path: str | Path, file: SimFile) -> None:
        """Raises `OSError` when the sync is to fail."""
        if self.is_dead:
            return
        name = self.name(path)
        self._disk.trace.note(SYNC, f"{self._disk.name}/{name}", file.size)
        self._disk.spend_sync()
        self._disk.fail_sync(name, file)
        if self._disk.crashes_at_sync(f"before a sync of {name}", late=False):
            return
        if not self._disk.lies():
            file.sync()
            if not file.is_linked:
                # SQLite's first sync of a journal syncs its directory, ext4's of a new file its
                # entry.
                self.directory_synced(Path(path).parent)
        self._disk.crashes_at_sync(f"after a sync of {name}", late=True)

    def removed(self, path: str | Path, *, synced: bool) -> None:
        """A file is about to be removed; `synced`: and its directory synced after that."""
        if self.is_dead or not os.path.lexists(path):
            return
        name = self.name(path)
        self._disk.trace.note(TRUNCATE, f"{self._disk.name}/{name}", -1)
        if os.path.islink(path):
            return
        file = self.files.pop(os.stat(path).st_ino, None)
        if file is not None and file.is_linked:
            self.unlinked[name] = file
        if synced:
            self.directory_synced(Path(path).parent)

    def directory_synced(self, directory: Path) -> None:
        """What was made in `directory` stays, what was removed from it stays away."""
        if self.is_dead:
            return
        with os.scandir(directory) as entries:
            for entry in entries:
                file = self.files.get(entry.inode())
                if file is not None:
                    file.is_linked = True
        parent = self.name(directory)
        for name in list(self.unlinked):
            if (os.path.dirname(name) or ".") == parent:
                del self.unlinked[name]


VOLUMES: Final[dict[str, Volume]] = {}
"""Every volume that there is, by its directory: one VFS serves them all."""


def volume_of(path: str) -> Volume | None:
    """The volume that a file lies in."""
    for parent in Path(path).parents:
        volume = VOLUMES.get(str(parent))
        if volume is not None:
            return volume
    return None


def forget_volumes(root: Path) -> None:
    """Let go of a world's volumes, and with them of everything that it was: the next seeds run in
    the same process, and would look for garbage in it."""
    for path in [path for path in VOLUMES if root in Path(path).parents]:
        del VOLUMES[path]


def no_room(path: str) -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def failure(path: str) -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO), path)
