"""A backup of a whole cluster: a directory with a backup of each replica set, named after it.

    DEST/aws.us-east-1+p0/hadron.db, DEST/aws.us-east-1+p0/manifest.json, …, DEST/cluster.json

The last file says which sets they are, so that one that is missing is noticed. The sets are copied
one after the other, each as of its own moment, the metadata set last, once all others are there:
restored together, it then knows every stream that the others have records of. Until all are there,
they are in DEST.part, and a repeated backup goes on with that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from hadron.client import Client
from hadron.client.client import nodes_of
from hadron.model.errors import DataDirectoryError, HadronError, PeerError
from hadron.model.ports import Disk
from hadron.model.problems import list_problems
from hadron.node.backup import (
    UNFINISHED,
    Progress,
    backup_live,
    part_of,
    read_backup,
    sole,
    whole_of,
)
from hadron.node.places import (
    CLUSTER_MANIFEST,
    ClusterManifest,
    Kind,
    directory_name,
    look,
    refuse_as_backup,
)
from hadron.storage.database import translated_os_errors
from hadron.storage.generations import MANIFEST
from hadron.storage.snapshot import Manifest
from hadron.wire.messages import cluster_pb2


async def backup_cluster(
    client: Client,
    destination: Path,
    disk: Disk,
    on_begin: Callable[[cluster_pb2.ReplicaSet], Progress],
    on_trouble: Callable[[PeerError], None] = lambda _error: None,
    on_kept: Callable[[Manifest], None] = lambda _manifest: None,
) -> dict[str, Manifest]:
    """Back up every replica set that the client's cluster has; the manifests, by name.

    Args:
        on_begin: told of each set that is copied; what it returns is told how far that is.
        on_kept: told of each copy that an earlier attempt has left, and that is not made anew.

    Raises `DataDirectoryError` when `destination` exists, another one is being made there, or what
    an earlier attempt has left is another cluster's; `PeerError` naming each set that could not be
    had, after all others were copied.
    """
    part = _begin(destination)
    with sole(part, disk):
        return await _backup_sets(client, part, disk, on_begin, on_trouble, on_kept)


async def _backup_sets(
    client: Client,
    part: Path,
    disk: Disk,
    on_begin: Callable[[cluster_pb2.ReplicaSet], Progress],
    on_trouble: Callable[[PeerError], None],
    on_kept: Callable[[Manifest], None],
) -> dict[str, Manifest]:
    topology = await nodes_of(client).agreed_topology()
    metadata = topology.metadata
    done = _left(part, topology)
    # There is one where a backup that was whole has been given its first name again.
    await disk.do(partial(disk.remove, part / CLUSTER_MANIFEST))
    if {each.name for each in topology.replica_sets} - done.keys() - {metadata}:
        # What is copied now may have records of streams that an older copy of it does not know.
        done.pop(metadata, None)
        await disk.do(partial(_drop, part / directory_name(metadata), disk))
    for kept in done.values():
        on_kept(kept)
    failed: list[str] = []
    for each in sorted(topology.replica_sets, key=lambda known: known.name == metadata):
        if each.name in done or (failed and each.name == metadata):
            continue
        target = part / directory_name(each.name)
        try:
            done[each.name] = await _backup_set(
                client, each, target, disk, on_begin(each), on_trouble
            )
        except HadronError as error:
            failed.append(f"{each.name}: {error.message}")
    if not failed and metadata not in done:
        failed.append(f"{metadata}: not known to {topology.replica_set}/{topology.node}")
    if failed:
        raise PeerError(
            list_problems(
                failed,
                f"with {len(failed)} of {len(topology.replica_sets)} "
                "replica sets, which have no backup now",
            ),
            f"what could be had is in {part}; the same command goes on with it",
        )
    hashes = {name: each.hash for name, each in done.items()}
    whole = ClusterManifest(cluster=topology.cluster, replica_sets=hashes)
    await disk.do(partial(_complete, part, whole, disk))
    return done


def _complete(part: Path, whole: ClusterManifest, disk: Disk) -> None:
    with translated_os_errors(part):
        disk.write_file(part / CLUSTER_MANIFEST, whole.encode())
        part.replace(whole_of(part))
        disk.sync(part.parent)


def _begin(destination: Path) -> Path:
    part = part_of(destination)
    with translated_os_errors(destination):
        if (part / MANIFEST).exists() or (part.exists() and not part.is_dir()):
            raise DataDirectoryError(
                f"{part} exists, and is not a part of a cluster's backup",
                "move it away, or name another place",
            )
    return part


def _left(part: Path, topology: cluster_pb2.TopologyResponse) -> dict[str, Manifest]:
    """The copies that an earlier attempt has completed, by replica set.

    Raises `DataDirectoryError` for one of another cluster, set or history, which must not be mixed
    with this one's.
    """
    uuids = {each.name: each.uuid.hex() for each in topology.replica_sets}
    directories = {directory_name(name) for name in uuids}
    found: dict[str, Manifest] = {}
    for path in sorted(each.parent for each in part.glob(f"*/{MANIFEST}")):
        if path.name not in directories and path.suffix == UNFINISHED:
            continue
        manifest = read_backup(path)
        name = manifest.replica_set
        is_ours = (manifest.cluster, directory_name(name)) == (topology.cluster, path.name)
        # Nobody may know the uuid of a set that is away.
        if not is_ours or uuids.get(name) not in ("", manifest.uuid):
            raise DataDirectoryError(
                f"{path} is of replica set {name} in cluster {manifest.cluster}, "
                f"uuid {manifest.uuid}, which is none of cluster {topology.cluster} as it is now",
                f"move {part} away, or name another place",
            )
        found[name] = manifest
    return found


def _drop(target: Path, disk: Disk) -> None:
    """Remove a set's copy, and one that is not complete."""
    with translated_os_errors(target):
        disk.remove(target)
        disk.remove(part_of(target))
        disk.sync(target.parent)


