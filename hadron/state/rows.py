"""The replicated tables as plain rows in the order of their keys: what comparing two copies of
them needs. Columns are taken by name, so that a table that grew a column by ALTER TABLE reads like
one that was created with it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hadron.model.ports import Database

Key = tuple[Any, ...]
Row = tuple[Any, ...]


@dataclass(frozen=True)
class Table:
    """A replicated table, as its declaration in this database has it."""

    name: str
    key: tuple[str, ...]
    """Columns of the primary key, in its order."""
    columns: tuple[str, ...]
    """All of them, by name."""

    @cached_property
    def key_places(self) -> tuple[int, ...]:
        return tuple(self.columns.index(name) for name in self.key)

    def key_of(self, row: Row) -> Key:
        return tuple(row[place] for place in self.key_places)

    def after(self, db: Database, key: Key | None, limit: int) -> list[Row]:
        """The rows that follow `key` (None: from the first one), in the order of their keys."""
        names = ", ".join(f'"{name}"' for name in self.columns)
        order = ", ".join(f'"{name}"' for name in self.key)
        where, bindings = "", []
        if key is not None:
            marks = ", ".join("?" * len(key))
            where, bindings = f" WHERE ({order}) > ({marks})", list(key)
        return db.execute(
            f'SELECT {names} FROM "{self.name}"{where} ORDER BY {order} LIMIT ?', (*bindings, limit)
        ).fetchall()


def table(db: Database, name: str) -> Table | None:
    """How `name` is declared in `db`; None where there is no such table."""
    rows = db.execute("SELECT name, pk FROM pragma_table_info(?)", (name,)).fetchall()
    if not rows:
        return None
    key = tuple(column for column, place in sorted(rows, key=lambda row: row[1]) if place)
    assert key, f"table {name} has no primary key, so its rows have no order"
    return Table(name, key, tuple(sorted(column for column, _ in rows)))
