"""The blocking producer: the async one, driven from the caller's thread.

`send_soon` must not hop between threads for every record (100 µs each): records are encoded as far
as needed and put into an inbox, which the event loop's thread empties in one go. Order is kept
because everything passes through the inbox first.

Rule: the inbox itself waits for nothing. A record for which the buffer has no room gets in line for
its partition (those without a key, in one for any), and its thread is held at its next call until
it is in; the others go on. *(A key's partition is dead and has its share of the buffer: were its
next record to wait at the head of the inbox, all would, from whatever thread, wherever they go.)*
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

import anyio
import msgspec
from anyio.from_thread import BlockingPortal

from hadron.client.producer import Pending, Producer
from hadron.client.records import new_record
from hadron.client.results import BatchReceipt, Receipt
from hadron.client.sender import PartitionSender
from hadron.model.batch import too_large
from hadron.model.errors import HadronError
from hadron.model.limits import MAX_RECORD_BYTES
from hadron.model.record import BYTES, TEXT, NewRecord, encode_value

_INBOX_RECORDS: Final = 4_096
_INBOX_BYTES: Final = 4 << 20
"""Beyond either, `send_soon` waits until the event loop has caught up. While so many bytes are in
line, it waits every time, until its own record is in the buffer."""


class _Caller:
    """One thread. `in_line` counts its records that wait for room."""

    __slots__ = ("in_line",)

    def __init__(self) -> None:
        self.in_line = 0


class SyncPending:
    """A record that was accepted; `wait` tells what became of it."""

    __slots__ = ("_producer", "caller", "error", "pending", "size")

    def __init__(self, producer: SyncProducer, caller: _Caller, size: int) -> None:
        self._producer = producer
        self.caller = caller
        self.size = size
        self.pending: Pending | None = None
        self.error: HadronError | None = None

    @property
    def is_accepted(self) -> bool:
        """Whether it is in the buffer, or was refused."""
        return self.pending is not None or self.error is not None

    @property
    def is_done(self) -> bool:
        """Whether `wait` returns at once."""
        return self.error is not None or (self.pending is not None and self.pending.is_done)

    def wait(self) -> Receipt:
        """The record's receipt. Raises what `SyncProducer.send` raises."""
        return self._producer.wait_for(self)


_Entry: TypeAlias = tuple[NewRecord, SyncPending]


class SyncProducer:
    """Publishes to one stream. Made by `SyncClient.producer`, used inside its block.

    Like `hadron.client.Producer`, with threads in place of tasks: calls may come from many, and
    each waits for room for its own records only.
    """

    def __init__(self, portal: BlockingPortal, producer: Producer) -> None:
        self._portal = portal
        self._producer = producer
        self._inbox: deque[_Entry] = deque()
        self._inbox_bytes = 0
        self._scheduled = False
        self._callers = threading.local()
        self._lines: dict[PartitionSender | None, deque[_Entry]] = {}
        """Records that wait for room, by what they wait for; a task works off each."""
        self._line_bytes = 0
        self._moved: anyio.Event = portal.call(anyio.Event)
        """Set, and replaced, when a record in line is accepted."""
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
        return self._portal.call(self._send, record, self._caller())

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
        caller = self._caller()
        pending = SyncPending(self, caller, size)
        self._inbox.append((record, pending))
        self._inbox_bytes += size
        if (
            len(self._inbox) >= _INBOX_RECORDS or self._inbox_bytes >= _INBOX_BYTES
            or caller.in_line or self._line_bytes >= _INBOX_BYTES
        ):
            self._portal.call(self._catch_up, caller)
        elif not self._scheduled:
            self._scheduled = True
            self._portal.start_task_soon(self._empty_soon)
        return pending

    def send_many(self, values: Iterable[Any]) -> list[BatchReceipt]:
        """Publish many records and wait for all of them; see `Producer.send_many`."""
        return self._portal.call(self._send_many, values, self._caller())

    def flush(self) -> None:
        """Wait until everything sent so far has its outcome; raises the first unseen failure."""
        self._portal.call(self._flush)

    def wait_for(self, pending: SyncPending) -> Receipt:
        """The receipt of one of this producer's records."""
        return self._portal.call(self._wait_for, pending)

    def _caller(self) -> _Caller:
        """This thread."""
        try:
            return self._callers.caller  # type: ignore[no-any-return]
        except AttributeError:
            caller = self._callers.caller = _Caller()
            return caller

    # --- in the event loop's thread -------------------------------------------------------------

    def _empty(self) -> None:
        """Hand what is in the inbox to the producer, in order, or put it in line."""
        self._inbox_bytes = 0
        while self._inbox:
            record, pending = self._inbox.popleft()
            try:
                place, sender = self._producer.find_room(record.key, record.partition)
            except HadronError as error:
                self._refuse(pending, error)
                continue
            if self._lines and (line := self._lines.get(place)) is not None:
                line.append((record, pending))
            elif sender is not None:
                self._add(record, pending, sender)
                continue
            else:
                self._lines[place] = deque([(record, pending)])
                self._producer.start(self._work_off, place)
            pending.caller.in_line += 1
            self._line_bytes += pending.size

    async def _work_off(self, place: PartitionSender | None) -> None:
        """Until nothing waits for this place any more."""
        line = self._lines[place]
        while line:
            record, pending = line[0]
            try:
                sender = await self._producer.wait_room(record.key, record.partition)
            except HadronError as error:
                self._refuse(pending, error)
            else:
                self._add(record, pending, sender)
            line.popleft()
            pending.caller.in_line -= 1
            self._line_bytes -= pending.size
            moved, self._moved = self._moved, anyio.Event()
            moved.set()
        del self._lines[place]

    def _add(self, record: NewRecord, pending: SyncPending, sender: PartitionSender) -> None:
        try:
            pending.pending = Pending(*self._producer.add(record, sender))
        except HadronError as error:
            self._refuse(pending, error)

    def _refuse(self, pending: SyncPending, error: HadronError) -> None:
        pending.error = error
        self._failed.append(pending)

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self._moved.wait()

    async def _catch_up(self, caller: _Caller) -> None:
        """Empty the inbox, and wait until no record of this thread is in line."""
        self._empty()
        await self._until(lambda: not caller.in_line)

    async def empty_inbox(self) -> None:
        """Hand everything that was sent so far to the producer, whatever room it takes."""
        self._empty()
        for _, last in [line[-1] for line in self._lines.values()]:
            await self._until(lambda last=last: last.is_accepted)  # type: ignore[misc]

    async def _empty_soon(self) -> None:
        self._scheduled = False
        self._empty()

    async def _send(self, record: NewRecord, caller: _Caller) -> Receipt:
        pending = SyncPending(self, caller, 0)
        self._inbox.append((record, pending))
        return await self._wait_for(pending)

    async def _send_many(
        self, values: Iterable[Any], caller: _Caller
    ) -> list[BatchReceipt]:
        await self._catch_up(caller)
        return await self._producer.send_many(values)

    async def _flush(self) -> None:
        await self.empty_inbox()
        await self._producer.flush()
        self.raise_failure()

    async def _wait_for(self, pending: SyncPending) -> Receipt:
        if not pending.is_accepted:
            self._empty()
            await self._until(lambda: pending.is_accepted)
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
