"""The producer's state for one partition: which batch is sent when, under which sequence.

Pure: no I/O and no clock; a driver sends what `next_batch` gives and reports what came of it.

Rules (PROTOCOL D1):

* Sequences count records. A batch is numbered when it is first sent, under one random producer
  id, so numbered batches have no gap between them; at most `window` of them are unresolved.
* A batch whose call ended without a clear answer is *doubtful* from then on: it may be in the log,
  or still get there from a connection that the node has not read to its end. It is sent again
  with identical bytes, in order, and the server's dedupe gives the original answer.
* After any answer but success nothing is sent until all calls under way have ended (`stalled`);
  then `resume` sorts what is left. So order never depends on how answers interleave.
* When a numbered batch fails, its sequence is a hole that the server would never step over. The
  simplest cure that cannot double a record: doubtful batches keep their numbers and are sent
  again; those that "do not follow" (`SequenceError`) are given up with `OutcomeUnknownError`,
  because another copy of them may still be under way. Once nothing is in doubt, the others, of
  which no copy can be anywhere, are numbered again from 0 under a *new* producer id.
* A producer with a name cannot have a new id: it claims its name again (`needs_claim`), which
  gives it a higher epoch, or says that somebody else has the name.
* "Does not follow" without a hole means that the server forgot the producer (24 idle hours, or a
  tail lost with `acks=leader`): the same cure.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from hadron.client.producing.outgoing_batch import BatchState, Identity, OutgoingBatch
from hadron.model.batch import NO_SEQUENCE
from hadron.model.errors import (
    ConflictError,
    CorruptionError,
    DeadlineExceededError,
    HadronError,
    InvalidRecordError,
    MetadataBehindError,
    NotLeaderError,
    NotReadyError,
    OffsetMismatchError,
    OutcomeUnknownError,
    OverloadedError,
    ProducerFencedError,
    RequestError,
    SequenceError,
    UnreachableError,
)
from hadron.model.limits import PRODUCER_WINDOW
from hadron.model.record import BYTES, NewRecord
from hadron.model.words import counted

NOT_LOGGED: Final = (
    ConflictError,
    NotLeaderError,
    NotReadyError,
    OverloadedError,
    MetadataBehindError,
    UnreachableError,
)
"""Answers that a node gives before it logs anything: the batch is not in the log because of
this call."""

MAX_REFUSALS: Final = 3
"""Times that a batch may be renumbered because it "does not follow" although all before it is in
the log. Once is normal after 24 idle hours; a server that refuses fresh producer ids is broken."""


NOT_KNOWN: Final = -1
"""The offset of a record that an earlier process has logged under the same name and sequence."""


class Claim(NamedTuple):
    """A named producer's claim of one partition: its identity there, and the last sequence that its
    program has given to a record which is in the log, -1 for none."""

    identity: Identity
    last_sequence: int


class PartitionAccumulator:
    """Batches of one partition, in the order in which their records were given.

    Args:
        new_producer_id: gives 16 random bytes; where the producer has no name.
        claim: where it has one: of this partition.
        on_resolved: called with every batch that is acked or failed.
        batch_bytes: a batch is complete once it holds this much.
    """

    def __init__(
        self,
        stream: str,
        partition: str,
        *,
        new_producer_id: Callable[[], bytes] | None = None,
        claim: Claim | None = None,
        on_resolved: Callable[[OutgoingBatch], None],
        batch_bytes: int,
        codec: str = "none",
        window: int = PRODUCER_WINDOW,
    ) -> None:
        self.stream = stream
        self.partition = partition
        self.stalled = False
        """An answer was not a success: nothing is sent before `resume`."""
        self.in_flight = 0
        """Calls under way."""
        self.held_bytes = 0
        """Of records without an outcome."""
        self._new_producer_id = new_producer_id
        self._on_resolved = on_resolved
        self._batch_bytes = batch_bytes
        self._codec = codec
        self._window = window
        self.claim = claim
        if claim is not None:
            self._identity = claim.identity
            self.last_sequence = claim.last_sequence
        else:
            assert new_producer_id is not None
            self._identity = Identity(new_producer_id())
            self.last_sequence = NO_SEQUENCE
        self._given_sequence = self.last_sequence
        """The program's own, of what was taken last."""
        self._failed_sequences: list[int] = []
        """The program's own, of records that have failed, until it gives them again: a heap."""
        self._next_sequence = 0
        self._next_order = 0
        self._hole = False
        self._open: OutgoingBatch | None = None
        self._queue: deque[OutgoingBatch] = deque()
        self._resend: deque[OutgoingBatch] = deque()
        self._sent: list[OutgoingBatch] = []

    # --- what is there --------------------------------------------------------------------------

    @property
    def has_open(self) -> bool:
        return self._open is not None

    @property
    def is_empty(self) -> bool:
        """Nothing is unresolved."""
        return self._open is None and not (self._queue or self._resend or self._sent)

    def unresolved(self) -> list[OutgoingBatch]:
        """Every batch without an outcome, in order."""
        last = [] if self._open is None else [self._open]
        batches = [*self._sent, *self._resend, *self._queue, *last]
        return sorted(batches, key=lambda batch: batch.order)

    @property
    def needs_claim(self) -> bool:
        """Whether its name has to be claimed again before anything more is sent."""
        return self.claim is not None and self._hole and not (self._sent or self._resend)

    @property
    def needs_patience(self) -> bool:
        """Whether trying again makes sense only after a while."""
        return any(
            batch.state is BatchState.UNANSWERED and not batch.out_of_sequence
            for batch in (*self._sent, *self._resend)
        )

    # --- filling --------------------------------------------------------------------------------

    def add(self, record: NewRecord, now_ms: int, now_s: float) -> tuple[OutgoingBatch, int]:
        """Put one record into the open batch; return the batch and the record's index in it.

        Raises `InvalidRecordError` or `RecordTooLargeError`, and nothing has changed.
        """
        batch = self._open
        if batch is None:
            batch = self._new_batch(now_s)
        index = batch.add(record, now_ms)
        self.held_bytes += batch.added
        self._open = batch
        if batch.is_full(self._batch_bytes):
            self.seal()
        return batch, index

    def add_conditional(self, record: NewRecord, now_ms: int, now_s: float) -> OutgoingBatch:
        """Put a record that expects something into a batch of its own. Raises as `add` does."""
        batch = self._new_batch(now_s)
        batch.add(record, now_ms)
        batch.expect_offset = record.expect_offset
        batch.expect_key_offset = record.expect_key_offset
        self.held_bytes += batch.added
        self.seal()
        batch.state = BatchState.QUEUED
        self._queue.append(batch)
        return batch

    def add_numbered(
        self, record: NewRecord, sequence: int, now_ms: int, now_s: float
    ) -> tuple[OutgoingBatch, int]:
        """Put a record in that its program has numbered; one that is in the log already comes back
        as that. Raises `InvalidRecordError` where numbers do not rise, and as `add` does."""
        if sequence <= self.last_sequence:
            known = self._new_batch(now_s)
            known.count = 1
            known.acked(NOT_KNOWN, 0, duplicate=True)
            return known, 0
        if sequence <= self._given_sequence:
            # Those before it may have failed by now, and be given again.
            given = [each.last_sequence for each in self.unresolved()]
            self._given_sequence = max((each for each in given if each is not None), default=-1)
        if sequence <= self._given_sequence:
            raise InvalidRecordError(
                f"the sequence {sequence} comes behind {self._given_sequence}, which is on its way "
                f"to {self.stream}/{self.partition}",
                "sequences rise within a partition",
            )
        missing = self._missing()
        if missing is not None and sequence > missing:
            raise InvalidRecordError(
                f"the sequence {sequence} comes behind {missing}, which has failed, to "
                f"{self.stream}/{self.partition}: the last one is all that is known of a name",
                "give that one again first; to leave it out, open the producer again",
            )
        batch, index = self.add(record, now_ms, now_s)
        if sequence == missing:
            # Only this one: those behind it that have failed too come before any other.
            heapq.heappop(self._failed_sequences)
        self._given_sequence = sequence
        batch.sequences.append(sequence)
        if self._hole:
            # What was in doubt may be in the log, and be given again: each is told by itself.
            self.seal()
        return batch, index

    def add_values(
        self, values: Sequence[bytes], size: int, now_ms: int, now_s: float, encoding: int = BYTES
    ) -> OutgoingBatch:
        """Append a whole batch of plain values that take `size` bytes of the buffer."""
        self.seal()
        batch = self._new_batch(now_s)
        batch.fill(values, size, now_ms, encoding)
        self.held_bytes += size
        batch.state = BatchState.QUEUED
        self._queue.append(batch)
        return batch

    def _new_batch(self, now_s: float) -> OutgoingBatch:
        self._next_order += 1
        return OutgoingBatch(self.stream, self.partition, self._next_order, now_s)

    def seal(self) -> None:
        """Let the open batch go as soon as the window allows, however small it is."""
        batch = self._open
        if batch is not None:
            batch.state = BatchState.QUEUED
            self._queue.append(batch)
            self._open = None

    # --- sending --------------------------------------------------------------------------------

    def next_batch(self, *, eager: bool = False) -> OutgoingBatch | None:
        """The batch to send now, encoded, or None. It counts as under way from here on.

        The open batch goes when nothing is under way (so a lone record never waits), or when
        `eager`; otherwise it keeps growing until an answer comes or somebody seals it.
        """
        while not self.stalled and len(self._sent) < self._window:
            if self._sent and self._sent[0].is_held_off:
                # What is behind it is refused for as long as it is itself.
                return None
            if self._resend:
                return self._launch(self._resend.popleft())
            if self._open is not None and not self._queue and (eager or not self._sent):
                self.seal()
            if not self._queue or (self._hole and self._sent):
                return None
            if self._hole and self.claim is not None:
                return None
            if self._hole:
                self._start_afresh()
            batch = self._queue.popleft()
            if self._number(batch):
                return self._launch(batch)
        return None

    def _launch(self, batch: OutgoingBatch) -> OutgoingBatch:
        batch.state = BatchState.SENT
        batch.out_of_sequence = False
        self._sent.append(batch)
        self.in_flight += 1
        return batch

    def _missing(self) -> int | None:
        """The number of a record that is not known to be in the log, and must be before any with a
        higher one: who comes after this producer goes on behind the last (PROTOCOL D6)."""
        failed = self._failed_sequences
        while failed and failed[0] <= self.last_sequence:
            # It was in doubt, and a claim has said that it is there.
            heapq.heappop(failed)
        return failed[0] if failed else None

    def _number(self, batch: OutgoingBatch) -> bool:
        missing, first = self._missing(), batch.first_sequence
        if missing is not None and first is not None and first > missing:
            self._fail(batch, _behind(batch, missing))
            return False
        try:
            batch.number(self._identity, self._next_sequence, self._codec)
        except HadronError as error:
            self._fail(batch, error)
            return False
        except Exception as error:
            # Each record was looked at before, so this is a bug; who sent them hears of it, and the
            # task that came to send this batch goes on with the others.
            self._fail(batch, _no_batch(batch, error))
            return False
        self._next_sequence += batch.count
        return True

    def _start_afresh(self) -> None:
        assert self._new_producer_id is not None
        self._identity = Identity(self._new_producer_id())
        self._next_sequence = 0
        self._hole = False

    def claimed(self, claim: Claim) -> None:
        """The name is this producer's still, or again: nothing of an earlier claim can come any
        more, and what it has brought is known."""
        assert self.needs_claim
        self.claim, self._identity = claim, claim.identity
        self._next_sequence = 0
        self._hole = False
        self.last_sequence = max(self.last_sequence, claim.last_sequence)
        known = [
            batch
            for batch in self._queue
            if batch.last_sequence is not None and batch.last_sequence <= self.last_sequence
        ]
        for batch in known:
            self._queue.remove(batch)
            self.held_bytes -= batch.size
            batch.acked(NOT_KNOWN, 0, duplicate=True)
            self._on_resolved(batch)

    def refuse_all(self, error: HadronError) -> None:
        """Nothing more can be sent. Only while nothing is under way."""
        for batch in self.unresolved():
            self._forget(batch)
            self._fail(batch, _unknown(batch, str(error)) if batch.may_be_logged else error)

    # --- answers --------------------------------------------------------------------------------

    def acked(
        self, batch: OutgoingBatch, base_offset: int, append_ms: int, duplicate: bool
    ) -> None:
        """The batch under way is in the log."""
        self._sent.remove(batch)
        self.in_flight -= 1
        batch.acked(base_offset, append_ms, duplicate)
        if batch.last_sequence is not None:
            self.last_sequence = max(self.last_sequence, batch.last_sequence)
        self.held_bytes -= batch.size
        self._on_resolved(batch)

    def refused(self, batch: OutgoingBatch, error: HadronError) -> None:
        """The call of a batch under way ended with an error; sorts out what it means."""
        self.in_flight -= 1
        self.stalled = True
        is_fenced = isinstance(error, ProducerFencedError)
        if isinstance(error, SequenceError) and batch.refusals < MAX_REFUSALS and not is_fenced:
            batch.state = BatchState.UNANSWERED
            # What one ahead of it has left open, by failing or without an answer, is not its own.
            batch.refusals += self._sent[0] is batch and not self._hole
            batch.out_of_sequence = True
        elif isinstance(error, (RequestError, CorruptionError)) and not isinstance(
            error, ConflictError
        ):
            self._sent.remove(batch)
            self._hole = True
            in_doubt = batch.may_be_logged and not _is_final(error)
            self._fail(batch, _unknown(batch, str(error)) if in_doubt else error)
        else:
            batch.state = BatchState.UNANSWERED
            batch.trouble = error
            if not isinstance(error, NOT_LOGGED):
                batch.doubtful = True

    def resume(self) -> None:
        """Sort what is unresolved and allow sending again. Only while nothing is under way."""
        assert self.in_flight == 0
        self.stalled = False
        waiting = sorted([*self._sent, *self._resend], key=lambda batch: batch.order)
        self._sent = []
        if waiting and waiting[0].out_of_sequence:
            # Everything before it is in the log, and still it does not follow.
            self._hole = True
        if not self._hole:
            self._resend = deque(waiting)
            return
        self._resend = deque()
        for batch in waiting:
            if not batch.doubtful:
                batch.state = BatchState.QUEUED
                self._queue.append(batch)
            elif batch.out_of_sequence:
                self._fail(batch, _unknown(batch, "it no longer follows what is in the log"))
            else:
                self._resend.append(batch)
        self._queue = deque(sorted(self._queue, key=lambda batch: batch.order))

    # --- to another partition -------------------------------------------------------------------

    def take(
        self, may_move: Callable[[OutgoingBatch], bool]
    ) -> tuple[list[OutgoingBatch], list[OutgoingBatch]]:
        """Part with the batches that may move; return them in order, and those of them whose calls
        should be cancelled."""
        taken = [batch for batch in self.unresolved() if may_move(batch)]
        under_way = []
        for batch in taken:
            self.held_bytes -= batch.size
            if self._withdraw(batch):
                under_way.append(batch)
                batch.doubtful = True
        return taken, under_way

    def adopt(self, batch: OutgoingBatch) -> None:
        """Append a batch that another partition's accumulator has parted with."""
        self.seal()
        self._next_order += 1
        batch.move(self.partition, self._next_order)
        self.held_bytes += batch.size
        self._queue.append(batch)

    # --- giving up ------------------------------------------------------------------------------

    def expire(self, created_before_s: float) -> list[OutgoingBatch]:
        """Fail what is older; return the batches whose calls should be cancelled."""
        old = [batch for batch in self.unresolved() if batch.created_s <= created_before_s]
        return self._give_up(old, "the delivery timeout passed")

    def close(self, reason: str) -> list[OutgoingBatch]:
        """Fail everything; return the batches whose calls should be cancelled."""
        return self._give_up(self.unresolved(), reason)

    def _give_up(self, batches: Iterable[OutgoingBatch], reason: str) -> list[OutgoingBatch]:
        under_way = []
        for batch in batches:
            was_sent = self._withdraw(batch)
            if was_sent:
                under_way.append(batch)
            if was_sent or batch.may_be_logged:
                self._fail(batch, _unknown(batch, reason))
            else:
                self._fail(batch, _not_sent(batch, reason))
        return under_way

    def _withdraw(self, batch: OutgoingBatch) -> bool:
        """Forget a batch; returns whether a call carries it."""
        was_sent = batch.state is BatchState.SENT
        self._forget(batch)
        if was_sent:
            self.in_flight -= 1
        if was_sent or batch.state is BatchState.UNANSWERED:
            self._hole = True
            self.stalled = True
        return was_sent

    def _forget(self, batch: OutgoingBatch) -> None:
        if batch is self._open:
            self._open = None
        elif batch in self._sent:
            self._sent.remove(batch)
        elif batch in self._resend:
            self._resend.remove(batch)
        else:
            self._queue.remove(batch)

    def _fail(self, batch: OutgoingBatch, error: HadronError) -> None:
        for sequence in batch.sequences:
            heapq.heappush(self._failed_sequences, sequence)
        batch.failed(error)
        self.held_bytes -= batch.size
        self._on_resolved(batch)


