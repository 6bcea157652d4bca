"""When a node speaks with which address about the cluster: pure, so that tests have no clock.

At once after the start, and again soon for as long as something changes; every 10 s when nothing
does. Addresses that do not answer are tried less and less often, never given up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from hadron.model.backoff import doubled_s, jitter
from hadron.model.ports import Random
from hadron.model.replica_sets import KnownSet

LIVELY_S: Final = 2.0
"""From one round to the next while something changes."""
CALM_S: Final = 10.0
LONELY_S: Final = 1.0
"""From one attempt to the next, at most, while the metadata set is not known: it may just start."""
_LIVELY_ROUNDS: Final = 3
"""Rounds in which nothing was learned before they become rare."""
_STIRRED_S: Final = 0.2
"""From one round to the next at least, however much there is to tell."""
_FIRST_RETRY_S: Final = 0.1
_MOST_SETS: Final = 8
"""Other replica sets spoken with in one round, at most: news reach n sets in about log n rounds."""


@dataclass(slots=True)
class _Tried:
    failures: int = 0
    due_s: float = 0.0


class Rounds:
    """Args:
    own: the node's own replica set.
    peers: addresses of the other members of it.
    strangers: addresses in `discovery:` that are not of this replica set.
    """

    def __init__(
        self, random: Random, own: str, peers: Sequence[str], strangers: Sequence[str]
    ) -> None:
        self._random = random
        self._own = own
        self._peers = tuple(peers)
        self._strangers = tuple(dict.fromkeys(strangers))
        self._tried: dict[str, _Tried] = {}
        self._last_s = float("-inf")
        self._next_s = float("-inf")
        self._quiet = 0

    def begin_again(self) -> None:
        """Nothing is under way any more, whatever was begun."""
        self._tried.clear()
        self._next_s = float("-inf")

    def due(self, now_s: float, sets: Iterable[KnownSet]) -> list[str]:
        """Addresses to speak with now; each has `answered` or `failed` before it is due again."""
        if now_s < self._next_s:
            return [
                self._begin(address)
                for address in self._strangers
                if (tried := self._tried.get(address)) and tried.due_s <= now_s
            ]
        self._quiet += 1
        interval_s = LIVELY_S if self._quiet <= _LIVELY_ROUNDS else CALM_S
        self._last_s = now_s
        self._next_s = now_s + self._random.uniform(0.75, 1.25) * interval_s
        chosen = [*self._strangers, *self._of_sets(now_s, sets)]
        return [self._begin(each) for each in dict.fromkeys(chosen) if self._is_due(each, now_s)]

    def _of_sets(self, now_s: float, sets: Iterable[KnownSet]) -> list[str]:
        """One node of each other set, and one peer when there is any other set to speak of."""
        others = [known for known in sets if known.name != self._own]
        groups = [[node.address for node in known.nodes] for known in others]
        while len(groups) > _MOST_SETS:
            del groups[self._choose(len(groups))]
        if groups or self._strangers:
            groups.append(list(self._peers))
        chosen = []
        for group in groups:
            candidates = [address for address in group if self._is_due(address, now_s)]
            if candidates:
                chosen.append(candidates[self._choose(len(candidates))])
        return chosen

    def _begin(self, address: str) -> str:
        """Nothing more for it before `answered` or `failed`."""
        self._tried.setdefault(address, _Tried()).due_s = float("inf")
        return address

    def _choose(self, count: int) -> int:
        return min(int(self._random.uniform(0, count)), count - 1)

    def _is_due(self, address: str, now_s: float) -> bool:
        tried = self._tried.get(address)
        return tried is None or tried.due_s <= now_s

    def pause_s(self, now_s: float) -> float:
        """How long there is nothing to do."""
        retries = [
            tried.due_s for address in self._strangers if (tried := self._tried.get(address))
        ]
        return max(0.0, min([self._next_s, *retries]) - now_s)

    def stir(self) -> None:
        """Something is new here: the next round comes soon."""
        self._quiet = 0
        self._next_s = min(self._next_s, self._last_s + _STIRRED_S)

    def answered(self, address: str) -> None:
        self._tried.pop(address, None)

    def failed(self, address: str, now_s: float, longest_s: float = CALM_S) -> int:
        """Not again before a delay that doubles up to `longest_s`; returns how often in a row."""
        tried = self._tried.setdefault(address, _Tried())
        delay_s = doubled_s(_FIRST_RETRY_S, tried.failures, longest_s)
        tried.failures += 1
        tried.due_s = now_s + jitter(self._random) * delay_s
        return tried.failures
