"""Runs the machine of a leadership's transactions: logs what it decides, tells participants and
clients, and begins with what earlier leaderships have left unfinished.

Safety rules: only the log says what was decided. When leading ends while it has a decision in its
hands, that may be committed or not: its client is told that nobody here knows, never that it was
rolled back. And what the tables do not know is called aborted only once they are known to be those
of the leader that a majority follows (PROTOCOL E1): `_looked_up`.
"""

from __future__ import annotations

import enum
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Final

import trio

from hadron.model.errors import HadronError, NotFoundError, NotReadyError, RequestError
from hadron.model.ports import Database, Random
from hadron.model.transactions import TransactionId
from hadron.model.words import counted
from hadron.serving.perseverance import PAUSE_S, persevere
from hadron.state.machine import Command
from hadron.state.slices import Dropped
from hadron.state.transactions import decisions
from hadron.state.transactions.decisions import Decide, ForgetDecisions, NoteFinished
from hadron.state.transactions.joint_decisions import DecideRun
from hadron.transactions import refusals
from hadron.transactions.callers import Callers
from hadron.transactions.effects import (
    Decided,
    DecisionLost,
    DecisionRefused,
    Effect,
    Event,
    FinishRefused,
    GivenUp,
    LeadershipEnded,
    LogDecision,
    LogFinished,
    LookUp,
    Noted,
    Reply,
    RollbackForced,
    Send,
    TimePassed,
    Unfinished,
)
from hadron.transactions.held import Phase, Shown, joined
from hadron.transactions.limits import LIMITS, MAX_ASKED, Limits
from hadron.transactions.machine import Machine
from hadron.transactions.messages import Committed, Fate, Results, RolledBack, Told
from hadron.transactions.ports import Leaders, Log

_log = logging.getLogger(__name__)

_PAGE: Final = 1_000
"""Decisions read at a time."""

_MAX_ASKED_MEANWHILE: Final = 10_000
"""By one set, while it is being answered: as many may be prepared there. Those of a leader that has
failed were begun together, and are asked about together."""

KEPT_MS: Final = 24 * 3_600_000
"""Outcomes are known for so long after all have finished (PROTOCOL E1)."""

_FORGET_PERIOD_S: Final = 60.0
_FORGET_AFTER: Final = 20_000
"""What nobody may ask for any more, or is too much, is looked for so often, and after so many
decisions."""


class State(enum.Enum):
    """What became of a transaction, for who asks."""

    OPEN = "open"
    """Not decided yet."""
    COMMITTED = "committed"
    ABORTED = "aborted"
    FORGOTTEN = "forgotten"
    """It was over long ago."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is known of a transaction.

    Attributes:
        results: of a committed one, by replica set, of those that have finished.
        unfinished: replica sets that have not.
    """

    state: State
    results: Mapping[str, Results] = field(default_factory=dict)
    unfinished: tuple[str, ...] = ()


