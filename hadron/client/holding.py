"""The life of a blocking client, and of what is made of it: opened at first use, closed once.

A program may keep them in a module, use them from any of its threads, close them from any other
one, end without closing them, or fork; none of that may hang, or lose a word about what was sent.

* `Hold` is a client's: its portal, and what is open in it. `close` first ends that (producers
  flush), then the portal, which answers whoever still waits.
* `Lazy` is a producer's or a subscription's: its core is made at the first use.
* At exit every client is closed. The loop's thread is a daemon, so that Python does not wait for it
  before it calls `atexit`'s functions, and still runs then.
* In a child process clients and producers begin anew at their next use; what came from the parent
  (deliveries, pending records, iterators) raises `ForkedError`.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Generic, Protocol, TypeVar

from hadron.client import forks
from hadron.client.client import Client
from hadron.client.portal import Portal
from hadron.client.publishing import Ending, after_block
from hadron.model.errors import ClosedError, HadronError

_log = logging.getLogger(__name__)

EXIT_FLUSH_S: Final = 10.0
"""For producers that are still open when the program ends: as long as connecting may take."""


_IN_PEACE: Final = Ending()


class Core(Protocol):
    """What is open."""

    def finish(self, ending: Ending) -> None:
        """Close it."""
        ...

    def forked(self) -> None:
        """In a child process: hand out nothing that is the parent's."""
        ...


C = TypeVar("C", bound=Core)


class Hold:
    """A client from its first use to its end.

    Args:
        connect: makes the async client, each time that this one is opened.
    """

    def __init__(self, connect: Callable[[], Client]) -> None:
        self.template = connect()
        """Never opened: arguments are checked with it before there is a connection."""
        self._connect = connect
        self._lock = threading.Lock()
        self._closing = threading.Lock()
        self._opened: tuple[Portal, Client] | None = None
        self._starting: Portal | None = None
        self.is_closed = False
        """By `close`, and not opened again since."""
        self._parts: dict[Lazy[Any], None] = {}
        forks.watch(self)

    def get(self) -> tuple[Portal, Client]:
        """The loop and the client, opened now if they are not."""
        return self._opened or self.open(again=False)

    def open(self, *, again: bool = True) -> tuple[Portal, Client]:
        """The same; with `again` also after `close`."""
        with self._lock:
            if self._opened is None:
                if _exit.is_set():
                    raise ClosedError("the program is ending: clients are not opened any more")
                if self.is_closed and not again:
                    raise _closed()
                client = self._connect()
                portal = self._starting = Portal(client, _closed)
                try:
                    portal.start()
                finally:
                    self._starting = None
                self._opened, self.is_closed = (portal, client), False
                _open[self] = None
            return self._opened

    def close(self, ending: Ending = _IN_PEACE) -> None:
        """End everything; from any thread, and a second time it waits for the first."""
        starting = self._starting
        if starting is not None:
            starting.stop()
        with self._closing:
            with self._lock:
                opened, self._opened = self._opened, None
                parts, self._parts = list(self._parts), {}
                self.is_closed = True
            trouble: HadronError | None = None
            try:
                for part in parts:
                    try:
                        part.close(ending)
                    except HadronError as error:
                        trouble = trouble or error
            finally:
                if opened is not None:
                    opened[0].stop()
                _open.pop(self, None)
        if trouble is not None:
            raise trouble

    def keep(self, part: Lazy[Any], portal: Portal) -> None:
        """Close `part` with the client. Raises `ClosedError` when that has been closed."""
        with self._lock:
            if self._opened is None or self._opened[0] is not portal:
                raise _closed()
            self._parts[part] = None

    def drop(self, part: Lazy[Any]) -> None:
        self._parts.pop(part, None)

    def forked(self) -> None:
        """In a child process: the locks may have been held by threads that are not here."""
        self._lock, self._closing = threading.Lock(), threading.Lock()
        self._opened = self._starting = None
        self._parts = {}
        _open.pop(self, None)


class Lazy(Generic[C]):
    """Something made of a client at its first use, and closed once.

    Args:
        what: what it is called in errors.
        make: opens it; called again in a child process, if `survives_fork`.
        survives_fork: whether a child process may go on with another one.
    """

    def __init__(
        self, hold: Hold, what: str, make: Callable[[Portal, Client], C], *, survives_fork: bool
    ) -> None:
        self.core: C | None = None
        self._hold = hold
        self._what = what
        self._make = make
        self._survives_fork = survives_fork
        self._lock, self._closing = threading.Lock(), threading.Lock()
        self._ended: HadronError | None = None
        forks.watch(self)

    def get(self) -> C:
        """The core. Raises `ClosedError` when it was closed."""
        return self.core or self._open()

    def _open(self) -> C:
        with self._lock:
            self._check_open()
            if self.core is None:
                portal, client = self._hold.get()
                core = self._make(portal, client)
                self._hold.keep(self, portal)
                self.core = core
            return self.core

    def _check_open(self) -> None:
        if self._ended is not None:
            raise type(self._ended)(self._ended.message, self._ended.hint)

    @property
    def is_closed(self) -> bool:
        return self._ended is not None

    def close(self, ending: Ending = _IN_PEACE) -> None:
        """End it; from any thread, and a second time it waits for the first."""
        with self._closing:
            with self._lock:
                core, self.core = self.core, None
                self._ended = self._ended or ClosedError(
                    f"the {self._what} is closed", "make another one of the client"
                )
            if core is not None:
                try:
                    core.finish(ending)
                finally:
                    # Not before: who closes the client meanwhile waits here for this.
                    self._hold.drop(self)

    def leave(self, error: BaseException | None) -> None:
        """Its block has ended, by `error` if that is not None."""
        self.close(after_block(error))

    def forked(self) -> None:
        """In a child process."""
        self._lock, self._closing = threading.Lock(), threading.Lock()
        core, self.core = self.core, None
        if core is not None:
            core.forked()
            if not self._survives_fork:
                self._ended = forks.error(self._what)


def _closed() -> HadronError:
    return ClosedError("the client is closed", "`open()` opens it again")


# --- the process --------------------------------------------------------------------------------

_open: dict[Hold, None] = {}
"""Kept, so that what nobody else remembers is flushed as well."""

_exit = threading.Event()


def _close_all() -> None:
    _exit.set()
    for hold in list(_open):
        try:
            hold.close(Ending(timeout_s=EXIT_FLUSH_S, logs=True))
        except HadronError as error:
            _log.warning("closing a client at exit: %s", error.message)
        except KeyboardInterrupt:
            with suppress(KeyboardInterrupt):
                hold.close(Ending(waits=False, logs=True))


atexit.register(_close_all)
