"""What is looked up first and then entered: `async with client.producer(...) as producer`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar


class Enterable(Protocol):
    """An async context manager that gives itself."""

    async def __aenter__(self) -> Any: ...

    async def __aexit__(self, kind: Any, error: Any, traceback: Any, /) -> None: ...


T = TypeVar("T", bound=Enterable)


class Opening(Generic[T]):
    """An async context manager around something that is made when the block is entered."""

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self._make = make
        self._made: T | None = None

    async def __aenter__(self) -> T:
        made = await self._make()
        await made.__aenter__()
        self._made = made
        return made

    async def __aexit__(self, kind: Any, error: Any, traceback: Any) -> None:
        made = self._made
        assert made is not None
        await made.__aexit__(kind, error, traceback)
