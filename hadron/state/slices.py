"""How much one command drops: in slices, so that no commit waits for long (PROTOCOL F3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from hadron.model.ports import Database

SLICE_BATCHES: Final = 500
SLICE_BYTES: Final = 16 << 20
"""Measured on one disk: 500 batches of 1 kB take 6 ms, 16 MiB in batches of 100 kB 9 ms."""


SLICE_ROWS: Final = 2_000
"""Of the small tables: producers, instances, a deleted stream's groups."""


@dataclass(frozen=True, slots=True)
class Room:
    """What one entry may drop: so many rows, and bodies of entries up to `until_lsn`, as a member
    may still need those above it."""

    rows: int
    until_lsn: int


class Dropped(msgspec.Struct, frozen=True):
    """What a slice did. `is_done`: nothing is left."""

    rows: int
    bytes: int = 0
    is_done: bool = False


def delete_some(
    db: Database, table: str, owner: str, owner_id: int, key: str, limit: int
) -> int:
    """Delete the first `limit` rows, in the order of `key`, of those whose column `owner` is
    `owner_id`; returns how many there were."""
    db.execute(
        f"DELETE FROM {table} WHERE {owner} = ? AND ({key}) IN"
        f" (SELECT {key} FROM {table} WHERE {owner} = ? ORDER BY {key} LIMIT ?)",
        (owner_id, owner_id, limit),
    )
    return db.changes()
