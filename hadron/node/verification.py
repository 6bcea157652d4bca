"""Verifying data directories from outside: each file by itself, then the logs with each other.

Nothing is written, but that a commit to `node.db` that a crash has cut off is rolled back. A file
whose node runs is read as a guest: in short slices. A file that was closed properly is read without
even a lock. A backup is compared with its manifest as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from hadron.model.errors import ConfigurationError, DataDirectoryError, HadronError
from hadron.model.ports import Disk
from hadron.node.comparing import compare
from hadron.node.places import CLUSTER_MANIFEST, Kind, Place, look
from hadron.node.verified import Verified, VerifiedFile
from hadron.node.world import SystemDisk
from hadron.replication.verification import Verification
from hadron.state.features import MACHINE
from hadron.state.leadership import is_alone, latest_uuid
from hadron.storage import aftermath
from hadron.storage.database import (
    FORMAT_VERSION,
    READ_ERRORS,
    check_version,
    open_database,
    translated_os_errors,
)
from hadron.storage.generations import DATABASE, MANIFEST, current_database, next_generation
from hadron.storage.identity import (
    NODE_DATABASE,
    Owner,
    in_use,
    read_last_stop,
    read_membership,
    read_owner,
)
from hadron.storage.log import LOG, lacks
from hadron.storage.report import Report
from hadron.storage.snapshot import Manifest, decode_manifest, measure


def database_of(path: Path) -> Path:
    """The database that `path`, a data directory or a file, means.

    Raises `ConfigurationError` when there is none.
    """
    found = path / DATABASE if path.is_dir() else path
    if not found.is_file():
        raise ConfigurationError(
            f"there is no {found}" if path.is_dir() else f"{path} does not exist",
            "give the data directory of a node (`data:` in its configuration), or its hadron.db",
        )
    return found


def verify_paths(
    paths: Sequence[Path], on_step: Callable[[Path, Verification], None] | None = None
) -> Verified:
    """Verify each file, then compare the logs of those that share a replica set.

    Args:
        paths: files, data directories, backups of a set or a cluster, or directories with several
            of them (`places`).
        on_step: told after each slice.

    Raises `ConfigurationError` for a path that does not exist, and when none of them leads to
    anything. What is missing, or cannot be opened, is a problem in its report.
    """
    places = [place for path in paths for place in _found(path)]
    if all(place.kind is Kind.NOTHING and not place.problem for place in places):
        for place in places:
            database_of(place.path)
    verified = Verified(files=[_verify_place(place, on_step) for place in places])
    if len(verified.files) > 1:
        verified.agreements, verified.apart = compare(verified.files)
    return verified


def _found(path: Path) -> Iterator[Place]:
    if not path.exists():
        database_of(path)
    return look(path).each()


def _verify_place(
    place: Place, on_step: Callable[[Path, Verification], None] | None
) -> VerifiedFile:
    path = place.database
    if place.kind is Kind.CLUSTER:
        # What is wrong with it as a whole.
        file = VerifiedFile(place.path / CLUSTER_MANIFEST, None, False, Report())
    elif path.is_file():
        file = _verify_file(path, on_step)
    else:
        owner, _ = owner_of(path)
        file = VerifiedFile(path, owner, in_use(place.path), Report(), place.kind is Kind.BACKUP)
        if not place.problem:
            file.report.add(f"{path} is missing")
    if place.problem:
        file.report.add(place.problem)
    elif file.owner is None and not file.report.problem_count:
        _miss_manifest(file, is_directory=place.kind is not Kind.FILE)
    if place.kind is Kind.NODE and not file.live:
        arriving = next_generation(place.path)
        if (arriving / MANIFEST).is_file():
            file.report.skipped.append(
                f"{arriving}, a copy of another member's that is not whole: the node fetches the "
                "rest of it once it is started"
            )
    return file


def _miss_manifest(file: VerifiedFile, *, is_directory: bool) -> None:
    """Nothing tells whose file it is and which entry it should end with: a cut one looks whole."""
    directory = file.path.parent
    if is_directory:
        file.report.add(
            f"{MANIFEST} is missing: {directory} is not a complete backup, and without a node.db "
            "not a node's directory either"
        )
    else:
        file.report.skipped.append(
            f"comparing it with a manifest; there is no {MANIFEST} beside it"
        )


def _verify_file(path: Path, on_step: Callable[[Path, Verification], None] | None) -> VerifiedFile:
    directory = path.parent
    live = in_use(directory)
    owner, trouble = _owner_of(directory)
    is_backup = owner is None and (directory / MANIFEST).is_file()
    if is_backup:
        owner, trouble = _origin_of(path)
    loss = "" if live or owner is None or is_backup else _loss_of(directory)
    if loss and not _has_log(path):
        # All of it stood in what is gone: what the checks say would be about nothing.
        report = Report()
    else:
        report = verify_database(
            path, owner.replica_set if owner is not None else "", live=live, on_step=on_step
        )
    for each in (trouble, loss):
        if each:
            report.add(each)
    if owner is not None:
        with suppress(HadronError, *READ_ERRORS), closing(open_database(path, live)) as db:
            if is_alone(db, owner.node):
                # It is noted at the beginning of a ballot.
                report.committed_lsn = report.applied_lsn
            if not owner.uuid:
                # A node that is being taught has a history before it is granted its membership.
                owner = replace(owner, uuid=latest_uuid(db))
    return VerifiedFile(path, owner, live, report, is_backup)


def _loss_of(directory: Path) -> str:
    """What a stopped node's disk may lack, in words; "" for nothing."""
    try:
        amnesia = amnesia_of(directory, SystemDisk())
    except HadronError as error:
        return _in_a_line(error)
    return f"it may lack what it acknowledged: {amnesia}" if amnesia else ""


