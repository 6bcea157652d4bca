"""Publishing through a real connection to a fake node that misbehaves on request."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import anyio
import pandas
import pytest
import trio.testing

from hadron.client import Client, Producer, connect
from hadron.client.tests.fake_node import FakeNode
from hadron.client.tests.support import both, served, start, until
from hadron.model.batch import key_hash
from hadron.model.cloudevents import CloudEvent, from_record
from hadron.model.errors import (
    DeadlineExceededError,
    InvalidRecordError,
    NotFoundError,
    NotLeaderError,
    NotReadyError,
    OutcomeUnknownError,
    RecordTooLargeError,
    RequestError,
)
from hadron.model.record import NewRecord
from hadron.model.record_batch import decode_batch
from hadron.model.schema import StreamSpec, spec_to_json


@both
async def test_send_gives_the_record_back_as_it_was_sent() -> None:
    async with served() as (node, client), client.producer("s") as producer:
        receipt = await producer.send(
            {"carrier": "UA"},
            key="UA",
            type="flight.departed",
            timestamp_ms=5,
            headers={"source": "x"},
            id="f1",
        )
        assert (receipt.stream, receipt.partition, receipt.offset) == ("s", "local/p0", 0)
        assert receipt.append_ms > 0
        assert not receipt.duplicate
        again = await producer.send(NewRecord(value=b"raw"))
        assert again.offset == 1
        records = [
            record
            for _, _, data, _ in node.partition("s", "local/p0").batches
            for record in decode_batch(data).records()
        ]
        assert (records[0].value, records[0].key, records[0].id) == ({"carrier": "UA"}, "UA", "f1")
        assert records[1].value == b"raw"


@both
async def test_cloudevents_are_sent_as_they_are() -> None:
    event = CloudEvent(id="1", source="/s", type="t", subject="x", data={"a": 1})
    async with served() as (node, client), client.producer("s") as producer:
        await producer.send(event)
        await producer.send_many([event, b"plain"])
        with pytest.raises(InvalidRecordError, match="CloudEvent"):
            await producer.send(event, key="k")
        read = [record async for record in client.read("s")]
        assert [from_record(record) for record in read[:2]] == [event, event]
        assert len(node.values()) == 3


@both
async def test_send_soon_gathers_records_and_keeps_their_order() -> None:
    async with served() as (node, client):
        async with client.producer("s") as producer:
            pending = [await producer.send_soon(b"%d" % number) for number in range(1000)]
            assert (await pending[500].wait()).offset == 500
        assert all(entry.is_done for entry in pending)
        assert node.values() == [b"%d" % number for number in range(1000)]
        assert node.produce_calls < 100


@both
async def test_send_many_takes_plain_and_rich_records_alike() -> None:
    values = [b"%d" % number for number in range(3000)]
    rich = [NewRecord(value=b"k", key="a", type="t"), "text", {"a": 1}, *values[:300]]
    async with served() as (node, client):
        async with client.producer("s", batch_bytes=4096) as producer:
            await producer.send_soon(b"first")
            plain_receipts = await producer.send_many(values)
            rich_receipts = await producer.send_many(iter(rich))
            assert await producer.send_many([]) == []
        stored = node.values()
        assert stored[:3001] == [b"first", *values]
        assert stored[3001:] == [b"k", b"text", b'{"a":1}', *values[:300]]
        for receipts, first, count in ((plain_receipts, 1, 3000), (rich_receipts, 3001, len(rich))):
            assert receipts[0].base_offset == first
            assert sum(receipt.count for receipt in receipts) == count
            for one, two in itertools.pairwise(receipts):
                assert one.next_offset == two.base_offset


@both
async def test_keys_choose_the_partition_and_the_rest_goes_round() -> None:
    node = FakeNode(partitions=("a", "b", "c"))
    async with served(node) as (_, client):
        async with client.producer("s") as producer:
            for number in range(30):
                receipt = await producer.send(b"x", key=f"k{number}")
                index = key_hash(f"k{number}".encode()) % 3
                assert receipt.partition == ("a", "b", "c")[index]
            without = [(await producer.send(b"y")).partition for _ in range(6)]
        assert set(without) == {"a", "b", "c"}
        async with client.producer("s", partition="b") as producer:
            assert (await producer.send(b"z", key="k0")).partition == "b"
            receipts = await producer.send_many([b"1", b"2"])
            assert [receipt.partition for receipt in receipts] == ["b"]


@both
async def test_a_lost_answer_is_asked_for_again_and_nothing_is_doubled() -> None:
    async with served() as (node, client), client.producer("s") as producer:
        await producer.send(b"0")
        node.lose_answers = 1
        receipt = await producer.send(b"1")
        assert (receipt.offset, receipt.duplicate) == (1, True)
        assert (await producer.send(b"2")).offset == 2
        assert node.values() == [b"0", b"1", b"2"]


@both
async def test_connections_cut_again_and_again_lose_and_double_nothing() -> None:
    async with served() as (node, client):
        async with anyio.create_task_group() as tasks:

            async def cutter() -> None:
                for number in range(10):
                    await until(lambda: node.produce_calls > 0)
                    await anyio.sleep(0.01)
                    node.lose_answers = number % 4
                    node.cut()
                node.lose_answers = 0

            tasks.start_soon(cutter)
            async with client.producer("s", batch_bytes=2000) as producer:
                for number in range(6000):
                    await producer.send_soon(b"%d" % number)
                    if number % 200 == 0:
                        await anyio.sleep(0.003)
        assert node.values() == [b"%d" % number for number in range(6000)]


@both
async def test_retryable_refusals_are_waited_out() -> None:
    async with served() as (node, client), client.producer("s") as producer:
        node.refusals.extend([NotReadyError("starting"), NotLeaderError("n2 leads")])
        assert (await producer.send(b"x")).offset == 0
        assert node.produce_calls == 3


@both
async def test_a_refused_batch_fails_alone() -> None:
    async with served() as (node, client):
        async with client.producer("s") as producer:
            node.hold_answers = True
            node.refusals.extend([None, RequestError("no such luck")])
            first = await producer.send_soon(b"first")
            second = await producer.send_soon(b"refused")
            producer._publisher.seal()
            third = await producer.send_soon(b"third")
            producer._publisher.seal()
            await until(lambda: node.produce_calls >= 3)
            node.release_answers()
            assert (await first.wait()).offset == 0
            with pytest.raises(RequestError, match="luck"):
                await second.wait()
            assert (await third.wait()).offset == 1
        assert node.values() == [b"first", b"third"]


@both
async def test_a_refused_batch_gives_its_room_back() -> None:
    async with served() as (node, client), client.producer("s", max_buffer_bytes=1_000) as producer:
        for number in range(20):
            node.refusals.append(RequestError("no such luck"))
            with anyio.fail_after(5), pytest.raises(RequestError, match="luck"):
                await producer.send(b"x" * 200)
            with anyio.fail_after(5):
                assert (await producer.send(b"x" * 200)).offset == number


@both
async def test_leaving_raises_what_nobody_has_seen_and_only_that() -> None:
    async with served() as (node, client):
        node.refusals.append(RequestError("unseen"))
        with pytest.raises(RequestError, match="unseen"):
            async with client.producer("s") as producer:
                await producer.send_soon(b"x")
        node.refusals.append(RequestError("seen"))
        async with client.producer("s") as producer:
            with pytest.raises(RequestError):
                await producer.send(b"x")
        node.refusals.append(RequestError("flushed"))
        async with client.producer("s") as producer:
            await producer.send_soon(b"x")
            with pytest.raises(RequestError, match="flushed"):
                await producer.flush()
            await producer.flush()
        node.refusals.append(RequestError("hidden"))
        with pytest.raises(ZeroDivisionError):
            await send_and_fail(client)


@both
async def test_whoever_waits_silences_no_other_record_of_the_batch() -> None:
    async with next_one_fails() as (node, producer):
        seen, unseen = [await producer.send_soon(value) for value in (b"seen", b"unseen")]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fails, seen.wait)
            await until(lambda: bool(seen._hearers))
            node.release_answers()
        await fails(seen.wait)
        await fails(producer.flush)
        await fails(unseen.wait)
        await producer.flush()


@both
async def test_send_many_silences_no_other_record_of_the_batch() -> None:
    async with next_one_fails() as (node, producer):
        await producer.send_soon(b"unseen")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fails, producer.send_many, ["theirs", {"a": 1}])
            await until(lambda: node.produce_calls == 2)
            node.release_answers()
        await fails(producer.flush)
        await producer.flush()


@both
async def test_one_of_two_who_wait_gives_up_and_the_other_one_is_told() -> None:
    async with next_one_fails() as (node, producer):
        pending = await producer.send_soon(b"x")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fails, pending.wait)
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as impatient:
                    impatient.start_soon(pending.wait)
                    await until(lambda: pending._hearers == 2)
                    scope.cancel()
            assert pending._hearers == 1
            node.release_answers()
        await producer.flush()


@both
async def test_who_is_told_by_waiting_is_not_told_by_flush() -> None:
    async with next_one_fails() as (node, producer):
        pending = [await producer.send_soon(b"x") for _ in range(3)]
        async with anyio.create_task_group() as tasks:
            # It waits first, and for the same batch as those that come behind it.
            tasks.start_soon(producer.flush)
            await until(lambda: node.produce_calls == 2)
            for each in pending:
                tasks.start_soon(fails, each.wait)
            await until(lambda: all(each._hearers for each in pending))
            node.release_answers()
        await producer.flush()


@both
async def test_who_stops_waiting_leaves_the_failure_to_flush() -> None:
    async with next_one_fails() as (node, producer):
        pending = await producer.send_soon(b"x")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pending.wait)
            await until(lambda: bool(pending._hearers))
            tasks.cancel_scope.cancel()
        node.release_answers()
        await fails(producer.flush)


@asynccontextmanager
async def next_one_fails() -> AsyncIterator[tuple[FakeNode, Producer]]:
    """A producer whose records gather for the next batch, which is refused."""
    async with served() as (node, client), client.producer("s", linger_ms=60_000) as producer:
        node.hold_answers = True
        await producer.send_soon(b"under way")
        await until(lambda: node.produce_calls == 1)
        node.refusals.append(RequestError("no"))
        yield node, producer


async def fails(call: Callable[..., Awaitable[Any]], *args: Any) -> None:
    with pytest.raises(RequestError, match="no"):
        await call(*args)


async def send_and_fail(client: Client) -> None:
    async with client.producer("s") as producer:
        await producer.send_soon(b"x")
        raise ZeroDivisionError


@both
async def test_send_many_refuses_what_would_go_in_parts() -> None:
    """One value, or a table whose iterator gives the names of its columns."""
    table = pandas.DataFrame({"id": [1, 2], "v": [3, 4]})
    async with served() as (node, client), client.producer("s") as producer:
        for mistake in ("abc", b"abc", {"a": 1}):
            with pytest.raises(RequestError, match="would send its parts one by one"):
                await producer.send_many(mistake)
        with pytest.raises(RequestError, match="names of its columns") as caught:
            await producer.send_many(table)
        assert "to_dict" in caught.value.hint
        await producer.send_many(table.to_dict("records"))
        assert len(node.values()) == 2


@both
async def test_send_many_raises_the_first_failure_once() -> None:
    async with served() as (node, client):
        async with client.producer("s", batch_bytes=100) as producer:
            node.refusals.append(RequestError("no"))
            with pytest.raises(RequestError):
                await producer.send_many([b"x" * 60] * 10)
        assert len(node.values()) < 10


@both
async def test_a_cancelled_send_is_still_delivered_and_harms_nobody() -> None:
    async with served() as (node, client), client.producer("s") as producer:
        node.hold_answers = True
        with anyio.move_on_after(0.01):
            await producer.send(b"cancelled")
        async with anyio.create_task_group() as tasks:
            outcome = await start(tasks, producer.send, b"next")
            node.release_answers()
        assert outcome[0].offset == 1
        assert node.values() == [b"cancelled", b"next"]


@both
async def test_a_cancelled_block_waits_for_nothing() -> None:
    async with served() as (node, client):
        node.hold_answers = True
        with anyio.move_on_after(0.05) as scope:
            async with client.producer("s") as producer:
                pending = await producer.send_soon(b"x")
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        with pytest.raises(OutcomeUnknownError):
            await pending.wait()


@both
async def test_a_full_buffer_makes_senders_wait() -> None:
    async with served() as (node, client):
        node.hold_answers = True
        async with client.producer("s", max_buffer_bytes=1000, batch_bytes=500) as producer:
            async with anyio.create_task_group() as tasks:
                accepted = 0

                async def send_all() -> None:
                    nonlocal accepted
                    for _ in range(30):
                        await producer.send_soon(b"x" * 100)
                        accepted += 1

                tasks.start_soon(send_all)
                await until(lambda: accepted == 9)
                await anyio.sleep(0.02)
                assert accepted == 9
                node.release_answers()
            assert accepted == 30


@both
async def test_a_delivery_timeout_in_doubt_is_an_unknown_outcome() -> None:
    async with served() as (node, client):
        async with client.producer("s", delivery_timeout_s=0.1) as producer:
            node.hold_answers = True
            with pytest.raises(OutcomeUnknownError, match="may or may not"):
                await producer.send(b"1")
            node.release_answers()
            assert (await producer.send(b"2")).offset == 1
        assert node.values() == [b"1", b"2"]


@both
async def test_who_has_nothing_to_send_rests_and_a_timeout_counts_after_that() -> None:
    async with served() as (node, client):
        ways: list[Callable[[Producer], Awaitable[Any]]] = [
            lambda producer: producer.send(b"2"),
            lambda producer: producer.send_many([b"2"] * 10),
        ]
        for send in ways:
            async with client.producer("s", delivery_timeout_s=0.1) as producer:
                await producer.send(b"1")
                await until(lambda: producer._publisher._resting is not None)
                node.hold_answers = True
                with pytest.raises(OutcomeUnknownError, match="may or may not"):
                    await send(producer)
                node.release_answers()


async def test_each_failure_is_told_that_nobody_has_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with served() as (node, client), client.producer("s") as producer:
        for told in (1, 2):
            node.refusals.append(RequestError("no"))
            await producer.send_soon(b"x")
            await until(lambda told=told: caplog.text.count("nobody has asked yet") == told)  # type: ignore[misc]
            await until(lambda: producer._publisher._resting is not None)
            with pytest.raises(RequestError, match="no"):
                await producer.flush()


def test_a_loop_that_was_busy_makes_no_record_older() -> None:
    clock = trio.testing.MockClock(rate=1.0)

    async def main() -> None:
        async with served() as (node, client):
            async with client.producer("s", delivery_timeout_s=5.0) as producer:
                await producer.send(b"0")
                for send in (producer.send, producer.send_soon):
                    clock.jump(8.0)
                    await send(b"1")
                    await producer.flush()
                clock.jump(8.0)
                await producer.send_many([b"2"])
            assert node.values() == [b"0", b"1", b"1", b"2"]

    trio.run(main, clock=clock)


@both
async def test_a_delivery_timeout_tells_what_stood_in_the_way() -> None:
    async with served() as (node, client):
        node.refusals.extend([NotReadyError("starting")] * 100)
        async with client.producer("s", delivery_timeout_s=0.1) as producer:
            # Unknown if the last try is just under way.
            with pytest.raises((DeadlineExceededError, OutcomeUnknownError), match="starting"):
                await producer.send(b"1")


@both
async def test_records_wait_for_a_connection() -> None:
    async with (
        served() as (node, client),
        client.producer("s") as producer,
        anyio.create_task_group() as tasks,
    ):
        await producer.send(b"0")
        node.cut()
        outcomes = [await start(tasks, producer.send, b"%d" % n) for n in range(1, 9)]
        await until(lambda: all(outcomes))
        assert sorted(outcome[0].offset for outcome in outcomes) == list(range(1, 9))


@both
async def test_bad_records_are_refused_before_anything_is_sent() -> None:
    async with served() as (node, client), client.producer("s") as producer:
        with pytest.raises(InvalidRecordError):
            await producer.send(object())
        with pytest.raises(InvalidRecordError):
            await producer.send(b"x", key=3)  # type: ignore[arg-type]
        with pytest.raises(RecordTooLargeError):
            await producer.send_soon(b"x" * (2 << 20))
        with pytest.raises(RecordTooLargeError):
            await producer.send_many([b"ok", b"x" * (2 << 20)])
        with pytest.raises(InvalidRecordError):
            await producer.send_many(["ok", object()])
        await producer.flush()
        assert set(node.values()) <= {b"ok"}


@both
async def test_a_record_refused_in_bulk_tells_how_many_were_published() -> None:
    async with served() as (node, client), client.producer("s") as producer:
        with pytest.raises(RecordTooLargeError, match="record 3 of send_many") as caught:
            await producer.send_many([b"1", b"2", b"x" * (2 << 20), b"4"])
        assert "the 2 before it were published" in caught.value.hint
        assert caught.value.fates == (2, 0, 0)
        assert node.values() == [b"1", b"2"]


@both
async def test_bad_settings_and_names_are_named() -> None:
    async with served() as (_, client):
        with pytest.raises(RequestError, match="'most'"):
            client.producer("s", acks="most")  # type: ignore[arg-type]
        with pytest.raises(RequestError, match="gzip"):
            client.producer("s", codec="gzip")  # type: ignore[arg-type]
        with pytest.raises(RequestError, match="batch_bytes"):
            client.producer("s", batch_bytes=9 << 20)
        with pytest.raises(NotFoundError, match="'nope'"):
            async with client.producer("nope"):
                pass
        with pytest.raises(NotFoundError, match="'nope'"):
            async with client.producer("s", partition="nope"):
                pass
        async with client.producer("s") as producer:
            pass
        with pytest.raises(RequestError, match="closed"):
            await producer.send(b"x")


@both
async def test_a_wrong_patience_gives_nothing_up() -> None:
    async with served() as (node, client), client.producer("s") as producer:
        for wrong in ("30", float("nan"), -1):
            await producer.send_soon(b"x")
            with pytest.raises(RequestError, match=f"timeout_s {wrong!r} is"):
                await producer.close(wrong)  # type: ignore[arg-type]
        await producer.close(timedelta(seconds=30))  # type: ignore[arg-type]
        assert node.values() == [b"x"] * 3


@both
async def test_closing_the_client_fails_what_is_pending() -> None:
    node = FakeNode()
    async with node.listen() as url, anyio.create_task_group() as tasks:
        async with connect(url) as client:
            node.hold_answers = True
            opening = client.producer("s")
            producer = await opening.__aenter__()
            outcome = await start(tasks, producer.send, b"x")
            await until(lambda: node.produce_calls == 1)
        await until(lambda: bool(outcome))
        assert isinstance(outcome[0], OutcomeUnknownError)
        with pytest.raises(RequestError, match="closed"):
            await producer.send(b"y")


@both
async def test_compressed_and_eager_producers_store_the_same_records() -> None:
    async with served() as (node, client):
        async with client.producer("s", codec="zstd", linger_ms=0) as producer:
            for number in range(50):
                await producer.send_soon(b"%d" % number * 20)
            await producer.send_many([b"a" * 1000] * 100)
        assert node.values()[:50] == [b"%d" % number * 20 for number in range(50)]
        assert len(node.values()) == 150


@both
async def test_bursts_without_keys_are_shared_out_evenly() -> None:
    """The first record of a burst leaves alone, so batches are of 1 and 199 by turns."""
    async with served(FakeNode(partitions=("a", "b"))) as (_, client):
        for value in ({"n": 1}, "text", b"bytes"):
            given: Counter[str] = Counter()
            async with client.producer("s") as producer:
                for _ in range(20):
                    for receipt in await producer.send_many([value] * 200):
                        given[receipt.partition] += receipt.count
            assert given.total() == 4_000
            assert abs(given["a"] - given["b"]) <= 200


@both
async def test_keys_do_not_hold_records_that_go_round() -> None:
    async with served(FakeNode(partitions=("a", "b"))) as (_, client):
        async with client.producer("s", partitioner="round_robin") as producer:
            receipts = [await producer.send(b"x", key="k") for _ in range(10)]
        assert Counter(receipt.partition for receipt in receipts) == {"a": 5, "b": 5}


@both
async def test_partitions_that_are_added_are_named_with_the_index_that_added_them() -> None:
    """A leader there that has not heard of it says that it is behind, and not that it has none."""
    node = FakeNode(partitions=("a", "b"))
    entry = node.objects["Stream", "s"]
    both_spec = entry.spec_json
    entry.spec_json = spec_to_json(StreamSpec(partitions=("a",))).decode()
    async with served(node) as (_, client), client.producer("s") as producer:
        entry.spec_json, entry.metadata_index = both_spec, 99
        stale = client._catalog._streams["s"]
        await client.objects("Stream", "default", "s")
        router = producer._publisher._router
        assert router.partitions == ["a", "b"]
        router.at("b")
        assert {sender.request.metadata_index for sender in router.senders} == {99}
        client._catalog._streams["s"] = stale
        async with client.producer("s", partition="b") as pinned:
            (sender,) = pinned._publisher._router.senders
            assert sender.request.metadata_index == 99
