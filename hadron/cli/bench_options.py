"""Options that the measurements of `hadron bench` share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

_Function = TypeVar("_Function", bound=Callable[..., Any])

nodes_option = click.option(
    "--nodes",
    type=click.IntRange(1, 7),
    metavar="N",
    default=3,
    show_default=True,
    help="Nodes of the replica set.",
)
record_bytes_option = click.option(
    "--record-bytes",
    type=click.IntRange(1, 1 << 19),
    metavar="N",
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
    metavar="SECONDS",
    default=5.0,
    show_default=True,
    help="How long each measurement takes.",
)
rounds_option = click.option(
    "--rounds",
    type=click.IntRange(1),
    metavar="N",
    default=3,
    show_default=True,
    help="How often each is measured; the median counts.",
)


def part_option(names: Sequence[str]) -> Callable[[_Function], _Function]:
    """--part, whose value is `parts`: those that are given, or all."""

    def all_of_none(
        _ctx: click.Context, _parameter: click.Parameter, given: tuple[str, ...]
    ) -> tuple[str, ...]:
        return given or tuple(names)

    return click.option(
        "--part",
        "parts",
        type=click.Choice(names),
        multiple=True,
        callback=all_of_none,
        help="Measure only this; repeatable.  [default: all]",
    )
