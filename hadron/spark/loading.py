"""Fetching the records that a micro-batch refers to.

References of one micro-batch lie close together (instances are made in the order of the trigger
stream), so whole batches are fetched once and kept. What is wrong with one place, a partition of a
stream, is so for the rows that refer to it, and for no others: where its leader is away these wait
(PIPELINES P15).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import trio

from hadron.model.backoff import Backoff
from hadron.model.errors import (
    ClosedError,
    CorruptionError,
    DamagedRecordError,
    HadronError,
    LogTruncatedError,
    NotFoundError,
    NotReadyError,
    OffsetOutOfRangeError,
)
from hadron.model.ids import Ballot
from hadron.model.record_batch import RecordBatch, decode_batch
from hadron.spark.batch_cache import BatchCache, Place, Run
from hadron.spark.inputs import Rows
from hadron.wire.system import SystemRandom

_FETCH_BYTES: Final = 4 << 20

_PATIENCE_S: Final = 30.0
"""How long all of a micro-batch waits for a leader, from when it was first found away; a new one is
elected in far less."""

_FIRST_PAUSE_S: Final = 0.05
_MAX_PAUSE_S: Final = 2.0

_LOOK_S: Final = 0.1
"""How often is looked whether somebody who asks has an answer."""

_MOST_BYTES: Final = 128 << 20
"""Of batches that are loaded at once: a micro-batch of the largest records has gigabytes, and
neither Java nor a column of Arrow's takes them."""

_PLACES_AT_A_TIME: Final = 8
"""Each may bring as much as one fetch does."""

_Offsets = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(slots=True)
class _Asked:
    """Of one place the rows that refer to it, in the order of their offsets; and what they get:
    up to a position among them a batch, or why there is none. Those behind the last position come
    later."""

    place: Place
    rows: np.ndarray[Any, np.dtype[np.intp]]
    offsets: _Offsets
    ends: list[tuple[int, RecordBatch | str]] = field(default_factory=list)
    error: HadronError | None = None
    """Why it has not got them yet."""
    size: int = 0
    """Of its batches, in bytes."""


@dataclass(slots=True)
class _Load:
    """All that is loaded at once. `known`: what the logs have been asked for since the references
    came."""

    places: list[_Asked]
    known: set[Run] = field(default_factory=set)

    @property
    def is_full(self) -> bool:
        return sum(each.size for each in self.places) >= _MOST_BYTES


@dataclass(slots=True)
class _Absence:
    """A place whose leader is away. Whoever needs it waits for the one that asks, who asks no
    sooner than at `ask_s`."""

    since_s: float
    backoff: Backoff
    ask_s: float
    error: HadronError
    is_asked: bool = False

    @property
    def is_due(self) -> bool:
        return not self.is_asked and trio.current_time() >= self.ask_s

    @property
    def is_long(self) -> bool:
        return trio.current_time() >= self.since_s + _PATIENCE_S


def _place_of(reference: Any) -> Place:
    return reference.stream, reference.stream_id, reference.partition


def _by_place(references: Sequence[Any]) -> list[_Asked]:
    places: dict[Place, list[int]] = {}
    for row, reference in enumerate(references):
        places.setdefault(_place_of(reference), []).append(row)
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
    away: set[int] = set()
    later: set[int] = set()
    batches: list[RecordBatch] = []
    base_row = 0
    for each in places:
        if each.error is not None:
            away.update(each.rows.tolist())
            continue
        done = 0
        for stop, end in each.ends:
            if isinstance(end, str):
                lost |= dict.fromkeys(each.rows[done:stop].tolist(), end)
            else:
                index[each.rows[done:stop]] = each.offsets[done:stop] - end.base_offset + base_row
                batches.append(end)
                base_row += end.count
            done = stop
        later.update(each.rows[done:].tolist())
    return Rows(batches, index, lost, away, later)


