"""The log: its chain as documented, what it refuses, what it forgets."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest
import xxhash

from hadron.model.errors import CorruptionError
from hadron.model.ids import EMPTY_LOG, NO_BALLOT, Ballot, LogPosition
from hadron.storage.database import open_writer, transaction
from hadron.storage.log import (
    LOG,
    TABLES,
    Entry,
    Log,
    first_lsn,
    get_meta,
    position_at,
    read_commands,
    read_entries,
    set_meta,
    verify_chain,
)
from hadron.storage.report import Report
from hadron.storage.verify import LogCheck, read_slice

BALLOT = Ballot(1, 1)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[apsw.Connection]:
    connection = open_writer(tmp_path / "hadron.db", sync="NORMAL")
    connection.execute(TABLES)
    yield connection
    connection.close()


def fill(log: Log, count: int) -> list[Entry]:
    """Entries with and without a body, under rising ballots."""
    return [
        log.append(
            Ballot(1, 1 + number // 4),
            1_000 + number,
            b"command %d" % number,
            b"" if number % 3 == 0 else bytes([number]) * number * 100,
        )
        for number in range(count)
    ]


def documented_chain(previous: bytes, entry: Entry) -> bytes:
    """FORMAT.md's formula, written again from its text."""
    body_hash = xxhash.xxh3_128_digest(bytes(entry.body)) if entry.body else bytes(16)
    return xxhash.xxh3_128_digest(
        previous
        + struct.pack("<Q", entry.ballot.epoch)
        + struct.pack("<Q", entry.ballot.incarnation)
        + struct.pack("<Q", entry.lsn)
        + struct.pack("<Q", entry.now_ms)
        + xxhash.xxh3_128_digest(entry.command)
        + body_hash
    )


def test_an_empty_log_ends_at_zero(db: apsw.Connection) -> None:
    log = Log(db)
    assert log.head == EMPTY_LOG == LogPosition(0, NO_BALLOT, bytes(16))
    assert (log.last_ms, first_lsn(db)) == (0, 1)
    assert read_entries(db, 1, max_bytes=1 << 20) == []


def test_the_chain_is_the_documented_one(db: apsw.Connection) -> None:
    chain = bytes(16)
    for entry in fill(Log(db), 10):
        chain = documented_chain(chain, entry)
        assert entry.chain == chain
        row = db.execute(
            "SELECT chain, body_hash FROM hadron_log WHERE lsn = ?", (entry.lsn,)
        ).fetchone()
        assert row is not None
        assert row[0] == chain
        assert row[1] == (xxhash.xxh3_128_digest(entry.body) if entry.body else bytes(16))


def test_a_known_chain_never_changes(db: apsw.Connection) -> None:
    """Golden: nodes of different versions compare these."""
    log = Log(db)
    log.append(Ballot(1, 2), 1_700_000_000_000, b"\x91\x01", b"")
    entry = log.append(Ballot(1, 2), 1_700_000_000_001, b"\x91\x02", b"body")
    assert entry.chain.hex() == "414802a3f46c8db759e098c324410ab2"


def test_what_was_appended_is_read_again(db: apsw.Connection) -> None:
    written = fill(Log(db), 10)
    assert read_entries(db, 1, max_bytes=1 << 30) == written
    assert read_entries(db, 4, max_bytes=1 << 30, until_lsn=6) == written[3:6]
    assert [entry._replace(body=b"") for entry in written[2:5]] == read_commands(db, 3, 5)


def test_reading_is_bounded_but_makes_progress(db: apsw.Connection) -> None:
    fill(Log(db), 10)
    assert [entry.lsn for entry in read_entries(db, 3, max_bytes=1)] == [3]
    assert [entry.lsn for entry in read_entries(db, 2, max_bytes=200)] == [2, 3]


def test_a_log_is_found_again(db: apsw.Connection) -> None:
    last = fill(Log(db), 5)[-1]
    again = Log(db)
    assert again.head == last.position
    assert again.last_ms == last.now_ms


def test_positions(db: apsw.Connection) -> None:
    log = Log(db)
    entries = fill(log, 4)
    assert [log.position_at(lsn) for lsn in range(6)] == [
        EMPTY_LOG,
        *(entry.position for entry in entries),
        None,
    ]
    assert position_at(db, 3) == entries[2].position


