"""What a start makes of the stop before it: whose disk may count, and what is set aside."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from hadron.model.errors import CorruptionError, DataDirectoryError, StorageError
from hadron.model.ids import Ballot, LogPosition
from hadron.node.world import SystemDisk
from hadron.storage.aftermath import ASIDE
from hadron.storage.database import PAGE_BYTES, connect
from hadron.storage.log import read_entries
from hadron.storage.store import Store
from hadron.storage.tests.test_store import open_store
from hadron.storage.wal_scan import FRAME_HEADER_BYTES, HEADER_BYTES

UUID = b"u" * 16
STEP = FRAME_HEADER_BYTES + PAGE_BYTES


class BootedDisk(SystemDisk):
    """A machine whose boot id the test decides."""

    def __init__(self, boot: str) -> None:
        self._boot = boot

    def boot_id(self) -> str:
        return self._boot


class PhotographingDisk(SystemDisk):
    """Keeps what `kill -9` would leave of a directory before and after each of its steps."""

    def __init__(self, directory: Path, images: Path) -> None:
        self._directory = directory
        self._images = images

    def images(self) -> list[Path]:
        return sorted(self._images.iterdir())

    def _step(self, act: Callable[[], None]) -> None:
        self.photograph()
        act()
        self.photograph()

    def photograph(self) -> None:
        self._images.mkdir(exist_ok=True)
        shutil.copytree(
            self._directory,
            self._images / f"{len(self.images()):03}",
            symlinks=True,
            ignore=shutil.ignore_patterns("*-shm"),
        )

    def sync(self, path: Path) -> None:
        self._step(lambda: SystemDisk.sync(self, path))

    def remove(self, path: Path) -> None:
        self._step(lambda: SystemDisk.remove(self, path))

    def switch(self, link: Path, target: str) -> None:
        self._step(lambda: SystemDisk.switch(self, link, target))


def append(store: Store, count: int = 1, size: int = 100) -> None:
    for _ in range(count):
        store.writer.connection.execute("BEGIN IMMEDIATE")
        store.log.append(Ballot(1, 1), 1, b"command", bytes([store.log.head.lsn % 251]) * size)
        store.writer.connection.execute("COMMIT")


def run_and_crash(
    directory: Path,
    *,
    count: int = 5,
    between: Callable[[Store], object] = lambda _: None,
    **changes: Any,
) -> Path:
    """A member that has written something; returns its files as `kill -9` leaves them."""
    store = open_store(directory / "running", durability="fsync", **changes)
    store.identity.become_member(UUID)
    append(store, count)
    between(store)
    crashed = copy_open(store, directory / "crashed")
    store.close()
    return crashed


def copy_open(store: Store, to: Path) -> Path:
    if to.exists():
        shutil.rmtree(to)
    to.mkdir(parents=True)
    for file in store.directory.iterdir():
        if not file.name.endswith("-shm"):
            shutil.copy(file, to / file.name)
    return to


def flip(path: Path, at: int, mask: int = 4) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= mask
    path.write_bytes(data)


def read_pair(path: Path) -> dict[str, bytes]:
    """A database and its log, as far as they are there."""
    files = {ending: Path(f"{path}{ending}") for ending in ("", "-wal")}
    return {ending: file.read_bytes() for ending, file in files.items() if file.exists()}


class TestNothingLost:
    async def test_an_orderly_stop(self, tmp_path: Path) -> None:
        for _ in range(3):
            store = open_store(tmp_path, durability="fsync")
            assert store.identity.last_stop.clean
            store.identity.become_member(UUID)
            append(store)
            store.close()
        store = open_store(tmp_path)
        assert store.log.head.lsn == 3
        assert store.identity.current.is_member
        store.close()

    async def test_a_killed_process(self, tmp_path: Path) -> None:
        crashed = run_and_crash(tmp_path)
        for _ in range(2):
            store = open_store(crashed)
            assert not store.identity.last_stop.clean
            assert (store.log.head.lsn, store.identity.current.is_member) == (5, True)
            again = copy_open(store, tmp_path / "again")
            store.close()
            shutil.rmtree(crashed)
            shutil.copytree(again, crashed)

    async def test_a_torn_tail(self, tmp_path: Path) -> None:
        crashed = run_and_crash(tmp_path)
        wal = crashed / "hadron.db-wal"
        wal.write_bytes(wal.read_bytes()[:-100])
        store = open_store(crashed)
        assert (store.log.head.lsn, store.identity.current.is_member) == (4, True)
        store.close()

    async def test_killed_before_the_first_commit(self, tmp_path: Path) -> None:
        """Nothing had been acknowledged, and the log was not begun."""
        store = open_store(tmp_path / "running", durability="fsync")
        store.identity.become_member(UUID)
        store.close()
        shutil.copytree(tmp_path / "running", tmp_path / "crashed")
        (tmp_path / "crashed" / "hadron.db-wal").write_bytes(b"")
        store = open_store(tmp_path / "crashed")
        assert store.identity.current.is_member
        store.close()

    @pytest.mark.parametrize("late", [False, True])
    async def test_killed_while_closing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
    ) -> None:
        """Just before, or just after, the run is marked as ended: the log is still there."""
        store = open_store(tmp_path / "running", durability="fsync")
        store.identity.become_member(UUID)
        append(store, 5)
        end_run = store.identity.end_run

        def crash(mark: LogPosition) -> None:
            if late:
                end_run(mark)
            copy_open(store, tmp_path / "crashed")

        monkeypatch.setattr(store.identity, "end_run", crash)
        store.close()
        store = open_store(tmp_path / "crashed")
        assert store.identity.last_stop.clean is late
        assert (store.log.head.lsn, store.identity.current.is_member) == (5, True)
        store.close()

    async def test_stopped_by_a_failing_disk(self, tmp_path: Path) -> None:
        """What the log's file holds after that is not known before it is read again."""
        store = open_store(tmp_path, durability="fsync")
        store.identity.become_member(UUID)
        append(store, 5)
        store.writer.failure = StorageError("fsync failed")
        store.close()
        assert (tmp_path / "hadron.db-wal").exists()
        store = open_store(tmp_path)
        assert not store.identity.last_stop.clean
        assert (store.log.head.lsn, store.identity.current.is_member) == (5, True)
        store.close()

    async def test_a_start_that_is_refused_leaves_the_log(self, tmp_path: Path) -> None:
        def newer(store: Store) -> None:
            store.writer.connection.pragma("user_version", 99)

        crashed = run_and_crash(tmp_path, between=newer)
        before = read_pair(crashed / "hadron.db")
        for _ in range(2):
            with pytest.raises(DataDirectoryError, match="format version 99"):
                open_store(crashed)
        assert read_pair(crashed / "hadron.db") == before

    async def test_torn_tails_do_not_pile_up(self, tmp_path: Path) -> None:
        """Frames of one torn transaction, then a shorter one over them, then another crash: the
        older frames must not look like later ones."""
        crashed = run_and_crash(tmp_path, between=lambda store: append(store, 1, 30 * PAGE_BYTES))
        wal = crashed / "hadron.db-wal"
        data = bytearray(wal.read_bytes())
        data[-20 * STEP - 100] ^= 1
        wal.write_bytes(data)
        store = open_store(crashed, durability="fsync")
        assert (store.log.head.lsn, store.identity.current.is_member) == (5, True)
        append(store, 2)
        again = copy_open(store, tmp_path / "again")
        store.close()
        store = open_store(again)
        assert (store.log.head.lsn, store.identity.current.is_member) == (7, True)
        store.close()

    async def test_a_header_torn_while_the_log_was_begun_anew(self, tmp_path: Path) -> None:
        def begin_anew(store: Store) -> None:
            store.writer.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)

        crashed = run_and_crash(tmp_path, between=begin_anew)
        flip(crashed / "hadron.db-wal", 15, 1)
        store = open_store(crashed)
        assert (store.log.head.lsn, store.identity.current.is_member) == (5, True)
        store.close()


