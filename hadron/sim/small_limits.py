"""Small limits of what is done in one go: schemas of a few streams are pushed in parts, and whole,
as otherwise only those of many thousands; groups with a few gaps are read a window at a time, and
write a few acknowledgements at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hadron.delivery import progress
from hadron.metadata import push
from hadron.state import groups, schema


@dataclass(frozen=True)
class SmallLimits:
    """0 for what the product has.

    Attributes:
        part_bytes: of the schema, in one entry.
        tombstones: deletions that are remembered, for those behind.
        window_rows: ranges of a group that are read at once.
        entry_ranges: ranges of a group that one entry ends.
    """

    part_bytes: int = 0
    tombstones: int = 0
    window_rows: int = 0
    entry_ranges: int = 0


@contextmanager
def limited(limits: SmallLimits) -> Iterator[None]:
    """Nodes have these limits, for the length of the block."""
    split, window, most, ranges = (
        push.split.__defaults__, groups.window.__defaults__, schema.MAX_TOMBSTONES,
        progress._RANGES_PER_ENTRY,
    )
    if limits.part_bytes:
        push.split.__defaults__ = (limits.part_bytes,)
    if limits.window_rows:
        groups.window.__defaults__ = (limits.window_rows,)
    if limits.tombstones:
        schema.MAX_TOMBSTONES = limits.tombstones  # type: ignore[misc]
    if limits.entry_ranges:
        progress._RANGES_PER_ENTRY = limits.entry_ranges  # type: ignore[misc]
    try:
        yield
    finally:
        push.split.__defaults__, groups.window.__defaults__ = split, window
        schema.MAX_TOMBSTONES = most  # type: ignore[misc]
        progress._RANGES_PER_ENTRY = ranges  # type: ignore[misc]
