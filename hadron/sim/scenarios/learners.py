"""PROTOCOL B3: members without memory, and from when on they count."""

from __future__ import annotations

from typing import Final

import trio

from hadron.sim.actors.clients import STREAM
from hadron.sim.scenarios.leadership import NARROW
from hadron.sim.scenarios.play import Play, scenario
from hadron.wire.messages import groups_pb2, streams_pb2

_BIG: Final = 700_000


@scenario("B3: a learner counts once it holds the log", nodes=5, settings=NARROW)
async def learner_that_everybody_has_heard_of(play: Play) -> None:
    """X is on n1, n2 and n3. n2 loses its disk, and n4 and n5 come back: all follow n1, and X,
    and for n2 much of the log before it, is still on thin wires to the three when n1 loses its own
    disk. n2, n4 and n5 must not make a majority without X."""
    world, network = play.world, play.world.network
    for _ in range(5):
        await play.fill(1, _BIG)
    await world.wait_in_step()
    play.part("n4", "n5")
    await play.publish("X".ljust(_BIG, "."))
    end = play.last_lsn("n1")
    await world.crash("n2", power=False)
    world.wipe("n2")
    network.slow("n1", "n2", 5e5)
    for name in ("n4", "n5"):
        network.slow("n1", name, 5e4)
    await world.start("n2")
    await play.wait_holds("n2", 1)
    play.join("n4", "n5")
    await play.wait_holds("n2", 4)
    await trio.sleep(0.1)
    early = [name for name in ("n2", "n4", "n5") if play.last_lsn(name) >= end]
    assert not early, f"{early} hold X already"
    play.part("n3")
    await play.lose("n1")
    network.heal_all()
    play.part("n3")
    await world.start("n1")
    with trio.move_on_after(10.0):
        await world.wait_serving()
    await play.publish("Y", timeout_s=1.0)
    play.join("n3")
    await world.wait_serving()


@scenario("B3: a learner counts once as many others as meet every majority were heard")
async def learner_who_had_promised_another(play: Play) -> None:
    """n3 is promoted by n2 and itself while n1, alone, still leads by the old file, and Y is
    acknowledged. n2 loses its disk, and its promise with it, and comes back with the old file
    where it sees n1 alone: it has n1's whole log soon, and must still not acknowledge X, nor count
    among those who follow n1 when that is asked how far groups are."""
    world, network = play.world, play.world.network
    await play.fill(3)
    await world.wait_in_step()
    old = world.config
    play.part("n1")
    await play.promote("n3", ("n1", "n2", "n3"), "n3", "n2")
    await play.publish("Y")
    await world.crash("n2", power=False)
    world.wipe("n2")
    world.configs["n2"] = old
    network.cut("n2", "n3")
    network.break_connections("n1", "n2", lose_all=True)
    network.heal("n1", "n2")
    await world.start("n2")
    await play.wait_holds("n2", play.last_lsn("n1"))
    await play.must_not_answer("n1", "ListGroups", groups_pb2.ListGroupsRequest(stream=STREAM))
    ends = streams_pb2.OffsetsRequest(stream=STREAM, confirmed=True)
    await play.must_not_answer("n1", "Offsets", ends)
    await play.produce("X", timeout_s=3.0)
    network.heal_all()
    await play.hand_out("n1", "n2")
    await world.wait_in_step()


@scenario("B3: a learner is one until it is granted its membership, however often it is fed")
async def learner_without_room_for_a_moment(play: Play) -> None:
    """n3 loses its disk, and is being taught over a thin wire when the new one has no room: the
    feed ends, the connection does not, and the next feed begins a moment later. n3 must not count
    before it has caught up: n2, whose connection is cut, has promises that n3 has forgotten."""
    world, network = play.world, play.world.network
    for _ in range(4):
        await play.fill(1, _BIG)
    await world.wait_in_step()
    await world.crash("n3", power=False)
    world.wipe("n3")
    network.slow("n1", "n3", 5e5)
    await world.start("n3")
    await play.wait_holds("n3", 1)
    leadership = world.node("n1").member._leadership
    assert leadership is not None
    feed = leadership.controller.feed_of("n3")
    disk, reserve = world.disks["n3"], world.config.settings.disk_reserve_bytes
    disk.broken.capacity_bytes = disk.volume.used_bytes() + reserve // 32
    await world.wait_for(
        "the end of the feed", lambda: leadership.controller.feed_of("n3") is not feed
    )
    disk.heal()
    play.part("n2")
    await play.publish("X", timeout_s=2.0)
    play.join("n2")
    network.heal_all()
    await world.wait_in_step()
