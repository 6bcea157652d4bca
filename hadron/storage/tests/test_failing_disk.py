"""Every write and sync of a node's files, crashed at and failed at; then the next starts judge.

What was acknowledged must be there, in order and unchanged; what is there must have been written;
and a disk that has lost nothing must still count: taking a torn log for a damaged one would let a
power failure silence a whole replica set (PROTOCOL A3, B4).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import apsw
import pytest

from hadron.fakes import vfs
from hadron.fakes.clocks import SimClock
from hadron.fakes.disk import SimDisk
from hadron.fakes.files import STYLES, Style
from hadron.fakes.volume import no_room
from hadron.model.errors import HadronError, StorageError
from hadron.model.ids import Ballot
from hadron.storage.log import Entry, read_entries
from hadron.storage.store import Store
from hadron.storage.tests.test_store import TABLES
from hadron.storage.writer import Prepared

UUID = b"u" * 16
BALLOT = Ballot(1, 1)
BODY = bytes(range(250)) * 40
"""Three pages: a commit of several frames."""

Point = Literal["crash_at_write_in", "crash_at_sync_in"]
Fault = Literal["write error", "sync error", "no room"]


@pytest.fixture(autouse=True)
def _simulated() -> Iterator[None]:
    vfs.install(1)
    yield
    vfs.uninstall()


class Disk(SimDisk):
    """A simulated disk whose n-th write may also find no room."""

    no_room_in = 0

    def fail_write(self, name: str, grows: int) -> None:
        if self.no_room_in:
            self.no_room_in -= 1
            if not self.no_room_in:
                self.faults["no room"] += 1
                raise no_room(name)
        super().fail_write(name, grows)


@dataclass
class Seen:
    """What a node did, and what it was told."""

    written: list[Entry] = field(default_factory=list)
    acknowledged: int = 0
    is_member: bool = False
    errors: list[BaseException] = field(default_factory=list)
    fatal: list[BaseException] = field(default_factory=list)
    """What the node was told to stop for."""
    crashed: bool = False


class Life:
    """One run of a node on the disk; nothing it is told after a crash counts."""

    def __init__(self, disk: SimDisk, seen: Seen) -> None:
        self._seen = seen
        self._disk, self._volume = disk, disk.volume
        self.store = Store(
            disk.volume.path,
            cluster="flights",
            replica_set="local/p0",
            node="n1",
            tables=TABLES,
            durability="fsync",
            checkpoint_bytes=1 << 20,
            reader_threads=1,
            disk=disk.volume,
            clock=SimClock(),
            post=lambda report: report(),
            on_fatal=seen.fatal.append,
        )

    @property
    def is_over(self) -> bool:
        return self._disk.volume is not self._volume

    def join(self) -> None:
        self.store.identity.become_member(UUID)
        self._seen.is_member |= not self.is_over

    def append(self) -> None:
        def prepare(connection: apsw.Connection) -> Prepared:
            connection.execute("BEGIN IMMEDIATE")
            entry = self.store.log.append(BALLOT, 1, b"command", BODY)
            del self._seen.written[entry.lsn - 1 :]
            self._seen.written.append(entry)
            return Prepared(entry.lsn, 100)

        def done(lsn: Any, error: BaseException | None) -> None:
            if error is not None:
                self._seen.errors.append(error)
            elif not self.is_over:
                self._seen.acknowledged = lsn

        self.store.writer.commit(prepare, done)
        # Where the disk has been slow, the COMMIT waits for the task that stands for the thread.
        self.store.writer._finish_here()

    def end(self) -> None:
        """The process ends without tidying up, unless a crash has ended it before."""
        if not self.is_over:
            self._disk.kill()
        self.store.readers.close()
        self.store.writer.abandon()
        self.store.identity.close()
        self.store._lock.release()

    def checkpoint(self) -> None:
        self.store.writer.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)


def judge(disk: SimDisk, seen: Seen) -> None:
    """Start again; then once more after a power failure that leaves only what was synced: by then
    the second start has told others what it holds."""
    for turn in range(2):
        life = Life(disk, seen)
        found = read_entries(life.store.writer.connection, 1, max_bytes=1 << 30)
        assert found == seen.written[: len(found)], "what is there was written"
        assert len(found) >= seen.acknowledged, "what was acknowledged is there"
        if seen.is_member:
            assert life.store.identity.current.is_member, "nothing was lost, so it counts"
        seen.acknowledged = len(found)
        if turn == 0:
            disk.power_off("dropped")
            life.end()
        else:
            life.append()
            assert seen.acknowledged == len(found) + 1, "and it goes on"
            life.store.close()


def make_disk(root: Path, seed: int) -> Disk:
    root.mkdir()
    return Disk("n1", root, random.Random(seed), faults=Counter())


def one_append(disk: Disk, seen: Seen, arm: Callable[[], None]) -> None:
    """A member that holds something appends one more entry."""
    life = Life(disk, seen)
    life.join()
    for _ in range(3):
        life.append()
    arm()
    life.append()
    life.end()


def whole_life(disk: Disk, seen: Seen, arm: Callable[[], None]) -> None:
    """First start, appends, a checkpoint, an orderly end, and all that again."""
    arm()
    for _ in range(2):
        life = Life(disk, seen)
        try:
            life.join()
            life.append()
            life.checkpoint()
            life.append()
            life.append()
            if life.is_over or seen.errors:
                raise StorageError("the node stops")
            life.store.close()
        except BaseException:
            life.end()
            raise
        if life.is_over:
            return


Story = Callable[[Disk, Seen, Callable[[], None]], None]


def crash_at(disk: Disk, story: Story, point: Point, number: int, style: Style) -> bool:
    """Play a story with a power failure at its n-th write or sync; whether it has so many."""
    seen = Seen()

    def crash() -> None:
        disk.power_off(style)
        seen.crashed = True

    disk.on_crash = crash
    try:
        story(disk, seen, lambda: setattr(disk.broken, point, number))
    except (HadronError, apsw.Error, OSError):
        # A dead node meets whatever it meets.
        assert seen.crashed
    setattr(disk.broken, point, 0)
    judge(disk, seen)
    return seen.crashed


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("point", ["crash_at_write_in", "crash_at_sync_in"])
async def test_a_crash_at_every_point_of_an_append(
    tmp_path: Path, point: Point, style: Style
) -> None:
    fates: Counter[str] = Counter()
    points = 0
    for seed in range(3):
        number = 1
        while crash_at(
            disk := make_disk(tmp_path / f"{seed}-{number}", seed), one_append, point, number, style
        ):
            fates.update(disk.faults)
            points += 1
            number += 1
    assert points >= 3 * (8 if point == "crash_at_write_in" else 1)
    if point == "crash_at_write_in":
        torn = {"write torn"} if style in ("prefix", "scattered") else {f"write {style}"}
        assert torn <= set(fates)


@pytest.mark.long
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("point", ["crash_at_write_in", "crash_at_sync_in"])
async def test_a_crash_at_points_of_a_whole_life(
    tmp_path: Path, point: Point, style: Style
) -> None:
    """Each style at every fourth point, so that all of them together are at every one."""
    number = 1 + STYLES.index(style)
    while crash_at(make_disk(tmp_path / str(number), number), whole_life, point, number, style):
        number += len(STYLES)
    assert number > (100 if point == "crash_at_write_in" else 30)


def fail_at(disk: Disk, fault: Fault, number: int) -> None:
    if fault == "no room":
        disk.no_room_in = number
    elif fault == "write error":
        disk.broken.write_error_in = number
    else:
        disk.broken.sync_error_in = number


@pytest.mark.parametrize("fault", ["write error", "sync error", "no room"])
async def test_an_error_at_every_point_of_an_append(tmp_path: Path, fault: Fault) -> None:
    """Nothing is tried again: what a failed fsync has dropped, a second one would call written."""
    number = 1
    while True:
        disk, seen = make_disk(tmp_path / str(number), number), Seen()
        life = Life(disk, seen)
        life.join()
        for _ in range(3):
            life.append()
        fail_at(disk, fault, number)
        life.append()
        if not disk.faults[fault]:
            life.end()
            break
        assert [type(error) for error in seen.errors] == [StorageError]
        assert seen.fatal == seen.errors, "the node is to stop"
        acknowledged, noted = seen.acknowledged, disk.trace.events
        life.append()
        assert "is not written any more" in str(seen.errors[1])
        assert (seen.acknowledged, disk.trace.events) == (acknowledged, noted)
        life.end()
        judge(disk, seen)
        number += 1
    assert number > (8 if fault != "sync error" else 1)


@pytest.mark.long
@pytest.mark.parametrize("fault", ["write error", "sync error", "no room"])
async def test_an_error_at_many_points_of_a_life(tmp_path: Path, fault: Fault) -> None:
    number = 1
    while True:
        disk, seen = make_disk(tmp_path / str(number), number), Seen()
        try:
            whole_life(disk, seen, partial(fail_at, disk, fault, number))
        except (HadronError, apsw.Error, OSError):
            assert disk.faults[fault]
        if not disk.faults[fault]:
            break
        judge(disk, seen)
        number += 3
    assert number > (100 if fault != "sync error" else 30)
