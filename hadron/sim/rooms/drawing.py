"""What commands by chance are drawn from: the tables as they are."""

from __future__ import annotations

import random
from typing import Any

from hadron.fakes.tables import Replicated


class Drawing:
    """Commands for `tables`; some kinds have a random source of their own, so that more of them
    leave the others of a seed as they are."""

    def __init__(self, seed: int, tables: Replicated) -> None:
        self._random = random.Random(seed)
        self._expecting = random.Random(f"{seed} expecting")
        self._joining = random.Random(f"{seed} joining")
        self._losing = random.Random(f"{seed} losing")
        self._tables = tables

    def _rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self._tables.rows(sql)

    def _one(self, sql: str, *others: int) -> int:
        """An id of those that there are, or, seldom, of `others`."""
        known = [row[0] for row in self._rows(sql)]
        if not known or self._random.random() < 0.05:
            known = list(others) or [999]
        found: int = self._random.choice(known)
        return found

    def _stream(self) -> int:
        return self._one("SELECT stream_id FROM hadron_stream_partition", 1, 2, 3, 999)

    def _end(self, stream_id: int) -> int:
        rows = self._tables.rows(
            "SELECT next_offset FROM hadron_stream_partition WHERE stream_id = ?", stream_id
        )
        return rows[0][0] if rows else 0

    def _stands_at(self) -> int:
        """The schema's index."""
        rows = self._rows("SELECT metadata_index FROM hadron_schema_index")
        return rows[0][0] if rows else 0
