"""What has happened in a replica set's tables, in the past tense: what a leader's catalog, visible
streams, locks and drivers subscribe to, whichever command made it happen."""

from __future__ import annotations

from hadron.model.schema import RegisteredSet, SchemaObject, Tombstone
from hadron.state.machine import Event


class PartitionOpened(Event, frozen=True):
    """A stream has a partition here, empty."""

    stream_id: int


class PartitionClosed(Event, frozen=True):
    """A stream was deleted: nothing of its partition here is read or written any more."""

    stream_id: int


class BatchAppended(Event, frozen=True):
    """Records have got offsets. `data` is the batch where it is in memory, on the leader that has
    logged its bytes with this entry; else it is empty."""

    stream_id: int
    base_offset: int
    count: int
    append_ms: int
    size: int
    """Bytes."""
    data: bytes | memoryview


class BodyReleased(Event, frozen=True):
    """Nobody needs a body any more that was kept for later."""

    lsn: int


class PartitionTrimmed(Event, frozen=True):
    """Retention has dropped what comes before `first_offset`."""

    stream_id: int
    first_offset: int


class RecordsSkipped(Event, frozen=True):
    """Retention has dropped `records` that somebody had not seen, a "group" or a "pipeline"."""

    kind: str
    id: int
    records: int
    name: str = ""
    """Of a group."""


class SchemaChanged(Event, frozen=True):
    """The schema stands at another index. What is `deleted` went first: a new object may have the
    name of one of them."""

    metadata_index: int
    objects: tuple[SchemaObject, ...] = ()
    deleted: tuple[Tombstone, ...] = ()
    replica_sets: tuple[RegisteredSet, ...] = ()
