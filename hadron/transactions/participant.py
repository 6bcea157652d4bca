"""Transactions, mostly other sets', as far as they are prepared at this one: writes intents,
finishes and aborts them as their drivers say, and asks drivers that say nothing.

Safety rules: an answer leaves once what it says is committed here. Nothing is concluded from
silence: an intent stays, with its locks, until its driver has said how its transaction ended, or an
operator has (`resolve`).
"""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import trio

from hadron.model.errors import HadronError, NotFoundError, RequestError
from hadron.model.transactions import TransactionId
from hadron.serving.perseverance import persevere
from hadron.state.transactions import participations
from hadron.state.transactions.intents import (
    AbortTransaction,
    FinishTransaction,
    ForgetTransactions,
    WriteIntents,
    prepared,
)
from hadron.state.transactions.intents import Prepared as Written
from hadron.state.transactions.participations import Participation
from hadron.transactions import refusals
from hadron.transactions.limits import MAX_ASKED
from hadron.transactions.messages import (
    Abort,
    Asked,
    Fate,
    Finish,
    Finished,
    FinishFailed,
    Forget,
    Message,
    Prepare,
    Prepared,
    PrepareRefused,
    Told,
    ToParticipant,
)
from hadron.transactions.ports import Leaders, Log

_log = logging.getLogger(__name__)

_PERIOD_S: Final = 0.5
"""Between two looks at what is old."""

FIRST_ASK_MS: Final = 1_000
"""A driver that is up has said how nearly all ended by then."""

_LAST_ASK_MS: Final = 8 * FIRST_ASK_MS
"""From there on it is asked so often. Locks of transactions whose driver has failed are held for so
long at most after another one leads."""


_WORD_S: Final = 3.0
"""How long an operator waits for what a driver says that is up: a round, and its tables."""

_MAX_REFUSED: Final = 10_000
"""Prepares that wait for a look at the tables: a driver has no more transactions open."""


def is_due(age_ms: int, before_ms: int) -> bool:
    """Whether a driver is to be asked about what is `age_ms` old now, and was `before_ms` old when
    that was last looked at: after a second, after two, four, eight, and then all eight."""
    return _times(age_ms) > _times(before_ms)


