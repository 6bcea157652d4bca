"""What a leader knows of calls, of who makes them and of who runs them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hadron.endpoints.latencies import Latencies
from hadron.endpoints.port import CallerSink, Opening, ServerSink, Terms, Value
from hadron.model.limits import CALL_VALUE_BYTES, CALL_WINDOW_BYTES

if TYPE_CHECKING:
    from hadron.endpoints.endpoint import Endpoint


def cost(value: Value) -> int:
    """What a value counts, for credit and for what is kept."""
    return len(value.data) + CALL_VALUE_BYTES


class Caller:
    """A program that calls, on one stream.

    Attributes:
        calls: those that are not over, by the numbers that it gave them.
        latest: the highest of its numbers.
    """

    __slots__ = ("calls", "latest", "sink")

    def __init__(self, sink: CallerSink) -> None:
        self.sink = sink
        self.calls: dict[int, Call] = {}
        self.latest = 0


class Call:
    """One call, from its opening until its caller has heard the last word.

    Attributes:
        values: what came of the caller's and may have to be sent: before the call is given to a
            server; and of an idempotent one afterwards, too.
        kept_bytes: what they count at the endpoint.
        has_ended: the caller sends nothing more.
        has_answered: something of the answer was passed on: from there on it is not run again.
        runs: at servers, now: two when it was hedged.
        attempts: servers that it was given to.
        allowance: bytes that the caller may send.
        deadline: where it lies among the timers; `hedge` likewise, -1 when it does not.
    """

    __slots__ = (
        "allowance",
        "attempts",
        "began_s",
        "caller",
        "deadline",
        "deadline_s",
        "endpoint",
        "has_answered",
        "has_ended",
        "hedge",
        "is_over",
        "kept_bytes",
        "number",
        "opening",
        "runs",
        "values",
    )

    def __init__(
        self, caller: Caller, number: int, endpoint: Endpoint, opening: Opening, began_s: float
    ) -> None:
        self.caller = caller
        self.number = number
        self.endpoint = endpoint
        self.opening = opening
        self.began_s = began_s
        self.deadline_s = began_s + opening.timeout_s
        self.deadline = -1
        self.hedge = -1
        self.values: Sequence[Value] = ()
        self.kept_bytes = 0
        self.has_ended = False
        self.has_answered = False
        self.is_over = False
        self.runs: list[Run] = []
        self.attempts = 0
        self.allowance = CALL_WINDOW_BYTES


class Run:
    """A call at a server, until that has said its last word on it.

    Attributes:
        is_wanted: somebody waits for its answer.
        allowance: bytes that the server may send.
    """

    __slots__ = ("allowance", "began_s", "call", "is_wanted", "number", "server")

    def __init__(self, call: Call, server: Server, number: int, began_s: float) -> None:
        self.call = call
        self.server = server
        self.number = number
        self.began_s = began_s
        self.is_wanted = True
        self.allowance = CALL_WINDOW_BYTES


def grant(sender: Call | Run, size: int) -> int:
    """It may send so much more, as far as its window has room: returns that. Nobody gives back more
    than was sent; for who says so all there is would wait at once."""
    granted = min(size, CALL_WINDOW_BYTES - sender.allowance)
    sender.allowance += granted
    return granted


class Server:
    """Who serves an endpoint.

    Attributes:
        held: the runs that it has, by their numbers; those that nobody wants any more, too.
        latest: the highest number that it was given.
        is_leaving: it takes no more calls.
        heard_s: when it said something last; `heard` then.
        untold_bytes: of streamed inputs, that came while its way was full.
    """

    __slots__ = (
        "deaf_s",
        "endpoint",
        "heard_s",
        "held",
        "is_gone",
        "is_leaving",
        "latencies",
        "latest",
        "sink",
        "terms",
        "untold_bytes",
    )

    def __init__(self, endpoint: Endpoint, sink: ServerSink, terms: Terms, now_s: float) -> None:
        self.endpoint = endpoint
        self.sink = sink
        self.terms = terms
        self.held: dict[int, Run] = {}
        self.latest = 0
        self.is_leaving = False
        self.is_gone = False
        self.heard(now_s)
        self.untold_bytes = 0
        self.latencies = Latencies()

    def heard(self, now_s: float) -> None:
        self.heard_s, self.deaf_s = now_s, self.sink.deaf_s

    def silent_s(self, now_s: float) -> float:
        """For how long it has said nothing to who listened."""
        return now_s - self.heard_s - (self.sink.deaf_s - self.deaf_s)

    @property
    def is_free(self) -> bool:
        """Whether it may be given another call."""
        return (
            len(self.held) < self.terms.max_in_flight
            and not self.is_leaving
            and not self.is_gone
            and self.sink.writable
        )
