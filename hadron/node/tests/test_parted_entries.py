"""Entries with several batches, and batches of an earlier entry's bytes, on nodes: replicated,
served, repaired and copied like all others."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from hadron.demo.node_file import NodeFile, decode
from hadron.node.sql import open_records
from hadron.node.tests.support import make_stream
from hadron.node.tests.test_repair import SETTINGS, damage
from hadron.replication.verification import Verification
from hadron.state.machine import BatchShape, Command
from hadron.state.streams.partitions import AppendBatch
from hadron.state.tests.parted import MACHINE, AppendAgain, AppendKept, GiveUp, KeepBody, a_batch
from hadron.state.together import DoTogether
from hadron.storage.database import open_reader
from hadron.testing.nodes import Nodes, running_nodes

_NAMES = ("a", "b", "c")


class _Written:
    """What is in the streams, and the entry that brought a body of several batches."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.values: dict[str, list[str]] = {name: [] for name in _NAMES}
        self.shared_lsn = 0

    async def execute(self, command: Command, body: bytes = b"") -> Any:
        leadership = self._nodes.node("n1").member._leadership
        assert leadership is not None
        return await leadership.controller.execute(command, body)

    async def fill(self) -> None:
        ids = [self._id(name) for name in _NAMES]
        for number in range(3):
            parts = [a_batch(f"{name}{number}") for name in _NAMES]
            commands = [
                AppendBatch(each, 1, len(part), b"", 0, -1)
                for each, part in zip(ids, parts, strict=True)
            ]
            await self.execute(DoTogether.of(*commands), b"".join(parts))
            for name in _NAMES:
                self.values[name].append(f"{name}{number}")
        kept = [a_batch("kept"), a_batch("kept, too")]
        shapes = tuple(BatchShape(1, len(part)) for part in kept)
        lsn = self.shared_lsn = await self.execute(KeepBody(shapes), b"".join(kept))
        await self.execute(
            DoTogether.of(
                AppendKept(ids[0], 1, len(kept[0]), lsn, 0, is_last=False),
                AppendKept(ids[1], 1, len(kept[1]), lsn, len(kept[0]), is_last=True),
            )
        )
        self.values["a"].append("kept")
        self.values["b"].append("kept, too")
        await self.execute(AppendAgain(ids[1], 3, ids[2]))
        self.values["c"].append("kept, too")
        # What nobody wants goes while all look.
        await self.execute(GiveUp(await self.execute(KeepBody(shapes), b"".join(kept))))

    def _id(self, name: str) -> int:
        with closing(open_reader(self._nodes.data("n1") / "hadron.db")) as db:
            found: int = db.execute(
                "SELECT id FROM hadron_schema_object WHERE name = ?", (name,)
            ).get
            return found

    async def read(self) -> dict[str, list[str]]:
        async with self._nodes.client() as client:
            return {
                name: [str(record.value) async for record in client.read(name)] for name in _NAMES
            }


@asynccontextmanager
async def written(tmp_path: Path, **settings: Any) -> AsyncIterator[tuple[Nodes, _Written]]:
    async with running_nodes(
        tmp_path, 3, settings=replace(SETTINGS, **settings), start=False
    ) as nodes:
        nodes.machines.update(dict.fromkeys(nodes.names, MACHINE))
        await nodes.start()
        await nodes.wait_serving()
        for name in _NAMES:
            await make_stream(nodes, name)
        written = _Written(nodes)
        await written.fill()
        await nodes.wait_for("the unwanted body gone", lambda: _idle(nodes, "n1") == 0)
        await nodes.wait_in_step()
        yield nodes, written


def _idle(nodes: Nodes, name: str) -> int:
    with closing(open_reader(nodes.data(name) / "hadron.db")) as db:
        found: int = db.execute(
            "SELECT count(*) FROM hadron_counted_body WHERE batches + holds = 0"
        ).get
        return found


