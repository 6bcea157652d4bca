"""PROTOCOL D2: what a group's members may count on, whoever leads and whoever comes late."""

from __future__ import annotations

from typing import Final

import trio

from hadron.sim.actors.clients import STREAM
from hadron.sim.actors.group_plans import GroupPlan
from hadron.sim.evidence.history import Settle
from hadron.sim.scenarios.group_play import drain, fill_one_by_one, join_group, publish_keys
from hadron.sim.scenarios.play import Play, scenario
from hadron.sim.scenarios.promises import OS

_ALL: Final = ("n1", "n2", "n3")


@scenario("D2: a member that gives everything back keeps no record from the others")
async def member_that_gives_everything_back(play: Play) -> None:
    """g0 can use nothing, and says so at once, again and again; it is left to rest, and what it is
    still tried with goes to g1, which can use everything, after a delay."""
    await play.fill(60)
    async with join_group(play, "g0", max_in_flight=60) as broken, trio.open_nursery() as nursery:
        nursery.start_soon(broken.give_all_back)
        await trio.sleep(0.5)
        async with join_group(play, "g1", max_in_flight=200) as other:
            await other.take(*range(60))
            await other.ack(*range(60))
            assert await other.confirm()
        nursery.cancel_scope.cancel()
    nacks = [entry for entry in play.history.entries if isinstance(entry, Settle)]
    assert len([entry for entry in nacks if entry.how == "nack"]) < 150
    await drain(play)


@scenario("D2: everybody who waits hears that an acknowledgement was refused")
async def refusal_that_two_wait_for(play: Play) -> None:
    """g0 stands still with a record that nobody has looked at, and g1 is given it. Then g0 goes on
    and acknowledges it, and two of its tasks wait for that: neither may take it for acknowledged,
    while g1 works on it."""
    world = play.world
    await fill_one_by_one(play, 1)
    async with join_group(play, "g0", heartbeat_s=0.2) as frozen, join_group(play, "g1") as other:
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
    await drain(play)


@scenario("D2: a machine that was suspended hands out nothing that others may have by now")
async def member_whose_machine_was_suspended(play: Play) -> None:
    """g0 has looked at the first of the records that it holds when its machine is suspended, for
    longer than it has promised to be heard of. Awake again, it joins anew before it goes on, and
    what it is given then may be given to it."""
    await fill_one_by_one(play, 4)
    async with join_group(play, "g0", heartbeat_s=0.2) as member:
        await member.take(0)
        play.world.client_clocks["g0"].suspended_s += 5.0
        await member.take(1, 2, 3)
        await member.ack(1, 2, 3)
        await member.confirm()
    await drain(play)


@scenario("D2: who joins while a group is reset begins where it is reset to")
async def member_that_joins_during_a_reset(play: Play) -> None:
    """All is acknowledged. Then n1 reaches nobody, and has an entry that nobody else has; members
    want to join, somebody resets the group, and all of them wait for that entry. Once it is
    committed they go on, in any order; every record must be given once more, although no new one
    comes."""
    world, history = play.world, play.history
    await fill_one_by_one(play, 3)
    async with join_group(play, "g0") as member:
        await member.take(0, 1, 2)
        await member.ack(0, 1, 2)
        await member.confirm()
    play.part("n1")
    await play.produce(play.value(), timeout_s=0.3)

    async def join(host: str) -> None:
        async with join_group(play, host):
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
    await drain(play)


@scenario("D2: the next leader gives out every record that nobody has acknowledged")
async def gaps_in_a_groups_progress_after_a_failover(play: Play) -> None:
    """A member acknowledges the middle ones of the records that it holds; n1 is killed, then n2
    takes over. What lies before and between must be given to the next member, and the floor stays
    where it is until that is acknowledged."""
    world = play.world
    await fill_one_by_one(play, 8)
    async with join_group(play, "g0") as member:
        await member.take(*range(8))
        await member.ack(2, 3, 5)
        assert await member.confirm()
    await world.crash("n1", power=True)
    await world.start("n1")
    await world.wait_serving()
    async with join_group(play, "g1") as member:
        await member.take(0, 1, 4)
        await member.ack(0)
        assert await member.confirm()
    await play.promote("n2", _ALL, *_ALL)
    await drain(play)


