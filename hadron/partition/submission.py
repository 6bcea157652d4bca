"""One command on its way into the log, and who is to be told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hadron.model.errors import HadronError
from hadron.state.execute import Outcome
from hadron.state.machine import Command, Event, encode

Done = Callable[[Any, HadronError | None], None]


class Submission:
    """One command on its way: what to log, and whom to tell."""

    __slots__ = (
        "acks",
        "body",
        "command",
        "done",
        "encoded",
        "error",
        "events",
        "is_patient",
        "logged",
        "lsn",
        "result",
        "size",
    )

    def __init__(
        self,
        command: Command,
        body: bytes | memoryview,
        acks: int,
        done: Done,
        *,
        is_patient: bool = False,
    ) -> None:
        self.command = command
        self.encoded = encode(command)
        self.body = body
        self.size = len(self.encoded) + len(body) + 64
        self.acks = acks
        self.done = done
        self.is_patient = is_patient
        self.lsn = 0
        """Where it was logged; for a refusal or a repetition, the log's end when it was judged."""
        self.logged = False
        self.result: Any = None
        self.events: Sequence[Event] = ()
        self.error: HadronError | None = None

    def judge(self, outcome: Outcome, lsn: int) -> None:
        """Take what the command came to; `lsn` is the entry's, or the log's end without one. Its
        `size` stays what was counted."""
        self.result, self.error, self.events = outcome.result, outcome.error, outcome.events
        self.lsn = lsn
        self.logged = outcome.command is not None
        self.encoded = self.body = b""

    def shown(self) -> Sequence[Event]:
        """Let its events go, which have its body, to whom they become visible to, and its command:
        its answer may have to wait, for as long as a member is away; its bytes need not."""
        events, self.events = self.events, ()
        del self.command
        return events
