"""Reads one partition in order, with answers fetched ahead.

The next fetch leaves from the reading task as soon as an answer tells where it starts, so one is
on its way while up to `_AHEAD` answers wait to be decoded. An abandoned reader holds no task:
its last fetch ends by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import anyio

from hadron.client.connecting.outages import Outage
from hadron.client.connecting.session import Session, can_retry
from hadron.model.backoff import Backoff
from hadron.model.errors import ConnectionLostError, HadronError, PeerError
from hadron.wire.calling import OpenedCall
from hadron.wire.messages import method, streams_pb2

_FETCH: Final = method("Fetch")

_AHEAD: Final = 2
"""Answers that wait while the next is fetched; more only costs memory."""

FOLLOW_WAIT_MS: Final = 5_000
"""How long a node holds a fetch at the end of a stream; shorter than any proxy's idle limit."""


_HASTY_S: Final = 0.05
"""A node that says "nothing new" sooner than this did not wait; the client then waits for it."""


class Prefetch:
    """The answers for one partition from `offset` on, up to `stop` (exclusive) when given: then
    there are records up to there, and what says otherwise is an error (PROTOCOL D4).

    `on_ready` is called when something arrived or went wrong; then `take` tells.
    """

    def __init__(
        self,
        session: Session,
        request: streams_pb2.FetchRequest,
        *,
        stop: int | None,
        on_ready: Callable[[], None],
    ) -> None:
        self.partition = request.partition
        self.position = request.offset
        self._session = session
        self._request = request
        self._request.exists = stop is not None
        self._stop = stop
        self._on_ready = on_ready
        self._answers: deque[tuple[streams_pb2.FetchResponse, memoryview]] = deque()
        self._call: OpenedCall | None = None
        self._answered = False
        self._asked_s = 0.0
        self._connecting = False
        self._error: HadronError | None = None
        self._backoff = Backoff(session.ports.random)
        self._failing_since_s: float | None = None
        self._outage = Outage(request.partition)
        self._closed = False

    @property
    def is_finished(self) -> bool:
        """Everything before `stop` has been taken."""
        return self._closed or (
            not self._answers and self._stop is not None and self.position >= self._stop
        )

    @property
    def is_given_up(self) -> bool:
        """Its leader was away for too long: `take` raises that."""
        return self._error is not None and can_retry(self._error) and not self._answers

    def take(self) -> tuple[streams_pb2.FetchResponse, memoryview] | None:
        """The next answer if there is one; keeps fetching. Raises what cannot be retried."""
        answer = self._answers.popleft() if self._answers else None
        self._fetch()
        if answer is None and self._error is not None:
            raise self._error
        return answer

    def close(self) -> None:
        """Stop fetching."""
        self._closed = True
        self._answers.clear()
        if self._call is not None:
            self._call.cancel()
            self._call = None

    # --- fetching -------------------------------------------------------------------------------

    def _fetch(self) -> None:
        """Ask for what follows, unless that is under way, pointless or enough."""
        if (
            self._call is not None
            or self._connecting
            or self._closed
            or self._error is not None
            or len(self._answers) >= _AHEAD
            or (self._stop is not None and self.position >= self._stop)
        ):
            return
        connection = self._session.connection_now(self.partition)
        if connection is None:
            self._connecting = True
            self._session.background.start(self._connect, 0.0)
            return
        self._request.offset = self.position
        self._answered = False
        self._asked_s = anyio.current_time()
        try:
            call = connection.call(
                _FETCH, self._request, on_message=self._on_message, on_end=self._on_end
            )
        except HadronError as error:
            self._fail(error)
            return
        if call.is_open:
            self._call = call

    def _on_message(self, answer: streams_pb2.FetchResponse, attachment: memoryview) -> None:
        if not answer.batches and self._stop is not None:
            # There are records up to `stop`: whoever says nothing is not the one to end by.
            return
        self._answered = True
        self._backoff.reset()
        self._failing_since_s = None
        self._outage.over()
        if answer.batches:
            last = answer.batches[-1]
            if last.base_offset + last.count <= self.position:
                # Asking again would bring the same, for ever.
                self._error = PeerError(
                    f"{self.partition} was asked for offset {self.position} and answered with what "
                    f"comes before {last.base_offset + last.count}",
                    retryable=False,
                )
                self._on_ready()
                return
            # Whoever leads next must have this batch (PROTOCOL D4).
            self._request.after.CopyFrom(last.ballot)
            self.position = max(self.position, last.base_offset + last.count)
            self._answers.append((answer, attachment))
            self._on_ready()

    def _on_end(self, error: HadronError | None) -> None:
        self._call = None
        if error is None and not self._answered:
            error = ConnectionLostError(f"{self.partition} was asked for records, and gave none")
        if error is not None:
            self._fail(error)
        elif self._answers:
            self._fetch()
        elif self._stop is None and anyio.current_time() - self._asked_s < _HASTY_S:
            self._connecting = True
            self._session.background.start(self._pause)
        else:
            # `take` asks again: a reader that was abandoned must not be polled for, for ever.
            self._on_ready()

    def _fail(self, error: HadronError) -> None:
        now_s = anyio.current_time()
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        patience_s = self._session.request_timeout_s
        too_long = self._stop is not None and now_s - self._failing_since_s > patience_s
        if self._closed:
            return
        if self._session.closed is not None or not can_retry(error) or too_long:
            self._error = self._session.closed or error
            self._on_ready()
        elif not self._connecting:
            self._outage.trouble(error)
            self._session.suspect(self.partition)
            self._connecting = True
            self._session.background.start(self._connect, self._backoff.next_s())

    async def _connect(self, delay_s: float) -> None:
        await anyio.sleep(delay_s)
        try:
            await self._session.connect(self.partition)
        except HadronError as error:
            self._connecting = False
            self._fail(error)
        else:
            self._connecting = False
            self._fetch()

    async def _pause(self) -> None:
        await anyio.sleep(_HASTY_S)
        self._connecting = False
        self._on_ready()
