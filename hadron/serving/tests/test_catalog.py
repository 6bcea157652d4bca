"""The schema in memory: what it says of objects that are not there any more."""

from __future__ import annotations

from typing import Any

import pytest

from hadron.fakes.tables import Replicated
from hadron.model.errors import MetadataBehindError, NotFoundError
from hadron.model.schema import SchemaObject, StreamSpec, Tombstone
from hadron.serving.catalog import Catalog
from hadron.serving.leading import Leading
from hadron.serving.schema_copy import load
from hadron.state.schema import (
    MAX_TOMBSTONES,
    ApplySchema,
    DeleteObjects,
    ObjectChange,
    forget_tombstones,
)

SPEC = StreamSpec(partitions=("local/p0",))


def stream(name: str, object_id: int) -> SchemaObject:
    return SchemaObject(kind="Stream", name=name, spec=SPEC, id=object_id, metadata_index=object_id)


def test_deleted_objects_keep_their_names() -> None:
    catalog = Catalog([stream("a", 1), stream("b", 2)], 2)
    gone = Tombstone(3, 1, "Stream", "default", "a")
    catalog.change(4, deleted=[gone], objects=[stream("a", 4)])
    assert [catalog.name_of(number) for number in (1, 2, 4, 9)] == ["a", "b", "a", "#9"]
    with pytest.raises(NotFoundError, match="Stream default/a was deleted"):
        catalog.by_id(1)
    with pytest.raises(NotFoundError, match="no object has the id 9"):
        catalog.by_id(9)
    assert catalog.by_id(4).name == "a"


@pytest.mark.parametrize(("kind", "name"), [("Endpoint", "quote"), ("Exchange", "prices")])
def test_what_is_not_there_is_made_by_a_command(kind: str, name: str) -> None:
    with pytest.raises(NotFoundError) as raised:
        Catalog([], 1).named(kind, "default", name)
    assert f"`hadron create {kind.lower()} {name}`" in raised.value.hint


def test_only_so_many_names_are_kept() -> None:
    catalog = Catalog(
        [],
        MAX_TOMBSTONES,
        tombstones=[
            Tombstone(index, index, "Stream", "default", f"s{index}")
            for index in range(1, MAX_TOMBSTONES + 1)
        ],
    )
    assert catalog.name_of(1) == "s1"
    catalog.change(20_000, deleted=[Tombstone(20_000, 15_000, "Stream", "default", "latest")])
    assert [catalog.name_of(number) for number in (1, 2, 15_000)] == ["#1", "s2", "latest"]
    assert catalog.forgotten_index == 1


def test_names_are_read_back_from_the_tables() -> None:
    tables = Replicated()
    made = tables.submit(
        ApplySchema(0, (ObjectChange("Stream", "default", "a", '{"partitions":["local/p0"]}'),))
    )
    tables.submit(DeleteObjects(1, (made[0].id,)))
    loaded = load(tables.db)
    assert loaded.name_of(made[0].id) == "a"
    assert loaded.forgotten_index == 0
    forget_tombstones(tables.db, 2)
    assert load(tables.db).forgotten_index == 2


def test_a_leader_that_is_behind_says_so_and_not_that_there_is_nothing() -> None:
    nothing: Any = None
    leading = Leading("local/p0", nothing, Catalog([stream("a", 1)], 2), nothing, nothing)
    for object_id, name in ((3, ""), (0, "new")):
        with pytest.raises(MetadataBehindError, match="at index 2, not yet at 3"):
            leading.find("Stream", "", name, object_id, 3)
        with pytest.raises(NotFoundError):
            leading.find("Stream", "", name, object_id, 2)


def test_all_by_key_is_a_copy() -> None:
    catalog = Catalog([stream("a", 1)], 1)
    found = catalog.by_key()
    catalog.change(2, objects=[stream("b", 2)])
    assert found == {("Stream", "default", "a"): stream("a", 1)}
    assert list(catalog.by_key().values()) == catalog.all()


def test_of_many_that_there_are_the_first_are_named() -> None:
    catalog = Catalog([stream(f"s{number:02d}", number + 1) for number in reversed(range(12))], 12)
    with pytest.raises(NotFoundError) as raised:
        catalog.named("Stream", "default", "s12")
    assert "there are: s00, s01, s02, s03, s04, s05, s06, s07, s08, s09, …; or" in raised.value.hint