async def _backup_set(
    client: Client,
    replica_set: cluster_pb2.ReplicaSet,
    target: Path,
    disk: Disk,
    on_progress: Progress,
    on_trouble: Callable[[PeerError], None],
) -> Manifest:
    """From the leader; where none serves, from the node that is the furthest of those that answer:
    one that lags lacks what was acknowledged long ago, and so may a leader that waits for others
    that remember it."""
    nodes = sorted(replica_set.nodes, key=lambda node: node.role != "leader")
    found: list[tuple[int, bool, str]] = []
    for node in nodes:
        try:
            status = await client.status(node.address)
        except PeerError as error:
            on_trouble(error)
            continue
        if status.state == "serving":
            found = [(0, False, node.address)]
            break
        # As far as a replica it is no better: it waits.
        found.append((status.committed_lsn, node.role != "leader", node.address))
    # Where nobody answers, the last one says why.
    *_, address = max(found, default=(0, False, nodes[-1].address))
    return await backup_live(client, address, target, disk, on_progress, on_trouble)


def choose(backup: Path, names: list[str]) -> Mapping[str, Path]:
    """Which backup is for which of these replica sets.

    Raises what `read_backup` raises; `DataDirectoryError` when a cluster's backup lacks one, or has
    another one in its place, and when there are several backups, or none.
    """
    place = look(backup)
    if place.kind is not Kind.CLUSTER:
        refuse_as_backup(place)
        manifest = read_backup(backup)
        return {manifest.replica_set if manifest.replica_set in names else names[0]: backup}
    parts = {each.replica_set: each for each in place.inside}
    if place.problem:
        raise DataDirectoryError(place.problem, f"name the backup of a replica set in {backup}")
    lacking = [name for name in names if name not in parts]
    if lacking:
        raise DataDirectoryError(
            f"{backup} has no backup of {', '.join(lacking)}",
            f"it has {', '.join(parts)}; choose one with --replica-set",
        )
    if wrong := [parts[name] for name in names if parts[name].problem]:
        raise DataDirectoryError(
            list_problems([f"{each.path}: {each.problem}" for each in wrong], f"in {backup}"),
            "use another backup, or choose a set that is whole with --replica-set",
        )
    return {name: parts[name].path for name in names}
