"""What is looked up first and then entered: `async with client.producer(...) as producer`.

Forgetting to enter is what people do first, so it is told in words wherever it shows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, Protocol, TypeVar

from hadron.client.terms.pickling import Unpicklable
from hadron.model.errors import ClosedError, RequestError


class Enterable(Protocol):
    """An async context manager that gives itself."""

    async def __aenter__(self) -> Any: ...

    async def __aexit__(self, kind: Any, error: Any, traceback: Any, /) -> None: ...


T = TypeVar("T", bound=Enterable)

NOT_OPEN: Final = "not open yet"
"""How what was not entered or used shows itself."""


class EnteredOnce(Unpicklable):
    """What is opened by entering it: a second block inside would close it under the first."""

    _is_entered = False

    def _enter(self, what: str) -> None:
        if self._is_entered:
            raise entered_twice(what)
        self._is_entered = True


def entered_twice(what: str) -> RequestError:
    return RequestError(
        f"the {what} has been opened by an `async with` already",
        "leave that block out, or make another one for it",
    )


_BLOCKING: Final = "or take the blocking client: `with hadron.connect_sync(...)`"


class AsyncLoop:
    """What `for` and `await` are told where `async for` is meant."""

    if not TYPE_CHECKING:

        def __iter__(self) -> NoReturn:
            raise RequestError(
                "`for` does not wait for what belongs to an event loop",
                f"write `async for`, {_BLOCKING}",
            )

        def __await__(self) -> NoReturn:
            raise RequestError(
                "`await` waits for one result, and these come one after the other",
                "write `async for ... in`, or `[each async for each in ...]` for a list of all",
            )


class AsyncOnly(Unpicklable):
    """What `with` and `await` are told where `async with` is meant."""

    def __enter__(self) -> NoReturn:
        raise RequestError(
            "`with` does not open what belongs to an event loop", f"write `async with`, {_BLOCKING}"
        )

    def __exit__(self, *exc_info: object) -> None:
        """Never reached; without it Python speaks of this method only."""

    if not TYPE_CHECKING:

        def __await__(self) -> NoReturn:
            raise RequestError(
                "`await` does not open what is closed at the end of a block",
                f"write `async with ... as`, {_BLOCKING}",
            )


class Opening(AsyncOnly, Generic[T]):
    """An async context manager around something that is made when the block is entered.

    Args:
        what: what is made, as its users call it.
        call: how it is asked for.
        about: of which stream and the like, for who prints it.
        variable: how examples call it; `what`, where that is left out.
    """

    def __init__(
        self, make: Callable[[], Awaitable[T]], what: str, call: str, about: str, variable: str = ""
    ) -> None:
        self._make = make
        self._what = what
        self._call = call
        self._about = about
        self._variable = variable or what
        self._made: T | None = None

    def __repr__(self) -> str:
        state = NOT_OPEN if self._made is None else "opened by its block"
        return f"<{self._what.capitalize()} {self._about}, {state}>"

    async def __aenter__(self) -> T:
        if self._made is not None:
            raise entered_twice(self._what)
        made = await self._make()
        await made.__aenter__()
        self._made = made
        return made

    async def __aexit__(self, kind: Any, error: Any, traceback: Any) -> None:
        made, self._made = self._made, None
        assert made is not None
        await made.__aexit__(kind, error, traceback)

    # --- used without entering it ---------------------------------------------------------------

    if not TYPE_CHECKING:
        # Type checkers find these mistakes by themselves.

        def __getattr__(self, name: str) -> NoReturn:
            # Not an error of Hadron's: `hasattr` and `copy` ask too.
            raise AttributeError(f"no {name!r} yet: {self._not_open()}")

        def __await__(self) -> NoReturn:
            raise ClosedError(self._not_open())

        def __aiter__(self) -> NoReturn:
            raise ClosedError(self._not_open())

        def __iter__(self) -> NoReturn:
            raise ClosedError(self._not_open())

    def _not_open(self) -> str:
        return (
            f"the {self._what} is not open; write `async with client.{self._call}(...) as "
            f"{self._variable}:` and use it in the block"
        )


def described(opening: Opening[Any]) -> tuple[str, str]:
    """What is made, as its users call it, and of which stream and the like."""
    return opening._what, opening._about
