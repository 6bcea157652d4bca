"""What `ports.Network` promises: of sockets, and in memory with chance and without."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import trio
import trio.testing

from hadron.fakes.network import SimNetwork
from hadron.model.ports import Listener, Network, Transport
from hadron.wire.sockets import SocketNetwork


@dataclass(frozen=True)
class World:
    """A network as two hosts have it, and an address at the first one where any port is free."""

    server: Network
    client: Network
    any_address: str


@pytest.fixture(params=["sockets", "instant", "simulated"])
def world(request: pytest.FixtureRequest, nursery: trio.Nursery) -> World:
    if request.param == "sockets":
        network = SocketNetwork()
        return World(network, network, "127.0.0.1:0")
    if request.param == "simulated":
        simulated = SimNetwork(random.Random(7))
        nursery.start_soon(simulated.run)
        return World(simulated.host("server"), simulated.host("client"), "server:0")
    instant = SimNetwork()
    return World(instant.host("server"), instant.host("client"), "server:0")


@asynccontextmanager
async def connected(world: World) -> AsyncIterator[tuple[Transport, Transport]]:
    """Both ends of a connection: (dialed, accepted)."""
    listener = await world.server.listen(world.any_address)
    accepted: list[Transport] = []

    async def accept() -> None:
        accepted.append(await listener.accept())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        dialed = await world.client.dial(listener.address)
    try:
        yield dialed, accepted[0]
    finally:
        dialed.close()
        accepted[0].close()
        listener.close()


async def receive(transport: Transport, count: int) -> bytes:
    """Exactly `count` bytes, fewer when the stream ends."""
    received = bytearray()
    buffer = memoryview(bytearray(64 << 10))
    while len(received) < count:
        got = await transport.receive_into(buffer[: count - len(received)])
        if got == 0:
            break
        received += buffer[:got]
    return bytes(received)


async def fill(transport: Transport, chunk: bytes) -> int:
    """Send until nothing fits any more; returns how many bytes went."""
    sent = 0
    while True:
        count = transport.send_some([chunk])
        if count == 0:
            # The kernel moves bytes to the other side in its own time.
            with trio.move_on_after(0.05) as scope:
                await transport.wait_writable()
            if scope.cancelled_caught:
                return sent
        sent += count


async def send_until_it_fails(transport: Transport) -> None:
    with trio.fail_after(5):
        while True:
            transport.send_some([b"anybody there?"])
            await trio.sleep(0.001)


async def test_bytes_arrive_in_order_both_ways(world: World) -> None:
    async with connected(world) as (one, other):
        assert one.send_some([b"ab", bytearray(b"cd"), memoryview(b"ef")]) == 6
        assert other.send_some([b"reply"]) == 5
        assert await receive(other, 6) == b"abcdef"
        assert await receive(one, 5) == b"reply"


async def test_a_small_buffer_takes_part_and_leaves_the_rest(world: World) -> None:
    async with connected(world) as (one, other):
        one.send_some([b"abcdef"])
        buffer = bytearray(4)
        assert await other.receive_into(memoryview(buffer)[:2]) == 2
        assert buffer[:2] == b"ab"
        assert await receive(other, 4) == b"cdef"


async def test_the_peers_are_named(world: World) -> None:
    async with connected(world) as (one, other):
        assert one.peer.rpartition(":")[2].isdecimal()
        assert other.peer.rpartition(":")[2].isdecimal()


async def test_listening_on_port_zero_takes_a_free_one(world: World) -> None:
    first = await world.server.listen(world.any_address)
    second = await world.server.listen(world.any_address)
    assert first.address != second.address
    assert not first.address.endswith(":0")
    first.close()
    second.close()


async def test_an_address_in_use_cannot_be_bound(world: World) -> None:
    listener = await world.server.listen(world.any_address)
    with pytest.raises(OSError, match="in use"):
        await world.server.listen(listener.address)
    listener.close()
    again = await world.server.listen(listener.address)
    again.close()


async def test_nobody_listens(world: World) -> None:
    listener = await world.server.listen(world.any_address)
    listener.close()
    with pytest.raises(OSError, match=r".+"):
        await world.client.dial(listener.address)


async def test_closing_lets_what_was_sent_arrive_before_the_end(world: World) -> None:
    async with connected(world) as (one, other):
        one.send_some([b"last words"])
        one.close()
        assert await receive(other, 100) == b"last words"
        assert await other.receive_into(memoryview(bytearray(10))) == 0


async def test_closing_twice_is_harmless(world: World) -> None:
    async with connected(world) as (one, _):
        one.close()
        one.close()


async def test_everything_on_a_closed_transport_is_an_os_error(world: World) -> None:
    async with connected(world) as (one, _):
        one.close()
        with pytest.raises(OSError, match=r".+"):
            one.send_some([b"x"])
        for _ in range(20):
            with pytest.raises(OSError, match=r".+"):
                await one.receive_into(memoryview(bytearray(1)))
        with pytest.raises(OSError, match=r".+"):
            await one.wait_writable()


async def test_a_waiting_receive_ends_with_an_os_error_on_close(world: World) -> None:
    async with connected(world) as (one, _), trio.open_nursery() as nursery:
        failed: list[OSError] = []

        async def receiver() -> None:
            try:
                await one.receive_into(memoryview(bytearray(1)))
            except OSError as error:
                failed.append(error)

        nursery.start_soon(receiver)
        await trio.testing.wait_all_tasks_blocked()
        one.close()
        await trio.testing.wait_all_tasks_blocked()
        assert failed


async def test_a_waiting_writer_ends_with_an_os_error_on_close(world: World) -> None:
    async with connected(world) as (one, _), trio.open_nursery() as nursery:
        await fill(one, bytes(64 << 10))
        failed: list[OSError] = []

        async def writer() -> None:
            try:
                await one.wait_writable()
            except OSError as error:
                failed.append(error)

        nursery.start_soon(writer)
        await trio.testing.wait_all_tasks_blocked()
        one.close()
        await trio.testing.wait_all_tasks_blocked()
        assert failed


async def test_sending_to_a_peer_that_closed_fails_in_the_end(world: World) -> None:
    async with connected(world) as (one, other):
        other.close()
        with pytest.raises(OSError, match=r".+"):
            await send_until_it_fails(one)


async def test_a_full_stream_takes_nothing_until_the_peer_reads(world: World) -> None:
    async with connected(world) as (one, other):
        chunk = bytes(range(256)) * 256
        sent = await fill(one, chunk)
        assert sent > 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.wait_writable)
            data = await receive(other, sent)
        expected = (chunk * (sent // len(chunk) + 1))[:sent]
        # What fits is taken from the start of a chunk, so partial sends repeat its beginning.
        assert len(data) == sent
        assert data[: len(chunk)] == expected[: len(chunk)]
        assert one.send_some([b"more"]) == 4
        assert await receive(other, 4) == b"more"


async def test_a_closed_listener_ends_a_waiting_accept(world: World) -> None:
    listener = await world.server.listen(world.any_address)
    failed: list[OSError] = []

    async def accept() -> None:
        try:
            await listener.accept()
        except OSError as error:
            failed.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        await trio.testing.wait_all_tasks_blocked()
        listener.close()
    assert failed


async def test_one_listener_accepts_many(world: World) -> None:
    listener: Listener = await world.server.listen(world.any_address)
    dialed, accepted = [], []
    for number in range(5):
        dialed.append(await world.client.dial(listener.address))
        dialed[-1].send_some([bytes([number])])
    for number in range(5):
        accepted.append(await listener.accept())
        assert await receive(accepted[-1], 1) == bytes([number])
    for transport in (*dialed, *accepted):
        transport.close()
    listener.close()
