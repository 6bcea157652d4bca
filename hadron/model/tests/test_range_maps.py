"""Ranges with values, against a dict of integers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hadron.model.range_maps import RangeMap

SPANS = st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda span: (span[0], sum(span)))


def spread(items: list[tuple[int, int, int]]) -> dict[int, int]:
    return {n: value for first, last, value in items for n in range(first, last + 1)}


@given(st.lists(st.tuples(st.booleans(), SPANS), max_size=30))
def test_it_is_a_dict_of_integers(steps: list[tuple[bool, tuple[int, int]]]) -> None:
    found, model = RangeMap[int](), dict[int, int]()
    for value, (adds, (first, last)) in enumerate(steps):
        here = {n: model[n] for n in range(first, last + 1) if n in model}
        assert spread(found.within(first, last)) == here
        free = [n for a, b in found.gaps(first, last) for n in range(a, b + 1)]
        assert free == [n for n in range(first, last + 1) if n not in model]
        if adds:
            for a, b in found.gaps(first, last):
                found.add(a, b, value)
            model |= dict.fromkeys(free, value)
        else:
            assert spread(found.take(first, last)) == here
            model = {n: kept for n, kept in model.items() if n not in here}
        assert spread(list(found)) == model
        assert found.lowest() == min(model, default=None)
        assert len(found) == len(list(found))
        for number in (first, last):
            following = found.next(number)
            above = min((n for n in model if n >= number), default=None)
            assert (max(following[0], number) if following else None) == above


def test_what_is_left_of_a_range_keeps_its_value() -> None:
    found = RangeMap[str]()
    found.add(0, 9, "a")
    found.add(10, 19, "b")
    assert found.take(3, 12) == [(3, 9, "a"), (10, 12, "b")]
    assert list(found) == [(0, 2, "a"), (13, 19, "b")]
    assert found.take(14, 15) == [(14, 15, "b")]
    assert list(found) == [(0, 2, "a"), (13, 13, "b"), (16, 19, "b")]
    assert found.take(5, 9) == []
