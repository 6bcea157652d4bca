"""Damaged entries: never served, given back by whoever has them, and asked for by nobody twice."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio
from trio.testing import MockClock

from hadron.model.errors import CorruptionError
from hadron.node.tests.support import LEADER, chains, fetch, make_stream, produce, read_all, send
from hadron.replication import repair
from hadron.replication.verification import Verification
from hadron.state.features import MACHINE
from hadron.storage.database import open_reader, open_writer
from hadron.storage.log import Entry
from hadron.testing import nodes as testing_nodes
from hadron.testing.nodes import Nodes, running_nodes

SETTINGS = testing_nodes._QUICK
VALUES = [f"value {number}" for number in range(20)]

DAMAGES = {
    "a body": "UPDATE hadron_body SET bytes = CAST(substr(bytes, 1, 30) || x'ff'"
    " || substr(bytes, 32) AS BLOB) WHERE lsn = 9",
    "a lost body": "DELETE FROM hadron_body WHERE lsn = 9",
    "a command": "UPDATE hadron_log SET command = CAST(command || x'00' AS BLOB) WHERE lsn = 9",
    "a stamp": "UPDATE hadron_log SET now_ms = now_ms - 1 WHERE lsn = 9",
    "a chain": "UPDATE hadron_log SET chain = randomblob(16) WHERE lsn = 9",
    "a hash": "UPDATE hadron_log SET body_hash = randomblob(16) WHERE lsn = 9",
    "a lost row": "DELETE FROM hadron_log WHERE lsn = 9",
    "a lost entry": "DELETE FROM hadron_log WHERE lsn = 9; DELETE FROM hadron_body WHERE lsn = 9",
    "two in a row": "UPDATE hadron_log SET now_ms = now_ms + 1 WHERE lsn IN (9, 10)",
    "a body and a row": "UPDATE hadron_log SET command = x'90' WHERE lsn = 9;"
    " UPDATE hadron_body SET bytes = x'00' WHERE lsn = 9",
}


def damage(nodes: Nodes, name: str, sql: str) -> None:
    """Change a node's file behind its back."""
    with closing(open_writer(nodes.data(name) / "hadron.db", sync="NORMAL")) as db:
        db.execute(sql)
        assert db.total_changes()


def damage_live(nodes: Nodes, name: str, sql: str) -> None:
    nodes.node(name).member._store.writer.connection.execute(sql)


def log_of(nodes: Nodes, name: str) -> list[tuple[Any, ...]]:
    with closing(open_reader(nodes.data(name) / "hadron.db")) as db:
        return db.execute(
            "SELECT * FROM hadron_log LEFT JOIN hadron_body USING (lsn) ORDER BY lsn"
        ).fetchall()


def problems(nodes: Nodes, name: str) -> list[str]:
    with closing(open_reader(nodes.data(name) / "hadron.db")) as db:
        verification = Verification(MACHINE, replica_set="local/p0")
        while not verification.step(db):
            pass
    return [each.text for each in verification.report.problems]


@asynccontextmanager
async def loaded(tmp_path: Path, count: int = 3, **settings: Any) -> AsyncIterator[Nodes]:
    async with running_nodes(tmp_path, count, settings=replace(SETTINGS, **settings)) as nodes:
        await make_stream(nodes)
        async with nodes.client() as client:
            for value in VALUES:
                await send(client, [value])
        await nodes.wait_in_step()
        yield nodes


@pytest.mark.parametrize("kind", DAMAGES)
async def test_a_leader_gets_a_damaged_entry_back_and_serves_it(
    tmp_path: Path, clock: MockClock, kind: str
) -> None:
    async with loaded(tmp_path) as nodes:
        await nodes.crash("n1")
        damage(nodes, "n1", DAMAGES[kind])
        assert problems(nodes, "n1")
        await nodes.start("n1")
        await nodes.wait_serving()
        async with nodes.client() as client:
            assert await read_all(client) == VALUES
        # What no client reads is met by who replicates it.
        async with nodes.connection("n1"):
            await nodes.node("n1").member._scrubber.check()
        await nodes.wait_for(
            "repaired", lambda: log_of(nodes, "n1")[:20] == log_of(nodes, "n2")[:20]
        )
        await nodes.wait_for("settled", lambda: nodes.status("n1").trouble == "")
        assert problems(nodes, "n1") == []


