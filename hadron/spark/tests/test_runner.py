"""The stage runner against an in-memory server: exactly one outcome for every invocation."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import MagicMock

import msgspec
import pytest
import trio
import yaml
from trio.testing import MockClock

from hadron.cli.pipelines.progress import failure_line
from hadron.model.errors import (
    ConfigurationError,
    ConnectionLostError,
    HadronError,
    NotFoundError,
    OverloadedError,
)
from hadron.model.pipelines import Output, Retry, StageSpec
from hadron.model.record import NewRecord
from hadron.spark import loading, microbatch, rounds
from hadron.spark import runner as runner_room
from hadron.spark.functions import StageCodeError, StageLoadError
from hadron.spark.microbatch import Worked
from hadron.spark.runner import _MOST_BACK, MicroBatch, Search, StageRunner, _Taken
from hadron.spark.tests.fakes import PARTITION, FakeClient, FakePartition, build

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
FUNCTIONS = "hadron.spark.tests.stages"


def stage(name: str, function: str, **more: Any) -> StageSpec:
    more.setdefault("output", Output(stream=name))
    return StageSpec(name=name, run=f"{FUNCTIONS}:{function}", **more)


def flights(count: int) -> list[NewRecord]:
    return [
        NewRecord(
            value={"carrier": "UA", "origin": ("JFK", "EWR", "LGA")[i % 3], "delay": i},
            key="UA",
            type="flight.departed",
        )
        for i in range(count)
    ]


class Play:
    """One runner over one fake client, until so many outcomes are known."""

    def __init__(self, spark: SparkSession, client: FakeClient) -> None:
        self.client = client
        self.seen: list[MicroBatch] = []
        self.searched: list[Search] = []
        self.runner = StageRunner(
            "hadron://nowhere",
            "p",
            spark=spark,
            connect=client.connect,
            on_progress=self.seen.append,
            on_search=self.searched.append,
        )

    def until(self, outcomes: int) -> MicroBatch:
        self.runner.run(
            until=lambda: (
                sum(each.completed + each.failed + each.stale for each in self.seen) >= outcomes
            )
        )
        return self.seen[-1]


def client_for(*stages: StageSpec, count: int = 4) -> FakeClient:
    client = FakeClient(stages)
    client.publish(flights(count))
    return client


class Session:
    """Of a Spark whose Java goes while the runner waits for work."""

    def __init__(self) -> None:
        self.looks = 0

    @property
    def sparkContext(self) -> Any:  # noqa: N802
        self.looks += 1
        if self.looks > 2:
            raise ConnectionRefusedError(111, "Connection refused")
        return MagicMock(**{"_jsc.sc.return_value.isStopped.return_value": False})


def test_a_runner_without_work_ends_with_its_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_room, "_LOOK_AFTER_S", 0.01)
    spark = Session()
    play = Play(cast(Any, spark), client_for(stage("copy", "passing")))
    with pytest.raises(ConfigurationError, match=r"Spark stopped while .* waited for work"):
        play.runner.run()
    assert spark.looks == 3


def test_two_stages_one_joining_the_other(spark: SparkSession) -> None:
    ddl = "root STRUCT<carrier STRING, delay INT, note STRING>, enrich STRUCT<airport STRING>"
    client = client_for(
        stage("enrich", "enriching"),
        stage("join", "joining", dependencies=("enrich",), schema=ddl),
        count=20,
    )
    client.invoke("enrich", range(10), 1)
    client.invoke("enrich", range(10, 20), 11)

    def then_join() -> None:
        if len(client.outputs) == 20:
            client.invoke("join", range(20), 1)

    client.on_complete = then_join
    play = Play(spark, client)
    play.until(40)
    assert client.output("enrich", 1).value == {"airport": "Kennedy"}
    for instance in range(1, 21):
        airport = ("Kennedy", "Newark", None)[(instance - 1) % 3]
        assert client.output("join", instance).value == {
            "carrier": "UA",
            "doubled": 2 * (instance - 1),
            "airport": airport,
            "note": None,
        }
    assert play.runner.totals.completed == 40
    assert client.failures == {}
    assert client.granted >= 2


def test_key_type_and_partition_of_outputs(spark: SparkSession) -> None:
    client = client_for(stage("loud", "shouting"), stage("far", "spreading"))
    client.invoke("loud", range(4))
    client.invoke("far", range(4))
    Play(spark, client).until(8)
    loud = client.output("loud", 1)
    assert (loud.key, loud.type) == ("UA", "test.shouted")
    places = [client.outputs["far", instance][1] for instance in range(1, 5)]
    assert places == [PARTITION, "local/p1", PARTITION, "local/p1"]


def test_the_stages_of_the_page(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "PIPELINES.md").read_text()
    section = page.partition("## How to write stages on Spark")[2].partition("\n## ")[0]
    declared, code = re.findall(r"```(?:yaml|python)\n(.*?)```", section, re.DOTALL)
    (tmp_path / "shop.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    price, sorry = yaml.safe_load(declared)["stages"]
    client = FakeClient(
        [
            StageSpec(name="price", run=price["run"], schema=price["schema"], output=Output("o")),
            StageSpec(name="sorry", run=sorry["run"], output=Output("o")),
        ]
    )
    client.publish(
        [NewRecord(value={"item": item, "count": 2}, key="ann") for item in ("book", "moon")]
    )
    client.invoke("price", [0, 1])
    client.invoke("sorry", [1], 2, failed=("price", "nobody sells that"))
    Play(spark, client).until(3)
    priced, regretted = client.output("price", 1), client.output("sorry", 2)
    assert priced.value == {"item": "book", "total": 25.0}
    assert (priced.key, priced.type, dict(priced.headers)) == (
        "ann",
        "order.priced",
        {"currency": "EUR"},
    )
    assert list(client.failures) == [("price", 2)]
    assert client.failures["price", 2].endswith("says: nobody sells that")
    assert (regretted.value["failed_stage"], regretted.value["failure"]) == (
        "price",
        "nobody sells that",
    )


def test_a_stage_without_output_is_completed(spark: SparkSession) -> None:
    client = client_for(stage("quiet", "silent", output=None))
    client.invoke("quiet", range(4))
    Play(spark, client).until(4)
    assert client.completed_without_output == {("quiet", each) for each in range(1, 5)}


def test_rows_of_nobody_are_dropped_and_those_without_one_fail_alone(spark: SparkSession) -> None:
    client = client_for(stage("bad", "losing_ids"), stage("good", "passing"), count=6)
    client.invoke("bad", range(6))
    client.invoke("good", range(6))
    play = Play(spark, client)
    play.until(12)
    assert set(client.failures) == {("bad", 2), ("bad", 3)}
    assert {each for name, each in client.outputs if name == "bad"} == {1, 4, 5, 6}
    assert {each for name, each in client.outputs if name == "good"} == set(range(1, 7))
    assert "no row for this instance, as for 1 other beside it " in client.failures["bad", 2]
    assert "not given: 999" in client.failures["bad", 3]
    told = next(each.dropped for each in play.seen if each.stage == "bad")
    assert "1 without an id and some of instances that it was not given: 999" in told


def test_an_instance_may_have_an_error_and_others_headers(spark: SparkSession) -> None:
    client = client_for(stage("odd", "erring"))
    client.invoke("odd", range(4))
    Play(spark, client).until(4)
    assert list(client.failures) == [("odd", 2)]
    assert client.failures["odd", 2].endswith("says: no such carrier")
    assert dict(client.output("odd", 3).headers) == {"n": "2"}


@pytest.mark.parametrize(
    ("function", "told", "timeout_ms"),
    [
        ("sorting", "indigestible", 60_000),
        ("exiting_workers", "worker", 60_000),
        ("growing", "over the limit", 60_000),
        ("grouping", "indigestible", 60_000),
        ("reducing", "indigestible", 60_000),
        ("windowing", "indigestible", 60_000),
        ("in_pandas", "ValueError: indigestible", 60_000),
        ("returning_another_type", "many", 60_000),
        ("hanging_at_the_second", "took longer than its timeout of 8 s for 1 instance", 8_000),
    ],
)
def test_what_one_record_does_is_its_own_fault(
    spark: SparkSession, function: str, told: str, timeout_ms: int
) -> None:
    client = client_for(stage("picky", function, timeout_ms=timeout_ms), count=6)
    client.invoke("picky", range(6))
    Play(spark, client).until(6)
    assert list(client.failures) == [("picky", 2)]
    assert told in client.failures["picky", 2]
    assert {each for _, each in client.outputs} == {1, 3, 4, 5, 6}


def test_a_function_that_hangs_whatever_its_input_is_a_mistake(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "_PLAN_S", 1.0)
    client = client_for(stage("stuck", "hanging", timeout_ms=500))
    client.invoke("stuck", range(4))
    with pytest.raises(StageCodeError, match="does not return within 1 s, not even"):
        Play(spark, client).until(4)
    assert client.failures == {}


@pytest.mark.parametrize("function", ["choking_on_many", "choking_sql"])
def test_bad_rows_fail_and_no_innocent(spark: SparkSession, function: str) -> None:
    """Those that failed before run apart from the beginning."""
    client = client_for(stage("picky", function), count=200)
    client.publish([NewRecord(value=f"row {i}") for i in range(40)])
    client.invoke("picky", range(200, 240))
    play = Play(spark, client)
    done = play.until(40)
    bad = {("picky", each) for each in range(8, 41, 10)}
    assert set(client.failures) == bad
    assert set(client.outputs) == {("picky", each) for each in range(1, 41)} - bad
    assert (done.completed, done.failed, done.given_up) == (36, 4, 0)
    assert all("is indigestible" in reason for reason in client.failures.values())
    assert [each.unknown for each in play.searched] == [40, 16]
    client.failures.clear()
    client.invoke("picky", [207, 217, 220], 200, attempt=2)
    play = Play(spark, client)
    play.until(3)
    assert set(client.failures) == {("picky", 200), ("picky", 201)}
    assert ("picky", 202) in client.outputs
    assert play.searched == []


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("mistyping", "AnalysisException: [UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable"),
        ("raising", "ValueError: no luck with 8 columns"),
        ("exiting", "SystemExit: 3 ("),
        ("mute", "MuteError ("),
        ("cancelled", "CancelledError ("),
        ("interrupted", "KeyboardInterrupt ("),
        ("naming_twice", "the column value with the member 'a' twice"),
        ("locking", "cannot pickle '_thread.lock' object"),
        ("encoding_text", "AnalysisException: [DATATYPE_MISMATCH"),
        ("wrong_columns", "returned the columns instance_id, valeu: missing value; unknown valeu"),
        ("without_an_id", "returned the columns value: missing instance_id"),
        ("returning_none", "returned nothing (None)"),
        ("returning_pandas", "returned a pandas DataFrame"),
    ],
)
def test_a_mistake_in_the_code_is_told_at_once_and_costs_no_attempt(
    spark: SparkSession, function: str, told: str
) -> None:
    client = client_for(stage("bad", function), count=8)
    client.invoke("bad", range(8))
    play = Play(spark, client)
    with pytest.raises(StageCodeError) as caught:
        play.until(8)
    assert told in str(caught.value)
    assert "stage 'bad'" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert (client.failures, client.outputs, play.searched) == ({}, {}, [])


@pytest.mark.parametrize(
    "function",
    ["looking", "exiting_at_the_second", "mute_at_the_second", "cancelled_at_the_second"],
)
def test_a_function_that_raises_for_what_it_finds_is_halved(
    spark: SparkSession, function: str
) -> None:
    """It looks at its rows while it plans: that is not the code's fault."""
    client = client_for(stage("picky", function), count=8)
    client.invoke("picky", range(8))
    play = Play(spark, client)
    play.until(8)
    assert list(client.failures) == [("picky", 2)]
    assert len(client.outputs) == 7
    assert [(each.invocations, each.unknown) for each in play.searched] == [(8, 8)]


