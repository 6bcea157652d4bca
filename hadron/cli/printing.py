"""What commands print: tables for people, JSON for programs, both to stdout.

A table has no borders and, into a pipe, no limit on its width, so that `awk` and `sort` can use
it. Colours follow rich's rules: none into a pipe, none under NO_COLOR.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import click

_Function = TypeVar("_Function", bound=Callable[..., Any])

_PIPE_WIDTH: Final = 10_000
"""Wider than any row, so that nothing is wrapped into a pipe."""


def output_option(function: _Function) -> _Function:
    """Give a command `--output table|json`."""
    return click.option(
        "--output", type=click.Choice(["table", "json"]), default="table", show_default=True,
        help="How to print.",
    )(function)


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_rows(
    columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]], output: str
) -> None:
    """Print rows: as JSON with every field, or as a table of the fields in `columns`.

    Args:
        columns: field → heading; a heading that starts with ">" is for a right-aligned column.
        rows: one mapping per row.
        output: "table" or "json".
    """
    if output == "json":
        print_json(list(rows))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in columns.values():
        right = heading.startswith(">")
        table.add_column(
            heading.lstrip(">"), justify="right" if right else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text(_cell(row.get(field))) for field in columns))
    print_rich(table)


def print_rich(renderable: Any) -> None:
    """Print a rich object on stdout, as wide as it needs to be into a pipe."""
    from rich.console import Console

    class PipeableConsole(Console):
        """Lets the end of a pipe reach the place that knows its exit status."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    PipeableConsole(file=sys.stdout, width=width).print(renderable)


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value)) or "-"
    return str(value)
