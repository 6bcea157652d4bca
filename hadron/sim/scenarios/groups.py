"""PROTOCOL D2: what a group's members may count on, whoever leads and whoever comes late."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import trio

from hadron.client.consuming.deliveries import Delivery
from hadron.client.consuming.subscription import Subscription
from hadron.fakes.disk import SLOW
from hadron.model.errors import ConnectionLostError
from hadron.model.record import NewRecord
from hadron.model.schema import Retention, SchemaObject, StreamSpec
from hadron.sim.actors.clients import STREAM, text
from hadron.sim.actors.group_plans import LETTERS, GroupPlan
from hadron.sim.actors.members import DrainingMember
from hadron.sim.evidence.history import Settle
from hadron.sim.scenarios.play import Play, scenario
from hadron.sim.scenarios.promises import OS

_ALL: Final = ("n1", "n2", "n3")
_PLAN: Final = GroupPlan("g")


@dataclass
class _Member:
    """A member that does what it is told, and notes it."""

    play: Play
    host: str
    plan: GroupPlan
    subscription: Subscription
    taken: dict[int, Delivery] = field(default_factory=dict)
    sent: list[Settle] = field(default_factory=list)

    async def take(self, *offsets: int) -> None:
        """Wait for these records."""
        history, partition = self.play.history, self.play.world.config.name
        with trio.fail_after(30.0):
            while not self.taken.keys() >= set(offsets):
                record = await anext(self.subscription)
                self.taken[record.offset] = record
                history.deliver(
                    self.host,
                    self.plan.name,
                    self.host,
                    STREAM,
                    partition,
                    record.offset,
                    [text(record.value)],
                    attempt=record.attempt,
                )

    async def give_all_back(self) -> None:
        """Whatever comes, as fast as it comes."""
        history, partition = self.play.history, self.play.world.config.name
        async for record in self.subscription:
            self.taken[record.offset] = record
            history.deliver(
                self.host,
                self.plan.name,
                self.host,
                STREAM,
                partition,
                record.offset,
                [text(record.value)],
                attempt=record.attempt,
            )
            await self.nack(record.offset)

    async def ack(self, *offsets: int) -> None:
        for offset in offsets:
            self.sent.append(self._settle(offset, "ack"))
            await self.taken[offset].ack()

    async def nack(self, *offsets: int, delay_s: float | None = None) -> None:
        for offset in offsets:
            self._settle(offset, "nack")
            await self.taken[offset].nack(delay_s)

    def _settle(self, offset: int, how: str) -> Settle:
        return self.play.history.settle(
            self.host,
            self.plan.name,
            self.host,
            STREAM,
            self.play.world.config.name,
            [(offset, offset)],
            how="ack" if how == "ack" else "nack",
        )

    async def confirm(self, sent: list[Settle] | None = None) -> bool:
        """Whether all acknowledgements counted, or these."""
        if sent is None:
            sent, self.sent = self.sent, []
        try:
            await self.subscription.flush(20.0)
        except ConnectionLostError as error:
            for settle in sent:
                self.play.history.unknown(settle, error)
            return False
        for settle in sent:
            self.play.history.ok(settle)
        return True


@asynccontextmanager
async def _member(
    play: Play,
    host: str,
    plan: GroupPlan = _PLAN,
    *,
    max_in_flight: int = 10,
    heartbeat_s: float = 0.0,
) -> AsyncIterator[_Member]:
    now_ms = play.world.clocks["n1"].now_ms()
    async with (
        play.world.client(host) as client,
        client.subscribe(
            STREAM,
            max_in_flight=max_in_flight,
            member=host,
            heartbeat_s=heartbeat_s,
            **plan.options(now_ms),
        ) as subscription,
    ):
        try:
            yield _Member(play, host, plan, subscription)
        finally:
            play.history.event("leaving", host)


async def _drain(play: Play, plan: GroupPlan = _PLAN, *, host: str = "d0") -> None:
    """Acknowledge what is left, for no longer than a minute."""
    play.history.event("draining", plan.name)
    with trio.move_on_after(60.0):
        seed = f"{play.world.seed}/{host}"
        await DrainingMember(play.world, play.history, host, seed, plan).run()


async def _fill(play: Play, count: int) -> None:
    """As many records, each in a batch of its own."""
    for _ in range(count):
        await play.fill(1)


@scenario("D2: a member that gives everything back keeps no record from the others")
async def member_that_gives_everything_back(play: Play) -> None:
    """g0 can use nothing, and says so at once, again and again; it is left to rest, and what it is
    still tried with goes to g1, which can use everything, after a delay."""
    await play.fill(60)
    async with _member(play, "g0", max_in_flight=60) as broken, trio.open_nursery() as nursery:
        nursery.start_soon(broken.give_all_back)
        await trio.sleep(0.5)
        async with _member(play, "g1", max_in_flight=200) as other:
            await other.take(*range(60))
            await other.ack(*range(60))
            assert await other.confirm()
        nursery.cancel_scope.cancel()
    nacks = [entry for entry in play.history.entries if isinstance(entry, Settle)]
    assert len([entry for entry in nacks if entry.how == "nack"]) < 150
    await _drain(play)


@scenario("D2: everybody who waits hears that an acknowledgement was refused")
async def refusal_that_two_wait_for(play: Play) -> None:
    """g0 stands still with a record that nobody has looked at, and g1 is given it. Then g0 goes on
    and acknowledges it, and two of its tasks wait for that: neither may take it for acknowledged,
    while g1 works on it."""
    world = play.world
    await _fill(play, 1)
    async with _member(play, "g0", heartbeat_s=0.2) as frozen, _member(play, "g1") as other:
        await frozen.take(0)
        world.network.isolate("g0", *world.names)
        await other.take(0)
        waits: list[list[Settle]] = []
        for _ in range(2):
            await frozen.ack(0)
            waits.append(frozen.sent)
            frozen.sent = []
        counted: list[bool] = []

        async def confirm(sent: list[Settle]) -> None:
            counted.append(await frozen.confirm(sent))

        async with trio.open_nursery() as nursery:
            for sent in waits:
                nursery.start_soon(confirm, sent)
            await trio.sleep(0.1)
            for name in world.names:
                world.network.heal("g0", name)
        assert len(counted) == 2
        await other.ack(0)
        assert await other.confirm()
    await _drain(play)


@scenario("D2: a machine that was suspended hands out nothing that others may have by now")
async def member_whose_machine_was_suspended(play: Play) -> None:
    """g0 has looked at the first of the records that it holds when its machine is suspended, for
    longer than it has promised to be heard of. Awake again, it joins anew before it goes on, and
    what it is given then may be given to it."""
    await _fill(play, 4)
    async with _member(play, "g0", heartbeat_s=0.2) as member:
        await member.take(0)
        play.world.client_clocks["g0"].suspended_s += 5.0
        await member.take(1, 2, 3)
        await member.ack(1, 2, 3)
        await member.confirm()
    await _drain(play)


@scenario("D2: who joins while a group is reset begins where it is reset to")
async def member_that_joins_during_a_reset(play: Play) -> None:
    """All is acknowledged. Then n1 reaches nobody, and has an entry that nobody else has; members
    want to join, somebody resets the group, and all of them wait for that entry. Once it is
    committed they go on, in any order; every record must be given once more, although no new one
    comes."""
    world, history = play.world, play.history
    await _fill(play, 3)
    async with _member(play, "g0") as member:
        await member.take(0, 1, 2)
        await member.ack(0, 1, 2)
        await member.confirm()
    play.part("n1")
    await play.produce(play.value(), timeout_s=0.3)

    async def join(host: str) -> None:
        async with _member(play, host):
            await trio.sleep_forever()

    async def heal() -> None:
        await trio.sleep(0.2)
        play.join("n1")

    async with trio.open_nursery() as nursery, world.client("o0") as client:
        for number in range(1, 6):
            nursery.start_soon(join, f"g{number}")
        await trio.sleep(0.2)
        nursery.start_soon(heal)
        noted = history.regroup("o0", "g", STREAM, world.config.name, "reset", "earliest")
        await client.reset_group(STREAM, "g", "earliest", force=True)
        history.ok(noted)
        await trio.sleep(1.0)
        nursery.cancel_scope.cancel()
    await _drain(play)


@scenario("D2: the next leader gives out every record that nobody has acknowledged")
async def gaps_in_a_groups_progress_after_a_failover(play: Play) -> None:
    """A member acknowledges the middle ones of the records that it holds; n1 is killed, then n2
    takes over. What lies before and between must be given to the next member, and the floor stays
    where it is until that is acknowledged."""
    world = play.world
    await _fill(play, 8)
    async with _member(play, "g0") as member:
        await member.take(*range(8))
        await member.ack(2, 3, 5)
        assert await member.confirm()
    await world.crash("n1", power=True)
    await world.start("n1")
    await world.wait_serving()
    async with _member(play, "g1") as member:
        await member.take(0, 1, 4)
        await member.ack(0)
        assert await member.confirm()
    await play.promote("n2", _ALL, *_ALL)
    await _drain(play)


@scenario("D2: a late acknowledgement counts for nothing that another member holds")
async def acknowledgement_after_the_deadline(play: Play) -> None:
    """A member lets its deadline pass, and another one gets its records. Then it acknowledges them:
    too late, and it is told so. The other one dies; a third must be given them."""
    plan = GroupPlan("g", ack_deadline_s=1.0)
    await _fill(play, 3)
    async with _member(play, "g0", plan) as slow:
        await slow.take(0, 1, 2)
        async with _member(play, "g1", plan) as other:
            await other.take(0, 1, 2)
            await slow.ack(0, 1, 2)
            await slow.confirm()
            play.world.network.kill("g1")
    await _drain(play, plan)


@scenario("D2: a member hears that its acknowledgement came too late, whenever it asks")
async def acknowledgement_held_back_by_the_network(play: Play) -> None:
    """A member acknowledges at once, but the network holds that back until its deadline has passed
    and another one has the records. It asks only later whether everything counted: it must be told
    that nothing did, for the other one dies, and a third is given the records."""
    plan = GroupPlan("g", ack_deadline_s=1.0)
    await _fill(play, 3)
    async with _member(play, "g0", plan) as one:
        await one.take(0, 1, 2)
        play.world.network.cut_one_way("g0", "n1")
        await one.ack(0, 1, 2)
        async with _member(play, "g1", plan) as other:
            await other.take(0, 1, 2)
            play.world.network.heal("g0", "n1")
            await trio.sleep(0.1)
            assert not await one.confirm()
            play.world.network.kill("g1")
    await _drain(play, plan)


@scenario("D2: an acknowledgement from before a reset counts for nothing")
async def acknowledgement_from_before_a_reset(play: Play) -> None:
    """A member acknowledges while it is cut off, and loses its connection; meanwhile the group is
    reset. The member joins again and says what it had acknowledged: every record must be given once
    more all the same."""
    await _come_back_after(play, "reset")


@scenario("D2: an acknowledgement from before a group was deleted counts for nothing")
async def acknowledgement_from_before_a_deletion(play: Play) -> None:
    """The same with a group that is deleted: another one of that name knows nothing."""
    await _come_back_after(play, "delete")


@scenario("D2: a reset gives every record again, also to who has acknowledged it and lost touch")
async def acknowledgement_from_before_a_failover_and_a_reset(play: Play) -> None:
    """The same, and n1 is killed before the reset: the member was given its records under another
    ballot than it is now. It must be given all of them once more, and look at each."""
    await _come_back_after(play, "reset", failover=True, max_in_flight=20)


async def _come_back_after(
    play: Play, what: str, *, failover: bool = False, max_in_flight: int = 3
) -> None:
    world, partition = play.world, play.world.config.name
    await _fill(play, 9)
    async with _member(play, "g0", max_in_flight=max_in_flight) as member:
        await member.take(0, 1, 2)
        await member.ack(0, 1, 2)
        assert await member.confirm()
        await member.take(3, 4, 5)
        _cut_off(play, "g0")
        await member.ack(3, 4, 5)
        await trio.sleep(0.1)
        world.network.break_connections("g0", lose_all=True)
        if failover:
            await world.crash("n1", power=True)
            await world.start("n1")
            await world.wait_serving()
        async with world.client("o0") as client:
            if what == "reset":
                noted = play.history.regroup("o0", "g", STREAM, partition, "reset", "earliest")
                await client.reset_group(STREAM, "g", "earliest", force=True)
            else:
                noted = play.history.regroup("o0", "g", STREAM, partition, "delete")
                await client.delete_group(STREAM, "g", force=True)
            play.history.ok(noted)
        for name in world.names:
            world.network.heal("g0", name)
        if failover:
            # All were given to it at once: with the last one, those before have come as well.
            member.taken.clear()
            await member.take(8)
        await member.confirm()
    await _drain(play)


def _cut_off(play: Play, host: str) -> None:
    play.world.network.isolate(host, *play.world.names)


@scenario("D2: the order by key outlives members and leaders")
async def keys_in_order_over_a_failover(play: Play) -> None:
    """Records of three keys, taken by two members, some acknowledged, some given back, some not
    answered; n1 is killed, and n2 takes over: of each key the next one comes only after the one
    before is settled."""
    plan = GroupPlan("g", order="key", ack_deadline_s=2.0)
    await _publish_keys(play, ["a", "b", "a", "c", "a", "b", "a", "c", "b"])
    async with _member(play, "g0", plan, max_in_flight=3) as one:
        await one.take(0, 1, 3)
        async with _member(play, "g1", plan) as two:
            await one.nack(0)
            await one.ack(1)
            await one.confirm()
            await two.take(0)
            await two.ack(0)
            await two.confirm()
    await play.world.crash("n1", power=True)
    await play.world.start("n1")
    await play.world.wait_serving()
    async with _member(play, "g2", plan) as three:
        await three.take(2, 3, 5)
        await three.ack(5)
        await three.confirm()
    await play.promote("n2", _ALL, *_ALL)
    await _drain(play, plan)


async def _publish_keys(play: Play, keys: Sequence[str], size: int = 100) -> None:
    for key in keys:
        value = play.value(size)
        noted = play.history.publish("c7", "", STREAM, play.world.config.name, [value])
        async with play.world.client("c7") as client, client.producer(STREAM) as producer:
            receipt = await producer.send(NewRecord(value=value, key=key))
        noted.runs = [(receipt.offset, 1)]
        play.history.ok(noted)


@scenario("D2: what nobody can use becomes one dead letter")
async def dead_letter_of_a_record_given_back_twice(play: Play) -> None:
    """A record is given back once, n1 is killed, and it is given back again: that was its last
    attempt. It must be among the dead letters once, and in the way of nobody."""
    plan = GroupPlan("g", max_attempts=2)
    await _fill(play, 3)
    async with _member(play, "g0", plan) as member:
        await member.take(0, 1, 2)
        await member.nack(1)
        await member.ack(0)
        await member.confirm()
    await play.world.crash("n1", power=True)
    await play.world.start("n1")
    await play.world.wait_serving()
    async with _member(play, "g1", plan) as member:
        await member.take(1, 2)
        await member.nack(1)
        await member.ack(2)
        await member.confirm()
    await _drain(play, plan)


@scenario("D2: of what nobody can use, that was acknowledged after all which was, and no more")
async def dead_letters_of_which_one_is_acknowledged(play: Play) -> None:
    """Six records that are one batch are given back for the last time. The third of them is
    acknowledged in the log, and who serves the group does not know: the other five must be letters,
    whatever is said of the six."""
    plan = GroupPlan("g", max_attempts=1)
    await play.publish(*(f"letter {number}" for number in range(6)))
    async with _member(play, "g0", plan) as member:
        await member.take(*range(6))
        member.sent.append(member._settle(2, "ack"))
        await play.acknowledge("g", 2)
        await member.nack(0, 1, 2, 3, 4, 5)
        await member.confirm()
        await play.world.wait_for("letters", lambda: play.dead_letters("g") == 5)
    await _drain(play, plan)


@scenario("D2: a record whose dead letter cannot be written stands in nobody's way")
async def dead_letter_without_a_stream(play: Play) -> None:
    """A group in strict order gives a record back, for the last time, and the stream of its dead
    letters is gone. The record must be delivered again, until somebody can use it, and then those
    that follow it."""
    plan = GroupPlan("g", order="strict", max_attempts=1)
    await _fill(play, 3)
    async with _member(play, "g0", plan) as member:
        await member.take(0)
        await _delete_letters(play)
        await member.nack(0)
        member.taken.clear()
        await member.take(0)
        await member.ack(0)
        for offset in (1, 2):
            await member.take(offset)
            await member.ack(offset)
        await member.confirm()
    await _drain(play, GroupPlan("g"))


@scenario("D2: what is among the dead letters is delivered no more")
async def dead_letters_that_are_written_in_part(play: Play) -> None:
    """A member can use none of many records, which become dead letters one after the other, when
    the leader's disk has less room than it keeps in reserve: some are written by then, the others
    cannot be, and are delivered again. Those that are written must not be."""
    world = play.world
    plan = GroupPlan("g", max_attempts=1)
    await _fill(play, 80)
    disk, reserve = world.disks["n1"], world.config.settings.disk_reserve_bytes
    disk.speed = SLOW
    async with _member(play, "g0", plan, max_in_flight=400) as member:
        await member.take(*range(80))
        await member.nack(*range(80))
        with trio.fail_after(30.0):
            while not await _letters(play):  # noqa: ASYNC110
                await trio.sleep(0.05)
        disk.broken.capacity_bytes = disk.volume.used_bytes() + reserve // 2
        member.taken.clear()
        await member.take(79)
        disk.heal()
        await member.ack(*member.taken)
        await member.confirm()
    await _drain(play, plan)


async def _letters(play: Play) -> int:
    """How many there are."""
    async with play.world.client("o0") as client:
        (known,) = await client.offsets(LETTERS)
    return known.next_offset


@scenario("D2: a key is free once retention has dropped its record")
async def key_of_a_record_that_retention_drops(play: Play) -> None:
    """A member gives back a record of key a, with a delay, and retention drops it before it comes
    again. Others of that key stand in line behind it, and must have their turn."""
    plan = GroupPlan("g", order="key")
    await _publish_keys(play, ["a"], size=5_000)
    await _publish_keys(play, ["b", "a", "b"])
    async with _member(play, "g0", plan, heartbeat_s=0.3) as member:
        await member.take(0, 1)
        await member.nack(0, delay_s=60.0)
        await member.ack(1)
        await member.take(3)
        await member.ack(3)
        await member.confirm()
        await _keep(play, Retention(max_bytes=2_000))
        await member.take(2)
        await member.ack(2)
        await member.confirm()
    await _drain(play, plan)


@scenario("D2: a key is free once retention has dropped its record on its way to the dead letters")
async def key_of_a_dead_letter_that_retention_drops(play: Play) -> None:
    """Three records of three keys stand together on their way to the dead letters, whose stream is
    gone; n1 reaches nobody, so that this waits. Meanwhile the first one gets too old, and another
    record comes: all three are refused when the group has just passed over the first. What has its
    key must have its turn."""
    world = play.world
    plan = GroupPlan("g", order="key", max_attempts=1)
    await _keep(play, Retention(max_age_ms=4_000))
    await _publish_keys(play, ["a"])
    await trio.sleep(2.5)
    for key in ("b", "c", "a"):
        await _publish_keys(play, [key])
    async with _member(play, "g0", plan) as member, _member(play, "g1", GroupPlan("g")) as other:
        await member.take(0, 1, 2)
        await _delete_letters(play)
        play.part("n1")
        # On a slow replica the first of these is a commit of its own, and all that follows is one.
        for name in ("n2", "n3"):
            world.disks[name].speed = SLOW
        for _ in range(2):
            await play.produce(play.value(), timeout_s=0.1)
        world.network.kill("g0")
        await world.wait_for("retention", lambda: play.first_offset("n1") > 0)
        await play.produce(play.value(), timeout_s=0.1)
        play.join("n1")
        await _keep(play, Retention())
        await other.take(1, 2, 3)
        await other.ack(1, 2, 3)
        await other.confirm()
    await _drain(play, GroupPlan("g"))


async def _keep(play: Play, limits: Retention) -> None:
    """Declare how much of the stream is kept."""
    play.retention = limits if limits != Retention() else play.retention
    spec = StreamSpec(partitions=(play.world.config.name,), retention=limits)
    async with play.world.client("o0") as client:
        await client.apply(
            [SchemaObject(kind="Stream", name=STREAM, spec=spec)], allow_destructive=True
        )


async def _delete_letters(play: Play) -> None:
    """The stream of dead letters is gone."""
    noted = play.history.apply("o0", [("Stream", LETTERS)], deletes=True)
    async with play.world.client("o0") as client:
        await client.delete([("Stream", "default", LETTERS)], allow_destructive=True)
    play.history.ok(noted)


@scenario("D2: who has dealt with a record acknowledges no other at its offset", settings=OS)
async def other_records_at_offsets_that_were_dealt_with(play: Play) -> None:
    """A member has dealt with records that all disks lose in a power failure, and its
    acknowledgements are in doubt; an operator takes the disks as they are, and others are written
    at those offsets. The member has not seen these, and must be given each."""
    world = play.world
    await _fill(play, 3)
    async with _member(play, "g0", max_in_flight=50) as member:
        await member.take(0, 1, 2)
        await member.ack(0, 1, 2)
        assert await member.confirm()
        await world.wait_in_step()
        await world.stop()
        await world.start()
        await world.wait_serving()
        await _fill(play, 5)
        await member.take(*range(8))
        await world.crash(power=True, style="dropped")
        await member.ack(*range(3, 8))
        lost, member.taken = member.taken, {}
        await play.recover()
        await _fill(play, 8)
        await member.take(*range(3, 11))
        if member.taken[3].value == lost[3].value:
            raise AssertionError("what the member had dealt with was not lost")
        await member.ack(*range(3, 11))
        await member.confirm()
    await _drain(play)
