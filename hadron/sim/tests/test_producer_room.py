"""The producer's room: it finds what breaks the rules of D1, D5 and D6."""

from __future__ import annotations

from typing import Final

import pytest

from hadron.client.producing.accumulator import NOT_LOGGED
from hadron.model.errors import ShuttingDownError
from hadron.sim.mutants import patched
from hadron.sim.mutants.seams import Constant, Edit, Patch
from hadron.sim.rooms import producer

_SEEDS: Final = 60

_FIRST: Final = {
    "a name is claimed again where nobody leads any more": 3,
    "a refusal ends the doubt that an earlier try has left": 25,
    "no batch is too old": 3,
    "what one ahead has left open is counted against those behind it": 4,
    "room that a known batch took is not given back": 13,
    "what is in doubt is numbered again once it does not follow": 11,
    "one that is given again stands for all that have failed": 10,
    "what may be in a log is published elsewhere": 6,
    "who shuts down is taken for not having logged": 28,
}
"""Seeds that meet a bug which the first one does not, tried before it. One that has changed costs a
search, of seconds."""

_ACCUMULATOR: Final = "client.producing.accumulator:PartitionAccumulator."

BUGS: Final[dict[str, Patch]] = {
    "what is numbered again goes behind what came after it": Edit(
        _ACCUMULATOR + "resume",
        "deque(sorted(self._queue, key=lambda batch: batch.order))",
        "deque(self._queue)",
    ),
    "who shuts down is taken for not having logged": Constant(
        "client.producing.accumulator:NOT_LOGGED", (*NOT_LOGGED, ShuttingDownError)
    ),
    "a refusal ends the doubt that an earlier try has left": Edit(
        _ACCUMULATOR + "refused",
        "            if not isinstance(error, NOT_LOGGED):\n"
        "                batch.doubtful = True\n",
        "            batch.doubtful = not isinstance(error, NOT_LOGGED)\n",
    ),
    "what is in doubt is numbered again once it does not follow": Edit(
        _ACCUMULATOR + "resume",
        "if not batch.doubtful:",
        "if not batch.doubtful or batch.out_of_sequence:",
    ),
    "a new id and old numbers": Edit(
        _ACCUMULATOR + "_start_afresh", "self._next_sequence = 0", "pass"
    ),
    "one more under way than nodes remember": Edit(
        _ACCUMULATOR + "next_batch", "len(self._sent) < self._window", "len(self._sent) <= 5"
    ),
    "a call under way that is given up was not sent": Edit(
        _ACCUMULATOR + "_give_up", "if was_sent or batch.may_be_logged:", "if batch.may_be_logged:"
    ),
    "no batch is too old": Edit(
        _ACCUMULATOR + "expire",
        "batch.created_s <= created_before_s",
        "batch.data and batch.created_s <= created_before_s",
    ),
    "room that a known batch took is not given back": Edit(
        _ACCUMULATOR + "claimed", "self.held_bytes -= batch.size", "pass"
    ),
    "a name's records go on behind one that has failed": Edit(
        _ACCUMULATOR + "_number", "missing is not None and", "missing is None and"
    ),
    "one that is given again stands for all that have failed": Edit(
        _ACCUMULATOR + "add_numbered",
        "heapq.heappop(self._failed_sequences)",
        "self._failed_sequences.clear()",
    ),
    "a name is claimed again where nobody leads any more": Edit(
        "client.producing.sender:PartitionSender._claim_again", "self._doubt_leader(error)", "pass"
    ),
    "what one ahead has left open is counted against those behind it": Edit(
        _ACCUMULATOR + "refused", "self._sent[0] is batch and not self._hole", "True"
    ),
    "what may be in a log is published elsewhere": Edit(
        "client.producing.failover:may_move",
        "batch.state is BatchState.UNANSWERED and not batch.doubtful",
        "batch.state is BatchState.UNANSWERED",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("bug", BUGS)
def test_it_finds(bug: str) -> None:
    with patched(BUGS[bug]) as reached:
        for seed in (_FIRST.get(bug, 0), *range(_SEEDS)):
            if producer.play(seed).complaints:
                break
        else:
            pytest.fail(f"nothing is wrong in {_SEEDS} worlds; {len(reached)} edits were reached")
