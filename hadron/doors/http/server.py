"""The listening side: connections, as many as are allowed, of HTTP/1.1 and of HTTP/2."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from hadron.doors.http.asgi import App
from hadron.doors.http.draining import Draining
from hadron.doors.http.h1 import PREFACE, Connection, refusal_bytes
from hadron.doors.http.h1_requests import RefusedError
from hadron.doors.http.limits import Limits
from hadron.model.ports import Listener, Transport
from hadron.wire.sockets import most_at_door, split_address

if TYPE_CHECKING:
    from hadron.doors.http.h2c import H2

_log = logging.getLogger(__name__)

_TOLD_EVERY_S = 60.0
_LINGERING = 32
"""Connections over the limit that are told so at once; more are just closed."""


class Server:
    """Of one application.

    Attributes:
        connections: how many are open.
    """

    def __init__(self, app: App, limits: Limits) -> None:
        self._app = app
        self._limits = limits
        self._h2: H2 | None = None
        self._told_s = float("-inf")
        self._refusing = 0
        self.connections = 0
        self._draining = Draining()
        self.most = min(limits.connections, most_at_door())

    def drain(self) -> None:
        """The node is about to stop: nobody is let in any more, who is there and asks for nothing
        is let go, and whoever does is told not to ask again. Whoever closes the listener says so
        first."""
        self._draining.begin()

    async def run(self, listener: Listener) -> None:
        """Until cancelled, and all connections with it."""
        server = split_address(listener.address)
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    transport = await listener.accept()
                except OSError as error:
                    if self._draining.has_begun:
                        return
                    self._tell(f"a connection could not be accepted: {error}")
                    await trio.sleep(0.1)
                    continue
                if self.connections >= self.most:
                    self._tell(f"{self.connections} HTTP connections are open, more are refused")
                    if self._refusing >= _LINGERING:
                        transport.close()
                    else:
                        self._refusing += 1
                        nursery.start_soon(self._refuse, transport, server)
                    continue
                self.connections += 1
                nursery.start_soon(self._serve, transport, server)

    def _tell(self, text: str) -> None:
        now = trio.current_time()
        if now - self._told_s >= _TOLD_EVERY_S:
            self._told_s = now
            _log.warning("%s", text)

    async def _serve(self, transport: Transport, server: tuple[str, int]) -> None:
        try:
            first = await self._first(transport)
            if first.startswith(PREFACE):
                await self._serve_h2(transport, first, server)
            elif first:
                await self._connection(transport, server).run(first)
        except OSError as error:
            _log.debug("%s: %s", transport.peer, error)
        except Exception:
            # A defect, but one connection's: the others and the node go on.
            _log.exception("serving %s failed", transport.peer)
        finally:
            self.connections -= 1
            transport.close()

    def _connection(self, transport: Transport, server: tuple[str, int]) -> Connection:
        return Connection(transport, self._app, self._limits, server, self._draining)

    async def _first(self, transport: Transport) -> bytes:
        """What comes first, as much as tells the protocols apart."""
        buffer = memoryview(bytearray(16 << 10))
        first = b""
        with self._draining.until(), trio.move_on_after(self._limits.head_s):
            while len(first) < len(PREFACE) and PREFACE.startswith(first):
                size = await transport.receive_into(buffer)
                if not size:
                    return b""
                first += buffer[:size]
        return first

    async def _serve_h2(self, transport: Transport, first: bytes, server: tuple[str, int]) -> None:
        if self._h2 is None:
            from hadron.doors.http.h2c import H2

            self._h2 = H2(self._app, self._limits, server, self._draining)
        host, _, port = transport.peer.rpartition(":")
        client = (host.strip("[]"), int(port) if port.isdecimal() else 0)
        await self._h2.serve(transport, first, client)

    async def _refuse(self, transport: Transport, server: tuple[str, int]) -> None:
        """Say that there are too many, and go."""
        connection = self._connection(transport, server)
        try:
            with trio.move_on_after(self._limits.head_s):
                await connection.write(
                    refusal_bytes(
                        RefusedError(
                            503,
                            f"{self.connections} connections are open at this node",
                            "close some, or use another node",
                        )
                    )
                )
                await connection.linger()
        except OSError as error:
            _log.debug("%s: %s", transport.peer, error)
        finally:
            self._refusing -= 1
            transport.close()
