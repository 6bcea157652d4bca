"""Making tables, also in a file that has somebody else's beside them.

Safety rule: what has a name of ours and is made otherwise is not taken for ours, and nothing is
made beside it. `IF NOT EXISTS` alone passes over it, and what follows writes into it, or fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from functools import cache
from typing import Any, Final

import apsw

from hadron.model.errors import DataDirectoryError

_COLUMNS: Final = (
    'SELECT s.name, s.type, l.wr, l.strict, c.name, c.type, c."notnull", c.dflt_value, c.pk'
    " FROM sqlite_schema s JOIN pragma_table_list(s.name) l ON l.schema = 'main'"
    " JOIN pragma_table_xinfo(s.name, 'main') c WHERE s.type IN ('table', 'view')"
)
_INDEXED: Final = (
    "SELECT s.name, s.type, s.tbl_name, c.name, c.desc, c.coll, c.key"
    " FROM sqlite_schema s JOIN pragma_index_xinfo(s.name, 'main') c"
    " WHERE s.type = 'index' AND s.sql IS NOT NULL"
)

_Shapes = Mapping[str, list[tuple[Any, ...]]]
"""Of each table, view and index, by its name in lower case: a row of each of its columns."""


def make_tables(db: apsw.Connection, statements: str) -> None:
    """Make tables and indexes, those that are not there yet.

    Args:
        statements: CREATE TABLE IF NOT EXISTS, CREATE INDEX IF NOT EXISTS.

    Raises `DataDirectoryError` when the file has something else under one of their names; then
    nothing was made.
    """
    there = _shapes(db)
    for name, shape in wanted_shapes(statements).items():
        if name in there and there[name] != shape:
            raise DataDirectoryError(
                f"{db.filename or 'this database'} has a {there[name][0][0]} {name} that is made "
                "otherwise than Hadron's",
                f"if it is your own, rename it: names that begin as {name} does are Hadron's; if "
                "another version of Hadron has made it, use that one",
            )
    db.execute(statements)


@cache
def wanted_shapes(statements: str) -> _Shapes:
    """What these statements make, once worked out for each process."""
    with closing(apsw.Connection(":memory:")) as db:
        db.execute(statements)
        return _shapes(db)


def _shapes(db: apsw.Connection) -> _Shapes:
    found: dict[str, list[tuple[Any, ...]]] = {}
    for query in (_COLUMNS, _INDEXED):
        for name, *shape in db.execute(query):
            found.setdefault(name.lower(), []).append(tuple(shape))
    return found