def test_a_copy_is_byte_for_byte_the_same(db: apsw.Connection, tmp_path: Path) -> None:
    entries = fill(Log(db), 8)
    other = open_writer(tmp_path / "copy.db", sync="NORMAL")
    other.execute(TABLES)
    copy = Log(other)
    for entry in entries:
        copy.append_copy(entry._replace(body=memoryview(bytes(entry.body))))
    assert copy.head == entries[-1].position
    for table in ("hadron_log", "hadron_body"):
        assert other.execute(f"SELECT * FROM {table}").fetchall() == (
            db.execute(f"SELECT * FROM {table}").fetchall()
        )
    other.close()


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: entry._replace(command=b"another"),
        lambda entry: entry._replace(body=b"another"),
        lambda entry: entry._replace(body=b""),
        lambda entry: entry._replace(now_ms=7),
        lambda entry: entry._replace(ballot=Ballot(1, 3)),
        lambda entry: entry._replace(chain=bytes(16)),
    ],
    ids=["command", "body", "no body", "now_ms", "ballot", "chain"],
)
def test_a_copy_whose_content_does_not_give_its_chain_is_refused(
    db: apsw.Connection, tmp_path: Path, change: Callable[[Entry], Entry]
) -> None:
    entries = fill(Log(db), 2)
    other = open_writer(tmp_path / "copy.db", sync="NORMAL")
    other.execute(TABLES)
    copy = Log(other)
    copy.append_copy(entries[0])
    with pytest.raises(CorruptionError, match=r"entry 2 arrived with chain"):
        copy.append_copy(change(entries[1]))
    assert copy.head == entries[0].position
    assert other.execute("SELECT count(*) FROM hadron_log").fetchall() == [(1,)]
    other.close()


def test_a_copy_that_leaves_a_gap_is_refused(db: apsw.Connection) -> None:
    log = Log(db)
    entries = fill(log, 3)
    log.drop_after(1)
    with pytest.raises(CorruptionError, match="entry 3 does not follow 1"):
        log.append_copy(entries[2])


def test_a_dropped_tail_leaves_nothing_behind(db: apsw.Connection) -> None:
    log = Log(db)
    entries = fill(log, 8)
    log.drop_after(5)
    assert log.head == entries[4].position
    assert log.last_ms == entries[4].now_ms
    assert db.execute("SELECT max(lsn) FROM hadron_body").fetchall() == [(5,)]
    again = log.append(Ballot(2, 1), 5_000, b"other", b"other body")
    assert again.lsn == 6
    assert again.chain == documented_chain(entries[4].chain, again)


def test_dropping_everything_gives_an_empty_log(db: apsw.Connection) -> None:
    log = Log(db)
    fill(log, 3)
    log.drop_after(0)
    assert log.head == EMPTY_LOG
    assert log.last_ms == 0


def test_after_a_rollback_the_head_is_reloaded(db: apsw.Connection) -> None:
    log = Log(db)
    first = log.append(BALLOT, 1, b"kept", b"")

    def fail() -> None:
        with transaction(db):
            log.append(BALLOT, 2, b"lost", b"body")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    log.reload()
    assert log.head == first.position
    assert db.execute("SELECT count(*) FROM hadron_body").fetchall() == [(0,)]


def test_a_damaged_body_is_never_read(db: apsw.Connection) -> None:
    fill(Log(db), 6)
    db.execute("UPDATE hadron_body SET bytes = x'00' WHERE lsn = 5")
    assert len(read_entries(db, 1, max_bytes=1 << 30, until_lsn=4)) == 4
    with pytest.raises(CorruptionError, match="the body of entry 5"):
        read_entries(db, 1, max_bytes=1 << 30)


def test_a_lost_body_is_never_read_as_an_empty_one(db: apsw.Connection) -> None:
    fill(Log(db), 6)
    db.execute("DELETE FROM hadron_body WHERE lsn = 5")
    with pytest.raises(CorruptionError, match="the body of entry 5"):
        read_entries(db, 5, max_bytes=1)


