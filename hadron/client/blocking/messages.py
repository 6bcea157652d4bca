"""What is behind a blocking subscription to an exchange: messages cross threads many at a time."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Final, Self

from hadron.client.blocking.bases import OpenedBase
from hadron.client.blocking.portal import Portal
from hadron.client.blocking.taking import Taking
from hadron.client.exchanges.message import Message
from hadron.client.exchanges.messages import Messages, take_one, take_ready
from hadron.client.terms.ending import Ending
from hadron.model.errors import ClosedError, ForkedError

_AT_ONCE: Final = 100
"""Messages that cross together: a crossing takes as long as fifty are worth."""


class MessageFlow:
    """What is open of a blocking subscription."""

    def __init__(self, portal: Portal, messages: Messages) -> None:
        self._portal = portal
        self.messages = messages
        self._here: deque[Message] = deque()
        self._taking = Taking(portal, self._take)

    def next(self) -> Message | None:
        try:
            return self._here.popleft()
        except IndexError:
            pass
        try:
            found = self._taking.take()
        except ForkedError:
            raise
        except ClosedError:
            return None
        if not found:
            return None
        self._here.extend(found[1:])
        return found[0]

    async def _take(self) -> list[Message]:
        first = await take_one(self.messages)
        return [] if first is None else [first, *take_ready(self.messages, _AT_ONCE - 1)]

    def __str__(self) -> str:
        return str(self.messages)

    def finish(self, _ending: Ending) -> None:
        self._here.clear()
        with suppress(ClosedError):
            self._portal.call(self.messages.__aexit__, None, None, None)

    def forked(self) -> None:
        """In a child process: what came is the parent's, and the calls refuse by themselves."""
        self._here.clear()


class MessagesBase(OpenedBase[MessageFlow]):
    """Messages of an exchange. Made by `SyncExchange.subscribe`; used in a `with` block, or without
    one and closed with `close`, with its client, or when the program ends. The loop ends when it or
    the client is closed, by whatever thread."""

    _core = MessageFlow

    @property
    def missed(self) -> int:
        """Messages that it has not got so far, as far as that is known."""
        return self._lazy.get().messages.missed

    @property
    def interruptions(self) -> int:
        """How often it was not subscribed for a while."""
        return self._lazy.get().messages.interruptions

    def close(self) -> None:
        """Be subscribed no more."""
        self._lazy.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        flow = None if self._lazy.is_closed else self._lazy.get()
        message = flow.next() if flow is not None else None
        if message is None:
            raise StopIteration
        return message
