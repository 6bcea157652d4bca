"""A running node: its process, from the data directory to the listening port, over every opening of
that directory."""

from __future__ import annotations

import logging
from typing import Final

import trio

from hadron.model.errors import ConfigurationError, CorruptionError, NotReadyError
from hadron.model.extras import install
from hadron.model.ports import Clock, Disk, Listener, Network, Random, Transport
from hadron.node.causes import damage_in
from hadron.node.discovery import Discovery
from hadron.node.host import Host, membership_of
from hadron.node.member import Member
from hadron.node.replica_set import ReplicaSetConfig
from hadron.partition.gate import ByteGate
from hadron.serving.leading import Door
from hadron.state.features import MACHINE
from hadron.state.machine import StateMachine
from hadron.wire.budget import Budget
from hadron.wire.connection import Cork
from hadron.wire.messages import cluster_pb2

_log = logging.getLogger(__name__)

_LOCKED_PAUSE_S: Final = 0.5


class Node:
    """One node of a cluster. `run` serves until cancelled or until it must stop.

    Attributes:
        member: what it is since it last opened its data directory; none before `run`.
        ended_by: what it could not survive; its log says so.
        http_address, grpc_address: where its doors listen; "" without one.
        waits_for: in words, while a door closes that has somebody in it; else "".
    """

    member: Member

    def __init__(
        self,
        config: ReplicaSetConfig,
        name: str,
        *,
        clock: Clock,
        random: Random,
        network: Network,
        disk: Disk,
        machine: StateMachine = MACHINE,
    ) -> None:
        """`machine` is what the log drives: another one than this version's is for tests."""
        self.ended_by: BaseException | None = None
        self.http_address = self.grpc_address = self.waits_for = ""
        started_ms, cork = clock.now_ms(), Cork()
        self.discovery = Discovery(
            config,
            name,
            uuid=lambda: self.member.identity.uuid,
            agreed=lambda: self.member.is_agreed(),
            started_ms=started_ms,
            network=network,
            random=random,
            cork=cork,
        )
        self.host = Host(
            config=config,
            node=config.node(name),
            membership=membership_of(config, name, machine),
            machine=machine,
            clock=clock,
            random=random,
            network=network,
            disk=disk,
            discovery=self.discovery,
            cork=cork,
            gate=ByteGate(config.settings.max_pending_bytes),
            budget=Budget(),
            door=Door(name, config.leader.name, config.leader.address),
            started_ms=started_ms,
        )

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve, over its doors too. `task_status` is told when listening.

        Raises what `run_inside` raises, and `ConfigurationError` for a door's address.
        """
        # Who has no door pays nothing for it: neither time at a start, nor memory.
        if self.host.node.grpc is None:
            await self._run_with_http(task_status)
        else:
            try:
                from hadron.node.grpc_door import run_with_grpc
            except ImportError as error:
                raise ConfigurationError(
                    f"node {self.host.node.name} has `grpc:`, and what serves it is not "
                    f"installed: {error}",
                    f"{install('grpc')}; or leave the key out",
                ) from error

            await run_with_grpc(self, self._run_with_http, task_status)

    async def _run_with_http(self, task_status: trio.TaskStatus[None]) -> None:
        if self.host.node.http is None:
            await self.run_inside(task_status)
        else:
            from hadron.node.http_door import run_with_door

            await run_with_door(self, task_status)

    async def run_inside(
        self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Open the data directory, listen, and serve. `task_status` is told when listening.

        Raises `DataDirectoryError`, `ConfigurationError` for an address that cannot be bound, and
        whatever forced the node to stop.
        """
        listener: Listener | None = None
        is_whole = gave_up = is_told = False
        try:
            while True:
                self.ended_by = None
                member = self.member = await self._open(gave_up=gave_up)
                try:
                    if listener is None:
                        # Not after a snapshot: what this node promises while it runs, it keeps.
                        member.check_epoch()
                    member.assemble()
                    listener = listener or await self._listen()
                    await member.run(listener, task_status)
                except (CorruptionError, ExceptionGroup) as caught:
                    error = damage_in(caught)
                    if error is None:
                        raise
                    if not member.may_set_aside(error):
                        is_told = True
                        raise error from None
                    gave_up = True
                    member.set_aside(error)
                finally:
                    is_whole = member.close()
                    self.ended_by = member.ended_by
                await member.install()
                if listener is not None:
                    task_status = trio.TASK_STATUS_IGNORED
        finally:
            if listener is not None:
                listener.close()
            # Of a start that was refused, and of damage, the error says everything.
            if listener is not None and self.ended_by is None and not is_told:
                _log.info(
                    "stopped, %s",
                    "everything is in the database file"
                    if is_whole
                    else "the next start goes through the write-ahead log",
                )

    async def _open(self, *, gave_up: bool) -> Member:
        """The data directory; waits while another program has its `node.db` locked. Raises
        `DataDirectoryError`."""
        said = ""
        while True:
            try:
                return Member(self.host, gave_up=gave_up)
            except NotReadyError as error:
                if str(error) != said:
                    said = str(error)
                    _log.warning("waiting: %s", said)
            await trio.sleep(_LOCKED_PAUSE_S)

    async def _listen(self) -> Listener:
        node = self.host.node
        try:
            listener = await self.host.network.listen(node.listens_on)
        except OSError as error:
            raise ConfigurationError(
                f"node {node.name} cannot listen on {node.listens_on}: {error.strerror or error}",
                "is another process using the port? change `address:`, or stop that process; where "
                "`address:` is not one of this machine's own, `listen:` says what is",
            ) from error
        if node.listen is None:
            # Port 0 has become one that is free.
            self.discovery.listens_at(listener.address)
        return listener

    @property
    def address(self) -> str:
        """Where others dial it."""
        return self.discovery.address

    # What its doors ask, which are open a little earlier than it is anything.

    def take_own(self, transport: Transport) -> None:
        """Serve a connection from one of its own doors. Raises `OSError` while it takes in none."""
        if not hasattr(self, "member"):
            raise ConnectionRefusedError(f"node {self.host.node.name} is starting")
        self.member.acceptor.take_own(transport)

    def status(self) -> cluster_pb2.StatusResponse:
        """This node, as it sees itself. Raises `NotReadyError` before it is anything."""
        if not hasattr(self, "member"):
            raise NotReadyError(f"node {self.host.node.name} is starting", "ask again")
        return self.member.status()
