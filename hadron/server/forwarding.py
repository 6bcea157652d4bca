"""Serves `hadron.v1.Forwarding`: calls to leaders that a client cannot dial.

A node in between opens the client's call at the leader, as the same `Forward` call, and says who
makes it; the leader serves what is in it.

Rules: calls are opened at the leader in the order in which they came, or a producer's batches would
overtake each other; what one side may send is bounded by what the other side takes, so a relay
holds a window each way, and a client that sends more unasked is refused; what waits for a leader
that reads slowly, or is still being dialed, is bounded for all clients together, first messages and
later ones, and more is refused, or ends a call that is open there; and nothing is forwarded twice,
or two nodes with contradicting directories could send a call round for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import trio

from hadron.client.connecting.background import Background
from hadron.client.connecting.links import Link
from hadron.client.connecting.ports import ClientPorts
from hadron.client.connecting.topology import OneCluster, Recognize
from hadron.model.errors import (
    ConnectionLostError,
    HadronError,
    NotFoundError,
    NotLeaderError,
    OverloadedError,
    RequestError,
    ShuttingDownError,
    UnreachableError,
)
from hadron.model.limits import MAX_PENDING_BYTES
from hadron.wire.calling import OpenedCall
from hadron.wire.calls import Handler
from hadron.wire.connection import Connection
from hadron.wire.failures import not_served
from hadron.wire.forwarded_calls import ForwardCall, ForwardedCall, caller_of
from hadron.wire.framed_calls import MAX_OWED_BYTES
from hadron.wire.messages import METHODS, Audience, Method, forward_pb2
from hadron.wire.services import Served, served
from hadron.wire.tunnel import FORWARD

_KEEPALIVE_S: Final = 1.0
_SILENCE_LIMIT_S: Final = 4.0
"""Whoever calls through a node cannot see that the leader is silent behind it, and other nodes may
still reach it. There is one such connection for each leader and node, so pings are no load."""

_MAX_UNSENT_BYTES: Final = MAX_PENDING_BYTES
"""For one leader: as much as that takes of its own clients before it stops reading."""

_SMALL_BYTES: Final = 4 << 10
"""A heartbeat, an acknowledgement, credit: while others have so much under way that values find no
room, these do, as much of them once more."""

_EACH_BYTES: Final = 512
"""What a waiting message counts beside its bytes: empty ones take memory, too."""


class ForwardingService:
    """Keeps one connection to each leader that was asked for. `run` must be running.

    Args:
        replica_set: this node's own.
        leader: the address of a replica set's leader; None for an unknown one.
        introduce: says on a connection to a leader which node this is.
        cluster: this node's own.
    """

    def __init__(
        self,
        replica_set: str,
        leader: Callable[[str], str | None],
        introduce: Callable[[Connection], None],
        ports: ClientPorts,
        cluster: str = "",
    ) -> None:
        self._replica_set = replica_set
        self._recognize = OneCluster(cluster).recognize
        self._leader = leader
        self._introduce = introduce
        self._ports = ports
        self._handlers: Mapping[int, Handler] = {}
        self._background = Background()
        self._ways: dict[str, _Way] = {}

    def serve(self, handlers: Mapping[int, Handler]) -> None:
        """From here on, serve with these what other nodes forward to this one."""
        self._handlers = handlers

    async def run(self) -> None:
        """Hold the connections, until cancelled."""
        async with self._background:
            await trio.sleep_forever()

    def methods(self) -> tuple[Served, ...]:
        pb = forward_pb2
        return (served("Forward", pb.ForwardRequest, pb.ForwardResponse, self._forward),)

    def _forward(
        self, call: ForwardCall, request: forward_pb2.ForwardRequest, attachment: memoryview
    ) -> None:
        inner = METHODS.get(request.method)
        if inner is None:
            raise not_served(request.method)
        if inner.audience is not Audience.CLIENTS:
            raise RequestError(
                f"method {inner} is not forwarded",
                "ask the node itself; only calls of clients pass through another one, and once",
            )
        if request.HasField("caller"):
            self._serve(call, inner, request, attachment)
            return
        address = self._leader(request.replica_set)
        if address is None:
            raise NotFoundError(
                f"this node knows no replica set {request.replica_set!r}", "see `hadron status`"
            )
        way = self._ways.get(address)
        if way is None:
            way = self._ways[address] = _Way(
                address, self._ports, self._background, self._introduce, self._recognize
            )
        relay = _Relay(way, call, inner, request, attachment)
        way.check_room(request.replica_set, relay.waiting_bytes)
        way.take(relay)
        # A task that ends with the call: it hears of a cancel at any time.
        call.spawn(relay.run)

    def _serve(
        self,
        call: ForwardCall,
        inner: Method,
        request: forward_pb2.ForwardRequest,
        attachment: memoryview,
    ) -> None:
        """It came through another node, and goes no further."""
        if request.replica_set != self._replica_set:
            raise NotLeaderError(
                f"this is a node of {self._replica_set}, a call to {request.replica_set} was "
                "forwarded to it",
                "see `hadron status` for who leads",
            )
        handler = self._handlers.get(inner.number)
        if handler is None:
            raise not_served(inner)
        ForwardedCall(call, inner, request.caller).open(handler, request.message, attachment)


class _Way:
    """The connection to one leader, and who waits for it."""

    def __init__(
        self,
        address: str,
        ports: ClientPorts,
        background: Background,
        introduce: Callable[[Connection], None],
        recognize: Recognize,
    ) -> None:
        self._address = address
        self._introduce = introduce
        self._background = background
        self._link = Link(
            address,
            ports,
            background,
            ShuttingDownError("the node that forwards is stopping"),
            recognize,
            keepalive_s=_KEEPALIVE_S,
            silence_limit_s=_SILENCE_LIMIT_S,
        )
        self._waiting: dict[_Relay, None] = {}
        """In the order in which they came."""
        self._waiting_bytes = 0
        """Of all of them, with what came later on their calls."""
        self._is_dialing = False

    @property
    def connection(self) -> Connection | None:
        return self._link.connection

    def check_room(self, replica_set: str, size: int) -> None:
        """Raises `OverloadedError` when so many bytes more would be too many."""
        self._check(replica_set, size, _MAX_UNSENT_BYTES)

    def _check(self, replica_set: str, size: int, max_bytes: int) -> None:
        connection = self._link.connection
        unsent = self._waiting_bytes + (connection.backlog_bytes if connection is not None else 0)
        if unsent and unsent + size > max_bytes:
            raise OverloadedError(
                f"{unsent} bytes wait to be forwarded to the leader of {replica_set} at "
                f"{self._address}, the limit is {max_bytes}",
                "it reads slowly, or cannot be reached; this was not sent there",
            )

    def take(self, relay: _Relay) -> None:
        connection = self._link.connection
        if connection is not None and not connection.is_closed and not self._waiting:
            relay.open(connection)
            return
        self._waiting[relay] = None
        self._waiting_bytes += relay.waiting_bytes
        if not self._is_dialing:
            self._is_dialing = True
            self._background.start(self._dial)

    def keep(self, relay: _Relay, replica_set: str, size: int) -> None:
        """So much more comes on a call. Raises `OverloadedError` like `check_room`."""
        is_small = size <= _SMALL_BYTES
        self._check(replica_set, size, _MAX_UNSENT_BYTES * (2 if is_small else 1))
        if relay in self._waiting:
            self._waiting_bytes += size

    def forget(self, relay: _Relay) -> None:
        """It has ended, or does not wait any longer."""
        if relay in self._waiting:
            del self._waiting[relay]
            self._waiting_bytes -= relay.waiting_bytes

    async def _dial(self) -> None:
        try:
            connection = await self._link.open()
        except HadronError as error:
            failure = UnreachableError(
                f"the leader at {self._address} cannot be reached from the node that was to "
                f"forward: {error.message}",
                error.hint,
            )
            while self._waiting:
                self._next().fail(failure)
            return
        finally:
            self._is_dialing = False
        # Before all calls, so that they are believed to be for others.
        self._introduce(connection)
        while self._waiting:
            self._next().open(connection)

    def _next(self) -> _Relay:
        relay = next(iter(self._waiting))
        self.forget(relay)
        return relay


class _Relay:
    """One call: `outer` is the client's, `inner` the one at the leader."""

    def __init__(
        self,
        way: _Way,
        outer: ForwardCall,
        method: Method,
        request: forward_pb2.ForwardRequest,
        attachment: memoryview,
    ) -> None:
        self._way = way
        self._outer = outer
        self._method = method
        self._inner: OpenedCall | None = None
        self._replica_set = request.replica_set
        self._early = [(request, attachment)]
        """What waits for the leader to be dialed: the opening message first."""
        self.waiting_bytes = _size(request, attachment)
        """Of all that has waited."""
        self._client_has_ended = False
        self._owed_to_client = 0
        """Bytes that the client has sent and the leader has not taken yet; and the other way."""
        self._owed_to_leader = 0
        self._done = trio.Event()
        outer.on_message = self._from_client
        outer.on_end = self._client_ended
        outer.on_writable = self._client_takes_more

    async def run(self) -> None:
        """Until the leader has ended the call; cancelled when the client cancels it."""
        try:
            await self._done.wait()
        finally:
            self._end()
            if self._inner is not None:
                self._inner.cancel()

    def open(self, connection: Connection) -> None:
        """Open the call at the leader and pass on what came meanwhile."""
        if self._done.is_set():
            return
        (request, attachment), *early = self._early
        self._early = []
        request.caller.CopyFrom(caller_of(self._outer))
        try:
            inner = connection.call(
                FORWARD,
                request,
                [attachment] if attachment else (),
                on_message=self._from_leader,
                on_end=self._leader_ended,
                end=not self._method.client_streams,
            )
        except HadronError as error:
            self.fail(error)
            return
        self._inner = inner
        inner.on_writable = self._leader_takes_more
        for message, attachment in early:
            inner.send(message, [attachment] if attachment else ())
        if self._client_has_ended:
            inner.end()
        elif inner.writable:
            self._leader_takes_more()

    def fail(self, error: HadronError) -> None:
        """The call cannot be opened at the leader, or not go on."""
        self._outer.fail(error)
        self._end()

    def _overflow(self, message: str, hint: str) -> None:
        """What the leader was sent may be done: it is lost, not refused, or it is done again."""
        kind = OverloadedError if self._inner is None else ConnectionLostError
        self.fail(kind(message, hint))

    def _end(self) -> None:
        self._way.forget(self)
        self._early = []
        self._done.set()

    # --- from the client ------------------------------------------------------------------------

    def _from_client(self, message: forward_pb2.ForwardRequest, attachment: memoryview) -> None:
        if self._done.is_set():
            return
        self._owed_to_client += message.ByteSize() + len(attachment)
        if self._owed_to_client > MAX_OWED_BYTES:
            self._overflow(
                f"{self._outer.peer} has sent {self._owed_to_client} bytes on {self._method} that "
                f"the leader of {self._replica_set} has not taken, the limit is {MAX_OWED_BYTES}",
                "send only what there is credit for",
            )
            return
        size = _size(message, attachment)
        try:
            self._way.keep(self, self._replica_set, size)
        except OverloadedError as error:
            self._overflow(error.message, error.hint)
            return
        if self._inner is None:
            self.waiting_bytes += size
            self._early.append((message, attachment))
            return
        self._inner.send(message, [attachment] if attachment else ())
        if self._inner.writable:
            self._leader_takes_more()

    def _leader_takes_more(self) -> None:
        owed, self._owed_to_client = self._owed_to_client, 0
        self._outer.consumed(owed)

    def _client_ended(self, error: HadronError | None) -> None:
        self._client_has_ended = True
        if error is None and self._inner is not None:
            self._inner.end()

    # --- from the leader ------------------------------------------------------------------------

    def _from_leader(self, message: forward_pb2.ForwardResponse, attachment: memoryview) -> None:
        size = message.ByteSize() + len(attachment)
        if not self._outer.has_room(size):
            # It was not asked how much that would be.
            self._overflow(
                f"{self._outer.peer} has not read the answers that it has here: this one is lost",
                "read them before you ask for more",
            )
            return
        self._owed_to_leader += size
        self._outer.send(message, [attachment] if attachment else ())
        if self._outer.writable or self._outer.ahead:
            self._client_takes_more()

    def _client_takes_more(self) -> None:
        """What it has taken, also while more is ahead of it: that may be so for long."""
        owed = self._owed_to_leader - self._outer.ahead
        if owed > 0 and self._inner is not None:
            self._owed_to_leader -= owed
            self._inner.consumed(owed)

    def _leader_ended(self, error: HadronError | None) -> None:
        if error is None:
            self._outer.end()
        else:
            self._outer.fail(error)
        self._end()


def _size(message: forward_pb2.ForwardRequest, attachment: memoryview) -> int:
    """Of one that waits."""
    return len(message.message) + len(attachment) + _EACH_BYTES
