"""Who dials and talks: it never waits without end, and leaves no connection behind."""
# ruff: noqa: ARG001 - pytest-trio takes its clock from the arguments of a test

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from hadron.fakes.network import SimListener, SimNetwork
from hadron.model.errors import ConnectionLostError, HadronError, NotFoundError
from hadron.wire.calls import AnyCall
from hadron.wire.connection import Connection
from hadron.wire.dialing import DIAL_TIMEOUT_S, dial, talk
from hadron.wire.messages import cluster_pb2, method

STATUS = method("Status")


class Served:
    """A server of one connection after the other."""

    def __init__(self, network: SimNetwork, listener: SimListener) -> None:
        self.network, self.address = network, listener.address
        self._listener = listener
        self.accepted: list[Connection] = []

    async def run(self) -> None:
        def status(call: AnyCall, request: Any, attachment: memoryview) -> None:
            call.send(cluster_pb2.StatusResponse(node="n1"), end=True)

        async with trio.open_nursery() as nursery:
            while True:
                self.accepted.append(
                    Connection(
                        await self._listener.accept(),
                        dialed=False,
                        handlers={STATUS.number: status},
                    )
                )
                nursery.start_soon(self.accepted[-1].run)

    async def dial(self) -> Connection:
        return await dial(self.network.host("client"), self.address)

    async def hung_up(self) -> str:
        """What the server was told of the end of the only connection that there was."""
        (connection,) = self.accepted
        with trio.fail_after(1):
            return str(await connection.wait_closed())


@asynccontextmanager
async def serving() -> AsyncIterator[Served]:
    network = SimNetwork()
    served = Served(network, await network.host("server").listen("server:0"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(served.run)
        yield served
        nursery.cancel_scope.cancel()


async def status(connection: Connection) -> str:
    answer, _ = await connection.request(STATUS, cluster_pb2.StatusRequest(), timeout_s=1)
    return str(answer.node)


async def test_an_answer_is_brought_home_and_the_connection_closed(
    autojump_clock: MockClock,
) -> None:
    async with serving() as served:
        connection = await served.dial()
        assert await talk(connection, status) == "n1"
        assert connection.is_closed
        assert await served.hung_up() == "client:40001 closed the connection"


@pytest.mark.parametrize("timeout_s", [0.5, None])
async def test_a_network_that_drops_packets_is_waited_for_so_long(
    autojump_clock: MockClock, timeout_s: float | None
) -> None:
    async with serving() as served:
        served.network.cut("client", "server")
        began_s = trio.current_time()
        options: dict[str, Any] = {} if timeout_s is None else {"timeout_s": timeout_s}
        limit_s = timeout_s or DIAL_TIMEOUT_S
        with pytest.raises(OSError, match=f"^no connection within {limit_s:g} s$") as caught:
            await dial(served.network.host("client"), served.address, **options)
        assert isinstance(caught.value, TimeoutError)
        assert trio.current_time() - began_s == pytest.approx(limit_s)
        assert not served.accepted


async def test_who_is_not_there_is_told_apart_from_who_does_not_answer() -> None:
    with pytest.raises(ConnectionRefusedError):
        await dial(SimNetwork().host("client"), "server:1")


@pytest.mark.parametrize("error", [NotFoundError("no"), OSError("disk"), ValueError("a bug")])
async def test_what_a_conversation_raises_comes_out_as_it_is(
    autojump_clock: MockClock, error: Exception
) -> None:
    async def fails(connection: Connection) -> None:
        await status(connection)
        raise error

    async with serving() as served:
        connection = await served.dial()
        caught: BaseException | None = None
        try:
            await talk(connection, fails)
        except BaseException as found:
            caught = found
        assert caught is error
        assert connection.is_closed
        await served.hung_up()


async def test_who_hangs_up_is_met_by_the_next_call(autojump_clock: MockClock) -> None:
    async def goes_on(connection: Connection) -> str:
        await status(connection)
        served.accepted[0].close()
        await connection.wait_closed()
        return await status(connection)

    async with serving() as served:
        connection = await served.dial()
        caught: HadronError | None = None
        try:
            await talk(connection, goes_on)
        except HadronError as error:
            caught = error
        assert isinstance(caught, ConnectionLostError)
        assert caught.message == f"{served.address} closed the connection"


async def test_a_conversation_that_is_given_up_closes_its_connection(
    autojump_clock: MockClock,
) -> None:
    async def waits(connection: Connection) -> None:
        await status(connection)
        await trio.sleep_forever()

    async with serving() as served:
        connection = await served.dial()
        with trio.move_on_after(3) as scope:
            await talk(connection, waits)
        assert scope.cancelled_caught
        assert connection.is_closed
        await served.hung_up()


async def test_options_reach_the_connection(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A peer that says nothing is given up after the silence that whoever dials allows."""
    caplog.set_level(logging.CRITICAL)
    network = SimNetwork()
    listener = await network.host("server").listen("server:0")
    connection = await dial(
        network.host("client"), listener.address, keepalive_s=0.2, silence_limit_s=0.6
    )
    silent = await listener.accept()
    with trio.fail_after(5):
        ended = await talk(connection, Connection.wait_closed)
    silent.close()
    assert isinstance(ended, ConnectionLostError)
    assert trio.current_time() < 2
