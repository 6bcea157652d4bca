"""How long to wait before the next try: doubling, bounded, with jitter. Pure.

Jitter, because after a leader restarts all who need it come back at once. Of each interval a random
share from the upper half is waited, so that it also grows for the unlucky ones ("equal jitter").

A `Backoff` counts by itself, for one thing that is tried again and again. Who has the count from
elsewhere, as of a record's attempts or of many addresses, takes `doubled_s` and `jitter`.
What a schema says of a stage's retries is counted in the log, and nodes agree on its jitter, which
is a hash: `pipelines.Retry.pause_ms`.
"""

from __future__ import annotations

from typing import Final

from hadron.model.ports import Random

FIRST_S: Final = 0.02
"""A leader that only dropped the connection is back within a round trip or two."""

CAP_S: Final = 1.0
"""A user who starts a node again sees the client follow within a second."""

_MOST_DOUBLINGS: Final = 30
"""Beyond every cap; and 2 ** 1,024 has no float."""


def doubled_s(first_s: float, failures: int, cap_s: float) -> float:
    """The interval after `failures` before the last one: `first_s` after none, twice as long after
    each, never more than `cap_s`."""
    return min(cap_s, first_s * 2.0 ** max(0, min(failures, _MOST_DOUBLINGS)))


def jitter(random: Random) -> float:
    """The share of an interval that is waited: its first half at least."""
    return random.uniform(0.5, 1.0)


class Backoff:
    """Delays in seconds for one thing that is tried again and again.

    Args:
        first_s: the interval after a first failure, and after every `reset`.
        cap_s: the longest one.
    """

    __slots__ = ("_cap_s", "_failures", "_first_s", "_random")

    def __init__(self, random: Random, first_s: float = FIRST_S, cap_s: float = CAP_S) -> None:
        self._random = random
        self._first_s = first_s
        self._cap_s = cap_s
        self._failures = 0

    def next_s(self) -> float:
        """The next delay; the one after is of an interval twice as long."""
        interval_s = doubled_s(self._first_s, self._failures, self._cap_s)
        self._failures += 1
        return jitter(self._random) * interval_s

    def reset(self) -> None:
        """Start from the shortest delay again: something worked."""
        self._failures = 0
