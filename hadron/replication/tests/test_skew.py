"""Clocks that differ: what is measured, who is believed, and what a leader's stamps may do."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from statistics import median
from typing import cast

import pytest

from hadron.model.errors import FencedError
from hadron.replication.peers import PeerLink, PeerLinks
from hadron.replication.skew import MAX_SKEW_MS, StampClock, ahead_ms, check, median_ms
from hadron.wire.messages import replication_pb2


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


@pytest.mark.parametrize("theirs", [3_600_000, -3_600_000])
def test_of_two_clocks_that_differ_nobody_knows_the_broken_one(theirs: int) -> None:
    """In a pair, or while one of three is away."""
    with pytest.raises(FencedError):
        check([theirs])


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


class HandLinks:
    """`PeerLinks` to peers whose clocks are right; `meanwhile` happens while they answer."""

    def __init__(self, clock: HandClock, meanwhile: Callable[[], None] = lambda: None) -> None:
        self._clock = clock
        self._meanwhile = meanwhile
        self._right_ms = clock.wall_ms - int(clock.steady_s * 1_000)

    def connected(self) -> list[PeerLink]:
        return [PeerLink(name, "replica", name) for name in ("n2", "n3")]

    async def ask_again(
        self, link: PeerLink, timeout_s: float
    ) -> replication_pb2.HandshakeResponse:
        del link, timeout_s
        self._meanwhile()
        now_ms = self._right_ms + int(self._clock.steady_s * 1_000)
        return replication_pb2.HandshakeResponse(now_ms=now_ms)


async def compare(stamps: StampClock, links: HandLinks) -> None:
    await stamps.compare(cast(PeerLinks, links))


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000, 1_000, -1_000])
async def test_a_jump_moves_stamps_by_no_more_than_the_limit_until_it_is_noticed(
    jump_ms: int,
) -> None:
    clock = HandClock()
    stamps = StampClock(clock)
    links = HandLinks(clock)
    clock.sleep(2)
    assert stamps.now_ms() == 1_002_000
    clock.wall_ms += jump_ms
    clock.sleep(1)
    allowed = max(-MAX_SKEW_MS, min(MAX_SKEW_MS, jump_ms))
    assert stamps.now_ms() == 1_003_000 + allowed
    if abs(jump_ms) > MAX_SKEW_MS:
        with pytest.raises(FencedError):
            await compare(stamps, links)
        assert stamps.now_ms() == 1_003_000 + allowed
    else:
        await compare(stamps, links)
        assert stamps.now_ms() == clock.now_ms()
    assert stamps.monotonic_s() == clock.monotonic_s()


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000])
async def test_a_jump_while_peers_answer_is_not_believed(jump_ms: int) -> None:
    clock = HandClock()
    stamps = StampClock(clock)
    jumps = iter([jump_ms])

    def jump() -> None:
        clock.sleep(0.25)
        clock.wall_ms += next(jumps, 0)

    await compare(stamps, HandLinks(clock, jump))
    allowed = max(-MAX_SKEW_MS, min(MAX_SKEW_MS, jump_ms))
    assert stamps.now_ms() == 1_000_500 + allowed
