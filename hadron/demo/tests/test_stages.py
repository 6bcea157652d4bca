"""The stages on real Spark give what plain Python gives, for every flight."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import pytest

from hadron.demo.flights import load_flights
from hadron.demo.verdicts import expected_verdicts, expected_weather
from hadron.model.documents.reading import parse_documents
from hadron.model.pipelines import PipelineSpec, StageSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    from hadron.spark.session import session

    spark = session()
    yield spark
    spark.stop()


def declared_stages() -> dict[str, StageSpec]:
    documents = parse_documents((files("hadron.demo") / "schema.yaml").read_text(), "schema.yaml")
    (pipeline,) = (each.spec for each in documents if isinstance(each.spec, PipelineSpec))
    return {stage.name: stage for stage in pipeline.stages}


def run_over_the_month(
    spark: SparkSession, stage: StageSpec, **dependencies: list[str]
) -> list[Any]:
    import pyarrow as pa

    from hadron.spark.stage import run_stage

    columns = {"root": [json.dumps(flight) for flight in load_flights()], **dependencies}
    table = pa.table({"instance_id": list(range(len(load_flights()))), **columns})
    result = run_stage(spark, stage, table)
    assert result.values_are_json
    rows = sorted(
        zip(result.table["instance_id"].to_pylist(), result.table["value"].to_pylist(), strict=True)
    )
    assert [instance_id for instance_id, _ in rows] == list(range(len(load_flights())))
    return [json.loads(value) for _, value in rows]


@pytest.mark.long
def test_both_stages_agree_with_plain_python(spark: SparkSession) -> None:
    stages = declared_stages()
    weather = run_over_the_month(spark, stages["weather"])
    assert weather == expected_weather()
    verdicts = run_over_the_month(
        spark, stages["verdict"], weather=[json.dumps(value) for value in weather]
    )
    assert verdicts == expected_verdicts()
