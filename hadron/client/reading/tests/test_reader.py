"""Plain reads from a fake node."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest

from hadron.client import Client
from hadron.client.tests.fake_node import FakeNode, Partition
from hadron.client.tests.support import both, served, start, until
from hadron.model.errors import (
    CorruptionError,
    LogTruncatedError,
    NotFoundError,
    OffsetOutOfRangeError,
    RequestError,
)
from hadron.model.record_batch import decode_batch
from hadron.wire.calls import AnyCall
from hadron.wire.messages import streams_pb2


async def fill(client: Client, count: int, batch: int = 10, **options: Any) -> None:
    async with client.producer("s", **options) as producer:
        for start in range(0, count, batch):
            await producer.send_many([b"%d" % n for n in range(start, min(count, start + batch))])


async def values(reader: Any) -> list[int]:
    return [int(record.value) async for record in reader]


@both
async def test_read_gives_every_record_in_order() -> None:
    async with served() as (_, client):
        await fill(client, 95)
        records = [record async for record in client.read("s")]
        assert [int(record.value) for record in records] == list(range(95))
        assert [record.offset for record in records] == list(range(95))
        assert records[0].partition == "local/p0"
        assert await values(client.read("s", offset=95)) == []
        assert await values(client.read("s", offset="latest")) == []
        assert await values(client.read("s", offset="earliest", limit=3)) == [0, 1, 2]
        assert await values(client.read("s", limit=0)) == []


@both
async def test_offsets_and_limits_inside_batches_are_exact() -> None:
    async with served() as (_, client):
        await fill(client, 40)
        for offset, limit in ((3, 4), (9, 2), (15, 20), (39, 5)):
            expected = list(range(40))[offset : offset + limit]
            assert await values(client.read("s", offset=offset, limit=limit)) == expected
            batches = [b async for b in client.read_batches("s", offset=offset, limit=limit)]
            assert [int(r.value) for b in batches for r in b.records()] == expected
            assert batches[0].base_offset == offset


@both
async def test_what_comes_behind_what_is_wanted_is_not_fetched() -> None:
    async with served() as (node, client):
        await fill(client, 400)
        assert await values(client.read("s", offset=5, limit=1)) == [5]
        assert (node.fetches, node.fetched_batches) == (1, 1)
        node.most_fetch_bytes = 1
        assert await values(client.read("s", offset=5, limit=10)) == list(range(5, 15))
        assert (node.fetches, node.fetched_batches) == (3, 3)


@both
async def test_a_read_ends_at_the_high_watermark_of_its_start() -> None:
    async with served() as (_, client):
        await fill(client, 20)
        seen = []
        async for record in client.read("s"):
            seen.append(int(record.value))
            if len(seen) == 1:
                await fill(client, 20)
        assert seen == list(range(20))


@both
async def test_following_waits_for_records_of_all_partitions() -> None:
    node = FakeNode(partitions=("a", "b"))
    async with served(node) as (_, client):
        seen: list[tuple[str, bytes]] = []
        async with anyio.create_task_group() as tasks:

            async def follow() -> None:
                async for record in client.read("s", follow=True):
                    seen.append((record.partition, record.value))
                    if len(seen) == 4:
                        break

            tasks.start_soon(follow)
            await until(lambda: node.fetches >= 2)
            for number, partition in enumerate("abba"):
                async with client.producer("s", partition=partition) as producer:
                    await producer.send(b"%d" % number)
                await until(lambda count=number + 1: len(seen) == count)  # type: ignore[misc]
        assert seen == [("a", b"0"), ("b", b"1"), ("b", b"2"), ("a", b"3")]


@both
async def test_partitions_are_read_one_after_the_other() -> None:
    node = FakeNode(partitions=("a", "b"))
    async with served(node) as (_, client):
        await fill(client, 20, partition="b")
        await fill(client, 10, partition="a")
        seen = [(r.partition, r.offset) async for r in client.read("s")]
        assert seen == [("a", n) for n in range(10)] + [("b", n) for n in range(20)]
        assert await values(client.read("s", partition="b", offset=15)) == [15, 16, 17, 18, 19]


@both
async def test_a_read_survives_cut_connections() -> None:
    async with served() as (node, client):
        await fill(client, 500, batch=10)
        node.most_fetch_bytes = 2000
        seen = []
        async for record in client.read("s"):
            seen.append(record.offset)
            if record.offset % 100 == 50:
                node.cut()
        assert seen == list(range(500))


@both
async def test_offsets_out_of_range_and_bad_arguments_are_named() -> None:
    async with served() as (node, client):
        await fill(client, 10)
        with pytest.raises(OffsetOutOfRangeError, match="offset 11"):
            await values(client.read("s", offset=11))
        node.partition("s", "local/p0").first_offset = 5
        with pytest.raises(OffsetOutOfRangeError, match="earliest"):
            await values(client.read("s", offset=2))
        assert await values(client.read("s", offset="earliest")) == [5, 6, 7, 8, 9]
        with pytest.raises(OffsetOutOfRangeError):
            await client.fetch("s", "local/p0", 99)
        assert await values(client.read("s", start=-2)) == [8, 9]
        assert await values(client.read("s", start=-99)) == [5, 6, 7, 8, 9]
        for offset in ("first", True, 1.5):
            with pytest.raises(RequestError, match="is not an offset"):
                client.read("s", offset=offset)  # type: ignore[arg-type]
        with pytest.raises(RequestError, match="limit"):
            client.read("s", limit=-1)
        with pytest.raises(NotFoundError):
            await values(client.read("nope"))


@both
async def test_a_damaged_batch_is_never_served() -> None:
    async with served() as (node, client):
        await fill(client, 10)
        log = node.partition("s", "local/p0")
        base, head, data, stamp = log.batches[0]
        log.batches[0] = (base, head, data[:-1] + b"?", stamp)
        with pytest.raises(CorruptionError, match="checksum"):
            await values(client.read("s"))


@both
async def test_fetch_gives_whole_batches_and_offsets_tell_the_range() -> None:
    async with served() as (_, client):
        await fill(client, 20)
        fetched = await client.fetch("s", "local/p0", 13)
        assert (fetched.first_offset, fetched.next_offset) == (0, 20)
        assert [(b.base_offset, b.count) for b in fetched.batches] == [(10, 10)]
        assert decode_batch(fetched.batches[0].data).value_bytes()[0] == b"10"
        assert (await client.fetch("s", "local/p0", 20, max_wait_ms=5)).batches == []
        one = await client.fetch("s", "local/p0", 0, max_bytes=1)
        assert len(one.batches) == 1
        found = await client.offsets("s", at_ms=1)
        assert [(f.partition, f.first_offset, f.next_offset, f.at_offset) for f in found] == [
            ("local/p0", 0, 20, 0)
        ]
        with pytest.raises(RequestError, match="max_bytes"):
            await client.fetch("s", "local/p0", 0, max_bytes=0)
        for wrong in (-1, 1 << 63, 1.5, float("nan"), "0", True):
            with pytest.raises(RequestError, match=f"offset {wrong!r} is"):
                await client.fetch("s", "local/p0", wrong)  # type: ignore[arg-type]
            with pytest.raises(RequestError, match=f"before {wrong!r} is"):
                await client.offsets("s", before=wrong)  # type: ignore[arg-type]
        with pytest.raises(RequestError, match="at_ms 9223372036854775808 is out of bounds"):
            await client.offsets("s", at_ms=1 << 63)
        with pytest.raises(RequestError, match="stream is not valid Unicode"):
            await client.fetch("a\ud800", "local/p0", 0)


@both
async def test_who_follows_from_a_time_to_come_gets_nothing_from_before() -> None:
    """Not what comes from now on, which is where that time has its offset yet."""
    async with served() as (node, client), anyio.create_task_group() as tasks:
        begin = datetime.now(UTC) + timedelta(hours=1)
        reader = client.read("s", start=begin, follow=True)
        got = await start(tasks, lambda: anext(reader))
        await until(lambda: node.fetches == 1)
        await client.send("s", "early")
        await until(lambda: node.fetches == 2)
        assert not got
        node.partition("s", "local/p0").ahead_ms = 4_000_000
        await client.send("s", "late")
        await until(lambda: bool(got))
        assert got[0].value == "late"
        assert [record async for record in client.read("s", start=begin + timedelta(days=1))] == []


@both
async def test_a_read_that_is_left_early_asks_for_no_more() -> None:
    async with served() as (node, client):
        await fill(client, 10)
        async for _ in client.read("s", follow=True):
            break
        reader = client.read("s", follow=True)
        assert (await reader.__anext__()).offset == 0
        await reader.aclose()
        with pytest.raises(StopAsyncIteration):
            await reader.__anext__()
        before = node.fetches
        for _ in range(10):
            await fill(client, 10)
        # What was fetched ahead stays unread; the closed one fetches nothing.
        assert node.fetches <= before + 3


@both
async def test_who_follows_a_log_that_lost_records_is_told() -> None:
    """There may be as many again by the time it asks, so that the offset alone tells nothing."""
    async with served() as (node, client):
        await fill(client, 4, batch=2)
        reader = client.read("s", follow=True)
        assert [int((await anext(reader)).value) for _ in range(4)] == [0, 1, 2, 3]
        node.partition("s", "local/p0").lose(2)
        node.cut()
        await fill(client, 4, batch=2)
        with pytest.raises(LogTruncatedError):
            await anext(reader)


@both
async def test_who_reads_to_the_end_of_a_log_that_lost_it_is_told() -> None:
    async with served() as (node, client):
        await fill(client, 40, batch=1)
        node.most_fetch_bytes = 1
        reader = client.read("s")
        assert (await anext(reader)).offset == 0
        node.partition("s", "local/p0").lose(20)
        with pytest.raises(OffsetOutOfRangeError):
            async for _ in reader:
                pass


@both
async def test_a_leader_that_has_nothing_yet_ends_no_read() -> None:
    async with served() as (node, client):
        await fill(client, 3, batch=1)
        answer = node._answer_fetch
        said: list[bool] = []

        def say_nothing(call: AnyCall, request: streams_pb2.FetchRequest, log: Partition) -> None:
            if said:
                answer(call, request, log)
            else:
                said.append(request.exists)
                call.send(streams_pb2.FetchResponse(next_offset=0), end=True)

        node._answer_fetch = say_nothing  # type: ignore[method-assign]
        assert [record.offset async for record in client.read("s")] == [0, 1, 2]
        assert said == [True]


@both
async def test_a_cursor_of_ones_own_is_checked() -> None:
    async with served() as (node, client):
        await fill(client, 4, batch=2)
        (end,) = await client.offsets("s")
        assert (end.next_offset, end.ballot, end.stream_id) == (4, (1, 1), 1)
        (start,) = await client.offsets("s", before=0)
        assert start.ballot is None
        node.partition("s", "local/p0").lose(2)
        await fill(client, 4, batch=2)
        (middle,) = await client.offsets("s", before=2)
        assert middle.ballot == (1, 1)
        for at in (middle, end):
            offset = 2 if at is middle else 4
            fetch = client.fetch("s", "local/p0", offset, stream_id=at.stream_id, after=at.ballot)
            if at is middle:
                assert (await fetch).batches[0].incarnation == 2
            else:
                with pytest.raises(LogTruncatedError):
                    await fetch
        with pytest.raises(NotFoundError):
            await client.fetch("s", "local/p0", 2, stream_id=end.stream_id + 1, after=middle.ballot)
