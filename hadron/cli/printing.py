"""What commands print: tables for people, JSON for programs, both to stdout.

A table has no borders and one line per row, however long, so that `awk` and `sort` can use it.
Colours follow rich's rules: none into a pipe, none under NO_COLOR.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import click

_Function = TypeVar("_Function", bound=Callable[..., Any])

_PIPE_WIDTH: Final = 10_000
"""Wider than any row, so that nothing is wrapped into a pipe."""
_GAP: Final = "  "
_LEAST_FREE: Final = 24
"""Columns of free text are not made narrower than this."""


def output_option(function: _Function) -> _Function:
    """Give a command `--output table|json`."""
    return output_of("table", "json")(function)


def output_of(
    *forms: str, default: str | None = "", help: str = "How to print."
) -> Callable[[_Function], _Function]:
    """A decorator that gives a command `--output`, `-o`, one of `forms`.

    Args:
        default: the first form when ""; None for something else, which `help` tells.
    """
    default = forms[0] if default == "" else default
    return click.option(
        "--output",
        "-o",
        type=_OutputType(forms),
        default=default,
        show_default=default is not None,
        help=help,
    )


class _OutputType(click.Choice[str]):
    """A form of output; who means kcat's `-o OFFSET` is told how that is said here."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            named = {name for each in ctx.command.params for name in each.opts} if ctx else ()
            if "--from" not in named:
                raise
            self.fail(f"{error.message.rstrip('.')}; where to start is --from", param, ctx)


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def print_rows(
    columns: Mapping[str, str],
    rows: Sequence[Mapping[str, Any]],
    output: str,
    *,
    heading: bool = True,
) -> None:
    """Print rows: as JSON with every field, or as a table of the fields in `columns`.

    Args:
        columns: field → heading; one that starts with ">" is for a right-aligned column, one that
            starts with "~" for free text, which is cut off where a terminal ends. Other columns
            are never cut or folded: a row may be longer than the terminal is wide.
        rows: one mapping per row.
        output: "table" or "json".
        heading: whether a table has one.
    """
    if output == "json":
        print_json(list(rows))
        return
    cells = [[_one_line(_cell(row.get(field))) for field in columns] for row in rows]
    headings = list(columns.values())
    first, *lines = _aligned(headings, cells, _free_width(headings, cells))
    click.echo("\n".join([click.style(first, bold=True), *lines] if heading else lines))


def _aligned(headings: Sequence[str], cells: Sequence[Sequence[str]], free: int) -> Iterator[str]:
    """The table's lines, heading first, without blanks at their ends."""
    from rich.cells import cell_len, set_cell_size

    names = [heading.lstrip(">~") for heading in headings]
    shown = [names, *([*row] for row in cells)]
    for column, heading in enumerate(headings):
        if heading.startswith("~"):
            for row in shown[1:]:
                if cell_len(row[column]) > free:
                    row[column] = f"{set_cell_size(row[column], free - 1).rstrip()}…"
    widths = [max(map(cell_len, column)) for column in zip(*shown, strict=True)]
    for row in shown:
        padded = []
        for text, width, heading in zip(row, widths, headings, strict=True):
            blanks = " " * (width - cell_len(text))
            padded.append(blanks + text if heading.startswith(">") else text + blanks)
        yield _GAP.join(padded).rstrip()


def _free_width(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> int:
    """What a terminal leaves for each column of free text; a pipe leaves as much as they need."""
    free = [column for column, heading in enumerate(headings) if heading.startswith("~")]
    if not free or not sys.stdout.isatty():
        return _PIPE_WIDTH
    from rich.cells import cell_len

    taken = len(_GAP) * (len(headings) - 1) + sum(
        max(cell_len(text) for text in (heading, *(row[column] for row in cells)))
        for column, heading in enumerate(headings)
        if column not in free
    )
    left = shutil.get_terminal_size().columns - taken
    return max(_LEAST_FREE, left // len(free))


def _one_line(text: str) -> str:
    """The first line, without what would move a terminal's cursor."""
    first = (text.strip().splitlines() or [""])[0].rstrip()
    return "".join(letter if letter.isprintable() else " " for letter in first)


def on_one_line(text: str) -> str:
    """All of it, with escapes for what would end the line or reach the terminal."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def on_its_lines(text: str) -> str:
    """All of it, with its line ends and tabs, and escapes for what else would reach the terminal:
    what others have written could move the cursor, or speak in our place."""
    return "".join(letter if letter in "\n\t" else on_one_line(letter) for letter in text)


def as_shown(data: bytes) -> bytes:
    """What others have written, for stdout: as it is, but for a terminal as `on_its_lines`."""
    if not sys.stdout.isatty():
        return data
    return on_its_lines(data.decode(errors="backslashreplace")).encode()


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
