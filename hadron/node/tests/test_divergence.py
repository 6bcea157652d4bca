"""Replicas whose tables have come to differ, and members of different versions."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from trio.testing import MockClock

from hadron.model.errors import VersionError
from hadron.model.ids import EMPTY_LOG
from hadron.node.tests.support import make_stream, send
from hadron.replication import membership as membership_room
from hadron.replication.membership import common_apply_version
from hadron.replication.tests.support import FIRST, UUID, follower, make_entries, membership
from hadron.state import machine
from hadron.state.leadership import LeaderStarted
from hadron.storage import generations
from hadron.storage.database import open_reader, open_writer
from hadron.storage.log import set_meta
from hadron.storage.snapshot import DIVERGED
from hadron.testing import nodes as testing_nodes
from hadron.testing.nodes import running_nodes
from hadron.wire.messages import replication_pb2

SETTINGS = replace(testing_nodes._QUICK, state_digest_interval_s=0.01)


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
                db.execute("UPDATE stream_batch SET append_ms = append_ms + 1")
            await nodes.start("n2")
            for number in range(500):
                await send(client, [f"more {number}"])
                if generations.current_number(nodes.data("n2")):
                    break
            await nodes.wait_in_step()
        found = [each.message for each in caplog.records if "resyncs" in each.message]
        assert len(found) == 1
        assert "table stream_batch differs" in found[0]
        rows = []
        for name in nodes.names:
            with closing(open_reader(nodes.data(name) / "hadron.db")) as db:
                rows.append(db.execute("SELECT * FROM stream_batch").fetchall())
        assert rows[0] == rows[1] == rows[2]
        assert generations.current_number(nodes.data("n3")) == 0


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


def answered(version: int) -> replication_pb2.HandshakeResponse:
    return replication_pb2.HandshakeResponse(
        identity=replication_pb2.HandshakeRequest(apply_version=version)
    )


def test_a_leader_follows_the_rules_that_all_members_know(monkeypatch: pytest.MonkeyPatch) -> None:
    own = membership(3)
    monkeypatch.setattr(membership_room, "APPLY_VERSION", 3)
    both = {"n2": answered(3), "n3": answered(3)}
    assert common_apply_version(own, 1, both) == 3
    assert common_apply_version(own, 1, {**both, "n3": answered(2)}) == 2
    # From before the field existed.
    assert common_apply_version(own, 1, {**both, "n3": answered(0)}) == 1
    # Away: it may be older than any that is here.
    assert common_apply_version(own, 1, {**both, "n3": None}) == 1
    assert common_apply_version(own, 2, {"n2": answered(3)}) == 2
    # What was followed once is not taken back.
    assert common_apply_version(own, 3, {**both, "n3": answered(2)}) == 3


async def test_the_first_ballot_follows_the_newest_rules_that_all_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership_room, "APPLY_VERSION", 2)
    monkeypatch.setattr(machine, "APPLY_VERSION", 2)
    async with running_nodes(tmp_path, 3) as nodes:
        await nodes.wait_in_step()
        for name in nodes.names:
            with closing(open_reader(nodes.data(name) / "hadron.db")) as db:
                assert db.execute("SELECT apply_version FROM apply_rules").fetchone() == (2,)


def test_a_replica_that_is_too_old_stops_and_says_what_to_install(tmp_path: Path) -> None:
    with follower(tmp_path) as replica:
        replica.promise(FIRST)
        started = LeaderStarted("n1", UUID, (("n1", "leader"),), b"d" * 16, 2)
        entries = make_entries(EMPTY_LOG, FIRST, [machine.encode(started)])
        with pytest.raises(VersionError) as caught:
            replica.append(FIRST, entries, committed=1)
        assert str(caught.value) == (
            "from entry 1 on, the log of local/p0 follows version 2 of its rules; this Hadron "
            "knows them up to version 1 (install the version of Hadron that n1 runs, and start "
            "this node again)"
        )
