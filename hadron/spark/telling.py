"""What a micro-batch says at its end, which may be thousands of calls.

They go together, and nobody else is given meanwhile what they are about (PIPELINES P8).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import trio

_BEGIN_EVERY_S: Final = 0.5
"""Below the time that a leader adds to a timeout."""

_AT_A_TIME: Final = 32
"""Calls. A leader commits what comes together at once, so that each costs a part of a flush."""


async def say(begin: Callable[[], None], calls: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Make these calls, some at a time, from the first one on. `begin` is called now, and again
    until all have ended. Raises what the first one raises that does; no others begin then."""
    left = iter(calls)
    failures: list[Exception] = []

    async def work() -> None:
        for call in left:
            try:
                await call()
            except Exception as error:
                failures.append(error)
            if failures:
                return

    async def tell() -> None:
        while True:
            begin()
            await trio.sleep(_BEGIN_EVERY_S)

    async with trio.open_nursery() as telling:
        telling.start_soon(tell)
        async with trio.open_nursery() as working:
            for _ in range(_AT_A_TIME):
                working.start_soon(work)
        telling.cancel_scope.cancel()
    if failures:
        # Out of the nursery, which would wrap it.
        raise failures[0]
