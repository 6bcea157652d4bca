"""The room of remote calls: nothing is wrong in it, and it finds what breaks the rules of N."""

from __future__ import annotations

from typing import Final

import pytest

from hadron.sim.mutants import patched
from hadron.sim.mutants.seams import Edit
from hadron.sim.rooms import endpoints

_SEEDS: Final = 40

_ENDPOINT: Final = "endpoints.endpoint:Endpoint."
_BROKER: Final = "endpoints.machine:Broker."

BUGS: Final = {
    "a call whose server is lost is run again": (
        "N1",
        Edit(_ENDPOINT + "_lost", "if self.spec.idempotent:", "if True:"),
    ),
    "what waits behind a lost server is run again though that is not allowed any more": (
        "N1",
        Edit(_ENDPOINT + "declared", "if not spec.idempotent:", "if False:"),
    ),
    "a slow call goes to a second server as it was declared once": (
        "N1",
        Edit(_ENDPOINT + "hedge", "self.spec.idempotent and self.spec.hedge_after_ms", "True"),
    ),
    "who was lost with a call is said not to have run it": (
        "N1",
        Edit(_ENDPOINT + "_no_server", "call is not None and call.attempts", "False"),
    ),
    "whose server has the call hears only that its endpoint was deleted": (
        "N1",
        Edit(_ENDPOINT + "close", "self._begun(run.call, error)", "error"),
    ),
    "an answer without room ends as if the call had been refused": (
        "N1",
        Edit(
            _BROKER + "server_value",
            "            error = CallFailedError(",
            "            error = OverloadedError('no room') or CallFailedError(",
        ),
    ),
    "one that answers in part is run again": (
        "N1",
        Edit(_ENDPOINT + "_lost", "and not call.has_answered and", "and"),
    ),
    "an answer goes to the latest call of its caller": (
        "N2",
        Edit(
            _BROKER + "server_value",
            "            call.caller.sink.value(call.number, value, headers)\n"
            "            endpoint.done(run, now_s)",
            "            latest = max([*call.caller.calls, call.number])\n"
            "            call.caller.sink.value(latest, value, headers)\n"
            "            endpoint.done(run, now_s)",
        ),
    ),
    "what a server says twice is heard twice": (
        "N2",
        Edit(_ENDPOINT + "done", "del server.held[run.number]", "pass"),
    ),
    "a server has one more than it takes": (
        "N3",
        Edit("endpoints.calls:Server.is_free", "len(self.held) <", "len(self.held) <="),
    ),
    "a call that was cancelled keeps its slot": (
        "N3",
        Edit(
            _BROKER + "server_end",
            "        if not run.is_wanted:\n            server.endpoint.done(run, now_s)",
            "        if not run.is_wanted:\n            pass",
        ),
    ),
    "a slot is given back before the server has ended": (
        "N3",
        Edit(
            _ENDPOINT + "finish",
            "run.server.sink.cancel(run.number)",
            "(run.server.sink.cancel(run.number), run.server.held.pop(run.number))",
        ),
    ),
    "a call that waits has no deadline": (
        "N4",
        Edit(_BROKER + "open", "self._deadlines.add(", "call.runs and self._deadlines.add("),
    ),
    "what an ended call carried is counted for ever": (
        "N3",
        Edit(_ENDPOINT + "finish", "self._forget_kept(call)", "pass"),
    ),
    "a free server waits beside calls that wait": (
        "N5",
        Edit(_ENDPOINT + "done", "self.serve_waiting(now_s)", "pass"),
    ),
    "who waits for a server that leaves is not told": (
        "N5",
        Edit(_ENDPOINT + "drain", "        self.refuse_without_servers()\n", ""),
    ),
    "more wait than may": (
        "N5",
        Edit(_ENDPOINT + "take", ">= self.spec.max_waiting", "> self.spec.max_waiting"),
    ),
    "who gives more credit than it was sent is sent all at once": (
        "W2",
        Edit("endpoints.calls:grant", "min(size, CALL_WINDOW_BYTES - sender.allowance)", "size"),
    ),
    "of what has waited for a server only the first values are given to it": (
        "N2",
        Edit(_ENDPOINT + "_give_kept", "for value in values[1:]:", "for value in values[2:]:"),
    ),
    "what waits for a server is given to it without its end": (
        "N2",
        Edit(
            _ENDPOINT + "_give_kept",
            "if call.has_ended and not (values and values[-1].is_last):",
            "if False:",
        ),
    ),
    "what comes while a call waits comes before what came": (
        "N2",
        Edit(_ENDPOINT + "add_waiting", "[*call.values, value]", "[value, *call.values]"),
    ),
    "what a server tells at the end of its stream is lost": (
        "N2",
        Edit(
            _BROKER + "server_end",
            "call.caller.sink.end(call.number, headers)",
            "call.caller.sink.end(call.number, NO_HEADERS)",
        ),
    ),
    "a call that is over its time is to be called again, run or not": (
        "N1",
        Edit(
            _BROKER + "_expire",
            "retryable=not call.attempts or endpoint.spec.idempotent",
            "retryable=True",
        ),
    ),
    "both servers of a call are heard": (
        "N2",
        Edit(_BROKER + "server_value", "            other.is_wanted = False\n", ""),
    ),
    "whoever is in a part of a region is not in it": (
        "N10",
        Edit(
            "endpoints.choice:Choice.update",
            "in_region(server.terms.region, region)",
            "server.terms.region == region",
        ),
    ),
    "a server is not told that nobody waits any more": (
        "N8",
        Edit(_ENDPOINT + "finish", "run.server.sink.cancel(run.number)", "pass"),
    ),
}


@pytest.mark.long
def test_nothing_is_wrong() -> None:
    for seed in range(_SEEDS):
        assert not endpoints.play(seed).complaints
    assert endpoints.play(7).digest == endpoints.play(7).digest != endpoints.play(8).digest


@pytest.mark.parametrize("bug", BUGS)
def test_it_finds(bug: str) -> None:
    rule, patch = BUGS[bug]
    found: set[str] = set()
    with patched(patch) as reached:
        for seed in range(_SEEDS):
            found |= {each.partition(":")[0] for each in endpoints.play(seed).complaints}
            if rule in found:
                break
        else:
            pytest.fail(f"{found} in {_SEEDS} worlds, not {rule}; {len(reached)} were reached")
