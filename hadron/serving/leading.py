"""What a node has only while it leads: its parts, and the door that calls go through to them.

`node.leadership` makes a `Leading` and ends it; `state.leadership` is what the log says of who
leads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

from hadron.model.errors import HadronError, NotFoundError, NotLeaderError, NotReadyError
from hadron.model.ids import DEFAULT_NAMESPACE
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.partition.controller import Controller
from hadron.serving.catalog import Catalog
from hadron.serving.lock_table import LockTable
from hadron.serving.visible import VisibleStreams

_NO_ID: Final = (1 << 63) - 1
"""Nothing has it; 0 would mean that a name counts."""


class Part:
    """Something that a leader does; a feature has one, or several. It is made when the ballot's
    first entry is committed, so whatever is in the tables then is committed."""

    async def run(self) -> None:
        """Work until cancelled."""

    def stop(self, reason: HadronError) -> None:
        """Leading ends: tell whoever is served, so that clients look for the leader again."""

    @property
    def troubles(self) -> list[str]:
        """What people must know, in words."""
        return []


P = TypeVar("P", bound=Part)


class Leading:
    """One leadership as handlers and features see it, from the ballot that was won to the one that
    ends it."""

    def __init__(
        self,
        replica_set: str,
        controller: Controller,
        catalog: Catalog,
        visible: VisibleStreams,
        locks: LockTable,
    ) -> None:
        self.replica_set = replica_set
        self.controller = controller
        self.catalog = catalog
        self.visible = visible
        self.locks = locks
        self._parts: dict[type[Part], Part] = {}

    def add(self, parts: Iterable[Part]) -> None:
        for part in parts:
            assert type(part) not in self._parts
            self._parts[type(part)] = part

    def part(self, kind: type[P]) -> P:
        part = self._parts[kind]
        assert isinstance(part, kind)
        return part

    @property
    def parts(self) -> Iterator[Part]:
        yield from self._parts.values()

    def partition(
        self,
        namespace: str,
        stream: str,
        partition: str,
        stream_id: int = 0,
        metadata_index: int = 0,
    ) -> SchemaObject:
        """The stream whose partition is asked for, if it is here; "" means the one here.

        Args:
            stream_id: 0, or the stream's id, and then its names mean nothing (PROTOCOL D3).
            metadata_index: what the caller has seen of the schema.

        Raises `NotFoundError`, `NotLeaderError`, or `MetadataBehindError` when the caller has seen
        more than is known here yet.
        """
        item = self.find("Stream", namespace, stream, stream_id, metadata_index)
        spec = item.spec
        assert isinstance(spec, StreamSpec)
        wanted = partition or self.replica_set
        if wanted not in spec.partitions:
            self.catalog.check_index(metadata_index)
            raise NotFoundError(
                f"stream {item.name!r} has no partition {wanted!r}",
                f"it has: {', '.join(spec.partitions)}",
            )
        if wanted != self.replica_set:
            raise NotLeaderError(
                f"partition {wanted!r} is led elsewhere, this is {self.replica_set}"
            )
        return item

    def partition_of(self, stream_id: int, metadata_index: int) -> SchemaObject:
        """The same for who names streams by their ids alone; 0 is none."""
        return self.partition("", "", "", stream_id or _NO_ID, metadata_index)

    def find(
        self, kind: str, namespace: str, name: str, object_id: int, metadata_index: int
    ) -> SchemaObject:
        """The object with an id, or else with a name; raises like `partition`."""
        if object_id:
            item = self.catalog.by_id(object_id, metadata_index)
            if item.kind != kind:
                raise NotFoundError(f"{item.label}, with the id {object_id}, is no {kind.lower()}")
            return item
        try:
            return self.catalog.named(kind, namespace or DEFAULT_NAMESPACE, name)
        except NotFoundError:
            self.catalog.check_index(metadata_index)
            raise

    def stop(self, reason: HadronError) -> None:
        """End everything that was served."""
        for part in self.parts:
            part.stop(reason)
        self.visible.end(reason)
        self.controller.stop(reason)


def missing_majority(controller: Controller) -> str:
    """That so few members answer that nothing can be committed, in words; "" while enough do."""
    members = controller.quorum.members
    fed = [name for name in members if controller.feed_of(name) is not None]
    counting = [name for name in fed if controller.quorum.is_voter(name)]
    needed = len(members) // 2 + 1
    # The leader answers itself, and feeds only the others.
    if len(counting) + 1 >= needed:
        return ""
    if len(fed) + 1 >= needed:
        return (
            f"no majority: {len(counting) + 1} of {len(members)} members count, "
            f"{', '.join(name for name in fed if name not in counting)} after having caught up"
        )
    verb = "members answer" if fed else "members answers"
    return f"no majority: {len(fed) + 1} of {len(members)} {verb}"


class Door:
    """Lets calls in while this node leads, and says who does or why nobody, when it does not.

    Attributes:
        current: the leadership, while there is one.
    """

    def __init__(self, node: str, leader: str, leader_address: str) -> None:
        self._node = node
        self._leader = leader
        self._leader_address = leader_address
        self.current: Leading | None = None
        self.reason = "it has not shaken hands with a majority of its replica set yet"

    def point_to(self, leader: str, address: str) -> None:
        """Another node leads with a newer configuration; its address may not be known here."""
        self._leader, self._leader_address = leader, address

    def open(self, leading: Leading) -> None:
        self.current = leading

    def close(self) -> None:
        self.current = None

    @property
    def is_open(self) -> bool:
        return self.current is not None

    def leading(self) -> Leading:
        """Raises `NotLeaderError` or `NotReadyError`."""
        if self.current is not None:
            return self.current
        if self._node == self._leader:
            raise NotReadyError(
                f"node {self._node} does not serve: {self.reason}",
                "see `hadron status` for what it waits for, and for the way out",
            )
        address = self._leader_address
        raise NotLeaderError(
            f"node {self._node} is a replica",
            f"the leader is {self._leader}{f' at {address}' if address else ''}",
        )
