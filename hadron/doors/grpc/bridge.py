"""The one way between the node's event loop, trio's, and gRPC's, asyncio's, which is in a thread.

Whatever is said over it is done there in order, in that loop's own time. Neither loop touches what
the other one has. Who says several things in a row wakes the other loop once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import trio

_log = logging.getLogger(__name__)

_DONE_PER_TURN: Final = 64
"""Then the loop's other tasks have a turn."""


class Lane:
    """One direction. `put` from any thread, `drain` in the loop that does it.

    Args:
        wake: has that loop call `drain` soon; from any thread.
    """

    def __init__(self, wake: Callable[[Callable[[], None]], None]) -> None:
        self._wake = wake
        self._waiting: deque[Callable[[], Any]] = deque()
        self._is_woken = False

    def put(self, what: Callable[..., Any], *args: Any) -> None:
        self._waiting.append(partial(what, *args))
        if not self._is_woken:
            # Set by both sides without a lock: at worst the loop is woken for nothing.
            self._is_woken = True
            self._wake(self.drain)

    def drain(self) -> None:
        self._is_woken = False
        for _ in range(_DONE_PER_TURN):
            if not self._waiting:
                return
            try:
                self._waiting.popleft()()
            except Exception:
                # A defect, but of one call: the others go on.
                _log.exception("something that was said over the bridge failed")
        if self._waiting and not self._is_woken:
            self._is_woken = True
            self._wake(self.drain)


class Bridge:
    """Made in trio's loop; `to_grpc` may be used once the other one is known.

    Attributes:
        to_trio, to_grpc: what is put there is done in that loop.
    """

    def __init__(self) -> None:
        token = trio.lowlevel.current_trio_token()

        def wake_trio(drain: Callable[[], None]) -> None:
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(drain)

        self.to_trio = Lane(wake_trio)
        self.to_grpc: Lane

    def arrived(self, loop: asyncio.AbstractEventLoop) -> None:
        """gRPC's loop runs."""

        def wake_grpc(drain: Callable[[], None]) -> None:
            # It may have ended: nobody is left then to hear anything.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(drain)

        self.to_grpc = Lane(wake_grpc)
