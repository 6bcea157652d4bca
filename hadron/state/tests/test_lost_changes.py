"""Changes that the metadata set has lost by `recover`, at a set that was pushed them (R7)."""

from __future__ import annotations

import msgspec
import pytest

from hadron.fakes.tables import Replicated, dump
from hadron.model.schema import Retention, StreamSpec
from hadron.model.services import ExchangeSpec
from hadron.state import schema
from hadron.state.adoption import changes_since, what_was_lost
from hadron.state.leadership import BeginBallot
from hadron.state.streams import partitions as streams
from hadron.state.tests.test_adoption import META, OTHER, UUID, delete, push

THIRD = "aws.us-west-1/p0"
ON_META = StreamSpec(partitions=(META,))
ON_OTHER = StreamSpec(partitions=(OTHER,))
BOTH = StreamSpec(partitions=(META, OTHER))


def recovered(before: StreamSpec, *changes: StreamSpec) -> tuple[Replicated, Replicated]:
    """The metadata set after `recover`, and the other set, which was pushed what it has lost."""
    meta, new, other = Replicated(META), Replicated(META), Replicated(OTHER)
    for each in (meta, new):
        each.submit(BeginBallot("n1", UUID, (("n1", "leader"),), b"d" * 16, 1))
        each.declare(("Stream", "a", before))
    for change in changes:
        meta.declare(("Stream", "a", change))
    push(meta, other)
    recover(new)
    return new, other


def recover(meta: Replicated) -> None:
    meta.ballot = meta.ballot.recovered()
    above = meta.ballot.first_index
    meta.submit(BeginBallot("n1", UUID, (("n1", "leader"),), b"d" * 16, 1, above_index=above))


def push_everything(meta: Replicated, other: Replicated, monkeypatch: pytest.MonkeyPatch) -> None:
    """As to whoever was away for more deletions than are remembered."""
    monkeypatch.setattr(schema, "MAX_TOMBSTONES", 2)
    ids = meta.declare(*(("Stream", f"s{number}", ON_META) for number in range(4)))
    delete(meta, *ids)
    assert changes_since(meta.db, schema.current_index(other.db)).is_whole
    push(meta, other)


def spec_at(tables: Replicated) -> StreamSpec:
    found = schema.find(tables.db, "Stream", "default", "a")
    assert found is not None
    assert isinstance(found.spec, StreamSpec)
    return found.spec


def with_age(spec: StreamSpec, hours: int) -> StreamSpec:
    return msgspec.structs.replace(spec, retention=Retention(max_age_ms=hours * 3_600_000))


@pytest.mark.parametrize(
    ("before", "change"), [(ON_META, BOTH), (with_age(ON_OTHER, 1), with_age(ON_OTHER, 720))]
)
def test_a_lost_change_is_undone_by_nothing_that_was_before_it(
    monkeypatch: pytest.MonkeyPatch, before: StreamSpec, change: StreamSpec
) -> None:
    """Nobody has touched the stream since: its partition would be hidden, its records dropped."""
    new, other = recovered(before, change)
    for _ in range(2):
        push_everything(new, other, monkeypatch)
        assert spec_at(other) == change
    assert list(streams.all_bounds(other.db)) == [1]
    assert dump(other.replica()) == dump(other.db)


def test_what_is_changed_anew_is_changed_but_for_partitions_that_are_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    new, other = recovered(ON_META, BOTH, StreamSpec(partitions=(META, OTHER, THIRD)))
    for hours in (1, 2):
        new.declare(("Stream", "a", with_age(ON_META, hours)))
        assert not changes_since(new.db, schema.current_index(other.db)).is_whole
        push(new, other)
        assert spec_at(other) == with_age(StreamSpec(partitions=(META, OTHER, THIRD)), hours)
    push_everything(new, other, monkeypatch)
    assert spec_at(other).partitions == (META, OTHER, THIRD)
    # Behind those that are declared meanwhile, where they can be declared again.
    new.declare(("Stream", "a", StreamSpec(partitions=(META, "p"))))
    push(new, other)
    assert spec_at(other).partitions == (META, "p", OTHER, THIRD)
    assert dump(other.replica()) == dump(other.db)


