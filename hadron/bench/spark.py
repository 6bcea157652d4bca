"""`hadron bench spark`: what reading, writing and stages cost that run on Spark.

A Spark of this process works beside the cluster, on the same cores. Reading is compared with the
same rows in Parquet, in turn; stages do nothing, so what is measured is everything around them.
Stages that a program runs itself are measured as `hadron bench pipelines` does.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import anyio

from hadron.bench import pipelines
from hadron.bench.patience import STALLED_S, reached, within
from hadron.bench.report import (
    Part,
    Verdict,
    kept,
    middle,
    middle_ratio,
    number,
    print_found,
    ratio,
)
from hadron.bench.scratch import scratch
from hadron.bench.stats import percentile
from hadron.client import Client, connect
from hadron.model.errors import PeerError
from hadron.model.limits import MAX_MICRO_BATCH
from hadron.model.pipelines import Output, PipelineSpec, Retry, StageSpec
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.node.supervision.cluster import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MIN_READ_PER_S: Final = 1_500_000.0
MIN_TO_PARQUET: Final = 0.7
MIN_SINK_PER_S: Final = 250_000.0
MIN_COMPLETIONS_PER_S: Final = 15_000.0
MAX_LATENCY_MS: Final = 1_000.0
MAX_BAD_S: Final = 60.0

_BAD: Final = "bad"
"""A member of roots that functions raise for."""

_WARM_UP: Final = 5
"""Triggers that nobody counts: Java compiles what runs often."""


@dataclass(frozen=True, slots=True)
class Plan:
    """
    Attributes:
        rows: that are read, and written, in each round.
        instances: that a runner on Spark completes in each round.
        handled: instances of each round that a program runs itself.
        bad: instances in one micro-batch, for some of which its function raises.
        triggers: that latency with Spark is taken from.
        parts: which, of `PARTS`.
    """

    nodes: int
    record_bytes: int
    durability: str
    rounds: int
    rows: int
    instances: int
    handled: int
    bad: int
    triggers: int
    parts: Sequence[str]


@dataclass(slots=True)
class Ground:
    """What all parts stand on.

    Attributes:
        files: a directory for Parquet.
    """

    url: str
    plan: Plan
    leader: pipelines.Leader
    client: Client
    spark: SparkSession
    files: Path

    async def run(self, work: Callable[[], None]) -> None:
        """Have Spark do something, in a thread: it looks for data sources in the session that is
        the thread's own."""
        from hadron.spark.session import activate

        def act() -> None:
            activate(self.spark)
            work()

        await anyio.to_thread.run_sync(act)

    async def values(self) -> DataFrame:
        """As many rows as the plan has, with values that hardly compress, from Parquet."""
        path = self.files / "values"
        if not path.exists():
            await self.run(partial(_write_values, self.spark, self.plan, path))
        return self.spark.read.parquet(str(path))

    async def write(self, stream: str) -> float:
        """Write them to a new stream; returns rows/s."""
        values = await self.values()
        await _declare_streams(self.client, stream)
        writer = values.write.format("hadron").mode("append").option("server", self.url)
        began = time.monotonic()
        await self.run(writer.option("stream", stream).save)
        took_s = time.monotonic() - began
        await _check_count(self.client, stream, self.plan.rows)
        return self.plan.rows / took_s


def run(plan: Plan, output: str) -> int:
    """Measure and print; returns the exit status. Raises `ConfigurationError` without Spark."""
    from hadron.spark.extra import check_extra
    from hadron.spark.session import end, session

    check_extra()
    started = time.monotonic()
    found: list[Part] = []
    with scratch() as directory, kept(found):
        spark = session(app_name="hadron bench")
        version = spark.version
        try:
            cluster = LocalCluster(directory, nodes=plan.nodes, durability=plan.durability)
            with cluster:
                leader = pipelines.Leader(cluster)
                files = directory / "parquet"
                anyio.run(_measure, cluster.url, plan, leader, spark, files, found, backend="trio")
        finally:
            end(spark)
    durability = "fsync" if plan.nodes == 1 else plan.durability
    took_s = time.monotonic() - started
    setting = {
        "durability": durability,
        "nodes": plan.nodes,
        "record_bytes": plan.record_bytes,
        "rounds": plan.rounds,
        "rows": plan.rows,
        "instances": plan.instances,
        "triggers": plan.triggers,
    }
    print_found(found, output, f"{plan.nodes} node(s) and Spark {version}", setting, took_s)
    return 0


