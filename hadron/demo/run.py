"""The demo's plot: publish, run the stages, kill a replica half way, read back, verify.

The cluster is handed in by whoever starts the demo, so that this room needs to know nothing about
processes. Spark starts on a thread of its own while the cluster comes up, because its Java virtual
machine takes longest.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import psutil

import hadron
from hadron.demo.flights import flight_record, load_flights
from hadron.demo.screen import Screen
from hadron.demo.verify import PIPELINE, Report, verify
from hadron.model.documents.reading import parse_documents
from hadron.model.errors import HadronError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from hadron.client import SyncClient
    from hadron.demo.table import DelayRow
    from hadron.spark.runner import RunnerTotals, StageRunner
    from hadron.wire.messages import cluster_pb2, pipelines_pb2

_CHUNK: Final = 3_000
_MAX_BATCH: Final = 3_500
"""Instances per DataFrame: two of them are one round of the pipeline's `max_parallel`."""
_POLL_S: Final = 0.1
_PATIENCE_S: Final = 120.0
"""Without any progress for so long, something is broken: a healthy demo is over by then."""
_DOWN_FOR_S: Final = 2.0
"""How long the killed replica stays away: long enough to miss thousands of records."""

_JAVA_ENDS_S: Final = 10.0
_OF_SPARK: Final = "pyspark-shell"
"""Among the arguments of what pyspark starts, from the script to Java."""


class DemoError(HadronError):
    """The demo did not get where it should."""


class Cluster(Protocol):
    """What the demo needs of a cluster of processes."""

    @property
    def url(self) -> str: ...

    @property
    def names(self) -> list[str]: ...

    @property
    def leader(self) -> str: ...

    def start_all(self) -> None: ...

    def kill(self, name: str) -> None: ...

    def spawn(self, name: str) -> None: ...

    def pid(self, name: str) -> int: ...

    def wait_ready(self, names: Sequence[str]) -> None: ...

    def wait_for(
        self, name: str, what: str, condition: Callable[[cluster_pb2.StatusResponse], bool]
    ) -> cluster_pb2.StatusResponse: ...

    def database(self, name: str) -> Path: ...


def run(cluster: Cluster, victim: str, screen: Screen) -> Report:
    """Play the whole demo on a cluster that is not yet started, and judge the result.

    Args:
        cluster: started here; stopping it is the caller's.
        victim: the node that is killed half way.
        screen: where to show what happens; entered here.

    Raises a `HadronError` when something fails on the way.
    """
    from hadron.demo.table import read_delays, render

    with ExitStack() as stack:
        stack.enter_context(screen)
        spark_future = _start_spark_aside()
        stack.callback(_stop_spark, spark_future)
        cluster.start_all()
        screen.say(f"{len(cluster.names)} nodes are up: {cluster.url}")
        client = stack.enter_context(hadron.connect_sync(cluster.url))
        if spark_future.done():
            # One that does not start is told before anything is published for it.
            spark_future.result()
        publish(client, screen)
        spark = spark_future.result()
        screen.say(f"Spark {spark.version} is up")
        runner = _make_runner(cluster.url, spark)
        # Left before Spark is stopped, so that the runner ends in peace.
        running = stack.enter_context(ThreadPoolExecutor(1, "runner")).submit(runner.run)
        stack.callback(runner.stop)
        _Play(cluster, client, victim, screen, running).watch()
        runner.stop()
        running.result()
        rows = read_delays(spark, cluster.url)
        screen.say("read stream verdicts back with Spark")
        report = judge(cluster, rows, screen)
    screen.console.print(render(rows))
    return report


def publish(client: SyncClient, screen: Screen) -> None:
    """Declare the schema and send every flight, keyed by carrier."""
    documents = parse_documents((files("hadron.demo") / "schema.yaml").read_text(), "schema.yaml")
    client.apply(documents)
    records = [flight_record(flight) for flight in load_flights()]
    with client.producer("flights") as producer:
        for start in range(0, len(records), _CHUNK):
            chunk = records[start : start + _CHUNK]
            producer.send_many(chunk)
            screen.count("published", start + len(chunk), len(records))
    screen.say(f"published {len(records):,} flights, acknowledged by a majority")


# --- Spark --------------------------------------------------------------------------------------


def _start_spark_aside() -> Future[SparkSession]:
    """Start Spark on a daemon thread: nobody who interrupts the demo wants to wait for Java."""
    future: Future[SparkSession] = Future()

    def start() -> None:
        try:
            future.set_result(_start_spark())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=start, name="spark", daemon=True).start()
    return future


def _start_spark() -> SparkSession:
    """A session that has run both stages once, on one flight, so that its code is compiled."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    from hadron.demo import stages
    from hadron.spark.session import session

    spark = session(app_name="hadron demo")
    one = spark.range(1).select(F.col("id").alias("instance_id"), F.lit("{}").alias("root"))
    stages.join_weather(one).toArrow()
    stages.verdict(one.withColumn("weather", F.lit("{}"))).toArrow()
    return spark


def _stop_spark(future: Future[SparkSession]) -> None:
    """Wait until Java is gone: it would live on for seconds, and its launcher's files for ever."""
    from hadron.spark.session import end

    deadline_s = time.monotonic() + _JAVA_ENDS_S
    while not future.done() and time.monotonic() < deadline_s:
        _kill_java()
        time.sleep(_POLL_S)
    if future.done() and future.exception() is None:
        end(future.result())


