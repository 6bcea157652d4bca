"""Group members against a fake node."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from hadron.client import Client
from hadron.client.connecting.ports import ClientPorts
from hadron.client.consuming.deliveries import Delivery
from hadron.client.tests.fake_node import FakeNode
from hadron.client.tests.support import HandClock, both, served, start, until
from hadron.model.errors import (
    ClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    NotFoundError,
    NotLeaderError,
    NotReadyError,
    PeerError,
    RequestError,
)
from hadron.model.schema import SchemaObject, StreamSpec, spec_to_json
from hadron.wire.messages import groups_pb2


async def fill(client: Client, count: int, batch: int = 10, partition: str | None = None) -> None:
    async with client.producer("s", partition=partition) as producer:
        for start in range(0, count, batch):
            await producer.send_many([b"%d" % n for n in range(start, min(count, start + batch))])


@both
async def test_every_record_is_delivered_and_acks_move_the_floor() -> None:
    async with served() as (node, client):
        await fill(client, 1000)
        async with client.subscribe("s", group="g", max_in_flight=64) as subscription:
            for expected in range(1000):
                delivery = await subscription.__anext__()
                assert (delivery.offset, delivery.value) == (expected, b"%d" % expected)
                assert (delivery.attempt, delivery.partition) == (1, "local/p0")
                await delivery.ack()
            await subscription.flush()
            assert node.groups["s", "local/p0", "g"].floor == 1000
            assert [(g.group, g.floor) for g in await client.groups("s")] == [("g", 1000)]
        await until(lambda: not node.groups["s", "local/p0", "g"].members)


@both
async def test_leaving_the_block_sends_the_acks() -> None:
    async with served() as (node, client):
        await fill(client, 10)
        async with client.subscribe("s", group="g") as subscription:
            async for delivery in subscription:
                await delivery.ack()
                if delivery.offset == 6:
                    break
        assert node.groups["s", "local/p0", "g"].floor == 7
        async with client.subscribe("s", group="g") as subscription:
            delivery = await subscription.__anext__()
            assert (delivery.offset, delivery.attempt) == (7, 1)


@both
async def test_acks_leave_by_themselves() -> None:
    async with served() as (node, client):
        await fill(client, 3)
        async with client.subscribe("s", group="g") as subscription:
            await (await subscription.__anext__()).ack()
            await until(lambda: node.groups["s", "local/p0", "g"].floor == 1)


@both
async def test_batches_are_acknowledged_as_a_whole_and_new_records_are_pushed() -> None:
    async with served() as (node, client):
        async with client.subscribe("s", group="g", start="latest") as subscription:
            await fill(client, 100)
            seen: list[int] = []
            async for batch in subscription.batches():
                assert batch.first_offset == len(seen)
                assert len(batch) == len(batch.records)
                seen.extend(int(record.value) for record in batch.records)
                await batch.ack()
                if len(seen) == 100:
                    break
            await subscription.flush()
        assert seen == list(range(100))
        assert node.groups["s", "local/p0", "g"].floor == 100


@both
async def test_nacked_records_come_again() -> None:
    async with served() as (_, client):
        await fill(client, 3)
        async with client.subscribe("s", group="g") as subscription:
            first = await subscription.__anext__()
            await first.nack()
            seen: list[Delivery] = []
            async for delivery in subscription:
                seen.append(delivery)
                await delivery.ack()
                if len(seen) == 3:
                    break
            assert [(d.offset, d.attempt) for d in seen] == [(1, 1), (2, 1), (0, 2)]
            await fill(client, 2)
            batch = await subscription.batches().__anext__()
            for delay_s in (-1.0, 1e9, float("nan")):
                with pytest.raises(RequestError, match="delay_s"):
                    await batch.nack(delay_s=delay_s)
            await batch.nack(delay_s=0.0)
            again = await subscription.batches().__anext__()
            assert (again.first_offset, again.attempt) == (batch.first_offset, 2)


@pytest.mark.parametrize("in_batches", [False, True])
async def test_what_was_acknowledged_is_neither_late_nor_given_back(
    in_batches: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with served() as (node, client):
        await fill(client, 3)
        group = client.subscribe("s", group="g", batch_size=1)
        async with group as subscription:
            taken: list[Any] = []
            for _ in range(3):
                given = await (subscription.poll_batch() if in_batches else subscription.poll())
                assert given is not None
                taken.append(given)
            for given in taken[:2]:
                await given.ack()
            await subscription.flush()
            assert caplog.messages == []
            for given in taken[:2]:
                await given.nack()
            told = "records of s were given back after they had been acknowledged: they are not "
            assert caplog.messages == [told + "delivered again"]
            assert node.nacks == []
            caplog.clear()
        await taken[0].ack()
        assert caplog.messages == []
        await taken[2].ack()
        assert ["after the subscription had been" in each for each in caplog.messages] == [True]


@both
async def test_a_batch_is_attached_once_and_remembered() -> None:
    """One member in steps of 3, more batches in play than both sides remember."""
    async with served() as (node, client):
        await fill(client, 300, batch=7)
        async with client.subscribe("s", group="g", max_in_flight=3) as subscription:
            for expected in range(300):
                delivery = await subscription.__anext__()
                assert delivery.value == b"%d" % expected
                await delivery.ack()
            await subscription.flush()
        assert node.groups["s", "local/p0", "g"].floor == 300


@both
async def test_after_a_cut_the_member_joins_again_and_misses_nothing() -> None:
    async with served() as (node, client):
        await fill(client, 400)
        async with client.subscribe("s", group="g", max_in_flight=50) as subscription:
            acked: list[int] = []
            stale: list[Delivery] = []
            while len(set(acked)) < 400:
                delivery = await subscription.__anext__()
                if delivery.offset % 90 == 40 and delivery.attempt == 1:
                    stale.append(delivery)
                    node.cut()
                    await until(lambda: node.groups["s", "local/p0", "g"].members == [])
                    continue
                acked.append(delivery.offset)
                await delivery.ack()
            for old in stale:
                await old.ack()
            await until(lambda: node.groups["s", "local/p0", "g"].floor == 400)
        assert set(acked) == set(range(400))


@both
async def test_acks_that_a_lost_call_took_along_are_sent_on_the_next_one() -> None:
    async with served() as (node, client):
        await fill(client, 5)
        async with client.subscribe("s", group="g", max_in_flight=2) as subscription:
            for _ in range(2):
                await (await subscription.__anext__()).ack()
            node.cut()
            await subscription.flush()
            assert node.groups["s", "local/p0", "g"].floor == 2
            assert (await subscription.__anext__()).offset == 2


@both
async def test_an_ack_after_the_call_was_lost_counts_and_its_record_is_not_handed_out_again() -> (
    None
):
    async with served() as (node, client):
        await fill(client, 3)
        async with client.subscribe("s", group="g", max_in_flight=1) as subscription:
            late = await subscription.__anext__()
            node.cut()
            group = node.groups["s", "local/p0", "g"]
            await until(lambda: not group.members)
            await late.ack()
            delivery = await subscription.__anext__()
            assert (delivery.offset, delivery.attempt) == (1, 1)
            await subscription.flush()
            assert group.floor == 1


@both
async def test_a_late_ack_is_not_one_of_another_record_at_its_offset() -> None:
    """The log has lost its tail, and others were written in its place before the member is back."""
    async with served() as (node, client):
        await fill(client, 2, batch=1)
        async with client.subscribe("s", group="g", max_in_flight=1) as subscription:
            first = await subscription.__anext__()
            await first.ack()
            await subscription.flush()
            late = await subscription.__anext__()
            node.cut()
            node.refuse_members = NotReadyError("not now")
            group = node.groups["s", "local/p0", "g"]
            await until(lambda: not group.members)
            group.partition.lose(1)
            await fill(client, 1, batch=1)
            node.refuse_members = None
            await until(lambda: bool(group.members and group.members[0].in_flight))
            await late.ack()
            assert (await subscription.__anext__()).offset == 1


@both
async def test_an_ack_counts_that_comes_after_its_record_was_delivered_here_again() -> None:
    async with served() as (node, client):
        await fill(client, 2, batch=1)
        async with client.subscribe("s", group="g", max_in_flight=1) as subscription:
            late = await subscription.__anext__()
            node.cut()
            group = node.groups["s", "local/p0", "g"]
            await until(lambda: bool(group.members and group.members[0].in_flight))
            await subscription.flush()
            await late.ack()
            assert (await subscription.__anext__()).offset == 1
            await subscription.flush()
            assert group.floor == 1


@both
async def test_after_a_reset_records_come_again_whatever_was_in_doubt() -> None:
    async with served() as (node, client):
        await fill(client, 1)
        async with client.subscribe("s", group="g") as subscription:
            await (await subscription.__anext__()).ack()
            group = node.groups["s", "local/p0", "g"]
            await until(lambda: group.floor == 1)
            group.floor = group.next_new = 0
            group.members[0].call.fail(NotReadyError("the group is being reset"))
            again = await subscription.__anext__()
            assert (again.offset, again.attempt) == (0, 1)


@both
async def test_a_reset_while_a_member_was_away_gives_it_every_record_again() -> None:
    """Under another leader: nothing but the fence tells that the group was reset, and not only
    passed on. What was in doubt, and what is acknowledged later of what came before, is lost."""
    async with served() as (node, client):
        await fill(client, 3, batch=1)
        async with client.subscribe("s", group="g") as subscription:
            first, second, third = [await subscription.__anext__() for _ in range(3)]
            group = node.groups["s", "local/p0", "g"]
            node.refuse_members = NotReadyError("a leader is starting")
            node.cut()
            await until(lambda: not group.members)
            await first.ack()
            await second.ack()
            node.incarnation += 1
            group.reset(node.incarnation)
            node.refuse_members = None
            again = [await subscription.__anext__() for _ in range(2)]
            assert [(each.offset, each.attempt) for each in again] == [(0, 1), (1, 1)]
            with pytest.raises(ConnectionLostError, match=r"2 acknowledgements .* group was reset"):
                await subscription.flush()
            await third.ack()
            with pytest.raises(ConnectionLostError, match="1 acknowledgements"):
                await subscription.flush()
            assert group.floor == 0
            again.append(await subscription.__anext__())
            for each in again:
                await each.ack()
            await subscription.flush()
            assert group.floor == 3


@both
async def test_flush_says_when_acks_came_too_late() -> None:
    async with served() as (node, client):
        await fill(client, 2, batch=1)
        async with client.subscribe("s", group="g", max_in_flight=1) as subscription:
            late = await subscription.__anext__()
            group = node.groups["s", "local/p0", "g"]
            async with client.subscribe("s", group="g", max_in_flight=2) as other:
                await other.__anext__()
                member = group.members[0]
                member.call.fail(NotLeaderError("it moved"))
                member.ended(None)
                delivery = await other.__anext__()
                assert (delivery.offset, delivery.attempt) == (0, 2)
                await late.ack()
                with pytest.raises(ConnectionLostError, match=r"1 acknowledgements .* too late"):
                    await subscription.flush()
                await subscription.flush()


@pytest.mark.long
@both
async def test_flush_tells_of_each_partition_what_came_of_it_there() -> None:
    """One is away, with acknowledgements in doubt, one has refused some, and one is well."""
    names = ("a/p0", "b/p0", "c/p0")
    async with served(FakeNode(partitions=names)) as (_, client):
        for partition in names:
            await fill(client, 1, partition=partition)
        async with client.subscribe("s", group="g") as subscription:
            got = [await subscription.__anext__() for _ in names]
            away, late, well = [subscription._consumer._memberships[each] for each in names]
            for delivery in got:
                await delivery.ack()
            away._end()
            late._late.lost += 3
            with pytest.raises(ConnectionLostError) as told:
                await subscription.flush(timeout_s=0.5)
            assert well._is_settled
            assert "to a/p0 are not confirmed" in told.value.message
            assert "3 acknowledgements to b/p0 came too late" in told.value.message
            assert "c/p0" not in told.value.message
            with pytest.raises(ConnectionLostError) as told:
                await subscription.flush(timeout_s=0.1)
            assert "b/p0" not in told.value.message, "it was told"


@both
async def test_flush_gives_up_in_time_and_leaving_does_not_wait_for_ever() -> None:
    async with served(request_timeout_s=0.2) as (node, client):
        await fill(client, 1)
        async with client.subscribe("s", group="g") as subscription:
            delivery = await subscription.__anext__()
            node.refuse_members = NotReadyError("a region is down")
            node.cut()
            await delivery.ack()
            with pytest.raises(ConnectionLostError, match="not confirmed in time: a region"):
                await subscription.flush()


@both
async def test_what_an_ack_deadline_took_away_is_not_handed_out_and_may_be_acked_late() -> None:
    async with served() as (node, client):
        await fill(client, 4)
        async with client.subscribe("s", group="g") as subscription:
            first = await subscription.__anext__()
            group = node.groups["s", "local/p0", "g"]
            (number,) = group.members[0].held
            group.members[0].revoke(number, 0, 2)
            await until(lambda: subscription._consumer._memberships["local/p0"].channel.has_revoked)  # type: ignore[union-attr]
            last = await subscription.__anext__()
            assert last.offset == 3
            await last.ack()
            await first.ack()
            await subscription.flush()
            assert group.floor == 1


@both
async def test_what_a_busy_program_was_not_handed_is_given_back_before_its_deadline() -> None:
    async with served() as (node, client):
        await fill(client, 8, batch=4)
        async with client.subscribe("s", group="g", ack_deadline_s=0.1) as subscription:
            first = await subscription.__anext__()
            await until(lambda: len(node.nacks) >= 2)
            told = [
                (each.unseen, each.ranges[0].first_offset, each.ranges[0].last_offset)
                for each in node.nacks[:2]
            ]
            assert told == [(True, 1, 3), (True, 4, 7)]
            await first.ack()
            for _ in range(7):
                delivery = await subscription.__anext__()
                assert delivery.attempt == 1
                await delivery.ack()
            await subscription.flush()
            assert node.groups["s", "local/p0", "g"].floor == 8


@both
async def test_an_ack_counts_for_the_same_record_that_lies_here_again() -> None:
    async with served() as (node, client):
        await fill(client, 4)
        async with client.subscribe("s", group="g") as subscription:
            first = await subscription.__anext__()
            group = node.groups["s", "local/p0", "g"]
            (number,) = group.members[0].held
            group.members[0].revoke(number, 0, 3)
            group.unheld.clear()
            group.again.append((0, 3, 2))
            group.pump()
            channel = first._parcel.channel
            await until(lambda: bool(channel.unread))
            await first.ack()
            await subscription.flush()
            assert group.floor == 1
            assert [(await subscription.__anext__()).offset for _ in range(3)] == [1, 2, 3]


@both
async def test_iterating_polling_and_batches_share_what_is_in_hand() -> None:
    async with served() as (_, client):
        await fill(client, 6)
        async with client.subscribe("s", group="g") as subscription:
            async for first in subscription:
                await first.ack()
                break
            batch = await subscription.poll_batch(2)
            assert batch is not None
            assert [record.offset for record in batch] == [1, 2, 3, 4, 5]
            await batch.ack()
            await subscription.flush()
            (group,) = await client.groups("s")
            assert group.floor == 6
            for wrong in (-1, "2"):
                with pytest.raises(RequestError, match=f"timeout_s {wrong!r} is"):
                    await subscription.poll(wrong)  # type: ignore[arg-type]
                with pytest.raises(RequestError, match=f"timeout_s {wrong!r} is"):
                    await subscription.flush(wrong)  # type: ignore[arg-type]


async def test_what_retention_took_from_a_group_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as (node, client):
        await fill(client, 1)
        for skipped in (0, 1909):
            async with client.subscribe("s", group="g"):
                group = node.groups["s", "local/p0", "g"]
                with anyio.fail_after(10):
                    await until(lambda skipped=skipped: bool(caplog.text) == bool(skipped))  # type: ignore[misc]
            group.skipped = 1909
    assert "group g has missed 1909 records of s/local/p0 so far: retention" in caplog.text


@both
async def test_batches_have_no_gaps_where_records_are_not_handed_out() -> None:
    async with served() as (node, client):
        await fill(client, 6)
        async with client.subscribe("s", group="g") as subscription:
            group = node.groups["s", "local/p0", "g"]
            await until(lambda: bool(subscription._consumer._parcels))
            (number,) = group.members[0].held
            group.members[0].revoke(number, 2, 3)
            await until(lambda: subscription._consumer._memberships["local/p0"].channel.has_revoked)  # type: ignore[union-attr]
            batches = subscription.batches()
            first, second = await batches.__anext__(), await batches.__anext__()
            assert [(each.first_offset, len(each)) for each in (first, second)] == [(0, 2), (4, 2)]
            await first.ack()
            await second.ack()
            await subscription.flush()
            assert (group.floor, group.acked) == (2, {4, 5})


@both
async def test_what_waits_behind_a_gap_may_be_given_to_others() -> None:
    async with served() as (node, client):
        await fill(client, 6)
        async with client.subscribe("s", group="g") as subscription:
            group = node.groups["s", "local/p0", "g"]
            consumer = subscription._consumer
            await until(lambda: bool(consumer._parcels))
            (number,) = group.members[0].held
            channel = consumer._memberships["local/p0"].channel
            assert channel is not None
            group.members[0].revoke(number, 2, 2)
            await until(lambda: channel.has_revoked)
            batches = subscription.batches()
            first = await batches.__anext__()
            assert [record.offset for record in first] == [0, 1]
            group.members[0].revoke(number, 4, 5)
            await until(lambda: consumer._parcels[0].count() == 1)
            second = await batches.__anext__()
            assert [record.offset for record in second] == [3]


async def test_what_was_acknowledged_is_forgotten_where_there_is_no_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hadron.client.consuming.consumer._NO_DEADLINE_S", 0.1)
    async with served() as (_, client):
        await fill(client, 6)
        async with client.subscribe("s", group="g") as subscription:
            for _ in range(6):
                await (await subscription.__anext__()).ack()
            await subscription.flush()
            channel = subscription._consumer._memberships["local/p0"].channel
            assert channel is not None
            await until(lambda: not channel.acks.touched)


@both
async def test_batches_have_the_size_asked_for_over_stored_batches() -> None:
    async with served() as (node, client):
        await fill(client, 100, batch=7)
        async with client.subscribe(
            "s", group="g", batch_size=30, batch_wait_s=0.01, max_in_flight=60
        ) as subscription:
            sizes: list[int] = []
            async for batch in subscription.batches():
                assert batch.first_offset == sum(sizes)
                assert [int(record.value) for record in batch.records] == list(
                    range(batch.first_offset, batch.first_offset + len(batch))
                )
                sizes.append(len(batch))
                await batch.ack()
                if sum(sizes) == 100:
                    break
            await subscription.flush()
        assert sizes == [30, 30, 30, 10]
        assert node.groups["s", "local/p0", "g"].floor == 100


@both
async def test_a_batch_larger_than_the_calls_window_arrives() -> None:
    async with served() as (_, client):
        async with client.producer("s") as producer:
            for _ in range(6):
                await producer.send(b"x" * 500_000)
        async with client.subscribe("s", group="g", batch_size=6) as subscription:
            batch = await subscription.batches().__anext__()
            assert len(batch) == 6
            await batch.extend()
            await batch.nack(reason="tired")
            again = await subscription.batches().__anext__()
            assert again.attempt == 2
            await again.ack()


@both
async def test_leaving_gives_back_unseen_what_nobody_has_looked_at() -> None:
    async with served() as (node, client):
        await fill(client, 10, batch=5)
        async with client.subscribe("s", group="g") as subscription:
            first = await subscription.__anext__()
            await first.nack(2.5, "not now")
            await until(lambda: len(subscription._consumer._parcels) == 1)
        await until(lambda: len(node.nacks) == 3)
        told = [
            (
                each.unseen,
                each.delay_ms,
                each.reason,
                each.ranges[0].first_offset,
                each.ranges[0].last_offset,
            )
            for each in node.nacks
        ]
        assert told == [(False, 2500, "not now", 0, 0), (True, 0, "", 1, 4), (True, 0, "", 5, 9)]


@both
async def test_what_was_on_its_way_to_a_member_that_pauses_goes_to_others() -> None:
    async with served() as (node, client), client.subscribe("s", group="g") as resting:
        (member,) = node.groups["s", "local/p0", "g"].members
        resting._consumer.give_back_unseen()
        await until(lambda: member.max_in_flight == 0)
        # A leader that had sent these before it heard of it.
        member.max_in_flight = 10
        await fill(client, 10, batch=5)
        await until(lambda: len(node.nacks) >= 2)
        member.max_in_flight = 0
        assert all(each.unseen for each in node.nacks)
        async with client.subscribe("s", group="g") as other:
            with anyio.fail_after(10):
                taken = [await other.__anext__() for _ in range(10)]
        assert sorted(each.offset for each in taken) == list(range(10))
        assert {each.attempt for each in taken} == {1}


@both
async def test_a_member_that_pauses_stays_paused_when_it_joins_again() -> None:
    async with served() as (node, client), client.subscribe("s", group="g") as resting:
        group = node.groups["s", "local/p0", "g"]
        (member,) = group.members
        resting._consumer.pause()
        await until(lambda: member.max_in_flight == 0)
        member.call.fail(PeerError("as if the leader had gone"))
        await until(lambda: any(each is not member for each in group.members))
        again = group.members[-1]
        await until(lambda: again.max_in_flight == 0)


@both
async def test_what_still_arrives_when_a_member_has_left_is_ignored() -> None:
    async with served() as (_, client):
        async with client.subscribe("s", group="g") as subscription:
            (membership,) = subscription._consumer._memberships.values()
        delivery = groups_pb2.SubscribeEvent.Delivery(delivery=1, attempt=1)
        membership.received(groups_pb2.SubscribeEvent(delivery=delivery), memoryview(b"x"))
        assert not subscription._consumer._parcels


@both
async def test_options_and_starts_reach_the_leader_and_refusals_the_user() -> None:
    async with served() as (node, client):
        start = datetime(2026, 1, 31, tzinfo=UTC)
        async with client.subscribe(
            "s",
            group="g",
            start="latest",
            order="key",
            ack_deadline_s=1.5,
            max_attempts=3,
            dead_letter="d",
            ephemeral=True,
            heartbeat_s=2,
            heartbeat_misses=4,
            member="m",
        ):
            pass
        opening = node.openings[0]
        options = opening.options
        assert (options.order, options.ack_deadline_ms, options.max_attempts) == (2, 1500, 3)
        assert (options.dead_letter_stream, options.ephemeral, opening.member) == ("d", True, "m")
        assert (opening.heartbeat_interval_ms, opening.heartbeat_threshold) == (2000, 4)
        assert opening.stream_id == node.objects["Stream", "s"].id
        node.refuse_members = RequestError("group 'g' has order 'none', it asks for 'strict'")
        with pytest.raises(RequestError, match=r"'none'.*'strict'"):
            async with client.subscribe("s", group="g", order="strict", start=start):
                pass
        assert node.openings[1].start == "@1769817600000"
        assert not node.openings[1].options.HasField("max_attempts")


@both
async def test_heartbeats_are_sent_and_a_silent_leader_is_left() -> None:
    ports = ClientPorts(clock=HandClock())
    async with (
        served(ports=ports) as (node, client),
        client.subscribe("s", group="g", heartbeat_s=0.01, heartbeat_misses=2) as subscription,
    ):
        await until(lambda: node.heartbeats > 5)
        assert len(node.openings) == 1
        node.answers_heartbeats = False
        await until(lambda: len(node.openings) > 1)
        node.answers_heartbeats = True
        await fill(client, 1)
        assert (await subscription.__anext__()).offset == 0


@pytest.mark.long
@both
async def test_a_member_that_stood_still_hands_out_nothing_that_others_may_have() -> None:
    """Its process was stopped: when it goes on, no task but the user's has had a turn yet."""
    clock = HandClock()
    async with served(ports=ClientPorts(clock=clock)) as (node, client):
        await fill(client, 30)
        async with client.subscribe("s", group="g", heartbeat_s=3, heartbeat_misses=2) as members:
            first, second = await members.__anext__(), await members.__anext__()
            assert (first.offset, second.offset) == (0, 1)
            clock.now_s += 5.9
            assert (await members.__anext__()).offset == 2
            clock.now_s += 0.2
            # The others of its batch, and those of the next batches, are at hand.
            late = await members.__anext__()
            assert len(node.openings) == 2, "it has joined again"
            assert (late.offset, late.attempt) == (0, 2)
            # Its other records came to this member again, and nobody else has it.
            await second.ack()
            await late.ack()
            assert (await members.__anext__()).offset == 2
            await members.flush()
            assert node.groups["s", "local/p0", "g"].floor == 2


