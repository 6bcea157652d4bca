"""Whether this node's clock agrees with its peers' (PROTOCOL B8).

A leader stamps every entry, and stamps never go back. One whose clock is wrong by an hour would
make the whole replica set's log live in the future until that hour has passed: retention by age,
delays and schedules all count from those stamps. So it must not lead, and its peers can tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import trio

from hadron.model.errors import FencedError, HadronError
from hadron.model.ports import Clock
from hadron.replication.peers import PeerLink, PeerLinks

MAX_SKEW_MS: Final = 5_000
"""More than clocks that are set over the network ever differ, less than anybody's retention."""

_ANSWER_WITHIN_S: Final = 1.0


class StampClock:
    """A leader's clock. Between two looks at the peers' it is held to the monotonic one, so that a
    jump moves stamps by no more than `MAX_SKEW_MS` before it is noticed.

    What is trusted is the very reading that the peers' answers were held against. *(The clock jumps
    while they answer, and is read again then: it would be trusted with the jump.)* And only with
    the answers of a majority, this node counted. *(The clock jumps while both peers stand still:
    nobody contradicts it, and from then on stamps have the whole jump.)*
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._base = clock.now_ms(), clock.monotonic_s()

    async def compare(self, links: PeerLinks) -> bool:
        """Hold the clock against the peers' that answer soon, and trust it from here on. False when
        too few have answered: then what was trusted before still is, and nothing else.

        Raises `FencedError` when it is too far off to lead.
        """
        base = asked_ms, asked_s = self._clock.now_ms(), self._clock.monotonic_s()
        found: dict[str, int] = {}

        async def ask(link: PeerLink) -> None:
            try:
                answer = await links.ask_again(link, _ANSWER_WITHIN_S)
            except HadronError:
                return
            took_ms = int((self._clock.monotonic_s() - asked_s) * 1_000)
            found[link.name] = ahead_ms(answer.now_ms, asked_ms, asked_ms + took_ms)

        async with trio.open_nursery() as nursery:
            for link in links.connected():
                nursery.start_soon(ask, link)
        if len(found) < (len(links.links) + 1) // 2:
            return False
        check([found[name] for name in sorted(found)])
        self._base = base
        return True

    def now_ms(self) -> int:
        base_ms, base_s = self._base
        due_ms = base_ms + int((self._clock.monotonic_s() - base_s) * 1_000)
        return min(max(self._clock.now_ms(), due_ms - MAX_SKEW_MS), due_ms + MAX_SKEW_MS)

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()


def ahead_ms(theirs_ms: int, asked_ms: int, answered_ms: int) -> int:
    """How far our clock is ahead of a peer's, at the least; negative when it is behind.

    Args:
        theirs_ms: what it was there at some moment between our question and its answer's arrival.
        answered_ms: what our clock should show at that arrival if it went on evenly.
    """
    if theirs_ms < asked_ms:
        return asked_ms - theirs_ms
    return min(0, answered_ms - theirs_ms)


def median_ms(peers: Sequence[int]) -> int:
    """The median of what the peers that were heard differ by. Of the two in the middle the one that
    is nearer to us, or 0 when we are between them: one broken clock of theirs does not keep a sound
    one from leading. Where a single peer was heard it does: nobody can say which of two is wrong.
    """
    if not peers:
        return 0
    ordered = sorted(peers)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return sorted((low, 0, high))[1]


def check(peers: Sequence[int]) -> None:
    """Raises `FencedError` when this clock is too far off to lead."""
    off_ms = median_ms(peers)
    if abs(off_ms) > MAX_SKEW_MS:
        raise FencedError(
            f"this node's clock is {abs(off_ms) / 1000:.1f} s "
            f"{'ahead of' if off_ms > 0 else 'behind'} its peers'; at most {MAX_SKEW_MS // 1000} s "
            "are allowed to a leader",
            "set the clocks of all nodes, and keep them so (NTP); it is looked at again",
        )
