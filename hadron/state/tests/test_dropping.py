"""What a deleted object leaves goes in slices, and nothing of it is served meanwhile."""

from __future__ import annotations

import pytest

from hadron.fakes.tables import SET, Replicated, dump
from hadron.model.batch import read_head
from hadron.model.batch_building import encode_values
from hadron.model.errors import NotFoundError
from hadron.model.pipelines import PipelineSpec, StageSpec
from hadron.model.schema import StreamSpec
from hadron.replication.verification import Verification
from hadron.state import dropping, schema, slices
from hadron.state.dropping import DropObject
from hadron.state.features import MACHINE
from hadron.state.groups.progress import AckRecords, CreateGroup
from hadron.state.pipelines.inputs import TriggerInstances
from hadron.state.schema import DeleteObjects
from hadron.state.slices import Dropped
from hadron.state.streams import partitions as streams
from hadron.state.streams import skips
from hadron.state.streams.partitions import AppendBatch
from hadron.state.streams.retention import TrimStream

EVERYTHING = 1 << 40


def append(replicated: Replicated, stream_id: int, producer: bytes = b"") -> None:
    data = encode_values([b"v"], 1)
    head = read_head(data)
    command = AppendBatch.of(stream_id, head, len(data))
    if producer:
        command = AppendBatch(stream_id, 1, len(data), producer, 0, 0)
    replicated.submit(command)
    lsn = len(replicated.log)
    replicated.db.execute("INSERT INTO hadron_body VALUES(?, ?)", (lsn, data))


def with_data(batches: int) -> tuple[Replicated, int]:
    replicated = Replicated()
    (stream_id,) = replicated.declare(("Stream", "s", StreamSpec(partitions=(SET,))))
    for number in range(batches):
        append(replicated, stream_id, bytes([number + 1]) * 16)
    return replicated, stream_id


def delete(replicated: Replicated, *ids: int) -> None:
    replicated.submit(DeleteObjects(schema.current_index(replicated.db), ids))


def left(replicated: Replicated) -> dict[str, int]:
    tables = dump(replicated.db)
    names = ("stream_partition", "stream_batch", "producer", "group", "group_ack", "dropped")
    return {name: len(tables[f"hadron_{name}"]) for name in names}


def test_a_partition_that_is_removed_keeps_its_log_until_its_stream_is_deleted() -> None:
    """Its offsets are of the stream's id: from 0 again they would be other records to who has read
    them (PROTOCOL D3)."""
    replicated, stream_id = with_data(3)
    for partitions in (("eu/p0",), ("eu/p0", SET), ("eu/p0",)):
        replicated.declare(("Stream", "s", StreamSpec(partitions=partitions)))
        assert streams.bounds(replicated.db, stream_id).next_offset == 3
    delete(replicated, stream_id)
    while not replicated.submit(DropObject(stream_id, EVERYTHING)).is_done:
        pass
    assert not any(left(replicated).values())


def test_a_deleted_stream_is_closed_at_once_and_its_data_goes_in_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slices, "SLICE_BATCHES", 2)
    monkeypatch.setattr(dropping, "SLICE_ROWS", 3)
    replicated, stream_id = with_data(5)
    group = replicated.submit(CreateGroup(stream_id, "g", 0))
    replicated.submit(AckRecords(group.group_id, ((2, 2), (4, 4))))
    (other,) = replicated.declare(("Stream", "other", StreamSpec(partitions=(SET,))))
    append(replicated, other, b"p" * 16)
    delete(replicated, stream_id)
    assert list(streams.all_bounds(replicated.db)) == [other]
    with pytest.raises(NotFoundError):
        append(replicated, stream_id)
    with pytest.raises(NotFoundError):
        replicated.submit(AckRecords(group.group_id, ((0, 0),)))
    dropped: list[Dropped] = []
    while not dropped or not dropped[-1].is_done:
        dropped.append(replicated.submit(DropObject(stream_id, EVERYTHING)))
    assert [each.rows for each in dropped] == [2, 2, 1, 3, 3, 2]
    assert left(replicated) == {
        "stream_partition": 1,
        "stream_batch": 1,
        "producer": 1,
        "group": 0,
        "group_ack": 0,
        "dropped": 0,
    }
    assert dropping.waiting(replicated.db) == []
    assert replicated.submit(DropObject(stream_id, EVERYTHING)).is_done
    assert replicated.again
    replica, own = dump(replicated.replica()), dump(replicated.db)
    assert {**replica, "hadron_body": []} == {**own, "hadron_body": []}


