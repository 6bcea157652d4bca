"""Has a Python worker of Spark look for the rows that its function raises for.

Spark hears that a function has raised, and not for which row. The worker has the rows at hand:
trying some of them once more costs it microseconds, and Spark a task, with a new worker at its end.

Safety rule: what a worker names are suspects. The task fails as it would have without them, and
gives no row: that the function raises for an instance is known once it has run by itself.
"""

from __future__ import annotations

import contextlib
import importlib
import operator
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

SEARCH_S: Final = "hadron.search_s"
"""A local property of Spark's, for the jobs of a thread: so many seconds a worker looks, once its
function has raised. Without it none looks."""

_NOTED: Final = re.compile(
    r"\n[^\n]*Hadron tried (\d+) of (\d+) rows, and it raised for those at ([\d,]*)\."
)

_Function = Callable[[int, Iterator[Any]], Iterator[Any]]
"""What `pyspark.worker` makes of a plan's functions: of a partition's number and its rows, which
are Arrow batches, or come one by one, it makes what they return."""

_OfRows = Callable[[Iterator[Any]], Iterator[Any]]
"""The same, of one partition."""


@dataclass(frozen=True, slots=True)
class Suspects:
    """
    Attributes:
        places: the rows of the partition that the function raises for, ascending, from 0.
        tried: of so many rows, from the first, it is known; there was no time for the others.
        rows: how many the partition has.
    """

    places: tuple[int, ...]
    tried: int
    rows: int


def suspects(text: str) -> tuple[str, Suspects | None]:
    """What a task has raised, without a worker's note, and what the last one of these says."""
    notes = _NOTED.findall(text)
    if not notes:
        return text, None
    tried, rows, places = notes[-1]
    found = tuple(int(place) for place in places.split(",") if place)
    fits = all(map(operator.lt, found, (*found[1:], int(tried)))) and int(tried) <= int(rows)
    # Users' text may say anything.
    return _NOTED.sub("", text), Suspects(found, int(tried), int(rows)) if fits else None


# --- in a worker --------------------------------------------------------------------------------


def install() -> None:
    """In this process, and those forked from it."""
    worker: Any = importlib.import_module("pyspark.worker")
    kinds: Any = importlib.import_module("pyspark.util").PythonEvalType
    # Others' rows come in groups: these were brought together from several partitions.
    searched = (
        kinds.SQL_BATCHED_UDF,
        kinds.SQL_ARROW_BATCHED_UDF,
        kinds.SQL_SCALAR_PANDAS_UDF,
        kinds.SQL_SCALAR_PANDAS_ITER_UDF,
        kinds.SQL_SCALAR_ARROW_UDF,
        kinds.SQL_SCALAR_ARROW_ITER_UDF,
        kinds.SQL_MAP_PANDAS_ITER_UDF,
        kinds.SQL_MAP_ARROW_ITER_UDF,
    )
    read_udfs = worker.read_udfs

    def read(pickler: Any, udfs: Any, kind: int, *more: Any) -> Any:
        function, *others = read_udfs(pickler, udfs, kind, *more)
        return (looking(function) if kind in searched else function, *others)

    worker.read_udfs = read


def looking(function: _Function) -> _Function:
    """The same function; where it is to be looked for them, what it raises notes its suspects."""

    def run(partition: int, data: Iterator[Any]) -> Iterator[Any]:
        task: Any = importlib.import_module("pyspark").TaskContext.get()
        search_s = task.getLocalProperty(SEARCH_S) if task else None
        if not search_s:
            return function(partition, data)
        return _noting(partial(function, partition), data, float(search_s))

    return run


def _noting(function: _OfRows, data: Iterator[Any], search_s: float) -> Iterator[Any]:
    given: list[Any] = []

    def kept() -> Iterator[Any]:
        for item in data:
            given.append(item)
            yield item

    try:
        yield from function(kept())
    except Exception as error:
        # The rows may not come to their end, or be read by a thread of the function's.
        with contextlib.suppress(Exception):
            given += data
            found = search(function, given, time.monotonic() + search_s)
            error.add_note(
                f"Hadron tried {found.tried} of {found.rows} rows, and it raised for those at "
                f"{','.join(map(str, found.places))}."
            )
        raise


def search(function: _OfRows, given: Sequence[Any], deadline: float) -> Suspects:
    """Try these rows by themselves, or halves of Arrow batches, until then."""
    if given and hasattr(given[0], "to_struct_array"):
        arrow: Any = importlib.import_module("pyarrow")
        table = arrow.Table.from_batches(given)
        rows = table.num_rows
        some, left = partial(_of_table, table), [(0, rows)] if rows else []
    else:
        rows = len(given)
        some, left = partial(_of_list, given), [(row, row + 1) for row in reversed(range(rows))]
    places: list[int] = []
    tried = 0
    while left and time.monotonic() < deadline:
        first, end = left.pop()
        if _raises(function, some(first, end)):
            if end - first > 1:
                middle = (first + end) // 2
                left += [(middle, end), (first, middle)]
                continue
            places.append(first)
        tried = end
    return Suspects(tuple(places), tried, rows)


def _of_table(table: Any, first: int, end: int) -> Iterator[Any]:
    return iter(table.slice(first, end - first).to_batches())


def _of_list(rows: Sequence[Any], first: int, end: int) -> Iterator[Any]:
    return iter(rows[first:end])


def _raises(function: _OfRows, rows: Iterator[Any]) -> bool:
    try:
        for _ in function(rows):
            pass
    except Exception:
        return True
    return False