def test_failed_attempts_are_counted_from_the_retry_on(spark: SparkSession) -> None:
    client = client_for(stage("picky", "choking", retry=Retry(2, 2_000)))
    client.invoke("picky", range(4), attempt=4, before=3)
    done = Play(spark, client).until(4)
    assert (done.failed_attempts, done.given_up) == ((1,), 0)
    assert "(attempt 1 of 2, again in 2 s)" in failure_line(done)
    client = client_for(stage("picky", "choking", retry=Retry(2, 2_000)))
    client.invoke("picky", range(4), attempt=5, before=3)
    play = Play(spark, client)
    assert play.until(4).given_up == play.runner.totals.given_up == 1


def test_a_function_that_is_not_there_ends_the_runner_and_costs_no_attempt(
    spark: SparkSession,
) -> None:
    client = client_for(stage("good", "passing"), stage("bad", "no_such_function"))
    client.invoke("good", range(4))
    with pytest.raises(StageLoadError, match="'bad' does not exist"):
        Play(spark, client).until(4)
    assert (client.outputs, client.failures) == ({}, {}), "nothing was taken"


def test_a_function_that_goes_missing_later_costs_no_attempt_either(spark: SparkSession) -> None:
    client = client_for(stage("s", "passing"))
    client.invoke("s", range(4))

    def declare_anew() -> None:
        client.spec = msgspec.structs.replace(client.spec, stages=(stage("s", "gone"),))
        client.invoke("s", range(4), 5)

    client.on_complete = declare_anew
    with pytest.raises(StageLoadError, match="'s' does not exist"):
        Play(spark, client).until(8)
    assert client.failures == {}
    assert set(client.outputs) == {("s", each) for each in range(1, 5)}


