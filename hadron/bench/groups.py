"""`hadron bench groups`: what consumer groups cost, by groups, members, and what lies behind them.

Everything that consumes lives in this one process, so records/s of many groups are those of one
client process as much as of the leader; the leader's CPU time per delivery is shown beside them.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
from rich.console import Console
from rich.table import Table

from hadron.bench import deliveries
from hadron.bench.stats import ProcessUse
from hadron.client import Client, connect
from hadron.node.supervision.cluster import LocalCluster

GROUPS: Final = (1, 10, 100)
MEMBERS: Final = (1, 10, 50, 200)
SHORT_LOG: Final = 10_000

_READ_PER_S: Final = 1_000_000
"""Records of the stream that is consumed, per second of a measurement: some groups may read all of
it before time is up, and then their time is shorter."""

_STUCK_READERS: Final = 3
_ROUNDS: Final = 3
"""With and without the member that has stopped, in turn: a busy machine disturbs both alike."""

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure.

    Attributes:
        seconds: that each measurement takes.
        log_records: in the long log; fewer when `fill_s` does not suffice.
        fill_s: for filling it, at most.
        idle_members: whose memory is measured, each on a connection of its own.
        holes: records that one member holds back, with acknowledged ones between them.
    """

    nodes: int
    record_bytes: int
    durability: str
    seconds: float
    log_records: int
    fill_s: float
    idle_members: int
    holes: int


def run(plan: Plan, output: str) -> int:
    """Measure and print; returns the exit status."""
    with tempfile.TemporaryDirectory(prefix="hadron-bench-") as directory:
        cluster = LocalCluster(Path(directory), nodes=plan.nodes, durability=plan.durability)
        with cluster:
            leader = ProcessUse(cluster.pid(cluster.leader))
            figures = anyio.run(_measure, cluster.url, plan, leader, backend="trio")
    durability = "fsync" if plan.nodes == 1 else plan.durability
    if output == "json":
        shown: dict[str, float | int | str] = {
            **{name: round(value, 3) for name, value in figures.items()},
            "durability": durability, "nodes": plan.nodes, "record_bytes": plan.record_bytes,
        }
        print(json.dumps(shown))
    else:
        _print_table(figures, plan, durability)
    return 0


async def _measure(url: str, plan: Plan, leader: ProcessUse) -> Figures:
    figures: Figures = {}
    async with connect(url) as client:
        await deliveries.declare(client, "fan", "idle", "short", "long", "holes")
        await deliveries.fill(
            client, "fan", round(_READ_PER_S * plan.seconds), plan.record_bytes, plan.fill_s,
        )
        steps: tuple[tuple[str, Callable[[], Awaitable[Figures]]], ...] = (
            ("idle members", lambda: _idle(url, plan, leader)),
            ("groups", lambda: _groups(client, plan, leader)),
            ("members", lambda: _members(client, plan, leader)),
            ("a member that stops reading", lambda: _stopped(url, plan)),
            ("a short and a long log", lambda: _logs(client, plan, leader)),
            ("a large acknowledged set", lambda: _holes(client, plan, leader)),
        )
        for name, step in steps:
            print(f"{name} …", file=sys.stderr)
            figures.update(await step())
    return figures


async def _groups(client: Client, plan: Plan, leader: ProcessUse) -> Figures:
    figures: Figures = {}
    for count in GROUPS:
        work = [(client, f"fan-{count}-{number}") for number in range(count)]
        result = await deliveries.consume("fan", work, plan.seconds, leader)
        figures[f"groups_{count}_records_per_s"] = result.records_per_s
        figures[f"groups_{count}_leader_us_per_record"] = result.leader_us_per_record
    return figures


async def _members(client: Client, plan: Plan, leader: ProcessUse) -> Figures:
    figures: Figures = {}
    for count in MEMBERS:
        work = [(client, f"members-{count}")] * count
        result = await deliveries.consume("fan", work, plan.seconds, leader)
        figures[f"members_{count}_records_per_s"] = result.records_per_s
        figures[f"members_{count}_leader_us_per_record"] = result.leader_us_per_record
    return figures


async def _idle(url: str, plan: Plan, leader: ProcessUse) -> Figures:
    """Memory that the leader takes for members that wait, each a client of its own."""
    async with AsyncExitStack() as stack:
        async def join() -> None:
            client = await stack.enter_async_context(connect(url))
            await stack.enter_async_context(client.subscribe("idle", group="idle"))

        # What the first few bring with them (the group, modules, buffers) is not theirs.
        for _ in range(10):
            await join()
        before = leader.rss_bytes()
        for _ in range(plan.idle_members):
            await join()
        grown = leader.rss_bytes() - before
    return {
        "idle_members": float(plan.idle_members),
        "idle_member_kb": grown / plan.idle_members / 1e3,
    }


