"""A query's cursors are compared with the log, without Spark: the driver's and the tasks' part."""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from hadron.client.terms.results import Fetched, PartitionOffsets
from hadron.model.batch import StampedBatch
from hadron.model.errors import (
    ClosedError,
    ConnectionLostError,
    HadronError,
    LogTruncatedError,
    NotFoundError,
    OffsetOutOfRangeError,
    RequestError,
)
from hadron.model.ids import Ballot
from hadron.model.record import NewRecord
from hadron.model.record_batch import decode_batch
from hadron.spark.source import readers
from hadron.spark.source.cursors import Cursor, from_json, to_json
from hadron.spark.source.options import parse_options
from hadron.spark.source.ranges import OffsetRange
from hadron.spark.source.readers import (
    BatchReader,
    Columns,
    HadronDataSource,
    RangePartition,
    StreamReader,
)
from hadron.spark.tests.fakes import build

P0 = "local/p0"
ROWS = Columns(("offset", "value"))


class Log:
    """A stream with one partition, and the client that asks for it."""

    def __init__(self) -> None:
        self.stream_id = 7
        self.batches: list[StampedBatch] = []
        self.first_offset = 0
        self.incarnation = 1
        self.asked = 0
        self.stale_end: int | None = None
        """Where it ends, as a leader says that was deposed and has not heard so."""
        self.fetched: list[int] = []
        self.failing: set[int] = set()
        self.holding: set[int] = set()
        self.closed = threading.Event()
        self.shown: dict[str, int] = {}

    @property
    def next_offset(self) -> int:
        return self.batches[-1].next_offset if self.batches else 0

    def append(self, count: int) -> None:
        data = build([NewRecord(value={"n": n}) for n in range(count)])
        self.batches.append(StampedBatch(self.next_offset, count, 1_000, 1, self.incarnation, data))

    def close(self) -> None:
        """What is asked, or will be, fails."""
        self.closed.set()

    def lose(self, offset: int) -> None:
        """A recovery drops what was appended from here on."""
        self.batches = [batch for batch in self.batches if batch.base_offset < offset]
        self.incarnation += 1

    def make_anew(self) -> None:
        """Deleted, and created again."""
        self.batches, self.stream_id = [], self.stream_id + 1

    def _ballot_before(self, offset: int) -> Ballot | None:
        if offset <= self.first_offset:
            return None
        batch = next((b for b in self.batches if b.base_offset < offset <= b.next_offset), None)
        return Ballot(batch.epoch, batch.incarnation) if batch is not None else None

    def offsets(
        self, _stream: str, *, before: int | None = None, confirmed: bool = False, **_: Any
    ) -> list[PartitionOffsets]:
        self.asked += before is not None
        end = self.next_offset if confirmed or self.stale_end is None else self.stale_end
        ballot = self._ballot_before(end if before is None else before)
        return [PartitionOffsets(P0, self.first_offset, end, 0, self.stream_id, ballot)]

    def reset_group(
        self, _stream: str, _group: str, to: int, *, partitions: list[str], **_: Any
    ) -> None:
        (name,) = partitions
        if name != P0:
            raise NotFoundError(f"no partition {name}")
        self.shown[name] = to

    def fetch(
        self,
        _stream: str,
        _partition: str,
        offset: int,
        *,
        stream_id: int | None,
        after: Ballot | None,
        exists: bool,
        **_: Any,
    ) -> Fetched:
        self.fetched.append(offset)
        if offset in self.holding:
            assert self.closed.wait(60), "nobody has closed the client"
            raise ClosedError("this client is closed")
        if offset in self.failing:
            self.failing.remove(offset)
            raise ConnectionLostError("the leader is gone")
        if stream_id not in (None, self.stream_id):
            raise NotFoundError(f"no stream has the id {stream_id}")
        if after is not None and self._ballot_before(offset) not in (None, after):
            raise LogTruncatedError(f"another ballot before {offset}")
        if not self.first_offset <= offset <= self.next_offset - exists:
            raise OffsetOutOfRangeError(f"offset {offset} is out of range")
        found = [batch for batch in self.batches if batch.next_offset > offset]
        return Fetched(found[:1], self.first_offset, self.next_offset)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    log = Log()

    @contextmanager
    def connect(_url: str) -> Iterator[Log]:
        try:
            yield log
        finally:
            log.close()

    monkeypatch.setattr(readers, "connect", connect)
    return log


def query(**options: str) -> StreamReader:
    """A query that is started, or started again."""
    given = {"stream": "s", "startingOffsets": "earliest", **options}
    return StreamReader(parse_options(given, streaming=True), ROWS)


def step(
    reader: StreamReader, start: dict[str, Any], limit: ReadLimit | None = None
) -> tuple[list[int], dict[str, Any]]:
    """One micro-batch: what was read, and the checkpoint behind it."""
    end = reader.latestOffset(start, limit or ReadAllAvailable())
    return read(reader, start, end), end


