"""A leader's broker of remote calls alone: callers and servers by chance, thousands of steps a
second, against a reference that knows only what each of them has said and heard.

Time is a number here; servers answer, fail, refuse, stream, fall silent, leave and are lost;
callers cancel, stream and are lost. What a call is stands in each of its values, with its place
among them, and servers put that into their answers: so an answer that is given to somebody else
shows, and so does a value that is lost, comes twice, or overtakes another one.
"""

from __future__ import annotations

import hashlib
import random
from typing import Final

import msgspec

from hadron.endpoints.calls import cost
from hadron.endpoints.machine import Broker, Key
from hadron.endpoints.port import Opening, Terms, Value
from hadron.model.errors import CallFailedError, ConnectionLostError
from hadron.model.limits import CALL_WINDOW_BYTES
from hadron.model.services import SINGLE, STREAM, EndpointSpec
from hadron.sim.rooms.endpoint_peers import FakeCaller, FakeServer, KnownCall
from hadron.sim.rooms.played import Played
from hadron.sim.watch.leftovers import leftovers

_STEPS: Final = 400
_RUNS: Final = 4
"""Of a seed."""

_LATE_S: Final = 0.02
"""A deadline may be so late: timers have buckets."""

_SPACE: Final = "room"

_ENDPOINTS: Final = {
    (_SPACE, "once"): EndpointSpec(replica_set="r", max_waiting=5),
    (_SPACE, "twice"): EndpointSpec(replica_set="r", idempotent=True, max_waiting=5),
    (_SPACE, "hedged"): EndpointSpec(replica_set="r", idempotent=True, hedge_after_ms=500),
    (_SPACE, "race"): EndpointSpec(
        replica_set="r", idempotent=True, output=STREAM, hedge_after_ms=300
    ),
    (_SPACE, "list"): EndpointSpec(replica_set="r", idempotent=True, output=STREAM),
    (_SPACE, "sum"): EndpointSpec(replica_set="r", input=STREAM),
    (_SPACE, "count"): EndpointSpec(replica_set="r", output=STREAM),
    (_SPACE, "chat"): EndpointSpec(replica_set="r", input=STREAM, output=STREAM),
}


