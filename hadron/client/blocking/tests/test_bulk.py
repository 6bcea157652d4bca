"""The blocking `send_many`: what is iterated belongs to its caller."""

from __future__ import annotations

import itertools
import sqlite3
import threading
from collections.abc import Iterator

import pytest
from anyio.from_thread import start_blocking_portal

import hadron
from hadron.client import SyncClient
from hadron.client.producing import bulk
from hadron.client.tests.fake_node import FakeNode
from hadron.model.errors import InvalidRecordError


@pytest.fixture
def node() -> Iterator[FakeNode]:
    fake = FakeNode(streams=("s", "t"))
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(fake.listen()),
    ):
        yield fake


@pytest.fixture
def client(node: FakeNode) -> Iterator[SyncClient]:
    with hadron.connect_sync(f"hadron://{node.address}") as opened:
        yield opened


def test_what_is_iterated_may_ask_the_same_client(node: FakeNode, client: SyncClient) -> None:
    client.producer("s").send_many([b"%d" % n for n in range(10_000)])
    receipts = client.producer("t").send_many(each.value + b"!" for each in client.read("s"))
    assert sum(receipt.count for receipt in receipts) == 10_000
    assert node.values("t") == [b"%d!" % n for n in range(10_000)]


def test_what_is_iterated_may_belong_to_its_thread(node: FakeNode, client: SyncClient) -> None:
    database = sqlite3.connect(":memory:")
    rows = database.execute("VALUES (1), (2), (3)")
    client.producer("s").send_many({"n": n} for (n,) in rows)
    assert node.values() == [b'{"n":1}', b'{"n":2}', b'{"n":3}']
    database.close()


def test_records_go_while_they_come(node: FakeNode, client: SyncClient) -> None:
    """Of an endless iterator too, and until Ctrl-C; the client does other things meanwhile."""

    def values() -> Iterator[bytes]:
        for number in itertools.count():
            yield b"%d" % number
            while number == 10_000 and len(node.values()) < 4_000:
                threading.Event().wait(0.001)
            if number == 10_000:
                client.objects()
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        client.producer("s").send_many(values())


@pytest.mark.parametrize("size", [1, bulk._SLICE_RECORDS])
def test_an_iterator_that_fails_is_told_what_went(
    node: FakeNode, client: SyncClient, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(bulk, "_SLICE_RECORDS", size)

    def values() -> Iterator[bytes]:
        yield from [b"x"] * 500
        raise ZeroDivisionError

    producer = client.producer("s")
    with pytest.raises(ZeroDivisionError) as caught:
        producer.send_many(values())
    assert caught.value.__notes__ == ["send_many had published 500 records before that"]
    assert len(node.values()) == 500
    with pytest.raises(InvalidRecordError, match="record 3 of send_many"):
        producer.send_many(iter([b"1", b"2", object()]))


def test_a_serializer_runs_in_its_callers_thread(node: FakeNode, client: SyncClient) -> None:
    threads: list[threading.Thread] = []

    def serialize(value: int) -> bytes:
        threads.append(threading.current_thread())
        return b"%d" % value

    producer = client.producer("s", value_serializer=serialize)
    producer.send_many(list(range(3)))
    assert threads == [threading.current_thread()] * 3
    assert node.values() == [b"0", b"1", b"2"]
