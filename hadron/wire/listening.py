"""Whether what comes on a connection is being read: who is not listened to is not silent."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import anyio


class Listening:
    """Of one connection."""

    def __init__(self) -> None:
        self._deaf_s = 0.0
        self._since_s: float | None = None
        """When nobody listened any more; None while somebody does."""

    @property
    def is_deaf(self) -> bool:
        return self._since_s is not None

    @property
    def deaf_s(self) -> float:
        """Seconds, in all, for which nobody listened."""
        if self._since_s is None:
            return self._deaf_s
        return self._deaf_s + anyio.current_time() - self._since_s

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Nobody listens inside."""
        self._since_s = anyio.current_time()
        try:
            yield
        finally:
            self._deaf_s, self._since_s = self.deaf_s, None
