"""What every way to a peer has: opening calls, and the comfortable faces on top of that."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import anyio

from hadron.model.errors import DeadlineExceededError, HadronError
from hadron.wire.calls import Exchange, ignore_end, ignore_message
from hadron.wire.frames import Bytes
from hadron.wire.messages import Method

OpenedCall = Exchange[Any, Any]
"""A call, for who has opened it."""


class Caller(ABC):
    """A connection to a peer, or something that serves as one.

    Attributes:
        heard: grows with whatever comes from the peer.
    """

    heard: int = 0

    @property
    @abstractmethod
    def peer(self) -> str:
        """Who is at the other end, in words."""

    @property
    @abstractmethod
    def is_closed(self) -> bool: ...

    @abstractmethod
    def close(self, reason: HadronError | None = None) -> None:
        """Close at once; every open call ends with `reason`."""

    @abstractmethod
    def call(
        self,
        method: Method,
        message: Any,
        attachments: Sequence[Bytes] = (),
        *,
        on_message: Callable[[Any, memoryview], None],
        on_end: Callable[[HadronError | None], None] = ignore_end,
        end: bool = True,
    ) -> OpenedCall:
        """Open a call with its first message. Raises `ConnectionLostError` when closed."""

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
            if not answer:
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
            if not call.peer_ended:
                # No answer in time; or one that is not the last, and there is only one.
                call.cancel()
        if failure:
            raise failure[0]
        if not answer:
            error = DeadlineExceededError(
                f"{self.peer} does not answer (within {round(timeout_s, 1):g} s)"
                if timeout_s is not None
                else f"{self.peer} ended a call without an answer"
            )
            # For whoever has the traceback; other people do not know what methods there are.
            error.add_note(f"the call was {method}")
            raise error
        return answer[0]

    @contextlib.asynccontextmanager
    async def open_stream(
        self, method: Method, message: Any, attachments: Sequence[Bytes] = ()
    ) -> AsyncIterator[MessageStream]:
        """Open a streaming call; leaving the block cancels it."""
        call = self.call(
            method, message, attachments, on_message=ignore_message, end=not method.client_streams
        )
        stream = MessageStream(call)
        try:
            yield stream
        finally:
            call.cancel()


class MessageStream:
    """The comfortable face of a streaming call: `async for message, attachment in stream`."""

    def __init__(self, call: OpenedCall) -> None:
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
