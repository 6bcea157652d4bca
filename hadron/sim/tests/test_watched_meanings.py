"""What the watch of the schema's meanings keeps of a node that is opened."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import apsw
import pytest

from hadron.model.schema import RegisteredSet
from hadron.sim.watch.meanings import Meanings

_MINE = RegisteredSet("eu/p0", b"u", 2, 30)


@pytest.mark.parametrize(
    ("row", "is_told"),
    [(("u", 2, 30), True), (("u", 3, 31), False), (("u", 1, 29), False), (None, False)],
)
def test_an_introduction_counts_as_long_as_a_nodes_tables_have_it(
    row: tuple[str, int, int] | None, is_told: bool
) -> None:
    """A leader's that nobody else heard of is gone once the node has others' log."""
    db = apsw.Connection(":memory:")
    db.execute("CREATE TABLE hadron_schema_index(metadata_index)")
    db.execute("INSERT INTO hadron_schema_index VALUES (30)")
    db.execute("CREATE TABLE hadron_replica_set(name, uuid, epoch, metadata_index)")
    if row is not None:
        db.execute("INSERT INTO hadron_replica_set VALUES ('eu/p0', CAST(? AS BLOB), ?, ?)", row)

    def select(query: str, *values: Any) -> Any:
        return db.execute(query, values).fetchone()

    view: Any = SimpleNamespace(name="n1", select=select, is_alive=True)
    ballots: Any = SimpleNamespace(mark_of=lambda _: SimpleNamespace(view=view, true_lsn=50))
    complaints: list[str] = []
    meanings = Meanings(SimpleNamespace(add=lambda *given: complaints.append(given[0])), ballots)  # type: ignore[arg-type]
    context: Any = SimpleNamespace(lsn=50)
    meanings.applied(view, context, _MINE)
    meanings.opened(view)
    meanings.releases(None)  # type: ignore[arg-type]
    other: Any = SimpleNamespace(lsn=51)
    meanings.applied(view, other, RegisteredSet("us/p0", b"v", 1, 30))
    ballots.mark_of = lambda _: SimpleNamespace(view=view, true_lsn=51)
    meanings.releases(None)  # type: ignore[arg-type]
    assert bool(complaints) is is_told
