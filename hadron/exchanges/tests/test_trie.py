"""The tree of patterns against one that looks at each, and what it costs with many."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hadron.exchanges.trie import Trie
from hadron.model.errors import RequestError
from hadron.model.pipelines import matches_type
from hadron.model.topics import (
    check_pattern,
    check_topic,
    expand,
    is_pattern,
    is_topic,
    matches,
    wrong_in_template,
)

_segments = st.sampled_from(["a", "b", "c"])
_topics = st.lists(_segments, min_size=1, max_size=5).map(".".join)
_patterns = st.builds(
    lambda most, rest: ".".join([*most, *rest]),
    st.lists(st.one_of(_segments, st.just("*")), min_size=1, max_size=4),
    st.sampled_from([[], [">"]]),
) | st.just(">")


@given(st.lists(st.tuples(st.booleans(), _patterns, st.integers(0, 5))), st.lists(_topics))
def test_a_topic_finds_whose_pattern_takes_it(
    changes: list[tuple[bool, str, int]], topics: list[str]
) -> None:
    trie: Trie[int] = Trie()
    known: set[tuple[str, int]] = set()
    for is_added, pattern, item in changes:
        if is_added:
            trie.add(pattern, item)
            known.add((pattern, item))
        else:
            trie.remove(pattern, item)
            known.discard((pattern, item))
    assert set(trie) == {item for _, item in known}
    for topic in topics:
        expected = {item for pattern, item in known if matches_type((pattern,), topic)}
        assert set(trie.match(topic)) == expected
        assert expected == {item for pattern, item in known if matches(pattern, topic)}
    for pattern, item in known:
        trie.remove(pattern, item)
    assert trie.nodes == 1


@given(st.text(alphabet="ab.*> é", max_size=8))
def test_what_is_a_topic_is_a_pattern_that_takes_itself(text: str) -> None:
    if is_topic(text):
        assert is_pattern(text)
        assert matches(text, text)
        assert "*" not in text
    else:
        with pytest.raises(RequestError, match="is not a topic"):
            check_topic(text)
    if not is_pattern(text):
        with pytest.raises(RequestError, match="is not a pattern"):
            check_pattern(text)


def test_the_cost_of_a_match_does_not_grow_with_subscriptions() -> None:
    def cost_s(subscriptions: int) -> float:
        trie: Trie[int] = Trie()
        for number in range(subscriptions):
            trie.add(f"eu.{number}.*", number)
        best = float("inf")
        for _ in range(5):
            started = time.perf_counter()
            for number in range(1_000):
                assert set(trie.match(f"eu.{number % subscriptions}.price"))
            best = min(best, time.perf_counter() - started)
        return best

    few, many = cost_s(100), cost_s(100_000)
    assert many < 10 * few


def test_topics_of_bridged_records() -> None:
    assert expand("", "a.b", "s", "x/p0") == "a.b"
    assert expand("", "", "s", "x/p0") == ""
    assert expand("all.{type}", "a.b", "s", "x/p0") == "all.a.b"
    assert expand("all.{type}", "", "s", "x/p0") == ""
    assert expand("{stream}.{partition}", "", "s", "x/p0") == "s.x.p0"
    assert expand("{type}", ".".join("a" * 17), "s", "x/p0") == ""
    good = ("", "a", "a.{type}", "{stream}", "{type}{stream}")
    assert not any(map(wrong_in_template, good))
    assert all(map(wrong_in_template, ("a..b", "{typ}.*", "{type}.", "a b", ">")))
    assert wrong_in_template("a.{typ}") == "'{typ}' is no placeholder (did you mean '{type}'?)"
    assert (
        wrong_in_template("{Stream}.a") == "'{Stream}' is no placeholder (did you mean '{stream}'?)"
    )
    assert "has 256 characters, the limit is 255" in wrong_in_template("{stream}" * 32)
    assert wrong_in_template("{}.{key}") == "'{}' is no placeholder"
    assert wrong_in_template("a.{type") == "'a.{type' has a brace that belongs to no placeholder"
