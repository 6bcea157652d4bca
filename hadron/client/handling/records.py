"""The records that invocations name: triggers, and outputs of other stages.

A pipeline's leader sends those that it has in memory along, as the batches that hold them, up to a
bound for each message. The rest is fetched from the leader of its partition when its invocation's
turn comes, with what lies behind it, and kept for the next ones.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from hadron.client.reading.calls import ReadCalls
from hadron.model.errors import CorruptionError, HadronError
from hadron.model.ids import Ballot
from hadron.model.record import Deserializer, Record, record_type
from hadron.model.record_batch import RecordBatch, decode_batch
from hadron.wire.messages import pipelines_pb2

RECORD_BYTES: Final = 1 << 20
"""Of records that come with a message, at most."""

_FETCH_BYTES: Final = 256 << 10
"""Most invocations are of consecutive records."""

_KEPT_BYTES: Final = 8 << 20
"""Of what was fetched."""

_Partition = tuple[int, str]


class _Batches:
    """Of one partition, in order."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._batches: list[RecordBatch] = []

    def add(self, batch: RecordBatch) -> None:
        at = bisect_right(self._starts, batch.base_offset)
        if not at or self._starts[at - 1] != batch.base_offset:
            self._starts.insert(at, batch.base_offset)
            self._batches.insert(at, batch)

    def find(self, offset: int) -> Record | None:
        at = bisect_right(self._starts, offset) - 1
        if at < 0 or offset >= self._starts[at] + self._batches[at].count:
            return None
        index = offset - self._starts[at]
        return self._batches[at].records(index, index + 1)[0]


class SentRecords:
    """What came with one micro-batch; opened when the first of it is asked for."""

    def __init__(
        self,
        invocations: pipelines_pb2.Invocations,
        data: memoryview,
        value_deserializer: Deserializer | None,
    ) -> None:
        self._invocations = invocations
        self._data = data
        self._value_deserializer = value_deserializer
        self._known: dict[_Partition, _Batches] | None = None

    def find(self, ref: pipelines_pb2.RecordRef) -> Record | None:
        if self._known is None:
            self._known = self._open()
        batches = self._known.get((ref.stream_id, ref.partition))
        return None if batches is None else batches.find(ref.offset)

    def _open(self) -> dict[_Partition, _Batches]:
        known: dict[_Partition, _Batches] = {}
        names = {
            ref.stream_id: ref.stream
            for each in self._invocations.invocations
            for ref in (each.root, *each.dependencies)
        }
        start = 0
        for sent in self._invocations.batches:
            end = start + sent.info.length
            batch = decode_batch(
                self._data[start:end],
                base_offset=sent.info.base_offset,
                stream=names.get(sent.stream_id, ""),
                partition=sent.partition,
            )
            batch.record_type = record_type(self._value_deserializer)
            if end > len(self._data) or batch.count != sent.info.count:
                raise CorruptionError(
                    f"a batch of {batch.count} records came with invocations, its node says "
                    f"{sent.info.count}"
                )
            known.setdefault((sent.stream_id, sent.partition), _Batches()).add(batch)
            start = end
        return known


@dataclass(slots=True)
class _Kept:
    """What was fetched of one partition at once: a log that has the last batch of it has it all.

    Attributes:
        end: the offset behind it.
        ballot: of the last batch.
        asked: at which micro-batch the log was last known to have it.
    """

    batches: _Batches
    size: int
    end: int
    ballot: Ballot
    asked: int


class FetchedRecords:
    """What did not come with them; the latest of it is kept.

    Offsets are counted again where a set was restored, or has lost a part of its log (PIPELINES
    P2): once for each micro-batch, the partition's leader is asked whether it still has what is
    kept (PROTOCOL D4).
    """

    def __init__(self, reading: ReadCalls, value_deserializer: Deserializer | None) -> None:
        self._reading = reading
        self._value_deserializer = value_deserializer
        self._kept: OrderedDict[_Partition, _Kept] = OrderedDict()
        self._size = 0

    async def get(self, ref: pipelines_pb2.RecordRef, micro_batch: int) -> Record:
        """`micro_batch`: how many had come with the one that names it. Raises what `Client.fetch`
        raises: `OffsetOutOfRangeError` for one that retention has dropped, `NotFoundError` when its
        stream was deleted."""
        place = ref.stream_id, ref.partition
        kept = self._kept.get(place)
        found = kept.batches.find(ref.offset) if kept is not None else None
        if kept is not None and found is not None and kept.asked < micro_batch:
            if await self._has(ref, kept):
                kept.asked = max(kept.asked, micro_batch)
            else:
                found = None
        if found is None:
            found = (await self._fetch(place, ref, micro_batch)).find(ref.offset)
        elif place in self._kept:
            self._kept.move_to_end(place)
        if found is None:
            raise CorruptionError(
                f"{ref.partition} was asked for offset {ref.offset} of {ref.stream!r} and has "
                "answered with others"
            )
        return found

    async def _has(self, ref: pipelines_pb2.RecordRef, kept: _Kept) -> bool:
        """Whether the log has it now, as its leader says; "no" may be said by one that is deposed,
        and the record is fetched again."""
        try:
            found = await self._reading.offsets(ref.stream, ref.partition, None, kept.end)
        except HadronError as error:
            if error.retryable:
                raise
            return False  # What it is that has gone is said when the record is fetched.
        return any(each.stream_id == ref.stream_id and each.ballot == kept.ballot for each in found)

    async def _fetch(
        self, place: _Partition, ref: pipelines_pb2.RecordRef, micro_batch: int
    ) -> _Batches:
        """What was known of the partition makes room."""
        answer = await self._reading.fetch(
            ref.stream,
            ref.partition,
            ref.offset,
            _FETCH_BYTES,
            0,
            ref.stream_id or None,
            None,
            exists=True,
        )
        batches, size = _Batches(), 0
        for stamped in answer.batches:
            batch = decode_batch(
                stamped.data,
                base_offset=stamped.base_offset,
                stream=ref.stream,
                partition=ref.partition,
            )
            batch.record_type = record_type(self._value_deserializer)
            batches.add(batch)
            size += len(stamped.data)
        self._drop([place])
        if not answer.batches:
            return batches
        last = answer.batches[-1]
        ballot = Ballot(last.epoch, last.incarnation)
        self._kept[place] = _Kept(batches, size, last.next_offset, ballot, micro_batch)
        self._size += size
        while self._size > _KEPT_BYTES and len(self._kept) > 1:
            self._drop([next(iter(self._kept))])
        return batches

    def _drop(self, places: Iterable[_Partition]) -> None:
        for place in places:
            kept = self._kept.pop(place, None)
            self._size -= kept.size if kept is not None else 0
