"""PROTOCOL D1: in which order a producer's batches leave, and under which numbers.

Only numbers keep records in order: a node steps over no gap, and knows a batch again. So whatever
leaves while an earlier batch of that producer has no outcome has the number behind it, under the
same id; and what may be in the log already goes there as it was.

Who may be in a log somewhere stays in doubt until an answer says that it is there, whatever other
answers say: it goes nowhere else, unless its sender prefers twice to unknown, and that one is told
that nobody knows. And each partition's share of the buffer is what has no
outcome there: no more, or it has no room in the end, and no less, or there is no bound.
"""

from __future__ import annotations

from hadron.client.producing.accumulator import NOT_LOGGED, PartitionAccumulator
from hadron.client.producing.outgoing_batch import OutgoingBatch
from hadron.model.batch import BatchHead, read_head
from hadron.model.errors import (
    CorruptionError,
    HadronError,
    OffsetMismatchError,
    OutcomeUnknownError,
    RequestError,
    SequenceError,
)
from hadron.sim.watch.views import Complaints

_ANSWERED = (*NOT_LOGGED, SequenceError, RequestError, CorruptionError)
"""Errors that only a node that has not logged the batch answers with."""


class Sending:
    """Every batch that leaves a producer."""

    def __init__(self, complaints: Complaints) -> None:
        self._complaints = complaints
        self._in_doubt: dict[OutgoingBatch, tuple[str, bytes]] = {}
        """Where it went, and its bytes, when it was lost from sight."""
        self._under_way: dict[OutgoingBatch, str] = {}
        """Batches that a call carries, and where to."""
        self._maybe_in: dict[OutgoingBatch, str] = {}
        """Where a batch may be in the log although nobody has said so."""
        self.is_twice = False
        """Batches that move now are of a producer that prefers twice to unknown."""

    def leaves(self, accumulator: PartitionAccumulator, batch: OutgoingBatch) -> None:
        """It is to be sent now."""
        head = _head(batch)
        for earlier in accumulator.unresolved():
            if earlier.order >= batch.order:
                break
            if not earlier.data or not _follows(_head(earlier), head):
                self._complaints.add(
                    "D1 what follows has the number behind",
                    f"a batch of {batch.count} records to {batch.partition} leaves as {head.seq} "
                    f"of producer {head.pid.hex()}, and an earlier one has no outcome: "
                    f"{_number(earlier)}",
                )
                break
        partition, data = self._in_doubt.get(batch, ("", b""))
        if partition == batch.partition and data != batch.data:
            self._complaints.add(
                "D1 what may be logged is sent as it was",
                f"a batch of {batch.count} records to {partition} leaves as {head.seq} of producer "
                f"{head.pid.hex()}; it may be in the log under another number",
            )
        self._under_way[batch] = batch.partition

    def failed(self, batch: OutgoingBatch, error: HadronError) -> None:
        """The call that carried it ended."""
        partition = self._under_way.pop(batch, batch.partition)
        if not isinstance(error, _ANSWERED):
            self._in_doubt[batch] = batch.partition, batch.data
            self._maybe_in[batch] = partition

    def taken(self, batch: OutgoingBatch) -> None:
        """It goes to another partition; the call that carries it is cancelled. Who lets it go there
        although it may be logged here accepts another copy, here too should it come back."""
        if batch in self._maybe_in and not self.is_twice:
            self._complaints.add(
                "D1 what may be logged goes nowhere else",
                f"{batch.count} records may be in the log of {self._maybe_in[batch]}, and go to "
                "another partition",
            )
        self._in_doubt.pop(batch, None)
        if batch in self._under_way:
            self._maybe_in[batch] = self._under_way.pop(batch)

    def resolved(self, batch: OutgoingBatch) -> None:
        """Its sender is told what became of it."""
        self._in_doubt.pop(batch, None)
        place = self._maybe_in.pop(batch, "") or self._under_way.get(batch, "")
        self._under_way.pop(batch, None)
        error = batch.error
        # D5: who is told that a higher offset is there has no copy anywhere.
        is_known = isinstance(error, OffsetMismatchError) and error.actual > error.expected
        if place and error is not None and not (isinstance(error, OutcomeUnknownError) or is_known):
            self._complaints.add(
                "D1 what may be logged is not called lost",
                f"{batch.count} records may be in the log of {place}, and their sender is told: "
                f"{error}",
            )

    def counted(self, accumulator: PartitionAccumulator) -> None:
        """Something has come, gone or been answered."""
        unresolved = sum(batch.size for batch in accumulator.unresolved())
        if accumulator.held_bytes != unresolved:
            self._complaints.add(
                "D1 a share counts what has no outcome",
                f"{accumulator.stream}/{accumulator.partition} counts {accumulator.held_bytes} "
                f"bytes of the buffer, and {unresolved} have no outcome there",
            )


def _head(batch: OutgoingBatch) -> BatchHead:
    return read_head(batch.data)


def _follows(earlier: BatchHead, later: BatchHead) -> bool:
    return earlier.pid == later.pid and earlier.seq < later.seq


def _number(batch: OutgoingBatch) -> str:
    if not batch.data:
        return "it has no number yet"
    head = _head(batch)
    return f"{head.seq} of {head.pid.hex()}"
