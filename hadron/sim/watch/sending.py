"""PROTOCOL D1: in which order a producer's batches leave, and under which numbers.

Only numbers keep records in order: a node steps over no gap, and knows a batch again. So whatever
leaves while an earlier batch of that producer has no outcome has the number behind it, under the
same id; and what may be in the log already goes there as it was.
"""

from __future__ import annotations

from hadron.client.accumulator import NOT_LOGGED, PartitionAccumulator
from hadron.client.outgoing import OutgoingBatch
from hadron.model.batch import BatchHead, read_head
from hadron.model.errors import CorruptionError, HadronError, RequestError, SequenceError
from hadron.sim.watch.views import Complaints

_ANSWERED = (*NOT_LOGGED, SequenceError, RequestError, CorruptionError)
"""Errors that only a node that has not logged the batch answers with."""


class Sending:
    """Every batch that leaves a producer."""

    def __init__(self, complaints: Complaints) -> None:
        self._complaints = complaints
        self._in_doubt: dict[OutgoingBatch, tuple[str, bytes]] = {}
        """Where it went, and its bytes, when it was lost from sight."""

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

    def failed(self, batch: OutgoingBatch, error: HadronError) -> None:
        """The call that carried it ended."""
        if not isinstance(error, _ANSWERED):
            self._in_doubt[batch] = batch.partition, batch.data

    def resolved(self, batch: OutgoingBatch) -> None:
        """Its sender is told what became of it."""
        self._in_doubt.pop(batch, None)


def _head(batch: OutgoingBatch) -> BatchHead:
    return read_head(batch.data)


def _follows(earlier: BatchHead, later: BatchHead) -> bool:
    return earlier.pid == later.pid and earlier.seq < later.seq


def _number(batch: OutgoingBatch) -> str:
    if not batch.data:
        return "it has no number yet"
    head = _head(batch)
    return f"{head.seq} of {head.pid.hex()}"
