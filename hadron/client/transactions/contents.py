"""What a transaction does, gathered into statements while its program works. Pure.

Records of one partition share a batch, which is one statement, until it is large enough or is to be
sent; acknowledgements of one group's deliveries share ranges. So a thousand small calls are a few
statements. Safety rule: what the driver answers is told apart by the order in which statements of a
replica set were sent, so a statement is numbered when it is complete, and never changed after.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from hadron.client.terms.results import BatchReceipt, Receipt
from hadron.model.batch_building import BatchBuilder, encode_values
from hadron.model.errors import InvalidRecordError, RecordTooLargeError, RequestError
from hadron.model.ids import Ballot
from hadron.model.limits import MAX_BATCH_BYTES, MAX_TRANSACTION_BYTES, MAX_TRANSACTION_STATEMENTS
from hadron.model.ranges import melted
from hadron.model.record import NewRecord
from hadron.model.words import counted
from hadron.wire.messages import ballot_to, transactions_pb2

if TYPE_CHECKING:
    from hadron.client.connecting.session import Session

BATCH_BYTES: Final = 192 << 10
"""Of a batch that is complete: as a producer's."""

SHARED_BYTES: Final = 16 << 10
"""Of one of the transactions that share a batch, and of what they find there: with more they gain
little by it, and who reads one of them reads all."""

_RANGES_PER_STATEMENT: Final = 5_000
"""Some 100 kB: a statement has half a megabyte at most, besides its batch, and a message has 10,000
ranges at most (`wire.messages.weight_of`)."""

_Statement = transactions_pb2.Statement


class StreamName(NamedTuple):
    """A stream, as statements name it (PROTOCOL D3)."""

    name: str
    id: int
    metadata_index: int


class Place:
    """A partition that records go to.

    Attributes:
        is_indexed: its records' keys are.
    """

    __slots__ = ("is_indexed", "publish", "replica_set", "stream")

    def __init__(self, replica_set: str, stream: StreamName, *, is_indexed: bool = False) -> None:
        self.replica_set = replica_set
        self.is_indexed = is_indexed
        self.stream = stream.name
        self.publish = _Statement.Publish(stream_id=stream.id, metadata_index=stream.metadata_index)


class Claimed(NamedTuple):
    """Offsets of one delivery, both ends inclusive; see `Claim`."""

    ballot: Ballot
    delivery: int
    first: int
    last: int


class Claim(NamedTuple):
    """Records that were delivered to a member, and are to be acknowledged.

    Attributes:
        session: of the member's client.
        ranges: in which deliveries they came.
    """

    session: Session
    replica_set: str
    stream: StreamName
    group: str
    ranges: Sequence[Claimed]


class Claimable(Protocol):
    """A delivery, or a batch of them."""

    def _claim(self) -> Claim:
        """They count as acknowledged from here on. Raises `RequestError` when they did before."""
        ...

    def _unclaim(self) -> None:
        """They were not acknowledged after all."""
        ...


class Batch:
    """Records of one statement.

    Attributes:
        start: where they begin in `result`, which is of other transactions' records, too.
        result: what became of it, once its transaction is committed; None where that is not known,
            as when the partition's replica set is away.
    """

    __slots__ = ("builder", "count", "own_ids", "place", "result", "start")

    def __init__(self, place: Place) -> None:
        self.place = place
        self.own_ids: dict[int, str] = {}
        self.builder: BatchBuilder | None = None
        self.count = self.start = 0
        self.result: transactions_pb2.StatementResult | None = None

    def record_receipt(self, index: int) -> Receipt | None:
        found = self.receipt(index, 1)
        if found is None:
            return None
        own_id = self.own_ids.get(index, "")
        return Receipt(
            found.stream, found.partition, found.base_offset, found.append_ms, False, own_id
        )

    @property
    def is_logged(self) -> bool:
        return self.result is not None and self.result.HasField("base_offset")

    def receipt(self, first: int, count: int) -> BatchReceipt | None:
        """Of some of its records."""
        result = self.result
        if result is None or not result.HasField("base_offset"):
            return None
        place = self.place
        return BatchReceipt(
            place.stream,
            place.replica_set,
            result.base_offset + self.start + first,
            count,
            result.append_ms,
            False,
        )


