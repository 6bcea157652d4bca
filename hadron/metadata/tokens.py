"""Hashes of tokens' secrets in what is applied: a secret stays as it is unless another is given.

Whoever applies makes the secret and sends its hash alone (`hadron.model.tokens`), so no node, log
or backup ever has one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from hadron.metadata.judging import Key, key_of
from hadron.model.documents.problem import Problem
from hadron.model.schema import SchemaObject
from hadron.model.services import TokenSpec


def keep_hashes(
    objects: Sequence[SchemaObject], existing: Mapping[Key, SchemaObject]
) -> list[SchemaObject]:
    """`objects`, with the stored hash in every token that is declared without one."""
    return [_keep_hash(obj, existing.get(key_of(obj))) for obj in objects]


def _keep_hash(obj: SchemaObject, before: SchemaObject | None) -> SchemaObject:
    spec = obj.spec
    if not isinstance(spec, TokenSpec) or spec.sha256 or before is None:
        return obj
    assert isinstance(before.spec, TokenSpec), before
    kept = msgspec.structs.replace(spec, sha256=before.spec.sha256)
    return msgspec.structs.replace(obj, spec=kept)


def missing_hashes(objects: Iterable[SchemaObject]) -> list[Problem]:
    """A new token without a hash would let nobody in."""
    return [
        Problem(obj.label, ("sha256",), "missing", "the SHA-256 of a new random secret, in hex")
        for obj in objects
        if isinstance(obj.spec, TokenSpec) and not obj.spec.sha256
    ]
