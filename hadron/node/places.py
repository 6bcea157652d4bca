"""What a directory is: the data directory of a node, a backup, a cluster's backup, several of them.

Decided here and nowhere else, by what is in it, a node's own files first: a data directory may have
backups in it as well, and copies on their way. Which replica set a copy is of its manifest says,
which of them a cluster's backup has its own file (`cluster.json`), written last; what directories
are called counts for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from hadron.model.errors import CorruptionError, DataDirectoryError, HadronError
from hadron.storage.aftermath import ASIDE
from hadron.storage.database import translated_os_errors
from hadron.storage.generations import DATABASE, MANIFEST
from hadron.storage.identity import LOCK, NODE_DATABASE
from hadron.storage.snapshot import decode_manifest

CLUSTER_MANIFEST: Final = "cluster.json"

_FORMAT: Final = 1
_SLASH: Final = "+"
"""In a directory's name: no name of a replica set has it."""

_GENERATION: Final = re.compile(r"gen-[1-9][0-9]{0,8}")
_DEPTH: Final = 2
"""How far below a directory that is nothing itself is looked: a cluster's backup that was cut short
is one, in a directory of several."""


class ClusterManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a cluster's backup has.

    Attributes:
        replica_sets: of each its copy's hash, as that copy's own manifest has it.
        format: of this file; 1.
    """

    cluster: str
    replica_sets: dict[str, str]
    format: int = _FORMAT

    def encode(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


class Kind(Enum):
    """What a path leads to."""

    FILE = "a file"
    NODE = "the data directory of a node"
    BACKUP = "a backup"
    REMAINS = "what is left of a data directory, or of a backup"
    """There is nothing that tells whose it is."""
    CLUSTER = "a cluster's backup"
    SEVERAL = "a directory with others in it"
    NOTHING = "nothing of Hadron's"


@dataclass(frozen=True, slots=True)
class Place:
    """What was found at `path`.

    Attributes:
        inside: the parts of a cluster's backup, or what there is of several.
        replica_set: whose part of a cluster's backup it is; "" for anything else.
        problem: why it is not what it should be: a part that is missing, or another one.
    """

    path: Path
    kind: Kind
    inside: tuple[Place, ...] = ()
    replica_set: str = ""
    problem: str = ""

    @property
    def database(self) -> Path:
        """Where its database is, or should be."""
        return self.path if self.kind is Kind.FILE else self.path / DATABASE

    def each(self) -> Iterator[Place]:
        """Everything with a database of its own, and what has a problem of its own."""
        if self.problem or not self.inside:
            yield self
        for place in self.inside:
            yield from place.each()


def directory_name(replica_set: str) -> str:
    """What a replica set's part of a cluster's backup is called."""
    return replica_set.replace("/", _SLASH)


def look(path: Path) -> Place:
    """Find out what is at `path`. Raises `StorageError` for what cannot be read."""
    with translated_os_errors(path):
        return _look(path, _DEPTH)


def _look(path: Path, depth: int) -> Place:
    if not path.is_dir():
        return Place(path, Kind.FILE if path.exists() else Kind.NOTHING)
    names = {each.name for each in path.iterdir()}
    if NODE_DATABASE in names or any(map(_GENERATION.fullmatch, names)):
        return Place(path, Kind.NODE)
    if MANIFEST in names:
        return Place(path, Kind.BACKUP)
    if not names.isdisjoint((DATABASE, LOCK, ASIDE)):
        return Place(path, Kind.REMAINS)
    if CLUSTER_MANIFEST in names:
        return _look_at_cluster(path)
    inside = _look_inside(path, depth)
    return Place(path, Kind.SEVERAL if inside else Kind.NOTHING, inside)


def _look_inside(path: Path, depth: int) -> tuple[Place, ...]:
    if not depth:
        return ()
    found: list[Place] = []
    for each in sorted(path.iterdir()):
        try:
            place = _look(each, depth - 1)
        except PermissionError:
            # Such as lost+found, where a disk is mounted.
            continue
        if place.kind not in (Kind.FILE, Kind.NOTHING):
            found.append(place)
    return tuple(found)


def _look_at_cluster(path: Path) -> Place:
    manifest_path = path / CLUSTER_MANIFEST
    try:
        manifest = msgspec.json.decode(manifest_path.read_bytes(), type=ClusterManifest)
    except (msgspec.DecodeError, ValueError) as error:
        problem = f"{manifest_path} is damaged: {error}"
    else:
        if manifest.format <= _FORMAT:
            parts = [_look_at_part(path, manifest, each) for each in manifest.replica_sets]
            return Place(path, Kind.CLUSTER, tuple(parts))
        problem = (
            f"{manifest_path} has format {manifest.format}, this Hadron knows {_FORMAT}: use the "
            "version of Hadron that made it, or a newer one"
        )
    return Place(path, Kind.CLUSTER, _look_inside(path, 1), problem=problem)


def _look_at_part(path: Path, whole: ClusterManifest, replica_set: str) -> Place:
    part = path / directory_name(replica_set)
    place = replace(_look(part, 0), replica_set=replica_set)
    if place.kind is not Kind.BACKUP:
        missing = part / MANIFEST if part.is_dir() else part
        problem = f"{missing} is missing: {path} has no complete backup of {replica_set}"
        return replace(place, problem=problem)
    try:
        own = decode_manifest((part / MANIFEST).read_bytes(), part / MANIFEST)
    except HadronError:
        # For whoever reads it to tell.
        return place
    if (own.cluster, own.replica_set) != (whole.cluster, replica_set):
        return replace(
            place,
            problem=f"it is of replica set {own.replica_set} in cluster {own.cluster}, and should "
            f"be of {replica_set} in {whole.cluster}",
        )
    if own.hash != whole.replica_sets[replica_set]:
        return replace(
            place, problem=f"it is another backup of {replica_set} than {CLUSTER_MANIFEST} names"
        )
    return place


def refuse_as_backup(place: Place) -> None:
    """Raises `DataDirectoryError` for what is no backup of one replica set, with what to name
    instead; nothing happens where nothing is, or a backup that may not be whole."""
    if place.kind is Kind.NODE:
        raise DataDirectoryError(
            f"{place.path} is {place.kind.value}, not a backup",
            f"`hadron backup DEST --data {place.path}` makes one of it, once the node is stopped",
        )
    if place.kind is Kind.SEVERAL:
        raise DataDirectoryError(
            f"{place.path} is not a backup, and has in it {_listed(place)}", "name one of them"
        )


def _listed(several: Place) -> str:
    return ", ".join(
        f"{each.path.relative_to(several.path)} ({_described(each)})" for each in several.inside
    )


def _described(place: Place) -> str:
    if place.kind is not Kind.BACKUP:
        kind: str = place.kind.value
        return kind
    path = place.path / MANIFEST
    try:
        manifest = decode_manifest(path.read_bytes(), path)
    except (OSError, CorruptionError, DataDirectoryError):
        return "a backup whose manifest cannot be read"
    return f"of {manifest.replica_set}"
