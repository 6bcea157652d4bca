"""Who calls and who serves in the room of remote calls: what each has said and heard, and what is
wrong with that. They know nothing of the broker but what it tells them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from hadron.endpoints.calls import Caller, Server
from hadron.endpoints.endpoint import MAX_ATTEMPTS
from hadron.endpoints.port import Headers, Opening, Value
from hadron.model.errors import (
    CallFailedError,
    CallUnknownError,
    DeadlineExceededError,
    HadronError,
    NoServerError,
    OverloadedError,
    RequestError,
)
from hadron.model.limits import CALL_WINDOW_BYTES
from hadron.model.replica_sets import in_region
from hadron.model.services import SINGLE, EndpointSpec

if TYPE_CHECKING:
    from hadron.sim.rooms.endpoints import World

_NOT_RUN: Final = (RequestError, NoServerError, OverloadedError)
"""What a client takes for that, and calls again behind."""


@dataclass(eq=False)
class KnownRun:
    """What a server knows of a call that it was given."""

    number: int
    call: KnownCall
    by: str
    is_cancelled: bool = False
    said_last: bool = False
    window: int = CALL_WINDOW_BYTES
    """What it may send."""
    got: int = 0
    """Values of the caller's."""
    is_ended: bool = False
    """It was told that the caller sends no more."""
    said: int = 0
    """Values of its own."""

    def answer(self, place: int) -> bytes:
        return self.call.token + f">{self.by}>{place}".encode()


@dataclass(eq=False)
class KnownCall:
    """What the reference knows of a call."""

    token: bytes
    caller: FakeCaller
    number: int
    name: str
    spec: EndpointSpec
    deadline_s: float
    has_ended: bool
    runs: list[tuple[FakeServer, KnownRun]] = field(default_factory=list)
    refused: int = 0
    last_words: int = 0
    answers: int = 0
    by: KnownRun | None = None
    """Who gives its answer."""
    sent: int = 0
    """Values of its caller's."""
    is_given_up: bool = False
    """Its caller has cancelled, or has gone."""
    window: int = CALL_WINDOW_BYTES
    """What its caller may send."""

    @property
    def is_over(self) -> bool:
        return self.last_words > 0 or self.is_given_up

    def given(self, place: int) -> bytes:
        """A value of its caller's."""
        return self.token + f"<{place}".encode()

    def say(self, *, is_last: bool) -> Value:
        """The next one of these."""
        self.sent, self.has_ended = self.sent + 1, is_last
        return Value(0, self.given(self.sent - 1), is_last)


