"""Crashes, errors and damage of a simulated disk, seen through SQLite and through files."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
import trio

from hadron.fakes import vfs
from hadron.fakes.disk import SLOW, SimDisk
from hadron.fakes.files import STYLES, Style
from hadron.fakes.scheduling import SimTime, run_seeded
from hadron.fakes.trace import Trace


@pytest.fixture(autouse=True)
def _installed() -> Iterator[None]:
    vfs.install(1)
    yield
    vfs.uninstall()


def make_disk(root: Path, seed: int = 1) -> SimDisk:
    root.mkdir(exist_ok=True)
    return SimDisk("n1", root, random.Random(seed), faults=Counter())


def open_database(disk: SimDisk) -> apsw.Connection:
    path = disk.volume.path / "hadron.db"
    connection = apsw.Connection(str(path), vfs=disk.volume.vfs)
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", "FULL")
    connection.pragma("wal_autocheckpoint", 0)
    connection.execute("CREATE TABLE IF NOT EXISTS t(a INTEGER PRIMARY KEY, b BLOB)")
    return connection


def insert(connection: apsw.Connection, number: int) -> None:
    connection.execute("INSERT INTO t VALUES(?, zeroblob(9000))", (number,))


def numbers(disk: SimDisk) -> list[int]:
    connection = open_database(disk)
    try:
        assert connection.pragma("integrity_check") == "ok"
        return [row[0] for row in connection.execute("SELECT a FROM t ORDER BY a")]
    finally:
        connection.close()


async def test_what_was_committed_survives_every_style_of_power_loss(tmp_path: Path) -> None:
    for style in STYLES:
        disk = make_disk(tmp_path / style)
        connection = open_database(disk)
        for number in range(5):
            insert(connection, number)
        disk.power_off(style)
        connection.close()
        assert numbers(disk) == [0, 1, 2, 3, 4]


async def test_every_write_and_sync_point_of_a_commit_leaves_it_whole_or_away(
    tmp_path: Path,
) -> None:
    points: Counter[str] = Counter()
    for which in ("crash_at_write_in", "crash_at_sync_in"):
        for style in STYLES:
            for point in range(1, 30):
                disk = make_disk(tmp_path / f"{which}{style}{point}", seed=point)
                if not _crash_at(disk, which, point, style):
                    break
                assert numbers(disk) in ([0], [0, 1])
                points[which] += 1
                points.update(disk.faults)
    assert points["crash_at_write_in"] >= 4 * 6
    assert points["crash_at_sync_in"] >= 4
    assert {"write kept", "write dropped", "write torn"} <= set(points)


def _crash_at(disk: SimDisk, which: str, point: int, style: Style) -> bool:
    """Insert 0, then 1 with a crash at its n-th write or sync; whether there are so many."""
    connection = open_database(disk)
    insert(connection, 0)
    crashed: list[bool] = []

    def crash() -> None:
        disk.power_off(style)
        crashed.append(True)

    disk.on_crash = crash
    setattr(disk.broken, which, point)
    insert(connection, 1)
    setattr(disk.broken, which, 0)
    # What a dead node still does is nobody's.
    insert(connection, 2)
    connection.close()
    return bool(crashed)


async def test_a_killed_process_loses_nothing_but_a_later_power_loss_may(tmp_path: Path) -> None:
    kept = dropped = 0
    for seed in range(10):
        disk = make_disk(tmp_path / str(seed), seed)
        connection = open_database(disk)
        connection.pragma("synchronous", "NORMAL")
        insert(connection, 0)
        disk.kill()
        connection.close()
        if seed % 2:
            kept += numbers(disk) == [0]
        else:
            disk.power_off("dropped")
            dropped += numbers(disk) == []
    assert (kept, dropped) == (5, 5)


async def test_errors_of_the_disk_are_sqlites(tmp_path: Path) -> None:
    disk = make_disk(tmp_path)
    connection = open_database(disk)
    insert(connection, 0)
    disk.broken.write_error_in = 1
    with pytest.raises(apsw.IOError):
        insert(connection, 1)
    disk.broken.sync_error_in = 1
    with pytest.raises(apsw.IOError):
        insert(connection, 1)
    disk.broken.capacity_bytes = 0
    with pytest.raises(apsw.FullError):
        # Into room that was taken already one may still write.
        connection.execute("INSERT INTO t VALUES(1, zeroblob(90000))")
    assert disk.free_bytes() == 0
    disk.heal()
    insert(connection, 1)
    other, watching = (
        apsw.Connection(str(disk.volume.path / "hadron.db"), vfs=disk.volume.vfs) for _ in range(2)
    )
    disk.broken.read_error_in = 1
    with disk.volume.unharmed():
        watching.execute("SELECT sum(length(b)) FROM t").fetchall()
    with pytest.raises(apsw.IOError):
        other.execute("SELECT sum(length(b)) FROM t").fetchall()
    watching.close()
    other.close()
    connection.close()
    assert {"write error", "sync error", "read error", "disk full"} <= set(disk.faults)


async def test_a_lying_disk_loses_what_it_called_synced(tmp_path: Path) -> None:
    disk = make_disk(tmp_path)
    connection = open_database(disk)
    insert(connection, 0)
    disk.broken.is_lying = True
    insert(connection, 1)
    disk.power_off("dropped")
    connection.close()
    disk.heal()
    assert numbers(disk) == [0]


async def test_bits_flip_in_databases_only_and_a_wiped_disk_is_empty(tmp_path: Path) -> None:
    disk = make_disk(tmp_path)
    connection = open_database(disk)
    insert(connection, 0)
    disk.volume.write_file(disk.volume.path / "other", b"content")
    disk.power_off("kept")
    connection.close()
    before = {path.name: path.read_bytes() for path in disk.volume.path.iterdir()}
    flipped = disk.flip_bits(3)
    after = {path.name: path.read_bytes() for path in disk.volume.path.iterdir()}
    assert len(flipped) == 3
    assert {name for name in before if before[name] != after[name]} <= {
        "hadron.db",
        "hadron.db-wal",
    }
    assert before != after
    disk.wipe()
    assert list(disk.volume.path.iterdir()) == []


async def test_a_log_without_its_header_is_no_log_to_sqlite(tmp_path: Path) -> None:
    disk = make_disk(tmp_path)
    connection = open_database(disk)
    connection.wal_checkpoint()
    insert(connection, 0)
    disk.kill()
    connection.close()
    assert disk.spoil_log_header()
    assert disk.faults["log without its header"] == 1
    disk.power_off("kept")
    assert numbers(disk) == []


async def test_an_unsynced_removal_or_creation_may_be_undone(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for seed in range(20):
        disk = make_disk(tmp_path / str(seed), seed)
        old, new = disk.volume.path / "old", disk.volume.path / "new"
        disk.volume.write_file(old, b"x")
        disk.volume.remove(old)
        disk.volume.write_at(new, 0, b"y")
        disk.power_off("dropped")
        left = {path.name: path.read_bytes() for path in disk.volume.path.iterdir()}
        assert left.get("old", b"x") == b"x"
        assert left.get("new", b"") == b""
        seen.update(left.keys())
    assert 0 < seen["old"] < 20
    assert 0 < seen["new"] < 20


async def test_a_link_that_was_switched_stays(tmp_path: Path) -> None:
    disk = make_disk(tmp_path)
    disk.volume.make_directory(disk.volume.path / "gen-1")
    target = disk.volume.path / "gen-1" / "f"
    disk.volume.write_at(target, 0, b"x")
    disk.volume.sync(target)
    disk.volume.sync(target.parent)
    disk.volume.switch(disk.volume.path / "f", "gen-1/f")
    disk.power_off("dropped")
    assert (disk.volume.path / "f").is_symlink()
    assert (disk.volume.path / "f").read_bytes() == b"x"


def test_work_takes_simulated_time_and_ends_with_its_host(tmp_path: Path) -> None:
    async def main(time: SimTime) -> None:
        disk = make_disk(tmp_path)
        disk.speed = SLOW
        path = disk.volume.path / "f"
        disk.volume.write_at(path, 0, b"x")
        await disk.volume.do(lambda: disk.volume.sync(path))
        assert time.now_s >= SLOW.sync_s[0]
        took_s = time.now_s
        disk.volume.sync(path)
        assert time.now_s == took_s, "the event loop cannot wait"
        assert disk.local_s() >= took_s + SLOW.sync_s[0]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(disk.volume.do, lambda: disk._spend(1000.0))
            await trio.sleep(1)
            disk.kill()
        assert time.now_s < 10

    run_seeded(1, main, Trace())


async def test_a_bit_flips_beneath_a_process_that_runs(tmp_path: Path) -> None:
    disk = make_disk(tmp_path)
    warm = open_database(disk)
    warm.execute("INSERT INTO t VALUES(1, ?)", (b"a value that is flipped",))
    (where,) = disk.flip_live(needle=b"a value that is")
    assert where.startswith("hadron.db-wal byte ")
    read = "SELECT b = ? FROM t WHERE a = 1", (b"a value that is flipped",)
    assert warm.execute(*read).get == 1
    cold = open_database(disk)
    assert cold.execute(*read).get == 0
    cold.close()
    disk.power_off("dropped")
    warm.close()
    # SQLite ends the log at a frame that does not match its checksum.
    assert numbers(disk) == []
    assert disk.faults["bit flip beneath a running node"] == 1


async def test_a_directory_is_deleted_beneath_a_process_that_runs(tmp_path: Path) -> None:
    disk = make_disk(tmp_path)
    connection = open_database(disk)
    insert(connection, 1)
    known = disk.volume.file_id(disk.volume.path)
    disk.lose_directory()
    insert(connection, 2)
    assert disk.volume.file_id(disk.volume.path) is None is not known
    disk.kill()
    connection.close()
    assert numbers(disk) == []
