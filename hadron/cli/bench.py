"""`hadron bench`: measure a cluster of its own on this machine."""

from __future__ import annotations

import click

from hadron.cli.printing import output_option


@click.command("bench", short_help="Measure a cluster of its own.")
@click.option("--nodes", type=click.IntRange(1, 7), default=3, show_default=True,
              help="Nodes of the replica set.")
@click.option("--record-bytes", type=click.IntRange(1, 1 << 19), default=100, show_default=True,
              help="Size of each record's value.")
@click.option("--durability", type=click.Choice(["fsync", "os"]), default="fsync",
              show_default=True, help="What an acknowledged record survives.")
@click.option("--seconds", type=click.FloatRange(min=0.1), default=5.0, show_default=True,
              help="How long each measurement takes.")
@output_option
def command(
    nodes: int, record_bytes: int, durability: str, seconds: float, output: str
) -> int:
    """Start a cluster, measure publishing, reading and consuming, and stop it again.

    \b
    Examples:
      hadron bench
      hadron bench --nodes 1 --durability os --output json
    """
    from hadron.bench.main import run

    return run(nodes, record_bytes, durability, output, seconds)
