"""One client's calls to the endpoints of one replica set: a stream to its leader with all of them.

Safety rule: nothing is sent before the leader has welcomed the stream, so that a call which was
never looked at is known to be none; what was sent, and not answered when the stream was lost, may
have run (ENDPOINTS N1).
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import anyio

from hadron.client.connecting.reconnecting_call import ReconnectingCall
from hadron.client.connecting.session import Session
from hadron.client.endpoints.items import RECONNECT_CAP_S, Outbox, Packed, Values, error_of
from hadron.model.errors import CallUnknownError, DeadlineExceededError, FrameError, HadronError
from hadron.model.timers import Timers
from hadron.wire.call_items import CANCEL, CREDIT, END, ERROR, OPEN, VALUE, Item
from hadron.wire.calling import OpenedCall
from hadron.wire.messages import endpoints_pb2, method

_CALL: Final = method("Call")

_GRACE_S: Final = 0.5
"""A leader says what has happened to a call whose time is over; after so long nobody waits for
that."""

_SWEEP_S: Final = 0.25


class Waiter(Protocol):
    """Whoever has opened a call; the functions must not block."""

    def value(self, packed: Packed, item: Item) -> None:
        """Of the answer; `item.end` says whether it is the last one."""
        ...

    def end(self, item: Item) -> None: ...

    def fail(self, error: HadronError, item: Item | None) -> None:
        """It is over, without an answer."""
        ...

    def credit(self, size: int) -> None: ...


class _Pending:
    __slots__ = ("due", "endpoint", "may_repeat", "number", "waiter", "within_s")

    def __init__(
        self, number: int, waiter: Waiter, endpoint: str, within_s: float, *, may_repeat: bool
    ) -> None:
        self.number = number
        self.waiter = waiter
        self.endpoint = endpoint
        self.within_s = within_s
        self.may_repeat = may_repeat
        self.due = 0


class Channel:
    """`reconnecting_call.Owner`. `start` must have been called."""

    def __init__(self, session: Session, replica_set: str) -> None:
        self._session = session
        self.replica_set = replica_set
        self.is_ready = False
        """The leader has welcomed it: calls may be opened."""
        self.failure: HadronError | None = None
        """It is over, for this reason."""
        self._changed = anyio.Event()
        self._number = 0
        """Never used again, also not on another stream: who speaks of a call that was lost means
        that one."""
        self._pending: dict[int, _Pending] = {}
        self._timers: Timers[_Pending] = Timers()
        self._begun = anyio.Event()
        self.outbox = Outbox(endpoints_pb2.CallRequest)
        self._call: OpenedCall | None = None
        self._scopes: list[anyio.CancelScope] = []
        self._stream = ReconnectingCall(session, replica_set, _CALL, self, cap_s=RECONNECT_CAP_S)

    def start(self) -> None:
        background = self._session.background
        background.start(self._stream.run)
        self._scopes = [background.start(self.outbox.run), background.start(self._sweep)]

    async def wait_ready(self) -> None:
        """Until calls may be opened. Raises what ended it for good."""
        while not self.is_ready:
            if self.failure is not None:
                raise self.failure
            await self._session.wait(self._changed)

    def _change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    # --- calls ------------------------------------------------------------------------------------

    def open(
        self,
        waiter: Waiter,
        opening: endpoints_pb2.CallOpening,
        packed: Packed | None,
        *,
        end: bool,
        within_s: float | None = None,
        may_repeat: bool = False,
    ) -> int:
        """Call; returns the call's number. `is_ready` must be true.

        Args:
            within_s: what its program has given it, where this is not the first try, for whom the
                opening says what is left.
            may_repeat: its endpoint is idempotent: who hears that it is unknown may call again.
        """
        self._number += 1
        number = self._number
        timeout_s = opening.timeout_ms / 1_000
        pending = _Pending(
            number, waiter, opening.endpoint, within_s or timeout_s, may_repeat=may_repeat
        )
        was_idle = not self._pending
        self._pending[number] = pending
        pending.due = self._timers.add(anyio.current_time() + timeout_s + _GRACE_S, pending)
        item = self.outbox.item(number, OPEN)
        item.open.CopyFrom(opening)
        if packed is not None:
            item.open.has_value = True
            self.outbox.put(item, packed, end=end)
        self.outbox.weigh(item)
        if was_idle:
            # Nobody else is about to say something: to wake a task would take longer.
            self.outbox.flush()
            self._begun.set()
        else:
            self.outbox.flush_soon()
        return number

    def send(self, number: int, packed: Packed) -> None:
        if number in self._pending:
            self.outbox.put(self.outbox.item(number, VALUE), packed, end=False)
            self.outbox.flush_soon()

    def end(self, number: int) -> None:
        if number in self._pending:
            self.outbox.item(number, END)
            self.outbox.flush_soon()

    def grant(self, number: int, size: int) -> None:
        if number in self._pending:
            self.outbox.item(number, CREDIT).credit = size
            self.outbox.flush_soon()

    def cancel(self, number: int) -> None:
        """Nobody waits for it any more."""
        if self._take(number) is not None:
            self.outbox.item(number, CANCEL)
            self.outbox.flush_soon()

    def _take(self, number: int) -> _Pending | None:
        pending = self._pending.pop(number, None)
        if pending is not None:
            self._timers.discard(pending.due, pending)
        return pending

    async def _sweep(self) -> None:
        """End what a leader that is silent says nothing of."""
        while True:
            if not self._pending:
                self._begun = anyio.Event()
                await self._begun.wait()
            await anyio.sleep(_SWEEP_S)
            for pending in self._timers.take(anyio.current_time()):
                self.cancel(pending.number)
                self._stream.probe()
                pending.waiter.fail(
                    DeadlineExceededError(
                        f"the leader of {self.replica_set} says nothing of a call that was to be "
                        f"answered within {round(pending.within_s, 3):g} s",
                        "see `hadron status`; it may have run",
                        retryable=pending.may_repeat,
                    ),
                    None,
                )

    # --- `Owner` ----------------------------------------------------------------------------------

    def opening(self) -> Any:
        return endpoints_pb2.CallRequest()

    def opened(self, call: OpenedCall) -> None:
        self._call = call
        self.outbox.open(call)

    def received(self, message: endpoints_pb2.CallResponse, attachment: memoryview) -> None:
        if not self.is_ready:
            self.is_ready = True
            self._change()
        values = Values(attachment)
        for item in message.items:
            kind = item.kind
            if kind == VALUE:
                packed = values.take(item)
                take = self._take if item.end else self._pending.get
                pending = take(item.number)
                if pending is not None:
                    pending.waiter.value(packed, item)
            elif kind == END:
                pending = self._take(item.number)
                if pending is not None:
                    pending.waiter.end(item)
            elif kind == ERROR:
                pending = self._take(item.number)
                if pending is not None:
                    pending.waiter.fail(error_of(item, pending.endpoint), item)
            elif kind == CREDIT:
                pending = self._pending.get(item.number)
                if pending is not None:
                    pending.waiter.credit(item.credit)
            else:
                raise FrameError(f"a leader says nothing of the kind {kind} to who calls")
        if self._call is not None:
            self._call.consumed(message.ByteSize() + len(attachment))

    def lost(self, error: HadronError | None) -> None:
        self._lose(error.message if error is not None else "it has ended the stream")

    def failed(self, error: HadronError) -> None:
        self.failure = error
        for scope in self._scopes:
            scope.cancel()
        self._lose(error.message)
        self._change()

    def _lose(self, why: str) -> None:
        """Whatever ended it may say that it did nothing: of the stream, and not of its calls."""
        self.is_ready = False
        self._call = None
        self.outbox.close()
        pendings, self._pending = list(self._pending.values()), {}
        for pending in pendings:
            self._timers.discard(pending.due, pending)
            error = CallUnknownError(
                f"the leader of {self.replica_set} was lost with a call under way: {why}",
                "it has run, or in part, or not at all",
                retryable=pending.may_repeat,
                leader_lost=True,
            )
            pending.waiter.fail(error, None)
