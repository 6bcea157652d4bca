"""Where objects lie. A stream whose document does not say so lies where it does already, or in the
cluster's only replica set; of several none is guessed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from hadron.metadata.judging import Key, key_of
from hadron.model.schema import SchemaObject, Spec, StreamSpec


def unheard(
    objects: Iterable[SchemaObject],
    find: Callable[[str, str, str], SchemaObject | None],
    replica_sets: Collection[str],
) -> set[str]:
    """The replica sets that objects come to lie in, and nobody here has heard of: other nodes may
    have, by now.

    Args:
        find: what there is of a kind, in a namespace, under a name.
    """
    named: set[str] = set()
    for obj in objects:
        before = find(*key_of(obj))
        named |= _homes(obj.spec) - (set() if before is None else _homes(before.spec))
    return named.difference(replica_sets)


def _homes(spec: Spec) -> set[str]:
    if isinstance(spec, StreamSpec):
        return set(spec.partitions)
    home = getattr(spec, "replica_set", "")
    return {home} if home else set()


def with_partitions(
    objects: Sequence[SchemaObject],
    existing: Mapping[Key, SchemaObject],
    replica_sets: Collection[str],
) -> list[SchemaObject]:
    """`objects`, with partitions in every stream that is declared without any, where there is no
    choice."""
    only = tuple(replica_sets) if len(replica_sets) == 1 else ()
    return [_with_partitions(obj, existing.get(key_of(obj)), only) for obj in objects]


def _with_partitions(
    obj: SchemaObject, before: SchemaObject | None, only: tuple[str, ...]
) -> SchemaObject:
    spec = obj.spec
    if not isinstance(spec, StreamSpec) or spec.partitions:
        return obj
    has = before.spec.partitions if before and isinstance(before.spec, StreamSpec) else only
    return msgspec.structs.replace(obj, spec=msgspec.structs.replace(spec, partitions=has))
