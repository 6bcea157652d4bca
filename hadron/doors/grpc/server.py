"""gRPC's side of the door: its server, in an event loop and a thread of its own.

Calls are handed over as bytes (`Rpc`), and what the node says of them is handed back to `Remote`.
Nothing here knows a message of Hadron's, and nothing of trio's is touched.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NoReturn

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from hadron.doors.grpc.bridge import Bridge
from hadron.doors.grpc.limits import MAX_RECEIVED_BYTES, WINDOW_BYTES, WINDOW_MESSAGES, Limits
from hadron.doors.grpc.rpc import Other, Rpc
from hadron.doors.grpc.statuses import Status, status_of, unknown_method
from hadron.model.errors import DeadlineExceededError, RequestError
from hadron.wire.sockets import about_open_files, accepted_at, most_at_door

_log = logging.getLogger(__name__)

_MAX_METADATA_BYTES: Final = 16 << 10
_PING_MS: Final = 10_000
"""Programs may ask for a sign of life so often; who does more is told to go away."""

_REFLECTION: Final = "grpc.reflection.v1.ServerReflection"

_TOLD_EVERY_S: Final = 60.0

Accept = Callable[[Rpc], None]
"""Takes up a call, in the node's loop."""


class Answer:
    """gRPC's half of a call that is one message and one answer, in gRPC's loop."""

    def __init__(self) -> None:
        self._data = b""
        self._came: asyncio.Future[Status | None] = asyncio.get_running_loop().create_future()

    def send(self, data: bytes) -> None:
        self._data = data

    def finish(self, status: Status | None) -> None:
        if not self._came.done():
            self._came.set_result(status)

    def cut(self, status: Status) -> None:
        self.finish(status)

    async def get(self, context: Any) -> bytes:
        """Raises, as gRPC has it, where the call has failed."""
        if (status := await self._came) is not None:
            await end_with(context, status)
        return self._data


