"""The room of exchanges: nothing is wrong in it, and it finds what breaks the rules of X."""

from __future__ import annotations

from typing import Final

import pytest

from hadron.sim.mutants import patched
from hadron.sim.mutants.seams import Edit
from hadron.sim.rooms import exchanges

_SEEDS: Final = 40

_MACHINE: Final = "exchanges.machine:Exchange."

BUGS: Final = {
    "who subscribes is not found by topics that are remembered": (
        "X3",
        Edit("exchanges.routes:Routes.add", "        self._forget()\n", "        pass\n"),
    ),
    "who has ended a subscription is found by topics that are remembered": (
        "raised",
        Edit("exchanges.routes:Routes.remove", "        self._forget()\n", "        pass\n"),
    ),
    "with one subscription others of its pattern go": (
        "X3",
        Edit(
            "exchanges.trie:Trie.remove", "if not path.pop().is_empty:", "if path.pop().children:"
        ),
    ),
    "numbers of audiences begin again while some are in use": (
        "X1",
        Edit(
            "exchanges.routes:Routes._forget",
            "self._targets = 0",
            "self._targets = 0\n            self._numbers = itertools.count()",
        ),
    ),
    "runs that follow one another are one, whoever gets them": (
        "X1",
        Edit("exchanges.packing:_melted", " and known[3] == to", ""),
    ),
    "what comes passes what waits": (
        "X3",
        Edit(
            _MACHINE + "publish", "not session.waiting and session.writable()", "session.writable()"
        ),
    ),
    "what follows a gap is told before it": (
        "X3",
        Edit(_MACHINE + "publish", "if session.missed:", "if False:"),
    ),
    "who reads again is told of a gap with the next message": (
        "X3",
        Edit(_MACHINE + "next", "if session.missed:", "if False:"),
    ),
    "what waited for who has gone is held for ever": (
        "X4",
        Edit(_MACHINE + "leave", "        self._room.hold(-session.waiting_bytes)\n", ""),
    ),
    "who reads is cut off for what it has not read before": (
        "X4",
        Edit(_MACHINE + "next", "session.unread_since = None", "pass"),
    ),
    "a group's messages go to the first of its members": (
        "X1",
        Edit(_MACHINE + "_share", "self._turns[group] = turn % (1 << 30)", "pass"),
    ),
    "a group's messages go to who does not read": (
        "X1",
        Edit(
            _MACHINE + "_able",
            "        able = [each for each in members if not each.session.waiting"
            " and each.session.writable()]\n",
            "        able = []\n",
        ),
    ),
    "a message that goes out in parts says twice what it has said": (
        "X2",
        Edit(
            "exchanges.parcels:parts_of",
            "            some, held = [], 0\n",
            "            held = 0\n",
        ),
    ),
    "what was read for those before is published to who has come since": (
        "X1",
        Edit(
            "exchanges.bridge:Bridge._catch_up",
            "if position == self._position and not self.is_closed:",
            "if not self.is_closed:",
        ),
    ),
    "a bridge that is behind begins at the end with each subscription": (
        "X3",
        Edit("exchanges.driver:ExchangeDriver.subscribe", " and not self.has_subscriptions", ""),
    ),
    "a bridge passes what its turn had no time for": (
        "X3",
        Edit(
            "exchanges.bridge:Bridge._publish",
            "self._position = batch.next_offset",
            "self._position = batches[-1].next_offset",
        ),
    ),
}


@pytest.mark.long
def test_nothing_is_wrong() -> None:
    for seed in range(_SEEDS):
        assert not exchanges.play(seed).complaints
    assert exchanges.play(7).digest == exchanges.play(7).digest != exchanges.play(8).digest


@pytest.mark.parametrize("bug", BUGS)
def test_it_finds(bug: str) -> None:
    rule, patch = BUGS[bug]
    found: set[str] = set()
    with patched(patch) as reached:
        for seed in range(_SEEDS):
            found |= {each.partition(":")[0] for each in exchanges.play(seed).complaints}
            if rule in found:
                break
        else:
            pytest.fail(f"{found} in {_SEEDS} worlds, not {rule}; {len(reached)} were reached")