def _tables(nodes: Nodes, name: str) -> list[Any]:
    with closing(open_reader(nodes.data(name) / "hadron.db")) as db:
        return [
            db.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()
            for table in ("hadron_stream_batch", "hadron_counted_body", "hadron_body")
        ]


def _problems(nodes: Nodes, name: str) -> list[str]:
    with closing(open_reader(nodes.data(name) / "hadron.db")) as db:
        verification = Verification(MACHINE, replica_set="local/p0")
        while not verification.step(db):
            pass
    return [each.text for each in verification.report.problems]


async def test_replicas_have_what_the_leader_has(tmp_path: Path, clock: MockClock) -> None:
    async with written(tmp_path) as (nodes, what):
        assert await what.read() == what.values
        for name in ("n2", "n3"):
            assert _tables(nodes, name) == _tables(nodes, "n1")
        for name in nodes.names:
            assert _problems(nodes, name) == []
        # Nothing is in memory after a start.
        await nodes.restart("n1")
        await nodes.wait_serving()
        assert await what.read() == what.values


async def test_who_looks_into_the_file_sees_each_batch(tmp_path: Path, clock: MockClock) -> None:
    async with written(tmp_path) as (nodes, what):
        await nodes.crash("n2")
        with open_records(nodes.data("n2")) as records:
            found: list[Any] = records.db.execute(
                "SELECT stream, value FROM record ORDER BY stream, offset"
            ).fetchall()
        assert found == [(name, value) for name in _NAMES for value in what.values[name]]
        with NodeFile("n2", nodes.data("n2") / "hadron.db") as file:
            for name in _NAMES:
                stream_id = file.object_id("Stream", name)
                assert stream_id is not None
                values = [
                    record.value
                    for batch in file.batches(stream_id)
                    for record in decode(batch).records()
                ]
                assert values == what.values[name]


@pytest.mark.parametrize("is_trimmed", [False, True])
async def test_a_damaged_body_that_streams_share_is_given_back_once(
    tmp_path: Path, clock: MockClock, is_trimmed: bool
) -> None:
    """With its log row, and when only the body is left."""
    kept_log = {"log_keep_bytes": 1} if is_trimmed else {}
    async with written(tmp_path, **kept_log) as (nodes, what):
        lsn = what.shared_lsn
        if is_trimmed:
            await nodes.wait_for(
                "trimmed",
                lambda: all(
                    nodes.node(name).member._store.log.anchor.lsn >= lsn for name in nodes.names
                ),
            )
        await nodes.crash("n1")
        # Its last bytes: the first of its two batches is sound.
        damage(
            nodes,
            "n1",
            "UPDATE hadron_body SET bytes = CAST(substr(bytes, 1, length(bytes) - 1) || x'ff'"
            f" AS BLOB) WHERE lsn = {lsn}",
        )
        assert any(f"entry {lsn}" in each for each in _problems(nodes, "n1"))
        await nodes.start("n1")
        await nodes.wait_serving()
        assert await what.read() == what.values
        await nodes.wait_for("settled", lambda: nodes.status("n1").trouble == "")
        assert nodes.node("n1").member._repairer.repaired == 1
        assert _problems(nodes, "n1") == []
        await nodes.wait_in_step()
        assert _tables(nodes, "n2") == _tables(nodes, "n1")


async def test_a_snapshot_brings_shared_bodies(tmp_path: Path, clock: MockClock) -> None:
    async with written(tmp_path) as (nodes, what):
        repairer = nodes.node("n2").member._repairer
        repairer._cannot(0, "a page cannot be read")
        await nodes.wait_for("installed", lambda: (nodes.data("n2") / "gen-1").exists())
        await nodes.wait_for("reopened", lambda: nodes.node("n2").member._repairer is not repairer)
        await nodes.wait_in_step()
        assert _problems(nodes, "n2") == []
        assert _tables(nodes, "n2") == _tables(nodes, "n1")
        await what.fill()
        await nodes.wait_in_step()
        assert _tables(nodes, "n2") == _tables(nodes, "n1")