class Published:
    """A record of a transaction."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch = batch
        self._index = index

    def __repr__(self) -> str:
        place = self._batch.place
        state = "committed" if self._batch.is_logged else "not known to be committed"
        return f"<Published to {place.stream}/{place.replica_set}, {state}>"

    @property
    def receipt(self) -> Receipt | None:
        """Where the record is, once its transaction is committed; None before, and where nothing
        was published: its stream was deleted just then. Of a replica set that was away at the
        commit it comes with `Client.outcome`."""
        return self._batch.record_receipt(self._index)


class PublishedMany:
    """Records of a transaction that were given together."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[tuple[Batch, int, int]] = []

    def __repr__(self) -> str:
        records = counted(sum(count for _, _, count in self._parts), "record")
        return f"<PublishedMany, {records}>"

    def _add(self, batch: Batch, first: int, count: int) -> None:
        """Records of a batch; those that follow the last ones are counted to them."""
        if self._parts and self._parts[-1][0] is batch:
            _, before, known = self._parts[-1]
            if before + known == first:
                self._parts[-1] = batch, before, known + count
                return
        self._parts.append((batch, first, count))

    @property
    def receipts(self) -> list[BatchReceipt]:
        """The runs of consecutive offsets that they got, as `Published.receipt` has it."""
        found = (batch.receipt(first, count) for batch, first, count in self._parts)
        return [each for each in found if each is not None]


class _Acks:
    """Deliveries to one group at one partition, which came in one ballot."""

    __slots__ = ("_ranges", "message")

    def __init__(self, claim: Claim, ballot: Ballot) -> None:
        self._ranges: dict[int, list[tuple[int, int]]] = {}
        self.message = _Statement.Acknowledge(
            stream_id=claim.stream.id,
            metadata_index=claim.stream.metadata_index,
            group=claim.group,
            ballot=ballot_to(ballot),
        )

    def add(self, delivery: int, first: int, last: int) -> None:
        known = self._ranges.get(delivery)
        if known is None:
            self._ranges[delivery] = [(first, last)]
        elif known[-1][1] + 1 == first:
            known[-1] = known[-1][0], last
        else:
            known.append((first, last))

    def messages(self) -> list[transactions_pb2.Statement.Acknowledge]:
        ranges = [
            (delivery, first, last)
            for delivery, known in self._ranges.items()
            for first, last in melted(known)
        ]
        made = []
        for start in range(0, len(ranges), _RANGES_PER_STATEMENT):
            message = _Statement.Acknowledge()
            message.CopyFrom(self.message)
            for delivery, first, last in ranges[start : start + _RANGES_PER_STATEMENT]:
                message.ranges.add(delivery=delivery, first_offset=first, last_offset=last)
            made.append(message)
        return made


def _no_part_of_one(record: NewRecord) -> InvalidRecordError:
    """Why a record cannot be in a transaction."""
    if record.expect_offset is not None:
        return InvalidRecordError(
            f"expect_offset {record.expect_offset} cannot be in a transaction: nobody else could "
            "write to the partition until it is over",
            "expect the offset of a key's latest record (expect_key_offset), or send it alone",
        )
    return InvalidRecordError(
        f"sequence {record.sequence} cannot be in a transaction, which is done once anyway",
        "keep your position in a record of it, or send it with a named producer",
    )


