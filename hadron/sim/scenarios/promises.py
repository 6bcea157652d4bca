"""PROTOCOL C: what an acknowledgement survives, by setting."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import trio

from hadron.fakes.files import STYLES
from hadron.model.record_batch import decode_batch
from hadron.sim.actors.clients import STREAM, text
from hadron.sim.evidence.node_files import read_node
from hadron.sim.scenarios.play import Play, scenario
from hadron.sim.world.replica_set import SETTINGS

OS: Final = replace(SETTINGS, durability="os")


@scenario("C: majority + fsync survives power losses of all")
async def coordinated_power_failure(play: Play) -> None:
    """All nodes lose power at the same time, right after acknowledgements, in every way in which a
    disk may treat unsynced writes."""
    world = play.world
    for number, style in enumerate((*STYLES, "scattered", "dropped")):
        await play.fill(30)
        await play.publish(f"on all disks before power failure {number}", acks="all")
        await play.publish(f"on the leader's disk before power failure {number}", acks="leader")
        await play.publish(f"right before power failure {number}")
        await world.crash(power=True, style=style)
        await world.start()
        await world.wait_serving()
        await play.read()


@scenario("C: all is on every disk when it is acknowledged")
async def acks_all_is_on_every_disk(play: Play) -> None:
    """Records acknowledged with `all`, while one replica or the other is slow: when all lose power
    in the instant of the acknowledgement, each disk has them."""
    world = play.world
    for number, slow in enumerate(("n3", "n2")):
        world.network.delay("n1", slow, 0.3)
        operation = await play.publish(f"on all disks {number}", acks="all")
        for name in world.names:
            world.crash_now(name, power=True, style="dropped")
        await world.crash()
        for name in world.names if operation.outcome == "ok" else ():
            if not _holds(play, name, operation.values[0]):
                raise AssertionError(f"{operation.values[0]!r} is not on {name}'s disk")
        world.network.heal_all()
        await world.start()
        await world.wait_serving()


def _holds(play: Play, name: str, value: str) -> bool:
    """Whether a stopped node's log has the record."""
    file = read_node(name, play.world.data(name) / "hadron.db", vfs="unix")
    return any(
        text(record.value) == value
        for row in file.log.values()
        if row.body
        for record in decode_batch(row.body).records()
    )


@scenario("C: leader survives the leader's crash")
async def acks_leader_outlives_a_crash(play: Play) -> None:
    """Acknowledged by the leader alone, while cut off: its crash and power loss leave it there."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    play.part("n1")
    await play.publish("on the leader's disk", acks="leader", timeout_s=2.0)
    await world.crash("n1", power=True)
    play.join("n1")
    await world.start("n1")
    await world.wait_serving()


@scenario("C: majority + os survives crashes of all processes", settings=OS)
async def processes_killed_without_fsync(play: Play) -> None:
    """With durability `os` all processes die at once: their kernels still have what they wrote."""
    world = play.world
    for number in range(4):
        await play.fill(10)
        await play.publish(f"right before kill {number}")
        await world.crash(power=False)
        await world.start()
        await world.wait_serving()


@scenario("C: majority + os survives a power loss of a minority", settings=OS)
async def minority_loses_power_without_fsync(play: Play) -> None:
    """With durability `os` one node at a time loses power, and with it what it had acknowledged."""
    world = play.world
    for number, name in enumerate(("n2", "n1", "n3")):
        await play.fill(10)
        await play.publish(f"right before power loss {number}")
        await world.crash(name, power=True, style="dropped")
        await world.start(name)
        await world.wait_serving()
        await world.wait_in_step()


@scenario("C: majority + os needs an operator when a majority loses power", settings=OS)
async def majority_loses_power_without_fsync(play: Play) -> None:
    """With durability `os` all nodes lose power: the end of their logs may be gone, and nobody can
    tell, also not when all had run for so long that they had noted where their logs were. They wait
    and say so, until an operator takes the disks as they are."""
    world = play.world
    for _ in range(12):
        await play.fill(20, 6_000)
        await trio.sleep(1.0)
    await play.publish("right before the power loss")
    await world.crash(power=True, style="kept")
    await world.start()
    await world.wait_for("n1 waiting", lambda: "that remember" in world.status("n1").trouble)
    missed = await play.publish("while nobody counts", timeout_s=5.0)
    assert missed.outcome != "ok"
    await world.crash(power=False)
    await play.recover()


@scenario("D4: who follows a log that has lost its end is told", settings=OS)
async def follower_of_a_log_that_lost_its_end(play: Play) -> None:
    """A reader follows, and has seen what all disks lose in a power failure; an operator takes the
    disks as they are, and others soon write at the offsets that it has read. It must not go on as
    if it had seen those."""
    world = play.world
    await play.fill(5)
    await world.wait_in_step()
    await world.stop()
    await world.start()
    await world.wait_serving()
    async with trio.open_nursery() as nursery:
        seen = play.history.read("r1", STREAM, world.config.name, 0)
        nursery.start_soon(play.follow, seen)
        await play.fill(10)
        await world.wait_for("all of it seen", lambda: len(seen.values) == 15)
        await world.crash(power=True, style="dropped")
        await play.recover()
        await play.fill(30)
        await world.wait_for("the reader told", lambda: bool(seen.ended), 30.0)
        nursery.cancel_scope.cancel()
    if "does not have the record before offset 15" not in seen.error:
        raise AssertionError(f"who had read what is lost was told {seen.error!r}")
