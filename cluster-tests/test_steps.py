"""Each record has its output once, in the order of its key, whoever dies how often."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import pytest
import stepper
import trio
from crew import PATIENCE_S, environment
from report import Row, quantile
from stepper import GROUP, IN, OUT

import hadron
from hadron.client import Client
from hadron.model.record import NewRecord
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.node.supervision.local_fleet import LocalFleet

EU, US = "eu/p0", "us/p0"
SETS: Final = {EU: 3, US: 3}
RECORDS: Final = 200_000
KEYS: Final = 5_000
DEATHS: Final = 30
LEADERS_EVERY: Final = 6
"""Deaths of the process: with each of these a leader dies, too."""

_POLL_S: Final = 0.02


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[LocalFleet]:
    with LocalFleet(tmp_path, SETS) as running:
        yield running


@pytest.mark.timeout(300)
async def test_a_process_that_dies_doubles_nothing(fleet: LocalFleet, row: Row) -> None:
    await consumed_and_published(fleet, row, records=20_000, deaths=3, order="key")


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("order", ["key", "none"])
async def test_thirty_deaths(fleet: LocalFleet, row: Row, order: Literal["key", "none"]) -> None:
    await consumed_and_published(fleet, row, records=RECORDS, deaths=DEATHS, order=order)


async def consumed_and_published(
    fleet: LocalFleet, row: Row, *, records: int, deaths: int, order: Literal["key", "none"]
) -> None:
    """Fill a stream, and have it consumed by a process that is killed so many times."""
    async with hadron.connect(fleet.url) as client:
        spec = StreamSpec(partitions=tuple(SETS))
        await client.apply(
            [SchemaObject(kind="Stream", name=name, spec=spec) for name in (IN, OUT)]
        )
        given: dict[str, list[bytes]] = defaultdict(list)
        async with client.producer(IN) as producer:
            await producer.send_many(_filled(records, given))
        began_s = time.monotonic()
        speeds = await _consume(fleet, client, row, records, deaths, order)
        took_s = time.monotonic() - began_s
        found: dict[str, list[bytes]] = defaultdict(list)
        async for record in client.read(OUT):
            assert isinstance(record.key, str)
            assert isinstance(record.value, bytes)
            found[record.key.removeprefix("of-")].append(record.value[1:-1])
        listed = await client.transactions()
    row.acked = sum(map(len, found.values()))
    row.notes.append(
        f"{records:,} records consumed and published in {took_s:.1f} s, in which the process was "
        f"killed {deaths} times: {records / took_s:,.0f} records/s; in one life, from its first "
        f"step on: {quantile(speeds, 0.5):,.0f} records/s (p50)"
    )
    assert row.acked == records
    if order == "key":
        assert found == given
    else:
        assert {k: sorted(v) for k, v in found.items()} == {k: sorted(v) for k, v in given.items()}
    assert listed == []
    row.verdict = "valid"


def _filled(records: int, given: dict[str, list[bytes]]) -> Iterator[NewRecord]:
    for number in range(records):
        key, value = f"k{number * 7_919 % KEYS}", b"%d" % number
        given[key].append(value)
        yield NewRecord(value, key=key)


async def _consume(
    fleet: LocalFleet, client: Client, row: Row, records: int, deaths: int, order: str
) -> list[float]:
    """Until all is consumed; returns how fast each life was, in records/s."""
    speeds: list[float] = []
    for death in range(deaths + 1):
        process = await trio.lowlevel.open_process(
            [sys.executable, stepper.__file__, fleet.url, order],
            stdin=subprocess.DEVNULL,
            env=environment(),
        )
        try:
            more = min(records, 1 + await _published(client))
            first = await _wait_published(client, process, more)
            since_s = time.monotonic()
            due = min(records, first + records // (deaths + 10)) if death < deaths else records
            last = await _wait_published(client, process, due)
            if last > first:
                speeds.append((last - first) / (time.monotonic() - since_s))
            if death % LEADERS_EVERY == LEADERS_EVERY // 2:
                # It is alive, and goes on with the next leader.
                await _lose_leader(fleet, row, US)
            if death == deaths:
                await _wait_drained(client)
            assert process.poll() is None, "it has ended by itself"
        finally:
            process.kill()
            await process.wait()
        row.kills += death < deaths
        if death % LEADERS_EVERY == LEADERS_EVERY - 1:
            await _lose_leader(fleet, row, EU)
    return speeds


async def _lose_leader(fleet: LocalFleet, row: Row, name: str) -> None:
    row.kills += 1
    cluster = fleet[name]
    cluster.kill(cluster.leader)
    cluster.spawn(cluster.leader)
    await trio.to_thread.run_sync(cluster.wait_ready, cluster.names)


async def _wait_published(client: Client, process: trio.Process, due: int) -> int:
    """Until so many outputs are there, or more; returns how many."""
    with trio.fail_after(PATIENCE_S):
        while (found := await _published(client)) < due:
            assert process.poll() is None, "it has ended by itself"
            await trio.sleep(_POLL_S)
        return found


async def _published(client: Client) -> int:
    return sum(each.next_offset for each in await client.offsets(OUT))


async def _wait_drained(client: Client) -> None:
    """Until the group has acknowledged every record, and no transaction is left."""
    with trio.fail_after(PATIENCE_S):
        while True:
            groups = [each for each in await client.groups(IN) if each.group == GROUP]
            is_drained = groups and all(each.floor == each.next_offset for each in groups)
            if is_drained and not await client.transactions():
                return
            await trio.sleep(_POLL_S)