class Contents:
    """Of one transaction.

    Attributes:
        codec: of its batches.
        count: of statements that are complete.
        size: of their batches and those that are being filled, in bytes.
        waiting_bytes: of what `take` has not given yet.
    """

    __slots__ = (
        "_acks",
        "_batches",
        "_bodies",
        "_by_set",
        "_open",
        "_statements",
        "codec",
        "count",
        "size",
        "waiting_bytes",
    )

    def __init__(self, codec: str = "none") -> None:
        self.count = self.size = self.waiting_bytes = 0
        self.codec = codec
        self._open: dict[Place, Batch] = {}
        self._acks: dict[tuple[Any, ...], tuple[str, _Acks]] = {}
        self._statements: list[transactions_pb2.Statement] = []
        self._bodies: list[bytes] = []
        self._by_set: dict[str, list[Batch | None]] = {}
        self._batches: list[Batch] = []

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever added."""
        return not (self.count or self._open or self._acks)

    @property
    def has_waiting(self) -> bool:
        return bool(self._statements or self._open or self._acks)

    @property
    def replica_sets(self) -> list[str]:
        """Where it has said to do something."""
        return list(self._by_set)

    def is_at(self, replica_set: str) -> bool:
        """Whether it does something there."""
        return (
            replica_set in self._by_set
            or any(place.replica_set == replica_set for place in self._open)
            or any(each == replica_set for each, _ in self._acks.values())
        )

    # --- filling --------------------------------------------------------------------------------

    def add(self, place: Place, record: NewRecord, now_ms: int) -> tuple[Batch, int]:
        """One record; returns its batch, and its index there. Raises `InvalidRecordError` or
        `RecordTooLargeError`, and nothing has changed; `RequestError` over the limits."""
        if record.expect_key_offset is not None:
            return self._add_expecting(place, record, now_ms, record.expect_key_offset), 0
        if record.expect_offset is not None or record.sequence is not None:
            raise _no_part_of_one(record)
        batch = self._open.get(place)
        if batch is None:
            batch = Batch(place)
            builder = batch.builder = BatchBuilder()
        else:
            assert batch.builder is not None
            builder = batch.builder
        before = builder.size
        index = builder.add(record, now_ms)
        batch.count = index + 1
        if record.id:
            batch.own_ids[index] = record.id
        if not index:
            self._open[place] = batch
            self._batches.append(batch)
        self._grow(builder.size - before)
        if builder.size >= BATCH_BYTES or builder.full:
            self._seal(batch)
        return batch, index

    def _add_expecting(self, place: Place, record: NewRecord, now_ms: int, expected: int) -> Batch:
        """A condition is of one record, so that is a batch."""
        if record.expect_offset is not None or record.sequence is not None:
            raise _no_part_of_one(record)
        if not place.is_indexed:
            raise InvalidRecordError(
                f"expect_key_offset {expected}: stream {place.stream!r} has no index of keys",
                "create one with `keys: indexed`",
            )
        builder = BatchBuilder()
        builder.add(record, now_ms)
        before = self._open.get(place)
        if before is not None:
            self._seal(before)
        batch = Batch(place)
        batch.count = 1
        if record.id:
            batch.own_ids[0] = record.id
        self._batches.append(batch)
        self._grow(builder.size)
        publish = _Statement.Publish()
        publish.CopyFrom(place.publish)
        publish.expect_key_offset = expected
        self._complete_batch(batch, builder.build(codec=self.codec), publish)
        return batch

    def add_values(self, place: Place, values: Sequence[bytes], size: int, now_ms: int) -> Batch:
        """A batch of plain values, which take `size` bytes."""
        before = self._open.get(place)
        if before is not None:
            self._seal(before)
        batch = Batch(place)
        batch.count = len(values)
        data = encode_values(values, now_ms, codec=self.codec)
        self._batches.append(batch)
        self._grow(size)
        self._complete_batch(batch, data)
        return batch

    def acknowledge(self, claim: Claim) -> None:
        for ballot, delivery, first, last in claim.ranges:
            key = claim.replica_set, claim.stream.id, claim.group, ballot
            found = self._acks.get(key)
            if found is None:
                found = self._acks[key] = claim.replica_set, _Acks(claim, ballot)
            found[1].add(delivery, first, last)

    def _grow(self, size: int) -> None:
        self.size += size
        self.waiting_bytes += size
        if self.size > MAX_TRANSACTION_BYTES:
            raise RequestError(
                f"a transaction of more than {MAX_TRANSACTION_BYTES} bytes",
                "it is rolled back; do it in several transactions",
            )

    def add_statement(self, statement: transactions_pb2.Statement) -> None:
        """One that is whole, and has no batch."""
        self._complete(statement, None)

    def add_outputs(
        self,
        statement: transactions_pb2.Statement,
        place: Place,
        outputs: Sequence[NewRecord],
        now_ms: int,
    ) -> Batch:
        """One that is whole but for its batch: what comes of it, for `place`. Raises as `add`, and
        `RecordTooLargeError` for more outputs than a batch takes: nothing has changed then."""
        builder = BatchBuilder()
        for record in outputs:
            builder.add(record, now_ms)
        data = builder.build(codec=self.codec)
        if len(data) > MAX_BATCH_BYTES:
            raise RecordTooLargeError(
                f"{len(outputs)} outputs of {len(data)} bytes are over the limit of a batch, "
                f"{MAX_BATCH_BYTES}",
                "complete fewer invocations at a time: `only`",
            )
        before = self._open.get(place)
        if before is not None:
            # What was published to that partition before stands before them there.
            self._seal(before)
        batch = Batch(place)
        batch.count = len(outputs)
        batch.own_ids = {index: each.id for index, each in enumerate(outputs) if each.id}
        self._batches.append(batch)
        self._grow(len(data))
        self._bodies.append(data)
        statement.length = len(data)
        self._complete(statement, batch)
        return batch

    # --- statements -----------------------------------------------------------------------------

    def _seal(self, batch: Batch) -> None:
        del self._open[batch.place]
        assert batch.builder is not None
        self._complete_batch(batch, batch.builder.build(codec=self.codec))

    def _complete_batch(
        self, batch: Batch, data: bytes, publish: _Statement.Publish | None = None
    ) -> None:
        """`publish`: other than the place's."""
        batch.builder = None
        place = batch.place
        self._bodies.append(data)
        statement = _Statement(
            replica_set=place.replica_set, length=len(data), publish=publish or place.publish
        )
        self._complete(statement, batch)

    def _complete(self, statement: transactions_pb2.Statement, batch: Batch | None) -> None:
        self._statements.append(statement)
        self._by_set.setdefault(statement.replica_set, []).append(batch)
        self.count += 1
        if self.count > MAX_TRANSACTION_STATEMENTS:
            raise RequestError(
                f"a transaction of more than {MAX_TRANSACTION_STATEMENTS} statements",
                "it is rolled back; do it in several transactions",
            )

    def lone_place(self) -> Place | None:
        """Where all of it goes, if that is few records of which none was sent yet, and a batch of
        them may have other transactions' records, too."""
        if self.count or self._acks or len(self._open) != 1 or self.size > SHARED_BYTES:
            return None
        (place,) = self._open
        # Of a key that others hold only one of them would be refused.
        return None if place.is_indexed else place

    def give_lone(self, shared: BatchBuilder) -> int:
        """Put them into a batch with others; they are complete from here on. Returns how many."""
        _, batch = self._open.popitem()
        assert batch.builder is not None
        batch.start = shared.extend(batch.builder)
        batch.builder = None
        self._by_set[batch.place.replica_set] = [batch]
        self.count, self.waiting_bytes = 1, 0
        return batch.count

    def take(self) -> tuple[list[transactions_pb2.Statement], list[bytes]]:
        """All that was added since the last time, complete from here on, and its batches."""
        for batch in list(self._open.values()):
            self._seal(batch)
        for replica_set, acks in self._acks.values():
            for message in acks.messages():
                self._complete(_Statement(replica_set=replica_set, acknowledge=message), None)
        self._acks.clear()
        statements, self._statements = self._statements, []
        bodies, self._bodies = self._bodies, []
        self.waiting_bytes = 0
        return statements, bodies

    # --- outcome --------------------------------------------------------------------------------

    def committed(self, results: Sequence[transactions_pb2.ReplicaSetResults]) -> None:
        """What the statements came to, of replica sets that have said so."""
        for each in results:
            of_set = self._by_set.get(each.replica_set, ())
            for batch, result in zip(of_set, each.results, strict=False):
                if batch is not None:
                    batch.result, batch.start = result, 0

    def committed_together(self, result: transactions_pb2.StatementResult) -> None:
        """What the batch came to that has others' records, too."""
        (batch,) = self._batches
        batch.result = result

    def receipts(self) -> list[Receipt]:
        """Of all records, in the order in which their batches were begun."""
        of_all = (
            batch.record_receipt(index) for batch in self._batches for index in range(batch.count)
        )
        return [each for each in of_all if each is not None]

    def runs(self) -> list[BatchReceipt]:
        """The same as runs of consecutive offsets."""
        found = (batch.receipt(0, batch.count) for batch in self._batches)
        return [each for each in found if each is not None]
