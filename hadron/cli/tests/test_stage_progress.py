"""What `hadron pipeline run` says of how it goes on."""

from __future__ import annotations

from typing import Any

from hadron.cli.pipelines.progress import Pace, failure_line
from hadron.model.pipelines import Retry
from hadron.spark.microbatch import MicroBatch


def row(live: int, done: int, stages: dict[str, tuple[int, int]], **more: int) -> dict[str, Any]:
    """`stages`: by name, how many are ready and done."""
    return {
        "live": live,
        "done": done,
        "failed": 0,
        "cancelled": 0,
        "input_lag": 0,
        "stages": [
            {"name": name, "ready": ready, "running": 0, "done": ended}
            for name, (ready, ended) in stages.items()
        ],
        **more,
    }


def test_the_rest_is_what_live_instances_have_not_done() -> None:
    pace = Pace()
    first = row(1_000, 0, {"a": (1_000, 0), "b": (0, 0)})
    assert pace.line(0.0, first, ["a", "b"]) == "stage runs: 0 done, 2,000 left, 0/s"
    second = row(900, 100, {"a": (400, 600), "b": (500, 100)})
    assert (
        pace.line(10.0, second, ["a", "b"]) == "stage runs: 700 done, 1,300 left, 70/s, 19 s to go"
    )
    assert pace.line(20.0, second, ["b"]).startswith("stage runs: 100 done, 900 left, ")


def test_what_is_not_an_instance_yet_is_left_for_each_stage() -> None:
    later = row(0, 0, {"a": (0, 0), "b": (0, 0)}, input_lag=50)
    assert Pace().line(0.0, later, ["a", "b"]) == "stage runs: 0 done, 100 left, 0/s"


def test_nothing_is_said_when_nothing_happens() -> None:
    pace = Pace()
    ended = row(0, 500, {"a": (0, 500)})
    assert pace.line(0.0, ended, ["a"]) == ""
    assert pace.line(5.0, ended, ["a"]) == ""


def test_failures_are_told_by_their_kinds() -> None:
    def told(*reasons: tuple[int, str]) -> str:
        failed = sum(count for count, _ in reasons)
        return failure_line(
            MicroBatch("a", failed, 0, failed, 0, 0.0, 0.0, 0.0, reasons, (1,) * failed, Retry())
        )

    assert told((2, "ValueError: x")).endswith("again in 1 s): ValueError: x")
    several = told((20, "no row"), (2, "KeyError: 'k'"), (1, "third"), (1, "fourth"))
    assert several.startswith("a: 24 instances failed (attempt 1 of ")
    assert several.endswith(
        ": 20: no row; 2: KeyError: 'k'; 1: third; and 1 other kind of failures"
    )


def test_long_times() -> None:
    pace = Pace()
    pace.line(0.0, row(100_000, 0, {"a": (100_000, 0)}), ["a"])
    slow = row(99_990, 10, {"a": (99_990, 10)})
    assert pace.line(1.0, slow, ["a"]).endswith("10/s, 2 h 46 min to go")
    fast = row(99_000, 1_000, {"a": (99_000, 1_000)})
    assert pace.line(2.0, fast, ["a"]).endswith("500/s, 3 min 18 s to go")