@scenario("D2: a late acknowledgement counts for nothing that another member holds")
async def acknowledgement_after_the_deadline(play: Play) -> None:
    """A member lets its deadline pass, and another one gets its records. Then it acknowledges them:
    too late, and it is told so. The other one dies; a third must be given them."""
    plan = GroupPlan("g", ack_deadline_s=1.0)
    await fill_one_by_one(play, 3)
    async with join_group(play, "g0", plan) as slow:
        await slow.take(0, 1, 2)
        async with join_group(play, "g1", plan) as other:
            await other.take(0, 1, 2)
            await slow.ack(0, 1, 2)
            await slow.confirm()
            play.world.network.kill("g1")
    await drain(play, plan)


@scenario("D2: a member hears that its acknowledgement came too late, whenever it asks")
async def acknowledgement_held_back_by_the_network(play: Play) -> None:
    """A member acknowledges at once, but the network holds that back until its deadline has passed
    and another one has the records. It asks only later whether everything counted: it must be told
    that nothing did, for the other one dies, and a third is given the records."""
    plan = GroupPlan("g", ack_deadline_s=1.0)
    await fill_one_by_one(play, 3)
    async with join_group(play, "g0", plan) as one:
        await one.take(0, 1, 2)
        play.world.network.cut_one_way("g0", "n1")
        await one.ack(0, 1, 2)
        async with join_group(play, "g1", plan) as other:
            await other.take(0, 1, 2)
            play.world.network.heal("g0", "n1")
            await trio.sleep(0.1)
            assert not await one.confirm()
            play.world.network.kill("g1")
    await drain(play, plan)


@scenario("D2: a confirmation is of what a lost call took along, too")
async def acknowledgements_that_a_lost_call_took_along(play: Play) -> None:
    """A member acknowledges what its connection loses with itself, so that no leader has heard of
    it. The member joins again and asks whether all counts: that is so when it is in the tables."""
    await fill_one_by_one(play, 3)
    async with join_group(play, "g0") as member:
        await member.take(0, 1, 2)
        _cut_off(play, "g0")
        await member.ack(0, 1, 2)
        await trio.sleep(0.1)
        play.world.network.break_connections("g0", lose_all=True)
        for name in play.world.names:
            play.world.network.heal("g0", name)
        await trio.sleep(1.0)
        assert await member.confirm()
    await drain(play)


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
    await fill_one_by_one(play, 9)
    async with join_group(play, "g0", max_in_flight=max_in_flight) as member:
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
    await drain(play)


def _cut_off(play: Play, host: str) -> None:
    play.world.network.isolate(host, *play.world.names)


@scenario("D2: the order by key outlives members and leaders")
async def keys_in_order_over_a_failover(play: Play) -> None:
    """Records of three keys, taken by two members, some acknowledged, some given back, some not
    answered; n1 is killed, and n2 takes over: of each key the next one comes only after the one
    before is settled."""
    plan = GroupPlan("g", order="key", ack_deadline_s=2.0)
    await publish_keys(play, ["a", "b", "a", "c", "a", "b", "a", "c", "b"])
    async with join_group(play, "g0", plan, max_in_flight=3) as one:
        await one.take(0, 1, 3)
        async with join_group(play, "g1", plan) as two:
            await one.nack(0)
            await one.ack(1)
            await one.confirm()
            await two.take(0)
            await two.ack(0)
            await two.confirm()
    await play.world.crash("n1", power=True)
    await play.world.start("n1")
    await play.world.wait_serving()
    async with join_group(play, "g2", plan) as three:
        await three.take(2, 3, 5)
        await three.ack(5)
        await three.confirm()
    await play.promote("n2", _ALL, *_ALL)
    await drain(play, plan)


