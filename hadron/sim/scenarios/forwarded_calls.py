"""ENDPOINTS N over several replica sets: calls of those who reach an endpoint's leader only through
other nodes."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from hadron.client import Client, IncomingCall
from hadron.model.errors import HadronError
from hadron.model.schema import SchemaObject
from hadron.model.services import EndpointSpec
from hadron.sim.actors.calls import Calling, Place
from hadron.sim.scenarios.region_play import RegionPlay, region_scenario
from hadron.sim.world.regions import AMERICA, EUROPE

_NEAR: Final = EUROPE.partition("/")[0]
_FAR: Final = AMERICA.partition("/")[0]
_ENDPOINT: Final = "far"

_TOLD_S: Final = 2.0
_LOST_S: Final = 6.0
"""A host is gone without a word: who has a connection to it sees that after 4 s of silence, a
server after 2 s."""

_BACK_S: Final = 30.0

_LARGE: Final = 60_000
_MANY: Final = 40
"""Calls: several windows of a connection."""

_HUGE: Final = 4_000_000
_AT_ONCE: Final = 16
_LATENCY_S: Final = 0.1
"""Of a leader that is far away, each way. What is under way at once is more than a node in between
keeps of one program."""

_COUNT: Final = 20


async def _declared(play: RegionPlay) -> None:
    """An endpoint that lives in Europe, whose node those in America cannot dial."""
    spec = EndpointSpec(replica_set=EUROPE)
    await play.declare_objects([SchemaObject(kind="Endpoint", name=_ENDPOINT, spec=spec)])
    await play.regions.wait_same_schema()


def _behind(play: RegionPlay, region: str = "") -> Place:
    return Place(region, tuple(play.europe.names))


@region_scenario("N1, N3, N10, R11: calls and servers behind other nodes outlive leaders and nodes")
async def calls_that_other_nodes_forward(play: RegionPlay) -> None:
    """Endpoints live in Europe. One caller and one server in America reach it through other nodes
    only. Europe's leader crashes, the node in between does, the regions are cut apart for a while.
    Then everybody is answered again, those in America by the server there."""
    regions = play.regions
    near, far = Place(_NEAR), _behind(play, _FAR)
    calling = Calling(
        play.metadata, play.history, home=EUROPE, serving=(near, far), calling=(near, far)
    )
    await play.declare_objects(calling.objects())
    await regions.wait_same_schema()
    actors = list(calling.actors())
    async with trio.open_nursery() as nursery:
        for actor in actors:
            nursery.start_soon(actor.run)
        await trio.sleep(3.0)
        for world, name in ((play.europe, "e1"), (play.america, "g1"), (play.europe, "e1")):
            await world.crash(name, power=True)
            await world.start(name)
            await world.wait_serving()
            await trio.sleep(3.0)
        regions.cut(play.europe, play.america)
        await trio.sleep(6.0)
        regions.join(play.europe, play.america)
        await trio.sleep(2.0)
        for actor in actors:
            actor.stop()
        with trio.move_on_after(150.0):
            await calling.drain()
        nursery.cancel_scope.cancel()
    assert not calling.book.complaints, "; ".join(calling.book.complaints[:5])
    assert calling.book.answered > 30, calling.book


@region_scenario("N7, N10: a region's own servers come first, and go on when others are cut off")
async def calls_of_a_region_that_is_cut_off(play: RegionPlay) -> None:
    """An endpoint lives in Europe, and is served there, and in America through other nodes. Who
    calls from either region is served there. Europe is cut off from all others: its own calls go
    on, America's end in time. Once it is back, America's are served in America again."""
    regions = play.regions
    await _declared(play)
    far = _behind(play)
    for host in ("c2", "s2"):
        far.take(play.metadata, host)
    async with (
        regions.client("s1") as near_server,
        regions.client("s2") as far_server,
        regions.client("c1") as near,
        regions.client("c2") as far_caller,
        near_server.serve(_ENDPOINT, _tells(_NEAR), region=_NEAR, name=_NEAR),
        far_server.serve(_ENDPOINT, _tells(_FAR), region=_FAR, name=_FAR),
    ):
        await _all_run_in(near, _NEAR)
        await _all_run_in(far_caller, _FAR)
        regions.cut(play.europe, play.america)
        regions.cut(play.europe, play.metadata)
        began_s = trio.current_time()
        await _all_run_in(near, _NEAR)
        took_s = trio.current_time() - began_s
        assert took_s < _TOLD_S, f"Europe's own calls took {took_s:.2f} s"
        await _is_told(far_caller)
        regions.join(play.europe, play.america)
        regions.join(play.europe, play.metadata)
        most_s = trio.current_time() + _BACK_S
        while not await _runs_in(far_caller, _FAR):
            assert trio.current_time() < most_s, "America's calls are not served there any more"
            await trio.sleep(0.2)
        await _all_run_in(near, _NEAR)
        await _all_run_in(far_caller, _FAR)


def _tells(region: str) -> Callable[[object], Awaitable[str]]:
    async def handle(_value: object) -> str:
        return region

    return handle


async def _all_run_in(client: Client, region: str) -> None:
    answers = [
        await client.call(_ENDPOINT, number, timeout_s=5.0, region=region)
        for number in range(_COUNT)
    ]
    assert answers == [region] * _COUNT, f"calls of {region} were run at {answers}"


async def _runs_in(client: Client, region: str) -> bool:
    try:
        answer = await client.call(_ENDPOINT, "", timeout_s=5.0, region=region)
    except HadronError:
        return False
    return bool(answer == region)


async def _is_told(client: Client) -> None:
    """A call over the cut ends in time."""
    began_s = trio.current_time()
    assert not await _runs_in(client, _FAR), "a call was answered over a cut"
    took_s = trio.current_time() - began_s
    assert took_s < 5.0 + _TOLD_S, f"a call of 5 s took {took_s:.2f} s"


@region_scenario("N3, N8: nobody works for a program that is gone behind another node")
async def caller_that_is_gone_behind_another_node(play: RegionPlay) -> None:
    """A program in America has called a server in Europe, through another node, and its host dies:
    the handler is cancelled long before the calls' deadline, and the server's only slot is free."""
    regions = play.regions
    await _declared(play)
    began, ended = trio.Event(), trio.Event()

    async def handle(value: object) -> object:
        if value != "long":
            return value
        began.set()
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async def call(client: Client) -> None:
        try:
            await client.call(_ENDPOINT, "long", timeout_s=300.0)
        except HadronError:
            return

    _behind(play).take(play.metadata, "c2")
    async with (
        regions.client("s1") as server,
        regions.client("c1") as other,
        server.serve(_ENDPOINT, handle, max_in_flight=1),
        trio.open_nursery() as nursery,
    ):
        async with regions.client("c2") as client:
            nursery.start_soon(call, client)
            await began.wait()
            regions.network.kill("c2")
            with trio.move_on_after(_LOST_S):
                await ended.wait()
            assert ended.is_set(), "it is still worked for somebody who is gone"
            nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            assert await other.call(_ENDPOINT, "next", timeout_s=_TOLD_S) == "next"


@region_scenario("N6: a node in between takes as much as it has passed on")
async def large_calls_through_another_node(play: RegionPlay) -> None:
    """A caller and a server in America, and the leader in Europe: values of several windows go to
    and fro, through other nodes, and none of them is the last. Then Europe is far away, and many
    that are as large as may be are under way at once, as calls and as answers."""
    regions = play.regions
    await _declared(play)
    for host in ("c2", "s2"):
        _behind(play).take(play.metadata, host)
    async with (
        regions.client("s2") as server,
        regions.client("c2") as client,
        server.serve(_ENDPOINT, _same),
    ):
        for number in range(_MANY):
            value = f"{number}".ljust(_LARGE, ".")
            assert await client.call(_ENDPOINT, value, timeout_s=10.0) == value
        _move_europe_away(play)
        for size in (_HUGE, 0):
            async with trio.open_nursery() as nursery:
                for number in range(_AT_ONCE):
                    nursery.start_soon(_is_answered, client, number, size)


def _move_europe_away(play: RegionPlay) -> None:
    """Much is under way there, as on a long line with large buffers."""
    network = play.regions.network
    for here in play.europe.names:
        for there in (*play.metadata.names, *play.america.names):
            for source, target in ((here, there), (there, here)):
                network.slow(source, target, math.inf, buffer_bytes=_AT_ONCE * _HUGE)
                network.delay(source, target, _LATENCY_S)


async def _is_answered(client: Client, number: int, size: int) -> None:
    """A call with so much, and with a huge answer."""
    value = f"{number}".ljust(size, ".")
    answer = await client.call(_ENDPOINT, value, timeout_s=60.0, headers={"huge": "yes"})
    assert answer == value.ljust(_HUGE, "."), f"call {number} has {len(answer)} bytes"


async def _same(value: str, call: IncomingCall) -> str:
    assert "through" in call.caller, call.caller
    return value.ljust(_HUGE, ".") if call.headers else value
