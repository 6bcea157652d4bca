"""Pages that get back the bytes that they were written with, and no others."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from hadron.model.errors import CorruptionError
from hadron.model.ids import Ballot
from hadron.node.world import SystemDisk
from hadron.storage.database import PAGE_BYTES, open_reader, open_writer, transaction
from hadron.storage.log import TABLES, Entry, Log, read_entries
from hadron.storage.pages import Mending

COUNT = 150


_CHECKPOINTS = {
    "file": apsw.SQLITE_CHECKPOINT_TRUNCATE,
    "both": apsw.SQLITE_CHECKPOINT_PASSIVE,
    "restarted": apsw.SQLITE_CHECKPOINT_RESTART,
}


class _Database:
    """A log with bodies of all sizes, in the file or in its write-ahead log, open as in a node.

    `where` says how it got there: "log" without a checkpoint; "file" by one that emptied the log,
    "both" by one that left it as it was, and "restarted" by one after which it begins anew.
    """

    def __init__(self, directory: Path, where: str) -> None:
        self.path = directory / "hadron.db"
        self.db = open_writer(self.path, sync="FULL")
        chance = random.Random(7)
        with transaction(self.db):
            self.db.execute(TABLES)
            log = Log(self.db)
            self.entries = [
                log.append(
                    Ballot(1, 1 + lsn // 100),
                    1_700_000_000_000 + lsn,
                    chance.randbytes(lsn % 90),
                    chance.randbytes(chance.choice((0, 60, 120, 700, 4_050, 5_000, 20_000))),
                )
                for lsn in range(1, COUNT + 1)
            ]
        if where in _CHECKPOINTS:
            self.db.wal_checkpoint(mode=_CHECKPOINTS[where])
        self.wal = Path(f"{self.path}-wal")
        self.file = self.wal if where == "log" else self.path

    def close(self) -> None:
        self.db.close()

    def rewrite(self, entries: Sequence[Entry]) -> None:
        """Anew in the log, as they stand in the file."""
        with transaction(self.db):
            for entry in entries:
                row = self.db.execute("SELECT * FROM hadron_log WHERE lsn = ?", (entry.lsn,)).get
                self.db.execute("DELETE FROM hadron_log WHERE lsn = ?", (entry.lsn,))
                self.db.execute("INSERT INTO hadron_log VALUES(?, ?, ?, ?, ?, ?, ?)", row)

    def flip(self, offset: int, *masks: int, file: Path | None = None) -> None:
        """Through a descriptor that stays open: closing it would drop SQLite's locks."""
        descriptor = os.open(file or self.file, os.O_RDWR)
        known = os.pread(descriptor, len(masks), offset)
        os.pwrite(descriptor, bytes(a ^ b for a, b in zip(known, masks, strict=True)), offset)

    def damaged(self) -> list[int]:
        """The lsns of entries that a reader who has nothing in a cache cannot read."""
        found = []
        with closing(open_reader(self.path)) as reader:
            for entry in self.entries:
                try:
                    (read,) = read_entries(reader, entry.lsn, max_bytes=1, until_lsn=entry.lsn)
                except CorruptionError:
                    found.append(entry.lsn)
                else:
                    assert read == entry
        return found

    def mend(self, lsn: int, known: dict[int, Entry]) -> Mending:
        mending = Mending(self.db, self.path, SystemDisk(), known)
        mending.mend(lsn)
        return mending


@pytest.fixture(params=["log", *_CHECKPOINTS])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[_Database]:
    with closing(_Database(tmp_path, request.param)) as opened:
        yield opened


def test_whatever_is_changed_in_a_row_is_put_back(database: _Database) -> None:
    everything = {entry.lsn: entry for entry in database.entries}
    content = database.file.read_bytes()
    for entry in random.Random(1).sample(database.entries, 30):
        row = bytes(entry.body) or entry.command
        if len(row) < 20:
            continue
        # What was moved to another page is left behind on the old one, which may lead to it.
        masks = (0x40, 0xFF, 0x01, 0x80, 0x7F)
        at = content.index(row[-10:])
        database.flip(at, *masks)
        while entry.lsn not in (found := database.damaged()) or len(found) > COUNT // 2:
            database.flip(at, *masks)
            at = content.index(row[-10:], at + 1)
            database.flip(at, *masks)
        # SQLite's own cache has the page as it was: nothing that is written to it reaches the disk.
        mending = database.mend(entry.lsn, everything)
        assert len(mending.mended) == 1
        assert database.damaged() == []
        assert database.file.read_bytes() == content


