"""Dead letters: records whose attempts are used up, on their way to another stream.

The only place on a leader that opens a batch's body: the record is written again as it was, with
headers that say what became of it. One entry appends it and acknowledges the original, so it is
never in neither place, and never in both.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from hadron.delivery.effects import Exhausted
from hadron.delivery.ground import Ground
from hadron.model.backoff import doubled_s
from hadron.model.batch import StampedBatch
from hadron.model.batch_building import BatchBuilder
from hadron.model.errors import (
    FencedError,
    HadronError,
    RecordTooLargeError,
    RequestError,
    ShuttingDownError,
)
from hadron.model.limits import MAX_BATCH_BYTES, MAX_RECORD_BYTES
from hadron.model.ranges import Range, RangeSet
from hadron.model.record import BYTES, NewRecord, Record
from hadron.model.record_batch import RecordBatch, decode_batch
from hadron.state.groups.endings import DeadLettered, DeadLetterRecords

_log = logging.getLogger(__name__)

REASON: Final = "deadletterreason"
ATTEMPTS: Final = "deadletterattempts"
ORIGIN_STREAM: Final = "deadletterstream"
ORIGIN_PARTITION: Final = "deadletterpartition"
ORIGIN_OFFSET: Final = "deadletteroffset"
GROUP: Final = "deadlettergroup"
DAMAGE: Final = "deadletterdamage"
"""Of a record that cannot be read: why. Its value is as it is stored."""
BODY_OFFSET: Final = "deadletterbodyoffset"
"""Of each record of a batch that cannot be taken apart: the offset, in the stream and partition of
origin, of the one whose letter has the whole body for its value. The others have none."""
_OWN_HEADERS: Final = (
    REASON,
    ATTEMPTS,
    ORIGIN_STREAM,
    ORIGIN_PARTITION,
    ORIGIN_OFFSET,
    GROUP,
    DAMAGE,
    BODY_OFFSET,
)
"""Headers of a dead letter (GROUPS G4); names that CloudEvents takes for extensions."""

_PAUSE_S: Final = 5.0
_MAX_PAUSE_S: Final = 300.0


def pause_s(times: int, share: float) -> float:
    """Before a record is delivered again whose dead letter could not be written for the so many-th
    time: there is no room, or the stream is gone, which nobody may ever mend. `share` is random,
    0.5 to 1."""
    return share * doubled_s(_PAUSE_S, times - 1, _MAX_PAUSE_S)


_TARGET_BYTES: Final = MAX_BATCH_BYTES // 4
"""Where a batch of dead letters is closed: the last record and its headers still fit."""

_MAX_RECORD_BYTES: Final = MAX_BATCH_BYTES - _TARGET_BYTES - (64 << 10)
"""A largest record has grown by its headers."""

_LONGEST_TYPE: Final = 1_024
"""Of a record without its content."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a group's dead letters come from and go to."""

    stream_id: int
    stream: str
    partition: str
    group: str
    group_id: int
    out_stream_id: int


