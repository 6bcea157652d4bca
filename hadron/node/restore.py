"""Restoring from backups.

One node: its directory gets the backup's database and is marked amnesiac (PROTOCOL B3): it promises
and stores entries, and counts in no majority until its leader has taught it what it lacks.

A whole replica set, when every disk is lost: all members get the same database and a *new history*
begins. Nothing of before can be confused with it: the replica set gets a new uuid, so that a member
that was forgotten somewhere is refused by its handshake; and the epoch must be raised, so that no
ballot is used twice: delayed messages are fenced (B1), and a cursor held outside finds another
ballot at its offset (D4). The metadata set's index goes on above all that may have been given, so
that no id from before names anything new (D3). All of it is one entry, the same on every disk.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import apsw

from hadron.model.errors import ConfigurationError, CorruptionError, DataDirectoryError, HadronError
from hadron.model.ids import Ballot, LogPosition
from hadron.model.ports import Clock, Disk, Random
from hadron.node.backup import open_backup, read_backup, verify_content
from hadron.node.host import membership_of
from hadron.node.replica_set import NodeConfig, ReplicaSetConfig
from hadron.state.execute import execute_logged
from hadron.state.features import MACHINE
from hadron.state.leadership import BeginBallot, configurations
from hadron.state.machine import Context, encode
from hadron.storage import snapshot
from hadron.storage.database import (
    open_writer,
    transaction,
    translated_errors,
    translated_os_errors,
)
from hadron.storage.generations import DATABASE, next_generation, switch_to
from hadron.storage.identity import (
    LOCK,
    NODE_DATABASE,
    DirectoryLock,
    IdentityFile,
    read_epoch,
    read_owner,
)
from hadron.storage.log import Log, drop_bodies, set_meta
from hadron.storage.snapshot import CHUNK_BYTES, Manifest


@dataclass(frozen=True, slots=True)
class Founded:
    """A history that began with a restore."""

    manifest: Manifest
    uuid: bytes
    first: LogPosition
    """Its first entry, on every member's disk."""
    directories: tuple[Path, ...]


def restore_node(
    backup: Path, config: ReplicaSetConfig, name: str, disk: Disk, *, overwrite: bool
) -> Manifest:
    """Put a backup in the place of one member's state.

    Raises `DataDirectoryError` when there is data and `overwrite` is not given, or the node runs;
    or the backup is of another history than the node, or than the other members' directories that
    are on this machine; `ConfigurationError` when the backup is not this replica set's;
    `CorruptionError` when it is damaged: then nothing was changed.
    """
    node = config.node(name)
    if len(config.nodes) == 1:
        raise ConfigurationError(
            f"{name} is the only member of {config.name}: nobody could teach it what it lacks",
            "restore the whole replica set: --all --accept-loss",
        )
    manifest = open_backup(backup, disk)
    _check_names(manifest, config)
    _check_history(manifest, config, name)
    with _locked(node.data, overwrite=overwrite, disk=disk):
        generation = _copy(backup, node.data, manifest, disk)
        with contextlib.closing(identity_of(config, node, disk)) as identity:
            own = identity.current
            if own.uuid and own.uuid.hex() != manifest.uuid:
                raise DataDirectoryError(
                    f"{node.data} belongs to replica set {own.uuid.hex()}, the backup is of "
                    f"{manifest.uuid}",
                    "the names are equal, the histories are not; move the directory away if it is "
                    "the wrong one",
                )
            # Before the switch: the old database must not count either from here on.
            promised = max(own.promised, manifest.position.ballot)
            known = promised.epoch == own.promised.epoch
            identity.adopt(
                bytes.fromhex(manifest.uuid),
                is_member=False,
                promised=promised,
                config_digest=own.config_digest if known else b"",
            )
            _switch(node.data, generation, disk)
            # Not before: until here a crash leaves whatever was wrong with the old one.
            identity.start_over()
    return manifest


