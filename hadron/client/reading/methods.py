"""What a client offers to read streams: a part of `Client`, which would be too long with it."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from hadron.client.reading.calls import FETCH_BYTES, ReadCalls
from hadron.client.reading.reader import BatchReader, RecordReader
from hadron.client.terms.results import Fetched, PartitionOffsets
from hadron.model.ids import Ballot
from hadron.model.record import Deserializer, Record


class ReadMethods:
    """Its methods are those of `Client`."""

    _reading: ReadCalls

    def read(
        self,
        stream: str,
        *,
        partition: str | None = None,
        start: Literal["earliest", "latest"] | int | datetime = "earliest",
        offset: int | Literal["earliest", "latest"] | None = None,
        limit: int | None = None,
        follow: bool = False,
        stream_id: int | None = None,
        value_deserializer: Deserializer | None = None,
    ) -> RecordReader:
        """Records in order: `async for record in client.read(...)`.

        Args:
            partition: None reads all, one after the other, or as records arrive when following;
                what has a leader that is away comes after the others, as far as it can be read.
            start: where to begin; an offset holds for every partition that is read, -2 means the
                last two of each, a datetime the first record appended then or later: who follows
                waits for one that is yet to come.
            offset: `start` by its other name.
            limit: stop after this many records.
            follow: wait for new records instead of ending at the high watermark as of the call;
                also for those of partitions that are added, from their first on; it ends when the
                client is closed.
            stream_id: see `fetch`.
            value_deserializer: see `subscribe`.

        Raises:
            NotFoundError: there is no such stream, or it was deleted while it was read: another
                one that was made under its name is none of this read's.
            OffsetOutOfRangeError: `offset` lies before the first kept record, or after the next.
            CorruptionError: a batch does not match its checksum.
        """
        return RecordReader(
            self._reading.spans(
                stream, partition, start, offset, limit, follow, stream_id, value_deserializer
            )
        )

    def read_batches(
        self,
        stream: str,
        *,
        partition: str | None = None,
        start: Literal["earliest", "latest"] | int | datetime = "earliest",
        offset: int | Literal["earliest", "latest"] | None = None,
        limit: int | None = None,
        follow: bool = False,
        stream_id: int | None = None,
        value_deserializer: Deserializer | None = None,
    ) -> BatchReader:
        """Like `read`, a `RecordBatch` at a time, cut to the records that were asked for."""
        return BatchReader(
            self._reading.spans(
                stream, partition, start, offset, limit, follow, stream_id, value_deserializer
            )
        )

    async def fetch(
        self,
        stream: str,
        partition: str,
        offset: int,
        *,
        max_bytes: int = FETCH_BYTES,
        max_wait_ms: int = 0,
        stream_id: int | None = None,
        after: Ballot | None = None,
        exists: bool = False,
    ) -> Fetched:
        """Batches as they stand in the partition, from the one that holds `offset` on.

        Args:
            max_bytes: whole batches up to this size, and at least one.
            max_wait_ms: how long to wait when there is nothing at `offset` yet.
            stream_id: of a known stream: `NotFoundError` when it was deleted. None: of the name.
            after: the ballot of the batch with the record before `offset`, as it was read, or as
                `offsets` told it: `LogTruncatedError` where the log has lost that.
            exists: there was a record at `offset`: `OffsetOutOfRangeError` where the log has none.
        """
        return await self._reading.fetch(
            stream, partition, offset, max_bytes, max_wait_ms, stream_id, after, exists=exists
        )

    async def latest(
        self, stream: str, key: bytes | str, *, partition: str | None = None
    ) -> Record | None:
        """The latest record with this key, of a stream declared with `keys: indexed`; None where
        none is kept. It is so when the leader answers; `expect_key_offset` of `send` holds what
        is written then to it.

        Args:
            partition: where to look; None is where the key's records go by themselves.

        Raises `RequestError` for a stream whose keys are not indexed.
        """
        return await self._reading.latest(stream, key, partition)

    async def offsets(
        self,
        stream: str,
        *,
        partition: str | None = None,
        at_ms: int | datetime | None = None,
        before: int | None = None,
        confirmed: bool = False,
    ) -> list[PartitionOffsets]:
        """How far the stream's partitions reach, the first offset at or after `at_ms`
        (milliseconds since the Unix epoch, or a datetime), and the ballot of the batch with the
        record before offset `before` (None: before the next one). `confirmed` asks a majority
        first: leaders that were deposed, and have not heard so, know less than there is."""
        return await self._reading.offsets(stream, partition, at_ms, before, confirmed=confirmed)
