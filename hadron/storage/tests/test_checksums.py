"""Every page carries a checksum, and a page whose checksum is wrong is never served."""

from __future__ import annotations

import random
import re
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import apsw
import pytest

from hadron.model.errors import CorruptionError, DataDirectoryError, StorageError
from hadron.model.ids import Ballot
from hadron.storage import database
from hadron.storage.checksums import RESERVED_BYTES, has_checksums, with_checksums
from hadron.storage.database import PAGE_BYTES, check_sqlite_version, connect, open_reader
from hadron.storage.identity import IdentityFile
from hadron.storage.log import position_at, read_entries
from hadron.storage.report import Report
from hadron.storage.store import Store
from hadron.storage.tests.test_identity import DISK
from hadron.storage.tests.test_store import open_store
from hadron.storage.verify import LogCheck, _in_one_line, read_slice


def append(store: Store, count: int) -> None:
    store.writer.connection.execute("BEGIN IMMEDIATE")
    for _ in range(count):
        store.log.append(Ballot(1, 1), 1, b"command" * 9, b"body" * 200)
    store.writer.connection.execute("COMMIT")


def closed_file(directory: Path, count: int = 300) -> Path:
    store = open_store(directory)
    append(store, count)
    store.close()
    return directory / "hadron.db"


def flip(path: Path, bit: int) -> None:
    with open(path, "r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def read_everything(path: Path) -> list[object]:
    connection = open_reader(path)
    try:
        with database.translated_errors(path):
            check = connection.pragma("integrity_check")
            assert check == "ok", check
            return [*read_entries(connection, 1, max_bytes=1 << 30)]
    finally:
        connection.close()


async def test_pages_of_a_new_file_have_them(tmp_path: Path) -> None:
    path = closed_file(tmp_path)
    for file in (path, tmp_path / "node.db"):
        assert file.read_bytes()[20] == RESERVED_BYTES
        connection = connect(file)
        assert has_checksums(connection)
        connection.close()
    assert len(read_everything(path)) == 300


async def test_900_flips_of_a_closed_file_are_found(tmp_path: Path) -> None:
    """One at a time, anywhere; whoever reads all of it is told, and given nothing."""
    path = closed_file(tmp_path)
    truth = read_everything(path)
    rng = random.Random(3)
    bits = [rng.randrange(8 * path.stat().st_size) for _ in range(700)]
    header = [rng.randrange(800) for _ in range(200)]
    for bit in bits + header:
        flip(path, bit)
        with pytest.raises(CorruptionError, match=re.escape(str(path))) as caught:
            read_everything(path)
        assert "it then rebuilds itself from its peers" in caught.value.hint
        flip(path, bit)
    assert read_everything(path) == truth


async def test_a_flipped_byte_is_told_as_a_checksum_and_not_as_a_failing_disk(
    tmp_path: Path,
) -> None:
    path = closed_file(tmp_path)
    with closing(open_reader(path)) as connection:
        root = connection.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name = 'hadron_log'"
        ).fetchone()
    assert root is not None
    flip(path, 8 * PAGE_BYTES * (root[0] - 1) + 8 * 2_000)
    with (
        closing(open_reader(path)) as connection,
        pytest.raises(CorruptionError, match=r"^entry 7 cannot be read: a page does not match its"),
    ):
        position_at(connection, 7)
    with closing(open_reader(path)) as connection:
        report = Report()
        check = LogCheck(report, lambda _entry: "", until_lsn=2)
        while not read_slice(connection, check):
            pass
        said = [problem.text for problem in report.problems]
        assert said == ["the log cannot be read: a page does not match its checksum"]


