"""W9: what is left of what is over is found wherever it lies, and what may be left exists."""

from __future__ import annotations

import inspect
import re
from collections import deque
from importlib import import_module
from typing import Any

import pytest

from hadron.delivery.effects import Rules
from hadron.delivery.keys import BatchKeys
from hadron.delivery.machine import Group
from hadron.sim.watch import leftovers as room
from hadron.sim.watch.leftovers import KINDS, kept, leftovers, reached

HERE = "hadron.tests"


class Owner:
    """Of the product, as it seems."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def listen(self) -> None: ...


class Slotted:
    __slots__ = ("__hidden", "lines")

    def __init__(self) -> None:
        self.lines = deque([1, 2])
        self.__hidden = {3}


@pytest.fixture(autouse=True)
def of_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    for cls in (Owner, Slotted):
        monkeypatch.setattr(cls, "__module__", HERE)


@pytest.mark.parametrize("where", sorted(KINDS))
def test_what_may_be_left_is_an_attribute_of_a_class(where: str) -> None:
    module, owner, attribute = re.fullmatch(r"(.+):(.+)\.(.+)", where).groups()  # type: ignore[union-attr]
    source = inspect.getsource(getattr(import_module(f"hadron.{module}"), owner))
    assert re.search(rf"\bself\.{attribute}\b|^    {attribute}:", source, re.MULTILINE)


def test_what_is_kept_is_found_behind_lists_slots_and_methods() -> None:
    listener = Owner(waiting=[1])
    owner = Owner(
        parts=({"a": [Slotted()]},), on_news=listener.listen, none={}, nested={"s": {1: 1, 2: 2}}
    )
    assert kept(reached(owner)) == {
        "tests:Owner.nested": 2,
        "tests:Owner.none": 0,
        "tests:Owner.waiting": 1,
        "tests:Slotted._Slotted__hidden": 1,
        "tests:Slotted.lines": 2,
    }


def test_what_is_not_of_the_product_is_not_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Slotted, "__module__", "hadron.fakes.network")
    assert kept(reached(Owner(network=Slotted()))) == {}


def test_what_refers_to_itself_has_an_end() -> None:
    peers: list[Owner] = []
    owner = Owner(peers=peers)
    peers.append(owner)
    assert kept(reached(owner)) == {"tests:Owner.peers": 1}


def test_what_no_kind_allows_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner(links=[1] * 9, objects=[1] * 8, one=[1], ring=[1] * 99, made=[1] * 99, claims=[1])
    kinds = {
        "links": "of nodes",
        "objects": "of objects",
        "one": "at most one",
        "ring": "with bounds",
        "made": "made once",
    }
    named = {f"tests:Owner.{name}": kind for name, kind in kinds.items()}
    monkeypatch.setattr(room, "KINDS", named)
    told = "room for {} of what is over, in tests:Owner.{} (W9)"
    assert [*leftovers(owner, nodes=2, objects=1)] == [
        told.format(1, "claims"),
        told.format(9, "links"),
    ]


def test_a_key_is_busy_for_what_waits_alone() -> None:
    group = Group(0, (), rules=Rules(is_by_key=True))
    member = group.join(1, lambda: True)
    for _ in range(2):
        # The first is held, then given back; the second stands in line behind it.
        chosen = group.choose(2, now=0.0)
        if chosen is not None:
            group.assign(chosen, 2, 2, 0.0, BatchKeys(0, (7, 7)))
            group.resize(member.number, 2)
    owner = Owner(group=group)
    busy = "keys of 1 records that do not wait, 0 the first (W9)"
    assert [*leftovers(owner, nodes=0, objects=0)][-1] == busy
    group.leave(member.number, now=1.0)
    assert [*leftovers(owner, nodes=0, objects=0)] == []

    assert group.keys is not None
    group.waiting.take(0, 0)
    assert [*leftovers(owner, nodes=0, objects=0)] == [busy]
    group.keys._current.clear()
    assert [*leftovers(owner, nodes=0, objects=0)] == [
        "lines of 1 keys that no record makes busy (W9)",
        "room for 2 records that are busy or in line (W9)",
    ]
