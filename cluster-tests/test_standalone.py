"""Stages on a Spark cluster of its own, one of whose two workers dies."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from crew import PATIENCE_S
from departures import FLIGHTS, PIPELINE, declare, judge
from report import Row
from sparking import SparkProgram
from standalone import StandaloneSpark

import hadron
from hadron.client import SyncClient
from hadron.demo.flights import flight_record, load_flights
from hadron.node.supervision.cluster import LocalCluster
from hadron.wire.messages import pipelines_pb2

BATCH: Final = 1_000
DIES_AFTER: Final = 3_000
"""Flights that are done when the worker dies."""

_ENDS_WITHIN_S: Final = 300.0
_POLL_S: Final = 0.01

Progress = pipelines_pb2.PipelineProgressResponse.Pipeline


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_one_of_two_workers_dies(plain: LocalCluster, tmp_path: Path, row: Row) -> None:
    flights = [flight_record(each) for each in load_flights()]
    work = tmp_path / "spark"
    work.mkdir()
    with StandaloneSpark(work, workers=2) as spark, hadron.connect_sync(plain.url) as client:
        declare(client, "local/p0", ("local/p0",), "local/p0")
        with client.producer(FLIGHTS) as producer:
            producer.send_many(flights)
        program = [sys.executable, "-m", "hadron", "pipeline", "run", PIPELINE, "--until-idle"]
        program += ["--master", spark.url, "--max-batch", str(BATCH)]
        variables = {"HADRON_URL": plain.url, "SPARK_LOCAL_IP": "127.0.0.1"}
        runner = SparkProgram(program, tmp_path / "runner.log", cwd=tmp_path, variables=variables)
        try:
            _wait(client, runner, lambda told: told.done >= DIES_AFTER)
            assert [spark.executors(number) for number in (0, 1)] == [1, 1]
            spark.kill_worker(0)
            row.kills += 1
            began_s, (told,) = time.monotonic(), client.pipeline_progress(PIPELINE)
            assert told.live
            before = told.done
            _wait(client, runner, lambda told: told.done > before)
            row.progress_s.append(time.monotonic() - began_s)
            runner.wait(_ENDS_WITHIN_S)
        finally:
            runner.end()
        (told,) = client.pipeline_progress(PIPELINE)
        assert (told.instances, told.done, told.failed) == (len(flights), len(flights), 0)
        judge(client)
    row.acked = len(flights)
    row.verdict = "valid"


def _wait(client: SyncClient, runner: SparkProgram, condition: Callable[[Progress], bool]) -> None:
    until_s = time.monotonic() + 4 * PATIENCE_S
    while True:
        (told,) = client.pipeline_progress(PIPELINE)
        if condition(told):
            return
        runner.check()
        assert time.monotonic() < until_s, told
        time.sleep(_POLL_S)