async def _measure(
    url: str,
    plan: Plan,
    leader: pipelines.Leader,
    spark: SparkSession,
    files: Path,
    found: list[Part],
) -> None:
    """Add to `found` what each part has come to."""
    started = time.monotonic()
    async with connect(url) as client:
        ground = Ground(url, plan, leader, client, spark, files)
        for name, measure in PARTS.items():
            if name in plan.parts:
                print(f"{time.monotonic() - started:4.0f} s {name} …", file=sys.stderr)
                found += await measure(ground)


# --- rows -----------------------------------------------------------------------------------------


async def measure_sink(ground: Ground) -> list[Part]:
    """A batch write: rows in Parquet, records in a stream."""
    plan = ground.plan
    await ground.write("sunk-first")
    speeds = [await ground.write(f"sunk-{turn}") for turn in range(plan.rounds)]
    per_s = middle(speeds)
    part = Part(f"{plan.rows:,} rows of {plan.record_bytes} B written to a stream", ("", "rows/s"))
    part.rows.append(("from Parquet, one transaction", number(per_s)))
    part.figures["sink_rows_per_s"] = per_s
    part.verdicts.append(
        Verdict(
            "rows/s that are written",
            number(per_s),
            f">= {number(MIN_SINK_PER_S)}",
            per_s >= MIN_SINK_PER_S,
        )
    )
    return [part]


async def measure_read(ground: Ground) -> list[Part]:
    """All columns of a stream, and of the same rows in Parquet, into nothing."""
    plan, spark = ground.plan, ground.spark
    await ground.write("rows")
    tasks = str(os.cpu_count() or 1)
    reader = spark.read.format("hadron").option("server", ground.url)
    records = reader.option("stream", "rows").option("minPartitions", tasks).load()
    path = str(ground.files / "rows")
    await ground.run(partial(records.write.parquet, path))
    files = spark.read.parquet(path)
    # What is read into nothing is counted by nobody: here are the same rows, once.
    found: list[int] = []
    await ground.run(lambda: found.append(files.count()))
    if found != [plan.rows]:
        raise PeerError(f"{found[0]:,} rows were read out of the stream, and not {plan.rows:,}")
    speeds: dict[str, list[float]] = {"stream": [], "parquet": []}
    for turn in range(-1, plan.rounds):
        for name, frame in {"stream": records, "parquet": files}.items():
            began = time.monotonic()
            await ground.run(frame.write.format("noop").mode("overwrite").save)
            if turn >= 0:
                speeds[name].append(plan.rows / (time.monotonic() - began))
    per_s, parquet = middle(speeds["stream"]), middle(speeds["parquet"])
    to_parquet = middle_ratio(speeds["stream"], speeds["parquet"])
    part = Part(
        f"{plan.rows:,} rows of {plan.record_bytes} B read, all columns, {tasks} tasks",
        ("", "rows/s", "to Parquet"),
    )
    part.rows.append(("a stream", number(per_s), ratio(to_parquet)))
    part.rows.append(("Parquet, in the same session", number(parquet), ratio(1.0)))
    part.figures = {
        "read_rows_per_s": per_s,
        "parquet_rows_per_s": parquet,
        "read_to_parquet": to_parquet,
    }
    part.verdicts += [
        Verdict(
            "rows/s that are read",
            number(per_s),
            f">= {number(MIN_READ_PER_S)}",
            per_s >= MIN_READ_PER_S,
        ),
        Verdict(
            "reading, to Parquet",
            ratio(to_parquet),
            f">= {MIN_TO_PARQUET:g} x",
            to_parquet >= MIN_TO_PARQUET,
        ),
    ]
    return [part]


