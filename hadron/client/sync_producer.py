"""The blocking producer: the async one, driven from the caller's thread.

`send_soon` must not hop between threads for every record (100 µs each): records are encoded as far
as needed and put into an inbox, which the event loop's thread empties in one go. Order is kept
because everything passes through the inbox first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

import anyio
import msgspec
from anyio.from_thread import BlockingPortal

from hadron.client.producer import Pending, Producer
from hadron.client.records import new_record
from hadron.client.results import BatchReceipt, Receipt
from hadron.model.batch import too_large
from hadron.model.errors import HadronError
from hadron.model.limits import MAX_RECORD_BYTES
from hadron.model.record import BYTES, TEXT, NewRecord, encode_value

_INBOX_RECORDS: Final = 4_096
_INBOX_BYTES: Final = 4 << 20
"""Beyond either, `send_soon` waits until the event loop has caught up."""


class SyncPending:
    """A record that was accepted; `wait` tells what became of it."""

    __slots__ = ("_producer", "error", "pending")

    def __init__(self, producer: SyncProducer) -> None:
        self._producer = producer
        self.pending: Pending | None = None
        self.error: HadronError | None = None

    @property
    def is_done(self) -> bool:
        """Whether `wait` returns at once."""
        return self.error is not None or (self.pending is not None and self.pending.is_done)

    def wait(self) -> Receipt:
        """The record's receipt. Raises what `SyncProducer.send` raises."""
        return self._producer.wait_for(self)


class SyncProducer:
    """Publishes to one stream. Made by `SyncClient.producer`, used inside its block.

    For one thread at a time; otherwise like `hadron.client.Producer`.
    """

    def __init__(self, portal: BlockingPortal, producer: Producer) -> None:
        self._portal = portal
        self._producer = producer
        self._inbox: deque[tuple[NewRecord, SyncPending]] = deque()
        self._inbox_bytes = 0
        self._scheduled = False
        self._emptying: anyio.Lock = portal.call(anyio.Lock)
        self._failed: deque[SyncPending] = deque()

    def send(
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
        """Publish one record and wait for its receipt; see `Producer.send`."""
        record = new_record(value, key, type, timestamp_ms, headers, id, partition)
        return self._portal.call(self._send, record)

    def send_soon(
        self,
        value: Any,
        *,
        key: bytes | str | None = None,
        type: str = "",
        timestamp_ms: int | None = None,
        headers: Mapping[str, str] | None = None,
        id: str = "",
        partition: str | None = None,
    ) -> SyncPending:
        """Publish one record and return once it is buffered; see `Producer.send_soon`."""
        record, size = _freeze(new_record(value, key, type, timestamp_ms, headers, id, partition))
        pending = SyncPending(self)
        self._inbox.append((record, pending))
        self._inbox_bytes += size
        if len(self._inbox) >= _INBOX_RECORDS or self._inbox_bytes >= _INBOX_BYTES:
            self._inbox_bytes = 0
            self._portal.call(self.empty_inbox)
        elif not self._scheduled:
            self._scheduled = True
            self._portal.start_task_soon(self._empty_soon)
        return pending

    def send_many(self, values: Iterable[Any]) -> list[BatchReceipt]:
        """Publish many records and wait for all of them; see `Producer.send_many`."""
        return self._portal.call(self._send_many, values)

    def flush(self) -> None:
        """Wait until everything sent so far has its outcome; raises the first unseen failure."""
        self._portal.call(self._flush)

    def wait_for(self, pending: SyncPending) -> Receipt:
        """The receipt of one of this producer's records."""
        return self._portal.call(self._wait_for, pending)

    # --- in the event loop's thread -------------------------------------------------------------

    async def empty_inbox(self) -> None:
        """Hand everything in the inbox to the producer, in order."""
        async with self._emptying:
            while self._inbox:
                record, pending = self._inbox.popleft()
                try:
                    sender = await self._producer.wait_room(record.key, record.partition)
                    pending.pending = Pending(*self._producer.add(record, sender))
                except HadronError as error:
                    pending.error = error
                    self._failed.append(pending)

    async def _empty_soon(self) -> None:
        self._scheduled = False
        self._inbox_bytes = 0
        await self.empty_inbox()

    async def _send(self, record: NewRecord) -> Receipt:
        await self.empty_inbox()
        return await self._producer.send(record)

    async def _send_many(self, values: Iterable[Any]) -> list[BatchReceipt]:
        await self.empty_inbox()
        return await self._producer.send_many(values)

    async def _flush(self) -> None:
        await self.empty_inbox()
        await self._producer.flush()
        self.raise_failure()

    async def _wait_for(self, pending: SyncPending) -> Receipt:
        if not (pending.pending or pending.error):
            await self.empty_inbox()
        if pending.error is not None:
            if pending in self._failed:
                self._failed.remove(pending)
            raise pending.error
        assert pending.pending is not None
        return await pending.pending.wait()

    def raise_failure(self) -> None:
        """Raises the first failure of the inbox that nobody has seen."""
        if self._failed:
            error = self._failed.popleft().error
            assert error is not None
            raise error


def _freeze(record: NewRecord) -> tuple[NewRecord, int]:
    """The record as it is now, whatever its parts become later, and its value's size."""
    encoding, data = encode_value(record.value)
    if len(data) > MAX_RECORD_BYTES - 16:
        raise too_large(len(data) + 16)
    changes: dict[str, Any] = {}
    if encoding not in (BYTES, TEXT):
        changes["value"] = msgspec.Raw(data)
    elif data is not record.value and encoding == BYTES:
        changes["value"] = data
    if record.headers:
        changes["headers"] = dict(record.headers)
    if isinstance(record.key, (bytearray, memoryview)):
        changes["key"] = bytes(record.key)
    frozen = msgspec.structs.replace(record, **changes) if changes else record
    return frozen, len(data)
