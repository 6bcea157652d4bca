"""Answers that go on while something happens: server-sent events, or lines of NDJSON.

What is written waits for who reads it, so that whoever reads slowly slows down what it comes from;
and it ends when the other side is gone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

import trio

from hadron.doors.http.call import Call, DisconnectedError
from hadron.doors.http.door import Door
from hadron.doors.http.limits import Limits
from hadron.doors.http.problems import body_of
from hadron.doors.http.reading import SECURITY_HEADERS
from hadron.model.errors import HadronError, ShuttingDownError

EVENTS: Final = "text/event-stream"

PIECE_BYTES: Final = 64 << 10
"""Written in one go, and then as much as there is."""

RETRY_MS: Final = 1_000
"""Told to `EventSource`: a leader's restart takes a second or two, and browsers wait three."""

Work = Callable[[], Awaitable[None]]

T = TypeVar("T")


class Live:
    """One such answer. Its status is said with the first word: until then what is wrong has one.

    Attributes:
        has_started: the status is out.
        writing: held by who says what belongs together.
    """

    def __init__(self, call: Call, limits: Limits, media: str) -> None:
        self._call = call
        self._every_s = limits.heartbeat_s
        self._media = media
        self._wrote_s = trio.current_time()
        self.has_started = False
        self.writing = trio.Lock()

    @property
    def is_events(self) -> bool:
        return self._media == EVENTS

    async def send(self, body: bytes, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """With `writing` held. `headers` are of the first word. Raises `OSError` where the other
        side is gone, or reads nothing."""
        if not self.has_started:
            self.has_started = True
            said = [(b"content-type", self._media.encode()), *SECURITY_HEADERS, *headers]
            await self._call.send({"type": "http.response.start", "status": 200, "headers": said})
        await self._call.send({"type": "http.response.body", "body": body, "more_body": True})
        self._wrote_s = trio.current_time()

    async def say(self, body: bytes, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        async with self.writing:
            await self.send(body, headers)

    @contextmanager
    def open_at(self, door: Door) -> Iterator[None]:
        """While it is made; this block is left once the node is about to stop. Raises `HttpError`
        where too many are open, and `ShuttingDownError` where it had not started by then."""
        with door.following(), door.draining.until():
            yield
        if not self.has_started:
            raise ShuttingDownError(
                "the node is stopping", "use another one, or this one a little later"
            )

    async def run(self, work: Work, gone: Work) -> None:
        """Until `work` is done. What it raises is told: by a status, or else as the last event or
        line, behind which an answer in lines is cut off, so that nobody takes it for a whole one.

        Args:
            gone: returns once whoever asked is gone. What it raises ends `work`, and is told.

        Raises `HadronError`, `DisconnectedError`, `OSError`.
        """
        try:
            await unless_gone(lambda: self._with_beat(work), gone)
        except HadronError as error:
            if not self.has_started:
                raise
            await self.say(self.word("error", body_of(error)))
            if not self.is_events:
                raise
        if not self.has_started:
            await self.say(b"")
        await self._call.send({"type": "http.response.body", "body": b"", "more_body": False})

    def word(self, kind: str, data: bytes) -> bytes:
        """`data`, which is JSON on a line, as an event of that kind or as a line; "" is the kind
        that all have who say nothing of it."""
        if not self.is_events:
            return data + b"\n"
        return (b"event: %b\n" % kind.encode() if kind else b"") + b"data: %b\n\n" % data

    async def _with_beat(self, work: Work) -> None:
        async with trio.open_nursery() as nursery:
            if self.is_events:
                nursery.start_soon(self._beat)
            await work()
            nursery.cancel_scope.cancel()

    async def _beat(self) -> None:
        """Say that a quiet stream of events is open. (Lines have no such word.)"""
        while True:
            await trio.sleep(self._every_s)
            if trio.current_time() - self._wrote_s >= self._every_s:
                await self.say(b":\n\n")


async def unless_gone(work: Callable[[], Awaitable[T]], gone: Work) -> T:
    """What `work` returns; it is cancelled once `gone` returns, as it does when nobody waits for it
    any more. Raises what either raises, and `DisconnectedError`."""
    found: list[T] = []
    failures: list[Exception] = []
    async with trio.open_nursery() as nursery:

        async def listen() -> None:
            try:
                await gone()
            except Exception as error:
                failures.append(error)
            nursery.cancel_scope.cancel()

        nursery.start_soon(listen)
        try:
            found.append(await work())
        except Exception as error:
            failures.append(_first_of(error))
        except BaseExceptionGroup as group:
            # It failed, or something in it, while it was cancelled.
            failed, others = group.split(Exception)
            if others is not None and others.split(trio.Cancelled)[1] is not None:
                raise
            if failed is not None:
                failures.append(_first_of(failed))
        nursery.cancel_scope.cancel()
    if failures:
        raise failures[0]
    if not found:
        raise DisconnectedError
    return found[0]


def _first_of(error: Exception) -> Exception:
    """Of several that have ended tasks together one is told: rather what a connection's end is,
    from which the others come."""
    while isinstance(error, ExceptionGroup):
        inner: tuple[Exception, ...] = error.exceptions
        error = next((each for each in inner if isinstance(each, OSError)), inner[0])
    return error
