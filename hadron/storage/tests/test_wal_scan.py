"""Torn tails are called torn, flipped bits are called damage (PROTOCOL B4)."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import apsw
import pytest

from hadron.node.world import SystemDisk
from hadron.storage import wal_scan
from hadron.storage.database import PAGE_BYTES, open_writer
from hadron.storage.wal_scan import (
    FRAME_HEADER_BYTES,
    HEADER_BYTES,
    LiveFrames,
    Slices,
    Verdict,
    latest_pages,
    scan_wal,
)

PAGE = 512
STEP = FRAME_HEADER_BYTES + PAGE
FRAMES_PER_ROW = 31


@dataclass(frozen=True, slots=True)
class Image:
    """Files as a crash leaves them, and where each transaction ends in the log."""

    database: bytes
    wal: bytes
    ends: tuple[int, ...]
    """Frames in the log after each transaction."""


class Host:
    """A database whose files are copied while it is open."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "open.db"
        self._frames = 0
        self.ends: list[int] = []
        self.db = apsw.Connection(str(self._path))
        self.db.pragma("page_size", PAGE)
        self.db.pragma("journal_mode", "wal")
        self.db.pragma("synchronous", "full")
        self.db.pragma("wal_autocheckpoint", 0)
        self.db.set_wal_hook(self._on_commit)
        self.db.execute("CREATE TABLE t(i INTEGER PRIMARY KEY, b BLOB)")

    def _on_commit(self, _connection: apsw.Connection, _name: str, frames: int) -> int:
        if self.ends and frames < self.ends[-1]:
            self.ends.clear()
        self.ends.append(frames)
        return apsw.SQLITE_OK

    def insert(self, frames: int = FRAMES_PER_ROW) -> None:
        """A transaction of about so many frames."""
        self.db.execute("INSERT INTO t(b) VALUES(randomblob(?))", (max(10, (frames - 2) * PAGE),))

    def image(self) -> Image:
        wal = Path(f"{self._path}-wal").read_bytes()
        return Image(self._path.read_bytes(), wal, tuple(self.ends))


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    host.db.close()


@pytest.fixture
def image(host: Host) -> Image:
    for _ in range(6):
        host.insert()
    return host.image()


def judge(wal: bytes) -> Verdict:
    return scan_wal(wal, PAGE).verdict


def rows_after_recovery(image: Image, wal: bytes, directory: Path) -> int:
    """What SQLite makes of it."""
    path = directory / "crashed.db"
    path.write_bytes(image.database)
    Path(f"{path}-wal").write_bytes(wal)
    db = apsw.Connection(str(path))
    count = db.execute("SELECT count(*) FROM t").get
    db.close()
    assert isinstance(count, int)
    return count


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << (bit % 8)
    return bytes(changed)


def start_of(frame: int) -> int:
    return HEADER_BYTES + frame * STEP


def test_a_log_that_was_left_open(image: Image) -> None:
    scan = scan_wal(image.wal, PAGE)
    assert (scan.verdict, scan.frames) == (Verdict.CLEAN, image.ends[-1])
    assert judge(b"") is Verdict.CLEAN


@pytest.mark.parametrize("begun_anew", [False, True])
def test_every_length_is_a_torn_tail(host: Host, begun_anew: bool, tmp_path: Path) -> None:
    """Cut at each kind of byte: in a frame's header, its page, between frames; SQLite agrees
    about how much there is."""
    for _ in range(4):
        host.insert(5)
    if begun_anew:
        host.db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
        host.insert(3)
        host.insert(3)
    image = host.image()
    last, before = image.ends[-1], image.ends[-2]
    cuts = {start_of(frame) + more for frame in range(before, last) for more in range(0, STEP, 7)}
    for cut in sorted(cuts):
        scan = scan_wal(image.wal[:cut], PAGE)
        torn = cut >= start_of(before) + STEP
        assert scan.verdict is (Verdict.TORN_TAIL if torn else Verdict.CLEAN), cut
        assert scan.frames == before
    rows = rows_after_recovery(image, image.wal[: start_of(last) - 1], tmp_path)
    assert rows == (5 if begun_anew else 3)


def test_200_crashes_before_the_fsync_are_called_torn(host: Host, tmp_path: Path) -> None:
    """Each frame of the last transaction kept, dropped or torn: none of them was acknowledged."""
    host.insert()
    host.db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
    for _ in range(4):
        host.insert()
    old = host.image().wal
    host.insert()
    image = host.image()
    begin, end = image.ends[-2], image.ends[-1]
    rng = random.Random(1)
    whole = 0
    for _ in range(200):
        wal = bytearray(image.wal)
        behind = old[: len(wal)].ljust(len(wal), b"\0")
        for frame in range(begin, end):
            # SQLite writes a frame's header and its page one after the other.
            for start, size in (
                (start_of(frame), FRAME_HEADER_BYTES),
                (start_of(frame) + 24, PAGE),
            ):
                lost = rng.choice((0, 0, size, rng.randrange(size)))
                stop = start + size
                wal[stop - lost : stop] = behind[stop - lost : stop]
        scan = scan_wal(bytes(wal), PAGE)
        assert scan.verdict is not Verdict.DAMAGED, scan.reason
        whole += scan.frames == end
        assert rows_after_recovery(image, bytes(wal), tmp_path) == (6 if scan.frames == end else 5)
    assert whole < 10