class SeededRandom:
    """`ports.Random` of a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def token_bytes(self, count: int) -> bytes:
        return self._random.randbytes(count)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)


class World:
    """One run.

    Attributes:
        complaints: (rule, what is wrong).
        declared: the endpoints as they are now.
        did: what was done, for the digest.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_s = 0.0
        self.broker = Broker(SeededRandom(seed), 0.0)
        self.declared = dict(_ENDPOINTS)
        self.broker.declare(self.declared)
        self.complaints: list[tuple[str, str]] = []
        self.did: list[str] = []
        self.calls: dict[bytes, KnownCall] = {}
        self.servers: list[FakeServer] = []
        self.going = ""
        """The endpoint that is being deleted."""
        self._made = 0
        self._names = self.random.sample(list(_ENDPOINTS), 3)
        """Few, so that much happens to each."""
        self.callers = [FakeCaller(self, f"c{number}") for number in range(3)]

    def complain(self, rule: str, text: str) -> None:
        self.complaints.append((rule, f"at {self.now_s:.2f} s: {text}"))

    def is_served(self, endpoint: str) -> bool:
        return any(server.endpoint == endpoint and not server.is_leaving for server in self.servers)

    def free(self, endpoint: str) -> list[FakeServer]:
        """Who may be given another call of it."""
        return [
            server
            for server in self.servers
            if server.endpoint == endpoint
            and server.writable
            and not server.is_leaving
            and len(server.held) < server.most
        ]

    def check_window(self, token: bytes, window: int) -> None:
        if window > CALL_WINDOW_BYTES:
            self.complain("W2", f"{window} bytes of {token!r} may be sent at once")

    def may_be_again(self, call: KnownCall) -> bool:
        """Whether nobody has begun it."""
        return len(call.runs) == call.refused

    # --- what happens -----------------------------------------------------------------------------

    def step(self) -> None:
        happen = self.random.choices(
            (
                self._call,
                self._say,
                self._serve,
                self._answer,
                self._lose_server,
                self._lose_caller,
                self._turn_server,
                self._turn_caller,
                self._delete,
                self._declare_otherwise,
                self._pass,
            ),
            (30, 12, 8, 40, 2, 1, 4, 2, 0.4, 0.6, 20),
        )[0]
        self.did.append(happen.__name__)
        happen()
        for server in self.servers:
            if not server.is_frozen and server.attached is not None:
                self.broker.heard(server.attached, self.now_s)
        self.look()

    def _call(self) -> None:
        caller = self.random.choice(self.callers)
        key = self.random.choice(self._names)
        spec = self.declared[key]
        self._made += 1
        token = f"t{self._made}".encode()
        number = caller.attached.latest + self.random.randint(1, 3)
        timeout_s = self.random.choice((0.3, 1.0, 5.0))
        has_value = spec.input == SINGLE or self.random.random() < 0.7
        is_last = spec.input == SINGLE or (has_value and self.random.random() < 0.3)
        call = KnownCall(token, caller, number, key[1], spec, self.now_s + timeout_s, is_last)
        self.calls[token] = caller.calls[number] = call
        opening = Opening(
            timeout_s, self.random.choice(("", "a", "a.b")), {"token": token.decode()}, "somebody"
        )
        value = call.say(is_last=is_last) if has_value else None
        if value is not None:
            call.window -= cost(value)
        self.broker.open(caller.attached, number, key, opening, value, self.now_s)

    def _say(self) -> None:
        """A caller goes on with a call, or gives it up."""
        found = [call for call in self.calls.values() if not call.is_over]
        if not found:
            return
        call = self.random.choice(found)
        caller, number = call.caller.attached, call.number
        what = self.random.random()
        if what < 0.3:
            call.is_given_up = True
            self.broker.caller_cancels(caller, number)
        elif call.spec.input == STREAM and not call.has_ended:
            if what < 0.8:
                value = call.say(is_last=self.random.random() < 0.3)
                call.window -= cost(value)
                self.broker.caller_value(caller, number, value)
            else:
                call.has_ended = True
                self.broker.caller_end(caller, number)
        elif call.spec.output == STREAM:
            self.broker.caller_credit(caller, number, self.random.choice((100, 1 << 20)))

    def _serve(self) -> None:
        if len(self.servers) >= 8:
            return
        self._made += 1
        name = self.random.choice(self._names)[1]
        most, region = self.random.randint(1, 3), self.random.choice(("a", "a.b", "c"))
        server = FakeServer(self, f"s{self._made}", name, most, region)
        terms = Terms(server.most, server.region, server.name, "somewhere", 2.0)
        self.servers.append(server)
        server.attached = self.broker.attach_server((_SPACE, name), server, terms, self.now_s)

    def _answer(self) -> None:
        found = [
            (server, run) for server in self.servers if not server.is_frozen for run in server.held
        ]
        if not found:
            return
        server, run = self.random.choice(found)
        attached = server.attached
        assert attached is not None
        what, call = self.random.random(), run.call
        headers = {"token": call.token.decode()}
        if what < 0.1:
            run.said_last = True
            error = CallFailedError("no", type="No")
            self.broker.server_error(attached, run.number, error, headers, self.now_s)
        elif what < 0.15:
            run.said_last = True
            if not run.is_cancelled:
                call.refused += 1
            server.is_leaving = True
            self.broker.server_refuses(attached, run.number, self.now_s)
        elif what < 0.2 and call.spec.input == STREAM and not run.is_cancelled:
            self.broker.server_credit(attached, run.number, self.random.choice((50, 1 << 20)))
        elif (run.is_cancelled and what < 0.6) or what < 0.23:
            run.said_last = True
            self.broker.server_end(attached, run.number, headers, self.now_s)
        elif call.spec.output == STREAM and what < 0.7:
            run.said += 1
            value = Value(0, run.answer(run.said - 1), False)
            run.window -= cost(value)
            self.broker.server_value(attached, run.number, value, {}, self.now_s)
        else:
            run.said, run.said_last = run.said + 1, True
            value = Value(0, run.answer(run.said - 1), True)
            self.broker.server_value(attached, run.number, value, headers, self.now_s)
        if self.random.random() < 0.1 and run.said_last:
            # Once more: nobody hears of it.
            self.broker.server_value(attached, run.number, Value(0, b"again", True), {}, self.now_s)

    def _lose_server(self) -> None:
        if not self.servers:
            return
        server = self.random.choice(self.servers)
        self.server_gone(server)
        assert server.attached is not None
        self.broker.detach_server(server.attached, ConnectionLostError("gone"), self.now_s)
        if self.random.random() < 0.2:
            # While its calls wait for another one.
            self._declare_otherwise((_SPACE, server.endpoint))

    def server_gone(self, server: FakeServer) -> None:
        if not server.is_gone:
            server.is_gone = True
            self.servers.remove(server)

    def _lose_caller(self) -> None:
        place = self.random.randrange(len(self.callers))
        caller = self.callers[place]
        for call in caller.calls.values():
            if not call.is_over:
                call.is_given_up = True
        self.broker.detach_caller(caller.attached)
        self._made += 1
        self.callers[place] = FakeCaller(self, f"c{self._made}")

    def _turn_server(self) -> None:
        """It has no room for more, or has again; leaves, or freezes."""
        if not self.servers:
            return
        server = self.random.choice(self.servers)
        assert server.attached is not None
        what = self.random.random()
        if what < 0.1:
            server.is_leaving = True
            self.broker.drain(server.attached)
        elif what < 0.3:
            server.is_frozen = not server.is_frozen
        else:
            server.writable = not server.writable
            if server.writable:
                self.broker.server_writable(server.attached, self.now_s)

    def _turn_caller(self) -> None:
        """It reads no more, or again."""
        caller = self.random.choice(self.callers)
        caller.reads = not caller.reads

    def _delete(self) -> None:
        """And declare it anew."""
        key = self.random.choice(self._names)
        self.going = key[1]
        self.broker.declare({each: spec for each, spec in self.declared.items() if each != key})
        self.going = ""
        self.broker.declare(self.declared)

    def _declare_otherwise(self, key: Key | None = None) -> None:
        """Not idempotent any more, or again: what counts for a call is how it is now."""
        key = key or self.random.choice(self._names)
        spec = _ENDPOINTS[key]
        if self.declared[key].idempotent:
            spec = msgspec.structs.replace(spec, idempotent=False, hedge_after_ms=0)
        self.declared[key] = spec
        for call in self.calls.values():
            if call.name == key[1]:
                call.spec = spec
        self.broker.declare(self.declared)

    def _pass(self) -> None:
        """Time goes by."""
        self.now_s += self.random.choice((0.01, 0.1, 0.4))
        self.broker.tick(self.now_s)

    # --- what must be so --------------------------------------------------------------------------

    def look(self) -> None:
        for call in self.calls.values():
            if not call.is_over and self.now_s > call.deadline_s + 0.4 + _LATE_S:
                self.complain("N4", f"{call.token!r} is not over, its deadline was before")
            if call.last_words > 1:
                self.complain("N4", f"{call.token!r} has had {call.last_words} last words")
        for server in self.servers:
            for run in server.held:
                call = run.call
                if run.is_cancelled:
                    continue
                if call.is_over:
                    self.complain("N8", f"{server.name} was not told that {call.token!r} ended")
                elif (run.got, run.is_ended) != (call.sent, call.has_ended):
                    what = f"{run.got} values of {call.sent}, ended: {run.is_ended}"
                    self.complain("N2", f"{server.name} has of {call.token!r} {what}")
        for (_, name), endpoint in self.broker.endpoints.items():
            # What comes back from a server that it was given to waits in any case.
            tokens = [call.opening.headers["token"].encode() for call in endpoint.waiting]
            new = [token for token in tokens if not self.calls[token].runs]
            if len(new) > endpoint.spec.max_waiting:
                self.complain("N5", f"{len(new)} calls of {name} wait")
            free = [server.name for server in self.free(name)]
            if endpoint.waiting and endpoint.is_settled and not self.is_served(name):
                self.complain("N5", f"calls of {name} wait, and nobody is there for them")
            if endpoint.waiting and free:
                self.complain("N5", f"calls of {name} wait, and {free} have nothing to do")

    def finish(self) -> None:
        """All calls end, and all that servers had: nothing must be left."""
        self.now_s += 10.0
        self.broker.tick(self.now_s)
        self.look()
        for server in list(self.servers):
            for run in server.held:
                run.said_last = True
                assert server.attached is not None
                self.broker.server_end(server.attached, run.number, {}, self.now_s)
        for call in self.calls.values():
            if not call.is_over:
                self.complain("N4", f"{call.token!r} has no end")
        for endpoint in self.broker.endpoints.values():
            left = (
                endpoint.in_flight,
                len(endpoint.waiting),
                endpoint.waiting_bytes,
                endpoint.kept_bytes,
            )
            if any(left):
                self.complain("N3", f"{endpoint.label} has {left} left, and no calls")
        while self.servers:
            self._lose_server()
        for caller in self.callers:
            self.broker.detach_caller(caller.attached)
        for text in leftovers(self.broker, nodes=0, objects=len(self.broker.endpoints)):
            self.complain("W9", text)


def play(seed: int) -> Played:
    """Some runs of that seed."""
    found = Played()
    log = hashlib.blake2b(digest_size=8)
    for number in range(seed * _RUNS, (seed + 1) * _RUNS):
        world = World(number)
        try:
            for _ in range(_STEPS):
                world.step()
            world.finish()
        except Exception as error:  # a bug may break anything
            world.complain("raised", f"{type(error).__name__}: {error}")
        found.complaints += [f"{rule}: calls {number}: {text}" for rule, text in world.complaints]
        found.steps += len(world.did)
        log.update(" ".join(world.did).encode())
        log.update(str(sum(call.answers for call in world.calls.values())).encode())
    found.digest = log.hexdigest()
    return found
