"""What a measurement of groups has found: rows of tables, figures, and verdicts. Pure but printing.

A verdict compares with a bar that was set before anything was measured; figures for which there is
none are shown, and it is said that there is none.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table

_WIDTH: Final = 100
"""Of tables that do not go to a terminal."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    Attributes:
        what: is compared.
        measured: the figure, with its unit.
        bar: what it should be; "" where nobody has said.
        is_met: None without a bar.
    """

    what: str
    measured: str
    bar: str = ""
    is_met: bool | None = None

    @property
    def word(self) -> str:
        return {True: "met", False: "NOT MET", None: "shown"}[self.is_met]


@dataclass(slots=True)
class Part:
    """What one part of the measurement has found.

    Attributes:
        title: what was measured, and how.
        columns: of `rows`; the first is what differs between them.
        figures: all of them, for machines.
    """

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)


def number(value: float) -> str:
    """With three digits at least."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def ratio(value: float) -> str:
    return f"{value:.2f} x"


def middle(values: Iterable[float]) -> float:
    """The median: one round that was disturbed does not count."""
    return median(values)


def middle_ratio(values: Iterable[float], bases: Iterable[float]) -> float:
    """The median of the ratios of each round: what slows a round down slows both of its sides."""
    return median(a / b for a, b in zip(values, bases, strict=True))


def print_json(parts: Iterable[Part], setting: dict[str, Any]) -> None:
    known = list(parts)
    figures = {name: round(value, 3) for part in known for name, value in part.figures.items()}
    verdicts = [
        {"what": each.what, "measured": each.measured, "bar": each.bar, "met": each.is_met}
        for part in known
        for each in part.verdicts
    ]
    print(json.dumps({**figures, **setting, "verdicts": verdicts}))


def print_found(
    parts: Iterable[Part],
    output: str,
    what: str,
    setting: Mapping[str, Any],
    took_s: float,
    *notes: str,
) -> None:
    """What a measurement has found, and what it was measured with and on.

    Args:
        what: ran on this machine.
        setting: has `rounds`, and `durability` and `seconds` (of each) where there are any.
        notes: what else stands in the line above the tables.
    """
    if output == "json":
        print_json(parts, {**setting, "took_s": round(took_s)})
        return
    where = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    durability = f", durability {setting['durability']}" if "durability" in setting else ""
    each = f", {setting['seconds']:g} s each" if "seconds" in setting else ""
    told = (
        f"{what} on this machine ({where}){durability}",
        *notes,
        f"medians of {setting['rounds']} rounds{each}",
        f"took {took_s:.0f} s",
    )
    print_tables(parts, "; ".join(told))


@contextmanager
def kept(parts: Sequence[Part]) -> Iterator[None]:
    """Print, where an error ends the block, the tables of what was measured until then, beside the
    error: they stay true, and stdout is for what is whole."""
    try:
        yield
    except Exception:
        # Of whatever kind: that of a task comes in an `ExceptionGroup`.
        if parts:
            print_tables(parts, "not all was measured: see the error below", to_stderr=True)
        raise


def print_tables(parts: Iterable[Part], setting: str, *, to_stderr: bool = False) -> None:
    """One table per part, and the verdicts of all."""
    console = Console(stderr=to_stderr)
    if not console.is_terminal:
        console = Console(stderr=to_stderr, width=_WIDTH)
    console.print(setting, highlight=False)
    verdicts: list[Verdict] = []
    for part in parts:
        table = Table(title=part.title, title_justify="left", title_style="bold")
        for index, column in enumerate(part.columns):
            table.add_column(column, justify="right" if index else "left")
        for row in part.rows:
            table.add_row(*row)
        console.print()
        console.print(table)
        verdicts += part.verdicts
    if verdicts:
        _print_verdicts(console, verdicts)


def _print_verdicts(console: Console, verdicts: Iterable[Verdict]) -> None:
    table = Table(title="Verdicts", title_justify="left", title_style="bold")
    for column in ("", "measured", "bar", ""):
        table.add_column(column)
    for each in verdicts:
        style = {True: "green", False: "bold red", None: "dim"}[each.is_met]
        table.add_row(
            each.what, each.measured, each.bar or "none is set", f"[{style}]{each.word}[/]"
        )
    console.print()
    console.print(table)