@pytest.mark.parametrize("frames", [FRAMES_PER_ROW, 3])
def test_200_flips_in_what_was_fsynced_are_caught(host: Host, frames: int) -> None:
    for _ in range(6):
        host.insert(frames)
    image = host.image()
    rng = random.Random(2)
    for _ in range(200):
        bit = rng.randrange(8 * start_of(image.ends[-2]))
        assert judge(flipped(image.wal, bit)) is Verdict.DAMAGED, bit


def test_every_bit_of_every_header_counts(host: Host) -> None:
    """Also of the last frame but those of the last transaction, and where each is one frame."""
    for _ in range(4):
        host.db.execute("UPDATE t SET b = NULL WHERE i = 1")
        host.db.execute("INSERT OR REPLACE INTO t VALUES(1, randomblob(20))")
    image = host.image()
    assert image.ends[-1] - image.ends[-2] == 1
    for frame in range(image.ends[-2]):
        for bit in range(8 * start_of(frame), 8 * (start_of(frame) + FRAME_HEADER_BYTES)):
            assert judge(flipped(image.wal, bit)) is Verdict.DAMAGED, (frame, bit % 192)
    for bit in range(8 * HEADER_BYTES):
        scan = scan_wal(flipped(image.wal, bit), PAGE)
        assert scan.verdict is Verdict.DAMAGED
        assert scan.header_is_bad


def test_a_commit_frame_whose_size_became_zero(host: Host) -> None:
    """A database of a power of two pages: one bit makes its commit frame look like any other."""
    pages = 0
    while pages != 4:
        host.db.execute("INSERT INTO t(b) VALUES(randomblob(90))")
        (pages,) = struct.unpack_from(">I", host.image().wal, start_of(host.ends[-1] - 1) + 4)
    end = host.ends[-1]
    host.db.execute("INSERT INTO t(b) VALUES(randomblob(10))")
    assert host.ends[-1] == end + 1
    wal = bytearray(host.image().wal)
    wal[start_of(end - 1) + 7] ^= 4
    assert judge(bytes(wal)) is Verdict.DAMAGED


def test_damage_in_the_last_transaction_looks_torn(image: Image) -> None:
    """What the rule leaves over: nothing stands behind it that could tell."""
    for frame in range(image.ends[-2], image.ends[-1]):
        assert judge(flipped(image.wal, 8 * (start_of(frame) + 40))) is Verdict.TORN_TAIL


def test_sqlite_alone_serves_half_of_it(image: Image, tmp_path: Path) -> None:
    """Why the scan exists: a flip in the middle, and SQLite opens the file without a word."""
    wal = flipped(image.wal, 8 * (start_of(image.ends[3]) + 40))
    assert rows_after_recovery(image, wal, tmp_path) == 3
    assert scan_wal(wal, PAGE).frames == image.ends[3]


def test_frames_of_an_older_generation_are_no_witnesses(host: Host) -> None:
    """A log begun anew over a longer one, its last transaction torn away."""
    for _ in range(5):
        host.insert(8)
    host.db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
    longer = host.image().wal
    host.insert(8)
    image = host.image()
    assert len(image.wal) == len(longer)
    assert judge(image.wal) is Verdict.CLEAN
    for frame in range(image.ends[-1]):
        start = start_of(frame)
        torn = image.wal[:start] + longer[start:]
        assert judge(torn) is (Verdict.TORN_TAIL if frame else Verdict.CLEAN)


class TestTornHeader:
    """A log is begun anew only when all of it is in the database file."""

    def test_its_pages_are_all_in_the_file(self, host: Host) -> None:
        for _ in range(3):
            host.insert(6)
        host.db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
        before = host.image()
        host.insert(6)
        after = host.image()
        bad = 0
        for cut in range(13, HEADER_BYTES):
            torn = after.wal[:cut] + before.wal[cut:]
            scan = scan_wal(torn, PAGE)
            if scan.header_is_bad:
                bad += 1
                pages = dict(latest_pages(torn, PAGE))
                assert len(pages) > 3
                for number, content in pages.items():
                    assert before.database[(number - 1) * PAGE : number * PAGE] == content
        assert bad > 10

    def test_pages_of_a_log_in_use_are_not(self, image: Image) -> None:
        pages = dict(latest_pages(flipped(image.wal, 8), PAGE))
        assert any(
            image.database[(number - 1) * PAGE : number * PAGE] != content
            for number, content in pages.items()
        )

    @pytest.mark.parametrize("data", [bytes(40), bytes(5000), b"\xff" * 5000])
    def test_garbage(self, data: bytes) -> None:
        assert scan_wal(data, PAGE).header_is_bad
        dict(latest_pages(data, PAGE))


