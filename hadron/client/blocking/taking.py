"""What a program's threads take one after the other of something in the loop.

Rule: what the loop has given is kept until the thread has it. Ctrl-C may come between the two, and
what was on its way comes next then. *(A program that catches it and reads on misses a whole span of
records, and nothing says so.)*
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar, cast

from hadron.client.blocking.portal import Portal

T = TypeVar("T")


class Taking(Generic[T]):
    """
    Args:
        following: gives the next one, in the loop; who gives up waiting for it takes nothing away.
    """

    def __init__(self, portal: Portal, following: Callable[[], Awaitable[T]]) -> None:
        self._portal = portal
        self._following = following
        self._handed: dict[int, T] = {}
        """On its way, by the thread that asked: several may wait at the same time."""

    def take(self) -> T:
        """The next one. Raises what came of it, and the portal's refusal."""
        thread = threading.get_ident()
        taken = cast(T, self._portal.call(self._hand, thread))
        self._handed.pop(thread, None)
        return taken

    def drop(self) -> None:
        """Nobody wants what is on its way."""
        self._handed.clear()

    async def _hand(self, thread: int) -> T:
        if thread not in self._handed:
            self._handed[thread] = await self._following()
        return self._handed[thread]
