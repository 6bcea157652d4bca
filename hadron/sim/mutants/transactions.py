"""Bugs in transactions: what is decided, done, said and taken, and by whom.

Most of them are in the pure room as well, where chance finds them without a world
(`transaction_edits`); here each is found where it does its damage.
"""

from __future__ import annotations

from typing import Final

from hadron.sim.mutants.mutant import plant
from hadron.sim.mutants.seams import Edit
from hadron.sim.mutants.transaction_edits import PLANTED

_STEPS: Final = "transaction-whose-leaders-fail-at-each-step"
_AWAY: Final = "transaction-of-which-a-part-is-away"
_LONG: Final = "transaction-that-is-open-for-long"
_AGAIN: Final = "leaders-that-hear-everything-again"
_SAID: Final = "client-that-says-everything-again"
_LATE: Final = "commit-that-comes-late"
_OUTLIVES: Final = "decision-that-outlives-its-leader"
_WANTED: Final = "deliveries-that-two-want"
_RUN_FAILS: Final = "leader-that-fails-with-a-run"
_RUN_REFUSED: Final = "run-that-is-refused"
_RUN_AGAIN: Final = "run-that-is-said-again"

_FOUND_IN: Final = {
    "committed before the intents are durable": _AGAIN,
    "a late abort meets the next transaction": _AGAIN,
    "a late commit begins a transaction again": _SAID,
    "what comes late is taken for what is open": _SAID,
    "what a leader has left undecided is not gone on with": _STEPS,
    "forgotten by the driver once one has finished": _AWAY,
    "participants forget before it is noted": _STEPS,
    "a participant aborts what it finds after a restart": _LONG,
    "aborted, says a leader that was deposed": _OUTLIVES,
    "aborted, it is said, and its commit may still come": _LATE,
    "over, says the driver of what is not finished": _AGAIN,
    "aborted, says the driver of what is open": _LONG,
    "a doubled statement is done twice": _SAID,
    "receipts of the first attempt": _STEPS,
    "nobody asks about what is left": _STEPS,
    "an intent that is lost is taken for written": "participant-without-room",
    "a participant does a late copy once more": _AGAIN,
    "a participant does not keep what it has done": _STEPS,
    "an abort keeps its locks": _WANTED,
}

for _name, _scenario in _FOUND_IN.items():
    plant(_name, _name, *PLANTED[_name], scenarios=(_scenario,))

plant(
    "intents visible",
    "what a transaction is to publish is in the stream as soon as it is prepared",
    Edit(
        "state.transactions.intents:apply_write_intents",
        "    context.emit(IntentsWritten(command.transaction, tuple(taken)))\n",
        "    context.emit(IntentsWritten(command.transaction, tuple(taken)))\n"
        "    context.start = 0\n"
        "    for each in statements:\n"
        "        context.machine.apply_statement(context, each)\n"
        "        context.start += together.size_of([each])\n"
        "    context.start = None\n",
    ),
    scenarios=(_STEPS,),
)

plant(
    "what waited for long is called deleted",
    "a participant that hears of the decision late does nothing, and says that all was deleted",
    Edit(
        "state.transactions.intents:apply_finish_transaction",
        "results = tuple(_do(context, intents))",
        "results = tuple(_do(context, intents))\n"
        "    if context.now_ms - known.since_ms > 1_000:\n"
        "        results = (StatementResult(is_deleted=True),) * command.count",
    ),
    scenarios=(_AWAY,),
)

plant(
    "retried statement refused",
    "a statement that is sent again is not known, and its transaction rolled back, decided or not",
    Edit(
        "state.transactions.intents:_check_numbers",
        "row == (first, count, _encode(command.statements))",
        "row == ()",
    ),
    scenarios=(_AGAIN,),
)

plant(
    "delivery acknowledged that another member has",
    "nobody looks whether what a transaction acknowledges was delivered to somebody else since",
    Edit(
        "delivery.groups:Groups.check_held",
        "driver.check_held(transaction, ballot, ranges)",
        "0 and driver.check_held(transaction, ballot, ranges)",
    ),
    scenarios=("delivery-that-was-given-to-another",),
)

