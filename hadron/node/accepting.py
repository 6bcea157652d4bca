"""Taking in connections, of clients and peers.

Safety rule: clients never have all of them. The last places are for other nodes, which nobody can
tell from clients before they have said who they are: so whoever takes one says so soon, and before
it asks for anything (BOUNDS W8).
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

import trio

from hadron.model.errors import ConnectionLostError, OverloadedError
from hadron.model.ports import Listener, Transport
from hadron.node.host import Host
from hadron.wire.calls import AnyCall, Handler, Origin
from hadron.wire.connection import Connection
from hadron.wire.messages import method
from hadron.wire.sockets import about_open_files, most_connections

_log = logging.getLogger(__name__)

_REFUSALS_TOLD_EVERY_S = 60.0
"""A process without a file descriptor left tries ten times a second."""

_FOR_UNKNOWN: Final = 32
"""Places for who has not said yet who it is. More than are accepted before others have a turn: a
node whose connection came with a burst of strangers' is heard before they have its place."""

_FOR_EACH_NODE: Final = 4
"""Places for each node that is known: it links itself, makes itself known, forwards, and its
leadership speaks of the schema and of transactions."""

INTRODUCED_WITHIN_S: Final = 5.0
"""As long as a node waits for the answer to its handshake."""

_INTRODUCTIONS: Final = frozenset(method(name).number for name in ("Handshake", "Discover"))
_BEFORE_THEM: Final = method("Topology").number
"""A node that forwards asks whom it has reached before it says who it is."""


class Acceptor:
    """Takes in as many connections as the process may have open."""

    def __init__(
        self, host: Host, handlers: Mapping[int, Handler], on_closed: Callable[[Connection], None]
    ) -> None:
        self._host = host
        self._handlers = handlers
        self._for_kept_places = {
            number: self._judging(number, handler) for number, handler in handlers.items()
        }
        self._on_closed = on_closed
        self._nursery: trio.Nursery | None = None
        self._most = 0
        self._is_full = False
        self._open: set[Origin] = set()
        self._unjudged: dict[Origin, _Unjudged] = {}
        """On places that are kept for nodes, the oldest first."""

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._open)

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
        self._nursery.start_soon(self._serve, self._connection(transport, self._handlers))

    async def _accept(self, listener: Listener, nursery: trio.Nursery) -> None:
        doors = len(self._host.node.listening) - 1
        self._most = most_connections(doors)
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
            self._take(transport, nursery)

    def _take(self, transport: Transport, nursery: trio.Nursery) -> None:
        # Counted here and not by its task: a burst is accepted before any task runs.
        if self.connections < self._for_anybody():
            self._is_full = False
            connection = self._connection(transport, self._handlers)
            self._open.add(connection)
            nursery.start_soon(self._serve_counted, connection)
            return
        if not self._is_full:
            _log.warning(
                "%d connections are open, more are closed unless other nodes have dialed them; %s",
                self.connections,
                about_open_files(),
            )
        self._is_full = True
        if self.connections >= self._most and not self._make_place():
            transport.close()
            return
        connection = self._connection(transport, self._for_kept_places)
        self._open.add(connection)
        self._unjudged[connection] = _Unjudged()
        nursery.start_soon(self._serve_counted, connection)

    # --- places that are kept for nodes ---------------------------------------------------------

    def _for_anybody(self) -> int:
        """Beyond so many connections, only nodes are kept."""
        if self.connections < self._most - self._most // 2:
            # To count the nodes takes longer, and no more than half is ever kept for them.
            return self._most - self._most // 2
        nodes = sum(len(each.nodes) for each in self._host.discovery.sets())
        return self._most - min(self._most // 2, _FOR_UNKNOWN + _FOR_EACH_NODE * nodes)

    def _make_place(self) -> bool:
        """For one more that may be a node's. The oldest that has not said who it is goes, before
        those that are about to be known: that may take as long as a write to the disk."""
        unknown = [each for each in self._unjudged if not _is_node(each)]
        if not unknown:
            return False
        silent = (each for each in unknown if not self._unjudged[each].says_who_it_is)
        self._end(next(silent, unknown[0]), "it has not said who it is, and others come")
        return True

    def _end(self, connection: Origin, why: str) -> None:
        # At once, with its place: the next one that is accepted may need that.
        self._open.discard(connection)
        self._unjudged.pop(connection, None)
        connection.close(ConnectionLostError(f"{connection.peer} was closed: {why}"))

    def _judging(self, number: int, handler: Handler) -> Handler:
        """What serves a method on such a place."""

        def serve(call: AnyCall, request: Any, attachment: memoryview) -> None:
            found = self._unjudged.get(call.origin)
            if found is not None and not _is_node(call.origin):
                if number in _INTRODUCTIONS:
                    found.says_who_it_is = True
                elif number != _BEFORE_THEM and self.connections > self._for_anybody():
                    found.is_client.set()
                    raise OverloadedError(
                        f"{self.connections} connections are open at this node, and the last "
                        "places are for other nodes",
                        about_open_files(),
                    )
            handler(call, request, attachment)

        return serve

    async def _judge(self, connection: Connection, found: _Unjudged) -> None:
        with trio.move_on_after(INTRODUCED_WITHIN_S):
            await found.is_client.wait()
        self._unjudged.pop(connection, None)
        # Where others have left meanwhile, it has a place like anybody.
        if not _is_node(connection) and self.connections > self._for_anybody():
            self._end(connection, "it is no node's, and the last places are for nodes")

    # --- serving --------------------------------------------------------------------------------

    def _connection(self, transport: Transport, handlers: Mapping[int, Handler]) -> Connection:
        host = self._host
        return Connection(
            transport,
            dialed=False,
            handlers=handlers,
            cork=host.cork,
            gate=host.gate,
            budget=host.budget,
            keepalive_s=host.settings.keepalive_s,
            silence_limit_s=host.settings.silence_limit_s,
        )

    async def _serve_counted(self, connection: Connection) -> None:
        try:
            found = self._unjudged.get(connection)
            if found is None:
                await self._serve(connection)
                return
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._judge, connection, found)
                await self._serve(connection)
                nursery.cancel_scope.cancel()
        finally:
            self._open.discard(connection)
            self._unjudged.pop(connection, None)

    async def _serve(self, connection: Connection) -> None:
        try:
            await connection.run()
        except Exception:
            # A defect, but one connection's: the others and the node go on.
            _log.exception("serving %s failed", connection.peer)
        finally:
            self._on_closed(connection)


class _Unjudged:
    """Of a connection on a place that is kept for nodes: what it has said so far.

    Attributes:
        says_who_it_is: has begun to.
        is_client: set once it has asked for what nodes do not ask before that.
    """

    def __init__(self) -> None:
        self.says_who_it_is = False
        self.is_client = trio.Event()


def _is_node(origin: Origin) -> bool:
    """Whether somebody on it says to be a node that is known (CLUSTER R11)."""
    return origin.principal.node is not None
