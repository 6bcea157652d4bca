"""Which rows a worker names, once its function has raised."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from hadron.spark.suspects import Suspects, search, suspects


def by_row(rows: Iterator[int]) -> Iterator[int]:
    for row in rows:
        yield 1 // (row % 5)


def by_batch(batches: Iterator[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        yield sum(1 // (each % 5) for each in batch.column(0).to_pylist())


def batches(count: int) -> Any:
    return pa.table({"n": list(range(count))}).to_batches(max_chunksize=4)


@pytest.mark.parametrize(("function", "rows"), [(by_row, list(range(12))), (by_batch, batches(12))])
def test_every_row_that_raises_is_named(function: Any, rows: list[Any]) -> None:
    assert search(function, rows, math.inf) == Suspects((0, 5, 10), 12, 12)


@pytest.mark.parametrize(("function", "rows"), [(by_row, list(range(12))), (by_batch, batches(12))])
def test_what_is_known_when_time_is_up(
    function: Any, rows: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter(range(100))
    monkeypatch.setattr("hadron.spark.suspects.time.monotonic", lambda: next(times))
    found = search(function, rows, 8)
    assert 0 < found.tried < found.rows == 12
    assert 0 in found.places
    assert found.places == tuple(each for each in (0, 5, 10) if each < found.tried)


def test_rows_that_raise_only_together_are_nobodys() -> None:
    def many(rows: Iterator[int]) -> Iterator[int]:
        yield 1 // (len(list(rows)) - 3)

    assert search(many, [1, 2, 3], math.inf) == Suspects((), 3, 3)


def test_a_note_is_taken_out_of_the_text() -> None:
    text = "ValueError: bad\nHadron tried 7 of 9 rows, and it raised for those at 0,4.\n\tat Java"
    assert suspects(text) == ("ValueError: bad\n\tat Java", Suspects((0, 4), 7, 9))
    nothing = "bad\nHadron tried 9 of 9 rows, and it raised for those at ."
    assert suspects(nothing) == ("bad", Suspects((), 9, 9))
    for wrong in (
        "7 of 9 rows, and it raised for those at 7",
        "2 of 1 rows, and it raised for those at 0",
        "7 of 9 rows, and it raised for those at 3,3",
    ):
        assert suspects(f"bad\nHadron tried {wrong}.") == ("bad", None)
    assert suspects("ValueError: bad") == ("ValueError: bad", None)
