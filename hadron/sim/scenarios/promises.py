"""PROTOCOL C: what an acknowledgement survives, by setting."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from hadron.model.batch import decode_batch
from hadron.sim.files import STYLES
from hadron.sim.node_files import read_node
from hadron.sim.scenarios.play import Play, scenario
from hadron.sim.workload_clients import text
from hadron.sim.world import SETTINGS

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
        for row in file.log.values() if row.body
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
    tell. They wait and say so, until an operator takes the disks as they are."""
    world = play.world
    await play.fill(10)
    await play.publish("right before the power loss")
    await world.crash(power=True, style="kept")
    await world.start()
    await world.wait_for("n1 waiting", lambda: "that remember" in world.status("n1").trouble)
    missed = await play.publish("while nobody counts", timeout_s=5.0)
    assert missed.outcome != "ok"
    await world.crash(power=False)
    for name in world.names:
        world.recover(name)
    play.history.event("reconfigure", detail="loss")
    await world.start()
    await world.wait_serving()
