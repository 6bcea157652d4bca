"""The command line: summaries, exit statuses, replays, and workers that die."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from hadron.sim.command import main as sim_main
from hadron.sim.command import processes as fleet
from hadron.sim.command.main import main
from hadron.sim.command.summary import Progress, Summary, decode_outcome, encode_outcome
from hadron.sim.mutants import MUTANTS
from hadron.sim.runs.run import Outcome
from hadron.sim.runs.shapes import shape_of

_CHEAP: Final = "77"
"""A seed of two nodes, whose run is a short one."""


@pytest.mark.long
def test_a_replay_tells_what_happened_by_names_and_times(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["--seed", _CHEAP, "--replay"])
    shown = capsys.readouterr().out
    assert "n1: starts" in shown
    assert "n1 -> n2 #" in shown
    assert "OPEN Replication.Append" in shown
    assert "nemesis: " in shown


def test_no_seeds_are_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--seeds", "0"])
    assert "0 is not from 1 to " in capsys.readouterr().err


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


@pytest.mark.long
def test_a_seed_without_replay_prints_its_summary_alone(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["--seed", _CHEAP])
    shown = capsys.readouterr().out
    assert shown.startswith("1 seed, ")
    assert len(shown.splitlines()) < 10
    assert status == 0


def test_a_violated_seed_tells_its_story(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = outcome(violations=["lost"], story=["n1: starts", "n1: dies"])
    monkeypatch.setattr(sim_main, "run_default", lambda *_, **__: bad)
    assert main(["--seed", "7"]) == 1
    shown = capsys.readouterr().out
    assert "n1: starts\nn1: dies\n" in shown
    assert "seed 7: 1 violation; " in shown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--replay", "--replay needs --seed K"),
        ("--seed 3 --seeds 5", "--seeds has no effect with --seed"),
        ("--seed 3 --start 0", "--start has no effect with --seed"),
        ("--seed 3 --mutants", "--mutants has no effect with --seed"),
        ("--seed 3 --replay --output json", "has no effect with --replay"),
        ("--mutants --check-traces", "--check-traces has no effect while planted bugs"),
        ("--coverage --output json", "--output has no effect with --coverage"),
        ("--patience 3", "--patience has no effect without --mutants"),
        ("--seeds x", "'x' is not a whole number"),
        ("--start -5", "-5 is not from 0 to "),
        ("--seed -1", "-1 is not from 0 to "),
        ("--mutants --patience nan", "'nan' is not a number of seconds"),
        ("--mutant trunc", "no planted bug is called 'trunc'"),
    ],
)
def test_options_without_an_effect_are_mistakes(
    arguments: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_an_unknown_bug_gets_the_names_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--mutant", "x"])
    lines = [line.strip() for line in capsys.readouterr().err.splitlines()]
    assert set(MUTANTS) <= set(lines)


def test_an_interrupted_run_prints_what_it_has_found(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(*_: object) -> Iterator[bytes]:
        yield encode_outcome(outcome(seed=0, violations=["lost"]))
        raise KeyboardInterrupt

    monkeypatch.setattr(sim_main, "run_elsewhere", elsewhere)
    assert main(["--seeds", "9"]) == 130
    shown = capsys.readouterr()
    assert "seed 0: 1 violation" in shown.out
    assert "interrupted after 1 of 9 seeds" in shown.err


def test_a_seed_that_is_interrupted_ends_without_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> Outcome:
        raise BaseExceptionGroup("a world", [BaseExceptionGroup("clients", [KeyboardInterrupt()])])

    monkeypatch.setattr(sim_main, "run_default", interrupted)
    assert main(["--seed", "7"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.long
def test_output_that_nobody_reads_ends_a_run_without_a_traceback() -> None:
    ended = subprocess.run(
        f"{sys.executable} -m hadron.sim --seed {_CHEAP} --replay | head -n 1; "
        "echo ${PIPESTATUS[0]}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stderr == ""
    assert ended.stdout.splitlines()[-1] == "141"


def test_progress_is_told_as_time_passes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.0, 5.0, 12.0, 13.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    progress = Progress(3)
    for _ in range(3):
        progress.step(Summary())
    assert capsys.readouterr().err == "2 of 3 runs, 0 violations, about 6 s left\n"


def test_what_is_found_is_told_at_once_and_once(capsys: pytest.CaptureFixture[str]) -> None:
    progress, summary = Progress(9), Summary()
    for seed, violations in ((1, []), (2, ["lost"]), (3, [])):
        summary.add(Outcome(seed=seed, violations=violations))
        progress.step(summary)
    told = capsys.readouterr().err
    assert told == "seed 2: 1 violation; python -m hadron.sim --seed 2 --replay\n    lost\n"
