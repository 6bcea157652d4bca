"""Transactions' entries on nodes: intents are replicated, outlive leaders, logs and damage, are
copied with snapshots, and nobody reads them before they are finished."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from trio.testing import MockClock

from hadron.model.transactions import TransactionId
from hadron.node.tests.support import make_stream
from hadron.node.tests.test_repair import SETTINGS, damage
from hadron.replication.verification import Verification
from hadron.state.features import MACHINE
from hadron.state.machine import Command
from hadron.state.streams.partitions import AppendBatch
from hadron.state.tests.parted import a_batch
from hadron.state.tests.transacting import joined
from hadron.state.transactions.decisions import Decide
from hadron.state.transactions.intents import (
    AbortTransaction,
    FinishTransaction,
    ForgetTransactions,
    Prepared,
    WriteIntents,
)
from hadron.storage.database import open_reader
from hadron.testing.nodes import Nodes, running_nodes

_NAMES = ("a", "b")
T, OTHER = TransactionId("eu/p0", 1, 4, 7), TransactionId("eu/p0", 1, 4, 8)


class _Set:
    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes

    async def execute(self, command: Command, body: bytes = b"") -> Any:
        leadership = self.nodes.node("n1").member._leadership
        assert leadership is not None
        return await leadership.controller.execute(command, body)

    def publish(self, name: str, value: str) -> tuple[AppendBatch, bytes]:
        data = a_batch(value)
        (stream_id,) = self.rows("n1", f"SELECT id FROM hadron_schema_object WHERE name = '{name}'")
        return AppendBatch(stream_id[0], 1, len(data), b"", 0, -1), data

    async def prepare(self, tx: TransactionId) -> Prepared:
        parts = [self.publish(name, f"{name} of {tx.number}") for name in _NAMES]
        statements, body = joined(parts)
        found: Prepared = await self.execute(WriteIntents(tx, 0, statements), body)
        return found

    def rows(self, name: str, sql: str) -> list[Any]:
        with closing(open_reader(self.nodes.data(name) / "hadron.db")) as db:
            return db.execute(sql).fetchall()

    def tables(self, name: str) -> list[Any]:
        return [
            self.rows(name, f"SELECT * FROM hadron_{table} ORDER BY 1, 2")
            for table in ("participation", "intent", "counted_body", "body", "stream_batch")
        ]

    def problems(self, name: str) -> list[str]:
        with closing(open_reader(self.nodes.data(name) / "hadron.db")) as db:
            verification = Verification(MACHINE, replica_set="local/p0")
            while not verification.step(db):
                pass
        return [each.text for each in verification.report.problems]

    async def read(self) -> list[str]:
        async with self.nodes.client() as client:
            return [str(record.value) for name in _NAMES async for record in client.read(name)]

    async def is_in_step(self) -> None:
        await self.nodes.wait_in_step()
        for name in ("n2", "n3"):
            assert self.tables(name) == self.tables("n1")
        for name in self.nodes.names:
            assert self.problems(name) == []


@asynccontextmanager
async def a_set(tmp_path: Path, **settings: Any) -> AsyncIterator[_Set]:
    async with running_nodes(tmp_path, 3, settings=replace(SETTINGS, **settings)) as nodes:
        await nodes.wait_serving()
        for name in _NAMES:
            await make_stream(nodes, name)
        yield _Set(nodes)


async def test_what_was_prepared_outlives_its_leader(tmp_path: Path, clock: MockClock) -> None:
    async with a_set(tmp_path) as what:
        prepared = await what.prepare(T)
        await what.prepare(OTHER)
        await what.is_in_step()
        await what.nodes.restart("n1")
        await what.nodes.wait_serving()
        assert await what.read() == []
        await what.execute(FinishTransaction(T, *prepared))
        await what.execute(AbortTransaction(OTHER))
        assert await what.read() == ["a of 7", "b of 7"]
        await what.execute(ForgetTransactions((T,)))
        await what.nodes.wait_for(
            "the aborted body gone",
            lambda: len(what.rows("n1", "SELECT lsn FROM hadron_counted_body")) == 1,
        )
        await what.is_in_step()
        await what.nodes.restart("n1")
        await what.nodes.wait_serving()
        assert await what.read() == ["a of 7", "b of 7"]


async def test_a_decision_shows_what_was_in_memory(tmp_path: Path, clock: MockClock) -> None:
    """Its batches are told with their bytes, as those of any entry."""
    async with a_set(tmp_path) as what:
        leadership = what.nodes.node("n1").member._leadership
        assert leadership is not None
        tx = TransactionId.of("local/p0", leadership.controller.ballot, 9)
        statements, body = joined([what.publish("a", "x"), what.publish("b", "y")])
        await what.execute(Decide(tx, (), statements), body)
        assert await what.read() == ["x", "y"]
        await what.is_in_step()


async def test_intents_outlive_their_log_and_are_copied(tmp_path: Path, clock: MockClock) -> None:
    async with a_set(tmp_path, log_keep_bytes=1) as what:
        nodes, prepared = what.nodes, await what.prepare(T)
        for number in range(5):
            await what.execute(*what.publish("a", f"plain {number}"))
        await nodes.wait_for(
            "trimmed",
            lambda: all(
                nodes.node(name).member._store.log.anchor.lsn >= prepared.prepared_lsn
                for name in nodes.names
            ),
        )
        repairer = nodes.node("n2").member._repairer
        repairer._cannot(0, "a page cannot be read")
        await nodes.wait_for("installed", lambda: (nodes.data("n2") / "gen-1").exists())
        await nodes.wait_for("reopened", lambda: nodes.node("n2").member._repairer is not repairer)
        await what.is_in_step()
        await what.execute(FinishTransaction(T, *prepared))
        assert (await what.read())[5:] == ["a of 7", "b of 7"]
        await what.is_in_step()


async def test_damaged_intents_are_seen_and_given_back(tmp_path: Path, clock: MockClock) -> None:
    async with a_set(tmp_path) as what:
        nodes, prepared = what.nodes, await what.prepare(T)
        lsn = prepared.prepared_lsn
        await what.is_in_step()
        await nodes.crash("n1")
        damage(
            nodes,
            "n1",
            "UPDATE hadron_body SET bytes = CAST(substr(bytes, 1, length(bytes) - 1) || x'ff'"
            f" AS BLOB) WHERE lsn = {lsn}",
        )
        assert any(f"entry {lsn}" in each for each in what.problems("n1"))
        await nodes.start("n1")
        await nodes.wait_serving()
        await what.execute(FinishTransaction(T, *prepared))
        assert await what.read() == ["a of 7", "b of 7"]
        await nodes.wait_for("settled", lambda: nodes.status("n1").trouble == "")
        await what.is_in_step()