def _kill_java() -> None:
    """One that is still starting: whoever waits for it hears at once that it is gone."""
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if _OF_SPARK in child.cmdline():
                child.kill()


def _make_runner(url: str, spark: SparkSession) -> StageRunner:
    from hadron.spark.runner import StageRunner

    return StageRunner(url, PIPELINE, spark=spark, max_batch=_MAX_BATCH)


# --- while the pipeline runs --------------------------------------------------------------------


class _Play:
    """Watches the pipeline, kills the victim half way, and brings it back."""

    def __init__(
        self,
        cluster: Cluster,
        client: SyncClient,
        victim: str,
        screen: Screen,
        running: Future[RunnerTotals],
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._victim = victim
        self._screen = screen
        self._running = running
        self._total = len(load_flights())
        self._killed_at: float | None = None
        self._back = False

    def watch(self) -> None:
        """Return once every instance is done and the victim is back.

        Raises `DemoError`, or whatever a node or the stage runner failed with.
        """
        last_seen, last_change = [-1], time.monotonic()
        while True:
            self._check_alive()
            pipeline = self._progress()
            seen = self._show(pipeline) if pipeline else last_seen
            done = seen[0]
            self._act(done)
            if done == self._total and self._back:
                self._cluster.wait_ready([self._victim])
                return
            if seen != last_seen:
                last_seen, last_change = seen, time.monotonic()
            elif time.monotonic() - last_change > _PATIENCE_S:
                raise DemoError(
                    f"the pipeline stopped at {done:,} of {self._total:,} flights",
                    "look at the nodes' logs; `hadron demo --keep` leaves them",
                )
            if self._running.done():
                self._running.result()
                raise DemoError("the stage runner ended before its work was done")
            time.sleep(_POLL_S)

    def _check_alive(self) -> None:
        """Raise `ClusterError` when a node has ended that was not killed here: nobody brings it
        back."""
        for name in self._cluster.names:
            if name != self._victim or self._killed_at is None or self._back:
                self._cluster.pid(name)

    def _progress(self) -> pipelines_pb2.PipelineProgressResponse.Pipeline | None:
        """None while the leader is away, which it is when it is the victim."""
        try:
            return self._client.pipeline_progress(PIPELINE)[0]
        except HadronError as error:
            if not error.retryable:
                raise
            return None

    def _show(self, pipeline: pipelines_pb2.PipelineProgressResponse.Pipeline) -> list[int]:
        """How many instances are done, then of each stage how many."""
        if pipeline.failed:
            raise DemoError(
                f"{pipeline.failed:,} instances failed",
                f"hadron pipeline instances {PIPELINE} --status failed says why",
            )
        for stage in pipeline.stages:
            self._screen.count(f"stage {stage.name}", stage.done, self._total)
        return [pipeline.done, *(stage.done for stage in pipeline.stages)]

    def _act(self, done: int) -> None:
        now = time.monotonic()
        if self._killed_at is None and done >= self._total // 2:
            self._cluster.kill(self._victim)
            self._killed_at = now
            self._screen.say(f"killed {self._victim} with SIGKILL, {done:,} flights being done")
            if self._victim == self._cluster.leader:
                # Nobody answers until it is back: there is nothing to watch meanwhile.
                time.sleep(_DOWN_FOR_S)
                now += _DOWN_FOR_S
        if self._killed_at is None or self._back:
            return
        if now - self._killed_at >= _DOWN_FOR_S or done == self._total:
            self._cluster.spawn(self._victim)
            self._back = True
            self._screen.say(f"{self._victim} is started again")


# --- judging ------------------------------------------------------------------------------------


def judge(cluster: Cluster, rows: Sequence[DelayRow], screen: Screen) -> Report:
    """Wait until every node has applied all that the leader has, then read their files; and look at
    the table that was read back."""
    from hadron.demo.table import differences

    settled = cluster.wait_for(
        cluster.leader, "settled", lambda status: status.committed_lsn == status.last_lsn
    )
    last = settled.last_lsn
    for name in cluster.names:
        cluster.wait_for(name, f"at lsn {last}", lambda status: status.applied_lsn >= last)
    screen.say(f"every node has applied the log through lsn {last:,}; reading their files")
    report = verify({name: cluster.database(name) for name in cluster.names}, last)
    report.add("the table", differences(rows))
    return report


def print_report(report: Report, screen: Screen) -> None:
    """The problems, when there are any, and the demo's last line."""
    for problem in report.problems:
        screen.console.print(f"problem: {problem}", markup=False, soft_wrap=True)
    screen.console.print(report.summary(), markup=False, soft_wrap=True)
