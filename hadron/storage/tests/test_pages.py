"""Pages that get back the bytes that they were written with, and no others."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
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


class _Database:
    """A log with bodies of all sizes, in the file or in its write-ahead log, open as in a node."""

    def __init__(self, directory: Path, *, checkpointed: bool) -> None:
        self.path = directory / "hadron.db"
        self.db = open_writer(self.path, sync="FULL")
        chance = random.Random(7)
        with transaction(self.db):
            self.db.execute(TABLES)
            log = Log(self.db)
            self.entries = [
                log.append(
                    Ballot(1, 1 + lsn // 100), 1_700_000_000_000 + lsn, chance.randbytes(lsn % 90),
                    chance.randbytes(chance.choice((0, 60, 120, 700, 4_050, 5_000, 20_000))),
                )
                for lsn in range(1, COUNT + 1)
            ]
        if checkpointed:
            self.db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        self.file = self.path if checkpointed else Path(f"{self.path}-wal")

    def close(self) -> None:
        self.db.close()

    def flip(self, offset: int, *masks: int) -> None:
        """Through a descriptor that stays open: closing it would drop SQLite's locks."""
        file = os.open(self.file, os.O_RDWR)
        known = os.pread(file, len(masks), offset)
        os.pwrite(file, bytes(a ^ b for a, b in zip(known, masks, strict=True)), offset)

    def damaged(self) -> list[int]:
        """The lsns of entries that a reader who has nothing in a cache cannot read."""
        found = []
        with closing(open_reader(self.path)) as reader:
            for entry in self.entries:
                try:
                    (read,) = read_entries(
                        reader, entry.lsn, max_bytes=1, until_lsn=entry.lsn
                    )
                except CorruptionError:
                    found.append(entry.lsn)
                else:
                    assert read == entry
        return found

    def mend(self, lsn: int, known: dict[int, Entry]) -> Mending:
        mending = Mending(self.db, self.path, SystemDisk(), known)
        mending.mend(lsn)
        return mending


@pytest.fixture(params=["file", "log"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[_Database]:
    with closing(_Database(tmp_path, checkpointed=request.param == "file")) as opened:
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


def test_one_bit_anywhere_on_the_way_to_an_entry(tmp_path: Path) -> None:
    """What leads to the rows, and is no part of them, is known to nobody; all else is put back."""
    with closing(_Database(tmp_path, checkpointed=True)) as database:
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
    assert all(
        new in (old, was) for new, old, was in zip(still, spoilt, content, strict=True)
    )
