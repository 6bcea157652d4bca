"""The leader's side of a call that came through another node: inside a `Forward` call, which the
node has opened for somebody else (CLUSTER R11)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeAlias

from google.protobuf.message import DecodeError

from hadron.model.errors import FrameError, HadronError
from hadron.model.ids import is_valid_name, is_valid_replica_set_name
from hadron.model.principals import NodeName, Principal, claimed
from hadron.wire.calls import (
    Call,
    Handler,
    Origin,
    ignore_end,
    ignore_message,
    ignore_writable,
    refuse_message,
)
from hadron.wire.frames import Bytes
from hadron.wire.messages import Method, forward_pb2

_AHEAD_BYTES: Final = 13 << 20
"""What a client may be sent beyond its credit: three of the largest answers to calls of endpoints.
The node in between keeps it, and ends the call once the client's connection would hold more than
`budget.CONNECTION_BYTES` there."""

ForwardCall: TypeAlias = Call[forward_pb2.ForwardRequest, forward_pb2.ForwardResponse]
Caller = forward_pb2.ForwardRequest.Caller


def vouched(sender: Principal, caller: Caller) -> Principal:
    """Who makes a call that `sender` says to have been sent by `caller`. Pure.

    A node that is known here is believed. Whoever else says such a thing calls for itself.

    Raises `FrameError` for names that no node has.
    """
    if sender.node is None:
        return sender
    if not (caller.node or caller.replica_set):
        return Principal(forwarded_by=sender.node)
    if not (is_valid_name(caller.node) and is_valid_replica_set_name(caller.replica_set)):
        raise FrameError(f"{sender} forwards for somebody whose name no node has")
    return Principal(NodeName(caller.replica_set, caller.node), forwarded_by=sender.node)


def caller_of(call: ForwardCall) -> Caller:
    """What a node that forwards says of whoever calls it."""
    node = call.principal.node
    if node is None:
        return Caller(peer=call.peer)
    return Caller(peer=call.peer, replica_set=node.replica_set, node=node.node)


class ForwardedCall:
    """`calls.Call` inside of another one, whose messages carry those of this one."""

    def __init__(self, outer: ForwardCall, method: Method, caller: Caller) -> None:
        """Raises `FrameError` like `vouched`."""
        self.outer = outer
        self.method = method
        self.principal = vouched(outer.principal, caller)
        forwarder = self.principal.forwarded_by
        self.peer = (
            outer.peer if forwarder is None else f"{claimed(caller.peer)} through {forwarder}"
        )
        self.on_message: Callable[[Any, memoryview], None] = ignore_message
        self.on_end: Callable[[HadronError | None], None] = ignore_end
        self.on_writable: Callable[[], None] = ignore_writable

    def open(self, handler: Handler, message: bytes, attachment: memoryview) -> None:
        """Have it served; raises what the handler raises."""
        self.outer.on_message = self._receive
        self.outer.on_end = self._ended
        self.outer.on_writable = self._became_writable
        self.on_message = refuse_message
        handler(self, self._parse(message), attachment)

    def _parse(self, message: bytes) -> Any:
        try:
            return self.method.request.FromString(message)
        except DecodeError as error:
            raise FrameError(f"the message of {self.method} does not decode: {error}") from error

    def _receive(self, outer: forward_pb2.ForwardRequest, attachment: memoryview) -> None:
        # Whoever serves this call counts its own messages; the sender has counted these.
        self.outer.consumed(outer.ByteSize() - len(outer.message))
        self.on_message(self._parse(outer.message), attachment)

    def _ended(self, error: HadronError | None) -> None:
        self.on_end(error)

    def _became_writable(self) -> None:
        self.on_writable()

    @property
    def origin(self) -> Origin:
        return self.outer.origin

    @property
    def writable(self) -> bool:
        return self.outer.writable

    @property
    def ahead(self) -> int:
        return self.outer.ahead

    @property
    def is_open(self) -> bool:
        return self.outer.is_open

    @property
    def peer_ended(self) -> bool:
        return self.outer.peer_ended

    def send(self, message: Any, attachments: Sequence[Bytes] = (), *, end: bool = False) -> None:
        wrapped = forward_pb2.ForwardResponse(message=message.SerializeToString())
        self.outer.send(wrapped, attachments, end=end)

    def end(self) -> None:
        self.outer.end()

    def fail(self, error: HadronError) -> None:
        self.outer.fail(error)

    def cancel(self) -> None:
        self.outer.cancel()

    def consumed(self, size: int) -> None:
        self.outer.consumed(size)

    def has_room(self, size: int) -> bool:
        return self.ahead + size <= _AHEAD_BYTES and self.outer.has_room(size)

    def room(self, size: int) -> AbstractAsyncContextManager[int]:
        return self.outer.room(size)

    def spawn(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        self.outer.spawn(function, *args)

    def spawn_within(self, size: int, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        self.outer.spawn_within(size, function, *args)
