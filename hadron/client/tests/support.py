"""How the client's tests run under both event loops, and wait for conditions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from hadron.client import Client, connect
from hadron.client.tests.fake_node import FakeNode

LIMIT_S = 20.0
"""No test takes a second; this one only says where it hangs."""


class HandClock:
    """`ports.Clock` that stands where the test puts it."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def now_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic_s(self) -> float:
        return self.now_s


def both(test: Callable[[], Awaitable[None]]) -> Callable[[str], None]:
    """Run an async test under trio and under asyncio."""

    async def bounded() -> None:
        with anyio.fail_after(LIMIT_S):
            await test()

    @pytest.mark.parametrize("backend", ["trio", "asyncio"])
    def run(backend: str) -> None:
        anyio.run(bounded, backend=backend)

    # Not functools.wraps: pytest would look at the wrapped function's signature.
    for name in ("__name__", "__doc__", "__module__", "__qualname__"):
        setattr(run, name, getattr(test, name))
    return run


@asynccontextmanager
async def served(
    node: FakeNode | None = None, **options: Any
) -> AsyncIterator[tuple[FakeNode, Client]]:
    """A fake node and a client of it."""
    node = node or FakeNode()
    async with node.listen() as url, connect(url, **options) as client:
        yield node, client


async def until(condition: Callable[[], bool]) -> None:
    """Wait until `condition()` holds."""
    while not condition():  # noqa: ASYNC110 - what is waited for happens in a fake node
        await anyio.sleep(0.001)


async def start(
    tasks: anyio.abc.TaskGroup, function: Callable[..., Awaitable[Any]], *args: Any
) -> list[Any]:
    """Run a call as a task; its result or its error appears in the returned list."""
    outcome: list[Any] = []

    async def run() -> None:
        try:
            outcome.append(await function(*args))
        except Exception as error:
            outcome.append(error)

    tasks.start_soon(run)
    await anyio.lowlevel.checkpoint()
    return outcome


__all__ = ["LIMIT_S", "HandClock", "both", "served", "start", "until"]
