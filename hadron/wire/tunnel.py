"""Calls to the leader of a replica set through another node (`proto/hadron/v1/forward.proto`).

A `Tunnel` serves as the connection that cannot be had. Each of its calls is a `Forward` call on the
node's connection, whose messages carry those of the inner call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final
from weakref import WeakValueDictionary

from hadron.model.errors import ConnectionLostError, HadronError
from hadron.wire.calling import Caller
from hadron.wire.calls import ignore_end
from hadron.wire.connection import Connection
from hadron.wire.framed_calls import FramedCall
from hadron.wire.frames import NO_MESSAGE, Bytes, Frame, Kind
from hadron.wire.messages import METHODS, Method, forward_pb2, method

FORWARD: Final = method("Forward")


class TunnelledCall(FramedCall):
    """The opener's side of a call through a tunnel: wraps what is sent, unwraps what comes."""

    __slots__ = ("__weakref__", "tunnel")

    tunnel: Tunnel

    def send(self, message: Any, attachments: Sequence[Bytes] = (), *, end: bool = False) -> None:
        wrapped = forward_pb2.ForwardRequest(message=message.SerializeToString())
        super().send(wrapped, attachments, end=end)

    def receive(self, frame: Frame) -> None:
        self.tunnel.heard += 1
        if frame.kind is Kind.MESSAGE and not frame.flags & NO_MESSAGE:
            inner = forward_pb2.ForwardResponse.FromString(bytes(frame.message)).message
            # Whoever reads the call counts inner bytes; the peer has counted these.
            self.consumed(len(frame.message) - len(inner))
            frame = frame._replace(message=memoryview(inner))
        super().receive(frame)


@cache
def _tunnelled(number: int) -> Method:
    """`Forward`, answered with the messages of another method."""
    inner = METHODS[number]
    return replace(FORWARD, service=inner.service, name=inner.name, response=inner.response)


class Tunnel(Caller):
    """The leader of `replica_set`, through a node that is connected."""

    def __init__(self, connection: Connection, replica_set: str) -> None:
        self._connection = connection
        self._replica_set = replica_set
        self._calls: WeakValueDictionary[int, FramedCall] = WeakValueDictionary()
        self._closed: HadronError | None = None

    @property
    def peer(self) -> str:
        return f"{self._replica_set} through {self._connection.peer}"

    @property
    def is_closed(self) -> bool:
        return self._closed is not None or self._connection.is_closed

    def call(
        self,
        method: Method,
        message: Any,
        attachments: Sequence[Bytes] = (),
        *,
        on_message: Callable[[Any, memoryview], None],
        on_end: Callable[[HadronError | None], None] = ignore_end,
        end: bool = True,
    ) -> FramedCall:
        if self._closed is not None:
            raise ConnectionLostError(self._closed.message, self._closed.hint)
        opening = forward_pb2.ForwardRequest(
            replica_set=self._replica_set, method=method.number, message=message.SerializeToString()
        )
        call = self._connection.call(
            _tunnelled(method.number),
            opening,
            attachments,
            on_message=on_message,
            on_end=on_end,
            end=end,
            kind=TunnelledCall,
        )
        assert isinstance(call, TunnelledCall)
        call.tunnel = self
        self._calls[call.id] = call
        return call

    @property
    def has_calls(self) -> bool:
        """Whether some call is under way."""
        return any(not call.peer_ended for call in self._calls.values())

    def close(self, reason: HadronError | None = None) -> None:
        """End all calls, also those that go on after `retire`."""
        self._closed = reason or ConnectionLostError(f"the way to {self.peer} was closed")
        for call in [each for each in self._calls.values() if not each.peer_ended]:
            on_end = call.on_end
            call.cancel()
            on_end(self._closed)

    def retire(self) -> None:
        """Take no more calls; those under way go on."""
        if self._closed is None:
            self._closed = ConnectionLostError(f"there is a better way than {self.peer}")
