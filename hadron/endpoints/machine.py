"""All endpoints of a leader, and all calls: what callers and servers say comes in, what they are
told goes out through their sinks.

Rules: an answer goes to the caller that asked (ENDPOINTS N2); a call ends by its deadline (N4); who
floods, or speaks of what it does not have, ends its own call or stream, and nobody else's (N6).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hadron.endpoints.calls import Call, Caller, Run, Server, cost, grant
from hadron.endpoints.endpoint import MAX_UNTOLD_BYTES, NO_HEADERS, Endpoint, bad_answer, reshaped
from hadron.endpoints.port import CallerSink, Headers, Opening, ServerSink, Terms, Value
from hadron.model.errors import (
    CallFailedError,
    ConnectionLostError,
    DeadlineExceededError,
    FrameError,
    HadronError,
    NotFoundError,
    OverloadedError,
    RequestError,
)
from hadron.model.kinds import how_to_make
from hadron.model.limits import MAX_CALL_MESSAGE_BYTES
from hadron.model.ports import Random
from hadron.model.services import EndpointSpec
from hadron.model.timers import Timers

Key = tuple[str, str]
"""Namespace and name."""

SETTLING_S: Final = 1.0
"""After leading began servers need so long to be back: until then calls wait for them."""

MAX_CALLS: Final = 10_000
"""Of one caller at a time: a program that wants more of them has no bound of its own."""

_LATE_S: Final = 1.0
"""A tick that comes so late is the leader's own fault: servers were not silent, it did not hear."""