@both
async def test_batches_of_a_member_that_stood_still_are_dropped_as_well() -> None:
    clock = HandClock()
    async with served(ports=ClientPorts(clock=clock)) as (node, client):
        await fill(client, 30)
        async with client.subscribe("s", group="g", heartbeat_s=1, heartbeat_misses=1) as members:
            batches = members.batches()
            assert (await batches.__anext__()).first_offset == 0
            clock.now_s += 1.1
            again = await batches.__anext__()
            assert (again.first_offset, again.attempt, len(node.openings)) == (0, 2, 2)


@both
async def test_who_has_promised_no_heartbeats_may_stand_still() -> None:
    clock = HandClock()
    async with served(ports=ClientPorts(clock=clock)) as (node, client):
        await fill(client, 3)
        async with client.subscribe("s", group="g", heartbeat_s=0) as members:
            assert (await members.__anext__()).offset == 0
            clock.now_s += 1e6
            assert (await members.__anext__()).offset == 1
            assert len(node.openings) == 1


@both
async def test_everybody_who_waits_hears_that_an_acknowledgement_was_refused() -> None:
    """m2 stands still, m0 is given its record, m2 goes on and acknowledges it: two of its tasks
    wait for that."""
    async with served() as (node, client), anyio.create_task_group() as tasks:
        await fill(client, 2, batch=1)
        async with (
            client.subscribe("s", group="g", max_in_flight=1) as m0,
            client.subscribe("s", group="g", max_in_flight=1) as m2,
        ):
            mine, theirs = await m0.__anext__(), await m2.__anext__()
            group = node.groups["s", "local/p0", "g"]
            node.refuse_members = NotReadyError("not now")
            frozen = group.members[1]
            frozen.call.fail(DeadlineExceededError("m2 sent nothing for 4 s"))
            frozen.ended(None)
            await mine.ack()
            again = await m0.__anext__()
            assert (again.offset, again.attempt) == (theirs.offset, 2)
            await theirs.ack()
            outcomes = [await start(tasks, m2.flush) for _ in range(3)]
            await anyio.sleep(0.01)
            node.refuse_members = None
            await until(lambda: all(outcomes))
            for (outcome,) in outcomes:
                assert isinstance(outcome, ConnectionLostError)
                assert "came too late" in outcome.message
            await m2.flush()
            await again.ack()
            await m0.flush()
            assert group.floor == 2


