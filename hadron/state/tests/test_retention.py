"""Retention: whole batches, in slices, the same on every replica, and nobody moved silently."""

from __future__ import annotations

import pytest

from hadron.fakes.tables import SET, Replicated, dump
from hadron.model.errors import NotFoundError, OffsetOutOfRangeError
from hadron.model.pipelines import PipelineSpec, StageSpec
from hadron.model.ranges import Range
from hadron.model.schema import StreamSpec
from hadron.state.events import RecordsSkipped
from hadron.state.groups import progress as groups
from hadron.state.groups.progress import AckRecords, CreateGroup
from hadron.state.pipelines.inputs import TriggerInstances
from hadron.state.slices import SLICE_BATCHES, SLICE_BYTES
from hadron.state.streams import partitions as streams
from hadron.state.streams import retention, skips
from hadron.state.streams.partitions import AppendBatch, PartitionBounds
from hadron.state.streams.retention import Due, Trimmed, TrimStream

STREAM = 1


@pytest.fixture
def tables() -> Replicated:
    """Ten batches of ten records, 100 bytes each, a second apart; the first at lsn 2."""
    tables = Replicated()
    tables.declare(("Stream", "flights", StreamSpec(partitions=(SET,))))
    for _ in range(10):
        append(tables, 10, 100)
    return tables


def append(tables: Replicated, count: int, size: int) -> None:
    tables.submit(AppendBatch(STREAM, count, size, b"", 0, -1))
    tables.now_ms += 1_000


def kept_bytes(tables: Replicated) -> int:
    value = tables.rows("SELECT bytes FROM hadron_stream_partition")[0][0]
    assert isinstance(value, int)
    return value


class TestTrimStream:
    def test_whole_batches_below_the_offset_go(self, tables: Replicated) -> None:
        assert tables.submit(TrimStream(STREAM, 35)) == Trimmed(30, 3, 300)
        assert streams.bounds(tables.db, STREAM) == PartitionBounds(30, 100)
        assert kept_bytes(tables) == 700
        assert tables.rows("SELECT min(base_offset) FROM hadron_stream_batch") == [(30,)]
        assert tables.rows("SELECT lsn FROM hadron_body WHERE bytes = x''") == [(2,), (3,), (4,)]
        with pytest.raises(OffsetOutOfRangeError, match="the first kept offset is 30"):
            streams.read_batches(tables.db, STREAM, 29, below=100, max_bytes=1)

    @pytest.mark.parametrize("offset", [0, 9, 30, 39])
    def test_nothing_to_drop_is_no_entry(self, tables: Replicated, offset: int) -> None:
        tables.submit(TrimStream(STREAM, 30))
        assert tables.submit(TrimStream(STREAM, offset)) == Trimmed(30)
        assert tables.again

    def test_all_of_it_may_go_and_offsets_go_on(self, tables: Replicated) -> None:
        assert tables.submit(TrimStream(STREAM, 1 << 40)).first_offset == 100
        assert (streams.bounds(tables.db, STREAM), kept_bytes(tables)) == ((100, 100), 0)
        append(tables, 1, 7)
        assert streams.bounds(tables.db, STREAM) == (100, 101)

    def test_one_command_drops_a_slice(self, tables: Replicated) -> None:
        for _ in range(SLICE_BATCHES):
            append(tables, 1, 1)
        assert tables.submit(TrimStream(STREAM, 10_000)).batches == SLICE_BATCHES
        append(tables, 1, SLICE_BYTES)
        append(tables, 1, SLICE_BYTES)
        assert tables.submit(TrimStream(STREAM, 10_000)).batches == 11
        assert tables.submit(TrimStream(STREAM, 10_000)).batches == 1

    def test_a_stream_that_is_not_here(self, tables: Replicated) -> None:
        with pytest.raises(NotFoundError, match="the id 77"):
            tables.submit(TrimStream(77, 5))


