"""A block that SIGTERM and SIGHUP end as Ctrl-C does: what it has started and written goes with it.

Without that whoever is ended by a signal other than Ctrl-C's would leave processes behind, and
gigabytes in the directory for temporary files.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
"""Of somebody else, and of a terminal that is closed."""
_AGAIN_S: Final = 0.01


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """End the block at the first SIGTERM or SIGHUP, with the status that shells give these signals;
    later ones change nothing. With `nohup` hangups stay ignored."""
    if threading.current_thread() is not threading.main_thread():
        # Nobody else may handle them.
        yield
        return
    received: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        if received:
            # What was started is being stopped: leave it the seconds that this takes.
            return
        received.append(number)
        interrupt = signal.getsignal(signal.SIGINT)
        if callable(interrupt):
            # trio's waits until what it runs may be interrupted.
            interrupt(signal.SIGINT, frame)
        else:
            # In the background of a script, where Ctrl-C is for others.
            raise KeyboardInterrupt

    def report(unraisable: sys.UnraisableHookArgs) -> None:
        if not (received and issubclass(unraisable.exc_type, KeyboardInterrupt)):
            hook_before(unraisable)
            return
        # It came while a finalizer or the callback of a weak reference ran (an import has them),
        # out of which Python raises nothing: once more, when that is over.
        main_thread = threading.get_ident()
        threading.Timer(_AGAIN_S, signal.pthread_kill, (main_thread, received.pop())).start()

    hook_before = sys.unraisablehook
    before = {number: signal.getsignal(number) for number in _ENDING}
    sys.unraisablehook = report
    try:
        for number, handler in before.items():
            # nohup has SIGHUP ignored, and means it.
            if handler != signal.SIG_IGN:
                signal.signal(number, end)
        yield
    except BaseException:
        if received:
            raise SystemExit(128 + received[0]) from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = hook_before
