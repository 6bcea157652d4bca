"""Calls over one connection: request and answer, streams both ways, cancellation, keepalive.

The core is made of callbacks, not tasks: a frame that arrives is handled in the reading task, and
an answer is sent from wherever it becomes known, because each task that must be woken costs 30 to
50 µs (DESIGN §1). `request` and `open_stream` are the comfortable faces on top.

Safety rule: what waits is bounded. Unsent output above `_BACKLOG_BYTES` stops the reading of
further requests; a streaming call sends no more than its peer has given credit for.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import struct
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import anyio
import anyio.abc
from google.protobuf.message import DecodeError as _DecodeError

from hadron.model.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    FrameError,
    HadronError,
    UnknownMethodError,
)
from hadron.model.ports import Transport
from hadron.wire import frames
from hadron.wire.frames import END, NO_MESSAGE, Bytes, Frame, FrameDecoder, Kind
from hadron.wire.messages import METHODS, Method, common_pb2, error_from_message, error_to_message

_log = logging.getLogger(__name__)

_BACKLOG_BYTES: Final = 8 << 20
"""Unsent output of one connection before its requests are not read any more."""

WINDOW_BYTES: Final = 1 << 20
"""What a stream may send before its peer grants more; twice a 256 kB message in flight suffices."""

_CREDIT_STEP: Final = WINDOW_BYTES // 4
_CREDIT: Final = struct.Struct("<I")

KEEPALIVE_S: Final = 5.0
SILENCE_LIMIT_S: Final = 15.0
"""A peer that sends nothing, not even pongs, for this long is gone. Three missed pings."""


class Gate(Protocol):
    """Something that can ask for requests to wait, such as a full queue of commands."""

    @property
    def is_open(self) -> bool: ...

    async def wait_open(self) -> None: ...


class Cork:
    """Holds output back while many answers are being written, then sends it in one go.

    One cork serves a whole program: `with cork: …`, which nests. Otherwise output leaves at once.
    """

    # A context manager by hand: it is entered several times per frame, and contextlib's generator
    # costs a microsecond each time.

    def __init__(self) -> None:
        self._depth = 0
        self._waiting: dict[Connection, None] = {}

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *_exc_info: object) -> None:
        self._depth -= 1
        if self._depth == 0 and self._waiting:
            waiting, self._waiting = self._waiting, {}
            for connection in waiting:
                connection._flush()

    def flush_now_or_later(self, connection: Connection) -> None:
        if self._depth:
            self._waiting[connection] = None
        else:
            connection._flush()


class Call:
    """One exchange of messages. The same class serves the opener and the answering side.

    `on_message(message, attachment)`, `on_end(error | None)` and `on_writable()` are called from
    the reading task and must not block. `on_end` is called exactly once: with None after the peer
    said END, with the error otherwise. The attachment is valid for as long as it is referenced.
    """

    __slots__ = (
        "_connection", "_consumed", "_ended_here", "_ended_there", "_parse", "_window",
        "context", "id", "method", "on_end", "on_message", "on_writable",
    )

    def __init__(self, connection: Connection, call_id: int, method: Method, opener: bool) -> None:
        self._connection = connection
        self.id = call_id
        self.method = method
        self._parse = (method.response if opener else method.request).FromString
        self._window = WINDOW_BYTES
        self._consumed = 0
        self._ended_here = False
        self._ended_there = False
        self.on_message: Callable[[Any, memoryview], None] = _ignore_message
        self.on_end: Callable[[HadronError | None], None] = _ignore_end
        self.on_writable: Callable[[], None] = _ignore_writable
        self.context: Any = None

    @property
    def connection(self) -> Connection:
        return self._connection

    @property
    def writable(self) -> bool:
        """Whether the peer's credit and the connection allow another message of a stream."""
        return self._window > 0 and not self._ended_here and not self._connection.is_closed

    @property
    def is_open(self) -> bool:
        return not (self._ended_here and self._ended_there)

    @property
    def peer_ended(self) -> bool:
        """Whether the peer has said END, cancelled, or gone: `on_end` was called."""
        return self._ended_there

    def send(self, message: Any, attachments: Sequence[Bytes] = (), *, end: bool = False) -> None:
        """Send one message; with `end`, the last one. Never blocks; see `writable`.

        After the call has ended, for whatever reason, nothing happens: the peer is not listening.
        """
        if self._ended_here:
            return
        data = message.SerializeToString()
        self._window -= len(data) + sum(map(len, attachments))
        flags = END if end else 0
        self._connection._write(
            frames.encode(Kind.MESSAGE, self.id, data, attachments, flags=flags)
        )
        if end:
            self._end_here()

    def end(self) -> None:
        """Say that nothing more follows, without a message."""
        if not self._ended_here:
            self._connection._write(
                frames.encode(Kind.MESSAGE, self.id, flags=END | NO_MESSAGE)
            )
            self._end_here()

    def fail(self, error: HadronError) -> None:
        """End the call with an error."""
        if self._ended_here:
            return
        data = error_to_message(error).SerializeToString()
        self._connection._write(frames.encode(Kind.ERROR, self.id, data))
        self._ended_there = True
        self._end_here()

    def _abort(self, error: HadronError) -> None:
        """Handling a message failed: both sides are told, the handler's own state through
        `on_end`."""
        if self._ended_there:
            self.fail(error)
            return
        self.fail(error)
        self.on_end(error)

    def cancel(self) -> None:
        """End the call without an answer; `on_end` is not called."""
        if not self.is_open:
            return
        self.on_end = _ignore_end
        self._connection._write(frames.encode(Kind.CANCEL, self.id))
        self._ended_there = True
        self._end_here()

    def consumed(self, size: int) -> None:
        """Tell the peer that `size` bytes of a stream have been dealt with."""
        self._consumed += size
        if self._consumed >= _CREDIT_STEP and not self._ended_there:
            credit, self._consumed = self._consumed, 0
            self._connection._write(frames.encode(Kind.CREDIT, self.id, _CREDIT.pack(credit)))

    def spawn(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Run a handler that has to wait as a task of the connection; it ends with the call."""
        self._connection._spawn(self, function, args)

    def _receive(self, frame: Frame) -> None:
        if frame.kind in (Kind.MESSAGE, Kind.OPEN):
            if not frame.flags & NO_MESSAGE:
                self.on_message(self._parse(bytes(frame.message)), frame.attachment)
            if frame.flags & END:
                self._end_there(None)
        elif frame.kind is Kind.ERROR:
            error = error_from_message(common_pb2.Error.FromString(bytes(frame.message)))
            self._ended_here = True
            self._end_there(error)
        elif frame.kind is Kind.CANCEL:
            self._cancelled()
        elif frame.kind is Kind.CREDIT:
            was_writable = self._window > 0
            if len(frame.message) != _CREDIT.size:
                raise FrameError(f"a credit of {len(frame.message)} bytes has no meaning")
            self._window += _CREDIT.unpack(frame.message)[0]
            if not was_writable and self._window > 0:
                self.on_writable()

    def _cancelled(self) -> None:
        self._ended_here = True
        if self._ended_there:
            # It had said END, and `on_end` was told so; what still works on the answer is not.
            self._connection._forget(self)
            self._connection._cancel_task(self)
        else:
            self._end_there(ConnectionLostError("the caller cancelled the call"))

    def _end_here(self) -> None:
        self._ended_here = True
        if self._ended_there:
            self._connection._forget(self)

    def _end_there(self, error: HadronError | None) -> None:
        if self._ended_there:
            return
        self._ended_there = True
        if self._ended_here:
            self._connection._forget(self)
        self.on_end(error)


def _ignore_message(message: Any, attachment: memoryview) -> None:
    pass


def _refuse_message(_message: Any, _attachment: memoryview) -> None:
    raise FrameError("nothing may follow the first message of this call")


def _ignore_end(error: HadronError | None) -> None:
    pass


def _ignore_writable() -> None:
    pass


Handler = Callable[[Call, Any, memoryview], None]
"""Serves the opening message of a call; sets `call.on_message` when more may follow."""


class MessageStream:
    """The comfortable face of a streaming call: `async for message, attachment in stream`."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._received: deque[tuple[Any, memoryview]] = deque()
        self._error: HadronError | None = None
        self._ended = False
        self._arrival = anyio.Event()
        self._room = anyio.Event()
        call.on_message = self._on_message
        call.on_end = self._on_end
        call.on_writable = lambda: self._room.set()

    def _on_message(self, message: Any, attachment: memoryview) -> None:
        self._received.append((message, attachment))
        self._arrival.set()

    def _on_end(self, error: HadronError | None) -> None:
        self._ended, self._error = True, error
        self._arrival.set()
        self._room.set()

    async def send(self, message: Any, attachments: Sequence[Bytes] = ()) -> None:
        """Send one message, waiting for the peer's credit. Raises what ended the call."""
        while not self._call.writable and not self._ended:
            self._room = anyio.Event()
            await self._room.wait()
        if self._error is not None:
            raise self._error
        self._call.send(message, attachments)

    def send_now(self, message: Any, attachments: Sequence[Bytes] = ()) -> None:
        """Send without waiting for credit: for small control messages only."""
        self._call.send(message, attachments)

    def receive_now(self) -> tuple[Any, memoryview] | None:
        """The next message if one has arrived. Raises what ended the call."""
        if self._received:
            message, attachment = self._received.popleft()
            self._call.consumed(len(attachment) + message.ByteSize())
            return message, attachment
        if self._error is not None:
            raise self._error
        return None

    async def receive(self) -> tuple[Any, memoryview] | None:
        """The next message and its attachment; None after the peer said END."""
        while True:
            item = self.receive_now()
            if item is not None or self._ended:
                return item
            self._arrival = anyio.Event()
            await self._arrival.wait()

    def __aiter__(self) -> MessageStream:
        return self

    async def __anext__(self) -> tuple[Any, memoryview]:
        item = await self.receive()
        if item is None:
            raise StopAsyncIteration
        return item


class Connection:
    """One transport and the calls on it. `run` must be running for anything to happen."""

    def __init__(
        self,
        transport: Transport,
        *,
        dialed: bool,
        handlers: Mapping[int, Handler] | None = None,
        cork: Cork | None = None,
        gate: Gate | None = None,
        keepalive_s: float = KEEPALIVE_S,
        silence_limit_s: float = SILENCE_LIMIT_S,
    ) -> None:
        self._transport = transport
        self._handlers = handlers or {}
        self._cork = cork or Cork()
        self._gate = gate
        self._keepalive_s = keepalive_s
        self._silence_limit_s = silence_limit_s
        self._calls: dict[int, Call] = {}
        self._ids = itertools.count(1 if dialed else 2, 2)
        self._backlog: deque[memoryview] = deque()
        self._backlog_bytes = 0
        self._flushing = False
        self._flush_needed = anyio.Event()
        self._drained = anyio.Event()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._scopes: dict[Call, anyio.CancelScope] = {}
        self._heard = False
        self._listening = True
        self._closed: HadronError | None = None
        self._ended = anyio.Event()
        self.context: Any = None

    @property
    def peer(self) -> str:
        return self._transport.peer

    @property
    def is_closed(self) -> bool:
        return self._closed is not None

    @property
    def backlog_bytes(self) -> int:
        """Output accepted but not yet taken by the socket."""
        return self._backlog_bytes

    # --- calling --------------------------------------------------------------------------------

    def call(
        self,
        method: Method,
        message: Any,
        attachments: Sequence[Bytes] = (),
        *,
        on_message: Callable[[Any, memoryview], None],
        on_end: Callable[[HadronError | None], None] = _ignore_end,
        end: bool = True,
    ) -> Call:
        """Open a call with its first message. Raises `ConnectionLostError` when closed."""
        if self._closed is not None:
            raise ConnectionLostError(self._closed.message, self._closed.hint)
        call = Call(self, next(self._ids), method, opener=True)
        call.on_message = on_message
        call.on_end = on_end
        call._ended_here = end
        chunks = frames.encode(
            Kind.OPEN, call.id, message.SerializeToString(), attachments,
            method=method.number, flags=END if end else 0,
        )
        self._calls[call.id] = call
        self._write(chunks)
        return call

    async def request(
        self,
        method: Method,
        message: Any,
        attachments: Sequence[Bytes] = (),
        *,
        timeout_s: float | None = None,
    ) -> tuple[Any, memoryview]:
        """One question, one answer. Raises what the peer answered, or `DeadlineExceededError`."""
        done = anyio.Event()
        answer: list[tuple[Any, memoryview]] = []
        failure: list[HadronError] = []

        def on_message(message: Any, attachment: memoryview) -> None:
            answer.append((message, attachment))
            done.set()

        def on_end(error: HadronError | None) -> None:
            if error is not None:
                failure.append(error)
            done.set()

        call = self.call(method, message, attachments, on_message=on_message, on_end=on_end)
        try:
            if timeout_s is None:
                await done.wait()
            else:
                with anyio.move_on_after(timeout_s):
                    await done.wait()
        finally:
            if not done.is_set():
                call.cancel()
        if failure:
            raise failure[0]
        if not answer:
            raise DeadlineExceededError(
                f"{method} on {self.peer} gave no answer within {timeout_s:g} s"
                if timeout_s is not None
                else f"{method} on {self.peer} ended without an answer"
            )
        return answer[0]

    @contextlib.asynccontextmanager
    async def open_stream(
        self, method: Method, message: Any, attachments: Sequence[Bytes] = ()
    ) -> AsyncIterator[MessageStream]:
        """Open a streaming call; leaving the block cancels it."""
        call = self.call(
            method, message, attachments, on_message=_ignore_message, end=not method.client_streams
        )
        stream = MessageStream(call)
        try:
            yield stream
        finally:
            call.cancel()

    # --- running --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve the connection until it ends; returns normally however it ended."""
        lost: HadronError = ConnectionLostError(f"the connection to {self.peer} ended")
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                tasks.start_soon(self._flush_loop)
                tasks.start_soon(self._keepalive_loop)
                try:
                    lost = await self._read_loop()
                finally:
                    tasks.cancel_scope.cancel()
        finally:
            self.close(lost)

    def close(self, reason: HadronError | None = None) -> None:
        """Close at once; every open call ends with `reason`."""
        if self._closed is not None:
            return
        self._closed = reason or ConnectionLostError(f"the connection to {self.peer} was closed")
        self._backlog.clear()
        self._backlog_bytes = 0
        self._drained.set()
        self._flush_needed.set()
        self._transport.close()
        self._ended.set()
        calls, self._calls = list(self._calls.values()), {}
        for call in calls:
            call._ended_here = True
            try:
                call._end_there(self._closed)
            except Exception:
                # One call's handler must not keep the others from hearing of the end.
                _log.exception("ending a call of %s failed", call.method)
        for scope in list(self._scopes.values()):
            scope.cancel()

    async def wait_closed(self) -> HadronError:
        """Return, once the connection has ended, why."""
        await self._ended.wait()
        assert self._closed is not None
        return self._closed

    async def _read_loop(self) -> HadronError:
        decoder = FrameDecoder()
        while True:
            if self._gate is not None and not self._gate.is_open:
                # It is us who do not listen: no reason to call the peer silent.
                self._listening = False
                await self._gate.wait_open()
                self._listening = self._heard = True
            if self._backlog_bytes > _BACKLOG_BYTES:
                await self._wait_drained()
            try:
                count = await self._transport.receive_into(decoder.buffer())
            except OSError as error:
                return self._closed or ConnectionLostError(
                    f"the connection to {self.peer} broke: {error.strerror or error}"
                )
            if count == 0:
                where = " inside a frame" if decoder.mid_frame else ""
                return ConnectionLostError(f"{self.peer} closed the connection{where}")
            self._heard = True
            try:
                received = decoder.received(count)
                with self._cork:
                    for frame in received:
                        self._dispatch(frame)
            except FrameError as error:
                _log.warning("closing the connection from %s: %s", self.peer, error)
                data = error_to_message(error).SerializeToString()
                self._write(frames.encode(Kind.ERROR, 0, data))
                return error
            if self._closed is not None:
                return self._closed

    def _dispatch(self, frame: Frame) -> None:
        if frame.kind is Kind.OPEN:
            self._open(frame)
        elif frame.kind is Kind.PING:
            self._write(frames.encode(Kind.PONG, 0))
        elif frame.kind is Kind.PONG:
            pass
        elif frame.call == 0:
            if frame.kind is Kind.ERROR:
                error = error_from_message(_parse_message(common_pb2.Error, frame))
                raise FrameError(f"{self.peer} refused our bytes: {error.message}", error.hint)
        else:
            call = self._calls.get(frame.call)
            if call is not None:
                self._guard(call, call._receive, frame)

    def _open(self, frame: Frame) -> None:
        if frame.call == 0 or frame.call in self._calls:
            raise FrameError(f"a call was opened with the id {frame.call}, which is in use")
        if frame.flags & NO_MESSAGE:
            raise FrameError(f"call {frame.call} was opened without a message")
        method = METHODS.get(frame.method)
        handler = self._handlers.get(frame.method)
        if method is None or handler is None:
            error = UnknownMethodError(
                f"method {method or frame.method} is not served here",
                "the peer may be newer than this node, or this is not the node it means",
            )
            data = error_to_message(error).SerializeToString()
            self._write(frames.encode(Kind.ERROR, frame.call, data))
            return
        call = Call(self, frame.call, method, opener=False)
        self._calls[call.id] = call

        def opening(message: Any, attachment: memoryview) -> None:
            call.on_message = _refuse_message
            handler(call, message, attachment)

        call.on_message = opening
        self._guard(call, call._receive, frame)

    def _guard(self, call: Call, function: Callable[[Frame], None], frame: Frame) -> None:
        """Whatever goes wrong inside one call ends that call and nothing else."""
        try:
            function(frame)
        except HadronError as error:
            call._abort(error)
        except _DecodeError as error:
            call._abort(FrameError(f"the message of {call.method} does not decode: {error}"))
        except Exception:
            _log.exception("a handler of %s failed", call.method)
            call._abort(
                HadronError(f"{call.method} failed inside the node", "see the node's log")
            )

    def _spawn(
        self, call: Call, function: Callable[..., Awaitable[None]], args: tuple[Any, ...]
    ) -> None:
        assert self._tasks is not None
        scope = anyio.CancelScope()
        self._scopes[call] = scope
        on_end = call.on_end

        def ended(error: HadronError | None) -> None:
            if error is not None:
                scope.cancel()
            on_end(error)

        call.on_end = ended

        async def task() -> None:
            try:
                with scope:
                    await function(*args)
            except HadronError as error:
                call.fail(error)
            except Exception:
                _log.exception("a handler of %s failed", call.method)
                call.fail(
                    HadronError(f"{call.method} failed inside the node", "see the node's log")
                )
            finally:
                self._scopes.pop(call, None)

        self._tasks.start_soon(task)

    # --- output ---------------------------------------------------------------------------------

    def _write(self, chunks: list[Bytes]) -> None:
        if self._closed is not None:
            return
        for chunk in chunks:
            self._backlog.append(memoryview(chunk))
            self._backlog_bytes += len(chunk)
        self._cork.flush_now_or_later(self)

    def _flush(self) -> None:
        """Send what fits; what does not is left to the flushing task."""
        if not self._flushing and not self._send_backlog():
            self._flush_needed.set()

    def _send_backlog(self) -> bool:
        """Send until done (True) or the socket is full (False)."""
        backlog = self._backlog
        while backlog:
            try:
                sent = self._transport.send_some(
                    list(itertools.islice(backlog, 64)) if len(backlog) > 1 else [backlog[0]]
                )
            except OSError as error:
                self.close(
                    ConnectionLostError(
                        f"the connection to {self.peer} broke: {error.strerror or error}"
                    )
                )
                return True
            if sent == 0:
                return False
            self._backlog_bytes -= sent
            while sent:
                first = backlog[0]
                if sent < len(first):
                    backlog[0] = first[sent:]
                    break
                sent -= len(first)
                backlog.popleft()
        self._drained.set()
        return True

    async def _flush_loop(self) -> None:
        while True:
            await self._flush_needed.wait()
            self._flush_needed = anyio.Event()
            self._flushing = True
            try:
                while not self._send_backlog():
                    await self._transport.wait_writable()
            except OSError:
                return
            finally:
                self._flushing = False

    async def _wait_drained(self) -> None:
        while self._backlog_bytes > _BACKLOG_BYTES and self._closed is None:
            self._drained = anyio.Event()
            await self._drained.wait()

    async def _keepalive_loop(self) -> None:
        silent_s = 0.0
        while True:
            await anyio.sleep(self._keepalive_s)
            if self._heard or not self._listening:
                self._heard, silent_s = False, 0.0
                continue
            silent_s += self._keepalive_s
            if silent_s >= self._silence_limit_s:
                self.close(
                    ConnectionLostError(
                        f"{self.peer} was silent for {silent_s:g} s", "is it stopped or cut off?"
                    )
                )
                return
            self._write(frames.encode(Kind.PING, 0))

    def _cancel_task(self, call: Call) -> None:
        scope = self._scopes.get(call)
        if scope is not None:
            scope.cancel()

    def _forget(self, call: Call) -> None:
        self._calls.pop(call.id, None)


def _parse_message(cls: Any, frame: Frame) -> Any:
    try:
        return cls.FromString(bytes(frame.message))
    except _DecodeError as error:
        raise FrameError(f"a message does not decode: {error}") from error
