"""`hadron bench pipelines`: what stages cost that a program runs itself (`engine: handler`).

Their handlers do nothing, so what is measured is everything around them: triggers, invocations,
completions. The handlers run in this one process, whose CPU time stands beside the leader's.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import anyio

from hadron.bench.patience import STALLED_S, reached, within
from hadron.bench.report import Part, Verdict, kept, middle, middle_ratio, number, print_found
from hadron.bench.scratch import scratch
from hadron.bench.stats import ProcessUse, percentile
from hadron.client import Client, StageInvocation, connect
from hadron.model.errors import HadronError
from hadron.model.pipelines import Output, PipelineSpec, StageSpec
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.node.supervision.cluster import LocalCluster
from hadron.replication.life import Life

MIN_INSTANCES_PER_S: Final = 5_000.0
MAX_LATENCY_MS: Final = 10.0
MAX_WAITING_BYTES: Final = 1_000.0
MAX_LATE_MS: Final = 100.0

PARTITION: Final = "local/p0"
IN_FLIGHT: Final = 2_000
_WARM_UP: Final = 20

_LONG_MS: Final = 3_600_000
"""Nobody sees the end of it."""
_SHORT_MS: Final = 2_000
_EVERY_S: Final = 0.02
"""Between two triggers whose stage waits for `_SHORT_MS`."""
_AT_ONCE: Final = 50_000


@dataclass(frozen=True, slots=True)
class Plan:
    """
    Attributes:
        instances: of each round.
        triggers: that latency is taken from.
        waiting: instances that wait for their delay while others' delays end.
        parts: which, of `PARTS`.
    """

    nodes: int
    record_bytes: int
    durability: str
    rounds: int
    instances: int
    triggers: int
    waiting: int
    parts: Sequence[str]


@dataclass(frozen=True, slots=True)
class Speed:
    """Of one round; CPU times are microseconds per instance."""

    per_s: float
    leader_us: float
    runner_us: float


class Leader(ProcessUse):
    """The leader's process, which can be started anew: what is free in the heap of an old one has
    room for what is to be measured, and hides it."""

    def __init__(self, cluster: LocalCluster) -> None:
        super().__init__(cluster.pid(cluster.leader))
        self._cluster = cluster

    async def restart(self, client: Client) -> None:
        name = self._cluster.leader
        self._cluster.stop(name)
        # In this thread: the kernel ends a node with the one that has started it (`bench.beside`).
        self._cluster.spawn(name)

        async def serving() -> int:
            with suppress(HadronError):
                status = await client.status(self._cluster.address(name))
                return int(status.state == Life.SERVING)
            return 0

        await reached("leaders serve again", 1, serving)
        super().__init__(self._cluster.pid(name))


def run(plan: Plan, output: str) -> int:
    """Measure and print; returns the exit status."""
    started = time.monotonic()
    found: list[Part] = []
    with scratch() as directory, kept(found):
        cluster = LocalCluster(directory, nodes=plan.nodes, durability=plan.durability)
        with cluster:
            leader = Leader(cluster)
            anyio.run(_measure, cluster.url, plan, leader, found, backend="trio")
    durability = "fsync" if plan.nodes == 1 else plan.durability
    took_s = time.monotonic() - started
    setting = {
        "durability": durability,
        "nodes": plan.nodes,
        "record_bytes": plan.record_bytes,
        "rounds": plan.rounds,
        "instances": plan.instances,
        "triggers": plan.triggers,
        "waiting": plan.waiting,
    }
    print_found(found, output, f"{plan.nodes} node(s) and the handlers", setting, took_s)
    return 0


async def _measure(url: str, plan: Plan, leader: Leader, found: list[Part]) -> None:
    """Add to `found` what each part has come to."""
    gc.freeze()
    started = time.monotonic()
    async with connect(url) as client:
        for name, measure in PARTS.items():
            if name in plan.parts:
                print(f"{time.monotonic() - started:4.0f} s {name} …", file=sys.stderr)
                found.append(await measure(client, plan, leader))


# --- how many ---------------------------------------------------------------------------------


async def measure_instances(client: Client, plan: Plan, leader: Leader) -> Part:
    """Instances of one empty stage, without an output and with one, from records that are there."""
    part = Part(
        f"{plan.instances:,} instances of one empty stage, {IN_FLIGHT:,} in flight",
        ("stage", "instances/s", "leader µs each", "runner µs each"),
    )
    value = b"x" * plan.record_bytes
    await _declare_streams(client, "in", "out")
    async with client.producer("in") as producer:
        await producer.send_many([value] * plan.instances)
    for kind in ("without output", "with output"):
        # What only the first round does is nobody's.
        _, *speeds = [
            await _run_all(client, plan, leader, f"{kind.replace(' ', '-')}-{turn}", kind)
            for turn in range(plan.rounds + 1)
        ]
        per_s = middle([each.per_s for each in speeds])
        leader_us = middle([each.leader_us for each in speeds])
        runner_us = middle([each.runner_us for each in speeds])
        part.rows.append((kind, number(per_s), number(leader_us), number(runner_us)))
        short = kind.partition(" ")[0]
        part.figures[f"{short}_per_s"] = per_s
        part.figures[f"{short}_leader_us"] = leader_us
        part.figures[f"{short}_runner_us"] = runner_us
        if kind == "without output":
            part.verdicts.append(
                Verdict(
                    "instances/s of empty stages",
                    number(per_s),
                    f">= {number(MIN_INSTANCES_PER_S)}",
                    per_s >= MIN_INSTANCES_PER_S,
                )
            )
    return part


async def _run_all(client: Client, plan: Plan, leader: Leader, name: str, kind: str) -> Speed:
    """A pipeline over what is there, from its declaration until all of it is done."""
    output = Output("out") if kind == "with output" else None
    began, leader_s, own_s = time.monotonic(), leader.cpu_s(), time.process_time()
    await _declare_pipeline(client, name, "in", "earliest", output)

    async def done() -> int:
        return (await client.pipeline_progress(name))[0].done

    async def handle(_: StageInvocation) -> bytes | None:
        return None if output is None else b"done"

    async with anyio.create_task_group() as tasks:
        stage = client.stage(name, "empty", max_in_flight=IN_FLIGHT)
        tasks.start_soon(stage.run, handle)
        await reached(f"instances of {name} are done", plan.instances, done)
        took_s = time.monotonic() - began
        used = leader.cpu_s() - leader_s, time.process_time() - own_s
        tasks.cancel_scope.cancel()
    each_us = [seconds / plan.instances * 1e6 for seconds in used]
    return Speed(plan.instances / took_s, *each_us)


# --- how soon -------------------------------------------------------------------------------------


async def measure_latency(client: Client, plan: Plan, leader: Leader) -> Part:
    """From a record on its way to the output that a reader has got, one after the other."""
    await _declare_streams(client, "asked", "answered", "beside")
    await _declare_pipeline(client, "answers", "asked", "earliest", Output("answered"))
    value = b"x" * plan.record_bytes
    taken_ms: list[float] = []
    sent_ms: list[float] = []
    leader_s = leader.cpu_s()
    async with (
        anyio.create_task_group() as tasks,
        client.producer("asked") as producer,
        client.producer("beside") as beside,
    ):
        stage = client.stage("answers", "empty")
        tasks.start_soon(stage.run, lambda invocation: invocation.root.value)
        answers = client.read("answered", follow=True)
        for turn in range(_WARM_UP + plan.triggers):
            if turn == _WARM_UP:
                leader_s = leader.cpu_s()
            began = time.monotonic()
            await producer.send_soon(value)
            with within(STALLED_S, "an output"):
                await anext(answers)
            taken_s = time.monotonic() - began
            began = time.monotonic()
            await beside.send(value)
            if turn >= _WARM_UP:
                taken_ms.append(taken_s * 1_000)
                sent_ms.append((time.monotonic() - began) * 1_000)
        leader_us = (leader.cpu_s() - leader_s) / plan.triggers * 1e6
        tasks.cancel_scope.cancel()
    p50, p95 = percentile(taken_ms, 0.5), percentile(taken_ms, 0.95)
    sent = percentile(sent_ms, 0.5), percentile(sent_ms, 0.95)
    part = Part(
        f"from trigger to output with a warm handler, {plan.triggers:,} one after the other",
        ("", "p50 ms", "p95 ms", "leader µs for both"),
    )
    part.rows.append(("trigger to output: three commits", number(p50), number(p95), ""))
    part.rows.append(("a record sent: one", *map(number, sent), number(leader_us)))
    part.figures = {
        "p50_ms": p50,
        "p95_ms": p95,
        "sent_p50_ms": sent[0],
        "to_sent": middle_ratio(taken_ms, sent_ms),
        "latency_leader_us": leader_us,
    }
    part.verdicts.append(
        Verdict(
            "trigger to first output, p50",
            f"{number(p50)} ms",
            f"<= {number(MAX_LATENCY_MS)} ms",
            p50 <= MAX_LATENCY_MS,
        )
    )
    return part


# --- how many may wait ----------------------------------------------------------------------------


async def measure_waiting(client: Client, plan: Plan, leader: Leader) -> Part:
    """What instances cost while they wait for their delay, and how late others are beside them."""
    value = b"x" * plan.record_bytes
    await _declare_streams(client, "kept", "timed", "ended")
    async with client.producer("kept") as producer:
        for first in range(0, plan.waiting, _AT_ONCE):
            await producer.send_many([value] * min(_AT_ONCE, plan.waiting - first))
    await _declare_pipeline(client, "timed", "timed", "earliest", Output("ended"), _SHORT_MS)

    async def created() -> int:
        return (await client.pipeline_progress("kept"))[0].instances

    await leader.restart(client)
    before = leader.rss_bytes()
    began = time.monotonic()
    await _declare_pipeline(client, "kept", "kept", "earliest", None, _LONG_MS, plan.waiting)
    await reached("instances of kept were created", plan.waiting, created)
    per_s = plan.waiting / (time.monotonic() - began)
    each_bytes = max(0, leader.rss_bytes() - before) / plan.waiting
    late_ms = await _lateness(client, plan, value)
    p50, worst = percentile(late_ms, 0.5), max(late_ms)
    part = Part(
        f"{plan.waiting:,} instances that wait for their delay, and {plan.triggers:,} whose delay "
        "ends meanwhile",
        ("", ""),
    )
    part.rows.append(("instances created, per second", number(per_s)))
    part.rows.append(("memory of the leader that one takes", f"{number(each_bytes)} B"))
    part.rows.append(("output after the delay's end, p50", f"{number(p50)} ms"))
    part.rows.append(("output after the delay's end, latest", f"{number(worst)} ms"))
    part.figures = {
        "created_per_s": per_s,
        "waiting_bytes": each_bytes,
        "late_p50_ms": p50,
        "late_max_ms": worst,
    }
    part.verdicts += [
        Verdict(
            "memory that a waiting instance takes",
            f"{number(each_bytes)} B",
            f"<= {number(MAX_WAITING_BYTES)} B",
            each_bytes <= MAX_WAITING_BYTES,
        ),
        Verdict(
            "output after a delay's end, latest",
            f"{number(worst)} ms",
            f"<= {number(MAX_LATE_MS)} ms",
            worst <= MAX_LATE_MS,
        ),
    ]
    return part


async def _lateness(client: Client, plan: Plan, value: bytes) -> list[float]:
    """From the end of each delay, which begins as its record is acknowledged at the latest, to the
    output that a reader has got; milliseconds."""
    due: dict[int, float] = {}
    arrived: dict[int, float] = {}
    async with anyio.create_task_group() as tasks, client.producer("timed") as producer:
        stage = client.stage("timed", "empty", max_in_flight=IN_FLIGHT)
        tasks.start_soon(stage.run, lambda invocation: str(invocation.root.offset))

        async def collect() -> None:
            async for record in client.read("ended", follow=True):
                # Of a client that was kept waiting, it may be the first to hear of its record.
                arrived[int(record.value)] = time.monotonic()

        async def seen() -> int:
            return len(arrived)

        tasks.start_soon(collect)
        for _ in range(plan.triggers):
            receipt = await producer.send(value)
            due[receipt.offset] = time.monotonic() + _SHORT_MS / 1_000
            await anyio.sleep(_EVERY_S)
        await reached("delays have ended in an output", plan.triggers, seen)
        tasks.cancel_scope.cancel()
    return [(arrived[offset] - due_s) * 1_000 for offset, due_s in due.items()]


# --- what it is measured on -----------------------------------------------------------------------


async def _declare_streams(client: Client, *names: str) -> None:
    spec = StreamSpec(partitions=(PARTITION,))
    await client.apply([SchemaObject(kind="Stream", name=name, spec=spec) for name in names])


async def _declare_pipeline(
    client: Client,
    name: str,
    source: str,
    start: str,
    output: Output | None,
    delay_ms: int = 0,
    max_parallel: int = 20_000,
) -> None:
    spec = PipelineSpec(
        replica_set=PARTITION,
        input=source,
        start=start,
        max_parallel=max_parallel,
        stages=(StageSpec(name="empty", engine="handler", output=output, delay_ms=delay_ms),),
    )
    await client.apply([SchemaObject(kind="Pipeline", name=name, spec=spec)])


PARTS: Final = {
    "instances": measure_instances,
    "latency": measure_latency,
    "waiting": measure_waiting,
}
