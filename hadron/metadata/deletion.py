"""Whether declared objects may be deleted: nothing that stays may refer to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from hadron.metadata.problem import Problem
from hadron.metadata.validation import INSIST, Key, key_of
from hadron.model.ids import DEFAULT_NAMESPACE
from hadron.model.problems import did_you_mean
from hadron.model.schema import PipelineSpec, SchemaObject

_LOSSES: Final = {
    "Stream": "its records and its consumer groups", "Pipeline": "its instances",
    "Queue": "its jobs",
}
"""What goes with an object of a kind."""


def validate_deletion(
    keys: Sequence[Key], existing: Mapping[Key, SchemaObject], *, allow_destructive: bool
) -> list[Problem]:
    """Every reason to refuse; none means that all of `keys` may be deleted at once."""
    problems: list[Problem] = []
    for key in keys:
        kind, namespace, name = key
        label = f"{kind} {namespace}/{name}"
        if key == ("Namespace", DEFAULT_NAMESPACE, DEFAULT_NAMESPACE):
            problems.append(
                Problem(label, (), "the default namespace cannot be deleted", "any other object")
            )
        elif key not in existing:
            names = [each[2] for each in existing if each[:2] == (kind, namespace)]
            problems.append(
                Problem(label, (), f"it does not exist{did_you_mean(name, names)}", "one that does")
            )
        elif kind in _LOSSES and not allow_destructive:
            problems.append(
                Problem(label, (), f"deleting it loses {_LOSSES[kind]}", INSIST)
            )
    return [*problems, *_dangling(set(keys), existing)]


def _dangling(keys: set[Key], existing: Mapping[Key, SchemaObject]) -> Iterator[Problem]:
    """What stays and would refer to nothing."""
    for key, obj in existing.items():
        if key in keys:
            continue
        for target in dict.fromkeys(references(obj)):
            if target in keys:
                kind, namespace, name = target
                yield Problem(
                    f"{kind} {namespace}/{name}", (), f"{obj.label} refers to it",
                    "nothing that does; change or delete that first, or both at once",
                )


def references(obj: SchemaObject) -> Iterator[Key]:
    """The objects that `obj` needs."""
    if obj.kind != "Namespace":
        yield "Namespace", DEFAULT_NAMESPACE, obj.namespace
    if isinstance(obj.spec, PipelineSpec):
        yield "Stream", obj.namespace, obj.spec.input
        for stage in obj.spec.stages:
            if stage.output is not None:
                yield "Stream", obj.namespace, stage.output.stream


__all__ = ["key_of", "references", "validate_deletion"]
