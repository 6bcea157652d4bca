"""`hadron bench http`: what the HTTP door costs, from a program that does nothing else.

The client here is sockets and as little as possible: what is measured is the node's. Requests are
made once and sent again; answers are looked at for their status and length only.
"""

from __future__ import annotations

import selectors
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import psutil

from hadron.bench.report import Part, Verdict, kept, middle, number, print_found
from hadron.bench.scratch import scratch
from hadron.bench.stats import percentile
from hadron.model.errors import DeadlineExceededError, PeerError
from hadron.node.supervision.cluster import LocalCluster, free_ports, write_config
from hadron.wire.sockets import split_address

MAX_ONE_MS: Final = 2.0
MIN_PER_S: Final = 2_000.0
MIN_LINES_PER_S: Final = 200_000.0

AT_ONCE: Final = (1, 16, 64)
_STREAM: Final = "/v1/streams/bench"
_ANSWER_S: Final = 30.0
_LINES_AT_ONCE: Final = 2_000


@dataclass(frozen=True, slots=True)
class Plan:
    """
    Attributes:
        seconds: of each measurement.
        records: of NDJSON in each round.
        parts: which, of `PARTS`.
    """

    nodes: int
    record_bytes: int
    durability: str
    seconds: float
    rounds: int
    records: int
    parts: Sequence[str]


def run(plan: Plan, output: str) -> int:
    """Measure and print; returns the exit status."""
    started = time.monotonic()
    found: list[Part] = []
    with scratch() as directory, kept(found):
        config = write_config(
            directory / "cluster.yaml",
            plan.nodes,
            plan.durability,
            http_ports=free_ports(plan.nodes),
        )
        with LocalCluster(directory, config=config) as cluster:
            cluster.start_all()
            address = cluster.config.leader.http
            assert address is not None
            connection = Connection(address)
            connection.ask(request("PUT", _STREAM, b""))
            connection.close()
            process = psutil.Process(cluster.pid(cluster.leader))

            def cpu_s() -> float:
                return sum(process.cpu_times()[:2])

            for name, measure in PARTS.items():
                if name in plan.parts:
                    print(f"{time.monotonic() - started:4.0f} s {name} …", file=sys.stderr)
                    found += measure(address, plan, cpu_s)
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


# --- one record a request -------------------------------------------------------------------------


def measure_publish(address: str, plan: Plan, cpu_s: Callable[[], float]) -> list[Part]:
    """Requests of one record, so many at a time, each on a connection of its own."""
    part = Part(
        f"Publishing {plan.record_bytes} B records over HTTP, one a request",
        ("at a time", "p50", "p99", "requests/s", "leader's CPU each"),
    )
    asked = request("POST", _STREAM, b"x" * plan.record_bytes)
    rates: dict[int, float] = {}
    alone_ms = 0.0
    for count in AT_ONCE:
        _load(address, asked, count, plan.seconds / 4)
        before_s = cpu_s()
        found = [_load(address, asked, count, plan.seconds) for _ in range(plan.rounds)]
        if not all(took for took, _ in found):
            raise DeadlineExceededError(
                f"{address} answered none of {count} requests at a time within {plan.seconds:g} s",
                "is the machine busy? give it more --seconds",
            )
        cost = (cpu_s() - before_s) / sum(len(took) for took, _ in found) * 1e6
        p50, p99 = (middle([percentile(took, q) for took, _ in found]) * 1e3 for q in (0.5, 0.99))
        rates[count] = middle([rate for _, rate in found])
        alone_ms = p50 if count == 1 else alone_ms
        part.figures[f"http_publish_{count}_p50_ms"] = p50
        part.figures[f"http_publish_{count}_per_s"] = rates[count]
        part.figures[f"http_publish_{count}_leader_us"] = cost
        part.rows.append(
            (
                f"{count}",
                f"{p50:.2f} ms",
                f"{p99:.2f} ms",
                number(rates[count]),
                f"{number(cost)} µs",
            )
        )
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
            f"{number(most)} requests/s",
            f"≥ {number(MIN_PER_S)}",
            most >= MIN_PER_S,
        ),
    ]
    return [part]


