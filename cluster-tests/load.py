"""A producer under load that remembers what was acknowledged, and the judge of what came of it."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import trio

import hadron
from hadron.client import Client
from hadron.model.ids import Ballot
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.node.supervision.cluster import LocalCluster
from hadron.storage.log import hash_body, next_chain

STREAM = "load"
_AT_ONCE = 20


class Load:
    """Sends numbered records until stopped; `acked` maps a number to the offset it got."""

    def __init__(self) -> None:
        self.acked: dict[int, int] = {}
        self._next = 0
        self._stopping = False
        self._progress = trio.Event()

    async def run(self, client: Client) -> None:
        async with client.producer(STREAM) as producer:
            while not self._stopping:
                numbers = range(self._next, self._next + _AT_ONCE)
                self._next += _AT_ONCE
                pending = [(n, await producer.send_soon({"number": n})) for n in numbers]
                for number, handle in pending:
                    receipt = await handle.wait()
                    assert number not in self.acked
                    self.acked[number] = receipt.offset
                self._progress.set()
                self._progress = trio.Event()

    async def wait_more(self, count: int) -> None:
        """Return once `count` more records were acknowledged."""
        wanted = len(self.acked) + count
        with trio.fail_after(60):
            while len(self.acked) < wanted:
                await self._progress.wait()

    def stop(self) -> None:
        self._stopping = True


@contextlib.asynccontextmanager
async def loaded(cluster: LocalCluster) -> AsyncIterator[tuple[Client, Load]]:
    """A client, and a load that runs until the block ends."""
    load = Load()
    async with hadron.connect(cluster.url) as client:
        spec = StreamSpec(partitions=(cluster.config.name,))
        await client.apply([SchemaObject(kind="Stream", name=STREAM, spec=spec)])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.run, client)
            await load.wait_more(200)
            yield client, load
            load.stop()


async def check_nothing_lost(client: Client, load: Load) -> None:
    """Every acknowledged record is there once, where its receipt says, and nothing else is."""
    read = {}
    numbers = []
    async for record in client.read(STREAM, offset=0):
        read[record.offset] = record.value["number"]
        numbers.append(record.value["number"])
    assert len(load.acked) > 0
    assert len(numbers) == len(set(numbers)), "a record was logged twice"
    assert numbers == sorted(numbers), "one producer's records changed their order"
    for number, offset in load.acked.items():
        assert read.get(offset) == number, f"record {number} is not at offset {offset}"


async def check_replicas_agree(cluster: LocalCluster, client: Client) -> None:
    """Every node's own file holds the same log, and its chain follows from its content."""
    status = await client.status(cluster.address(cluster.leader))
    with trio.fail_after(60):
        for name in cluster.names:
            # Another process: there is nothing to be woken by.
            while (await client.status(cluster.address(name))).applied_lsn < status.last_lsn:  # noqa: ASYNC110
                await trio.sleep(0.02)
    chains = {
        name: recompute_chain(cluster.database(name), status.last_lsn) for name in cluster.names
    }
    assert set(chains.values()) == {bytes.fromhex(status.chain)}, chains


def recompute_chain(database: Path, until_lsn: int) -> bytes:
    """The hash chain over a node's log, recomputed from the entries and bodies in its file."""
    chain = bytes(16)
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
        rows = db.execute(
            "SELECT lsn, epoch, incarnation, now_ms, command, bytes, chain FROM log"
            " LEFT JOIN body USING (lsn) WHERE lsn <= ? ORDER BY lsn",
            (until_lsn,),
        )
        expected = 1
        for lsn, epoch, incarnation, now_ms, command, body, stored in rows:
            assert lsn == expected
            ballot = Ballot(epoch, incarnation)
            chain = next_chain(chain, ballot, lsn, now_ms, command, hash_body(body or b""))
            assert chain == stored, f"{database}: entry {lsn} does not continue the chain"
            expected += 1
        assert expected == until_lsn + 1, f"{database} ends at {expected - 1}, not {until_lsn}"
    return chain
