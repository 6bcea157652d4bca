"""A number that has drifted from what it counts is told of, wherever it is kept."""

from __future__ import annotations

import pytest

from hadron.exchanges.trie import Trie
from hadron.sim.mutants.seams import Edit, patched
from hadron.sim.rooms import ROOMS, counted
from hadron.sim.watch.tallies import RULE, tallying


@pytest.mark.parametrize(
    ("room", "where", "line"),
    [
        ("groups", "delivery.held:Held.leave", "self.records -= len(delivery.held)"),
        ("groups", "delivery.waiting:Waiting._gone", "self.records -= item.last - item.first + 1"),
        ("logs", "replication.feed:Ring.push", "self._bytes -= oldest.size"),
        ("endpoints", "endpoints.endpoint:Endpoint.done", "self.in_flight -= 1"),
        ("exchanges", "exchanges.trie:Trie.remove", "self.nodes -= 1"),
        ("transactions", "transactions.machine:Machine._close", "self.held_bytes -= held.kept"),
    ],
)
def test_a_number_that_drifts_is_told_of(room: str, where: str, line: str) -> None:
    assert not counted(ROOMS[room], 0).complaints
    with patched(Edit(where, line, "pass")):
        assert any(each.startswith(RULE) for each in counted(ROOMS[room], 0).complaints)


def test_what_is_not_counted_right_is_told_with_both_numbers() -> None:
    told: list[tuple[str, str]] = []
    trie: Trie[str] = Trie()
    with tallying(lambda *what: told.append(what)):
        trie.add("a.b", "x")
        trie.nodes += 1
        trie.add("a.c", "y")
    assert told == [(RULE, "Trie counts 5 nodes of patterns, there are 4")]
    trie.add("a.d", "z")
    assert len(told) == 1, "for the length of the block"
