"""`hadron bench grpc`: what the gRPC door costs, from a program with plain grpcio.

The program is Python, and takes a good part of the machine itself; messages are made once.
"""

from __future__ import annotations

import os
import platform
import queue
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import psutil

import hadron
from hadron.bench.report import Part, Verdict, middle, number, print_json, print_tables
from hadron.bench.stats import percentile
from hadron.node.supervision.cluster import LocalCluster, free_ports, write_config
from hadron.wire._pb import records_pb2 as pb

MAX_ONE_MS: Final = 1.2
MIN_PER_S: Final = 3_000.0
MAX_IDLE_BYTES: Final = 100_000

AT_ONCE: Final = (1, 16, 64)
_STREAM: Final = "bench"
_ANSWER_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Plan:
    """
    Attributes:
        seconds: of each measurement.
        subscriptions: that are open and get nothing.
        parts: which, of `PARTS`.
    """

    nodes: int
    record_bytes: int
    durability: str
    seconds: float
    rounds: int
    subscriptions: int
    parts: Sequence[str]


@dataclass(frozen=True, slots=True)
class Door:
    """Where it is, and the process behind it."""

    address: str
    process: psutil.Process

    def cpu_s(self) -> float:
        return sum(self.process.cpu_times()[:2])


def run(plan: Plan, output: str) -> int:
    """Measure and print; returns the exit status."""
    started = time.monotonic()
    found: list[Part] = []
    with tempfile.TemporaryDirectory(prefix="hadron-bench-") as directory:
        config = write_config(
            Path(directory) / "cluster.yaml",
            plan.nodes,
            plan.durability,
            grpc_ports=free_ports(plan.nodes),
        )
        with LocalCluster(Path(directory), config=config) as cluster:
            leader = cluster.config.leader
            assert leader.grpc is not None
            with hadron.connect_sync(f"hadron://{leader.address}") as client:
                client.create_stream(_STREAM)
            door = Door(leader.grpc, psutil.Process(cluster.pid(cluster.leader)))
            for name, measure in PARTS.items():
                if name in plan.parts:
                    print(f"{time.monotonic() - started:4.0f} s {name} …", file=sys.stderr)
                    found += measure(door, plan)
    durability = "fsync" if plan.nodes == 1 else plan.durability
    seconds = time.monotonic() - started
    if output == "json":
        setting = {
            "durability": durability,
            "nodes": plan.nodes,
            "record_bytes": plan.record_bytes,
            "seconds": plan.seconds,
            "rounds": plan.rounds,
            "took_s": round(seconds),
        }
        print_json(found, setting)
    else:
        print_tables(
            found,
            f"{plan.nodes} node(s) and the client on this machine ({os.cpu_count()} cores, "
            f"{platform.machine()}, Python {platform.python_version()}), durability {durability}; "
            f"through the leader's door; medians of {plan.rounds} rounds; took {seconds:.0f} s",
        )
    return 0


# --- one record a call ----------------------------------------------------------------------------


def measure_publish(door: Door, plan: Plan) -> list[Part]:
    """Publish with one record, so many at a time on one connection."""
    part = Part(
        f"Publishing {plan.record_bytes} B records over gRPC, one a call",
        ("at a time", "p50", "p99", "calls/s", "leader's CPU each"),
    )
    value = pb.Value(data=b"x" * plan.record_bytes)
    asked = pb.PublishRequest(
        stream=_STREAM, records=[pb.PublishedRecord(value=value)]
    ).SerializeToString()
    rates: dict[int, float] = {}
    alone_ms = 0.0
    with grpc.insecure_channel(door.address) as channel:
        publish = channel.unary_unary("/hadron.v1.Records/Publish")
        for count in AT_ONCE:
            _load(publish, asked, count, plan.seconds / 4)
            before_s = door.cpu_s()
            found = [_load(publish, asked, count, plan.seconds) for _ in range(plan.rounds)]
            cost = (door.cpu_s() - before_s) / sum(len(took) for took, _ in found) * 1e6
            p50, p99 = (
                middle([percentile(took, q) for took, _ in found]) * 1e3 for q in (0.5, 0.99)
            )
            rates[count] = middle([rate for _, rate in found])
            alone_ms = p50 if count == 1 else alone_ms
            part.figures[f"grpc_publish_{count}_p50_ms"] = p50
            part.figures[f"grpc_publish_{count}_per_s"] = rates[count]
            part.figures[f"grpc_publish_{count}_leader_us"] = cost
            row = (f"{count}", f"{p50:.2f} ms", f"{p99:.2f} ms", number(rates[count]))
            part.rows.append((*row, f"{number(cost)} µs"))
    most = rates[max(AT_ONCE)]
    part.verdicts += [
        Verdict(
            "a record by itself",
            f"p50 {alone_ms:.2f} ms",
            f"≤ {MAX_ONE_MS:g} ms",
            alone_ms <= MAX_ONE_MS,
        ),
        Verdict(
            f"{max(AT_ONCE)} at a time",
            f"{number(most)} calls/s",
            f"≥ {number(MIN_PER_S)}",
            most >= MIN_PER_S,
        ),
    ]
    return [part]


def _load(publish: Any, asked: bytes, count: int, seconds: float) -> tuple[list[float], float]:
    """How long each call took, and how many there were a second."""
    took: list[float] = []
    began = now = time.perf_counter()
    if count == 1:
        while now - began < seconds:
            publish(asked, timeout=_ANSWER_S)
            sent, now = now, time.perf_counter()
            took.append(now - sent)
        return took, len(took) / (now - began)
    under_way: deque[tuple[float, Any]] = deque()
    while now - began < seconds:
        while len(under_way) < count:
            under_way.append((time.perf_counter(), publish.future(asked, timeout=_ANSWER_S)))
        sent, call = under_way.popleft()
        call.result()
        now = time.perf_counter()
        took.append(now - sent)
    elapsed = now - began
    for _, call in under_way:
        call.result()
    return took, len(took) / elapsed


# --- subscriptions that get nothing ---------------------------------------------------------------


def measure_idle(door: Door, plan: Plan) -> list[Part]:
    """What the leader's memory grows by, with members of a group that have nothing to do."""
    opening = pb.ConsumeRequest(
        open=pb.ConsumeRequest.Open(stream=_STREAM, group="idle", start="latest")
    ).SerializeToString()
    with grpc.insecure_channel(door.address) as channel:
        subscribe = channel.stream_stream("/hadron.v1.Records/Subscribe")

        def open_one() -> tuple[Any, queue.SimpleQueue[bytes | None]]:
            said: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
            said.put(opening)
            events = subscribe(iter(said.get, None))
            next(events)
            return events, said

        first = open_one()
        before = door.process.memory_info().rss
        opened = [open_one() for _ in range(plan.subscriptions)]
        each = (door.process.memory_info().rss - before) / plan.subscriptions
        for events, said in (first, *opened):
            said.put(None)
            events.cancel()
    part = Part(
        f"{number(plan.subscriptions)} subscriptions over gRPC that get nothing",
        ("subscriptions", "leader's memory each"),
        [(number(plan.subscriptions), f"{each / 1e3:.0f} kB")],
        {"grpc_idle_subscription_bytes": each},
    )
    part.verdicts.append(
        Verdict(
            "an idle subscription",
            f"{each / 1e3:.0f} kB",
            f"≤ {MAX_IDLE_BYTES / 1e3:.0f} kB",
            each <= MAX_IDLE_BYTES,
        )
    )
    return [part]


PARTS: Final[dict[str, Callable[[Door, Plan], list[Part]]]] = {
    "publish": measure_publish,
    "idle": measure_idle,
}
