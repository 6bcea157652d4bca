"""What the connections of one program may hold together: answers on their way, frames that are
still coming in, and calls.

Rules: before an answer is read from the disk there must be room for it (`take`), so that asking
costs nothing; what is under way inwards beyond its limit ends the frame that has taken longest.
A connection may hold as much as is left for all (dynamic thresholds, Choudhury and Hahne, for
switches with shared memory); who holds least comes first, so that whoever reads what it asks for
passes those that do not; and while somebody with nothing waits in vain, those that read nothing are
cut off.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

import anyio

from hadron.model.limits import (
    MAX_BATCH_BYTES,
    MAX_INCOMPLETE_BYTES,
    MAX_OPEN_CALLS,
    MAX_UNSENT_BYTES,
)

CONNECTION_BYTES: Final = 16 << 20
"""The most that one connection holds for answers, however much is left: one largest attachment."""

LEAST_BYTES: Final = MAX_BATCH_BYTES
"""What an answer is counted as until it is known: a read brings a whole batch, whatever was asked
for."""

READING_BYTES: Final = 32 << 20
"""Answers that are being read at a time: the others wait here, where there is an order, and not for
the threads that read."""

PRESSURE_S: Final = 2.0
"""Who has read nothing for so long is cut off, when somebody who holds nothing waits for room."""

_MOVED_BYTES: Final = 16 << 10
"""Less than this in that time is nothing."""


class Holder(Protocol):
    """A connection, as the budget sees it."""

    reserved: int
    """Granted for answers that are not written yet."""

    sent_bytes: int
    """Ever."""

    @property
    def held(self) -> int:
        """Bytes written and not sent, and those that are reserved."""
        ...

    def settle(self) -> None:
        """Tell the budget what is held now."""
        ...

    def cut(self, why: str) -> None:
        """Close the connection, with a word in the log."""
        ...


class _Request:
    __slots__ = ("event", "granted", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.granted = 0
        self.event = anyio.Event()


class Budget:
    """One for all connections that clients have opened, and another one for those of peers."""

    def __init__(
        self,
        max_bytes: int = MAX_UNSENT_BYTES,
        max_calls: int = MAX_OPEN_CALLS,
        max_incomplete_bytes: int = MAX_INCOMPLETE_BYTES,
    ) -> None:
        self.held_bytes = 0
        self.calls = 0
        self._max_bytes = max_bytes
        self._max_calls = max_calls
        self._max_incomplete_bytes = max_incomplete_bytes
        self._incomplete: dict[Holder, int] = {}
        """Bytes taken for frames that are still coming, those that began first in front."""
        self._incomplete_bytes = 0
        self._waiting: dict[Holder, deque[_Request]] = {}
        self._holders: dict[Holder, None] = {}
        self._reading_bytes = 0

    # --- answers --------------------------------------------------------------------------------

    async def take(self, holder: Holder, size: int) -> int:
        """Wait for room for an answer of `size` bytes; returns how many it may have, at least
        `LEAST_BYTES` of them reserved. `give` takes it back."""
        holder.settle()
        request = _Request(max(size, LEAST_BYTES))
        self._waiting.setdefault(holder, deque()).append(request)
        self._serve()
        try:
            while not request.granted:
                with anyio.move_on_after(PRESSURE_S):
                    marks = self._marks() if holder.held == 0 else {}
                    await request.event.wait()
                if not request.granted:
                    self._press(marks)
        except BaseException:
            if request.granted:
                self.give(holder, request.granted)
            else:
                self._forget(holder, request)
            raise
        return request.granted

    def give(self, holder: Holder, granted: int) -> None:
        """The answer was written, or will not be."""
        holder.reserved -= granted
        self._reading_bytes -= granted
        holder.settle()
        self._serve()

    def _marks(self) -> dict[Holder, int]:
        """How much was sent so far to each that holds something."""
        return {holder: holder.sent_bytes for holder in self._holders}

    def _press(self, marks: dict[Holder, int]) -> None:
        """Cut off who has read nothing since then, as many as it takes."""
        idle = [
            holder
            for holder, sent_bytes in marks.items()
            if holder in self._holders
            and holder.held > holder.reserved
            and holder.sent_bytes - sent_bytes < _MOVED_BYTES
        ]
        for holder in sorted(idle, key=lambda each: each.held, reverse=True):
            if self._max_bytes - self.held_bytes >= LEAST_BYTES:
                break
            holder.cut(
                f"{holder.held} bytes wait for it, it read next to nothing for {PRESSURE_S:g} s, "
                "and others wait for that room"
            )

    def _forget(self, holder: Holder, request: _Request) -> None:
        queue = self._waiting.get(holder)
        if queue is not None:
            queue.remove(request)
            if not queue:
                del self._waiting[holder]

    def leave(self, holder: Holder) -> None:
        """The connection has ended; whoever waits for room on it is cancelled."""
        self._waiting.pop(holder, None)
        self._holders.pop(holder, None)
        self.receiving(holder, 0)
        holder.settle()

    def release(self, holder: Holder, charged: int, calls: int) -> None:
        """The connection belongs to another budget now, with what it holds."""
        self.receiving(holder, 0)
        self._holders.pop(holder, None)
        self.held_bytes -= charged
        self.calls -= calls
        self._serve()

    def charge(self, holder: Holder, change: int) -> None:
        """A connection holds so much more, or less."""
        self.held_bytes += change
        if holder.held:
            self._holders[holder] = None
        else:
            self._holders.pop(holder, None)
        if change < 0 and self._waiting:
            self._serve()

    def allows(self, held: int) -> bool:
        """Whether a connection that holds so much may send more of a stream."""
        return held < CONNECTION_BYTES // 2 and held <= self._max_bytes - self.held_bytes

    def has_room(self, held: int, size: int) -> bool:
        """Whether a connection that holds so much may hold so much more; one answer, always."""
        return held == 0 or size <= self._free(held)

    def _free(self, held: int) -> int:
        return min(CONNECTION_BYTES, self._max_bytes - self.held_bytes) - held

    def _serve(self) -> None:
        """Grant what fits, first to those that hold least."""
        while self._waiting:
            reading = READING_BYTES - self._reading_bytes
            holder = min(self._waiting, key=lambda each: each.held)
            free = min(self._free(holder.held), reading)
            if free < LEAST_BYTES:
                # Who holds more may have no more.
                return
            share = max(LEAST_BYTES, reading // len(self._waiting))
            queue = self._waiting[holder]
            request = queue.popleft()
            if not queue:
                del self._waiting[holder]
            request.granted = min(request.size, free, share)
            holder.reserved += request.granted
            self._reading_bytes += request.granted
            holder.settle()
            request.event.set()

    # --- calls ----------------------------------------------------------------------------------

    def admits(self, own_calls: int) -> bool:
        """Whether a connection with so many open calls may open one more."""
        return own_calls + self.calls < self._max_calls

    # --- what comes in --------------------------------------------------------------------------

    def receiving(self, holder: Holder, size: int) -> None:
        """A connection holds `size` bytes for a frame that is not complete; 0 when there is none.

        Cuts those off that have been at it longest when all together are too many.
        """
        before = self._incomplete.get(holder, 0)
        if before == size:
            return
        self._incomplete_bytes += size - before
        if size:
            self._incomplete[holder] = size
        else:
            del self._incomplete[holder]
        while self._incomplete_bytes > self._max_incomplete_bytes:
            oldest = next(iter(self._incomplete))
            held = self._incomplete.pop(oldest)
            total = self._incomplete_bytes
            self._incomplete_bytes -= held
            oldest.cut(
                f"its frame is not complete, {held} bytes were taken for it, and all that are "
                f"coming together take {total}, the limit is {self._max_incomplete_bytes}"
            )
