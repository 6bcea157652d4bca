"""What the connections of one program may hold together: answers on their way, frames that are
still coming in, and calls.

Rules: before an answer is read from the disk there must be room for it (`take`), so that asking
costs nothing; what is under way inwards beyond its limit ends the frame that has taken longest.
Room is divided by dynamic thresholds (Choudhury and Hahne, for switches with shared memory): a
connection may hold as much as is left for all, so k that read nothing leave 1/(k + 1) of it to the
others, and nobody needs to know who they are.
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


class Holder(Protocol):
    """A connection, as the budget sees it."""

    reserved: int
    """Granted for answers that are not written yet."""

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
        self, max_bytes: int = MAX_UNSENT_BYTES, max_calls: int = MAX_OPEN_CALLS,
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

    # --- answers --------------------------------------------------------------------------------

    async def take(self, holder: Holder, size: int) -> int:
        """Wait for room for an answer of `size` bytes; returns how many it may have, at least
        `LEAST_BYTES` of them reserved. `give` takes it back."""
        holder.settle()
        request = _Request(max(size, LEAST_BYTES))
        self._waiting.setdefault(holder, deque()).append(request)
        self._serve()
        try:
            if not request.granted:
                await request.event.wait()
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
        holder.settle()

    def _forget(self, holder: Holder, request: _Request) -> None:
        queue = self._waiting[holder]
        queue.remove(request)
        if not queue:
            del self._waiting[holder]

    def charge(self, change: int) -> None:
        """Some connection holds so much more, or less."""
        self.held_bytes += change
        if change < 0 and self._waiting:
            self._serve()

    def allows(self, held: int) -> bool:
        """Whether a connection that holds so much may send more of a stream."""
        return held == 0 or (
            held < CONNECTION_BYTES // 2 and held <= self._max_bytes - self.held_bytes
        )

    def has_room(self, held: int, size: int) -> bool:
        """Whether a connection that holds so much may hold so much more; one answer, always."""
        return held == 0 or size <= self._free(held)

    def _free(self, held: int) -> int:
        return min(CONNECTION_BYTES, self._max_bytes - self.held_bytes) - held

    def _serve(self) -> None:
        """Grant what fits, one answer for each connection in turn."""
        for holder in list(self._waiting):
            queue = self._waiting[holder]
            free = self._free(holder.held)
            if free < LEAST_BYTES:
                continue
            request = queue.popleft()
            # Whoever has got something goes to the end of the line.
            del self._waiting[holder]
            if queue:
                self._waiting[holder] = queue
            request.granted = min(request.size, free)
            holder.reserved += request.granted
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
