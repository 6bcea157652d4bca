"""ENDPOINTS N: what callers and servers may count on, whoever of them, or their leader, is lost."""

from __future__ import annotations

import trio

from hadron.client import IncomingCall
from hadron.sim.actors.calls import ONCE, Calling
from hadron.sim.scenarios.play import Play, scenario


@scenario("N1, N2, N3, N4: a call is run once, answered to who asked, and over in time")
async def calls_while_servers_and_leaders_are_lost(play: Play) -> None:
    """Three servers and two callers, with several calls at a time, some of which are given up.
    Hosts of servers are killed or cut off, the leader crashes; afterwards everybody has its slots,
    and calls are answered."""
    world = play.world
    await play.fill(1)
    calling = Calling(world, play.history, servers=3)
    await play.declare_objects(calling.objects())
    actors = list(calling.actors())
    async with trio.open_nursery() as nursery:
        for actor in actors:
            nursery.start_soon(actor.run)
        for turn in range(4):
            await trio.sleep(2.0)
            host = calling.hosts()[turn % 3]
            if turn % 2:
                world.network.isolate(host, *world.names)
                await trio.sleep(4.0)
                for name in world.names:
                    world.network.heal(host, name)
            else:
                world.network.kill(host)
            if turn == 2:
                await world.crash("n1", power=False)
                await world.start("n1")
        await trio.sleep(2.0)
        for actor in actors:
            actor.stop()
        with trio.move_on_after(80.0):
            await calling.drain()
        nursery.cancel_scope.cancel()
    assert not calling.book.complaints, "; ".join(calling.book.complaints[:5])
    assert calling.book.answered > 50, calling.book


@scenario("N3: a call that was given up has no slot once its server is done with it")
async def calls_that_were_given_up_while_they_were_run(play: Play) -> None:
    """All slots of the only server have calls that their caller gives up. Then as many others are
    made, and answered."""
    world, slots = play.world, 2
    await play.fill(1)
    await play.declare_objects(Calling(world, play.history).objects())
    begun = trio.Semaphore(0)

    async def handle(value: str, _call: IncomingCall) -> str:
        if value == "given up":
            begun.release()
            await trio.sleep_forever()
        return value

    async with (
        world.client("es0") as server,
        server.serve(ONCE, handle, max_in_flight=slots, name="es0"),
        world.client("ec0") as caller,
    ):
        async with trio.open_nursery() as nursery:
            for _ in range(slots):
                nursery.start_soon(caller.call, ONCE, "given up")
            for _ in range(slots):
                await begun.acquire()
            nursery.cancel_scope.cancel()
        for number in range(slots):
            assert await caller.call(ONCE, str(number), timeout_s=20.0) == str(number)
