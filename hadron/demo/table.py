"""The demo's result: delays per airport and carrier, read back with Spark from stream verdicts.

Worked out in plain Python, too: a reader that loses a batch makes a table as well.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich import box
from rich.table import Table

from hadron.demo.flights import load_airlines
from hadron.demo.verdicts import expected_verdicts

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

_CARRIER_WIDTH: Final = 24
"""Leaves room for the numbers on a terminal of 80 columns."""
_CAPTION: Final = (
    "late: departed 15 minutes or more after schedule; weather: late in bad weather; "
    "delay: mean of those that departed"
)
_VALUE: Final = "carrier string, origin string, dep_delay bigint, verdict string"


@dataclass(frozen=True, slots=True)
class DelayRow:
    """One carrier at one airport; `mean_delay` in minutes over the flights that departed."""

    origin: str
    carrier: str
    flights: int
    cancelled: int
    late: int
    late_in_bad_weather: int
    mean_delay: float | None

    @property
    def late_percent(self) -> float:
        """Late flights, whatever the weather, in percent of all."""
        return 100 * (self.late + self.late_in_bad_weather) / self.flights

    @property
    def bad_weather_percent(self) -> float:
        """Flights that were late in bad weather, in percent of all."""
        return 100 * self.late_in_bad_weather / self.flights


def read_delays(spark: SparkSession, url: str) -> list[DelayRow]:
    """Aggregate stream `verdicts` in Spark."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    def count(verdict: str) -> Column:
        return F.count_if(F.col("verdict") == verdict)

    records = spark.read.format("hadron").option("server", url).option("stream", "verdicts").load()
    verdicts = records.select(F.from_json(F.col("value").cast("string"), _VALUE).alias("v"))
    rows = (
        verdicts.select("v.*")
        .groupBy("origin", "carrier")
        .agg(
            F.count("*"),
            count("cancelled"),
            count("late"),
            count("late in bad weather"),
            F.avg("dep_delay"),
        )
        .orderBy("origin", "carrier")
        .collect()
    )
    return [DelayRow(*row) for row in rows]


@functools.cache
def expected_delays() -> tuple[DelayRow, ...]:
    """What `read_delays` must give."""
    groups: dict[tuple[str, str], list[tuple[str, int | None]]] = {}
    for value in expected_verdicts():
        one = (value["verdict"], value["dep_delay"])
        groups.setdefault((value["origin"], value["carrier"]), []).append(one)
    return tuple(_row(*group, groups[group]) for group in sorted(groups))


def _row(origin: str, carrier: str, flights: list[tuple[str, int | None]]) -> DelayRow:
    verdicts = [verdict for verdict, _ in flights]
    delays = [delay for _, delay in flights if delay is not None]
    return DelayRow(
        origin,
        carrier,
        len(flights),
        verdicts.count("cancelled"),
        verdicts.count("late"),
        verdicts.count("late in bad weather"),
        sum(delays) / len(delays) if delays else None,
    )


def differences(rows: Sequence[DelayRow]) -> list[str]:
    """What is wrong with a table that was read back."""
    seen = {(row.origin, row.carrier): row for row in rows}
    wanted = {(row.origin, row.carrier): row for row in expected_delays()}
    found = [
        f"it has {seen.get(group)}, not {wanted.get(group)}"
        for group in {**wanted, **seen}
        if seen.get(group) != wanted.get(group)
    ]
    if not found and tuple(rows) != expected_delays():
        found.append("it has rows twice, or in another order")
    return found


def render(rows: list[DelayRow]) -> Table:
    """The table that the demo prints."""
    table = Table(
        title="Departures from New York, January 2013",
        title_justify="left",
        title_style="bold",
        caption=_CAPTION,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("from", no_wrap=True)
    table.add_column("carrier", no_wrap=True, max_width=_CARRIER_WIDTH)
    for heading in ("flights", "cancelled", "late", "weather", "delay"):
        table.add_column(heading, justify="right", no_wrap=True)
    names = load_airlines()
    airport = ""
    for row in rows:
        if airport and row.origin != airport:
            table.add_section()
        table.add_row(
            row.origin if row.origin != airport else "",
            names.get(row.carrier, row.carrier),
            f"{row.flights:,}",
            f"{row.cancelled:,}",
            f"{row.late_percent:.1f}%",
            f"{row.bad_weather_percent:.1f}%",
            "-" if row.mean_delay is None else f"{row.mean_delay:.1f} min",
        )
        airport = row.origin
    return table