def restore_set(
    backup: Path,
    config: ReplicaSetConfig,
    disk: Disk,
    random: Random,
    clock: Clock,
    *,
    overwrite: bool,
) -> Founded:
    """Found a new history from a backup, in the directory of every member.

    Everything that was acknowledged after the backup is lost. Raises what `restore_node` raises,
    and `ConfigurationError` when the epoch is not above what the backup and the directories know.
    """
    manifest = open_backup(backup, disk)
    _check_names(manifest, config)
    _check_epoch(config, manifest.epoch, "the backup")
    uuid = random.token_bytes(16)
    with contextlib.ExitStack() as locks:
        for node in config.nodes:
            locks.enter_context(_locked(node.data, overwrite=overwrite, disk=disk))
            _check_epoch(config, read_epoch(node.data), str(node.data))
        generations = [_copy(backup, node.data, manifest, disk) for node in config.nodes]
        firsts = {
            _begin_history(generation / DATABASE, config, uuid, manifest, disk, now_ms)
            for now_ms in [clock.now_ms()]
            for generation in generations
        }
        if len(firsts) != 1:
            raise CorruptionError("the restored databases differ", "check the disks, and try again")
        first = firsts.pop()
        for node, generation in zip(config.nodes, generations, strict=True):
            # Never the old database with the new identity, nor the reverse: a crash leaves a
            # directory that counts for nothing.
            _forget_identity(node.data, disk)
            _switch(node.data, generation, disk)
            with contextlib.closing(identity_of(config, node, disk)) as identity:
                identity.adopt(
                    uuid, is_member=True, promised=first.ballot, config_digest=config.digest
                )
    return Founded(manifest, uuid, first, tuple(node.data for node in config.nodes))


def known_epoch(backup: Path, config: ReplicaSetConfig) -> int:
    """The highest epoch that the backup, or any member's directory, has seen. Raises what
    `read_backup` and `read_epoch` raise."""
    return max(read_backup(backup).epoch, *(read_epoch(node.data) for node in config.nodes))


def refusals(
    backup: Path, config: ReplicaSetConfig, disk: Disk, *, overwrite: bool
) -> list[HadronError]:
    """Whatever `restore_set` can refuse before it copies anything: of the backup the first thing,
    of the nodes each that runs, has data that is not to be overwritten, or no place for any. Leaves
    everything as it is."""
    try:
        manifest = read_backup(backup)
        _check_names(manifest, config)
        _check_epoch(config, manifest.epoch, "the backup")
        # All of it: with an epoch that was raised for a restore that is refused then, members wait
        # for data that nobody has.
        open_backup(backup, disk)
    except HadronError as error:
        return [error]
    found: list[HadronError] = []
    known: list[tuple[int, str]] = []
    for node in config.nodes:
        try:
            _judge(node.data, overwrite=overwrite, disk=disk)
            known.append((read_epoch(node.data), str(node.data)))
        except HadronError as error:
            found.append(error)
    try:
        # The highest one says what the others would.
        _check_epoch(config, *max(known, default=(0, "")))
    except HadronError as error:
        found.append(error)
    return found


# --- steps ----------------------------------------------------------------------------------------


def _check_names(manifest: Manifest, config: ReplicaSetConfig) -> None:
    ours, theirs = (config.cluster, config.name), (manifest.cluster, manifest.replica_set)
    if ours != theirs:
        raise ConfigurationError(
            f"the backup is of replica set {theirs[1]} in cluster {theirs[0]}, the configuration "
            f"describes {ours[1]} in {ours[0]}",
            "name the configuration file of the replica set that the backup is of",
        )


def _check_history(manifest: Manifest, config: ReplicaSetConfig, name: str) -> None:
    """An emptied directory does not know of a restore of the whole set; where the others run here,
    theirs do. Of several histories the one with the highest epoch is the latest."""
    known: list[tuple[int, str, str]] = []
    for node in config.nodes:
        # What cannot be read, such as another machine's, the members themselves find out.
        with contextlib.suppress(HadronError):
            owner = None if node.name == name else read_owner(node.data)
            whose = (config.cluster, config.name, node.name)
            if owner and owner.uuid and (owner.cluster, owner.replica_set, owner.node) == whose:
                known.append((read_epoch(node.data), owner.uuid.hex(), str(node.data)))
    epoch, uuid, data = max(known, default=(0, manifest.uuid, ""))
    if uuid != manifest.uuid and epoch >= manifest.epoch:
        raise DataDirectoryError(
            f"{data} belongs to replica set {uuid}, the backup is of {manifest.uuid}",
            "the names are equal, the histories are not, as after a restore of the whole set: use "
            f"a later backup; or start {name} with an empty directory, and the others teach it",
        )


def _check_epoch(config: ReplicaSetConfig, known: int, where: str) -> None:
    if config.epoch <= known:
        raise ConfigurationError(
            f"the configuration has epoch {config.epoch}, {where} knows epoch {known}",
            f"raise `epoch` to {known + 1} (--raise-epoch does it), or above every one that this "
            "replica set ever had: nothing of before may be taken for the new history",
        )


