"""Clocks that differ: what is measured, who is believed, and what a leader's stamps may do."""

from __future__ import annotations

from itertools import product
from statistics import median

import pytest

from hadron.model.errors import FencedError
from hadron.replication.skew import MAX_SKEW_MS, StampClock, ahead_ms, check, median_ms


class HandClock:
    def __init__(self) -> None:
        self.wall_ms = 1_000_000
        self.steady_s = 50.0

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic_s(self) -> float:
        return self.steady_s

    def sleep(self, seconds: float) -> None:
        self.wall_ms += int(seconds * 1_000)
        self.steady_s += seconds


@pytest.mark.parametrize(
    ("theirs", "ahead"), [(90, 10), (100, 0), (107, 0), (110, 0), (125, -15)]
)
def test_what_the_messages_took_is_no_difference(theirs: int, ahead: int) -> None:
    assert ahead_ms(theirs, 100, 110) == ahead


def test_the_median_of_all_clocks_ours_included_decides() -> None:
    """With an even number of peers it is the median of theirs and ours, exactly."""
    for count in (2, 4):
        for peers in product((-9, -4, 0, 3, 8), repeat=count):
            assert median_ms(peers) == median([0, *peers])


def test_one_broken_clock_among_three_keeps_nobody_from_leading() -> None:
    check([0, 3_600_000])
    check([-3_600_000, 12])


@pytest.mark.parametrize(
    ("peers", "said"),
    [([6_000, 7_000], "6.0 s ahead of"), ([-9_000], "9.0 s behind"), ([-8_000, -5_001], "5.0 s")],
)
def test_a_clock_that_is_off_does_not_lead(peers: list[int], said: str) -> None:
    with pytest.raises(FencedError, match=said) as refused:
        check(peers)
    assert "NTP" in refused.value.hint


def test_without_peers_and_within_the_limit_it_leads() -> None:
    check([])
    check([MAX_SKEW_MS])
    check([-MAX_SKEW_MS])


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000, 1_000, -1_000])
def test_a_jump_moves_stamps_by_no_more_than_the_limit_until_it_is_believed(jump_ms: int) -> None:
    clock = HandClock()
    stamps = StampClock(clock)
    clock.sleep(2)
    assert stamps.now_ms() == 1_002_000
    clock.wall_ms += jump_ms
    clock.sleep(1)
    allowed = max(-MAX_SKEW_MS, min(MAX_SKEW_MS, jump_ms))
    assert stamps.now_ms() == 1_003_000 + allowed
    stamps.trust()
    assert stamps.now_ms() == clock.now_ms()
    assert stamps.monotonic_s() == clock.monotonic_s()
