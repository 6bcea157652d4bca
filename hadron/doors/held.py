"""What a door holds for strangers: a bound for all of them together, and each one's share of it.

Safety rule: a share is given back as a whole when what it was for is over, whatever else happened.
"""

from __future__ import annotations

from hadron.model.errors import OverloadedError


class Held:
    """So many bytes of one kind.

    Args:
        what: of which they are, where; for errors.
        hint: what who is refused may do.
    """

    def __init__(self, max_bytes: int, what: str, hint: str) -> None:
        self.bytes = 0
        self._max_bytes = max_bytes
        self._what = what
        self._hint = hint

    def take(self, size: int, *, leaving: int = 0, anyway: bool = False) -> None:
        """One has room, however large it is, where nothing else is held. Raises
        `OverloadedError` where so much is not left over; what is taken `anyway` has as much room
        again: requests of HTTP/2 may be many."""
        max_bytes = 2 * self._max_bytes if anyway else self._max_bytes - leaving
        if self.bytes and size and self.bytes + size > max_bytes:
            raise OverloadedError(
                f"{self.bytes} bytes of {self._what} are held, and {size} more are over its limit "
                f"of {self._max_bytes}",
                self._hint,
            )
        self.bytes += size

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

    def take(self, size: int, *, leaving: int = 0, anyway: bool = False) -> None:
        """Raises `OverloadedError`; `anyway` is for what is so small that others are in its way
        only where there is twice as much."""
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
