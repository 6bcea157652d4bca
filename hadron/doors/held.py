"""What a door holds for strangers: a bound for all of them together, and each one's share of it.

Safety rule: a share is given back as a whole when what it was for is over, whatever else happened.
"""

from __future__ import annotations

import math

from hadron.model.errors import OverloadedError


class Held:
    """So many bytes of one kind.

    Args:
        what: of which they are, where; for errors.
        hint: what who is refused may do.
        small_bytes: so many more for what is taken `anyway`; without limit where each share
            is bounded.
    """

    def __init__(
        self, max_bytes: int, what: str, hint: str, *, small_bytes: float = math.inf
    ) -> None:
        self.bytes = 0
        self._max_bytes = max_bytes
        self._small_bytes = small_bytes
        self._what = what
        self._hint = hint

    def take(self, size: int, *, leaving: int = 0, anyway: bool = False) -> None:
        """One has room, however large it is, where nothing else is held. Raises
        `OverloadedError` where so much is not left over."""
        if not self.has_room(size, leaving, anyway=anyway):
            raise OverloadedError(
                f"{self.bytes} bytes of {self._what} are held, and {size} more are over its limit "
                f"of {self._max_bytes}",
                self._hint,
            )
        self.bytes += size

    def has_room(self, size: int, leaving: int = 0, *, anyway: bool = False) -> bool:
        most = self._max_bytes + self._small_bytes if anyway else self._max_bytes - leaving
        return not self.bytes or not size or self.bytes + size <= most

    def share(self) -> Share:
        return Share(self)


class Share:
    """What one call has of it.

    Attributes:
        bytes: so many now.
    """

    def __init__(self, held: Held) -> None:
        self._held = held
        self._is_over = False
        self.bytes = 0

    def has_room(self, size: int, *, leaving: int = 0) -> bool:
        """Whether `take` takes it."""
        return self._is_over or self._held.has_room(size, leaving)

    def take(self, size: int, *, leaving: int = 0, anyway: bool = False) -> None:
        """Raises `OverloadedError`; `anyway` is for what is so small that it has room of its
        own."""
        if self._is_over:
            return
        self._held.take(size, leaving=leaving, anyway=anyway)
        self.bytes += size

    def give(self, size: int) -> None:
        if not self._is_over:
            self._held.bytes -= size
            self.bytes -= size

    def end(self) -> None:
        """It is over: nothing is held for it any more, nor will be."""
        self.give(self.bytes)
        self._is_over = True
