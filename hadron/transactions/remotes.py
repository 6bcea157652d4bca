"""What waits for one replica set: what was sent and is not answered, what is to be sent. Pure.

While the set answers, everything is sent at once, up to a bound. When it does not, only the oldest
is tried, with the shared backoff; what comes meanwhile waits. What comes back is then drawn by its
own answers, several for each, so a set that has just recovered is not drowned by what has piled up.
"""

from __future__ import annotations

from typing import Final

from hadron.model.backoff import FIRST_S, doubled_s, jitter
from hadron.model.ports import Random
from hadron.model.transactions import TransactionId

FINISH: Final = -1

Errand = tuple[TransactionId, int]
"""The intents from a number on are to be written, or the transaction is to be finished
(`FINISH`)."""

_DRAWN: Final = 4
"""Sent for each answer while something waits: twice as many after each round, and more."""

MAX_SENT: Final = 1_024
"""To one set and not answered, of all transactions: several times what 256 clients have under way.
A new leader that finds ten thousand decisions begins with these."""

_AGAIN: Final = 64
"""Sent again at a time when answers are missing of a set that else answers."""


class Remote:
    """One replica set, as a driver sees it. Times are seconds on the monotonic clock."""

    __slots__ = ("_answer_s", "_random", "_retry_at", "_sent", "_waiting", "failures", "reason")

    def __init__(self, random: Random, answer_s: float) -> None:
        self.failures = 0
        """Since it was last heard of."""
        self.reason = ""
        """Why it is not heard of, as far as known."""
        self._random = random
        self._answer_s = answer_s
        self._retry_at = 0.0
        self._sent: dict[Errand, float] = {}
        """Not answered; when each was sent, the oldest first."""
        self._waiting: dict[Errand, None] = {}

    def __len__(self) -> int:
        return len(self._sent) + len(self._waiting)

    def post(self, errand: Errand, now: float) -> bool:
        """Whether it is to be sent now; else `heard` or `tick` says when."""
        if self.failures or self._waiting or len(self._sent) >= MAX_SENT:
            self._waiting[errand] = None
            return False
        self._sent[errand] = now
        return True

    def settle(self, errand: Errand) -> None:
        """It is answered, or of no use any more."""
        if self._sent.pop(errand, None) is None:
            self._waiting.pop(errand, None)

    def heard(self, now: float) -> list[Errand]:
        """Something came from there. Returns what to send now."""
        self.failures, self.reason = 0, ""
        return self._draw(_DRAWN, now) if self._waiting else []

    def failed(self, reason: str, now: float) -> None:
        """It cannot be reached: what was sent may be lost. Of many that fail with one connection
        the first one counts."""
        if self.failures and not self._sent:
            self.reason = reason
            return
        self._waiting = dict.fromkeys((*self._sent, *self._waiting))
        self._sent.clear()
        self._fail(reason, now)

    def _fail(self, reason: str, now: float) -> None:
        pause_s = jitter(self._random) * doubled_s(FIRST_S, self.failures, self._answer_s)
        self.failures += 1
        self.reason = reason
        self._retry_at = now + pause_s

    def next_due(self) -> float | None:
        """When `tick` has something to do; None when nothing is left, however late it gets."""
        if self.failures:
            return self._retry_at if self else None
        if self._sent:
            return next(iter(self._sent.values())) + self._answer_s
        return 0.0 if self._waiting else None

    def tick(self, now: float) -> list[Errand]:
        """Returns what to send now."""
        due = self.next_due()
        if due is None or now < due:
            return []
        late = [
            errand for errand, sent_at in self._sent.items() if sent_at + self._answer_s <= now
        ][:_AGAIN]
        if late:
            for errand in late:
                del self._sent[errand]
            self._waiting = dict.fromkeys((*late, *self._waiting))
            self._fail(self.reason or f"it has not answered for {self._answer_s:g} s", now)
        if not self.failures:
            return self._draw(_AGAIN, now)
        # One is tried, and nothing else until it is answered or late as well.
        self._retry_at = now + self._answer_s
        return self._draw(1, now)

    def _draw(self, most: int, now: float) -> list[Errand]:
        drawn = [errand for errand, _ in zip(self._waiting, range(most), strict=False)]
        for errand in drawn:
            del self._waiting[errand]
            self._sent[errand] = now
        return drawn


class Remotes:
    """All replica sets that something waits for, or did."""

    def __init__(self, random: Random, answer_s: float) -> None:
        self._random = random
        self._answer_s = answer_s
        self._remotes: dict[str, Remote] = {}

    def post(self, name: str, errand: Errand, now: float) -> bool:
        """Whether it is to be sent now; else `heard` or `tick` says when."""
        remote = self._remotes.get(name)
        if remote is None:
            remote = self._remotes[name] = Remote(self._random, self._answer_s)
        return remote.post(errand, now)

    def settle(self, name: str, errand: Errand) -> None:
        """It is answered, or of no use any more."""
        self._remotes[name].settle(errand)

    def heard(self, name: str, now: float) -> list[Errand]:
        """Something came from there. Returns what to send there now."""
        remote = self._remotes.get(name)
        return remote.heard(now) if remote is not None else []

    def failed(self, name: str, reason: str, now: float) -> None:
        """It cannot be reached: what was sent may be lost."""
        if (remote := self._remotes.get(name)) is not None:
            remote.failed(reason, now)

    def tick(self, now: float) -> list[tuple[str, Errand]]:
        """Returns what to send now, and where."""
        return [
            (name, errand) for name, remote in self._remotes.items() for errand in remote.tick(now)
        ]

    def next_due(self) -> float | None:
        """When `tick` has something to do."""
        due = None
        for remote in self._remotes.values():
            other = remote.next_due()
            if other is not None and (due is None or other < due):
                due = other
        return due

    def reason(self, name: str) -> str:
        """Why it is not heard of, as far as known; "" while it is."""
        remote = self._remotes.get(name)
        return remote.reason if remote is not None else ""