def _times(age_ms: int) -> int:
    if age_ms < _LAST_ASK_MS:
        return max(0, age_ms // FIRST_ASK_MS).bit_length()
    return (_LAST_ASK_MS // FIRST_ASK_MS).bit_length() + age_ms // _LAST_ASK_MS


class Participant:
    """What other sets' drivers do at this one under one leadership. `run` must be running."""

    def __init__(self, log: Log, home: str, leaders: Leaders) -> None:
        self._log = log
        self._home = home
        self._leaders = leaders
        self.on_aborted: Callable[[TransactionId], None] = lambda _transaction: None
        """Told when all that was logged of a transaction before its abort has been dealt with."""
        self._looked_ms = 0
        self.waiting: dict[str, int] = {}
        """By driver: how many of its transactions have waited here for `FIRST_ASK_MS` and more."""
        self._refused: deque[tuple[PrepareRefused, int]] = deque()
        self._has_refused = trio.Event()
        self._has_some = trio.Event()
        self._operators: set[trio.MemorySendChannel[Told]] = set()
        """Who waits for a driver's word, and is told too."""

    # --- what drivers say -----------------------------------------------------------------------

    def receive(self, name: str, message: ToParticipant) -> None:
        """A message came from a replica set's leader. Other drivers' transactions are not its."""
        if isinstance(message, Forget):
            self._forget(name, message.transactions)
            return
        transaction = message.transaction
        if transaction.replica_set != name:
            _log.warning("%s speaks of transaction %s, which is not its own", name, transaction)
        elif isinstance(message, Prepare):
            self._prepare(message)
        elif isinstance(message, Finish):
            self._finish(transaction, message.prepared_lsn, message.count)
        elif isinstance(message, Abort):
            self._abort(transaction)
        else:
            self._told(message)

    def _forget(self, name: str, transactions: tuple[TransactionId, ...]) -> None:
        own = tuple([each for each in transactions if each.replica_set == name])
        if len(own) < len(transactions):
            _log.warning("%s speaks of transactions that are not its own", name)
        if own:
            self._log.submit(ForgetTransactions(own), done=_ignored)

    def _told(self, message: Told) -> None:
        transaction = message.transaction
        for operator in self._operators:
            operator.send_nowait(message)
        if message.fate is Fate.COMMITTED:
            self._finish(transaction, message.prepared_lsn, message.count)
        elif message.fate is Fate.ABORTED:
            self._abort(transaction)
        elif message.fate is Fate.OVER:
            forget = partial(self._forget_over, transaction)
            if message.count:
                # Done before, or given up by an operator: that is done now. A copy is refused.
                finish = FinishTransaction(transaction, message.prepared_lsn, message.count)
                self._log.submit(finish, done=forget)
            else:
                forget(None, None)

    def _forget_over(
        self, transaction: TransactionId, _result: Any, error: HadronError | None
    ) -> None:
        if error is not None and not isinstance(error, RequestError):
            # Not done yet, for want of room or of whole intents: its driver is asked again.
            return
        self._log.submit(ForgetTransactions((transaction,)), done=self._on_over)

    def _on_over(self, result: Any, error: HadronError | None) -> None:
        """What was finished is forgotten; what was not is a copy that came after that."""
        if error is None:
            for each in result:
                self._abort(each)

    def _prepare(self, message: Prepare) -> None:
        command = WriteIntents(message.transaction, message.first, message.statements)
        done = partial(self._on_prepared, message.transaction, message.first)
        self._log.submit(command, message.body, done=done)

    def _on_prepared(
        self, transaction: TransactionId, first: int, result: Any, error: HadronError | None
    ) -> None:
        if error is None:
            assert isinstance(result, Written)
            # Not before: who looks while it is on its way into the log sees nothing.
            self._has_some.set()
            answer: Message = Prepared(transaction, first, result.prepared_lsn)
        elif self._log.leads:
            answer = PrepareRefused(transaction, first, error)
        else:
            # They may be written or not: who leads next knows.
            return
        self._leaders.send(transaction.replica_set, answer)

    def refused(self, refusal: PrepareRefused, count: int) -> None:
        """`count` statements cannot be prepared any more, as a group's members have gone, say. They
        may be a copy of what was prepared before, by an earlier leader perhaps: that stands."""
        if len(self._refused) >= _MAX_REFUSED:
            # Its driver says it again.
            self._refused.popleft()
        self._refused.append((refusal, count))
        self._has_refused.set()

    async def _answer_refused(self) -> None:
        while True:
            await self._has_refused.wait()
            while self._refused:
                refusal, count = self._refused.popleft()
                transaction, first = refusal.transaction, refusal.first
                known = await self._log.query(
                    partial(prepared, transaction=transaction, first_number=first, count=count)
                )
                answer: Message = refusal
                if known is not None:
                    answer = Prepared(transaction, first, known.prepared_lsn)
                self._leaders.send(transaction.replica_set, answer)
            self._has_refused = trio.Event()

    def _finish(self, transaction: TransactionId, prepared_lsn: int, count: int) -> None:
        command = FinishTransaction(transaction, prepared_lsn, count)
        self._log.submit(command, done=partial(self._on_finished, transaction))

    def _on_finished(
        self, transaction: TransactionId, result: Any, error: HadronError | None
    ) -> None:
        if error is None:
            self._leaders.send(transaction.replica_set, Finished(transaction, tuple(result)))
        elif self._log.leads:
            # Of a copy that came late its driver thinks nothing.
            self._leaders.send(transaction.replica_set, FinishFailed(transaction, error))

    def _abort(self, transaction: TransactionId) -> None:
        done = partial(self._on_aborted, transaction)
        self._log.submit(AbortTransaction(transaction), done=done)

    def _on_aborted(
        self, transaction: TransactionId, _result: Any, error: HadronError | None
    ) -> None:
        self.on_aborted(transaction)
        if error is None or not self._log.leads:
            return
        if not isinstance(error, RequestError):
            _log.error("transaction %s is not aborted at %s: %s", transaction, self._home, error)
            return
        # Finished, and its driver knows of no decision: which of the two it was leaves no trace.
        _log.error(
            "transaction %s is torn: it was finished at %s, and %s says that it is aborted (its "
            "driver was restored from a backup of before it decided this, or an operator has "
            "committed it here by force)",
            transaction,
            self._home,
            transaction.replica_set,
        )
        self._log.submit(ForgetTransactions((transaction,)), done=_ignored)

    # --- what nobody says -----------------------------------------------------------------------

    async def run(self) -> None:
        """Ask about what is old, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(persevere, "asking drivers of transactions", self._ask)
            nursery.start_soon(persevere, "answering drivers of transactions", self._answer_refused)

    async def _ask(self) -> None:
        now_ms, looked_s = self._log.log_now_ms(), trio.current_time()
        # An earlier leadership may have left some, or a look that failed.
        self._has_some.set()
        while True:
            await self._has_some.wait()
            # What comes from here on sets it again.
            self._has_some = trio.Event()
            # The log's time stands still while a clock that was set back catches up with it.
            before_s, looked_s = looked_s, trio.current_time()
            now_ms += round((looked_s - before_s) * 1_000)
            now_ms = max(self._log.log_now_ms(), now_ms)
            if await self._ask_once(now_ms):
                self._has_some.set()
            await trio.sleep(_PERIOD_S)

    async def _ask_once(self, now_ms: int) -> bool:
        """Ask about all whose time has come; whether anything is here, old or not."""
        after_lsn, is_any = 0, False
        waiting: Counter[str] = Counter()
        while page := await self.shown(after_lsn=after_lsn):
            is_any, after_lsn = True, page[-1].prepared_lsn
            wanted: dict[str, list[TransactionId]] = {}
            for each in page:
                if not each.is_finished and now_ms - each.since_ms >= FIRST_ASK_MS:
                    waiting[each.transaction.replica_set] += 1
                if is_due(now_ms - each.since_ms, self._looked_ms - each.since_ms):
                    wanted.setdefault(each.transaction.replica_set, []).append(each.transaction)
            for name, transactions in wanted.items():
                self._leaders.send(name, Asked(tuple(transactions)))
        self._looked_ms = now_ms
        self.waiting = waiting
        return is_any

    # --- operators ------------------------------------------------------------------------------

    async def shown(self, *, after_lsn: int = 0, limit: int = MAX_ASKED) -> list[Participation]:
        """Other drivers' transactions that are here, in the order in which they came."""
        return await self._log.query(partial(participations.held, after_lsn=after_lsn, limit=limit))

    async def resolve(self, transaction: TransactionId, *, commit: bool) -> None:
        """An operator's unsafe act: end here what a driver that is lost has begun. Nobody knows
        what it has decided; where that was otherwise, the transaction is torn. So it is asked
        first, and has the last word where it answers; but what it waits for no more, as it was
        given up there, may be damaged here, and be aborted.

        Raises `NotFoundError` for what is not here, `RequestError` for aborting what is finished,
        and where the driver answers.
        """
        if transaction.replica_set == self._home:
            raise refusals.no_participant(transaction)
        known = await self._log.query(lambda db: participations.find(db, transaction))
        if known is None:
            raise NotFoundError(
                f"nothing of transaction {transaction} is at {self._home}", "see `hadron tx list`"
            )
        fate = await self._word(transaction)
        # A copy that came after it was over must not be done once more.
        if fate is not None and (commit or fate is not Fate.OVER):
            raise refusals.not_lost(transaction, fate, self._home)
        _log.warning(
            "an operator has resolved transaction %s at %s: it is %s here, whatever %s has decided",
            transaction,
            self._home,
            "committed" if commit else "aborted",
            transaction.replica_set,
        )
        command = (
            FinishTransaction(transaction, known.prepared_lsn, known.statements)
            if commit
            else AbortTransaction(transaction)
        )
        await self._log.execute(command)

    async def _word(self, transaction: TransactionId) -> Fate | None:
        """What its driver says of it; None where it says nothing."""
        tell, told = trio.open_memory_channel[Told](math.inf)
        self._operators.add(tell)
        try:
            self._leaders.send(transaction.replica_set, Asked((transaction,)))
            with trio.move_on_after(_WORD_S):
                async for each in told:
                    if each.transaction == transaction:
                        return each.fate
        finally:
            self._operators.discard(tell)
        return None


def _ignored(_result: Any, _error: HadronError | None) -> None:
    """What is not forgotten now is asked about."""
