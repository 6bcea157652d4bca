"""Taking in connections, of clients and peers."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Mapping

import trio

from hadron.model.ports import Listener, Transport
from hadron.node.host import Host
from hadron.wire.calls import Handler
from hadron.wire.connection import Connection
from hadron.wire.sockets import about_open_files, most_connections

_log = logging.getLogger(__name__)

_REFUSALS_TOLD_EVERY_S = 60.0
"""A process without a file descriptor left tries ten times a second."""


class Acceptor:
    """Takes in as many connections as the process may have open.

    Attributes:
        connections: how many are open.
    """

    def __init__(
        self, host: Host, handlers: Mapping[int, Handler], on_closed: Callable[[Connection], None]
    ) -> None:
        self._host = host
        self._handlers = handlers
        self._on_closed = on_closed
        self._nursery: trio.Nursery | None = None
        self.connections = 0

    async def run(self, listener: Listener) -> None:
        """Until cancelled, and all connections with it."""
        async with trio.open_nursery() as self._nursery:
            try:
                await self._accept(listener, self._nursery)
            finally:
                self._nursery = None

    def take_own(self, transport: Transport) -> None:
        """Take in a connection of this process's own, which is none of those that are counted.
        Raises `OSError` while nothing is taken in."""
        if self._nursery is None:
            raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        self._nursery.start_soon(self._serve, self._connection(transport))

    async def _accept(self, listener: Listener, nursery: trio.Nursery) -> None:
        doors = len(self._host.node.listening) - 1
        most, is_full = most_connections(doors), False
        refused, told_s = 0, float("-inf")
        while True:
            try:
                transport = await listener.accept()
            except OSError as error:
                refused += 1
                if trio.current_time() - told_s >= _REFUSALS_TOLD_EVERY_S:
                    _log.warning(
                        "a connection could not be accepted: %s (tried %d times since this was "
                        "last said)%s",
                        error,
                        refused,
                        f"; {about_open_files()}" if error.errno == errno.EMFILE else "",
                    )
                    refused, told_s = 0, trio.current_time()
                await trio.sleep(0.1)
                continue
            if self.connections >= most:
                if not is_full:
                    _log.warning(
                        "%d connections are open, more are closed at once; %s",
                        most,
                        about_open_files(),
                    )
                is_full = True
                transport.close()
                continue
            is_full = False
            # Not by its task: a burst is accepted before any task runs.
            self.connections += 1
            nursery.start_soon(self._serve_counted, self._connection(transport))

    def _connection(self, transport: Transport) -> Connection:
        host = self._host
        return Connection(
            transport,
            dialed=False,
            handlers=self._handlers,
            cork=host.cork,
            gate=host.gate,
            budget=host.budget,
            keepalive_s=host.settings.keepalive_s,
            silence_limit_s=host.settings.silence_limit_s,
        )

    async def _serve_counted(self, connection: Connection) -> None:
        try:
            await self._serve(connection)
        finally:
            self.connections -= 1

    async def _serve(self, connection: Connection) -> None:
        try:
            await connection.run()
        except Exception:
            # A defect, but one connection's: the others and the node go on.
            _log.exception("serving %s failed", connection.peer)
        finally:
            self._on_closed(connection)
