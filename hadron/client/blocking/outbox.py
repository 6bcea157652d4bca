"""What is behind a blocking producer: the async one, driven from the caller's thread.

`send_soon` must not hop between threads for every record (100 µs each): records are encoded as far
as needed and put into an inbox, which the event loop's thread empties in one go. Order is kept
because everything passes through the inbox first.

Rule: the inbox itself waits for nothing. A record for which the buffer has no room gets in line for
its partition (those without a key, in one for any), and its thread is held at its next call until
it is in; the others go on. *(A key's partition is dead and has its share of the buffer: were its
next record to wait at the head of the inbox, all would, from whatever thread, wherever they go.)*
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

import anyio
import msgspec

from hadron.client.blocking.bases import OpenedBase
from hadron.client.blocking.life import Lazy
from hadron.client.blocking.portal import Portal
from hadron.client.producing.bulk import Segment, check_many, finish_bulk, send_bulk, slices
from hadron.client.producing.producer import Producer
from hadron.client.producing.publisher import KEPT_FAILURES, Pending, receipt_of
from hadron.client.producing.sender import PartitionSender
from hadron.client.terms.arguments import patience_of
from hadron.client.terms.ending import Ending
from hadron.client.terms.results import BatchReceipt, Receipt
from hadron.model.batch_building import too_large
from hadron.model.errors import ClosedError, HadronError
from hadron.model.limits import MAX_VALUE_BYTES, RECORD_OVERHEAD_BYTES
from hadron.model.record import BYTES, TEXT, NewRecord, encode_value
from hadron.model.words import counted

_log = logging.getLogger(__name__)

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

    __slots__ = ("_caller", "_error", "_is_waited_for", "_outbox", "_pending", "_size")

    def __init__(self, outbox: Outbox, caller: _Caller, size: int) -> None:
        self._outbox = outbox
        self._caller = caller
        self._size = size
        self._pending: Pending | None = None
        """Once it is in the buffer."""
        self._error: HadronError | None = None
        """Why it was refused."""
        self._is_waited_for = False

    def __repr__(self) -> str:
        if self._pending is not None:
            return repr(self._pending).replace("Pending", "SyncPending", 1)
        return f"<SyncPending, {'waiting for room' if self._error is None else 'failed'}>"

    @property
    def is_done(self) -> bool:
        """Whether `wait` returns at once."""
        return self._error is not None or (self._pending is not None and self._pending.is_done)

    def wait(self) -> Receipt:
        """The record's receipt. Raises what `SyncProducer.send` raises."""
        if self._pending is not None and self._pending.is_done:
            # Also when the producer and the client are closed.
            return receipt_of(self._pending)
        return self._outbox.wait_for(self)


def _is_accepted(pending: SyncPending) -> bool:
    """Whether it is in the buffer, or was refused."""
    return pending._pending is not None or pending._error is not None


_Entry: TypeAlias = tuple[NewRecord, SyncPending]