class Broker:
    """Of one leadership. `tick` must be called when `next_s` says; and several times a second
    while `has_watched`, or who is silent is lost late."""

    def __init__(self, random: Random, began_s: float) -> None:
        self.endpoints: dict[Key, Endpoint] = {}
        self._random = random
        self._deadlines: Timers[Call] = Timers()
        self._hedges: Timers[Call] = Timers()
        self._settled_s = began_s + SETTLING_S
        self._is_settled = False
        self._watched: dict[Server, None] = {}
        """Those that are lost by their silence."""
        self._ticked_s = began_s

    # --- what there is ----------------------------------------------------------------------------

    def declare(self, declared: Mapping[Key, EndpointSpec]) -> None:
        """These are the endpoints that live here."""
        for key in [key for key in self.endpoints if key not in declared]:
            gone = self.endpoints.pop(key)
            gone.close(NotFoundError(f"{gone.label} was deleted, or lives elsewhere by now"))
        for key, spec in declared.items():
            known = self.endpoints.get(key)
            if known is not None and known.shape != (spec.input, spec.output):
                # Its servers were made for the other one.
                known.close(reshaped(known.label, spec))
                known = None
            if known is not None:
                known.declared(spec)
            else:
                self.endpoints[key] = Endpoint(
                    f"endpoint {key[0]}/{key[1]}",
                    spec,
                    self._random,
                    self._deadlines,
                    self._hedges,
                    is_settled=self._is_settled,
                )

    # --- servers ----------------------------------------------------------------------------------

    def check_server(self, key: Key, terms: Terms) -> Endpoint:
        """What it may serve. Raises `NotFoundError`, and `RequestError` where its handler was made
        for another shape."""
        endpoint = self.endpoints.get(key)
        if endpoint is None:
            raise _not_here(key)
        endpoint.check_terms(terms)
        return endpoint

    def attach_server(self, key: Key, sink: ServerSink, terms: Terms, now_s: float) -> Server:
        """Raises what `check_server` does, and `OverloadedError`."""
        endpoint = self.check_server(key, terms)
        server = Server(endpoint, sink, terms, now_s)
        endpoint.join(server, now_s)
        if terms.silence_s:
            self._watched[server] = None
        return server

    def detach_server(self, server: Server, error: HadronError, now_s: float) -> None:
        """Its stream has ended."""
        self._watched.pop(server, None)
        server.endpoint.leave(server, error, now_s)

    def heard(self, server: Server, now_s: float) -> None:
        server.heard(now_s)

    def drain(self, server: Server) -> None:
        server.endpoint.drain(server)

    def server_writable(self, server: Server, now_s: float) -> None:
        server.endpoint.update(server, now_s)

    def server_value(
        self, server: Server, number: int, value: Value, headers: Headers, now_s: float
    ) -> None:
        run = self._run(server, number)
        if run is None:
            return
        call, endpoint = run.call, server.endpoint
        if not run.is_wanted:
            if value.is_last:
                endpoint.done(run, now_s)
            return
        if endpoint.answers_once:
            if not value.is_last:
                self._end_run(run, "answered with a stream, and is to give one value", value, now_s)
                return
        else:
            if run.allowance <= 0:
                self._end_run(run, "sent more than its caller had room for", value, now_s)
                return
            run.allowance -= cost(value)
        if len(value.data) > MAX_CALL_MESSAGE_BYTES:
            self._end_run(run, f"answered with a value of {len(value.data)} bytes", value, now_s)
            return
        if not call.caller.sink.has_room(len(value.data)):
            # Not `OverloadedError`, which says that a call was not run.
            error = CallFailedError(
                f"{endpoint.label} has run the call, and its answer of {len(value.data)} bytes is "
                "lost: too much waits for this caller already",
                "read the answers, or call less at a time",
                type="AnswerLost",
            )
            self._fail_run(run, error, value, now_s)
            return
        call.has_answered = True
        if value.is_last:
            endpoint.answered(call, run, now_s)
            call.caller.sink.value(call.number, value, headers)
            endpoint.done(run, now_s)
            return
        for other in [each for each in call.runs if each is not run]:
            call.runs.remove(other)
            other.is_wanted = False
            other.server.sink.cancel(other.number)
        call.caller.sink.value(call.number, value, headers)

    def server_end(self, server: Server, number: int, headers: Headers, now_s: float) -> None:
        """Of a streamed answer; or, of a call that nobody wants any more, that it is done with."""
        run = self._run(server, number)
        if run is None:
            return
        if not run.is_wanted:
            server.endpoint.done(run, now_s)
        elif server.endpoint.answers_once:
            self._end_run(run, "ended the call without an answer", None, now_s)
        else:
            call = run.call
            server.endpoint.answered(call, run, now_s)
            call.caller.sink.end(call.number, headers)
            server.endpoint.done(run, now_s)

    def server_error(
        self, server: Server, number: int, error: HadronError, headers: Headers, now_s: float
    ) -> None:
        run = self._run(server, number)
        if run is None:
            return
        if run.is_wanted:
            call = run.call
            server.latencies.failed += 1
            server.endpoint.latencies.failed += 1
            server.endpoint.finish(call, run)
            call.caller.sink.error(call.number, error, headers)
        server.endpoint.done(run, now_s)

    def server_refuses(self, server: Server, number: int, now_s: float) -> None:
        run = self._run(server, number)
        if run is not None:
            server.endpoint.refused(run, now_s)

    def server_credit(self, server: Server, number: int, size: int) -> None:
        run = self._run(server, number)
        if run is not None and run.is_wanted and (granted := grant(run.call, size)):
            run.call.caller.sink.credit(run.call.number, granted)

    def _run(self, server: Server, number: int) -> Run | None:
        """None for one that is over: what a server says twice, or late, nobody hears."""
        run = server.held.get(number)
        if run is None and not 0 < number <= server.latest:
            raise RequestError(
                f"the server {server.terms.name!r} of {server.endpoint.label} speaks of call "
                f"{number}, which it was never given"
            )
        return run

    def _end_run(self, run: Run, what: str, last: Value | None, now_s: float) -> None:
        """Its server breaks the rules of this call, by its last word or by `last`."""
        self._fail_run(run, bad_answer(run.server, what), last, now_s)

    def _fail_run(self, run: Run, error: HadronError, last: Value | None, now_s: float) -> None:
        run.server.latencies.failed += 1
        endpoint = run.server.endpoint
        if last is None or last.is_last:
            endpoint.fail(run.call, error, by=run)
            endpoint.done(run, now_s)
        else:
            endpoint.fail(run.call, error)

    # --- callers ----------------------------------------------------------------------------------

    def attach_caller(self, sink: CallerSink) -> Caller:
        return Caller(sink)

    def detach_caller(self, caller: Caller) -> None:
        """Its stream has ended: nobody waits for its calls."""
        for call in list(caller.calls.values()):
            call.endpoint.finish(call)

    def open(
        self,
        caller: Caller,
        number: int,
        key: Key,
        opening: Opening,
        value: Value | None,
        now_s: float,
    ) -> None:
        """A caller calls. Raises `RequestError` for a number that was used before."""
        if number <= caller.latest:
            raise RequestError(f"call {number} was opened after {caller.latest}, out of order")
        caller.latest = number
        endpoint = self.endpoints.get(key)
        try:
            if endpoint is None:
                raise _not_here(key)
            if len(caller.calls) >= MAX_CALLS:
                raise OverloadedError(
                    f"{len(caller.calls)} calls of this program are under way, and no more are "
                    "taken",
                    "wait for answers",
                )
            endpoint.check_opening(opening, value)
            if value is not None and len(value.data) > MAX_CALL_MESSAGE_BYTES:
                raise _too_large(endpoint, value)
            call = Call(caller, number, endpoint, opening, now_s)
            if value is not None:
                call.has_ended = value.is_last
                call.allowance -= cost(value)
            caller.calls[number] = call
            endpoint.take(call, value, now_s)
        except HadronError as error:
            caller.calls.pop(number, None)
            if endpoint is not None:
                endpoint.latencies.failed += 1
            caller.sink.error(number, error, NO_HEADERS)
            return
        call.deadline = self._deadlines.add(call.deadline_s, call)

    def refuse(self, caller: Caller, number: int, error: HadronError) -> None:
        """A call that is none is over before it has begun."""
        caller.latest = max(caller.latest, number)
        caller.sink.error(number, error, NO_HEADERS)

    def caller_value(self, caller: Caller, number: int, value: Value) -> None:
        call = self._call(caller, number)
        if call is None:
            return
        if call.has_ended:
            call.endpoint.fail(call, RequestError("a value came after the last one of the call"))
        elif call.allowance <= 0:
            call.endpoint.fail(
                call,
                FrameError(
                    f"more was sent to {call.endpoint.label} than its server has taken",
                    "wait for credit before each value",
                ),
            )
        elif len(value.data) > MAX_CALL_MESSAGE_BYTES:
            call.endpoint.fail(call, _too_large(call.endpoint, value))
        else:
            call.allowance -= cost(value)
            call.has_ended = value.is_last
            if call.runs:
                _pass_on(call, call.runs[0], value)
            else:
                try:
                    call.endpoint.add_waiting(call, value)
                except OverloadedError as error:
                    call.endpoint.fail(call, error)

    def caller_end(self, caller: Caller, number: int) -> None:
        call = self._call(caller, number)
        if call is not None and not call.has_ended:
            call.has_ended = True
            if call.runs:
                call.runs[0].server.sink.end(call.runs[0].number)

    def caller_cancels(self, caller: Caller, number: int) -> None:
        call = self._call(caller, number)
        if call is not None:
            call.endpoint.finish(call)

    def caller_credit(self, caller: Caller, number: int, size: int) -> None:
        call = self._call(caller, number)
        if call is not None and call.runs:
            run = call.runs[0]
            if granted := grant(run, size):
                run.server.sink.credit(run.number, granted)

    def _call(self, caller: Caller, number: int) -> Call | None:
        """None for one that is over."""
        call = caller.calls.get(number)
        if call is None and not 0 < number <= caller.latest:
            raise RequestError(f"a caller speaks of call {number}, which it has not opened")
        return call

    # --- time -------------------------------------------------------------------------------------

    @property
    def next_s(self) -> float:
        """When something is due, but for who is silent."""
        due_s = min(self._deadlines.next_s, self._hedges.next_s)
        return due_s if self._is_settled else min(due_s, self._settled_s)

    @property
    def has_watched(self) -> bool:
        """Whether silence has to be looked for."""
        return bool(self._watched)

    def tick(self, now_s: float) -> None:
        """End what is over its time, and give up who is silent."""
        for call in self._deadlines.take(now_s):
            self._expire(call)
        for call in self._hedges.take(now_s):
            call.endpoint.hedge(call, now_s)
        if not self._is_settled and now_s >= self._settled_s:
            self._is_settled = True
            for endpoint in self.endpoints.values():
                endpoint.is_settled = True
                endpoint.refuse_without_servers()
        is_late = now_s - self._ticked_s > _LATE_S
        self._ticked_s = now_s
        for server in list(self._watched):
            if is_late:
                server.heard(now_s)
            elif (silent_s := server.silent_s(now_s)) > server.terms.silence_s:
                error = ConnectionLostError(
                    f"{server.terms.peer} said nothing for {silent_s:.1f} s"
                )
                server.sink.fail(error)
                self.detach_server(server, error, now_s)

    def _expire(self, call: Call) -> None:
        endpoint = call.endpoint
        where = (
            f"the server {call.runs[0].server.terms.name!r} has not ended its answer"
            if call.has_answered
            else f"the server {call.runs[0].server.terms.name!r} has not answered"
            if call.runs
            else f"it waited for a server, of which {len(endpoint.servers)} are there"
        )
        endpoint.fail(
            call,
            DeadlineExceededError(
                f"the call to {endpoint.label} was not over in time: {where}",
                "give it more time (`timeout_s`), or start more servers",
                retryable=not call.attempts or endpoint.spec.idempotent,
            ),
        )


