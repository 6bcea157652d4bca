"""What people must know while it is so: said once in the log, and told until nobody meets it.

Pure. Who makes a trouble may be a stranger, and may do so again and again: how many stand, how long
each is, and what the log gets of them in a minute have bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_TOLD_FOR_S: Final = 60.0
"""How long a trouble stands after it was last met: nodes speak every 10 s."""
_MAX_TROUBLES: Final = 64
_MAX_CHARS: Final = 4_000
"""Of one. Two sets with all the nodes that they may have, at usual addresses, take 3,000."""
_MAX_LINES: Final = 64
"""In the log, in `_LINES_WITHIN_S`."""
_LINES_WITHIN_S: Final = 60.0


class Troubles:
    """Of one kind, each with a key of its own.

    Args:
        warn: writes a line into the log.
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._standing: dict[str, tuple[str, float]] = {}
        """Who was met last is last."""
        self._lines = self._unsaid = 0
        self._since_s = float("-inf")

    def meet(self, key: str, text: str, now_s: float) -> None:
        """Log it unless it stands already, and keep it standing."""
        text = _cut(text)
        before, until_s = self._standing.pop(key, ("", now_s))
        if before != text or until_s <= now_s:
            self.log(text, now_s)
        self._standing[key] = text, now_s + _TOLD_FOR_S
        while len(self._standing) > _MAX_TROUBLES:
            del self._standing[next(iter(self._standing))]

    def log(self, text: str, now_s: float) -> None:
        """A line in the log; beyond as many as there may be, how many more there were."""
        if now_s - self._since_s >= _LINES_WITHIN_S:
            if self._unsaid:
                self._warn(f"{self._unsaid} more warnings like these were not written down")
            self._lines = self._unsaid = 0
            self._since_s = now_s
        if self._lines < _MAX_LINES:
            self._lines += 1
            self._warn(_cut(text))
        else:
            self._unsaid += 1

    def forget(self, key: str) -> None:
        """It is over."""
        self._standing.pop(key, None)

    def standing(self, now_s: float) -> list[str]:
        """In words, the one that was met last at the end."""
        kept = {key: each for key, each in self._standing.items() if each[1] > now_s}
        self._standing = kept
        return [text for text, _ in kept.values()]


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else f"{text[: _MAX_CHARS - 3]}..."
