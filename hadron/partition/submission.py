"""One command on its way into the log, and who is to be told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hadron.model.errors import HadronError
from hadron.state import machine

Done = Callable[[Any, HadronError | None], None]


class Submission:
    """One command on its way: what to log, and whom to tell."""

    __slots__ = (
        "acks", "body", "command", "done", "encoded", "error", "logged", "lsn", "result",
        "size",
    )

    def __init__(
        self, command: machine.Command, body: bytes | memoryview, acks: int, done: Done
    ) -> None:
        self.command = command
        self.encoded = machine.encode(command)
        self.body = body
        self.size = len(self.encoded) + len(body) + 64
        self.acks = acks
        self.done = done
        self.lsn = 0
        """Where it was logged; for a refusal or a repetition, the log's end when it was judged."""
        self.logged = False
        self.result: Any = None
        self.error: HadronError | None = None

    def seal(self, context: machine.Context) -> None:
        """Complete the command from the tables that it meets. Its `size` stays what was counted."""
        sealed = machine.seal(context, self.command)
        if sealed is not self.command:
            self.command, self.encoded = sealed, machine.encode(sealed)
