"""One endpoint: its servers, and the calls that wait for one of them. Pure.

Rules: a server has no more calls than it takes (ENDPOINTS N3); a call is run once, or elsewhere
again only where its endpoint is idempotent, or its server says that it has not begun (N1); who
waits is bounded (N5).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from hadron.endpoints.calls import Call, Run, Server, cost
from hadron.endpoints.choice import Choice
from hadron.endpoints.latencies import Latencies
from hadron.endpoints.port import Headers, Opening, Terms, Value
from hadron.model.call_shapes import misfit
from hadron.model.errors import (
    CallFailedError,
    CallUnknownError,
    HadronError,
    NoServerError,
    OverloadedError,
    RequestError,
)
from hadron.model.ports import Random
from hadron.model.services import SINGLE, STREAM, EndpointSpec
from hadron.model.timers import Timers

MAX_WAITING_BYTES: Final = 16 << 20
"""What the waiting calls of an endpoint carry, all together."""

MAX_KEPT_BYTES: Final = 64 << 20
"""What is kept of calls that a server has, to give them to another one; what came above it cannot
be given to another one."""

MAX_UNTOLD_BYTES: Final = 64 << 20
"""Of streamed inputs, for servers whose way is full: the windows of 256 calls, or 15 of the largest
values, each of which may go beyond its window."""

MAX_SERVERS: Final = 1_000
"""Of one endpoint."""

MAX_ATTEMPTS: Final = 5
"""Servers that an idempotent call is given to: what kills each of them does not kill all."""

NO_HEADERS: Final[Headers] = {}

_START_HINT: Final = "start one, for example `hadron serve {name} --exec CMD`, and call again"


def bad_answer(server: Server, what: str) -> CallFailedError:
    """For a caller whose server breaks the rules of its call."""
    return CallFailedError(
        f"the server {server.terms.name!r} of {server.endpoint.label} {what}",
        "that is a mistake in what serves it",
        type="BadAnswer",
    )


def reshaped(label: str, spec: EndpointSpec) -> RequestError:
    """For those who knew it with another shape."""
    return RequestError(
        f"{label} was declared anew, with `input: {spec.input}` and `output: {spec.output}`",
        "let its servers' handlers fit that, and start them again; then call it so",
    )


class Endpoint:
    """As it is declared, and who is there.

    Attributes:
        label: what people call it.
        deadlines: when calls end that are not over.
        hedges: when they are given to a second server.
        is_settled: servers had the time to come back since leading began.
    """

    def __init__(
        self,
        label: str,
        spec: EndpointSpec,
        random: Random,
        deadlines: Timers[Call],
        hedges: Timers[Call],
        *,
        is_settled: bool,
    ) -> None:
        self.label = label
        self.spec = spec
        self.servers: dict[Server, None] = {}
        self.waiting: OrderedDict[Call, None] = OrderedDict()
        self.waiting_bytes = 0
        self.kept_bytes = 0
        self.untold_bytes = 0
        self.in_flight = 0
        """Runs, also those that nobody wants any more."""
        self.latencies = Latencies()
        self.is_settled = is_settled
        self._deadlines = deadlines
        self._hedges = hedges
        self._choice = Choice(random)

    def declared(self, spec: EndpointSpec) -> None:
        """Anew, in the same shape. What a lost server had waits no longer for another one where it
        may not be run twice any more."""
        self.spec = spec
        if not spec.idempotent:
            for call in [call for call in self.waiting if call.attempts]:
                self.fail(call, self._doubtful())

    # --- servers ----------------------------------------------------------------------------------

    def join(self, server: Server, now_s: float) -> None:
        """Raises `OverloadedError`."""
        if len(self.servers) >= MAX_SERVERS:
            raise OverloadedError(
                f"{self.label} has {len(self.servers)} servers, and takes no more",
                "fewer of them may each take more calls: `max_in_flight`",
            )
        self.servers[server] = None
        self._choice.update(server)
        self.serve_waiting(now_s)

    def leave(self, server: Server, error: HadronError, now_s: float) -> None:
        """It is lost, or has been told to go: its calls have to end otherwise."""
        if server.is_gone:
            return
        server.is_gone = True
        self._caught_up(server)
        del self.servers[server]
        self._choice.update(server)
        runs, server.held = list(server.held.values()), {}
        self.in_flight -= len(runs)
        for run in runs:
            call = run.call
            if run.is_wanted:
                call.runs.remove(run)
                if not call.runs:
                    self._lost(call, server, error)
        self.serve_waiting(now_s)
        self.refuse_without_servers()

    def drain(self, server: Server) -> None:
        server.is_leaving = True
        self._choice.update(server)
        self.refuse_without_servers()

    def _lost(self, call: Call, server: Server, error: HadronError) -> None:
        why = "its endpoint is not declared idempotent"
        if self.spec.idempotent:
            if call.values and not call.has_answered and call.attempts < MAX_ATTEMPTS:
                self._wait(call, again=True)
                return
            why = (
                "a part of its answer has been passed on"
                if call.has_answered
                else f"it was run {call.attempts} times"
                if call.values
                else "too much is kept of others to keep it"
            )
        self.fail(
            call,
            CallUnknownError(
                f"the server {server.terms.name!r} of {self.label} was lost while it ran the call: "
                f"{error.message}",
                f"it has run, or in part, or not at all, and is not run again, as {why}",
                retryable=self.spec.idempotent,
            ),
        )

    def update(self, server: Server, now_s: float) -> None:
        """It may be told more again."""
        if not server.is_gone:
            if server.sink.writable:
                self._caught_up(server)
            self._choice.update(server)
            self.serve_waiting(now_s)

    def may_tell(self, server: Server, value: Value) -> bool:
        """Whether there is room for more of an input that the server has begun, which counts from
        here on."""
        size = cost(value)
        if server.sink.writable:
            self._caught_up(server)
        elif self.untold_bytes + size > MAX_UNTOLD_BYTES:
            return False
        else:
            server.untold_bytes += size
            self.untold_bytes += size
        return True

    def _caught_up(self, server: Server) -> None:
        self.untold_bytes -= server.untold_bytes
        server.untold_bytes = 0

    # --- calls ------------------------------------------------------------------------------------

    def take(self, call: Call, value: Value | None, now_s: float) -> None:
        """Give a new call to a server, or let it wait. Raises where it can do neither."""
        server = self._choice.choose(call.opening.region)
        if server is not None and not self.waiting:
            self._give_first(call, server, value, now_s)
            return
        self._check_servers()
        if value is not None:
            call.values = [value]
        size = call.opening.size + (cost(value) if value is not None else 0)
        if len(self.waiting) >= self.spec.max_waiting or self._is_full(size):
            raise self._full()
        self._wait(call)

    def _check_servers(self) -> None:
        """Raises `NoServerError` at once where nobody would ever take a call."""
        if self.is_settled and all(server.is_leaving for server in self.servers):
            raise self._no_server()

    def _no_server(self, call: Call | None = None) -> HadronError:
        """For a call that nobody will take."""
        name = self.label.rpartition(" ")[2].rpartition("/")[2]
        hint = _START_HINT.format(name=name)
        if call is not None and call.attempts:
            return CallUnknownError(
                f"nobody serves {self.label} any more, and who had the call was lost while it ran "
                "it: it has run, or in part, or not at all",
                hint,
                retryable=self.spec.idempotent,
            )
        return NoServerError(f"nobody serves {self.label}: the call was not run", hint)

    def _doubtful(self) -> CallUnknownError:
        """For a call that a lost server has had, and no other one may be given."""
        return CallUnknownError(
            f"{self.label} is not declared idempotent any more, and who had the call was lost "
            "while it ran it",
            "it has run, or in part, or not at all, and is not run again",
        )

    def _left(self, run: Run, call: Call) -> HadronError:
        """For one whose input is gone with its server."""
        if call.attempts:
            return self._no_server(call)
        return NoServerError(
            f"the server {run.server.terms.name!r} of {self.label} leaves: the call was not run",
            "call again",
        )

    def refuse_without_servers(self) -> None:
        """Who waits is told at once that nobody is left."""
        if self.waiting and self.is_settled and all(each.is_leaving for each in self.servers):
            for call in list(self.waiting):
                self.fail(call, self._no_server(call))

    def _is_full(self, size: int) -> bool:
        return bool(size) and self.waiting_bytes + size > MAX_WAITING_BYTES

    def _full(self) -> OverloadedError:
        """For one that cannot wait."""
        why = f"all servers of {self.label} are busy"
        hint = "call again later, or start more servers"
        if all(server.is_leaving for server in self.servers):
            # A leadership has just begun: later no call waits where nobody serves.
            why = f"no server of {self.label} is back yet, as its leader is new"
            hint = "call again in a second"
        return OverloadedError(
            f"{why}, and {len(self.waiting)} calls with {self.waiting_bytes} bytes wait for one: "
            f"the limits are {self.spec.max_waiting} and {MAX_WAITING_BYTES}",
            hint,
        )

    def _wait(self, call: Call, *, again: bool = False) -> None:
        self._forget_kept(call)
        call.kept_bytes = call.opening.size + sum(map(cost, call.values))
        self.waiting_bytes += call.kept_bytes
        self.waiting[call] = None
        if again:
            self.waiting.move_to_end(call, last=False)

    def add_waiting(self, call: Call, value: Value) -> None:
        """More of a streamed input has come. Raises `OverloadedError`."""
        size = cost(value)
        if self._is_full(size):
            raise self._full()
        call.values = [*call.values, value]
        call.kept_bytes += size
        self.waiting_bytes += size

    def serve_waiting(self, now_s: float) -> None:
        waiting = self.waiting
        while waiting:
            call = next(iter(waiting))
            server = self._choice.choose(call.opening.region)
            if server is None:
                return
            waiting.popitem(last=False)
            self.waiting_bytes -= call.kept_bytes
            call.kept_bytes = 0
            self._give_kept(call, server, now_s)

    # --- runs -------------------------------------------------------------------------------------

    def _give_first(self, call: Call, server: Server, value: Value | None, now_s: float) -> None:
        run = self._run(call, server, now_s)
        if value is not None and value.is_last:
            # Also of one that is not idempotent: its server may say that it has not begun it.
            size = cost(value)
            if self.kept_bytes + size <= MAX_KEPT_BYTES:
                call.values, call.kept_bytes = (value,), size
                self.kept_bytes += size
        left_s = call.deadline_s - now_s
        server.sink.open(run.number, call.opening, call.attempts, left_s, value)
        self._plan_hedge(call, now_s)

    def _give_kept(self, call: Call, server: Server, now_s: float) -> None:
        """One that has waited."""
        values = call.values
        first = values[0] if values else None
        if call.attempts == 0:
            call.values = ()
            self._give_first(call, server, first, now_s)
        else:
            self._give_again(call, server, now_s)
            self._plan_hedge(call, now_s)
            size = sum(map(cost, values))
            call.kept_bytes = size
            self.kept_bytes += size
        run = call.runs[-1]
        for value in values[1:]:
            server.sink.value(run.number, value)
        if call.has_ended and not (values and values[-1].is_last):
            server.sink.end(run.number)

    def _give_again(self, call: Call, server: Server, now_s: float) -> None:
        """Of an idempotent one: it has one value."""
        run = self._run(call, server, now_s)
        left_s = call.deadline_s - now_s
        server.sink.open(run.number, call.opening, call.attempts, left_s, call.values[0])

    def _run(self, call: Call, server: Server, now_s: float) -> Run:
        server.latest += 1
        run = Run(call, server, server.latest, now_s)
        server.held[run.number] = run
        self.in_flight += 1
        if len(server.held) >= server.terms.max_in_flight:
            self._choice.update(server)
        call.runs.append(run)
        call.attempts += 1
        return run

    def _plan_hedge(self, call: Call, now_s: float) -> None:
        """From now on, and no longer from when another server got it."""
        self._drop_hedge(call)
        if self.spec.hedge_after_ms and call.values:
            due_s = now_s + self.spec.hedge_after_ms / 1_000
            call.hedge = self._hedges.add(due_s, call)

    def _drop_hedge(self, call: Call) -> None:
        if call.hedge >= 0:
            self._hedges.discard(call.hedge, call)
            call.hedge = -1

    def hedge(self, call: Call, now_s: float) -> None:
        """It has had no answer for long: somebody else may be quicker."""
        call.hedge = -1
        if call.is_over or call.has_answered or not call.values or len(call.runs) != 1:
            return
        # As it is declared by now.
        is_allowed = self.spec.idempotent and self.spec.hedge_after_ms
        if not is_allowed or call.attempts >= MAX_ATTEMPTS:
            return
        server = self._choice.choose(call.opening.region, but=call.runs[0].server)
        if server is not None:
            self._give_again(call, server, now_s)

    def done(self, run: Run, now_s: float) -> None:
        """Its server has said the last word on it: the slot is free."""
        server = run.server
        del server.held[run.number]
        self.in_flight -= 1
        if len(server.held) == server.terms.max_in_flight - 1:
            self._choice.update(server)
            if self.waiting:
                self.serve_waiting(now_s)

    def refused(self, run: Run, now_s: float) -> None:
        """Its server has not begun it and will not: it leaves."""
        call = run.call
        run.server.is_leaving = True
        self._choice.update(run.server)
        if run.is_wanted:
            call.runs.remove(run)
            call.attempts -= 1
            if call.has_answered:
                why = "has answered in part, and says that it has not begun"
                self.fail(call, bad_answer(run.server, why), by=run)
            elif call.values and not call.runs:
                if call.attempts and not self.spec.idempotent:
                    self.fail(call, self._doubtful())
                else:
                    self._wait(call, again=True)
            elif not call.runs:
                # Of a streamed input nothing is kept: there is nothing to give to another one.
                self.fail(call, self._left(run, call))
        self.done(run, now_s)
        self.serve_waiting(now_s)
        self.refuse_without_servers()

    # --- ends -------------------------------------------------------------------------------------

    def answered(self, call: Call, run: Run, now_s: float) -> None:
        """`run` has answered all of it."""
        run.server.latencies.add(now_s - run.began_s)
        self.latencies.add(now_s - call.began_s)
        self.finish(call, run)

    def fail(self, call: Call, error: HadronError, by: Run | None = None) -> None:
        """It ends without an answer, for a reason that its server has not given. `by`: whose last
        word it was."""
        self.latencies.failed += 1
        self.finish(call, by)
        call.caller.sink.error(call.number, error, NO_HEADERS)

    def finish(self, call: Call, by: Run | None = None) -> None:
        """Nobody waits for it any more; who still runs it is told so, but for `by`."""
        call.is_over = True
        self._deadlines.discard(call.deadline, call)
        if call in self.waiting:
            del self.waiting[call]
            self.waiting_bytes -= call.kept_bytes
            call.kept_bytes = 0
        self._forget_kept(call)
        call.values = ()
        self._drop_hedge(call)
        for run in call.runs:
            if run is not by:
                run.is_wanted = False
                run.server.sink.cancel(run.number)
        call.runs = []
        call.caller.calls.pop(call.number, None)

    def _forget_kept(self, call: Call) -> None:
        """Where it is kept beside a server that has it."""
        self.kept_bytes -= call.kept_bytes
        call.kept_bytes = 0

    def close(self, error: HadronError) -> None:
        """It does not live here any more."""
        for call in list(self.waiting):
            self.fail(call, self._begun(call, error))
        for server in list(self.servers):
            for run in list(server.held.values()):
                if run.is_wanted:
                    self.fail(run.call, self._begun(run.call, error))
            server.sink.fail(error)
            self.leave(server, error, 0.0)

    def _begun(self, call: Call, error: HadronError) -> HadronError:
        """Why it ends when its endpoint goes for this reason, which alone would say that it was not
        run (ENDPOINTS N1)."""
        if not call.attempts:
            return error
        return CallUnknownError(
            f"{error.message}, after a server was given the call",
            "it has run, or in part, or not at all",
            retryable=self.spec.idempotent,
        )

    @property
    def shape(self) -> tuple[str, str]:
        return self.spec.input, self.spec.output

    @property
    def answers_once(self) -> bool:
        return self.spec.output == SINGLE

    def check_terms(self, terms: Terms) -> None:
        """Raises `RequestError` for a server whose handler was made for another shape: it was away
        when the endpoint got this one, and would be run with what it does not take."""
        told = zip(terms.shape, self.shape, strict=True)
        if any(made_for not in ("", declared) for made_for, declared in told):
            raise reshaped(self.label, self.spec)

    def check_opening(self, opening: Opening, value: Value | None) -> None:
        """Raises `RequestError` for a call that its declaration does not allow: nothing of it is
        run. A streamed input may come as a whole with its opening."""
        is_single = opening.is_single
        has_value = value is not None and value.is_last
        if self.spec.input == STREAM and not is_single:
            has_value = False
        error = misfit(self.label, self.spec, has_value=has_value, is_single=is_single)
        if error is not None:
            raise error
