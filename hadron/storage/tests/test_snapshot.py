"""Copies of a live database, and one taking another's place: whole or not at all."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest
from msgspec.structs import replace

from hadron.model.errors import CorruptionError, DataDirectoryError
from hadron.model.ids import EMPTY_LOG, Ballot, LogPosition
from hadron.node.world import SystemDisk
from hadron.storage import generations, snapshot
from hadron.storage.database import FORMAT_VERSION, connect, mark_format, open_writer, transaction
from hadron.storage.identity import IdentityFile
from hadron.storage.log import TABLES, Log, set_meta
from hadron.storage.snapshot import Manifest, NothingToCopyError
from hadron.storage.store import Store
from hadron.storage.tests.test_store import open_store

BALLOT = Ballot(1, 1)
DISK = SystemDisk()


def make_database(path: Path, entries: int, *, applied: int | None = None) -> apsw.Connection:
    """A log of `entries` with bodies, of which the first `applied` (all) are in the tables."""
    connection = open_writer(path, sync="NORMAL")
    connection.execute(TABLES)
    mark_format(connection, FORMAT_VERSION)
    connection.execute("CREATE TABLE t(lsn INTEGER PRIMARY KEY) STRICT")
    append(connection, entries)
    set_meta(connection, "applied_lsn", entries if applied is None else applied)
    return connection


def append(connection: apsw.Connection, count: int) -> LogPosition:
    log = Log(connection)
    with transaction(connection):
        for _ in range(count):
            entry = log.append(BALLOT, 5, b"command", b"body" * 100)
            connection.execute("INSERT INTO t VALUES(?)", (entry.lsn,))
            set_meta(connection, "applied_lsn", entry.lsn)
    return log.head


def manifest_of(path: Path, position: LogPosition) -> Manifest:
    size, digest = snapshot.measure(path, DISK)
    return Manifest(
        cluster="flights",
        replica_set="local/p0",
        node="n1",
        uuid="",
        lsn=position.lsn,
        epoch=position.ballot.epoch,
        incarnation=position.ballot.incarnation,
        chain=position.chain.hex(),
        committed_lsn=position.lsn,
        size=size,
        hash=digest,
        created_ms=1,
        version="0",
    )


def numbers(path: Path, table: str = "t") -> list[int]:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    rows = [lsn for (lsn,) in connection.execute(f"SELECT lsn FROM {table} ORDER BY lsn")]
    connection.close()
    return rows


class TestTaking:
    def test_the_copy_is_one_file_that_passes_its_own_check(self, tmp_path: Path) -> None:
        make_database(tmp_path / "a.db", 50).close()
        position = snapshot.take(tmp_path / "a.db", tmp_path / "b.db", DISK)
        assert position.lsn == 50
        snapshot.verify(tmp_path / "b.db", manifest_of(tmp_path / "b.db", position), DISK)
        assert numbers(tmp_path / "b.db") == list(range(1, 51))
        assert [path.name for path in tmp_path.glob("b.db*")] == ["b.db"]

    def test_entries_that_are_not_applied_stay_out(self, tmp_path: Path) -> None:
        source = make_database(tmp_path / "a.db", 50, applied=30)
        position = snapshot.take(tmp_path / "a.db", tmp_path / "b.db", DISK)
        assert position.lsn == 30
        assert numbers(tmp_path / "b.db", "hadron_log") == list(range(1, 31))
        assert numbers(tmp_path / "b.db", "hadron_body") == list(range(1, 31))
        assert len(numbers(tmp_path / "a.db", "hadron_log")) == 50
        source.close()

    def test_a_stopped_leaders_copy_claims_no_more_than_is_known(self, tmp_path: Path) -> None:
        source = make_database(tmp_path / "a.db", 50)
        set_meta(source, "committed_lsn", 40)
        source.close()
        position = snapshot.take(tmp_path / "a.db", tmp_path / "b.db", DISK, is_committed=False)
        manifest = replace(manifest_of(tmp_path / "b.db", position), committed_lsn=40)
        snapshot.verify(tmp_path / "b.db", manifest, DISK)
        with pytest.raises(CorruptionError, match="has committed_lsn 40"):
            snapshot.verify(tmp_path / "b.db", replace(manifest, committed_lsn=50), DISK)

    def test_a_writer_beside_it_leaves_no_trace_of_half_a_transaction(self, tmp_path: Path) -> None:
        source = make_database(tmp_path / "a.db", 2_000)
        stop = threading.Event()

        def write() -> None:
            while not stop.is_set():
                append(source, 3)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            positions = [
                snapshot.take(tmp_path / "a.db", tmp_path / "b.db", DISK) for _ in range(5)
            ]
            for _ in range(5):
                position = snapshot.take(tmp_path / "a.db", tmp_path / "b.db", DISK)
                snapshot.verify(tmp_path / "b.db", manifest_of(tmp_path / "b.db", position), DISK)
                assert numbers(tmp_path / "b.db") == list(range(1, position.lsn + 1))
                assert position.lsn % 3 == 2_000 % 3
                positions.append(position)
        finally:
            stop.set()
            thread.join()
            source.close()
        assert positions[-1].lsn > positions[0].lsn

    def test_an_empty_node_has_nothing_to_give(self, tmp_path: Path) -> None:
        make_database(tmp_path / "a.db", 0).close()
        with pytest.raises(NothingToCopyError, match="applied nothing"):
            snapshot.take(tmp_path / "a.db", tmp_path / "b.db", DISK)

    def test_tables_that_have_diverged_are_not_given_on(self, tmp_path: Path) -> None:
        source = make_database(tmp_path / "a.db", 5)
        set_meta(source, snapshot.DIVERGED, "entry 4 was refused")
        with pytest.raises(NothingToCopyError, match="entry 4 was refused"):
            snapshot.take(tmp_path / "a.db", tmp_path / "b.db", DISK)
        source.close()


@pytest.mark.parametrize("column", [4, 5, 6, 7])
def test_bytes_that_a_damaged_frame_calls_a_text_are_no_entrys(tmp_path: Path, column: int) -> None:
    """Of a text that can be decoded the hash is the same."""
    with closing(make_database(tmp_path / "a.db", 0)) as db:
        entry = Log(db).append(BALLOT, 5, b"command", b"body")
        row = list(snapshot._rows_after(db, 0, 1)[0])
    assert snapshot._following(EMPTY_LOG, row) == entry.position
    row[column] = row[column].decode("latin-1")
    with pytest.raises(CorruptionError):
        snapshot._following(EMPTY_LOG, row)


class TestVerifying:
    def copy(self, tmp_path: Path) -> tuple[Path, Manifest]:
        make_database(tmp_path / "a.db", 50).close()
        position = snapshot.take(tmp_path / "a.db", tmp_path / "b.db", DISK)
        return tmp_path / "b.db", manifest_of(tmp_path / "b.db", position)

    def test_every_flipped_bit_and_every_cut_is_found(self, tmp_path: Path) -> None:
        path, manifest = self.copy(tmp_path)
        data = path.read_bytes()
        for at in range(0, len(data), len(data) // 40):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            with pytest.raises(CorruptionError, match="its manifest says"):
                snapshot.verify(path, manifest, DISK)
            path.write_bytes(data[:at])
            with pytest.raises(CorruptionError):
                snapshot.verify(path, manifest, DISK)

    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            ("UPDATE hadron_log SET chain = x'00' WHERE lsn = 20", "values that no entry has"),
            (
                "UPDATE hadron_log SET chain = zeroblob(16) WHERE lsn = 20",
                "entry 20 does not continue",
            ),
            ("UPDATE hadron_log SET command = x'00' WHERE lsn = 20", "entry 20 does not continue"),
            ("DELETE FROM hadron_log WHERE lsn = 20", "entry 20 is missing"),
            ("UPDATE hadron_body SET bytes = x'00' WHERE lsn = 20", "the body of entry 20"),
            ("DELETE FROM hadron_body WHERE lsn = 20", "the body of entry 20 is missing"),
            ("DELETE FROM hadron_log WHERE lsn = 50", "ends at entry 49"),
            ("UPDATE hadron_meta SET value = 49 WHERE key = 'applied_lsn'", "has applied_lsn 49"),
            (
                "UPDATE hadron_meta SET value = 51 WHERE key = 'committed_lsn'",
                "has committed_lsn 51",
            ),
        ],
    )
    def test_a_file_with_a_right_hash_and_a_wrong_content_is_found(
        self, tmp_path: Path, damage: str, message: str
    ) -> None:
        """A defect of the node that made it, or somebody who edited it and its manifest."""
        path, manifest = self.copy(tmp_path)
        connection = connect(path)
        connection.execute(damage)
        connection.close()
        with pytest.raises(CorruptionError, match=message):
            snapshot.verify(path, manifest_of(path, manifest.position), DISK)

    def test_what_is_not_a_manifest(self) -> None:
        for data in (b"", b"{}", b'{"format": 1}', b'{"lsn": 1}', b"\xff"):
            with pytest.raises(CorruptionError, match="is not the manifest of a copy"):
                snapshot.decode_manifest(data, "there")

    def test_a_manifest_damaged_in_any_bit_or_cut_anywhere(self, tmp_path: Path) -> None:
        _, manifest = self.copy(tmp_path)
        data = manifest.encode()
        assert snapshot.decode_manifest(data, "there").encode() == data
        cut = [data[:at] for at in range(len(data) - 1)]
        flipped = [
            data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
            for at in range(len(data))
            for bit in range(8)
        ]
        for damaged in cut + flipped:
            # A flipped bit may make the format a higher number.
            with pytest.raises((CorruptionError, DataDirectoryError)):
                snapshot.decode_manifest(damaged, "there")

    def test_what_a_newer_hadron_made_is_refused_by_name(self, tmp_path: Path) -> None:
        path, manifest = self.copy(tmp_path)
        newer = json.dumps({"format": 2, "parts": []}).encode()
        with pytest.raises(DataDirectoryError, match="there has format 2, this Hadron knows 1"):
            snapshot.decode_manifest(newer, "there")
        connection = connect(path)
        connection.pragma("user_version", FORMAT_VERSION + 1)
        connection.close()
        with pytest.raises(DataDirectoryError, match="has format version"):
            snapshot.verify(path, manifest_of(path, manifest.position), DISK)


class TestTails:
    def test_what_follows_the_copy_is_kept(self, tmp_path: Path) -> None:
        source = make_database(tmp_path / "a.db", 50)
        base = snapshot.take(tmp_path / "a.db", tmp_path / "b.db", DISK)
        head = append(source, 100)
        assert snapshot.copy_tail(tmp_path / "a.db", tmp_path / "b.db", base, DISK) == 100
        assert snapshot.copy_tail(tmp_path / "a.db", tmp_path / "b.db", base, DISK) == 0
        copy = open_writer(tmp_path / "b.db", sync="NORMAL")
        assert Log(copy).head == head
        assert snapshot.chain_end(copy) == head
        # The tables are as of the copy: the tail is yet to be applied.
        assert copy.execute("SELECT max(lsn) FROM t").fetchone() == (50,)
        copy.close()
        source.close()

    def test_a_damaged_body_is_not(self, tmp_path: Path) -> None:
        source = make_database(tmp_path / "a.db", 50)
        base = snapshot.take(tmp_path / "a.db", tmp_path / "b.db", DISK)
        append(source, 10)
        source.execute(
            "UPDATE hadron_body SET bytes = zeroblob(length(bytes))"
            " WHERE lsn = (SELECT max(lsn) FROM hadron_body WHERE length(bytes) > 0)"
        )
        with pytest.raises(CorruptionError, match="does not match its hash"):
            snapshot.copy_tail(tmp_path / "a.db", tmp_path / "b.db", base, DISK)
        source.close()

    def test_a_tail_that_was_replaced_is_replaced_here_too(self, tmp_path: Path) -> None:
        source = make_database(tmp_path / "a.db", 50)
        base = snapshot.take(tmp_path / "a.db", tmp_path / "b.db", DISK)
        log = Log(source)
        for ballot, count in ((Ballot(1, 1), 9), (Ballot(2, 1), 4)):
            log.drop_after(55)
            for _ in range(count):
                log.append(ballot, 5, b"command", b"")
            snapshot.copy_tail(tmp_path / "a.db", tmp_path / "b.db", base, DISK)
            copy = open_writer(tmp_path / "b.db", sync="NORMAL")
            assert Log(copy).head == log.head
            assert snapshot.chain_end(copy) == log.head
            copy.close()
        source.close()

    def test_another_logs_entries_are_not(self, tmp_path: Path) -> None:
        make_database(tmp_path / "a.db", 50).close()
        base = snapshot.take(tmp_path / "a.db", tmp_path / "b.db", DISK)
        other = open_writer(tmp_path / "c.db", sync="NORMAL")
        other.execute(TABLES)
        log = Log(other)
        for _ in range(60):
            log.append(Ballot(2, 1), 5, b"other", b"")
        assert snapshot.copy_tail(tmp_path / "c.db", tmp_path / "b.db", base, DISK) == 0
        other.close()


class CrashError(Exception):
    pass


class CrashingDisk(SystemDisk):
    """Ends everything at the `n`-th change of a file or directory, before or after it is done."""

    def __init__(self, steps: int, *, after: bool) -> None:
        self.left = steps
        self._after = after

    def _step(self, do: Callable[[], object]) -> None:
        self.left -= 1
        if self.left < 0 or (self.left == 0 and not self._after):
            raise CrashError
        do()
        if self.left == 0:
            raise CrashError

    def sync(self, path: Path) -> None:
        self._step(lambda: super(CrashingDisk, self).sync(path))

    def remove(self, path: Path) -> None:
        self._step(lambda: super(CrashingDisk, self).remove(path))

    def switch(self, link: Path, target: str) -> None:
        """With the steps between its own, for which `link.new` stands."""
        self._step(lambda: link.with_name("hadron.db.new").symlink_to(target))
        self._step(lambda: link.with_name("hadron.db.new").replace(link))


class TestInstalling:
    def prepared(self, directory: Path, *, number: int = 1) -> LogPosition:
        """A node's directory with 5 entries, in whose next generation 7 others stand ready."""
        store = fill(open_store(directory), 5, b"old")
        store.close()
        generation = generations.next_generation(directory)
        assert generation.name == f"gen-{number}"
        generation.mkdir()
        copy = open_writer(generation / "hadron.db", sync="FULL")
        copy.execute(TABLES)
        log = Log(copy)
        for _ in range(7):
            log.append(BALLOT, 5, b"new", b"")
        mark_format(copy, FORMAT_VERSION)
        copy.close()
        return log.head

    def test_the_new_file_is_opened_under_the_old_name(self, tmp_path: Path) -> None:
        head = self.prepared(tmp_path)
        generations.switch_to(tmp_path, generations.next_generation(tmp_path), DISK)
        store = open_store(tmp_path)
        assert store.log.head == head
        fill(store, 1, b"more")
        assert (tmp_path / "gen-1" / "hadron.db-wal").stat().st_size > 0
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            "gen-1",
            "hadron.db",
            "node.db",
            "node.lock",
        ]
        store.close()

    def test_the_next_installation_removes_the_one_before(self, tmp_path: Path) -> None:
        self.prepared(tmp_path)
        generations.switch_to(tmp_path, tmp_path / "gen-1", DISK)
        open_store(tmp_path).close()
        (tmp_path / "gen-2").mkdir()
        shutil.copy(tmp_path / "gen-1" / "hadron.db", tmp_path / "gen-2" / "hadron.db")
        generations.switch_to(tmp_path, tmp_path / "gen-2", DISK)
        open_store(tmp_path).close()
        assert not (tmp_path / "gen-1").exists()
        assert generations.current_number(tmp_path) == 2

    @pytest.mark.parametrize("after", [False, True])
    @pytest.mark.parametrize("steps", range(1, 13))
    def test_a_crash_at_any_step_leaves_the_old_one_or_the_new_one(
        self, tmp_path: Path, steps: int, after: bool
    ) -> None:
        new = self.prepared(tmp_path)
        disk = CrashingDisk(steps, after=after)
        try:
            generations.switch_to(tmp_path, tmp_path / "gen-1", disk)
            generations.clear_copies(tmp_path, disk)
            generations.clean_up(tmp_path, disk)
        except CrashError:
            done = False
        else:
            done = True
        assert done == (disk.left > 0)
        store = open_store(tmp_path)
        assert store.log.head.lsn in (5, 7)
        assert store.log.head == new or steps <= 5
        assert snapshot.chain_end(store.writer.connection) == store.log.head
        store.close()
        # And what was left over is gone after the start.
        assert not (tmp_path / "hadron.db.new").is_symlink()
        open_store(tmp_path).close()
        assert generations.current_number(tmp_path) == (store.log.head == new)

    def test_a_part_is_kept_for_as_long_as_it_may_be_the_next_one(self, tmp_path: Path) -> None:
        store = open_store(tmp_path)
        fill(store, 1, b"x")
        manifest = manifest_of(tmp_path / "hadron.db", store.log.head)
        store.close()
        for name in ("gen-1", "gen-2", "outgoing"):
            (tmp_path / name).mkdir()
            DISK.write_file(tmp_path / name / "manifest.json", manifest.encode())
        open_store(tmp_path).close()
        assert generations.read_manifest(tmp_path / "gen-1") == manifest
        assert not (tmp_path / "gen-2").exists()
        assert not (tmp_path / "outgoing").exists()

    def test_a_link_to_nothing_is_a_lost_disk(self, tmp_path: Path) -> None:
        self.prepared(tmp_path)
        generations.switch_to(tmp_path, tmp_path / "gen-1", DISK)
        identity = IdentityFile(tmp_path, "flights", "local/p0", "n1", DISK)
        identity.become_member(bytes(16))
        identity.close()
        (tmp_path / "gen-1" / "hadron.db").unlink()
        with pytest.raises(DataDirectoryError, match="is missing or empty"):
            open_store(tmp_path, has_peers=False)