class Outbox:
    """What is open of a blocking producer."""

    def __init__(self, portal: Portal, producer: Producer) -> None:
        self._portal = portal
        self._producer = producer
        self._publisher = producer._publisher
        self._inbox: deque[_Entry] = deque()
        self._inbox_bytes = 0
        self._scheduled = False
        self._is_closed = False
        self._is_settled = False
        """All that came before it was closed has left the inbox."""
        self._callers = threading.local()
        self._lines: dict[PartitionSender | None, deque[_Entry]] = {}
        """Records that wait for room, by what they wait for; a task works off each."""
        self._line_bytes = 0
        self._moved = anyio.Event()
        """Set, and replaced, when a record in line is accepted."""
        self._failed: deque[SyncPending] = deque()
        self._more_failed = 0
        """Those for which there was no room in it."""

    def __str__(self) -> str:
        return f"of {self._publisher}"

    # --- from any thread ------------------------------------------------------------------------

    def send(self, *parts: Any) -> Receipt:
        record = self._publisher.new_record(*parts)
        return self._portal.call(self._send, record, self._caller())  # type: ignore[no-any-return]

    def send_soon(self, *parts: Any) -> SyncPending:
        # Before it is in the inbox: what is refused must not be published.
        self._portal.check_thread()
        if self._publisher.gone is not None:
            self._publisher.check_open()
        record, size = _freeze(self._publisher.new_record(*parts))
        caller = self._caller()
        pending = SyncPending(self, caller, size)
        self._inbox.append((record, pending))
        self._inbox_bytes += size
        if (
            len(self._inbox) >= _INBOX_RECORDS
            or self._inbox_bytes >= _INBOX_BYTES
            or caller.in_line
            or self._line_bytes >= _INBOX_BYTES
        ):
            self._portal.call(self._catch_up, caller)
        elif not self._scheduled:
            self._scheduled = True
            try:
                self._portal.post(self._empty_soon)
            except BaseException:
                # Ctrl-C, too: the next one has it emptied.
                self._scheduled = False
                raise
        if self._is_closed and pending._pending is None:
            # Whoever closes the producer tells only of what came before.
            self._portal.call(self._settle, pending)
        return pending

    def send_many(self, values: Iterable[Any]) -> list[BatchReceipt]:
        check_many(values)
        publisher, caller = self._publisher, self._caller()
        segments: list[Segment] = []
        trouble: Exception | None = None
        try:
            # In this thread: what is iterated may belong to it, take long, or ask this client.
            for part in slices(values, publisher.serializer):
                self._portal.call(self._add_many, part, segments, caller)
        except Exception as error:
            trouble = error
        return self._portal.call(  # type: ignore[no-any-return]
            finish_bulk, publisher, segments, trouble
        )

    def flush(self) -> None:
        self._portal.call(self._flush)

    def last_sequence(self) -> int:
        return self._portal.call(self._producer.last_sequence)  # type: ignore[no-any-return]

    def last_sequences(self) -> dict[str, int]:
        return self._portal.call(self._producer.last_sequences)  # type: ignore[no-any-return]

    def wait_for(self, pending: SyncPending) -> Receipt:
        """The receipt of one of this producer's records."""
        return self._portal.call(self._wait_for, pending)  # type: ignore[no-any-return]

    def finish(self, ending: Ending) -> None:
        """See `Publisher.finish`."""
        try:
            self._portal.call(self._finish, ending)
        except ClosedError:
            # The client ended under it, by a bug or because the process ends at once.
            if not self._is_closed:
                raise
        if self._failed and ending.logs:
            error = self._failed[0]._error
            count = len(self._failed) + self._more_failed
            those = counted(count, "record was", "records were")
            _log.warning("%s not sent: %s", those, error)
        elif not ending.logs:
            self._raise_failure()

    def drop(self, done: Callable[[], None]) -> None:
        """Nobody has it any more: flush and close it behind, and say so; what failed is left for
        the client's `close` to raise."""

        async def end() -> None:
            await self._empty_inbox()
            await self._publisher.drain()
            if not self._failed and not self._publisher.count_unseen():
                await self._finish(Ending())
                done()

        self._portal.start(end)

    def forked(self) -> None:
        """In a child process: what is in here is its parent's."""
        self._inbox.clear()
        self._is_closed = True

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
                place, sender = self._publisher.find_room(record.key, record.partition)
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
                self._publisher.start(self._work_off, place)
            pending._caller.in_line += 1
            self._line_bytes += pending._size

    async def _work_off(self, place: PartitionSender | None) -> None:
        """Until nothing waits for this place any more."""
        line = self._lines[place]
        while line:
            record, pending = line[0]
            try:
                sender = await self._publisher.wait_room(record.key, record.partition)
            except HadronError as error:
                self._refuse(pending, error)
            else:
                self._add(record, pending, sender)
            line.popleft()
            pending._caller.in_line -= 1
            self._line_bytes -= pending._size
            moved, self._moved = self._moved, anyio.Event()
            moved.set()
        del self._lines[place]

    def _add(self, record: NewRecord, pending: SyncPending, sender: PartitionSender) -> None:
        try:
            pending._pending = Pending(*self._publisher.add(record, sender))
        except HadronError as error:
            self._refuse(pending, error)

    def _refuse(self, pending: SyncPending, error: HadronError) -> None:
        pending._error = error
        if self._is_settled or pending._is_waited_for:
            # Whoever sent it looks himself.
            return
        if len(self._failed) < KEPT_FAILURES:
            self._failed.append(pending)
        else:
            self._more_failed += 1

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self._moved.wait()

    async def _catch_up(self, caller: _Caller) -> None:
        """Empty the inbox, and wait until no record of this thread is in line."""
        self._empty()
        await self._until(lambda: not caller.in_line)

    async def _empty_inbox(self) -> None:
        """Hand everything that was sent so far to the producer, whatever room it takes."""
        self._empty()
        for _, last in [line[-1] for line in self._lines.values()]:
            await self._until(lambda last=last: _is_accepted(last))  # type: ignore[misc]

    async def _empty_soon(self) -> None:
        self._scheduled = False
        self._empty()

    async def _send(self, record: NewRecord, caller: _Caller) -> Receipt:
        pending = SyncPending(self, caller, 0)
        self._inbox.append((record, pending))
        return await self._wait_for(pending)

    async def _add_many(
        self, part: Sequence[Any], segments: list[Segment], caller: _Caller
    ) -> None:
        await self._catch_up(caller)
        await send_bulk(self._publisher, part, segments)

    async def _flush(self) -> None:
        await self._empty_inbox()
        await self._producer.flush()
        self._raise_failure()

    async def _finish(self, ending: Ending) -> None:
        # From here on each `send_soon` looks itself what becomes of its record.
        self._is_closed = True
        began_s = anyio.current_time()
        if ending.waits:
            with anyio.move_on_after(ending.timeout_s):
                await self._empty_inbox()
                self._is_settled = True
        try:
            await self._publisher.finish(ending.later(anyio.current_time() - began_s))
        finally:
            # All is refused, as the producer takes nothing more.
            self._empty()

    def _settle(self, pending: SyncPending) -> None:
        """Raises why a record that was given while the producer was being closed was not taken."""
        if not _is_accepted(pending):
            self._empty()
        if pending._error is not None:
            if pending in self._failed:
                self._failed.remove(pending)
            raise pending._error

    async def _wait_for(self, pending: SyncPending) -> Receipt:
        if not _is_accepted(pending):
            self._empty()
            pending._is_waited_for = True
            try:
                await self._until(lambda: _is_accepted(pending))
            finally:
                pending._is_waited_for = False
        if pending._error is not None:
            if pending in self._failed:
                self._failed.remove(pending)
            raise pending._error
        assert pending._pending is not None
        return await pending._pending.wait()

    def _raise_failure(self) -> None:
        """Raises the first failure of the inbox that nobody has seen."""
        if self._failed:
            error = self._failed.popleft()._error
            assert error is not None
            raise error