async def test_truncations_of_a_closed_file_are_found(tmp_path: Path) -> None:
    path = closed_file(tmp_path)
    data = path.read_bytes()
    rng = random.Random(4)
    for _ in range(100):
        cut = rng.randrange(1, len(data) // 512) * 512 - rng.choice((0, 0, 1, 300))
        path.write_bytes(data[:cut])
        with pytest.raises((CorruptionError, AssertionError)):
            read_everything(path)


async def test_the_byte_that_turns_checksums_off(tmp_path: Path) -> None:
    path = closed_file(tmp_path)
    flip(path, 20 * 8 + 3)
    for _ in range(2):
        with pytest.raises(CorruptionError, match="header does not reserve 8 bytes"):
            open_reader(path)
        with pytest.raises(CorruptionError, match="header does not reserve 8 bytes"):
            open_store(tmp_path)


@pytest.mark.parametrize("byte", [20, 40, 3000])
def test_a_damaged_node_db(tmp_path: Path, byte: int) -> None:
    IdentityFile(tmp_path, "c", "s", "n1", DISK).close()
    flip(tmp_path / "node.db", byte * 8 + 3)
    with pytest.raises(CorruptionError, match=r"node\.db is damaged"):
        IdentityFile(tmp_path, "c", "s", "n1", DISK)


async def test_a_damaged_page_under_a_running_node(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    append(store, 400)
    connection = store.writer.connection
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    pages = store.path.stat().st_size // PAGE_BYTES
    for page in range(2, pages):
        flip(store.path, 8 * (page * PAGE_BYTES + 2000))
    with pytest.raises(CorruptionError, match="does not match its checksum") as caught:
        await store.readers.run(lambda db: read_entries(db, 1, max_bytes=1 << 30))
    assert "rebuilds itself from its peers" in caught.value.hint
    store.close()


class CountingFile(apsw.VFSFile):
    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        CountingVfs.writes.append((len(data), offset))
        super().xWrite(data, offset)


class CountingVfs(apsw.VFS):
    """A VFS in Python, as a simulator brings."""

    writes: ClassVar[list[tuple[int, int]]] = []

    def __init__(self) -> None:
        super().__init__("counting", "unix")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return CountingFile("unix", name, flags)


_counting = CountingVfs()


@pytest.fixture
def counted() -> list[tuple[int, int]]:
    CountingVfs.writes.clear()
    return CountingVfs.writes


def test_a_second_base_has_a_shim_of_its_own(
    tmp_path: Path, counted: list[tuple[int, int]]
) -> None:
    default = apsw.vfs_names()[0]
    names = [with_checksums(base) for base in ("unix", "counting", "unix", "counting")]
    assert names[:2] == names[2:]
    assert names[0] != names[1]
    assert apsw.vfs_names()[0] == default, "files of others are opened as before"
    for base, path in (("counting", tmp_path / "a.db"), ("unix", tmp_path / "b.db")):
        connection = database.open_writer(path, sync="FULL", vfs=base)
        counted.clear()
        connection.execute("CREATE TABLE t(i)")
        assert bool(counted) is (base == "counting")
        connection.close()
        connection = connect(path)
        assert has_checksums(connection)
        connection.close()


def test_an_apsw_without_the_extension_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_such_extra(name: str) -> str:
        raise apsw.sqlite_extra.NotAvailable(f"{name} is not included")

    monkeypatch.setattr(apsw.sqlite_extra, "path", no_such_extra)
    with pytest.raises(StorageError, match="cksumvfs is not included") as caught:
        with_checksums("unix-excl")
    assert "wheels" in caught.value.hint


@pytest.mark.parametrize(
    ("version", "refused"),
    [("3.51.2", True), ("3.51.3", False), ("3.52.0", True), ("3.52.1", False), ("4.0.0", False)],
)
def test_versions_that_lose_commits_are_refused(
    monkeypatch: pytest.MonkeyPatch, version: str, refused: bool
) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: version)
    if not refused:
        check_sqlite_version()
        return
    with pytest.raises(StorageError, match=f"SQLite {version} has a bug") as caught:
        check_sqlite_version()
    assert "3.51.3 or later, but not 3.52.0" in caught.value.hint


def test_no_file_is_opened_with_such_a_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.51.2")
    with pytest.raises(StorageError, match=r"3\.51\.2"):
        database.open_writer(tmp_path / "x.db", sync="FULL")
    with pytest.raises(StorageError, match=r"3\.51\.2"):
        IdentityFile(tmp_path, "c", "s", "n1", DISK)
    assert list(tmp_path.iterdir()) == []


async def test_another_format_of_node_db(tmp_path: Path) -> None:
    IdentityFile(tmp_path, "c", "s", "n1", DISK).close()
    connection = connect(tmp_path / "node.db")
    connection.pragma("user_version", 9)
    connection.close()
    with pytest.raises(DataDirectoryError, match="has format version 9, this Hadron knows 1"):
        IdentityFile(tmp_path, "c", "s", "n1", DISK)


def test_findings_of_the_integrity_check_take_one_line() -> None:
    assert _in_one_line("row 3 missing from index x") == "row 3 missing from index x"
    findings = "\n".join(f"Tree 6 page 12 cell {number}: out of order" for number in range(14))
    said = _in_one_line(f"*** in database main ***\n{findings}")
    assert said.startswith("Tree 6 page 12 cell 0: out of order; ")
    assert said.endswith("cell 2: out of order; and 11 more")
