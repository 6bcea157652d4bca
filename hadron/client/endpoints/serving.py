"""A server of an endpoint: attached to its leader, and again whenever that is lost."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable
from typing import Any, Final, Self

import anyio
import msgspec

from hadron.client.connecting.outages import Outage
from hadron.client.connecting.reconnecting_call import ReconnectingCall
from hadron.client.endpoints.calls import EndpointCalls, spec_of
from hadron.client.endpoints.handlers import Handler
from hadron.client.endpoints.items import RECONNECT_CAP_S, Outbox, Values
from hadron.client.endpoints.runs import Runs
from hadron.client.terms.arguments import seconds_of, text_of, text_or_none_of, whole_of
from hadron.client.terms.opening import EnteredOnce
from hadron.model.errors import ClosedError, FrameError, HadronError
from hadron.model.limits import MAX_HEARTBEAT_MISSES, MAX_HEARTBEAT_MS, MAX_SERVER_CALLS
from hadron.model.schema import SchemaObject
from hadron.wire.call_items import CANCEL, CREDIT, END, OPEN, VALUE
from hadron.wire.calling import OpenedCall
from hadron.wire.messages import endpoints_pb2, method

_SERVE: Final = method("Serve")

DEFAULT_CALLS: Final = 64
SERVER_HEARTBEAT_S: Final = 0.5
SERVER_HEARTBEAT_MISSES: Final = 4
"""Who calls hears within two seconds that a server has frozen; one that is killed is known at
once."""

DRAIN_S: Final = 10.0
"""For calls that are under way when a server's block is left."""


class ServingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a program serves; the arguments of `Client.serve`."""

    endpoint: str
    max_in_flight: int
    region: str
    name: str
    heartbeat_s: float
    heartbeat_misses: int
    drain_s: float

    def checked(self) -> Self:
        """Raises `RequestError`."""
        text_of("endpoint", self.endpoint)
        whole_of("max_in_flight", self.max_in_flight, 1, MAX_SERVER_CALLS)
        text_or_none_of("region", self.region)
        text_or_none_of("name", self.name)
        seconds_of("heartbeat_s", self.heartbeat_s, 0.0, MAX_HEARTBEAT_MS / 1_000)
        whole_of("heartbeat_misses", self.heartbeat_misses, 1, MAX_HEARTBEAT_MISSES)
        seconds_of("drain_s", self.drain_s, 0.0)
        return self


class Serving(EnteredOnce):
    """A server that is attached, of `async with client.serve(...) as serving`.

    Calls are run while the block lasts; `wait` is for a program that does nothing else. Leaving it,
    or `drain`, takes no more calls, and waits for those that are under way.
    """

    def __init__(
        self, calls: EndpointCalls, handler: Callable[..., Any], settings: ServingSettings
    ) -> None:
        self._calls = calls
        self._function = handler
        self._settings = settings
        self._outbox = Outbox(endpoints_pb2.ServeRequest)
        self._runs: Runs | None = None
        self._item: SchemaObject | None = None
        self._call: OpenedCall | None = None
        self._attached = anyio.Event()
        self._is_closed = False
        self._over = anyio.Event()
        """It was closed, or has drained."""
        self._leaves_by_s = math.inf
        """What is under way is waited for until then, by all who drain."""
        self._failure: HadronError | None = None
        self._outage = Outage(
            f"endpoint {settings.endpoint!r}", "no calls come of {}", "calls of {} come again"
        )
        self._scopes: list[anyio.CancelScope] = []

    def __repr__(self) -> str:
        return f"<Serving {self}>"

    def __str__(self) -> str:
        state = "not open yet"
        if self._is_closed:
            state = "closed"
        elif self._runs is not None:
            state = f"{self._runs.count} calls" if self._call is not None else "looking for it"
        return f"of {self._settings.endpoint!r}, {state}"

    async def __aenter__(self) -> Self:
        self._enter("server")
        session = self._calls.session
        session.check_open()
        self._item = await self._calls.find(self._settings.endpoint)
        spec = spec_of(self._item)
        handler = Handler(self._function, spec)
        self._runs = Runs(
            self._settings.endpoint,
            handler,
            session.background,
            self._outbox,
            self._settings.max_in_flight,
            session.ports.clock.monotonic_s,
        )
        stream = ReconnectingCall(
            session, spec.replica_set, _SERVE, _Stream(self), cap_s=RECONNECT_CAP_S
        )
        session.on_close[self._closed] = None
        for task in (stream.run, self._outbox.run, self._beat):
            self._scopes.append(session.background.start(task))
        try:
            with anyio.move_on_after(session.request_timeout_s):
                await self._attached.wait()
        except BaseException:
            self._stop()
            raise
        if self._failure is not None:
            self._stop()
            raise self._failure
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                await self.drain()
        finally:
            self._stop()

    async def wait(self) -> None:
        """Until it is closed, or has drained. Raises what ended it: the endpoint was deleted, for
        example."""
        await self._over.wait()
        if self._failure is not None:
            raise self._failure

    async def drain(self) -> None:
        """Take no more calls, and wait for those that are under way, and until their answers are
        sent, for `drain_s` at most since that was first asked for; then `wait` returns. Calls that
        were on their way here go to other servers."""
        runs = self._runs
        if runs is None:
            return
        if not runs.is_leaving:
            runs.is_leaving = True
            self._leaves_by_s = anyio.current_time() + self._settings.drain_s
            self._say_drain()
        with anyio.CancelScope(deadline=self._leaves_by_s):
            await runs.wait_done()
            await self._outbox.wait_said()
        self._over.set()

    def _say_drain(self) -> None:
        if self._call is not None:
            self._outbox.flush()
            self._call.send(endpoints_pb2.ServeRequest(drain=True))

    def close(self) -> None:
        """Stop at once; callers of what is under way are told."""
        self._stop()

    def _closed(self) -> None:
        self._failure = self._failure or self._calls.session.closed
        self._stop()

    def _stop(self) -> None:
        self._is_closed = True
        self._calls.session.on_close.pop(self._closed, None)
        call, self._call = self._call, None
        if call is not None:
            self._outbox.flush()
            call.end()
        self._outbox.close()
        if self._runs is not None:
            self._runs.is_leaving = True
            self._runs.stop()
        for scope in self._scopes:
            scope.cancel()
        self._scopes.clear()
        if isinstance(self._failure, ClosedError):
            self._failure = None
        self._over.set()
        self._attached.set()

    async def _beat(self) -> None:
        """Say something, so that the leader knows that this program lives."""
        if not self._settings.heartbeat_s:
            return
        while True:
            await anyio.sleep(self._settings.heartbeat_s)
            if self._call is not None:
                self._call.send(endpoints_pb2.ServeRequest())

    # --- its stream -------------------------------------------------------------------------------

    def _make_opening(self) -> Any:
        settings, item = self._settings, self._item
        assert item is not None
        spec = spec_of(item)
        opening = endpoints_pb2.ServeRequest.Open(
            namespace=item.namespace,
            endpoint=item.name,
            metadata_index=item.metadata_index,
            max_in_flight=settings.max_in_flight,
            region=settings.region,
            name=settings.name or f"{socket.gethostname()}/{os.getpid()}"[:100],
            heartbeat_ms=int(settings.heartbeat_s * 1_000),
            heartbeat_misses=settings.heartbeat_misses,
            # The handler was made for these, and is not for what is declared by the next time.
            input=spec.input,
            output=spec.output,
        )
        return endpoints_pb2.ServeRequest(open=opening)

    def _on_opened(self, call: OpenedCall) -> None:
        self._call = call
        self._outbox.open(call)
        if self._runs is not None and self._runs.is_leaving:
            # The next leader does not know of it.
            self._say_drain()

    def _on_received(self, message: endpoints_pb2.ServeResponse, attachment: memoryview) -> None:
        if not message.items:
            self._attached.set()
            self._outage.over()
        values, runs = Values(attachment), self._runs
        assert runs is not None
        for item in message.items:
            kind = item.kind
            if kind == OPEN:
                runs.begin(item, values.take(item) if item.open.has_value else None)
            elif kind == VALUE:
                runs.value(item.number, values.take(item), end=item.end)
            elif kind == END:
                runs.end(item.number)
            elif kind == CANCEL:
                runs.cancel(item.number)
            elif kind == CREDIT:
                runs.credit(item.number, item.credit)
            else:
                raise FrameError(f"a leader says nothing of the kind {kind} to a server")
        if self._call is not None:
            self._call.consumed(message.ByteSize() + len(attachment))

    def _on_lost(self, error: HadronError | None) -> None:
        self._call = None
        if error is not None:
            self._outage.trouble(error)
        self._outbox.close()
        if self._runs is not None:
            self._runs.lose()

    def _on_failed(self, error: HadronError) -> None:
        self._failure = error
        self._call = None
        self._stop()


class _Stream:
    """`reconnecting_call.Owner`, for a server."""

    def __init__(self, serving: Serving) -> None:
        self.opening = serving._make_opening
        self.opened = serving._on_opened
        self.received = serving._on_received
        self.lost = serving._on_lost
        self.failed = serving._on_failed
