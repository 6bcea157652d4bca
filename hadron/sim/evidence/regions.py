"""Several replica sets' history and files, taken apart so that each set can be judged by itself.

Pure. An operation belongs to the set that is its partition; one whose partition nobody knows may be
in any, and is judged in each. A stream that was deleted and created again is another stream
(PROTOCOL D3): where that may happen, the history calls it `name#id`, and so do the files here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from hadron.sim.evidence.evidence import Evidence, Rules
from hadron.sim.evidence.history import Apply, Entry, Event, History, Publish, Steer, Transact
from hadron.sim.evidence.labels import labelled, labelled_in, of_those_that_exist, streams_of
from hadron.sim.evidence.node_files import NodeFile


@dataclass(frozen=True)
class Cluster:
    """What the checks over several replica sets look at.

    Attributes:
        metadata: the name of the metadata set.
        files: of all nodes, by replica set.
        rules: by replica set.
    """

    history: History
    metadata: str
    files: Mapping[str, Sequence[NodeFile]]
    rules: Mapping[str, Rules] = field(default_factory=dict)

    @cached_property
    def sets(self) -> dict[str, Evidence]:
        """Each replica set by itself."""
        return {
            name: Evidence(self._history_of(name), self._files_of(name), self.rules[name])
            for name in self.files
        }

    @cached_property
    def _names(self) -> frozenset[str]:
        return labelled_in(self.history)

    def _files_of(self, name: str) -> list[NodeFile]:
        return [labelled(file, self._names) for file in self.files[name]]

    @cached_property
    def _alive(self) -> frozenset[str]:
        """Streams that exist at the end, as some file of the metadata set has them."""
        return streams_of(self._files_of(self.metadata))

    def _history_of(self, name: str) -> History:
        """What concerns one replica set."""
        nodes = {file.name for file in self.files[name]}
        taken = History(lambda: 0)
        concerns = (_of_set(entry, name, nodes) for entry in self.history.entries)
        taken.entries = of_those_that_exist(
            (entry for entry in concerns if entry is not None), self._alive
        )
        return taken


def drained(group: str, partition: str) -> str:
    """The subject of a "drained" event where a group has several partitions."""
    return f"{group} {partition}"


def _of_set(entry: Entry, name: str, nodes: Collection[str]) -> Entry | None:
    if isinstance(entry, Apply | Transact | Steer):
        return None
    if isinstance(entry, Event):
        if entry.kind == "leaving":
            return entry
        if entry.kind in ("draining", "drained"):
            group, _, partition = entry.subject.partition(" ")
            if partition != name:
                return None
            return msgspec.structs.replace(entry, subject=group)
        return entry if not entry.subject or entry.subject in nodes else None
    if isinstance(entry, Publish):
        return _publish_at(entry, name)
    return entry if entry.partition == name else None


def _publish_at(publish: Publish, name: str) -> Publish | None:
    """A publish as one of the partitions sees it that it may have gone to."""
    if publish.partition == name:
        return publish
    is_pinned = publish.partition and not publish.failover
    if is_pinned or (publish.allowed and name not in publish.allowed):
        return None
    if not publish.partition:
        return msgspec.structs.replace(publish, partition=name)
    # Acknowledged elsewhere: whether it may be here as well is for `published_once` to say.
    return msgspec.structs.replace(publish, partition=name, outcome="unknown", ended=0, runs=[])
