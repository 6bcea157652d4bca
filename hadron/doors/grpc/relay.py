"""Calls of proto/'s own methods: each becomes a call of frames to this node, or through it to the
leader of the replica set that the program names.

So who may call what, bounds, and everything that handlers do is as for any other client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

import trio
from google.protobuf.message import DecodeError

from hadron.doors.grpc.fields import MalformedError, TooManyError, split
from hadron.doors.grpc.rpc import Rpc
from hadron.model.errors import (
    ConnectionLostError,
    HadronError,
    OutcomeUnknownError,
    OverloadedError,
    RecordTooLargeError,
    RequestError,
)
from hadron.model.ids import is_valid_replica_set_name
from hadron.model.limits import MAX_ATTACHMENT_BYTES, MAX_MESSAGE_BYTES
from hadron.model.ports import Transport
from hadron.model.problems import shorten
from hadron.wire.calling import Caller, OpenedCall
from hadron.wire.connection import Connection
from hadron.wire.messages import METHODS, Audience, Method, Scope, method
from hadron.wire.tunnel import Tunnel

REPLICA_SET: Final = "hadron-replica-set"
"""Metadata: the call is for the leader of this replica set, wherever that is."""

_CHANGES: Final = (method("ApplySchema"), method("DeleteObjects"))

_ATTACHMENT: Final = 1_000
_TAG: Final = b"\xc2\x3e"
"""Of field 1000, bytes: `attachment` in every message that has one."""

_IDLE_S: Final = 30.0
_MAX_CONNECTIONS: Final = 1_000


def offered() -> dict[str, Method]:
    """By path: all that is for clients."""
    return {
        f"/hadron.v1.{each.service}/{each.name}": each
        for each in METHODS.values()
        if each.audience is Audience.CLIENTS
    }


def with_attachment(message: Any, attachment: memoryview) -> bytes:
    """As gRPC has it: the attachment is the message's last field."""
    data: bytes = message.SerializeToString()
    if not attachment:
        return data
    return b"".join((data, _TAG, _varint(len(attachment)), attachment))


def parsed(method: Method, data: bytes) -> tuple[Any, bytes]:
    """A request and its attachment. Raises `RequestError`, `RecordTooLargeError`."""
    try:
        if len(data) > MAX_MESSAGE_BYTES:
            _check_size(method, data)
        message = method.request.FromString(data)
    except (DecodeError, MalformedError, TooManyError) as error:
        name = method.request.DESCRIPTOR.full_name
        raise RequestError(f"{len(data)} bytes are no {name}: {error}", "see proto/") from None
    attachment: bytes = getattr(message, "attachment", b"")
    if attachment:
        message.ClearField("attachment")
    return message, attachment


def _check_size(method: Method, data: bytes) -> None:
    """Before it is parsed: what is large is to be one attachment, and no million of objects."""
    attached = 0
    if "attachment" in method.request.DESCRIPTOR.fields_by_name:
        attached = max(map(len, split(data, _ATTACHMENT, 1)[1]), default=0)
    size = len(data) - attached
    if attached > MAX_ATTACHMENT_BYTES or size > MAX_MESSAGE_BYTES:
        raise RecordTooLargeError(
            f"a message of {size} bytes with an attachment of {attached} is too large for {method}",
            f"at most {MAX_MESSAGE_BYTES}, and {MAX_ATTACHMENT_BYTES} of its attachment",
        )


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


class Relay:
    """One call on its way between the two."""

    def __init__(self, rpc: Rpc, method: Method, on_change: Callable[[Any], None]) -> None:
        self._rpc = rpc
        self._method = method
        self._on_change = on_change
        self._is_change = False
        self._caller: Caller | None = None
        self._call: OpenedCall | None = None
        self._unsent: deque[bytes] = deque()
        self._has_ended = False
        self._is_broken = False
        self._owed: deque[tuple[int, int]] = deque()
        """Of answers on their way to the program: bytes there, and in the call."""
        rpc.on_message = self._on_message
        rpc.on_end = self._on_end
        rpc.on_cancel = self._on_cancel
        if method.server_streams:
            rpc.on_written = self._on_written

    def begin(self, caller: Caller) -> None:
        """There is a way to the node."""
        self._caller = caller
        self._pump()

    # --- from the program -----------------------------------------------------------------------

    def _on_message(self, data: bytes) -> None:
        self._unsent.append(data)
        self._pump()

    def _on_end(self) -> None:
        self._has_ended = True
        self._pump()

    def _on_cancel(self) -> None:
        self._is_broken = True
        self._unsent.clear()
        if self._call is not None:
            self._call.cancel()

    def _pump(self) -> None:
        if self._caller is None or self._rpc.is_finished:
            return
        try:
            while self._unsent and (self._call is None or self._call.writable):
                data = self._unsent.popleft()
                self._say(*parsed(self._method, data))
                self._rpc.consumed(len(data))
        except HadronError as error:
            self._rpc.fail(error)
            self._on_cancel()
            return
        if self._has_ended and not self._unsent:
            if self._call is not None:
                self._call.end()
            else:
                self._rpc.fail(RequestError(f"{self._method} was called without a message"))

    def _say(self, message: Any, attachment: bytes) -> None:
        if self._call is not None:
            if not self._method.client_streams:
                raise RequestError(f"nothing may follow the first message of {self._method}")
            self._call.send(message, [attachment])
            return
        assert self._caller is not None
        self._is_change = self._method in _CHANGES and not message.dry_run
        self._call = self._caller.call(
            self._method,
            message,
            [attachment],
            on_message=self._answer,
            on_end=self._ended,
            end=not self._method.client_streams,
        )
        self._call.on_writable = self._pump

    # --- from the node --------------------------------------------------------------------------

    def _answer(self, message: Any, attachment: memoryview) -> None:
        if self._is_change:
            self._on_change(message)
        data = with_attachment(message, attachment)
        if self._method.server_streams:
            self._owed.append((len(data), message.ByteSize() + len(attachment)))
        self._rpc.send(data)

    def _on_written(self, _size: int) -> None:
        if self._owed and self._call is not None:
            self._call.consumed(self._owed.popleft()[1])

    def _ended(self, error: HadronError | None) -> None:
        if error is None:
            self._rpc.finish()
        elif isinstance(error, ConnectionLostError) and not _may_be_repeated(self._method):
            # It was sent. Said to be unavailable, it would be sent again by libraries.
            lost = f"it may have been done, but its answer is lost: {error.message}"
            self._rpc.fail(OutcomeUnknownError(lost, error.hint))
        else:
            self._rpc.fail(error)


