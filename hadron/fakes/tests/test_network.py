"""Cuts, delays and broken connections of the network in memory, on a clock that jumps."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock

from hadron.fakes.connections import SimTransport
from hadron.fakes.network import SimListener, SimNetwork


class Pair:
    """Hosts a and b with one connection, dialed by a."""

    def __init__(
        self, network: SimNetwork, listener: SimListener, a: SimTransport, b: SimTransport
    ) -> None:
        self.network, self.listener, self.a, self.b = network, listener, a, b


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    network = SimNetwork()
    listener = await network.host("b").listen("b:0")
    a = await network.host("a").dial(listener.address)
    b = await listener.accept()
    yield Pair(network, listener, a, b)
    a.close()
    b.close()
    listener.close()


async def read(transport: SimTransport) -> bytes:
    buffer = bytearray(100)
    return bytes(buffer[: await transport.receive_into(memoryview(buffer))])


async def test_a_cut_holds_back_and_healing_delivers(pair: Pair, autojump_clock: MockClock) -> None:
    pair.network.cut("a", "b")
    pair.a.send_some([b"one"])
    pair.b.send_some([b"two"])
    for transport in (pair.a, pair.b):
        with trio.move_on_after(100) as scope:
            await read(transport)
        assert scope.cancelled_caught
    pair.network.heal("a", "b")
    assert await read(pair.b) == b"one"
    assert await read(pair.a) == b"two"


async def test_a_one_way_cut_leaves_the_other_way(pair: Pair, autojump_clock: MockClock) -> None:
    pair.network.cut_one_way("a", "b")
    pair.a.send_some([b"lost for now"])
    pair.b.send_some([b"works"])
    assert await read(pair.a) == b"works"
    with trio.move_on_after(100) as scope:
        await read(pair.b)
    assert scope.cancelled_caught
    pair.network.heal_all()
    assert await read(pair.b) == b"lost for now"


async def test_a_close_does_not_cross_a_cut(pair: Pair, autojump_clock: MockClock) -> None:
    pair.network.cut("a", "b")
    pair.a.send_some([b"bye"])
    pair.a.close()
    with trio.move_on_after(100) as scope:
        await read(pair.b)
    assert scope.cancelled_caught
    pair.b.send_some([b"into the void"])
    pair.network.heal("a", "b")
    assert await read(pair.b) == b"bye"
    assert await read(pair.b) == b""
    with pytest.raises(BrokenPipeError):
        pair.b.send_some([b"x"])


async def test_dialing_across_a_cut_waits(pair: Pair, autojump_clock: MockClock) -> None:
    pair.network.cut("a", "b")
    with pytest.raises(TimeoutError):
        await pair.network.host("a").dial(pair.listener.address)
    async with trio.open_nursery() as nursery:
        dialed: list[SimTransport] = []

        async def dial() -> None:
            dialed.append(await pair.network.host("a").dial(pair.listener.address))

        nursery.start_soon(dial)
        await trio.sleep(5)
        assert not dialed
        pair.network.heal("a", "b")
    (await pair.listener.accept()).close()
    dialed[0].close()


async def test_a_delay_is_exact_and_keeps_the_order(pair: Pair, autojump_clock: MockClock) -> None:
    pair.network.delay("a", "b", 2.5)
    start = trio.current_time()
    pair.a.send_some([b"slow"])
    pair.network.delay("a", "b", 0)
    pair.a.send_some([b"fast"])
    assert await read(pair.b) == b"slow"
    assert trio.current_time() - start == pytest.approx(2.5)
    assert await read(pair.b) == b"fast"
    assert trio.current_time() - start == pytest.approx(2.5)


async def test_broken_connections_fail_on_both_sides(pair: Pair, autojump_clock: MockClock) -> None:
    pair.network.cut("a", "b")
    pair.network.break_connections("a")
    for transport in (pair.a, pair.b):
        with pytest.raises(ConnectionResetError):
            await read(transport)
        with pytest.raises(ConnectionResetError):
            transport.send_some([b"x"])


async def test_only_the_named_connections_break(pair: Pair, autojump_clock: MockClock) -> None:
    other = await pair.network.host("c").dial(pair.listener.address)
    accepted = await pair.listener.accept()
    pair.network.break_connections("b", "c")
    with pytest.raises(ConnectionResetError):
        await read(other)
    pair.a.send_some([b"fine"])
    assert await read(pair.b) == b"fine"
    other.close()
    accepted.close()
