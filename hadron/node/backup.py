"""Backups: one node's state as a directory of two files, verified before it gets its name.

    DEST/hadron.db, DEST/manifest.json      (hadron/storage/FORMAT.md)

From a running node over the wire: complete only when the watermark covers its last entry (PROTOCOL
B6). From a stopped node's data directory: what it has applied, and how much of that is known to be
committed. Until it is whole, it is in DEST.part, and a repeated backup goes on with that.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import trio

from hadron import __version__
from hadron.client import Client
from hadron.client.client import nodes_of
from hadron.model.errors import CorruptionError, DataDirectoryError, NotFoundError, PeerError
from hadron.model.ports import Clock, Disk
from hadron.model.problems import did_you_mean
from hadron.node.verification import amnesia_of, verify_database
from hadron.replication.fetching import fetch
from hadron.state.leadership import is_alone, latest_uuid
from hadron.storage import snapshot
from hadron.storage.database import open_reader, translated_errors, translated_os_errors
from hadron.storage.generations import DATABASE, MANIFEST, current_database
from hadron.storage.identity import DirectoryLock, Owner, read_owner
from hadron.storage.log import get_meta
from hadron.storage.snapshot import Manifest, decode_manifest
from hadron.wire.messages import cluster_pb2

Progress = Callable[[int, int], None]

_PARTS: Final = {DATABASE, f"{DATABASE}-journal", MANIFEST, f"{MANIFEST}.new"}

UNFINISHED: Final = ".part"
"""What the name of a backup ends in that is not whole yet."""

_ATTEMPTS: Final = 5
_PAUSE_S: Final = 1.0


async def find_node(client: Client, node: str | None, replica_set: str = "") -> cluster_pb2.Node:
    """The node called `node`, of `replica_set` when that is given; without a name the leader of
    the only replica set.

    Raises `NotFoundError` naming those that exist.
    """
    topology = await nodes_of(client).agreed_topology()
    everyone = [
        (known.name, each)
        for known in topology.replica_sets
        for each in known.nodes
        if replica_set in ("", known.name)
    ]
    if not everyone:
        names = [known.name for known in topology.replica_sets]
        raise NotFoundError(
            f"there is no replica set {replica_set!r}{did_you_mean(replica_set, names)}",
            f"there are {', '.join(names)}",
        )
    if node is None:
        found = [each for _, each in everyone if each.role == "leader"]
    else:
        found = [each for name, each in everyone if node in (each.name, f"{name}/{each.name}")]
    if len(found) != 1:
        if node is None and found:
            sets = ", ".join(dict.fromkeys(name for name, _ in everyone))
            raise NotFoundError(
                f"{len(found)} replica sets could be meant",
                f"name one of {sets} with --replica-set, or a node with --node, or say --all",
            )
        known = ", ".join(f"{name}/{each.name}" for name, each in everyone)
        others = "" if not found else ", a set with --replica-set, or say --all"
        raise NotFoundError(
            f"there is no node {node!r}" if not found else f"{len(found)} nodes could be meant",
            f"name one of {known} with --node{others}",
        )
    return found[0]


async def backup_live(
    client: Client,
    address: str,
    destination: Path,
    disk: Disk,
    on_progress: Progress,
    on_trouble: Callable[[PeerError], None] = lambda _error: None,
) -> Manifest:
    """Fetch a backup of the running node at `address`, as of now, into a new directory.

    Args:
        on_progress: told bytes that are here, and bytes in all.
        on_trouble: told why it is tried again.

    Raises `DataDirectoryError` when there is one, `PeerError` when the node does not give it.
    """
    part = _begin(destination)
    with sole(part, disk):
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                connection = await nodes_of(client).connect(address)
                manifest = await fetch(
                    connection,
                    part,
                    disk,
                    min_lsn=0,
                    accept=lambda _: None,
                    on_progress=on_progress,
                )
                break
            except PeerError as error:
                if attempt == _ATTEMPTS or not error.retryable:
                    raise
                on_trouble(error)
            await trio.sleep(_PAUSE_S)
        await disk.do(lambda: _complete(part, manifest, disk))
    return manifest


def backup_directory(data: Path, destination: Path, disk: Disk, clock: Clock) -> Manifest:
    """Make a backup of a stopped node's data directory in a new directory.

    Raises `DataDirectoryError` when the node runs, the directory is none, or `destination` exists,
    `CorruptionError` when its write-ahead log is damaged or gone (PROTOCOL B4).
    """
    part = _begin(destination)
    owner = read_owner(data)
    source = current_database(data)
    if owner is None or not source.is_file():
        raise DataDirectoryError(
            f"{data} is not the data directory of a node",
            "it has a hadron.db and a node.db; look at `data:` in the configuration",
        )
    lock = DirectoryLock(data, disk)
    try:
        _refuse_unusable(data, disk)
        return _copy_directory(owner, source, part, disk, clock)
    finally:
        lock.release()


def _copy_directory(owner: Owner, source: Path, part: Path, disk: Disk, clock: Clock) -> Manifest:
    with sole(part, disk):
        with translated_os_errors(part):
            for left in part.iterdir():
                disk.remove(left)
            with (
                translated_errors(source),
                contextlib.closing(open_reader(source, vfs=disk.vfs)) as database,
            ):
                is_committed = is_alone(database, owner.node)
            position = snapshot.take(source, part / DATABASE, disk, is_committed=is_committed)
        size, digest = snapshot.measure(part / DATABASE, disk)
        with contextlib.closing(open_reader(part / DATABASE, vfs=disk.vfs)) as copy:
            committed = get_meta(copy, "committed_lsn")
            uuid = owner.uuid or latest_uuid(copy)
        manifest = Manifest(
            cluster=owner.cluster,
            replica_set=owner.replica_set,
            node=owner.node,
            uuid=uuid.hex(),
            lsn=position.lsn,
            epoch=position.ballot.epoch,
            incarnation=position.ballot.incarnation,
            chain=position.chain.hex(),
            committed_lsn=committed,
            size=size,
            hash=digest,
            created_ms=clock.now_ms(),
            version=__version__,
        )
        snapshot.verify(part / DATABASE, manifest, disk)
        with translated_os_errors(part):
            disk.write_file(part / MANIFEST, manifest.encode())
        _complete(part, manifest, disk)
    return manifest


def _refuse_unusable(data: Path, disk: Disk) -> None:
    """SQLite would end a damaged log at its first bad frame, and not say that anything is lost; nor
    would an older file."""
    if amnesia := amnesia_of(data, disk):
        raise CorruptionError(
            f"{data} may lack what it acknowledged: {amnesia}",
            "take the backup of another node; or first go on with what is left of this one "
            "(`hadron recover`)",
        )


def open_backup(path: Path, disk: Disk) -> Manifest:
    """Verify that a backup is whole: its bytes, SQLite's own check, the chain over its log.

    Raises what `read_backup` raises.
    """
    manifest = read_backup(path)
    with _about_backups():
        snapshot.verify(path / DATABASE, manifest, disk)
    return manifest


def read_backup(path: Path) -> Manifest:
    """What the backup at `path` says that it is.

    Raises `CorruptionError` when it is damaged, `DataDirectoryError` when there is none or a newer
    Hadron made it.
    """
    manifest_path = path / MANIFEST
    if not manifest_path.is_file() or not (path / DATABASE).is_file():
        raise DataDirectoryError(
            f"{path} is not a complete backup",
            f"a backup is a directory with {DATABASE} and {MANIFEST}; `hadron backup` makes one",
        )
    with _about_backups(), translated_os_errors(path):
        return decode_manifest(manifest_path.read_bytes(), manifest_path)


@contextlib.contextmanager
def _about_backups() -> Iterator[None]:
    """What is advised about nodes' files does not help with a backup."""
    try:
        yield
    except CorruptionError as error:
        raise CorruptionError(error.message, "use another backup") from error


