"""`hadron bench groups`: what consumer groups cost, by groups, members, and what lies behind them.

Everything that consumes lives in this one process, so records/s of many groups are those of one
client process as much as of the leader; the leader's CPU time per record is shown beside them.
"""

from __future__ import annotations

import gc
import sys
import time
from contextlib import AsyncExitStack

import anyio

from hadron.bench.ground import Ground, Plan
from hadron.bench.parts import PARTS, check
from hadron.bench.report import Part, kept, print_found
from hadron.bench.scratch import scratch
from hadron.bench.stats import ProcessUse
from hadron.client import connect
from hadron.node.supervision.cluster import LocalCluster


def run(plan: Plan, output: str) -> int:
    """Measure and print; returns the exit status."""
    check(plan)
    started = time.monotonic()
    parts: list[Part] = []
    with scratch() as directory, kept(parts):
        cluster = LocalCluster(directory, nodes=plan.nodes, durability=plan.durability)
        with cluster:
            leader = ProcessUse(cluster.pid(cluster.leader))
            anyio.run(_measure, cluster.url, plan, leader, parts, backend="trio")
    durability = "fsync" if plan.nodes == 1 else plan.durability
    took_s = time.monotonic() - started
    setting = {
        "durability": durability,
        "nodes": plan.nodes,
        "record_bytes": plan.record_bytes,
        "seconds": plan.seconds,
        "rounds": plan.rounds,
    }
    print_found(parts, output, f"{plan.nodes} node(s) and all clients", setting, took_s)
    return 0


async def _measure(url: str, plan: Plan, leader: ProcessUse, found: list[Part]) -> None:
    """Add to `found` what each part has come to."""
    gc.freeze()
    started = time.monotonic()

    def tell(what: str) -> None:
        print(f"{time.monotonic() - started:4.0f} s {what} …", file=sys.stderr)

    async with connect(url) as client, AsyncExitStack() as stack:
        ground = Ground(url, plan, leader, client, stack, tell)
        for name, measure in PARTS.items():
            if name in plan.parts:
                tell(name)
                found += await measure(ground)
