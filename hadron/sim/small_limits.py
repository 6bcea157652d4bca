"""Small limits of what is done in one go: schemas of a few streams are pushed in parts, and whole,
as otherwise only those of many thousands; groups with a few gaps are read a window at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hadron.metadata import push
from hadron.state import groups, schema


@dataclass(frozen=True)
class SmallLimits:
    """0 for what the product has.

    Attributes:
        part_bytes: of the schema, in one entry.
        tombstones: deletions that are remembered, for those behind.
        window_rows: ranges of a group that are read at once.
    """

    part_bytes: int = 0
    tombstones: int = 0
    window_rows: int = 0


@contextmanager
def limited(limits: SmallLimits) -> Iterator[None]:
    """Nodes have these limits, for the length of the block."""
    split, window, most = (
        push.split.__defaults__, groups.window.__defaults__, schema.MAX_TOMBSTONES
    )
    if limits.part_bytes:
        push.split.__defaults__ = (limits.part_bytes,)
    if limits.window_rows:
        groups.window.__defaults__ = (limits.window_rows,)
    if limits.tombstones:
        schema.MAX_TOMBSTONES = limits.tombstones  # type: ignore[misc]
    try:
        yield
    finally:
        push.split.__defaults__, groups.window.__defaults__ = split, window
        schema.MAX_TOMBSTONES = most  # type: ignore[misc]
