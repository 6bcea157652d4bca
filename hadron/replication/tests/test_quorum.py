"""The watermark against brute force: what a majority has, is what some majority has in common."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hadron.replication.quorum import Quorum

Event = tuple[str, int, int]
"""(what happens, to which member, with which lsn)."""


def brute_force(persisted: dict[str, int], voters: set[str], started_lsn: int) -> int:
    """The highest lsn that some majority of voters, and the leader, have on disk."""
    names = list(persisted)
    best = 0
    for majority in combinations(names, len(names) // 2 + 1):
        if set(majority) <= voters:
            best = max(best, min(persisted[name] for name in majority))
    best = min(best, persisted["n0"])
    return best if best >= started_lsn else 0


@given(
    size=st.integers(1, 5),
    started_lsn=st.integers(1, 6),
    events=st.lists(
        st.tuples(
            st.sampled_from(["record", "record", "record", "admit", "demote"]),
            st.integers(0, 4),
            st.integers(0, 12),
        ),
        max_size=40,
    ),
)
def test_committed_is_what_brute_force_says(
    size: int, started_lsn: int, events: list[tuple[str, int, int]]
) -> None:
    names = [f"n{number}" for number in range(size)]
    quorum = Quorum("n0", names, started_lsn=started_lsn)
    persisted = dict.fromkeys(names, 0)
    voters = {"n0"}
    committed = 0
    for what, number, lsn in events:
        name = names[number % size]
        moved = False
        if what == "record":
            moved = quorum.record(name, lsn)
            persisted[name] = max(persisted[name], lsn)
        elif what == "admit":
            before = quorum.committed
            quorum.admit(name)
            moved = quorum.committed > before
            voters.add(name)
        elif name != "n0":
            quorum.demote(name)
            voters.discard(name)
            persisted[name] = 0
        expected = max(committed, brute_force(persisted, voters, started_lsn))
        assert quorum.committed == expected
        assert moved == (expected > committed)
        assert quorum.on_all == min(persisted.values())
        committed = expected


@pytest.mark.parametrize(("size", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_a_majority_is_more_than_half(size: int, needed: int) -> None:
    names = [f"n{number}" for number in range(size)]
    quorum = Quorum("n0", names, started_lsn=1)
    for count, name in enumerate(names, start=1):
        quorum.admit(name)
        quorum.record(name, 7)
        assert quorum.committed == (7 if count >= needed else 0)


def test_nothing_is_committed_before_the_ballots_first_entry_is() -> None:
    """Raft's Figure 8: entries of older ballots on a majority are not committed by counting."""
    quorum = Quorum("n0", ["n0", "n1", "n2"], started_lsn=10)
    quorum.admit("n1")
    for name in ("n0", "n1"):
        quorum.record(name, 9)
    assert quorum.committed == 0
    quorum.record("n0", 10)
    assert quorum.committed == 0
    assert quorum.record("n1", 10)
    assert quorum.committed == 10


def test_the_leaders_own_disk_is_needed() -> None:
    quorum = Quorum("n0", ["n0", "n1", "n2"], started_lsn=1)
    quorum.admit("n1")
    quorum.admit("n2")
    quorum.record("n1", 5)
    quorum.record("n2", 5)
    assert quorum.committed == 0
    quorum.record("n0", 3)
    assert quorum.committed == 3


def test_a_late_message_changes_nothing() -> None:
    quorum = Quorum("n0", ["n0", "n1"], started_lsn=1)
    quorum.admit("n1")
    quorum.record("n0", 5)
    quorum.record("n1", 5)
    assert not quorum.record("n1", 3)
    assert (quorum.committed, quorum.persisted("n1")) == (5, 5)


def test_a_learner_does_not_count_until_it_is_admitted() -> None:
    quorum = Quorum("n0", ["n0", "n1", "n2"], started_lsn=1)
    quorum.record("n0", 5)
    assert not quorum.record("n1", 5)
    assert quorum.committed == 0
    # Nothing else may come for a long time: being admitted is what commits.
    quorum.admit("n1")
    assert quorum.committed == 5
