"""Publishing: what users call. What becomes of the records is in `publisher`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

import anyio.lowlevel

from hadron.client.producing.bulk import Segment, check_many, finish_bulk, send_bulk, slices
from hadron.client.producing.publisher import Pending, Publisher
from hadron.client.terms.arguments import patience_of
from hadron.client.terms.ending import Ending, after_block
from hadron.client.terms.opening import EnteredOnce
from hadron.client.terms.results import BatchReceipt, Receipt
from hadron.model.record import Headers

_CALLS_PER_CHECKPOINT: Final = 128
"""`send_soon` lets other tasks run this often; a checkpoint costs 5 µs, a record 2.6."""


class Producer(EnteredOnce):
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

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._calls = 0

    def __repr__(self) -> str:
        return f"<Producer of {self._publisher}>"

    # --- sending --------------------------------------------------------------------------------

    async def send(
        self,
        value: Any,
        *,
        key: bytes | str | None = None,
        type: str = "",
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        id: str = "",
        partition: str | None = None,
        timestamp: datetime | None = None,
        expect_offset: int | None = None,
        expect_key_offset: int | None = None,
        sequence: int | None = None,
    ) -> Receipt:
        """Publish one record and wait until it is as durable as the producer's `acks` asks.

        Args:
            value: bytes, str, anything JSON (`NewRecord` tells what readers get for a set, number
                keys, UUID, Decimal), or a whole `NewRecord` or `CloudEvent`; whatever the
                producer's `value_serializer` takes.
            key: equal keys go to the same partition and keep their order; see the class for what
                `failover` has to do with it.
            type: event type, dot segments; pipelines match on it.
            timestamp_ms: event time; None stamps the time of this call.
            headers: small texts by name, as a mapping or as pairs.
            id: the record's own id.
            partition: where it goes and stays, whatever its key and the producer's `failover`;
                one of those that the producer may use.
            timestamp: event time as a datetime with its time zone, in place of `timestamp_ms`.
            expect_offset: log it at this offset of its partition, or not at all.
            expect_key_offset: log it when the latest record with its key is at this offset (-1:
                there is none), or not at all; of a stream declared with `keys: indexed`.
            sequence: of a producer with a name: a number of the program's own, such as where in a
                file the record stood, which rises within a partition. What the name has logged is
                not logged again: its receipt is a `duplicate` at offset -1.

        Raises:
            InvalidRecordError, RecordTooLargeError, NotFoundError: nothing was sent.
            OffsetMismatchError: what was expected is not so, and it is not in the log.
            ProducerFencedError: another producer was opened with this one's name.
            OutcomeUnknownError: the delivery timeout passed and it may or may not be in the log.
            DeadlineExceededError: the delivery timeout passed and it is not in the log.
            RequestError: the cluster refused it.
        """
        publisher = self._publisher
        record = publisher.new_record(
            value,
            key,
            type,
            timestamp_ms,
            headers,
            id,
            partition,
            timestamp,
            expect_offset,
            expect_key_offset,
            sequence,
        )
        sender = await publisher.wait_room(record.key, record.partition)
        return await Pending(*publisher.add(record, sender)).wait()

    async def send_soon(
        self,
        value: Any,
        *,
        key: bytes | str | None = None,
        type: str = "",
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
        id: str = "",
        partition: str | None = None,
        timestamp: datetime | None = None,
        expect_offset: int | None = None,
        expect_key_offset: int | None = None,
        sequence: int | None = None,
    ) -> Pending:
        """Publish one record and return once it is buffered; waits only while the buffer is full.

        Arguments and errors are those of `send`; what happens later is told by `Pending.wait`.
        """
        publisher = self._publisher
        record = publisher.new_record(
            value,
            key,
            type,
            timestamp_ms,
            headers,
            id,
            partition,
            timestamp,
            expect_offset,
            expect_key_offset,
            sequence,
        )
        buffer = publisher.buffer
        sender = buffer.place(record.key, record.partition)
        if not buffer.has_room(sender):
            sender = await buffer.wait(record.key, record.partition)
        pending = Pending(*publisher.add(record, sender))
        self._calls += 1
        if self._calls >= _CALLS_PER_CHECKPOINT:
            self._calls = 0
            await anyio.lowlevel.checkpoint()
        return pending

    async def send_many(self, values: Iterable[Any]) -> list[BatchReceipt]:
        """Publish many records and wait for all of them: the fast way for bulk.

        Args:
            values: what `send` takes as `value`, in any mixture. A list of bytes is fastest; what
                an iterator gives goes while it comes.

        Returns:
            The runs of consecutive offsets that the records got, in the order in which each
            run's first record was given.

        Raises:
            What `send` raises, once every record has its outcome: then some may be in the log. A
            record that cannot be sent stops those behind it; the error says how many were before,
            and so does a note of what `values` raises.
        """
        check_many(values)
        publisher = self._publisher
        segments: list[Segment] = []
        trouble: Exception | None = None
        try:
            for part in slices(values, publisher.serializer):
                await send_bulk(publisher, part, segments)
        except Exception as error:
            trouble = error
        return await finish_bulk(publisher, segments, trouble)

    async def flush(self) -> None:
        """Send what is buffered and wait until everything sent so far has its outcome.

        Raises the first failure that nobody has seen.
        """
        await self._publisher.drain()
        self._publisher.raise_failure()

    async def close(self, timeout_s: float | None = None) -> None:
        """Flush, then take nothing more; a second time does nothing. What has no outcome within
        `timeout_s` (None: within the delivery timeout) is given up.

        Raises the first failure that nobody has seen.
        """
        await self._publisher.finish(Ending(patience_of(timeout_s)))

    # --- what was before ------------------------------------------------------------------------

    async def last_sequence(self) -> int:
        """Of a producer with a name: up to here all is in the log that its program has given, in
        this process or in those before; -1 is nothing. The lowest of the partitions': whoever goes
        on behind it gives again what some have, and they do not log that again.

        Raises `RequestError` without a name.
        """
        return min((await self.last_sequences()).values())

    async def last_sequences(self) -> dict[str, int]:
        """By partition, the last sequence that is in the log there; -1 for none."""
        await anyio.lowlevel.checkpoint()
        return self._publisher.last_sequences()

    # --- life -----------------------------------------------------------------------------------

    async def __aenter__(self) -> Producer:
        self._enter("producer")
        self._publisher.open()
        return self

    async def __aexit__(self, _: object, error: BaseException | None, traceback: object) -> None:
        await self._publisher.finish(after_block(error))
