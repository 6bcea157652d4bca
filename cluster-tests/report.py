"""What the tests leave at the end of the run: a table of what broke and what users felt, and its
sum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

HEADINGS = (
    "test",
    "kills",
    "cuts",
    "acked",
    "unknown",
    "refused",
    "delivered",
    "p99 pause",
    "max pause",
    "p50 progress",
    "max progress",
    "verdict",
)


@dataclass
class Row:
    """One test.

    Attributes:
        acked, unknown, refused, delivered: records.
        pauses_s: the longest time without an acknowledgement after each fault.
        progress_s: from each healing to the acknowledgement of a publish that began after it.
        promotions_s: from the members' start with a new file to the new leader's serving.
        verdict: the checker's; empty when the test did not get that far.
        lost, duplicated: acknowledged records that are not where they have to be; records that are
            in the log twice.
        notes: what else is worth a line.
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
    promotions_s: list[float] = field(default_factory=list)
    verdict: str = ""
    lost: int = 0
    duplicated: int = 0
    notes: list[str] = field(default_factory=list)

    def cells(self) -> list[str]:
        counts = (
            self.kills,
            self.partitions,
            self.acked,
            self.unknown,
            self.refused,
            self.delivered,
        )
        times = (
            quantile(self.pauses_s, 0.99),
            quantile(self.pauses_s, 1.0),
            quantile(self.progress_s, 0.5),
            quantile(self.progress_s, 1.0),
        )
        return [
            self.test,
            *(f"{count:,}" for count in counts),
            *(f"{time:.2f} s" for time in times),
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


def summary(rows: Sequence[Row], progress_bar_s: float, promotion_bar_s: float) -> str:
    """All tests in a few lines, with the bars that times are held against."""
    progress_s = quantile([time for row in rows for time in row.progress_s], 1.0)
    promotions_s = [time for row in rows for time in row.promotions_s]
    told = [
        f"{sum(row.kills for row in rows):,} kills, {sum(row.partitions for row in rows):,} "
        f"partitions, {sum(row.acked for row in rows):,} acked: {sum(row.lost for row in rows):,} "
        f"lost, {sum(row.duplicated for row in rows):,} duplicated; progress after healing in "
        f"{progress_s:.2f} s at most (bar {progress_bar_s:g} s)"
    ]
    if promotions_s:
        told.append(
            f"{len(promotions_s)} promotions, serving in {quantile(promotions_s, 0.5):.2f} s "
            f"(p50), {quantile(promotions_s, 1.0):.2f} s at most (bar {promotion_bar_s:g} s)"
        )
    unjudged = [row.test for row in rows if not row.verdict]
    if unjudged:
        told.append(f"NOT JUDGED: {', '.join(unjudged)}")
    return "\n".join(told)
