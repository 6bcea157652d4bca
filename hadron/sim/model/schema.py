"""Objects of the schema, how they are adopted, ballots, what deleted objects leave (D3, R, B5)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from hadron.model.errors import FencedError, HandshakeError, NotFoundError, SchemaError
from hadron.model.kinds import KINDS, spec_from_json
from hadron.model.schema import StreamSpec, spec_to_json
from hadron.sim.model.entry import Entry, Known, Refused, Rows
from hadron.state.adoption import AdoptObjects, StoredObject
from hadron.state.leadership import BeginBallot, FollowRules
from hadron.state.registry import RegisterReplicaSet
from hadron.state.schema import ApplySchema, DeleteObjects

Name = tuple[str, str, str]
"""Kind, namespace, name."""

_STREAM: Final = "Stream"


@dataclass(slots=True)
class Object:
    name: Name
    spec: str
    index: int


@dataclass(slots=True)
class Schema:
    """Attributes:
    index: None before there was any.
    tombstones: (id, name) by the index of the deletion.
    lost: where it ended, by the index above which it went on after a recovery.
    source: (uuid, epoch) of the metadata set that was adopted from.
    staged: parts of a push that has not come to its end.
    kept: (stream's id, partition) that the metadata set has changed the stream without, for it does
        not know that there is one.
    registered: (uuid, epoch, index) by the replica set's name.
    dropped: deleted objects that have left something: kind, and when they were deleted.
    declare, close: what an object means to streams and pipelines, and that it is gone.
    """

    declare: Callable[[Entry, int, Object], None]
    close: Callable[[str, int], bool]
    index: int | None = None
    objects: dict[int, Object] = field(default_factory=dict)
    tombstones: dict[int, tuple[int, Name]] = field(default_factory=dict)
    forgotten: int | None = None
    lost: dict[int, int] = field(default_factory=dict)
    source: tuple[bytes, int] | None = None
    staged: list[AdoptObjects] = field(default_factory=list)
    kept: set[tuple[int, str]] = field(default_factory=set)
    registered: dict[str, tuple[bytes, int, int]] = field(default_factory=dict)
    dropped: dict[int, tuple[str, int]] = field(default_factory=dict)

    def find(self, name: Name) -> int | None:
        return next((each for each, item in self.objects.items() if item.name == name), None)

    # --- the metadata set's own ------------------------------------------------------------------

    def apply(self, entry: Entry, command: ApplySchema) -> list[dict[str, Any]]:
        index = self._owned(command.expected_index)
        changed: list[tuple[int, Object]] = []
        for change in command.changes:
            index += 1
            name = change.kind, change.namespace, change.name
            spec = spec_to_json(spec_from_json(change.kind, change.spec_json)).decode()
            known = self.find(name)
            changed.append((index if known is None else known, Object(name, spec, index)))
            self.objects[changed[-1][0]] = changed[-1][1]
        self.index = index
        self._declare(entry, changed, refuse=True)
        return [_told(*each) for each in changed]

    def delete(self, entry: Entry, command: DeleteObjects) -> dict[str, Any]:
        index = self._owned(command.expected_index)
        deleted = []
        for object_id in command.ids:
            if object_id not in self.objects:
                raise Refused(NotFoundError)
            index += 1
            deleted.append(_tombstone(index, object_id, self.objects[object_id].name))
            self._forget(entry, index, object_id, self.objects[object_id].name)
        self.index = index
        self._forget_old(entry)
        return {"metadata_index": index, "deleted": deleted}

    def register(self, entry: Entry, command: RegisterReplicaSet) -> dict[str, Any]:
        known = self.registered.get(command.name)
        index = self.index or 0
        if known is not None:
            uuid, epoch, at = known
            is_known = uuid == command.uuid and epoch >= command.epoch
            if is_known and index > command.above_index:
                raise Known(_registered(command.name, uuid, epoch, at))
            if uuid != command.uuid and command.epoch <= epoch:
                raise Refused(HandshakeError)
        self._owned(index)
        if command.above_index > max(index, entry.ballot.epoch << 32) + (1 << 22):
            raise Refused(HandshakeError)
        self.index = max(index, command.above_index) + 1
        epoch = command.epoch if known is None else max(known[1], command.epoch)
        self.registered[command.name] = command.uuid, epoch, self.index
        return _registered(command.name, command.uuid, epoch, self.index)

    def _owned(self, expected: int) -> int:
        index = self.index or 0
        if self.source is not None or index != expected:
            raise Refused(SchemaError)
        return index

    # --- of other sets ---------------------------------------------------------------------------

    def adopt(self, entry: Entry, command: AdoptObjects) -> dict[str, Any]:
        index = self.index or 0
        is_another = self._is_another(command)
        if command.from_index != index or command.to_index <= index:
            raise Refused(SchemaError)
        if command.to_index >> 32 > command.source_epoch:
            raise Refused(SchemaError)
        staged = [] if command.part == 0 else self.staged
        first = staged[0] if staged else command
        if len(staged) != command.part or any(
            getattr(first, name) != getattr(command, name)
            for name in ("source", "to_index", "is_whole", "lost")
        ):
            raise Refused(SchemaError)
        if not command.is_last:
            self.staged = [*staged, command]
            return {"metadata_index": index, "objects": [], "deleted": [], "replica_sets": []}
        parts = [*staged, command]
        if is_another:
            self._check_nothing_is_lost(parts)
        epoch = max(command.source_epoch, self.source[1] if self.source is not None else 0)
        self.staged, self.source = [], (command.source, epoch)
        return self._take_effect(entry, parts)

    def _is_another(self, command: AdoptObjects) -> bool:
        if self.source is None:
            if self.index:
                raise Refused(HandshakeError)
            return False
        uuid, epoch = self.source
        if uuid == command.source:
            return False
        if command.source_epoch <= epoch:
            raise Refused(HandshakeError)
        if not command.is_whole:
            raise Refused(SchemaError)
        return True

    def _check_nothing_is_lost(self, parts: Sequence[AdoptObjects]) -> None:
        """A metadata set that was restored must know all that is here, or that it was deleted, and
        nothing that was deleted here."""
        said = {item.id: item for part in parts for item in part.objects}
        told = {
            (gone.id, (gone.kind, gone.namespace, gone.name))
            for part in parts
            for gone in part.deleted
        }
        for object_id, known in self.objects.items():
            item = said.get(object_id)
            if item is None or (item.kind, item.namespace, item.name) != known.name:
                if (object_id, known.name) not in told and not _has_lost(parts[-1], object_id):
                    raise Refused(HandshakeError)
            elif item.kind == _STREAM and _partitions_less(known.spec, item.spec_json):
                raise Refused(HandshakeError)
        if any(each <= (self.index or 0) and each not in self.objects for each in said):
            raise Refused(HandshakeError)

    def _take_effect(self, entry: Entry, parts: Sequence[AdoptObjects]) -> dict[str, Any]:
        last = parts[-1]
        said = sorted(
            (item for part in parts for item in part.objects), key=lambda item: item.metadata_index
        )
        gone = [
            (each.metadata_index, each.id, (each.kind, each.namespace, each.name))
            for part in parts
            for each in part.deleted
        ]
        if last.is_whole:
            kept = {item.id for item in said}
            gone = [
                (-each, each, item.name)
                for each, item in sorted(self.objects.items())
                if each not in kept and not _has_lost(last, each)
            ]
        gone = [
            each
            for each in gone
            if each[1] not in self.objects or self.objects[each[1]].name == each[2]
        ]
        for index, object_id, name in gone:
            self._forget(entry, index, object_id, name)
        if last.is_whole:
            self._forget_until(last.to_index)
        else:
            self._forget_old(entry)
        for item in said:
            name = item.kind, item.namespace, item.name
            known = self.objects.get(item.id)
            if item.id <= (self.index or 0) and (known is None or known.name != name):
                # It was deleted here, or is another one, and its id means it for ever.
                raise Refused(HandshakeError)
            if self.find(name) not in (None, item.id):
                raise Refused(HandshakeError)
        for item in said:
            self._take(last, item)
        replica_sets = [each for part in parts for each in part.replica_sets]
        for each in replica_sets:
            self.registered[each.name] = each.uuid, each.epoch, each.metadata_index
        self.index = last.to_index
        taken = [(each.id, self.objects[each.id]) for each in said if each.kind in KINDS]
        self._declare(entry, taken, refuse=False)
        return {
            "metadata_index": last.to_index,
            "objects": [_told(*each) for each in taken],
            "deleted": [_tombstone(*each) for each in gone],
            "replica_sets": [
                _registered(each.name, each.uuid, each.epoch, each.metadata_index)
                for each in replica_sets
            ],
        }

    def _take(self, last: AdoptObjects, item: StoredObject) -> None:
        """A change that is known here and lost there is undone by what was before it in no way, and
        by what came later in all but partitions of which that cannot know."""
        known = self.objects.get(item.id)
        spec = item.spec_json
        if known is not None:
            is_lost = _has_lost(last, known.index)
            if is_lost and item.metadata_index < known.index:
                return
            if item.kind == _STREAM:
                more = _partitions_less(known.spec, spec)
                more = [each for each in more if is_lost or (item.id, each) in self.kept]
                self.kept = {each for each in self.kept if each[0] != item.id}
                self.kept |= {(item.id, each) for each in more}
                spec = _with_partitions(spec, more)
        name = item.kind, item.namespace, item.name
        self.objects[item.id] = Object(name, spec, item.metadata_index)

    # --- both ------------------------------------------------------------------------------------

    def _declare(self, entry: Entry, items: Sequence[tuple[int, Object]], *, refuse: bool) -> None:
        """Streams first; of an object that one command changes twice, each change."""
        for object_id, item in sorted(items, key=lambda each: each[1].name[0] != _STREAM):
            try:
                self.declare(entry, object_id, item)
            except Refused as refused:
                # What the metadata set has logged cannot be undone from here.
                if refuse or refused.kind is not SchemaError:
                    raise

    def _forget(self, entry: Entry, index: int, object_id: int, name: Name) -> None:
        self.objects.pop(object_id, None)
        self.kept = {each for each in self.kept if each[0] != object_id}
        self.tombstones[index] = object_id, name
        if self.close(name[0], object_id):
            self.dropped.setdefault(object_id, (name[0], entry.now_ms))

    def _forget_old(self, entry: Entry) -> None:
        """The latest deletions are remembered one by one."""
        if len(self.tombstones) > entry.tombstones:
            self._forget_until(sorted(self.tombstones)[-entry.tombstones - 1])

    def _forget_until(self, index: int) -> None:
        self.tombstones = {at: gone for at, gone in self.tombstones.items() if at > index}
        self.forgotten = max(index, self.forgotten or 0)

    def begin_history(self, above_index: int) -> None:
        """After a restore: whoever has seen more gets all of it, once."""
        self.index = max(self.index or 0, above_index)
        self.forgotten = max(self.index, self.forgotten or 0)

    def go_on_above(self, above_index: int) -> None:
        """After a recovery: who has seen more keeps it, and stands where nobody knows what was."""
        index = self.index or 0
        if index < above_index:
            self.lost[above_index], self.index = index, above_index

    def rows(self) -> Rows:
        def one(*values: Any) -> list[tuple[Any, ...]]:
            return [] if values[0] is None else [(1, *values)]

        return {
            "schema_object": [
                (each, *item.name, item.spec, item.index) for each, item in self.objects.items()
            ],
            "schema_index": one(self.index),
            "schema_tombstone": [
                (index, each, *name) for index, (each, name) in self.tombstones.items()
            ],
            "schema_forgotten": one(self.forgotten),
            "schema_lost": list(self.lost.items()),
            "schema_source": one(*(self.source or (None,))),
            "schema_staged": list(enumerate(self.staged)),
            "schema_kept": list(self.kept),
            "replica_set": [(name, *known) for name, known in self.registered.items()],
            "dropped": [(each, *left) for each, left in self.dropped.items()],
        }


def _has_lost(command: AdoptObjects, object_id: int) -> bool:
    return any(each.end_index < object_id <= each.above_index for each in command.lost)


def _told(object_id: int, item: Object) -> dict[str, Any]:
    kind, namespace, called = item.name
    return {
        "id": object_id,
        "kind": kind,
        "namespace": namespace,
        "name": called,
        "metadata_index": item.index,
    }


def _tombstone(index: int, object_id: int, name: Name) -> dict[str, Any]:
    kind, namespace, called = name
    return {
        "metadata_index": index,
        "id": object_id,
        "kind": kind,
        "namespace": namespace,
        "name": called,
    }


def _registered(name: str, uuid: bytes, epoch: int, index: int) -> dict[str, Any]:
    return {"name": name, "uuid": uuid, "epoch": epoch, "metadata_index": index}


def _partitions(spec_json: str) -> tuple[str, ...]:
    spec = spec_from_json(_STREAM, spec_json)
    assert isinstance(spec, StreamSpec)
    return spec.partitions


def _partitions_less(spec_json: str, other_json: str) -> list[str]:
    """Those of the first one that the other has not, in their order."""
    others = _partitions(other_json)
    return [each for each in _partitions(spec_json) if each not in others]


def _with_partitions(spec_json: str, more: Sequence[str]) -> str:
    if not more:
        return spec_json
    spec: dict[str, Any] = json.loads(spec_json)
    spec["partitions"] += more
    return spec_to_json(spec_from_json(_STREAM, json.dumps(spec))).decode()


@dataclass(slots=True)
class Ballots:
    """Who led when, with which members, and by which rules."""

    version: int | None = None
    led: list[tuple[Any, ...]] = field(default_factory=list)
    configurations: dict[int, tuple[int, bytes, str]] = field(default_factory=dict)

    def started(self, entry: Entry, command: BeginBallot) -> bool:
        """B5: an epoch follows the latest one, and has one configuration. Whether another history
        than the ballot's before it begins."""
        epoch = entry.ballot.epoch
        if self.configurations:
            latest = max(self.configurations)
            digest = self.configurations[latest][1]
            follows = epoch > latest and command.predecessor_digest == digest
            if not follows and (epoch, command.config_digest) != (latest, digest):
                raise Refused(FencedError)
        self.version = command.apply_version
        is_another = not self.led or self.led[-1][-1] != command.uuid
        self.led.append((*entry.ballot, entry.lsn, command.leader, entry.now_ms, command.uuid))
        members = json.dumps(command.members, separators=(",", ":"), ensure_ascii=False)
        self.configurations.setdefault(epoch, (entry.lsn, command.config_digest, members))
        return is_another

    def follow(self, _entry: Entry, command: FollowRules) -> None:
        if command.apply_version <= (self.version or 1):
            raise Known(None)
        self.version = command.apply_version

    def rows(self) -> Rows:
        return {
            "leadership": list(self.led),
            "apply_rules": [] if self.version is None else [(1, self.version)],
            "configuration": [(epoch, *known) for epoch, known in self.configurations.items()],
        }
