"""What a repair must not write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from hadron.model.batch import encode_values
from hadron.model.ids import EMPTY_LOG, LogPosition
from hadron.replication import repair
from hadron.replication.peers import PeerLink
from hadron.replication.repair import Repairer
from hadron.replication.tests.support import (
    FIRST,
    UUID,
    follower,
    make_entries,
    membership,
    namespace_command,
)
from hadron.storage.log import Entry


async def test_a_body_whose_entry_was_dropped_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old leader's tables name entry 9, which its log has lost to another leader's; a body
    without an entry would be in the way of the next entry 9."""
    body = encode_values([b"value"], 1)
    entries = make_entries(EMPTY_LOG, FIRST, [namespace_command(index) for index in range(9)])
    with follower(tmp_path) as one:
        one.promise(FIRST)
        one.append(FIRST, entries[:8], committed=8, member_of=UUID)
        connection = one.store.writer.connection
        connection.execute(
            "INSERT INTO stream_batch VALUES(1, 0, 1, 9, 0, ?, 1, 1)", (len(body),)
        )
        repairer = Repairer(
            membership(3, "n2"), one.store, None,  # type: ignore[arg-type]
            resync=lambda _reason, _lsn: None, require_peer=lambda _: "",
        )

        async def ask(_connection: Any, _lsn: int) -> tuple[LogPosition | None, Entry]:
            return entries[7].position, entries[8]._replace(body=body)

        async def write(job: Callable[[apsw.Connection], None]) -> None:
            job(connection)

        monkeypatch.setattr(repair, "_ask", ask)
        monkeypatch.setattr(repairer, "_write", write)
        await repairer._fetch_body(PeerLink("n1", "leader", "n1:7000"), 9)
        one.append(FIRST, entries[8:], after=entries[7].position, committed=9)
        assert one.stored_lsns() == list(range(1, 10))
        assert connection.execute("SELECT count(*) FROM body").get == 0
