"""What has arrived for one subscription and waits for the program, within bounds.

What has no room is dropped, counted, and told with the next message that is handed out. Nobody else
waits for a program that does not take its messages: the connection is read on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import anyio

from hadron.client.connecting.session import Session
from hadron.client.exchanges.message import ArrivedBatch, Message
from hadron.model.errors import HadronError, OverloadedError
from hadron.model.words import counted

MESSAGE_OVERHEAD_BYTES: Final = 100
"""What a message counts beside its share of its batch."""

CUT_S: Final = 30.0
"""A subscription from which nothing was taken for so long, while messages were dropped, ends: it
was forgotten, mostly."""

_TELL_EACH: Final = 1_000
"""Dropped messages that the leader is told of together, at most, while they go on."""


class Inbox:
    """Attributes:
    missed: messages that it has not got, in all.
    interruptions: how often it was not subscribed for a while.
    """

    def __init__(
        self,
        id: int,
        patterns: Sequence[str],
        group: str,
        max_bytes: int,
        session: Session,
        on_dropped: Callable[[Inbox, int], None],
    ) -> None:
        self.id = id
        self.patterns = patterns
        self.group = group
        self.confirmed = anyio.Event()
        self.is_confirmed = False
        """By the leader, on the call that is open."""
        self.failure: HadronError | None = None
        self.is_closed = False
        self.missed = 0
        self.interruptions = 0
        self._max_bytes = max_bytes
        self._session = session
        self._on_dropped = on_dropped
        self._held_bytes = 0
        self._parcels: deque[tuple[ArrivedBatch, int, int, int, int, bool]] = deque()
        self._messages: Iterator[Message] = iter(())
        self._untold = 0
        self._gap = 0
        self._was_interrupted = False
        self._unread_since: float | None = None
        self._news: anyio.Event | None = None

    # --- what comes in --------------------------------------------------------------------------

    def push(self, batch: ArrivedBatch, first: int, last: int, share: int) -> None:
        """`share`: bytes of the batch for each of these messages."""
        count = last - first + 1
        size = count * (share + MESSAGE_OVERHEAD_BYTES)
        if self._held_bytes and self._held_bytes + size > self._max_bytes:
            self._drop(count)
            return
        self._held_bytes += size
        self._parcels.append((batch, first, last, size, self._gap, self._was_interrupted))
        self._gap, self._was_interrupted = 0, False
        if self._news is not None:
            self._notify()

    def _drop(self, count: int) -> None:
        now = self._session.ports.clock.monotonic_s()
        if self._unread_since is None:
            self._unread_since = now
        elif now - self._unread_since >= CUT_S:
            self.fail(
                OverloadedError(
                    f"the subscription to {', '.join(self.patterns)} has dropped "
                    f"{counted(self.missed + count, 'message')}, nothing was taken from it for "
                    f"{CUT_S:g} s",
                    "take messages as they come, or leave the subscription's block",
                    retryable=False,
                )
            )
        self.lack(count)
        self._untold += count
        if self._untold >= _TELL_EACH:
            self._tell()

    def lack(self, count: int) -> None:
        """So many messages have not come, or had no room."""
        self._gap += count
        self.missed += count

    def interrupt(self) -> None:
        """It is not subscribed any more, and will be again."""
        if self.is_confirmed:
            self.is_confirmed = False
            self._was_interrupted = True
            self.interruptions += 1

    def confirm(self) -> None:
        self.is_confirmed = True
        self.confirmed.set()

    def fail(self, error: HadronError) -> None:
        """Nothing more comes; what is here is handed out first."""
        if self.failure is None:
            self.failure = error
        self.confirmed.set()
        self._notify()

    def close(self) -> None:
        """The program wants nothing any more."""
        self.is_closed = True
        self._parcels.clear()
        self._messages = iter(())
        self._notify()

    def _tell(self) -> None:
        count, self._untold = self._untold, 0
        self._on_dropped(self, count)

    def _notify(self) -> None:
        if self._news is not None:
            self._news.set()
            self._news = None

    # --- what goes out --------------------------------------------------------------------------

    def take_now(self) -> Message | None:
        """The next message if one is here. Raises `CorruptionError`."""
        self._unread_since = None
        for message in self._messages:
            return message
        while self._parcels:
            batch, first, last, size, missed, interrupted = self._parcels.popleft()
            self._held_bytes -= size
            if self._untold:
                self._tell()
            messages = batch.messages()
            if missed or interrupted:
                self._messages = iter(messages[first + 1 : last + 1])
                one = messages[first]
                return Message(one._record, one._topic, missed, interrupted)
            self._messages = (
                iter(messages)
                if last - first + 1 == len(messages)
                else iter(messages[first : last + 1])
            )
            for message in self._messages:
                return message
        return None

    async def take(self) -> Message | None:
        """The next message; None once it was closed. Raises what ended it for good, or the
        client."""
        while True:
            message = self.take_now()
            if message is not None or self.is_closed:
                return message
            if self.failure is not None:
                raise self.failure
            if self._news is None:
                self._news = anyio.Event()
            await self._session.wait(self._news)
