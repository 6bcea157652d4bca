"""Where a stream lies whose document does not say so: where it lies already, or in the cluster's
only replica set. Of several none is guessed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from hadron.metadata.judging import Key, key_of
from hadron.model.schema import SchemaObject, StreamSpec


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
