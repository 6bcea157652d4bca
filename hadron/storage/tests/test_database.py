"""Opening files and transactions on them."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from hadron.model.errors import CorruptionError
from hadron.storage.database import connect, read_transaction, transaction, translated_errors


def test_a_commit_that_fails_lets_its_locks_go(tmp_path: Path) -> None:
    """With a rollback journal, a reader makes COMMIT fail and leaves the transaction open."""
    path = str(tmp_path / "x.db")
    with closing(apsw.Connection(path)) as writer, closing(apsw.Connection(path)) as reader:
        writer.execute("CREATE TABLE t(x)")
        reader.execute("BEGIN; SELECT * FROM t").fetchone()
        with pytest.raises(apsw.BusyError), transaction(writer):
            writer.execute("INSERT INTO t VALUES(1)")
        assert not writer.in_transaction
        reader.execute("COMMIT")
        assert reader.execute("SELECT count(*) FROM t").fetchall() == [(0,)]
        with transaction(writer):
            writer.execute("INSERT INTO t VALUES(2)")
        assert reader.execute("SELECT x FROM t").fetchall() == [(2,)]


def test_a_read_that_fails_is_told_and_not_the_end_of_its_transaction(tmp_path: Path) -> None:
    """A failing disk makes SQLite end a transaction by itself."""
    with closing(apsw.Connection(str(tmp_path / "x.db"))) as reader:
        reader.execute("CREATE TABLE t(x)")

        def fail() -> None:
            reader.execute("ROLLBACK")  # as SQLite does it
            raise apsw.exception_for(apsw.SQLITE_IOERR_READ)

        with pytest.raises(apsw.IOError), read_transaction(reader):
            fail()
        with read_transaction(reader):
            assert reader.execute("SELECT count(*) FROM t").fetchall() == [(0,)]
        assert not reader.in_transaction


def test_a_range_is_not_planned_anew_for_each_of_its_bounds(tmp_path: Path) -> None:
    planned: list[int] = []

    def asked(operation: int, *_: str | None) -> int:
        planned.append(operation)
        return apsw.SQLITE_OK

    with closing(connect(tmp_path / "x.db")) as db:
        db.execute("CREATE TABLE t(x INTEGER PRIMARY KEY)")
        db.authorizer = asked
        for bound in range(3):
            db.execute("SELECT x FROM t WHERE x > ? ORDER BY x LIMIT ?", (bound, 5)).fetchall()
    assert planned.count(apsw.SQLITE_SELECT) == 1


def test_a_limit_of_file_sizes_is_no_disk_that_failed(tmp_path: Path) -> None:
    """SQLite says the same of both. In a process of its own, for the limit is the process's."""
    script = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from hadron.storage.database import connect, translated_errors\n"
        "path = Path(sys.argv[1])\n"
        "connection = connect(path)\n"
        "connection.execute('CREATE TABLE t(b BLOB)')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "with translated_errors(path, connection):\n"
        "    connection.execute('INSERT INTO t VALUES(zeroblob(4194304))')\n"
    )
    arguments = [sys.executable, "-c", script, str(tmp_path / "a.db")]
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert "may not grow any more: the size of this process's files is limited" in done.stderr


def test_what_a_damaged_row_makes_of_a_read_is_damage(tmp_path: Path) -> None:
    with (
        closing(connect(tmp_path / "a.db")) as db,
        pytest.raises(CorruptionError, match=r"a\.db is damaged: a row has a text that is none"),
        translated_errors(tmp_path / "a.db"),
    ):
        db.execute("SELECT CAST(x'ff' AS TEXT)").fetchone()


@pytest.mark.parametrize("extended", [apsw.SQLITE_IOERR_SHORT_READ, apsw.SQLITE_IOERR_CORRUPTFS])
def test_a_file_that_ends_early_is_no_disk_that_failed(tmp_path: Path, extended: int) -> None:
    """A log that was cut beneath its writer: another disk would help nobody."""
    error = apsw.IOError("disk I/O error")
    error.extendedresult = extended  # type: ignore[attr-defined]
    with (
        pytest.raises(CorruptionError, match=r"a\.db is damaged"),
        translated_errors(tmp_path / "a.db"),
    ):
        raise error
