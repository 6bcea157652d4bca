"""What the rules of every kind judge by: the schema before and after a change, and what may be
asked of it. What a kind asks, its own rules say (`KindRules`). Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from hadron.model.documents.problem import Notes, Problem
from hadron.model.ids import DEFAULT_NAMESPACE
from hadron.model.problems import ValuePath, shorten, some_of
from hadron.model.schema import SchemaObject, Spec, StreamSpec, Tombstone

T = TypeVar("T")

Key = tuple[str, str, str]
"""(kind, namespace, name): what an object is found by."""

Losses = Mapping[tuple[Key, str], str]
"""What a limit of a stream's retention, by its key, drops at once, in words; "" for nothing."""

INSIST: Final = "`allow_destructive` if it is meant"


def key_of(obj: SchemaObject | Tombstone) -> Key:
    return obj.kind, obj.namespace, obj.name


class Judge:
    """One change: the schema as it stands, and as it would be.

    Attributes:
        broken: objects with problems of their own, which nothing can be judged by.
        losses: of retentions that are shortened; those that are not in it may drop anything.
        known_sets: the replica sets, or the first of them, in words; "" when there is none.
    """

    def __init__(
        self,
        existing: Mapping[Key, SchemaObject],
        after: Mapping[Key, SchemaObject],
        *,
        broken: Collection[Key],
        replica_sets: Collection[str],
        allow_destructive: bool,
        losses: Losses,
    ) -> None:
        self.existing = existing
        self.after = after
        self.broken = broken
        self.replica_sets = replica_sets
        self.allow_destructive = allow_destructive
        self.losses = losses
        self.known_sets = some_of(sorted(replica_sets))
        self._views: dict[Callable[..., Any], Any] = {}

    def view(self, make: Callable[[Iterable[SchemaObject]], T]) -> T:
        """What `make` makes of the schema as it would be, made once."""
        if make not in self._views:
            self._views[make] = make(self.after.values())
        found: T = self._views[make]
        return found

    def find_namespace(self, notes: Notes, path: ValuePath, name: str) -> None:
        # By key: there may be thousands of objects, and this is asked for each of them.
        if name == DEFAULT_NAMESPACE or ("Namespace", DEFAULT_NAMESPACE, name) in self.after:
            return
        known = (key[2] for key in self.after if key[0] == "Namespace")
        found = f"there is no namespace {shorten(name)}{notes.meant(name, known)}"
        notes.note(
            path,
            found,
            f"an existing one (`hadron create namespace {name}` makes it), or its declaration "
            "beside this",
        )

    def check_replica_set(self, notes: Notes, path: ValuePath, name: str) -> None:
        if name not in self.replica_sets:
            meant = notes.meant(name, self.replica_sets)
            found = f"there is no replica set {shorten(name)}{meant}"
            known = self.known_sets or "none is known yet"
            notes.note(path, found, f"one of the cluster's ({known})")

    def check_home(self, notes: Notes, spec: Any, before: Spec | None) -> None:
        """Where something lies that has a `replica_set`. One that is in use was known when it was
        declared; it may just be away."""
        if getattr(before, "replica_set", None) != spec.replica_set:
            self.check_replica_set(notes, ("replica_set",), spec.replica_set)

    def find_stream(
        self, notes: Notes, path: ValuePath, namespace: str, name: str
    ) -> StreamSpec | None:
        found = self.find(notes, path, "Stream", namespace, name)
        assert found is None or isinstance(found, StreamSpec), found
        return found

    def find(
        self, notes: Notes, path: ValuePath, kind: str, namespace: str, name: str
    ) -> Spec | None:
        """What is referred to; None when it is not there, or cannot be judged by."""
        key = kind, namespace, name
        if key in self.broken:
            return None
        if key in self.after:
            return self.after[key].spec
        others = (other[2] for other in self.after if other[:2] == (kind, namespace))
        what = kind.lower()
        text = f"there is no {what} {shorten(name)} in namespace {namespace}"
        expected = f"an existing {what}, or its declaration beside this"
        notes.note(path, f"{text}{notes.meant(name, others)}", expected)
        return None


def note_move(notes: Notes, key: str, old: str, new: str, loses: str) -> None:
    found = f"changed from {shorten(old)} to {shorten(new)}, which would lose {loses}"
    notes.note((key,), found, f"{old}, or {INSIST}")


Check = Callable[[Judge, Notes, SchemaObject, Any], None]
"""Told what is declared, and the specification that it replaces, or None."""

Recheck = Callable[[Judge, Notes, SchemaObject, Collection[Key]], None]
"""Told an object that stays as it is, and what is declared."""


def _refers_to_nothing(_obj: SchemaObject) -> Iterator[Key]:
    return iter(())


def _moves_freely(_before: SchemaObject, _after: SchemaObject) -> list[Problem]:
    return []


@dataclass(frozen=True, kw_only=True)
class KindRules:
    """What objects of a kind must keep to, beside the rules for each on its own.

    Attributes:
        check: of one that is declared.
        recheck: of one that stays, where something changes that it refers to.
        references: what it needs, but its namespace.
        refuse_change: what nobody can insist on.
        holds: what is lost with one, in words; "" for nothing.
    """

    check: Check
    recheck: Recheck | None = None
    references: Callable[[SchemaObject], Iterator[Key]] = _refers_to_nothing
    refuse_change: Callable[[SchemaObject, SchemaObject], list[Problem]] = _moves_freely
    holds: str = ""
