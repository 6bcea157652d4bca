"""Reads over several partitions, one of which goes away: what the others have is given anyway."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio

from hadron.client.producing.tests.test_failover import EU, US, crash, declared
from hadron.client.reading import calls, reader
from hadron.model.errors import PeerError

COUNT = 50


@pytest.fixture(autouse=True)
def _small_and_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many answers to a partition, and little patience."""
    monkeypatch.setattr(calls, "ReadPlan", partial(reader.ReadPlan, max_bytes=1))
    monkeypatch.setattr(reader, "_AT_ONCE_S", 0.3)


@pytest.mark.long
async def test_a_leader_that_dies_amid_its_records_keeps_nobody_from_the_others(
    tmp_path: Path,
) -> None:
    async with declared(tmp_path, (EU, US), request_timeout_s=4.0) as (cluster, client):
        for partition in (EU, US):
            async with client.producer("s", partition=partition) as producer:
                for number in range(COUNT):
                    await producer.send(b"%d" % number)
        found: dict[str, list[bytes]] = {EU: [], US: []}

        async def read() -> None:
            async for record in client.read("s"):
                found[record.partition].append(record.value)
                if len(found[EU]) == 1:
                    await crash(cluster, client, EU)

        with pytest.raises(PeerError, match="eu-p0"):
            await read()
        wanted = [b"%d" % number for number in range(COUNT)]
        assert found[US] == wanted
        assert 1 <= len(found[EU]) < COUNT
        assert found[EU] == wanted[: len(found[EU])]


@pytest.mark.long
async def test_a_partition_that_comes_back_is_read_to_its_end_after_the_others(
    tmp_path: Path,
) -> None:
    async with declared(tmp_path, (EU, US)) as (cluster, client):
        for partition in (EU, US):
            async with client.producer("s", partition=partition) as producer:
                for number in range(COUNT):
                    await producer.send(b"%d" % number)
        order: list[str] = []
        found: list[bytes] = []
        async with trio.open_nursery() as nursery:

            async def come_back() -> None:
                await trio.sleep(1.0)
                await cluster.start(EU)

            async for record in client.read("s"):
                order.append(record.partition)
                found.append(record.value)
                if len(order) == 1:
                    await crash(cluster, client, EU)
                    nursery.start_soon(come_back)
        assert sorted(found) == sorted(2 * [b"%d" % number for number in range(COUNT)])
        runs = [each for each, before in zip(order, [None, *order], strict=False) if each != before]
        assert runs == [EU, US, EU]
