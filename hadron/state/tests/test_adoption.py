"""Adopting the schema at another replica set: in order, from one source, all of it or nothing."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hadron.fakes.tables import Replicated, dump
from hadron.model.errors import HandshakeError, NotFoundError, SchemaError
from hadron.model.ids import Ballot
from hadron.model.pipelines import PipelineSpec, StageSpec
from hadron.model.schema import RegisteredSet, StreamSpec, spec_to_json
from hadron.state import adoption, dropping, registry, schema
from hadron.state.adoption import AdoptObjects, Changes, StoredObject, changes_since
from hadron.state.groups.progress import CreateGroup
from hadron.state.leadership import BeginBallot
from hadron.state.registry import RegisterReplicaSet
from hadron.state.schema import ApplySchema, DeleteObjects, ObjectChange
from hadron.state.streams import partitions as streams

META, OTHER = "meta", "aws.us-east-1/p0"
UUID, NEW_UUID = b"m" * 16, b"n" * 16
ON_OTHER = StreamSpec(partitions=(OTHER,))


def adopted(
    changes: Changes, *, part: int = 0, is_last: bool = True, source: bytes = UUID, epoch: int = 1
) -> AdoptObjects:
    return AdoptObjects(
        source,
        epoch,
        changes.from_index,
        changes.to_index,
        part,
        is_last,
        changes.is_whole,
        changes.objects,
        changes.deleted,
        changes.replica_sets,
        changes.lost,
    )


def push(meta: Replicated, other: Replicated) -> adoption.Adopted:
    """What the metadata set's leader does."""
    result = other.submit(adopted(changes_since(meta.db, schema.current_index(other.db))))
    assert isinstance(result, adoption.Adopted)
    return result


def delete(meta: Replicated, *ids: int) -> schema.Deleted:
    result = meta.submit(DeleteObjects(schema.current_index(meta.db), ids))
    assert isinstance(result, schema.Deleted)
    return result


def same_schema(one: Replicated, other: Replicated) -> bool:
    names = ("hadron_schema_object", "hadron_schema_index", "hadron_replica_set")
    return all(dump(one.db)[name] == dump(other.db)[name] for name in names)


def test_another_set_gets_every_object_with_its_id_and_makes_its_partitions() -> None:
    meta, other = Replicated(META), Replicated(OTHER)
    here, elsewhere = meta.declare(
        ("Stream", "here", ON_OTHER), ("Stream", "elsewhere", StreamSpec(partitions=(META,)))
    )
    result = push(meta, other)
    assert (result.metadata_index, [item.id for item in result.objects]) == (2, [here, elsewhere])
    assert same_schema(meta, other)
    assert list(streams.all_bounds(other.db)) == [here]
    assert list(streams.all_bounds(meta.db)) == [elsewhere]
    assert adoption.current_source(other.db) == (UUID, 1)
    assert dump(other.replica()) == dump(other.db)


def test_a_partition_added_to_a_stream_is_made_by_the_push() -> None:
    meta, other = Replicated(META), Replicated(OTHER)
    (stream_id,) = meta.declare(("Stream", "s", StreamSpec(partitions=(META,))))
    push(meta, other)
    assert not streams.all_bounds(other.db)
    meta.declare(("Stream", "s", StreamSpec(partitions=(META, OTHER))))
    push(meta, other)
    assert list(streams.all_bounds(other.db)) == [stream_id]


def test_what_does_not_follow_is_refused() -> None:
    meta, other = Replicated(META), Replicated(OTHER)
    meta.declare(("Stream", "a", ON_OTHER))
    push(meta, other)
    first = adopted(changes_since(meta.db, 0))
    meta.declare(("Stream", "b", ON_OTHER))
    meta.declare(("Stream", "c", ON_OTHER))
    before = dump(other.db)
    with pytest.raises(SchemaError, match="stands at index 1, what was pushed follows 2") as again:
        other.submit(adopted(changes_since(meta.db, 2)))
    assert again.value.retryable
    with pytest.raises(SchemaError, match="stands at index 1, what was pushed follows 0"):
        other.submit(first)
    assert dump(other.db) == before
    assert push(meta, other).metadata_index == 3
    assert same_schema(meta, other)