@pytest.mark.parametrize("kind", ["a hash", "a chain", "a lost entry"])
async def test_whose_logs_begin_with_the_damaged_entry_can_give_it_back(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Without the one before it: who has it may be the one whom a majority is short of."""
    ask = repair._ask

    async def ask_who_has_trimmed(connection: Any, lsn: int) -> tuple[Any, Entry]:
        previous, entry = await ask(connection, lsn)
        return (previous if lsn >= 9 else None), entry

    monkeypatch.setattr(repair, "_ask", ask_who_has_trimmed)
    async with loaded(tmp_path) as nodes:
        await nodes.crash("n2")
        damage(nodes, "n2", DAMAGES[kind])
        await nodes.start("n2")
        await nodes.wait_in_step()
        await nodes.node("n2").member._scrubber.check()
        await nodes.wait_for("settled", lambda: nodes.status("n2").trouble == "")
        assert problems(nodes, "n2") == []
        assert "resync" not in nodes.status("n2").state
        assert nodes.node("n2").member._repairer.repaired == 1


async def test_a_node_that_was_killed_looks_through_its_disk_at_once(
    tmp_path: Path, clock: MockClock
) -> None:
    async with loaded(tmp_path, scrub_interval_s=3600.0) as nodes:
        damage_live(nodes, "n2", DAMAGES["a body"])
        killed = tmp_path / "killed"
        shutil.copytree(nodes.data("n2"), killed, ignore=shutil.ignore_patterns("*-shm"))
        await nodes.crash("n2")
        nodes.wipe("n2")
        killed.rename(nodes.data("n2"))
        await nodes.start("n2")
        scrubber = nodes.node("n2").member._scrubber
        await nodes.wait_for("looked through", lambda: scrubber.passes == 1)
        await nodes.wait_for(
            "repaired", lambda: log_of(nodes, "n1")[:20] == log_of(nodes, "n2")[:20]
        )


@pytest.mark.parametrize("kind", DAMAGES)
async def test_a_replica_finds_damage_before_anybody_needs_the_entry(
    tmp_path: Path, clock: MockClock, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with loaded(tmp_path, scrub_interval_s=0.5) as nodes:
        await nodes.crash("n2")
        damage(nodes, "n2", DAMAGES[kind])
        await nodes.start("n2")
        await nodes.wait_for(
            "repaired", lambda: log_of(nodes, "n1")[:20] == log_of(nodes, "n2")[:20]
        )
        await nodes.wait_for("settled", lambda: nodes.status("n2").trouble == "")
        assert problems(nodes, "n2") == []
        await nodes.wait_for("counted", lambda: nodes.node("n2").member._repairer.repaired >= 1)
    said = [each.message for each in caplog.records if "repaired entry" in each.message]
    assert said
    assert " from n1: " in said[0]
    assert not (tmp_path / "n2" / "gen-1").exists()


async def test_a_replica_repairs_what_it_cannot_apply(tmp_path: Path, clock: MockClock) -> None:
    async with loaded(tmp_path) as nodes:
        # As it is when the entries came and their watermark did not.
        for sql in (
            "DELETE FROM hadron_stream_batch WHERE lsn > 8",
            "UPDATE hadron_stream_partition SET"
            " next_offset = (SELECT max(base_offset + count) FROM hadron_stream_batch),"
            " bytes = (SELECT sum(bytes) FROM hadron_stream_batch)",
            "DELETE FROM hadron_producer WHERE last_ms > (SELECT now_ms FROM hadron_log"
            " WHERE lsn = 8)",
            DAMAGES["a command"],
        ):
            damage_live(nodes, "n2", sql)
        follower = nodes.node("n2").member._follower
        follower.applied_lsn = follower._watermark._lsn = 8
        async with nodes.connection("n1") as connection:
            await produce(connection, b"more")
        await nodes.wait_for("in step", lambda: log_of(nodes, "n1") == log_of(nodes, "n2"))
        await nodes.wait_in_step()
        # Counted once the file was read again, which may be after its rows were.
        await nodes.wait_for("counted", lambda: nodes.node("n2").member._repairer.repaired == 1)


async def test_a_leader_without_peers_says_what_is_damaged_and_how_to_go_on(
    tmp_path: Path, clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with loaded(tmp_path, 1) as nodes:
        await nodes.crash("n1")
        damage(nodes, "n1", DAMAGES["a body"])
        await nodes.start("n1")
        await nodes.wait_serving()
        async with nodes.connection("n1") as connection:
            assert len(await fetch(connection, 10)) == 10
            before = len(await fetch(connection, 0))
            assert 0 < before < 10
            with pytest.raises(
                CorruptionError, match=rf"offset {before} of Stream default/events \(entry 9\)"
            ) as caught:
                await fetch(connection, before)
            # Nobody is there who could repair it.
            assert not caught.value.retryable
            # Everything else goes on.
            await produce(connection, b"more")
        trouble = nodes.status("n1").trouble
        assert "(entry 9) is damaged" in trouble
        assert "Put a backup in place (`hadron restore`)" in trouble
    assert sum("is not repaired" in each.message for each in caplog.records) == 1


async def test_a_copy_that_is_damaged_too_is_not_taken(tmp_path: Path, clock: MockClock) -> None:
    async with loaded(tmp_path) as nodes:
        await nodes.crash()
        for name in ("n1", "n2"):
            damage(nodes, name, DAMAGES["a body and a row"])
        await nodes.start()
        await nodes.wait_serving()
        async with nodes.client() as client:
            assert await read_all(client) == VALUES
        await nodes.wait_for(
            "both repaired",
            lambda: (
                log_of(nodes, "n1")[:20] == log_of(nodes, "n2")[:20] == log_of(nodes, "n3")[:20]
            ),
        )
        await nodes.wait_for("whole", lambda: problems(nodes, "n1") == problems(nodes, "n2") == [])


async def test_an_entry_that_nobody_has_is_never_served(tmp_path: Path, clock: MockClock) -> None:
    async with loaded(tmp_path) as nodes:
        await nodes.crash()
        for name in nodes.names:
            damage(nodes, name, DAMAGES["a body"])
        await nodes.start()
        await nodes.wait_serving()
        async with nodes.connection("n1") as connection:
            before = len(await fetch(connection, 0))
            with pytest.raises(CorruptionError):
                await fetch(connection, before)
        assert "entry 9" in nodes.status("n1").trouble


async def test_a_page_that_cannot_be_read_makes_a_replica_take_a_snapshot(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with loaded(tmp_path) as nodes:
        repairer = nodes.node("n2").member._repairer
        error = CorruptionError("hadron.db is damaged: a page")
        error.__cause__ = apsw.CorruptError("database disk image is malformed")
        assert not repairer.found(error)
        await nodes.wait_for("installed", lambda: (nodes.data("n2") / "gen-1").exists())
        await nodes.wait_for("reopened", lambda: nodes.node("n2").member._repairer is not repairer)
        await nodes.wait_in_step()
        assert problems(nodes, "n2") == []
        await nodes.wait_for("settled", lambda: nodes.status("n2").trouble == "")


@pytest.mark.parametrize("kind", ["a body", "a command"])
async def test_a_copy_for_others_is_made_of_what_is_whole(
    tmp_path: Path, clock: MockClock, kind: str
) -> None:
    async with loaded(tmp_path) as nodes:
        damage_live(nodes, "n1", DAMAGES[kind])
        nodes.node("n3").member._resync.want("asked by a test", source="n1")
        await nodes.wait_for("installed", lambda: (nodes.data("n3") / "gen-1").exists())
        await nodes.wait_for("reopened", lambda: nodes.node("n3").member._resync.progress == "")
        await nodes.wait_in_step()
        await nodes.wait_for("repaired", lambda: nodes.node("n1").member._repairer.repaired == 1)
        assert problems(nodes, "n1") == problems(nodes, "n3") == []


async def test_a_leader_with_a_page_it_cannot_read_gets_it_back_and_serves_it(
    tmp_path: Path, clock: MockClock
) -> None:
    values = [random.Random(number).randbytes(6_000) for number in range(20)]
    async with loaded(tmp_path) as nodes:
        async with nodes.connection("n1") as connection:
            for value in values:
                await produce(connection, value)
        await nodes.wait_in_step()
        await nodes.crash()
        path = nodes.data("n1") / "hadron.db"
        content = bytearray(path.read_bytes())
        content[content.index(values[12][3_000:3_020])] ^= 1
        path.write_bytes(content)
        await nodes.start()
        await nodes.wait_serving()
        async with nodes.connection("n1") as connection:
            before = await fetch(connection)
            assert before == [*VALUES, *values[:12]]
        async with nodes.client() as client:
            assert await read_all(client) == [*VALUES, *values]
        # The page has what was written there: one body costs no snapshot.
        assert not (nodes.data("n1") / "gen-1").exists()
        assert problems(nodes, "n1") == []
        await nodes.wait_for("settled", lambda: nodes.status("n1").trouble == "")


async def test_an_error_says_that_a_snapshot_is_on_its_way(
    tmp_path: Path, clock: MockClock
) -> None:
    async with loaded(tmp_path) as nodes:
        repairer = nodes.node("n1").member._repairer
        nodes.network.isolate("n1", "n2", "n3")
        error = CorruptionError("hadron.db is damaged: a page")
        error.__cause__ = apsw.CorruptError("database disk image is malformed")
        assert not await repairer.heal(error)
        assert error.retryable


@pytest.mark.long
@pytest.mark.parametrize("kind", ["a body", "a chain", "a lost entry"])
@pytest.mark.parametrize(("count", "away"), [(2, ()), (3, ()), (5, ("n5",))])
async def test_a_leader_gives_up_a_tail_that_no_other_member_has(
    tmp_path: Path, clock: MockClock, kind: str, count: int, away: tuple[str, ...]
) -> None:
    """It can neither be repaired, nor can anything be logged after it: this disk counts as lost,
    and the members who have all that is committed rebuild it."""
    async with loaded(tmp_path, count) as nodes:
        committed = chains(nodes, "n2")
        others = [name for name in nodes.names if name != "n1"]
        await nodes.crash(*others)
        async with nodes.connection("n1") as connection:
            for number in range(5):
                await produce(connection, b"on n1 %d" % number, acks=LEADER)
        await nodes.crash("n1")
        lsn = len(committed) + 3
        damage(nodes, "n1", DAMAGES[kind].replace("lsn = 9", f"lsn = {lsn}"))
        await nodes.start(*(name for name in nodes.names if name not in away))
        await nodes.wait_serving()
        async with nodes.client("c2") as client:
            await send(client, ["more"])
        if away:
            await nodes.start(*away)
        await nodes.wait_in_step()
        async with nodes.client() as client:
            assert await read_all(client) == [*VALUES, "more"]
        assert not nodes.status("n1").trouble
        assert chains(nodes, "n1")[: len(committed)] == committed
        assert list(nodes.data("n1").glob("hadron.db.aside*"))


@pytest.mark.long
async def test_a_leader_keeps_a_damaged_tail_that_a_majority_might_have(
    tmp_path: Path, clock: MockClock
) -> None:
    """n2 does not have it; it may be committed by n1 and n3, which is away."""
    async with loaded(tmp_path) as nodes:
        await nodes.crash("n2")
        async with nodes.client("c2") as client:
            await send(client, ["on n1 and n3"])
            await send(client, ["and its neighbour"])
        await nodes.wait_in_step("n1", "n3")
        lsn = nodes.status("n1").last_lsn
        await nodes.crash()
        damage(nodes, "n1", DAMAGES["a body"].replace("lsn = 9", f"lsn = {lsn - 1}"))
        await nodes.start("n1", "n2")
        await nodes.wait_for("told", lambda: "its log ends at entry" in nodes.status("n1").trouble)
        began_s = trio.current_time()
        await nodes.wait_for("longer than patience", lambda: trio.current_time() > began_s + 10.0)
        assert nodes.status("n1").state != "serving"
        await nodes.start("n3")
        await nodes.wait_serving()
        await nodes.wait_in_step()
        async with nodes.client() as client:
            assert await read_all(client) == [*VALUES, "on n1 and n3", "and its neighbour"]
