"""Call and CallStream: endpoints of the cluster, called with the client that the node has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import trio

from hadron.client.endpoints.calls import MAX_TIMEOUT_S, told
from hadron.client.endpoints.incoming import TRACE_HEADERS
from hadron.client.endpoints.items import Packed, pack
from hadron.client.endpoints.methods import CALL_TIMEOUT_S, STREAM_TIMEOUT_S
from hadron.client.endpoints.stream import CallStream
from hadron.doors.clients import Clients
from hadron.doors.grpc.messages import value_message, value_of
from hadron.doors.grpc.requests import parse, receive_opening, senseless, whole
from hadron.doors.grpc.rpc import Rpc, Talk
from hadron.model.errors import (
    HadronError,
    InvalidRecordError,
    PeerError,
    RecordTooLargeError,
    RequestError,
)
from hadron.model.ids import DEFAULT_NAMESPACE
from hadron.wire._pb import calls_pb2 as pb
from hadron.wire._pb import records_pb2

HEADER: Final = "hadron-header-"
"""Of metadata whose names begin so, the rest is a header's name."""

_LEAST_S: Final = 0.001


class Calling:
    """At one door."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    async def call(self, talk: Talk) -> None:
        # It counts as held until the call is over.
        request = parse(pb.SingleCallRequest, await whole(talk.take()))
        asked = told(
            request.endpoint,
            _timeout_s(talk.rpc, CALL_TIMEOUT_S),
            request.region,
            headers_of(talk.rpc.metadata, request.headers),
            talk.rpc.who,
        )
        packed = pack(value_of(request.value) if request.HasField("value") else None)
        client = await self._clients.of(request.namespace or DEFAULT_NAMESPACE)
        answer = await client._endpoints.call(asked, packed)
        response = pb.SingleCallResponse(value=_answered(answer.packed), headers=answer.headers)
        await talk.send(response.SerializeToString())

    async def call_stream(self, talk: Talk) -> None:
        asked = await receive_opening(talk, pb.StreamCallRequest)
        packed = pack(value_of(asked.value)) if asked.HasField("value") else None
        # Until the call is over, as that of one with a single message does.
        talk.rpc.hold(asked.value.ByteSize())
        client = await self._clients.of(asked.namespace or DEFAULT_NAMESPACE)
        given = told(
            asked.endpoint,
            _timeout_s(talk.rpc, STREAM_TIMEOUT_S),
            asked.region,
            headers_of(talk.rpc.metadata, asked.headers),
            talk.rpc.who,
        )
        calling = CallStream(client._endpoints, given, packed, None)
        async with calling as call, trio.open_nursery() as nursery:
            nursery.start_soon(_feed, talk, call, packed is None)
            await _pass_on(talk, call)
            nursery.cancel_scope.cancel()


async def _feed(talk: Talk, call: CallStream, takes_more: bool) -> None:
    """What the program sends, up to its end.

    gRPC tells of a call that was cancelled as of one whose requests have ended: what was sent until
    then would be taken for a whole input.
    """
    while (data := await talk.receive()) is not None:
        request = parse(pb.StreamCallRequest, data)
        kind = request.WhichOneof("said")
        if kind == "end":
            await call.end()
            takes_more = False
            continue
        if kind != "value":
            raise senseless(talk, kind, "after `open` say value, then end")
        if not takes_more:
            raise RequestError(
                "a value follows the last one of the input",
                "open the call without a value, to send a stream, and end it behind all",
            )
        try:
            await call.send(value_of(request.value))
        except (InvalidRecordError, RecordTooLargeError):
            raise
        except HadronError:
            # The call is over: how it ended, or its answer, is told by who reads that.
            return
    if takes_more:
        raise RequestError("the requests ended before the input did", "say `end` first")


async def _pass_on(talk: Talk, call: CallStream) -> None:
    """The answer, value by value, with headers when they are new."""
    known: dict[str, str] = {}
    while (packed := await call._take()) is not None:
        event = pb.StreamCallEvent(value=_answered(packed))
        if call.headers != known:
            known = dict(call.headers)
            event.headers.update(known)
        await talk.send(event.SerializeToString())
    if call.headers != known:
        await talk.send(pb.StreamCallEvent(headers=call.headers).SerializeToString())


def headers_of(metadata: Mapping[str, Any], said: Mapping[str, str]) -> dict[str, str]:
    """A call's: those of a request, and those that gRPC's metadata has."""
    found = {name: text for name in TRACE_HEADERS if isinstance(text := metadata.get(name), str)}
    for name, text in metadata.items():
        if name.startswith(HEADER) and isinstance(text, str):
            found[name.removeprefix(HEADER)] = text
    return found | dict(said)


def _timeout_s(rpc: Rpc, otherwise_s: float) -> float:
    left_s = otherwise_s if rpc.left_s is None else rpc.left_s
    return min(max(left_s, _LEAST_S), MAX_TIMEOUT_S)


def _answered(packed: Packed) -> records_pb2.Value:
    encoding, data = packed
    try:
        return value_message(encoding, bytes(data))
    except UnicodeDecodeError as error:
        raise PeerError(
            f"the endpoint's server has answered with what is no text: {error}", retryable=False
        ) from None