class TestAmnesia:
    def assert_starts_over(self, directory: Path) -> None:
        """It remembers its promises and whose it was, counts for nothing, and holds nothing."""
        for _ in range(2):
            store = open_store(directory, durability="fsync")
            identity = store.identity.current
            assert (identity.is_member, identity.uuid) == (False, UUID)
            assert store.identity.has_forgotten
            assert store.log.head.lsn == 0
            store.close()

    async def test_a_flipped_bit_in_the_log(self, tmp_path: Path) -> None:
        crashed = run_and_crash(tmp_path)
        flip(crashed / "hadron.db-wal", HEADER_BYTES + STEP // 2)
        self.assert_starts_over(crashed)
        assert (crashed / f"{ASIDE}-wal").stat().st_size > 5 * STEP
        assert (crashed / ASIDE).exists()

    async def test_a_flipped_bit_in_the_logs_header(self, tmp_path: Path) -> None:
        crashed = run_and_crash(tmp_path)
        flip(crashed / "hadron.db-wal", 20)
        self.assert_starts_over(crashed)

    @pytest.mark.parametrize("data", [None, b"", bytes(5000)])
    async def test_a_log_that_is_gone(self, tmp_path: Path, data: bytes | None) -> None:
        crashed = run_and_crash(tmp_path)
        wal = crashed / "hadron.db-wal"
        wal.unlink() if data is None else wal.write_bytes(data)
        self.assert_starts_over(crashed)

    async def test_a_foreign_program_that_dropped_the_log(self, tmp_path: Path) -> None:
        crashed = run_and_crash(tmp_path)
        apsw.Connection(str(crashed / "hadron.db")).execute("SELECT * FROM t").connection.close()
        assert not (crashed / "hadron.db-wal").exists()
        self.assert_starts_over(crashed)

    @pytest.mark.parametrize("lose", [Path.unlink, lambda path: path.write_bytes(b"")])
    async def test_a_file_that_is_gone(
        self, tmp_path: Path, lose: Callable[[Path], object]
    ) -> None:
        crashed = run_and_crash(tmp_path)
        lose(crashed / "hadron.db")
        self.assert_starts_over(crashed)

    async def test_killed_while_the_file_was_being_set_aside(self, tmp_path: Path) -> None:
        crashed = run_and_crash(tmp_path)
        flip(crashed / "hadron.db-wal", HEADER_BYTES + STEP // 2)
        (crashed / "hadron.db-wal").rename(crashed / f"{ASIDE}-wal")
        database = connect(crashed / "node.db")
        database.execute("UPDATE identity SET is_member = 0, suspect = 'damaged'")
        database.close()
        self.assert_starts_over(crashed)

    @pytest.mark.parametrize("lost", ["a bit of the log", "the log", "the file"])
    async def test_what_stands_aside_is_of_one_database_at_whatever_crash(
        self, tmp_path: Path, lost: str
    ) -> None:
        """Of the damage before, or of this one; and once the next start is over, of this one."""
        crashed = run_and_crash(tmp_path)
        before = {"": b"an older file", "-wal": b"and its log"}
        for ending, content in before.items():
            (crashed / f"{ASIDE}{ending}").write_bytes(content)
        path = crashed / "hadron.db"
        if lost == "the file":
            path.unlink()
        elif lost == "the log":
            (crashed / "hadron.db-wal").unlink()
        else:
            flip(crashed / "hadron.db-wal", HEADER_BYTES + STEP // 2)
        # A log never stands aside alone, for longer than a start takes.
        now = {"": b""} | read_pair(path)
        disk = PhotographingDisk(crashed, tmp_path / "images")
        store = open_store(crashed, disk=disk)
        store.close()
        assert read_pair(crashed / ASIDE) == now
        for image in disk.images():
            aside = read_pair(image / ASIDE)
            if "" in aside:
                assert aside.items() <= before.items() or aside == now
            self.assert_starts_over(image)
            assert read_pair(image / ASIDE) == now

    async def test_a_file_that_is_gone_takes_nothing_from_what_stands_aside(
        self, tmp_path: Path
    ) -> None:
        crashed = run_and_crash(tmp_path)
        flip(crashed / "hadron.db-wal", HEADER_BYTES + STEP // 2)
        before = read_pair(crashed / "hadron.db")
        open_store(crashed).close()
        for name in ("hadron.db", "hadron.db-wal"):
            (crashed / name).unlink(missing_ok=True)
        database = connect(crashed / "node.db")
        database.execute("UPDATE identity SET is_member = 1, clean = 0")
        database.close()
        self.assert_starts_over(crashed)
        assert read_pair(crashed / ASIDE) == before

    async def test_alone_it_leaves_everything_as_it_is(self, tmp_path: Path) -> None:
        crashed = run_and_crash(tmp_path)
        flip(crashed / "hadron.db-wal", HEADER_BYTES + STEP // 2)
        before = (crashed / "hadron.db-wal").read_bytes()
        for _ in range(2):
            with pytest.raises(CorruptionError, match="cannot be trusted") as caught:
                open_store(crashed, has_peers=False)
            assert "hadron.db-wal is damaged: frame 1 is not what was written" in str(caught.value)
            assert "backup" in caught.value.hint
        assert (crashed / "hadron.db-wal").read_bytes() == before


class TestOtherFiles:
    """Somebody has put another file in the place of the one that belongs there. Alone a node
    refuses it, and whatever stands there is left to the last byte."""

    @pytest.mark.parametrize("is_killed", [False, True])
    async def test_the_right_one_put_back_has_everything(
        self, tmp_path: Path, is_killed: bool
    ) -> None:
        """A log that a refused start had begun for an older copy would cut it to that one's
        size."""
        data = self.older_copy(tmp_path, is_killed=is_killed)
        before = read_pair(data / "hadron.db")
        for _ in range(2):
            with pytest.raises(CorruptionError, match=r"older copy.* its log ends at 2"):
                open_store(data, durability="fsync", has_peers=False)
            after = read_pair(data / "hadron.db")
            assert {"-wal": b""} | before == {"-wal": b""} | after
        # The file, and its log where it has one: of what a start has left nothing is taken away.
        for ending in read_pair(tmp_path / "right" / "hadron.db"):
            shutil.move(tmp_path / "right" / f"hadron.db{ending}", data / f"hadron.db{ending}")
        store = open_store(data, durability="fsync", has_peers=False)
        assert store.log.head.lsn == 202
        assert store.writer.connection.pragma("integrity_check") == "ok"
        entries = read_entries(store.writer.connection, 1, max_bytes=1 << 20)
        assert [entry.body for entry in entries[2:]] == [bytes([n]) * 500 for n in range(2, 202)]
        store.close()

    def older_copy(self, directory: Path, *, is_killed: bool) -> Path:
        """A node's directory with an older file, after an orderly stop or a kill; the right one is
        in `right`."""
        data = directory / "data"
        store = open_store(directory / "running", durability="fsync")
        store.identity.become_member(UUID)
        append(store, 2)
        if is_killed:
            copy_open(store, directory / "old")
        store.close()
        if not is_killed:
            shutil.copytree(directory / "running", directory / "old")
        store = open_store(directory / "running", durability="fsync")
        append(store, 200, 500)
        store.identity.note_mark(store.log.head)
        copy_open(store, data)
        store.close()
        if not is_killed:
            shutil.rmtree(data)
            shutil.copytree(directory / "running", data)
        (directory / "right").mkdir()
        for ending in read_pair(data / "hadron.db"):
            shutil.move(data / f"hadron.db{ending}", directory / "right" / f"hadron.db{ending}")
        for ending in read_pair(directory / "old" / "hadron.db"):
            shutil.copy(directory / "old" / f"hadron.db{ending}", data / f"hadron.db{ending}")
        return data


class TestKernel:
    """`durability: os`: commits live as long as the kernel does."""

    def crash(self, directory: Path, boot: str, *, is_marked: bool = False) -> Path:
        store = open_store(directory / "running", durability="os", disk=BootedDisk(boot))
        store.identity.become_member(UUID)
        append(store, 5)
        if is_marked:
            store.identity.note_mark(store.log.head)
        crashed = copy_open(store, directory / "crashed")
        store.close()
        return crashed

    @pytest.mark.parametrize(
        ("then", "now", "kept"), [("a", "a", True), ("a", "b", False), ("", "", False)]
    )
    @pytest.mark.parametrize("durability", ["os", "fsync"])
    async def test_a_crash(
        self, tmp_path: Path, then: str, now: str, kept: bool, durability: str
    ) -> None:
        crashed = self.crash(tmp_path, then)
        for _ in range(2):
            store = open_store(crashed, disk=BootedDisk(now), durability=durability)
            assert store.identity.current.is_member is kept
            assert store.log.head.lsn == 5, "what it shares with its leader need not be sent again"
            store.close()

    async def test_a_mark_says_nothing_of_what_comes_after_it(self, tmp_path: Path) -> None:
        crashed = self.crash(tmp_path, "a", is_marked=True)
        store = open_store(crashed, disk=BootedDisk("b"), durability="os")
        assert not store.identity.current.is_member
        store.close()

    async def test_an_orderly_stop_before_the_machine_was_stopped(self, tmp_path: Path) -> None:
        for boot in "abc":
            store = open_store(tmp_path, durability="os", disk=BootedDisk(boot))
            store.identity.become_member(UUID)
            append(store)
            store.close()
        store = open_store(tmp_path, disk=BootedDisk("d"))
        assert store.identity.current.is_member
        store.close()

    async def test_flushed_commits_survive_it(self, tmp_path: Path) -> None:
        crashed = run_and_crash(tmp_path, disk=BootedDisk("a"))
        store = open_store(crashed, disk=BootedDisk("b"))
        assert (store.log.head.lsn, store.identity.current.is_member) == (5, True)
        store.close()
