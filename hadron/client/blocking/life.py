"""The life of a blocking client, and of what is made of it: opened at first use, closed once.

A program may keep them in a module, use them from any of its threads, close them from any other
one, end without closing them, or fork; none of that may hang, or lose a word about what was sent.

* `Hold` is a client's: its portal, and what is open in it. `close` first ends that (producers
  flush), then the portal, which answers whoever still waits.
* `Lazy` is a producer's or a subscription's: its core is made at the first use.
* What is opened belongs to none of those who wait for it: one of them may have less patience than
  it takes, and `close` gives it up.
* A signal's handler may close, whatever it has interrupted. So nobody waits with a lock held; the
  thread that has one may take it again, and looks once more, at the end, whether it was closed; and
  who closes what is being closed ends it as well, with a patience of his own, instead of waiting.
* At exit every client is closed: once all threads have ended that are no daemons, not when the main
  one has, because many programs leave their work to others then. The loop's thread is a daemon, so
  that Python does not wait for it before it calls `atexit`'s functions, and still runs then. Ctrl-C
  ends that wait, and what was not sent is logged.
* In a child process clients and producers begin anew at their next use; what came from the parent
  (deliveries, pending records, iterators) raises `ForkedError`.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, Final, Generic, Protocol, TypeVar

from hadron.client.blocking.portal import Answer, Portal, program_ends, refuse
from hadron.client.client import Client
from hadron.client.connecting import forks
from hadron.client.terms.ending import Ending, after_block
from hadron.client.terms.opening import NOT_OPEN
from hadron.model.errors import ClosedError, HadronError

_log = logging.getLogger(__name__)

EXIT_FLUSH_S: Final = 10.0
"""For all that is still open when the program ends: as long as connecting may take."""


_IN_PEACE: Final = Ending()
_GIVEN_UP: Final = Ending(waits=False, logs=True)


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
        self.is_closed = False
        """By `close`, and not opened again since."""
        self._connect = connect
        self._lock = threading.RLock()
        self._begun: tuple[Portal, Client] | None = None
        self._parts: dict[Lazy[Any], None] = {}
        forks.watch(self)

    def __str__(self) -> str:
        begun, state = self._begun, NOT_OPEN
        if self.is_closed:
            state = "closed"
        elif begun is not None and begun[0].is_open:
            state = begun[1]._session.state
        return f"{self.template._session.where}, {state}"

    def get(self) -> tuple[Portal, Client]:
        """The loop and the client, opened now if they are not. Raises what opening raises."""
        found = self.get_within(None)
        assert found is not None
        return found

    def get_within(self, timeout_s: float | None) -> tuple[Portal, Client] | None:
        """The same; None when that takes longer, and it goes on."""
        begun = self._begun
        if begun is None or self.is_closed:
            begun = self._begin()
        opened = begun[0].opened
        try:
            if not opened.wait(timeout_s):
                return None
            opened.result()
        except BaseException:
            if not begun[0].is_open:
                # It failed, or Ctrl-C: it is tried again at the next use.
                self._abandon(begun)
            raise
        return begun

    def open(self) -> None:
        """Open it now, also after `close`."""
        with self._lock:
            if self.is_closed:
                self._begun, self.is_closed = None, False
        self.get()

    def _begin(self) -> tuple[Portal, Client]:
        with self._lock:
            begun = self._begun
            if begun is None and not self.is_closed:
                if program_ends.is_set():
                    refuse(ClosedError("the program is ending: clients are not opened any more"))
                client = self._connect()
                begun = self._begun = Portal(client, _closed), client
                _open[self] = None
                _watch_end()
                try:
                    begun[0].begin()
                except BaseException:
                    self._abandon(begun)
                    raise
                if self.is_closed:
                    begun[0].stop()
            if begun is None or self.is_closed:
                refuse(_closed())
            return begun

    def _abandon(self, begun: tuple[Portal, Client]) -> None:
        if self._begun is begun:
            self._begun = None
        begun[0].stop()

    def close(self, ending: Ending = _IN_PEACE) -> None:
        """End everything, from any thread; returns once that is done, by whomever. What is open has
        the patience of `ending` together: one after the other, it is a deadline."""
        began_s = monotonic()
        self.is_closed = True
        begun = self._begun
        parts = list(self._parts)
        trouble: HadronError | None = None
        try:
            for part in parts:
                try:
                    part.close(ending.later(monotonic() - began_s))
                except HadronError as error:
                    trouble = trouble or error
        except BaseException:
            for part in parts:
                part.close(_GIVEN_UP)
            raise
        finally:
            if begun is not None:
                begun[0].stop()
            if self.is_closed:
                _open.pop(self, None)
        if trouble is not None:
            raise trouble

    def keep(self, part: Lazy[Any], portal: Portal) -> None:
        """Close `part` with the client. Raises `ClosedError` when that has been closed."""
        self._parts[part] = None
        if self.is_closed or self._begun is None or self._begun[0] is not portal:
            self.drop(part)
            raise _closed()

    def drop(self, part: Lazy[Any]) -> None:
        self._parts.pop(part, None)

    def forked(self) -> None:
        """In a child process: the lock may have been held by a thread that is not here."""
        self._lock = threading.RLock()
        self._begun = None
        self._parts = {}
        _open.pop(self, None)


class Lazy(Generic[C]):
    """Something made of a client at its first use, and closed once.

    Args:
        what: what it is called in errors.
        about: of which stream and the like, for who prints it.
        make: opens it, in the client's loop; called again in a child process, if `survives_fork`.
        survives_fork: whether a child process may go on with another one.
    """

    def __init__(
        self,
        hold: Hold,
        what: str,
        about: str,
        make: Callable[[Portal, Client], Awaitable[C]],
        *,
        survives_fork: bool,
    ) -> None:
        self.core: C | None = None
        self._hold = hold
        self._what = what
        self._about = about
        self._make = make
        self._survives_fork = survives_fork
        self._lock = threading.RLock()
        self._begun: tuple[Portal, Answer[C]] | None = None
        self._ended: HadronError | None = None
        self.was_used = False
        """Opening it was begun, if perhaps in vain."""
        forks.watch(self)

    def __str__(self) -> str:
        core = self.core
        if core is not None:
            return str(core)
        return f"{self._about}, {NOT_OPEN if self._ended is None else 'closed'}"

    def get(self) -> C:
        """The core. Raises `ClosedError` when it was closed, and what opening raises."""
        core = self.get_within(None)
        assert core is not None
        return core

    def get_within(self, timeout_s: float | None) -> C | None:
        """The same; None when opening takes longer, and it goes on."""
        return self.core or self._open(timeout_s)

    def _open(self, timeout_s: float | None) -> C | None:
        began_s = monotonic()
        self.was_used = True
        self._check_open()
        found = self._hold.get_within(timeout_s)
        if found is None:
            return None
        begun = self._begin(*found)
        left_s = None if timeout_s is None else timeout_s - (monotonic() - began_s)
        try:
            if not begun[1].wait(left_s):
                return None
            self.core = begun[1].result()
        except BaseException as error:
            if self.core is None:
                self._abandon(begun, _GIVEN_UP)
            if isinstance(error, ClosedError):
                self._check_open()
            raise
        self._check_open()
        return self.core

    def _begin(self, portal: Portal, client: Client) -> tuple[Portal, Answer[C]]:
        with self._lock:
            if self._begun is None:
                self._check_open()
                self._hold.keep(self, portal)
                self._begun = portal, portal.submit(self._make, portal, client)
            begun = self._begun
        if self._ended is not None:
            self._abandon(begun, _IN_PEACE)
        self._check_open()
        return begun

    def _check_open(self) -> None:
        if self._ended is not None:
            self.core = None
            refuse(type(self._ended)(self._ended.message, self._ended.hint))

    @property
    def is_closed(self) -> bool:
        return self._ended is not None

    def close(self, ending: Ending = _IN_PEACE) -> None:
        """End it, from any thread; returns once that is done, by whomever."""
        self._ended = self._ended or ClosedError(
            f"the {self._what} is closed", "make another one of the client"
        )
        self.core = None
        if self._begun is not None:
            self._abandon(self._begun, ending)

    def _abandon(self, begun: tuple[Portal, Answer[C]], ending: Ending) -> None:
        """End what is open or being opened, and forget it."""
        portal, making = begun
        # Ctrl-C up to here leaves it known, and its client closes it.
        portal.withdraw(making)
        making.wait()
        core = making.value
        try:
            if core is not None:
                core.finish(ending)
        except Exception:
            raise
        except BaseException:
            # Ctrl-C: what was not sent is told at least.
            if core is not None:
                core.finish(_GIVEN_UP)
            raise
        finally:
            if self._begun is begun:
                self._begun = None
                # Not before: who closes the client meanwhile waits for this as well.
                self._hold.drop(self)

    def forget(self) -> None:
        """Nobody has it any more, and its core is closed."""
        self._hold.drop(self)

    def leave(self, error: BaseException | None) -> None:
        """Its block has ended, by `error` if that is not None."""
        self.close(after_block(error))

    def forked(self) -> None:
        """In a child process."""
        self._lock = threading.RLock()
        begun, self._begun, self.core = self._begun, None, None
        core = begun[1].value if begun is not None else None
        if core is not None:
            core.forked()
            if not self._survives_fork:
                self._ended = forks.error(self._what)


def _closed() -> HadronError:
    return ClosedError("the client is closed", "`open()` opens it again")


# --- the process --------------------------------------------------------------------------------

_open: dict[Hold, None] = {}
"""Kept, so that what nobody else remembers is flushed as well."""

_watched: set[int] = set()
"""Processes of `multiprocessing` whose end is told."""


def _close_all() -> None:
    program_ends.set()
    ending, began_s = Ending(timeout_s=EXIT_FLUSH_S, logs=True), monotonic()
    for hold in list(_open):
        try:
            hold.close(ending.later(monotonic() - began_s))
        except HadronError as error:
            _log.warning("closing a client at exit: %s", error.message)
        except KeyboardInterrupt:
            ending = _GIVEN_UP


atexit.register(_close_all)


def _watch_end() -> None:
    """Children of `multiprocessing` end without `atexit`'s functions; it has others."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        pid = os.getpid()
        if pid not in _watched:
            _watched.add(pid)
            sys.modules["multiprocessing.util"].Finalize(None, _close_all, exitpriority=10)