class Driver:
    """The transactions of one leadership. `run` must be running."""

    def __init__(
        self, log: Log, home: str, leaders: Leaders, random: Random, limits: Limits = LIMITS
    ) -> None:
        self.machine = Machine(home, log.ballot, random, leaders.knows, limits)
        self.callers = Callers(self.step)
        self.on_over: Callable[[TransactionId], None] = lambda _transaction: None
        """Told when a transaction of this leadership is rolled back, or done here."""
        self._log = log
        self._home = home
        self._leaders = leaders
        self._limits = limits
        self._effects: deque[Effect] = deque()
        self._working = False
        self._asked: dict[str, dict[TransactionId, None]] = {}
        """By replica set that is being answered: what it has asked about meanwhile."""
        self._decided = 0
        """Since outcomes were last forgotten."""
        self._decided_many = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._alarm = trio.Event()
        self._alarm_at = float("inf")

    async def run(self) -> None:
        """Drive until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                nursery.start_soon(persevere, "finishing what was decided", self._resume)
                nursery.start_soon(persevere, "forgetting old transactions", self._forget)
                await self._keep_time()
            finally:
                # Answers that come late start nothing.
                self._nursery = None

    def stop(self, reason: HadronError) -> None:
        """Leading ends."""
        self.step(LeadershipEnded(reason))

    # --- the machine ----------------------------------------------------------------------------

    def step(self, event: Event) -> None:
        """Tell the machine, and do what follows."""
        effects = self.machine.step(event, trio.current_time())
        if effects:
            self._effects.extend(effects)
            if not self._working:
                self._work()
        due = self.machine.next_due()
        if due is not None and due < self._alarm_at:
            self._alarm_at = due
            self._alarm.set()

    def _work(self) -> None:
        """Carry out effects in their order: to do one may be to hear of what follows."""
        self._working = True
        try:
            while self._effects:
                effect = self._effects.popleft()
                _WORK[type(effect)](self, effect)
        finally:
            self._working = False

    def _tell(self, effect: Send) -> None:
        self._leaders.send(effect.replica_set, effect.message)

    def _reply(self, effect: Reply) -> None:
        answer = effect.answer
        if isinstance(answer, Committed | RolledBack):
            self.on_over(answer.transaction)
        self.callers.answer(effect.caller, answer)

    def _log_decision(self, effect: LogDecision) -> None:
        command: Command
        if effect.records:
            command = DecideRun(effect.transaction, effect.records, *effect.statements)
        else:
            command = Decide(effect.transaction, effect.participants, effect.statements)
        done = partial(self._on_decision, effect.transaction)
        self._log.submit(command, joined(effect.bodies), done=done)

    def _on_decision(
        self, transaction: TransactionId, result: Any, error: HadronError | None
    ) -> None:
        if error is None:
            self.on_over(transaction)
            self._decided += 1
            if self._decided == _FORGET_AFTER:
                self._decided_many.set()
            self.step(Decided(transaction, result.results))
        elif self._log.leads:
            self.step(DecisionRefused(transaction, error))
        else:
            self.step(DecisionLost(transaction, error))

    def _tell_refused(self, effect: FinishRefused) -> None:
        # No error: one that was deposed, and does not know it yet, hears it of what is over.
        _log.warning(
            "transaction %s is decided, and %s does not finish it: %s; see `hadron tx show %s`",
            effect.transaction,
            effect.participant,
            effect.reason,
            effect.transaction,
        )

    def _log_finished(self, effect: LogFinished) -> None:
        self._log.submit(NoteFinished(effect.notes), done=partial(self._on_finished, effect))

    def _on_finished(self, effect: LogFinished, _result: Any, error: HadronError | None) -> None:
        if error is None:
            self.step(Noted(effect.notes))
        elif self._log.leads and self._nursery is not None:
            first = effect.notes[0]
            _log.error(
                "that %s has finished transaction %s is not noted, nor are %s others: %s",
                first.participant,
                first.transaction,
                len(effect.notes) - 1,
                error,
            )
            self._nursery.start_soon(self._note_again, effect)

    async def _note_again(self, effect: LogFinished) -> None:
        await trio.sleep(PAUSE_S)
        self._log_finished(effect)

    # --- time -----------------------------------------------------------------------------------

    async def _keep_time(self) -> None:
        while True:
            with trio.move_on_at(self._alarm_at):
                await self._alarm.wait()
            self._alarm = trio.Event()
            if self._alarm_at <= trio.current_time():
                self._alarm_at = float("inf")
                self.step(TimePassed())

    async def _resume(self) -> None:
        """Go on with what earlier leaderships have decided."""
        after_lsn = 0
        while True:
            found = await self._log.query(partial(_unfinished, self._home, after_lsn))
            for each in found:
                # This leadership holds what it has decided itself.
                is_own = each.transaction.ballot == self._log.ballot
                if not is_own and self.machine.held(each.transaction) is None:
                    results = {self._home: each.results} if each.results else {}
                    results |= each.finished
                    self.step(Unfinished(each.transaction, each.unfinished, results))
            if len(found) < _PAGE:
                return
            after_lsn = found[-1].lsn

    async def _forget(self) -> None:
        """Drop outcomes that nobody may ask for any more, or that are too many, slice by slice."""
        while True:
            command = ForgetDecisions(
                self._log.log_now_ms() - KEPT_MS,
                self._limits.decisions,
                self._limits.decision_bytes,
            )
            dropped: Dropped = await self._log.execute(command)
            if dropped.is_done:
                self._decided, self._decided_many = 0, trio.Event()
                with trio.move_on_after(_FORGET_PERIOD_S):
                    await self._decided_many.wait()

    # --- outcomes -------------------------------------------------------------------------------

    def _look_up(self, effect: LookUp) -> None:
        """One question of each set at a time: what it asks meanwhile is the next one. Beyond a
        bound it asks again.

        *(Transactions are asked about one by one: of thousands that a failed leader has left, all
        but the first would wait for their next turn, which is seconds later.)*
        """
        if self._nursery is None:
            return
        name = effect.replica_set
        waiting = self._asked.get(name)
        if waiting is None:
            waiting = self._asked[name] = {}
            self._nursery.start_soon(self._answer_all, name)
        room = _MAX_ASKED_MEANWHILE - len(waiting)
        waiting.update(dict.fromkeys(effect.transactions[:room]))

    async def _answer_all(self, name: str) -> None:
        try:
            while wanted := tuple(islice(self._asked[name], MAX_ASKED)):
                for each in wanted:
                    del self._asked[name][each]
                await self._answer(name, wanted)
        finally:
            del self._asked[name]

    async def _answer(self, name: str, wanted: Sequence[TransactionId]) -> None:
        try:
            found = await self._looked_up(wanted)
        except HadronError as error:
            # It will ask again, of whoever leads then.
            _log.debug("%s waits for outcomes: %s", name, error)
            return
        for transaction, known in zip(wanted, found, strict=True):
            self._leaders.send(name, _told(name, transaction, known))

    async def _looked_up(
        self, transactions: Sequence[TransactionId]
    ) -> list[decisions.Decided | State]:
        """What the tables say of transactions that are not held: nobody will decide them any more.

        A majority has to follow this leader after the question came, and all that is read, its
        ballot's beginning with it, has to be committed. *(A new leader has no decision in its log,
        and says "aborted"; it fails before its ballot has begun on a majority. Who leads next has
        the decision, and finishes it.)*
        """
        await self._log.confirm_leadership()
        return await self._log.query(partial(_find_all, transactions))

    async def outcome(self, transaction: TransactionId, *, is_final: bool = True) -> Outcome:
        """What became of a transaction of this replica set.

        Args:
            is_final: its client has lost its call: what it has not asked to commit, or was not
                decided yet, is rolled back, so that the answer is the last one.

        Raises `NotFoundError` for another driver's, and unless it is to be final for one of a
        leadership that there has not been yet; `NotReadyError` when that cannot be told now.
        """
        if transaction.replica_set != self._home:
            raise NotFoundError(
                f"transaction {transaction} is not driven by {self._home}",
                f"ask {transaction.replica_set}",
            )
        if is_final:
            error = RequestError("its client has asked what became of it, and so has given it up")
            self.step(RollbackForced(transaction, error))
        held = self.machine.held(transaction)
        if held is not None:
            if (finishing := held.finishing) is None:
                return Outcome(State.OPEN)
            return Outcome(State.COMMITTED, dict(finishing.results), tuple(finishing.unfinished))
        if not self.machine.is_over(transaction):
            if transaction.ballot == self._log.ballot:
                return Outcome(State.OPEN)
            if not is_final:
                # Once a majority has followed this ballot, there was no later leader when this was
                # asked: nobody has begun such a transaction. Who was deposed does not get there.
                await self._log.confirm_leadership()
                raise refusals.not_begun(transaction, self._log.ballot)
            raise NotReadyError(
                f"transaction {transaction} is of a later leadership than {self._log.ballot}, "
                "which has not heard of it",
                "ask again: another leader is about to answer",
            )
        (known,) = await self._looked_up([transaction])
        if isinstance(known, State):
            return Outcome(known)
        results = {self._home: known.results} if known.results else {}
        unfinished = tuple(each.replica_set for each in known.unfinished)
        return Outcome(State.COMMITTED, results | known.finished, unfinished)

    # --- operators ------------------------------------------------------------------------------

    def shown(self) -> Iterator[Shown]:
        """What is open, and what is decided and waits for somebody; the oldest first."""
        return self.machine.shown(trio.current_time())

    def resolve(self, transaction: TransactionId, participant: str = "") -> None:
        """An operator's act. Roll back what is open; or, which is unsafe, wait no more for a
        participant of what is decided: what it was to do there is told as deleted, and is done
        nevertheless if that comes back within a day (`KEPT_MS`).

        Raises `RequestError` where there is nothing to resolve.
        """
        held = self.machine.held(transaction)
        if held is None:
            raise NotFoundError(
                f"transaction {transaction} is not open at {self._home}, and waits for nobody",
                "see `hadron tx list`",
            )
        if held.phase is Phase.DECIDING:
            raise NotReadyError(f"transaction {transaction} is being decided right now")
        if (finishing := held.finishing) is None:
            self.step(RollbackForced(transaction, refusals.by_operator(transaction)))
        elif participant not in finishing.unfinished:
            raise refusals.resolved(transaction, participant, finishing.unfinished)
        else:
            _log.warning(
                "an operator has resolved transaction %s without %s: what it was to do there is "
                "told as deleted, and is done only if that comes back within a day",
                transaction,
                participant,
            )
            self.step(GivenUp(transaction, participant))

    @property
    def troubles(self) -> list[str]:
        """Decided transactions that wait for sets that do not answer, or do not finish one, in
        words."""
        return [
            f"{name} is to finish {counted(count, 'decided transaction')}: {reason}"
            for name, count, reason in self.machine.stuck()
        ]


def _unfinished(home: str, after_lsn: int, db: Database) -> list[decisions.Decided]:
    return decisions.unfinished(db, home, after_lsn=after_lsn, limit=_PAGE)


def _find_all(
    transactions: Sequence[TransactionId], db: Database
) -> list[decisions.Decided | State]:
    return [_find(db, each) for each in transactions]


def _find(db: Database, transaction: TransactionId) -> decisions.Decided | State:
    known = decisions.find(db, transaction)
    if known is not None:
        return known
    return State.FORGOTTEN if decisions.is_forgotten(db, transaction) else State.ABORTED


def _told(name: str, transaction: TransactionId, known: decisions.Decided | State) -> Told:
    if isinstance(known, State):
        return Told(transaction, Fate.ABORTED if known is State.ABORTED else Fate.OVER)
    for each in known.unfinished:
        if each.replica_set == name:
            return Told(transaction, Fate.COMMITTED, each.prepared_lsn, each.statements)
    for each in known.noted:
        if each.replica_set == name:
            return Told(transaction, Fate.OVER, each.prepared_lsn, each.statements)
    return Told(transaction, Fate.OVER)


_WORK: Final[dict[type[Any], Callable[[Driver, Any], None]]] = {
    Send: Driver._tell,
    Reply: Driver._reply,
    LogDecision: Driver._log_decision,
    LogFinished: Driver._log_finished,
    FinishRefused: Driver._tell_refused,
    LookUp: Driver._look_up,
}