@pytest.mark.parametrize("index", [(1 << 63) - 2, 2 << 32])
def test_an_index_that_there_cannot_be_is_not_gone_on_above(index: int) -> None:
    """The one after it would be none, and nothing could be changed any more."""
    meta, other = Replicated(META), Replicated(OTHER)
    meta.declare(("Stream", "a", ON_OTHER))
    with pytest.raises(SchemaError, match=f"leads to index {index}, and in epoch 1"):
        other.submit(adopted(Changes(0, index)))
    with pytest.raises(HandshakeError, match=f"seen the schema at index {index}"):
        meta.submit(RegisterReplicaSet(OTHER, b"o" * 16, 1, index))
    assert schema.current_index(meta.db) == 1
    # As far ahead as may be, and further in the next epoch.
    for ahead in ((1 << 32) + (1 << 22), (1 << 32) + (1 << 23)):
        meta.submit(RegisterReplicaSet(OTHER, b"o" * 16, 1, ahead))
        assert schema.current_index(meta.db) == ahead + 1
    assert push(meta, other).metadata_index == schema.current_index(meta.db)
    meta.ballot = Ballot(2, 1)
    meta.submit(RegisterReplicaSet(OTHER, b"o" * 16, 1, (2 << 32) - 1))
    assert schema.current_index(meta.db) == 2 << 32
    assert dump(meta.replica()) == dump(meta.db)


def restored(meta: Replicated, *kept: str) -> Replicated:
    """A metadata set from a backup that has the streams that are named, in the order of ids."""
    copy = Replicated(META)
    for item in schema.all_objects(meta.db):
        if item.id and item.name in kept:
            copy.db.execute(
                "INSERT INTO hadron_schema_object SELECT ?, kind, namespace, name, spec, ? FROM"
                " (SELECT 'Stream' AS kind, 'default' AS namespace, ? AS name, ? AS spec)",
                (item.id, item.metadata_index, item.name, spec_to_json(item.spec).decode()),
            )
            schema.set_index(copy.db, item.metadata_index)
    return copy


def test_another_metadata_set_is_refused() -> None:
    meta, other = Replicated(META), Replicated(OTHER)
    meta.declare(("Stream", "a", ON_OTHER))
    push(meta, other)
    meta.declare(("Stream", "b", ON_OTHER))
    following = changes_since(meta.db, 1)
    with pytest.raises(HandshakeError, match=f"{UUID.hex()} and epoch 1; another one"):
        other.submit(adopted(following, source=NEW_UUID))
    with pytest.raises(SchemaError, match="the difference to another history"):
        other.submit(adopted(following, source=NEW_UUID, epoch=2))
    assert adoption.current_source(other.db) == (UUID, 1)
    assert push(meta, other).metadata_index == 2


def test_a_restored_metadata_set_goes_on_above_what_others_have_seen() -> None:
    meta, other = Replicated(META), Replicated(OTHER)
    meta.declare(("Stream", "a", ON_OTHER), ("Stream", "b", ON_OTHER))
    (gone,) = meta.declare(("Stream", "gone", ON_OTHER))
    push(meta, other)
    delete(meta, gone)
    push(meta, other)
    new = restored(meta, "a", "b")
    assert schema.current_index(new.db) == 2
    new.submit(RegisterReplicaSet(OTHER, b"o" * 16, 1, schema.current_index(other.db)))
    assert schema.current_index(new.db) == 5
    everything = changes_since(new.db, 4, whole=True)
    other.submit(adopted(everything, source=NEW_UUID, epoch=2))
    assert adoption.current_source(other.db) == (NEW_UUID, 2)
    assert same_schema(new, other)
    assert new.declare(("Stream", "c", ON_OTHER)) == [6]
    other.submit(adopted(changes_since(new.db, 5), source=NEW_UUID, epoch=2))
    with pytest.raises(HandshakeError):
        push(meta, other)
    assert dump(other.replica()) == dump(other.db)


