"""Schema by name and by id, in memory, as of the watermark: where handlers look things up."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import nsmallest
from itertools import takewhile
from typing import TypeVar

from hadron.model.errors import MetadataBehindError, NotFoundError
from hadron.model.kinds import how_to_make
from hadron.model.problems import did_you_mean
from hadron.model.schema import RegisteredSet, SchemaObject, Spec, StreamSpec, Tombstone
from hadron.partition.observers import Observers, Order
from hadron.state.events import SchemaChanged
from hadron.state.names import ANOTHER_ONE
from hadron.state.schema import MAX_TOMBSTONES

S = TypeVar("S", bound=Spec)


class Catalog:
    """Loaded from the tables, then kept in step by what becomes visible."""

    def __init__(
        self,
        objects: Iterable[SchemaObject],
        metadata_index: int,
        replica_sets: Iterable[RegisteredSet] = (),
        tombstones: Iterable[Tombstone] = (),
        forgotten_index: int = 0,
    ) -> None:
        self.metadata_index = metadata_index
        self.forgotten_index = forgotten_index
        """Deletions up to here are not remembered one by one."""
        self.replica_sets = {item.name: item for item in replica_sets}
        """Those that the metadata set has registered, by name; not that one itself."""
        self._by_name: dict[tuple[str, str, str], SchemaObject] = {}
        self._by_id: dict[int, SchemaObject] = {}
        self._gone: OrderedDict[int, Tombstone] = OrderedDict()
        """By id, the latest last: what names to call deleted objects by. Of a plain one, the first
        is looked for behind all that went before it."""
        self._ids: list[int] | None = None
        """Sorted; None when they have to be sorted anew."""
        self._listeners: list[Callable[[], None]] = []
        for item in objects:
            self._put(item)
        for tombstone in tombstones:
            self._remember(tombstone)

    def _put(self, item: SchemaObject) -> None:
        self._by_name[item.kind, item.namespace, item.name] = item
        if item.id:
            if item.id not in self._by_id:
                self._ids = None
            self._by_id[item.id] = item

    def _remember(self, tombstone: Tombstone) -> None:
        self._gone[tombstone.id] = tombstone
        if len(self._gone) > MAX_TOMBSTONES:
            _, oldest = self._gone.popitem(last=False)
            self.forgotten_index = max(self.forgotten_index, oldest.metadata_index)

    def _remove(self, tombstone: Tombstone) -> None:
        object_id = tombstone.id
        self._remember(tombstone)
        item = self._by_id.pop(object_id, None)
        if item is None:
            return
        self._ids = None
        key = item.kind, item.namespace, item.name
        if self._by_name[key].id == object_id:
            del self._by_name[key]

    def change(
        self,
        metadata_index: int,
        *,
        objects: Iterable[SchemaObject] = (),
        deleted: Iterable[Tombstone] = (),
        replica_sets: Iterable[RegisteredSet] = (),
    ) -> None:
        """The schema stands at another index. What is `deleted` goes first, because a new object
        may have the name of one of them."""
        for tombstone in deleted:
            self._remove(tombstone)
        for item in objects:
            self._put(item)
        for registered in replica_sets:
            self.replica_sets[registered.name] = registered
        self.metadata_index = max(self.metadata_index, metadata_index)

    def observe(self, observers: Observers) -> None:
        """Keep in step with what becomes visible."""
        observers.add(Order.CATALOG, [SchemaChanged], self._on_visible)

    def _on_visible(self, events: Sequence[SchemaChanged]) -> None:
        for event in events:
            self.change(
                event.metadata_index,
                objects=event.objects,
                deleted=event.deleted,
                replica_sets=event.replica_sets,
            )
        self.tell()

    def tell(self) -> None:
        """Call the listeners: it has changed."""
        for listener in tuple(self._listeners):
            listener()

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` after every change."""
        self._listeners.append(listener)

    def forget_listeners(self) -> None:
        """Nothing changes here any more."""
        self._listeners.clear()

    def all(self) -> list[SchemaObject]:
        return list(self._by_name.values())

    def by_key(self) -> dict[tuple[str, str, str], SchemaObject]:
        """All objects by (kind, namespace, name), as they are now: a copy."""
        return self._by_name.copy()

    def ascending(self, after_id: int | None = None) -> Iterator[SchemaObject]:
        """All objects by id, or those behind one; what was never declared has the id 0."""
        if self._ids is None:
            self._ids = sorted(self._by_id)
        if after_id is None:
            yield from (item for item in self._by_name.values() if not item.id)
        for object_id in self._ids[bisect_right(self._ids, after_id or 0) :]:
            yield self._by_id[object_id]

    def find(self, kind: str, namespace: str, name: str) -> SchemaObject | None:
        return self._by_name.get((kind, namespace, name))

    def stream(self, namespace: str, name: str) -> tuple[SchemaObject, StreamSpec]:
        """Raises `NotFoundError` naming what there is."""
        item = self.named("Stream", namespace, name)
        assert isinstance(item.spec, StreamSpec)
        return item, item.spec

    def named(self, kind: str, namespace: str, name: str) -> SchemaObject:
        """Raises `NotFoundError` naming what there is."""
        item = self._by_name.get((kind, namespace, name))
        if item is not None:
            return item
        # The first are found without putting all into order: whoever asks errs at everybody's cost.
        others = [known[2] for known in self._by_name if known[:2] == (kind, namespace)]
        listed = ", ".join(nsmallest(10, others)) + (", …" if len(others) > 10 else "")
        raise NotFoundError(
            f"{kind.lower()} {name!r} does not exist in namespace {namespace!r}"
            f"{did_you_mean(name, others)}",
            (f"there are: {listed}; or " if others else f"there is no {kind.lower()} yet: ")
            + how_to_make(kind, namespace, name),
        )

    def by_id(self, object_id: int, seen_index: int = 0) -> SchemaObject:
        """The object with an id, which the caller has seen at `seen_index`.

        Raises `MetadataBehindError` when this node may not have heard of it yet, `NotFoundError`
        when it was deleted, or never was (PROTOCOL D3).
        """
        item = self._by_id.get(object_id)
        if item is None:
            self.check_index(seen_index)
            gone = self._gone.get(object_id)
            raise NotFoundError(
                f"{gone.label} was deleted"
                if gone is not None
                else f"no object has the id {object_id}: it was deleted long ago, or never was",
                ANOTHER_ONE,
            )
        return item

    def partition(self, stream_id: int, replica_set: str) -> SchemaObject:
        """The stream with an id. Raises `NotFoundError` when it was deleted, or has no partition on
        this set, which it may have had."""
        item = self.by_id(stream_id)
        if not isinstance(item.spec, StreamSpec) or replica_set not in item.spec.partitions:
            raise NotFoundError(f"{item.label} has no partition on {replica_set}")
        return item

    def name_of(self, object_id: int) -> str:
        """What to call an object by that may have been deleted; its number when that was too long
        ago."""
        item = self._by_id.get(object_id) or self._gone.get(object_id)
        return item.name if item is not None else f"#{object_id}"

    def deleted_since(self, index: int) -> Iterator[Tombstone]:
        """Deletions after the metadata index `index`, the latest first, as far as remembered: all
        of them after `forgotten_index`."""
        latest_first = reversed(self._gone.values())
        return takewhile(lambda each: each.metadata_index > index, latest_first)

    def check_index(self, seen_index: int) -> None:
        """Raises `MetadataBehindError` when the caller has seen more than this node."""
        if seen_index > self.metadata_index:
            raise behind(self.metadata_index, seen_index)


def behind(known_index: int, wanted_index: int) -> MetadataBehindError:
    """This node's copy of the schema does not reach as far as somebody has seen."""
    return MetadataBehindError(
        f"this node knows the schema at index {known_index}, not yet at {wanted_index}",
        "try again, or ask another node; `hadron status` shows at which index each node is",
    )
