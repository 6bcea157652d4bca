"""Planted bugs are caught with a small budget, and leave the product as it was."""

from __future__ import annotations

import functools
import json

import pytest

from hadron.sim.main import main, run_default
from hadron.sim.mutants import MUTANTS, SeamError, patched
from hadron.sim.mutants.hunt import Found, Report, describe, hunt
from hadron.sim.mutants.seams import Constant, Edit
from hadron.sim.scenarios import SCENARIOS


def test_the_list_is_long_enough_and_names_scenarios_that_exist() -> None:
    assert len(MUTANTS) >= 16
    for mutant in MUTANTS.values():
        assert set(mutant.scenarios) <= set(SCENARIOS), mutant.name
        assert mutant.bug


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_planted_bug_is_caught(name: str) -> None:
    mutant = MUTANTS[name]
    found = hunt(mutant, run_default, seeds=range(0 if mutant.scenarios else 3), tries=3)
    assert found.is_caught, describe(found)


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


def test_the_command_line_hunts_one_bug(capsys: pytest.CaptureFixture[str]) -> None:
    name = "dedupe not replicated"
    assert main(["--mutant", name, "--seeds", "3", "--output", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["total"], told["caught"], told["missed"]) == (1, 1, [])
    assert told["seeds_needed"][name] in (1, 2, 3)


def test_a_bug_that_is_not_caught_fails_the_report() -> None:
    unclean = Found("c", 2, violation="v", dirty="d")
    report = Report([Found("a", 1, violation="v"), Found("b"), unclean])
    assert report.status() == 1
    assert report.to_json()["missed"] == ["b", "c"]
    assert [line.partition(":")[2] for line in report.describe()[:3]] == [
        " 1 random seeds: v", " NOT CAUGHT", " PROVES NOTHING, without the bug: d",
    ]
