"""What the metadata set's log makes of the schema, index by index, computed without `apply`.

Pure: the checker's word against that of the tables on every replica set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hadron.model.errors import CorruptionError
from hadron.model.kinds import KINDS, spec_from_json
from hadron.sim.evidence.node_files import NodeFile
from hadron.sim.evidence.regions import Cluster
from hadron.state.adoption import AdoptObjects
from hadron.state.features import MACHINE
from hadron.state.leadership import BeginBallot
from hadron.state.machine import Command
from hadron.state.registry import RegisterReplicaSet
from hadron.state.schema import ApplySchema, DeleteObjects

Object = tuple[str, str, str, str, int]
"""Kind, namespace, name, specification as JSON, metadata index of the last change."""


@dataclass(slots=True)
class State:
    """The schema as of one index: objects by id, and (uuid, epoch, index) of replica sets."""

    objects: dict[int, Object] = field(default_factory=dict)
    replica_sets: dict[str, tuple[bytes, int, int]] = field(default_factory=dict)

    def copy(self) -> State:
        return State(dict(self.objects), dict(self.replica_sets))

    def without(self, ids: Iterable[int]) -> State:
        """Less these objects."""
        gone = frozenset(ids)
        return State(
            {each: item for each, item in self.objects.items() if each not in gone},
            dict(self.replica_sets),
        )

    def difference(self, found: State) -> str:
        """What is otherwise there than it should be; "" when nothing is."""
        for object_id in sorted(self.objects.keys() | found.objects.keys()):
            here, there = self.objects.get(object_id), found.objects.get(object_id)
            if _meaning(here) != _meaning(there):
                return f"object {object_id} should be {here}, it is {there}"
        for name in sorted(self.replica_sets.keys() | found.replica_sets.keys()):
            if self.replica_sets.get(name) != found.replica_sets.get(name):
                return (
                    f"replica set {name} should be {self.replica_sets.get(name)}, it is "
                    f"{found.replica_sets.get(name)}"
                )
        return ""


def _meaning(item: Object | None) -> object:
    """Specifications are written anew by whoever stores them."""
    if item is None or item[0] not in KINDS:
        return item
    return item[0], item[1], item[2], spec_from_json(item[0], item[3]), item[4]


def state_of(file: NodeFile) -> State:
    """The schema as a node's tables have it."""
    return State(
        {object_id: (*named, *file.specs[object_id]) for object_id, named in file.objects.items()},
        dict(file.replica_sets),
    )


@dataclass
class SchemaLog:
    """The metadata set's schema, by the indexes at which it has stood."""

    at: dict[int, State]
    end: State
    """The latest."""

    @property
    def ids(self) -> frozenset[int]:
        """Of all objects that there ever were."""
        return frozenset(each for state in self.at.values() for each in state.objects)

    @classmethod
    def of(cls, cluster: Cluster) -> SchemaLog:
        """Read from the metadata set's log, which must not have been trimmed."""
        evidence = cluster.sets[cluster.metadata]
        # The files as they are: the evidence has other names for streams.
        file = next(
            each for each in cluster.files[cluster.metadata] if each.name == evidence.reference.name
        )
        assert file.first_lsn == 1, "the metadata set's log was trimmed: nothing can be judged"
        index, state = 0, State()
        at = {0: state}
        for command in _commands(file, evidence.committed):
            state = state.copy()
            index = _change(state, index, command)
            at[index] = state
        return cls(at, state)

    def adopted_wrongly(self, file: NodeFile, committed: int) -> Iterator[str]:
        """What does not follow, or leads elsewhere, among the changes that a set has logged; what
        was trimmed of its log is not judged."""
        index: int | None = 0 if file.first_lsn == 1 else None
        state = State() if file.first_lsn == 1 else None
        parts: list[AdoptObjects] = []
        for command in _commands(file, committed):
            if not isinstance(command, AdoptObjects):
                continue
            if index is not None and command.from_index != index:
                yield f"what follows index {command.from_index} was logged at index {index}"
                return
            parts = [*parts, command] if command.part else [command]
            if not command.is_last:
                continue
            index = command.to_index
            if state is None:
                continue
            _adopt(state, parts)
            expected = self.at.get(index)
            if expected is None:
                yield f"the metadata set's schema has never stood at index {index}"
                return
            if difference := expected.difference(state):
                yield f"at index {index}, {difference}"
                return


def _commands(file: NodeFile, committed: int) -> Iterator[Command]:
    for lsn, row in sorted(file.log.items()):
        if lsn <= committed and lsn not in file.damage:
            try:
                command = MACHINE.decode(row.command)
            except CorruptionError:
                continue
            if isinstance(
                command,
                ApplySchema | DeleteObjects | BeginBallot | RegisterReplicaSet | AdoptObjects,
            ):
                yield command


def _change(state: State, index: int, command: Command) -> int:
    """The index after a command of the metadata set."""
    if isinstance(command, ApplySchema):
        for change in command.changes:
            index += 1
            named = change.kind, change.namespace, change.name
            known = [each for each, item in state.objects.items() if item[:3] == named]
            state.objects[known[0] if known else index] = (*named, change.spec_json, index)
    elif isinstance(command, DeleteObjects):
        for object_id in command.ids:
            index += 1
            del state.objects[object_id]
    elif isinstance(command, RegisterReplicaSet):
        known_set = state.replica_sets.get(command.name)
        index = max(index, command.above_index) + 1
        epoch = max(command.epoch, known_set[1]) if known_set is not None else command.epoch
        state.replica_sets[command.name] = command.uuid, epoch, index
    elif isinstance(command, BeginBallot):
        # The first entry of a set that was restored.
        index = max(index, command.above_index)
    return index


def _adopt(state: State, parts: list[AdoptObjects]) -> None:
    last = parts[-1]
    if last.is_whole:
        state.objects = {
            each: item
            for each, item in state.objects.items()
            if any(lost.end_index < each <= lost.above_index for lost in last.lost)
        }
    for part in parts:
        for gone in part.deleted:
            state.objects.pop(gone.id, None)
    for part in parts:
        for item in part.objects:
            state.objects[item.id] = (
                item.kind,
                item.namespace,
                item.name,
                item.spec_json,
                item.metadata_index,
            )
        for each in part.replica_sets:
            state.replica_sets[each.name] = each.uuid, each.epoch, each.metadata_index