def identity_of(config: ReplicaSetConfig, node: NodeConfig, disk: Disk) -> IdentityFile:
    """A stopped node's identity, made when there is none."""
    return IdentityFile(node.data, config.cluster, config.name, node.name, disk)


@contextlib.contextmanager
def _locked(data: Path, *, overwrite: bool, disk: Disk) -> Iterator[None]:
    """No node runs on the directory, and it is empty or may be overwritten."""
    lock = DirectoryLock(data, disk)
    try:
        _check_empty(data, overwrite=overwrite)
        yield
    finally:
        lock.release()


def _check_empty(data: Path, *, overwrite: bool) -> None:
    there = [name for name in (DATABASE, NODE_DATABASE) if (data / name).exists()]
    if there and not overwrite:
        raise DataDirectoryError(
            f"{data} holds a node's {' and '.join(there)}",
            "move the directory away, or say --overwrite",
        )


def _judge(data: Path, *, overwrite: bool, disk: Disk) -> None:
    """Raise what `_locked` would, and make nothing: directories of sets that could be restored
    would stay behind where another one could not."""
    if (data / LOCK).exists():
        with _locked(data, overwrite=overwrite, disk=disk):
            return
    # No node has ever run on it.
    _check_empty(data, overwrite=overwrite)
    with translated_os_errors(data):
        above = next(path for path in (data, *data.parents) if path.exists())
        if not above.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(above))
        if not os.access(above, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(above))


def _copy(backup: Path, data: Path, manifest: Manifest, disk: Disk) -> Path:
    """Copy a backup's database into the next generation, and verify what has arrived there."""
    generation = next_generation(data)
    target = generation / DATABASE
    with translated_os_errors(data):
        disk.remove(generation)
        disk.make_directory(generation)
        copy_file(backup / DATABASE, target, disk)
    snapshot.verify(target, manifest, disk)
    verify_content(target, manifest)
    return generation


def copy_file(source: Path, target: Path, disk: Disk) -> None:
    """Copy a file of any size; durable on return. Raises `OSError`."""
    at = 0
    while piece := disk.read_at(source, at, CHUNK_BYTES):
        disk.write_at(target, at, piece)
        at += len(piece)
    disk.sync(target)


def _switch(data: Path, generation: Path, disk: Disk) -> None:
    with translated_os_errors(data):
        switch_to(data, generation, disk)


def _begin_history(
    path: Path, config: ReplicaSetConfig, uuid: bytes, manifest: Manifest, disk: Disk, now_ms: int
) -> LogPosition:
    """Append the new history's first entry, applied and committed."""
    membership = membership_of(config, config.leader.name, MACHINE)
    ballot = Ballot(config.epoch, 1)
    with (
        translated_errors(path),
        contextlib.closing(open_writer(path, sync="FULL", vfs=disk.vfs)) as database,
    ):
        log = Log(database)
        if log.head != manifest.position:
            raise CorruptionError(f"the log in {path} does not end where its manifest says")
        with transaction(database):
            stamp = max(now_ms, log.last_ms)
            before = configurations(database)
            data = encode(
                BeginBallot(
                    config.leader.name,
                    uuid,
                    membership.members,
                    membership.digest,
                    MACHINE.version,
                    before[-1].digest if before else b"",
                    # Clients name objects by ids that were given after the backup, in however many
                    # epochs.
                    ballot.first_index if config.metadata == config.name else 0,
                )
            )
            context = Context(
                machine=MACHINE,
                db=database,
                lsn=log.head.lsn + 1,
                now_ms=stamp,
                drop_bodies=drop_bodies,
                replica_set=config.name,
                ballot=ballot,
            )
            execute_logged(context, data)
            log.append(ballot, stamp, data, b"")
            set_meta(database, "applied_lsn", log.head.lsn)
            # By decree: the configuration of before has no say any more (PROTOCOL B5).
            set_meta(database, "committed_lsn", log.head.lsn)
        database.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        database.pragma("journal_mode", "delete")
        return snapshot.chain_end(database)


def _forget_identity(data: Path, disk: Disk) -> None:
    with translated_os_errors(data):
        for suffix in ("", "-journal", "-wal", "-shm"):
            disk.remove(data / f"{NODE_DATABASE}{suffix}")
        disk.sync(data)
