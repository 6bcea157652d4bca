"""What a producer does with its records: room, batches, time limits, outcomes.

The inside of `producer.Producer` and of the blocking one, by themselves so that what users see of
those is what they may call. Safety rule: a record that was accepted has exactly one outcome, and
every failure is told once: to whoever waits for it, else by `flush` or by leaving the block.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.lowlevel

from hadron.client.connecting import forks
from hadron.client.connecting.session import Session
from hadron.client.producing.buffer import SendBuffer
from hadron.client.producing.new_records import Serializer, new_record, serialized
from hadron.client.producing.outgoing_batch import BatchState, OutgoingBatch
from hadron.client.producing.router import Router
from hadron.client.producing.sender import PartitionSender
from hadron.client.terms.ending import Ending
from hadron.client.terms.results import Receipt
from hadron.model.errors import (
    ClosedError,
    HadronError,
    InvalidRecordError,
    NotFoundError,
    RequestError,
)
from hadron.model.record import BYTES, NewRecord

if TYPE_CHECKING:
    from hadron.client.producing.bulk import Segment

_log = logging.getLogger(__name__)

_TICKS_PER_TIMEOUT: Final = 20
_TICK_S: Final = 0.5
"""Delivery timeouts are noticed within a twentieth of their length, or this; and so is a partition
that is away (`failover.AWAY_AFTER_S`)."""

KEPT_FAILURES: Final = 1_000
"""That nobody has seen yet; further ones are counted."""

_TOLD_FAILURES: Final = 5
"""Batches that are named one by one when a block ends by an error of its own."""


class Pending:
    """A record that was accepted; `wait` tells what became of it."""

    __slots__ = ("_batch", "_hearers", "_index")

    def __init__(self, batch: OutgoingBatch, index: int) -> None:
        self._batch = batch
        self._index = index
        self._hearers = 0
        """Those who wait for it, and who has seen its failure."""

    def __repr__(self) -> str:
        batch = self._batch
        state = "on its way"
        if batch.is_done:
            state = "failed" if batch.state is BatchState.FAILED else "acknowledged"
        return f"<Pending of {batch.stream}/{batch.partition}, {state}>"

    @property
    def is_done(self) -> bool:
        """Whether `wait` returns at once."""
        return self._batch.is_done

    async def wait(self) -> Receipt:
        """The record's receipt. Raises what `Producer.send` raises."""
        batch = self._batch
        if batch.is_done:
            await anyio.lowlevel.checkpoint()
        else:
            self._hear(1)
            try:
                await wait_done(batch)
            except BaseException:
                self._hear(-1)
                raise
        return receipt_of(self)

    def _hear(self, more: int) -> None:
        before = bool(self._hearers)
        self._hearers += more
        self._batch.heard += bool(self._hearers) - before


def receipt_of(pending: Pending) -> Receipt:
    """Of one that is done. Raises what `Pending.wait` raises."""
    batch = pending._batch
    if batch.state is BatchState.FAILED:
        pending._hear(1)
        raise batch.failure()
    return Receipt(
        batch.stream,
        batch.partition,
        batch.base_offset + pending._index,
        batch.append_ms,
        batch.duplicate,
    )


async def wait_done(batch: OutgoingBatch) -> None:
    """Until the batch has an outcome; returns at once when it has."""
    if not batch.is_done:
        waiter = batch.waiter
        if waiter is None:
            waiter = batch.waiter = anyio.Event()
        await waiter.wait()


