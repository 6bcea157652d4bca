"""A data directory as a whole: what is refused, and reads beside the writer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio
import trio.testing

from hadron.model.errors import CorruptionError, DataDirectoryError, RequestError
from hadron.model.ids import EMPTY_LOG, Ballot
from hadron.node.world import SystemDisk
from hadron.storage.aftermath import ASIDE
from hadron.storage.database import FORMAT_VERSION, connect, mark_format
from hadron.storage.store import Readers, Store
from hadron.wire.system import SystemClock

TABLES = "CREATE TABLE IF NOT EXISTS t(i INTEGER PRIMARY KEY) STRICT;"


def open_store(directory: Path, **changes: Any) -> Store:
    arguments: dict[str, Any] = {
        "cluster": "flights",
        "replica_set": "local/p0",
        "node": "n1",
        "tables": TABLES,
        "durability": "os",
        "checkpoint_bytes": 1 << 20,
        "reader_threads": 2,
        "disk": SystemDisk(),
        "clock": SystemClock(),
        "post": lambda _: None,
        "on_fatal": lambda _: None,
        **changes,
    }
    return Store(directory, **arguments)


async def test_it_opens_again_with_what_it_held(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    entry = store.log.append(Ballot(1, 1), 5, b"command", b"body")
    store.close()
    store = open_store(tmp_path)
    assert store.log.head == entry.position
    assert store.writer.connection.pragma("user_version") == FORMAT_VERSION
    assert store.writer.connection.pragma("journal_mode") == "wal"
    store.close()


async def test_a_second_opener_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with pytest.raises(DataDirectoryError, match="is in use by process"):
        open_store(tmp_path)
    store.close()


@pytest.mark.parametrize("durability", ["fsync", "os"])
async def test_durability_is_sqlites(tmp_path: Path, durability: str) -> None:
    store = open_store(tmp_path, durability=durability)
    expected = {"fsync": 2, "os": 1}[durability]
    assert store.writer.connection.pragma("synchronous") == expected
    store.close()


class TestRefusedFiles:
    """Each leaves the directory unlocked and the file as it was."""

    def refuse(self, directory: Path, error: type[Exception], match: str, **changes: Any) -> str:
        with pytest.raises(error, match=match) as caught:
            open_store(directory, **changes)
        with pytest.raises(error, match=match):
            open_store(directory, **changes)
        return str(caught.value)

    async def test_garbage(self, tmp_path: Path) -> None:
        (tmp_path / "hadron.db").write_bytes(b"garbage\n" * 4096)
        text = self.refuse(tmp_path, CorruptionError, r"hadron\.db is damaged")
        assert "move all of" in text
        assert (tmp_path / "hadron.db").read_bytes() == b"garbage\n" * 4096

    async def test_a_truncated_file(self, tmp_path: Path) -> None:
        store = open_store(tmp_path)
        for number in range(500):
            store.log.append(Ballot(1, 1), number, b"command" * 100, b"")
        store.close()
        data = (tmp_path / "hadron.db").read_bytes()
        (tmp_path / "hadron.db").write_bytes(data[: len(data) // 2])
        self.refuse(tmp_path, CorruptionError, r"hadron\.db is damaged")

    async def test_a_damaged_file_of_a_node_that_was_being_fed_is_set_aside(
        self, tmp_path: Path
    ) -> None:
        """It had not been taught to its end: whoever fed it has all of it."""
        store = open_store(tmp_path)
        store.identity.promise(Ballot(1, 1), b"")
        for number in range(500):
            store.log.append(Ballot(1, 1), number, b"command" * 100, b"")
        store.close()
        data = (tmp_path / "hadron.db").read_bytes()[:100_000]
        (tmp_path / "hadron.db").write_bytes(data)
        self.refuse(tmp_path, CorruptionError, r"hadron\.db is damaged", has_peers=False)
        store = open_store(tmp_path)
        assert store.log.head == EMPTY_LOG
        store.close()
        assert (tmp_path / ASIDE).exists()

    async def test_a_damaged_file_of_a_member_is_set_aside_and_kept(self, tmp_path: Path) -> None:
        store = open_store(tmp_path)
        store.identity.become_member(bytes(range(16)))
        for number in range(500):
            store.log.append(Ballot(1, 1), number, b"command" * 100, b"")
        store.close()
        data = (tmp_path / "hadron.db").read_bytes()[:100_000]
        (tmp_path / "hadron.db").write_bytes(data)
        self.refuse(tmp_path, CorruptionError, r"hadron\.db is damaged", has_peers=False)
        store = open_store(tmp_path)
        assert store.log.head == EMPTY_LOG
        assert not store.identity.current.is_member
        store.close()
        assert (tmp_path / ASIDE).read_bytes()[4096:] == data[4096:]

    @pytest.mark.parametrize("lose", [Path.unlink, lambda path: path.write_bytes(b"")])
    async def test_a_member_whose_log_is_gone(
        self, tmp_path: Path, lose: Callable[[Path], object]
    ) -> None:
        """It would serve as if it had never held anything, and nobody could teach it."""
        store = open_store(tmp_path)
        store.identity.become_member(b"u" * 16)
        store.close()
        lose(tmp_path / "hadron.db")
        text = self.refuse(tmp_path, DataDirectoryError, "is missing or empty", has_peers=False)
        assert "put the file back, or put a backup in its place" in text

    @pytest.mark.parametrize("version", [FORMAT_VERSION - 1, FORMAT_VERSION + 1])
    async def test_another_format(self, tmp_path: Path, version: int) -> None:
        open_store(tmp_path).close()
        connection = connect(tmp_path / "hadron.db")
        connection.pragma("user_version", version)
        connection.close()
        text = self.refuse(tmp_path, DataDirectoryError, f"format version {version}")
        assert f"knows {FORMAT_VERSION}" in text

    async def test_a_foreign_sqlite_file(self, tmp_path: Path) -> None:
        connection = apsw.Connection(str(tmp_path / "hadron.db"))
        connection.execute("CREATE TABLE recipes(name TEXT)")
        connection.close()
        self.refuse(tmp_path, DataDirectoryError, "that Hadron did not make")

    async def test_tables_from_before_they_had_a_prefix(self, tmp_path: Path) -> None:
        """Ours would be made beside them, and the node would start with nothing."""
        with closing(connect(tmp_path / "hadron.db")) as connection:
            connection.execute("CREATE TABLE log(lsn INTEGER PRIMARY KEY)")
            mark_format(connection, FORMAT_VERSION)
        self.refuse(tmp_path, DataDirectoryError, "that Hadron did not make")

    async def test_another_nodes_directory(self, tmp_path: Path) -> None:
        open_store(tmp_path).close()
        with pytest.raises(DataDirectoryError, match="belongs to node n1"):
            open_store(tmp_path, node="n2")
        open_store(tmp_path).close()

    async def test_a_directory_in_the_files_place(self, tmp_path: Path) -> None:
        (tmp_path / "hadron.db").mkdir()
        self.refuse(tmp_path, DataDirectoryError, "cannot be opened")


class TestReaders:
    async def test_they_see_what_was_committed_and_cannot_write(self, tmp_path: Path) -> None:
        store = open_store(tmp_path)
        store.writer.connection.execute("INSERT INTO t VALUES(1)")
        rows = await store.readers.run(lambda db: db.execute("SELECT i FROM t").fetchall())
        assert rows == [(1,)]
        with pytest.raises(DataDirectoryError, match="readonly"):
            await store.readers.run(lambda db: db.execute("INSERT INTO t VALUES(2)"))
        store.close()

    async def test_a_read_that_fails_half_way_pins_nothing(self, tmp_path: Path) -> None:
        store = open_store(tmp_path, reader_threads=1)
        store.writer.connection.execute("INSERT INTO t VALUES(1), (2), (3)")

        def fail(db: apsw.Connection) -> None:
            for _ in db.execute("SELECT i FROM t"):
                raise RequestError("half way")

        kept: list[BaseException] = []
        for _ in range(3):
            try:
                await store.readers.run(fail)
            except RequestError as error:
                kept.append(error)
        store.writer.connection.execute("INSERT INTO t VALUES(4)")
        rows = await store.readers.run(lambda db: db.execute("SELECT max(i) FROM t").fetchall())
        assert rows == [(4,)]
        store.close()

    async def test_while_they_are_held_none_begins(self, tmp_path: Path) -> None:
        open_store(tmp_path).close()
        readers = Readers(tmp_path / "hadron.db", 2, SystemDisk())
        readers.hold(True)
        readers.hold(True)
        done = trio.Event()

        async def read() -> None:
            await readers.run(lambda db: db.execute("SELECT 1").fetchall())
            done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            assert not done.is_set()
            readers.hold(False)
            readers.hold(False)
            await done.wait()
        readers.close()
