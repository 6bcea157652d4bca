"""What a client offers of endpoints: part of it, and a module of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Final

from hadron.client.connecting.session import Session
from hadron.client.endpoints.calls import NOTHING, EndpointCalls, check_answer_type, told, unpack
from hadron.client.endpoints.items import pack
from hadron.client.endpoints.serving import (
    DEFAULT_CALLS,
    DRAIN_S,
    SERVER_HEARTBEAT_MISSES,
    SERVER_HEARTBEAT_S,
    Serving,
    ServingSettings,
)
from hadron.client.endpoints.stream import CallStream
from hadron.client.schema.catalog import Catalog
from hadron.client.terms.arguments import check_handler, patience_of
from hadron.client.terms.opening import Opening
from hadron.client.terms.results import EndpointLife, EndpointServer
from hadron.wire.messages import endpoints_pb2

CALL_TIMEOUT_S: Final = 30.0
STREAM_TIMEOUT_S: Final = 3_600.0
"""Streams last; one that is to be open longer says so, for a day at most."""


class EndpointMethods:
    """Its methods are those of `Client`."""

    _session: Session
    _catalog: Catalog

    @cached_property
    def _endpoints(self) -> EndpointCalls:
        return EndpointCalls(self._session, self._catalog)

    async def call(
        self,
        endpoint: str,
        value: Any = None,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
        region: str = "",
        headers: Mapping[str, str] | None = None,
        answer_type: Any = None,
    ) -> Any:
        """Call an endpoint with a value, bytes, str or anything JSON, and return its answer.

        Within a handler, a call takes over what is left of the time of the call that it serves, and
        its `traceparent` and `tracestate`. Headers of the answer are told by `call_stream`, which
        calls such an endpoint as well: `async with client.call_stream("quote", value) as call`, and
        `call.headers` behind `await call.result()`.

        Args:
            timeout_s: after so long without an answer nobody works on it any more.
            region: servers whose region begins with it, up to a `/` or `.`, come first.
            headers: small texts by name, for the handler.
            answer_type: what the answer is made into: a dataclass, a `msgspec.Struct`, a model of
                pydantic, or plain types; None leaves it as it was sent.

        Raises:
            CallFailedError: the handler has raised an error; `.type` is its type.
            NoServerError: nobody serves the endpoint; it was not run.
            OverloadedError: all servers are busy, and too many wait; it was not run.
            DeadlineExceededError: no answer within `timeout_s`.
            CallUnknownError: a server or a leader was lost with it; it may have run. (Where the
                endpoint is declared `idempotent` it was given to others before.)
        """
        asked = told(endpoint, timeout_s, region, headers)
        check_answer_type(answer_type)
        answer = await self._endpoints.call(asked, pack(value))
        return unpack(answer.packed, answer_type, endpoint)

    def call_stream(
        self,
        endpoint: str,
        value: Any = NOTHING,
        *,
        timeout_s: float = STREAM_TIMEOUT_S,
        region: str = "",
        headers: Mapping[str, str] | None = None,
        answer_type: Any = None,
    ) -> Opening[CallStream]:
        """Call an endpoint whose input or answer is a stream, or whose answer's `headers` matter:
        `async with client.call_stream("sum") as call`, and in it `await call.send(1)`,
        `await call.result()`, or `async for value in call`.

        Args:
            value: of an endpoint that takes one value; else the input is what is sent.
            timeout_s: until all of the answer has come.

        The others, and errors, are those of `call`.
        """
        asked = told(endpoint, timeout_s, region, headers)
        check_answer_type(answer_type)
        packed = None if value is NOTHING else pack(value)

        async def make() -> CallStream:
            return CallStream(self._endpoints, asked, packed, answer_type)

        return Opening(make, "call", "call_stream", f"to {endpoint!r}")

    def serve(
        self,
        endpoint: str,
        handler: Callable[..., Any],
        *,
        max_in_flight: int = DEFAULT_CALLS,
        region: str = "",
        name: str = "",
        heartbeat_s: float = SERVER_HEARTBEAT_S,
        heartbeat_misses: int = SERVER_HEARTBEAT_MISSES,
        drain_s: float = DRAIN_S,
    ) -> Opening[Serving]:
        """Serve an endpoint: `async with client.serve("quote", handler) as serving`, and, if the
        program does nothing else, `await serving.wait()` in it.

        `handler(value)`, or `handler(value, call)` with an `IncomingCall`, gets the value, decoded
        into what it is annotated with, or an iterator of values where the input is a stream; it
        returns the answer, or yields it where that is a stream. A coroutine function runs in the
        event loop, any other one in a thread. What it raises goes to the caller, by type and text;
        the traceback goes to the log here. A `CallFailedError` goes as it is.

        Args:
            max_in_flight: calls that this server has at a time; others go elsewhere, or wait.
            region: where it is, for callers that prefer one.
            name: what it is called in descriptions and errors; "" is host and process.
            heartbeat_s: it says something at least this often; 0 is never.
            heartbeat_misses: after so many intervals of silence its callers are told that it is
                lost.
            drain_s: when the block is left, calls that are under way have so long to end.
        """
        check_handler(handler, "a value, or a value and the call")
        settings = ServingSettings(
            endpoint=endpoint,
            max_in_flight=max_in_flight,
            region=region,
            name=name,
            heartbeat_s=heartbeat_s,
            heartbeat_misses=heartbeat_misses,
            drain_s=drain_s,
        ).checked()

        async def make() -> Serving:
            return Serving(self._endpoints, handler, settings)

        return Opening(make, "server", "serve", f"of {endpoint!r}")

    async def endpoints(
        self, endpoint: str = "", *, within_s: float | None = None
    ) -> list[EndpointLife]:
        """The endpoints of the namespace, or one of them, with the servers that are there now."""
        found = await self._endpoints.describe(
            endpoint, timeout_s=patience_of(within_s, "within_s")
        )
        return [_life(each) for each in found]


def _life(told: endpoints_pb2.DescribeEndpointsResponse.Endpoint) -> EndpointLife:
    return EndpointLife(
        told.name,
        [
            EndpointServer(
                each.name,
                each.peer,
                each.region,
                each.max_in_flight,
                each.in_flight,
                each.answered,
                each.failed,
                each.p50_us / 1_000,
                each.p99_us / 1_000,
                each.is_draining,
            )
            for each in told.servers
        ],
        told.more_servers,
        told.in_flight,
        told.waiting,
        told.answered,
        told.failed,
        told.p50_us / 1_000,
        told.p99_us / 1_000,
    )