class DeadLetters:
    """Of one group with `max_attempts`.

    Args:
        on_settled: told of offsets that are dealt with, and the group's floor then.
        on_trouble: told of those that could not be written.
    """

    def __init__(
        self,
        ground: Ground,
        origin: Origin,
        on_settled: Callable[[Sequence[Range], int], None],
        on_trouble: Callable[[Exhausted], None],
    ) -> None:
        self._ground = ground
        self._origin = origin
        self._on_settled = on_settled
        self._on_trouble = on_trouble
        self._queue: deque[Exhausted] = deque()
        self._writing = False
        self._in_hand = 0
        self._unwritten = RangeSet()
        self._finished = RangeSet()
        """What transactions have acknowledged while there was something to write."""
        self._closed = False
        self._told = ""

    def close(self) -> None:
        """Write nothing more: whoever serves the group from here on delivers what is not in the log
        again, so that it may be acknowledged after all."""
        self._closed = True
        self._queue.clear()

    @property
    def is_idle(self) -> bool:
        return not self._writing

    @property
    def waiting(self) -> int:
        """Pieces that are not written yet: members may give records back much faster than each is
        committed."""
        return len(self._queue) + self._in_hand

    def write(self, dead: Sequence[Exhausted]) -> None:
        for each in dead:
            last = self._queue[-1] if self._queue else None
            if last is not None and (last.last + 1, last.attempts, last.reason) == (
                each.first,
                each.attempts,
                each.reason,
            ):
                self._queue[-1] = replace(last, last=each.last)
            else:
                self._queue.append(each)
            self._unwritten.add(each.first, each.last)
        if self._queue and not self._writing:
            self._writing = True
            self._ground.nursery.start_soon(self._write_all)

    def finish(self, ranges: Iterable[Range]) -> None:
        """A transaction has acknowledged these: where they are no dead letters yet, they are none.
        *(Without: the letter cannot be written, and a settled record is delivered again.)*"""
        if self._writing:
            for first, last in ranges:
                self._finished.add(first, last)
                self._unwritten.remove(first, last)

    def unwritten(self, first: int, last: int) -> list[Range]:
        """What of these is on its way there."""
        return self._unwritten.within(first, last)

    async def _write_all(self) -> None:
        try:
            while self._queue:
                dead, self._in_hand = self._queue.popleft(), 1
                await self._write(dead)
                self._in_hand = 0
        finally:
            self._writing = False
            self._finished = RangeSet()
        self._on_settled((), 0)

    async def _write(self, dead: Exhausted) -> None:
        offset = dead.first
        try:
            while offset <= dead.last:
                offset = await self._write_some(offset, dead)
                self._unwritten.remove(dead.first, offset - 1)
        except (FencedError, ShuttingDownError):
            return
        except HadronError as error:
            if error.message != self._told:
                _log.error(
                    "group %s: offsets from %d on cannot be written to its dead letter stream: %s",
                    self._origin.group,
                    offset,
                    error,
                )
            self._told = error.message
            self._put_back(replace(dead, first=offset))

    def _put_back(self, dead: Exhausted) -> None:
        self._unwritten.remove(dead.first, dead.last)
        left = self._finished.gaps(dead.first, dead.last)
        finished = RangeSet.of(dead.first, dead.last)
        for first, last in left:
            finished.remove(first, last)
        if finished:
            self._on_settled(finished.ranges(), 0)
        for first, last in left:
            self._on_trouble(replace(dead, first=first, last=last))

    async def _write_some(self, offset: int, dead: Exhausted) -> int:
        """Write the records from `offset` on that are in one batch; returns the next offset."""
        ground, visible = self._ground, self._ground.visible
        kept = visible.bounds(self._origin.stream_id).first_offset
        if offset < kept:
            # Retention has overtaken it, and counted it.
            following = min(kept, dead.last + 1)
            self._on_settled([(offset, following - 1)], 0)
            return following
        batch = (await visible.read(self._origin.stream_id, offset, 1))[0]
        if self._closed:
            raise ShuttingDownError(f"group {self._origin.group!r} is served by another driver")
        # What the stream once had here is still there, and out of every reader's reach.
        ground.catalog.partition(self._origin.out_stream_id, self._origin.partition)
        body, last = encode_letters(batch, self._origin, offset, dead)
        command = DeadLetterRecords(
            self._origin.group_id, self._origin.out_stream_id, ((offset, last),), len(body)
        )
        floor = 0
        try:
            result: DeadLettered = await ground.controller.execute(command, body)
            floor = result.floor
        except RequestError as error:
            if type(error) is not RequestError:
                raise
            if last > offset:
                # Not all of them need be: those that are not must not go with them.
                return await self._write_some(offset, replace(dead, last=(offset + last) // 2))
            # Acknowledged after all, before this leader knew: it is no dead letter.
            _log.info("group %s: %s", self._origin.group, error)
        self._told = ""
        self._on_settled([(offset, last)], floor)
        return last + 1


def encode_letters(
    batch: StampedBatch, origin: Origin, offset: int, dead: Exhausted
) -> tuple[bytes, int]:
    """A batch of dead letters of the records from `offset` on, as many as fit, and the last one's
    offset. Raises `CorruptionError`."""
    records = decode_batch(
        batch.data, base_offset=batch.base_offset, stream=origin.stream, partition=origin.partition
    )
    last = min(dead.last, batch.next_offset - 1)
    builder = BatchBuilder()
    for index in range(offset - batch.base_offset, last + 1 - batch.base_offset):
        record = Record(records, index)
        letter = _letter(records, record, index, origin, dead)
        encoded = records.value_encoding(index), record.raw
        if records.damage:
            letter, encoded = _damaged(letter, record, offset)
        try:
            builder.add(letter, record.timestamp_ms, encoded=encoded, max_bytes=_MAX_RECORD_BYTES)
        except RecordTooLargeError as error:
            # Only who builds batches by other rules can send such a one.
            builder.add(
                _without_content(letter, error),
                record.timestamp_ms,
                encoded=(BYTES, b""),
                max_bytes=_MAX_RECORD_BYTES,
            )
        if builder.size > _TARGET_BYTES or builder.full:
            last = batch.base_offset + index
            break
    return builder.build(), last


def _damaged(letter: NewRecord, record: Record, first: int) -> tuple[NewRecord, tuple[int, bytes]]:
    """The letter of a record whose batch cannot be taken apart; `first` is the offset of the first
    one of them."""
    headers = {**(letter.headers or {}), BODY_OFFSET: str(first)}
    body = record.raw[:MAX_RECORD_BYTES] if record.offset == first else b""
    if record.offset == first and len(body) < len(record.raw):
        headers[DAMAGE] += f"; of the body's {len(record.raw)} bytes the first {len(body)} are here"
    return msgspec.structs.replace(letter, headers=headers), (BYTES, body)


def _without_content(letter: NewRecord, error: RecordTooLargeError) -> NewRecord:
    headers = {name: text for name, text in (letter.headers or {}).items() if name in _OWN_HEADERS}
    kept = letter.type if len(letter.type) <= _LONGEST_TYPE else ""
    return msgspec.structs.replace(
        letter, headers=headers | {DAMAGE: error.message}, key=None, id="", type=kept
    )


def _letter(
    records: RecordBatch, record: Record, index: int, origin: Origin, dead: Exhausted
) -> NewRecord:
    # Where a letter dies in its turn, its origin is the stream of letters: offsets are of that.
    headers = {
        **{name: text for name, text in record.headers.items() if name != BODY_OFFSET},
        REASON: dead.reason,
        ATTEMPTS: str(dead.attempts),
        ORIGIN_STREAM: origin.stream,
        ORIGIN_PARTITION: origin.partition,
        ORIGIN_OFFSET: str(record.offset),
        GROUP: origin.group,
    }
    if damage := record.damage:
        headers[DAMAGE] = damage
    return NewRecord(
        value=None,
        key=records.key_bytes(index) if damage else record.key,
        type=record.type,
        timestamp_ms=record.timestamp_ms,
        headers=headers,
        id=records.id(index),
    )
