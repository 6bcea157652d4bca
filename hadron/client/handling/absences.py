"""Invocations whose records cannot be had now: they wait apart, and hold up nobody (PIPELINES P15).

Of a partition that is away the record that the first one waits for is asked for, again and again.
Whatever the answer is, that one has it, however long it took: so each time one at least goes on.
All that wait for the partition have their turns again, and hear then what it is for them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import anyio
import anyio.lowlevel

from hadron.client.connecting.session import Session
from hadron.client.handling.micro_batches import MicroBatch, Place, Turn, place_of
from hadron.client.handling.records import FetchedRecords
from hadron.model.backoff import Backoff
from hadron.model.errors import HadronError
from hadron.model.record import Record
from hadron.wire.messages import pipelines_pb2

_PATIENCE_S: Final = 1.0
"""How long all others wait for a record; then its invocation waits by itself."""

_LOOK_S: Final = 0.5
"""How often is looked of which micro-batch it is to be said that it is worked on: well below the
time that a leader adds to a timeout."""

_SAID_PER_TIMEOUT: Final = 4
_MOST_SILENT_S: Final = 10.0
"""It is said at least so often, though a timeout may be a day."""

_log: Final = logging.getLogger(__name__)

_Partition = tuple[int, str]


def _partition_of(ref: pipelines_pb2.RecordRef) -> _Partition:
    return ref.stream_id, ref.partition


class Absences:
    """Of one program's invocations of a stage.

    Attributes:
        back: whose turn it is again.
    """

    def __init__(
        self,
        session: Session,
        fetched: FetchedRecords,
        on_back: Callable[[], None],
        say_begun: Callable[[list[MicroBatch]], None],
    ) -> None:
        """`say_begun`: that these are worked on."""
        self._session = session
        self._fetched = fetched
        self._on_back = on_back
        self._say_begun = say_begun
        self._waiting: dict[_Partition, deque[tuple[Place, Turn]]] = {}
        self._tasks: dict[_Partition, anyio.CancelScope] = {}
        self._holding: anyio.CancelScope | None = None
        self.back: deque[Turn] = deque()

    @property
    def count(self) -> int:
        """How many wait, without those that are back."""
        return sum(map(len, self._waiting.values()))

    async def get(self, ref: pipelines_pb2.RecordRef, turn: Turn) -> Record | None:
        """None where it cannot be had now. Raises what `FetchedRecords.get` raises of one that is
        gone."""
        heard = turn.heard.get(place_of(ref))
        if isinstance(heard, HadronError):
            raise heard
        if heard is not None:
            return heard
        # Of many that wait none stops the loop for all of them.
        await anyio.lowlevel.checkpoint()
        if _partition_of(ref) in self._waiting:
            return None
        with anyio.move_on_after(_PATIENCE_S):
            try:
                return await self._fetched.get(ref, turn.micro_batch.number)
            except HadronError as error:
                if not self._is_away(ref, error):
                    raise
        return None

    def add(self, ref: pipelines_pb2.RecordRef, turn: Turn) -> None:
        """It waits for this record."""
        partition = _partition_of(ref)
        if partition not in self._waiting:
            self._waiting[partition] = deque()
            self._tasks[partition] = self._session.background.start(self._ask, partition)
        self._waiting[partition].append((place_of(ref), turn.apart()))
        if self._holding is None:
            self._holding = self._session.background.start(self._hold)

    def clear(self) -> int:
        """Those that are here are others' now; how many there were."""
        here: list[deque[Any]] = [self.back, *self._waiting.values()]
        count = sum(map(len, here))
        for each in here:
            each.clear()
        return count

    def close(self) -> None:
        for scope in self._tasks.values():
            scope.cancel()
        if self._holding is not None:
            self._holding.cancel()

    def _is_away(self, ref: pipelines_pb2.RecordRef, error: HadronError) -> bool:
        """Whether it may be there later: to fail because a leader is away would use up attempts."""
        if not error.retryable or self._session.closed is not None:
            return False
        _log.warning("%s/%s/%d: %s", ref.stream, ref.partition, ref.offset, error)
        return True

    async def _ask(self, partition: _Partition) -> None:
        waiting = self._waiting[partition]
        backoff = Backoff(self._session.ports.random)
        is_away = True
        while is_away:
            await anyio.sleep(backoff.next_s())
            is_away = bool(waiting) and await self._is_still_away(waiting)
        del self._waiting[partition], self._tasks[partition]
        self.back.extend(turn for _, turn in waiting)
        self._on_back()

    async def _is_still_away(self, waiting: deque[tuple[Place, Turn]]) -> bool:
        (place, first), (_, last) = waiting[0], waiting[-1]
        ref = next(each for each in first.references() if place_of(each) == place)
        try:
            # Once for all of them.
            first.heard[place] = await self._fetched.get(ref, last.micro_batch.number)
        except HadronError as error:
            if self._is_away(ref, error):
                return True
            first.heard[place] = error
        return False

    async def _hold(self) -> None:
        """Say in time of what waits that it is worked on. Where nothing of a micro-batch has begun
        nobody's time runs."""
        while self.back or self._waiting:
            await anyio.sleep(_LOOK_S)
            now_s = anyio.current_time()
            held = {each.micro_batch for each in self.back}
            held.update(each.micro_batch for some in self._waiting.values() for _, each in some)
            self._say_begun([each for each in held if each.is_begun and _is_due(each, now_s)])
        self._holding = None


def _is_due(micro_batch: MicroBatch, now_s: float) -> bool:
    timeout_s = micro_batch.stage.timeout_ms / 1_000
    return now_s - micro_batch.said_s >= min(_MOST_SILENT_S, timeout_s / _SAID_PER_TIMEOUT)