def test_what_is_known_about_failures(spark: SparkSession) -> None:
    client = client_for(stage("bad", "failing_later", retry=Retry(3, 2_000)))
    client.invoke("bad", range(4))
    done = Play(spark, client).until(4)
    assert (done.failed_attempts, done.retry) == ((1,) * 4, Retry(3, 2_000))
    assert [count for count, _ in done.reasons] == [4]
    assert failure_line(done).startswith(
        "bad: 4 instances failed (attempt 1 of 3, again in 2 s): function "
    )
    assert "bad weather" in failure_line(done)


@pytest.mark.parametrize(("function", "instance"), [("dropping", 2), ("doubling", 3)])
def test_an_instance_without_one_row_fails_alone(
    spark: SparkSession, function: str, instance: int
) -> None:
    client = client_for(stage("odd", function))
    client.invoke("odd", range(4))
    done = Play(spark, client).until(4)
    assert list(client.failures) == [("odd", instance)]
    assert set(client.outputs) == {("odd", each) for each in {1, 2, 3, 4} - {instance}}
    assert (done.completed, done.failed, done.invocations) == (3, 1, 4)
    assert done.reasons == ((1, client.failures["odd", instance]),)


@pytest.mark.filterwarnings("ignore:Cannot infer the eval type")
def test_a_module_whose_decorators_need_a_session(spark: SparkSession) -> None:
    """Its UDFs call a function of their module, which Spark's workers could not import."""
    assert "hadron.spark.tests.decorated" not in sys.modules
    spec = StageSpec(name="s", run="hadron.spark.tests.decorated:stage", output=Output("s"))
    client = client_for(spec)
    client.invoke("s", [0])
    Play(spark, client).until(1)
    assert client.failures == {}
    value = client.output("s", 1).value
    assert value.endswith("!UA")
    assert '"CARRIER":"UA"' in value
    assert '"carrier":"ua"' in value


