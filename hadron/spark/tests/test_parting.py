"""Parts of a stage in one job: what one of them raises is its own affair."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from hadron.model.pipelines import Output, StageSpec
from hadron.model.record import NewRecord
from hadron.spark import rounds
from hadron.spark.outputs import match_rows
from hadron.spark.parting import Parts
from hadron.spark.stage import StageRaisedError, StageResult, run_stage
from hadron.spark.suspects import Suspects
from hadron.spark.tests.fakes import FakeClient
from hadron.spark.tests.test_runner import Play

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
IN_PYTHON = ["choking_on_many", "choking_in_pandas", "choking_in_frames"]
_ROWS = 5_000
_MOST_ROUNDS = 5
"""The whole, and then tenths of what has failed: 500, 50, 5 and 1."""


def stage(function: str) -> StageSpec:
    run = f"hadron.spark.tests.stages:{function}"
    return StageSpec(name="picky", run=run, output=Output("picky"))


def jobs(spark: SparkSession) -> int:
    """How many this session has run."""
    context: Any = spark.sparkContext
    return int(context._jsc.sc().dagScheduler().numTotalJobs())


@pytest.mark.parametrize("function", ["choking_on_many", "choking_sql"])
def test_parts_of_one_job_end_by_themselves(spark: SparkSession, function: str) -> None:
    roots = ["fine", "row 7", "good", "row 17", "well"]
    tables = [pa.table({"instance_id": [i], "root": [root]}) for i, root in enumerate(roots)]
    parts = Parts(spark, stage(function), tables)
    assert parts.plan()
    before = jobs(spark)
    ends = parts.run([4, 1, 0, 3])
    assert jobs(spark) - before == 1
    given = [each.table["value"].to_pylist() for each in ends if isinstance(each, StageResult)]
    assert given == [["well"], ["fine"]]
    first, second = (str(each) for each in ends if isinstance(each, StageRaisedError))
    assert "row 7 is indigestible" in first.splitlines()[0]
    assert "row 17 is indigestible" in second.splitlines()[0]
    assert "\tat " not in first


@pytest.mark.parametrize(
    ("function", "stay"),
    [
        ("by_way_of_an_rdd", True),
        ("sorting", False),
        ("reducing", False),
        ("collecting", False),
        ("doubling", False),
    ],
)
def test_what_comes_of_other_rows_too_is_no_part(
    spark: SparkSession, function: str, stay: bool
) -> None:
    """What one of them raises would be taken for another one's."""
    rows = {"instance_id": range(4), "root": ["a", "b", "c", "d"], "offset": [0, 2, 3, 4]}
    parts = Parts(spark, stage(function), [pa.table(rows).slice(at, 1) for at in range(4)])
    assert parts.plan() is stay
    for at, end in enumerate(parts.run(range(4)) if stay else ()):
        assert isinstance(end, StageResult)
        assert end.table.to_pylist() == [{"instance_id": at, "value": "abcd"[at]}]


def test_a_string_that_is_no_text_is_told_of_parts_as_of_the_whole(spark: SparkSession) -> None:
    """Or what is refused of some is completed of others, with other letters."""
    which, names = stage("undecodable"), ["value", "key", "type", "partition", "headers", "error"]
    table = pa.table({"instance_id": range(7), "root": [*names, "none"]})
    told = match_rows(which, run_stage(spark, which, table), range(7), [1] * 7)
    parts = Parts(spark, which, [table.slice(at, 1) for at in range(7)])
    assert parts.plan()
    alone = [
        match_rows(which, end, [at], [1])
        for at, end in enumerate(parts.run(range(7)))
        if isinstance(end, StageResult)
    ]
    assert [each for found in alone for each in found.failed] == told.failed
    assert [each for found in alone for each in found.outputs] == told.outputs
    assert [each.instance_id for each in told.outputs] == [6]
    assert all("is not UTF-8" in each.reason for each in told.failed)


@pytest.mark.parametrize("function", IN_PYTHON)
def test_a_worker_names_the_rows_that_its_function_raises_for(
    spark: SparkSession, function: str
) -> None:
    roots = [f"row {i}" for i in range(40)]
    tables = [pa.table({"instance_id": range(40), "root": roots}).slice(at, 20) for at in (0, 20)]
    parts = Parts(spark, stage(function), tables)
    assert parts.plan()
    for end in parts.run([0, 1], search_s=600):
        assert isinstance(end, StageRaisedError)
        assert end.suspects == Suspects((7, 17), 20, 20)
        assert "7 is indigestible" in str(end).splitlines()[0]
        assert "Hadron tried" not in str(end)
    (untold,) = parts.run([0])
    assert isinstance(untold, StageRaisedError)
    assert untold.suspects is None


def test_rows_in_another_order_are_found_all_the_same(spark: SparkSession) -> None:
    """The worker names rows of others, who are done, and is not asked again."""
    client = FakeClient((stage("choking_on_many_backwards"),))
    client.publish([NewRecord(value=f"row {i:04}") for i in range(200)])
    client.invoke("picky", range(200))
    done = Play(spark, client).until(200)
    assert (done.completed, done.failed) == (180, 20)
    assert {each for _, each in client.failures} == set(range(8, 201, 10))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("percent", [1, 10])
@pytest.mark.parametrize("function", [*IN_PYTHON, "choking_sql"])
def test_what_looking_for_bad_rows_costs(
    spark: SparkSession, function: str, percent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In jobs; `hadron bench spark --part bad` has seconds."""
    # Others may have this machine for a while.
    monkeypatch.setattr(rounds, "_SEARCH_S", 60.0)
    monkeypatch.setattr(rounds, "_SEARCH_SHARE", 10.0)
    bad = set(random.Random(7).sample(range(_ROWS), _ROWS * percent // 100))
    client = FakeClient((stage(function),))
    client.publish([NewRecord(value=f"row {i}:{7 if i in bad else 0}") for i in range(_ROWS)])
    client.invoke("picky", range(_ROWS))
    play, before = Play(spark, client), jobs(spark)
    done = play.until(_ROWS)
    assert (done.completed, done.failed) == (_ROWS - len(bad), len(bad))
    assert {each for _, each in client.failures} == {each + 1 for each in bad}
    assert len(play.searched) < _MOST_ROUNDS
    in_python = (1, 10, len(bad) + 10)
    in_sql = (1, 10, 100, 10 * min(100, len(bad)), 5 * len(bad))
    assert jobs(spark) - before <= sum(
        -(-each // 64) for each in (in_python if function in IN_PYTHON else in_sql)
    )
