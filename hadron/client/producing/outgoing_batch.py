"""A batch on its way out: from its first record to its outcome.

Pure. The accumulator moves it through its states; whoever sent a record looks here for what
became of it.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from hadron.model.batch import encode_batch
from hadron.model.batch_building import BatchBuilder, encode_values
from hadron.model.errors import ConflictError, HadronError
from hadron.model.record import BYTES, NewRecord
from hadron.model.record_batch import decode_batch


class Identity(NamedTuple):
    """Whose sequence it is that numbers a batch."""

    producer_id: bytes
    epoch: int = 0


class Waiter(Protocol):
    """What is told once a batch is done: an event of the world that the client runs in."""

    def set(self) -> object: ...

    async def wait(self) -> object: ...


class BatchState(enum.Enum):
    OPEN = enum.auto()
    """Takes more records."""
    QUEUED = enum.auto()
    """Complete, and to be sent."""
    SENT = enum.auto()
    """A call that carries it is under way."""
    UNANSWERED = enum.auto()
    """Sent before, and perhaps in the log: it is sent again as it is, or `resume` sorts it."""
    ACKED = enum.auto()
    FAILED = enum.auto()


class OutgoingBatch:
    """Records of one partition, numbered in one go, with one outcome."""

    __slots__ = (
        "_builder",
        "_encoding",
        "_now_ms",
        "_values",
        "added",
        "append_ms",
        "base_offset",
        "count",
        "created_s",
        "data",
        "doubtful",
        "doubtful_elsewhere",
        "duplicate",
        "error",
        "expect_key_offset",
        "expect_offset",
        "heard",
        "order",
        "out_of_sequence",
        "partition",
        "refusals",
        "sequences",
        "size",
        "state",
        "stream",
        "trouble",
        "waiter",
    )

    def __init__(self, stream: str, partition: str, order: int, created_s: float) -> None:
        self.stream = stream
        self.partition = partition
        self.order = order
        self.created_s = created_s
        self.state = BatchState.OPEN
        self.count = 0
        self.size = 0
        """What its records take of the producer's buffer, bytes."""
        self.added = 0
        """What the last record added to `size`."""
        self.data = b""
        """Encoded and numbered; empty before the first send."""
        self.doubtful = False
        """It may be in the log, or get there, although nobody said so."""
        self.doubtful_elsewhere = False
        """It was when it moved here from another partition (`failover="duplicate"`)."""
        self.out_of_sequence = False
        """The last answer was that it does not follow what is in the log."""
        self.refusals = 0
        """Times that it did not follow although nothing ahead of it was open."""
        self.trouble: HadronError | None = None
        """Why an earlier try came to nothing."""
        self.error: HadronError | None = None
        self.base_offset = 0
        self.append_ms = 0
        self.duplicate = False
        self.waiter: Waiter | None = None
        self.heard = 0
        """Of its records, those whose failure somebody has seen, or waits for."""
        self.expect_offset: int | None = None
        self.expect_key_offset: int | None = None
        """What its one record asks for."""
        self.sequences: list[int] = []
        """What the program has numbered its records; empty where it does not."""
        self._builder: BatchBuilder | None = None
        self._values: Sequence[bytes] = ()
        self._encoding = BYTES
        self._now_ms = 0

    # --- filling --------------------------------------------------------------------------------

    def add(self, record: NewRecord, now_ms: int) -> int:
        """Append one record and return its index. Raises `InvalidRecordError`, changing nothing."""
        builder = self._builder
        if builder is None:
            builder = BatchBuilder()
        index = builder.add(record, now_ms)
        self._builder = builder
        self.count = index + 1
        self.added = builder.size - self.size
        self.size = builder.size
        return index

    @property
    def is_conditional(self) -> bool:
        """It has one record, which names what is to be so where it is logged: there it stays."""
        return self.expect_offset is not None or self.expect_key_offset is not None

    @property
    def first_sequence(self) -> int | None:
        return self.sequences[0] if self.sequences else None

    @property
    def last_sequence(self) -> int | None:
        return self.sequences[-1] if self.sequences else None

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing more to it than its records."""
        return not self.is_conditional and self.last_sequence is None

    @property
    def is_held_off(self) -> bool:
        """Whether a transaction has kept it out of the log, when it was tried last."""
        return isinstance(self.trouble, ConflictError)

    def fill(self, values: Sequence[bytes], size: int, now_ms: int, encoding: int = BYTES) -> None:
        """Make the batch out of plain values; `size` is what they take of the buffer."""
        self._values = values
        self._encoding = encoding
        self._now_ms = now_ms
        self.count = len(values)
        self.size = size

    def is_full(self, batch_bytes: int) -> bool:
        builder = self._builder
        return self.size >= batch_bytes or (builder is not None and builder.full)

    # --- sending --------------------------------------------------------------------------------

    def number(self, identity: Identity, sequence: int, codec: str) -> None:
        """Encode under a sequence, or once more under another one.

        Raises `RecordTooLargeError` or `InvalidRecordError` when the records make no batch.
        """
        producer_id, epoch = identity
        if self.data:
            # Its records went when it was first encoded; only a hole in the sequence leads here.
            decoded = decode_batch(self.data)
            decoded.head.pid, decoded.head.pep = producer_id, epoch
            decoded.head.seq = sequence
            self.data = encode_batch(decoded.head, decoded.body, codec)
        elif self._builder is not None:
            self.data = self._builder.build(
                producer_id=producer_id, producer_epoch=epoch, sequence=sequence, codec=codec
            )
            self._builder = None
        else:
            self.data = encode_values(
                self._values,
                self._now_ms,
                producer_id=producer_id,
                producer_epoch=epoch,
                sequence=sequence,
                codec=codec,
                encoding=self._encoding,
            )
            self._values = ()

    def move(self, partition: str, order: int) -> None:
        """To the end of another partition's queue, to be numbered there."""
        self.partition = partition
        self.order = order
        self.state = BatchState.QUEUED
        self.doubtful_elsewhere |= self.doubtful
        self.doubtful = self.out_of_sequence = False
        self.refusals = 0

    # --- outcome --------------------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        return self.state is BatchState.ACKED or self.state is BatchState.FAILED

    @property
    def is_unheard(self) -> bool:
        """Whether it has a record whose failure nobody sees by waiting for it."""
        return self.heard < self.count

    @property
    def may_be_logged(self) -> bool:
        """Whether nobody knows that it is in no log."""
        return self.doubtful or self.doubtful_elsewhere

    def acked(self, base_offset: int, append_ms: int, duplicate: bool) -> None:
        self.base_offset = base_offset
        self.append_ms = append_ms
        self.duplicate = duplicate
        self._done(BatchState.ACKED)

    def failed(self, error: HadronError) -> None:
        self.error = error
        self._done(BatchState.FAILED)

    def _done(self, state: BatchState) -> None:
        self.state = state
        self.data = b""
        self._builder = None
        self._values = ()
        if self.waiter is not None:
            self.waiter.set()

    def failure(self) -> HadronError:
        """The batch's error as an exception of its own: several waiters raise it."""
        error = self.error
        assert error is not None
        return copy.copy(error)
