"""Sends one partition's batches: the driver around `accumulator`.

A batch leaves from whichever task completes it, or from the reading task when an answer makes
room: no task is woken to send. Only trouble has a task of its own, which finds the leader again.

Rule: a partition that is *away* is sent nothing before a majority has answered there: a leader that
is cut off from its peers takes batches and answers none of them, and each would be in doubt.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

import anyio

from hadron.client.connecting.outages import TELL_AFTER_S
from hadron.client.connecting.session import Session
from hadron.client.producing.accumulator import PartitionAccumulator
from hadron.client.producing.failover import AWAY_AFTER_S
from hadron.client.producing.naming import Naming
from hadron.client.producing.outgoing_batch import BatchState, OutgoingBatch
from hadron.model.backoff import Backoff
from hadron.model.errors import (
    ConflictError,
    ConnectionLostError,
    HadronError,
    MetadataBehindError,
    NotFoundError,
    NotReadyError,
    OffsetMismatchError,
    OverloadedError,
    PeerError,
    ProducerFencedError,
    RequestError,
)
from hadron.wire.calling import Caller, OpenedCall
from hadron.wire.messages import Method, method, streams_pb2

_log = logging.getLogger(__name__)

_PRODUCE: Final = method("Produce")
_PRODUCE_IF: Final = method("ProduceIf")
_OFFSETS: Final = method("Offsets")
"""Asked so that a leader answers only once a majority has confirmed it (PROTOCOL A2)."""

_PROBE_TIMEOUT_S: Final = 6.0
"""A leader without a majority says so after 5 s."""


class Substitutes(Protocol):
    """The other partitions that records may go to."""

    def has_other(self, away: PartitionSender) -> bool:
        """Whether one of them is up."""
        ...

    def take_over(self, away: PartitionSender) -> None:
        """Move there what may be moved."""
        ...


class PartitionSender:
    """Keeps the batches of one partition moving.

    Args:
        eager: do not let records gather while a batch is under way (a linger of 0).
        substitutes: None keeps every record here.
        naming: of a producer with a name, how that is claimed again.
        on_fenced: somebody else has it.
    """

    def __init__(
        self,
        session: Session,
        accumulator: PartitionAccumulator,
        request: streams_pb2.ProduceRequest,
        *,
        eager: bool,
        substitutes: Substitutes | None = None,
        naming: Naming | None = None,
        on_fenced: Callable[[HadronError], None] = lambda _: None,
    ) -> None:
        self.accumulator = accumulator
        self.request = request
        self.is_away = False
        self._substitutes = substitutes
        self._naming = naming
        self._on_fenced = on_fenced
        self._closed = False
        self._session = session
        self._eager = eager
        self._backoff = Backoff(session.ports.random)
        self._calls: dict[OutgoingBatch, OpenedCall] = {}
        self._way: Caller | None = None
        """Where the last of them was made."""
        self._recovering = False
        self._recovering_since_s = 0.0
        self._tries = 0
        """Times that the leader was found again since its last answer."""
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
        while not self._recovering:
            if accumulator.stalled and accumulator.in_flight == 0:
                if accumulator.needs_patience:
                    self._recover()
                    return
                accumulator.resume()
            if accumulator.is_empty:
                return
            if accumulator.needs_claim:
                self._recover()
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
                    *self._asked(batch),
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
                    self._calls[batch], self._way = call, connection

    def _asked(self, batch: OutgoingBatch) -> tuple[Method, streams_pb2.ProduceRequest]:
        if batch.is_plain:
            return _PRODUCE, self.request
        request = streams_pb2.ProduceRequest(
            expect_offset=batch.expect_offset,
            expect_key_offset=batch.expect_key_offset,
            last_sequence=batch.last_sequence,
        )
        request.MergeFrom(self.request)
        return _PRODUCE_IF, request

    # --- answers --------------------------------------------------------------------------------

    def _on_answer(self, batch: OutgoingBatch, answer: streams_pb2.ProduceResponse, _: Any) -> None:
        self._calls.pop(batch, None)
        self._backoff.reset()
        self._tries = 0
        self.is_away = False
        if self._told:
            _log.warning("records for %s are sent again", self.accumulator.partition)
        self._troubled_since_s, self._told = None, False
        self._silent_since_s = anyio.current_time()
        if answer.HasField("mismatch"):
            self.accumulator.refused(batch, _mismatch_from(answer.mismatch))
        else:
            self.accumulator.acked(batch, answer.base_offset, answer.append_ms, answer.duplicate)
        self.pump()

    def _on_end(self, batch: OutgoingBatch, error: HadronError | None) -> None:
        if batch.state is BatchState.SENT:
            self._calls.pop(batch, None)
            self._fail(batch, error or ConnectionLostError("a call ended without an answer"))
            self.pump()

    def _fail(self, batch: OutgoingBatch, error: HadronError) -> None:
        self._doubt_leader(error)
        if isinstance(error, (PeerError, ConflictError)):
            self._complain(error)
        if isinstance(error, ProducerFencedError):
            self._on_fenced(error)
        self.accumulator.refused(batch, error)
        if self.is_away or (self._tries and isinstance(error, PeerError)):
            self.go_away(error.message)

    def _doubt_leader(self, error: HadronError) -> None:
        if isinstance(error, PeerError) and not isinstance(
            error, (MetadataBehindError, NotReadyError, OverloadedError)
        ):
            self._session.suspect(self.accumulator.partition)

    # --- trouble --------------------------------------------------------------------------------

    def go_away(self, reason: str) -> None:
        """Let other partitions have what may move, if one is up, until this one answers again."""
        if self._closed or self._substitutes is None or not self._substitutes.has_other(self):
            return
        if not self.is_away:
            self.is_away = True
            _log.info("records go elsewhere than %s: %s", self.accumulator.partition, reason)
        if not self._recovering:
            self._recover()
        self._substitutes.take_over(self)

    def _recover(self) -> None:
        self._recovering = True
        self._recovering_since_s = anyio.current_time()
        self._session.background.start(self._find_leader)

    async def _find_leader(self) -> None:
        """Until the leader answers again, or nothing is left to be sent and nobody asks for it."""
        accumulator = self.accumulator
        try:
            if accumulator.stalled:
                await anyio.sleep(self._backoff.next_s())
            while self._is_wanted:
                try:
                    connection = await self._session.connect(accumulator.partition)
                    if self.is_away:
                        await self._probe(connection)
                    if accumulator.stalled and accumulator.in_flight == 0:
                        accumulator.resume()
                    if self._naming is not None and accumulator.needs_claim:
                        await self._claim_again(self._naming, connection)
                    break
                except NotFoundError as error:
                    self._session.suspect(accumulator.partition)
                    self._note(error)
                except HadronError as error:
                    self._note(error)
                await anyio.sleep(self._backoff.next_s())
        finally:
            self._recovering = False
        self._tries += 1
        if accumulator.stalled and accumulator.in_flight == 0:
            accumulator.resume()
        self.pump()

    async def _claim_again(self, naming: Naming, connection: Caller) -> None:
        """Raises what may pass; what does not ends all that waits."""
        accumulator = self.accumulator
        assert accumulator.claim is not None
        try:
            claim = await naming.claim(connection, self.request, accumulator.claim)
        except RequestError as error:
            if isinstance(error, ProducerFencedError):
                self._on_fenced(error)
            accumulator.refuse_all(error)
        except PeerError as error:
            self._doubt_leader(error)
            raise
        else:
            accumulator.claimed(claim)

    @property
    def _is_wanted(self) -> bool:
        idle = self.accumulator.is_empty and not self.is_away
        return not (idle or self._closed or self._session.closed is not None)

    async def _probe(self, connection: Caller) -> None:
        """Return once the partition takes records again. Raises what is in the way."""
        question = streams_pb2.OffsetsRequest(
            namespace=self.request.namespace,
            stream=self.request.stream,
            partition=self.request.partition,
            confirmed=True,
        )
        try:
            await connection.request(_OFFSETS, question, timeout_s=_PROBE_TIMEOUT_S)
        except HadronError as error:
            if isinstance(error, PeerError):
                self._session.suspect(self.accumulator.partition)
            raise
        if self.is_away:
            _log.info("%s is back", self.accumulator.partition)
        self.is_away = False

    def _note(self, trouble: HadronError) -> None:
        for batch in self.accumulator.unresolved():
            batch.trouble = trouble
        self._complain(trouble)
        self.go_away(trouble.message)

    def watch(self, now_s: float) -> None:
        """A leader that is cut off from its peers answers nothing, and its connection is whole; one
        whose host is gone is dialed for long."""
        if self._calls and now_s - self._silent_since_s >= AWAY_AFTER_S:
            if self._way is not None:
                self._session.doubt(self._way)
            self.go_away("no answer")
        elif self._recovering and now_s - self._recovering_since_s >= AWAY_AFTER_S:
            self.go_away("its leader is not found")
        if self._calls and now_s - self._silent_since_s >= TELL_AFTER_S:
            if self._troubled_since_s is None:
                self._troubled_since_s = self._silent_since_s
            # The network, its disk, those of the others: only it can know which.
            silent_s = now_s - self._silent_since_s
            self._complain(
                PeerError(
                    f"the leader has not answered for {silent_s:.0f} s; `hadron status` says what "
                    "it waits for"
                )
            )

    def _complain(self, trouble: HadronError) -> None:
        """Records wait: say so once per outage, and look who leads."""
        now_s = anyio.current_time()
        if self._troubled_since_s is None:
            self._troubled_since_s = now_s
        if now_s - self._troubled_since_s < TELL_AFTER_S:
            return
        self._session.lookout.hurry()
        count = sum(batch.count for batch in self.accumulator.unresolved())
        if count and not self._told:
            self._told = True
            _log.warning(
                "waiting to send to %s (%d unsent or unconfirmed): %s",
                self.accumulator.partition,
                count,
                trouble.message,
            )

    # --- giving up ------------------------------------------------------------------------------

    def expire(self, created_before_s: float) -> None:
        """Fail what is older than the delivery timeout allows."""
        self._cancel(self.accumulator.expire(created_before_s))
        self.pump()

    def close(self, reason: str) -> None:
        """Fail everything that has no outcome yet."""
        self._closed = True
        self._cancel(self.accumulator.close(reason))

    def take(self, may_move: Callable[[OutgoingBatch], bool]) -> list[OutgoingBatch]:
        """Part with what may go to another partition."""
        taken, under_way = self.accumulator.take(may_move)
        self._cancel(under_way)
        return taken

    def _cancel(self, batches: list[OutgoingBatch]) -> None:
        for batch in batches:
            call = self._calls.pop(batch, None)
            if call is not None:
                call.cancel()


def _mismatch_from(told: streams_pb2.ProduceResponse.Mismatch) -> OffsetMismatchError:
    return OffsetMismatchError(told.message, told.hint, expected=told.expected, actual=told.actual)
