"""That a node is about to stop, for who waits until then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import trio


class Draining:
    """Of a door, or of the connections to it.

    Attributes:
        has_begun: nobody waits for anything new any more.
    """

    def __init__(self) -> None:
        self.has_begun = False
        self._waiting: set[trio.CancelScope] = set()

    @contextmanager
    def until(self) -> Iterator[trio.CancelScope]:
        """This block is left once it begins."""
        with trio.CancelScope() as scope:
            self._waiting.add(scope)
            if self.has_begun:
                scope.cancel()
            try:
                yield scope
            finally:
                self._waiting.discard(scope)

    def begin(self) -> None:
        self.has_begun = True
        for scope in self._waiting:
            scope.cancel()
