"""The blocking client: the same names, driven from a plain thread."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, NoReturn

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

import hadron
from hadron.client import SyncClient
from hadron.client.blocking import outbox
from hadron.client.blocking.faces.producer import SyncProducer
from hadron.client.blocking.outbox import Outbox, SyncPending
from hadron.client.blocking.portal import Answer
from hadron.client.blocking.tests.support import ctrl_c_behind_the_call
from hadron.client.connecting.ports import ClientPorts
from hadron.client.tests.fake_node import FakeNode
from hadron.client.tests.support import HandClock
from hadron.model.errors import (
    InvalidRecordError,
    NotFoundError,
    OutcomeUnknownError,
    PeerError,
    RequestError,
)
from hadron.model.record import NewRecord
from hadron.model.schema import SchemaObject, StreamSpec

_LIMIT_S = 30.0


@pytest.fixture(params=["trio", "asyncio"])
def node(request: pytest.FixtureRequest) -> Iterator[FakeNode]:
    """A fake node on an event loop in a thread."""
    fake = FakeNode()
    with (
        start_blocking_portal(request.param) as portal,
        portal.wrap_async_context_manager(fake.listen()),
    ):
        yield fake


@pytest.fixture
def client(node: FakeNode) -> Iterator[SyncClient]:
    with hadron.connect_sync(f"hadron://{node.address}") as opened:
        yield opened


def test_publish_and_read(node: FakeNode, client: SyncClient) -> None:
    with client.producer("s") as producer:
        assert producer.send({"a": 1}, key="k", partition="local/p0").offset == 0
        pending = [producer.send_soon(b"%d" % number) for number in range(5000)]
        assert pending[4999].wait().offset == 5000
        assert pending[0].is_done
        receipts = producer.send_many([b"x"] * 100)
        assert receipts[-1].next_offset == 5101
        producer.send_soon(NewRecord(value="last"))
    assert len(node.values()) == 5102
    records = list(client.read("s", offset=1, limit=5001))
    assert [record.value for record in records[:3]] == [b"0", b"1", b"2"]
    assert records[-1].offset == 5001
    assert sum(batch.count for batch in client.read_batches("s")) == 5102
    assert [record.value for record in client.read("s", offset=5101)] == ["last"]
    assert client.fetch("s", "local/p0", 0).next_offset == 5102
    assert client.offsets("s")[0].next_offset == 5102


def test_values_are_taken_as_they_are_at_the_call(node: FakeNode, client: SyncClient) -> None:
    value, raw, headers = {"n": 0}, bytearray(b"0"), {"h": "0"}
    with client.producer("s") as producer:
        for number in range(100):
            value["n"], raw[0], headers["h"] = number, number, str(number)
            producer.send_soon(value)
            producer.send_soon(raw, headers=headers)
    records = list(client.read("s"))
    assert [record.value["n"] for record in records[::2]] == list(range(100))
    assert [record.value[0] for record in records[1::2]] == list(range(100))
    assert [record.headers["h"] for record in records[1::2]] == [str(n) for n in range(100)]
    assert len(node.values()) == 200


def test_consume(node: FakeNode, client: SyncClient) -> None:
    with client.producer("s") as producer:
        producer.send_many([b"%d" % number for number in range(500)])
    with client.subscribe("s", group="g", max_in_flight=100) as subscription:
        for expected, delivery in zip(range(300), subscription, strict=False):
            assert (delivery.offset, delivery.value) == (expected, b"%d" % expected)
            assert (delivery.key, delivery.type, delivery.attempt) == (None, "", 1)
            delivery.ack()
        subscription.flush()
        assert node.groups["s", "local/p0", "g"].floor == 300
    with client.subscribe("s", group="g") as subscription:
        seen: set[int] = set()
        for batch in subscription.batches():
            seen.update(range(batch.first_offset, batch.first_offset + len(batch)))
            batch.ack()
            if len(seen) == 200:
                break
    assert node.groups["s", "local/p0", "g"].floor == 500
    with client.producer("s") as producer:
        producer.send(b"again")
    with client.subscribe("s", group="g") as subscription:
        first = next(subscription)
        first.nack()
        second = next(subscription)
        assert (second.offset, second.attempt) == (500, 2)
        second.extend()
        second.ack()
    assert [group.floor for group in client.groups()] == [501]


def test_a_member_that_stood_still_hands_out_nothing_that_others_may_have(node: FakeNode) -> None:
    clock = HandClock()
    url = f"hadron://{node.address}"
    with hadron.connect_sync(url, ports=ClientPorts(clock=clock)) as client:
        with client.producer("s") as producer:
            for _ in range(3):
                producer.send_many([b"x"] * 10)
        with client.subscribe("s", group="g", heartbeat_s=1, heartbeat_misses=1) as members:
            assert [next(members).offset for _ in range(3)] == [0, 1, 2]
            clock.now_s += 1.1
            # Those of the first batch are in this thread, the other batches have been fetched.
            again = next(members)
            assert (again.offset, again.attempt, len(node.openings)) == (0, 2, 2)


def test_what_a_busy_thread_was_not_handed_is_given_back_before_its_deadline(
    node: FakeNode, client: SyncClient
) -> None:
    with client.producer("s") as producer:
        producer.send_many([b"%d" % n for n in range(4)])
        producer.send_many([b"%d" % n for n in range(4, 8)])
    with client.subscribe("s", group="g", ack_deadline_s=0.1) as subscription:
        first = next(subscription)
        limit_s = time.monotonic() + 10
        while len(node.nacks) < 2 and time.monotonic() < limit_s:
            time.sleep(0.01)
        assert [each.unseen for each in node.nacks[:2]] == [True, True]
        first.ack()
        rest = []
        for delivery in subscription:
            assert delivery.attempt == 1
            delivery.ack()
            rest.append(delivery.offset)
            if len(rest) == 7:
                break
        assert sorted(rest) == list(range(1, 8))


def test_iterating_polling_and_batches_share_what_is_in_hand(client: SyncClient) -> None:
    with client.producer("s") as producer:
        for start in range(0, 9, 3):
            producer.send_many([b"%d" % n for n in range(start, start + 3)])
    with client.subscribe("s", group="g") as subscription:
        seen = []
        for delivery in subscription:
            seen.append(delivery.offset)
            delivery.ack()
            break
        while len(seen) < 9:
            batch = subscription.poll_batch(2)
            assert batch is not None
            seen += [record.offset for record in batch]
            batch.ack()
        assert seen == list(range(9))
        assert subscription.poll(0) is None
        with pytest.raises(RequestError, match="timeout_s -1 is out of bounds"):
            subscription.poll(-1)
        with pytest.raises(RequestError, match="timeout_s '2' is of type str"):
            subscription.flush("2")  # type: ignore[arg-type]
        subscription.flush()
        assert client.groups("s")[0].floor == 9


@pytest.mark.parametrize("way", ["iterate", "poll"])
def test_threads_share_a_subscription(client: SyncClient, way: str) -> None:
    """Two wait, and each is brought a parcel: neither may lose what the other has begun."""
    seen: list[int] = []
    with (
        client.producer("s") as producer,
        client.subscribe("s", group="g", max_in_flight=40) as subscription,
        ThreadPoolExecutor(2) as threads,
    ):

        def take(waits: threading.Barrier) -> None:
            waits.wait(_LIMIT_S)
            given = next(subscription) if way == "iterate" else subscription.poll(_LIMIT_S)
            assert given is not None
            seen.append(given.offset)
            given.ack()

        for round_ in range(1, 11):
            waits = threading.Barrier(3)
            taking = [threads.submit(take, waits) for _ in range(2)]
            waits.wait(_LIMIT_S)
            for _ in range(2):
                producer.send_many([b"x"] * 10)
            for each in taking:
                each.result(_LIMIT_S)
            while len(seen) < 20 * round_:
                given = subscription.poll(_LIMIT_S)
                assert given is not None
                assert given.attempt == 1
                seen.append(given.offset)
                given.ack()
        assert sorted(seen) == list(range(200))


@pytest.mark.parametrize("patience_s", [1e10, math.inf, timedelta(days=999_999)])
def test_there_is_no_bound_to_patience(client: SyncClient, patience_s: Any) -> None:
    client.send("s", b"x")
    with client.subscribe("s", group="g") as subscription:
        delivery = subscription.poll(patience_s)
        assert delivery is not None
        delivery.ack()
        subscription.flush(patience_s)


def test_a_wrong_patience_gives_nothing_up(node: FakeNode, client: SyncClient) -> None:
    producer = client.producer("s")
    for wrong in ("30", math.nan, -1):
        for closed in (producer, client):
            producer.send_soon(b"x")
            with pytest.raises(RequestError, match=f"timeout_s {wrong!r} is"):
                closed.close(wrong)  # type: ignore[arg-type]
    client.close(timedelta(seconds=30))  # type: ignore[arg-type]
    assert node.values() == [b"x"] * 6


@pytest.mark.parametrize("batch_size", [None, 4])
def test_ctrl_c_loses_no_batch_that_is_on_its_way_to_the_thread(
    client: SyncClient, batch_size: int | None
) -> None:
    with client.producer("s") as producer:
        for number in range(12):
            producer.send(b"%d" % number)

    def interrupt() -> None:
        with ctrl_c_behind_the_call(subscription._lazy.get()._portal):
            subscription.poll_batch(5)

    with client.subscribe("s", group="g", batch_size=batch_size) as subscription:
        interrupt()
        batch = subscription.poll_batch(5)
        assert batch is not None
        seen = [record.offset for record in batch]
        interrupt()
        while len(seen) < 12:
            delivery = subscription.poll(5)
            assert delivery is not None
            seen.append(delivery.offset)
        assert seen == list(range(12))


def test_acks_of_a_slow_loop_leave_by_themselves(node: FakeNode, client: SyncClient) -> None:
    with client.producer("s") as producer:
        producer.send(b"x")
    with client.subscribe("s", group="g") as subscription:
        next(subscription).ack()
        moved = threading.Event()
        while not moved.wait(0.001):
            if node.groups["s", "local/p0", "g"].floor == 1:
                moved.set()


class Name(str):
    """As of Django, numpy and the like: a str to `isinstance`, and no type that msgspec encodes."""

    __slots__ = ()


def test_texts_of_other_types_harm_no_record(client: SyncClient) -> None:
    with client.producer("s") as producer:
        sent = [
            producer.send_soon("before"),
            producer.send_soon(
                Name("given"),
                key=Name("k"),
                type=Name("t"),
                id=Name("i"),
                headers={Name("a"): Name("b")},
            ),
            producer.send_soon("after", type=""),
        ]
        assert [pending.wait().offset for pending in sent] == [0, 1, 2]
        with pytest.raises(InvalidRecordError, match="a type"):
            producer.send_soon("bad", type=0)  # type: ignore[arg-type]
        producer.send({"n": Name("x")})
    records = list(client.read("s"))
    assert [record.value for record in records] == ["before", "given", "after", {"n": "x"}]
    second = records[1]
    assert (second.key, second.type, second.id) == ("k", "t", "i")
    assert second.headers == {"a": "b"}


class Broken:
    def model_dump(self, **_: object) -> object:
        raise KeyError("nothing")


def test_a_value_that_fails_in_the_loop_is_refused_alone(client: SyncClient) -> None:
    with client.producer("s") as producer:
        before = producer.send_soon("before")
        with pytest.raises(InvalidRecordError, match="nothing"):
            producer.send(Broken())
        after = producer.send_soon("after")
        assert [before.wait().offset, after.wait().offset] == [0, 1]


def test_what_the_clients_own_thread_may_not_send_stops_nobody(
    node: FakeNode, client: SyncClient
) -> None:
    """As a logging handler does that ships records, once the client itself has logged a line."""
    with client.producer("s") as producer:
        producer.send(b"0")
        outbox = outbox_of(producer)
        with pytest.raises(RequestError, match="from within itself"):
            outbox._portal.call(producer.send_soon, b"refused")
        producer.send_soon(b"1")
        waiting = threading.Event()
        while node.values()[1:] != [b"1"]:
            assert outbox._scheduled or not outbox._inbox
            assert not waiting.wait(0.001)


def test_ctrl_c_at_the_hop_to_the_loop_stops_nobody(
    node: FakeNode, client: SyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with client.producer("s") as producer:
        producer.send(b"0")
        with monkeypatch.context() as patch:
            patch.setattr(outbox_of(producer)._portal, "post", interrupted)
            with pytest.raises(KeyboardInterrupt):
                producer.send_soon(b"1")
        assert not outbox_of(producer)._scheduled
        producer.send_soon(b"2")
    assert node.values() == [b"0", b"1", b"2"]


def test_failures_are_raised_once(node: FakeNode, client: SyncClient) -> None:
    with client.producer("s") as producer:
        with pytest.raises(InvalidRecordError):
            producer.send_soon(object())
        node.refusals.append(RequestError("no"))
        with pytest.raises(RequestError, match="no"):
            producer.send(b"x")
        pending = producer.send_soon(b"y", headers={"h": "x" * (2 << 20)})
        with pytest.raises(RequestError, match="over the limit"):
            pending.wait()
    node.refusals.append(RequestError("late"))
    with pytest.raises(RequestError, match="late"), client.producer("s") as producer:
        producer.send_soon(b"x")
    with pytest.raises(ZeroDivisionError):
        send_and_fail(client)
    assert node.values()[-1] == b"z"


def send_and_fail(client: SyncClient) -> None:
    with client.producer("s") as producer:
        producer.send_soon(b"z")
        raise ZeroDivisionError


def test_schema_and_cluster_calls(client: SyncClient) -> None:
    wanted = SchemaObject(kind="Stream", name="t", spec=StreamSpec(partitions=("local/p0",)))
    assert client.apply([wanted]).changes[0].action == "created"
    assert client.stream("t").name == "t"
    assert len(client.objects("Stream")) == 2
    assert client.topology().cluster == "fake"
    assert client.status().state == "serving"
    assert client.pipeline_progress("pipe")[0].instances == 3
    assert client.instances("pipe")[0].id == 1
    assert client.complete_stages(2, "a", [1], [1], [5], None).base_offset == 7
    client.fail_stages(2, "a", [1], [1], [5], "because")
    assert client.retry_instances("pipe") == 2_500
    assert client.retry_instances("pipe", [7]) == 1
    with pytest.raises(NotFoundError):
        client.stream("nope")


def test_stages(node: FakeNode, client: SyncClient) -> None:
    with client.run_stages("pipe") as run:
        waiting = threading.Event()
        while not node.stage_calls:
            waiting.wait(0.001)
        call, credit = node.stage_calls[0]
        assert credit == [2]
        run.grant(3)
        node.invoke(1)
        with ctrl_c_behind_the_call(run._lazy.get()._portal):
            next(run)
        assert next(run).invocations[0].instance_id == 1
        assert call.is_open


def test_a_closed_or_unreachable_client_says_so(node: FakeNode) -> None:
    opened = hadron.connect_sync(f"hadron://{node.address}")
    with opened as client:
        client.objects()
    with pytest.raises(RequestError, match="closed"):
        client.objects()
    nowhere = hadron.connect_sync("hadron://127.0.0.1:1", connect_timeout_s=0.1)
    with pytest.raises(PeerError, match="no node answered"):
        nowhere.__enter__()


class StuckNode(FakeNode):
    """Two partitions; the first answers nothing while `stuck` is set."""

    def __init__(self) -> None:
        super().__init__(partitions=("dead/p0", "live/p0"))
        self.stuck = True
        self._late: list[Any] = []

    def on_produce(self, call: Any, request: Any, data: memoryview) -> None:
        if self.stuck and request.partition == "dead/p0":
            self._late.append((call, request, data))
        else:
            super().on_produce(call, request, data)

    async def recover(self) -> None:
        self.stuck = False
        for each in self._late:
            super().on_produce(*each)


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[StuckNode, BlockingPortal]]:
    monkeypatch.setattr(outbox, "_INBOX_RECORDS", 8)
    node = StuckNode()
    with start_blocking_portal("trio") as portal, portal.wrap_async_context_manager(node.listen()):
        yield node, portal


def outbox_of(producer: SyncProducer) -> Outbox:
    return producer._lazy.get()


def key_of(producer: SyncProducer, partition: str) -> str:
    choose = outbox_of(producer)._publisher._router.choose
    return next(k for k in map(str, range(99)) if choose(k).accumulator.partition == partition)


def test_a_dead_partition_keeps_only_its_own_threads_waiting(
    stuck: tuple[StuckNode, BlockingPortal],
) -> None:
    node, portal = stuck
    count = 60
    sent: list[int] = []
    with (
        hadron.connect_sync(f"hadron://{node.address}") as client,
        client.producer("s", max_buffer_bytes=20_000) as producer,
    ):
        dead, live = key_of(producer, "dead/p0"), key_of(producer, "live/p0")

        def flood() -> None:
            for number in range(count):
                producer.send_soon(b"%03d" % number + b"x" * 1_000, key=dead)
                sent.append(number)

        with ThreadPoolExecutor(1) as flooding:
            flooded = flooding.submit(flood)
            try:
                waiting = threading.Event()
                while not outbox_of(producer)._lines:
                    assert not waiting.wait(0.001)
                # Through the line of the dead one, in each of the ways that there are.
                for number in range(40):
                    receipt = producer.send(b"%03d" % number, key=live)
                    assert receipt.partition == "live/p0"
                pending = [producer.send_soon(b"%03d" % n, key=live) for n in range(40, 80)]
                assert {each.wait().partition for each in pending} == {"live/p0"}
                many = producer.send_many([NewRecord(value=b"080", key=live)] * 5)
                assert {run.partition for run in many} == {"live/p0"}
                # Backpressure: half of the buffer, an inbox in line, and one more record in hand.
                assert not flooded.done()
                assert outbox_of(producer)._publisher.buffer.bytes < 20_000
                assert len(sent) <= 10 + 8 + 8
            finally:
                portal.call(node.recover)
            flooded.result(timeout=20)
        producer.flush()
        assert outbox_of(producer)._lines == {}
    values = node.values(name="dead/p0")
    assert [int(value[:3]) for value in values] == list(range(count))
    assert node.values(name="live/p0") == [b"%03d" % n for n in range(80)] + [b"080"] * 5


def send_unread(producer: SyncProducer, key: str) -> list[SyncPending]:
    """Send seven records of which the buffer takes three. None is looked at before all are sent:
    once one is in line, whoever sends the next waits for room."""
    outbox = outbox_of(producer)
    outbox._scheduled = True
    pending = [producer.send_soon(b"%d" % n + b"x" * 500, key=key) for n in range(7)]
    outbox._portal.post(outbox._empty_soon)
    return pending


def test_records_in_line_keep_their_order_among_all_ways_to_send(
    stuck: tuple[StuckNode, BlockingPortal],
) -> None:
    node, portal = stuck
    with (
        hadron.connect_sync(f"hadron://{node.address}") as client,
        client.producer("s", max_buffer_bytes=2_000) as producer,
    ):
        dead = key_of(producer, "dead/p0")
        pending = send_unread(producer, dead)
        with ThreadPoolExecutor(1) as later:
            waiting = threading.Event()
            while not outbox_of(producer)._lines:
                assert not waiting.wait(0.001)
            assert not pending[-1].is_done
            last = later.submit(producer.send, b"7", key=dead)
            portal.call(node.recover)
            assert last.result(timeout=20).offset == 7
        assert [each.wait().offset for each in pending] == list(range(7))
        with pytest.raises(NotFoundError, match="nowhere"):
            producer.send_soon(b"x", partition="nowhere/p0").wait()


def fill_and_leave(client: SyncClient, pending: list[SyncPending]) -> None:
    with client.producer("s", max_buffer_bytes=2_000) as producer:
        dead = key_of(producer, "dead/p0")
        pending += send_unread(producer, dead)
        waiting = threading.Event()
        while not outbox_of(producer)._lines:
            assert not waiting.wait(0.001)
        raise KeyboardInterrupt


def test_what_stands_in_line_when_the_producer_ends_fails(
    stuck: tuple[StuckNode, BlockingPortal],
) -> None:
    node, _ = stuck
    pending: list[SyncPending] = []
    with hadron.connect_sync(f"hadron://{node.address}") as client:
        with pytest.raises(KeyboardInterrupt):
            fill_and_leave(client, pending)
        with pytest.raises(RequestError, match="closed"):
            pending[-1].wait()
        with pytest.raises(OutcomeUnknownError):
            pending[0].wait()


def test_ctrl_c_while_the_loop_begins_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """It came just before the thread had said that it runs: nobody told that to stop."""

    def interrupted(answer: Answer[None], timeout_s: float | None = None) -> NoReturn:  # noqa: ARG001
        raise KeyboardInterrupt

    monkeypatch.setattr(Answer, "wait", interrupted)
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt), hadron.connect_sync("hadron://127.0.0.1:1"):
        pass
    assert threading.active_count() == before


def test_a_loop_that_cannot_begin_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_loop() -> NoReturn:
        raise OSError("too many open files")

    monkeypatch.setattr(asyncio, "new_event_loop", no_loop)
    with pytest.raises(OSError, match="too many"), hadron.connect_sync("hadron://127.0.0.1:1"):
        pass


def test_what_is_printed_says_what_it_is_and_whether_it_is_open(node: FakeNode) -> None:
    client = hadron.connect_sync(f"hadron://{node.address}")
    where = f"hadron://{node.address}/default"
    assert repr(client) == f"<SyncClient of {where}, not open yet>"
    producer, subscription = client.producer("s"), client.subscribe("s", group="g")
    assert repr(producer) == "<SyncProducer of 's', not open yet>"
    assert repr(subscription) == "<SyncSubscription to 's', group 'g', not open yet>"
    assert repr(client.run_stages("p")) == "<SyncStageRun of 'p', not open yet>"
    pending = producer.send_soon(b"x")
    pending.wait()
    assert repr(pending) == "<SyncPending of s/local/p0, acknowledged>"
    assert repr(client) == f"<SyncClient of {where}, open>"
    assert repr(producer) == "<SyncProducer of 's' at local/p0, open, 0 batches on their way>"
    assert repr(client.read("s")) == "<SyncReader of 's' from earliest>"
    batches = subscription.batches()
    assert repr(batches) == "<SyncDeliveryBatches to 's', group 'g', joined at local/p0>"
    assert repr(next(batches)) == "SyncDeliveryBatch(s/local/p0/0, attempt=1)"
    assert repr(subscription) == "<SyncSubscription to 's', group 'g', joined at local/p0>"
    producer.send(b"y")
    assert repr(next(subscription)).startswith("SyncDelivery(Record(s/local/p0/1, ")
    client.close()
    assert repr(client) == f"<SyncClient of {where}, closed>"
    assert repr(producer) == "<SyncProducer of 's', closed>"
    assert repr(subscription) == "<SyncSubscription to 's', group 'g', closed>"


def test_a_reader_may_stand_in_a_block(client: SyncClient) -> None:
    with client.producer("s") as producer:
        producer.send_many([b"0", b"1"])
    with client.read("s", follow=True) as records:
        assert next(records).value == b"0"
        records.close()
    assert list(records) == []
    with pytest.raises(InvalidRecordError, match=r"^send_many of one str"):
        client.producer("s").send_many("abc")
