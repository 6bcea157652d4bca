"""What transactions need of the leadership that they are a part of, and of those of other sets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from hadron.model.ids import Ballot
from hadron.model.ports import Database
from hadron.partition.submission import Done
from hadron.state.machine import Command
from hadron.transactions.messages import Message

T = TypeVar("T")


class Log(Protocol):
    """The log of the own replica set under one ballot: `partition.controller.Controller`."""

    @property
    def ballot(self) -> Ballot: ...

    @property
    def leads(self) -> bool:
        """Whether this leadership has not ended: until then an error that `submit` answers is a
        refusal, and nothing was logged; afterwards nobody here knows."""
        ...

    def submit(self, command: Command, body: bytes | memoryview = b"", *, done: Done) -> None:
        """Log a command; `done(result, error)` is called once, when that may be told."""
        ...

    async def execute(self, command: Command[T]) -> T:
        """Log a command and wait for its result; raises its refusal."""
        ...

    async def query(self, read: Callable[[Database], T]) -> T:
        """Read tables; returns once all that was read is committed (PROTOCOL A2)."""
        ...

    async def confirm_leadership(self) -> None:
        """Returns once a majority has followed this ballot after this was called."""
        ...

    def log_now_ms(self) -> int:
        """The clock of the log."""
        ...


class Leaders(Protocol):
    """The leaders of the other replica sets of the cluster."""

    def knows(self, replica_set: str) -> bool:
        """Whether there is a replica set with this name."""
        ...

    def send(self, replica_set: str, message: Message) -> None:
        """Send to whoever leads there. It may be lost, late, doubled and overtaken; whoever finds
        out that the leader cannot be reached says so to `Transactions.unanswered`."""
        ...
