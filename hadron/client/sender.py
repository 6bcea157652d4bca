"""Sends one partition's batches: the driver around `accumulator`.

A batch leaves from whichever task completes it, or from the reading task when an answer makes
room: no task is woken to send. Only trouble has a task of its own, which finds the leader again.
"""

from __future__ import annotations

import functools
import logging
from typing import Any, Final

import anyio

from hadron.client.accumulator import PartitionAccumulator
from hadron.client.backoff import Backoff
from hadron.client.lookout import TELL_AFTER_S
from hadron.client.outgoing import BatchState, OutgoingBatch
from hadron.client.session import Session
from hadron.model.errors import (
    ConnectionLostError,
    HadronError,
    MetadataBehindError,
    NotFoundError,
    NotReadyError,
    OverloadedError,
    PeerError,
)
from hadron.wire.calls import Call
from hadron.wire.messages import method, streams_pb2

_log = logging.getLogger(__name__)

_PRODUCE: Final = method("Produce")


class PartitionSender:
    """Keeps the batches of one partition moving.

    Args:
        eager: do not let records gather while a batch is under way (a linger of 0).
    """

    def __init__(
        self,
        session: Session,
        accumulator: PartitionAccumulator,
        request: streams_pb2.ProduceRequest,
        *,
        eager: bool,
    ) -> None:
        self.accumulator = accumulator
        self._session = session
        self._request = request
        self._eager = eager
        self._backoff = Backoff(session.ports.random)
        self._calls: dict[OutgoingBatch, Call] = {}
        self._recovering = False
        self._pumping = False
        self._troubled_since_s: float | None = None
        self._told = False
        self._silent_since_s = 0.0
        """When a call was made with no other under way, or was answered."""

    def pump(self) -> None:
        """Send what may be sent now; never blocks."""
        if self._recovering or self._pumping or self._session.closed is not None:
            return
        self._pumping = True
        try:
            self._pump()
        finally:
            self._pumping = False

    def _pump(self) -> None:
        accumulator = self.accumulator
        while True:
            if accumulator.stalled and accumulator.in_flight == 0:
                if accumulator.needs_patience:
                    self._recover()
                    return
                accumulator.resume()
            if accumulator.is_empty:
                return
            connection = self._session.connection_now(accumulator.partition)
            if connection is None:
                if accumulator.in_flight == 0:
                    self._recover()
                return
            batch = accumulator.next_batch(eager=self._eager)
            if batch is None:
                return
            try:
                call = connection.call(
                    _PRODUCE,
                    self._request,
                    [batch.data],
                    on_message=functools.partial(self._on_answer, batch),
                    on_end=functools.partial(self._on_end, batch),
                )
            except HadronError as error:
                self._fail(batch, error)
            else:
                # The socket may have failed inside `call`, which has then ended already.
                if batch.state is BatchState.SENT and call.is_open:
                    if not self._calls:
                        self._silent_since_s = anyio.current_time()
                    self._calls[batch] = call

    # --- answers --------------------------------------------------------------------------------

    def _on_answer(
        self, batch: OutgoingBatch, answer: streams_pb2.ProduceResponse, _: Any
    ) -> None:
        self._calls.pop(batch, None)
        self._backoff.reset()
        self._troubled_since_s, self._told = None, False
        self._silent_since_s = anyio.current_time()
        self.accumulator.acked(batch, answer.base_offset, answer.append_ms, answer.duplicate)
        self.pump()

    def _on_end(self, batch: OutgoingBatch, error: HadronError | None) -> None:
        if batch.state is BatchState.SENT:
            self._calls.pop(batch, None)
            self._fail(batch, error or ConnectionLostError("a call ended without an answer"))
            self.pump()

    def _fail(self, batch: OutgoingBatch, error: HadronError) -> None:
        if isinstance(error, PeerError) and not isinstance(
            error, (MetadataBehindError, NotReadyError, OverloadedError)
        ):
            self._session.suspect(self.accumulator.partition)
        if isinstance(error, PeerError):
            self._complain(error)
        self.accumulator.refused(batch, error)

    # --- trouble --------------------------------------------------------------------------------

    def _recover(self) -> None:
        self._recovering = True
        self._session.background.start(self._find_leader)

    async def _find_leader(self) -> None:
        """Until the leader answers again, or nothing is left to be sent."""
        accumulator = self.accumulator
        try:
            if accumulator.stalled:
                await anyio.sleep(self._backoff.next_s())
            while not accumulator.is_empty and self._session.closed is None:
                try:
                    await self._session.connect(accumulator.partition)
                    break
                except NotFoundError as error:
                    self._session.suspect(accumulator.partition)
                    self._note(error)
                except HadronError as error:
                    self._note(error)
                await anyio.sleep(self._backoff.next_s())
        finally:
            self._recovering = False
        if accumulator.stalled and accumulator.in_flight == 0:
            accumulator.resume()
        self.pump()

    def _note(self, trouble: HadronError) -> None:
        for batch in self.accumulator.unresolved():
            batch.trouble = trouble
        self._complain(trouble)

    def watch(self, now_s: float) -> None:
        """A leader that is cut off from its peers answers nothing, and its connection is whole."""
        if self._calls and now_s - self._silent_since_s >= TELL_AFTER_S:
            if self._troubled_since_s is None:
                self._troubled_since_s = self._silent_since_s
            self._complain(PeerError("no answer from the leader; is a majority up?"))

    def _complain(self, trouble: HadronError) -> None:
        """Records wait: say so once per outage, and look who leads."""
        now_s = anyio.current_time()
        if self._troubled_since_s is None:
            self._troubled_since_s = now_s
        if now_s - self._troubled_since_s < TELL_AFTER_S:
            return
        self._session.lookout.hurry()
        if not self._told:
            self._told = True
            count = sum(batch.count for batch in self.accumulator.unresolved())
            _log.warning(
                "waiting to send to %s (%d unsent or unconfirmed): %s",
                self.accumulator.partition, count, trouble.message,
            )

    # --- giving up ------------------------------------------------------------------------------

    def expire(self, created_before_s: float) -> None:
        """Fail what is older than the delivery timeout allows."""
        self._cancel(self.accumulator.expire(created_before_s))
        self.pump()

    def close(self, reason: str) -> None:
        """Fail everything that has no outcome yet."""
        self._cancel(self.accumulator.close(reason))

    def _cancel(self, batches: list[OutgoingBatch]) -> None:
        for batch in batches:
            call = self._calls.pop(batch, None)
            if call is not None:
                call.cancel()
