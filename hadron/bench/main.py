"""Runs all workloads against a cluster of node processes and prints the figures."""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Final

import anyio
from rich.console import Console
from rich.table import Table

from hadron.bench import workloads
from hadron.bench.stats import Processes
from hadron.client import connect
from hadron.node.supervision.cluster import LocalCluster

_IDLE_S: Final = 5.0

_ROWS: Final = (
    ("publish, one at a time", "publish_one_p50_ms", "publish_one_p99_ms", "ms", "p50 / p99"),
    ("publish, send_many", "publish_many_records_per_s", "publish_many_mb_per_s", "",
     "records/s, MB/s"),
    ("  batch of 1,000 acked", "publish_many_batch_p50_ms", "publish_many_batch_p99_ms", "ms",
     "p50 / p99"),
    ("publish, send_soon", "publish_send_records_per_s", None, "", "records/s"),
    ("read", "read_records_per_s", "read_mb_per_s", "", "records/s, MB/s"),
    ("consume + ack, batches", "consume_batch_records_per_s", None, "", "records/s"),
    ("consume + ack, single", "consume_single_records_per_s", None, "", "records/s"),
    ("publish → delivered", "deliver_p50_ms", "deliver_p99_ms", "ms", "p50 / p99"),
    ("CPU, all processes", "cpu_s_per_million", None, "s", "per million records published"),
    ("memory, largest node", "node_rss_mb_max", None, "MB", "resident, after the run"),
    ("CPU, idle node", "idle_cpu_percent", None, "%", "of one core, after the run"),
)


def run(nodes: int, record_bytes: int, durability: str, output: str, seconds: float) -> int:
    """Measure and print; returns the exit status.

    Args:
        nodes: of the replica set.
        record_bytes: of each value.
        durability: "fsync" or "os".
        output: "table" or "json".
        seconds: that each workload takes.
    """
    with tempfile.TemporaryDirectory(prefix="hadron-bench-") as directory:
        cluster = LocalCluster(Path(directory), nodes=nodes, durability=durability)
        with cluster:
            processes = Processes([cluster.pid(name) for name in cluster.names])
            figures = anyio.run(
                partial(_measure, cluster.url, b"x" * record_bytes, seconds, processes),
                backend="trio",
            )
            cluster.release()
            figures["node_rss_mb_max"] = processes.rss_mb_max()
            figures["idle_cpu_percent"] = processes.idle_cpu_percent(_IDLE_S)
    result: dict[str, float | int | str] = {
        **{name: round(value, 3) for name, value in figures.items()},
        "durability": "fsync" if nodes == 1 else durability,
        "nodes": nodes,
        "record_bytes": record_bytes,
    }
    if output == "json":
        print(json.dumps(result))
    else:
        _print_table(figures, nodes, record_bytes, str(result["durability"]))
    return 0


async def _measure(
    url: str, value: bytes, seconds: float, processes: Processes
) -> workloads.Figures:
    gc.freeze()
    figures: workloads.Figures = {}
    async with connect(url) as client:
        await workloads.declare(client, "one", "many", "send", "deliver")
        steps = (
            ("publish one at a time", partial(
                workloads.publish_one, client, "one", value, seconds)),
            ("publish batches", partial(
                workloads.publish_many, client, "many", value, seconds, processes.cpu_s)),
            ("publish with send_soon", partial(
                workloads.publish_send, client, "send", value, seconds)),
            ("read", partial(workloads.read, client, "many", seconds)),
            ("consume batches", partial(workloads.consume_batch, client, "many", seconds)),
            ("consume single records", partial(workloads.consume_single, client, "many", seconds)),
            ("publish to delivered", partial(
                workloads.deliver, client, "deliver", value, seconds)),
        )
        for name, step in steps:
            print(f"{name} …", file=sys.stderr)
            figures.update(await step())
    return figures


def _print_table(
    figures: workloads.Figures, nodes: int, record_bytes: int, durability: str
) -> None:
    table = Table(
        title=f"{nodes} node(s), {record_bytes} B records, durability {durability}",
        title_justify="left",
    )
    table.add_column("work")
    table.add_column("measured", justify="right")
    table.add_column("", justify="left", style="dim")
    for label, first, second, unit, meaning in _ROWS:
        shown = " / ".join(_show(figures[name]) for name in (first, second) if name is not None)
        table.add_row(label, f"{shown} {unit}".strip(), meaning)
    Console().print(table)


def _show(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
