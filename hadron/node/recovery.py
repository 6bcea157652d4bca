"""`recover`: an operator lets a disk count again that may have lost what it acknowledged.

Normally a node without memory is taught by the others (PROTOCOL B3). Where too few of them
remember, nobody can do that, and somebody has to decide. Safety rule: nothing is destroyed by
deciding. What is left is put together from copies and checked, and what was there is kept aside.
Nor is anything given twice: the disk promises ballots that say that the log may have lost its end,
and from that the metadata set's next leader knows to go on above every index of before (D3).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

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
from hadron.storage.identity import DirectoryLock, read_last_stop, read_membership, read_owner
from hadron.storage.log import ANCHOR, LOG, lacks, last_lsn, position_at


@dataclass(frozen=True, slots=True)
class Recovered:
    """A disk that counts again."""

    end: LogPosition
    """Where its log ends."""
    aside: Path | None
    """What was there, where a part of a write-ahead log may be lost; its `-wal`, where it had one,
    is beside it."""
    was_whole: bool = False
    """It counted, and has lost nothing: nothing was done."""


def recover(config: ReplicaSetConfig, name: str, disk: Disk) -> Recovered:
    """Let one member's disk count again with the log that it has, whatever it may have lost: the
    one in its place, or the one that a start has set aside, where that goes further.

    Raises `DataDirectoryError` when there is no log, or the node runs, `CorruptionError` when the
    database is damaged: then nothing was changed.
    """
    data = config.node(name).data
    if not (current_database(data).is_file() or (data / aftermath.ASIDE).is_file()):
        raise _NothingLeftError(data)
    lock = DirectoryLock(data, disk)
    try:
        return _recover(config, name, disk)
    finally:
        lock.release()


def _recover(config: ReplicaSetConfig, name: str, disk: Disk) -> Recovered:
    node = config.node(name)
    data, path = node.data, current_database(node.data)
    if _is_whole(data, path, disk):
        with translated_errors(path), closing(open_reader(path, vfs=disk.vfs)) as database:
            end, _ = _examine(database, path, data, config.name)
        return Recovered(end, None, was_whole=True)
    if aftermath.is_cut_short(data):
        with translated_os_errors(data):
            aftermath.set_aside(path, data, disk)
    remains = _Remains(data, config.name, disk)
    found = remains.find(path)
    stays = found.path == path and not _has_log(path)
    with closing(identity_of(config, node, disk)) as identity:
        own = identity.current
        promised = _next_promise(config, max(own.promised, found.end.ballot))
        known = promised.epoch == own.promised.epoch
        if not stays:
            remains.put_together(found)
        # At whatever crash this disk counts for nothing before the last of these steps, and a start
        # between them sets nothing aside that is whole: with what was wrong with the old file it
        # judges that one again, or takes the new one for what it is, and learns from the others.
        identity.forget_membership("")
        if not stays:
            remains.switch(found, path)
        identity.start_over()
        identity.adopt(
            own.uuid or found.uuid,
            is_member=True,
            promised=promised,
            config_digest=own.config_digest if known else b"",
        )
    return Recovered(found.end, None if stays else data / aftermath.ASIDE)


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


class _NothingLeftError(DataDirectoryError, travels=False):
    """There is no log."""

    def __init__(self, data: Path) -> None:
        super().__init__(
            f"{data} has no log to go on with",
            "restore it from a backup, or all nodes from that of another one",
        )


class _Log(NamedTuple):
    """A log that is sound."""

    path: Path
    """Of the database that it was found in,"""
    with_wal: bool
    """with what SQLite reads of its write-ahead log, however that was damaged."""
    end: LogPosition
    uuid: bytes
    """Under which it was led last."""

    @property
    def advance(self) -> tuple[Ballot, int]:
        """Of two logs of one history the one in which this is higher has all that counts of the
        other (PROTOCOL B2)."""
        return self.end.ballot, self.end.lsn


def _has_log(path: Path) -> bool:
    wal = Path(f"{path}-wal")
    return wal.exists() and wal.stat().st_size > 0


class _Remains:
    """What is left on a disk, and the generation in which a database is made of it."""

    def __init__(self, data: Path, replica_set: str, disk: Disk) -> None:
        self._data = data
        self._replica_set = replica_set
        self._disk = disk
        self._generation = next_generation(data)

    def find(self, path: Path) -> _Log:
        """The log that goes furthest: of the database in its place, or of what was set aside, if
        that is of the same history. Changes nothing.

        Raises `DataDirectoryError` when there is none, `CorruptionError` when the database in its
        place is damaged: nobody should go back to an older one without knowing.
        """
        aside = self._data / aftermath.ASIDE
        owner = read_owner(self._data)
        with self._undone():
            found: _Log | None = None
            with contextlib.suppress(_NothingLeftError):
                found = self._find_in(path)
            with contextlib.suppress(CorruptionError, DataDirectoryError):
                kept = self._find_in(aside)
                uuid = (owner.uuid if owner else b"") or (found.uuid if found else kept.uuid)
                if kept.uuid == uuid and (found is None or kept.advance > found.advance):
                    found = kept
            if found is None:
                raise _NothingLeftError(self._data)
        return found

    def _find_in(self, path: Path) -> _Log:
        """The frames before the damage may be older than the file: where a checkpoint had copied
        later ones as well, they would take some of its pages back, and others not. So the file
        counts alone, too, and whichever is sound and goes further is taken."""
        if not (path.is_file() and path.stat().st_size):
            raise _NothingLeftError(self._data)
        found: _Log | None = None
        refusal: HadronError | None = None
        for with_wal in (True, False) if _has_log(path) else (False,):
            try:
                if with_wal:
                    log = _Log(path, with_wal, *self._assemble(path, ("", "-wal")))
                else:
                    log = _Log(path, with_wal, *self._examine_alone(path))
            except (CorruptionError, DataDirectoryError) as error:
                refusal = refusal or error
            else:
                if found is None or log.advance > found.advance:
                    found = log
        if found is None:
            assert refusal is not None
            raise refusal
        return found

    def put_together(self, found: _Log) -> None:
        """Make a database of it in the generation."""
        with self._undone():
            self._assemble(found.path, ("", "-wal") if found.with_wal else ("",))

    def switch(self, found: _Log, path: Path) -> None:
        """Make it the node's, and keep what it was made of aside."""
        with translated_os_errors(self._data):
            if found.path == path:
                # A second name for each file: until the switch, the next attempt begins where this
                # one did. The file comes first: a log alone would be of a move that was cut short.
                aftermath.clear_aside(self._data, self._disk)
                for ending in ("", "-wal"):
                    Path(f"{self._data / aftermath.ASIDE}{ending}").hardlink_to(f"{path}{ending}")
            switch_to(self._data, self._generation, self._disk)

    @contextlib.contextmanager
    def _undone(self) -> Iterator[None]:
        """Without the generation, if it fails."""
        try:
            yield
        except HadronError:
            with translated_os_errors(self._data):
                self._disk.remove(self._generation)
            raise

    def _examine_alone(self, path: Path) -> tuple[LogPosition, bytes]:
        with translated_errors(path), closing(open_at_rest(path, vfs=self._disk.vfs)) as database:
            return _examine(database, path, self._data, self._replica_set)

    def _assemble(self, path: Path, endings: Iterable[str]) -> tuple[LogPosition, bytes]:
        """Copy these files of a database, and make one of them; returns what `_examine` does."""
        target, disk = self._generation / DATABASE, self._disk
        with translated_os_errors(self._data):
            disk.remove(self._generation)
            disk.make_directory(self._generation)
            for ending in endings:
                copy_file(Path(f"{path}{ending}"), Path(f"{target}{ending}"), disk)
        with (
            translated_errors(target),
            closing(open_writer(target, sync="FULL", vfs=disk.vfs)) as database,
        ):
            database.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            database.pragma("journal_mode", "delete")
        with translated_errors(target), closing(open_reader(target, vfs=disk.vfs)) as database:
            return _examine(database, target, self._data, self._replica_set)


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
        raise _NothingLeftError(data)
    end = snapshot.chain_end(database)
    if end != position_at(database, last_lsn(database)) or end.ballot == NO_BALLOT:
        raise _NothingLeftError(data)
    return end, latest_uuid(database)
