"""What a watcher is told in parts, each read when it was sent the one before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hadron.fakes.tables import Replicated
from hadron.metadata import watching
from hadron.metadata.watching import Part, Watch
from hadron.model.errors import NotReadyError
from hadron.model.schema import StreamSpec
from hadron.state import registry, schema
from hadron.state.adoption import StoredObject, objects_after
from hadron.state.registry import RegisterReplicaSet
from hadron.state.schema import DeleteObjects


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    """One object in a part, and two deletions that are remembered."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watching, "_PART_BYTES", 1)
        patch.setattr(schema, "MAX_TOMBSTONES", 2)
        yield


class Watcher:
    """Goes by what it is told, as a client does."""

    def __init__(self, meta: Replicated) -> None:
        self.meta = meta
        self.watch = Watch(0)
        self.objects: dict[int, StoredObject] = {}
        self.sets: set[str] = set()
        self.seen: set[int] = set()

    def take(self) -> Part:
        """One part. Who was told the last one has what there is."""
        part = self.watch.read(self.meta.db)
        self.watch.told(part)
        changes = part.changes
        for gone in changes.deleted:
            self.objects.pop(gone.id, None)
        self.objects |= {item.id: item for item in changes.objects}
        self.sets |= {item.name for item in changes.replica_sets}
        self.seen |= {item.id for item in changes.objects}
        if part.following is None:
            if changes.is_whole:
                self.objects = {key: self.objects[key] for key in self.objects if key in self.seen}
            self.seen.clear()
            assert self.objects == {item.id: item for item in objects_after(self.meta.db, 0)}
            assert self.sets == {item.name for item in registry.registered_sets(self.meta.db)}
            assert self.watch.from_index == schema.current_index(self.meta.db)
        return part

    def begin_anew(self) -> None:
        self.watch = Watch(self.watch.from_index)
        self.seen.clear()


def declare(meta: Replicated, name: str, description: str = "") -> int:
    spec = StreamSpec(partitions=("meta",), description=description)
    (stream_id,) = meta.declare(("Stream", name, spec))
    return stream_id


def delete(meta: Replicated, *ids: int) -> None:
    meta.submit(DeleteObjects(schema.current_index(meta.db), ids))


def test_what_changes_while_it_is_told_is_told_again() -> None:
    meta = Replicated("meta")
    first, second, third = (declare(meta, name) for name in "abc")
    watcher = Watcher(meta)
    assert [item.id for item in watcher.take().changes.objects] == [first]
    declare(meta, "a", "changed")
    delete(meta, second)
    parts = [watcher.take() for _ in range(3)]
    assert [[item.id for item in part.changes.objects] for part in parts] == [[third], [first], []]
    assert [gone.id for gone in parts[-1].changes.deleted] == [second]
    assert [part.following is None for part in parts] == [False, False, True]
    assert [part.changes.from_index for part in parts] == [0, 0, 0]


def test_nothing_is_noted_before_it_was_told() -> None:
    meta = Replicated("meta")
    declare(meta, "a")
    watch = Watch(0)
    assert watch.read(meta.db) == watch.read(meta.db)
    assert watch.from_index == 0


def test_nothing_new_is_the_index_alone() -> None:
    meta = Replicated("meta")
    declare(meta, "a")
    for at in (1, 7):
        watch = Watch(at)
        part = watch.read(meta.db)
        watch.told(part)
        assert (part.changes.from_index, part.changes.to_index, part.changes.objects) == (at, 1, ())
        assert (part.following, watch.from_index) == (None, at)


def test_what_is_forgotten_while_it_is_told_ends_the_watch() -> None:
    """What it was told of is gone, and nobody knows any more that it was there."""
    meta = Replicated("meta")
    ids = [declare(meta, name) for name in "abcde"]
    watcher = Watcher(meta)
    watcher.take()
    delete(meta, *ids[:3])
    with pytest.raises(NotReadyError, match="more of the schema was deleted"):
        watcher.take()
    watcher.begin_anew()
    while (part := watcher.take()).following is not None:
        assert part.changes.is_whole
    assert set(watcher.objects) == set(ids[3:])


def test_what_is_forgotten_while_all_is_told_ends_the_watch() -> None:
    meta = Replicated("meta")
    delete(meta, *[declare(meta, name) for name in "abc"])
    ids = [declare(meta, name) for name in "defgh"]
    watcher = Watcher(meta)
    while watcher.take().changes.objects == ():
        pass
    assert list(watcher.objects) == ids[:1]
    delete(meta, *ids[:3])
    with pytest.raises(NotReadyError):
        watcher.take()


def test_what_has_one_index_is_in_one_part() -> None:
    meta = Replicated("meta")
    for name in "abc":
        declare(meta, name)
    meta.db.execute("UPDATE hadron_schema_object SET metadata_index = 2 WHERE id < 3")
    watcher = Watcher(meta)
    assert [len(watcher.take().changes.objects) for _ in range(2)] == [2, 1]


def test_what_was_forgotten_before_it_began_does_not() -> None:
    meta = Replicated("meta")
    delete(meta, *[declare(meta, name) for name in "abc"])
    kept = [declare(meta, name) for name in "de"]
    watcher = Watcher(meta)
    assert watcher.take().changes.is_whole
    while watcher.take().following is not None:
        pass
    assert list(watcher.objects) == kept


STEP = st.tuples(
    st.sampled_from(["declare", "declare", "delete", "delete", "register", "tell"]),
    st.integers(0, 2),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(STEP, max_size=40), st.sampled_from([1, 300]))
def test_whatever_happens_meanwhile_the_last_part_leads_to_what_there_is(
    steps: list[tuple[str, int]], part_bytes: int
) -> None:
    meta = Replicated("meta")
    watcher = Watcher(meta)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watching, "_PART_BYTES", part_bytes)
        patch.setattr(schema, "MAX_TOMBSTONES", 1)
        for position, (action, number) in enumerate([*steps, *[("tell", 4)] * 20]):
            if action == "declare":
                declare(meta, f"s{number}", str(position))
            elif action == "register":
                meta.submit(RegisterReplicaSet(f"r{number}", bytes([number]) * 16, position + 1))
            elif action == "delete":
                found = schema.find(meta.db, "Stream", "default", f"s{number}")
                if found is not None:
                    delete(meta, found.id)
            else:
                try:
                    watcher.take()
                except NotReadyError:
                    watcher.begin_anew()
    assert watcher.watch.from_index == schema.current_index(meta.db)