@pytest.mark.parametrize("copied", ["nothing", "the first half", "everything"])
def test_a_page_is_mended_where_it_is_read(tmp_path: Path, copied: str) -> None:
    """Of a page that stands in the log and in the file, whichever of the two is damaged."""
    with closing(_Database(tmp_path, "file")) as database:
        everything = {entry.lsn: entry for entry in database.entries}
        halves = database.entries[: COUNT // 2], database.entries[COUNT // 2 :]
        database.rewrite(halves[0])
        with closing(open_reader(database.path)) as reader, reader:
            # The log goes on behind what was copied as long as somebody reads in it.
            reader.execute("SELECT count(*) FROM hadron_log").fetchall()
            if copied == "the first half":
                database.db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            database.rewrite(halves[1])
        if copied == "everything":
            database.db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        content = {file: file.read_bytes() for file in (database.path, database.wal)}
        both = [
            entry
            for entry in database.entries
            if all(data.count(entry.chain) == 1 for data in content.values())
        ]
        seen = set()
        for entry in random.Random(9).sample(both, 8):
            for damaged in ([], [database.path], [database.wal], list(content)):
                for file in damaged:
                    database.flip(content[file].index(entry.chain), 0x10, 0x01, file=file)
                is_read = bool(database.damaged())
                mending = database.mend(entry.lsn, everything)
                assert mending.is_sound
                assert bool(mending.mended) == is_read
                assert database.damaged() == []
                for file in damaged:
                    if file.read_bytes() != content[file]:
                        database.flip(content[file].index(entry.chain), 0x10, 0x01, file=file)
                        assert file.read_bytes() == content[file]
                        seen.add((file, "left"))
                    else:
                        seen.add((file, "mended"))
        assert len(seen) == 4 if copied == "the first half" else 2


def test_one_bit_anywhere_on_the_way_to_an_entry(tmp_path: Path) -> None:
    """What leads to the rows, and is no part of them, is known to nobody; all else is put back."""
    with closing(_Database(tmp_path, "file")) as database:
        everything = {entry.lsn: entry for entry in database.entries}
        content = database.file.read_bytes()
        chance = random.Random(3)
        kept = lost = 0
        for _ in range(60):
            at = chance.randrange(6 * PAGE_BYTES, len(content))
            mask = 1 << chance.randrange(8)
            database.flip(at, mask)
            found = database.damaged()
            for lsn in found:
                database.mend(lsn, everything)
            if database.damaged():
                lost += 1
                database.flip(at, mask)
                assert database.file.read_bytes() == content
            elif found:
                kept += 1
                assert database.file.read_bytes() == content
        assert kept > 5 * lost


def test_other_entries_of_the_page_are_asked_for(database: _Database) -> None:
    """Which of the rows on a page is damaged is not to be seen from one of them."""
    everything = {entry.lsn: entry for entry in database.entries}
    content = database.file.read_bytes()
    damaged = database.entries[75]
    database.flip(content.index(damaged.chain), 0xFF, 0xFF)
    beside = damaged.lsn + 1
    mending = database.mend(beside, {beside: everything[beside]})
    assert damaged.lsn in mending.wanted
    assert not mending.mended
    known = {lsn: everything[lsn] for lsn in mending.wanted}
    assert database.mend(beside, known).mended
    assert database.file.read_bytes() == content


def test_another_content_is_never_written(database: _Database) -> None:
    """Whoever sends it: the page's checksum is not for it."""
    content = database.file.read_bytes()
    entry = next(each for each in database.entries if len(each.body) == 5_000)
    other = entry._replace(body=bytes(len(entry.body)), command=bytes(len(entry.command)))
    at = content.index(bytes(entry.body[4_500:4_520]))
    database.flip(at, 0x11, 0x22)
    spoilt = database.file.read_bytes()
    mending = database.mend(entry.lsn, {entry.lsn: other})
    assert not mending.mended
    assert database.file.read_bytes() == spoilt
    assert database.mend(entry.lsn, {entry.lsn: entry}).mended
    assert database.file.read_bytes() == content


def test_a_page_of_nothing_but_noise_is_left_alone(database: _Database) -> None:
    content = database.file.read_bytes()
    entry = next(each for each in database.entries if len(each.body) == 5_000)
    at = content.index(bytes(entry.body[-500:])) // 4_096 * 4_096 + 2_000
    database.flip(at, *random.Random(5).randbytes(8_000))
    spoilt = database.file.read_bytes()
    everything = {each.lsn: each for each in database.entries}
    for lsn in database.damaged():
        database.mend(lsn, everything)
    still = database.file.read_bytes()
    assert all(new in (old, was) for new, old, was in zip(still, spoilt, content, strict=True))
