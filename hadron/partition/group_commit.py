"""Group commit: the commands that wait are run in one transaction, with one fsync.

A savepoint each, so a refused command hurts nobody. The entries are handed to replication before
the COMMIT, whose fsync then overlaps with the replicas'; that is why a failing COMMIT ends the
process: an lsn that was sent is never reused with other bytes (PROTOCOL A3).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import apsw

from hadron.model.errors import HadronError
from hadron.model.ids import Ballot, LogPosition
from hadron.partition.lines import Lines
from hadron.partition.submission import Submission
from hadron.state import leadership, machine
from hadron.storage.log import Entry, Log, set_meta

_log = logging.getLogger(__name__)

_REFUSALS: Final = (apsw.ConstraintError, apsw.MismatchError, apsw.SQLError)
"""SQLite's errors about a statement; all others are about the file or the disk."""


@dataclass(slots=True)
class WrittenGroup:
    """What one transaction did."""

    previous: LogPosition
    entries: list[Entry] = field(default_factory=list)
    logged: list[Submission] = field(default_factory=list)
    """Those with an entry, in the order of their lsns."""
    judged: list[Submission] = field(default_factory=list)
    """All of them, in order."""
    size: int = 0


class GroupWriter:
    """Writes groups under one ballot."""

    def __init__(self, log: Log, ballot: Ballot, replica_set: str) -> None:
        self._log = log
        self._ballot = ballot
        self._replica_set = replica_set

    def prepare(
        self,
        connection: apsw.Connection,
        waiting: Lines,
        clock_ms: Callable[[], int],
    ) -> WrittenGroup:
        """Write some of what waits; leaves the transaction open unless nothing was logged."""
        group = WrittenGroup(self._log.head)
        connection.execute("BEGIN IMMEDIATE")
        try:
            # now_ms never goes back (PROTOCOL B8).
            now_ms = max(clock_ms(), self._log.last_ms)
            for submission in waiting.take():
                group.judged.append(submission)
                group.size += submission.size
                self._run(connection, submission, now_ms, group)
            if group.entries:
                # What a leader appends it has applied (PROTOCOL A1), in the same transaction.
                set_meta(connection, "applied_lsn", self._log.head.lsn)
            else:
                connection.execute("ROLLBACK")
        except BaseException:
            # A full or failing disk may have ended the transaction already.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            self._log.reload()
            raise
        return group

    def _run(
        self, connection: apsw.Connection, submission: Submission, now_ms: int, group: WrittenGroup
    ) -> None:
        connection.execute("SAVEPOINT command")
        context = machine.Context(
            connection, self._replica_set, self._ballot, self._log.head.lsn + 1, now_ms
        )
        try:
            submission.seal(context)
            submission.result = machine.apply(context, submission.command)
            leadership.check_rules(context, submission.command)
        except machine.NoChange as known:
            submission.result = known.result
        except HadronError as error:
            submission.error = error
        except Exception as error:
            if isinstance(error, apsw.Error | MemoryError) and not isinstance(error, _REFUSALS):
                raise
            # A hole in an `apply`'s own checks. Nothing of the command stays; were it the end of
            # the node, whoever sends it again would end the next one.
            _log.exception("%s could not be applied", type(submission.command).__name__)
            submission.error = HadronError(
                f"{type(submission.command).__name__} cannot be applied: {error}",
                "this is a defect of Hadron; the node's log has the details",
            )
        else:
            entry = self._log.append(self._ballot, now_ms, submission.encoded, submission.body)
            connection.execute("RELEASE command")
            submission.lsn = entry.lsn
            submission.logged = True
            group.entries.append(entry)
            group.logged.append(submission)
            return
        connection.execute("ROLLBACK TO command")
        connection.execute("RELEASE command")
        # Its answer may have to wait; its bytes need not.
        submission.body = b""
        submission.lsn = self._log.head.lsn
