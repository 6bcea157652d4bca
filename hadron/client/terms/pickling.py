"""What belongs to a client stays in its process."""

from __future__ import annotations

from typing import NoReturn


class Unpicklable:
    """Says so to whoever hands it to another process, as a pool's `map` does."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a client, and what was made by it, cannot be pickled, and so not be given to another "
            "process: connect there, or keep the client in a module that both import"
        )
