"""A call as the handler that runs it sees it, and what calls that it makes take over from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Final

TRACE_HEADERS: Final = ("traceparent", "tracestate")
"""W3C Trace Context: handed on to what a handler calls."""


class IncomingCall:
    """What a handler may know of the call that it runs: its second argument, if it takes two.

    Attributes:
        endpoint: what is called.
        headers: as the caller has sent them; `traceparent` and `tracestate` go on to calls that the
            handler makes, as does what is left of the time.
        caller: who calls, in words: an address, what a program that came through a door calls
            itself, and the way. Nobody has proved any of it.
        attempt: 1, and more for a call that was given to other servers before, or to several.
        answer_headers: what is put here goes to the caller, with the first of the answer.
    """

    __slots__ = (
        "_clock_s",
        "_deadline_s",
        "_has_ended",
        "_is_cancelled",
        "answer_headers",
        "attempt",
        "caller",
        "endpoint",
        "headers",
    )

    def __init__(
        self,
        endpoint: str,
        headers: Mapping[str, str],
        caller: str,
        attempt: int,
        left_s: float,
        clock_s: Callable[[], float],
    ) -> None:
        self.endpoint = endpoint
        self.headers = headers
        self.caller = caller
        self.attempt = attempt
        self.answer_headers: dict[str, str] = {}
        self._clock_s = clock_s
        self._deadline_s = clock_s() + left_s
        self._is_cancelled = False
        self._has_ended = False
        """Its handler has; a task that this one has left behind works for nobody who waits."""

    def __repr__(self) -> str:
        return f"<IncomingCall of {self.endpoint!r} by {self.caller}, attempt {self.attempt}>"

    @property
    def left_s(self) -> float:
        """Until nobody waits for the answer any more."""
        return max(0.0, self._deadline_s - self._clock_s())

    @property
    def is_cancelled(self) -> bool:
        """Nobody waits for it any more. Handlers that are async are cancelled; one that runs in a
        thread may look here."""
        return self._is_cancelled


CURRENT: ContextVar[IncomingCall | None] = ContextVar("hadron_call", default=None)
"""The call that is run here, or that a task was begun in which it has left behind."""


def handed_on(headers: dict[str, str]) -> dict[str, str]:
    """`headers` of a new call, with what it takes over of the call that is run here."""
    current = CURRENT.get()
    if current is not None and TRACE_HEADERS[0] not in headers:
        for name in TRACE_HEADERS:
            text = current.headers.get(name)
            if text is not None:
                headers[name] = text
    return headers


def time_left_s(timeout_s: float) -> float:
    """As long as that, or for as long as somebody waits for the call that is run here."""
    current = CURRENT.get()
    if current is None or current._has_ended:
        return timeout_s
    return min(timeout_s, current.left_s)
