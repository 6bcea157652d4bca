"""Whether a set of declared objects may be applied to the schema as it stands.

Apply is one atomic change: all valid or nothing, so everything is judged against the schema as it
would be afterwards. Pure, and without YAML: the node that owns the schema runs it on what clients
send.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from hadron.metadata import pipelines, services
from hadron.metadata.judging import INSIST, Judge, Key, KindRules, Losses, key_of
from hadron.metadata.shortening import shortened
from hadron.model.documents.checks import check_object
from hadron.model.documents.problem import Notes, Problem
from hadron.model.problems import Suggestions, shorten, some_of
from hadron.model.schema import Retention, SchemaObject, StreamSpec


@dataclass(frozen=True, slots=True)
class Own:
    """What is wrong with objects by themselves: most of what judging them takes, and of one by one.

    Attributes:
        suggestions: those of all that is judged together.
    """

    problems: list[Problem] = field(default_factory=list)
    suggestions: Suggestions = field(default_factory=Suggestions)

    def look_at(self, obj: SchemaObject) -> None:
        self.problems.extend(check_object(obj, self.suggestions))


def validate(
    objects: Sequence[SchemaObject],
    existing: Mapping[Key, SchemaObject],
    *,
    replica_sets: Collection[str],
    allow_destructive: bool,
    losses: Losses | None = None,
    own: Own | None = None,
) -> list[Problem]:
    """Every reason to refuse `objects`; none means that the whole set may be applied.

    Args:
        objects: what is declared; objects that are not among them stay as they are.
        existing: the schema as it stands.
        replica_sets: the names of the cluster's replica sets.
        allow_destructive: permits changes that lose something.
        losses: of retentions that are shortened; those that are not in it may drop anything.
        own: what is wrong with each of them by itself, if that has been looked at.
    """
    if own is None:
        own = Own()
        for obj in objects:
            own.look_at(obj)
    suggestions = own.suggestions
    repeated = _check_unique(objects)
    labels = {problem.label for problem in own.problems}
    broken = frozenset(key_of(obj) for obj in objects if obj.label in labels)
    after = {**existing, **{key_of(obj): obj for obj in objects}}
    judge = Judge(
        existing,
        after,
        broken=broken,
        replica_sets=frozenset(replica_sets),
        allow_destructive=allow_destructive,
        losses=losses or {},
    )
    # What an object with problems of its own refers to would only be noise.
    related = [
        problem
        for obj in objects
        if key_of(obj) not in broken
        for problem in _check(judge, obj, suggestions)
    ]
    return [*own.problems, *repeated, *related, *_check_dependents(judge, objects, suggestions)]


def _check_unique(objects: Iterable[SchemaObject]) -> list[Problem]:
    seen: set[Key] = set()
    problems: list[Problem] = []
    for obj in objects:
        key = key_of(obj)
        if key in seen:
            problems.append(Problem(obj.label, (), "declared more than once", "each object once"))
        seen.add(key)
    return problems


def _check(judge: Judge, obj: SchemaObject, suggestions: Suggestions) -> list[Problem]:
    """Compare one object with the schema before and after the change."""
    notes = Notes(obj.label, suggestions)
    rules = RULES.get(obj.kind)
    if rules is not None:
        judge.find_namespace(notes, ("namespace",), obj.namespace)
        before = judge.existing.get(key_of(obj))
        rules.check(judge, notes, obj, before.spec if before is not None else None)
    return notes.problems


def _check_dependents(
    judge: Judge, objects: Sequence[SchemaObject], suggestions: Suggestions
) -> list[Problem]:
    """What stays as it is, and would refer to what goes away."""
    declared = {key_of(obj) for obj in objects}
    problems: list[Problem] = []
    for key, obj in judge.existing.items():
        rules = RULES.get(obj.kind)
        if key not in declared and rules is not None and rules.recheck is not None:
            notes = Notes(obj.label, suggestions)
            rules.recheck(judge, notes, obj, declared)
            problems += notes.problems
    return problems


def _check_stream(judge: Judge, notes: Notes, obj: SchemaObject, before: StreamSpec | None) -> None:
    spec = obj.spec
    assert isinstance(spec, StreamSpec)
    if not spec.partitions:
        found = f"no partitions, and the cluster has {len(judge.replica_sets)} replica sets"
        notes.note(("partitions",), found, f"some of {judge.known_sets or 'those to come'}")
    old = tuple(before.partitions) if before is not None else ()
    in_use = frozenset(old)
    for index, partition in enumerate(spec.partitions):
        # What is in use was known when it was declared; its replica set may just be away.
        if partition not in in_use:
            judge.check_replica_set(notes, ("partitions", index), partition)
    if before is not None and not judge.allow_destructive:
        added = [name for name in spec.partitions if name not in in_use]
        _check_retention(judge, notes, obj, before, added)
        _check_partitions(notes, spec, old)


def _check_retention(
    judge: Judge, notes: Notes, obj: SchemaObject, before: StreamSpec, added: Sequence[str]
) -> None:
    spec = obj.spec
    assert isinstance(spec, StreamSpec)
    shorter = {less.key: less for less in shortened(before.retention, spec.retention)}
    for limit in shortened(Retention(), spec.retention):
        less = shorter.get(limit.key)
        amount = judge.losses.get((key_of(obj), limit.key))
        if amount == "" or not (less or added):
            continue
        drops = f"which drops {limit.drops} at once" + (f": {amount}" if amount else "")
        if less is not None:
            found = f"{less.after} instead of {less.before}, {drops}"
            notes.note(("retention", less.key), found, f"{less.before}, or {INSIST}")
        else:
            found = f"{some_of([*map(shorten, added)])} added, {drops}"
            notes.note(("partitions",), found, f"those before, a longer retention, or {INSIST}")


def _check_partitions(notes: Notes, spec: StreamSpec, old: tuple[str, ...]) -> None:
    if tuple(spec.partitions[: len(old)]) == old:
        return
    stay = frozenset(spec.partitions)
    removed = [name for name in old if name not in stay]
    for name in removed:
        found = (
            f"{shorten(name)} was removed, which would put its records out of reach and "
            "move keys to other partitions"
        )
        notes.note(("partitions",), found, f"every existing partition, or {INSIST}")
    if not removed:
        found = "the order of existing partitions was changed, which would move keys"
        expected = f"{some_of(old)} first and new ones behind, or {INSIST}"
        notes.note(("partitions",), found, expected)


def _refuse_change(before: SchemaObject, after: SchemaObject) -> list[Problem]:
    """An index of keys is of all of a partition's records, and of all of a key's, whoever
    insists."""
    old, new = before.spec, after.spec
    assert isinstance(old, StreamSpec)
    assert isinstance(new, StreamSpec)
    if old.keys != new.keys:
        found = f"{shorten(new.keys) if new.keys else 'not given'}, and the stream has records"
        has = f"{old.keys}, as it was created" if old.keys else "nothing, as it was created"
        return [Problem(after.label, ("keys",), found, f"{has}; or another stream")]
    if old.has_key_index and old.partitions != new.partitions:
        found = f"{some_of(new.partitions)}: keys would move, and their index says where they are"
        expected = f"{some_of(old.partitions)}, as it was created; or another stream"
        return [Problem(after.label, ("partitions",), found, expected)]
    return []


RULES: Final[Mapping[str, KindRules]] = {
    "Stream": KindRules(
        check=_check_stream,
        refuse_change=_refuse_change,
        holds="its records and its consumer groups",
    ),
    "Pipeline": pipelines.RULES,
    **services.RULES,
}
"""By kind. A namespace has none: it stands in none, and refers to nothing."""
