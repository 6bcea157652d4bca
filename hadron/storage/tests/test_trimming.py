"""A log that does not begin at lsn 1: its anchor, what is told of what went, what stays damage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from hadron.model.errors import CorruptionError, TrimmedError
from hadron.model.ids import EMPTY_LOG, Ballot
from hadron.storage.database import open_writer
from hadron.storage.log import (
    TABLES,
    Entry,
    Log,
    drop_bodies,
    first_lsn,
    lacks,
    last_lsn,
    position_at,
    read_after,
    read_anchor,
    read_entries,
    set_anchor,
    sizes,
    verify_chain,
)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[apsw.Connection]:
    connection = open_writer(tmp_path / "hadron.db", sync="NORMAL")
    connection.execute(TABLES)
    yield connection
    connection.close()


def fill(log: Log, count: int) -> list[Entry]:
    """Entries of which every second has a body."""
    return [
        log.append(
            Ballot(1, 1 + number // 4), 1_000 + number, b"c%d" % number, b"b" * 50 * (number % 2)
        )
        for number in range(count)
    ]


def test_rows_go_in_slices_and_the_anchor_takes_their_place(db: apsw.Connection) -> None:
    log = Log(db)
    written = fill(log, 10)
    log.trim(6, max_rows=4)
    assert (log.anchor, first_lsn(db)) == (written[3].position, 5)
    log.trim(6, max_rows=4)
    log.trim(6, max_rows=4)
    log.trim(2, max_rows=4)
    assert log.anchor == read_anchor(db) == written[5].position
    assert [entry.lsn for entry in read_entries(db, 7, max_bytes=1 << 20)] == [7, 8, 9, 10]
    assert verify_chain(read_entries(db, 7, max_bytes=1 << 20), log.anchor) == log.head
    bodies = db.execute("SELECT lsn FROM hadron_body ORDER BY lsn").fetchall()
    assert bodies == [(2,), (4,), (6,), (8,), (10,)], "bodies belong to their streams"


def test_a_log_may_be_empty_above_its_anchor_and_go_on(db: apsw.Connection) -> None:
    log = Log(db)
    written = fill(log, 3)
    log.trim(99, max_rows=100)
    for again in (log, Log(db)):
        assert again.head == again.anchor == written[-1].position
        assert again.last_ms == 1_002, "the clock of the log goes on too"
        assert (again.position_at(3), again.position_at(2)) == (written[-1].position, None)
    assert (last_lsn(db), position_at(db, 0)) == (3, EMPTY_LOG)
    following = log.append(Ballot(2, 1), 2_000, b"next", b"")
    assert (following.lsn, last_lsn(db)) == (4, 4)
    assert read_after(db, 4, max_bytes=1) == (written[-1].position, [following])


def test_a_log_that_begins_with_an_anchor_takes_copies(db: apsw.Connection, tmp_path: Path) -> None:
    log = Log(db)
    written = fill(log, 6)
    other = open_writer(tmp_path / "other.db", sync="NORMAL")
    other.execute(TABLES)
    set_anchor(other, written[2].position, written[2].now_ms)
    copy = Log(other)
    assert (copy.head, copy.last_ms, first_lsn(other)) == (written[2].position, 1_002, 4)
    for entry in written[3:]:
        copy.append_copy(entry)
    assert copy.head == log.head
    copy.drop_after(3)
    assert copy.head == written[2].position
    other.close()


def test_what_was_trimmed_is_said_to_be(db: apsw.Connection) -> None:
    log = Log(db)
    fill(log, 6)
    log.trim(3, max_rows=100)
    for lsn in (1, 3):
        with pytest.raises(TrimmedError, match=f"entry {lsn} was trimmed, this log begins after 3"):
            read_entries(db, lsn, max_bytes=1)
    with pytest.raises(TrimmedError, match="begins at 4"):
        read_after(db, 2, max_bytes=1)
    assert [entry.lsn for entry in read_after(db, 4, max_bytes=1 << 20)[1]] == [4, 5, 6]


def test_an_entry_that_was_trimmed_is_not_one_that_the_file_lacks(db: apsw.Connection) -> None:
    """`node.db` knows an entry that the log had, and the log goes on without it: the file is no
    older copy for that (PROTOCOL B3)."""
    log = Log(db)
    written = fill(log, 10)
    log.trim(6, max_rows=100)
    assert not any(lacks(db, entry.position) for entry in written)
    log.drop_after(8)
    assert [entry.lsn for entry in written if lacks(db, entry.position)] == [9, 10]


def test_a_dropped_body_is_not_damage_and_a_missing_one_is(db: apsw.Connection) -> None:
    log = Log(db)
    fill(log, 10)
    log.trim(4, max_rows=100)
    drop_bodies(db, [2, 6])
    assert db.execute(
        "SELECT lsn, length(bytes) FROM hadron_body ORDER BY lsn LIMIT 3"
    ).fetchall() == [(4, 50), (6, 0), (8, 50)]
    assert [entry.lsn for entry in read_entries(db, 5, max_bytes=1 << 20)] == [5]
    with pytest.raises(TrimmedError, match="retention has dropped the body of entry 6"):
        read_entries(db, 6, max_bytes=1 << 20)
    db.execute("DELETE FROM hadron_body WHERE lsn = 8")
    assert [entry.lsn for entry in read_entries(db, 7, max_bytes=1)] == [7]
    with pytest.raises(CorruptionError, match="entry 8"):
        read_entries(db, 8, max_bytes=1)
    drop_bodies(db, [8])
    with pytest.raises(TrimmedError):
        read_entries(db, 8, max_bytes=1)
    log.trim(9, max_rows=100)
    assert db.execute("SELECT lsn FROM hadron_body ORDER BY lsn").fetchall() == [(4,), (10,)]


def test_a_hole_where_the_anchor_should_go_is_damage(db: apsw.Connection) -> None:
    log = Log(db)
    fill(log, 5)
    db.execute("DELETE FROM hadron_log WHERE lsn = 3")
    with pytest.raises(CorruptionError, match="entry 3 is missing"):
        log.trim(3, max_rows=100)
    assert log.anchor == EMPTY_LOG


def test_sizes_count_bodies_and_overhead(db: apsw.Connection) -> None:
    fill(Log(db), 4)
    assert sizes(db, 2, max_rows=2) == [(2, 2 + 64 + 50), (3, 2 + 64)]
