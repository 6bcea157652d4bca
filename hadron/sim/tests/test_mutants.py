"""Planted bugs are caught with a small budget, and leave the product as it was."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from hadron.sim.command.main import main, run_default
from hadron.sim.mutants import MUTANTS, SeamError, chance, patched
from hadron.sim.mutants import hunt as hunting
from hadron.sim.mutants.hunt import Found, Report, describe, hunt, hunt_anywhere
from hadron.sim.mutants.mutant import Mutant
from hadron.sim.mutants.seams import Constant, Edit
from hadron.sim.runs.run import Outcome
from hadron.sim.scenarios import SCENARIOS
from hadron.sim.tests.test_watch import EDITED


def test_the_list_is_long_enough_and_names_scenarios_that_exist() -> None:
    assert len(MUTANTS) >= 16
    for mutant in MUTANTS.values():
        assert mutant.scenarios, mutant.name
        assert set(mutant.scenarios) <= set(SCENARIOS), mutant.name
        assert mutant.bug


def test_every_bug_can_be_planted() -> None:
    """Whoever renames what a bug edits is told at once, not after the long tests."""
    edits = [mutant.patches for mutant in MUTANTS.values()]
    for patches in (*edits, *(patches for _, patches in EDITED.values())):
        with patched(*patches):
            pass


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_planted_bug_is_caught(name: str) -> None:
    mutant = MUTANTS[name]
    found = hunt(mutant, run_default, seeds=range(0), tries=3)
    assert found.is_caught, describe(found)
    assert not found.idle, "these edits never ran"


_HERE = "sim.tests.test_mutants"
_FACTOR = 2


@functools.cache
def _twice(number: int) -> int:
    return _FACTOR * number


_TABLE = {"twice": _twice}


def test_a_patch_reaches_whoever_holds_the_function_and_is_gone_after_the_block() -> None:
    edit = Edit(f"{_HERE}:_twice", "* number", "+ number")
    with patched(edit, Constant(f"{_HERE}:_FACTOR", 5)):
        assert _TABLE["twice"](100) == 105
    assert _TABLE["twice"](200) == 400


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        (Edit(f"{_HERE}:Nobody._twice", "a", "b"), "Nobody._twice has vanished"),
        (Edit("sim.nowhere:f", "a", "b"), "sim.nowhere:f has vanished"),
        (Edit(f"{_HERE}:_twice", "no such text", ""), "0 times, not 1"),
        (Edit(f"{_HERE}:_twice", "int", "str"), "2 times, not 1"),
        (Edit(f"{_HERE}:_FACTOR", "a", "b"), "is no function"),
        (Constant(f"{_HERE}:_NOWHERE", 1), "_NOWHERE has vanished"),
    ],
)
def test_a_seam_that_has_vanished_is_told(patch: Edit | Constant, message: str) -> None:
    with pytest.raises(SeamError, match=message), patched(patch):
        pass


@pytest.mark.long
def test_the_command_line_hunts_one_bug(capsys: pytest.CaptureFixture[str]) -> None:
    name = "dedupe not replicated"
    # Seeds whose worlds are small: each takes half as long as the first ones.
    assert main(["--mutant", name, "--start", "6", "--seeds", "3", "--output", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["total"], told["caught"], told["missed"]) == (1, 1, [])
    assert told["seeds_needed"] == {name: 1}
    assert told["caught_by"] == {name: "retry-after-a-restart"}
    assert told["random_seeds"][name]["needed"] in (1, 2, 3)


def test_a_bug_that_is_not_caught_fails_the_report() -> None:
    report = Report(
        [
            Found("a", seeds=1, seeds_tried=1, violation="v"),
            Found("b", tries=4, seeds_tried=2, idle=("sim.x:f",)),
            Found("c", seeds=2, seeds_tried=2, violation="v", dirty="d"),
            Found("d", scenario="s", tries=2, seeds_tried=7, violation="v"),
        ]
    )
    assert report.status() == 1
    told = report.to_json()
    assert told["missed"] == ["b", "c"]
    assert told["seeds_needed"] == {"a": 1, "b": None, "c": 2, "d": 2}
    assert told["caught_by"] == {"a": "random seeds", "b": "", "c": "random seeds", "d": "s"}
    assert told["random_seeds"]["d"] == {"needed": None, "tried": 7}
    lines = report.describe()
    assert [line.partition(":")[2] for line in lines[:4]] == [
        " 1 random seed: v",
        " NOT CAUGHT; never ran: sim.x:f",
        " PROVES NOTHING, without the bug: d",
        " scenario s, try 2; not by 7 random seeds: v",
    ]
    assert lines[4] == "2 of 4 bugs caught, 1 by random seeds alone"


def _worlds(*seeds_with_violations: int) -> Callable[[int], Outcome]:
    """Runs that are judged by whether `_twice` is what it should be."""

    def run(seed: int) -> Outcome:
        wrong = seed in seeds_with_violations and _twice.__wrapped__(7) != 14
        return Outcome(seed, violations=["wrong"] if wrong else [])

    return run


_WRONG = Mutant("wrong", "it is wrong", (Edit(f"{_HERE}:_twice", "* number", "+ number"),))


def test_a_hunt_counts_the_seeds_that_it_took() -> None:
    found = hunt(_WRONG, _worlds(12, 13), seeds=range(10, 20))
    assert (found.seeds_needed, found.caught_by, found.seeds_tried) == (3, "random seeds", 3)
    assert (found.is_caught, found.idle) == (True, ())


def test_a_hunt_ends_with_its_patience_and_tells_what_never_ran() -> None:
    found = hunt(_WRONG, _worlds(), seeds=range(10), patience_s=0.0)
    assert (found.seeds_needed, found.seeds_tried) == (None, 1)
    assert found.idle == (f"{_HERE}:_twice",)


def test_a_bug_is_not_caught_by_what_is_wrong_without_it() -> None:
    found = hunt(_WRONG, lambda seed: Outcome(seed, violations=["always"]), seeds=range(3))
    assert (found.dirty, found.is_caught) == ("always", False)


def _branches(number: int) -> str:
    if number < 0:
        return "below"
    if number == 0:
        return "zero"
    return "above"


def test_an_edit_is_marked_where_it_stands() -> None:
    edits = [
        Edit(f"{_HERE}:_branches", '"above"', '"over"'),
        Edit(f"{_HERE}:_branches", 'return "zero"', 'zero = "0"\n        return zero'),
        Edit(f"{_HERE}:_branches", '"below"', '"under"'),
    ]
    with patched(*edits) as reached:
        assert not reached
        assert _branches(1) == "over"
        assert set(reached) == {0}
        assert _branches(0) == "0"
        assert set(reached) == {0, 1}
    with patched(*edits) as reached:
        assert _branches(-1) == "under"
        assert set(reached) == {2}


@pytest.mark.long
def test_bugs_that_chance_draws_are_the_same_ones_each_time_and_can_be_planted() -> None:
    several = [chance.drawn(number) for number in range(12)]
    assert several == [chance.drawn(number) for number in range(12)]
    assert len({each.patches for each in several}) > 8
    for mutant in several:
        assert mutant.patches[0].where in mutant.bug
        with patched(*mutant.patches):
            pass


def test_a_bug_that_chance_has_drawn_is_looked_for_until_it_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chance, "drawn", lambda number: replace(_WRONG, name=f"chance/{number}"))
    monkeypatch.setattr(
        hunting, "SCENARIOS", {"none": _Scenario(_worlds()), "one": _Scenario(_worlds(0))}
    )
    monkeypatch.setattr(hunting, "_play_rooms", _worlds())
    found = hunt_anywhere(7, _worlds(), seeds=range(3), patience_s=60.0)
    assert (found.name, found.scenario, found.seeds_tried) == ("chance/7", "one", 0)
    assert describe(found) == "chance/7, it is wrong: scenario one, try 1: wrong"
    monkeypatch.setattr(hunting, "SCENARIOS", {"none": _Scenario(_worlds())})
    found = hunt_anywhere(7, _worlds(11), seeds=range(10, 20), patience_s=60.0)
    assert (found.caught_by, found.seeds, found.idle) == ("random seeds", 2, ())
    found = hunt_anywhere(7, _worlds(), seeds=range(3), patience_s=60.0)
    assert describe(found) == f"chance/7, it is wrong: NOT CAUGHT; never ran: {_HERE}:_twice"
    monkeypatch.setattr(hunting, "_play_rooms", _worlds(11))
    found = hunt_anywhere(7, _worlds(), seeds=range(10, 20), patience_s=60.0)
    assert describe(found) == "chance/7, it is wrong: scenario rooms, try 2: wrong"


class _Scenario:
    def __init__(self, play: Callable[[int], Outcome]) -> None:
        self.play = play
