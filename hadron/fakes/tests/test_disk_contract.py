"""What `ports.Disk` promises: this machine's disk and the simulated one keep the same contract."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import apsw
import pytest

from hadron.fakes import vfs
from hadron.fakes.disk import SimDisk
from hadron.model.ports import Disk
from hadron.node.world import SystemDisk


@dataclass(frozen=True)
class Place:
    """A disk, and a directory on it that exists."""

    disk: Disk
    path: Path


@pytest.fixture(params=["system", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "system":
        yield Place(SystemDisk(), tmp_path)
        return
    vfs.install(1)
    volume = SimDisk("n1", tmp_path, random.Random(1)).volume
    yield Place(volume, volume.path)
    vfs.uninstall()


async def test_work_is_done_and_its_result_or_error_comes_back(place: Place) -> None:
    assert await place.disk.do(lambda: 42) == 42
    with pytest.raises(ZeroDivisionError):
        await place.disk.do(lambda: 1 // 0)


async def test_there_is_room(place: Place) -> None:
    assert place.disk.free_bytes(place.path) > 1 << 20


async def test_a_small_file_is_replaced_whole(place: Place) -> None:
    path = place.path / "small"
    place.disk.write_file(path, b"old")
    place.disk.write_file(path, b"new one")
    assert path.read_bytes() == b"new one"
    assert [child.name for child in place.path.iterdir()] == ["small"]


async def test_a_file_is_written_and_read_in_pieces(place: Place) -> None:
    path = place.path / "pieces"
    place.disk.write_at(path, 0, b"abc")
    place.disk.write_at(path, 6, memoryview(b"ghi"))
    place.disk.write_at(path, 1, b"B")
    place.disk.sync(path)
    assert place.disk.read_at(path, 0, 100) == b"aBc\0\0\0ghi"
    assert place.disk.read_at(path, 6, 2) == b"gh"
    assert place.disk.read_at(path, 100, 2) == b""


async def test_what_is_missing_is_an_os_error(place: Place) -> None:
    for path in (place.path / "nothing", place.path / "no" / "directory"):
        with pytest.raises(FileNotFoundError):
            place.disk.read_at(path, 0, 1)
        with pytest.raises(FileNotFoundError):
            place.disk.sync(path)
    with pytest.raises(FileNotFoundError):
        place.disk.write_at(place.path / "no" / "directory", 0, b"x")


async def test_directories_are_made_and_removed_with_what_is_in_them(place: Place) -> None:
    deep = place.path / "a" / "b"
    place.disk.make_directory(deep)
    place.disk.make_directory(deep)
    place.disk.write_at(deep / "file", 0, b"x")
    place.disk.remove(place.path / "a")
    place.disk.sync(place.path)
    assert list(place.path.iterdir()) == []
    place.disk.remove(place.path / "a")


async def test_a_link_takes_the_place_of_a_file_or_another_link(place: Place) -> None:
    for number in (1, 2):
        place.disk.make_directory(place.path / f"gen-{number}")
        place.disk.write_at(place.path / f"gen-{number}" / "f", 0, b"%d" % number)
    link = place.path / "f"
    place.disk.write_at(link, 0, b"0")
    for number in (1, 2):
        place.disk.switch(link, f"gen-{number}/f")
        assert link.is_symlink()
        assert place.disk.read_at(link, 0, 9) == b"%d" % number
    place.disk.remove(link)
    assert not link.is_symlink()
    assert (place.path / "gen-2" / "f").read_bytes() == b"2"


async def test_sqlite_writes_what_can_be_read_and_opens_what_was_written(place: Place) -> None:
    first, second = place.path / "first.db", place.path / "second.db"
    connection = apsw.Connection(str(first), vfs=place.disk.vfs)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE t(a); INSERT INTO t VALUES(1)")
    connection.close()
    content = place.disk.read_at(first, 0, 1 << 20)
    assert content.startswith(b"SQLite format 3\0")
    place.disk.write_at(second, 0, content)
    place.disk.sync(second)
    connection = apsw.Connection(str(second), vfs=place.disk.vfs)
    assert connection.execute("SELECT a FROM t").fetchall() == [(1,)]
    connection.execute("INSERT INTO t VALUES(2)")
    connection.close()


async def test_a_file_is_told_from_another_one_of_its_name(place: Place) -> None:
    path = place.path / "file"
    assert place.disk.file_id(path) is None
    place.disk.write_at(path, 0, b"one")
    known = place.disk.file_id(path)
    assert known is not None
    place.disk.write_at(path, 0, b"two")
    assert place.disk.file_id(path) == known
    path.rename(place.path / "moved")
    assert place.disk.file_id(path) is None
    place.disk.write_at(path, 0, b"one")
    assert place.disk.file_id(path) not in (None, known)
    link = place.path / "link"
    place.disk.switch(link, "moved")
    assert place.disk.file_id(link) == known
    assert place.disk.file_id(path / "below") is None
    assert place.disk.file_id(place.path) is not None
