"""Deleting declared objects: nothing that stays may refer to what goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hadron.metadata.deletion import validate_deletion
from hadron.metadata.judging import Key, key_of
from hadron.model.pipelines import Output, PipelineSpec, StageSpec
from hadron.model.schema import NamespaceSpec, SchemaObject, StreamSpec

FLIGHTS = SchemaObject(kind="Stream", name="flights", spec=StreamSpec(partitions=("p",)))
DELAYS = SchemaObject(kind="Stream", name="delays", spec=StreamSpec(partitions=("p",)))
PIPELINE = SchemaObject(
    kind="Pipeline",
    name="late",
    spec=PipelineSpec(
        replica_set="p", input="flights", stages=(StageSpec(name="find", output=Output("delays")),)
    ),
)
TEAM = SchemaObject(kind="Namespace", name="team", spec=NamespaceSpec())
LOGS = SchemaObject(
    kind="Stream", name="logs", namespace="team", spec=StreamSpec(partitions=("p",))
)
EXISTING = {key_of(item): item for item in (FLIGHTS, DELAYS, PIPELINE, TEAM, LOGS)}


def problems(*objects: SchemaObject, allow: bool = True) -> list[str]:
    return list(
        map(
            str,
            validate_deletion(
                [key_of(item) for item in objects], EXISTING, allow_destructive=allow
            ),
        )
    )


def test_what_nothing_refers_to_may_go_and_so_may_all_at_once() -> None:
    assert problems(PIPELINE) == []
    assert problems(LOGS) == []
    assert problems(LOGS, TEAM) == []
    assert problems(FLIGHTS, PIPELINE, DELAYS) == []


def test_what_something_refers_to_stays() -> None:
    for stream in (FLIGHTS, DELAYS):
        (problem,) = problems(stream)
        assert problem.startswith(f"{stream.label}: Pipeline default/late refers to it, expected")
    (problem,) = problems(TEAM)
    assert problem.startswith("Namespace team: Stream team/logs refers to it")


def test_what_has_data_takes_insisting() -> None:
    assert [text.split(", expected")[0] for text in problems(LOGS, PIPELINE, allow=False)] == [
        "Stream team/logs: deleting it loses its records and its consumer groups",
        "Pipeline default/late: deleting it loses its instances, or how far its query is",
    ]
    assert problems(LOGS, allow=False)[0].endswith("`allow_destructive` if it is meant")
    empty = SchemaObject(kind="Namespace", name="empty", spec=NamespaceSpec())
    assert validate_deletion([key_of(empty)], {key_of(empty): empty}, allow_destructive=False) == []


def test_what_is_not_there_is_named_with_what_was_meant() -> None:
    keys: Sequence[Key] = [("Stream", "default", "flihgts"), ("Stream", "team", "flights")]
    found = list(map(str, validate_deletion(keys, EXISTING, allow_destructive=True)))
    assert found == [
        "Stream default/flihgts: it does not exist (did you mean 'flights'?)",
        "Stream team/flights: it does not exist",
    ]
    nowhere: Sequence[Key] = [("Stream", "nowhere", "flights"), ("Namespace", "default", "nowhere")]
    assert list(map(str, validate_deletion(nowhere, EXISTING, allow_destructive=True))) == [
        "Stream nowhere/flights: there is no namespace 'nowhere'",
        "Namespace nowhere: it does not exist",
    ]


def test_the_default_namespace_stays() -> None:
    default = SchemaObject(kind="Namespace", name="default", spec=NamespaceSpec())
    found = validate_deletion(
        [key_of(default)], {**EXISTING, key_of(default): default}, allow_destructive=True
    )
    assert str(found[0]) == "Namespace default: the default namespace cannot be deleted"


class _Counted(dict[Key, SchemaObject]):
    """One that counts how many of its keys are looked through."""

    looked_through = 0

    def __iter__(self) -> Iterator[Key]:
        for key in super().__iter__():
            self.looked_through += 1
            yield key


def test_many_that_are_not_there_cost_no_look_at_all_others_each() -> None:
    """A deletion of 20 misspelled names stopped the leader's loop for 2.7 s."""
    names = [f"orders-of-{number}" for number in range(300)]
    streams = [SchemaObject(kind="Stream", name=name, spec=FLIGHTS.spec) for name in names]
    there = _Counted({key_of(item): item for item in streams})
    keys: Sequence[Key] = [("Stream", "default", f"orders-off-{n}") for n in range(100)]
    found = list(map(str, validate_deletion(keys, there, allow_destructive=True)))
    assert len(found) == len(keys)
    assert "did you mean 'orders-of-0'?" in found[0]
    assert there.looked_through <= 10 * len(there)