def test_a_history_that_begins_anew_gives_no_id_and_no_index_again() -> None:
    """Clients have seen more than the backup has, of a set that nobody else can tell it."""
    meta = Replicated(META)
    meta.declare(("Stream", "a", ON_OTHER), ("Stream", "lost", ON_OTHER))
    new = restored(meta, "a")
    started = BeginBallot("n1", NEW_UUID, (("n1", "leader"),), b"d" * 16, 1, above_index=2 << 32)
    new.submit(started)
    assert schema.current_index(new.db) == 2 << 32
    changes = changes_since(new.db, 2)
    assert changes.is_whole, "what came after the backup is to be forgotten"
    assert [item.name for item in changes.objects] == ["a"]
    (other,) = new.declare(("Stream", "other", ON_OTHER))
    assert other == (2 << 32) + 1
    assert not changes_since(new.db, 2 << 32).is_whole
    delete(new, other)
    schema.forget_tombstones(new.db, 1)
    assert changes_since(new.db, 2).is_whole, "still"


def test_what_a_recovered_log_has_lost_is_not_given_again_and_stays_where_it_is() -> None:
    """As after `recover`: no other set is there to say what it knows."""
    meta, other, behind = Replicated(META), Replicated(OTHER), Replicated(OTHER)
    ballot = BeginBallot("n1", UUID, (("n1", "leader"),), b"d" * 16, 1)
    meta.submit(ballot)
    meta.declare(("Stream", "a", ON_OTHER))
    push(meta, behind)
    (gone,) = meta.declare(("Stream", "gone", ON_OTHER))
    meta.declare(("Stream", "lost", ON_OTHER))
    push(meta, other)
    new = Replicated(META)
    new.submit(ballot)
    new.declare(("Stream", "a", ON_OTHER), ("Stream", "gone", ON_OTHER))
    new.ballot = Ballot(1, 1).recovered()
    started = BeginBallot(
        "n1", UUID, (("n1", "leader"),), b"d" * 16, 1, above_index=new.ballot.first_index
    )
    new.submit(started)
    assert schema.current_index(new.db) == new.ballot.first_index > 1 << 32
    (later,) = new.declare(("Stream", "later", ON_OTHER))
    delete(new, gone)
    assert not changes_since(new.db, schema.current_index(other.db)).is_whole
    for where in (other, behind):
        push(new, where)
    assert list(streams.all_bounds(other.db)) == [1, 3, later]
    assert list(streams.all_bounds(behind.db)) == [1, later]
    assert same_schema(new, behind)
    new.ballot = Ballot(1, new.ballot.incarnation + 1)
    new.submit(started)
    assert schema.current_index(new.db) == later + 1, "nothing was lost meanwhile"
    assert dump(new.replica()) == dump(new.db)


def recovered_without(name: str, other: Replicated) -> Replicated:
    """The metadata set after `recover`: its log ends before the declaration of `name`, which the
    other set was pushed."""
    meta, new = Replicated(META), Replicated(META)
    ballot = BeginBallot("n1", UUID, (("n1", "leader"),), b"d" * 16, 1)
    for each in (meta, new):
        each.submit(ballot)
        each.declare(("Stream", "a", ON_OTHER))
    meta.declare(("Stream", name, ON_OTHER))
    push(meta, other)
    new.ballot = Ballot(1, 1).recovered()
    above = new.ballot.first_index
    new.submit(BeginBallot("n1", UUID, (("n1", "leader"),), b"d" * 16, 1, above_index=above))
    return new