class Publisher:
    """Takes records for one stream and sees them through; `Client.producer` has the settings."""

    def __init__(
        self,
        session: Session,
        router: Router,
        *,
        linger_ms: float,
        batch_bytes: int,
        max_buffer_bytes: int,
        delivery_timeout_s: float,
        serializer: Serializer | None = None,
    ) -> None:
        self.batch_bytes = batch_bytes
        self.serializer = serializer
        self.new_record = new_record if serializer is None else partial(serialized, serializer)
        self._session = session
        self._router = router
        self._linger_s = linger_ms / 1000
        self._eager = linger_ms <= 0
        self.buffer = SendBuffer(max_buffer_bytes, router, self.check_open)
        self._delivery_timeout_s = delivery_timeout_s
        self._now_ms = session.ports.clock.now_ms
        self._failed: deque[OutgoingBatch] = deque()
        self._more_failed = 0
        """Batches for which there was no room in it."""
        self._told = False
        """That there are failures which nobody has seen."""
        self.gone: HadronError | None = None
        """Why no record of this producer can be published any more."""
        self.look_again: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint
        """Look the stream up anew, and go by what is found; then `gone` tells of its end."""
        self._lingering: anyio.Event | None = None
        self._resting: anyio.Event | None = None
        self._scopes: list[anyio.CancelScope] = []
        self._closed = False
        self.stop_following: Callable[[], None] = lambda: None

    def __str__(self) -> str:
        senders = self._router.senders
        unresolved = sum(len(each.accumulator.unresolved()) for each in senders)
        state = "closed" if self._closed else f"open, {unresolved} batches on their way"
        return f"{senders[0].accumulator.stream!r} at {', '.join(self._router.partitions)}, {state}"

    # --- taking records -------------------------------------------------------------------------

    async def wait_room(
        self, key: bytes | str | None = None, partition: str | None = None
    ) -> PartitionSender:
        """Until there is room for a record with this key, or of this partition; returns where it
        goes."""
        sender = self.buffer.place(key, partition)
        return sender if self.buffer.has_room(sender) else await self.buffer.wait(key, partition)

    def find_room(
        self, key: bytes | str | None, partition: str | None
    ) -> tuple[PartitionSender | None, PartitionSender | None]:
        """See `SendBuffer.find`."""
        return self.buffer.find(key, partition)

    def start(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Run a task that may outlive the caller, but not the client."""
        self._session.background.start(function, *args)

    def add(self, record: NewRecord, sender: PartitionSender) -> tuple[OutgoingBatch, int]:
        """Buffer one checked record; return its batch and its index there."""
        if self._closed or self.gone is not None:
            self.check_open()
        if (
            record.sequence is not None
            or record.expect_offset is not None
            or record.expect_key_offset is not None
        ):
            return self._add_special(record)
        accumulator = sender.accumulator
        # Asked once for each batch, as it takes about as long as a record does. Not taken from the
        # task that looks for timeouts: where the loop was busy that is late, and the batch too old.
        now_s = 0.0
        if not accumulator.has_open:
            now_s = anyio.current_time()
            self._watch()
        batch, index = accumulator.add(record, self._now_ms(), now_s)
        self.buffer.bytes += batch.added
        if not accumulator.in_flight or not accumulator.has_open or self._eager:
            sender.pump()
        elif self._lingering is not None:
            self._begin_to_linger()
        if (
            self.buffer.only is None
            and record.partition is None
            and self._router.is_free(record.key)
        ):
            turns = self._router.partitioner
            turns.taken += 1
            if not accumulator.has_open:
                turns.advance()
        return batch, index

    def _add_special(self, record: NewRecord) -> tuple[OutgoingBatch, int]:
        """One that expects something, or that its program has numbered: it has one place only."""
        sender = self._router.home_of(record)
        accumulator = sender.accumulator
        now_ms, now_s = self._now_ms(), anyio.current_time()
        if record.sequence is None:
            batch, index = accumulator.add_conditional(record, now_ms, now_s), 0
        elif accumulator.claim is None:
            raise InvalidRecordError(
                f"the sequence {record.sequence} is given to a producer without a name",
                "a sequence is remembered by the producer's name: open it with name=",
            )
        elif record.expect_offset is not None or record.expect_key_offset is not None:
            raise InvalidRecordError(
                f"the sequence {record.sequence} is given together with a condition",
                "a record is held to what was read, or known by its number",
            )
        else:
            batch, index = accumulator.add_numbered(record, record.sequence, now_ms, now_s)
        self._watch()
        self.buffer.bytes += batch.added
        sender.pump()
        if accumulator.has_open and self._lingering is not None:
            self._begin_to_linger()
        return batch, index

    def last_sequences(self) -> dict[str, int]:
        """By partition, of those that a named producer may use. Raises `RequestError` without a
        name."""
        self.check_open()
        accumulators = [sender.accumulator for sender in self._router.senders]
        if any(each.claim is None for each in accumulators):
            raise RequestError(
                "a producer without a name has no sequences of its program's", "open it with name="
            )
        return {each.partition: each.last_sequence for each in accumulators}

    def end(self, error: HadronError) -> None:
        """Nothing more can be sent: somebody else has the name, or the stream is gone."""
        if self.gone is None:
            self.gone = error
            self.stop_following()
            self.buffer.wake_all()

    def add_values(
        self, values: Sequence[bytes], size: int, sender: PartitionSender, encoding: int = BYTES
    ) -> OutgoingBatch:
        """Buffer a whole batch of plain values of `size` bytes."""
        self.check_open()
        batch = sender.accumulator.add_values(
            values, size, self._now_ms(), anyio.current_time(), encoding
        )
        self._watch()
        self.buffer.bytes += size
        sender.pump()
        turns = self._router.partitioner
        turns.taken += len(values)
        turns.advance()
        return batch

    def seal(self) -> None:
        """Let everything that is buffered go."""
        for sender in self._router.senders:
            sender.accumulator.seal()
            sender.pump()

    def resolved(self, batch: OutgoingBatch) -> None:
        """A batch has its outcome: called by the accumulators."""
        self.buffer.freed(batch.size)
        if batch.state is BatchState.FAILED:
            if self.gone is None and isinstance(batch.error, NotFoundError):
                self.start(self.look_again)
            # Also when all of it is waited for: who waits may be cancelled before he sees it.
            if len(self._failed) >= KEPT_FAILURES:
                self._failed = deque(each for each in self._failed if each.is_unheard)
            if len(self._failed) < KEPT_FAILURES:
                self._failed.append(batch)
            elif batch.is_unheard:
                self._more_failed += 1

    def grown(self) -> None:
        """The router has more partitions than before."""
        self.buffer.only = self._router.only
        self.buffer.wake_all()

    async def wait_all(self, segments: Sequence[Segment]) -> None:
        """Until all have their outcome; raises the first failure, and counts the others as seen."""
        for segment in segments:
            segment.hear(True)
        try:
            for segment in segments:
                await wait_done(segment.batch)
        except BaseException:
            for segment in segments:
                segment.hear(False)
            raise
        for segment in segments:
            if segment.batch.state is BatchState.FAILED:
                raise segment.batch.failure()

    @property
    def is_closed(self) -> bool:
        return self._closed

    def check_open(self) -> None:
        self._session.check_open()
        if self.gone is not None:
            raise type(self.gone)(self.gone.message, self.gone.hint)
        if self._closed:
            raise ClosedError("the producer is closed", "make another one with `client.producer`")

    # --- life -----------------------------------------------------------------------------------

    def open(self) -> None:
        """Begin; inside the client's event loop."""
        self._session.on_close[self._close] = None
        self._scopes = [
            self._session.background.start(self._watch_timeouts),
            self._session.background.start(self._watch_linger),
        ]
        forks.watch(self)

    async def finish(self, ending: Ending) -> None:
        """Flush and close, then raise, or log, the first failure that nobody has seen."""
        # Others may go on sending: what they send now is refused, and nothing of it is in doubt.
        self._closed = True
        self.buffer.wake_all()
        try:
            if ending.waits:
                with anyio.move_on_after(ending.timeout_s):
                    await self.drain()
        finally:
            self._close()
        if ending.logs:
            self._tell_failures()
        else:
            self.raise_failure()

    def _close(self) -> None:
        self._closed = True
        self._session.on_close.pop(self._close, None)
        self.stop_following()
        for scope in self._scopes:
            scope.cancel()
        for sender in self._router.senders:
            sender.close("the producer was closed")
        self.buffer.wake_all()

    async def drain(self) -> None:
        """Send what is buffered and wait until everything sent so far has its outcome."""
        self._session.check_process()
        self.seal()
        # All of them first: while one is waited for, others may move to another partition.
        senders = self._router.senders
        for batch in [each for sender in senders for each in sender.accumulator.unresolved()]:
            await wait_done(batch)

    def forked(self) -> None:
        """In a child process: nothing of this can be sent there, and its parent does that."""
        self._closed = True

    def count_unseen(self) -> int:
        """Failed batches that somebody has yet to see."""
        return sum(batch.is_unheard for batch in self._failed) + self._more_failed

    def _tell_failures(self) -> None:
        """What became of records whose block has ended with an error of its own."""
        unseen = [batch for batch in self._failed if batch.is_unheard]
        for batch in unseen[:_TOLD_FAILURES]:
            _log.warning("%s", batch.failure().message)
        if more := unseen[_TOLD_FAILURES:]:
            _log.warning(
                "%d more records are not known to be in the log", sum(batch.count for batch in more)
            )
        if self._more_failed:
            _log.warning("%d more batches failed", self._more_failed)

    def raise_failure(self) -> None:
        """Raises the first failure that nobody has seen."""
        while self._failed:
            batch = self._failed.popleft()
            if batch.is_unheard:
                failure = batch.failure()
                if others := self.count_unseen():
                    failure.add_note(f"{others} more batches of this producer failed")
                raise failure

    def _tell_first(self) -> None:
        """Who only ever calls `send_soon` sees no failure before the producer is closed."""
        while self._failed and not self._failed[0].is_unheard:
            self._failed.popleft()
        if not self._failed:
            self._told = False
        elif not self._told:
            self._told = True
            first = self._failed[0]
            assert first.error is not None
            _log.warning(
                "publishing to %s/%s fails, and nobody has asked yet: %s",
                first.stream,
                first.partition,
                first.error.message,
            )

    async def _watch_timeouts(self) -> None:
        interval_s = min(_TICK_S, self._delivery_timeout_s / _TICKS_PER_TIMEOUT)
        while True:
            await anyio.sleep(interval_s)
            now_s = anyio.current_time()
            self._tell_first()
            is_idle = True
            for sender in self._router.senders:
                if not sender.accumulator.is_empty:
                    is_idle = False
                    sender.expire(now_s - self._delivery_timeout_s)
                    sender.watch(now_s)
            self.buffer.look()
            if is_idle:
                # A node, or a web service, has thousands that publish nothing just now.
                self._resting = event = anyio.Event()
                await event.wait()
                # What was heard of meanwhile keeps no later failure from being told.
                self._tell_first()

    def _watch(self) -> None:
        """Something is unresolved from here on."""
        if self._resting is not None:
            self._resting.set()
            self._resting = None

    def _begin_to_linger(self) -> None:
        """Records gather behind a batch that is under way."""
        assert self._lingering is not None
        self._lingering.set()
        self._lingering = None

    async def _watch_linger(self) -> None:
        """While a batch is under way others gather records, but not for longer than the linger.

        Sleeps only while there is such a batch; a lone `send` never wakes it.
        """
        while not self._eager:
            if not any(sender.accumulator.has_open for sender in self._router.senders):
                self._lingering = event = anyio.Event()
                await event.wait()
            await anyio.sleep(self._linger_s)
            self.seal()
