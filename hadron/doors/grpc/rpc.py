"""The node's half of a gRPC call, in the node's loop: messages as bytes.

Safety rule: no more than `WINDOW_BYTES` and one message, nor than `WINDOW_MESSAGES`, wait for a
program to read them, where who sends looks at `may_send`, and all calls of a door together hold no
more than it may (`doors.held`). But each has room for `SMALL_BYTES` either way: what others hold
costs nobody a call that is small.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol
from urllib.parse import unquote

import trio

from hadron.doors.callers import who_calls
from hadron.doors.grpc.bridge import Lane
from hadron.doors.grpc.limits import SMALL_BYTES, WINDOW_BYTES, WINDOW_MESSAGES
from hadron.doors.grpc.statuses import Status, status_of
from hadron.doors.grpc.turns import Turns
from hadron.doors.held import Share
from hadron.model.errors import HadronError, OutcomeUnknownError, OverloadedError


class Other(Protocol):
    """gRPC's half."""

    def send(self, data: bytes) -> None: ...

    def finish(self, status: Status | None) -> None: ...

    def cut(self, status: Status) -> None:
        """Finish, and drop what is not sent."""


def _ignore(*_: object) -> None:
    pass


class Rpc:
    """One call. Who serves it sets the callbacks when it takes it up.

    Attributes:
        path: `/package.Service/Method`.
        left_s: when it came, until its deadline; None: it has none.
        on_message: the next message of the program.
        on_end: the program says nothing more.
        on_cancel: the call is over, and was not finished here: the program has gone, does not want
            it any more, or its deadline has passed.
        on_written: so many bytes were taken by the program's connection.
        on_drain: the node is about to stop, and the call may end in peace; None: it is told so, and
            has ended.
    """

    def __init__(
        self,
        lane: Lane,
        other: Other,
        path: str,
        metadata: Mapping[str, Any],
        peer: str,
        left_s: float | None = None,
        on_consumed: Callable[[int], None] | None = None,
    ) -> None:
        self._lane = lane
        self._other = other
        self.path = path
        self.metadata = metadata
        self.peer = peer
        self.left_s = left_s
        self._on_consumed = on_consumed
        self.share: Share | None = None
        self._window = WINDOW_BYTES
        self._unwritten = 0
        """Messages that the program has yet to take."""
        self._unread = 0
        """Bytes of what was said that are not dealt with."""
        self.is_finished = False
        self.on_message: Callable[[bytes], None] = _ignore
        self.on_end: Callable[[], None] = _ignore
        self.on_cancel: Callable[[], None] = _ignore
        self.on_written: Callable[[int], None] = _ignore
        self.on_over: Callable[[], None] = _ignore
        self.on_drain: Callable[[], None] | None = None

    @property
    def who(self) -> str:
        """Who calls, in words."""
        kind, _, address = self.peer.partition(":")
        address = unquote(address) if kind in ("ipv4", "ipv6") else self.peer
        return who_calls("gRPC", address, self.metadata.get("user-agent", ""))

    # --- said here ------------------------------------------------------------------------------

    def may_send(self, size: int) -> bool:
        """Whether so much may go before the program has read more. While the door has no room for
        it, little of a call is under way, and it is not ended for what its program has yet to
        read."""
        if self._unwritten >= WINDOW_MESSAGES:
            return False
        unwritten = WINDOW_BYTES - self._window
        if not unwritten or unwritten + size <= SMALL_BYTES:
            return True
        return self._window > 0 and (self.share is None or self.share.has_room(size, leaving=size))

    def send(self, data: bytes) -> None:
        """After it was finished, nothing happens. Ends it where the door holds too much: what was
        asked may be done by then, and is not said to be refused."""
        if self.is_finished:
            return
        try:
            self._hold_message(len(data), WINDOW_BYTES - self._window)
        except OverloadedError as error:
            lost = f"it may have been done, but its answer is dropped: {error.message}"
            self._cut(OutcomeUnknownError(lost, error.hint))
            return
        self._window -= len(data)
        self._unwritten += 1
        self._lane.put(self._other.send, data)

    def finish(self, status: Status | None = None) -> None:
        if not self.is_finished:
            self.is_finished = True
            self._lane.put(self._other.finish, status)

    def fail(self, error: HadronError) -> None:
        self.finish(status_of(error))

    def _cut(self, error: HadronError) -> None:
        """There is no room for it. What its program does not read would hold more for as long."""
        self.is_finished = True
        self._lane.put(self._other.cut, status_of(error))
        self.on_cancel()

    def consumed(self, size: int) -> None:
        """A message of the program was dealt with, of so many bytes."""
        self._unread -= size
        self.give(size)
        if self._on_consumed is not None:
            self._lane.put(self._on_consumed, size)

    # --- heard from gRPC's loop -----------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        if self.is_finished:
            return
        try:
            self._hold_message(len(data), self._unread)
        except OverloadedError as error:
            self._cut(error)
            return
        self._unread += len(data)
        self.on_message(data)

    def ended(self) -> None:
        if not self.is_finished:
            self.on_end()

    def written(self, size: int) -> None:
        self.give(size)
        self._window += size
        self._unwritten -= 1
        if not self.is_finished:
            self.on_written(size)

    def over(self) -> None:
        """gRPC has done with it."""
        if self.share is not None:
            self.share.end()
        if not self.is_finished:
            self.is_finished = True
            self.on_cancel()
        self.on_over()

    def _hold_message(self, size: int, before: int) -> None:
        """One more message, where so many bytes that went its way are held."""
        if before + size <= SMALL_BYTES and self.share is not None:
            self.share.take(size, anyway=True)
        else:
            self.hold(size)

    def hold(self, size: int) -> None:
        """So many bytes are kept for it. Raises `OverloadedError`."""
        if self.share is not None:
            # As much is left for others: who asks for little passes those who ask for much.
            self.share.take(size, leaving=size)

    def give(self, size: int) -> None:
        if self.share is not None:
            self.share.give(size)


class Talk:
    """The comfortable face of a call: for who serves it with a task."""

    def __init__(self, rpc: Rpc) -> None:
        self.rpc = rpc
        self._received: deque[bytes] = deque()
        self._ended = False
        self._news = trio.Event()
        self._room = trio.Event()
        self._turns = Turns()
        rpc.on_message = self._on_message
        rpc.on_end = self._on_end
        rpc.on_written = lambda _: self._room.set()
        rpc.on_over = lambda: self._room.set()

    def _on_message(self, data: bytes) -> None:
        self._received.append(data)
        self._news.set()

    def _on_end(self) -> None:
        self._ended = True
        self._news.set()

    @property
    def method(self) -> str:
        """Its name, for errors."""
        return self.rpc.path.rpartition("/")[2]

    async def receive(self) -> bytes | None:
        """The next message, which is dealt with at once; None after the last."""
        data = await self.take()
        if data is not None:
            self.rpc.consumed(len(data))
        return data

    async def take(self) -> bytes | None:
        """The same, to be dealt with later: it counts as held until `rpc.consumed` is told, or the
        call is over, and may keep the program waiting."""
        while not self._received:
            if self._ended:
                return None
            self._news = trio.Event()
            await self._news.wait()
        return self._received.popleft()

    async def send(self, data: bytes) -> None:
        """Waits for room before, and lets others go on; several tasks of the call may. Once it is
        over nothing happens."""
        await self._turns.step(len(data))
        while not self.rpc.may_send(len(data)) and not self.rpc.is_finished:
            if self._room.is_set():
                self._room = trio.Event()
            await self._room.wait()
        self.rpc.send(data)
