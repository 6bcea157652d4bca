"""What callers and servers say on their streams, and what there is to know of endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import trio

from hadron.endpoints.calls import Caller, Server
from hadron.endpoints.driver import Endpoints
from hadron.endpoints.endpoint import Endpoint
from hadron.endpoints.machine import Key
from hadron.endpoints.port import Terms
from hadron.model.errors import ConnectionLostError, FrameError, HadronError, RequestError
from hadron.model.ids import DEFAULT_NAMESPACE
from hadron.model.limits import (
    MAX_CALL_ITEMS,
    MAX_HEARTBEAT_MISSES,
    MAX_HEARTBEAT_MS,
    MAX_SERVER_CALLS,
)
from hadron.server.endpoints.streams import (
    CallerStream,
    ServerStream,
    Values,
    checked_name,
    error_of,
    headers_of,
    opening_of,
)
from hadron.serving.entrance import led
from hadron.serving.leading import Leading
from hadron.wire.call_items import CANCEL, CREDIT, END, ERROR, OPEN, REFUSE, VALUE, Item
from hadron.wire.calls import Call
from hadron.wire.messages import endpoints_pb2 as pb

_MAX_LISTED: Final = 200
"""Servers of an endpoint that a description lists."""

_MAX_ALL_LISTED: Final = 4_000
"""Of all endpoints together, each with 500 bytes of names at most: they have room in a frame."""

_Calls: TypeAlias = Call[pb.CallRequest, pb.CallResponse]
_Serves: TypeAlias = Call[pb.ServeRequest, pb.ServeResponse]
_Describes: TypeAlias = Call[pb.DescribeEndpointsRequest, pb.DescribeEndpointsResponse]


# --- callers --------------------------------------------------------------------------------------


class _CallerSession:
    """A caller's stream, from its welcome to its end."""

    def __init__(self, leading: Leading, call: _Calls) -> None:
        self._driver = leading.part(Endpoints)
        self._broker = self._driver.broker
        self._call = call
        self._stream = CallerStream(self._driver, call)
        self._caller: Caller = self._broker.attach_caller(self._stream)
        call.on_message = self._received
        call.on_end = self._ended
        call.send(pb.CallResponse())

    def _received(self, message: pb.CallRequest, attachment: memoryview) -> None:
        _check_count(message.items)
        values = Values(attachment)
        try:
            for item in message.items:
                self._hear(item, values)
            values.check_end()
        finally:
            self._driver.settle()
        # What is under way is bounded call by call.
        self._call.consumed(message.ByteSize() + len(attachment))

    def _hear(self, item: Item, values: Values) -> None:
        kind = item.kind
        broker, caller, number = self._broker, self._caller, item.number
        if kind == OPEN:
            self._open(item, values)
        elif kind == VALUE:
            broker.caller_value(caller, number, values.take(item))
        elif kind == END:
            broker.caller_end(caller, number)
        elif kind == CANCEL:
            broker.caller_cancels(caller, number)
        elif kind == CREDIT:
            broker.caller_credit(caller, number, item.credit)
        else:
            raise FrameError(f"a caller says nothing of the kind {kind}")

    def _open(self, item: Item, values: Values) -> None:
        told = item.open
        key = (told.namespace or DEFAULT_NAMESPACE, told.endpoint)
        value = values.take(item) if told.has_value else None
        number = item.number
        try:
            _check_names(told)
            opening = opening_of(told, self._stream.who(told.caller))
            self._driver.check_known(key, told.metadata_index)
        except HadronError as error:
            self._broker.refuse(self._caller, number, error)
            return
        self._broker.open(self._caller, number, key, opening, value, trio.current_time())

    def _ended(self, _error: HadronError | None) -> None:
        self._driver.detach(self._stream)
        self._broker.detach_caller(self._caller)
        self._driver.settle()
        self._call.end()


def _call(leading: Leading, call: _Calls, request: pb.CallRequest, _attachment: memoryview) -> None:
    if request.items:
        raise RequestError("a caller is welcomed before it calls")
    _CallerSession(leading, call)


# --- servers --------------------------------------------------------------------------------------


