"""What is told of mistakes costs little, however many words are known and however much is wrong."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

import pytest

from hadron.model.errors import RequestError
from hadron.model.problems import Problems, Suggestions, did_you_mean, some_of

NAMES = [f"orders-of-region-{number:06d}" for number in range(2_000)]


@pytest.mark.parametrize(
    "given",
    [
        "orders-of-regoin-001234",
        "order-of-region-001234",
        "oorders-of-region-001234",
        "Prders-of-region-001234",
        "ordres-of-regoin-001234",
        "orders_of_region_001234",
        "001234",
    ],
)
def test_of_many_words_few_are_compared(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record for a stream whose name was misspelled stopped the leader's loop for 0.85 s, as the
    name was compared with those of all 10,000."""
    compared: list[str] = []
    set_seq1 = difflib.SequenceMatcher.set_seq1

    def counted(self: difflib.SequenceMatcher[str], word: str) -> None:
        compared.append(word)
        set_seq1(self, word)

    monkeypatch.setattr(difflib.SequenceMatcher, "set_seq1", counted)
    meant = did_you_mean(given, NAMES)
    assert meant == (" (did you mean 'orders-of-region-001234'?)" if len(given) > 6 else "")
    assert len(compared) <= 32


@pytest.mark.parametrize(
    "given", ["orderz", "ordes", "eu-ordres-v1", "eu-ordersv1", "ev-orders-v1"]
)
def test_one_mistake_is_seen_among_any_number_that_begin_and_end_alike(given: str) -> None:
    names = ["orders", *(f"orders-{number:04d}" for number in range(2_000))]
    names += [
        f"{one}{other}-orders-v{it}" for one in "efw" for other in "abstu" for it in range(99)
    ]
    meant = "orders" if len(given) < 7 else "eu-orders-v1"
    assert did_you_mean(given, names) == f" (did you mean {meant!r}?)"


def test_no_more_words_are_looked_at_than_a_loop_has_time_for() -> None:
    looked_at: list[str] = []

    def known() -> Iterator[str]:
        for number in range(50_000):
            looked_at.append(f"s{number}")
            yield looked_at[-1]

    assert did_you_mean("s1O", known()) == " (did you mean 's1'?)"
    assert len(looked_at) <= 10_000


def test_only_the_first_mistakes_are_told_what_may_have_been_meant() -> None:
    suggestions = Suggestions()
    told = [suggestions.of("flihgts", ["flights"]) for _ in range(10)]
    assert set(told) == {" (did you mean 'flights'?)"}
    words = iter(["flights"])
    assert suggestions.of("flihgts", words) == ""
    assert next(words) == "flights", "nobody has looked"


def test_of_many_names_some_are_listed() -> None:
    assert some_of([]) == ""
    assert some_of(("a", "b")) == "a, b"
    assert some_of(NAMES) == f"{', '.join(NAMES[:20])} and 1980 more"


class _Line(int):
    """One that counts how often one was compared with another."""

    times = 0

    def __eq__(self, other: object) -> bool:
        _Line.times += 1
        return int(self) == other

    __hash__ = int.__hash__


def test_a_problem_is_not_looked_for_among_all_others() -> None:
    problems = Problems("f.yaml")
    for number in range(200):
        problems.add(_Line(number), "late", "x")
        problems.add(_Line(number), "late", "x")
    assert _Line.times < 1_000
    assert len(problems) == 200
    other = Problems("f.yaml")
    other.add(199, "late", "x")
    problems.extend(other)
    with pytest.raises(RequestError, match="200 problems"):
        problems.raise_as(RequestError)


def test_a_name_is_not_meant_for_itself() -> None:
    """It was not there when it was asked for, and is when what there is is looked through."""
    assert did_you_mean("flights", ["flights", "nights"]) == ""
    assert did_you_mean("Flights", ["flights"]) == " (did you mean 'flights'?)"
