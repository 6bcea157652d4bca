"""What serves calls at a node's gRPC door, in the node's loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from hadron.client.connecting.ports import ClientPorts
from hadron.doors.clients import Clients
from hadron.doors.credentials import Unchecked
from hadron.doors.defects import defect
from hadron.doors.grpc.calling import Calling
from hadron.doors.grpc.consuming import Consuming
from hadron.doors.grpc.exchanging import Exchanging
from hadron.doors.grpc.framing import Framing
from hadron.doors.grpc.health import CHECK, WATCH, Health
from hadron.doors.grpc.limits import Limits
from hadron.doors.grpc.publishing import Publishing
from hadron.doors.grpc.reading import Reading
from hadron.doors.grpc.relay import Relays, offered
from hadron.doors.grpc.rpc import Rpc, Talk
from hadron.doors.grpc.serving import ServingCalls
from hadron.doors.grpc.statuses import stopping, unknown_method
from hadron.doors.grpc.transacting import Transacting
from hadron.doors.grpc.working import Working
from hadron.doors.held import Held
from hadron.doors.readiness import OwnNode
from hadron.model.errors import HadronError
from hadron.model.ports import Transport
from hadron.wire.contract import DOOR_FILES


def _own() -> dict[str, bool]:
    """By path: what is served here, and whether one message is answered by one."""
    own = {
        f"/{service.full_name}/{method.name}": not (
            method.client_streaming or method.server_streaming
        )
        for file in DOOR_FILES
        for service in file.services_by_name.values()
        for method in service.methods
    }
    return own | {CHECK: True, WATCH: False}


def paths() -> dict[str, bool]:
    """All that is served, and whether one message is answered by one."""
    relayed = {
        path: not (method.client_streams or method.server_streams)
        for path, method in offered().items()
    }
    return relayed | _own()


def services() -> list[str]:
    return sorted({path.split("/")[1] for path in paths()})


class GrpcDoor:
    """`run` must be running.

    Args:
        node: which this door is in.
        dial_own: as `Relays` has it.
    """

    def __init__(
        self,
        node: OwnNode,
        ports: ClientPorts,
        dial_own: Callable[[str], Transport],
        limits: Limits | None = None,
    ) -> None:
        limits = limits or Limits()
        self._clients = clients = Clients(lambda: node.address, ports)
        self._relays = Relays(dial_own, clients.changed)
        self.held = Held(
            limits.held_bytes,
            "calls at this node's gRPC door",
            "read what was asked for, ask for less at a time, or use another node",
        )
        self._unchecked = Unchecked("`authorization` in the metadata of a gRPC call")
        self._nursery: trio.Nursery | None = None
        self.calls: dict[Rpc, None] = {}
        self._is_draining = False
        self._health = Health(node, clients, services())
        consuming = Consuming(clients, ports.clock.now_ms, ports.random)
        publishing = Publishing(clients)
        calling = Calling(clients)
        exchanging = Exchanging(clients, limits)
        transacting = Transacting(clients, consuming)
        self._served: dict[str, Callable[[Talk], Awaitable[None]]] = {
            "/hadron.v1.Records/Publish": publishing.publish,
            "/hadron.v1.Records/PublishStream": publishing.publish_stream,
            "/hadron.v1.Records/Read": Reading(clients, ports.clock.now_ms).read,
            "/hadron.v1.Records/Subscribe": consuming.subscribe,
            "/hadron.v1.Records/Transact": transacting.transact,
            "/hadron.v1.Records/Outcome": transacting.outcome,
            "/hadron.v1.Calls/Call": calling.call,
            "/hadron.v1.Calls/CallStream": calling.call_stream,
            "/hadron.v1.Calls/Serve": ServingCalls(clients).serve,
            "/hadron.v1.Messages/Publish": exchanging.publish,
            "/hadron.v1.Messages/Subscribe": exchanging.subscribe,
            "/hadron.v1.Stages/Work": Working(clients).work,
            "/hadron.v1.Frames/Connect": Framing(self._relays.dial_own).connect,
            CHECK: self._health.check,
            WATCH: self._health.watch,
        }
        assert self._served.keys() == _own().keys()
        self._is_unary = paths()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as self._nursery:
            await self._nursery.start(self._clients.run)
            await self._nursery.start(self._relays.run)
            task_status.started()

    def accept(self, rpc: Rpc) -> None:
        """Take a call up."""
        assert self._nursery is not None
        rpc.share = self.held.share()
        if self._is_draining and rpc.path != CHECK:
            rpc.fail(stopping())
            return
        self.calls[rpc] = None
        if "authorization" in rpc.metadata:
            self._unchecked.came()
        serve = self._served.get(rpc.path)
        if serve is not None:
            scope = trio.CancelScope()
            rpc.on_cancel = scope.cancel
            self._nursery.start_soon(self._serve, rpc, Talk(rpc), serve, scope)
        elif not self._relays.accept(rpc):
            rpc.fail(unknown_method(rpc.path))
        done = rpc.on_over

        def over() -> None:
            self.calls.pop(rpc, None)
            done()

        rpc.on_over = over

    def drain(self) -> None:
        """The node is about to stop: streams are told, single questions may be answered."""
        self._is_draining = True
        self._health.drain()
        for rpc in list(self.calls):
            if self._is_unary.get(rpc.path, False) or rpc.is_finished:
                continue
            if rpc.on_drain is not None:
                rpc.on_drain()
            else:
                rpc.fail(stopping())
                rpc.on_cancel()

    async def _serve(
        self,
        rpc: Rpc,
        talk: Talk,
        serve: Callable[[Talk], Awaitable[None]],
        scope: trio.CancelScope,
    ) -> None:
        try:
            # Without its port.
            with scope, self._clients.using(peer=rpc.peer.rpartition(":")[0]):
                await serve(talk)
                rpc.finish()
        except Exception as error:
            rpc.fail(failure_in(error))


def failure_in(error: Exception) -> HadronError:
    """What a program is told of it: the first error, where several tasks of a call met one."""
    found: BaseException = error
    while isinstance(found, ExceptionGroup):
        errors = found.exceptions
        found = next((each for each in errors if isinstance(each, HadronError)), errors[0])
    if isinstance(found, HadronError):
        return found
    return defect(error)
