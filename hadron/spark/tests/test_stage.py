"""Stage functions on Spark: what they get, what they may return, and how their faults are told."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from hadron.model.pipelines import Output, PipelineSpec, StageSpec, Wait
from hadron.spark.failures import StageError
from hadron.spark.functions import StageLoadError, check_functions, load_function, spark_stages
from hadron.spark.session import warm_up
from hadron.spark.stage import run_stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FUNCTIONS = "hadron.spark.tests.stages"


def stage(function: str, **more: Any) -> StageSpec:
    more.setdefault("output", Output(stream="out"))
    return StageSpec(name="s", run=f"{FUNCTIONS}:{function}", **more)


def table(values: list[Any], **more: Any) -> pa.Table:
    count = len(values)
    return pa.table(
        {
            "instance_id": pa.array(range(1, count + 1), pa.int64()),
            "root": values,
            **more,
            "key": pa.array(["k"] * count, pa.string()),
            "type": ["t"] * count,
            "timestamp": pa.array([1_357_000_000_000_000] * count, pa.timestamp("us", tz="UTC")),
            "partition": ["local/p0"] * count,
            "offset": pa.array(range(count), pa.int64()),
            "headers": pa.array([[("trace", "7")]] * count, pa.map_(pa.string(), pa.string())),
        }
    )


def values(spark: SparkSession, which: StageSpec, given: pa.Table) -> list[Any]:
    found = run_stage(spark, which, given).table.sort_by("instance_id")["value"].to_pylist()
    return list(found)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("nothing", "does not name a function"),
        (":f", "does not name a function"),
        ("no.such.module:f", r"'no.such.module:f' of stage 's' does not import: ModuleNotFound"),
        (f"{FUNCTIONS}:missing", r"missing' of stage 's' does not exist in hadron.spark.tests"),
        (f"{FUNCTIONS}:NOT_A_FUNCTION", "is an int, not a function"),
        ("hadron.spark.tests.broken:f", "does not import: ZeroDivisionError"),
    ],
)
def test_functions_that_cannot_be_found(run: str, message: str) -> None:
    with pytest.raises(StageLoadError, match=message):
        load_function(StageSpec(name="s", run=run))


@pytest.mark.spark
def test_nothing_is_run_for_a_stage_that_waits() -> None:
    ships = stage("passing", after=("approved",))
    approved = StageSpec(name="approved", wait=Wait(signal=True))
    spec = PipelineSpec(replica_set="local/p0", input="in", stages=(approved, ships))
    assert spark_stages("orders", spec) == [ships]
    check_functions("orders", spec)
    with pytest.raises(StageError, match="no Spark stage 'approved'"):
        spark_stages("orders", spec, ["approved"])


@pytest.mark.spark
def test_a_stage_is_told_everything_about_the_trigger(spark: SparkSession) -> None:
    assert values(spark, stage("describing"), table(["a"])) == [
        '{"root":"a","key":"k","type":"t","timestamp":"2013-01-01T00:26:40.000Z",'
        '"partition":"local/p0","offset":0,"headers":{"trace":"7"}}'
    ]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("declared", "airport"),
    [
        ("carrier STRING, delay INT, airport STRING, note STRING", "Kennedy"),
        (
            "root STRUCT<carrier STRING, delay INT, note STRING>, enrich STRUCT<airport STRING>",
            "Kennedy",
        ),
    ],
)
def test_a_declared_schema_makes_structs(spark: SparkSession, declared: str, airport: str) -> None:
    given = table(
        ['{"carrier": "UA", "delay": 4}', "not JSON"], enrich=[f'{{"airport": "{airport}"}}'] * 2
    )
    which = stage("joining", schema=declared, dependencies=("enrich",))
    assert values(spark, which, given) == [
        '{"carrier":"UA","doubled":8,"airport":"Kennedy","note":null}',
        '{"carrier":null,"doubled":null,"airport":"Kennedy","note":null}',
    ]


@pytest.mark.spark
def test_strings_and_bytes_pass_through_and_the_rest_becomes_json(spark: SparkSession) -> None:
    plain = run_stage(spark, stage("passing"), table(["a", '{"b":1}']))
    assert not plain.values_are_json
    assert plain.table["value"].to_pylist() == ["a", '{"b":1}']
    assert values(spark, stage("passing"), table([b"\xff"])) == [b"\xff"]
    numbers = run_stage(spark, stage("numbering"), table(["a", "b"]))
    assert numbers.values_are_json
    assert numbers.table["value"].to_pylist() == ["0", "1"]


@pytest.mark.spark
def test_a_stage_without_an_output_needs_no_value(spark: SparkSession) -> None:
    found = run_stage(spark, stage("silent", output=None), table(["a", "b"])).table
    assert found.to_pydict() == {"instance_id": [1, 2]}


@pytest.mark.spark
def test_what_a_stage_without_an_output_does_in_its_value_is_done(spark: SparkSession) -> None:
    with pytest.raises(StageError, match=r"calling' of stage 's' failed: .*called with a"):
        run_stage(spark, stage("calling", output=None), table(["a"]))


@pytest.mark.spark
@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("raising", "raising' of stage 's' is wrong, .*: ValueError: no luck with 8 columns"),
        ("failing_later", "failing_later' of stage 's' failed: .*bad weather"),
        ("returning_none", r"returned nothing \(None\)"),
        ("silent", "returned the columns instance_id: missing value"),
        ("wrong_columns", "columns instance_id, valeu: missing value; unknown valeu"),
        ("wrong_type", "the column key as int .*string or binary"),
    ],
)
def test_faults_name_the_function_and_the_stage(
    spark: SparkSession, function: str, message: str
) -> None:
    with pytest.raises(StageError, match=message) as raised:
        run_stage(spark, stage(function), table(["a"]))
    assert "\tat " not in str(raised.value), "a Java stack helps nobody"


@pytest.mark.spark
def test_a_schema_that_is_no_ddl_is_named(spark: SparkSession) -> None:
    with pytest.raises(StageError, match="schema of stage 's' is not DDL"):
        run_stage(spark, stage("passing", schema="a b c d"), table(["a"]))


@pytest.mark.spark
def test_a_schema_that_names_a_member_twice_is_told(spark: SparkSession) -> None:
    """The second of them would be read, and the first be null in each value."""
    for schema in ("n INT, n INT", "root STRUCT<n INT>, root STRUCT<m INT>"):
        with pytest.raises(StageError, match=r"schema of stage 's' has '(n|root)' twice"):
            run_stage(spark, stage("passing", schema=schema), table(["a"]))


@pytest.mark.spark
@pytest.mark.parametrize("name", ["a.b", "a-b", "1e5", "select", "-", "Value"])
def test_what_a_stage_may_be_called_may_be_a_column(spark: SparkSession, name: str) -> None:
    given = table(["{}"], **{name: ['{"n": 4}']})
    for schema in ("n INT", f"`{name}` STRUCT<n: INT>"):
        which = stage("last_dependency", schema=schema, dependencies=(name,))
        assert values(spark, which, given) == ['{"n":4}']


@pytest.mark.spark
def test_a_session_is_warmed_up_on_every_core(spark: SparkSession) -> None:
    """A first micro-batch would spend its timeout on what starts."""
    spark.sparkContext.setJobGroup("warming", "up")
    warm_up(spark)
    spark.sparkContext.setJobGroup("other", "tests")
    tracker = spark.sparkContext.statusTracker()
    (job,) = tracker.getJobIdsForGroup("warming")
    found = tracker.getJobInfo(job)
    assert found is not None
    (stage_id,) = found.stageIds
    # The tracker hears of a task's end after who waits for its result.
    while (stage := tracker.getStageInfo(stage_id)) is None or stage.numActiveTasks:
        time.sleep(0.01)
    assert stage.numCompletedTasks == stage.numTasks == spark.sparkContext.defaultParallelism


def test_a_session_that_cannot_be_warmed_up_is_told_of_by_what_runs() -> None:
    gone: Any = None
    warm_up(gone)
