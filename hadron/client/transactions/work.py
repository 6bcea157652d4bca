"""One transaction from its first statement to its outcome: the inside of `transaction.Transaction`,
of the blocking one and of the steps of a subscription.

    open → committing → committed | rolled back | unknown

Safety rule: what is not known is asked, of the driver that was to decide it, and of nobody else.
Only its word that nothing was done, nor will be, makes a commit fail as rolled back (PROTOCOL E1).
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.lowlevel

from hadron.client.connecting.session import can_retry
from hadron.client.handling.invocation import AnyInvocation, Given, reason_of
from hadron.client.producing.bulk import check_many, cut, slices
from hadron.client.producing.new_records import whole_record
from hadron.client.transactions.contents import (
    BATCH_BYTES,
    Claim,
    Claimable,
    Contents,
    Place,
    Published,
    PublishedMany,
)
from hadron.client.transactions.driver_call import COMMIT, OPEN, ROLLBACK, DriverCall
from hadron.client.transactions.stages import (
    Ended,
    completion,
    failure,
    outputs_of,
    stage_of,
    took_ms,
    whole,
)
from hadron.model.errors import (
    ClosedError,
    CommitUnknownError,
    ConnectionLostError,
    HadronError,
    OffsetMismatchError,
    RequestError,
)
from hadron.model.limits import MAX_BATCH_RECORDS
from hadron.model.record import NewRecord
from hadron.model.transactions import TransactionId
from hadron.wire.messages import pipelines_pb2, transactions_pb2

if TYPE_CHECKING:
    from hadron.client.transactions.calls import TransactionCalls
    from hadron.client.transactions.settings import TransactionSettings

_log = logging.getLogger(__name__)

_PUSH_BYTES: Final = 256 << 10
"""Statements of so much are sent while their program works on, and it waits for their leaving."""

_RECORDS_PER_CHECKPOINT: Final = 128

_AGAIN: Final = "nothing of the transaction was done: do it again"


class State(enum.Enum):
    OPEN = "open"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "not known to be committed or not"


class Work:
    """What one transaction does (`driver_call.Spoken`).

    Attributes:
        home: the driver's replica set; "" until it is chosen.
        id: None until something was sent.
        error: why it was rolled back, or is not known.
        is_settled: its program has ended it by a call, and knows what came of that.
        is_redone: all that it does is done again once it is rolled back, so its program need not
            hear of that: what it still adds goes nowhere.
    """

    def __init__(self, calls: TransactionCalls, settings: TransactionSettings) -> None:
        self.number = -1
        self.said = 0
        self.state = State.OPEN
        self.home = settings.driver or ""
        self.id: TransactionId | None = None
        self.error: HadronError | None = None
        self.is_settled = False
        self.is_redone = False
        self.contents = Contents(settings.codec)
        self._calls = calls
        self._settings = settings
        self._new_record = settings.new_record
        self._driver: DriverCall | None = None
        self._claimed: list[Claimable | Given] = []
        self._answered: anyio.Event | None = None

    def __str__(self) -> str:
        what = "nothing sent yet" if self.id is None else str(self.id)
        return f"{what}, {self.state.value}"

    # --- statements -----------------------------------------------------------------------------

    async def publish(self, stream: str, value: Any, *others: Any) -> Published:
        """See `Transaction.publish`; `others` are those of `new_records.new_record`."""
        self._check_usable()
        record = self._new_record(value, *others)
        place = await self._place(stream, record)
        batch, index = self._filled(self.contents.add, place, record, self._calls.now_ms())
        if self.contents.waiting_bytes >= _PUSH_BYTES:
            # Whoever gives up waiting cannot know whether the record is in it.
            with self._whole("publish"):
                await self._push_now()
        else:
            self._push_soon()
        return Published(batch, index)

    async def publish_many(
        self, stream: str, values: Any, partition: str | None = None
    ) -> PublishedMany:
        """See `Transaction.publish_many`."""
        self._check_usable()
        check_many(values, "publish_many", "publish")
        published = PublishedMany()
        # Of some that are in it, the others not, nobody may make a whole.
        with self._whole("publish_many"):
            for part in slices(values, self._settings.value_serializer):
                await self._publish_slice(stream, part, partition, published)
        return published

    @contextmanager
    def _whole(self, call: str) -> Iterator[None]:
        """What a call adds is in it as a whole, or it is rolled back."""
        try:
            yield
        except HadronError as error:
            self.rollback(error)
            raise
        except Exception as error:
            self.rollback(
                RequestError(
                    f"{call} was given values that raised {type(error).__name__}: {error}", _AGAIN
                )
            )
            raise
        except BaseException:
            self.rollback(RequestError(f"{call} was cancelled before it was done", _AGAIN))
            raise

    async def _publish_slice(
        self, stream: str, values: Sequence[Any], partition: str | None, published: PublishedMany
    ) -> None:
        start, guess = 0, MAX_BATCH_RECORDS
        while start < len(values):
            some: Sequence[Any] = values[start : start + guess]
            if set(map(type, some)) == {bytes}:
                some, size = cut(some, BATCH_BYTES)
                guess = max(1, min(MAX_BATCH_RECORDS, BATCH_BYTES * len(some) // size))
                place = await self._place_of(stream, None, partition)
                batch = self._filled(
                    self.contents.add_values, place, some, size, self._calls.now_ms()
                )
                published._add(batch, 0, len(some))
            else:
                guess = _RECORDS_PER_CHECKPOINT
                some = some[:guess]
                await self._add_each(stream, some, partition, published)
            start += len(some)
            if self.contents.waiting_bytes >= _PUSH_BYTES:
                await self._push_now()
        self._push_soon()

    async def _add_each(
        self, stream: str, values: Sequence[Any], partition: str | None, published: PublishedMany
    ) -> None:
        now_ms = self._calls.now_ms()
        for value in values:
            record = whole_record(value)
            named = partition if record.partition is None else record.partition
            place = await self._place_of(stream, record.key, named)
            batch, index = self._filled(self.contents.add, place, record, now_ms)
            published._add(batch, index, 1)
        await anyio.lowlevel.checkpoint()
        self._check_usable()

    async def _place(self, stream: str, record: NewRecord) -> Place:
        return await self._place_of(stream, record.key, record.partition)

    async def _place_of(self, stream: str, key: bytes | str | None, partition: str | None) -> Place:
        places = await self._calls.places(stream)
        region = self._settings.region
        if key is not None and partition is None:
            places.check_keys(self._settings.partitioner, region)
        if partition is not None:
            place = places.named(partition)
        elif key is not None and self._settings.by_key:
            place = places.of_key(key, region)
        else:
            place = places.of_none(region, self.home, self.contents.is_at, self._calls.is_away)
        if not self.home:
            self.home = place.replica_set
        return place

    def _filled(self, fill: Callable[..., Any], *args: Any) -> Any:
        """What it gives. Nothing of the transaction is done once it is over a limit of its own."""
        self._check_usable()
        before = self.contents.size, self.contents.count
        try:
            return fill(*args)
        except RequestError as error:
            if (self.contents.size, self.contents.count) != before:
                self.rollback(error)
            raise

    def ack(self, what: Claimable) -> None:
        """See `Transaction.ack`."""
        self._check_usable()
        if self.state is not State.OPEN:
            # Nothing would come of it, and it may be acknowledged when this is done again.
            return
        claim = self._calls.claim(what)
        self._claimed.append(what)
        self.acknowledge(claim)

    def acknowledge(self, claim: Claim) -> None:
        """What was delivered to a member is dealt with."""
        self.contents.acknowledge(claim)
        self._at(claim.replica_set)

    # --- stages ---------------------------------------------------------------------------------

    async def complete(
        self,
        given: Ended,
        outputs: Any,
        only: pipelines_pb2.Invocation | Iterable[pipelines_pb2.Invocation] | None,
    ) -> PublishedMany:
        """See `Transaction.complete`."""
        self._check_usable()
        invocations, ended = whole(given, only)
        if isinstance(given, AnyInvocation):
            outputs = None if given._given.stage.output is None and outputs is None else [outputs]
        stage = stage_of(invocations)
        if stage is not None:
            home = await self._calls.homes.of_id(invocations.pipeline_id)
        else:
            home, stage = await self._calls.homes.stage(invocations.pipeline_id, invocations.stage)
        records = outputs_of(stage, len(ended), outputs, self._settings.value_serializer, home)
        statement = completion(home, invocations, ended, took_ms(given))
        published = PublishedMany()
        place = None
        if stage.output is not None:
            place = (await self._calls.places(stage.output.stream)).named(home)
        self._check_open(given)
        if place is None:
            self._filled(self.contents.add_statement, statement)
        else:
            now_ms = self._calls.now_ms()
            batch = self._filled(self.contents.add_outputs, statement, place, records, now_ms)
            published._add(batch, 0, len(records))
        self._at(home)
        self._claim(given)
        return published

    async def fail(
        self,
        given: Ended,
        error: object,
        only: pipelines_pb2.Invocation | Iterable[pipelines_pb2.Invocation] | None,
    ) -> None:
        """See `Transaction.fail`."""
        self._check_usable()
        invocations, ended = whole(given, only)
        reason = reason_of(error)
        home = await self._calls.homes.of_id(invocations.pipeline_id)
        self._check_open(given)
        statement = failure(home, invocations, ended, reason, took_ms(given))
        self._filled(self.contents.add_statement, statement)
        self._at(home)
        self._claim(given)

    def _check_open(self, given: Ended) -> None:
        """Nobody else ends it between this and `_claim`, where nothing is waited for between."""
        if isinstance(given, AnyInvocation):
            given._given.check_open()

    def _claim(self, given: Ended) -> None:
        """It has ended, once this is committed. What is rolled back ends nothing: it may be ended
        when this is done again."""
        if isinstance(given, AnyInvocation) and self.state is State.OPEN:
            given._given.claim()
            self._claimed.append(given._given)

    def add_statement(self, statement: transactions_pb2.Statement) -> None:
        """One that is whole, and has no batch."""
        self._check_usable()
        self._filled(self.contents.add_statement, statement)
        self._at(statement.replica_set)

    def _at(self, replica_set: str) -> None:
        """It does something there."""
        if not self.home:
            self.home = replica_set
        self._push_soon()

    # --- sending --------------------------------------------------------------------------------

    def _push_soon(self) -> None:
        driver = self._driver
        if driver is None:
            driver = self._driver = self._calls.driver(self.home)
        driver.linger(self)

    async def _push_now(self) -> None:
        if self.state is State.OPEN:
            try:
                driver = await self._ready()
                await driver.room()
            except HadronError:
                if not self.is_redone:
                    raise
        self._check_usable()
        self.push()

    async def begin(self) -> None:
        """See `Transaction.begin`."""
        self._check_usable()
        if self.id is None and not self.contents.is_empty:
            await self._ready()
            self._check_usable()
            self.push()
            # What it has may have been too much.
            self._check_usable()

    async def _ready(self) -> DriverCall:
        """The driver, asked to open its call if it has not. Raises `PeerError`, and nothing was
        done."""
        driver = self._driver
        if driver is None:
            driver = self._driver = self._calls.driver(self.home)
        if self.id is None and not driver.is_ready:
            try:
                await driver.ready()
            except HadronError as error:
                self._end(State.ROLLED_BACK, error)
                raise
        return driver

    def push(self) -> bool:
        driver = self._driver
        if self.state is not State.OPEN or driver is None or not self.contents.has_waiting:
            return True
        if self.id is None:
            if not driver.is_ready:
                return False
            self.id = driver.begin(self)
        try:
            statements, bodies = self.contents.take()
        except RequestError as error:
            self.rollback(error)
        else:
            driver.say(self, statements, bodies, OPEN)
        return True

    # --- its end --------------------------------------------------------------------------------

    async def commit(self) -> None:
        """Until it is committed. Raises why it is not, or `CommitUnknownError`."""
        self.is_settled = True
        try:
            await self._commit()
        except anyio.get_cancelled_exc_class():
            # Its program does not know what came of it: who leaves the block hears of that.
            self.is_settled = False
            raise

    async def _commit(self) -> None:
        self._check_usable()
        if self.contents.is_empty:
            self._end(State.COMMITTED, None)
            return
        # Nothing was said yet of what is to become of it.
        with self._whole("commit"):
            driver = await self._ready()
            self._check_usable()
        place = self.contents.lone_place() if self.id is None else None
        is_shared = place is not None and place.replica_set == driver.home
        if not is_shared:
            try:
                statements, bodies = self.contents.take()
            except RequestError as error:
                self.rollback(error)
                raise
        if self.id is None:
            self.id = driver.begin(self)
        self.state = State.COMMITTING
        self._answered = answered = anyio.Event()
        if is_shared:
            driver.commit_lone(self, self.contents)
        else:
            driver.say(self, statements, bodies, COMMIT)
        try:
            await answered.wait()
            if self.state is State.UNKNOWN:
                await self._ask()
        except BaseException:
            is_known = self.state in (State.COMMITTED, State.ROLLED_BACK)
            if not is_known and not isinstance(self.error, CommitUnknownError):
                # Cancelled: the driver goes on with it. A call that was lost knows no better.
                driver.forget(self)
                self._end(
                    State.UNKNOWN,
                    CommitUnknownError(
                        f"transaction {self.id} may or may not be committed: nobody waited for the "
                        "answer",
                        f'all of it is done, or nothing: `client.outcome("{self.id}")` asks '
                        f"{self.home}",
                        transaction=str(self.id),
                    ),
                )
                self._calls.remember(self)
            raise
        if self.state is not State.COMMITTED:
            raise self._failure()

    async def _ask(self) -> None:
        """What became of it, of the driver that was to decide."""
        assert self.id is not None
        trouble = self.error
        try:
            outcome = await self._calls.find_out(self.id)
        except HadronError as error:
            self._calls.remember(self)
            unknown = CommitUnknownError(
                f"transaction {self.id} may or may not be committed: {trouble}; {error.message}",
                f'all of it is done, or nothing: `client.outcome("{self.id}")` asks {self.home}',
                transaction=str(self.id),
            )
            self.error = unknown
            raise unknown from error
        self.learn(outcome)

    def learn(self, outcome: transactions_pb2.OutcomeResponse) -> None:
        """The driver has said what became of it, for good."""
        if outcome.state == transactions_pb2.OutcomeResponse.COMMITTED:
            self.contents.committed(outcome.results)
            self._end(State.COMMITTED, None)
            if outcome.unfinished:
                _log.warning(
                    "transaction %s is committed; of %s it is not known yet whether all of it is "
                    "there, which it will be",
                    self.id,
                    ", ".join(outcome.unfinished),
                )
        elif outcome.state == transactions_pb2.OutcomeResponse.ABORTED:
            reason = self.error.message if self.error is not None else "its call was lost"
            self._end(
                State.ROLLED_BACK,
                ConnectionLostError(
                    f"transaction {self.id} was rolled back: {reason}",
                    "nothing of it was done: do it again",
                    retryable=self.error is None or can_retry(self.error),
                ),
            )
        else:
            self._end(
                State.UNKNOWN,
                CommitUnknownError(
                    f"transaction {self.id} was over long ago, and nobody knows any more how",
                    "outcomes are kept for 24 hours: look for its records in the streams",
                    transaction=str(self.id),
                ),
            )

    async def leave(self, error: BaseException | None) -> None:
        """Its block has ended, by `error` if that is not None. Raises as `commit` does, also when
        its program went on after it was rolled back."""
        if error is not None:
            self.rollback()
        elif self.is_settled or self.state is State.COMMITTED:
            return
        elif self.state is State.UNKNOWN:
            raise self._failure()
        else:
            await self.commit()

    def give_up(self) -> None:
        """Its program wants nothing of it. Raises where all of it is done, or may be."""
        if self.state is State.UNKNOWN:
            raise self._failure()
        if self.state not in (State.OPEN, State.ROLLED_BACK):
            raise self._too_late("a committed transaction stays: undo what it did by another one")
        self.is_settled = True
        self.rollback()

    def rollback(self, error: HadronError | None = None) -> None:
        """Do nothing of it, if it is open; `error` says why, if its program did not want that."""
        if self.state is not State.OPEN:
            return
        if self.id is not None and self._driver is not None:
            self._driver.say(self, (), (), ROLLBACK)
        elif self._driver is not None:
            self._driver.forget(self)
        self._end(State.ROLLED_BACK, error)

    def _end(self, state: State, error: HadronError | None) -> None:
        self.state, self.error = state, error
        if state is State.ROLLED_BACK:
            for each in self._claimed:
                each._unclaim()
        if state is not State.UNKNOWN:
            self._claimed = []
        if self._answered is not None:
            self._answered.set()

    def _failure(self) -> HadronError:
        """Why it is not committed, as an exception of its own."""
        error = self.error
        if error is None:
            return ClosedError(f"transaction {self}", "begin another one")
        if isinstance(error, CommitUnknownError):
            return CommitUnknownError(error.message, error.hint, transaction=error.transaction)
        if isinstance(error, OffsetMismatchError):
            return OffsetMismatchError(
                error.message, error.hint, expected=error.expected, actual=error.actual
            )
        return type(error)(error.message, error.hint, retryable=error.retryable)

    def _check_usable(self) -> None:
        """Raises why there is nothing more to be done in it."""
        if self.state is State.OPEN:
            self._calls.session.check_open()
            return
        if self.state is State.ROLLED_BACK and self.error is not None:
            if self.is_redone and not self.is_settled:
                return
            raise self._failure()
        raise self._too_late("what is to be done besides is another transaction")

    def _too_late(self, hint: str) -> ClosedError:
        # One that has sent nothing has no id.
        which = "" if self.id is None else f": {self.id}"
        return ClosedError(f"the transaction is {self.state.value}{which}", hint)

    # --- what the driver says (`driver_call.Spoken`) ------------------------------------------

    def committed(self, results: Sequence[transactions_pb2.ReplicaSetResults]) -> None:
        self.contents.committed(results)
        self._end(State.COMMITTED, None)

    def committed_together(self, result: transactions_pb2.StatementResult) -> None:
        self.contents.committed_together(result)
        self._end(State.COMMITTED, None)

    def rolled_back(self, error: HadronError) -> None:
        self._end(State.ROLLED_BACK, error)

    @property
    def others(self) -> list[str]:
        return [each for each in self.contents.replica_sets if each != self.home]

    def unsure(self, error: HadronError) -> None:
        if self.state is State.COMMITTING:
            self._end(State.UNKNOWN, error)
        elif self.state is State.OPEN:
            self._end(
                State.ROLLED_BACK,
                ConnectionLostError(
                    f"transaction {self.id} was rolled back, its driver was lost: {error.message}",
                    "nothing of it was done: do it again",
                    retryable=can_retry(error),
                ),
            )