def _write_values(spark: SparkSession, plan: Plan, path: Path) -> None:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    size = plan.record_bytes
    digits = F.sha2(F.col("id").cast("string"), 512)
    text = F.substring(F.repeat(digits, size // 128 + 1), 1, size)
    rows = spark.range(plan.rows).select(F.to_binary(text, F.lit("utf-8")).alias("value"))
    rows.write.parquet(str(path))


# --- stages ---------------------------------------------------------------------------------------


def same(instances: DataFrame) -> DataFrame:
    """The stage that is measured: each instance's output is its trigger."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    return instances.select("instance_id", F.col("root").alias("value"))


async def measure_completions(ground: Ground) -> list[Part]:
    """Instances of one stage through a warm runner, in micro-batches as large as they get."""
    plan, client = ground.plan, ground.client
    await _declare_streams(client, "roots", "made")
    async with client.producer("roots") as producer:
        await producer.send_many([_value(plan)] * plan.instances)
    speeds: list[float] = []
    leader_us: list[float] = []
    # The first one is the warm-up.
    for turn in range(plan.rounds + 1):
        name = f"same-{turn}"
        began, leader_s = time.monotonic(), ground.leader.cpu_s()
        await _declare_pipeline(client, name, "roots", "made", max_parallel=plan.instances)
        async with _running(ground, name):
            await reached(
                f"instances of {name} are done", plan.instances, partial(_done, client, name)
            )
            if turn:
                speeds.append(plan.instances / (time.monotonic() - began))
                leader_us.append((ground.leader.cpu_s() - leader_s) / plan.instances * 1e6)
        await _check_count(client, "made", plan.instances * (turn + 1))
    per_s = middle(speeds)
    part = Part(
        f"{plan.instances:,} instances of one empty stage with an output, up to "
        f"{MAX_MICRO_BATCH:,} in a micro-batch",
        ("", "completions/s", "leader µs each"),
    )
    part.rows.append(("from declaration to the end", number(per_s), number(middle(leader_us))))
    part.figures = {"completions_per_s": per_s, "completion_leader_us": middle(leader_us)}
    part.verdicts.append(
        Verdict(
            "completions/s through the runner",
            number(per_s),
            f">= {number(MIN_COMPLETIONS_PER_S)}",
            per_s >= MIN_COMPLETIONS_PER_S,
        )
    )
    return [part]


async def measure_latency(ground: Ground) -> list[Part]:
    """From a record on its way to the output that a reader has got, one after the other."""
    plan, client = ground.plan, ground.client
    await _declare_streams(client, "questions", "replies")
    await _declare_pipeline(client, "replies", "questions", "replies")
    taken_ms: list[float] = []
    async with _running(ground, "replies"), client.producer("questions") as producer:
        replies = client.read("replies", follow=True)
        for turn in range(_WARM_UP + plan.triggers):
            began = time.monotonic()
            await producer.send_soon(_value(plan))
            with within(STALLED_S, "an output"):
                await anext(replies)
            if turn >= _WARM_UP:
                taken_ms.append((time.monotonic() - began) * 1_000)
    p50, p95 = percentile(taken_ms, 0.5), percentile(taken_ms, 0.95)
    part = Part(
        f"from trigger to output with a warm runner, {plan.triggers:,} one after the other",
        ("", "p50 ms", "p95 ms"),
    )
    part.rows.append(("a stage on Spark", number(p50), number(p95)))
    part.figures = {"spark_p50_ms": p50, "spark_p95_ms": p95}
    part.verdicts.append(
        Verdict(
            "trigger to first output on Spark, p50",
            f"{number(p50)} ms",
            f"<= {number(MAX_LATENCY_MS)} ms",
            p50 <= MAX_LATENCY_MS,
        )
    )
    return [part]


def raising_sql(instances: DataFrame) -> DataFrame:
    """Raises in Spark for instances that are marked as bad."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    raised = F.raise_error(F.lit("this is bad")).cast("string")
    value = F.when(F.col("root").contains(_BAD), raised).otherwise(F.col("root"))
    return instances.select("instance_id", value.alias("value"))


def raising_python(instances: DataFrame) -> DataFrame:
    """The same in a function of Python."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    def check(root):  # type: ignore[no-untyped-def]
        if _BAD in root:
            raise ValueError("this is bad")
        return root

    return instances.select("instance_id", F.udf(check)("root").alias("value"))


def raising_pandas(instances: DataFrame) -> DataFrame:
    """The same in a function of pandas frames, which raises for many rows at once."""

    def check(frames):  # type: ignore[no-untyped-def]
        for frame in frames:
            if frame.root.str.contains(_BAD).any():
                raise ValueError("some are bad")
            yield frame.assign(value=frame.root)[["instance_id", "value"]]

    return instances.mapInPandas(check, "instance_id long, value string")


RAISING: Final = {raising_sql: "in Spark", raising_python: "in Python", raising_pandas: "in pandas"}


async def measure_bad(ground: Ground) -> list[Part]:
    """Until all instances of a micro-batch are done or, where its function raises, failed."""
    plan, client = ground.plan, ground.client
    part = Part(
        f"{plan.bad:,} instances in one micro-batch, the function raises for some of them",
        ("", "seconds"),
    )
    await _declare_streams(client, "good-ones")
    for percent in (1, 10):
        source = f"bad-{percent}"
        await _declare_streams(client, source)
        bad = set(Random(percent).sample(range(plan.bad), plan.bad * percent // 100))
        values = [_value(plan) | ({_BAD: "1"} if each in bad else {}) for each in range(plan.bad)]
        async with client.producer(source) as producer:
            await producer.send_many(values)
        for raises, where in RAISING.items():
            name = f"{raises.__name__.replace('_', '-')}-{percent}"
            await _declare_pipeline(
                client, name, source, "good-ones", run=raises.__name__, retry=Retry(1)
            )
            began = time.monotonic()
            async with _running(ground, name):
                await reached(
                    f"instances of {name} ended",
                    plan.bad,
                    partial(_ended, client, name),
                    # All may end together: the bar is to be missed before this is.
                    stalled_s=10 * MAX_BAD_S,
                )
                seconds = time.monotonic() - began
            told = await _told(client, name)
            if told.failed != len(bad):
                raise PeerError(f"{told.failed} instances of {name} failed, and not {len(bad)}")
            part.rows.append((f"{percent} % of them, {where}", number(seconds)))
            part.figures[f"{name.replace('-', '_')}_s"] = seconds
    slowest = max(part.figures.values())
    part.verdicts.append(
        Verdict(
            f"seconds with bad ones among {plan.bad:,}, at most",
            number(slowest),
            f"<= {number(MAX_BAD_S)}",
            slowest <= MAX_BAD_S,
        )
    )
    return [part]


async def measure_handlers(ground: Ground) -> list[Part]:
    """The same of stages that a program runs itself."""
    plan = ground.plan
    handled = pipelines.Plan(
        nodes=plan.nodes,
        record_bytes=plan.record_bytes,
        durability=plan.durability,
        rounds=plan.rounds,
        instances=plan.handled,
        triggers=10 * plan.triggers,
        waiting=0,
        parts=("instances", "latency"),
    )
    return [
        await pipelines.PARTS[part](ground.client, handled, ground.leader) for part in handled.parts
    ]


@asynccontextmanager
async def _running(ground: Ground, pipeline: str) -> AsyncIterator[None]:
    """A runner of the pipeline, in a thread of its own."""
    from hadron.spark.runner import StageRunner

    runner = StageRunner(ground.url, pipeline, spark=ground.spark, max_batch=MAX_MICRO_BATCH)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.to_thread.run_sync, lambda: runner.run())
        try:
            yield
        finally:
            runner.stop()


async def _told(client: Client, pipeline: str) -> Any:
    (told,) = await client.pipeline_progress(pipeline)
    return told


async def _done(client: Client, pipeline: str) -> int:
    return int((await _told(client, pipeline)).done)


async def _ended(client: Client, pipeline: str) -> int:
    told = await _told(client, pipeline)
    return int(told.done + told.failed)


async def _check_count(client: Client, stream: str, wanted: int) -> None:
    """Raise `PeerError` unless the stream has as many records as were to be made: a rate of others
    would be none."""
    (offsets,) = await client.offsets(stream)
    if offsets.next_offset != wanted:
        raise PeerError(f"stream {stream} has {offsets.next_offset:,} records, and not {wanted:,}")


def _value(plan: Plan) -> dict[str, str]:
    """JSON of so many bytes, as roots are."""
    return {"v": "x" * max(0, plan.record_bytes - len('{"v":""}'))}


async def _declare_streams(client: Client, *names: str) -> None:
    spec = StreamSpec(partitions=(pipelines.PARTITION,))
    await client.apply([SchemaObject(kind="Stream", name=name, spec=spec) for name in names])


async def _declare_pipeline(
    client: Client,
    name: str,
    source: str,
    output: str,
    *,
    max_parallel: int = 20_000,
    run: str = "same",
    retry: Retry | None = None,
) -> None:
    stage = StageSpec(
        name=run.replace("_", "-"),
        run=f"hadron.bench.spark:{run}",
        output=Output(output),
        retry=retry or Retry(),
    )
    spec = PipelineSpec(
        replica_set=pipelines.PARTITION,
        input=source,
        start="earliest",
        max_parallel=max_parallel,
        stages=(stage,),
    )
    await client.apply([SchemaObject(kind="Pipeline", name=name, spec=spec)])


PARTS: Final[dict[str, Callable[[Ground], Awaitable[list[Part]]]]] = {
    "sink": measure_sink,
    "read": measure_read,
    "completions": measure_completions,
    "latency": measure_latency,
    "bad": measure_bad,
    "handlers": measure_handlers,
}
