"""What `hadron pipeline run` says of how it goes on, and `describe` of what there is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from hadron.cli.pipelines.progress import Pace, failure_line, is_idle
from hadron.cli.pipelines.shown import backfill_notes, graph, picture, progress_rows
from hadron.model.pipelines import PipelineSpec, Retry, StageSpec, Wait
from hadron.spark.microbatch import MicroBatch
from hadron.wire.messages import pipelines_pb2

if TYPE_CHECKING:
    from hadron.client import SyncClient


def row(live: int, done: int, stages: dict[str, tuple[int, int]], **more: int) -> dict[str, Any]:
    """`stages`: by name, how many are ready and done."""
    return {
        "live": live,
        "done": done,
        "failed": 0,
        "cancelled": 0,
        "input_lag": 0,
        "backfills": [],
        "backfill_lag": 0,
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


def test_what_most_instances_never_get_to_is_left_only_where_it_is_ready() -> None:
    """Of 600 that are there nobody has done anything, and 3 were given up before."""
    now = row(600, 0, {"a": (600, 0), "b": (0, 0), "sorry": (3, 0)}, failed=3, input_lag=10)
    assert Pace(["sorry"]).line(0.0, now, ["a", "b", "sorry"]).endswith(" 1,223 left, 0/s")


def test_those_that_wait_are_not_ready_and_cancelled_ones_are_told() -> None:
    found = pipelines_pb2.PipelineProgressResponse.Pipeline(
        name="flow",
        instances=20,
        live=7,
        done=10,
        cancelled=3,
        stages=[pipelines_pb2.PipelineProgressResponse.Stage(name="a", ready=7, waiting=5)],
    )
    told = shown_of(found)
    (stage,) = told["stages"]
    assert (stage["ready"], stage["waiting"]) == (2, 5)
    title = picture(told).renderables[0].plain
    assert title == "flow: 10 of 20 instances done, 7 live, 0 failed, 3 cancelled, 0 to come"


def filled(*statuses: str) -> dict[str, Any]:
    """What a client is told of a pipeline whose only stage has done its 40, with backfills of
    [100, 200) that are at 140."""
    fills = [
        pipelines_pb2.PipelineProgressResponse.Backfill(
            number=number,
            partition="local/p0",
            from_offset=100,
            next_offset=140,
            to_offset=200,
            per_s=10,
            status=status,
        )
        for number, status in enumerate(statuses, 1)
    ]
    found = pipelines_pb2.PipelineProgressResponse.Pipeline(
        name="flow",
        instances=40,
        done=40,
        input_offset=300,
        input_next_offset=300,
        backfills=fills,
        stages=[pipelines_pb2.PipelineProgressResponse.Stage(name="a", done=40)],
    )

    return shown_of(found)


def shown_of(found: pipelines_pb2.PipelineProgressResponse.Pipeline) -> dict[str, Any]:
    class Client:
        def pipeline_progress(
            self, _: str
        ) -> list[pipelines_pb2.PipelineProgressResponse.Pipeline]:
            return [found]

    (told,) = progress_rows(cast("SyncClient", Client()), "flow")
    return told


def test_backfills_that_run_are_left_and_waited_for() -> None:
    filling = filled("running", "running", "done")
    assert filling["backfill_lag"] == 120
    assert not is_idle(filling, ["a"])
    assert Pace().line(0.0, filling, ["a"]) == "stage runs: 40 done, 120 left, 0/s"
    first, _ = backfill_notes(filling)
    assert first == "backfill 1 of local/p0: at 140 of 200, 60 to come, 10 instances/s at most"


def test_paused_backfills_are_told_and_not_waited_for() -> None:
    paused = filled("paused", "cancelled")
    assert is_idle(paused, ["a"])
    assert Pace().line(0.0, paused, ["a"]) == ""
    (note,) = backfill_notes(paused)
    assert "60 to come, but it is paused: `hadron pipeline backfill flow --resume 1`" in note


def test_one_is_not_idle_before_its_stages_are_and_its_input_is_read() -> None:
    assert is_idle(row(0, 5, {"a": (0, 5)}), ["a"])
    assert not is_idle(row(1, 5, {"a": (1, 5)}), ["a"])
    assert is_idle(row(1, 5, {"a": (0, 5), "b": (1, 4)}), ["a"])
    assert not is_idle(row(0, 5, {"a": (0, 5)}, input_lag=1), ["a"])


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


def test_each_stage_stands_below_one_that_it_follows() -> None:
    spec = PipelineSpec(
        replica_set="r",
        input="orders",
        stages=(
            StageSpec(name="price"),
            StageSpec(name="paid", wait=Wait(stream="payments", on_timeout="remind")),
            StageSpec(name="remind"),
            StageSpec(name="approve", wait=Wait(signal=True), after=("paid",)),
            StageSpec(name="ship", dependencies=("price", "paid"), after=("approve",)),
            StageSpec(name="sorry"),
        ),
        on_failure="sorry",
    )
    assert graph(spec) == [
        "price",
        "paid · waits for a record of payments",
        "   └─ remind · when paid has waited for too long",
        "   └─ approve · waits for a signal · after paid",
        "      └─ ship · gets price, paid · after approve",
        "sorry · when an instance is given up",
    ]


def test_no_stage_is_left_out_of_a_graph() -> None:
    stages = [StageSpec(name="a", after=("b",)), StageSpec(name="b", after=("a",))]
    spec = PipelineSpec(replica_set="r", input="s", stages=tuple(stages))
    assert graph(spec) == ["a · after b", "b · after a"]
