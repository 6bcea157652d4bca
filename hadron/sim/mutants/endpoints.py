"""Bugs in remote calls: how often one is run, whose answer it is, and what it keeps."""

from __future__ import annotations

from hadron.sim.mutants.mutant import plant
from hadron.sim.mutants.seams import Edit

_SCENARIO = ("calls-while-servers-and-leaders-are-lost",)

plant(
    "call run twice",
    "a call whose server is lost is given to another one, whatever its endpoint says",
    Edit("endpoints.endpoint:Endpoint._lost", "if self.spec.idempotent:", "if True:"),
    scenarios=_SCENARIO,
)

plant(
    "call run again by its client",
    "a client calls again when a server or its leader was lost, whether the endpoint is idempotent "
    "or not",
    Edit(
        "client.endpoints.calls:EndpointCalls.check_again",
        "isinstance(error, CallUnknownError) and not (\n"
        "            error.leader_lost and spec_of(item).idempotent\n"
        "        )",
        "False",
    ),
    Edit(
        "client.endpoints.calls:_check_changed",
        "isinstance(error, CallUnknownError) and not spec_of(now).idempotent",
        "False",
    ),
    scenarios=_SCENARIO,
)

plant(
    "answer given to another caller",
    "an answer goes to the latest call of its caller",
    Edit(
        "endpoints.machine:Broker.server_value",
        "            call.caller.sink.value(call.number, value, headers)\n"
        "            endpoint.done(run, now_s)",
        "            latest = max([*call.caller.calls, call.number])\n"
        "            call.caller.sink.value(latest, value, headers)\n"
        "            endpoint.done(run, now_s)",
    ),
    scenarios=_SCENARIO,
)

plant(
    "cancelled call that keeps its slot",
    "a server says that it is done with a call that was given up, and its slot is not free",
    Edit(
        "endpoints.machine:Broker.server_end",
        "        if not run.is_wanted:\n            server.endpoint.done(run, now_s)",
        "        if not run.is_wanted:\n            pass",
    ),
    scenarios=("calls-that-were-given-up-while-they-were-run",),
)

plant(
    "loss of the leader not passed on",
    "a node in between tells nobody that the connection to the leader is lost",
    Edit(
        "server.forwarding:_Relay._leader_ended",
        "            self._outer.fail(error)",
        "            pass",
    ),
    scenarios=("calls-of-a-region-that-is-cut-off",),
)

plant(
    "forwarded call that goes on without its client",
    "a node in between does not tell the leader that the client of a call is gone",
    Edit("server.forwarding:_Relay.run", "self._inner.cancel()", "pass"),
    scenarios=("caller-that-is-gone-behind-another-node",),
)

plant(
    "window not given back by the node in between",
    "a node in between never tells the leader that a client has taken what was sent to it",
    Edit("server.forwarding:_Relay._client_takes_more", "consumed(owed)", "consumed(0 * owed)"),
    scenarios=("large-calls-through-another-node",),
)

plant(
    "calls sent without credit",
    "a caller or a server says what it has to say, whether its peer has taken what came before",
    Edit(
        "wire.call_items:CallItems.send",
        "while self._message.items and call.writable:",
        "while self._message.items:",
    ),
    scenarios=("large-calls-through-another-node",),
)

plant(
    "region of a caller not looked at",
    "a call is given to any server, in whichever region it asks for one",
    Edit("endpoints.choice:Choice.choose", "if region:", "if False:"),
    scenarios=("calls-of-a-region-that-is-cut-off",),
)
