"""PROTOCOL D2, GROUPS G3 and G4: records that nobody can use, that retention drops while a group
has them, and what stands behind them."""

from __future__ import annotations

from contextlib import AsyncExitStack

import trio

from hadron.fakes.disk import FAST, SLOW, Speed
from hadron.model.schema import Retention, SchemaObject, StreamSpec
from hadron.sim.actors.clients import STREAM
from hadron.sim.actors.group_plans import LETTERS, GroupPlan
from hadron.sim.scenarios.group_play import drain, fill_one_by_one, join_group, publish_keys
from hadron.sim.scenarios.play import Play, scenario


@scenario("D2: what nobody can use becomes one dead letter")
async def dead_letter_of_a_record_given_back_twice(play: Play) -> None:
    """A record is given back once, n1 is killed, and it is given back again: that was its last
    attempt. It must be among the dead letters once, and in the way of nobody."""
    plan = GroupPlan("g", max_attempts=2)
    await fill_one_by_one(play, 3)
    async with join_group(play, "g0", plan) as member:
        await member.take(0, 1, 2)
        await member.nack(1)
        await member.ack(0)
        await member.confirm()
    await play.world.crash("n1", power=True)
    await play.world.start("n1")
    await play.world.wait_serving()
    async with join_group(play, "g1", plan) as member:
        await member.take(1, 2)
        await member.nack(1)
        await member.ack(2)
        await member.confirm()
    await drain(play, plan)


@scenario("D2: of what nobody can use, that was acknowledged after all which was, and no more")
async def dead_letters_of_which_one_is_acknowledged(play: Play) -> None:
    """Six records that are one batch are given back for the last time. The third of them is
    acknowledged in the log, and who serves the group does not know: the other five must be letters,
    whatever is said of the six."""
    plan = GroupPlan("g", max_attempts=1)
    await play.publish(*(f"letter {number}" for number in range(6)))
    async with join_group(play, "g0", plan) as member:
        await member.take(*range(6))
        member.sent.append(member._settle(2, "ack"))
        await play.acknowledge("g", 2)
        await member.nack(0, 1, 2, 3, 4, 5)
        await member.confirm()
        await play.world.wait_for("letters", lambda: play.dead_letters("g") == 5)
    await drain(play, plan)


@scenario("D2: a record whose dead letter cannot be written stands in nobody's way")
async def dead_letter_without_a_stream(play: Play) -> None:
    """A group in strict order gives a record back, for the last time, and the stream of its dead
    letters is gone. The record must be delivered again, until somebody can use it, and then those
    that follow it."""
    plan = GroupPlan("g", order="strict", max_attempts=1)
    await fill_one_by_one(play, 3)
    async with join_group(play, "g0", plan) as member:
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
    await drain(play, GroupPlan("g"))


@scenario("D2: what is among the dead letters is delivered no more")
async def dead_letters_that_are_written_in_part(play: Play) -> None:
    """A member can use none of many records, which become dead letters one after the other, when
    the leader's disk has less room than it keeps in reserve: some are written by then, the others
    cannot be, and are delivered again. Those that are written must not be."""
    world = play.world
    plan = GroupPlan("g", max_attempts=1)
    await fill_one_by_one(play, 80)
    disk, reserve = world.disks["n1"], world.config.settings.disk_reserve_bytes
    disk.speed = SLOW
    async with join_group(play, "g0", plan, max_in_flight=400) as member:
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
    await drain(play, plan)


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
    await publish_keys(play, ["a"], size=5_000)
    await publish_keys(play, ["b", "a", "b"])
    async with join_group(play, "g0", plan, heartbeat_s=0.3) as member:
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
    await drain(play, plan)


@scenario("D2: a key is free once retention has dropped its record on its way to the dead letters")
async def key_of_a_dead_letter_that_retention_drops(play: Play) -> None:
    """Three records of three keys are to become dead letters of each of six groups, and their
    stream is deleted in the same moment; n1 reaches nobody, so that all of this waits. Meanwhile
    the first record gets too old, and another one comes: all three are refused when a group has
    just passed over the first, or just not yet. What has its key must have its turn."""
    world, numbers = play.world, range(6)
    await _keep(play, Retention(max_age_ms=4_000))
    await publish_keys(play, ["a"])
    await trio.sleep(2.5)
    for key in ("b", "c", "a"):
        await publish_keys(play, [key])
    async with trio.open_nursery() as nursery, AsyncExitStack() as joined:
        for each in numbers:
            plan = GroupPlan(f"g{each}", order="key", max_attempts=1)
            member = await joined.enter_async_context(join_group(play, f"lost{each}", plan))
            await member.take(0, 1, 2)
        others = [
            await joined.enter_async_context(join_group(play, f"left{each}", GroupPlan(f"g{each}")))
            for each in numbers
        ]
        play.part("n1")
        # On a slow replica the first of these is a commit of its own, and all that follows is one.
        for name in ("n2", "n3"):
            world.disks[name].speed = SLOW
        for _ in range(2):
            await play.produce(play.value(), timeout_s=0.1)
        nursery.start_soon(play.delete, LETTERS)
        for each in numbers:
            world.network.kill(f"lost{each}")
        await world.wait_for("retention", lambda: play.first_offset("n1") > 0)
        await play.produce(play.value(), timeout_s=0.1)
        play.join("n1")
        await _keep(play, Retention())
        for other in others:
            await other.take(1, 2, 3)
            await other.ack(1, 2, 3)
            await other.confirm()
    for each in numbers:
        await drain(play, GroupPlan(f"g{each}"), host=f"d{each}")


@scenario("D2: retention goes by the limits that there are when it drops something")
async def limits_raised_while_the_oldest_are_looked_at(play: Play) -> None:
    """Records are to be kept for two seconds. When they are due, n1 looks at the oldest of them,
    which takes long on its disk; meanwhile somebody has all of them kept, and is told that this
    holds. None may be dropped."""
    disk = play.world.disks["n1"]
    await _keep(play, Retention(max_age_ms=2_000))
    await publish_keys(play, ["a", "b"])
    # It looks when the first one is a second too old, and pauses before.
    await trio.sleep(3.0)
    disk.speed = Speed(hop_s=(3.0, 3.0))
    await trio.sleep(0.5)
    disk.speed = FAST
    await _keep(play, Retention())
    await trio.sleep(5.0)
    if len((await play.read()).values) != 2:
        raise AssertionError("records are gone that were to be kept")


@scenario("D2: lower limits hold, whether anybody writes or not")
async def limits_lowered_while_nobody_writes(play: Play) -> None:
    """A stream has a limit that it is far from, and then one that it is far over. What is over is
    dropped, though no record comes for which n1 would look."""
    for _ in range(12):
        await play.produce(play.value())
    for size in (50_000, 900):
        await _keep(play, Retention(max_bytes=size))
        await trio.sleep(3.0)


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