def test_what_retention_took_from_them_is_forgotten_with_groups_and_pipelines() -> None:
    replicated, stream_id = with_data(6)
    spec = PipelineSpec(
        replica_set=SET, input="s", start="earliest", stages=(StageSpec(name="one"),)
    )
    replicated.submit(CreateGroup(stream_id, "g", 0))
    (pipeline_id,) = replicated.declare(("Pipeline", "p", spec))
    replicated.submit(TrimStream(stream_id, 3))
    assert {kind for kind, _ in skips.skips(replicated.db)} == {"group", "pipeline"}
    delete(replicated, pipeline_id)
    assert {kind for kind, _ in skips.skips(replicated.db)} == {"group"}
    delete(replicated, stream_id)
    while dropping.waiting(replicated.db):
        for object_id, _ in dropping.waiting(replicated.db):
            replicated.submit(DropObject(object_id, EVERYTHING))
    assert skips.skips(replicated.db) == {}


def test_what_a_member_still_needs_stays_until_it_has_it() -> None:
    replicated, stream_id = with_data(3)
    lsns = [row[0] for row in replicated.rows("SELECT lsn FROM hadron_stream_batch ORDER BY lsn")]
    delete(replicated, stream_id)
    assert replicated.submit(DropObject(stream_id, lsns[0])).rows == 1
    assert replicated.submit(DropObject(stream_id, lsns[0])) == Dropped(0)
    assert replicated.again
    assert replicated.submit(DropObject(stream_id, lsns[2])).rows == 2
    assert dropping.waiting(replicated.db) == [(stream_id, "Stream")]
    assert replicated.submit(DropObject(stream_id, 0)).is_done


def test_a_deleted_pipeline_goes_with_its_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dropping, "SLICE_ROWS", 4)
    replicated, stream_id = with_data(5)
    spec = PipelineSpec(
        replica_set=SET,
        input="s",
        start="earliest",
        stages=(StageSpec(name="one"), StageSpec(name="two", after=("one",))),
    )
    (pipeline_id,) = replicated.declare(("Pipeline", "p", spec))
    replicated.submit(TriggerInstances(pipeline_id, SET, 0, 5, (0, 1, 2, 3, 4)))
    delete(replicated, pipeline_id)
    with pytest.raises(NotFoundError):
        replicated.submit(TriggerInstances(pipeline_id, SET, 5, 6, (5,)))
    rows = []
    while dropping.waiting(replicated.db):
        rows.append(replicated.submit(DropObject(pipeline_id, EVERYTHING)).rows)
    assert rows == [4, 4, 4, 2]
    for table in ("pipeline", "pipeline_input", "instance", "stage_run", "stage_count"):
        assert dump(replicated.db)[f"hadron_{table}"] == []
    assert list(streams.all_bounds(replicated.db)) == [stream_id]


def test_a_file_is_sound_while_a_stream_is_being_dropped() -> None:
    replicated, stream_id = with_data(3)
    group = replicated.submit(CreateGroup(stream_id, "g", 0))
    replicated.submit(AckRecords(group.group_id, ((2, 2),)))
    delete(replicated, stream_id)
    check = Verification(MACHINE, replay=False)
    while not check.step(replicated.db):
        pass
    of_the_test = {"hadron_body", "hadron_meta"}
    assert {problem.table for problem in check.report.problems} <= of_the_test
