"""PROTOCOL B1 and B5: another leader, and other members, by a raised epoch."""

from __future__ import annotations

from functools import partial

import trio

from hadron.sim.scenarios.play import Play, scenario

_ALL = ("n1", "n2", "n3")


@scenario("B1: what carries a lower ballot is refused")
async def stale_leader_after_a_promotion(play: Play) -> None:
    """n2 is promoted while n1 sees n3 alone, which has promised n2's epoch; clients still reach n1
    and send it X. n1 must not get it acknowledged."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    world.network.cut("n1", "n2")
    await play.promote("n2", _ALL, "n2")
    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(partial(play.produce, f"X {number}", timeout_s=2.0))
    await play.publish("Y")
    await play.read()
    world.network.heal_all()
    await play.hand_out("n1", "n3")
    await world.wait_in_step()


@scenario("B1: a stale leader answers nothing")
async def stale_leader_alone_with_its_clients(play: Play) -> None:
    """n2 is promoted by n2 and n3 while n1, alone, still believes that it leads: what it is sent,
    and what it shows, must agree with what n2 commits."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    play.part("n1")
    await play.promote("n2", _ALL, "n2", "n3")
    await play.produce("X", timeout_s=1.0)
    await play.publish("Y")
    await play.read(host="r2")
    play.join("n1")
    await trio.sleep(1.0)
    await play.hand_out("n1")
    await world.wait_in_step()


@scenario("B5: majorities of the old and of the new configuration", nodes=5)
async def members_leave_while_others_lag(play: Play) -> None:
    """X is on n1, n2 and n3; n4 and n5 lag. The next configuration has n3, n4 and n5 alone, and n3
    is away: n4 and n5 are a majority of the new members, but not of the old ones."""
    world = play.world
    await play.fill(3)
    await world.wait_in_step()
    play.part("n4", "n5")
    await play.publish("X")
    await world.crash("n3", power=False)
    for name in ("n1", "n2"):
        play.part(name)
    world.network.heal("n4", "n5")
    await play.promote("n5", ("n3", "n4", "n5"), "n4", "n5", wait_s=10.0)
    await play.publish("Y", timeout_s=1.0)
    world.network.heal_all()
    await play.hand_out("n3")
    await world.wait_serving()
    await world.stop("n1", "n2")
    await world.wait_in_step()


@scenario("B5: empty joiners are learners", nodes=5)
async def members_come_and_the_old_ones_go(play: Play) -> None:
    """n4 and n5 lose their disks and are the new members, one leads; the old ones go one epoch
    later. Everything that was acknowledged goes along."""
    world = play.world
    await play.fill(30)
    await world.wait_in_step()
    for name in ("n4", "n5"):
        await world.crash(name, power=False)
        world.wipe(name)
    await play.promote("n4", ("n1", "n2", "n3", "n4", "n5"), "n4", "n5")
    await play.hand_out("n1", "n2", "n3")
    await world.wait_in_step()
    await play.publish("five members")
    await play.promote("n5", ("n3", "n4", "n5"), "n5", "n4", "n3")
    await world.stop("n1", "n2")
    await play.publish("three members")
    await world.wait_in_step()
