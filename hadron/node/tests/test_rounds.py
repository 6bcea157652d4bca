"""When nodes speak with each other: soon while something changes, rarely otherwise."""

from __future__ import annotations

import itertools
import random

import pytest

from hadron.model.replica_sets import KnownNode, KnownSet
from hadron.node.rounds import CALM_S, LIVELY_S, LONELY_S, Rounds


class Chance:
    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def token_bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)


def known(name: str, *addresses: str) -> KnownSet:
    nodes = tuple(
        KnownNode(f"n{number}", "replica" if number else "leader", address)
        for number, address in enumerate(addresses)
    )
    return KnownSet(name, 1, b"u" * 16, nodes)


OWN = known("own", "own1", "own2", "own3")


def rounds(*strangers: str, seed: int = 0) -> Rounds:
    return Rounds(Chance(seed), "own", ["own2", "own3"], strangers)


def walk(made: Rounds, sets: list[KnownSet], until_s: float) -> list[tuple[float, str]]:
    """(when, address) of everything that is due until then, if everybody answers at once."""
    now_s, spoken = 0.0, []
    while now_s <= until_s:
        for address in made.due(now_s, sets):
            spoken.append((now_s, address))
            made.answered(address)
        assert made.pause_s(now_s) > 0
        now_s += made.pause_s(now_s)
    return spoken


def test_a_set_alone_has_nobody_to_speak_with() -> None:
    assert walk(rounds(), [OWN], 100.0) == []


def test_discovery_addresses_are_spoken_with_at_once_and_then_less_and_less() -> None:
    times = [when for when, address in walk(rounds("d1"), [OWN], 100.0) if address == "d1"]
    assert times[0] == 0.0
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert all(0.75 * LIVELY_S <= gap <= 1.25 * LIVELY_S for gap in gaps[:3])
    assert all(0.75 * CALM_S <= gap <= 1.25 * CALM_S for gap in gaps[3:])


def test_each_round_has_one_node_of_every_other_set_and_one_peer() -> None:
    other, third = known("b", "b1", "b2"), known("c", "c1", "c2")
    made = rounds()
    seen = set()
    for _ in range(20):
        due = made.due(0.0, [OWN, other, third])
        assert sorted(address[:-1] for address in due) == ["b", "c", "own"]
        seen.update(due)
        for address in due:
            made.answered(address)
        made.begin_again()
    assert seen == {"b1", "b2", "c1", "c2", "own2", "own3"}


def test_a_round_with_very_many_sets_takes_some_of_them() -> None:
    many = [known(f"s{number}", f"s{number}a") for number in range(100)]
    assert len(rounds().due(0.0, [OWN, *many])) == 9


def test_something_new_brings_the_next_round_near_but_not_at_once() -> None:
    made = rounds("d1")
    made.due(0.0, [OWN])
    made.answered("d1")
    made.stir()
    made.stir()
    assert made.pause_s(0.0) == 0.2
    assert made.due(0.1, [OWN]) == []
    assert "d1" in made.due(0.2, [OWN])


@pytest.mark.parametrize("longest_s", [CALM_S, LONELY_S])
def test_who_does_not_answer_is_tried_soon_and_then_less_and_less_but_for_ever(
    longest_s: float,
) -> None:
    made, now_s, tries = rounds("d1"), 0.0, []
    while now_s < 200.0:
        if "d1" in made.due(now_s, [OWN]):
            tries.append(now_s)
            made.failed("d1", now_s, longest_s)
        now_s += made.pause_s(now_s)
    gaps = [after - before for before, after in itertools.pairwise(tries)]
    assert tries[0] == 0.0
    assert gaps[0] <= 0.1
    assert gaps[6] > longest_s / 5
    assert max(gaps) <= longest_s
    assert len(tries) > 200 / longest_s


def test_nothing_is_due_twice_at_the_same_time() -> None:
    made = rounds("d1")
    assert "d1" in made.due(0.0, [OWN])
    for tenth in range(1, 500):
        assert "d1" not in made.due(tenth / 10, [OWN])
    assert made.pause_s(49.9) >= 0
    made.begin_again()
    assert "d1" in made.due(50.0, [OWN])


def test_of_a_set_a_node_that_answers_is_preferred() -> None:
    other = known("b", "b1", "b2", "b3")
    made = rounds()
    now_s = 0.0
    for _ in range(200):
        for address in made.due(now_s, [OWN, other]):
            if address == "b2":
                made.answered(address)
            else:
                made.failed(address, now_s)
        now_s += made.pause_s(now_s)
    made.stir()
    late = [address for address in made.due(now_s + CALM_S, [OWN, other]) if address[0] == "b"]
    assert len(late) == 1
