"""Group members against real nodes: regions that come back, partitions that are added, options."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from hadron.client import Client, Delivery
from hadron.client.consuming import consumer, membership
from hadron.model.errors import RequestError
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.testing.nodes import Cluster, running_cluster, running_nodes

EU, US = "eu/p0", "us/p0"


async def declare(client: Client, name: str, *partitions: str) -> None:
    spec = StreamSpec(partitions=partitions)
    await client.apply([SchemaObject(kind="Stream", name=name, spec=spec)])


async def wait_registered(cluster: Cluster) -> None:
    """Until the metadata set takes the names of all sets in a schema."""
    discovery = cluster[cluster.metadata].node("n1").discovery

    def registered() -> bool:
        known = [each.registered or each.name == cluster.metadata for each in discovery.sets()]
        return len(known) == len(cluster) and all(known)

    await cluster.wait_for("all sets registered", registered)


async def test_members_pick_up_again_when_a_region_comes_back_and_join_added_partitions(
    tmp_path: Path,
) -> None:
    sets = {"meta": 1, EU: 1, US: 1}
    async with running_cluster(tmp_path, sets) as cluster, cluster.client() as client:
        await wait_registered(cluster)
        await declare(client, "s", EU)
        async with (
            client.subscribe("s", group="g", start="latest") as subscription,
            client.producer("s", partition=EU) as eu,
        ):
            await eu.send(b"1")
            first = await anext(subscription)
            await declare(client, "s", EU, US)
            async with client.producer("s", partition=US) as us:
                await us.send(b"2")
                second = await anext(subscription)
                assert (first.partition, second.partition) == (EU, US)
                await cluster.crash(EU)
                await first.ack()
                await us.send(b"3")
                third = await anext(subscription)
                assert third.value == b"3"
                await second.ack()
                await third.ack()
                await cluster.start(EU)
                await subscription.flush()
                await eu.send(b"4")
                fourth = await anext(subscription)
                assert (fourth.partition, fourth.value, fourth.attempt) == (EU, b"4", 1)
            floors = {group.partition: group.floor for group in await client.groups("s")}
            assert floors == {EU: 1, US: 2}


async def test_a_region_that_is_silent_does_not_keep_a_new_member_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's connection there is open, and nothing has been silent for long."""
    monkeypatch.setattr(consumer, "_OTHERS_S", 0.2)
    sets = {"meta": 1, EU: 1, US: 1}
    async with running_cluster(tmp_path, sets) as cluster, cluster.client() as client:
        await wait_registered(cluster)
        await declare(client, "s", EU, US)
        for partition in (EU, US):
            async with client.producer("s", partition=partition) as producer:
                await producer.send(partition)
        cluster.network.cut("client", cluster[US].host("n1"))
        with trio.fail_after(10):
            async with client.subscribe("s", group="g") as subscription:
                first = await anext(subscription)
                assert first.value == EU
                await first.ack()
                cluster.network.heal_all()
                second = await anext(subscription)
                assert second.value == US
                await second.ack()


async def test_the_latest_of_a_region_that_is_silent_is_what_is_logged_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "_OTHERS_S", 0.2)
    monkeypatch.setattr(membership, "_LATE_S", 0.0)
    sets = {"meta": 1, EU: 1, US: 1}
    async with (
        running_cluster(tmp_path, sets) as cluster,
        cluster.client() as client,
        cluster.client(host="elsewhere") as other,
    ):
        await wait_registered(cluster)
        await declare(client, "s", EU, US)
        async with other.producer("s", partition=US) as producer:
            await producer.send("before it came")
            # Records of one millisecond are of one time.
            await trio.sleep(0.002)
            cluster.network.cut("client", cluster[US].host("n1"))
            with trio.fail_after(10):
                async with client.subscribe("s", group="g", start="latest") as subscription:
                    await producer.send("while it could not come")
                    cluster.network.heal_all()
                    found = await anext(subscription)
                    assert found.value == "while it could not come"
                    await found.ack()