def test_a_record_that_no_function_can_digest_fails_alone(spark: SparkSession) -> None:
    client = client_for(stage("picky", "choking"), count=8)
    client.invoke("picky", range(8))
    done = Play(spark, client).until(8)
    assert list(client.failures) == [("picky", 2)]
    assert "indigestible" in client.failures["picky", 2]
    assert set(client.outputs) == {("picky", each) for each in range(1, 9)} - {("picky", 2)}
    assert (done.completed, done.failed) == (7, 1)


def test_stale_instances_are_left_out(spark: SparkSession) -> None:
    client = client_for(stage("s", "passing"))
    client.stale = {2, 4}
    client.invoke("s", range(4))
    done = Play(spark, client).until(4)
    assert set(client.outputs) == {("s", 1), ("s", 3)}
    assert client.output("s", 3).value == flights(3)[2].value
    assert (done.completed, done.stale) == (2, 2)


def test_lost_records_fail_their_instances_alone(spark: SparkSession) -> None:
    client = client_for(stage("s", "passing"))
    client.publish(flights(4))
    client.partitions["in", PARTITION].trim(4)
    client.invoke("s", range(2, 6))
    done = Play(spark, client).until(4)
    assert set(client.failures) == {("s", 1), ("s", 2)}
    ((count, reason),) = done.reasons
    assert count == 2
    assert "not kept any more" in reason
    assert set(client.outputs) == {("s", 3), ("s", 4)}


