"""What happened in a simulated world, in order: a hash over all of it, and a log for people.

The hash covers every frame sent, every write and sync, every fault and every step of a task, with
the simulated time of each. Two runs of one seed must agree on it; if they do not, something that
is not the seed decided, and no failing seed could be replayed.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from typing import Final

import xxhash

_HEAD: Final = struct.Struct("<Bdq")
_STEP: Final = struct.Struct("<Bdq")

STEP: Final = 1
SEND: Final = 2
WRITE: Final = 3
SYNC: Final = 4
TRUNCATE: Final = 5
EVENT: Final = 6

_KEPT_LINES: Final = 400


class Trace:
    """Collects one run's events.

    Args:
        now_s: the simulated time.
        show: told every line of the log as it is made, for `--replay`.
    """

    def __init__(
        self, now_s: Callable[[], float] = lambda: 0.0, show: Callable[[str], None] | None = None
    ) -> None:
        self.now_s = now_s
        self._show = show
        self._hash = xxhash.xxh3_128()
        self._private = b"\0\0no such bytes\0\0"
        self.events = 0
        self.lines: deque[str] = deque(maxlen=_KEPT_LINES)

    @property
    def is_shown(self) -> bool:
        """Whether somebody reads along: details that cost time are worth it then."""
        return self._show is not None

    def hide(self, text: str) -> None:
        """Leave `text`, the name of a temporary directory, out of the hash: it differs by run."""
        self._private = text.encode()

    def is_hiding(self, data: bytes) -> bool:
        """Whether a part of `data` is left out of the hash."""
        return self._private in data

    def step(self, task: int) -> None:
        """A task runs."""
        self.events += 1
        self._hash.update(_STEP.pack(STEP, self.now_s(), task))

    def note(self, kind: int, where: str, number: int, data: bytes = b"") -> None:
        """Something that a node or the network did; `number` is an offset, a size or a port."""
        self.events += 1
        update = self._hash.update
        update(_HEAD.pack(kind, self.now_s(), number))
        update(where.encode())
        update(data.replace(self._private, b"$"))

    def log(self, text: str) -> None:
        """A main event, for people; part of the hash."""
        self.note(EVENT, "", 0, text.encode())
        self.remark(text)

    def remark(self, text: str) -> None:
        """A detail for people, not part of the hash."""
        line = f"{self.now_s():12.6f}  {text}"
        self.lines.append(line)
        if self._show is not None:
            self._show(line)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()
