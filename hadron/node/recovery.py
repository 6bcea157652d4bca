"""`recover`: an operator lets a disk count again that may have lost what it acknowledged.

Normally a node without memory is taught by the others (PROTOCOL B3). Where too few of them
remember, nobody can do that, and somebody has to decide. Safety rule: nothing is destroyed by
deciding. What is left is put together from copies and checked, and what was there is kept aside.
Nor is anything given twice: the disk promises ballots that say that the log may have lost its end,
and from that the metadata set's next leader knows to go on above every index of before (D3).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import apsw

from hadron.model.errors import CorruptionError, DataDirectoryError, HadronError
from hadron.model.ids import MAX_RECOVERIES, NO_BALLOT, Ballot, LogPosition
from hadron.model.ports import Disk
from hadron.node.replica_set import ReplicaSetConfig
from hadron.node.restore import copy_file, identity_of
from hadron.replication.verification import Verification
from hadron.state.features import MACHINE
from hadron.state.leadership import LEADERSHIP, latest_uuid
from hadron.storage import aftermath, snapshot
from hadron.storage.bodies import BODY
from hadron.storage.database import (
    FORMAT_VERSION,
    check_version,
    open_at_rest,
    open_reader,
    open_writer,
    translated_errors,
    translated_os_errors,
)
from hadron.storage.generations import DATABASE, current_database, next_generation, switch_to
from hadron.storage.identity import DirectoryLock, read_last_stop, read_membership
from hadron.storage.log import ANCHOR, LOG, lacks, last_lsn, position_at


@dataclass(frozen=True, slots=True)
class Recovered:
    """A disk that counts again."""

    end: LogPosition
    """Where its log ends."""
    aside: Path | None
    """What was there, where a part of a write-ahead log may be lost; its `-wal` is beside it."""
    was_whole: bool = False
    """It counted, and has lost nothing: nothing was done."""


def recover(config: ReplicaSetConfig, name: str, disk: Disk) -> Recovered:
    """Let one member's disk count again with the log that it has, whatever it may have lost.

    Raises `DataDirectoryError` when there is no log, or the node runs, `CorruptionError` when the
    database is damaged: then nothing was changed.
    """
    node = config.node(name)
    path = current_database(node.data)
    if not path.is_file():
        raise _nothing_left(node.data)
    lock = DirectoryLock(node.data)
    aside = None
    try:
        is_whole = _is_whole(node.data, path, disk)
        wal = path.with_name(f"{path.name}-wal")
        if not is_whole and wal.exists() and wal.stat().st_size:
            end, uuid = _take_what_is_left(path, node.data, disk, config.name)
            aside = node.data / aftermath.ASIDE
        else:
            with translated_errors(path), closing(open_reader(path, vfs=disk.vfs)) as database:
                end, uuid = _examine(database, path, node.data, config.name)
        if is_whole:
            return Recovered(end, None, was_whole=True)
        with closing(identity_of(config, node, disk)) as identity:
            own = identity.current
            promised = _next_promise(config, max(own.promised, end.ballot))
            known = promised.epoch == own.promised.epoch
            identity.adopt(
                own.uuid or uuid,
                is_member=True,
                promised=promised,
                config_digest=own.config_digest if known else b"",
            )
            identity.start_over()
    finally:
        lock.release()
    return Recovered(end, aside)


def _next_promise(config: ReplicaSetConfig, known: Ballot) -> Ballot:
    """Raises `DataDirectoryError` when the metadata set has no index left for another recovery."""
    if config.metadata == config.name and known.recoveries == MAX_RECOVERIES:
        raise DataDirectoryError(
            f"{config.name} was recovered {MAX_RECOVERIES} times: another time it might give ids "
            "of its schema that were given before",
            "take a backup of it (`hadron backup DEST --data DIR`) and restore that, with --all "
            "and a raised `epoch`",
        )
    return known.recovered()


def _is_whole(data: Path, path: Path, disk: Disk) -> bool:
    """Whether the next start will let this disk count by itself. Writes nothing."""
    if not read_membership(data, disk):
        return False
    stop = read_last_stop(data)
    with translated_os_errors(data):
        left = aftermath.examine(path, disk, stop, was_member=True)
    if left.amnesia:
        return False
    with translated_errors(path), closing(open_reader(path, vfs=disk.vfs)) as database:
        return not lacks(database, stop.mark)


def _take_what_is_left(
    path: Path, data: Path, disk: Disk, replica_set: str
) -> tuple[LogPosition, bytes]:
    """Put what SQLite reads of a database and its write-ahead log, however that was damaged, in
    their place; returns what `_examine` does.

    The frames before the damage may be older than the file: where a checkpoint had copied later
    ones as well, they would take some of its pages back, and others not. So the file counts alone,
    too, and whichever is sound and goes further is taken.
    """
    generation = next_generation(data)
    try:
        found: tuple[LogPosition, bytes] | None = None
        refusal: HadronError | None = None
        try:
            found = _assemble(path, ("", "-wal"), generation, disk, replica_set)
        except (CorruptionError, DataDirectoryError) as error:
            refusal = error
        try:
            with translated_errors(path), closing(open_at_rest(path, vfs=disk.vfs)) as database:
                alone, _ = _examine(database, path, data, replica_set)
        except (CorruptionError, DataDirectoryError):
            if refusal is not None:
                raise refusal from None
        else:
            if found is None or alone.lsn > found[0].lsn:
                found = _assemble(path, ("",), generation, disk, replica_set)
        assert found is not None
    except HadronError:
        with translated_os_errors(data):
            disk.remove(generation)
        raise
    with translated_os_errors(data):
        # A second name for each file: until the switch, the next attempt begins where this one did.
        for ending in ("", "-wal"):
            aside = data / f"{aftermath.ASIDE}{ending}"
            aside.unlink(missing_ok=True)
            aside.hardlink_to(f"{path}{ending}")
        switch_to(data, generation, disk)
    return found


def _assemble(
    path: Path, endings: Iterable[str], generation: Path, disk: Disk, replica_set: str
) -> tuple[LogPosition, bytes]:
    """Copy these files of a database, and make one of them; returns what `_examine` does."""
    target = generation / DATABASE
    with translated_os_errors(generation.parent):
        disk.remove(generation)
        disk.make_directory(generation)
        for ending in endings:
            copy_file(Path(f"{path}{ending}"), Path(f"{target}{ending}"), disk)
    with (
        translated_errors(target),
        closing(open_writer(target, sync="FULL", vfs=disk.vfs)) as database,
    ):
        database.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        database.pragma("journal_mode", "delete")
    with translated_errors(target), closing(open_reader(target, vfs=disk.vfs)) as database:
        return _examine(database, target, generation.parent, replica_set)


def _examine(
    database: apsw.Connection, path: Path, data: Path, replica_set: str
) -> tuple[LogPosition, bytes]:
    """Where a database's log ends, recomputed, and the uuid that it was led under last. Raises
    `CorruptionError` where its tables do not fit each other, or are not what the log makes of them,
    if that goes back to the beginning: groups would pass over what comes next. A damaged body below
    the log is told whenever it is read."""
    check_version(database, path, FORMAT_VERSION)
    found = _end_of(database, data)
    verification = Verification(MACHINE, replica_set=replica_set)
    while not verification.step(database):
        pass
    report, hint = verification.report, "restore this node from a backup"
    for problem in report.problems:
        if problem.table != BODY or not problem.lsn:
            raise CorruptionError(f"{path} is damaged: {problem.text}", hint)
    if report.problem_count > len(report.problems):
        # Of the others nobody knows what they are.
        raise CorruptionError(f"{path} is damaged in {report.problem_count} places", hint)
    return found


def _end_of(database: apsw.Connection, data: Path) -> tuple[LogPosition, bytes]:
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_schema")}
    if not tables.issuperset((LOG, ANCHOR, LEADERSHIP)):
        raise _nothing_left(data)
    end = snapshot.chain_end(database)
    if end != position_at(database, last_lsn(database)) or end.ballot == NO_BALLOT:
        raise _nothing_left(data)
    return end, latest_uuid(database)


def _nothing_left(data: Path) -> DataDirectoryError:
    return DataDirectoryError(
        f"{data} has no log to go on with",
        "restore it from a backup, or all nodes from that of another one",
    )
