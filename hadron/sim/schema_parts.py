"""Small limits of what a push of the schema holds: worlds of a few streams are pushed in parts, and
whole, as otherwise only those of many thousands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hadron.metadata import push
from hadron.state import schema


@contextmanager
def schema_in_parts(part_bytes: int, tombstones: int) -> Iterator[None]:
    """For the length of the block.

    Args:
        part_bytes: of the schema, in one entry; 0 for what the product has.
        tombstones: deletions that are remembered, for those behind; 0 as well.
    """
    kept, most = push.split.__defaults__, schema.MAX_TOMBSTONES
    if part_bytes:
        push.split.__defaults__ = (part_bytes,)
    if tombstones:
        schema.MAX_TOMBSTONES = tombstones  # type: ignore[misc]
    try:
        yield
    finally:
        push.split.__defaults__ = kept
        schema.MAX_TOMBSTONES = most  # type: ignore[misc]