def test_what_was_rolled_back_never_was_in_the_log(tmp_path: Path) -> None:
    """A command is refused that had changed more pages than the cache holds; the next, small commit
    is not flushed when the power is lost. Whatever frame of it is missing, that is a torn tail."""
    path = tmp_path / "hadron.db"
    connection = open_writer(path, sync="FULL")
    connection.execute("CREATE TABLE t(i INTEGER PRIMARY KEY, b BLOB)")
    wal = path.with_name(path.name + "-wal")
    first = (wal.stat().st_size - HEADER_BYTES) // (FRAME_HEADER_BYTES + PAGE_BYTES)
    connection.execute("BEGIN IMMEDIATE; SAVEPOINT refused")
    for _ in range(10):
        connection.execute("INSERT INTO t(b) VALUES(randomblob(1800000))")
    connection.execute("ROLLBACK TO refused; RELEASE refused")
    connection.execute("INSERT INTO t(b) VALUES(randomblob(20000)); COMMIT")
    image = wal.read_bytes()
    connection.close()
    step = FRAME_HEADER_BYTES + PAGE_BYTES
    for frame in range(first, (len(image) - HEADER_BYTES) // step):
        torn = bytearray(image)
        start = HEADER_BYTES + frame * step
        torn[start : start + step] = bytes(step)
        assert scan_wal(bytes(torn), PAGE_BYTES).verdict is not Verdict.DAMAGED


class TestLongLogs:
    """A log cannot restart while a large database is copied, and grows with all that is written."""

    COUNT = 8_000
    MOST_BYTES = 4 << 20

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        """A log of 33 MB: its first frames, each of another page, and one transaction."""
        path = tmp_path / "hadron.db"
        connection = open_writer(path, sync="FULL")
        connection.execute("CREATE TABLE t(i INTEGER PRIMARY KEY, b BLOB)")
        connection.execute(f"INSERT INTO t(b) VALUES(zeroblob({self.COUNT * 4_084}))")
        copy = tmp_path / "copy-wal"
        copy.write_bytes(path.with_name(path.name + "-wal").read_bytes())
        connection.close()
        return copy

    def slices(self, path: Path) -> Slices:
        return Slices(partial(SystemDisk().read_at, path), path.stat().st_size)

    @pytest.mark.parametrize("of", ["scan", "pages", "live"])
    def test_of_a_long_log_one_slice_is_in_memory(
        self, path: Path, of: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = self.slices(path)
        # Sums are right, and cost a minute where each number is traced.
        monkeypatch.setattr(
            wal_scan._Frames,
            "checksum",
            lambda frames, index, _seed: bool(frames.content(index)) and frames[index].stored,
        )
        assert len(data) > 30 << 20
        tracemalloc.start()
        try:
            if of == "scan":
                assert scan_wal(data, PAGE_BYTES).verdict is Verdict.CLEAN
            elif of == "pages":
                assert sum(1 for _ in latest_pages(data, PAGE_BYTES)) >= self.COUNT
            else:
                frames = LiveFrames(data, PAGE_BYTES)
                assert len(frames.latest) >= self.COUNT
                assert all(len(frames.content(each)) == PAGE_BYTES for each in (0, self.COUNT))
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most < self.MOST_BYTES

    @pytest.mark.parametrize("size", [1, STEP, 3 * STEP + 7])
    def test_slices_hold_what_the_file_does(
        self, host: Host, size: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whatever is damaged, wherever slices end."""
        monkeypatch.setattr(wal_scan, "_SLICE_BYTES", size)
        monkeypatch.setattr(wal_scan, "_BEHIND_BYTES", size % STEP)
        for _ in range(5):
            host.insert(8)
        host.db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
        for _ in range(3):
            host.insert(5)
        whole, rng = host.image().wal, random.Random(size)
        for _ in range(60):
            wal = flipped(whole, rng.randrange(8 * rng.choice((HEADER_BYTES, len(whole)))))
            wal = wal[: rng.choice((len(wal), rng.randrange(len(wal))))]

            def read(offset: int, count: int, wal: bytes = wal) -> bytes:
                return wal[offset : offset + count]

            slices = Slices(read, len(wal))
            assert scan_wal(slices, PAGE) == scan_wal(wal, PAGE)
            assert list(latest_pages(slices, PAGE)) == list(latest_pages(wal, PAGE))
            assert LiveFrames(slices, PAGE).latest == LiveFrames(wal, PAGE).latest
