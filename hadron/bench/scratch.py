"""Where a measurement keeps its cluster's files: gone when it ends, whoever ends it.

Without that a measurement that was ended by a signal other than Ctrl-C's would leave gigabytes in
the directory for temporary files.
"""

from __future__ import annotations

import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
"""Of somebody else, and of a terminal that is closed."""


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory for this block, which SIGTERM and SIGHUP end as Ctrl-C does, with the status that
    shells give these signals."""
    with _ended_by_signals(), tempfile.TemporaryDirectory(prefix="hadron-bench-") as directory:
        yield Path(directory)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        # Nobody else may handle them.
        yield
        return
    received: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        if received:
            # The cluster is being stopped: leave it the seconds that this takes.
            return
        received.append(number)
        interrupt = signal.getsignal(signal.SIGINT)
        if callable(interrupt):
            # trio's waits until what it runs may be interrupted.
            interrupt(signal.SIGINT, frame)
        else:
            # In the background of a script, where Ctrl-C is for others.
            raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in _ENDING}
    for number, handler in before.items():
        # nohup has SIGHUP ignored, and means it.
        if handler != signal.SIG_IGN:
            signal.signal(number, end)
    try:
        yield
    except BaseException:
        if received:
            raise SystemExit(128 + received[0]) from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
