"""`hadron bench endpoints`: what a remote call costs, beside a plain request to the leader.

Caller, leader and server are a process each. What a call takes when nobody else is at work is
judged beside the smallest thing that may be asked of a leader, one after the other in each round: a
machine that is busy slows both down.
"""

from __future__ import annotations

import gc
import os
import platform
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio

from hadron.bench.beside import beside
from hadron.bench.report import (
    Part,
    Verdict,
    middle,
    middle_ratio,
    number,
    print_json,
    print_tables,
    ratio,
)
from hadron.bench.stats import ProcessUse, percentile
from hadron.client import Client, connect
from hadron.model.schema import SchemaObject
from hadron.model.services import SINGLE, STREAM, EndpointSpec
from hadron.node.supervision.cluster import LocalCluster
from hadron.wire.messages import cluster_pb2, method

MAX_ONE_MS: Final = 0.4
"""The median of calls one at a time, on two quiet cores."""

MIN_PER_S: Final = 15_000
"""Calls a second, 64 at once, likewise."""

AT_ONCE: Final = 64

_BEGUN: Final = b"begun\n"
_TOPOLOGY: Final = method("Topology")
_WARM: Final = 200


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure.

    Attributes:
        value_bytes: of each value, both ways.
    """

    nodes: int
    value_bytes: int
    seconds: float
    rounds: int


def run(plan: Plan, output: str) -> int:
    """Measure and print; returns the exit status."""
    started = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="hadron-bench-") as directory,
        LocalCluster(Path(directory), nodes=plan.nodes, durability="os") as cluster,
    ):
        leader = ProcessUse(cluster.pid(cluster.leader))
        part = anyio.run(_measure, cluster.url, plan, leader, backend="trio")
    seconds = time.monotonic() - started
    if output == "json":
        print_json(
            [part],
            {
                "nodes": plan.nodes,
                "value_bytes": plan.value_bytes,
                "seconds": plan.seconds,
                "rounds": plan.rounds,
                "load_1m": round(os.getloadavg()[0], 1),
            },
        )
    else:
        print_tables(
            [part],
            f"{plan.nodes} node(s), a caller and a server on this machine ({os.cpu_count()} cores, "
            f"{platform.machine()}, Python {platform.python_version()}), load "
            f"{os.getloadavg()[0]:.1f}; {plan.value_bytes} B each way; medians of {plan.rounds} "
            f"rounds, {plan.seconds:g} s each; took {seconds:.0f} s",
        )
    return 0


async def _measure(url: str, plan: Plan, leader: ProcessUse) -> Part:
    gc.freeze()
    async with connect(url) as client:
        home = client._session.topology.metadata
        for name, output in (("echo", SINGLE), ("repeat", STREAM)):
            spec = EndpointSpec(replica_set=home, output=output)
            await client.apply([SchemaObject(kind="Endpoint", name=name, spec=spec)])
        async with beside(
            "hadron.bench.endpoints",
            (url,),
            begun=_BEGUN,
            trouble="the server that is to be called did not begin",
        ) as server:
            return await _rounds(client, plan, leader, ProcessUse(server))


async def _rounds(client: Client, plan: Plan, leader: ProcessUse, server: ProcessUse) -> Part:
    value = b"x" * plan.value_bytes
    connection = await client._session.connect(client._session.topology.metadata)
    plain, one, many, streamed = [], [], [], []
    cpu: dict[str, list[float]] = {"caller": [], "leader": [], "server": []}

    async def ask() -> Any:
        await connection.request(_TOPOLOGY, cluster_pb2.TopologyRequest())

    async def call() -> Any:
        await client.call("echo", value)

    await _one_at_a_time(call, 0.2)
    for _ in range(plan.rounds):
        plain.append(await _one_at_a_time(ask, plan.seconds / 4))
        one.append(await _one_at_a_time(call, plan.seconds))
        before = _cpu(leader, server)
        count, took_s = await _at_once(call, plan.seconds)
        for name, used_s in _cpu(leader, server).items():
            cpu[name].append((used_s - before[name]) / count * 1e6)
        many.append(count / took_s)
        streamed.append(await _stream(client, value, plan.seconds))
    return _part(plain, one, many, streamed, {name: middle(each) for name, each in cpu.items()})


def _cpu(leader: ProcessUse, server: ProcessUse) -> dict[str, float]:
    return {"caller": time.process_time(), "leader": leader.cpu_s(), "server": server.cpu_s()}


async def _one_at_a_time(act: Callable[[], Awaitable[Any]], seconds: float) -> list[float]:
    """How long each took, in milliseconds."""
    took: list[float] = []
    end_s = time.perf_counter() + seconds
    while len(took) < _WARM or time.perf_counter() < end_s:
        began_s = time.perf_counter()
        await act()
        took.append((time.perf_counter() - began_s) * 1e3)
    return took


async def _at_once(act: Callable[[], Awaitable[Any]], seconds: float) -> tuple[int, float]:
    """How many were done, and in which time."""
    count = 0
    began_s = time.perf_counter()
    end_s = began_s + seconds

    async def work() -> None:
        nonlocal count
        while time.perf_counter() < end_s:
            await act()
            count += 1

    async with anyio.create_task_group() as tasks:
        for _ in range(AT_ONCE):
            tasks.start_soon(work)
    return count, time.perf_counter() - began_s


async def _stream(client: Client, value: bytes, seconds: float) -> float:
    """Values a second of one streamed answer."""
    count = 0
    began_s = time.perf_counter()
    async with client.call_stream("repeat", value) as call:
        async for _ in call:
            count += 1
            if time.perf_counter() - began_s > seconds / 2:
                break
    return count / (time.perf_counter() - began_s)


def _part(
    plain: list[list[float]],
    one: list[list[float]],
    many: list[float],
    streamed: list[float],
    cpu: dict[str, float],
) -> Part:
    p50 = {
        name: [percentile(each, 0.5) for each in rounds]
        for name, rounds in (("plain", plain), ("one", one))
    }
    p99 = middle(percentile(each, 0.99) for each in one)
    to_plain = middle_ratio(p50["one"], p50["plain"])
    per_s = middle(many)
    figures = {
        "plain_request_p50_ms": middle(p50["plain"]),
        "call_one_p50_ms": middle(p50["one"]),
        "call_one_p99_ms": p99,
        "call_one_to_plain": to_plain,
        f"call_{AT_ONCE}_per_s": per_s,
        "stream_values_per_s": middle(streamed),
        **{f"cpu_{name}_us": used for name, used in cpu.items()},
    }
    return Part(
        "Endpoints: unary calls, and a streamed answer",
        ("", "measured", ""),
        [
            ("a plain request, one at a time", number(figures["plain_request_p50_ms"]), "ms, p50"),
            ("a call, one at a time", number(figures["call_one_p50_ms"]), "ms, p50"),
            ("", number(p99), "ms, p99"),
            ("", number(to_plain), "plain requests"),
            (f"calls, {AT_ONCE} at once", number(per_s), "a second"),
            ("CPU of each of these", number(sum(cpu.values())), "µs: caller, leader, server"),
            ("", " + ".join(number(each) for each in cpu.values()), "µs"),
            ("values of a streamed answer", number(figures["stream_values_per_s"]), "a second"),
        ],
        figures,
        [
            Verdict(
                "a call, one at a time, p50",
                f"{middle(p50['one']):.2f} ms, {ratio(to_plain)} a plain request",
                f"at most {MAX_ONE_MS} ms on two quiet cores",
                middle(p50["one"]) <= MAX_ONE_MS,
            ),
            Verdict(
                f"calls, {AT_ONCE} at once",
                f"{number(per_s)} a second",
                f"at least {MIN_PER_S:,} on two quiet cores",
                per_s >= MIN_PER_S,
            ),
        ],
    )


# --- the server -----------------------------------------------------------------------------------


async def _serve(url: str) -> None:
    async def echo(value: Any) -> Any:
        return value

    async def repeat(value: Any) -> AsyncIterator[Any]:
        while True:
            yield value

    gc.freeze()
    async with (
        connect(url) as client,
        client.serve("echo", echo, max_in_flight=4 * AT_ONCE) as serving,
        client.serve("repeat", repeat),
    ):
        os.write(sys.stdout.fileno(), _BEGUN)
        await serving.wait()


if __name__ == "__main__":
    anyio.run(_serve, sys.argv[1], backend="trio")
