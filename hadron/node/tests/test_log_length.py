"""A replica set whose logs are trimmed: bounded under load, and what a member's absence costs."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from hadron.model.errors import OffsetOutOfRangeError
from hadron.model.schema import Retention, SchemaObject, StreamSpec
from hadron.node.restore import restore_node
from hadron.node.tests.support import STREAM, chains, fetch, make_stream, produce
from hadron.node.tests.test_backup import DISK, take_backup
from hadron.replication import feeding
from hadron.replication.feed import Ring
from hadron.replication.resync import Resync
from hadron.serving.retention import RetentionDriver
from hadron.storage.database import open_reader
from hadron.testing.nodes import Nodes, running_nodes
from hadron.testing.nodes import replica_set as default_set

KEEP, LAG = 64 << 10, 512 << 10
SETTINGS = replace(default_set(Path(), 1).settings, log_keep_bytes=KEEP, log_max_lag_bytes=LAG)
BATCH = b"x" * 2_000


async def load(nodes: Nodes, total_bytes: int) -> None:
    async with nodes.connection("n1") as connection:
        for _ in range(total_bytes // len(BATCH)):
            await produce(connection, BATCH)


def log_bytes(nodes: Nodes, name: str) -> int:
    with closing(open_reader(nodes.data(name) / "hadron.db")) as database:
        row = database.execute(
            "SELECT sum(64 + length(l.command) + coalesce(length(b.bytes), 0))"
            " FROM hadron_log l LEFT JOIN hadron_body b USING (lsn)"
        ).fetchone()
    assert row is not None
    return int(row[0])


def peer_state(nodes: Nodes, name: str) -> str:
    return next(peer.state for peer in nodes.status("n1").peers if peer.name == name)


@pytest.mark.long
async def test_the_log_stays_short_on_every_node(tmp_path: Path, clock: MockClock) -> None:
    async with running_nodes(tmp_path, 3, settings=SETTINGS) as nodes:
        await make_stream(nodes)
        await load(nodes, 16 * KEEP)
        await nodes.wait_in_step()
        await nodes.wait_for(
            "trimmed", lambda: all(log_bytes(nodes, name) <= 2 * KEEP for name in nodes.names)
        )
        for name in nodes.names:
            assert log_bytes(nodes, name) >= KEEP
            assert nodes.status(name).first_lsn > 1
        # Restarted on what is left: the chain goes on from the anchor, everybody is fed.
        await nodes.restart(*nodes.names)
        await nodes.wait_serving()
        await load(nodes, KEEP)
        await nodes.wait_in_step()
        tail = chains(nodes, "n1")[-5:]
        assert chains(nodes, "n2")[-5:] == tail == chains(nodes, "n3")[-5:]


async def test_a_short_absence_is_made_up_from_the_log(tmp_path: Path, clock: MockClock) -> None:
    async with running_nodes(tmp_path, 3, settings=SETTINGS) as nodes:
        await make_stream(nodes)
        await nodes.crash("n3")
        await load(nodes, LAG // 2)
        assert log_bytes(nodes, "n1") > LAG // 2, "kept for n3"
        await nodes.start("n3")
        await nodes.wait_in_step()
        await load(nodes, KEEP)
        await nodes.wait_for("trimmed", lambda: log_bytes(nodes, "n1") <= 2 * KEEP)


@pytest.mark.long
async def test_a_long_absence_costs_no_more_than_the_lag_limit(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_nodes(tmp_path, 3, settings=SETTINGS) as nodes:
        await make_stream(nodes)
        await load(nodes, KEEP)
        await nodes.wait_in_step()
        await nodes.crash("n3")
        most = 0
        for _ in range(6):
            await load(nodes, LAG // 2)
            most = max(most, log_bytes(nodes, "n1"), log_bytes(nodes, "n2"))
        assert LAG <= most <= LAG + LAG // 2 + KEEP
        await nodes.wait_for("trimmed", lambda: log_bytes(nodes, "n1") <= LAG + KEEP)
        assert min(lsn for lsn, _ in chains(nodes, "n1")) > max(
            lsn for lsn, _ in chains(nodes, "n3")
        )
        await nodes.start("n3")
        await nodes.wait_for("said", lambda: peer_state(nodes, "n3") == "needs a snapshot")


@pytest.mark.long
async def test_retention_drops_the_bodies_everywhere_and_the_file_stays_small(
    tmp_path: Path, clock: MockClock
) -> None:
    kept, written = 128 << 10, 3 << 20
    async with running_nodes(tmp_path, 3, settings=SETTINGS) as nodes:
        spec = StreamSpec(partitions=("local/p0",), retention=Retention(max_bytes=kept))
        async with nodes.client() as client:
            await client.apply([SchemaObject(kind="Stream", name=STREAM, spec=spec)])
        sizes = []
        for _ in range(8):
            await load(nodes, written // 8)
            await nodes.wait_for("dropped", lambda: kept_bytes(nodes, "n1") <= kept)
            await nodes.wait_in_step()
            sizes.append(max(file_bytes(nodes, name) for name in nodes.names))
        assert all(kept_bytes(nodes, name) <= kept for name in nodes.names)
        # Free pages are used again: the file ends where it was after the first rounds.
        assert sizes[-1] <= 1.5 * max(sizes[:3])
        assert sizes[-1] < written // 2
        async with nodes.connection("n1") as connection:
            with pytest.raises(OffsetOutOfRangeError, match="dropped by retention"):
                await fetch(connection, 0)
        async with nodes.client() as client:
            left = [record.offset async for record in client.read(STREAM, offset="earliest")]
        assert 0 < len(left) <= kept // len(BATCH)


async def test_a_replica_back_within_the_log_but_without_a_body_needs_a_snapshot(
    tmp_path: Path, clock: MockClock
) -> None:
    async with running_nodes(tmp_path, 3, settings=SETTINGS) as nodes:
        spec = StreamSpec(partitions=("local/p0",), retention=Retention(max_bytes=20_000))
        async with nodes.client() as client:
            await client.apply([SchemaObject(kind="Stream", name=STREAM, spec=spec)])
        await nodes.wait_in_step()
        await nodes.crash("n3")
        await load(nodes, KEEP)
        await nodes.wait_for("dropped", lambda: kept_bytes(nodes, "n1") <= 20_000)
        assert nodes.status("n1").first_lsn == 1, "the log itself is all here"
        # Without what it keeps in memory.
        await nodes.restart("n1")
        await nodes.wait_serving()
        await nodes.start("n3")
        await nodes.wait_for(
            "said", lambda: "retention has dropped the body" in str(nodes.status("n1").peers)
        )


async def test_one_snapshot_is_enough_beside_a_stream_that_keeps_little(
    tmp_path: Path, clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came while it was fetched was dropped before the replica could be fed with it, and the
    next one was as late: it was never in step again."""
    kept, fetched, looks = 20_000, 0, 0
    fetch_one, trim = Resync._fetch, RetentionDriver._trim
    # 8 MiB in memory would only make the test longer.
    monkeypatch.setattr(feeding, "Ring", lambda _max: Ring(10_000))
    async with running_nodes(tmp_path, 3, settings=SETTINGS) as nodes:

        async def look(self: RetentionDriver, stream_id: int) -> float:
            nonlocal looks
            looks += 1
            return await trim(self, stream_id)

        async def fetch_slowly(self: Resync, link: Any, wanted: Any) -> Any:
            nonlocal fetched
            found = await fetch_one(self, link, wanted)
            fetched += 1
            if fetched == 1:
                await load(nodes, 2 * kept)
                seen = looks
                await nodes.wait_for(
                    "looked at", lambda: looks >= seen + 2 or kept_bytes(nodes, "n1") <= kept
                )
            return found

        monkeypatch.setattr(Resync, "_fetch", fetch_slowly)
        monkeypatch.setattr(RetentionDriver, "_trim", look)
        spec = StreamSpec(partitions=("local/p0",), retention=Retention(max_bytes=kept))
        async with nodes.client() as client:
            await client.apply([SchemaObject(kind="Stream", name=STREAM, spec=spec)])
        await nodes.wait_in_step()
        await nodes.crash("n3")
        await load(nodes, KEEP)
        await nodes.wait_for("dropped", lambda: kept_bytes(nodes, "n1") <= kept)
        await nodes.start("n3")
        await nodes.wait_for("fetched", lambda: fetched > 0)
        await nodes.wait_in_step()
        assert fetched == 1
        await nodes.wait_for(
            "dropped", lambda: all(kept_bytes(nodes, name) <= kept for name in nodes.names)
        )


