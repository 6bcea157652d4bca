"""Publishing: the public face of `accumulator` and `sender`.

Safety rule: a record that was accepted has exactly one outcome, and every failure is told once:
to whoever waits for it, else by `flush` or by leaving the producer's block.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import anyio
import anyio.lowlevel

from hadron.client.buffer import SendBuffer
from hadron.client.bulk import Segment, send_bulk
from hadron.client.outgoing import BatchState, OutgoingBatch
from hadron.client.records import new_record
from hadron.client.results import BatchReceipt, Receipt
from hadron.client.routing import Router
from hadron.client.sender import PartitionSender
from hadron.client.session import Session
from hadron.model.errors import RequestError
from hadron.model.record import NewRecord

_log = logging.getLogger(__name__)

_CALLS_PER_CHECKPOINT: Final = 128
"""`send_soon` lets other tasks run this often; a checkpoint costs 5 µs, a record 2.6."""

_TICKS_PER_TIMEOUT: Final = 20
_TICK_S: Final = 0.5

_TOLD_FAILURES: Final = 5
"""Batches that are named one by one when a block ends by an error of its own."""
"""Delivery timeouts are noticed within a twentieth of their length, or this; and so is a partition
that is away (`failover.AWAY_AFTER_S`)."""


class Pending:
    """A record that was accepted; `wait` tells what became of it."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: OutgoingBatch, index: int) -> None:
        self._batch = batch
        self._index = index

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
            batch.waiting += 1
            try:
                await wait_done(batch)
            finally:
                batch.waiting -= 1
        if batch.state is BatchState.FAILED:
            raise batch.failure()
        return Receipt(
            batch.stream,
            batch.partition,
            batch.base_offset + self._index,
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


class Producer:
    """Publishes to one stream. Made by `Client.producer`, used inside its block.

    Every record is in the log at most once, however often connections break and whatever goes away
    (twice only with `failover="duplicate"`). Its order is that of one task's calls; calls of
    several tasks may pass each other. What is published is in order

    * for each key, while `failover` is "unkeyed" or "none" and keys choose the partition (which is
      the default); anew from when partitions are added to the stream, as keys change places then;
    * for each partition that records name, always;
    * for the records without a key of a partition, with `failover="none"` only, and all records
      together where the producer has one partition. Otherwise there is none between them: batches
      go round the partitions, and one whose partition is away goes behind what another has.

    A record that ended with `OutcomeUnknownError` may still come, behind later ones. While a
    partition is away others take its records, as `failover` allows; it is used again once it
    answers. So are partitions that are added to the stream. Calls may come from many tasks.
    Cancelling a call does not take back a record that was accepted.
    """

    def __init__(
        self,
        session: Session,
        router: Router,
        *,
        linger_ms: float,
        batch_bytes: int,
        max_buffer_bytes: int,
        delivery_timeout_s: float,
    ) -> None:
        self.batch_bytes = batch_bytes
        self._session = session
        self._router = router
        self._linger_s = linger_ms / 1000
        self._eager = linger_ms <= 0
        self._buffer = SendBuffer(max_buffer_bytes, router, self._check_open)
        self._delivery_timeout_s = delivery_timeout_s
        self._now_ms = session.ports.clock.now_ms
        self._failed: deque[OutgoingBatch] = deque()
        self._calls = 0
        self._coarse_s = 0.0
        self._lingering: anyio.Event | None = None
        self._scopes: list[anyio.CancelScope] = []
        self._closed = False
        self.stop_following: Callable[[], None] = lambda: None

    # --- sending --------------------------------------------------------------------------------

    async def send(
        self,
        value: Any,
        *,
        key: bytes | str | None = None,
        type: str = "",
        timestamp_ms: int | None = None,
        headers: Mapping[str, str] | None = None,
        id: str = "",
        partition: str | None = None,
    ) -> Receipt:
        """Publish one record and wait until it is as durable as the producer's `acks` asks.

        Args:
            value: bytes, str, anything JSON, or a whole `NewRecord` or `CloudEvent`.
            key: equal keys go to the same partition and keep their order; see the class for what
                `failover` has to do with it.
            type: event type, dot segments; pipelines match on it.
            timestamp_ms: event time; None stamps the time of this call.
            headers: small text pairs.
            id: the record's own id.
            partition: where it goes and stays, whatever its key and the producer's `failover`;
                one of those that the producer may use.

        Raises:
            InvalidRecordError, RecordTooLargeError, NotFoundError: nothing was sent.
            OutcomeUnknownError: the delivery timeout passed and it may or may not be in the log.
            DeadlineExceededError: the delivery timeout passed and it is not in the log.
            RequestError: the cluster refused it.
        """
        record = new_record(value, key, type, timestamp_ms, headers, id, partition)
        sender = self._buffer.place(record.key, record.partition)
        if not self._buffer.has_room(sender):
            sender = await self._buffer.wait(record.key, record.partition)
        return await Pending(*self.add(record, sender)).wait()

    async def send_soon(
        self,
        value: Any,
        *,
        key: bytes | str | None = None,
        type: str = "",
        timestamp_ms: int | None = None,
        headers: Mapping[str, str] | None = None,
        id: str = "",
        partition: str | None = None,
    ) -> Pending:
        """Publish one record and return once it is buffered; waits only while the buffer is full.

        Arguments and errors are those of `send`; what happens later is told by `Pending.wait`.
        """
        record = new_record(value, key, type, timestamp_ms, headers, id, partition)
        sender = self._buffer.place(record.key, record.partition)
        if not self._buffer.has_room(sender):
            sender = await self._buffer.wait(record.key, record.partition)
        pending = Pending(*self.add(record, sender))
        self._calls += 1
        if self._calls >= _CALLS_PER_CHECKPOINT:
            self._calls = 0
            await anyio.lowlevel.checkpoint()
        return pending

    async def send_many(self, values: Iterable[Any]) -> list[BatchReceipt]:
        """Publish many records and wait for all of them: the fast way for bulk.

        Args:
            values: what `send` takes as `value`, in any mixture. A list of bytes is fastest.

        Returns:
            The runs of consecutive offsets that the records got, in the order in which each
            run's first record was given.

        Raises:
            What `send` raises, once every record has its outcome: then some may be in the log. A
            record that cannot be sent stops those behind it; the error says how many were before.
        """
        segments: list[Segment] = []
        refused: RequestError | None = None
        try:
            await send_bulk(self, values, segments)
        except RequestError as error:
            refused = error
        finally:
            self.seal()
        for segment in segments:
            await wait_done(segment.batch)
        for segment in segments:
            if segment.batch.state is BatchState.FAILED:
                self._see(segments)
                raise segment.batch.failure()
        if refused is not None:
            before = sum(segment.count for segment in segments)
            raise type(refused)(
                f"record {before + 1} of send_many: {refused.message}",
                "; ".join(filter(None, [f"the {before} before it were published", refused.hint])),
            ) from refused
        return [segment.receipt() for segment in segments]

    async def flush(self) -> None:
        """Send what is buffered and wait until everything sent so far has its outcome.

        Raises the first failure that nobody has seen.
        """
        await self._drain()
        self._raise_failure()

    # --- used by `bulk` and `sync_producer` -----------------------------------------------------

    async def wait_room(
        self, key: bytes | str | None = None, partition: str | None = None
    ) -> PartitionSender:
        """Until there is room for a record with this key, or of this partition; returns where it
        goes."""
        sender = self._buffer.place(key, partition)
        return sender if self._buffer.has_room(sender) else await self._buffer.wait(key, partition)

    def find_room(
        self, key: bytes | str | None, partition: str | None
    ) -> tuple[PartitionSender | None, PartitionSender | None]:
        """See `SendBuffer.find`."""
        return self._buffer.find(key, partition)

    def start(self, function: Callable[..., Awaitable[None]], *args: Any) -> None:
        """Run a task that may outlive the caller, but not the client."""
        self._session.background.start(function, *args)

    def add(self, record: NewRecord, sender: PartitionSender) -> tuple[OutgoingBatch, int]:
        """Buffer one checked record; return its batch and its index there."""
        if self._closed:
            self._check_open()
        accumulator = sender.accumulator
        batch, index = accumulator.add(record, self._now_ms(), self._coarse_s)
        self._buffer.bytes += batch.added
        if not accumulator.in_flight or not accumulator.has_open or self._eager:
            sender.pump()
        elif self._lingering is not None:
            self._lingering.set()
            self._lingering = None
        if (
            self._buffer.only is None and record.key is None and record.partition is None
            and not accumulator.has_open
        ):
            self._router.advance()
        return batch, index

    def add_values(
        self, values: Sequence[bytes], size: int, sender: PartitionSender
    ) -> OutgoingBatch:
        """Buffer a whole batch of plain values of `size` bytes."""
        self._check_open()
        batch = sender.accumulator.add_values(values, size, self._now_ms(), self._coarse_s)
        self._buffer.bytes += size
        sender.pump()
        self._router.advance()
        return batch

    def seal(self) -> None:
        """Let everything that is buffered go."""
        for sender in self._router.senders:
            sender.accumulator.seal()
            sender.pump()

    def resolved(self, batch: OutgoingBatch) -> None:
        """A batch has its outcome: called by the accumulators."""
        self._buffer.freed(batch.size)
        if batch.state is BatchState.FAILED and not batch.waiting:
            self._failed.append(batch)

    def grown(self) -> None:
        """The router has more partitions than before."""
        self._buffer.only = self._router.only
        self._buffer.wake_all()

    @property
    def is_closed(self) -> bool:
        return self._closed

    def _see(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            segment.batch.failure_seen = True

    def _check_open(self) -> None:
        self._session.check_open()
        if self._closed:
            raise RequestError("the producer is closed", "send inside its `async with` block")

    # --- life -----------------------------------------------------------------------------------

    async def __aenter__(self) -> Producer:
        self._coarse_s = anyio.current_time()
        self._session.on_close[self._close] = None
        self._scopes = [
            self._session.background.start(self._watch_timeouts),
            self._session.background.start(self._watch_linger),
        ]
        return self

    async def __aexit__(
        self, _: object, error: BaseException | None, traceback: object
    ) -> None:
        """Flush, then raise the first unseen failure unless the block itself failed.

        A block that was cancelled waits for nothing: what is not acked by then is given up.
        """
        try:
            if error is None:
                await self.flush()
            elif isinstance(error, Exception):
                await self._drain()
        finally:
            self._close()
        if error is not None:
            self._tell_failures()

    def _close(self) -> None:
        self._closed = True
        self._session.on_close.pop(self._close, None)
        self.stop_following()
        for scope in self._scopes:
            scope.cancel()
        for sender in self._router.senders:
            sender.close("the producer was closed")
        self._buffer.wake_all()

    async def _drain(self) -> None:
        self.seal()
        # All of them first: while one is waited for, others may move to another partition.
        senders = self._router.senders
        for batch in [each for sender in senders for each in sender.accumulator.unresolved()]:
            await wait_done(batch)

    def _count_unseen(self) -> int:
        return sum(not batch.failure_seen for batch in self._failed)

    def _tell_failures(self) -> None:
        """What became of records whose block has ended with an error of its own."""
        unseen = [batch for batch in self._failed if not batch.failure_seen]
        for batch in unseen[:_TOLD_FAILURES]:
            _log.warning("%s", batch.failure().message)
        if more := unseen[_TOLD_FAILURES:]:
            _log.warning(
                "%d more records are not known to be in the log",
                sum(batch.count for batch in more),
            )

    def _raise_failure(self) -> None:
        while self._failed:
            batch = self._failed.popleft()
            if not batch.failure_seen:
                failure = batch.failure()
                if others := self._count_unseen():
                    failure.add_note(f"{others} more batches of this producer failed")
                raise failure

    async def _watch_timeouts(self) -> None:
        interval_s = min(_TICK_S, self._delivery_timeout_s / _TICKS_PER_TIMEOUT)
        while True:
            await anyio.sleep(interval_s)
            self._coarse_s = now_s = anyio.current_time()
            while self._failed and self._failed[0].failure_seen:
                self._failed.popleft()
            for sender in self._router.senders:
                if not sender.accumulator.is_empty:
                    sender.expire(now_s - self._delivery_timeout_s)
                    sender.watch(now_s)
            self._buffer.look()

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