def _may_be_repeated(method: Method) -> bool:
    """Whether it looks at something only, or is somebody's who is there for as long as the call:
    what was done in it counts, and the next one goes on."""
    is_membership = method.scope is Scope.CONSUME and method.client_streams
    return method.scope is Scope.READ or is_membership


class _Way:
    """A connection to this node, for one of the programs' connections."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.calls = 0
        self.was_used = True

    def caller(self, replica_set: str) -> Caller:
        """A tunnel is its call's only: a program may name any set, and nothing is kept of that."""
        return Tunnel(self.connection, replica_set) if replica_set else self.connection


class Relays:
    """`run` must be running. Each program's connection has one to this node: what one leaves unread
    is in nobody else's way.

    Args:
        dial: a connection to this node, for whom it is to know by that name; raises `OSError` while
            it takes in none.
        on_change: called with the answer to a change of the schema before the program has it.
    """

    def __init__(self, dial: Callable[[str], Transport], on_change: Callable[[Any], None]) -> None:
        self._dial = dial
        self._on_change = on_change
        self._nursery: trio.Nursery | None = None
        self._ways: dict[str, _Way] = {}
        """Of those without calls, that which has been so for longest is first."""
        self._methods = offered()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            while True:
                await trio.sleep(_IDLE_S)
                for way in list(self._ways.values()):
                    if not way.calls and not way.was_used:
                        way.connection.close()
                    way.was_used = False

    def accept(self, rpc: Rpc) -> bool:
        """Take a call up, if it is of a method that is offered."""
        method = self._methods.get(rpc.path)
        if method is None:
            return False
        replica_set = rpc.metadata.get(REPLICA_SET, "")
        if replica_set and not is_valid_replica_set_name(replica_set):
            rpc.fail(RequestError(f"{REPLICA_SET}: {shorten(replica_set)} is no replica set"))
            return True
        relay = Relay(rpc, method, self._on_change)
        try:
            way = self._open(rpc)
        except HadronError as error:
            rpc.fail(error)
        else:
            self._lead(way, rpc, relay, replica_set)
        return True

    def _lead(self, way: _Way, rpc: Rpc, relay: Relay, replica_set: str) -> None:
        way.calls += 1
        way.was_used = True

        before = rpc.on_over

        def over() -> None:
            way.calls -= 1
            if self._ways.get(rpc.peer) is way:
                self._ways[rpc.peer] = self._ways.pop(rpc.peer)
            before()

        rpc.on_over = over
        relay.begin(way.caller(replica_set))

    def _open(self, rpc: Rpc) -> _Way:
        """Named after who has said the first word on it, where a proxy speaks for several."""
        peer = rpc.peer
        way = self._ways.get(peer)
        if way is not None and not way.connection.is_closed:
            return way
        if peer not in self._ways and len(self._ways) >= _MAX_CONNECTIONS:
            self._make_room()
        transport = self.dial_own(rpc.who)
        way = self._ways[peer] = _Way(Connection(transport, dialed=True))
        assert self._nursery is not None
        self._nursery.start_soon(self._keep, peer, way)
        return way

    def _make_room(self) -> None:
        """For one more way. gRPC does not say which of the programs' connections are gone, so one
        without calls may be. Raises `OverloadedError` where there is none."""
        for peer, way in self._ways.items():
            if not way.calls:
                del self._ways[peer]
                way.connection.close()
                return
        raise OverloadedError(
            f"{_MAX_CONNECTIONS} connections have calls under way at this node's gRPC door",
            "share connections between calls, or use another node",
        )

    def dial_own(self, who: str) -> Transport:
        """A connection to this node. Raises `ConnectionLostError` while it takes in none."""
        try:
            return self._dial(who)
        except OSError as error:
            raise ConnectionLostError(
                "this node takes in no calls just now", "try again"
            ) from error

    async def _keep(self, peer: str, way: _Way) -> None:
        try:
            await way.connection.run()
        finally:
            if self._ways.get(peer) is way:
                del self._ways[peer]