def _pass_on(call: Call, run: Run, value: Value) -> None:
    """More of a streamed input. One that finds no room ends its call: nothing of it may be left
    out, and its window bounds each call, not all of them."""
    endpoint = call.endpoint
    if endpoint.may_tell(run.server, value):
        run.server.sink.value(run.number, value)
        return
    # Not `OverloadedError`, which says that a call was not run.
    endpoint.fail(
        call,
        CallFailedError(
            f"the server {run.server.terms.name!r} of {endpoint.label} has begun the call, and a "
            f"value of {len(value.data)} bytes for it is lost: {endpoint.untold_bytes} bytes wait "
            f"for servers that take them slowly, the limit is {MAX_UNTOLD_BYTES}",
            "send smaller values, or call less at a time, or start more servers",
            type="InputLost",
        ),
    )


def _not_here(key: Key) -> NotFoundError:
    return NotFoundError(
        f"no endpoint is called {key[1]!r} in namespace {key[0]!r} here",
        f"{how_to_make('Endpoint', *key)}, or look with `hadron get endpoints`",
    )


def _too_large(endpoint: Endpoint, value: Value) -> RequestError:
    return RequestError(
        f"a value of {len(value.data)} bytes was sent to {endpoint.label}, the limit is "
        f"{MAX_CALL_MESSAGE_BYTES}",
        "send it in pieces, to an endpoint with `input: stream`",
    )