def test_an_instance_whose_stream_is_gone_fails_alone(spark: SparkSession) -> None:
    client = client_for(stage("s", "passing"))
    client.gone["other", PARTITION] = NotFoundError("there is no stream 'other'")
    client.invoke("s", range(4), streams={1: "other"})
    done = Play(spark, client).until(4)
    assert set(client.outputs) == {("s", 1), ("s", 3), ("s", 4)}
    assert "there is no stream 'other'" in client.failures["s", 2]
    assert (done.completed, done.failed) == (3, 1)


def away(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition of the input is, and nobody waits for it for long."""
    monkeypatch.setattr(loading, "_PATIENCE_S", 0.2)
    client.partitions["in", "away/p1"] = FakePartition()
    client.partitions["in", "away/p1"].append(build(flights(4)))
    client.gone["in", "away/p1"] = ConnectionLostError("its leader is away")


def test_instances_whose_partition_is_away_wait_and_no_others(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_for(stage("s", "passing"))
    away(client, monkeypatch)
    # More of them than a runner has micro-batches at a time.
    for first in (1, 5, 9):
        client.invoke("s", range(4), first, partitions={3: "away/p1"})
    client.invoke("s", range(4), 13)
    there = {each for each in range(1, 17) if each not in (4, 8, 12)}

    def then_back() -> None:
        if {instance for _, instance in client.outputs} == there:
            client.gone.clear()

    client.on_complete = then_back
    play = Play(spark, client)
    play.until(16)
    assert {instance for _, instance in client.outputs} == {*range(1, 17)}
    assert client.output("s", 4).value == flights(4)[3].value
    assert (client.failures, play.runner.totals.failed) == ({}, 0)
    assert [each.completed for each in play.seen] == [3, 3, 3, 4, 1, 1, 1]
    assert play.runner.totals.invocations == 16


def test_those_that_wait_are_given_back_at_the_end(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_for(stage("s", "passing"))
    away(client, monkeypatch)
    client.invoke("s", range(4), partitions={0: "away/p1", 3: "away/p1"})
    Play(spark, client).until(2)
    assert {instance for _, instance in client.outputs} == {2, 3}
    assert client.failures == {}
    # It is there for another runner.
    (given,) = [client._receive.receive_nowait()]
    assert [each.attempt for each in given.invocations] == [1] * 4


def test_those_that_wait_are_somebody_elses_when_their_call_is_lost(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_for(stage("s", "passing"))
    away(client, monkeypatch)
    client.invoke("s", range(2), partitions={0: "away/p1"})
    play = Play(spark, client)

    def then_lost() -> None:
        if ("s", 2) in client.outputs and not client._calls_lost:
            client._calls_lost = 1
            client.gone.clear()
            client.invoke("s", range(2), 11)

    client.on_complete = then_lost
    play.runner.run(until=lambda: len(client.outputs) >= 3 and not play.runner._waiting)
    assert {instance for _, instance in client.outputs} == {2, 11, 12}
    assert client.failures == {}


def test_a_stage_over_its_timeout_is_stopped(spark: SparkSession) -> None:
    client = client_for(stage("slow", "sleeping", timeout_ms=300), stage("good", "passing"))
    client.invoke("slow", range(4))
    client.invoke("good", range(4))
    Play(spark, client).until(8)
    assert "longer than its timeout of 0.3 s" in client.failures["slow", 1]
    assert len(client.outputs) == 4


def test_trouble_that_passes_is_waited_out(spark: SparkSession) -> None:
    client = client_for(stage("s", "passing"))
    client.fail_calls("fetch", OverloadedError("busy"))
    client.fail_calls("complete_stages", ConnectionLostError("gone"), OverloadedError("busy"))
    client.fail_calls("run_stages", ConnectionLostError("gone"))
    client.invoke("s", range(4))
    Play(spark, client).until(4)
    assert len(client.outputs) == 4


def test_what_was_given_up_comes_again_as_often_as_needed(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk is full for longer than a call is tried: neither the instances nor the runner's
    credit are lost by it."""
    monkeypatch.setattr(microbatch, "_PATIENCE_S", -1.0)
    client = client_for(stage("s", "passing"))
    client.fail_calls("complete_stages", *[OverloadedError("no room on the disk")] * 5)
    client.invoke("s", range(4))
    Play(spark, client).until(4)
    assert set(client.outputs) == {("s", each) for each in range(1, 5)}
    assert client.failures == {}


def test_completions_refused_for_good_are_failures(spark: SparkSession) -> None:
    client = client_for(stage("s", "passing"))
    client.fail_calls("complete_stages", NotFoundError("no partition 'x'"))
    client.invoke("s", range(4))
    Play(spark, client).until(4)
    assert set(client.failures.values()) == {"no partition 'x'"}


def test_a_mistake_of_ours_is_raised_as_it_is(spark: SparkSession) -> None:
    client = client_for(stage("s", "passing"))
    client.invoke("s", range(4))

    def broken() -> None:
        raise ZeroDivisionError

    client.on_complete = broken
    with pytest.raises(ZeroDivisionError):
        Play(spark, client).until(4)


def test_what_waiting_cannot_mend_is_raised(spark: SparkSession) -> None:
    client = client_for()
    client.fail_calls("run_stages", NotFoundError("no pipeline 'p'"))
    with pytest.raises(NotFoundError, match="no pipeline"):
        Play(spark, client).until(1)


def test_a_condition_that_raises_ends_the_runner(spark: SparkSession) -> None:
    def broken() -> bool:
        raise HadronError("asked too much")

    play = Play(spark, client_for())
    with pytest.raises(HadronError, match="asked too much"):
        play.runner.run(until=broken)


def test_stop_finishes_what_is_under_way(spark: SparkSession) -> None:
    client = client_for(stage("s", "passing"))
    client.invoke("s", range(4))
    play = Play(spark, client)
    client.on_complete = play.runner.stop
    totals = play.runner.run()
    assert (totals.micro_batches, totals.completed) == (1, 4)


def test_stop_from_another_thread_and_before_the_start(spark: SparkSession) -> None:
    play = Play(spark, client_for(stage("s", "passing")))
    thread = threading.Thread(target=play.runner.run)
    thread.start()
    play.runner.stop()
    thread.join(30)
    assert not thread.is_alive()
    early = Play(spark, client_for())
    early.runner.stop()
    assert early.runner.run().micro_batches == 0


async def test_few_of_those_that_have_waited_are_tried_again_at_a_time(
    autojump_clock: MockClock,  # noqa: ARG001 - pytest-trio takes it from here
) -> None:
    """Their records are back, all at once: together they may be more than memory has."""
    client = FakeClient([StageSpec(name="copy", run="a:b", timeout_ms=60_000)])
    for _ in range(50):
        client.invoke("copy", [0])
    trying = most = ended = 0

    class Worker:
        def is_worth_it(self, _left: Any) -> bool:
            return True

        async def process(self, message: Any, _begin: Any, *, is_patient: bool = True) -> Worked:
            nonlocal trying, most, ended
            if is_patient:
                return Worked(MicroBatch("copy", 0, 0, 0, 0, 0, 0, 0), message)
            trying += 1
            most = max(most, trying)
            await trio.sleep(5)
            trying -= 1
            ended += 1
            return Worked(MicroBatch("copy", 1, 1, 0, 0, 0, 0, 0))

    runner = StageRunner("", "p")
    async with client.run_stages("p", credit=50) as stream, trio.open_nursery() as nursery:
        over = trio.Event()
        for _ in range(50):
            taken = _Taken(stream, await anext(stream), 0, over)
            nursery.start_soon(runner._process, cast(Any, Worker()), taken)
    assert ended == 50
    assert 1 < most <= _MOST_BACK
