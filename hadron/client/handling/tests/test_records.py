"""What is kept of the records that invocations name."""

from __future__ import annotations

from typing import Any, cast

import pytest

from hadron.client.handling.records import FetchedRecords
from hadron.client.reading.calls import ReadCalls
from hadron.client.terms.results import Fetched, PartitionOffsets
from hadron.model.batch import StampedBatch
from hadron.model.batch_building import BatchBuilder
from hadron.model.errors import ConnectionLostError, NotFoundError
from hadron.model.ids import Ballot
from hadron.model.record import NewRecord
from hadron.wire.messages import pipelines_pb2

PARTITION, STREAM_ID = "eu/p0", 7


def ref(offset: int) -> pipelines_pb2.RecordRef:
    return pipelines_pb2.RecordRef(
        stream="in", partition=PARTITION, offset=offset, stream_id=STREAM_ID
    )


class Reading:
    """The log of one partition: batches of one record."""

    def __init__(self, *values: str) -> None:
        self.batches: list[StampedBatch] = []
        self.stream_id = STREAM_ID
        self.fetches = self.asked = 0
        self.trouble: Exception | None = None
        self.add(Ballot(1, 1), *values)

    def add(self, ballot: Ballot, *values: str) -> None:
        for value in values:
            builder = BatchBuilder()
            builder.add(NewRecord(value=value), 1_000)
            stamped = StampedBatch(len(self.batches), 1, 1_000, *ballot, builder.build())
            self.batches.append(stamped)

    async def fetch(
        self, _stream: str, _partition: str, offset: int, *_more: Any, exists: bool
    ) -> Fetched:
        self.fetches += 1
        assert exists, "a leader that does not have it would answer with nothing"
        if self.stream_id != STREAM_ID:
            raise NotFoundError("that stream is gone")
        return Fetched(self.batches[offset:], 0, len(self.batches))

    async def offsets(
        self, _stream: str, _partition: str, _at: Any, before: int
    ) -> list[PartitionOffsets]:
        self.asked += 1
        if self.trouble is not None:
            raise self.trouble
        ballot = None
        if before <= len(self.batches):
            last = self.batches[before - 1]
            ballot = Ballot(last.epoch, last.incarnation)
        end = len(self.batches)
        return [PartitionOffsets(PARTITION, 0, end, stream_id=self.stream_id, ballot=ballot)]


def fetched(reading: Reading) -> FetchedRecords:
    return FetchedRecords(cast(ReadCalls, reading), None)


async def test_what_the_log_has_lost_is_given_to_no_later_invocation() -> None:
    reading = Reading("a", "lost")
    records = fetched(reading)
    assert (await records.get(ref(1), 1)).value == "lost"
    del reading.batches[1:]
    reading.add(Ballot(1, 1).recovered(), "another")
    assert (await records.get(ref(1), 2)).value == "another"
    assert (await records.get(ref(0), 2)).value == "a"


async def test_the_log_is_asked_once_for_each_micro_batch() -> None:
    reading = Reading("a", "b", "c")
    records = fetched(reading)
    for micro_batch in (1, 1, 2, 2, 3):
        for offset in range(3):
            await records.get(ref(offset), micro_batch)
    assert (reading.fetches, reading.asked) == (1, 2)


async def test_another_stream_of_that_name_has_nothing_of_it() -> None:
    reading = Reading("a")
    records = fetched(reading)
    await records.get(ref(0), 1)
    reading.stream_id += 1
    with pytest.raises(NotFoundError):
        await records.get(ref(0), 2)


async def test_a_leader_that_is_away_has_not_said_that_it_is_gone() -> None:
    reading = Reading("a")
    records = fetched(reading)
    await records.get(ref(0), 1)
    reading.trouble = ConnectionLostError("away")
    with pytest.raises(ConnectionLostError):
        await records.get(ref(0), 2)
    reading.trouble = None
    assert (await records.get(ref(0), 2)).value == "a"
    assert reading.fetches == 1
