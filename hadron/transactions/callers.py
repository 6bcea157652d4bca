"""Calls of clients. One call carries all transactions that a client drives at one leadership, which
are open at the same time; each message names its own.

Safety rule: a call's end is the end of what it has not asked to commit. What was cut off with it
(messages that were on their way, numbers that it had and did not use) is void: no later call can go
on with it, so nobody commits half of what another call has begun.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TypeAlias

from hadron.model.errors import HadronError
from hadron.transactions.effects import CallerJoined, CallerLeft, Event, Requested
from hadron.transactions.messages import Answer, Request

Step: TypeAlias = Callable[[Event], None]
SendAnswer: TypeAlias = Callable[[Answer], None]
EndCall: TypeAlias = Callable[[HadronError], None]


class Caller:
    """One call. `Callers.join` makes it; whoever has the wire calls `leave` when it ends."""

    __slots__ = ("_callers", "number")

    def __init__(self, callers: Callers, number: int) -> None:
        self._callers = callers
        self.number = number

    def receive(self, request: Request) -> None:
        """A message came. After the call's end it counts for nothing."""
        self._callers.step(Requested(self.number, request))

    def leave(self) -> None:
        """The call has ended, however."""
        self._callers.leave(self.number)


class Callers:
    """All calls of one leadership."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self._send: dict[int, SendAnswer] = {}
        self._end: dict[int, EndCall] = {}
        self._numbers = itertools.count(1)

    def join(self, send: SendAnswer, end: EndCall | None = None) -> Caller:
        """A call was opened; `send` takes answers to it, the first of which is its block of
        numbers. `end` ends it when leading ends."""
        caller = Caller(self, next(self._numbers))
        if end is not None:
            self._end[caller.number] = end
        self._send[caller.number] = send
        self.step(CallerJoined(caller.number))
        return caller

    def stop(self, reason: HadronError) -> None:
        """Leading ends: what a call was not answered, its client asks the next leader."""
        for end in list(self._end.values()):
            end(reason)

    def leave(self, number: int) -> None:
        self._end.pop(number, None)
        if self._send.pop(number, None) is not None:
            self.step(CallerLeft(number))

    def answer(self, number: int, answer: Answer) -> None:
        """Nobody is told whose call has ended: who asks for an outcome learns it."""
        send = self._send.get(number)
        if send is not None:
            send(answer)
