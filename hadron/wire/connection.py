"""One connection and the calls that it carries: reading, dispatch, output, keepalive.

A frame that arrives is handled in the reading task, and an answer is sent from wherever it becomes
known, because each task that must be woken costs 30 to 50 µs. `request` and
`open_stream` are the comfortable faces on top.

Safety rule: what waits is bounded. Unsent output above `_BACKLOG_BYTES` stops the reading of
further requests, and so does a closed gate; what may be asked for at once, and what all connections
hold together, is up to the `Budget`. Who lets what is under way stand still is cut off.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import anyio
import anyio.abc
from google.protobuf.message import DecodeError as _DecodeError

from hadron.model.errors import (
    ConnectionLostError,
    FrameError,
    HadronError,
    OverloadedError,
    StrangerError,
)
from hadron.model.ports import Transport
from hadron.model.principals import ANONYMOUS, Principal
from hadron.wire import frames
from hadron.wire.budget import Budget
from hadron.wire.calling import Caller
from hadron.wire.calls import Handler, ignore_end, refuse_message
from hadron.wire.failures import failure_of, not_served
from hadron.wire.framed_calls import FramedCall
from hadron.wire.frames import END, NO_MESSAGE, Bytes, Frame, FrameDecoder, Kind
from hadron.wire.listening import Listening
from hadron.wire.messages import METHODS, Method, common_pb2, error_from_message, error_to_message
from hadron.wire.stalls import STALL_BYTES, Progress
from hadron.wire.strangers import answer_to

_log = logging.getLogger(__name__)

_BACKLOG_BYTES: Final = 8 << 20
"""Unsent output of one connection before its requests are not read any more."""

_FRAMES_PER_TURN: Final = 16
"""Of one connection, before others have theirs: about a millisecond. Small messages come by the
thousand in one read, and who sends one at a time would wait for all of them."""

_BYTES_PER_TURN: Final = 4 << 10
"""Of their messages, without what is attached: two bytes may ask for something that takes some ten
microseconds. A frame with more has a turn of its own; what one may ask for is bounded by who serves
it (`limits.MAX_ITEMS`)."""

KEEPALIVE_S: Final = 5.0
SILENCE_LIMIT_S: Final = 15.0
"""A peer that sends nothing, not even pongs, for this long is gone. Three missed pings."""


class Gate(Protocol):
    """Something that can ask for requests to wait, such as a full queue of commands."""

    @property
    def is_open(self) -> bool: ...

    async def wait_open(self) -> None: ...

    async def wait_turn(self) -> None:
        """Somebody has had much done for it and wants more: let others go first."""
        ...


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


class Connection(Caller):
    """One transport and the calls on it. `run` must be running for anything to happen."""

    def __init__(
        self,
        transport: Transport,
        *,
        dialed: bool,
        handlers: Mapping[int, Handler] | None = None,
        cork: Cork | None = None,
        gate: Gate | None = None,
        budget: Budget | None = None,
        keepalive_s: float = KEEPALIVE_S,
        silence_limit_s: float = SILENCE_LIMIT_S,
    ) -> None:
        """`budget`: shared with other connections; by default it has one of its own."""
        self._transport = transport
        self._handlers = handlers or {}
        self._cork = cork or Cork()
        self._gate = gate
        self._budget = budget or Budget()
        self._keepalive_s = keepalive_s
        self._silence_limit_s = silence_limit_s
        self._calls: dict[int, FramedCall] = {}
        self._ids = itertools.count(1 if dialed else 2, 2)
        self._own_parity = 1 if dialed else 0
        self._answering = 0
        """Open calls that the peer has opened."""
        self._backlog: deque[memoryview] = deque()
        self._backlog_bytes = 0
        self.sent_bytes = 0
        self.reserved = 0
        self._charged = 0
        self._has_blocked = False
        """Some call was told that it may not send, for what waits already."""
        self._decoder = FrameDecoder()
        self._turn_bytes = 0
        """Of messages dealt with since others have had a turn, over several reads."""
        self._whole_frames = 0
        self._flushing = False
        self._flush_needed = anyio.Event()
        self._drained = anyio.Event()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._scopes: dict[FramedCall, anyio.CancelScope] = {}
        self._heard = False
        self._listening = Listening()
        self._closed: HadronError | None = None
        self._ended = anyio.Event()
        self.principal: Principal = ANONYMOUS

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

    @property
    def deaf_s(self) -> float:
        return self._listening.deaf_s

    # --- the budget -----------------------------------------------------------------------------

    @property
    def held(self) -> int:
        return self._backlog_bytes + self.reserved

    def settle(self) -> None:
        held = self.held
        if held != self._charged:
            change, self._charged = held - self._charged, held
            self._budget.charge(self, change)

    def share(self, budget: Budget) -> None:
        """Belong to another budget from here on."""
        if budget is self._budget:
            return
        charged, self._charged = self._charged, 0
        self._budget.release(self, charged, self._answering)
        self._budget = budget
        budget.calls += self._answering
        self.settle()

    @property
    def takes_more(self) -> bool:
        """Whether another message of a stream may be sent, as far as it is up to the bounds; if
        not, the calls are told once it may. Never again once it is closed."""
        if self._closed is not None:
            return False
        if not self._backlog_bytes or self._budget.allows(self.held):
            return True
        self._has_blocked = True
        return False

    def has_room(self, size: int) -> bool:
        """Whether so many bytes may wait to be sent beside those that do already."""
        return self._budget.has_room(self.held, size)

    @contextlib.asynccontextmanager
    async def room(self, size: int) -> AsyncIterator[int]:
        """Wait until an answer of `size` bytes may be made, or of the fewer that it yields. To be
        left once that was sent."""
        budget = self._budget
        granted = await budget.take(self, size)
        try:
            yield min(size, granted)
        finally:
            budget.give(self, granted)

    def cut(self, why: str) -> None:
        _log.warning("cut off %s: %s", self.peer, why)
        self.close(ConnectionLostError(f"{self.peer} was cut off: {why}"))

    # --- calling --------------------------------------------------------------------------------

    def call(
        self,
        method: Method,
        message: Any,
        attachments: Sequence[Bytes] = (),
        *,
        on_message: Callable[[Any, memoryview], None],
        on_end: Callable[[HadronError | None], None] = ignore_end,
        end: bool = True,
        kind: type[FramedCall] = FramedCall,
    ) -> FramedCall:
        """Open a call with its first message. Raises `ConnectionLostError` when closed."""
        if self._closed is not None:
            raise ConnectionLostError(self._closed.message, self._closed.hint)
        call = kind(self, next(self._ids), method, opener=True, ended=end)
        call.on_message = on_message
        call.on_end = on_end
        chunks = frames.encode(
            Kind.OPEN,
            call.id,
            message.SerializeToString(),
            attachments,
            method=method.number,
            flags=END if end else 0,
        )
        self._calls[call.id] = call
        self.write(chunks)
        return call

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
        self._budget.leave(self)
        self._drained.set()
        self._flush_needed.set()
        self._transport.close()
        self._ended.set()
        calls, self._calls = list(self._calls.values()), {}
        self._budget.calls -= self._answering
        self._answering = 0
        for call in calls:
            try:
                call.lose(self._closed)
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
        decoder = self._decoder
        while True:
            if self._gate is not None and not self._gate.is_open:
                # It is us who do not listen: no reason to call the peer silent.
                with self._listening.paused():
                    await self._gate.wait_open()
                self._heard = True
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
            self.heard += count
            try:
                received = decoder.received(count)
                self._whole_frames += len(received)
                self._budget.receiving(self, decoder.held_bytes)
                await self._dispatch_all(received)
            except StrangerError as error:
                return self._answer_stranger(error)
            except FrameError as error:
                _log.warning("closing the connection from %s: %s", self.peer, error)
                data = error_to_message(error).SerializeToString()
                self.write(frames.encode(Kind.ERROR, 0, data))
                return error
            if self._closed is not None:
                return self._closed

    def _answer_stranger(self, error: StrangerError) -> HadronError:
        """In its own words, where it was not us who came to the wrong place."""
        if self._own_parity:
            return StrangerError(f"{self.peer} is no port for frames: {error.message}", error.hint)
        _log.info("closing the connection from %s: %s", self.peer, error)
        self.write([answer_to(error)])
        return error

    async def _dispatch_all(self, received: list[Frame]) -> None:
        """Some at a time: a few bytes can ask for a thousand answers, and others want a turn."""
        some: list[Frame] = []
        for frame in received:
            size = len(frame.message)
            is_much = self._turn_bytes and self._turn_bytes + size > _BYTES_PER_TURN
            if is_much or len(some) >= _FRAMES_PER_TURN:
                self._dispatch_some(some)
                some, self._turn_bytes = [], 0
                await self._wait_drained()
                if self._gate is not None:
                    await self._gate.wait_turn()
            self._turn_bytes += size
            some.append(frame)
        self._dispatch_some(some)

    def _dispatch_some(self, received: list[Frame]) -> None:
        if self._closed is None:
            with self._cork:
                for frame in received:
                    self._dispatch(frame)

    def _dispatch(self, frame: Frame) -> None:
        if frame.kind is Kind.OPEN:
            self._open(frame)
        elif frame.kind is Kind.PING:
            self.write(frames.encode(Kind.PONG, 0))
        elif frame.kind is Kind.PONG:
            pass
        elif frame.call == 0:
            if frame.kind is Kind.ERROR:
                error = error_from_message(_parse_message(common_pb2.Error, frame))
                raise FrameError(f"{self.peer} refused our bytes: {error.message}", error.hint)
        else:
            call = self._calls.get(frame.call)
            if call is not None:
                self._guard(call, call.receive, frame)

    def _open(self, frame: Frame) -> None:
        if frame.call == 0 or frame.call in self._calls:
            raise FrameError(f"a call was opened with the id {frame.call}, which is in use")
        if frame.call % 2 == self._own_parity:
            raise FrameError(f"a call was opened with the id {frame.call}, which is not the peer's")
        if frame.flags & NO_MESSAGE:
            raise FrameError(f"call {frame.call} was opened without a message")
        method = METHODS.get(frame.method)
        handler = self._handlers.get(frame.method)
        if method is None or handler is None:
            data = error_to_message(not_served(method or frame.method)).SerializeToString()
            self.write(frames.encode(Kind.ERROR, frame.call, data))
            return
        if not self._budget.admits(self._answering):
            refusal = OverloadedError(
                f"{self._answering} calls are open on this connection, {self._budget.calls} on all "
                "of them: no more are taken now",
                "wait for answers, and ask again",
            )
            data = error_to_message(refusal).SerializeToString()
            self.write(frames.encode(Kind.ERROR, frame.call, data))
            return
        call = FramedCall(self, frame.call, method, opener=False)
        self._calls[call.id] = call
        self._answering += 1
        self._budget.calls += 1

        def opening(message: Any, attachment: memoryview) -> None:
            call.on_message = refuse_message
            handler(call, message, attachment)

        call.on_message = opening
        self._guard(call, call.receive, frame)

    def _guard(self, call: FramedCall, function: Callable[[Frame], None], frame: Frame) -> None:
        """Whatever goes wrong inside one call ends that call and nothing else."""
        try:
            function(frame)
        except _DecodeError as error:
            call.abort(FrameError(f"the message of {call.method} does not decode: {error}"))
        except Exception as error:
            call.abort(failure_of(call.method, error))

    def spawn(
        self, call: FramedCall, function: Callable[..., Awaitable[None]], args: tuple[Any, ...]
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
            except Exception as error:
                call.fail(failure_of(call.method, error))
            finally:
                self._scopes.pop(call, None)

        self._tasks.start_soon(task)

    # --- output ---------------------------------------------------------------------------------

    def write(self, chunks: list[Bytes]) -> None:
        if self._closed is not None:
            return
        for chunk in chunks:
            self._backlog.append(memoryview(chunk))
            self._backlog_bytes += len(chunk)
        self._cork.flush_now_or_later(self)

    def _flush(self) -> None:
        """Send what fits; what does not is left to the flushing task."""
        if self._flushing:
            # Who waits for the socket settles once that takes more: others must see this before.
            self.settle()
        elif not self._send_backlog():
            self._flush_needed.set()

    def _send_backlog(self) -> bool:
        """Send until done (True) or the socket is full (False)."""
        while self._send_waiting():
            if not self._has_blocked:
                return True
            self._unblock()
        return False

    def _send_waiting(self) -> bool:
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
                self.settle()
                return False
            self._backlog_bytes -= sent
            self.sent_bytes += sent
            while sent:
                first = backlog[0]
                if sent < len(first):
                    backlog[0] = first[sent:]
                    break
                sent -= len(first)
                backlog.popleft()
        if self._charged:
            self.settle()
        self._drained.set()
        return True

    def _unblock(self) -> None:
        """Nothing waits any more: streams may go on. What they send is sent by who called this."""
        self._has_blocked = False
        flushing, self._flushing = self._flushing, True
        try:
            for call in list(self._calls.values()):
                if call.writable:
                    call.on_writable()
        finally:
            self._flushing = flushing

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
        if self._backlog_bytes <= _BACKLOG_BYTES:
            return
        # It is us who do not listen; whoever does not read is found by what stands still.
        with self._listening.paused():
            while self._backlog_bytes > _BACKLOG_BYTES and self._closed is None:
                self._drained = anyio.Event()
                await self._drained.wait()
        self._heard = True

    async def _keepalive_loop(self) -> None:
        silent_s = 0.0
        outwards, inwards = Progress(), Progress()
        while True:
            await anyio.sleep(self._keepalive_s)
            if outwards.tick(self._backlog_bytes > 0, self.sent_bytes, self._keepalive_s):
                self.cut(
                    f"{self._backlog_bytes} bytes wait for it, and it read next to nothing for "
                    f"{outwards.stalled_s:g} s"
                )
                return
            is_inside = self._decoder.mid_frame and not self._listening.is_deaf
            came = self.heard + self._whole_frames * STALL_BYTES
            if inwards.tick(is_inside, came, self._keepalive_s):
                self.cut(
                    f"it began a frame and sent next to nothing of it for {inwards.stalled_s:g} s"
                )
                return
            if self._heard or self._listening.is_deaf:
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
            self.write(frames.encode(Kind.PING, 0))

    def cancel_task(self, call: FramedCall) -> None:
        scope = self._scopes.get(call)
        if scope is not None:
            scope.cancel()

    def forget(self, call: FramedCall) -> None:
        if self._calls.pop(call.id, None) is not None and call.id % 2 != self._own_parity:
            self._answering -= 1
            self._budget.calls -= 1


def _parse_message(cls: Any, frame: Frame) -> Any:
    try:
        return cls.FromString(bytes(frame.message))
    except _DecodeError as error:
        raise FrameError(f"a message does not decode: {error}") from error
