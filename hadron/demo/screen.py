"""What the demo shows while it works: bars on a terminal, plain lines into a pipe or a log."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

_LOG_WIDTH: Final = 120
_STEPS: Final = 4
"""Lines per bar when there is no terminal: one a quarter."""


def _console() -> Console:
    """On stdout; into a pipe or a log, as wide as the demo's table."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else _LOG_WIDTH)


class Screen:
    """Steps as lines, counts as bars. A context manager; use it from one thread."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or _console()
        self._started = time.monotonic()
        self._bars = Progress(
            TextColumn("  {task.description:<18}"),
            BarColumn(40),
            MofNCompleteColumn(),
            console=self.console,
            transient=False,
            disable=not self.console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._shown: dict[str, int] = {}

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def say(self, text: str) -> None:
        """One line about what was done, with the seconds since the start."""
        seconds = time.monotonic() - self._started
        self.console.print(f"[dim]{seconds:5.1f} s[/dim]  {text}", soft_wrap=True)

    def count(self, name: str, done: int, total: int) -> None:
        """Show that `done` of `total` are done; the bar appears with the first call."""
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=total)
            self._shown[name] = 0
        self._bars.update(self._tasks[name], completed=done)
        step = _STEPS * done // total
        if not self.console.is_terminal and step > self._shown[name]:
            self.say(f"{name}: {done:,} of {total:,}")
        self._shown[name] = max(step, self._shown[name])