class Loader:
    """Of one runner; what it has fetched is kept for the micro-batches that follow."""

    def __init__(self, client: Any, cache: BatchCache | None = None) -> None:
        self._client = client
        self._cache = cache or BatchCache()
        self._away: dict[Place, _Absence] = {}
        self._room = trio.CapacityLimiter(_PLACES_AT_A_TIME)
        # What is known to be away takes long to say so, and no room of what is not.
        self._room_of_away = trio.CapacityLimiter(_PLACES_AT_A_TIME)

    async def load(
        self, columns: Sequence[Sequence[Any]], *, is_patient: bool = True
    ) -> list[Rows]:
        """What `RecordRef`s point at, in their order.

        Records that are gone, or that nobody can read, are marked as lost; and as away those whose
        leader is away, and has been for longer than a micro-batch waits for it. Where the caller is
        not patient, all that have no answer now. Those for which there is no room are marked, too:
        of each place there is some, so that one row at least is whole where few are asked for.
        Raises what says nothing about a record.
        """
        places = [_by_place(references) for references in columns]
        load = _Load(list(itertools.chain.from_iterable(places)))
        async with trio.open_nursery() as nursery:
            for asked in load.places:
                nursery.start_soon(self._find, asked, load, is_patient)
        for asked in load.places:
            if asked.error is not None and not asked.error.retryable:
                raise asked.error
        return [_laid_out(*each) for each in zip(map(len, columns), places, strict=True)]

    def is_worth_it(self, references: Iterable[Any]) -> bool:
        """Whether there is news of one of these, which were away, or it is time to ask."""
        found = [self._away.get(place) for place in {_place_of(each) for each in references}]
        return any(each is None or each.is_due for each in found)

    def why_away(self, references: Iterable[Any]) -> str:
        """Of one of these."""
        for place in map(_place_of, references):
            if (absence := self._away.get(place)) is not None:
                return f"{place[0]}/{place[2]}: {absence.error}"
        return "they are back"

    async def _find(self, asked: _Asked, load: _Load, is_patient: bool) -> None:
        """Fill it, or say why that cannot be done. Where a place is known to be away for long, only
        who is not patient asks: what such a question takes, all of a micro-batch would wait for."""
        while True:
            absence = self._away.get(asked.place)
            if absence is None or (absence.is_due and not (is_patient and absence.is_long)):
                asked.error = await self._ask(asked, load)
                if asked.error is None or not asked.error.retryable:
                    return
                absence = self._away[asked.place]
            asked.error = absence.error
            if absence.is_long or not is_patient:
                return
            await trio.sleep(_until(absence))

    async def _ask(self, asked: _Asked, load: _Load) -> HadronError | None:
        began_s, absence = trio.current_time(), self._away.get(asked.place)
        if absence is not None:
            absence.is_asked = True
        try:
            async with self._room if absence is None else self._room_of_away:
                await self._fill(asked, load)
        except HadronError as error:
            if error.retryable:
                self._note(asked.place, began_s, error)
            return error
        finally:
            if absence is not None:
                absence.is_asked = False
        self._away.pop(asked.place, None)
        return None

    def _note(self, place: Place, began_s: float, error: HadronError) -> None:
        absence = self._away.get(place)
        if absence is None:
            backoff = Backoff(SystemRandom(), _FIRST_PAUSE_S, _MAX_PAUSE_S)
            absence = self._away[place] = _Absence(began_s, backoff, began_s, error)
        absence.error, absence.ask_s = error, trio.current_time() + absence.backoff.next_s()

    async def _fill(self, asked: _Asked, load: _Load) -> None:
        asked.ends.clear()
        asked.size = 0
        place, offsets = asked.place, asked.offsets
        done = 0
        dropped = ""
        while done < len(offsets) and not (asked.ends and load.is_full):
            offset = int(offsets[done])
            stop = len(offsets)
            end: RecordBatch | str
            try:
                batch = await self._batch_at(load.known, place, offset, offset == offsets[-1])
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
                    asked.size += batch.head.raw
            asked.ends.append((stop, end))
            done = stop

    async def _batch_at(
        self, known: set[Run], place: Place, offset: int, single: bool
    ) -> RecordBatch | int:
        """The batch that holds `offset`; when retention has dropped that, the first offset that is
        kept. Raises `LogTruncatedError` where the log has lost it."""
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
                exists=True,
            )
        except OffsetOutOfRangeError as error:
            (bounds,) = await self._client.offsets(stream, partition=partition, confirmed=True)
            if offset < bounds.first_offset:
                return int(bounds.first_offset)
            raise LogTruncatedError(
                error.message, "its log has lost records, by a recovery or a restored backup"
            ) from None
        found = [
            decode_batch(
                each.data, base_offset=each.base_offset, stream=stream, partition=partition
            )
            for each in fetched.batches
        ]
        if not found:
            raise NotReadyError(f"{partition} has answered offset {offset} with nothing")
        last = fetched.batches[-1]
        known.add(self._cache.add(place, found, Ballot(last.epoch, last.incarnation)))
        return found[0]

    async def _has(self, place: Place, run: Run) -> bool:
        """Whether the log of a place has these batches now, as its leader says: where it says no,
        they are fetched again, and only a majority can say that they are lost."""
        stream, stream_id, partition = place
        try:
            found = await self._client.offsets(stream, partition=partition, before=run.end)
        except HadronError as error:
            if error.retryable:
                raise
            return False  # What it is that has gone is said when the record is fetched.
        return any(each.stream_id == stream_id and each.ballot == run.ballot for each in found)


def _until(absence: _Absence) -> float:
    """Seconds until it is asked again, or waited for no longer."""
    if absence.is_asked:
        return _LOOK_S
    return max(0.0, min(absence.ask_s, absence.since_s + _PATIENCE_S) - trio.current_time())


def _dropped(place: Place, offset: int) -> str:
    error = NotFoundError(
        f"record {place[0]}/{place[2]}/{offset} is not kept any more",
        "let the stream keep its records for longer than the pipeline is behind",
    )
    return str(error)


def _damage(batch: RecordBatch, offset: int) -> str:
    """Of a batch that nobody can read."""
    return str(DamagedRecordError(str(batch.damaged(offset - batch.base_offset, batch.damage))))
