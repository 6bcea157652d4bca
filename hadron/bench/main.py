"""Runs all workloads against a cluster of node processes and prints the figures."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Mapping
from functools import partial
from typing import Final

import anyio
from rich.console import Console
from rich.table import Table

from hadron.bench import workloads
from hadron.bench.scratch import scratch
from hadron.bench.stats import Processes
from hadron.bench.workloads import Figures, Measured
from hadron.client import connect
from hadron.node.supervision.cluster import LocalCluster

_IDLE_S: Final = 5.0

_WIDTH: Final = 100
"""Of a table that does not go to a terminal."""

_PERCENTILES: Final = ("p50", "p99", "p999")

_ROWS: Final = (
    ("publish, one at a time", "publish_one", "publish_one_{}_ms", "ms", _PERCENTILES),
    ("publish, send_many", "publish_many", "publish_many_records_per_s", "records/s", ()),
    ("", "", "publish_many_mb_per_s", "MB/s", ()),
    ("  batch of 1,000 acked", "", "publish_many_batch_{}_ms", "ms", _PERCENTILES),
    ("publish, send_soon", "publish_send", "publish_send_records_per_s", "records/s", ()),
    ("read", "read", "read_records_per_s", "records/s", ()),
    ("", "", "read_mb_per_s", "MB/s", ()),
    ("consume + ack, batches", "consume_batch", "consume_batch_records_per_s", "records/s", ()),
    ("consume + ack, single", "consume_single", "consume_single_records_per_s", "records/s", ()),
    ("publish → delivered", "deliver", "deliver_{}_ms", "ms", _PERCENTILES),
    ("CPU, all processes", "", "cpu_s_per_million", "s per million, send_many", ()),
    ("memory, largest node", "", "node_rss_mb_max", "MB resident, after the run", ()),
    ("CPU, idle node", "", "idle_cpu_percent", "% of one core, after the run", ()),
)
"""Label, the workload whose records and seconds stand beside it, figure, unit, its percentiles."""


def run(nodes: int, record_bytes: int, durability: str, output: str, seconds: float) -> int:
    """Measure and print; returns the exit status.

    Args:
        nodes: of the replica set.
        record_bytes: of each value.
        durability: "fsync" or "os".
        output: "table" or "json".
        seconds: that each workload takes at most; those in rounds, each round.
    """
    with scratch() as directory:
        cluster = LocalCluster(directory, nodes=nodes, durability=durability)
        with cluster:
            processes = Processes([cluster.pid(name) for name in cluster.names])
            measured = anyio.run(
                partial(_measure, cluster.url, b"x" * record_bytes, seconds, processes),
                backend="trio",
            )
            cluster.release()
            figures = {
                name: value for each in measured.values() for name, value in each.figures.items()
            }
            figures["node_rss_mb_max"] = processes.rss_mb_max()
            figures["idle_cpu_percent"] = processes.idle_cpu_percent(_IDLE_S)
    result: dict[str, float | int | str] = {
        **{name: round(value, 3) for name, value in figures.items()},
        **{f"{name}_records": each.records for name, each in measured.items()},
        **{f"{name}_s": round(each.seconds, 3) for name, each in measured.items()},
        "durability": "fsync" if nodes == 1 else durability,
        "nodes": nodes,
        "record_bytes": record_bytes,
    }
    if output == "json":
        print(json.dumps(result))
    else:
        title = f"{nodes} node(s), {record_bytes} B records, durability {result['durability']}"
        _print_table(figures, measured, title)
    return 0


async def _measure(
    url: str, value: bytes, seconds: float, processes: Processes
) -> dict[str, Measured]:
    """What each workload has measured, by its name."""
    gc.freeze()
    measured: dict[str, Measured] = {}
    async with connect(url) as client:
        await workloads.declare(client, "one", "many", "send", "deliver")
        steps = {
            "publish_one": partial(workloads.publish_one, client, "one", value, seconds),
            "publish_many": partial(
                workloads.publish_many, client, "many", value, seconds, processes.cpu_s
            ),
            "publish_send": partial(workloads.publish_send, client, "send", value, seconds),
            "read": partial(workloads.read, client, "many", seconds),
            "consume_batch": partial(workloads.consume_batch, client, "many", seconds),
            "consume_single": partial(workloads.consume_single, client, "many", seconds),
            "deliver": partial(workloads.deliver, client, "deliver", value, seconds),
        }
        for name, step in steps.items():
            print(f"{name.replace('_', ' ')} …", file=sys.stderr)
            measured[name] = await step()
    return measured


def _print_table(figures: Figures, measured: Mapping[str, Measured], title: str) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    table = Table(title=title, title_justify="left")
    table.add_column("work")
    table.add_column("measured", justify="right")
    table.add_column("", style="dim")
    table.add_column("records", justify="right")
    table.add_column("took", justify="right")
    for label, workload, figure, unit, percentiles in _ROWS:
        names = [figure.format(each) for each in percentiles] or [figure]
        meaning = f"{unit}, {' / '.join(percentiles)}" if percentiles else unit
        stood_on = measured.get(workload)
        table.add_row(
            label,
            " / ".join(_show(figures[name]) for name in names),
            meaning.replace("p999", "p99.9"),
            f"{stood_on.records:,}" if stood_on else "",
            f"{stood_on.seconds:.2f} s" if stood_on else "",
        )
    console.print(table)
    console.print(
        f"one at a time, and published to delivered: medians of {workloads.ROUNDS} rounds",
        style="dim",
    )


def _show(value: float) -> str:
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"
