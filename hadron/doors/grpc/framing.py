"""Connect: a connection of frames to this node, for Hadron's own clients behind gRPC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from hadron.doors.grpc.limits import SMALL_BYTES
from hadron.doors.grpc.requests import parse
from hadron.doors.grpc.rpc import Talk
from hadron.model.errors import ConnectionLostError
from hadron.model.ports import Transport
from hadron.wire._pb import frames_pb2 as pb

_PART_BYTES: Final = SMALL_BYTES - 16
"""With what its message has beside it, it has room whatever other calls hold."""

DialOwn = Callable[[str], Transport]
"""For whom the node is to know by that name. Raises `ConnectionLostError` while the node takes in
no connections."""


class Framing:
    """At one door."""

    def __init__(self, dial: DialOwn) -> None:
        self._dial = dial

    async def connect(self, talk: Talk) -> None:
        transport = self._dial(talk.rpc.who)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_answer, talk, transport, nursery.cancel_scope)
                while (data := await talk.take()) is not None:
                    await _send(transport, parse(pb.FramesPart, data).data)
                    talk.rpc.consumed(len(data))
                nursery.cancel_scope.cancel()
        except* OSError as broken:
            raise ConnectionLostError("the node has closed the connection", "try again") from broken
        finally:
            transport.close()


async def _send(transport: Transport, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[transport.send_some([rest]) :]
        if rest:
            await transport.wait_writable()


async def _answer(talk: Talk, transport: Transport, whole: trio.CancelScope) -> None:
    """Until the node closes it, which ends the call."""
    buffer = memoryview(bytearray(_PART_BYTES))
    while size := await transport.receive_into(buffer):
        await talk.send(pb.FramesPart(data=bytes(buffer[:size])).SerializeToString())
    whole.cancel()
