"""What the client's calls answer: plain frozen values, safe to keep and to compare."""

from __future__ import annotations

from typing import Literal

import msgspec

from hadron.model.batch import StampedBatch
from hadron.model.ids import Ballot
from hadron.model.schema import SchemaObject


class Receipt(msgspec.Struct, frozen=True):
    """One record is in the log.

    Attributes:
        offset: its position in `partition`.
        append_ms: the leader's time of appending, milliseconds since the Unix epoch; 0 for the
            output of a stage at another replica set than the pipeline's.
        duplicate: a retry found the record already logged; offset and time are the original's.
        own_id: the record's id as it was given; of transactions' records only.
    """

    stream: str
    partition: str
    offset: int
    append_ms: int
    duplicate: bool
    own_id: str = ""

    @property
    def id(self) -> str:
        """As readers of a record have it: its own, or `stream/partition/offset`."""
        return self.own_id or f"{self.stream}/{self.partition}/{self.offset}"


class BatchReceipt(msgspec.Struct, frozen=True):
    """`count` consecutive records from `base_offset` on are in the log."""

    stream: str
    partition: str
    base_offset: int
    count: int
    append_ms: int
    duplicate: bool

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.count


class Dispatched(msgspec.Struct, frozen=True):
    """Messages are on their way.

    Attributes:
        deliveries: to so many subscriptions, counted per message; 0: nobody was there.
        dropped: not to so many, which do not read what they have got before.
        receipts: where they are in the exchange's `to_stream`, if that was asked for.
    """

    deliveries: int
    dropped: int
    receipts: list[BatchReceipt] = []


class TransactionOutcome(msgspec.Struct, frozen=True):
    """What became of a transaction.

    Attributes:
        transaction: its id.
        state: "committed"; "aborted": it was rolled back, so nothing of it was done, nor will be;
            "open": it is not decided yet; "forgotten": it was over long ago, and nobody knows any
            more how.
        receipts: of a committed one, the runs of records that it has published at replica sets that
            have said so. The driver does not keep the names of streams: they are "" where another
            client has published, or this one in a transaction that its program has let go of.
        unfinished: of a committed one, replica sets that have not said yet that their part is done:
            away, or busy; it will be.
    """

    transaction: str
    state: Literal["committed", "aborted", "open", "forgotten"]
    receipts: list[BatchReceipt] = []
    unfinished: list[str] = []

    @property
    def is_committed(self) -> bool:
        return self.state == "committed"


class OpenTransaction(msgspec.Struct, frozen=True):
    """A transaction that is not over at a leader that was asked.

    Attributes:
        transaction: its id, which begins with its driver's replica set.
        replica_set: whose leader has said so.
        phase: at its driver "open", "preparing", "deciding" or "decided", at a participant
            "prepared" or "finished".
        waits_for: by replica set, what is waited for there, in words: by a driver of its
            participants, by a participant of its driver.
    """

    transaction: str
    replica_set: str
    is_driver: bool
    phase: str
    age_s: float
    statements: int
    bytes: int
    waits_for: dict[str, str] = {}


class Fetched(msgspec.Struct, frozen=True):
    """An answer to one fetch.

    Attributes:
        batches: whole batches; the first may start before the offset that was asked for.
        first_offset: the first offset that the partition still has.
        next_offset: the high watermark: the offset of the next record to become visible.
    """

    batches: list[StampedBatch]
    first_offset: int
    next_offset: int


class PartitionOffsets(msgspec.Struct, frozen=True):
    """How far one partition reaches.

    Attributes:
        at_offset: the first offset appended at or after the time asked for, `next_offset` when
            there is none; 0 when no time was asked for.
        stream_id: of the stream; one that was deleted and created again has another.
        ballot: of the batch with the record before `next_offset`, or before the offset asked for;
            None where no such record is kept, or the node is too old to know. With the stream's id
            and the offset it makes a cursor that `Client.fetch` checks (PROTOCOL D4).
    """

    partition: str
    first_offset: int
    next_offset: int
    at_offset: int = 0
    stream_id: int = 0
    ballot: Ballot | None = None


class Change(msgspec.Struct, frozen=True):
    """What applying did to one object: `action` is "created", "changed" or "unchanged".

    Attributes:
        secret: of a token that was created without a hash of its own: here, once, and nowhere else.
    """

    action: str
    before: SchemaObject | None
    after: SchemaObject | None
    secret: str = ""


class Applied(msgspec.Struct, frozen=True):
    """The outcome of one `apply`, in the order of the objects given."""

    changes: list[Change]
    metadata_index: int


class StagedWrite(msgspec.Struct, frozen=True):
    """What one attempt of a task has staged at a replica set, and nobody has published.

    Attributes:
        write: what it is a part of, in hex digits, as `attempt` is.
        left_s: until it expires; 0 where it is given up, and about to go.
    """

    replica_set: str
    write: str
    attempt: str
    label: str
    stream_id: int
    batches: int
    records: int
    bytes: int
    age_s: float
    left_s: float


class EndpointServer(msgspec.Struct, frozen=True):
    """A server of an endpoint that is there now.

    Attributes:
        peer: its address, in words.
        answered, failed: calls, since it was attached.
        p50_ms, p99_ms: how long its latest calls took.
        is_leaving: it takes no more.
    """

    name: str
    peer: str
    region: str
    max_in_flight: int
    in_flight: int
    answered: int
    failed: int
    p50_ms: float
    p99_ms: float
    is_leaving: bool


class EndpointLife(msgspec.Struct, frozen=True):
    """What lives of an endpoint: at its leader, and since that leads.

    Attributes:
        more_servers: those that are not listed, where there are very many.
        waiting: calls that no server has yet.
        p50_ms, p99_ms: how long callers had to wait for the latest answers.
    """

    name: str
    servers: list[EndpointServer]
    more_servers: int
    in_flight: int
    waiting: int
    answered: int
    failed: int
    p50_ms: float
    p99_ms: float