class _ServerSession:
    """A server's stream."""

    def __init__(self, leading: Leading, call: _Serves, told: pb.ServeRequest.Open) -> None:
        self._driver = leading.part(Endpoints)
        self._broker = self._driver.broker
        self._call = call
        _check_names(told)
        key = (told.namespace or DEFAULT_NAMESPACE, told.endpoint)
        terms = _terms(told, call.peer)
        self._driver.check_known(key, told.metadata_index)
        self._broker.check_server(key, terms)
        self._stream = ServerStream(self._driver, call)
        self._stream.welcome()
        # Nothing is sent while it is attached.
        try:
            self._server: Server = self._broker.attach_server(
                key, self._stream, terms, trio.current_time()
            )
        except HadronError:
            self._driver.detach(self._stream)
            raise
        call.on_message = self._received
        call.on_end = self._ended
        call.on_writable = self._writable
        self._stream.on_writable = self._update
        if not call.is_open:
            # Its connection broke with the welcome: nobody will say so.
            self._ended(None)
        # From here on it is looked after, again and again.
        self._driver.due(trio.current_time())
        self._driver.settle()

    def _received(self, message: pb.ServeRequest, attachment: memoryview) -> None:
        _check_count(message.items)
        now_s = trio.current_time()
        self._broker.heard(self._server, now_s)
        values = Values(attachment)
        try:
            for item in message.items:
                self._hear(item, values, now_s)
            values.check_end()
            if message.drain:
                self._broker.drain(self._server)
        finally:
            self._driver.settle()
        self._call.consumed(message.ByteSize() + len(attachment))

    def _hear(self, item: Item, values: Values, now_s: float) -> None:
        kind = item.kind
        broker, server, number = self._broker, self._server, item.number
        if kind == VALUE:
            value = values.take(item)
            headers = headers_of(item.headers) if item.headers else {}
            broker.server_value(server, number, value, headers, now_s)
        elif kind == END:
            broker.server_end(server, number, headers_of(item.headers), now_s)
        elif kind == ERROR:
            headers = headers_of(item.headers)
            broker.server_error(server, number, error_of(item), headers, now_s)
        elif kind == CREDIT:
            broker.server_credit(server, number, item.credit)
        elif kind == REFUSE:
            broker.server_refuses(server, number, now_s)
        else:
            raise FrameError(f"a server says nothing of the kind {kind}")

    def _writable(self) -> None:
        self._stream.flush()
        self._update()
        self._driver.settle()

    def _update(self) -> None:
        self._broker.server_writable(self._server, trio.current_time())

    def _ended(self, error: HadronError | None) -> None:
        self._driver.detach(self._stream)
        lost = error or ConnectionLostError(f"{self._call.peer} serves no more")
        self._broker.detach_server(self._server, lost, trio.current_time())
        self._driver.settle()
        self._call.end()


def _terms(told: pb.ServeRequest.Open, peer: str) -> Terms:
    """Raises `RequestError`."""
    if not 1 <= told.max_in_flight <= MAX_SERVER_CALLS:
        raise RequestError(
            f"a server cannot have {told.max_in_flight} calls at a time", f"1 to {MAX_SERVER_CALLS}"
        )
    name = checked_name("server's name", told.name)
    if told.heartbeat_ms > MAX_HEARTBEAT_MS or told.heartbeat_misses > MAX_HEARTBEAT_MISSES:
        raise RequestError(
            f"heartbeats every {told.heartbeat_ms} ms with {told.heartbeat_misses} misses are out "
            "of bounds",
            f"up to {MAX_HEARTBEAT_MS} ms and {MAX_HEARTBEAT_MISSES}",
        )
    silence_s = told.heartbeat_ms * max(1, told.heartbeat_misses) / 1_000
    region = checked_name("server's region", told.region)
    shape = (told.input, told.output)
    return Terms(told.max_in_flight, region, name or peer, peer, silence_s, shape)


def _check_names(told: pb.CallOpening | pb.ServeRequest.Open) -> None:
    """Raises `RequestError` for one that no endpoint has."""
    checked_name("namespace", told.namespace)
    checked_name("endpoint's name", told.endpoint)


def _check_count(items: Sequence[Item]) -> None:
    """Raises `FrameError` for a message that others would have to wait for."""
    if len(items) > MAX_CALL_ITEMS:
        raise FrameError(
            f"{len(items)} items in one message about calls", f"send {MAX_CALL_ITEMS} at most"
        )


def _serve(
    leading: Leading, call: _Serves, request: pb.ServeRequest, _attachment: memoryview
) -> None:
    if not request.HasField("open"):
        raise RequestError("a server begins with `open`")
    _ServerSession(leading, call, request.open)


# --- looking --------------------------------------------------------------------------------------


def _describe(
    leading: Leading,
    call: _Describes,
    request: pb.DescribeEndpointsRequest,
    _attachment: memoryview,
) -> None:
    found = leading.part(Endpoints).found(request.namespace or DEFAULT_NAMESPACE, request.endpoint)
    most = min(_MAX_LISTED, _MAX_ALL_LISTED // max(1, len(found)))
    call.send(
        pb.DescribeEndpointsResponse(endpoints=[_described(*each, most) for each in found]),
        end=True,
    )


def _described(key: Key, endpoint: Endpoint, most: int) -> pb.DescribeEndpointsResponse.Endpoint:
    p50_us, p99_us = endpoint.latencies.percentiles_us()
    servers = sorted(endpoint.servers, key=lambda server: (server.terms.name, server.terms.peer))
    return pb.DescribeEndpointsResponse.Endpoint(
        namespace=key[0],
        name=key[1],
        servers=[_described_server(server) for server in servers[:most]],
        in_flight=endpoint.in_flight,
        waiting=len(endpoint.waiting),
        waiting_bytes=endpoint.waiting_bytes,
        answered=endpoint.latencies.answered,
        failed=endpoint.latencies.failed,
        p50_us=p50_us,
        p99_us=p99_us,
        more_servers=max(0, len(servers) - most),
    )


def _described_server(server: Server) -> pb.DescribeEndpointsResponse.Server:
    p50_us, p99_us = server.latencies.percentiles_us()
    return pb.DescribeEndpointsResponse.Server(
        name=server.terms.name,
        peer=server.terms.peer,
        region=server.terms.region,
        max_in_flight=server.terms.max_in_flight,
        in_flight=len(server.held),
        answered=server.latencies.answered,
        failed=server.latencies.failed,
        p50_us=p50_us,
        p99_us=p99_us,
        is_draining=server.is_leaving,
    )


METHODS: Final = (
    led("Call", pb.CallRequest, pb.CallResponse, _call),
    led("Serve", pb.ServeRequest, pb.ServeResponse, _serve),
    led("DescribeEndpoints", pb.DescribeEndpointsRequest, pb.DescribeEndpointsResponse, _describe),
)
