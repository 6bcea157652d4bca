"""PROTOCOL D2, GROUPS G7, G10, G11: what a member does with what lies with it, in whichever ways
its program asks for it."""

from __future__ import annotations

from typing import Final

import trio

from hadron.sim.actors.group_plans import GroupPlan
from hadron.sim.scenarios.group_play import Member, drain, join_group
from hadron.sim.scenarios.play import Play, scenario

_BATCH: Final = 6


async def _publish(play: Play) -> None:
    """So many, in two batches: the first goes out at once, the others follow together."""
    await play.publish(*(play.value() for _ in range(_BATCH)))


@scenario("D2: however a member asks for its records, it is handed each")
async def member_that_asks_in_every_way(play: Play) -> None:
    """Of each batch a program takes some records one by one; the others as a batch; or in steps, of
    which it leaves the loop when some are left, and goes on in another way. It must be handed each
    record once; what is left when it leaves goes back."""
    await _publish(play)
    async with join_group(play, "g0") as member:
        await member.take(0, 1, acknowledging=True)
        assert await member.take_batch() == [2, 3, 4, 5]
        await _publish(play)
        await member.take(6, 7, acknowledging=True)
        steps = member.subscription.transactions(max_records=2)
        assert await member.take_step(steps) == [8, 9]
        await member.take(10, acknowledging=True)
        assert await member.take_batch() == [11]
        await _publish(play)
        await member.take(12, 13, acknowledging=True)
        others = member.subscription.transactions(max_records=2)
        assert await member.take_step(others) == [14, 15]
        assert await member.take_batch() == [16, 17]
        await _publish(play)
        await member.take(18, 19, acknowledging=True)
        assert await member.confirm()
    await drain(play)


@scenario("D2: a busy member hands out nothing that it has given back meanwhile")
async def busy_member_that_gives_back_in_time(play: Play) -> None:
    """A program works on the first records of a batch for more than half of their deadline: what it
    was not handed has gone back by then, and comes again. It must be handed that which has come
    again. The same where it takes batches, and one has a gap of what it had dealt with before."""
    plan = GroupPlan("g", ack_deadline_s=4.0)
    await _publish(play)
    async with join_group(play, "g0", plan) as member:
        await member.take(0, 1)
        await trio.sleep(2.5)
        await member.ack(0, 1)
        await member.take(*range(_BATCH))
        await member.ack(*range(2, _BATCH))
        assert await member.confirm()
        await _publish(play)
        await _lose_touch(member, range(6, 12), done=9)
        assert await member.take_batch() == [6]
        assert await member.take_batch() == [7, 8]
        await trio.sleep(2.5)
        assert await member.take_batch() == [10, 11]
        assert await member.confirm()
    await drain(play, plan)


@scenario("D2: who leaves gives back all that its program was not handed")
async def member_that_leaves_with_records_in_parts(play: Play) -> None:
    """A program has dealt with one record of a batch when its connection is lost; the batch comes
    again, with a gap. One takes the first of it and goes on in steps, which must leave out what is
    dealt with. Another one takes the first part as a batch, and leaves: others are waiting for the
    second part, which nobody has looked at."""
    await _publish(play)
    async with join_group(play, "g0") as member:
        await _lose_touch(member, range(_BATCH), done=3)
        await member.take(0, 1, acknowledging=True)
        steps = member.subscription.transactions(max_records=4)
        assert await member.take_step(steps) == [2, 4, 5]
        assert await member.confirm()
    await _publish(play)
    async with join_group(play, "g1") as member:
        await _lose_touch(member, range(6, 12), done=9)
        assert await member.take_batch() == [6]
        assert await member.take_batch() == [7, 8]
    await drain(play)


async def _lose_touch(member: Member, offsets: range, *, done: int) -> None:
    """A member is given these, deals with one of them, and loses its connection with that."""
    network, host = member.play.world.network, member.host
    await member.take(*offsets)
    for name in member.play.world.names:
        network.isolate(host, name)
    await member.ack(done)
    await trio.sleep(0.1)
    network.break_connections(host, lose_all=True)
    for name in member.play.world.names:
        network.heal(host, name)
    member.taken.clear()
    await trio.sleep(0.4)