def amnesia_of(directory: Path, disk: Disk) -> str:
    """Why a stopped node's disk may lack what it acknowledged: what is gone leaves no trace in the
    file. "" where it has all of it. Raises `HadronError` when that cannot be read."""
    path = current_database(directory)
    stop = read_last_stop(directory)
    with translated_os_errors(directory):
        left = aftermath.examine(path, disk, stop, was_member=True)
    # What cannot be read here is found by the checks of the file.
    with suppress(HadronError, *READ_ERRORS):
        if not left.amnesia:
            with closing(open_database(path, live=False)) as db:
                if stop.mark.lsn and lacks(db, stop.mark):
                    return f"{path} is an older copy, without entry {stop.mark.lsn}"
                owner = read_owner(directory)
                # Of several, the others teach it.
                if not read_membership(directory, disk) and owner and is_alone(db, owner.node):
                    return f"there is a log, and {NODE_DATABASE} has no member record for it"
    return left.amnesia


def _has_log(path: Path) -> bool:
    """Whether the file has a log at all; also when nobody can tell, as in another format."""
    try:
        with closing(open_database(path, live=False)) as db:
            check_version(db, path, FORMAT_VERSION)
            named = "SELECT 1 FROM sqlite_schema WHERE name = ?"
            found = db.execute(named, (LOG,)).fetchone()
    except (HadronError, *READ_ERRORS):
        return True
    return found is not None


def verify_database(
    path: Path,
    replica_set: str,
    *,
    live: bool = False,
    on_step: Callable[[Path, Verification], None] | None = None,
) -> Report:
    """All checks of one file. One that cannot be opened, or is of another format, is a problem in
    its report, and no check says more.

    Args:
        replica_set: whose file it is; "" when nobody knows.
        live: its node is running.
        on_step: told after each slice.
    """
    verification = Verification(MACHINE, replica_set=replica_set, live=live)
    try:
        with closing(open_database(path, live)) as db:
            # What cannot be read is for the checks to tell.
            with suppress(*READ_ERRORS):
                check_version(db, path, FORMAT_VERSION)
            while not verification.step(db):
                if on_step is not None:
                    on_step(path, verification)
    except HadronError as error:
        verification.report.add(_in_a_line(error))
    return verification.report


def _in_a_line(error: HadronError) -> str:
    """With the way out of what is no damage: about that a report says it once, for all of it."""
    is_refused = isinstance(error, DataDirectoryError) and error.hint
    return f"{error.message}: {error.hint}" if is_refused else error.message


def _owner_of(directory: Path) -> tuple[Owner | None, str]:
    try:
        return read_owner(directory), ""
    except HadronError as error:
        return None, _in_a_line(error)


def owner_of(path: Path) -> tuple[Owner | None, str]:
    """Whose database `path` is, by what stands beside it; and what is wrong with that."""
    owner, trouble = _owner_of(path.parent)
    if owner is not None or not (path.parent / MANIFEST).is_file():
        return owner, trouble
    manifest, trouble = _manifest_of(path)
    return (None if manifest is None else _maker(manifest)), trouble


def _manifest_of(path: Path) -> tuple[Manifest | None, str]:
    beside = path.parent / MANIFEST
    try:
        return decode_manifest(beside.read_bytes(), beside), ""
    except HadronError as error:
        return None, _in_a_line(error)
    except OSError as error:
        return None, f"{beside}: {error.strerror}"


def _maker(manifest: Manifest) -> Owner:
    return Owner(
        manifest.cluster, manifest.replica_set, manifest.node, bytes.fromhex(manifest.uuid)
    )


def _origin_of(path: Path) -> tuple[Owner | None, str]:
    """Where a backup comes from, and what does not fit between it and its manifest."""
    manifest, trouble = _manifest_of(path)
    if manifest is None:
        return None, trouble
    owner = _maker(manifest)
    size, digest = measure(path, SystemDisk())
    if (size, digest) != (manifest.size, manifest.hash):
        return owner, (
            f"it has {size} bytes with hash {digest}, its manifest says {manifest.size} with "
            f"{manifest.hash}"
        )
    return owner, ""