DAMAGES = [
    ("now_ms", 1),
    ("command", b"x"),
    ("chain", bytes(16)),
    ("epoch", 9),
    ("incarnation", 9),
    ("body_hash", b"h" * 16),
    ("epoch", -1),
    ("chain", b"short"),
]


@pytest.mark.parametrize(("column", "value"), DAMAGES)
def test_a_damaged_row_is_never_read(db: apsw.Connection, column: str, value: int | bytes) -> None:
    fill(Log(db), 8)
    db.execute(f"UPDATE hadron_log SET {column} = ? WHERE lsn = 4", (value,))
    reads: list[Callable[[], object]] = [
        lambda: read_entries(db, 1, max_bytes=1 << 30),
        lambda: read_entries(db, 4, max_bytes=1),
        lambda: read_commands(db, 1, 8),
        lambda: read_commands(db, 4, 4),
        lambda: position_at(db, 4),
    ]
    for read in reads:
        with pytest.raises(CorruptionError, match="entry 4 ") as caught:
            read()
        assert caught.value.lsn == 4
    assert len(read_entries(db, 1, max_bytes=1 << 30, until_lsn=3)) == 3
    db.execute("DELETE FROM hadron_log WHERE lsn > 4")
    with pytest.raises(CorruptionError, match="entry 4 "):
        Log(db)


@pytest.mark.parametrize("read", [read_commands, lambda db, a, b: read_entries(db, a, max_bytes=b)])
def test_a_missing_row_is_named_where_it_is_read(
    db: apsw.Connection, read: Callable[[apsw.Connection, int, int], object]
) -> None:
    fill(Log(db), 8)
    db.execute("DELETE FROM hadron_log WHERE lsn = 4")
    for first in (2, 4):
        with pytest.raises(CorruptionError, match="entry 4 is missing") as caught:
            read(db, first, 1 << 30)
        assert caught.value.lsn == 4


@pytest.mark.parametrize("first", [1, 3, 6])
def test_rows_that_are_missing_where_a_pass_ends_are_found(db: apsw.Connection, first: int) -> None:
    """The log goes on behind the watermark, up to which a running node's is read."""
    fill(Log(db), 10)
    db.execute("DELETE FROM hadron_log WHERE lsn BETWEEN ? AND 6", (first,))
    report = Report()
    check = LogCheck(report, lambda _entry: "", until_lsn=6)
    while not read_slice(db, check):
        pass
    assert [(each.text, each.lsn) for each in report.problems if each.table == LOG] == [
        (f"entries {first} to 6 are missing", first)
    ]
    assert check.reached_lsn == 6


class TestVerifyChain:
    def test_a_sound_log(self, db: apsw.Connection) -> None:
        entries = fill(Log(db), 9)
        assert verify_chain(entries, EMPTY_LOG) == entries[-1].position
        assert verify_chain(entries[4:], entries[3].position) == entries[-1].position

    @pytest.mark.parametrize(
        ("column", "value"),
        [("now_ms", 1), ("command", b"x"), ("chain", bytes(16)), ("epoch", 9), ("incarnation", 9)],
    )
    def test_a_changed_row_is_named(
        self, db: apsw.Connection, column: str, value: int | bytes
    ) -> None:
        fill(Log(db), 6)
        db.execute(f"UPDATE hadron_log SET {column} = ? WHERE lsn = 4", (value,))
        with pytest.raises(CorruptionError, match="entry 4 does not continue"):
            verify_chain(read_entries(db, 1, max_bytes=1 << 30), EMPTY_LOG)

    def test_a_missing_row_is_named(self, db: apsw.Connection) -> None:
        fill(Log(db), 6)
        db.execute("DELETE FROM hadron_log WHERE lsn = 3")
        with pytest.raises(CorruptionError, match="entry 3 is missing"):
            verify_chain(read_entries(db, 1, max_bytes=1 << 30), EMPTY_LOG)


def test_meta(db: apsw.Connection) -> None:
    assert get_meta(db, "applied_lsn") == 0
    assert get_meta(db, "applied_lsn", 7) == 7
    set_meta(db, "applied_lsn", 3)
    set_meta(db, "applied_lsn", 4)
    assert get_meta(db, "applied_lsn") == 4