plant(
    "leaders add what they remember",
    "who has run a stage, and for how long, is told by each leader that hears of its end",
    Edit(
        "server.pipelines.calls:_completion",
        "driver.completion(ended_of(complete),",
        "driver.completion(driver._told(ended_of(complete)),",
    ),
    scenarios=("stage-ends-that-leaders-hear-again",),
)

plant(
    "statement claims nothing",
    "what a statement ends is anybody's until it is in the log",
    Edit("server.statements:Statements.read", "if locks:", "if False:"),
    scenarios=(_WANTED,),
)

plant(
    "locks forgotten at a failover",
    "a new leader gives out what its tables say a transaction holds",
    Edit("serving.lock_table:LockTable.__init__", "for each in held:", "for each in ():"),
    scenarios=(_WANTED,),
)

plant(
    "claims of refused statements stay",
    "what a statement has taken that was refused stays taken, by nobody",
    Edit(
        "node.leader_links:LeaderLinks.send",
        "self._leading.part(Transactions).claims.settle(claim)",
        "pass",
    ),
    scenarios=("statements-refused-behind-others",),
)

plant(
    "claims let go by name only",
    "what was taken for a statement that comes to nothing is forgotten, and not given back",
    Edit("transactions.claims:Claims.settle", "self._locks.free(claim[0], locks)", "pass"),
    scenarios=(_WANTED,),
)

plant(
    "claims kept when a transaction is over",
    "what a driver's own statements have taken is not given back when it rolls them back",
    Edit(
        "transactions.part:Transactions.settle", "self.claims.settle((transaction, HOME))", "pass"
    ),
    scenarios=(_WANTED,),
)

# --- those that share a batch ---------------------------------------------------------------------

plant(
    "one outcome for a run",
    "the first one's outcome is kept, and the others, whose records are there, are aborted",
    Edit(
        "state.transactions.joint_decisions:apply_decide_run",
        "decisions.keep_all(context, decided)",
        "decisions.keep_all(context, decided[:1])",
    ),
    scenarios=(_RUN_FAILS,),
)

plant(
    "outcomes of a run begin with it",
    "whoever asks later is told that the records of each are where the first one's are",
    Edit("state.transactions.joint_decisions:apply_decide_run", "base += count", "base += 0"),
    scenarios=(_RUN_FAILS,),
)

plant(
    "receipts of a run begin with it",
    "a client takes the records of each for the first ones of the batch",
    Edit(
        "client.transactions.contents:Contents.give_lone",
        "batch.start = shared.extend(batch.builder)",
        "shared.extend(batch.builder)",
    ),
    scenarios=(_RUN_FAILS,),
)

plant(
    "a run is answered as one",
    "a client is not told of how many it is that they are committed",
    Edit("server.transaction_messages:add_answer", "if answer.transactions > 1:", "if False:"),
    scenarios=(_RUN_FAILS,),
)

plant(
    "one of a run is refused",
    "what rolls back several is said of the first one only",
    Edit(
        "transactions.machine:Machine._roll_back",
        "for each in held.ids():",
        "for each in (held.id,):",
    ),
    scenarios=(_RUN_REFUSED,),
)

plant(
    "a run uses up one number",
    "what was refused, or done, with others begins again when it is said by itself",
    Edit(
        "transactions.blocks:Blocks.begin", "block.last = last", "block.last = transaction.number"
    ),
    scenarios=(_RUN_REFUSED, _RUN_AGAIN),
)

plant(
    "a run that is decided is not held",
    "aborted, says the driver of one that is being decided with others",
    Edit("transactions.machine:Machine.held", "or next(of_several, None)", ""),
    scenarios=(_RUN_AGAIN,),
)

plant(
    "what has a set's name drives",
    "transactions are driven by whoever has the name of a registered set",
    Edit("server.transactions:_served", "leading.part(SchemaAdopter).check_registered()", ""),
    scenarios=("second-set-that-is-asked-for-transactions",),
)
