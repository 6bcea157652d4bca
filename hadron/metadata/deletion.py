"""Whether declared objects may be deleted: nothing that stays may refer to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from hadron.metadata.validation import INSIST, Key, key_of
from hadron.model.documents.problem import Problem
from hadron.model.ids import DEFAULT_NAMESPACE
from hadron.model.problems import did_you_mean, shorten
from hadron.model.schema import PipelineSpec, ScheduleSpec, SchemaObject, TokenSpec, label_of

_LOSSES: Final = {
    "Stream": "its records and its consumer groups", "Pipeline": "its instances",
    "Queue": "its jobs",
}
"""What goes with an object of a kind."""

_DEFAULT: Final = ("Namespace", DEFAULT_NAMESPACE, DEFAULT_NAMESPACE)
_SHOWN: Final = 10
"""Objects that are named one by one."""


def validate_deletion(
    keys: Sequence[Key], existing: Mapping[Key, SchemaObject], *, allow_destructive: bool
) -> list[Problem]:
    """Every reason to refuse; none means that all of `keys` may be deleted at once."""
    problems: list[Problem] = []
    for key in keys:
        kind, _, _ = key
        label = label_of(*key)
        if key == _DEFAULT:
            problems.append(Problem(label, (), "the default namespace cannot be deleted"))
        elif key not in existing:
            problems.append(Problem(label, (), _missing(key, existing)))
        elif kind in _LOSSES and not allow_destructive:
            problems.append(
                Problem(label, (), f"deleting it loses {_LOSSES[kind]}", INSIST)
            )
    return [*problems, *_dangling(set(keys), existing)]


def _missing(key: Key, existing: Mapping[Key, SchemaObject]) -> str:
    kind, namespace, name = key
    home = ("Namespace", DEFAULT_NAMESPACE, namespace)
    if kind != "Namespace" and namespace != DEFAULT_NAMESPACE and home not in existing:
        return f"there is no namespace {shorten(namespace)}"
    names = [each[2] for each in existing if each[:2] == (kind, namespace)]
    return f"it does not exist{did_you_mean(name, names)}"


def _dangling(keys: set[Key], existing: Mapping[Key, SchemaObject]) -> Iterator[Problem]:
    """What stays and would refer to nothing."""
    referring: dict[Key, list[str]] = {}
    for key, obj in existing.items():
        if key in keys:
            continue
        for target in dict.fromkeys(references(obj)):
            if target in keys and target != _DEFAULT:
                referring.setdefault(target, []).append(obj.label)
    for key, labels in referring.items():
        more = f" and {len(labels) - _SHOWN} more" if len(labels) > _SHOWN else ""
        verb = "refers" if len(labels) == 1 else "refer"
        yield Problem(
            label_of(*key), (), f"{', '.join(labels[:_SHOWN])}{more} {verb} to it",
            "nothing that does; change or delete that first, or both at once",
        )


def references(obj: SchemaObject) -> Iterator[Key]:
    """The objects that `obj` needs."""
    if obj.kind != "Namespace":
        yield "Namespace", DEFAULT_NAMESPACE, obj.namespace
    spec = obj.spec
    if isinstance(spec, PipelineSpec):
        yield "Stream", obj.namespace, spec.input
        for stage in spec.stages:
            if stage.output is not None:
                yield "Stream", obj.namespace, stage.output.stream
    elif isinstance(spec, ScheduleSpec):
        if spec.target.queue:
            yield "Queue", obj.namespace, spec.target.queue
        else:
            yield "Stream", obj.namespace, spec.target.stream
    elif isinstance(spec, TokenSpec):
        for name in spec.namespaces:
            if name != "*":
                yield "Namespace", DEFAULT_NAMESPACE, name


__all__ = ["key_of", "references", "validate_deletion"]
