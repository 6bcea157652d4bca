"""Exchanges through the blocking client, with a real node: two threads, and an end from outside."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import hadron
from hadron.client import Message
from hadron.client.blocking.tests.support import ctrl_c_behind_the_call
from hadron.model.errors import ClosedError, NotFoundError, RequestError
from hadron.node.supervision.cluster import LocalCluster


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory: Path = tmp_path_factory.mktemp("cluster")
    with LocalCluster(directory, nodes=1, durability="os") as cluster:
        with hadron.connect_sync(cluster.url) as client:
            client.apply("kind: Exchange\nname: prices\nreplica_set: local/p0\n")
        yield cluster.url


def test_publish_and_subscribe(url: str) -> None:
    with hadron.connect_sync(url) as client:
        prices = client.exchange("prices")
        with prices.subscribe("eu.*") as messages:
            assert prices.publish("eu.ibm", {"p": 1}, headers={"h": "x"}).deliveries == 1
            many = [("eu.ibm", number) for number in range(500)]
            assert prices.publish_many(many).deliveries == 500
            first = next(messages)
            assert (first.topic, first.value, first.headers) == ("eu.ibm", {"p": 1}, {"h": "x"})
            assert [next(messages).value for _ in range(500)] == list(range(500))
            prices.publish_many([("eu.ibm", "a"), ("eu.ibm", "b")])
            with ctrl_c_behind_the_call(messages._lazy.get()._portal):
                next(messages)
            assert [next(messages).value for _ in range(2)] == ["a", "b"]
            assert (messages.missed, messages.interruptions) == (0, 0)
            assert prices.describe().subscriptions == 1
        assert list(messages) == []
        assert prices.publish("eu.ibm", 1).deliveries == 0


def test_a_loop_ends_when_another_thread_closes_it(url: str) -> None:
    with hadron.connect_sync(url) as client:
        messages = client.exchange("prices").subscribe(group="g")
        found: list[Message] = []
        seen = threading.Event()

        def loop() -> None:
            for message in messages:
                found.append(message)
                seen.set()

        thread = threading.Thread(target=loop)
        thread.start()
        while not client.exchange("prices").publish("a", 1).deliveries:
            pass
        assert seen.wait(10)
        messages.close()
        thread.join(10)
        assert not thread.is_alive()
        assert found[0].value == 1


def test_what_cannot_be_is_told_before_anything_is_asked(url: str) -> None:
    with hadron.connect_sync(url) as client:
        with pytest.raises(RequestError, match="is not a pattern"):
            client.exchange("prices").subscribe("a..b")
        with pytest.raises(NotFoundError, match="prices"), client.exchange("price").subscribe():
            pass
        exchange = client.exchange("prices")
    with pytest.raises(ClosedError):
        exchange.publish("a", 1)
