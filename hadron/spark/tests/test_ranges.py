"""Offset arithmetic: nothing lost, nothing twice, limits kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hadron.client.terms.results import PartitionOffsets
from hadron.model.errors import LogTruncatedError, OffsetOutOfRangeError, RequestError
from hadron.model.ids import Ballot
from hadron.spark.source.cursors import Cursor
from hadron.spark.source.options import Position, parse_options
from hadron.spark.source.ranges import (
    OffsetRange,
    between,
    bounds,
    check_order,
    kept,
    locate,
    split,
    spread,
)

OPTIONS = parse_options({"stream": "flights"}, streaming=False)
FORGIVING = replace(OPTIONS, fail_on_data_loss=False)
KNOWN = {"a": PartitionOffsets("a", 10, 100, 40), "b": PartitionOffsets("b", 0, 50, 50)}


class OffsetsClient:
    """A client that only knows offsets."""

    def offsets(self, stream: str, *, at_ms: int | None) -> list[Any]:
        assert (stream, at_ms) == ("flights", None)
        return [KNOWN["b"], KNOWN["a"]]


def test_bounds_of_all_or_some_partitions() -> None:
    assert bounds(OffsetsClient(), OPTIONS) == KNOWN
    assert bounds(OffsetsClient(), replace(OPTIONS, partitions=("b",))) == {"b": KNOWN["b"]}
    with pytest.raises(RequestError, match=r"no partition 'c' \(it has a, b\)"):
        bounds(OffsetsClient(), replace(OPTIONS, partitions=("b", "c")))


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (Position("earliest"), {"a": 10, "b": 0}),
        (Position("latest"), {"a": 100, "b": 50}),
        (Position("timestamp", at_ms=1), {"a": 40, "b": 50}),
        (Position("offsets", {"a": -1, "b": -2}), {"a": 100, "b": 0}),
        (Position("offsets", {"a": 7, "b": 8}), {"a": 7, "b": 8}),
    ],
)
def test_positions(position: Position, expected: dict[str, int]) -> None:
    assert locate(position, KNOWN, OPTIONS) == expected


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ({"a": 1}, "leave out 'b'"),
        ({"a": 1, "b": 1, "c": 1}, "no partition"),
        ({"a": 100, "b": 51}, "offset 51 is beyond the end of flights/b, which is 50"),
    ],
)
def test_offsets_name_each_partition_within_its_end(offsets: dict[str, int], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        locate(Position("offsets", offsets), KNOWN, OPTIONS)


def test_offsets_beyond_the_end_may_be_what_is_left_of_a_loss() -> None:
    beyond = {"a": 101, "b": 51}
    assert locate(Position("offsets", beyond), KNOWN, FORGIVING) == beyond


def test_a_read_that_the_options_turn_round_is_no_loss() -> None:
    start, end = {"a": 10, "b": 20}, {"a": 10, "b": 10}
    with pytest.raises(RequestError, match="flights/b would start at offset 20 and end before 10"):
        check_order(start, end, OPTIONS)
    check_order(start, end, FORGIVING)
    check_order(end, start, OPTIONS)


def test_ranges_between_offsets() -> None:
    start = {"a": Cursor(10, Ballot(1, 1), 7), "b": Cursor(50)}
    end = {"a": Cursor(12, Ballot(1, 2), 7), "b": Cursor(50)}
    assert between(start, end, OPTIONS) == [
        OffsetRange("a", 10, 12, 7, after=Ballot(1, 1), last=Ballot(1, 2))
    ]
    assert between({}, {"new": Cursor(3)}, OPTIONS) == [OffsetRange("new", 0, 3)]


@pytest.mark.parametrize("end", [{"a": 5, "b": 50}, {"b": 50}])
def test_a_stream_that_shrank_is_data_loss(end: dict[str, int]) -> None:
    start = {"a": Cursor(10), "b": Cursor(0)}
    stop = {name: Cursor(offset) for name, offset in end.items()}
    error = LogTruncatedError if "a" in end else OffsetOutOfRangeError
    with pytest.raises(error, match="failOnDataLoss"):
        between(start, stop, OPTIONS)
    assert between(start, stop, FORGIVING) == [OffsetRange("b", 0, 50)]


def test_tasks_know_the_ballots_at_the_ends_of_what_was_split() -> None:
    whole = OffsetRange("a", 0, 30, 7, after=Ballot(1, 1), last=Ballot(1, 2))
    first, middle, last = split([whole], 3)
    assert (first.after, first.last) == (Ballot(1, 1), None)
    assert (middle.after, middle.last, middle.stream_id) == (None, None, 7)
    assert (last.after, last.last) == (None, Ballot(1, 2))


@pytest.mark.parametrize(
    ("wanted", "left"),
    [
        (OffsetRange("a", 5, 20), [OffsetRange("a", 10, 20)]),
        (OffsetRange("a", 5, 8), []),
        (OffsetRange("a", 10, 20), [OffsetRange("a", 10, 20)]),
    ],
)
def test_trimmed_records(wanted: OffsetRange, left: list[OffsetRange]) -> None:
    assert kept([wanted], KNOWN, FORGIVING) == left
    if left == [wanted]:
        assert kept([wanted], KNOWN, OPTIONS) == left
    else:
        with pytest.raises(OffsetOutOfRangeError, match="nothing before offset 10; offset 5"):
            kept([wanted], KNOWN, OPTIONS)


ranges = st.lists(
    st.tuples(st.integers(0, 1_000), st.integers(1, 1_000)), min_size=1, max_size=5
).map(lambda pairs: [OffsetRange(f"p{i}", a, a + n) for i, (a, n) in enumerate(pairs)])


@given(ranges, st.one_of(st.none(), st.integers(1, 50)))
def test_splitting_keeps_every_record(whole: list[OffsetRange], minimum: int | None) -> None:
    pieces = split(whole, minimum)
    assert all(len(piece) for piece in pieces)
    for each in whole:
        of_it = [piece for piece in pieces if piece.partition == each.partition]
        assert [o for piece in of_it for o in range(piece.start, piece.stop)] == list(
            range(each.start, each.stop)
        )


@pytest.mark.parametrize(
    ("sizes", "minimum"),
    [([100], 8), ([100, 1], 4), ([3], 8), ([1_000] * 3, 4), ([1_000] * 7, 10), ([1, 1, 98], 50)],
)
def test_splitting_makes_enough_tasks(sizes: list[int], minimum: int) -> None:
    whole = [OffsetRange(f"p{i}", 0, size) for i, size in enumerate(sizes)]
    assert len(split(whole, minimum)) >= min(minimum, sum(sizes))


offsets = st.dictionaries(st.sampled_from("abcde"), st.integers(0, 1_000), min_size=1)


@given(offsets, offsets, st.integers(1, 500))
def test_a_limit_is_kept_and_something_always_moves(
    start: dict[str, int], end: dict[str, int], max_rows: int
) -> None:
    cut = spread(start, end, max_rows)
    assert set(cut) == set(end)
    waiting = {name: max(0, stop - start.get(name, 0)) for name, stop in end.items()}
    taken = {name: stop - start.get(name, 0) for name, stop in cut.items()}
    assert all(0 <= taken[name] <= waiting[name] for name in end)
    assert sum(taken.values()) == min(max_rows, sum(waiting.values()))


def test_a_limit_is_shared_by_what_waits() -> None:
    assert spread({"a": 0, "b": 0}, {"a": 900, "b": 100}, 100) == {"a": 90, "b": 10}
