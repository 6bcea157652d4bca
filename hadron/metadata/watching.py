"""What somebody who watches the schema is told next: a part of it, read when it may be sent.

Between two parts nothing is held but how far they have come (BOUNDS W3), and the schema may change.
Safety rule: the last part says what leads to one schema that there was. A change takes a higher
index than all before it, and parts go by the index; so what changes meanwhile comes later, once
more if it was told already, and the last part ends where the tables stand as it is read. Parts
before it are a mixture, and say that more follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from operator import attrgetter
from typing import Final

from hadron.metadata.push import Item, size_of
from hadron.model.errors import NotReadyError
from hadron.model.ports import Database
from hadron.model.schema import RegisteredSet, Tombstone
from hadron.state import registry, schema
from hadron.state.adoption import PART_BYTES, Changes, StoredObject, objects_after, tombstones_after

_PART_BYTES: Final = PART_BYTES
"""Of what is told in one message; as much as is pushed in one."""

_INDEX: Final = attrgetter("metadata_index")


@dataclass(frozen=True, slots=True)
class _Place:
    """How far the parts under way have come.

    Attributes:
        is_whole: they are told all that there is.
        told_index: whatever has an index up to here was told.
        begun_index: of what was deleted up to here nobody who is told all has to hear.
    """

    is_whole: bool
    told_index: int
    begun_index: int


@dataclass(frozen=True, slots=True)
class Part:
    """Some of the changes, and where the next part goes on; None: it is the last one."""

    changes: Changes
    following: _Place | None


class Watch:
    """One watcher's: from the schema at an index to each later one."""

    def __init__(self, from_index: int) -> None:
        self.from_index = from_index
        """The watcher has all of the schema at this index."""
        self._place: _Place | None = None
        """None between the last part and the next first one."""

    def read(self, db: Database) -> Part:
        """The next part; it holds nothing while the schema stands at `from_index`. Nothing is noted
        before `told`.

        Raises `NotReadyError` when more was deleted since the last part than is remembered.
        """
        to_index = schema.current_index(db)
        if self._place is None and to_index <= self.from_index:
            return Part(Changes(self.from_index, to_index), None)
        place = self._go_on(to_index, schema.forgotten_index(db))
        items, told_index, has_more = _next(db, place.told_index)
        changes = Changes(
            self.from_index,
            to_index,
            place.is_whole,
            tuple(item for item in items if isinstance(item, StoredObject)),
            tuple(item for item in items if isinstance(item, Tombstone)),
            tuple(item for item in items if isinstance(item, RegisteredSet)),
            schema.lost_ranges(db),
        )
        following = _Place(place.is_whole, told_index, place.begun_index) if has_more else None
        return Part(changes, following)

    def _go_on(self, to_index: int, forgotten: int) -> _Place:
        place = self._place
        if place is None:
            is_whole = self.from_index < forgotten
            return _Place(is_whole, 0, to_index) if is_whole else _Place(False, self.from_index, 0)
        if forgotten > max(place.told_index, place.begun_index):
            # Among them may be what it was told of, as something that there is.
            raise NotReadyError(
                "more of the schema was deleted than is remembered while a watcher was told of it",
                "watch anew",
            )
        return place

    def told(self, part: Part) -> None:
        """It was sent."""
        self._place = part.following
        if part.following is None:
            self.from_index = max(self.from_index, part.changes.to_index)


def _next(db: Database, after: int) -> tuple[list[Item], int, bool]:
    """What has an index above `after`, in this order, up to which index, and whether there is more.
    Of one index all is in one part."""
    rows: Iterator[Item] = merge(
        objects_after(db, after),
        tombstones_after(db, after),
        registry.registered_sets(db, after),
        key=_INDEX,
    )
    items: list[Item] = []
    size = 0
    for item in rows:
        size += size_of(item)
        if items and size > _PART_BYTES and item.metadata_index > after:
            return items, after, True
        items.append(item)
        after = item.metadata_index
    return items, after, False