def part_of(destination: Path) -> Path:
    """The name of a backup that is not whole yet. Raises `DataDirectoryError` when there is one, or
    anything else, at `destination`."""
    # `.` has no name, and is none that a directory can be given.
    destination = destination.absolute()
    with translated_os_errors(destination):
        if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
            raise DataDirectoryError(f"{destination} exists", "name a directory that does not")
    return destination.with_name(f"{destination.name}{UNFINISHED}")


def whole_of(part: Path) -> Path:
    """The name that `part_of` was asked with."""
    return part.with_name(part.name.removesuffix(UNFINISHED))


def _begin(destination: Path) -> Path:
    """Where the backup is put together. Nothing that is there is ever overwritten."""
    part = part_of(destination)
    with translated_os_errors(destination):
        if part.exists() and not (
            part.is_dir() and {each.name for each in part.iterdir()} <= _PARTS
        ):
            raise DataDirectoryError(
                f"{part} exists, and is not a part of a backup",
                "move it away, or name another place",
            )
    return part


@contextlib.contextmanager
def sole(part: Path, disk: Disk) -> Iterator[None]:
    """Make the directory `part`, unless it is there, and have it for oneself: nobody else puts a
    backup together in it. When nothing is in it in the end, it is removed.

    Raises `DataDirectoryError` while another one is at it, or when it has just become whole.
    """
    with translated_os_errors(part):
        disk.make_directory(part)
        held = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_busy = not _is_at(part, held)
        except BlockingIOError:
            is_busy = True
        except OSError:
            # Some network file systems have no locks for directories.
            is_busy = False
        if is_busy:
            raise DataDirectoryError(
                f"another backup is being put together in {part}",
                "wait until it is done, or name another place",
            )
        try:
            # It may have got its name since that was looked at.
            part_of(whole_of(part))
            yield
        finally:
            with contextlib.suppress(OSError):
                if _is_at(part, held) and not any(part.iterdir()):
                    disk.remove(part)
    finally:
        os.close(held)


def _is_at(part: Path, held: int) -> bool:
    """Whether it is still the directory that was opened."""
    return part.exists() and os.path.samestat(part.stat(), os.fstat(held))


def verify_content(path: Path, manifest: Manifest) -> None:
    """What `hadron verify` checks: a database whose bytes are the right ones may hold what a defect
    or a failing disk had made of them before. Raises `CorruptionError`."""
    report = verify_database(path, manifest.replica_set)
    if not report.ok:
        more = f", and {report.problem_count - 1} more" * (report.problem_count > 1)
        raise CorruptionError(
            f"{path}, of node {manifest.node}: {report.problems[0].text}{more}",
            "use another node's, or an older one; `hadron verify` names every problem",
        )


def _complete(part: Path, manifest: Manifest, disk: Disk) -> None:
    destination = whole_of(part)
    try:
        verify_content(part / DATABASE, manifest)
    except CorruptionError:
        with translated_os_errors(part):
            disk.remove(part)
        raise
    with translated_os_errors(destination):
        disk.sync(part)
        part.replace(destination)
        disk.sync(destination.parent)
