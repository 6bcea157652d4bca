"""Rare paths are counted from outside, and their seams exist."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from hadron.replication.quorum import Quorum
from hadron.sim.command.summary import Summary
from hadron.sim.runs import rare_paths
from hadron.sim.runs.rare_paths import RarePath
from hadron.sim.scenarios import SCENARIOS


def test_no_function_that_is_watched_has_vanished() -> None:
    assert rare_paths.vanished() == []
    names = [path.name for path in rare_paths.PATHS]
    assert len(set(names)) == len(names) >= 25


def test_functions_are_watched_where_they_are_called() -> None:
    """One that another module has imported by name is called there, past the seam."""
    bound = {
        (name, attribute): value
        for name, module in sorted(sys.modules.items())
        if name.startswith("hadron.") and ".tests" not in name
        for attribute, value in vars(module).items()
    }
    for path in rare_paths.PATHS:
        module, _, name = path.where.partition(":")
        if "." not in name and name[0].islower():
            watched = bound[f"hadron.{module}", name]
            users = {
                where
                for (where, attribute), value in bound.items()
                if value is watched and where not in (watched.__module__, f"hadron.{module}")
            }
            assert not users, (path.name, users)


def test_calls_results_and_errors_are_counted_until_the_block_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    where = "replication.quorum:Quorum.record"
    monkeypatch.setattr(
        rare_paths,
        "PATHS",
        (
            RarePath("called", where, before=lambda given: given[2] == 7),
            RarePath("moved", where, after=lambda result, _error, _given: bool(result)),
            RarePath("failed", where, after=lambda _result, error, _given: error is not None),
            RarePath("gone", "replication.quorum:Quorum.nowhere"),
        ),
    )
    quorum = Quorum("a", ["a"], started_lsn=1)
    with rare_paths.counted() as reached:
        assert quorum.record("a", 7)
        assert not quorum.record("a", 7)
        with pytest.raises(KeyError):
            quorum.record("b", 8)
    assert quorum.record("a", 9)
    assert reached == Counter(called=2, moved=1, failed=1, gone=0)
    assert rare_paths.vanished() == ["gone"]


@pytest.mark.long
def test_a_scenario_tells_what_it_has_reached() -> None:
    outcome = SCENARIOS["divergent-tail-counts-for-nothing"].play(0)
    assert outcome.rare_paths["divergent tail dropped"] >= 1
    assert outcome.rare_paths["member without memory is taught"] >= 1
    summary = Summary()
    summary.add(outcome)
    assert "divergent tail dropped" not in summary.never_reached
    assert "nack" in summary.never_reached
    assert any(line.startswith("never reached: ") for line in summary.describe())
