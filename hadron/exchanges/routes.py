"""To whom a topic goes, remembered: what the trie says, put together by client. Pure.

Bounded by how many topics are remembered, and by how many subscriptions stand in all of them; what
is too much is forgotten as a whole, and so is everything when a subscription comes or goes.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hadron.exchanges.trie import Trie

if TYPE_CHECKING:
    from hadron.exchanges.machine import Session, Subscription

MAX_TOPICS: Final = 10_000
MAX_TARGETS: Final = 1_000_000
"""8 MB of references."""


@dataclass(frozen=True, slots=True)
class Route:
    """Attributes:
    audience: a number; topics with the same one have the same `clients`.
    clients: each with the subscriptions of it that get every message.
    groups: members that match, of each group that has one.
    """

    audience: int
    clients: tuple[tuple[Session, tuple[int, ...]], ...]
    groups: tuple[tuple[str, tuple[Subscription, ...]], ...]


class Routes:
    def __init__(self) -> None:
        self._trie: Trie[Subscription] = Trie()
        self._known: dict[str, Route] = {}
        self._targets = 0
        self._audiences: dict[tuple[tuple[Session, tuple[int, ...]], ...], int] = {}
        self._numbers = itertools.count()

    @property
    def nodes(self) -> int:
        """Of the tree."""
        return self._trie.nodes

    @property
    def remembered(self) -> int:
        return len(self._known)

    def add(self, subscription: Subscription) -> None:
        for pattern in subscription.patterns:
            self._trie.add(pattern, subscription)
        self._forget()

    def remove(self, subscription: Subscription) -> None:
        for pattern in subscription.patterns:
            self._trie.remove(pattern, subscription)
        self._forget()

    def _forget(self) -> None:
        if self._known:
            self._known, self._audiences = {}, {}
            self._targets = 0

    def of(self, topic: str) -> Route:
        route = self._known.get(topic)
        return route if route is not None else self._find(topic)

    def _find(self, topic: str) -> Route:
        clients: dict[Session, list[int]] = {}
        groups: dict[str, list[Subscription]] = {}
        found = self._trie.match(topic)
        for subscription in found:
            if subscription.group:
                groups.setdefault(subscription.group, []).append(subscription)
            else:
                clients.setdefault(subscription.session, []).append(subscription.id)
        if len(self._known) >= MAX_TOPICS or self._targets + len(found) > MAX_TARGETS:
            self._forget()
        reached = tuple((session, tuple(ids)) for session, ids in clients.items())
        audience = self._audiences.get(reached)
        if audience is None:
            audience = self._audiences[reached] = next(self._numbers)
        route = Route(
            audience, reached, tuple((name, tuple(members)) for name, members in groups.items())
        )
        self._known[topic] = route
        self._targets += len(found)
        return route
