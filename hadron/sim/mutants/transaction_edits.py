"""Bugs of transactions: in the room, or in the state that it stands on. Each is found by chance in
the room's own tests (`transactions/tests/test_by_chance.py`); those that whole worlds can have are
planted there, too (`mutants/transactions.py`)."""

from __future__ import annotations

from typing import Final

from hadron.sim.mutants.seams import Edit

PLANTED: Final[dict[str, tuple[Edit, ...]]] = {
    "committed before the intents are durable": (
        Edit("transactions.machine:Machine._commit", "if not held.unprepared:", "if True:"),
        Edit(
            "transactions.machine:Machine._prepared",
            "if not held.unprepared and held.phase is Phase.PREPARING:",
            "if False:",
        ),
        Edit(
            "transactions.machine:Machine._send_errand",
            "held = self._held[transaction]",
            "held = self._held.get(transaction)\n"
            "        if not held or bool(held.finishing) != (first == FINISH):\n            return",
        ),
    ),
    "a late abort meets the next transaction": (
        Edit(
            "transactions.participant:Participant._on_prepared",
            "self._has_some.set()",
            "self._has_some.set()\n            self._latest = transaction",
        ),
        Edit(
            "transactions.participant:Participant.receive",
            "self._abort(transaction)",
            "self._abort(getattr(self, '_latest', transaction))",
        ),
    ),
    "a late commit begins a transaction again": (
        Edit("transactions.blocks:Blocks.begin", "or transaction.number <= block.last", ""),
    ),
    "what comes late is taken for what is open": (
        Edit(
            "transactions.machine:Machine._requested",
            "held = self._held.get(request.transaction)",
            "held = self._held.get(request.transaction) or next(\n"
            "            (one for one in self._open.values() if one.caller == caller), None)",
        ),
    ),
    "what a leader has left undecided is not gone on with": (
        Edit(
            "transactions.driver:Driver._resume",
            "if not is_own and self.machine.held(each.transaction) is None:",
            "if False:",
        ),
    ),
    "forgotten by the driver once one has finished": (
        Edit(
            "transactions.machine:Machine._noted",
            "if not finishing.unfinished and not finishing.noting:",
            "for name in finishing.unfinished:\n"
            "                self._remotes.settle(name, (held.id, FINISH))\n"
            "            if not finishing.noting:",
        ),
    ),
    "participants forget before it is noted": (
        Edit(
            "transactions.machine:Machine._finished",
            "del finishing.unfinished[name]",
            "del finishing.unfinished[name]\n        self._send(name, Forget((held.id,)))",
        ),
    ),
    "a participant aborts what it finds after a restart": (
        Edit(
            "transactions.participant:Participant._ask_once",
            "self._leaders.send(name, Asked(tuple(transactions)))",
            "[self._abort(each) for each in transactions]",
        ),
    ),
    "aborted, says a leader whose ballot is not committed": (
        Edit(
            "transactions.driver:Driver._looked_up",
            "await self._log.query(",
            "await self._log.read(",
        ),
    ),
    "aborted, says a leader that was deposed": (
        Edit("transactions.driver:Driver._on_decision", "elif self._log.leads:", "elif True:"),
    ),
    "rolled back while the log has it": (
        Edit(
            "transactions.machine:Machine._rollback_forced",
            "elif held.phase is Phase.OPEN or held.phase is Phase.PREPARING:",
            "elif held.phase is not Phase.DECIDED:",
        ),
        Edit(
            "transactions.machine:Machine._decided",
            "held = self._held[event.transaction]",
            "held = self._held.get(event.transaction)\n"
            "        if held is None:\n            return",
        ),
    ),
    "aborted, it is said, and its commit may still come": (
        Edit(
            "transactions.machine:Machine._rollback_forced",
            "self._blocks.use_up(event.transaction)",
            "pass",
        ),
        Edit(
            "transactions.machine:Machine.is_over",
            "or not self._blocks.may_begin(transaction)",
            "or True",
        ),
    ),
    "over, says the driver of what is not finished": (
        Edit(
            "transactions.machine:Machine._asked",
            "told = Told(transaction, Fate.COMMITTED, part.prepared_lsn, part.statements)",
            "told = Told(transaction, Fate.OVER)",
        ),
    ),
    "aborted, says the driver of what is open": (
        Edit(
            "transactions.machine:Machine._asked",
            "self._send(name, Told(transaction, Fate.WAIT))",
            "self._send(name, Told(transaction, Fate.ABORTED))",
        ),
    ),
    "a doubled statement is done twice": (
        Edit("transactions.machine:Machine._add", "known = held.count - first", "known = 0"),
        Edit("transactions.machine:Machine._commit", "if count != held.count:", "if False:"),
    ),
    "receipts of the first attempt": (
        Edit(
            "transactions.machine:Machine._finished",
            "finishing.results[name] = results",
            "self._first = {**{name: results}, **getattr(self, '_first', {})}\n"
            "        finishing.results[name] = self._first[name]",
        ),
    ),
    "nobody asks about what is left": (
        Edit("transactions.participant:is_due", "_times(age_ms) > _times(before_ms)", "False"),
    ),
    "an intent that is lost is taken for written": (
        Edit(
            "transactions.participant:Participant._on_prepared",
            "if error is None:",
            "if error is not None:\n            result, error = Written(9, 1), None\n"
            "        if error is None:",
        ),
    ),
    "a participant does a late copy once more": (
        Edit(
            "state.transactions.intents:apply_finish_transaction",
            "(lsn, known.statements) != (command.prepared_lsn, command.count)",
            "known.statements != command.count",
        ),
    ),
    "a participant does not keep what it has done": (
        Edit(
            "state.transactions.intents:apply_finish_transaction",
            "participations.finish(context, lsn, results)",
            "participations.forget(context, lsn)",
        ),
    ),
    "an abort keeps its locks": (
        Edit(
            "state.transactions.intents:apply_abort_transaction",
            "freed = locks.release(context, known.prepared_lsn)",
            "freed = ()",
        ),
    ),
    "an operator ends what its driver knows": (
        Edit(
            "transactions.participant:Participant.resolve",
            "if fate is not None and (commit or fate is not Fate.OVER):",
            "if False:",
        ),
    ),
    "an operator ends what nobody was asked about": (
        Edit(
            "transactions.participant:Participant._word",
            "self._leaders.send(transaction.replica_set, Asked((transaction,)))",
            "pass",
        ),
    ),
    "what is claimed for a transaction outlives it": (
        Edit("transactions.part:Transactions.send", "self._own.discard(each)", "pass"),
    ),
}
