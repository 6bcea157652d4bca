"""Verifying data directories from outside: each file by itself, then the logs with each other.

Nothing is written. A file whose node runs is read as a guest: in short slices. A file that was
closed properly is read without even a lock. A backup is compared with its manifest as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import apsw

from hadron.model.errors import ConfigurationError, HadronError
from hadron.node.world import SystemDisk
from hadron.replication.verification import Verification
from hadron.state.features import MACHINE
from hadron.storage import aftermath
from hadron.storage.database import (
    FORMAT_VERSION,
    check_version,
    open_at_rest,
    open_reader,
    translated_os_errors,
)
from hadron.storage.generations import MANIFEST, current_database
from hadron.storage.identity import Owner, in_use, read_last_stop, read_owner
from hadron.storage.log import LOG, lacks, read_anchor
from hadron.storage.report import Report
from hadron.storage.snapshot import Manifest, decode_manifest, measure

DATABASE = "hadron.db"


@dataclass(slots=True)
class VerifiedFile:
    """One file and what was found in it. `owner` is None without a `node.db`, or a backup's
    manifest, beside it."""

    path: Path
    owner: Owner | None
    live: bool
    report: Report
    is_backup: bool = False
    remedy: str = ""
    """What a running node does about its problems, in words that follow its name."""

    @property
    def name(self) -> str:
        """What people call it: its node, or its path."""
        if self.owner is None:
            return str(self.path)
        return f"the backup of {self.owner.node}" if self.is_backup else self.owner.node


@dataclass(slots=True)
class Agreement:
    """How far the logs of one replica set's files are the same.

    Attributes:
        lsn: the highest entry at which all of them have the same chain.
        problem: "" unless they differ where both say that it is committed.
    """

    replica_set: str
    names: list[str]
    lsn: int
    chain: str
    problem: str = ""


@dataclass(slots=True)
class TableComparison:
    """Whether running replicas hold the same rows as their leader.

    Attributes:
        rows: how many were compared.
        is_complete: these were all of them.
        members: whose tables are the same.
        problems: about the others, in words.
    """

    replica_set: str
    leader: str
    rows: int = 0
    is_complete: bool = False
    members: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Verified:
    """All files, and the comparison of those that belong together."""

    files: list[VerifiedFile] = field(default_factory=list)
    agreements: list[Agreement] = field(default_factory=list)
    tables: list[TableComparison] = field(default_factory=list)
    """Of running nodes."""

    @property
    def problem_count(self) -> int:
        return (
            sum(file.report.problem_count for file in self.files)
            + sum(bool(agreement.problem) for agreement in self.agreements)
            + sum(len(comparison.problems) for comparison in self.tables)
        )

    @property
    def ok(self) -> bool:
        return not self.problem_count


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
        on_step: told after each slice.

    Raises `ConfigurationError` for a path that leads to no file. A file that cannot be opened is
    a problem in its report.
    """
    databases = [database_of(path) for path in paths]
    verified = Verified()
    for given, path in zip(paths, databases, strict=True):
        file = _verify_file(path, on_step)
        if file.owner is None and not file.report.problem_count:
            _miss_manifest(file, is_directory=given.is_dir())
        verified.files.append(file)
    sets: dict[tuple[str, str, bytes], list[VerifiedFile]] = {}
    for file in verified.files:
        if file.owner is not None:
            key = (file.owner.cluster, file.owner.replica_set, file.owner.uuid)
            sets.setdefault(key, []).append(file)
    for (_, replica_set, _), files in sets.items():
        if len(files) > 1:
            verified.agreements.append(_compare(replica_set, files))
    return verified


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


def _verify_file(
    path: Path, on_step: Callable[[Path, Verification], None] | None
) -> VerifiedFile:
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
    return VerifiedFile(path, owner, live, report, is_backup)