class TestGroups:
    def group(self, tables: Replicated, name: str, *acked: tuple[int, int], floor: int = 0) -> int:
        made = tables.submit(CreateGroup(STREAM, name, floor)).group_id
        if acked:
            tables.submit(AckRecords(made, acked))
        assert isinstance(made, int)
        return made

    def progress(self, tables: Replicated, name: str) -> tuple[int, tuple[Range, ...]]:
        found = groups.find(tables.db, STREAM, name)
        assert found is not None
        return found.floor, found.window.acknowledged

    def test_floors_are_moved_and_what_they_lacked_is_counted(self, tables: Replicated) -> None:
        behind = self.group(tables, "behind", (0, 4), (10, 14), (28, 33), (50, 51))
        self.group(tables, "ahead", floor=60)
        done = self.group(tables, "done", (0, 29))
        result = tables.submit(TrimStream(STREAM, 30))
        # Below 30 it lacks 5 … 9 and 15 … 27.
        assert result.skipped == (RecordsSkipped("group", behind, 18, "behind"),)
        assert self.progress(tables, "behind") == (34, ((50, 51),))
        assert self.progress(tables, "ahead") == (60, ())
        assert self.progress(tables, "done") == (30, ())
        tables.submit(TrimStream(STREAM, 60))
        assert self.progress(tables, "behind") == (60, ())
        assert skips.skips(tables.db) == {("group", behind): 18 + 16 + 8, ("group", done): 30}

    def test_a_late_acknowledgement_of_what_went_is_harmless(self, tables: Replicated) -> None:
        group = self.group(tables, "g")
        tables.submit(TrimStream(STREAM, 30))
        assert tables.submit(AckRecords(group, ((3, 8), (30, 30)))) == 31

    def test_a_group_cannot_begin_below(self, tables: Replicated) -> None:
        tables.submit(TrimStream(STREAM, 30))
        with pytest.raises(OffsetOutOfRangeError, match="the stream has 30 to 100"):
            tables.submit(CreateGroup(STREAM, "late", 29))


def test_pipelines_are_moved_over_input_that_goes(tables: Replicated) -> None:
    spec = PipelineSpec(
        replica_set=SET,
        input="flights",
        start="earliest",
        stages=(StageSpec(name="one", run="a:b"),),
    )
    (pipeline_id,) = tables.declare(("Pipeline", "departures", spec))
    tables.submit(TriggerInstances(pipeline_id, SET, 0, 12, (3,)))
    result = tables.submit(TrimStream(STREAM, 30))
    assert result.skipped == (RecordsSkipped("pipeline", pipeline_id, 18),)
    stale = tables.submit(TriggerInstances(pipeline_id, SET, 12, 40, (13,)))
    assert (stale.next_offset, stale.stale) == (30, True), "it goes on behind the gap"


def test_replicas_drop_the_same(tables: Replicated) -> None:
    tables.submit(CreateGroup(STREAM, "g", 0))
    for offset in (15, 40, 40, 99):
        tables.submit(TrimStream(STREAM, offset))
    assert dump(tables.replica()) == dump(tables.db)


class TestDue:
    def due(
        self, tables: Replicated, *, age: int = 0, max_bytes: int = 0, until_lsn: int = 1_000
    ) -> Due:
        return retention.due(
            tables.db, STREAM, older_than_ms=age, max_bytes=max_bytes, until_lsn=until_lsn
        )

    def test_nothing_without_limits(self, tables: Replicated) -> None:
        assert self.due(tables) == Due(None, False, 1_000_000, 1_000)

    def test_what_is_too_old(self, tables: Replicated) -> None:
        assert self.due(tables, age=1_002_001) == Due(30, False, 1_003_000, 1_000)
        assert self.due(tables, age=1_002_000).first_offset == 20
        assert self.due(tables, age=2_000_000) == Due(100, False, None, 1_000)

    def test_what_is_too_much(self, tables: Replicated) -> None:
        assert self.due(tables, max_bytes=1_000).first_offset is None
        assert self.due(tables, max_bytes=999).first_offset == 10
        assert self.due(tables, max_bytes=500).first_offset == 50
        assert self.due(tables, max_bytes=1).first_offset == 90, "the newest batch stays"

    def test_what_replicas_still_need_is_held_back(self, tables: Replicated) -> None:
        assert self.due(tables, max_bytes=500, until_lsn=4) == Due(30, True, 1_003_000, 1_000)
        assert self.due(tables, age=2_000_000, until_lsn=1) == Due(None, True, 1_000_000, 1_000)

    def test_a_stream_without_batches(self) -> None:
        tables = Replicated()
        tables.declare(("Stream", "flights", StreamSpec(partitions=(SET,))))
        assert self.due(tables, age=2_000_000, max_bytes=1) == Due(None, False, None, 0)