class Remote:
    """gRPC's half of any other call, in gRPC's loop; made by the task that writes for it."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._is_writing = False
        self._is_cut = False
        self.unsent: deque[bytes] = deque()
        self.is_finished = False
        self.status: Status | None = None
        self.news = asyncio.Event()
        self._unread_bytes = self._unread_messages = 0
        """That the node has not dealt with."""
        self.room = asyncio.Event()

    def send(self, data: bytes) -> None:
        self.unsent.append(data)
        self.news.set()

    def finish(self, status: Status | None) -> None:
        self.is_finished, self.status = True, status
        self.news.set()

    def cut(self, status: Status) -> None:
        self.unsent.clear()
        self.finish(status)
        if self._is_writing:
            # For a program that may not read.
            self._is_cut = self._task.cancel()

    async def write(self, context: Any, data: bytes) -> bool:
        """Waits until the program has room for it. Whether it was written, and not cut off."""
        self._is_writing = True
        try:
            await context.write(data)
        except asyncio.CancelledError:
            if not self._is_cut or self._task.uncancel():
                raise
            return False
        finally:
            self._is_writing = False
        return True

    def read(self, size: int) -> None:
        """A message of the program."""
        self._unread_bytes += size
        self._unread_messages += 1

    def consumed(self, size: int) -> None:
        """One was dealt with."""
        self._unread_bytes -= size
        self._unread_messages -= 1
        self.room.set()

    @property
    def is_full(self) -> bool:
        """The program has to wait."""
        return self._unread_bytes >= WINDOW_BYTES or self._unread_messages >= WINDOW_MESSAGES


async def end_with(context: Any, status: Status) -> NoReturn:
    """Raises, as gRPC has it."""
    await context.abort(status.code, status.message, status.trailers)
    raise AssertionError


class _Method:
    """One path."""

    def __init__(self, path: str, bridge: Bridge, accept: Accept, message_s: float) -> None:
        self._path = path
        self._bridge = bridge
        self._accept = accept
        self._message_s = message_s

    def _rpc(self, other: Other, on_consumed: Callable[[int], None] | None, context: Any) -> Rpc:
        metadata: dict[str, Any] = {}
        for name, value in context.invocation_metadata() or ():
            # A list, in parts, as HTTP has it; of bytes the last one counts.
            is_more = name in metadata and isinstance(value, str)
            metadata[name] = f"{metadata[name]}, {value}" if is_more else value
        return Rpc(
            self._bridge.to_grpc,
            other,
            self._path,
            metadata,
            context.peer(),
            context.time_remaining(),
            on_consumed,
        )

    async def _one(self, context: Any) -> Any:
        """The message of a call that has one."""
        late = asyncio.get_running_loop().call_later(self._message_s, self._is_late, context)
        try:
            request = await context.read()
        finally:
            late.cancel()
        if request is grpc.aio.EOF:
            error = RequestError("the call came without a message")
            return await end_with(context, status_of(error))
        return request

    def _is_late(self, context: Any) -> None:
        error = DeadlineExceededError(
            f"the call's message was not complete within {self._message_s:g} s", "send it faster"
        )
        ending = asyncio.ensure_future(end_with(context, status_of(error)))
        # Raised by who waits for the message as well.
        ending.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def unary(self, _requests: Any, context: Any) -> bytes:
        request = await self._one(context)
        answer = Answer()
        rpc = self._rpc(answer, None, context)
        to_trio = self._bridge.to_trio
        to_trio.put(self._begin, rpc, request)
        try:
            return await answer.get(context)
        finally:
            # Also when the caller has gone, or its deadline has passed.
            to_trio.put(rpc.over)

    def _begin(self, rpc: Rpc, request: bytes) -> None:
        """In the node's loop."""
        self._accept(rpc)
        rpc.receive(request)
        rpc.ended()

    async def stream(self, requests: Any, context: Any) -> None:
        remote = Remote()
        rpc = self._rpc(remote, remote.consumed, context)
        to_trio = self._bridge.to_trio
        to_trio.put(self._accept, rpc)
        reading = asyncio.ensure_future(self._read(requests, rpc, remote))
        # Why it ended is known by how the call ends.
        reading.add_done_callback(lambda task: task.cancelled() or task.exception())
        has_begun = False
        try:
            while remote.unsent or not remote.is_finished:
                if not remote.unsent:
                    remote.news.clear()
                    await remote.news.wait()
                elif not has_begun:
                    # A write does it as well, but has not done it where it is cut off.
                    has_begun = True
                    await context.send_initial_metadata(())
                else:
                    data = remote.unsent.popleft()
                    if await remote.write(context, data):
                        to_trio.put(rpc.written, len(data))
        finally:
            to_trio.put(rpc.over)
            reading.cancel()
        if remote.status is not None:
            await end_with(context, remote.status)

    async def _read(self, requests: Any, rpc: Rpc, remote: Remote) -> None:
        to_trio = self._bridge.to_trio
        async for request in requests:
            remote.read(len(request))
            to_trio.put(rpc.receive, request)
            while remote.is_full:
                remote.room.clear()
                await remote.room.wait()
        to_trio.put(rpc.ended)


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc]
    """All paths of the contract."""

    def __init__(
        self, paths: Mapping[str, bool], bridge: Bridge, accept: Accept, message_s: float
    ) -> None:
        self._handlers: dict[str, Any] = {}
        for path, is_unary in paths.items():
            method = _Method(path, bridge, accept, message_s)
            # A side that says one message only says it as a stream does. The library would wait
            # for a call's only message without an end.
            self._handlers[path] = (
                grpc.stream_unary_rpc_method_handler(method.unary)
                if is_unary
                else grpc.stream_stream_rpc_method_handler(method.stream)
            )

    def service(self, details: Any) -> Any:
        return self._handlers.get(details.method)