async def _stopped(url: str, plan: Plan) -> Figures:
    """Throughput of some members of a group, alone and beside one that has stopped reading."""
    alone: list[float] = []
    beside: list[float] = []
    async with AsyncExitStack() as stack:
        *readers, stopped = [
            await stack.enter_async_context(connect(url)) for _ in range(_STUCK_READERS + 1)
        ]

        async def measure(name: str) -> float:
            work = [(client, name) for client in readers]
            return (await deliveries.consume("fan", work, plan.seconds)).records_per_s

        async def measure_beside(name: str) -> float:
            async with stopped.subscribe("fan", group=name):
                return await measure(name)

        await measure("warm")
        for number in range(_ROUNDS):
            alone.append(await measure(f"alone-{number}"))
            beside.append(await measure_beside(f"beside-{number}"))
    usual, slowed = sorted(alone)[_ROUNDS // 2], sorted(beside)[_ROUNDS // 2]
    return {
        "alone_records_per_s": usual,
        "beside_stopped_records_per_s": slowed,
        "stopped_member_costs_percent": 100 * (1 - slowed / usual),
    }


async def _logs(client: Client, plan: Plan, leader: ProcessUse) -> Figures:
    """Deliveries one at a time at the end of a short log and of a long one, in turn."""
    figures: Figures = {}
    costs: dict[str, list[deliveries.Cost]] = {"short": [], "long": []}
    for stream, records in (("short", SHORT_LOG), ("long", plan.log_records)):
        held = await deliveries.fill(
            client, stream, records, deliveries.SMALL_BYTES, plan.fill_s
        )
        figures[f"{stream}_log_records"] = float(held)
    for number in range(_ROUNDS):
        for stream, known in costs.items():
            start = max(0, round(figures[f"{stream}_log_records"]) - SHORT_LOG)
            known.append(
                await deliveries.one_by_one(
                    client, stream, f"cost-{number}", start, plan.seconds, leader
                )
            )
    for stream, known in costs.items():
        median = sorted(known, key=lambda cost: cost.p50_us)[_ROUNDS // 2]
        figures.update(median.figures(f"{stream}_log"))
    return figures


async def _holes(client: Client, plan: Plan, leader: ProcessUse) -> Figures:
    """The same behind an acknowledged set of many ranges: every other record is held back."""
    held = await deliveries.fill(
        client, "holes", 2 * plan.holes + SHORT_LOG, deliveries.SMALL_BYTES, plan.fill_s
    )
    wanted = min(plan.holes, max(0, held - SHORT_LOG) // 2)
    async with client.subscribe("holes", group="holes", max_in_flight=100_000) as keeper:
        kept = await deliveries.keep_every_other(keeper, wanted, plan.fill_s)
        cost = await deliveries.one_by_one(client, "holes", "holes", 0, plan.seconds, leader)
    return {"acknowledged_ranges": float(kept), **cost.figures("holes")}


# --- showing ------------------------------------------------------------------------------------


def _rows(figures: Figures) -> list[tuple[str, str, str]]:
    def number(name: str) -> str:
        value = figures[name]
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"

    rows = [
        (
            f"{count} {what}", number(f"{what}_{count}_records_per_s"),
            f"records/s, leader {number(f'{what}_{count}_leader_us_per_record')} µs per record",
        )
        for what, counts in (("groups", GROUPS), ("members", MEMBERS)) for count in counts
    ]
    rows.append(
        ("an idle member", number("idle_member_kb"),
         f"kB on the leader, over {number('idle_members')} of them")
    )
    rows.append(
        (f"{_STUCK_READERS} members beside one that has stopped",
         number("beside_stopped_records_per_s"),
         f"records/s, {number('stopped_member_costs_percent')} % below {_STUCK_READERS} alone")
    )
    for label, prefix in (
        (f"delivery, {number('short_log_records')} records in the log", "short_log"),
        (f"delivery, {number('long_log_records')} records in the log", "long_log"),
        (f"delivery, {number('acknowledged_ranges')} acknowledged ranges", "holes"),
    ):
        rows.append(
            (label, number(f"{prefix}_p50_us"),
             f"µs p50, p99 {number(f'{prefix}_p99_us')}, leader "
             f"{number(f'{prefix}_leader_us')} µs")
        )
    return rows


def _print_table(figures: Figures, plan: Plan, durability: str) -> None:
    table = Table(
        title=f"{plan.nodes} node(s), {plan.record_bytes} B records, durability {durability}",
        title_justify="left",
    )
    table.add_column("work")
    table.add_column("measured", justify="right")
    table.add_column("", justify="left", style="dim")
    for row in _rows(figures):
        table.add_row(*row)
    Console().print(table)
