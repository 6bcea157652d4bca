"""The transactions that one leadership drives. Pure.

open → preparing → deciding → decided → over; rolled back from the first two.

Statements at other replica sets are sent there as soon as they come, to be written as intents.
Those at the driver's own set are kept here, and are done in the deciding entry: a transaction of
this set alone is that one entry. Only where they are too much for one are they intents, too, and
the own set is a participant like any other. Once all intents are on a majority of their disks and
the client wants it committed, it is decided; all participants are told at the same time, until all
have done it.

Safety rules: a decision is logged only when every intent is durable. What was handed to the log to
be decided is never rolled back here, whatever is heard: only the log's answer counts. What comes
for a transaction that is over, or was never this call's, is passed over (`blocks`). Of one that is
rolled back nothing is in the driver's log: abort is presumed (PROTOCOL E1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from hadron.model.errors import HadronError, RequestError
from hadron.model.ids import Ballot
from hadron.model.ports import Random
from hadron.model.transactions import BLOCK_BITS, DELETED, Note, TransactionId
from hadron.transactions import refusals
from hadron.transactions.blocks import Blocks
from hadron.transactions.effects import (
    CallerJoined,
    CallerLeft,
    Decided,
    DecisionLost,
    DecisionRefused,
    Effect,
    Event,
    FinishRefused,
    GivenUp,
    LeadershipEnded,
    LogDecision,
    LookUp,
    Noted,
    Received,
    Reply,
    Requested,
    RollbackForced,
    Send,
    TimePassed,
    Unanswered,
    Unfinished,
)
from hadron.transactions.held import Branch, Finishing, Open, Phase, Shown, Transaction, cost, stuck
from hadron.transactions.limits import LIMITS, MAX_ASKED, SWEEP_S, Limits
from hadron.transactions.messages import (
    Abort,
    Add,
    Asked,
    Block,
    Commit,
    Committed,
    CommitUnknown,
    Fate,
    Finish,
    Finished,
    FinishFailed,
    Forget,
    Message,
    Prepared,
    PrepareRefused,
    Results,
    Rollback,
    RolledBack,
    Statement,
    TakeBlock,
    Told,
    Unfit,
)
from hadron.transactions.notes import Notes, by_participant
from hadron.transactions.remotes import FINISH, Errand, Remotes


class Machine:
    """Times are seconds on the monotonic clock."""

    def __init__(
        self,
        home: str,
        ballot: Ballot,
        random: Random,
        is_known: Callable[[str], bool],
        limits: Limits = LIMITS,
    ) -> None:
        """
        Args:
            home: the driver's own replica set.
            ballot: of its leadership: no other one's transactions are begun here.
            is_known: whether there is a replica set with a name.
        """
        self.home = home
        self.ballot = ballot
        self.limits = limits
        self.held_bytes = 0
        """Of statements that are in no log yet (`held.cost`)."""
        self._is_known = is_known
        self._held: dict[TransactionId, Transaction] = {}
        self._open = Open()
        self._runs: dict[TransactionId, Transaction] = {}
        """Of those: several that are decided together, by the first one."""
        self._blocks = Blocks(home, ballot)
        self._remotes = Remotes(random, limits.answer_s)
        self._unfinished: dict[str, int] = {}
        """By replica set: how many decided transactions wait for it."""
        self._refusing: set[str] = set()
        """Who did not finish the latest that it was to finish: that is told once, not for each."""
        self._notes = Notes(limits)
        self._sweep_at: float | None = None
        self._now = 0.0
        self._effects: list[Effect] = []

    def step(self, event: Event, now: float) -> list[Effect]:
        """Take an event; returns what follows from it, in order."""
        self._now = now
        effects: list[Effect] = []
        self._effects = effects
        _STEPS[type(event)](self, event)
        return effects

    def next_due(self) -> float | None:
        """When `TimePassed` is to be said."""
        due = self._remotes.next_due()
        for other in (self._sweep_at, self._notes.due):
            if other is not None and (due is None or other < due):
                due = other
        return due

    def _send(self, name: str, message: Message) -> None:
        self._effects.append(Send(name, message))

    # --- calls of clients -----------------------------------------------------------------------

    def _joined(self, event: CallerJoined) -> None:
        self._give_block(event.caller)

    def _give_block(self, caller: int) -> None:
        block = Block(self._blocks.give(caller), 1 << BLOCK_BITS)
        self._effects.append(Reply(caller, block))

    def _left(self, event: CallerLeft) -> None:
        """What its client has not asked to commit is rolled back; and nothing counts any more that
        comes for its numbers."""
        self._blocks.drop(event.caller)
        error = RequestError("its call has ended without a commit")
        for held in self._open.of(event.caller):
            if held.phase is Phase.OPEN:
                self._roll_back(held, error)

    def _requested(self, event: Requested) -> None:
        caller, request = event.caller, event.request
        if caller not in self._blocks:
            return
        if isinstance(request, TakeBlock):
            self._give_block(caller)
            return
        held = self._held.get(request.transaction)
        if held is None:
            held = Transaction(request.transaction, caller, self._now)
            if not isinstance(request, Add):
                held.records = request.records
            if self._blocks.begin(caller, held.id, len(held.records) or 1):
                self._begin(held, request)
            else:
                self._unfit(caller, held, "is not open on this call")
        elif held.caller != caller:
            self._unfit(caller, held, "is not open on this call")
        elif isinstance(request, Add):
            self._add(held, request.first, request.statements)
        elif isinstance(request, Commit):
            self._commit(held, request)
        elif held.phase is Phase.OPEN or held.phase is Phase.PREPARING:
            self._roll_back(held, request.error or refusals.by_client())

    def _unfit(self, caller: int, held: Transaction, why: str) -> None:
        for each in held.ids():
            error = refusals.unfit(each, why, f"{self.home}/{self.ballot}")
            self._effects.append(Reply(caller, Unfit(each, error)))

    def _begin(self, held: Transaction, request: Add | Commit | Rollback) -> None:
        """The first that is heard of a transaction."""
        self._held[held.id] = self._open[held.id] = held
        if held.records:
            self._runs[held.id] = held
        if self._sweep_at is None:
            self._sweep_at = self._now + SWEEP_S
        if len(self._open) > self.limits.open_transactions:
            self._roll_back(held, refusals.too_many_open(self.home, len(self._open) - 1))
        elif isinstance(request, Add):
            self._add(held, request.first, request.statements)
        elif isinstance(request, Commit):
            self._commit(held, request)
        else:
            self._roll_back(held, request.error or refusals.by_client())

    # --- statements -----------------------------------------------------------------------------

    def _add(self, held: Transaction, first: int, statements: Sequence[Statement]) -> bool:
        """Whether it goes on."""
        known = held.count - first
        if known >= len(statements):
            # A copy of what came.
            return True
        if held.phase is not Phase.OPEN:
            self._unfit(held.caller, held, "is to be committed already")
            return False
        if known < 0:
            self._roll_back(held, refusals.gone_astray(held, first))
            return False
        held.touched_at = self._now
        branches: dict[str, Branch] = {}
        for statement in statements[known:] if known else statements:
            refusal = self._take(held, statement, branches)
            if refusal is not None:
                self._roll_back(held, refusal)
                return False
        for name, branch in branches.items():
            self._send_chunks(held, name, branch)
        return True

    def _take(
        self, held: Transaction, statement: Statement, branches: dict[str, Branch]
    ) -> HadronError | None:
        """Count a statement in; returns why it cannot be. `branches` are those that have more."""
        if (refusal := refusals.too_large(held.count, statement)) is not None:
            return refusal
        limits, kept = self.limits, cost(statement.body, (statement.command,))
        held.count += 1
        held.size += len(statement.body) + len(statement.command)
        held.kept += kept
        self.held_bytes += kept
        if held.count > limits.statements or held.size > limits.transaction_bytes:
            return refusals.too_much(held, limits)
        if self.held_bytes > limits.held_bytes:
            return refusals.too_much_held(self.home, self.held_bytes, limits)
        if statement.target != self.home or self.home in held.branches:
            return self._branch_off(held, statement, branches)
        if held.take_home(statement, limits):
            return None
        # From here on the own set takes part like any other.
        home, held.home = held.home, []
        for each in home:
            if (refusal := self._branch_off(held, each, branches)) is not None:
                return refusal
        return None

    def _branch_off(
        self, held: Transaction, statement: Statement, branches: dict[str, Branch]
    ) -> HadronError | None:
        name = statement.target
        branch = held.branches.get(name)
        if branch is None:
            if (refusal := self._check_room(held, name)) is not None:
                return refusal
            branch = held.branches[name] = Branch(self._now)
        if branch.is_prepared:
            held.unprepared += 1
            branch.since = self._now
        branch.count += 1
        if branch.count > self.limits.set_statements:
            return refusals.too_many_at(held, name, self.limits)
        branch.unsent.append(statement)
        branches[name] = branch
        return None

    def _check_room(self, held: Transaction, name: str) -> HadronError | None:
        if name != self.home and not self._is_known(name):
            return refusals.unknown_set(name, self.home)
        if len(held.branches) == self.limits.participants:
            return refusals.too_many_participants(held, name)
        return self._check_unfinished(name)

    def _check_unfinished(self, name: str) -> HadronError | None:
        waiting = self._unfinished.get(name, 0)
        if waiting < self.limits.unfinished:
            return None
        return refusals.too_many_unfinished(name, waiting)

    def _send_chunks(self, held: Transaction, name: str, branch: Branch) -> None:
        while (chunk := branch.next_chunk(held.id)) is not None:
            if self._remotes.post(name, (held.id, chunk.first), self._now):
                self._send(name, chunk)

    # --- the decision ---------------------------------------------------------------------------

    def _commit(self, held: Transaction, request: Commit) -> None:
        if not self._add(held, request.first, request.statements):
            return
        if held.phase is not Phase.OPEN:
            return
        count = request.first + len(request.statements)
        if count != held.count:
            self._roll_back(held, refusals.gone_astray(held, count))
            return
        if not held.count:
            self._close(held)
            del self._held[held.id]
            self._effects.append(Reply(held.caller, Committed(held.id, {})))
            return
        held.phase = Phase.PREPARING
        held.is_noted_at_once = request.is_noted_at_once
        if not held.unprepared:
            self._decide(held)

    def _decide(self, held: Transaction) -> None:
        for name in held.branches:
            if (refusal := self._check_unfinished(name)) is not None:
                self._roll_back(held, refusal)
                return
        held.phase = Phase.DECIDING
        home = held.home
        self._effects.append(
            LogDecision(
                held.id,
                held.participants(),
                tuple([each.command for each in home]),
                [each.body for each in home],
                held.records,
            )
        )

    def _decided(self, event: Decided) -> None:
        held = self._held[event.transaction]
        assert held.phase is Phase.DECIDING, (held.id, held.phase)
        self._close(held)
        held.phase = Phase.DECIDED
        results = {self.home: event.results} if held.home else {}
        if not held.branches:
            del self._held[held.id]
            committed = Committed(held.id, results, len(held.records) or 1)
            self._effects.append(Reply(held.caller, committed))
            return
        held.home = []
        self._finish(held, Finishing(held.participants(), results))
        held.branches = {}

    def _close(self, held: Transaction) -> None:
        """It is not open any more."""
        del self._open[held.id]
        self._runs.pop(held.id, None)
        self.held_bytes -= held.kept
        assert self.held_bytes >= 0, self.held_bytes
        held.kept = 0
        if not self._open:
            self._sweep_at = None

    def _decision_refused(self, event: DecisionRefused) -> None:
        held = self._held[event.transaction]
        assert held.phase is Phase.DECIDING, (held.id, held.phase)
        self._roll_back(held, event.error)

    def _decision_lost(self, event: DecisionLost) -> None:
        """Nothing is known of it any more, and nothing is told to participants: they will ask."""
        held = self._held.pop(event.transaction)
        self._close(held)
        for each in held.ids():
            self._effects.append(Reply(held.caller, CommitUnknown(each, event.error)))

    def _roll_back(self, held: Transaction, error: HadronError) -> None:
        """Participants that do not hear of it will ask."""
        del self._held[held.id]
        self._close(held)
        for name, branch in held.branches.items():
            for first in branch.chunks:
                self._remotes.settle(name, (held.id, first))
            self._send(name, Abort(held.id))
        for each in held.ids():
            self._effects.append(Reply(held.caller, RolledBack(each, error)))

    # --- what is decided ------------------------------------------------------------------------

    def _unfinished_found(self, event: Unfinished) -> None:
        held = Transaction(event.transaction, 0, self._now)
        held.phase = Phase.DECIDED
        self._held[held.id] = held
        self._finish(held, Finishing(event.participants, event.results))

    def _finish(self, held: Transaction, finishing: Finishing) -> None:
        """Tell all participants at the same time."""
        held.finishing = finishing
        for name, part in finishing.unfinished.items():
            self._unfinished[name] = self._unfinished.get(name, 0) + 1
            if self._remotes.post(name, (held.id, FINISH), self._now):
                self._send(name, Finish(held.id, part.prepared_lsn, part.statements))

    def _finished(self, held: Transaction, name: str, results: Results) -> None:
        """Answer once all have done it."""
        finishing = held.finishing
        assert finishing is not None
        del finishing.unfinished[name]
        finishing.noting.add(name)
        finishing.results[name] = results
        self._unfinished[name] -= 1
        assert self._unfinished[name] >= 0, (held.id, name)
        self._refusing.discard(name)
        self._remotes.settle(name, (held.id, FINISH))
        note = Note(held.id, name, results)
        self._notes.add(note, self._now, at_once=held.is_noted_at_once)
        self._effects += self._notes.take(self._now)
        if held.caller and not finishing.unfinished:
            self._effects.append(Reply(held.caller, Committed(held.id, finishing.results)))
            held.caller = 0

    def _noted(self, event: Noted) -> None:
        """Forget each once all is logged."""
        for note in event.notes:
            held = self._held[note.transaction]
            finishing = held.finishing
            assert finishing is not None
            finishing.noting.discard(note.participant)
            if not finishing.unfinished and not finishing.noting:
                del self._held[held.id]
        for name, transactions in by_participant(event.notes).items():
            # It may be lost: participants ask about what they keep for long.
            self._send(name, Forget(transactions))

    def _given_up(self, event: GivenUp) -> None:
        held = self._held.get(event.transaction)
        finishing = held.finishing if held is not None else None
        if held is None or finishing is None or event.replica_set not in finishing.unfinished:
            return
        # As if all that it wrote to were gone.
        results = (DELETED,) * finishing.unfinished[event.replica_set].statements
        self._finished(held, event.replica_set, results)

    def _leadership_ended(self, event: LeadershipEnded) -> None:
        """What the log has in its hands is answered by it, or lost by it (`DecisionLost`)."""
        for held in list(self._open.values()):
            if held.phase is not Phase.DECIDING:
                self._roll_back(held, event.error)
        for held in self._held.values():
            if held.caller and held.phase is Phase.DECIDED:
                # Committed, and some of its results are still to come; the next leader gets them.
                self._effects.append(Reply(held.caller, CommitUnknown(held.id, event.error)))
                held.caller = 0

    def _rollback_forced(self, event: RollbackForced) -> None:
        held = self.held(event.transaction)
        if held is None:
            # Its first statements may be on their way.
            self._blocks.use_up(event.transaction)
        elif held.phase is Phase.OPEN or held.phase is Phase.PREPARING:
            self._roll_back(held, event.error)

    # --- what participants say ------------------------------------------------------------------

    def _received(self, event: Received) -> None:
        name, message = event.replica_set, event.message
        if isinstance(message, Asked):
            self._asked(name, message)
        elif (held := self._held.get(message.transaction)) is None:
            pass
        elif isinstance(message, Prepared):
            self._prepared(held, name, message)
        elif isinstance(message, PrepareRefused):
            branch = held.branches.get(name)
            if branch is not None and message.first in branch.chunks:
                # Without this chunk it cannot be in the log's hands.
                assert held.phase is Phase.OPEN or held.phase is Phase.PREPARING
                self._roll_back(held, message.error)
        elif held.finishing is None or name not in held.finishing.unfinished:
            pass
        elif isinstance(message, Finished):
            came, expected = len(message.results), held.finishing.unfinished[name].statements
            if came == expected:
                self._finished(held, name, message.results)
            else:
                # It would not be noted, nor would what is noted with it.
                self._not_finished(held, name, refusals.other_results(came, expected))
        elif isinstance(message, FinishFailed):
            reason = refusals.not_finished(held.id, name, self.ballot, message.error)
            self._not_finished(held, name, reason)
        for errand in self._remotes.heard(name, self._now):
            self._send_errand(name, errand)

    def _not_finished(self, held: Transaction, name: str, reason: str) -> None:
        assert held.finishing is not None
        if name not in self._refusing:
            self._refusing.add(name)
            self._effects.append(FinishRefused(held.id, name, reason))
        held.finishing.reasons[name] = reason

    def _prepared(self, held: Transaction, name: str, message: Prepared) -> None:
        branch = held.branches.get(name)
        chunk = branch.chunks.pop(message.first, None) if branch is not None else None
        if branch is None or chunk is None:
            return
        self._remotes.settle(name, (held.id, message.first))
        kept = cost(chunk.body, chunk.statements)
        held.kept -= kept
        self.held_bytes -= kept
        assert held.kept >= 0, (held.id, held.kept)
        before = branch.prepared_lsn
        if before not in (0, message.prepared_lsn):
            self._roll_back(held, refusals.intents_lost(held, name, before, message.prepared_lsn))
            return
        branch.prepared_lsn = message.prepared_lsn
        branch.since = self._now
        self._send_chunks(held, name, branch)
        if branch.is_prepared:
            held.unprepared -= 1
            assert held.unprepared >= 0, (held.id, held.unprepared)
            if not held.unprepared and held.phase is Phase.PREPARING:
                self._decide(held)

    def _asked(self, name: str, message: Asked) -> None:
        """What is not sure is not answered, and asked again. Of what is noted the tables tell."""
        unknown: list[TransactionId] = []
        for transaction in message.transactions[:MAX_ASKED]:
            held = self._held.get(transaction)
            if held is None:
                if self.is_over(transaction):
                    unknown.append(transaction)
            elif (finishing := held.finishing) is None or name in finishing.noting:
                self._send(name, Told(transaction, Fate.WAIT))
            elif (part := finishing.unfinished.get(name)) is not None:
                told = Told(transaction, Fate.COMMITTED, part.prepared_lsn, part.statements)
                self._send(name, told)
            else:
                unknown.append(transaction)
        if unknown:
            self._effects.append(LookUp(name, tuple(unknown)))

    def is_over(self, transaction: TransactionId) -> bool:
        """Whether the tables have the last word on what is not held here. Not of another driver's,
        of a later leadership's, or of what may still begin."""
        if transaction.replica_set != self.home or transaction.ballot > self.ballot:
            return False
        return transaction.ballot < self.ballot or not self._blocks.may_begin(transaction)

    # --- time and ways --------------------------------------------------------------------------

    def _unanswered(self, event: Unanswered) -> None:
        self._remotes.failed(event.replica_set, str(event.error), self._now)

    def _time_passed(self, _event: TimePassed) -> None:
        self._effects += self._notes.take(self._now)
        if self._sweep_at is not None and self._sweep_at <= self._now:
            self._sweep_at = self._now + SWEEP_S
            now, limits, reason = self._now, self.limits, self._remotes.reason
            for held in list(self._open.values()):
                if (error := refusals.overdue(held, now, limits, reason)) is not None:
                    self._roll_back(held, error)
        for name, errand in self._remotes.tick(self._now):
            self._send_errand(name, errand)

    def _send_errand(self, name: str, errand: Errand) -> None:
        transaction, first = errand
        held = self._held[transaction]
        if held.finishing is not None:
            assert first == FINISH
            part = held.finishing.unfinished[name]
            self._send(name, Finish(transaction, part.prepared_lsn, part.statements))
        else:
            self._send(name, held.branches[name].chunks[first])

    # --- looking --------------------------------------------------------------------------------

    def held(self, transaction: TransactionId) -> Transaction | None:
        """For looking at it only."""
        # One of several that are being decided together? There are few of those.
        of_several = (each for each in self._runs.values() if each.has(transaction))
        return self._held.get(transaction) or next(of_several, None)

    def stuck(self) -> list[tuple[str, int, str]]:
        """(replica set, how many decided transactions wait for it, why), where that is known."""
        return stuck(self._held.values(), self._unfinished, self._remotes.reason)

    def shown(self, now: float) -> Iterator[Shown]:
        """All that are held, as people look at them."""
        for held in self._held.values():
            shown = held.shown(now, self._remotes.reason)
            for each in held.ids():
                yield shown._replace(transaction=each)


_STEPS: Final[dict[type[Any], Callable[[Machine, Any], None]]] = {
    CallerJoined: Machine._joined,
    CallerLeft: Machine._left,
    Requested: Machine._requested,
    Received: Machine._received,
    Unanswered: Machine._unanswered,
    Decided: Machine._decided,
    DecisionRefused: Machine._decision_refused,
    DecisionLost: Machine._decision_lost,
    Noted: Machine._noted,
    Unfinished: Machine._unfinished_found,
    GivenUp: Machine._given_up,
    LeadershipEnded: Machine._leadership_ended,
    RollbackForced: Machine._rollback_forced,
    TimePassed: Machine._time_passed,
}
