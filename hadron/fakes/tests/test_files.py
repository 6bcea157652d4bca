"""What a crash leaves of unsynced writes."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from hadron.fakes.files import SECTOR_BYTES, STYLES, SimFile, Style, Write, leave


def written() -> SimFile:
    file = SimFile(b"a" * 2048)
    file.write(0, b"b" * 1024)
    file.write(1024, b"c" * 1024)
    file.write(2048, b"d" * 100)
    return file


def image(file: SimFile, style: Style, seed: int = 0) -> tuple[bytes, Counter[str]]:
    fates: Counter[str] = Counter()
    return file.image(style, random.Random(seed), fates), fates


def test_synced_content_is_never_lost() -> None:
    file = written()
    file.sync()
    for style in STYLES:
        content, fates = image(file, style)
        assert content == b"b" * 1024 + b"c" * 1024 + b"d" * 100
        assert not fates


def test_kept_and_dropped_are_all_or_nothing() -> None:
    assert image(written(), "kept")[0] == b"b" * 1024 + b"c" * 1024 + b"d" * 100
    assert image(written(), "dropped")[0] == b"a" * 2048


def test_a_prefix_keeps_what_was_written_first() -> None:
    for seed in range(50):
        _, fates = image(written(), "prefix", seed)
        assert fates["write torn"] == 1
        assert fates.total() == 3


def test_scattered_writes_meet_every_fate_in_any_order() -> None:
    seen = {image(written(), "scattered", seed)[0] for seed in range(200)}
    assert b"a" * 1024 + b"c" * 1024 + b"d" * 100 in seen, "a later write without an earlier one"
    assert len(seen) > 20


def test_a_gap_is_one_write_and_all_others_are_kept() -> None:
    seen = {image(written(), "gap", seed)[0] for seed in range(50)}
    assert seen == {
        b"a" * 1024 + b"c" * 1024 + b"d" * 100,
        b"b" * 1024 + b"a" * 1024 + b"d" * 100,
        b"b" * 1024 + b"c" * 1024,
    }


def test_a_torn_write_tears_at_sectors() -> None:
    partial = 0
    for seed in range(100):
        content = bytearray(b"a" * 4096)
        leave(content, Write(100, b"b" * 3000), "torn", random.Random(seed))
        sectors = [content[at : at + SECTOR_BYTES] for at in range(0, 4096, SECTOR_BYTES)]
        for number, sector in enumerate(sectors[1:6], 1):
            assert len(set(sector)) == 1, f"sector {number} is itself torn"
        partial += 0 < content.count(b"b") < 3000
        assert content[:100] == b"a" * 100
    assert partial > 50


def test_a_write_beyond_the_end_leaves_zeros_between() -> None:
    file = SimFile(b"x")
    file.write(4, b"y")
    assert image(file, "kept")[0] == b"x\0\0\0y"
    assert file.size == 5


def test_cutting_a_file_is_whole_or_not_at_all() -> None:
    file = SimFile(b"abcdef")
    file.truncate(3)
    assert file.size == 3
    assert image(file, "kept")[0] == b"abc"
    assert image(file, "dropped")[0] == b"abcdef"
    assert {image(file, "scattered", seed)[0] for seed in range(30)} == {b"abc", b"abcdef"}


def test_what_a_failed_sync_dropped_is_not_saved_by_a_later_one() -> None:
    lost = 0
    for seed in range(30):
        file = SimFile(b"a")
        file.write(0, b"b")
        file.fail_sync(random.Random(seed))
        file.sync()
        lost += image(file, "kept")[0] == b"a"
    assert 0 < lost < 30


@pytest.mark.parametrize("style", [*STYLES, "gap"])
def test_an_image_leaves_the_file_alone(style: Style) -> None:
    file = written()
    image(file, style)
    assert len(file.pending) == 3
    assert file.durable == b"a" * 2048