@both
async def test_what_was_in_doubt_at_a_reset_is_not_confirmed() -> None:
    async with served() as (node, client):
        await fill(client, 2)
        async with client.subscribe("s", group="g") as subscription:
            delivery = await subscription.__anext__()
            group = node.groups["s", "local/p0", "g"]
            group.members[0].call.fail(NotReadyError("the group is being reset"))
            await delivery.ack()
            with pytest.raises(ConnectionLostError, match="the group was reset"):
                await subscription.flush()
            assert group.floor == 0
            await subscription.flush()


@both
async def test_an_ephemeral_member_says_how_far_it_had_got() -> None:
    async with served() as (node, client):
        await fill(client, 3)
        async with client.subscribe("s", group="g", ephemeral=True) as subscription:
            for _ in range(2):
                await (await subscription.__anext__()).ack()
            await subscription.flush()
            node.cut()
            await until(lambda: len(node.openings) == 2)
            assert node.openings[1].resume_offset == 2


@both
async def test_partitions_that_are_added_are_joined_from_their_beginning() -> None:
    node = FakeNode(partitions=("a", "b"))
    entry = node.objects["Stream", "s"]
    both_spec = entry.spec_json
    entry.spec_json = spec_to_json(StreamSpec(partitions=("a",))).decode()
    async with (
        served(node) as (_, client),
        client.subscribe("s", group="g", start="latest") as subscription,
    ):
        assert list(subscription._consumer._memberships) == ["a"]
        entry.spec_json = both_spec
        client._catalog.forget("s")
        await fill(client, 1, partition="b")
        subscription._consumer._schema_changed()
        delivery = await subscription.__anext__()
        assert (delivery.partition, delivery.offset) == ("b", 0)