def read(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    worker = pickle.loads(pickle.dumps(reader))
    return [
        offset
        for partition in reader.partitions(start, end)
        for batch in worker.read(partition)
        for offset in batch.column("offset").to_pylist()
    ]


def test_a_checkpoint_can_be_read_by_people_and_back() -> None:
    cursors = {"b": Cursor(0, None, 7), "a": Cursor(12, Ballot(1, 3), 7)}
    text = to_json(cursors)
    assert text == {
        "a": {"offset": 12, "epoch": 1, "incarnation": 3, "stream_id": 7},
        "b": {"offset": 0, "stream_id": 7},
    }
    assert list(text) == ["a", "b"]
    assert from_json(text) == cursors
    assert from_json({"a": 12}) == {"a": Cursor(12)}, "from before there were cursors"


@pytest.mark.parametrize(
    "entry",
    [
        -1,
        1.5,
        "12",
        None,
        True,
        {},
        {"stream_id": 7},
        {"offset": -1},
        {"offset": 1, "lsn": 2},
        {"offset": "1"},
    ],
)
def test_what_is_no_cursor_is_refused(entry: Any) -> None:
    with pytest.raises(RequestError, match=r"the checkpoint has .* for partition 'a'"):
        from_json({"a": entry})


def test_a_query_goes_on_over_leaders_and_limits(log: Log) -> None:
    log.append(10)
    log.incarnation += 1
    log.append(10)
    start = query().initialOffset()
    assert start == {P0: {"offset": 0, "stream_id": 7}}
    found, at = step(query(), start, ReadMaxRows(4))
    assert (found, log.asked) == (list(range(4)), 1)
    assert at == {P0: {"offset": 4, "epoch": 1, "incarnation": 1, "stream_id": 7}}
    found, at = step(query(minPartitions="3"), at)
    assert (found, log.asked) == (list(range(4, 20)), 1)
    assert at == {P0: {"offset": 20, "epoch": 1, "incarnation": 2, "stream_id": 7}}
    log.first_offset = 20
    assert query().latestOffset(at, ReadAllAvailable()) == at, "nothing new, no micro-batch"


@pytest.mark.parametrize("forgiving", [False, True])
def test_a_leader_that_was_deposed_has_lost_nothing(log: Log, forgiving: bool) -> None:
    log.append(10)
    started = query(failOnDataLoss=str(not forgiving))
    found, at = step(started, started.initialOffset())
    log.append(10)
    log.stale_end = 0
    found, at = step(started, at)
    assert found == list(range(10, 20))
    assert started.latestOffset(at, ReadAllAvailable()) == at, "it does not go back"


def test_what_ends_with_what_is_there_ends_where_records_were_lost(log: Log) -> None:
    """Their cursor contradicts what is there, whoever is asked."""
    log.append(10)
    given = query(failOnDataLoss="false")
    _, at = step(given, given.initialOffset())
    log.lose(0)
    log.append(5)
    given.prepareForTriggerAvailableNow()
    first = given.latestOffset(at, ReadAllAvailable())
    log.append(1)
    assert given.latestOffset(at, ReadAllAvailable()) == first


def test_a_group_is_shown_where_partitions_are_left(log: Log) -> None:
    log.append(10)
    start = {P0: {"offset": 4, "stream_id": 7}, "gone/p9": {"offset": 5, "stream_id": 7}}
    reader = query(groupId="shown", failOnDataLoss="false")
    found, at = step(reader, start)
    assert (found, log.shown) == (list(range(4, 10)), {P0: 4})
    assert step(reader, at) == ([], at)
    assert log.shown == {P0: 10}
    with pytest.raises(OffsetOutOfRangeError, match="stream 's' has lost 'gone/p9'"):
        step(query(groupId="shown"), start)


def test_an_old_checkpoint_is_read_and_becomes_one_of_cursors(log: Log) -> None:
    log.append(10)
    found, at = step(query(), {P0: 4})
    assert found == list(range(4, 10))
    assert at == {P0: {"offset": 10, "epoch": 1, "incarnation": 1, "stream_id": 7}}
    assert step(query(), {P0: 10}) == ([], at)


def rows_of(log: Log, start: int, stop: int) -> Iterator[int]:
    wanted = OffsetRange(P0, start, stop, stream_id=log.stream_id)
    for batch in BatchReader(parse_options({"stream": "s"}, streaming=False), ROWS).read(
        RangePartition(wanted)
    ):
        yield from batch.column("offset").to_pylist()


def test_what_follows_is_asked_for_before_it_is_wanted(log: Log) -> None:
    for _ in range(3):
        log.append(2_000)
    # The first batch is handed on alone: what has fewer rows than Spark wants waits for the next.
    found = rows_of(log, 500, 5_500)
    assert [next(found) for _ in range(1_500)] == list(range(500, 2_000))
    while len(log.fetched) < 2:
        time.sleep(0.001)
    assert log.fetched == [500, 2_000]
    assert list(found) == list(range(2_000, 5_500))
    assert log.fetched == [500, 2_000, 4_000], "each once, and nothing behind the end"


def test_what_fails_ahead_is_asked_for_again(log: Log) -> None:
    for _ in range(5):
        log.append(10)
    log.failing = {0, 20, 40}
    assert list(rows_of(log, 0, 50)) == list(range(50))
    assert log.fetched == [0, 0, 10, 20, 20, 30, 40, 40]


def test_whoever_has_enough_does_not_wait_for_what_is_asked_ahead(log: Log) -> None:
    log.append(2_000)
    log.append(10)
    log.holding = {2_000}
    found = rows_of(log, 0, 2_010)
    assert next(found) == 0
    found.close()  # type: ignore[attr-defined]
    assert log.closed.is_set()


@pytest.mark.parametrize("again", [5, 10, 20])
@pytest.mark.parametrize("forgiving", [False, True])
def test_a_stream_that_was_made_anew_is_another_one(log: Log, again: int, forgiving: bool) -> None:
    log.append(10)
    _, at = step(query(), {P0: 0})
    log.make_anew()
    log.append(again)
    reader = query(failOnDataLoss=str(not forgiving).lower())
    message = "deleted and created again: .* id 7, this one has id 8 .* new checkpointLocation"
    for ask in (
        lambda: reader.latestOffset(at, ReadAllAvailable()),
        lambda: reader.partitions({P0: 0}, at),
    ):
        with pytest.raises(LogTruncatedError, match=message):
            ask()


@pytest.mark.parametrize(
    ("again", "message"),
    [
        (2, "it ends at offset 7, before offset 10"),
        (5, "the record before offset 10 is of ballot 1.2, it was of 1.1"),
        (9, "another ballot before 10"),
    ],
)
def test_a_log_that_lost_records_is_told(log: Log, again: int, message: str) -> None:
    """It has fewer than were read, as many, or more by the time the query goes on."""
    log.append(5)
    log.append(5)
    _, at = step(query(), {P0: 0})
    log.lose(5)
    log.append(again)
    with pytest.raises(LogTruncatedError, match=message) as told:
        step(query(), at)
    assert "new checkpointLocation" in told.value.hint
    assert "failOnDataLoss" in told.value.hint
    log.append(3)
    found, _ = step(query(failOnDataLoss="false"), at)
    assert found == list(range(10, log.next_offset))


@pytest.mark.parametrize(
    ("again", "message"), [(2, "it ends at offset 7"), (9, "before offset 10 is of ballot 1.2")]
)
def test_a_micro_batch_that_is_done_again_reads_what_it_had_read(
    log: Log, again: int, message: str
) -> None:
    """Its end is in the checkpoint; the beginning may be from before the loss."""
    log.append(5)
    log.append(5)
    reader = query()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    log.lose(5)
    log.append(again)
    with pytest.raises(LogTruncatedError, match=message):
        read(query(), start, end)


def test_a_task_reads_the_stream_that_it_was_planned_for(log: Log) -> None:
    log.append(10)
    reader = query()
    start = reader.initialOffset()
    (task,) = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    log.make_anew()
    log.append(10)
    assert isinstance(task, RangePartition)
    with pytest.raises(HadronError, match="no stream has the id 7"):
        list(reader.read(task))
    assert decode_batch(log.batches[0].data).count == 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": 4, "endingOffsets": 2}, "would start at offset 4 and end before 2"),
        ({"startingOffsets": 9}, "offset 9 is beyond the end of s/local/p0, which is 5"),
        ({"endingOffsets": 9}, "offset 9 is beyond the end of s/local/p0, which is 5"),
        ({"endingOffsets": 1}, "would start at offset 2 and end before 1"),
    ],
)
def test_offsets_of_the_users_own_that_are_wrong_are_no_loss_of_records(
    log: Log, options: dict[str, int], message: str
) -> None:
    log.append(5)
    log.first_offset = 2
    given = {name: json.dumps({P0: offset}) for name, offset in options.items()}
    options_read = parse_options({"stream": "s", **given}, streaming=False)
    reader = BatchReader(options_read, Columns(("offset",)))
    with pytest.raises(RequestError, match=message):
        reader.partitions()


def test_an_end_beyond_the_log_is_not_waited_for(log: Log) -> None:
    log.append(5)
    given = {"stream": "s", "endingOffsets": json.dumps({P0: 9}), "failOnDataLoss": "false"}
    reader = BatchReader(parse_options(given, streaming=False), Columns(("offset",)))
    (task,) = reader.partitions()
    assert isinstance(task, RangePartition)
    assert task.wanted == OffsetRange(P0, 0, 5, stream_id=7)
    log.append(5)
    (batch,) = reader.read(task)
    assert batch.column("offset").to_pylist() == list(range(5))
    given["startingOffsets"] = json.dumps({P0: 30})
    assert BatchReader(parse_options(given, streaming=False), ROWS).partitions() == []


def test_what_was_read_is_written_without_what_the_cluster_gives() -> None:
    source = HadronDataSource({"stream": "s"})
    schema = source.schema()
    assert isinstance(schema, StructType)
    for write in (source.writer, source.streamWriter):
        with pytest.raises(RequestError, match=r"column 'stream' cannot be written .*leave it out"):
            write(schema, False)