class FakeCaller:
    """`port.CallerSink`, and what it has asked for."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.calls: dict[int, KnownCall] = {}
        self.reads = True
        self.attached: Caller = world.broker.attach_caller(self)

    def has_room(self, size: int) -> bool:  # noqa: ARG002
        return self.reads

    def value(self, number: int, value: Value, headers: Headers) -> None:
        call = self._open(number, "a value")
        if call is None:
            return
        call.answers += 1
        data = bytes(value.data)
        call.by = call.by or next((r for _, r in call.runs if data == r.answer(0)), None)
        if call.by is None or data != call.by.answer(call.answers - 1):
            self.world.complain("N2", f"{call.token!r} got the answer {data!r}")
        if value.is_last:
            self._answered(call, headers)
        if call.spec.output == SINGLE and call.answers > 1:
            self.world.complain("N2", f"{call.token!r} got {call.answers} answers")

    def end(self, number: int, headers: Headers) -> None:
        call = self._open(number, "an end")
        if call is not None:
            self._answered(call, headers)

    def error(self, number: int, error: HadronError, headers: Headers) -> None:
        call = self._open(number, error.code)
        if call is None:
            return
        world = self.world
        if isinstance(error, CallUnknownError) and call.name == world.going:
            if len(call.runs) == call.refused:
                world.complain("N1", f"{call.token!r} was not run: {error.message}")
        elif isinstance(error, CallUnknownError):
            if not any(server.is_gone or server.is_frozen for server, _ in call.runs):
                world.complain("N7", f"{call.token!r} was told of a loss that nobody had")
            again = call.spec.idempotent and not call.answers and len(call.runs) < MAX_ATTEMPTS
            if again and world.is_served(call.name):
                world.complain("N1", f"{call.token!r} could have been run again: {error.message}")
        elif isinstance(error, _NOT_RUN) and not world.may_be_again(call):
            world.complain("N1", f"{call.token!r} was said not to have run: {error.message}")
        elif isinstance(error, DeadlineExceededError) and world.now_s < call.deadline_s - 1e-6:
            world.complain("N4", f"{call.token!r} ended before its deadline")
        elif isinstance(error, CallFailedError) and error.type == "No":
            self._check_headers(call, headers)
        may_again = call.spec.idempotent or world.may_be_again(call)
        if error.retryable and not may_again:
            world.complain("N1", f"{call.token!r} may have run, and is to be called again")
        self._last(call)

    def credit(self, number: int, size: int) -> None:
        call = self._open(number, f"a credit of {size}")
        if call is not None:
            call.window += size
            self.world.check_window(call.token, call.window)

    def _open(self, number: int, what: str) -> KnownCall | None:
        call = self.calls.get(number)
        if call is None or call.is_over:
            self.world.complain("N4", f"{self.name} was told {what} of call {number}, over before")
            return None
        return call

    def _answered(self, call: KnownCall, headers: Headers) -> None:
        """By a server, that has said all."""
        by = [run for _, run in call.runs if run.said_last and call.by in (None, run)]
        if all(run.said != call.answers for run in by):
            said = [run.said for _, run in call.runs]
            self.world.complain(
                "N2", f"{call.token!r} has {call.answers} values of {said}, and is over"
            )
        self._check_headers(call, headers)
        self._last(call)

    def _check_headers(self, call: KnownCall, headers: Headers) -> None:
        if headers.get("token") != call.token.decode():
            self.world.complain("N2", f"{call.token!r} ended with the headers {headers}")

    def _last(self, call: KnownCall) -> None:
        call.last_words += 1


class FakeServer:
    """`port.ServerSink`, and what it has been given."""

    def __init__(self, world: World, name: str, endpoint: str, most: int, region: str) -> None:
        self.world = world
        self.name = name
        self.endpoint = endpoint
        self.most = most
        self.region = region
        self.runs: dict[int, KnownRun] = {}
        self.writable = True
        self.deaf_s = 0.0
        self.is_leaving = False
        self.is_gone = False
        self.is_frozen = False
        self.attached: Server | None = None

    @property
    def held(self) -> list[KnownRun]:
        return [run for run in self.runs.values() if not run.said_last]

    def open(
        self, number: int, opening: Opening, attempt: int, left_s: float, value: Value | None
    ) -> None:
        world = self.world
        call = world.calls.get(opening.headers["token"].encode())
        if call is None or self.is_gone:
            world.complain("N2", f"{self.name} was given what nobody has asked for")
            return
        if call.is_over:
            world.complain("N1", f"{call.token!r} was given to {self.name} after its end")
        self._check_again(call)
        self._check_region(call, opening.region)
        if self.is_leaving or not self.writable:
            world.complain("N3", f"{self.name} was given {call.token!r}, and takes nothing")
        run = KnownRun(number, call, self.name)
        self.runs[number] = run
        if value is not None:
            self._take(run, value)
        call.runs.append((self, run))
        if len(self.held) > self.most:
            world.complain("N3", f"{self.name} has {len(self.held)} calls, and takes {self.most}")
        if attempt != len(call.runs) - call.refused:
            world.complain("N1", f"{call.token!r} came as attempt {attempt}")
        if left_s > call.deadline_s - world.now_s + 1e-6:
            world.complain("N8", f"{call.token!r} was given {left_s} s")

    def _check_again(self, call: KnownCall) -> None:
        """Whether it may be run once more."""
        before = len(call.runs) - call.refused
        open_now = sum(not run.said_last and not server.is_gone for server, run in call.runs)
        if before and not call.spec.idempotent:
            self.world.complain("N1", f"{call.token!r} is run twice")
        elif before >= MAX_ATTEMPTS:
            self.world.complain("N1", f"{call.token!r} is run {before + 1} times")
        elif open_now > (1 if call.spec.hedge_after_ms else 0):
            self.world.complain("N1", f"{call.token!r} is at {open_now + 1} servers at once")
        elif call.answers:
            self.world.complain("N1", f"{call.token!r} is run again behind a part of its answer")

    def _check_region(self, call: KnownCall, region: str) -> None:
        """Who calls from there is served there, while somebody there is free."""
        has_it = [server for server, _ in call.runs]
        near = [
            each.name
            for each in self.world.free(self.endpoint)
            if in_region(each.region, region) and each not in has_it
        ]
        if region and near and not in_region(self.region, region):
            self.world.complain("N10", f"{call.token!r} goes to {self.name}, not to {near}")

    def value(self, number: int, value: Value) -> None:
        run = self._known(number)
        if run is not None:
            self._take(run, value)

    def _take(self, run: KnownRun, value: Value) -> None:
        if run.is_ended or bytes(value.data) != run.call.given(run.got):
            self.world.complain(
                "N2", f"{run.call.token!r} was sent {bytes(value.data)!r} behind {run.got} values"
            )
        run.got, run.is_ended = run.got + 1, value.is_last

    def end(self, number: int) -> None:
        run = self._known(number)
        if run is not None:
            run.is_ended = True

    def cancel(self, number: int) -> None:
        run = self._known(number)
        if run is not None:
            run.is_cancelled = True

    def credit(self, number: int, size: int) -> None:
        run = self._known(number)
        if run is not None:
            run.window += size
            self.world.check_window(run.call.token, run.window)

    def fail(self, error: HadronError) -> None:  # noqa: ARG002
        self.world.server_gone(self)

    def _known(self, number: int) -> KnownRun | None:
        run = self.runs.get(number)
        if run is None or run.said_last:
            self.world.complain("N6", f"{self.name} was told of call {number}, which it has not")
            return None
        return run
