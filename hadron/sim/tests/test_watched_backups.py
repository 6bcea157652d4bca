"""A backup is held against what was in the node's file when somebody asked for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast

import apsw
import pytest

from hadron.sim.watch.copies import Copies
from hadron.sim.watch.views import Complaints, NodeView


class Replica:
    """n2, which knows entry 132 to be committed, and has applied and stored all up to 131."""

    def __init__(self, db: apsw.Connection) -> None:
        self.db = db
        db.execute("CREATE TABLE hadron_meta(key, value)")
        db.execute("INSERT INTO hadron_meta VALUES('applied_lsn', 131)")
        store: Any = SimpleNamespace(writer=SimpleNamespace(connection=db))
        volume: Any = SimpleNamespace(is_dead=False)
        follower: Any = SimpleNamespace(committed_lsn=132, stored_applied_lsn=131)
        self._view = NodeView("n2", store, volume, follower=follower)
        self._copies = Copies(Complaints(), {"n2": self._view}, cast(Any, None))

    def apply(self) -> None:
        """Entry 132."""
        self.db.execute("UPDATE hadron_meta SET value = 132")

    def known(self) -> int:
        return self._copies.known()[self._view]


@pytest.fixture
def replica() -> Iterator[Replica]:
    with closing(apsw.Connection(":memory:")) as db:
        yield Replica(db)


def test_what_is_applied_is_due_once_it_is_stored(replica: Replica) -> None:
    replica.db.execute("BEGIN IMMEDIATE")
    replica.apply()
    assert replica.known() == 131
    replica.db.execute("COMMIT")
    # It is in the file before the node has taken note of that.
    assert replica.known() == 132


@pytest.mark.parametrize("prepare", [lambda _db: None, lambda db: db.execute("BEGIN IMMEDIATE")])
def test_what_was_stored_before_is_due(
    replica: Replica, prepare: Callable[[apsw.Connection], object]
) -> None:
    prepare(replica.db)
    assert replica.known() == 131