async def test_attempts_deadlines_and_options_as_the_leader_keeps_them(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        for name in ("s", "letters"):
            await declare(client, name, "local/p0")
        async with client.producer("s") as producer:
            await producer.send_many([b"bad", b"slow", b"good"])
        async with client.subscribe(
            "s", group="g", order="key", max_attempts=2, dead_letter="letters", ack_deadline_s=0.3
        ) as subscription:
            with pytest.raises(RequestError, match="has max_attempts 2, this member asks for 3"):
                async with client.subscribe("s", group="g", max_attempts=3, dead_letter="letters"):
                    pass
            held: Delivery | None = None
            seen: list[tuple[int, int]] = []
            with trio.fail_after(60):
                while len(seen) < 5:
                    delivery = await anext(subscription)
                    seen.append((delivery.offset, delivery.attempt))
                    if delivery.value == b"bad":
                        await delivery.nack(reason="cannot be read")
                    elif delivery.value == b"slow" and held is None:
                        held = delivery
                    else:
                        await delivery.ack()
            await subscription.flush()
            assert sorted(seen) == [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1)]
        letters = [record async for record in client.read("letters")]
        assert [record.value for record in letters] == [b"bad"]
        assert letters[0].headers["deadletterreason"] == "cannot be read"
        (group,) = await client.groups("s")
        assert (group.floor, group.dead_lettered) == (3, 1)


@pytest.mark.long
async def test_a_busy_member_makes_no_attempts_with_what_it_has_not_looked_at(
    tmp_path: Path,
) -> None:
    deadline_s = 1.0
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        for name in ("s", "letters"):
            await declare(client, name, "local/p0")
        async with client.producer("s") as producer:
            await producer.send_many([b"slow", b"1", b"2"])
            await producer.flush()
            await producer.send(b"3")
        async with client.subscribe(
            "s", group="g", ack_deadline_s=deadline_s, max_attempts=2, dead_letter="letters"
        ) as subscription:
            slow = await anext(subscription)
            # The handler: four deadlines, two of which are allowed.
            await trio.sleep(4.5 * deadline_s)
            await slow.ack()
            with trio.fail_after(60):
                rest = [await anext(subscription) for _ in range(3)]
            assert sorted(each.value for each in rest) == [b"1", b"2", b"3"]
            assert {each.attempt for each in rest} == {1}
            for each in rest:
                await each.ack()
            await subscription.flush()
        assert [record.value async for record in client.read("letters")] == []
        (group,) = await client.groups("s")
        assert (group.floor, group.dead_lettered) == (4, 0)


async def test_a_group_whose_dead_letter_stream_is_deleted_says_so(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        for name in ("s", "letters"):
            await declare(client, name, "local/p0")
        async with client.subscribe("s", group="g", max_attempts=1, dead_letter="letters"):
            pass
        (group,) = await client.groups("s")
        assert (group.dead_letter_stream, group.trouble) == ("letters", "")
        await client.delete([("Stream", "default", "letters")], allow_destructive=True)
        (group,) = await client.groups("s")
        assert group.dead_letter_stream == ""
        assert "dead letter stream 'letters' was deleted" in group.trouble


async def test_batches_over_stored_ones(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 1) as nodes, nodes.client() as client:
        await declare(client, "s", "local/p0")
        async with client.producer("s") as producer:
            for start in range(0, 100, 7):
                await producer.send_many([b"%d" % n for n in range(start, min(100, start + 7))])
        async with client.subscribe(
            "s", group="g", batch_size=30, batch_wait_s=0.05, max_in_flight=60
        ) as subscription:
            sizes: list[int] = []
            async for batch in subscription.batches():
                assert [int(record.value) for record in batch.records] == list(
                    range(sum(sizes), sum(sizes) + len(batch))
                )
                sizes.append(len(batch))
                await batch.ack()
                if sum(sizes) == 100:
                    break
        assert sizes == [30, 30, 30, 10]