async def test_a_restored_leader_is_not_given_the_copy_that_it_was_restored_from(
    tmp_path: Path, clock: MockClock
) -> None:
    """It lacks bodies that retention has dropped, and would lack them again: for ever."""
    backup = tmp_path / "backup"
    async with running_nodes(tmp_path, 3, settings=SETTINGS) as nodes:
        spec = StreamSpec(partitions=("local/p0",), retention=Retention(max_bytes=20_000))
        async with nodes.client() as client:
            await client.apply([SchemaObject(kind="Stream", name=STREAM, spec=spec)])
        await nodes.wait_in_step()
        for name in ("n2", "n3"):
            # Each still has its copy when the leader asks for one.
            await take_backup(nodes, name, backup / name)
        await load(nodes, KEEP)
        await nodes.wait_for(
            "dropped", lambda: all(kept_bytes(nodes, name) <= 20_000 for name in nodes.names)
        )
        end = chains(nodes, "n2")[-1:]
        await nodes.crash("n1")
        restore_node(backup / "n3", nodes.config, "n1", DISK, overwrite=True)
        await nodes.start("n1")
        await nodes.wait_serving()
        assert end[0] in chains(nodes, "n1")
        await load(nodes, len(BATCH))


def kept_bytes(nodes: Nodes, name: str) -> int:
    with closing(open_reader(nodes.data(name) / "hadron.db")) as database:
        row = database.execute("SELECT coalesce(sum(length(bytes)), 0) FROM hadron_body").fetchone()
    assert row is not None
    return int(row[0])


def file_bytes(nodes: Nodes, name: str) -> int:
    with closing(open_reader(nodes.data(name) / "hadron.db")) as database:
        return int(database.pragma("page_count")) * int(database.pragma("page_size"))
