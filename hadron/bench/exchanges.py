"""`hadron bench exchanges`: fan-out, latency, and what many subscriptions cost.

Publisher and subscribers are in this one process, with a few connections: deliveries/s are those of
one client process as much as of the leader, whose CPU time stands beside them. Where NATS is
installed, the same messages go to the same subscribers through it as well.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

import anyio

from hadron.bench.nats import Handle, Nats, nats, nats_server
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
from hadron.bench.stats import ProcessUse, percentile
from hadron.client import Client, connect
from hadron.client.exchanges.exchange import Exchange
from hadron.client.exchanges.messages import Messages
from hadron.model.errors import HadronError
from hadron.node.supervision.cluster import LocalCluster

MIN_DELIVERIES_PER_S: Final = 400_000.0
MAX_GROWTH: Final = 2.0
"""Of a publication's cost at the leader, with a hundred thousand subscriptions that do not match
beside ten."""

CLIENTS: Final = 4
"""Connections that the subscribers share."""

_CHUNK: Final = 200
"""Messages that are published together."""

_AHEAD: Final = 8
"""Chunks that the slowest subscriber may be behind, so that nothing has to be dropped."""

_LOOK_S: Final = 0.02
"""How often it is looked at what was dropped, which nobody takes."""

_WARM_UP: Final = 20
_PER_CALL: Final = 90
"""Patterns of one idle subscription."""

_IDLE_CLIENTS: Final = 12


@dataclass(frozen=True, slots=True)
class Plan:
    """
    Attributes:
        seconds: that each round of fan-out takes.
        messages: one at a time, that latency is taken from.
        idle: patterns that match nothing of what is published.
        parts: which, of `PARTS`.
    """

    nodes: int
    record_bytes: int
    seconds: float
    rounds: int
    subscribers: int
    messages: int
    idle: int
    parts: Sequence[str]


@dataclass(frozen=True, slots=True)
class FanOut:
    """Of one round; CPU times are microseconds per delivery."""

    deliveries_per_s: float
    messages_per_s: float
    leader_us: float
    client_us: float
    missed: int


def run(plan: Plan, output: str) -> int:
    """Measure and print; returns the exit status."""
    started = time.monotonic()
    found: list[Part] = []
    load = os.getloadavg()[0]
    with scratch() as directory, kept(found):
        cluster = LocalCluster(directory, nodes=plan.nodes, durability="os")
        with cluster:
            leader = ProcessUse(cluster.pid(cluster.leader))
            anyio.run(_measure, cluster.url, plan, leader, found, backend="trio")
    took_s = time.monotonic() - started
    setting = {
        "nodes": plan.nodes,
        "record_bytes": plan.record_bytes,
        "rounds": plan.rounds,
        "subscribers": plan.subscribers,
        "load_before": round(load, 2),
    }
    print_found(
        found,
        output,
        f"{plan.nodes} node(s) and all clients",
        setting,
        took_s,
        f"load {load:.1f} before",
    )
    return 0


async def _measure(url: str, plan: Plan, leader: ProcessUse, found: list[Part]) -> None:
    """Add to `found` what each part has come to."""
    gc.freeze()
    started = time.monotonic()
    async with connect(url) as client:
        (home,) = {each.name for each in (await client.topology()).replica_sets}
        await client.apply(f"kind: Exchange\nname: bench\nreplica_set: {home}\n")
        for name, measure in PARTS.items():
            if name in plan.parts:
                print(f"{time.monotonic() - started:4.0f} s {name} …", file=sys.stderr)
                found.append(await measure(url, client, plan, leader))


# --- fan-out ----------------------------------------------------------------------------------


async def measure_fan_out(url: str, client: Client, plan: Plan, leader: ProcessUse) -> Part:
    """Every message to every subscriber, as fast as the slowest of them takes it."""
    rounds, theirs = [], list[FanOut]()
    with nats_server() as other:
        for _ in range(plan.rounds):
            rounds.append(await _fan_out(url, client, plan, leader))
            if other is not None:
                theirs.append(await _nats_fan_out(*other, plan))
    per_s = middle([each.deliveries_per_s for each in rounds])
    missed = sum(each.missed for each in rounds)
    part = Part(
        f"messages of {plan.record_bytes} B to {plan.subscribers} subscribers on {CLIENTS} "
        f"connections, {_CHUNK} published together",
        ("", "deliveries/s", "messages/s", "broker µs each", "clients µs each", "missed"),
    )
    part.rows.append(_row("Hadron", rounds))
    part.figures = {
        "deliveries_per_s": per_s,
        "leader_us": middle([each.leader_us for each in rounds]),
        "client_us": middle([each.client_us for each in rounds]),
        "missed": missed,
    }
    part.verdicts.append(
        Verdict(
            f"deliveries/s to {plan.subscribers} subscribers",
            number(per_s),
            f">= {number(MIN_DELIVERIES_PER_S)}",
            per_s >= MIN_DELIVERIES_PER_S and not missed,
        )
    )
    if theirs:
        part.rows.append(_row("NATS", theirs))
        to_nats = middle_ratio(
            [each.deliveries_per_s for each in rounds], [each.deliveries_per_s for each in theirs]
        )
        part.figures |= {
            "nats_deliveries_per_s": middle([each.deliveries_per_s for each in theirs]),
            "deliveries_to_nats": to_nats,
        }
        part.verdicts.append(Verdict("deliveries/s to those through NATS", ratio(to_nats)))
    return part


def _row(name: str, rounds: Sequence[FanOut]) -> tuple[str, ...]:
    return (
        name,
        number(middle([each.deliveries_per_s for each in rounds])),
        number(middle([each.messages_per_s for each in rounds])),
        number(middle([each.leader_us for each in rounds])),
        number(middle([each.client_us for each in rounds])),
        f"{sum(each.missed for each in rounds)}",
    )


class _Subscribers:
    """How far each is, by what it has taken and what it will never have."""

    def __init__(self, subscribed: Sequence[Messages]) -> None:
        self._subscribed = subscribed
        self._taken = [0] * len(subscribed)
        self._news = anyio.Event()

    async def take(self, at: int) -> None:
        """All that comes to one of them."""
        count = 0
        async for _ in self._subscribed[at]:
            count += 1
            self._taken[at] = count
            if not count % _CHUNK:
                self._news.set()

    async def wait(self, sent: int) -> None:
        """Until none of so many messages is on its way to any. Raises `HadronError` when that
        cannot be known."""
        while self._least() < sent:
            self._news = anyio.Event()
            with anyio.move_on_after(_LOOK_S):
                await self._news.wait()

    def _least(self) -> int:
        if any(each.interruptions for each in self._subscribed):
            raise HadronError("the leader was away while messages were counted", "measure again")
        return min(
            taken + each.missed for taken, each in zip(self._taken, self._subscribed, strict=True)
        )


async def _fan_out(url: str, client: Client, plan: Plan, leader: ProcessUse) -> FanOut:
    value = b"x" * plan.record_bytes
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(url)) for _ in range(CLIENTS)]
        subscribed = [
            await stack.enter_async_context(
                clients[at % CLIENTS].exchange("bench").subscribe("eu.*")
            )
            for at in range(plan.subscribers)
        ]
        tasks = await stack.enter_async_context(anyio.create_task_group())
        subscribers = _Subscribers(subscribed)
        for at in range(plan.subscribers):
            tasks.start_soon(subscribers.take, at)
        chunk = [("eu.ibm", value)] * _CHUNK
        exchange = client.exchange("bench")
        sent = 0
        began, leader_s, own_s = time.monotonic(), leader.cpu_s(), time.process_time()
        while time.monotonic() - began < plan.seconds:
            await exchange.publish_many(chunk)
            sent += _CHUNK
            await subscribers.wait(sent - _AHEAD * _CHUNK)
        await subscribers.wait(sent)
        took_s = time.monotonic() - began
        used = leader.cpu_s() - leader_s, time.process_time() - own_s
        missed = sum(each.missed for each in subscribed)
        tasks.cancel_scope.cancel()
    return _found(plan, sent, took_s, used, missed)


def _found(
    plan: Plan, sent: int, took_s: float, used_s: tuple[float, float], missed: int
) -> FanOut:
    deliveries = max(1, sent * plan.subscribers - missed)
    leader_us, client_us = (seconds / deliveries * 1e6 for seconds in used_s)
    return FanOut(deliveries / took_s, sent / took_s, leader_us, client_us, missed)


async def _nats_fan_out(port: int, broker: ProcessUse, plan: Plan) -> FanOut:
    """The same through NATS, which is told of a message on the wire, each by itself."""
    value = b"x" * plan.record_bytes
    taken = [0] * plan.subscribers
    news = anyio.Event()

    def take_at(at: int) -> Handle:
        def take(_subject: str, _reply: str, _data: bytes) -> None:
            taken[at] += 1
            if not taken[at] % _CHUNK:
                news.set()

        return take

    async with AsyncExitStack() as stack:
        publisher = await stack.enter_async_context(nats(port))
        clients: list[Nats] = [await stack.enter_async_context(nats(port)) for _ in range(CLIENTS)]
        for at in range(plan.subscribers):
            clients[at % CLIENTS].subscribe("eu.*", take_at(at))
        for each in clients:
            await each.flush()
        sent = 0
        began, broker_s, own_s = time.monotonic(), broker.cpu_s(), time.process_time()
        while time.monotonic() - began < plan.seconds or min(taken) < sent:
            if time.monotonic() - began < plan.seconds and sent - min(taken) <= _AHEAD * _CHUNK:
                for _ in range(_CHUNK):
                    publisher.publish("eu.ibm", value)
                sent += _CHUNK
                await publisher.flush()
            else:
                news = anyio.Event()
                await news.wait()
        took_s = time.monotonic() - began
        used = broker.cpu_s() - broker_s, time.process_time() - own_s
    return _found(plan, sent, took_s, used, 0)


# --- one at a time ----------------------------------------------------------------------------


async def measure_latency(url: str, client: Client, plan: Plan, leader: ProcessUse) -> Part:
    """From a message on its way to the subscriber that has it, one after the other."""
    async with connect(url) as other:
        exchange = client.exchange("bench")
        async with other.exchange("bench").subscribe("eu.*") as messages:
            taken_us, leader_us = await _one_by_one(exchange, messages, plan, leader)
    p50, p99 = percentile(taken_us, 0.5), percentile(taken_us, 0.99)
    part = Part(
        f"from publish to a subscriber, {plan.messages:,} one after the other",
        ("", "p50 µs", "p99 µs", "leader µs each"),
    )
    part.rows.append(("publish to delivered", number(p50), number(p99), number(leader_us)))
    part.figures = {"delivered_p50_us": p50, "delivered_p99_us": p99}
    return part


async def _one_by_one(
    exchange: Exchange, messages: Messages, plan: Plan, leader: ProcessUse
) -> tuple[list[float], float]:
    """Microseconds that each took, and the leader's CPU time of each."""
    value = b"x" * plan.record_bytes
    taken_us: list[float] = []
    leader_s = 0.0
    for turn in range(_WARM_UP + plan.messages):
        if turn == _WARM_UP:
            leader_s = leader.cpu_s()
        began = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(exchange.publish, "eu.ibm", value)
            await anext(messages)
            if turn >= _WARM_UP:
                taken_us.append((time.perf_counter() - began) * 1e6)
    return taken_us, (leader.cpu_s() - leader_s) / plan.messages * 1e6


