"""A simulated disk: one per host, with a volume for each life of its node, and what can go wrong.

At a crash the volume dies: the image of every file is made from what had reached the platter and
what the crash leaves of the rest (`files`), and put into a fresh directory, where the node will
start again.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from hadron.fakes.damage import change_rows
from hadron.fakes.files import SimFile, Style
from hadron.fakes.trace import Trace
from hadron.fakes.volume import VOLUMES, Volume, failure, no_room

_CAPACITY_BYTES: Final = 1 << 40

_LOG_HEADER_BYTES: Final = 32
"""Of SQLite's write-ahead log."""


@dataclass(slots=True)
class DiskFaults:
    """What is wrong with a disk. A countdown of n strikes at the n-th operation from now, once."""

    read_error_in: int = 0
    write_error_in: int = 0
    sync_error_in: int = 0
    crash_at_write_in: int = 0
    crash_at_sync_in: int = 0
    is_lying: bool = False
    """Syncs are reported and not done."""
    capacity_bytes: int = _CAPACITY_BYTES


@dataclass(frozen=True, slots=True)
class Speed:
    """How long things take, in seconds; drawn between a low and a high end."""

    sync_s: tuple[float, float] = (100e-6, 400e-6)
    write_s: float = 2e-6
    hop_s: tuple[float, float] = (20e-6, 200e-6)
    """From asking for work until it begins."""
    stall_share: float = 0.002
    """Of syncs that take fifty times as long."""


FAST: Final = Speed()
ORDINARY: Final = Speed(sync_s=(500e-6, 3e-3))
SLOW: Final = Speed(sync_s=(5e-3, 40e-3), write_s=50e-6, hop_s=(100e-6, 5e-3), stall_share=0.01)

_STALL_FACTOR: Final = 50.0