def test_a_partition_that_was_declared_again_may_be_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    new, other = recovered(ON_META, BOTH)
    for spec in (with_age(ON_META, 1), BOTH, ON_META):
        new.declare(("Stream", "a", spec))
        push(new, other)
    assert spec_at(other) == ON_META
    push_everything(new, other, monkeypatch)
    assert spec_at(other) == ON_META
    assert other.rows("SELECT * FROM hadron_schema_kept") == []


def test_a_partition_that_was_known_is_removed_by_whoever_removes_it() -> None:
    """The change that is lost is another stream's."""
    new, other = recovered(BOTH)
    new.declare(("Stream", "a", ON_META))
    push(new, other)
    assert spec_at(other) == ON_META


def test_what_is_kept_of_a_stream_goes_with_it() -> None:
    new, other = recovered(ON_META, BOTH)
    new.declare(("Stream", "a", with_age(ON_META, 1)))
    push(new, other)
    assert other.rows("SELECT * FROM hadron_schema_kept") == [(1, OTHER)]
    delete(new, 1)
    push(new, other)
    assert other.rows("SELECT * FROM hadron_schema_kept") == []
    assert not streams.all_bounds(other.db)


def test_changes_that_two_recoveries_have_lost_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    new, other = recovered(ON_META, BOTH)
    ahead, _ = recovered(ON_META)
    ahead.declare(("Stream", "a", with_age(ON_META, 720)))
    push(ahead, other)
    changed = with_age(BOTH, 720)
    assert spec_at(other) == changed
    recover(new)
    push_everything(new, other, monkeypatch)
    assert spec_at(other) == changed


def test_a_lost_exchange_stays_though_its_stream_is_deleted() -> None:
    """See `hadron/exchanges/tests/test_bridge.py` for who serves it."""
    new, other = recovered(ON_OTHER)
    ahead = Replicated(META)
    ahead.declare(("Stream", "a", ON_OTHER))
    news = ExchangeSpec(replica_set=OTHER, from_stream="a")
    (exchange,) = ahead.declare(("Exchange", "news", news))
    push(ahead, other)
    delete(new, 1)
    assert not changes_since(new.db, schema.current_index(other.db)).is_whole
    push(new, other)
    assert [item.id for item in schema.all_objects(other.db) if item.id] == [exchange]
    assert not streams.all_bounds(other.db)


def lost_at(other: Replicated, meta: Replicated) -> list[str]:
    return what_was_lost(other.db, schema.lost_ranges(meta.db), 100)


def test_what_was_lost_is_told_until_it_is_changed_anew() -> None:
    new, other = recovered(ON_META, BOTH)
    for _ in range(2):
        assert lost_at(other, new) == ["Stream default/a"]
        # Of another stream.
        new.declare(("Stream", "b", ON_META))
        push(new, other)
    new.declare(("Stream", "a", with_age(ON_META, 1)))
    push(new, other)
    assert lost_at(other, new) == [f"partition {OTHER} of Stream default/a"]
    new.declare(("Stream", "a", with_age(BOTH, 1)))
    push(new, other)
    assert lost_at(other, new) == []
    assert lost_at(new, new) == []


def test_what_was_made_or_deleted_meanwhile_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    meta, new, other = Replicated(META), Replicated(META), Replicated(OTHER)
    for each in (meta, new):
        each.submit(BeginBallot("n1", UUID, (("n1", "leader"),), b"d" * 16, 1))
        known = each.declare(("Stream", "a", ON_META), ("Stream", "b", ON_META))
    (gone, _) = meta.declare(("Stream", "gone", ON_META), ("Stream", "lost", ON_META))
    delete(meta, gone, known[0])
    push(meta, other)
    assert lost_at(other, new) == []
    recover(new)
    told = ["Stream default/lost", "the deletion of Stream default/a"]
    assert lost_at(other, new) == told
    assert what_was_lost(other.db, schema.lost_ranges(new.db), 1) == told[:1]
    push(new, other)
    assert lost_at(other, new) == told
    delete(new, known[0])
    push(new, other)
    assert lost_at(other, new) == told[:1]
    push_everything(new, other, monkeypatch)
    assert lost_at(other, new) == told[:1]
