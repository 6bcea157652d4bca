"""A subscription to an exchange, as a program uses it."""

from __future__ import annotations

from typing import Any

from hadron.client.connecting.session import Session
from hadron.client.exchanges.attendance import Attendance
from hadron.client.exchanges.inbox import Inbox
from hadron.client.exchanges.message import Message
from hadron.client.terms.opening import AsyncLoop, EnteredOnce
from hadron.model.errors import ClosedError


class Messages(EnteredOnce, AsyncLoop):
    """Messages of an exchange. Made by `Exchange.subscribe`, used inside its block.

    Iterate it: `async for message in messages`. What the program does not take waits here, within
    the subscription's bound; beyond it messages are dropped, and the next one says how many
    (`missed`). When the leader was away, the next one is `interrupted`. The loop ends when the
    client is closed; it raises what ends the subscription for good, as the exchange's deletion.
    """

    def __init__(self, session: Session, attendance: Attendance, inbox: Inbox) -> None:
        self._session = session
        self._attendance = attendance
        self._inbox = inbox

    def __repr__(self) -> str:
        return f"<Messages {self}>"

    def __str__(self) -> str:
        inbox = self._inbox
        state = "closed" if inbox.is_closed else f"{inbox.missed} missed"
        group = f", group {inbox.group!r}" if inbox.group else ""
        return f"of {self._attendance.item.name!r}, {', '.join(inbox.patterns)}{group}, {state}"

    @property
    def missed(self) -> int:
        """Messages that it has not got so far, as far as that is known."""
        return self._inbox.missed

    @property
    def interruptions(self) -> int:
        """How often it was not subscribed for a while."""
        return self._inbox.interruptions

    def __aiter__(self) -> Messages:
        return self

    async def __anext__(self) -> Message:
        # Most are here already, and each call that is saved counts.
        message = self._inbox.take_now() or await self._wait()
        if message is None:
            raise StopAsyncIteration
        return message

    async def _wait(self) -> Message | None:
        self._session.check_process()
        return await take_one(self)

    async def __aenter__(self) -> Messages:
        self._enter("subscription")
        return self

    async def __aexit__(self, *exc_info: Any) -> None:
        self._attendance.remove(self._inbox)


async def take_one(messages: Messages) -> Message | None:
    """The next one; None once the subscription or the client is closed."""
    session = messages._session
    try:
        return await messages._inbox.take()
    except ClosedError:
        if session.closed is None:
            raise
        session.check_end()
        return None


def take_ready(messages: Messages, limit: int) -> list[Message]:
    """Those that are here, for who hands them over together."""
    found: list[Message] = []
    while len(found) < limit:
        message = messages._inbox.take_now()
        if message is None:
            break
        found.append(message)
    return found
