"""What every way to a peer has: opening calls, and the comfortable faces on top of that."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import anyio

from hadron.model.errors import DeadlineExceededError, HadronError
from hadron.wire.calls import Call, MessageStream, ignore_end, ignore_message
from hadron.wire.frames import Bytes
from hadron.wire.messages import Method


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
    ) -> Call:
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
            method, message, attachments, on_message=ignore_message, end=not method.client_streams
        )
        stream = MessageStream(call)
        try:
            yield stream
        finally:
            call.cancel()