class ProducerBase(OpenedBase[Outbox]):
    """Publishes to one stream. Made by `SyncClient.producer`; used in a `with` block or, as well,
    without one and closed with `close`, with its client, or when the program ends; one that nobody
    refers to any more flushes and closes by itself. To keep one is far cheaper than to make one for
    each record. Calls may come from many threads: each waits for room for its own records only.
    """

    _core = Outbox
    _survives_fork = True

    def close(self, timeout_s: float | None = None) -> None:
        """Flush, then take nothing more; a second time does nothing. From any thread. What has no
        outcome within `timeout_s` (None: within the delivery timeout) is given up.

        Raises the first failure that nobody has seen.
        """
        self._lazy.close(Ending(patience_of(timeout_s)))

    def __del__(self) -> None:
        # In whatever thread this is noticed, perhaps in the loop's own. One that was refused for
        # its arguments has nothing.
        lazy: Lazy[Outbox] | None = getattr(self, "_lazy", None)
        if lazy is not None and lazy.core is not None:
            lazy.core.drop(lazy.forget)


def _freeze(record: NewRecord) -> tuple[NewRecord, int]:
    """The record as it is now, whatever its value becomes later, and its value's size. Its other
    parts are its own (`new_records.check_record`)."""
    encoding, data = encode_value(record.value)
    if len(data) > MAX_VALUE_BYTES:
        raise too_large(len(data) + RECORD_OVERHEAD_BYTES, record.key)
    changes: dict[str, Any] = {}
    if encoding not in (BYTES, TEXT):
        changes["value"] = msgspec.Raw(data)
    elif data is not record.value and encoding == BYTES:
        changes["value"] = data
    frozen = msgspec.structs.replace(record, **changes) if changes else record
    return frozen, len(data)
