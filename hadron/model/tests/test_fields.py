"""A field that a struct declares is read from documents, and shown in them, without a word more."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hadron.model.documents.fields import read_fields, shown_fields
from hadron.model.kinds import KINDS
from hadron.model.marked_fields import Fields
from hadron.model.marked_yaml import mark
from hadron.model.problems import Problems
from hadron.model.schema import Duration, Size, Spec, Time


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    wait_ms: Duration = 5_000


class Made(Spec, frozen=True, kw_only=True):
    """A kind that nobody has heard of, with a field of each sort."""

    place: str
    names: tuple[str, ...]
    first: Step
    max_bytes: Size = 1 << 20
    since_ms: Time = 0
    count: int = 3
    steps: tuple[Step, ...] = ()
    last: Step | None = None
    mode: str = "fast"


FULL: dict[str, Any] = {
    "description": "all of it",
    "place": "here",
    "names": ["a", "b"],
    "first": {"name": "one", "wait": "90s"},
    "max_bytes": "10MiB",
    "since": "2013-01-01T05:00:00Z",
    "count": 7,
    "steps": [{"name": "two"}, {"name": "three"}],
    "last": {"name": "four", "wait": "7ms"},
    "mode": "slow",
}


def read(document: dict[str, Any], cls: type[msgspec.Struct] = Made) -> tuple[Any, list[str]]:
    """What is read, and what is said of it."""
    problems = Problems("the object")
    fields = Fields(mark(document), problems)
    found = read_fields(cls, fields)
    fields.finish()
    return found, problems.lines()


def test_every_sort_of_field_is_read_and_shown_again() -> None:
    found, said = read(FULL)
    assert not said
    assert found == Made(
        place="here",
        names=("a", "b"),
        first=Step("one", 90_000),
        max_bytes=10 << 20,
        since_ms=1_357_016_400_000,
        count=7,
        steps=(Step("two"), Step("three")),
        last=Step("four", 7),
        mode="slow",
        description="all of it",
    )
    shown = shown_fields(found)
    assert shown == FULL
    assert list(shown) == list(FULL), "as declared"


def test_what_is_absent_has_its_default_and_only_what_must_be_there_is_shown() -> None:
    found, said = read({})
    assert not said
    assert found == Made(place="", names=(), first=Step(""))
    assert shown_fields(found) == {"place": "", "names": [], "first": {"name": ""}}


def test_keys_that_nobody_has_declared_are_told_in_each_mapping() -> None:
    _, said = read({"place": "here", "wait_ms": 1, "steps": [{"name": "one", "wait_ms": 1}]})
    assert said == [
        "the object: unknown key 'steps[0].wait_ms' (did you mean 'wait'?), expected one of name, "
        "wait",
        "the object: unknown key 'wait_ms', expected one of description, place, names, first, "
        "max_bytes, since, count, steps, last, mode",
    ]


def test_an_optional_mapping_that_cannot_be_read_is_still_there() -> None:
    found, said = read({"last": "four"})
    assert found.last == Step("")
    assert len(said) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_read_from_nothing(kind: str) -> None:
    found, said = read({}, KINDS[kind].spec)
    assert isinstance(found, Spec)
    assert not said


class Misnamed(msgspec.Struct):
    wait: Duration = 0


class WithoutUnit(msgspec.Struct):
    wait_ms: int = 0


class Strange(msgspec.Struct):
    numbers: dict[str, int] = {}


@pytest.mark.parametrize("cls", [Misnamed, WithoutUnit, Strange])
def test_a_field_that_documents_cannot_have_is_found_at_once(cls: type[msgspec.Struct]) -> None:
    with pytest.raises(AssertionError):
        read({}, cls)
