"""What a member held that died, or hangs, reaches other members soon."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import holder as holder_module
import pytest
import trio
from crew import PATIENCE_S, environment
from report import quantile
from schema_probe import declare, wait_index

import hadron
from hadron.client import Client
from hadron.node.supervision.local_fleet import LocalFleet

SETS: Final = {"global/metadata": 1, "eu/p0": 3, "us/p0": 3}
PARTITIONS: Final = ("eu/p0", "us/p0")
STREAM, GROUP = "work", "crew"
OTHERS: Final = 3
RECORDS: Final = 400
ROUNDS: Final = 5

REDELIVERED_WITHIN_S: Final = 1.0
"""The bar, once it is known that the member is gone."""

_BATCH_BYTES: Final = 200
"""Some records."""

HEARTBEAT_S: Final = 0.2
MISSES: Final = 5

Place = tuple[str, int]
"""A partition and an offset."""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[LocalFleet]:
    """Two regions, and a small metadata set."""
    with LocalFleet(tmp_path, SETS) as running:
        yield running


class Crew:
    """Three members in this process, and one in another that acknowledges nothing.

    Attributes:
        delivered_s: when the three were first given a record.
        held: what the fourth has been given.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.delivered_s: dict[Place, float] = {}
        self.held: set[Place] = set()
        self._news = trio.Event()

    async def take(self, task_status: trio.TaskStatus[None]) -> None:
        """Be one of the three."""
        async with self.client.subscribe(STREAM, group=GROUP) as subscription:
            task_status.started()
            async for batch in subscription.batches():
                for record in batch.records:
                    place = batch.partition, record.offset
                    self.delivered_s.setdefault(place, trio.current_time())
                await batch.ack()
                self._tell()

    async def hold(self, url: str, task_status: trio.TaskStatus[trio.Process]) -> None:
        """Have the fourth run, until it is killed."""
        arguments = (url, STREAM, GROUP, str(HEARTBEAT_S), str(MISSES))
        process = await trio.lowlevel.open_process(
            [sys.executable, holder_module.__file__, *arguments],
            stdout=subprocess.PIPE,
            env=environment(),
        )
        try:
            assert process.stdout is not None
            rest = b""
            async for data in process.stdout:
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    if not line:
                        task_status.started(process)
                        continue
                    partition, first, count = line.decode().split()
                    self.held.update((partition, int(first) + index) for index in range(int(count)))
                self._tell()
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
                assert process.stdout is not None
                await process.stdout.aclose()

    def _tell(self) -> None:
        self._news.set()
        self._news = trio.Event()

    async def wait_given(self, places: set[Place], *, also_held: bool) -> None:
        """Until each of these records was given to one of the three, or to the fourth as well."""
        with trio.fail_after(PATIENCE_S):
            while not places <= self.delivered_s.keys() | (self.held if also_held else set()):
                await self._news.wait()


@asynccontextmanager
async def crew_of(fleet: LocalFleet) -> AsyncIterator[tuple[Crew, trio.Nursery]]:
    """The three members, for the length of a block."""
    async with hadron.connect(fleet.url) as client, trio.open_nursery() as nursery:
        await wait_index(fleet, await declare(client, STREAM, *PARTITIONS))
        crew = Crew(client)
        for _ in range(OTHERS):
            await nursery.start(crew.take)
        yield crew, nursery
        nursery.cancel_scope.cancel()


async def lose(crew: Crew, nursery: trio.Nursery, url: str, how: signal.Signals) -> list[float]:
    """Have a fourth member join and get its share, send it a signal, and return how long it took
    from then until others had each record that it held, in seconds."""
    crew.held.clear()
    process = await nursery.start(crew.hold, url)
    # Members take turns, a batch each.
    async with crew.client.producer(STREAM, batch_bytes=_BATCH_BYTES) as producer:
        pending = [await producer.send_soon("a record") for _ in range(RECORDS)]
        receipts = [await each.wait() for each in pending]
    places = {(receipt.partition, receipt.offset) for receipt in receipts}
    await crew.wait_given(places, also_held=True)
    held = crew.held - crew.delivered_s.keys()
    assert held, "the fourth member got nothing"
    began_s = trio.current_time()
    process.send_signal(how)
    await crew.wait_given(places, also_held=False)
    process.kill()
    return [crew.delivered_s[place] - began_s for place in held]


async def test_what_a_killed_member_held_reaches_others(fleet: LocalFleet) -> None:
    """The system closes its connections, so that leaders know at once."""
    async with crew_of(fleet) as (crew, nursery):
        took_s = []
        for _ in range(ROUNDS):
            took_s += await lose(crew, nursery, fleet.url, signal.SIGKILL)
    print(
        f"{ROUNDS} members were killed, which held {len(took_s)} records: others had them after "
        f"{_milliseconds(took_s)}"
    )
    assert max(took_s) <= REDELIVERED_WITHIN_S


@pytest.mark.long
async def test_what_a_member_held_that_hangs_reaches_others(fleet: LocalFleet) -> None:
    """Its connections stay: it is missed by its heartbeats. Leaders know at the earliest when so
    many are missing since one that came just before it stopped, or an interval before that."""
    known_s = HEARTBEAT_S * (MISSES - 1)
    async with crew_of(fleet) as (crew, nursery):
        took_s = []
        for _ in range(ROUNDS):
            took_s += await lose(crew, nursery, fleet.url, signal.SIGSTOP)
    after_s = [max(0.0, seconds - known_s) for seconds in took_s]
    print(
        f"{ROUNDS} members were stopped (heartbeats every {HEARTBEAT_S:g} s, {MISSES} may be "
        f"missing), which held {len(took_s)} records: others had them after "
        f"{_milliseconds(took_s)}; since leaders could know: {_milliseconds(after_s)}"
    )
    assert max(after_s) <= REDELIVERED_WITHIN_S


def _milliseconds(seconds: list[float]) -> str:
    p50_s, p99_s = quantile(seconds, 0.5), quantile(seconds, 0.99)
    return (
        f"p50 {p50_s * 1e3:.0f} ms, p99 {p99_s * 1e3:.0f} ms, slowest {max(seconds) * 1e3:.0f} ms"
    )