def fill(store: Store, count: int, command: bytes) -> Store:
    for _ in range(count):
        store.log.append(BALLOT, 5, command, b"")
    assert store.log.head != EMPTY_LOG
    return store


class TestFiles:
    """What every `ports.Disk` must do with files that are no databases."""

    def test_bytes_come_back_from_where_they_were_written(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        DISK.write_at(path, 3, b"defg")
        DISK.write_at(path, 0, memoryview(b"abc"))
        DISK.sync(path)
        assert DISK.read_at(path, 0, 100) == b"abcdefg"
        assert DISK.read_at(path, 2, 3) == b"cde"
        assert DISK.read_at(path, 7, 3) == b""
        with pytest.raises(FileNotFoundError):
            DISK.read_at(tmp_path / "none", 0, 1)

    def test_directories_come_and_go(self, tmp_path: Path) -> None:
        DISK.make_directory(tmp_path / "a" / "b")
        DISK.make_directory(tmp_path / "a" / "b")
        DISK.write_at(tmp_path / "a" / "b" / "file", 0, b"x")
        DISK.remove(tmp_path / "a")
        DISK.remove(tmp_path / "a")
        assert list(tmp_path.iterdir()) == []

    def test_a_link_takes_the_place_of_a_file_and_of_a_link(self, tmp_path: Path) -> None:
        for name in ("one", "two"):
            DISK.write_at(tmp_path / name, 0, name.encode())
        DISK.write_at(tmp_path / "link", 0, b"a file")
        for name in ("one", "two"):
            DISK.switch(tmp_path / "link", name)
            assert DISK.read_at(tmp_path / "link", 0, 9) == name.encode()
        DISK.remove(tmp_path / "link")
        assert DISK.read_at(tmp_path / "two", 0, 9) == b"two"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]
