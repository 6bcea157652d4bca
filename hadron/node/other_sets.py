"""Between discovery and the schema: who the schema is pushed to, and whom names belong to."""

from __future__ import annotations

from collections.abc import Collection

import trio

from hadron.metadata.pusher import ReplicaSets, Target
from hadron.node.discovery import Discovery
from hadron.serving.schema_copy import SchemaCopy


def address_of(sets: ReplicaSets | None, replica_set: str) -> str:
    """Of its leader; "" when that is not known."""
    targets = sets.targets() if sets is not None else ()
    known = [each for each in targets if each.name == replica_set and each.address]
    # Two have one name after a restore: the later one has the higher epoch.
    return max(known, key=lambda each: each.epoch).address if known else ""


class OtherSets:
    """`metadata.pusher.ReplicaSets`: all that discovery knows, but the node's own set."""

    def __init__(self, discovery: Discovery, own: str) -> None:
        self._discovery = discovery
        self._own = own

    @property
    def changed(self) -> trio.Event:
        return self._discovery.changed

    def names(self) -> list[str]:
        return [each.name for each in self._discovery.sets()]

    async def seek(self, names: Collection[str]) -> None:
        await self._discovery.seek(names)

    def targets(self) -> list[Target]:
        """Founded sets only: the others have no identity yet, and nobody who would log anything."""
        return [
            Target(each.name, each.uuid, each.epoch, each.leader.address)
            for each in self._discovery.directory.statements()
            if each.name != self._own and each.uuid
        ]


async def follow_registry(copy: SchemaCopy, discovery: Discovery) -> None:
    """Tell discovery whom names belong to, as the metadata set has it, for ever."""
    while True:
        changed = copy.changed
        if copy.is_known:
            for item in copy.catalog.replica_sets.values():
                discovery.register(item.name, item.uuid, item.epoch)
        await changed.wait()
