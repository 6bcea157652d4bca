"""`hadron bench endpoints`: what a remote call costs, beside a plain request to the leader.

Caller, leader and server are a process each. What a call takes when nobody else is at work is
judged beside the smallest thing that may be asked of a leader, one after the other in each round: a
machine that is busy slows both down. Where NATS is installed, the same caller and server speak to
it as well: its requests are answered by whoever has subscribed to their subject.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import anyio

from hadron.bench.beside import beside
from hadron.bench.nats import Nats, nats, nats_server
from hadron.bench.report import Part, Verdict, middle, middle_ratio, number, print_found, ratio
from hadron.bench.scratch import scratch
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
        scratch() as directory,
        LocalCluster(directory, nodes=plan.nodes, durability="os") as cluster,
        nats_server() as other,
    ):
        leader = ProcessUse(cluster.pid(cluster.leader))
        port, broker = other or (0, None)
        part = anyio.run(_measure, cluster.url, plan, leader, port, broker, backend="trio")
    took_s, load = time.monotonic() - started, round(os.getloadavg()[0], 1)
    setting = {
        "nodes": plan.nodes,
        "value_bytes": plan.value_bytes,
        "seconds": plan.seconds,
        "rounds": plan.rounds,
        "load_1m": load,
    }
    print_found(
        [part],
        output,
        f"{plan.nodes} node(s), a caller and a server",
        setting,
        took_s,
        f"load {load}",
        f"{plan.value_bytes} B each way",
    )
    return 0


async def _measure(
    url: str, plan: Plan, leader: ProcessUse, port: int, broker: ProcessUse | None
) -> Part:
    """`port` and `broker`: NATS'; 0 and None without."""
    gc.freeze()
    async with connect(url) as client, AsyncExitStack() as stack:
        home = client._session.topology.metadata
        for name, output in (("echo", SINGLE), ("repeat", STREAM)):
            spec = EndpointSpec(replica_set=home, output=output)
            await client.apply([SchemaObject(kind="Endpoint", name=name, spec=spec)])
        server = await stack.enter_async_context(
            beside(
                "hadron.bench.endpoints",
                (url, str(port)),
                begun=_BEGUN,
                trouble="the server that is to be called did not begin, or did not stay",
            )
        )
        other = await stack.enter_async_context(nats(port)) if port else None
        calls = Calls(client, plan, leader, ProcessUse(server))
        theirs = Requests(other, plan, broker, ProcessUse(server)) if other and broker else None
        for _ in range(plan.rounds):
            await calls.measure()
            if theirs is not None:
                await theirs.measure()
        part = _part(calls.found)
        if theirs is not None:
            _add_nats(part, calls.found, theirs.found)
        return part


@dataclass(frozen=True, slots=True)
class Found:
    """Of each round: milliseconds of plain requests and of calls, one at a time; calls a second at
    once, microseconds of CPU of each of these by process, and values a second of a stream."""

    plain: list[list[float]] = field(default_factory=list)
    one: list[list[float]] = field(default_factory=list)
    many: list[float] = field(default_factory=list)
    cpu_us: list[dict[str, float]] = field(default_factory=list)
    streamed: list[float] = field(default_factory=list)

    @property
    def one_ms(self) -> list[float]:
        return [percentile(each, 0.5) for each in self.one]

    def cpu_of(self, process: str) -> float:
        return middle(each[process] for each in self.cpu_us)


class Calls:
    """Of the endpoint, one round after the other."""

    def __init__(self, client: Client, plan: Plan, leader: ProcessUse, server: ProcessUse) -> None:
        self.found = Found()
        self._client = client
        self._plan = plan
        self._leader = leader
        self._server = server
        self._value = b"x" * plan.value_bytes

    async def measure(self) -> None:
        client, plan, found = self._client, self._plan, self.found
        connection = await client._session.connect(client._session.topology.metadata)

        async def ask() -> Any:
            await connection.request(_TOPOLOGY, cluster_pb2.TopologyRequest())

        async def call() -> Any:
            await client.call("echo", self._value)

        await _one_at_a_time(call, 0.2)
        found.plain.append(await _one_at_a_time(ask, plan.seconds / 4))
        found.one.append(await _one_at_a_time(call, plan.seconds))
        await _measure_many(call, plan, self._leader, self._server, found)
        found.streamed.append(await _stream(client, self._value, plan.seconds))