@scenario("D2: who has dealt with a record acknowledges no other at its offset", settings=OS)
async def other_records_at_offsets_that_were_dealt_with(play: Play) -> None:
    """A member has dealt with records that all disks lose in a power failure, and its
    acknowledgements are in doubt; an operator takes the disks as they are, and others are written
    at those offsets. The member has not seen these, and must be given each."""
    world = play.world
    await fill_one_by_one(play, 3)
    async with join_group(play, "g0", max_in_flight=50) as member:
        await member.take(0, 1, 2)
        await member.ack(0, 1, 2)
        assert await member.confirm()
        await world.wait_in_step()
        await world.stop()
        await world.start()
        await world.wait_serving()
        await fill_one_by_one(play, 5)
        await member.take(*range(8))
        await world.crash(power=True, style="dropped")
        await member.ack(*range(3, 8))
        lost, member.taken = member.taken, {}
        await play.recover()
        await fill_one_by_one(play, 8)
        await member.take(*range(3, 11))
        if member.taken[3].value == lost[3].value:
            raise AssertionError("what the member had dealt with was not lost")
        await member.ack(*range(3, 11))
        await member.confirm()
    await drain(play)


@scenario("D2: a late acknowledgement is of no record that came after its delivery", settings=OS)
async def late_acknowledgements_of_records_that_were_lost(play: Play) -> None:
    """A member deals with one record after the other while n1 reaches nobody. All disks lose the
    records in a power failure; an operator takes them as they are, and others are written at those
    offsets. Their ballot ends, too, and the member joins and says what it has dealt with: the
    others must be given to it all the same."""
    world = play.world
    await fill_one_by_one(play, 3)
    async with join_group(play, "g0", max_in_flight=1) as member:
        await member.take(0, 1, 2, acknowledging=True)
        assert await member.confirm()
        await world.wait_in_step()
        await world.stop()
        await world.start()
        await world.wait_serving()
        await fill_one_by_one(play, 5)
        play.part("n1")
        await member.take(*range(3, 8), acknowledging=True)
        await trio.sleep(0.1)
        _cut_off(play, "g0")
        await world.crash(power=True, style="dropped")
        member.taken.clear()
        play.join("n1")
        await play.recover()
        await fill_one_by_one(play, 8)
        await world.wait_in_step()
        await world.stop()
        await world.start()
        await world.wait_serving()
        for name in world.names:
            world.network.heal("g0", name)
        await member.take(*range(3, 11), acknowledging=True)
        await member.confirm()
    await drain(play)


@scenario("D2: a late acknowledgement gives up a key's turn once it is committed", settings=OS)
async def late_acknowledgement_in_line_behind_its_key(play: Play) -> None:
    """All disks lose in a power failure that the first record of a key was acknowledged, and a
    member has the second one by then. An operator takes the disks as they are. Another member is
    given the first one and acknowledges it, and soon after so does the one with the second, late.
    Both are on their way into the log, one after the other, which takes its time; the third
    record must wait for both."""
    world, plan = play.world, GroupPlan("g", order="key")
    await publish_keys(play, ["a", "a", "a", "b", "a"])
    async with join_group(play, "g0", plan) as slow:
        await slow.take(0, 3)
        await slow.ack(3)
        assert await slow.confirm()
        await world.wait_in_step()
        await world.stop()
        await world.start()
        await world.wait_serving()
        slow.taken.clear()
        await slow.take(0)
        await slow.ack(0)
        await slow.take(1)  # So that is committed.
        _cut_off(play, "g0")
        await world.crash(power=True, style="dropped")
        await play.recover()
        async with join_group(play, "g1", plan) as other:
            await other.take(0)
            for name in world.names:
                world.network.heal("g0", name)
            await trio.sleep(5.0)  # It joins again.
            for name in ("n2", "n3"):
                world.network.delay("n1", name, 0.5)
            await other.ack(0)
            await trio.sleep(0.1)
            await slow.ack(1)
            assert await other.confirm()
            await slow.confirm()
    await drain(play, plan)