# --- many subscriptions -----------------------------------------------------------------------


async def measure_subscriptions(url: str, client: Client, plan: Plan, leader: ProcessUse) -> Part:
    """A message to one subscriber, with few others there and with very many."""
    part = Part(
        "a message to one subscriber, one at a time, beside patterns that do not match it",
        ("", "p50 µs", "leader µs each", "B each"),
    )
    costs = []
    before = leader.rss_bytes()
    async with AsyncExitStack() as stack:
        messages = await stack.enter_async_context(client.exchange("bench").subscribe("eu.*"))
        exchange = client.exchange("bench")
        others = [await stack.enter_async_context(connect(url)) for _ in range(_IDLE_CLIENTS)]
        made = 0
        for wanted in (10, plan.idle):
            async with anyio.create_task_group() as tasks:
                for at, other in enumerate(others):
                    share = range(made + at, wanted, len(others))
                    tasks.start_soon(_subscribe_idle, stack, other, list(share))
            made = wanted
            rounds = [
                await _one_by_one(exchange, messages, plan, leader) for _ in range(plan.rounds)
            ]
            p50 = middle([percentile(taken, 0.5) for taken, _ in rounds])
            costs.append(middle([leader_us for _, leader_us in rounds]))
            each_bytes = max(0, leader.rss_bytes() - before) / made
            part.rows.append(
                (f"{made:,} patterns", number(p50), number(costs[-1]), number(each_bytes))
            )
            part.figures[f"beside_{'few' if len(costs) == 1 else 'many'}_us"] = costs[-1]
        part.figures["pattern_bytes"] = each_bytes
    growth = costs[1] / costs[0]
    part.verdicts.append(
        Verdict(
            f"the leader's time for a message, beside {plan.idle:,} patterns",
            f"{growth:.2f} x that beside 10",
            f"<= {MAX_GROWTH:g} x",
            growth <= MAX_GROWTH,
        )
    )
    return part


async def _subscribe_idle(stack: AsyncExitStack, client: Client, numbers: list[int]) -> None:
    exchange = client.exchange("bench")
    for start in range(0, len(numbers), _PER_CALL):
        patterns = [f"idle.{number}.*" for number in numbers[start : start + _PER_CALL]]
        await stack.enter_async_context(exchange.subscribe(patterns))


PARTS: Final = {
    "fan-out": measure_fan_out,
    "latency": measure_latency,
    "subscriptions": measure_subscriptions,
}
