"""Transactions of the blocking client, through a real node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import hadron
from hadron.node.supervision.cluster import LocalCluster


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with LocalCluster(tmp_path_factory.mktemp("node"), nodes=1) as running:
        yield running.url


def test_the_blocking_client_ends_stages_so(url: str) -> None:
    with hadron.connect_sync(url) as client:
        client.create_stream("in")
        client.create_stream("out")
        client.apply(
            "kind: Pipeline\nname: p\nreplica_set: local/p0\ninput: in\nstart: earliest\n"
            "stages: [{name: one, engine: handler, output: {stream: out}}]\n"
        )
        client.send("in", b"a")
        with client.run_stages("p", engine="handler") as run:
            batch = next(run)
            with client.transaction() as tx:
                outputs = tx.complete(batch, ["made of a"])
                tx.publish("in", b"b")
            assert [each.stream for each in outputs.receipts] == ["out"]
            run.grant()
            batch = next(run)
            with client.transaction() as tx:
                tx.fail(batch, "why")
        assert [record.value for record in client.read("out")] == ["made of a"]


def test_how_far_one_came_is_told_after_its_client_was_closed(url: str) -> None:
    client = hadron.connect_sync(url)
    client.create_stream("told")
    with client.transaction() as tx:
        tx.publish("told", b"a")
        tx.commit()
        client.close()
        assert (tx.state, len(tx.receipts)) == ("committed", 1)
        with pytest.raises(hadron.ClosedError):
            tx.publish("told", b"b")
    assert tx.state == "committed"
    assert f"{tx.id}, committed" in repr(tx)
    with client.open(), client.transaction() as tx:
        tx.publish("told", b"never")
        client.close()
        assert tx.state == "rolled back"
    never = client.transaction()
    with pytest.raises(hadron.ClosedError):
        _ = never.state


def test_conditions_and_records_through_the_blocking_client(url: str) -> None:
    with hadron.connect_sync(url) as client:
        client.create_stream("accounts", keys="indexed")
        client.create_stream("log")
        for number in (1, 2):
            last = client.latest("accounts", "anna")
            with client.transaction() as tx:
                one = tx.publish(
                    "accounts",
                    {"n": number},
                    key="anna",
                    expect_key_offset=last.offset if last else -1,
                )
                tx.publish_many("log", [b"x", b"y"])
            assert one.receipt is not None
            assert one.receipt.offset == number - 1
            assert tx.state == "committed"
            assert f"{tx.id}, committed" in repr(tx)
        with pytest.raises(hadron.OffsetMismatchError) as caught, client.transaction() as tx:  # noqa: PT012
            tx.publish("log", b"never")
            tx.publish("accounts", b"never", key="anna", expect_key_offset=0)
        assert (caught.value.expected, caught.value.actual) == (0, 1)
        assert client.outcome(tx.id or "").state == "aborted"
        assert [record.value for record in client.read("log")] == [b"x", b"y"] * 2


def test_steps_begin_with_what_a_loop_that_was_left_had_fetched(url: str) -> None:
    with hadron.connect_sync(url) as client:
        client.create_stream("ten")
        with client.producer("ten") as producer:
            for number in range(10):
                producer.send(b"%d" % number)
        with client.subscribe("ten", group="left", start="earliest") as subscription:
            for delivery in subscription:
                delivery.ack()
                break
            offsets: list[int] = []
            for step in subscription.transactions():
                offsets += [record.offset for record in step.records]
                step.commit()
                if len(offsets) == 9:
                    break
        assert offsets == list(range(1, 10))
