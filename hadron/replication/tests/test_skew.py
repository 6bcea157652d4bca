"""Clocks that differ: what is measured, who is believed, and what a leader's stamps may do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from statistics import median
from typing import cast

import pytest

from hadron.model.errors import DeadlineExceededError, FencedError
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


@pytest.mark.parametrize(("theirs", "ahead"), [(90, 10), (100, 0), (107, 0), (110, 0), (125, -15)])
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

    def __init__(
        self,
        clock: HandClock,
        meanwhile: Callable[[], None] = lambda: None,
        names: Sequence[str] = ("n2", "n3"),
    ) -> None:
        self._clock = clock
        self._meanwhile = meanwhile
        self._right_ms = clock.wall_ms - int(clock.steady_s * 1_000)
        self.links = {name: PeerLink(name, "replica", name) for name in names}
        self.silent: set[str] = set()

    def connected(self) -> list[PeerLink]:
        return list(self.links.values())

    async def ask_again(
        self, link: PeerLink, timeout_s: float
    ) -> replication_pb2.HandshakeResponse:
        self._meanwhile()
        if link.name in self.silent:
            raise DeadlineExceededError(f"{link.name} has not answered within {timeout_s} s")
        now_ms = self._right_ms + int(self._clock.steady_s * 1_000)
        return replication_pb2.HandshakeResponse(now_ms=now_ms)


async def compare(stamps: StampClock, links: HandLinks) -> bool:
    return await stamps.compare(cast(PeerLinks, links))


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


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000])
@pytest.mark.parametrize(("peers", "silent"), [(1, 1), (2, 2), (3, 2), (4, 3)])
async def test_a_jump_that_no_majority_can_contradict_is_not_believed(
    jump_ms: int, peers: int, silent: int
) -> None:
    clock = HandClock()
    stamps = StampClock(clock)
    links = HandLinks(clock, names=[f"n{2 + number}" for number in range(peers)])
    await compare(stamps, links)
    links.silent = set(list(links.links)[:silent])
    clock.sleep(1)
    clock.wall_ms += jump_ms
    allowed = max(-MAX_SKEW_MS, min(MAX_SKEW_MS, jump_ms))
    for _ in range(3):
        assert not await compare(stamps, links)
        clock.sleep(5)
    assert stamps.now_ms() == 1_016_000 + allowed
    links.silent = set()
    with pytest.raises(FencedError):
        await compare(stamps, links)


async def test_a_majority_is_enough_and_a_node_alone_has_nobody_to_ask() -> None:
    clock = HandClock()
    stamps = StampClock(clock)
    links = HandLinks(clock)
    links.silent = {"n3"}
    clock.wall_ms -= 4_000
    assert await compare(stamps, links)
    assert stamps.now_ms() == clock.now_ms()
    clock.wall_ms += 3_600_000
    assert await compare(stamps, HandLinks(clock, names=()))
    assert stamps.now_ms() == clock.now_ms()
