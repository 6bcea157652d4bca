"""The command line: summaries, exit statuses, replays, and workers that die."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

from hadron.sim import fleet
from hadron.sim.main import main
from hadron.sim.run import Outcome
from hadron.sim.shapes import shape_of
from hadron.sim.summary import Summary, decode_outcome, encode_outcome


def test_seeds_run_twice_give_the_same_traces(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["--seeds", "2", "--start", "1", "--check-traces", "--output", "json"])
    summary = json.loads(capsys.readouterr().out)
    assert summary["seeds"] == 2
    assert summary["traces_compared"] == 2
    assert summary["trace_mismatches"] == 0
    assert summary["simulated_s"] > 0
    assert summary["acknowledged"] >= 300
    assert summary["faults"]
    assert status == bool(summary["violations"])
    for failure in summary["failures"]:
        assert failure["replay"] == f"python -m hadron.sim --seed {failure['seed']} --replay"


def test_a_replay_tells_what_happened_by_names_and_times(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["--seed", "1", "--replay"])
    shown = capsys.readouterr().out
    assert "n1: starts" in shown
    assert "n1 -> n2 #" in shown
    assert "OPEN Replication.Append" in shown
    assert "nemesis: " in shown


def test_no_seeds_are_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--seeds", "0"])
    assert "not a positive number" in capsys.readouterr().err


def outcome(**changes: object) -> Outcome:
    return Outcome(**{"seed": 7, "acknowledged": 10, **changes})  # type: ignore[arg-type]


def test_only_a_run_that_shows_something_good_succeeds() -> None:
    good, nothing, bad, other = Summary(), Summary(), Summary(), Summary()
    for summary in (good, bad, other):
        summary.add(outcome())
    nothing.add(outcome(acknowledged=0))
    bad.add(outcome(violations=["lost"]))
    other.compare(7, "one", "two")
    assert [summary.status() for summary in (good, nothing, bad, other)] == [0, 1, 1, 1]
    assert any("unknown" in line for line in nothing.describe())
    assert any("--seed 7 --replay" in line for line in bad.describe())
    assert any("another trace" in line for line in other.describe())


def test_an_outcome_goes_through_json() -> None:
    sent = outcome(faults=dict(Counter(kill=3)), violations=["x"], simulated_s=1.5)
    assert decode_outcome(encode_outcome(sent)) == sent
    with pytest.raises(ValueError, match="a worker said"):
        decode_outcome("Traceback")


def run_elsewhere(seeds: range) -> list[Outcome]:
    outcomes = [decode_outcome(line) for line in fleet.run_elsewhere(seeds, 1)]
    return sorted(outcomes, key=lambda item: item.seed)


def test_a_worker_that_dies_costs_one_seed_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    outcomes = run_elsewhere(range(3, 6))
    assert [item.seed for item in outcomes] == [3, 4, 5]
    assert all("ended with status 1" in item.violations[0] for item in outcomes)


def test_a_worker_that_hangs_costs_one_seed_a_violation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = encode_outcome(outcome(seed=3)).decode()
    worker = tmp_path / "worker"
    worker.write_text(
        f"#!/bin/sh\nread seed\n[ $seed = 3 ] && echo '{answer}' && read seed\n"
        "[ $seed = 4 ] && exec sleep 1000\necho Broken >&2\nexit 9\n"
    )
    worker.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(worker))
    monkeypatch.setattr(fleet, "_PATIENCE_S", 0.5)
    outcomes = run_elsewhere(range(3, 6))
    assert [item.seed for item in outcomes] == [3, 4, 5]
    assert not outcomes[0].violations
    assert "had not answered after 0.5 real seconds" in outcomes[1].violations[0]
    assert "ended with status 9: Broken" in outcomes[2].violations[0]


def test_shapes_are_the_seeds() -> None:
    shapes = [shape_of(seed) for seed in range(60)]
    assert shapes == [shape_of(seed) for seed in range(60)]
    assert {shape.nodes for shape in shapes} == {2, 3, 4, 5}
    assert any(shape.plan.lying_disks for shape in shapes)
