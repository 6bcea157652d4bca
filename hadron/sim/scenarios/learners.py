"""PROTOCOL B3: members without memory, and from when on they count."""

from __future__ import annotations

from typing import Final

import trio

from hadron.sim.actors.clients import STREAM
from hadron.sim.scenarios.leadership import NARROW
from hadron.sim.scenarios.play import Play, scenario
from hadron.sim.world.replica_set import World
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


@scenario("B3: who was taught goes on counting when it is fed anew")
async def learner_that_counts_is_fed_anew(play: Play) -> None:
    """n3 loses its disk, is taught, and counts; then n2 goes away, and n3 has no room for a moment:
    the feed ends, the connection does not. n1 and n3 both remember: they serve without n2."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    await play.lose("n3")
    await world.start("n3")
    await world.wait_in_step()
    await world.wait_for("n3's membership", lambda: remembers(world, "n3"))
    await world.crash("n2", power=False)
    leadership = world.node("n1").member._leadership
    assert leadership is not None
    feed = leadership.controller.feed_of("n3")
    disk, reserve = world.disks["n3"], world.config.settings.disk_reserve_bytes
    # The leader hears of it too late to refuse what comes next.
    world.network.delay("n3", "n1", 0.5, 0.6)
    disk.broken.capacity_bytes = disk.volume.used_bytes() + reserve // 32
    space = world.node("n3").member._store.space
    await world.wait_for("a full disk", lambda: space.is_exhausted)
    await play.publish(play.value(), timeout_s=1.0)
    await world.wait_for(
        "the end of the feed", lambda: leadership.controller.feed_of("n3") is not feed
    )
    disk.heal()
    world.network.heal_all()
    await must_serve(play, "n1 and n3")
    await world.start("n2")


@scenario("B3: a disk that is put back counts once it has been taught, and goes on counting")
async def disk_that_is_put_back(play: Play) -> None:
    """n2 runs on a new disk, on another one, and on the first one as it was before it was taught:
    it is taught what came between, and counts. n3 goes away, and the connection of the others
    breaks, again and again: they both remember, and serve."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    await play.lose("n2")
    play.part("n2")
    await world.start("n2")
    await world.stop("n2")
    image = {path.name: path.read_bytes() for path in world.data("n2").iterdir() if path.is_file()}
    play.join("n2")
    await world.start("n2")
    await world.wait_for("n2's membership", lambda: remembers(world, "n2"))
    await play.lose("n2")
    await world.start("n2")
    await play.fill(3)
    await world.wait_in_step()
    await play.lose("n2")
    for name, content in image.items():
        (world.data("n2") / name).write_bytes(content)
    await world.start("n2")
    await world.wait_in_step()
    await world.wait_for("n2's membership", lambda: remembers(world, "n2"))
    await world.crash("n3", power=False)
    for _ in range(3):
        world.network.break_connections("n1", "n2")
        await must_serve(play, "n1 and n2")
        assert remembers(world, "n2"), "n2 was taught, and has forgotten again"
    await world.start("n3")


def remembers(world: World, name: str) -> bool:
    """Whether a node that runs counts itself among those who remember the log."""
    return world.listens(name) and world.node(name).member._store.identity.current.is_member


async def must_serve(play: Play, who: str) -> None:
    """They are a majority, connected, and remember."""
    published = await play.publish(play.value(), timeout_s=15.0)
    assert published.outcome == "ok", f"{who} do not serve: {published.error}"