def _load(address: str, asked: bytes, count: int, seconds: float) -> tuple[list[float], float]:
    """How long each request took, and how many there were a second."""
    connections = [Connection(address) for _ in range(count)]
    took: list[float] = []
    with selectors.DefaultSelector() as selector:
        began = time.perf_counter()
        for each in connections:
            selector.register(each.sock, selectors.EVENT_READ, each)
            each.send(asked)
        while (now := time.perf_counter()) - began < seconds:
            for key, _ in selector.select(_ANSWER_S):
                connection: Connection = key.data
                if connection.receive():
                    now = time.perf_counter()
                    took.append(now - connection.sent_s)
                    connection.send(asked)
        elapsed = now - began
    for each in connections:
        each.close()
    return took, len(took) / elapsed


# --- NDJSON ---------------------------------------------------------------------------------------


def measure_lines(address: str, plan: Plan, cpu_s: Callable[[], float]) -> list[Part]:
    """One request of many records, a JSON object a line."""
    pad = b"x" * max(0, plan.record_bytes - 24)
    lines = b"".join(b'{"n":1%06d,"pad":"%b"}\n' % (each, pad) for each in range(_LINES_AT_ONCE))
    rates, before_s = [], cpu_s()
    count = plan.records // _LINES_AT_ONCE
    for _ in range(plan.rounds):
        connection = Connection(address)
        began = time.perf_counter()
        head = _head("POST", _STREAM, "application/x-ndjson", len(lines) * count)
        connection.send(head)
        for _ in range(count):
            connection.send(lines)
        while not connection.receive():
            pass
        rates.append(count * _LINES_AT_ONCE / (time.perf_counter() - began))
        connection.close()
    rate = middle(rates)
    cost = (cpu_s() - before_s) / (count * _LINES_AT_ONCE * plan.rounds) * 1e6
    part = Part(
        f"NDJSON over HTTP, one request of {number(count * _LINES_AT_ONCE)} lines of "
        f"{len(lines) // _LINES_AT_ONCE} B",
        ("round", "records/s"),
        [(f"{turn}", number(each)) for turn, each in enumerate(rates, 1)],
        {"http_lines_per_s": rate, "http_line_leader_us": cost},
    )
    part.verdicts.append(
        Verdict(
            "NDJSON",
            f"{number(rate)} records/s, {cost:.2f} µs of the leader's CPU each",
            f"≥ {number(MIN_LINES_PER_S)}",
            rate >= MIN_LINES_PER_S,
        )
    )
    return [part]


# --- a client -------------------------------------------------------------------------------------


def request(method: str, path: str, body: bytes) -> bytes:
    return _head(method, path, "text/plain" if body else "", len(body)) + body


def _head(method: str, path: str, media: str, length: int) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", f"content-length: {length}"]
    if media:
        lines.append(f"content-type: {media}")
    return "\r\n".join([*lines, "\r\n"]).encode()


class Connection:
    """One request at a time."""

    def __init__(self, address: str) -> None:
        self._address = address
        with self._trouble("connect"):
            self.sock = socket.create_connection(split_address(address), _ANSWER_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sent_s = 0.0
        self._received = b""

    def send(self, asked: bytes) -> None:
        self.sent_s = time.perf_counter()
        with self._trouble("take what was sent"):
            self.sock.sendall(asked)

    def receive(self) -> bool:
        """Whether the answer is complete. Raises `PeerError` for one that is none of success, or
        that breaks off."""
        with self._trouble("answer"):
            data = self.sock.recv(1 << 16)
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not data:
            said = self._received[:500].decode(errors="replace")
            raise PeerError(f"{self._address} closed the connection in mid-answer, after {said!r}")
        if not end:
            return False
        if not head.startswith(b"HTTP/1.1 200"):
            said = self._received[:500].decode(errors="replace")
            raise PeerError(f"{self._address} answered {said!r}")
        length = next(
            int(line.split(b":")[1])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length:")
        )
        if len(body) < length:
            return False
        self._received = b""
        return True

    def ask(self, asked: bytes) -> None:
        self.send(asked)
        while not self.receive():
            pass

    def close(self) -> None:
        self.sock.close()

    @contextmanager
    def _trouble(self, what: str) -> Iterator[None]:
        """Raises a `PeerError` that says who has failed for what sockets raise."""
        try:
            yield
        except TimeoutError as error:
            raise DeadlineExceededError(
                f"{self._address} did not {what} within {_ANSWER_S:g} s", "is the machine busy?"
            ) from error
        except OSError as error:
            raise PeerError(f"{self._address} did not {what}: {error.strerror or error}") from error


PARTS: Final[dict[str, Callable[[str, Plan, Callable[[], float]], list[Part]]]] = {
    "publish": measure_publish,
    "lines": measure_lines,
}
