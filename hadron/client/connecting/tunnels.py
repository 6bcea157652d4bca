"""Leaders that a client cannot dial: reached through nodes that it can.

A tunnel costs a hop and holds up two nodes, so it is the second choice: the leader is dialed again
every few seconds, and once that works new calls go there.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import anyio

from hadron.client.connecting import probes
from hadron.model.errors import ConnectionLostError, HadronError
from hadron.wire.calling import Caller
from hadron.wire.connection import Connection
from hadron.wire.tunnel import Tunnel

if TYPE_CHECKING:
    from hadron.client.connecting.session import Session

_log = logging.getLogger(__name__)

_NEXT_S: Final = 0.3
"""For one node to find a way, before another one is asked as well."""

_TRIED: Final = 8
"""Nodes asked for one way, at most."""

_AGAIN_S: Final = 5.0
"""From one try to dial the leader to the next; one for each client and leader is no load."""


class Tunnels:
    """One client's ways to leaders through other nodes."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._tunnels: dict[str, Tunnel] = {}
        self._left: dict[str, list[Tunnel]] = {}
        """Those that take no more calls, while some are under way there."""
        self._doubted: dict[str, anyio.Event] = {}
        """Of each that is in use: set when it owes an answer."""
        self._tries = 0

    def now(self, replica_set: str) -> Tunnel | None:
        """The way that is in use, if there is one and it works."""
        tunnel = self._tunnels.get(replica_set)
        return None if tunnel is None or tunnel.is_closed else tunnel

    def has(self, replica_set: str) -> bool:
        """Whether the leader could not be dialed lately."""
        return replica_set in self._tunnels

    async def open(self, replica_set: str) -> Tunnel | None:
        """A way to a leader that cannot be dialed, one that it has answered through; None when
        there is none through the nodes that were tried. Each time others come first.

        Where a region is cut off, many nodes may not reach it either, and take seconds to say so or
        are silent themselves: the next one is tried meanwhile.
        """
        session = self._session
        self._tries += 1
        around: list[Connection] = session.open_now(but_leader_of=replica_set)
        try:
            around = around or [await session.connect_any(but_leader_of=replica_set)]
        except HadronError as error:
            _log.debug("no way to the leader of %s: %s", replica_set, error)
        first = self._tries % max(1, len(around))
        found: list[Tunnel] = []

        async def attempt(connection: Connection, ended: anyio.Event) -> None:
            tunnel = Tunnel(connection, replica_set)
            try:
                await probes.ask(tunnel)
                found.append(tunnel)
                tasks.cancel_scope.cancel()
            except HadronError as error:
                _log.debug("no way to the leader of %s: %s", replica_set, error)
            ended.set()

        async with anyio.create_task_group() as tasks:
            for connection in (around[first:] + around[:first])[:_TRIED]:
                ended = anyio.Event()
                tasks.start_soon(attempt, connection, ended)
                with anyio.move_on_after(_NEXT_S):
                    await ended.wait()
        if not found:
            return None
        known = self._tunnels.get(replica_set)
        tunnel = self._tunnels[replica_set] = found[0]
        if known is not None:
            self._retire(replica_set, known)
        else:
            _log.info("the leader of %s is reached: %s", replica_set, tunnel.peer)
            self._doubted[replica_set] = anyio.Event()
            session.background.start(self._redial, replica_set)
        return tunnel

    def doubt(self, way: Caller) -> None:
        """It owes an answer for longer than usual: if it is a tunnel, its leader is dialed now; but
        once, as a leader without a majority owes answers for long, too.

        Where a region is cut off, and soon after it is back the one through which it was reached,
        a client would else wait for both until the silence of its tunnel is noticed.
        """
        for replica_set, tunnel in self._tunnels.items():
            if tunnel is way and not way.is_closed:
                self._doubted[replica_set].set()

    def leave(self, replica_set: str, reason: HadronError) -> None:
        """Somebody else leads: end what waits for the old one."""
        tunnels = self._left.pop(replica_set, [])
        if replica_set in self._tunnels:
            tunnels.append(self._tunnels[replica_set])
        for tunnel in tunnels:
            tunnel.close(reason)

    def _retire(self, replica_set: str, tunnel: Tunnel) -> None:
        tunnel.retire()
        left = [*self._left.pop(replica_set, []), tunnel]
        if busy := [each for each in left if each.has_calls]:
            self._left[replica_set] = busy

    async def _redial(self, replica_set: str) -> None:
        """Until the leader can be dialed."""
        while self._session.closed is None:
            doubted = self._doubted[replica_set]
            with anyio.move_on_after(_AGAIN_S):
                await doubted.wait()
            if is_doubted := doubted.is_set():
                self._doubted[replica_set] = anyio.Event()
            try:
                # By its address first: who only tries must not raise doubts about a leader that
                # answers through the tunnel. (Each vain try would stop all new calls for as long
                # as a dial takes.)
                address = self._session.topology.leader(replica_set)
                if address is not None:
                    await self._session.connect_to(address)
                await self._session.dial_leader(replica_set)
            except HadronError as error:
                _log.debug("still no direct way to %s: %s", replica_set, error)
                if is_doubted:
                    await anyio.sleep(_AGAIN_S)
                continue
            _log.info("the leader of %s is reached directly again", replica_set)
            tunnel = self._tunnels.pop(replica_set)
            if is_doubted or self._doubted[replica_set].is_set():
                # What is under way there is sent again, as it is.
                tunnel.close(ConnectionLostError(f"{tunnel.peer} owes an answer for too long"))
            self._retire(replica_set, tunnel)
            return
