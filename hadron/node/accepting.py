"""Taking in connections, of clients and peers."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Mapping

import trio

from hadron.model.ports import Listener
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
        self.connections = 0

    async def run(self, listener: Listener) -> None:
        """Until cancelled, and all connections with it."""
        async with trio.open_nursery() as nursery:
            await self._accept(listener, nursery)

    async def _accept(self, listener: Listener, nursery: trio.Nursery) -> None:
        host, most, is_full = self._host, most_connections(), False
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
            connection = Connection(
                transport,
                dialed=False,
                handlers=self._handlers,
                cork=host.cork,
                gate=host.gate,
                budget=host.budget,
                keepalive_s=host.settings.keepalive_s,
                silence_limit_s=host.settings.silence_limit_s,
            )
            nursery.start_soon(self._connection, connection)

    async def _connection(self, connection: Connection) -> None:
        self.connections += 1
        try:
            await connection.run()
        except Exception:
            # A defect, but one connection's: the others and the node go on.
            _log.exception("serving %s failed", connection.peer)
        finally:
            self.connections -= 1
            self._on_closed(connection)
