"""A streaming call that is opened again whenever it ends, until its owner is done with it.

Group members and stage runners are such calls: the node gives what they held to others when a
call ends, so a new call starts from a clean slate and the owner forgets the old one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

import anyio

from hadron.client.connecting.session import Session, can_retry
from hadron.model.backoff import CAP_S, Backoff
from hadron.model.errors import HadronError, NotFoundError, PeerError
from hadron.wire.calling import Caller, OpenedCall
from hadron.wire.messages import Method

_log = logging.getLogger(__name__)

_LIVED_S: Final = 1.0
"""A call that lived this long worked; the next one is tried at once."""


class Owner(Protocol):
    """Whose call it is; the functions are called from the reading task and must not block."""

    def opening(self) -> Any:
        """The first message of a new call."""
        ...

    def opened(self, call: OpenedCall) -> None: ...

    def received(self, message: Any, attachment: memoryview) -> None: ...

    def lost(self, error: HadronError | None) -> None:
        """The call ended; another one follows."""
        ...

    def failed(self, error: HadronError) -> None:
        """The call ended for a reason that trying again does not cure; no other one follows."""
        ...


class ReconnectingCall:
    """Keeps one call to the leader of `replica_set` open while `run` runs."""

    def __init__(
        self,
        session: Session,
        replica_set: str,
        what: Method,
        owner: Owner,
        *,
        cap_s: float = CAP_S,
    ) -> None:
        """`cap_s`: the longest pause between two tries."""
        self._cap_s = cap_s
        self._session = session
        self._replica_set = replica_set
        self._what = what
        self._owner = owner
        self._way: Caller | None = None
        self._opened_s = float("inf")
        """When the last call was opened; infinity when there was no connection."""
        self._drop: Callable[[HadronError | None], None] | None = None

    def drop(self, reason: HadronError) -> None:
        """Give the open call up, if there is one, and open another."""
        if self._drop is not None:
            self._drop(reason)

    def probe(self) -> None:
        """The leader owes an answer: see whether the way to it is dead."""
        if self._way is not None:
            self._session.doubt(self._way)

    async def run(self) -> None:
        """Until cancelled, or until the call cannot be opened for a lasting reason."""
        backoff = Backoff(self._session.ports.random, cap_s=self._cap_s)
        told = ""
        while True:
            started_s = anyio.current_time()
            try:
                error = await self._hold()
            except HadronError as failure:
                error = failure
            if self._session.closed is not None:
                self._owner.failed(self._session.closed)
                return
            if error is not None and not can_retry(error):
                self._owner.failed(error)
                return
            why = str(error or "by the node")
            # While a cluster is down every try ends for the same reason.
            if why != told or self._has_lived:
                told = why
                _log.info("%s at %s ended: %s", self._what, self._replica_set, why)
            self._owner.lost(error)
            if error is not None:
                self._session.suspect(self._replica_set)
            if anyio.current_time() - started_s >= _LIVED_S:
                backoff.reset()
            await anyio.sleep(backoff.next_s())

    @property
    def _has_lived(self) -> bool:
        """Whether the last call was one that worked."""
        return anyio.current_time() - self._opened_s >= _LIVED_S

    async def _hold(self) -> HadronError | None:
        """One call, from opening to its end; returns or raises what ended it."""
        self._opened_s = float("inf")
        try:
            connection = await self._session.connect(self._replica_set)
        except NotFoundError as error:
            # The schema names it, so it exists: its region has not been heard of yet.
            raise PeerError(error.message, error.hint) from error
        ended = anyio.Event()
        outcome: list[HadronError | None] = []

        def on_end(error: HadronError | None) -> None:
            outcome.append(error)
            ended.set()

        call = connection.call(
            self._what,
            self._owner.opening(),
            on_message=self._owner.received,
            on_end=on_end,
            end=not self._what.client_streams,
        )
        self._drop, self._way = on_end, connection
        try:
            self._owner.opened(call)
            self._opened_s = anyio.current_time()
            await ended.wait()
        finally:
            self._drop = self._way = None
            call.cancel()
        return outcome[0]