class SimDisk:
    """The disk of one host. `volume` is the `ports.Disk` of the node's present life.

    Attributes:
        broken: the faults to come; set its fields at any time.
        on_crash: called in the middle of the write or sync at which a crash was asked for.
        is_watched: what is read just now a watcher reads, and no program: it meets no fault.
        is_foreign: its node belongs to nobody's world: what it promises is its own.
    """

    def __init__(
        self,
        name: str,
        root: Path,
        rng: random.Random,
        *,
        trace: Trace | None = None,
        faults: Counter[str] | None = None,
        speed: Speed = FAST,
        is_foreign: bool = False,
    ) -> None:
        """`root` is where volumes go; it must exist. `faults` counts those that fired."""
        self.name = name
        self.root = root
        self.speed = self._usual_speed = speed
        self.broken = DiskFaults()
        self.faults = faults if faults is not None else Counter()
        self.trace = trace or Trace()
        self.on_crash: Callable[[], None] = lambda: None
        self.is_foreign = is_foreign
        self.is_watched = False
        self._random = rng
        self.calendar_s = 0.0
        """How far the date has been turned (`World.turn_calendar`)."""
        self.boots = 1
        """Runs of the host's kernel; a power failure begins another."""
        self._lives = 0
        self._busy_until_s = 0.0
        self._working_s: float | None = None
        """How long the piece of work that `Volume.do` runs now has taken; None outside of it."""
        self._crashes_late = False
        self.volume = self._new_volume()

    def _new_volume(self) -> Volume:
        self._lives += 1
        path = self.root / self.name / str(self._lives)
        path.mkdir(parents=True)
        volume = VOLUMES[str(path)] = Volume(path, self)
        return volume

    # --- time -----------------------------------------------------------------------------------

    def local_s(self) -> float:
        """The time on the host: a loop that works at its disk is ahead of the world."""
        return max(trio.current_time(), self._busy_until_s) + (self._working_s or 0.0)

    def hop_s(self) -> float:
        """How long work waits until it begins."""
        return self._random.uniform(*self.speed.hop_s)

    def begin_work(self) -> None:
        """What is spent from here to `end_work` is time of a piece of work."""
        self._working_s = 0.0

    def end_work(self) -> float:
        """How long the work has taken."""
        taken_s, self._working_s = self._working_s or 0.0, None
        return taken_s

    def spend_write(self) -> None:
        self._spend(self.speed.write_s)

    def spend_sync(self) -> None:
        stalls = self._random.random() < self.speed.stall_share
        factor = _STALL_FACTOR if stalls else 1.0
        self._spend(self._random.uniform(*self.speed.sync_s) * factor)

    def pause(self, seconds: float) -> None:
        """The host's process stands still: what it does now is seen that much later, and its clock
        has gone on."""
        self._busy_until_s = max(trio.current_time(), self._busy_until_s) + seconds
        self.faults["pause"] += 1

    def _spend(self, seconds: float) -> None:
        if self._working_s is not None:
            self._working_s += seconds
        else:
            self._busy_until_s = max(trio.current_time(), self._busy_until_s) + seconds

    # --- faults ---------------------------------------------------------------------------------

    def free_bytes(self) -> int:
        return max(self.broken.capacity_bytes - self.volume.used_bytes(), 0)

    def heal(self) -> None:
        """Undo what can be undone: errors to come, lies, slowness and a lack of room."""
        self.broken = DiskFaults()
        self.speed = self._usual_speed
        self._crashes_late = False

    def fail_read(self, name: str) -> None:
        if not self.is_watched and self._reach("read_error_in"):
            self._note("read error", name)
            raise failure(name)

    def fail_write(self, name: str, grows: int) -> None:
        if self._reach("write_error_in"):
            self._note("write error", name)
            raise failure(name)
        is_bounded = self.broken.capacity_bytes < _CAPACITY_BYTES
        if is_bounded and grows > 0 and grows > self.free_bytes():
            self._note("disk full", name)
            raise no_room(name)

    def fail_sync(self, name: str, file: SimFile) -> None:
        if self._reach("sync_error_in"):
            file.fail_sync(self._random)
            self._note("sync error", name)
            raise failure(name)

    def lies(self) -> bool:
        if self.broken.is_lying:
            self.faults["lying sync"] += 1
        return self.broken.is_lying

    def crashes_at_write(self, where: str, *, late: bool | None = None) -> bool:
        """Crash if this is the write for that; whether it did.

        `late` as in `crashes_at_sync`; None where there is one moment only.
        """
        return self._crashes("crash_at_write_in", where, late)

    def crashes_at_sync(self, where: str, *, late: bool | None = None) -> bool:
        """Crash if this is the sync for that. Asked before (`late` False) and after it is done:
        chance chooses one of the two moments."""
        return self._crashes("crash_at_sync_in", where, late)

    def _crashes(self, which: str, where: str, late: bool | None) -> bool:
        if late:
            crashes, self._crashes_late = self._crashes_late, False
        else:
            crashes = self._reach(which)
            if crashes and late is False and self._random.random() < 0.5:
                self._crashes_late = True
                return False
        if crashes:
            self.trace.log(f"{self.name}: a crash {where}")
            self.faults[which.removesuffix("_in").replace("_", " ")] += 1
            self.on_crash()
        return crashes

    def _reach(self, which: str) -> bool:
        count: int = getattr(self.broken, which)
        if count > 0:
            setattr(self.broken, which, count - 1)
        return count == 1

    def _note(self, what: str, name: str) -> None:
        self.volume.has_failed = True
        self.faults[what] += 1
        self.trace.log(f"{self.name}: {what} at {name}")

    # --- the end of a life ----------------------------------------------------------------------

    def kill(self) -> None:
        """The node's life ends, but not its kernel's: the next one finds all that was written,
        synced or not."""
        old = self._end_life()
        for name, path in old.left_files():
            copied = self.volume.path / name
            if path.is_dir():
                copied.mkdir(exist_ok=True)
                continue
            shutil.copyfile(path, copied, follow_symlinks=False)
            known = old.files.get(path.lstat().st_ino)
            if known is not None:
                self.volume.files[copied.stat().st_ino] = known
        self.volume.unlinked = old.unlinked

    def power_off(self, style: Style) -> None:
        """The node's life ends; the next one begins with what `style` leaves of it."""
        self.boots += 1
        old = self._end_life()
        for name, path in old.left_files():
            self._leave(old, name, path, style)
        for name, file in old.unlinked.items():
            copied = self.volume.path / name
            if style != "kept" and not copied.exists() and self._random.random() < 0.5:
                self.faults["removal undone"] += 1
                copied.parent.mkdir(parents=True, exist_ok=True)
                copied.write_bytes(file.image(style, self._random, self.faults))

    def _end_life(self) -> Volume:
        old = self.volume
        old.die()
        self._crashes_late = False
        self.volume = self._new_volume()
        return old

    def _leave(self, old: Volume, name: str, path: Path, style: Style) -> None:
        copied = self.volume.path / name
        if path.is_symlink():
            copied.symlink_to(os.readlink(path))
            return
        if path.is_dir():
            copied.mkdir(exist_ok=True)
            return
        file = old.files.get(path.stat().st_ino)
        if file is None:
            # From an earlier life, and not touched in this one.
            shutil.copyfile(path, copied)
        elif not file.is_linked and style != "kept" and self._random.random() < 0.5:
            self.faults["creation undone"] += 1
        else:
            copied.write_bytes(file.image(style, self._random, self.faults))

    def throw_away(self, old: Volume) -> None:
        """Delete a dead node's directory, once the node has let go of it."""
        VOLUMES.pop(str(old.path), None)
        shutil.rmtree(old.path, ignore_errors=True)

    # --- damage while nobody runs ---------------------------------------------------------------

    def wipe(self) -> None:
        """An empty disk in place of this one."""
        self.throw_away(self._end_life())

    def change_rows(self, count: int = 1, *, trimmed_only: bool = False) -> list[str]:
        """Change rows of the log, pages' checksums and all: what a bit that flips in memory leaves.

        Returns what was changed. The node must have been stopped in good order.
        """
        path = self.volume.path / "hadron.db"
        changed = (
            change_rows(path, count, self._random, trimmed_only=trimmed_only)
            if path.exists()
            else []
        )
        if changed:
            # It did not go through this disk: it is read from the file again.
            self.volume.files.pop(path.stat().st_ino, None)
        self.faults["changed row"] += len(changed)
        return changed

    def flip_bits(self, count: int = 1) -> list[str]:
        """Flip bits at rest in what SQLite has written; returns where. No node may be running."""
        databases = [
            path
            for name, path in self.volume.left_files()
            if name.endswith((".db", ".db-wal"))
            and name != "node.db"
            and not path.is_symlink()
            and path.stat().st_size
        ]
        flipped = []
        for _ in range(count if databases else 0):
            path = self._random.choice(databases)
            content = bytearray(path.read_bytes())
            position = self._random.randrange(len(content))
            bit = 1 << self._random.randrange(8)
            content[position] ^= bit
            path.write_bytes(content)
            known = self.volume.files.get(path.stat().st_ino)
            if known is not None and position < len(known.durable):
                known.durable[position] ^= bit
            flipped.append(f"{self.volume.name(path)} byte {position}")
        self.faults["bit flip"] += len(flipped)
        return flipped

    def spoil_log_header(self) -> list[str]:
        """Spoil a byte of the header of the write-ahead log, without which SQLite drops all of it.
        Returns where; no node may be running."""
        spoiled = []
        for name, path in self.volume.left_files():
            if not name.endswith("hadron.db-wal") or path.stat().st_size < _LOG_HEADER_BYTES:
                continue
            content = bytearray(path.read_bytes())
            position = self._random.randrange(_LOG_HEADER_BYTES)
            content[position] ^= 0xFF
            path.write_bytes(content)
            known = self.volume.files.get(path.stat().st_ino)
            if known is not None and position < len(known.durable):
                known.durable[position] ^= 0xFF
            spoiled.append(f"{name} byte {position}")
        self.faults["log without its header"] += len(spoiled)
        return spoiled

    # --- damage beneath a running node ----------------------------------------------------------

    def flip_live(self, count: int = 1, *, needle: bytes = b"", in_log: bool = True) -> list[str]:
        """Flip bits in what a running node has written and synced, beneath whatever it has in its
        caches; returns where.

        Args:
            needle: flip one in the last place where these bytes stand, in the write-ahead log or
                (not `in_log`) in the file.
        """
        path = (self.volume.path / "hadron.db").resolve()
        files = [
            each
            for each in (Path(f"{path}-wal"), path)
            if each.exists() and each.stat().st_ino in self.volume.files
        ]
        flipped = []
        for _ in range(count if files else 0):
            chosen = self._random.choice(files)
            if needle:
                chosen = files[0] if in_log else files[-1]
            content = bytearray(chosen.read_bytes())
            file = self.volume.files[chosen.stat().st_ino]
            # What the kernel has yet to write is in its memory only.
            synced = min(len(file.durable), len(content))
            if not synced:
                continue
            position = content.rindex(needle) if needle else self._random.randrange(synced)
            bit = 1 << self._random.randrange(8)
            content[position] ^= bit
            chosen.write_bytes(content)
            if position < len(file.durable):
                file.durable[position] ^= bit
            flipped.append(f"{self.volume.name(chosen)} byte {position}")
        self.faults["bit flip beneath a running node"] += len(flipped)
        return flipped

    def lose_directory(self) -> None:
        """Somebody deletes the data directory of a running node, which has its files open."""
        self.volume.path.rename(self.volume.path.with_name(f"{self.volume.path.name} deleted"))
        self.faults["deleted directory"] += 1
