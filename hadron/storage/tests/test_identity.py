"""`node.db` and the lock: whose directory it is, and what it has promised."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE, Popen

import apsw
import pytest

from hadron.model.errors import (
    CorruptionError,
    DataDirectoryError,
    FencedError,
    NotReadyError,
    StorageError,
)
from hadron.model.ids import NO_BALLOT, Ballot
from hadron.node.world import SystemDisk
from hadron.storage.database import connect, open_reader
from hadron.storage.identity import (
    NODE_DATABASE,
    DirectoryLock,
    IdentityFile,
    PeerStart,
    in_use,
    read_epoch,
)

DISK = SystemDisk()
DIGEST, OTHER = b"d" * 16, b"o" * 16


class SyncedDisk(SystemDisk):
    """Knows what was flushed."""

    def __init__(self) -> None:
        self.synced: list[Path] = []

    def sync(self, path: Path) -> None:
        super().sync(path)
        self.synced.append(path)


@contextlib.contextmanager
def opened(directory: Path, node: str = "n1") -> Iterator[IdentityFile]:
    identity = IdentityFile(directory, "flights", "local/p0", node, DISK)
    try:
        yield identity
    finally:
        identity.close()


class TestIdentity:
    def test_a_new_directory(self, tmp_path: Path) -> None:
        with opened(tmp_path) as identity:
            now = identity.current
        assert (now.cluster, now.replica_set, now.node) == ("flights", "local/p0", "n1")
        assert (now.boot, now.uuid, now.is_member, now.promised) == (1, b"", False, NO_BALLOT)

    def test_who_reads_it_keeps_others_from_writing_for_as_long_as_he_reads(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("hadron.storage.identity._BUSY_MS", 10)
        start = PeerStart(b"k" * 16, 7, b"s" * 16)
        with opened(tmp_path) as identity:
            before = identity.current
            with contextlib.closing(open_reader(tmp_path / "node.db")) as reader:
                reader.execute("BEGIN")
                reader.execute("SELECT * FROM identity").fetchall()
                writes: list[Callable[[], None]] = [
                    lambda: identity.promise(Ballot(1, 1), DIGEST),
                    lambda: identity.become_member(b"u" * 16),
                    lambda: identity.remember_start("n2", start),
                ]
                for write in writes:
                    with pytest.raises(NotReadyError, match=r"node\.db is locked by another"):
                        write()
                with pytest.raises(NotReadyError), opened(tmp_path):
                    pass
                assert "is locked by another program" in identity.trouble
                assert (identity.current, identity.peer_starts) == (before, {})
            identity.promise(Ballot(1, 1), DIGEST)
            assert (identity.current.promised, identity.trouble) == (Ballot(1, 1), "")

    def test_starts_are_counted(self, tmp_path: Path) -> None:
        boots = []
        for _ in range(3):
            with opened(tmp_path) as identity:
                boots.append(identity.current.boot)
        assert boots == [1, 2, 3]

    @pytest.mark.parametrize(
        "claim",
        [("flights", "local/p0", "n2"), ("flights", "local/p1", "n1"), ("x", "local/p0", "n1")],
    )
    def test_another_nodes_directory_is_refused_naming_both(
        self, tmp_path: Path, claim: tuple[str, str, str]
    ) -> None:
        with opened(tmp_path):
            pass
        with pytest.raises(DataDirectoryError) as caught:
            IdentityFile(tmp_path, *claim, DISK)
        assert "belongs to node n1 of local/p0 in cluster flights" in str(caught.value)
        assert f"not to node {claim[2]} of {claim[1]} in cluster {claim[0]}" in str(caught.value)
        assert "`data:`" in caught.value.hint
        with opened(tmp_path) as identity:
            assert identity.current.boot == 2, "a refused start does not count"

    def test_a_commit_that_a_crash_has_cut_off_keeps_nobody_from_reading(
        self, tmp_path: Path
    ) -> None:
        """What it has written of its pages is rolled back, as by a start; while who began it lives
        it is his."""
        path = tmp_path / "running" / NODE_DATABASE
        path.parent.mkdir()
        with opened(path.parent) as identity:
            identity.promise(Ballot(3, 1), DIGEST)
        crashed = tmp_path / "crashed"
        with contextlib.closing(connect(path)) as db:
            db.execute("BEGIN IMMEDIATE")
            db.execute("UPDATE identity SET epoch = 7")
            db.cache_flush()
            shutil.copytree(path.parent, crashed)
            with pytest.raises(DataDirectoryError, match="locked"):
                read_epoch(path.parent)
            assert (path.parent / f"{NODE_DATABASE}-journal").exists()
            db.execute("COMMIT")
        assert read_epoch(path.parent) == 7
        for _ in range(2):
            assert read_epoch(crashed) == 3
        assert not (crashed / f"{NODE_DATABASE}-journal").exists()

    def test_membership_is_durable(self, tmp_path: Path) -> None:
        with opened(tmp_path) as identity:
            identity.become_member(b"u" * 16)
        with opened(tmp_path) as identity:
            assert (identity.current.uuid, identity.current.is_member) == (b"u" * 16, True)

    def test_garbage_is_called_damage(self, tmp_path: Path) -> None:
        (tmp_path / "node.db").write_bytes(b"no database at all" * 400)
        with pytest.raises(CorruptionError, match=r"node\.db is damaged") as caught:
            IdentityFile(tmp_path, "flights", "local/p0", "n1", DISK)
        assert "move" in caught.value.hint


class TestPromises:
    def test_a_promise_outlives_the_process(self, tmp_path: Path) -> None:
        with opened(tmp_path) as identity:
            identity.promise(Ballot(2, 7), DIGEST)
        with opened(tmp_path) as identity:
            assert identity.current.promised == Ballot(2, 7)
            assert identity.current.config_digest == DIGEST
            with pytest.raises(FencedError):
                identity.promise(Ballot(2, 6), DIGEST)

    def test_a_promise_is_on_the_disk_when_it_is_given(self, tmp_path: Path) -> None:
        """A copy of the file made right after, as a crash would leave it, has the promise."""
        (tmp_path / "crashed").mkdir()
        with opened(tmp_path) as identity:
            identity.promise(Ballot(1, 3), DIGEST)
            for file in tmp_path.glob("node.db*"):
                (tmp_path / "crashed" / file.name).write_bytes(file.read_bytes())
        with opened(tmp_path / "crashed") as identity:
            assert identity.current.promised == Ballot(1, 3)

    def test_a_promise_waits_for_who_reads_the_file(self, tmp_path: Path) -> None:
        with opened(tmp_path) as identity:
            reader = apsw.Connection(str(tmp_path / "node.db"), flags=apsw.SQLITE_OPEN_READONLY)
            reader.execute("BEGIN; SELECT * FROM identity").fetchone()
            leaving = threading.Timer(0.1, reader.close)
            leaving.start()
            identity.promise(Ballot(1, 3), DIGEST)
            leaving.join()
            assert identity.current.promised == Ballot(1, 3)

    def test_promises_only_rise(self, tmp_path: Path) -> None:
        with opened(tmp_path) as identity:
            for ballot in (Ballot(1, 1), Ballot(1, 4), Ballot(2, 1), Ballot(2, 1)):
                identity.promise(ballot, DIGEST)
                assert identity.current.promised == ballot
            for lower in (Ballot(1, 9), Ballot(2, 0), NO_BALLOT):
                with pytest.raises(FencedError, match=r"below 2\.1"):
                    identity.promise(lower, DIGEST)
            assert identity.current.promised == Ballot(2, 1)

    def test_one_epoch_has_one_configuration(self, tmp_path: Path) -> None:
        with opened(tmp_path) as identity:
            identity.promise(Ballot(1, 1), DIGEST)
            with pytest.raises(FencedError, match="epoch 1 was promised to another") as caught:
                identity.promise(Ballot(1, 2), OTHER)
            assert "raise `epoch`" in caught.value.hint
            identity.promise(Ballot(2, 2), OTHER)
            assert identity.current.config_digest == OTHER

    def test_an_old_configuration_does_not_start(self, tmp_path: Path) -> None:
        with opened(tmp_path) as identity:
            identity.check_epoch(1, DIGEST)
            identity.promise(Ballot(3, 1), DIGEST)
            identity.check_epoch(3, DIGEST)
            identity.check_epoch(4, OTHER)
            with pytest.raises(FencedError, match="has epoch 2, this node has promised epoch 3"):
                identity.check_epoch(2, DIGEST)
            with pytest.raises(FencedError, match="another configuration"):
                identity.check_epoch(3, OTHER)


class TestDirectoryLock:
    def test_a_second_one_is_refused_naming_the_process(self, tmp_path: Path) -> None:
        lock = DirectoryLock(tmp_path, DISK)
        with pytest.raises(DataDirectoryError, match=rf"in use by process {os.getpid()}\b"):
            DirectoryLock(tmp_path, DISK)
        lock.release()
        lock.release()
        DirectoryLock(tmp_path, DISK).release()

    def test_who_only_looks_whether_it_is_in_use_refuses_nobody(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        DirectoryLock(tmp_path, DISK).release()
        looking = os.open(tmp_path / "node.lock", os.O_RDONLY)
        fcntl.flock(looking, fcntl.LOCK_SH)
        monkeypatch.setattr("time.sleep", lambda _: os.close(looking))
        lock = DirectoryLock(tmp_path, DISK)
        assert in_use(tmp_path)
        lock.release()
        assert not in_use(tmp_path)

    @pytest.mark.parametrize(
        ("call", "number", "said"),
        [
            ("fcntl.flock", errno.ENOLCK, r"node\.lock: No locks available"),
            ("os.pwrite", errno.ENOSPC, r"the disk of .*node\.lock is full"),
        ],
    )
    def test_what_keeps_it_from_being_locked_is_said_and_nothing_stays_open(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, said: str
    ) -> None:
        def fail(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        before = os.listdir("/proc/self/fd")
        with monkeypatch.context() as patch:
            patch.setattr(call, fail)
            with pytest.raises(StorageError, match=said):
                DirectoryLock(tmp_path, DISK)
        assert os.listdir("/proc/self/fd") == before
        DirectoryLock(tmp_path, DISK).release()

    def test_another_process_holds_it_until_it_dies(self, tmp_path: Path) -> None:
        program = (
            "import sys; from pathlib import Path;"
            "from hadron.node.world import SystemDisk;"
            "from hadron.storage.identity import DirectoryLock;"
            "lock = DirectoryLock(Path(sys.argv[1]), SystemDisk());"
            "print('held', flush=True); sys.stdin.read()"
        )
        with Popen(
            [sys.executable, "-c", program, str(tmp_path)], stdin=PIPE, stdout=PIPE, text=True
        ) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            with pytest.raises(DataDirectoryError, match=rf"in use by process {other.pid}\b"):
                DirectoryLock(tmp_path, DISK)
            other.kill()
            other.wait()
        DirectoryLock(tmp_path, DISK).release()

    def test_a_directory_is_made_and_outlives_a_power_loss(self, tmp_path: Path) -> None:
        disk = SyncedDisk()
        DirectoryLock(tmp_path / "a" / "b", disk).release()
        assert (tmp_path / "a" / "b").is_dir()
        assert disk.synced == [tmp_path, tmp_path / "a"]

    def test_a_file_in_its_place_is_refused(self, tmp_path: Path) -> None:
        place = tmp_path / "data"
        place.write_text("a file")
        with pytest.raises(DataDirectoryError, match=re.escape(f"{place} is, or is in, a file")):
            DirectoryLock(place, DISK)
        assert place.read_text() == "a file"

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_an_unwritable_directory_is_refused(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o500)
        try:
            with pytest.raises(DataDirectoryError, match="Permission denied"):
                DirectoryLock(tmp_path, DISK)
        finally:
            tmp_path.chmod(0o700)
