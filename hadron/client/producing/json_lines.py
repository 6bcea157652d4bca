"""NDJSON to a stream as it comes: lines that are JSON become values without being taken apart.

For doors, which are handed text and not a program's objects. Each piece is looked at as a whole, so
that a line costs a fraction of what a record costs that is made by itself; what is wrong names the
line. Memory is bounded by the producer's buffer: a piece waits until there is room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import anyio.lowlevel
import msgspec

from hadron.client.producing.bulk import Segment, cut
from hadron.client.producing.outgoing_batch import BatchState
from hadron.client.producing.producer import Producer
from hadron.model.errors import (
    HadronError,
    InvalidRecordError,
    OutcomeUnknownError,
    RecordFates,
    RequestError,
)
from hadron.model.limits import MAX_BATCH_RECORDS
from hadron.model.lines import Lines
from hadron.model.record import JSON, NewRecord

_decode = msgspec.json.Decoder().decode

_RECORDS_PER_CHECKPOINT: Final = 128

ToRecord = Callable[[bytes], NewRecord]


class Run(msgspec.Struct):
    """What came of lines at one partition.

    Attributes:
        first_offset, last_offset: of theirs; others' records may be between them.
    """

    partition: str
    count: int
    first_offset: int
    last_offset: int


class JsonLines:
    """Lines of one text, in order, to one producer.

    Args:
        to_record: makes a record of each line; None where the line is the value and nothing else.
        max_line_bytes: of one line.
    """

    def __init__(
        self, producer: Producer, *, to_record: ToRecord | None, max_line_bytes: int
    ) -> None:
        self._publisher = producer._publisher
        self._to_record = to_record
        self._lines = Lines(max_line_bytes)
        self._segments: deque[Segment] = deque()
        self._runs: dict[str, Run] = {}
        self._published = 0

    async def feed(self, data: bytes) -> None:
        """Take some of the text. Raises what is wrong with it, or why it cannot be published."""
        self._reap()
        await self._add(self._lines.feed(data))

    async def finish(self) -> list[Run]:
        """All of the text was given: until everything has its outcome."""
        await self._add(self._lines.finish())
        self._publisher.seal()
        while self._segments:
            await self._publisher.wait_all([self._segments[0]])
            self._reap()
        return list(self._runs.values())

    async def fates(self) -> RecordFates:
        """What became of all that was taken, once nothing more is: where the text was cut short."""
        self._publisher.seal()
        published, unknown, lost = self._published, 0, 0
        for segment in self._segments:
            try:
                await self._publisher.wait_all([segment])
                published += segment.count
            except OutcomeUnknownError:
                unknown += segment.count
            except HadronError:
                lost += segment.count
        return RecordFates(published, unknown, lost)

    # --- lines ----------------------------------------------------------------------------------

    async def _add(self, lines: list[bytes]) -> None:
        if self._to_record is None:
            given = [line for line in lines if line]
            if given and not _are_values(given):
                self._complain(lines)
            await self._add_values(given)
        else:
            await self._add_each(lines, self._to_record)

    def _complain(self, lines: list[bytes]) -> None:
        """Raises what is wrong with the first of them that is no JSON."""
        for number, line in enumerate(lines, self._before(lines) + 1):
            if line:
                try:
                    _decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                    raise InvalidRecordError(
                        f"line {number} is no JSON: {error}", "one JSON value a line"
                    ) from None
        raise InvalidRecordError(
            f"lines {self._before(lines) + 1} to {self._lines.seen} are no JSON",
            "one JSON value a line",
        )

    def _before(self, lines: list[bytes]) -> int:
        """How many came before these, which are the latest."""
        return self._lines.seen - len(lines)

    async def _add_values(self, values: list[bytes]) -> None:
        publisher = self._publisher
        while values:
            part, size = cut(values[:MAX_BATCH_RECORDS], publisher.batch_bytes)
            sender = await publisher.wait_room()
            batch = publisher.add_values(part, size, sender, JSON)
            self._segments.append(Segment(batch, 0, len(part)))
            values = values[len(part) :]
            await anyio.lowlevel.checkpoint()

    async def _add_each(self, lines: list[bytes], to_record: ToRecord) -> None:
        publisher = self._publisher
        for index, line in enumerate(lines, 1):
            if not line:
                continue
            try:
                record = to_record(line)
                sender = await publisher.wait_room(record.key, record.partition)
                batch, place = publisher.add(record, sender)
            except RequestError as error:
                number = self._before(lines) + index
                raise type(error)(f"line {number}: {error.message}", error.hint) from error
            last = self._segments[-1] if self._segments else None
            if last is not None and last.batch is batch and last.first + last.count == place:
                last.count += 1
            else:
                self._segments.append(Segment(batch, place, 1))
            if index % _RECORDS_PER_CHECKPOINT == 0:
                await anyio.lowlevel.checkpoint()

    # --- outcomes -------------------------------------------------------------------------------

    def _reap(self) -> None:
        """Count what is done. Raises what has failed."""
        while self._segments and self._segments[0].batch.is_done:
            segment = self._segments[0]
            batch = segment.batch
            if batch.state is BatchState.FAILED:
                segment.hear(True)
                raise batch.failure()
            self._segments.popleft()
            first = batch.base_offset + segment.first
            last = first + segment.count - 1
            self._published += segment.count
            run = self._runs.get(batch.partition)
            if run is None:
                self._runs[batch.partition] = Run(batch.partition, segment.count, first, last)
            else:
                run.count += segment.count
                run.first_offset = min(run.first_offset, first)
                run.last_offset = max(run.last_offset, last)


def _are_values(lines: list[bytes]) -> bool:
    """Whether each of them is one JSON value that every reader can decode: half of the time goes
    into making what nobody keeps, but a text that is only skipped may have numbers out of range."""
    try:
        deque(map(_decode, lines), maxlen=0)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
