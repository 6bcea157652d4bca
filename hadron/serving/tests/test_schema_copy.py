"""What a replica knows of the schema while it reads it anew."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import apsw
import pytest
import trio

from hadron.model.errors import NotReadyError
from hadron.model.schema import SchemaObject, StreamSpec, Tombstone
from hadron.serving.catalog import Catalog
from hadron.serving.schema_copy import SchemaCopy
from hadron.state.adoption import Changes
from hadron.storage import log


async def test_what_was_known_stays_known_while_everything_is_read_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Too many deletions for a difference, and by then the tables are ahead of the watermark."""
    nothing: Any = None
    copy = SchemaCopy(nothing, nothing)
    found: list[Any] = [Catalog((), 3), Changes(3, 9, is_whole=True), None]

    async def read(_read: Any) -> Any:
        return found.pop(0)

    monkeypatch.setattr(copy, "_read_committed", read)
    await copy._refresh()
    assert copy.index == 3
    await copy._refresh()
    assert (copy.is_known, copy.index) == (True, 3)
    found += [Changes(3, 9, is_whole=True), Catalog((), 9)]
    await copy._refresh()
    assert copy.index == 9


@pytest.mark.parametrize(("committed_lsn", "is_read"), [(7, False), (8, True)])
async def test_tables_that_are_ahead_of_what_is_reported_are_not_read(
    committed_lsn: int, is_read: bool
) -> None:
    """A leader has stopped between a COMMIT and its report: its tables are at 8 already, and all
    that is said of them is 7."""
    connection = apsw.Connection("")
    connection.execute(log.TABLES)
    log.set_meta(connection, "applied_lsn", 8)

    async def run(read: Any) -> Any:
        return read(connection)

    store: Any = SimpleNamespace(readers=SimpleNamespace(run=run))
    follower: Any = SimpleNamespace(committed_lsn=committed_lsn, applied_lsn=7, diverged="")
    found = await SchemaCopy(store, follower)._read_committed(lambda _db: "the schema")
    assert found == ("the schema" if is_read else None)


async def test_whoever_watches_is_not_told_that_nothing_changed_when_nobody_can_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This node has shown the schema at 9 as a leader, and is none any more. Its tables come to be
    known as committed later, which is no change: a client that was told "nothing since 3" would
    wait for the one after it, and not use the partition that was added at 9."""
    nothing: Any = None
    copy = SchemaCopy(nothing, nothing)
    found: list[Any] = [Catalog((), 9), None, Changes(3, 9)]

    async def read(_read: Any) -> Any:
        return found.pop(0)

    monkeypatch.setattr(copy, "_read_committed", read)
    await copy._refresh()
    with pytest.raises(NotReadyError):
        await copy.query(nothing)
    assert await copy.query(nothing) == Changes(3, 9)


async def test_what_was_deleted_goes_from_a_replicas_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: Any = None
    copy = SchemaCopy(nothing, nothing)
    spec = StreamSpec(partitions=("local/p0",))
    item = SchemaObject(kind="Stream", name="s", spec=spec, id=2, metadata_index=2)
    gone = Tombstone(3, 2, "Stream", "default", "s")
    found: list[Any] = [Catalog([item], 2), Changes(2, 3, deleted=(gone,))]

    async def read(_read: Any) -> Any:
        return found.pop(0)

    monkeypatch.setattr(copy, "_read_committed", read)
    await copy._refresh()
    assert copy.catalog.all() == [item]
    await copy._refresh()
    assert (copy.index, copy.catalog.all()) == (3, [])


async def test_what_was_committed_after_it_led_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It led, another leader has committed what it had written, and it applies that as a replica:
    no entry that it applied as a leader was ever noted as one that changes the schema."""
    nothing: Any = None
    follower: Any = SimpleNamespace(schema_lsn=0, stored_applied_lsn=0)
    copy = SchemaCopy(nothing, follower)
    found: list[Any] = [Catalog((), 5), Changes(5, 6)]

    async def read(_read: Any) -> Any:
        return found.pop(0)

    monkeypatch.setattr(copy, "_read_committed", read)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(copy.run)
        with trio.fail_after(10):
            await copy.at_least(5, 10)
            copy.lead(Catalog((), 5), nothing)
            copy.end_leading()
            copy.note_applied()
            assert (await copy.at_least(6, 10)).metadata_index == 6
        nursery.cancel_scope.cancel()