def _is_final(error: HadronError) -> bool:
    """Whether another copy that is still under way is refused as well, and none was logged: its
    leader would have known it by its sequence. Offsets only rise; but where no record of a key was
    expected, retention may drop the one that is there, and the copy finds what it expects."""
    return isinstance(error, OffsetMismatchError) and error.actual > error.expected >= 0


def _unknown(batch: OutgoingBatch, reason: str) -> OutcomeUnknownError:
    last = f"; last trouble: {batch.trouble.message}" if batch.trouble is not None else ""
    return OutcomeUnknownError(
        f"{_count(batch)} may or may not be in the log: {reason}{last}",
        "look for them in the stream before sending them again",
    )


def _no_batch(batch: OutgoingBatch, error: Exception) -> InvalidRecordError:
    return InvalidRecordError(
        f"not sent: {_count(batch)} cannot be encoded: {type(error).__name__}: {error}",
        "nothing of that is in the log; this is a bug: `send` refuses what cannot be sent",
    )


def _behind(batch: OutgoingBatch, missing: int) -> RequestError:
    return RequestError(
        f"not sent, and not in the log: {_count(batch)}: the one with the sequence {missing}, "
        "before it, has failed",
        "give them again from that one on",
    )


def _not_sent(batch: OutgoingBatch, reason: str) -> DeadlineExceededError:
    last = f"; last trouble: {batch.trouble.message}" if batch.trouble is not None else ""
    hint = "is the partition's leader up? see `hadron status`"
    if isinstance(batch.trouble, (ConflictError, OverloadedError)) and batch.trouble.hint:
        # It is up, and has said itself what would help.
        hint = batch.trouble.hint
    return DeadlineExceededError(
        f"not sent, and not in the log: {_count(batch)}: {reason}{last}", hint
    )


def _count(batch: OutgoingBatch) -> str:
    return f"{counted(batch.count, 'record')} to {batch.stream}/{batch.partition}"
