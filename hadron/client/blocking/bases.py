"""What the generated faces stand on: how a call gets into the loop, and the life of what they show.

By hand, because here blocking and async differ. `faces` adds the calls, made of the async classes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, NoReturn, Self, TypeVar

from hadron.client.blocking.life import Core, Hold, Lazy
from hadron.client.blocking.portal import Portal
from hadron.client.client import Client
from hadron.client.terms.arguments import patience_of
from hadron.client.terms.ending import Ending, after_block
from hadron.client.terms.opening import Opening, described
from hadron.client.terms.pickling import Unpicklable
from hadron.model.errors import RequestError

C = TypeVar("C", bound=Core)
F = TypeVar("F")
T = TypeVar("T")


class ClientBase(Unpicklable):
    """A connection to a cluster; made by `hadron.connect_sync`.

    Use it in a `with` block, or keep it in a module: it connects at its first use (or `open`), and
    is closed by `close` or when the program ends, which flushes its producers for 10 s, or until
    Ctrl-C, and logs what could not be sent. It may be used from several threads, and closed by any.
    Python comes to the end of a program when all its threads have ended but daemons: a thread that
    loops over a subscription for ever is one (`Thread(…, daemon=True)`), or main calls `close`,
    which ends the loop; else the program goes on, as does the thread.

    After `fork()` the child's client and producers connect anew; its subscriptions raise
    `ForkedError`. Every call raises `ClosedError` once it has been closed, `PeerError` when the
    cluster does not answer in time, and `NotFoundError` for names that do not exist.
    """

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._hold = Hold(connect)
        self.namespace = self._hold.template.namespace

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._hold}>"

    def open(self) -> Self:
        """Connect now, also after `close`. Raises `PeerError` when nobody answers."""
        self._hold.open()
        return self

    def close(self, timeout_s: float | None = None) -> None:
        """Close what is open of it (producers flush, for `timeout_s` at most), then the client; a
        second time does nothing. A signal's handler may call it, and Ctrl-C ends it: what was not
        sent is logged then. Loops over subscriptions and over streams that are followed end;
        what else other threads wait for raises `ClosedError`.

        Raises the first failure to publish that nobody has seen.
        """
        self._hold.close(Ending(patience_of(timeout_s)))

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, _: object, error: BaseException | None, traceback: object) -> None:
        self._hold.close(after_block(error))

    async def __aenter__(self) -> NoReturn:
        raise RequestError(
            "`async with` does not open a blocking client",
            "write `with`, or take the other one: `async with hadron.connect(...)`",
        )

    async def __aexit__(self, *exc_info: object) -> None:
        """Never reached; without it Python speaks of this method only."""

    def _call(self, function: Callable[[Client], Awaitable[T]]) -> T:
        portal, client = self._hold.get()
        return portal.call(function, client)  # type: ignore[no-any-return]


class PartBase(Unpicklable, Generic[F]):
    """What a client gives for a name and the like (`client.counter("hits")`): made in the loop at
    the first call, and anew once the client was opened again."""

    def __init__(self, hold: Hold, make: Callable[[Client], F]) -> None:
        # What cannot be is refused here, and not at the first use.
        make(hold.template)
        self._hold = hold
        self._make = make
        self._made: tuple[Client, F] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._hold}>"

    def _call(self, function: Callable[[F], Awaitable[T]]) -> T:
        portal, client = self._hold.get()
        return portal.call(self._ask, client, function)  # type: ignore[no-any-return]

    def _ask(self, client: Client, function: Callable[[F], Awaitable[T]]) -> Awaitable[T]:
        return function(self._part(client))

    def _part(self, client: Client) -> F:
        """In the loop, where `client` is open."""
        if self._made is None or self._made[0] is not client:
            self._made = client, self._make(client)
        return self._made[1]

    def _opening(self, function: Callable[[F], Opening[Any]]) -> Callable[[Client], Opening[Any]]:
        """For what is opened by a call of the part's."""

        def opening(client: Client) -> Opening[Any]:
            # With the template arguments are checked, in whatever thread: it is no part's client.
            is_open = client is not self._hold.template
            return function(self._part(client) if is_open else self._make(client))

        return opening


class OpenedBase(Unpicklable, Generic[C]):
    """What is opened at its first use, or by a block, and closed once.

    Attributes:
        _core: from the portal and what was opened in the loop to a `Core`.
        _survives_fork: whether a child process may go on with another one.
    """

    _core: type[Any]
    _survives_fork = False

    def __init__(self, hold: Hold, opening: Callable[[Client], Opening[Any]]) -> None:
        # What cannot be is refused here, and not at the first use.
        what, about = described(opening(hold.template))
        # Not of `self`: its client keeps the core, and would keep what nobody else has any more.
        make_core = self._core

        async def make(portal: Portal, client: Client) -> C:
            core: C = make_core(portal, await opening(client).__aenter__())
            return core

        self._hold = hold
        self._lazy = Lazy(hold, what, about, make, survives_fork=self._survives_fork)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._lazy}>"

    def __enter__(self) -> Self:
        self._lazy.get()
        return self

    def __exit__(self, _: object, error: BaseException | None, traceback: object) -> None:
        self._lazy.leave(error)
