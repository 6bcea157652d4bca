"""A replica's copy of the schema follows what its file has, not what is being written to it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import apsw
import trio
from trio.testing import wait_all_tasks_blocked

from hadron.partition.schema_copy import SchemaCopy
from hadron.state import machine, schema


class _Readers:
    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    async def run(self, job: Callable[[apsw.Connection], Any]) -> Any:
        await trio.lowlevel.checkpoint()
        return job(self._db)


async def test_a_change_is_seen_although_it_was_being_written_while_the_tables_were_read() -> None:
    """The writer has applied entry 2 and not committed it yet when the copy hears of entry 1."""
    db = apsw.Connection(":memory:")
    db.execute(machine.all_tables())
    schema.set_index(db, 1)
    follower = SimpleNamespace(
        schema_lsn=2, applied_lsn=2, stored_applied_lsn=1, committed_lsn=2, diverged=""
    )
    copy = SchemaCopy(cast("Any", SimpleNamespace(readers=_Readers(db))), cast("Any", follower))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(copy.run)
        copy.note_applied()
        await wait_all_tasks_blocked()
        assert copy.index == 1
        schema.set_index(db, 2)
        follower.stored_applied_lsn = 2
        copy.note_applied()
        await wait_all_tasks_blocked()
        assert copy.index == 2
        nursery.cancel_scope.cancel()
