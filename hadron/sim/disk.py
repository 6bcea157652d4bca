"""A simulated disk: one per host, with a volume for each life of its node.

A *volume* is the directory that a node works in from its start to its crash. SQLite's files in it
are opened through the VFS of `sim.vfs`, which tells this module of every read, write and sync. At
a crash the volume dies: from them the image of every file is made (`sim.files`) and put into a
fresh directory, where the node will start again. Whatever the dead node still does reaches only
the old directory, which is thrown away.

Time: work asked for by `do` takes simulated time before and after it. Work that a node does on its
event loop cannot wait there; its time is added to the node's monotonic clock, and its messages
leave that much later.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import apsw
import trio

from hadron.sim.files import SimFile, Style
from hadron.sim.trace import SYNC, TRUNCATE, WRITE, Trace

T = TypeVar("T")

VFS_NAME: Final = "hadron-sim"

_CAPACITY_BYTES: Final = 1 << 40

_NOT_COPIED: Final = ("-shm", ".lock", ".new")
"""Ends of the names of files that no crash leaves behind: shared memory, and files half written."""


@dataclass(slots=True)
class DiskFaults:
    """What is wrong with a disk. A countdown of n fails the n-th operation from now, once."""

    read_error_in: int = 0
    write_error_in: int = 0
    sync_error_in: int = 0
    crash_at_write_in: int = 0
    crash_at_sync_in: int = 0
    is_lying: bool = False
    """Syncs are reported and not done."""
    capacity_bytes: int = _CAPACITY_BYTES


@dataclass(slots=True)
class Speed:
    """How long things take, in seconds; drawn between a low and a high end."""

    sync_s: tuple[float, float] = (100e-6, 400e-6)
    write_s: float = 2e-6
    hop_s: tuple[float, float] = (20e-6, 200e-6)
    """From asking for work until it begins."""
    stall_share: float = 0.002
    """Of syncs that take fifty times as long."""

    def sync(self, rng: random.Random) -> float:
        stalls = rng.random() < self.stall_share
        return rng.uniform(*self.sync_s) * (50.0 if stalls else 1.0)


FAST: Final = Speed()
ORDINARY: Final = Speed(sync_s=(500e-6, 3e-3))
SLOW: Final = Speed(sync_s=(5e-3, 40e-3), write_s=50e-6, hop_s=(100e-6, 5e-3), stall_share=0.01)


@dataclass(slots=True)
class Volume:
    """The directory of one life of a node."""

    path: Path
    disk: SimDisk
    is_dead: bool = False
    files: dict[int, SimFile] = field(default_factory=dict)
    """By inode, so that renaming a file or its directory moves it along."""
    unlinked: dict[str, SimFile] = field(default_factory=dict)
    """Deleted by path below the volume, but its directory has not been synced since."""
    died: trio.Event = field(default_factory=trio.Event)

    def file(self, path: str, *, created: bool) -> SimFile:
        """The state of a file that SQLite has opened."""
        inode = os.stat(path).st_ino
        known = self.files.get(inode)
        if known is None or created:
            known = self.files[inode] = SimFile(
                b"" if created else Path(path).read_bytes(), is_linked=not created
            )
        return known

    def name(self, path: str) -> str:
        return os.path.relpath(path, self.path)


class SimDisk:
    """`ports.Disk` of one host."""

    vfs: Final = VFS_NAME
    has_threads: Final = False

    def __init__(
        self,
        name: str,
        root: Path,
        rng: random.Random,
        *,
        trace: Trace | None = None,
        faults: Counter[str] | None = None,
        speed: Speed = FAST,
    ) -> None:
        """`root` is where volumes go; it must exist. `faults` counts those that fired."""
        self.name = name
        self.root = root
        self.speed = self._usual_speed = speed
        self.broken = DiskFaults()
        self.faults = faults if faults is not None else Counter()
        self.trace = trace or Trace()
        self.busy_until_s = 0.0
        """Until when the event loop's own work at the disk takes; other work takes real turns."""
        self.working_s = 0.0
        """How long the piece of work that `do` runs now has taken."""
        self._works = False
        self.on_crash: Callable[[], None] = lambda: None
        """Told when a crash that was asked for at the n-th write or sync is reached."""
        self._random = rng
        self._lives = 0
        self.volume = self._new_volume()

    # --- ports.Disk -----------------------------------------------------------------------------

    async def do(self, work: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint()
        volume = self.volume
        await self._pass(volume, self._random.uniform(*self.speed.hop_s))
        self._works = True
        try:
            return work()
        finally:
            taken_s, self.working_s, self._works = self.working_s, 0.0, False
            await self._pass(volume, taken_s)

    async def _pass(self, volume: Volume, seconds: float) -> None:
        """Let time pass, for as long as the host lives."""
        with trio.CancelScope(shield=True), trio.move_on_after(seconds):
            await volume.died.wait()

    def free_bytes(self, path: Path) -> int:
        del path
        return max(self.broken.capacity_bytes - self.used_bytes(), 0)

    def used_bytes(self) -> int:
        return sum(file.size for file in self.volume.files.values())

    def write_file(self, path: Path, data: bytes) -> None:
        volume = self.volume
        scratch = path.with_name(f"{path.name}.new")
        if volume.is_dead:
            path.write_bytes(data)
            return
        name = volume.name(str(path))
        self._count_down("write_error_in", name, apsw.SQLITE_IOERR_WRITE, as_os_error=True)
        if len(data) > self.free_bytes(path):
            self.faults["disk full"] += 1
            raise OSError(28, "No space left on device", str(path))
        crashes = self._reach("crash_at_write_in")
        self.trace.note(WRITE, f"{self.name}/{name}", 0, data)
        if crashes and self._random.random() < 0.5:
            self._crash(f"before the new {name}")
            return
        scratch.write_bytes(data)
        scratch.replace(path)
        volume.files[path.stat().st_ino] = SimFile(data, is_linked=True)
        self.trace.note(SYNC, f"{self.name}/{name}", 0)
        self.spend(self.speed.sync(self._random))
        if crashes:
            self._crash(f"after the new {name}")

    def heal(self) -> None:
        """Undo what can be undone: errors to come, lies, and a lack of room."""
        self.broken = DiskFaults()
        self.speed = self._usual_speed

    # --- for the VFS ----------------------------------------------------------------------------

    def local_s(self) -> float:
        """The time on the host: a loop that works at its disk is ahead of its wires."""
        return max(trio.current_time(), self.busy_until_s) + self.working_s

    def spend(self, seconds: float) -> None:
        if self._works:
            self.working_s += seconds
        else:
            self.busy_until_s = max(trio.current_time(), self.busy_until_s) + seconds

    def before_read(self, volume: Volume, name: str) -> None:
        """Raises `apsw.IOError` when the read is to fail."""
        if not volume.is_dead:
            self._count_down("read_error_in", name, apsw.SQLITE_IOERR_READ)

    def before_write(self, volume: Volume, name: str, file: SimFile, end: int) -> None:
        """Raises `apsw.IOError` or `apsw.FullError`; `end` is where the write ends."""
        if volume.is_dead:
            return
        self._count_down("write_error_in", name, apsw.SQLITE_IOERR_WRITE)
        grows = end - file.size
        if grows > 0 and grows > self.broken.capacity_bytes - self.used_bytes():
            self.faults["disk full"] += 1
            self.trace.log(f"{self.name}: no room for {name}")
            raise apsw.exception_for(apsw.SQLITE_FULL)

    def written(self, volume: Volume, name: str, file: SimFile, offset: int, data: bytes) -> None:
        if volume.is_dead:
            return
        self.trace.note(WRITE, f"{self.name}/{name}", offset, data)
        self.spend(self.speed.write_s)
        file.write(offset, data)
        if self._reach("crash_at_write_in"):
            self._crash(f"inside a write of {name}")

    def truncated(self, volume: Volume, name: str, file: SimFile, size: int) -> None:
        if volume.is_dead:
            return
        self.trace.note(TRUNCATE, f"{self.name}/{name}", size)
        file.truncate(size)

    def synced(self, volume: Volume, name: str, file: SimFile) -> None:
        """Raises `apsw.IOError` when the sync is to fail."""
        if volume.is_dead:
            return
        self.trace.note(SYNC, f"{self.name}/{name}", file.size)
        self.spend(self.speed.sync(self._random))
        if self.broken.sync_error_in == 1:
            file.fail_sync(self._random)
        self._count_down("sync_error_in", name, apsw.SQLITE_IOERR_FSYNC)
        crashes = self._reach("crash_at_sync_in")
        if crashes and self._random.random() < 0.5:
            self._crash(f"before a sync of {name}")
            return
        if self.broken.is_lying:
            self.faults["lying sync"] += 1
        else:
            file.sync()
        if not file.is_linked:
            # SQLite's sync of a new journal syncs the directory as well.
            self.directory_synced(volume)
            file.is_linked = True
        if crashes:
            self._crash(f"after a sync of {name}")

    def deleted(self, volume: Volume, path: str, *, synced: bool) -> None:
        """A file is about to be deleted."""
        if volume.is_dead:
            return
        name = volume.name(path)
        self.trace.note(TRUNCATE, f"{self.name}/{name}", -1)
        try:
            file = volume.files.pop(os.stat(path).st_ino, None)
        except FileNotFoundError:
            return
        if synced:
            self.directory_synced(volume)
        elif file is not None and file.is_linked:
            volume.unlinked[name] = file

    def directory_synced(self, volume: Volume) -> None:
        volume.unlinked.clear()
        for file in volume.files.values():
            file.is_linked = True

    def _count_down(self, which: str, name: str, code: int, *, as_os_error: bool = False) -> None:
        if not self._reach(which):
            return
        what = which.removesuffix("_error_in")
        self.faults[f"{what} error"] += 1
        self.trace.log(f"{self.name}: a {what} of {name} fails")
        if as_os_error:
            raise OSError(5, "Input/output error", name)
        raise apsw.exception_for(code)

    def _reach(self, which: str) -> bool:
        count: int = getattr(self.broken, which)
        if count > 0:
            setattr(self.broken, which, count - 1)
        return count == 1

    # --- crashes --------------------------------------------------------------------------------

    def _crash(self, where: str) -> None:
        self.trace.log(f"{self.name}: crash {where}")
        self.on_crash()

    def kill(self) -> None:
        """The node's life ends here, but not its kernel's: the next one finds all that was written,
        synced or not."""
        old = self._end_life()
        for name, path in _files(old.path):
            copied = self.volume.path / name
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copied)
            known = old.files.get(path.stat().st_ino)
            if known is not None:
                self.volume.files[copied.stat().st_ino] = known
        self.volume.unlinked = old.unlinked

    def power_off(self, style: Style) -> None:
        """The node's life ends here; its next one begins with what `style` leaves of this one."""
        old = self._end_life()
        for name, path in _files(old.path):
            self._leave_file(old, name, path, style)
        for name, file in old.unlinked.items():
            if style != "kept" and self._random.random() < 0.5:
                self.faults["deletion undone"] += 1
                self._put(name, file.image(style, self._random, self.faults))

    def _end_life(self) -> Volume:
        old = self.volume
        old.is_dead = True
        old.died.set()
        self.volume = self._new_volume()
        return old

    def _new_volume(self) -> Volume:
        self._lives += 1
        path = self.root / self.name / str(self._lives)
        path.mkdir(parents=True)
        volume = Volume(path, self)
        VOLUMES[str(path)] = volume
        return volume

    def _leave_file(self, old: Volume, name: str, path: Path, style: Style) -> None:
        file = old.files.get(path.stat().st_ino)
        if file is None:
            # Not SQLite's: written and synced by other means.
            self._put(name, path.read_bytes())
        elif not file.is_linked and style != "kept" and self._random.random() < 0.5:
            self.faults["creation undone"] += 1
        else:
            self._put(name, file.image(style, self._random, self.faults))

    def _put(self, name: str, content: bytes) -> None:
        path = self.volume.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def throw_away(self, old: Volume) -> None:
        """Delete a dead node's directory, once the node has let go of it."""
        VOLUMES.pop(str(old.path), None)
        shutil.rmtree(old.path, ignore_errors=True)

    # --- damage while nobody runs ---------------------------------------------------------------

    def wipe(self) -> None:
        """An empty disk in place of this one."""
        self.throw_away(self._end_life())

    def flip_bits(self, count: int = 1) -> list[str]:
        """Flip bits at rest in what SQLite has written; returns where. No node may be running."""
        flipped = []
        databases = sorted(
            path for path in self.volume.path.rglob("*")
            if path.name.endswith((".db", ".db-wal")) and path.name != "node.db"
            and path.stat().st_size
        )
        for _ in range(count if databases else 0):
            path = self._random.choice(databases)
            content = bytearray(path.read_bytes())
            position = self._random.randrange(len(content))
            content[position] ^= 1 << self._random.randrange(8)
            path.write_bytes(content)
            known = self.volume.files.get(path.stat().st_ino)
            if known is not None and position < len(known.durable):
                known.durable[position] = content[position]
            flipped.append(f"{path.relative_to(self.volume.path)} byte {position}")
        self.faults["bit flip"] += len(flipped)
        return flipped


def _files(directory: Path) -> list[tuple[str, Path]]:
    """What a crash may leave of a directory: (path below it, path), in order."""
    return [
        (str(path.relative_to(directory)), path)
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not path.name.endswith(_NOT_COPIED)
    ]


VOLUMES: Final[dict[str, Volume]] = {}
"""Every volume that there is, by its directory: one VFS serves them all."""