def test_what_a_recovered_log_has_lost_stays_when_everything_is_pushed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its absence says nothing; that of what was deleted since does."""
    monkeypatch.setattr(schema, "MAX_TOMBSTONES", 2)
    other = Replicated(OTHER)
    new = recovered_without("lost", other)
    ids = new.declare(*(("Stream", f"s{number}", ON_OTHER) for number in range(4)))
    push(new, other)
    delete(new, *ids)
    changes = changes_since(new.db, schema.current_index(other.db))
    assert changes.is_whole
    result = push(new, other)
    assert [gone.id for gone in result.deleted] == ids
    assert list(streams.all_bounds(other.db)) == [1, 2]
    assert dump(other.replica()) == dump(other.db)


def test_what_a_recovered_log_has_lost_is_declared_again_under_another_name() -> None:
    """As `metadata.push` advises. Its own name stays that of what has the records."""
    other = Replicated(OTHER)
    new = recovered_without("lost", other)
    (again,) = new.declare(("Stream", "lost-2", ON_OTHER))
    push(new, other)
    assert list(streams.all_bounds(other.db)) == [1, 2, again]
    new.declare(("Stream", "lost", ON_OTHER))
    with pytest.raises(HandshakeError, match="default/lost has the id 2 here"):
        push(new, other)


def test_a_set_restored_from_a_backup_of_a_recovered_one_is_adopted_from() -> None:
    """No backup has what it had lost before."""
    other = Replicated(OTHER)
    new = recovered_without("lost", other)
    push(new, other)
    delete(new, 1)
    at = schema.current_index(other.db)
    other.submit(adopted(changes_since(new.db, at, whole=True), source=NEW_UUID, epoch=2))
    assert list(streams.all_bounds(other.db)) == [2]
    assert adoption.current_source(other.db) == (NEW_UUID, 2)


def test_what_a_recovery_has_brought_back_is_not_what_is_dropped_elsewhere() -> None:
    """The deletion of a stream is lost at the metadata set, and it is changed there."""
    meta, other = Replicated(META), Replicated(OTHER)
    (gone,) = meta.declare(("Stream", "gone", ON_OTHER))
    push(meta, other)
    other.submit(CreateGroup(gone, "g", 0))
    delete(meta, gone)
    push(meta, other)
    assert dropping.waiting(other.db)
    new = Replicated(META)
    new.declare(("Stream", "gone", ON_OTHER))
    schema.go_on_above(new.db, 1 << 32)
    (later,) = new.declare(("Stream", "later", ON_OTHER))
    push(new, other)
    changed = msgspec.structs.replace(ON_OTHER, description="changed")
    new.declare(("Stream", "gone", changed))
    before = dump(other.db)
    with pytest.raises(HandshakeError, match=rf"gone \(id {gone}\) was deleted here"):
        push(new, other)
    assert dump(other.db) == before
    delete(new, gone)
    push(new, other)
    assert list(streams.all_bounds(other.db)) == [later]


def test_an_id_means_one_object_for_ever() -> None:
    meta, other = Replicated(META), Replicated(OTHER)
    meta.declare(("Stream", "a", ON_OTHER))
    push(meta, other)
    new = Replicated(META)
    new.declare(("Stream", "b", ON_OTHER))
    schema.go_on_above(new.db, 1 << 32)
    new.declare(("Stream", "b", msgspec.structs.replace(ON_OTHER, description="changed")))
    before = dump(other.db)
    with pytest.raises(HandshakeError, match=r"default/b \(id 1\) is Stream default/a here"):
        push(new, other)
    assert dump(other.db) == before
    delete(new, 1)
    push(new, other)
    assert list(streams.all_bounds(other.db)) == [1], "what is here under that id is another one"
    assert schema.current_index(other.db) == schema.current_index(new.db)


def test_a_metadata_set_restored_without_a_stream_does_not_take_its_records_away() -> None:
    meta, other = Replicated(META), Replicated(OTHER)
    meta.declare(("Stream", "a", ON_OTHER), ("Stream", "b", ON_OTHER))
    push(meta, other)
    new = restored(meta, "a")
    new.submit(RegisterReplicaSet(OTHER, b"o" * 16, 1, 2))
    before = dump(other.db)
    with pytest.raises(HandshakeError, match="does not have Stream default/b"):
        other.submit(adopted(changes_since(new.db, 2, whole=True), source=NEW_UUID, epoch=2))
    assert dump(other.db) == before
    assert streams.all_bounds(other.db).keys() == {1, 2}


def test_a_metadata_set_restored_without_a_partition_does_not_hide_its_records() -> None:
    meta, other = Replicated(META), Replicated(OTHER)
    meta.declare(("Stream", "s", StreamSpec(partitions=(META,))))
    push(meta, other)
    meta.declare(("Stream", "s", StreamSpec(partitions=(META, OTHER))))
    push(meta, other)
    new = Replicated(META)
    new.declare(("Stream", "s", StreamSpec(partitions=(META,))))
    new.submit(RegisterReplicaSet(OTHER, b"o" * 16, 1, 2))
    with pytest.raises(HandshakeError, match=f"partition {OTHER} of Stream default/s"):
        other.submit(adopted(changes_since(new.db, 2, whole=True), source=NEW_UUID, epoch=2))
    new.declare(("Stream", "s", StreamSpec(partitions=(META, OTHER))))
    other.submit(adopted(changes_since(new.db, 2, whole=True), source=NEW_UUID, epoch=2))
    assert same_schema(new, other)


def test_what_is_being_dropped_does_not_come_back_with_a_restored_metadata_set() -> None:
    """Under the id of a deleted stream it would lose its records, slice by slice, to the deletion
    that goes on; and producers of the deleted one would write into it."""
    meta, other = Replicated(META), Replicated(OTHER)
    gone, kept = meta.declare(("Stream", "gone", ON_OTHER), ("Stream", "kept", ON_OTHER))
    push(meta, other)
    other.submit(CreateGroup(gone, "g", 0))
    delete(meta, gone)
    push(meta, other)
    assert dropping.waiting(other.db) == [(gone, "Stream")]
    new = Replicated(META)
    assert new.declare(("Stream", "gone", ON_OTHER), ("Stream", "kept", ON_OTHER)) == [gone, kept]
    new.submit(RegisterReplicaSet(OTHER, b"o" * 16, 1, 3))
    before = dump(other.db)
    with pytest.raises(HandshakeError, match=r"deleted since.*Stream default/gone \(id 1\)"):
        other.submit(adopted(changes_since(new.db, 3, whole=True), source=NEW_UUID, epoch=2))
    assert dump(other.db) == before
    delete(new, gone)
    (again,) = new.declare(("Stream", "gone", ON_OTHER))
    other.submit(adopted(changes_since(new.db, 3, whole=True), source=NEW_UUID, epoch=2))
    assert again > 3
    assert list(streams.all_bounds(other.db)) == [kept, again]


def test_ids_that_were_lost_with_the_log_are_not_given_again() -> None:
    """As after `recover`: the metadata set keeps its identity, and its log ends earlier."""
    meta, other = Replicated(META), Replicated(OTHER)
    meta.declare(("Stream", "a", ON_OTHER))
    meta.submit(RegisterReplicaSet(OTHER, b"o" * 16, 1))
    meta.declare(("Stream", "b", ON_OTHER), ("Stream", "c", ON_OTHER))
    push(meta, other)
    recovered = Replicated(META)
    recovered.declare(("Stream", "a", ON_OTHER))
    recovered.submit(RegisterReplicaSet(OTHER, b"o" * 16, 1))
    recovered.submit(RegisterReplicaSet(OTHER, b"o" * 16, 1, schema.current_index(other.db)))
    assert schema.current_index(recovered.db) == 5
    assert recovered.declare(("Stream", "d", ON_OTHER)) == [6]
    push(recovered, other)
    assert list(streams.all_bounds(other.db)) == [1, 3, 4, 6]
    (again,) = recovered.declare(("Stream", "b", ON_OTHER))
    with pytest.raises(HandshakeError, match=r"default/b has the id 3 here.*and 7 there"):
        push(recovered, other)
    delete(recovered, again)
    push(recovered, other)
    assert list(streams.all_bounds(other.db)) == [1, 3, 4, 6]


def test_a_set_with_a_schema_of_its_own_does_not_adopt_and_one_that_adopts_owns_none() -> None:
    meta, other = Replicated(META), Replicated(OTHER)
    meta.declare(("Stream", "a", ON_OTHER))
    other.declare(("Stream", "own", ON_OTHER))
    with pytest.raises(HandshakeError, match="has a schema of its own, at index 1"):
        other.submit(adopted(changes_since(meta.db, 1).__class__(1, 2)))
    adopting = Replicated(OTHER)
    push(meta, adopting)
    for command in (
        ApplySchema(1, (ObjectChange("Stream", "default", "x", '{"partitions":["p"]}'),)),
        DeleteObjects(1, (1,)),
        RegisterReplicaSet("x", UUID, 1),
    ):
        with pytest.raises(SchemaError, match="adopts its schema from the metadata set"):
            adopting.submit(command)


def parts_of(changes: Changes) -> list[AdoptObjects]:
    """One object per part."""
    count = len(changes.objects)
    return [
        AdoptObjects(
            UUID,
            1,
            changes.from_index,
            changes.to_index,
            number,
            number == count - 1,
            changes.is_whole,
            (item,),
            changes.deleted if number == 0 else (),
            changes.replica_sets if number == 0 else (),
            changes.lost,
        )
        for number, item in enumerate(changes.objects)
    ]


def test_parts_take_effect_with_the_last_one() -> None:
    meta, other = Replicated(META), Replicated(OTHER)
    meta.declare(*(("Stream", f"s{number}", ON_OTHER) for number in range(3)))
    parts = parts_of(changes_since(meta.db, 0))
    for part in parts[:-1]:
        assert other.submit(part) == adoption.Adopted(0)
        assert schema.current_index(other.db) == 0
        assert not streams.all_bounds(other.db)
    assert len(other.submit(parts[-1]).objects) == 3
    assert same_schema(meta, other)
    assert other.rows("SELECT * FROM hadron_schema_staged") == []
    assert dump(other.replica()) == dump(other.db)


def test_parts_out_of_order_or_of_two_pushes_are_refused_and_the_first_one_begins_anew() -> None:
    meta, other = Replicated(META), Replicated(OTHER)
    meta.declare(*(("Stream", f"s{number}", ON_OTHER) for number in range(3)))
    old = parts_of(changes_since(meta.db, 0))
    other.submit(old[0])
    with pytest.raises(SchemaError, match=r"part 2 .* came after 1 other parts"):
        other.submit(old[2])
    meta.declare(("Stream", "s3", ON_OTHER))
    new = parts_of(changes_since(meta.db, 0))
    with pytest.raises(SchemaError, match="part 1"):
        other.submit(new[1])
    for part in new:
        other.submit(part)
    assert same_schema(meta, other)


def test_a_stream_deleted_and_made_again_in_one_push_is_another_stream() -> None:
    meta, other = Replicated(META), Replicated(OTHER)
    (old,) = meta.declare(("Stream", "s", ON_OTHER))
    push(meta, other)
    delete(meta, old)
    (new,) = meta.declare(("Stream", "s", ON_OTHER))
    result = push(meta, other)
    assert [(gone.id, gone.metadata_index) for gone in result.deleted] == [(old, 2)]
    assert new == 3
    assert list(streams.all_bounds(other.db)) == [new]
    assert dropping.waiting(other.db) == [], "it was never used"
    assert same_schema(meta, other)


def test_deletions_of_objects_that_were_never_seen_are_told_on() -> None:
    meta, other = Replicated(META), Replicated(OTHER)
    meta.declare(("Stream", "stays", ON_OTHER))
    (gone,) = meta.declare(("Stream", "goes", ON_OTHER))
    delete(meta, gone)
    push(meta, other)
    assert dropping.waiting(other.db) == []
    # Somebody who watched the metadata set at index 2 goes on at a node of this one.
    assert [item.id for item in changes_since(other.db, 2).deleted] == [gone]


def test_beyond_the_tombstones_that_are_kept_everything_is_pushed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schema, "MAX_TOMBSTONES", 2)
    meta, other = Replicated(META), Replicated(OTHER)
    ids = meta.declare(*(("Stream", f"s{number}", ON_OTHER) for number in range(6)))
    push(meta, other)
    delete(meta, *ids[:2])
    assert not changes_since(meta.db, 6).is_whole
    delete(meta, *ids[2:4])
    assert changes_since(meta.db, 8).deleted
    assert changes_since(meta.db, 7).is_whole
    result = push(meta, other)
    assert {gone.id for gone in result.deleted} == set(ids[:4])
    assert [item.id for item in result.objects] == ids[4:]
    assert same_schema(meta, other)
    # And who asks this set for what it has not seen one by one gets everything as well.
    assert changes_since(other.db, 9).is_whole
    assert dump(other.replica()) == dump(other.db)


def test_an_object_of_a_kind_that_this_version_does_not_know_is_kept() -> None:
    other = Replicated(OTHER)
    unknown = StoredObject(1, "Hologram", "default", "h", "{}", 1)
    stream = StoredObject(2, "Stream", "default", "s", '{"partitions":["x"]}', 2)
    result = other.submit(adopted(Changes(0, 2, objects=(unknown, stream))))
    assert [item.name for item in result.objects] == ["s"]
    assert [item.name for item in schema.all_objects(other.db)] == ["default", "s"]
    assert changes_since(other.db, 0).objects == (unknown, stream)


def test_a_pipeline_that_was_given_another_input_goes_on_with_its_own() -> None:
    def pipeline(source: str) -> PipelineSpec:
        return PipelineSpec(replica_set=OTHER, input=source, stages=(StageSpec(name="one"),))

    meta, other = Replicated(META), Replicated(OTHER)
    meta.declare(("Stream", "a", ON_OTHER), ("Stream", "b", ON_OTHER))
    meta.declare(("Pipeline", "p", pipeline("a")))
    push(meta, other)
    meta.declare(("Pipeline", "p", pipeline("b")))
    push(meta, other)
    assert same_schema(meta, other)
    assert other.rows("SELECT stream_id FROM hadron_pipeline_input") == [(1,)]


def test_a_name_belongs_to_the_set_that_had_it_first() -> None:
    meta = Replicated(META)
    one, two = b"1" * 16, b"2" * 16
    assert meta.submit(RegisterReplicaSet(OTHER, one, 1)) == RegisteredSet(OTHER, one, 1, 1)
    meta.submit(RegisterReplicaSet(OTHER, one, 1))
    assert meta.again
    with pytest.raises(HandshakeError, match=f"identity {one.hex()} .* {two.hex()}"):
        meta.submit(RegisterReplicaSet(OTHER, two, 1))
    assert meta.submit(RegisterReplicaSet(OTHER, one, 2)).metadata_index == 2
    with pytest.raises(HandshakeError):
        meta.submit(RegisterReplicaSet(OTHER, two, 2))
    meta.submit(RegisterReplicaSet(OTHER, two, 3))
    with pytest.raises(HandshakeError):
        meta.submit(RegisterReplicaSet(OTHER, one, 2))
    other = Replicated(OTHER)
    push(meta, other)
    assert registry.find(other.db, OTHER) == RegisteredSet(OTHER, two, 3, 3)


def test_deleting_what_is_not_there_changes_nothing() -> None:
    meta = Replicated(META)
    (stream_id,) = meta.declare(("Stream", "s", ON_OTHER))
    with pytest.raises(NotFoundError, match="no object has the id 7"):
        delete(meta, stream_id, 7)
    assert changes_since(meta.db, 0).objects
    with pytest.raises(SchemaError, match="changed from index 0 to 1"):
        meta.submit(DeleteObjects(0, (stream_id,)))


STEP = st.tuples(
    st.sampled_from(["declare", "delete", "register", "push", "parts"]), st.integers(0, 3)
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEP, max_size=25))
def test_whenever_it_is_pushed_the_other_set_comes_to_the_same(
    steps: list[tuple[str, int]],
) -> None:
    meta, other = Replicated(META), Replicated(OTHER)
    for action, number in steps:
        if action == "declare":
            meta.declare(("Stream", f"s{number}", ON_OTHER))
        elif action == "delete":
            found = schema.find(meta.db, "Stream", "default", f"s{number}")
            if found is not None:
                delete(meta, found.id)
        elif action == "register":
            meta.submit(RegisterReplicaSet(f"r{number}", bytes([number]) * 16, 1))
        elif schema.current_index(meta.db) > schema.current_index(other.db):
            changes = changes_since(meta.db, schema.current_index(other.db))
            if action == "push" or not changes.objects:
                other.submit(adopted(changes))
            else:
                # The rest of the parts is lost with the connection.
                for part in parts_of(changes)[:number]:
                    other.submit(part)
    if schema.current_index(meta.db) > schema.current_index(other.db):
        push(meta, other)
    assert same_schema(meta, other)
    assert set(streams.all_bounds(other.db)) == {
        item.id for item in schema.all_objects(meta.db) if item.kind == "Stream"
    }
