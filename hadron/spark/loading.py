"""Fetching the records that a micro-batch refers to.

References of one micro-batch lie close together (instances are made in the order of the trigger
stream), so whole batches are fetched once and kept. What is wrong with one place, a partition of a
stream, is so for the rows that refer to it, and for no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from hadron.model.errors import (
    ClosedError,
    CorruptionError,
    DamagedRecordError,
    HadronError,
    NotFoundError,
    OffsetOutOfRangeError,
)
from hadron.model.ids import Ballot
from hadron.model.record_batch import RecordBatch, decode_batch
from hadron.spark.batch_cache import BatchCache, Place, Run
from hadron.spark.inputs import Rows

_FETCH_BYTES: Final = 4 << 20

_Offsets = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(slots=True)
class _Asked:
    """Of one place the rows that refer to it, in the order of their offsets; and what they get:
    up to a position among them a batch, or why there is none."""

    place: Place
    rows: np.ndarray[Any, np.dtype[np.intp]]
    offsets: _Offsets
    ends: list[tuple[int, RecordBatch | str]] = field(default_factory=list)


def _by_place(references: Sequence[Any]) -> list[_Asked]:
    places: dict[Place, list[int]] = {}
    for row, reference in enumerate(references):
        place = (reference.stream, reference.stream_id, reference.partition)
        places.setdefault(place, []).append(row)
    asked = []
    for place, rows in places.items():
        order = np.array(rows)
        offsets = np.array([references[row].offset for row in rows], np.int64)
        sorting = np.argsort(offsets, kind="stable")
        asked.append(_Asked(place, order[sorting], offsets[sorting]))
    return asked


def _laid_out(count: int, places: Sequence[_Asked]) -> Rows:
    index = np.zeros(count, np.int64)
    lost: dict[int, str] = {}
    batches: list[RecordBatch] = []
    base_row = 0
    for each in places:
        done = 0
        for stop, end in each.ends:
            if isinstance(end, str):
                lost |= dict.fromkeys(each.rows[done:stop].tolist(), end)
            else:
                index[each.rows[done:stop]] = each.offsets[done:stop] - end.base_offset + base_row
                batches.append(end)
                base_row += end.count
            done = stop
    return Rows(batches, index, lost)


class Loader:
    """Of one runner; what it has fetched is kept for the micro-batches that follow."""

    def __init__(self, client: Any, cache: BatchCache | None = None) -> None:
        self._client = client
        self._cache = cache or BatchCache()

    async def load(self, references: Sequence[Any]) -> Rows:
        """What `references` (`RecordRef`s) point at, in their order.

        Raises what the client raises, except that records which are gone, or cannot be read by
        anybody, are marked as lost.
        """
        places = _by_place(references)
        known: set[Run] = set()
        for each in places:
            await self._fill(each, known)
        return _laid_out(len(references), places)

    async def _fill(self, asked: _Asked, known: set[Run]) -> None:
        """`known`: what the logs have been asked for since the references came."""
        asked.ends.clear()
        place, offsets = asked.place, asked.offsets
        done = 0
        dropped = ""
        while done < len(offsets):
            offset = int(offsets[done])
            stop = len(offsets)
            end: RecordBatch | str
            try:
                batch = await self._batch_at(known, place, offset, offset == offsets[-1])
            except HadronError as error:
                if error.retryable or isinstance(error, ClosedError):
                    raise
                if isinstance(error, CorruptionError):
                    # What is behind it may be sound.
                    stop = int(np.searchsorted(offsets, offset + 1))
                end = f"records of {place[0]}/{place[2]} cannot be read: {error}"
            else:
                if isinstance(batch, int):
                    stop = int(np.searchsorted(offsets, max(batch, offset + 1)))
                    end = dropped = dropped or _dropped(place, offset)
                else:
                    stop = int(np.searchsorted(offsets, batch.next_offset))
                    end = _damage(batch, offset) if batch.damage else batch
            asked.ends.append((stop, end))
            done = stop

    async def _batch_at(
        self, known: set[Run], place: Place, offset: int, single: bool
    ) -> RecordBatch | int:
        """The batch that holds `offset`; when that is gone, the first offset that is still kept."""
        while (cached := self._cache.find(place, offset)) is not None:
            batch, run = cached
            if run in known or await self._has(place, run):
                known.add(run)
                return batch
            self._cache.drop(place, run)
        stream, stream_id, partition = place
        try:
            fetched = await self._client.fetch(
                stream,
                partition,
                offset,
                max_bytes=1 if single else _FETCH_BYTES,
                stream_id=stream_id,
            )
        except OffsetOutOfRangeError:
            bounds = await self._client.offsets(stream, partition=partition)
            return int(bounds[0].first_offset) if bounds else 0
        found = [
            decode_batch(
                each.data, base_offset=each.base_offset, stream=stream, partition=partition
            )
            for each in fetched.batches
        ]
        if not found:
            return int(fetched.first_offset)
        last = fetched.batches[-1]
        known.add(self._cache.add(place, found, Ballot(last.epoch, last.incarnation)))
        return found[0]

    async def _has(self, place: Place, run: Run) -> bool:
        """Whether the log of a place has these batches now, as its leader says."""
        stream, stream_id, partition = place
        try:
            found = await self._client.offsets(stream, partition=partition, before=run.end)
        except HadronError as error:
            if error.retryable:
                raise
            return False  # What it is that has gone is said when the record is fetched.
        return any(each.stream_id == stream_id and each.ballot == run.ballot for each in found)


def _dropped(place: Place, offset: int) -> str:
    error = NotFoundError(
        f"record {place[0]}/{place[2]}/{offset} is not kept any more",
        "let the stream keep its records for longer than the pipeline is behind",
    )
    return str(error)


def _damage(batch: RecordBatch, offset: int) -> str:
    """Of a batch that nobody can read."""
    return str(DamagedRecordError(str(batch.damaged(offset - batch.base_offset, batch.damage))))
