"""Who hears of what has happened once it is visible, and in which order. Pure."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import TypeVar

from hadron.state.machine import Event

E = TypeVar("E", bound=Event)


class Order(enum.IntEnum):
    """Those who keep what others look up are told first. Who watches a stream is called by it."""

    CATALOG = 0
    STREAMS = 1
    LOCKS = 2
    DRIVERS = 3


class Observers:
    """Subscriptions to events by their types."""

    def __init__(self) -> None:
        self._subscribed: list[tuple[Order, frozenset[type[Event]], Callable[..., None]]] = []

    def add(
        self, order: Order, types: Sequence[type[E]], observer: Callable[[Sequence[E]], None]
    ) -> None:
        """Call `observer` with the events of these types that became visible together, in the
        order of the log; observers of one `order` in the order in which they were added."""
        self._subscribed.append((order, frozenset(types), observer))
        self._subscribed.sort(key=lambda known: known[0])

    def tell(self, events: Sequence[Event]) -> None:
        """These have become visible."""
        present = {type(event) for event in events}
        for _, types, observer in self._subscribed:
            if not types.isdisjoint(present):
                observer([event for event in events if type(event) in types])
