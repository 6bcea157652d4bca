"""Entries with several batches, or with an earlier entry's bytes, over a log: as long as an entry
is here it can be read, sent and checked, unless nobody needs its body any more; and the log makes
the tables."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hadron.model.errors import TrimmedError
from hadron.replication.entries import pack, unpack
from hadron.replication.verification import Verification
from hadron.state.machine import Command, Context, encode
from hadron.state.tests.parted import MACHINE, SET, Parted
from hadron.state.tests.test_bodies import STEP, Naive, check, step_of
from hadron.storage.log import TABLES, Log, drop_bodies, read_entries, set_meta


class Logged(Parted):
    """The file of a leader."""

    drop_bodies = staticmethod(drop_bodies)

    def make_tables(self) -> None:
        self.db.execute(TABLES + MACHINE.tables)
        self.chain = Log(self.db)

    def store(self, context: Context, command: Command, body: bytes) -> None:
        assert self.chain.head.lsn + 1 == context.lsn
        self.chain.append(context.ballot, context.now_ms, encode(command), body)
        set_meta(self.db, "applied_lsn", context.lsn)

    def bodies(self) -> list[int]:
        rows: Any = self.db.execute("SELECT lsn FROM hadron_body WHERE length(bytes) > 0")
        return [lsn for (lsn,) in rows]


@pytest.mark.long
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(STEP, min_size=10, max_size=30), st.integers(0, 30))
def test_what_a_log_brings_is_read_sent_and_verified(
    steps: list[tuple[str, int, int, int]], trim_at: int
) -> None:
    file = Logged(3)
    naive = Naive.of(file)
    for number, step in enumerate(steps):
        step_of(file, naive, step, number)
        check(file, naive)
        if number == trim_at:
            file.chain.trim(file.number - 2, max_rows=1_000)
    needed = naive.needed()
    for lsn, command, body in file.log:
        if lsn <= file.chain.anchor.lsn:
            continue
        with contextlib.suppress(TrimmedError):
            (entry,) = read_entries(file.db, lsn, max_bytes=1)
            headers, parts = pack([entry])
            (sent,) = unpack(headers, memoryview(b"".join(parts)))
            assert (sent.command, bytes(sent.body)) == (encode(command), body)
            continue
        assert body
        assert lsn not in needed
    verification = Verification(MACHINE, replica_set=SET)
    while not verification.step(file.db):
        pass
    assert [each.text for each in verification.report.problems] == []
    file.db.close()
