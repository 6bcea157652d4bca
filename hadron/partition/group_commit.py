"""Group commit: the commands that wait are run in one transaction, with one fsync.

A savepoint each, so a refused command hurts nobody. The entries are handed to replication before
the COMMIT, whose fsync then overlaps with the replicas'; that is why a failing COMMIT ends the
process: an lsn that was sent is never reused with other bytes (PROTOCOL A3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import apsw

from hadron.model.ids import Ballot, LogPosition
from hadron.partition.lines import Lines
from hadron.partition.submission import Submission
from hadron.state.execute import execute
from hadron.state.machine import Context, StateMachine, encode
from hadron.storage.log import Entry, Log, drop_bodies, set_meta


@dataclass(slots=True)
class GroupCommit:
    """What one transaction did."""

    previous: LogPosition
    entries: list[Entry] = field(default_factory=list)
    logged: list[Submission] = field(default_factory=list)
    """Those with an entry, in the order of their lsns."""
    judged: list[Submission] = field(default_factory=list)
    """All of them, in order."""
    size: int = 0


class GroupCommitter:
    """Writes group commits under one ballot."""

    def __init__(self, log: Log, machine: StateMachine, ballot: Ballot, replica_set: str) -> None:
        self._machine = machine
        self._log = log
        self._ballot = ballot
        self._replica_set = replica_set

    def prepare(
        self, connection: apsw.Connection, waiting: Lines, clock_ms: Callable[[], int]
    ) -> GroupCommit:
        """Write some of what waits; leaves the transaction open unless nothing was logged."""
        group = GroupCommit(self._log.head)
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
        self, connection: apsw.Connection, submission: Submission, now_ms: int, group: GroupCommit
    ) -> None:
        log = self._log
        context = Context(
            machine=self._machine,
            db=connection,
            lsn=log.head.lsn + 1,
            now_ms=now_ms,
            drop_bodies=drop_bodies,
            replica_set=self._replica_set,
            ballot=self._ballot,
            body=submission.body,
        )
        outcome = execute(context, submission.command)
        if outcome.command is not None:
            if outcome.command is not submission.command:
                submission.encoded = encode(outcome.command)
            entry = log.append(self._ballot, now_ms, submission.encoded, submission.body)
            # What was made of the command has this number for its id.
            assert entry.lsn == context.lsn, (entry.lsn, context.lsn)
            group.entries.append(entry)
            group.logged.append(submission)
        submission.judge(outcome, log.head.lsn)
