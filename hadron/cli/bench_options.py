"""Options that the measurements of `hadron bench` share."""

from __future__ import annotations

import click

nodes_option = click.option(
    "--nodes",
    type=click.IntRange(1, 7),
    default=3,
    show_default=True,
    help="Nodes of the replica set.",
)
record_bytes_option = click.option(
    "--record-bytes",
    type=click.IntRange(1, 1 << 19),
    default=100,
    show_default=True,
    help="Size of each record's value.",
)
durability_option = click.option(
    "--durability",
    type=click.Choice(["fsync", "os"]),
    default="fsync",
    show_default=True,
    help="What an acknowledged record survives.",
)
seconds_option = click.option(
    "--seconds",
    type=click.FloatRange(min=0.1),
    default=5.0,
    show_default=True,
    help="How long each measurement takes.",
)
rounds_option = click.option(
    "--rounds",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="How often each is measured; the median counts.",
)