class Requests:
    """The same, of the subject in NATS."""

    def __init__(
        self, connection: Nats, plan: Plan, broker: ProcessUse, server: ProcessUse
    ) -> None:
        self.found = Found()
        self._connection = connection
        self._plan = plan
        self._broker = broker
        self._server = server
        self._value = b"x" * plan.value_bytes

    async def measure(self) -> None:
        async def request() -> None:
            await self._connection.request("echo", self._value)

        await _one_at_a_time(request, 0.2)
        self.found.one.append(await _one_at_a_time(request, self._plan.seconds))
        await _measure_many(request, self._plan, self._broker, self._server, self.found)


async def _measure_many(
    call: Callable[[], Awaitable[Any]],
    plan: Plan,
    leader: ProcessUse,
    server: ProcessUse,
    found: Found,
) -> None:
    before = _cpu(leader, server)
    count, took_s = await _at_once(call, plan.seconds)
    used_s = {name: now_s - before[name] for name, now_s in _cpu(leader, server).items()}
    found.cpu_us.append({name: each / count * 1e6 for name, each in used_s.items()})
    found.many.append(count / took_s)


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


def _part(found: Found) -> Part:
    one_ms, plain_ms = found.one_ms, [percentile(each, 0.5) for each in found.plain]
    p99 = middle(percentile(each, 0.99) for each in found.one)
    to_plain = middle_ratio(one_ms, plain_ms)
    per_s = middle(found.many)
    cpu = {name: found.cpu_of(name) for name in found.cpu_us[0]}
    figures = {
        "plain_request_p50_ms": middle(plain_ms),
        "call_one_p50_ms": middle(one_ms),
        "call_one_p99_ms": p99,
        "call_one_to_plain": to_plain,
        f"call_{AT_ONCE}_per_s": per_s,
        "stream_values_per_s": middle(found.streamed),
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
                f"{middle(one_ms):.2f} ms, {ratio(to_plain)} a plain request",
                f"at most {MAX_ONE_MS} ms on two quiet cores",
                middle(one_ms) <= MAX_ONE_MS,
            ),
            Verdict(
                f"calls, {AT_ONCE} at once",
                f"{number(per_s)} a second",
                f"at least {MIN_PER_S:,} on two quiet cores",
                per_s >= MIN_PER_S,
            ),
        ],
    )


def _add_nats(part: Part, ours: Found, theirs: Found) -> None:
    """What the same is through NATS, and what of it ours is."""
    slower = middle_ratio(ours.one_ms, theirs.one_ms)
    share = middle_ratio(ours.many, theirs.many)
    cpu = {name: theirs.cpu_of(name) for name in theirs.cpu_us[0]}
    part.rows += [
        ("a request through NATS, one at a time", number(middle(theirs.one_ms)), "ms, p50"),
        (f"requests, {AT_ONCE} at once", number(middle(theirs.many)), "a second"),
        ("", " + ".join(number(each) for each in cpu.values()), "µs: caller, its server, server"),
    ]
    part.figures |= {
        "nats_one_p50_ms": middle(theirs.one_ms),
        f"nats_{AT_ONCE}_per_s": middle(theirs.many),
        "call_one_to_nats": slower,
        f"call_{AT_ONCE}_to_nats": share,
        **{f"nats_cpu_{name}_us": used for name, used in cpu.items()},
    }
    part.verdicts += [
        Verdict("a call to a request through NATS, one at a time", ratio(slower)),
        Verdict(f"calls to requests through NATS a second, {AT_ONCE} at once", ratio(share)),
    ]


# --- the server -----------------------------------------------------------------------------------


async def _serve(url: str, port: int) -> None:
    async def echo(value: Any) -> Any:
        return value

    async def repeat(value: Any) -> AsyncIterator[Any]:
        while True:
            yield value

    gc.freeze()
    async with AsyncExitStack() as stack:
        if port:
            other = await stack.enter_async_context(nats(port))
            other.subscribe("echo", lambda _, reply, data: other.publish(reply, data))
            await other.flush()
        client = await stack.enter_async_context(connect(url))
        many = 4 * AT_ONCE
        serving = await stack.enter_async_context(client.serve("echo", echo, max_in_flight=many))
        await stack.enter_async_context(client.serve("repeat", repeat))
        os.write(sys.stdout.fileno(), _BEGUN)
        await serving.wait()


if __name__ == "__main__":
    anyio.run(_serve, sys.argv[1], int(sys.argv[2]), backend="trio")
