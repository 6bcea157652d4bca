"""How long a measurement waits for what others do: not for ever, as a full disk would have it.

What takes its time is waited for as long as it gets on; what does not is told with what there was.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

import anyio

from hadron.model.errors import DeadlineExceededError

STALLED_S: Final = 60.0
"""What has not got on for so long is not slow but stuck."""

_LOOK_EVERY_S: Final = 0.02
_HINT: Final = "is the disk full, or the machine busy?"


async def reached(
    what: str, wanted: int, seen: Callable[[], Awaitable[int]], stalled_s: float = STALLED_S
) -> None:
    """Wait until `seen` gives so many. Raises `DeadlineExceededError` when they have not become
    more for `stalled_s`."""
    most, deadline = -1, anyio.current_time() + stalled_s
    while most < wanted:
        with anyio.move_on_at(deadline):
            now = await seen()
            if now > most:
                most, deadline = now, anyio.current_time() + stalled_s
            await anyio.sleep(_LOOK_EVERY_S if now < wanted else 0)
        if most < wanted and anyio.current_time() >= deadline:
            raise DeadlineExceededError(
                f"{max(most, 0):,} of {wanted:,} {what}, and no progress for {stalled_s:g} s", _HINT
            )


@contextmanager
def within(seconds: float, what: str, hint: str = _HINT) -> Iterator[None]:
    """Raises `DeadlineExceededError` where the block takes longer."""
    with anyio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise DeadlineExceededError(f"{what} took more than {seconds:g} s", hint)
