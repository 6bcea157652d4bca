"""The table that long tests leave at the end of the run: what broke, and what users felt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

HEADINGS = (
    "test", "kills", "cuts", "acked", "unknown", "refused", "delivered", "p99 pause", "max pause",
    "p50 progress", "max progress", "verdict",
)


@dataclass
class Row:
    """One test.

    Attributes:
        acked, unknown, refused, delivered: records.
        pauses_s: the longest time without an acknowledgement after each fault.
        notes: what else is worth a line.
        progress_s: from each healing to the acknowledgement of a publish that began after it.
    """

    test: str
    kills: int = 0
    partitions: int = 0
    acked: int = 0
    unknown: int = 0
    refused: int = 0
    delivered: int = 0
    pauses_s: list[float] = field(default_factory=list)
    progress_s: list[float] = field(default_factory=list)
    verdict: str = ""
    notes: list[str] = field(default_factory=list)

    def cells(self) -> list[str]:
        counts = (
            self.kills, self.partitions, self.acked, self.unknown, self.refused, self.delivered
        )
        times = (
            quantile(self.pauses_s, 0.99), quantile(self.pauses_s, 1.0),
            quantile(self.progress_s, 0.5), quantile(self.progress_s, 1.0),
        )
        return [
            self.test, *(f"{count:,}" for count in counts), *(f"{time:.2f} s" for time in times),
            self.verdict,
        ]


def quantile(values: Sequence[float], part: float) -> float:
    """The smallest value that `part` of the values do not exceed; 0 of none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)] if ordered else 0.0


def table(rows: Sequence[Row]) -> str:
    """Columns under their headings, the first to the left, the others to the right; then notes."""
    lines = [list(HEADINGS), *(row.cells() for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    told = [
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
    told += [f"{row.test}: {note}" for row in rows for note in row.notes]
    return "\n".join(told)