def _loss_of(directory: Path) -> str:
    """What a stopped node's disk may lack, in words: what is gone leaves no trace in the file. ""
    for nothing."""
    path = current_database(directory)
    try:
        stop = read_last_stop(directory)
        with translated_os_errors(directory):
            left = aftermath.examine(path, SystemDisk(), stop, was_member=True)
    except HadronError as error:
        return error.message
    amnesia = left.amnesia
    # What cannot be read here is found by the checks of the file.
    with suppress(HadronError, apsw.Error):
        if not amnesia and stop.mark.lsn:
            with closing(open_database(path, live=False)) as db:
                if lacks(db, stop.mark):
                    amnesia = f"{path} is an older copy, without entry {stop.mark.lsn}"
    return f"it may lack what it acknowledged: {amnesia}" if amnesia else ""


def _has_log(path: Path) -> bool:
    """Whether the file has a log at all; also when nobody can tell, as in another format."""
    try:
        with closing(open_database(path, live=False)) as db:
            check_version(db, path, FORMAT_VERSION)
            named = "SELECT 1 FROM sqlite_schema WHERE name = ?"
            found = db.execute(named, (LOG,)).fetchone()
    except (HadronError, apsw.Error):
        return True
    return found is not None


def verify_database(
    path: Path, replica_set: str, *, live: bool = False,
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
            with suppress(apsw.Error):
                check_version(db, path, FORMAT_VERSION)
            while not verification.step(db):
                if on_step is not None:
                    on_step(path, verification)
    except HadronError as error:
        verification.report.add(error.message)
    return verification.report


def _owner_of(directory: Path) -> tuple[Owner | None, str]:
    try:
        return read_owner(directory), ""
    except HadronError as error:
        return None, error.message


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
        return None, error.message
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


def open_database(path: Path, live: bool) -> apsw.Connection:
    """A read-only connection to a node's database, which it leaves as it is.

    Args:
        live: its node is running.
    """
    # The write-ahead log stands beside the file itself, not beside a link to it.
    path = path.resolve()
    wal = path.with_name(f"{path.name}-wal")
    if live or (wal.exists() and wal.stat().st_size):
        return open_reader(path)
    return open_at_rest(path)


# --- comparing ----------------------------------------------------------------------------------


def _compare(replica_set: str, files: Sequence[VerifiedFile]) -> Agreement:
    """Find the last entry that all logs share, by binary search: equal chains, equal prefixes."""
    names = [file.name for file in files]
    readable = [file for file in files if file.report.last_lsn]
    high = min((file.report.last_lsn for file in readable), default=0)
    low = max((file.report.first_lsn for file in readable), default=1) - 1
    known: dict[int, set[bytes | None]] = {}
    with _all_open(readable) as databases:

        def same(lsn: int) -> bool:
            if lsn not in known:
                known[lsn] = {_chain_at(db, lsn) for db in databases}
            return len(known[lsn]) == 1 and None not in known[lsn]

        bottom = low
        while bottom < high:
            middle = (bottom + high + 1) // 2
            if same(middle):
                bottom = middle
            else:
                high = middle - 1
        chain = _chain_at(databases[0], bottom) if databases and bottom else None
    agreement = Agreement(replica_set, names, bottom, (chain or b"").hex())
    committed = min((file.report.committed_lsn for file in readable), default=0)
    if len(readable) < len(files):
        agreement.problem = "not every log could be read"
    elif low < committed and bottom < committed:
        agreement.problem = (
            f"their logs differ from entry {bottom + 1} on, all say that entry {committed} is "
            "committed"
        )
    return agreement


@contextmanager
def _all_open(files: Sequence[VerifiedFile]) -> Iterator[list[apsw.Connection]]:
    with ExitStack() as stack:
        yield [stack.enter_context(closing(open_database(file.path, file.live))) for file in files]


def _chain_at(db: apsw.Connection, lsn: int) -> bytes | None:
    """As it stands in the row: whether it should is for the report on the file."""
    try:
        row = db.execute(f"SELECT chain FROM {LOG} WHERE lsn = ?", (lsn,)).fetchone()
    except apsw.Error:
        return None
    if row is None:
        anchor = read_anchor(db)
        return anchor.chain if anchor.lsn == lsn else None
    chain: bytes = row[0]
    return chain
