"""Fetches a copy of another node's state into a directory, chunk by chunk (PROTOCOL B6).

For resync and for backups. What has arrived stays when the connection is lost, or the process ends:
the manifest beside it tells which copy it is, and the next attempt goes on where the last one
stopped, if the other side still has that copy.

Safety rule: a chunk is written only if its hash is right, and the whole counts only after `verify`:
hash over everything, SQLite's check, and the hash chain of its log.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import xxhash

from hadron.model.errors import CorruptionError, HadronError, PeerError, StorageError
from hadron.model.ids import NO_BALLOT, Ballot
from hadron.model.ports import Disk
from hadron.storage.database import translated_os_errors
from hadron.storage.generations import DATABASE, MANIFEST, read_manifest
from hadron.storage.snapshot import CHUNK_BYTES, Manifest, decode_manifest, verify
from hadron.wire.connection import Connection
from hadron.wire.messages import Method, ballot_to, method, snapshots_pb2

_OPEN: Final = method("OpenSnapshot")
_READ: Final = method("ReadSnapshot")

_OPEN_TIMEOUT_S: Final = 600.0
"""Making a copy takes 5 s per GB here; a slow disk may need a minute for each."""

_READ_TIMEOUT_S: Final = 30.0


class SnapshotRefusedError(HadronError):
    """A copy is not one that this node may use."""


async def fetch(
    connection: Connection,
    directory: Path,
    disk: Disk,
    *,
    min_lsn: int,
    accept: Callable[[Manifest], None],
    on_progress: Callable[[int, int], None],
    promised: Ballot = NO_BALLOT,
    leads: bool = False,
    spare_bytes: int = 0,
) -> Manifest:
    """Fetch a copy into `directory` (`hadron.db` and its manifest), verified and synced.

    Args:
        min_lsn: what it must hold; 0 asks for one as of now.
        accept: raises what is wrong with a copy before any of it is fetched.
        on_progress: told bytes that are here, and bytes in all.
        promised: the ballot in which a copy may come that is not committed yet; none by default.
        leads: whether that ballot is this node's own.
        spare_bytes: room that it leaves on the disk, for a log that goes on there; none by default.

    Raises `PeerError` for what the other side or the way to it does, with what arrived left in
    place; `StorageError` for this disk.
    """
    known = await disk.do(partial(read_manifest, directory))
    answer, _ = await _ask(
        connection,
        _OPEN,
        snapshots_pb2.OpenSnapshotRequest(
            min_lsn=min_lsn,
            hash=known.hash if known else "",
            promised=ballot_to(promised),
            leads=leads,
        ),
        _OPEN_TIMEOUT_S,
    )
    try:
        manifest = decode_manifest(answer.manifest, f"what {connection.peer} sent")
    except StorageError as error:
        raise PeerError(error.message, error.hint) from error
    accept(manifest)
    have = await disk.do(partial(_prepare, directory, manifest, known, disk, spare_bytes))
    while have < manifest.size:
        on_progress(have, manifest.size)
        data = await _read_chunk(connection, manifest, have)
        await disk.do(partial(_write, directory / DATABASE, have, data, disk))
        have += len(data)
    on_progress(have, manifest.size)
    await disk.do(partial(_finish, directory, manifest, disk))
    return manifest


async def _read_chunk(connection: Connection, manifest: Manifest, offset: int) -> memoryview:
    size = min(CHUNK_BYTES, manifest.size - offset)
    answer, data = await _ask(
        connection,
        _READ,
        snapshots_pb2.ReadSnapshotRequest(hash=manifest.hash, offset=offset, max_bytes=size),
        _READ_TIMEOUT_S,
    )
    if len(data) != size or xxhash.xxh3_128_digest(data) != answer.hash:
        raise PeerError(
            f"{connection.peer} sent {len(data)} bytes from {offset} of a snapshot, {size} were "
            "asked for, or they do not match their hash"
        )
    return data


def _prepare(
    directory: Path, manifest: Manifest, known: Manifest | None, disk: Disk, spare_bytes: int
) -> int:
    """Make room for a copy, or find out how much of it is here already."""
    path = directory / DATABASE
    with translated_os_errors(directory):
        have = 0
        if known is not None and known.hash == manifest.hash:
            size = path.stat().st_size if path.exists() else 0
            have = min(size // CHUNK_BYTES * CHUNK_BYTES, manifest.size)
        else:
            disk.make_directory(directory)
            _empty(directory, disk)
            disk.write_file(directory / MANIFEST, manifest.encode())
        free = disk.free_bytes(directory)
    needed = manifest.size - have + spare_bytes
    if free < needed:
        for_log = f", {spare_bytes} of them for the log to go on" if spare_bytes else ""
        raise SnapshotRefusedError(
            f"a copy of {manifest.size} bytes does not fit onto the disk of {directory}: "
            f"{needed} bytes are needed{for_log}, and {free} are free",
            "make room",
        )
    return have


def _empty(directory: Path, disk: Disk) -> None:
    """The directory itself stays: whoever has it for a backup has it locked."""
    for each in sorted(directory.iterdir()):
        disk.remove(each)
    disk.sync(directory)


def _write(path: Path, offset: int, data: memoryview, disk: Disk) -> None:
    with translated_os_errors(path):
        disk.write_at(path, offset, data)


def _finish(directory: Path, manifest: Manifest, disk: Disk) -> None:
    path = directory / DATABASE
    with translated_os_errors(directory):
        try:
            disk.sync(path)
            disk.sync(directory)
            verify(path, manifest, disk)
        except CorruptionError as error:
            # Of which chunk is not known: all of it is fetched again.
            _empty(directory, disk)
            raise PeerError(f"a snapshot arrived damaged: {error.message}") from error


async def _ask(
    connection: Connection, what: Method, message: Any, timeout_s: float
) -> tuple[Any, memoryview]:
    """One question. Raises `PeerError` whatever the answer is: a `StorageError` that came over the
    wire is about the other side's disk."""
    try:
        return await connection.request(what, message, timeout_s=timeout_s)
    except PeerError:
        raise
    except HadronError as error:
        raise PeerError(f"{connection.peer}: {error.message}", error.hint) from error
