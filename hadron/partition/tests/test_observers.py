"""Who is told first of what became visible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import permutations

import pytest

from hadron.partition.observers import Observers, Order
from hadron.state.machine import Event


class Declared(Event, frozen=True):
    name: str


class Appended(Event, frozen=True):
    offset: int


EVENTS: Sequence[Event] = (Declared("a"), Appended(1), Appended(2), Declared("b"))


def noting(told: list[str], name: str) -> Callable[[Sequence[Event]], None]:
    return lambda _: told.append(name)


@pytest.mark.parametrize("added", list(permutations(Order)))
def test_who_is_looked_up_is_told_before_who_looks(added: tuple[Order, ...]) -> None:
    """A driver that hears of a record asks for its stream's end, that for the stream's definition:
    each must know of it by then, in whatever order they came to be."""
    observers, told = Observers(), list[str]()
    for order in added:
        observers.add(order, [Declared, Appended], noting(told, order.name))
    observers.tell(EVENTS)
    assert told == ["CATALOG", "STREAMS", "LOCKS", "DRIVERS"]


def test_those_of_one_order_are_told_as_they_were_added() -> None:
    observers, told = Observers(), list[str]()
    for name in ("first", "second", "third"):
        observers.add(Order.DRIVERS, [Declared], noting(told, name))
        observers.add(Order.STREAMS, [Declared], noting(told, f"{name} stream"))
    observers.tell(EVENTS)
    assert told == ["first stream", "second stream", "third stream", "first", "second", "third"]


def test_each_is_told_its_own_types_in_the_order_of_the_log_or_nothing() -> None:
    observers, told = Observers(), list[tuple[str, Sequence[Event]]]()

    def note(name: str, events: Sequence[Event]) -> None:
        told.append((name, events))

    observers.add(Order.DRIVERS, [Appended, Declared], partial(note, "both"))
    observers.add(Order.DRIVERS, [Declared], partial(note, "one"))
    observers.tell(EVENTS)
    assert told == [("both", list(EVENTS)), ("one", [EVENTS[0], EVENTS[3]])]
    told.clear()
    observers.tell([Appended(3)])
    assert told == [("both", [Appended(3)])]