class _Unknown(grpc.GenericRpcHandler):  # type: ignore[misc]
    """What nobody else has a handler for: the library's own answer tells no way out."""

    def service(self, details: Any) -> Any:
        status = status_of(unknown_method(details.method))

        async def refuse(_requests: Any, context: Any) -> None:
            await end_with(context, status)

        return grpc.stream_stream_rpc_method_handler(refuse)


def _add_reflection(names: Iterable[str], server: Any) -> None:
    """Under both of its names: their messages are the same, byte by byte. The library knows the
    older one; tools ask for either."""
    servicer = reflection.aio.ReflectionServicer(names)
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        reflection_pb2.ServerReflectionRequest.FromString,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    methods = {"ServerReflectionInfo": handler}
    newer = grpc.method_handlers_generic_handler(_REFLECTION, methods)
    server.add_generic_rpc_handlers((newer,))


class GrpcServer:
    """`start`, from any thread; then `stop` in its own loop.

    Args:
        paths: of all methods, and whether one message is answered by one.
        services: names of those that reflection tells of.
        on_started: told, in the node's loop, of the port, or of why there is none.
    """

    def __init__(
        self,
        address: str,
        paths: Mapping[str, bool],
        services: Iterable[str],
        bridge: Bridge,
        accept: Accept,
        limits: Limits,
        on_started: Callable[[int | Exception], None],
        on_stopped: Callable[[], None],
    ) -> None:
        self._address = address
        self._paths = paths
        self._services = tuple(services)
        self._bridge = bridge
        self._accept = accept
        self._limits = limits
        self._most = min(limits.connections, most_at_door())
        self._on_started = on_started
        self._on_stopped = on_stopped
        self._stopping: asyncio.Event
        self._thread = threading.Thread(target=self._run, name="grpc", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """In gRPC's loop: take no more calls, wait for those that are under way, and end."""
        self._stopping.set()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        finally:
            self._bridge.to_trio.put(self._on_stopped)

    async def _serve(self) -> None:
        self._bridge.arrived(asyncio.get_running_loop())
        self._stopping = asyncio.Event()
        try:
            server = self._make()
            port = server.add_insecure_port(self._address)
            await server.start()
        except Exception as error:
            self._bridge.to_trio.put(self._on_started, error)
            return
        self._bridge.to_trio.put(self._on_started, port)
        counting = asyncio.ensure_future(self._count(port))
        await self._stopping.wait()
        counting.cancel()
        await server.stop(self._limits.drain_s)

    async def _count(self, port: int) -> None:
        """Tell of as many connections as there may be: more of them end without a trace."""
        while True:
            await asyncio.sleep(self._limits.count_s)
            count = await asyncio.to_thread(accepted_at, port, self._most)
            if count >= self._most:
                _log.warning(
                    "%d gRPC connections are open, more are closed at once: share one between "
                    "calls, or use other nodes; %s",
                    count,
                    f"a door takes {self._most}"
                    if self._most == self._limits.connections
                    else about_open_files(),
                )
                await asyncio.sleep(_TOLD_EVERY_S)

    def _make(self) -> Any:
        limits = self._limits
        keepalive_ms = round(limits.keepalive_s * 1_000)
        server = grpc.aio.server(
            handlers=[_Methods(self._paths, self._bridge, self._accept, limits.message_s)],
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_allowed_incoming_connections", self._most),
                ("grpc.server_handshake_timeout_ms", round(limits.handshake_s * 1_000)),
                ("grpc.max_receive_message_length", MAX_RECEIVED_BYTES),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", limits.streams),
                ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
                ("grpc.keepalive_time_ms", keepalive_ms),
                ("grpc.keepalive_timeout_ms", keepalive_ms),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", _PING_MS),
            ],
            maximum_concurrent_rpcs=limits.calls,
        )
        _add_reflection((*self._services, reflection.SERVICE_NAME), server)
        # Handlers are asked in their order.
        server.add_generic_rpc_handlers((_Unknown(),))
        return server
