"""`hadron bench grpc`: what the gRPC door costs, from a program with plain grpcio.

The program is Python, and takes a good part of the machine itself; messages are made once.
"""

from __future__ import annotations

import asyncio
import queue
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import grpc
import psutil

import hadron
from hadron.bench.beside import started
from hadron.bench.report import Part, Verdict, kept, middle, number, print_found, ratio
from hadron.bench.scratch import scratch
from hadron.bench.stats import percentile
from hadron.model.errors import DeadlineExceededError, HadronError, PeerError
from hadron.model.schema import SchemaObject
from hadron.model.services import EndpointSpec
from hadron.node.supervision.cluster import LocalCluster, free_ports, write_config
from hadron.wire._pb import calls_pb2
from hadron.wire._pb import records_pb2 as pb

MAX_ONE_MS: Final = 1.2
MIN_PER_S: Final = 3_000.0
MAX_IDLE_BYTES: Final = 100_000
MAX_BESIDE_IDLE: Final = 1.1

AT_ONCE: Final = (1, 16, 64)
_STREAM: Final = "bench"
_ENDPOINT: Final = "bench"
_BESIDE: Final = "beside"
_WARM: Final = 50
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
    """Where it is, where its node takes frames, and the process behind both."""

    address: str
    frames: str
    process: psutil.Process

    def cpu_s(self) -> float:
        return sum(self.process.cpu_times()[:2])


def run(plan: Plan, output: str) -> int:
    """Measure and print; returns the exit status."""
    started = time.monotonic()
    found: list[Part] = []
    with scratch() as directory, kept(found):
        config = write_config(
            directory / "cluster.yaml",
            plan.nodes,
            plan.durability,
            grpc_ports=free_ports(plan.nodes),
        )
        with LocalCluster(directory, config=config) as cluster:
            leader = cluster.config.leader
            assert leader.grpc is not None
            with hadron.connect_sync(f"hadron://{leader.address}") as client:
                client.create_stream(_STREAM)
                client.create_stream(_BESIDE)
                spec = EndpointSpec(replica_set=cluster.config.name)
                client.apply(SchemaObject(kind="Endpoint", name=_ENDPOINT, spec=spec))
            process = psutil.Process(cluster.pid(cluster.leader))
            door = Door(leader.grpc, f"hadron://{leader.address}", process)
            for name, measure in PARTS.items():
                if name in plan.parts:
                    print(f"{time.monotonic() - started:4.0f} s {name} …", file=sys.stderr)
                    with _answers(door.address):
                        found += measure(door, plan)
    durability = "fsync" if plan.nodes == 1 else plan.durability
    took_s = time.monotonic() - started
    setting = {
        "durability": durability,
        "nodes": plan.nodes,
        "record_bytes": plan.record_bytes,
        "seconds": plan.seconds,
        "rounds": plan.rounds,
    }
    print_found(
        found,
        output,
        f"{plan.nodes} node(s) and the client",
        setting,
        took_s,
        "through the leader's door",
    )
    return 0


@contextmanager
def _answers(address: str) -> Iterator[None]:
    """Raises `PeerError`, which says who has failed, for what grpcio raises."""
    try:
        yield
    except grpc.RpcError as error:
        code, said = error.code(), error.details()
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            raise DeadlineExceededError(
                f"{address} did not answer within {_ANSWER_S:g} s", "is the machine busy?"
            ) from error
        raise PeerError(f"{address} answered {code.name}: {said}") from error


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
    with grpc.insecure_channel(door.address) as channel:
        publish = channel.unary_unary("/hadron.v1.Records/Publish")
        _measure(part, "publish", publish, asked, door, plan)
    alone_ms = part.figures["grpc_publish_1_p50_ms"]
    most = part.figures[f"grpc_publish_{max(AT_ONCE)}_per_s"]
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


def _measure(part: Part, name: str, call: Any, asked: bytes, door: Door, plan: Plan) -> None:
    for count in AT_ONCE:
        _load(call, asked, count, plan.seconds / 4)
        before_s = door.cpu_s()
        found = [_load(call, asked, count, plan.seconds) for _ in range(plan.rounds)]
        cost = (door.cpu_s() - before_s) / sum(len(took) for took, _ in found) * 1e6
        p50, p99 = (middle([percentile(took, q) for took, _ in found]) * 1e3 for q in (0.5, 0.99))
        rate = middle([rate for _, rate in found])
        part.figures[f"grpc_{name}_{count}_p50_ms"] = p50
        part.figures[f"grpc_{name}_{count}_per_s"] = rate
        part.figures[f"grpc_{name}_{count}_leader_us"] = cost
        row = (f"{count}", f"{p50:.2f} ms", f"{p99:.2f} ms", number(rate))
        part.rows.append((*row, f"{number(cost)} µs"))


def _load(call: Any, asked: bytes, count: int, seconds: float) -> tuple[list[float], float]:
    """How long each call took, and how many there were a second."""
    took: list[float] = []
    began = now = time.perf_counter()
    if count == 1:
        while now - began < seconds:
            call(asked, timeout=_ANSWER_S)
            sent, now = now, time.perf_counter()
            took.append(now - sent)
        return took, len(took) / (now - began)
    under_way: deque[tuple[float, Any]] = deque()
    while now - began < seconds:
        while len(under_way) < count:
            under_way.append((time.perf_counter(), call.future(asked, timeout=_ANSWER_S)))
        sent, future = under_way.popleft()
        future.result()
        now = time.perf_counter()
        took.append(now - sent)
    elapsed = now - began
    for _, future in under_way:
        future.result()
    return took, len(took) / elapsed


# --- calls of an endpoint -------------------------------------------------------------------------


