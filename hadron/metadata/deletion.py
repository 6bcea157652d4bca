"""Whether declared objects may be deleted: nothing that stays may refer to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from hadron.metadata.judging import INSIST, Key, key_of
from hadron.metadata.validation import RULES
from hadron.model.documents.problem import Problem
from hadron.model.ids import DEFAULT_NAMESPACE
from hadron.model.problems import Suggestions, shorten
from hadron.model.schema import SchemaObject, Tombstone, label_of

_DEFAULT: Final = ("Namespace", DEFAULT_NAMESPACE, DEFAULT_NAMESPACE)
_SHOWN: Final = 10
"""Objects that are named one by one."""


def validate_deletion(
    keys: Sequence[Key], existing: Mapping[Key, SchemaObject], *, allow_destructive: bool
) -> list[Problem]:
    """Every reason to refuse; none means that all of `keys` may be deleted at once."""
    problems: list[Problem] = []
    suggestions = Suggestions()
    for key in keys:
        kind, _, _ = key
        label = label_of(*key)
        if key == _DEFAULT:
            problems.append(Problem(label, (), "the default namespace cannot be deleted"))
        elif key not in existing:
            found = _missing(key, existing, suggestions)
            problems.append(Problem(label, (), found, hint=_look(key, existing)))
        elif kind in RULES and RULES[kind].holds and not allow_destructive:
            problems.append(Problem(label, (), f"deleting it loses {RULES[kind].holds}", INSIST))
    return [*problems, *_dangling(set(keys), existing)]


def meant(
    names: Iterable[tuple[Key, int]],
    existing: Mapping[Key, SchemaObject],
    since: int | None,
    gone_since: Iterable[Tombstone],
) -> tuple[list[Key], list[Problem]]:
    """What to delete of the objects with these keys and ids (0 for any), and why of others not.

    Args:
        since: where the schema stood when they were named: what was made later is not meant.
        gone_since: what was deleted since. Whoever asks again, because the answer was lost, has
            deleted it.
    """
    keys: list[Key] = []
    problems: list[Problem] = []
    done = {(key_of(each), each.id) for each in gone_since}
    done |= {(key, 0) for key, _ in done}
    for key, wanted in dict.fromkeys(names):
        if (key, wanted) in done:
            continue
        found = existing.get(key)
        is_older = found is not None and (since is None or found.id <= since)
        if found is None or found.id == wanted or (is_older and not wanted):
            keys.append(key)
        else:
            other = f"the one that has the name was made at index {found.id}: it is another one"
            hint = "look at it, and delete it by its name if it is to go as well"
            problems.append(Problem(label_of(*key), (), other, hint=hint))
    return list(dict.fromkeys(keys)), problems


def _missing(key: Key, existing: Mapping[Key, SchemaObject], suggestions: Suggestions) -> str:
    kind, namespace, name = key
    if _is_nowhere(key, existing):
        return f"there is no namespace {shorten(namespace)}"
    names = (each[2] for each in existing if each[:2] == (kind, namespace))
    return f"it does not exist{suggestions.of(name, names)}"


def _look(key: Key, existing: Mapping[Key, SchemaObject]) -> str:
    """Where to see what there is."""
    kind, namespace, _ = key
    if kind == "Namespace" or _is_nowhere(key, existing):
        return "`hadron get namespaces` lists all"
    within = "" if namespace == DEFAULT_NAMESPACE else f" --namespace {namespace}"
    return f"look with `hadron get {kind.lower()}s{within}`"


def _is_nowhere(key: Key, existing: Mapping[Key, SchemaObject]) -> bool:
    """Whether it is in a namespace that does not exist."""
    kind, namespace, _ = key
    home = ("Namespace", DEFAULT_NAMESPACE, namespace)
    return kind != "Namespace" and namespace != DEFAULT_NAMESPACE and home not in existing


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
            label_of(*key),
            (),
            f"{', '.join(labels[:_SHOWN])}{more} {verb} to it",
            "nothing that does; change or delete that first, or both at once",
        )


def references(obj: SchemaObject) -> Iterator[Key]:
    """The objects that `obj` needs."""
    if obj.kind != "Namespace":
        yield "Namespace", DEFAULT_NAMESPACE, obj.namespace
    if obj.kind in RULES:
        yield from RULES[obj.kind].references(obj)
