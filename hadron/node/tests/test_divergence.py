"""Replicas whose tables have come to differ."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from trio.testing import MockClock

from hadron.node.tests.support import make_stream, read_all, send
from hadron.storage import generations
from hadron.storage.database import open_reader, open_writer
from hadron.storage.log import set_meta
from hadron.storage.snapshot import DIVERGED
from hadron.testing import nodes as testing_nodes
from hadron.testing.nodes import running_nodes

SETTINGS = replace(testing_nodes._QUICK, state_digest_interval_s=0.01)


@pytest.mark.long
async def test_a_replica_whose_tables_differ_is_found_and_takes_a_snapshot(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_nodes(tmp_path, 3, settings=SETTINGS) as nodes:
        await make_stream(nodes)
        async with nodes.client() as client:
            await send(client, ["a", "b", "c"])
            await nodes.wait_in_step()
            await nodes.crash("n2")
            with closing(open_writer(nodes.data("n2") / "hadron.db", sync="NORMAL")) as db:
                db.execute("UPDATE hadron_stream_batch SET append_ms = append_ms + 1")
            await nodes.start("n2")
            for number in range(500):
                await send(client, [f"more {number}"])
                if generations.current_number(nodes.data("n2")):
                    break
            await nodes.wait_in_step()
        found = [each.message for each in caplog.records if "resyncs" in each.message]
        assert len(found) == 1
        assert "table hadron_stream_batch differs" in found[0]
        rows = []
        for name in nodes.names:
            with closing(open_reader(nodes.data(name) / "hadron.db")) as db:
                rows.append(db.execute("SELECT * FROM hadron_stream_batch").fetchall())
        assert rows[0] == rows[1] == rows[2]
        assert generations.current_number(nodes.data("n3")) == 0


async def test_a_replica_whose_tables_sqlite_refuses_to_change_takes_a_snapshot(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A row stands where the next record's goes. The replica's end would be no way out: it meets
    the entry at every start."""
    async with running_nodes(tmp_path, 3, settings=SETTINGS) as nodes:
        await make_stream(nodes)
        async with nodes.client() as client:
            await send(client, ["a", "b", "c"])
            await nodes.wait_in_step()
            await nodes.crash("n2")
            with closing(open_writer(nodes.data("n2") / "hadron.db", sync="NORMAL")) as db:
                db.execute(
                    "INSERT INTO hadron_stream_batch"
                    " SELECT stream_id, next_offset, 1, 1, 1, 1, 1, 1, NULL, NULL"
                    " FROM hadron_stream_partition"
                )
            await nodes.start("n2")
            await send(client, ["d"])
            await nodes.wait_for(
                "a snapshot", lambda: generations.current_number(nodes.data("n2")) > 0
            )
            await send(client, ["e"])
            await nodes.wait_in_step()
            assert await read_all(client) == ["a", "b", "c", "d", "e"]
        (found,) = [each.message for each in caplog.records if "resyncs" in each.message]
        assert "UNIQUE constraint failed: hadron_stream_batch" in found


async def test_a_leader_whose_tables_differ_leads_with_those_of_another(
    tmp_path: Path, clock: MockClock
) -> None:
    """A ballot may be won before the snapshot has come; that must not end the process, which would
    win the next one as soon again."""
    async with running_nodes(tmp_path, 3, settings=SETTINGS) as nodes:
        await make_stream(nodes)
        async with nodes.client() as client:
            await send(client, ["a", "b", "c"])
            await nodes.wait_in_step()
            await nodes.crash("n1")
            with closing(open_writer(nodes.data("n1") / "hadron.db", sync="NORMAL")) as db:
                set_meta(db, DIVERGED, "its tables are another ballot's")
            await nodes.start("n1")
            await nodes.wait_serving()
            assert generations.current_number(nodes.data("n1"))
            await send(client, ["d"])
            await nodes.wait_in_step()