def measure_calls(door: Door, plan: Plan) -> list[Part]:
    """Calls that a second process answers with what they bring, so many at a time."""
    part = Part(
        f"Calling an endpoint over gRPC with {plan.record_bytes} B, served over gRPC",
        ("at a time", "p50", "p99", "calls/s", "leader's CPU each"),
    )
    asked = calls_pb2.SingleCallRequest(
        endpoint=_ENDPOINT, value=pb.Value(data=b"x" * plan.record_bytes)
    ).SerializeToString()
    with _server("serve", repr(door.address)), grpc.insecure_channel(door.address) as channel:
        call = channel.unary_unary("/hadron.v1.Calls/Call")
        _measure(part, "call", call, asked, door, plan)
    return [part]


@contextmanager
def _server(function: str, argument: str = "") -> Iterator[tuple[str, int]]:
    """Within this block a process runs a function of this module: what it said, and its pid."""
    trouble = f"the server that is to be called ({function}) did not begin, or did not stay"
    with started(
        ["-c", f"from {__name__} import {function}; {function}({argument})"], trouble
    ) as it:
        assert it.stdout is not None
        said = it.stdout.readline().decode().strip()
        if not said:
            raise HadronError(trouble)
        yield said, it.pid


def serve(address: str) -> None:
    """Answer calls with what they bring, until killed."""
    said: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    opening = calls_pb2.ServerRequest.Open(endpoint=_ENDPOINT, max_in_flight=max(AT_ONCE))
    said.put(calls_pb2.ServerRequest(open=opening).SerializeToString())
    with grpc.insecure_channel(address) as channel:
        events = channel.stream_stream("/hadron.v1.Calls/Serve")(iter(said.get, b""))
        for data in events:
            event = calls_pb2.ServerEvent.FromString(data)
            if event.HasField("opened"):
                print("opened", flush=True)
            elif event.HasField("call"):
                given = event.call
                answer = calls_pb2.ServerRequest.Answer(id=given.id, value=given.value)
                said.put(calls_pb2.ServerRequest(answer=answer).SerializeToString())


# --- grpcio by itself -----------------------------------------------------------------------------


def measure_bare(_door: Door, plan: Plan) -> list[Part]:
    """Calls that grpcio's server, in a loop and a process of its own, answers with what they bring:
    what no door behind it can be below."""
    part = Part(
        f"Calling a bare server of grpcio with {plan.record_bytes} B",
        ("at a time", "p50", "p99", "calls/s", "server's CPU each"),
    )
    with _server("echo") as (address, pid), grpc.insecure_channel(address) as channel:
        bare = Door(address, "", psutil.Process(pid))
        asked = b"x" * plan.record_bytes
        _measure(part, "bare", channel.unary_unary("/bare/Echo"), asked, bare, plan)
    return [part]


def echo() -> None:
    """Answer any call with what it brings, until killed."""

    async def answer(request: bytes, _context: Any) -> bytes:
        return request

    class Echo(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, _details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(answer)

    async def run() -> None:
        server = grpc.aio.server(handlers=[Echo()])
        print(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}", flush=True)
        await server.start()
        await server.wait_for_termination()

    asyncio.run(run())


# --- subscriptions that get nothing ---------------------------------------------------------------


def measure_idle(door: Door, plan: Plan) -> list[Part]:
    """What the leader's memory grows by, with members of a group that have nothing to do; and
    whether records of another stream, on frames, notice them."""
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
        alone = [_framed_ms(door, plan)]
        before = door.process.memory_info().rss
        opened = [open_one() for _ in range(plan.subscriptions)]
        each = (door.process.memory_info().rss - before) / plan.subscriptions
        beside = [_framed_ms(door, plan) for _ in range(2)]
        for events, said in (first, *opened):
            said.put(None)
            events.cancel()
    alone.append(_framed_ms(door, plan))
    slower = sum(beside) / sum(alone)
    part = Part(
        f"{number(plan.subscriptions)} subscriptions over gRPC that get nothing",
        ("subscriptions", "leader's memory each", "a record on frames beside them", "alone"),
        [
            (
                number(plan.subscriptions),
                f"{each / 1e3:.0f} kB",
                f"{middle(beside):.2f} ms",
                f"{middle(alone):.2f} ms",
            )
        ],
        {"grpc_idle_subscription_bytes": each, "framed_beside_idle_to_alone": slower},
    )
    part.verdicts.append(
        Verdict(
            "an idle subscription",
            f"{each / 1e3:.0f} kB",
            f"≤ {MAX_IDLE_BYTES / 1e3:.0f} kB",
            each <= MAX_IDLE_BYTES,
        )
    )
    part.verdicts.append(
        Verdict(
            "a record on frames beside them",
            ratio(slower),
            f"≤ {MAX_BESIDE_IDLE:.2f} x",
            slower <= MAX_BESIDE_IDLE,
        )
    )
    return [part]


def _framed_ms(door: Door, plan: Plan) -> float:
    """The median of records that a client on frames publishes one after the other."""
    took: list[float] = []
    with hadron.connect_sync(door.frames) as client, client.producer(_BESIDE) as producer:
        value = b"x" * plan.record_bytes
        for _ in range(_WARM):
            producer.send(value)
        end_s = time.perf_counter() + plan.seconds
        while time.perf_counter() < end_s:
            began_s = time.perf_counter()
            producer.send(value)
            took.append((time.perf_counter() - began_s) * 1e3)
    return percentile(took, 0.5)


PARTS: Final[dict[str, Callable[[Door, Plan], list[Part]]]] = {
    "publish": measure_publish,
    "calls": measure_calls,
    "bare": measure_bare,
    "idle": measure_idle,
}
