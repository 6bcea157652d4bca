from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hadron.model.backoff import CAP_S, FIRST_S, Backoff, doubled_s, jitter
from hadron.model.pipelines import Retry


class Drawn:
    """`ports.Random` that draws one share of what it may."""

    def __init__(self, part: float) -> None:
        self._part = part

    def token_bytes(self, count: int) -> bytes:
        raise AssertionError(count)

    def uniform(self, low: float, high: float) -> float:
        return low + self._part * (high - low)


class Seeded:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def token_bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)


def test_intervals_double_up_to_their_cap() -> None:
    intervals = [doubled_s(0.5, failures, 30.0) for failures in range(9)]
    assert intervals == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert doubled_s(0.5, -1, 30.0) == 0.5


def test_no_count_is_too_high() -> None:
    """A record may have been given back for years, and an address be away as long."""
    assert doubled_s(1e-3, 10**9, 300.0) == 300.0
    assert doubled_s(7.0, 0, 5.0) == 5.0


def test_it_grows_to_its_cap_and_starts_over() -> None:
    for part, of in ((0.0, 0.5), (1.0, 1.0)):
        backoff = Backoff(Drawn(part), 0.1, 0.5)
        assert [backoff.next_s() for _ in range(5)] == [
            of * interval_s for interval_s in (0.1, 0.2, 0.4, 0.5, 0.5)
        ]
        backoff.reset()
        assert backoff.next_s() == of * 0.1


def test_a_leader_that_comes_back_is_found_within_a_second() -> None:
    backoff = Backoff(Drawn(1.0))
    delays = [backoff.next_s() for _ in range(12)]
    assert (delays[0], delays[-1]) == (FIRST_S, CAP_S)


@given(st.integers(), st.integers(0, 50))
def test_the_unlucky_wait_longer_each_time_too_and_one_seed_waits_alike(
    seed: int, count: int
) -> None:
    one, other = Backoff(Seeded(seed)), Backoff(Seeded(seed))
    for failures in range(count):
        delay_s, interval_s = one.next_s(), doubled_s(FIRST_S, failures, CAP_S)
        assert interval_s / 2 <= delay_s <= interval_s
        assert delay_s == other.next_s()
    assert 0.5 <= jitter(Seeded(seed)) <= 1.0


@pytest.mark.parametrize(("failures", "seconds"), [(1, 2), (2, 4), (5, 32), (21, 2 << 20)])
def test_a_stages_retries_have_no_chance_in_them(failures: int, seconds: int) -> None:
    """Each node works them out by itself, from the log (PROTOCOL A1)."""
    assert Retry(99, 2_000).pause_ms(failures) == 1_000 * seconds


def test_nor_a_number_without_end() -> None:
    """It is stored, and a column of SQLite ends at 64 bits."""
    retry = Retry(1_000, 86_400_000)
    assert retry.pause_ms(1_000) == retry.pause_ms(21) < 1 << 63


def test_instances_that_failed_together_come_back_apart_and_all_nodes_agree_when() -> None:
    pauses = [Retry(9, 10_000).pause_ms(2, each) for each in range(1_000)]
    assert pauses == [Retry(9, 10_000).pause_ms(2, each) for each in range(1_000)]
    assert 20_000 <= min(pauses) < 20_100
    assert 24_900 < max(pauses) < 25_000
    assert Retry(9, 10_000).pause_ms(2, 17) != 2 * Retry(9, 10_000).pause_ms(1, 17)