@both
async def test_who_leaves_is_told_nothing_of_added_partitions() -> None:
    """The stream has changed, and the client is closed while it is looked up again."""
    told: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "hadron.client.consuming.consumer._log.warning", lambda *word: told.append(word)
        )
        async with served() as (_, client), client.subscribe("s", group="g") as subscription:
            asked = anyio.Event()

            async def stream(_name: str) -> SchemaObject:
                asked.set()
                raise ClosedError("the client is closed")

            patch.setattr(client._catalog, "stream", stream)
            subscription._consumer._schema_changed()
            await asked.wait()
    assert not told


@both
async def test_one_group_shares_the_work_and_partitions_can_be_chosen() -> None:
    node = FakeNode(partitions=("a", "b"))
    async with served(node) as (_, client):
        await fill(client, 20, partition="a")
        await fill(client, 20, partition="b")
        async with client.subscribe("s", group="g") as subscription:
            seen = set()
            async for delivery in subscription:
                seen.add((delivery.partition, delivery.offset))
                await delivery.ack()
                if len(seen) == 40:
                    break
        async with client.subscribe("s", group="h", partitions=["b"]) as subscription:
            assert (await subscription.__anext__()).partition == "b"
        assert ("s", "a", "h") not in node.groups


@both
async def test_bad_arguments_and_names_are_named() -> None:
    async with served() as (_, client):
        with pytest.raises(RequestError, match="group"):
            client.subscribe("s", group="")
        with pytest.raises(RequestError, match="'now'"):
            client.subscribe("s", group="g", start="now")  # type: ignore[arg-type]
        with pytest.raises(RequestError, match="max_in_flight 0"):
            client.subscribe("s", group="g", max_in_flight=0)
        with pytest.raises(RequestError, match="member 5 is of type int"):
            client.subscribe("s", group="g", member=5)  # type: ignore[arg-type]
        for name in ("group", "member", "dead_letter"):
            with pytest.raises(RequestError, match=f"{name} is not valid Unicode"):
                client.subscribe("s", **{"group": "g", name: "a\ud800"})  # type: ignore[arg-type]
        with pytest.raises(RequestError, match="heartbeat_misses 0"):
            client.subscribe("s", group="g", heartbeat_misses=0)
        with pytest.raises(RequestError, match="time zone"):
            client.subscribe("s", group="g", start=datetime(2026, 1, 1))
        with pytest.raises(RequestError, match="'random'"):
            client.subscribe("s", group="g", order="random")  # type: ignore[arg-type]
        with pytest.raises(NotFoundError):
            async with client.subscribe("nope", group="g"):
                pass
        with pytest.raises(NotFoundError):
            async with client.subscribe("s", group="g", partitions=["nope"]):
                pass
        with pytest.raises(RequestError, match="no partition"):
            async with client.subscribe("s", group="g", partitions=[]):
                pass


@both
async def test_a_lasting_refusal_ends_the_iteration() -> None:
    async with served() as (node, client):
        await fill(client, 1)
        async with client.subscribe("s", group="g") as subscription:
            await subscription.__anext__()
            node.objects.pop(("Stream", "s"))
            node.cut()
            with pytest.raises(NotFoundError):
                await subscription.__anext__()


@both
async def test_a_group_that_cannot_be_joined_says_why() -> None:
    node = FakeNode()
    async with served(node, request_timeout_s=0.2) as (_, client):
        await client.stream("s")
        node.handlers = lambda: {}  # type: ignore[method-assign]
        node.cut()
        with pytest.raises((PeerError, RequestError)):
            async with client.subscribe("s", group="g"):
                pass


@both
async def test_cancelling_a_waiting_member_leaves_the_client_usable() -> None:
    async with served() as (node, client):
        async with client.subscribe("s", group="g") as subscription:
            with anyio.move_on_after(0.02) as scope:
                await subscription.__anext__()
            assert scope.cancelled_caught
            await fill(client, 1)
            assert (await subscription.__anext__()).offset == 0
        await until(lambda: not node.groups["s", "local/p0", "g"].members)
