"""Group commit: the commands that wait are run in one transaction, with one fsync.

A savepoint each, so a refused command hurts nobody. Small ones of a kind that says so
(`machine.Gather`) are run as one, and become one entry.

The entries are handed to replication before the COMMIT, whose fsync then overlaps with the
replicas'; that is why a failing COMMIT ends the process: an lsn that was sent is never reused with
other bytes (PROTOCOL A3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import apsw

from hadron.model.ids import Ballot, LogPosition
from hadron.partition.lines import Lines
from hadron.partition.submission import Submission
from hadron.state.execute import Outcome, check_transaction, execute
from hadron.state.machine import Context, StateMachine, encode
from hadron.storage.log import Entry, Log, drop_bodies, set_meta

_GATHERED: Final = 128
_GATHERED_BYTES: Final = 64 << 10
"""Of commands that become one entry. What is larger gains nothing by it, and a reader who wants one
batch of a body reads all of it."""


@dataclass(slots=True)
class GroupCommit:
    """What one transaction did."""

    previous: LogPosition
    entries: list[Entry] = field(default_factory=list)
    logged: list[Submission] = field(default_factory=list)
    """Those with an entry, in the order of their lsns; several may be one entry."""
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
            for together in _gathered(self._machine, waiting.take()):
                group.judged += together
                for submission in together:
                    group.size += submission.size
                if len(together) > 1 and self._run_as_one(connection, together, now_ms, group):
                    continue
                for submission in together:
                    self._run(connection, submission, now_ms, group)
            if group.entries:
                check_transaction(connection)
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

    def _context(
        self, connection: apsw.Connection, now_ms: int, body: bytes | memoryview
    ) -> Context:
        return Context(
            machine=self._machine,
            db=connection,
            lsn=self._log.head.lsn + 1,
            now_ms=now_ms,
            drop_bodies=drop_bodies,
            replica_set=self._replica_set,
            ballot=self._ballot,
            body=body,
        )

    def _run_as_one(
        self,
        connection: apsw.Connection,
        together: Sequence[Submission],
        now_ms: int,
        group: GroupCommit,
    ) -> bool:
        """Log commands as one entry; False when that is refused, and nothing is changed."""
        check_transaction(connection)
        gather = self._machine.gather(together[0].command)
        assert gather is not None
        command = gather.join([each.command for each in together])
        body = b"".join([each.body for each in together])
        context = self._context(connection, now_ms, body)
        outcome = execute(context, command)
        if outcome.command is None:
            return False
        entry = self._log.append(self._ballot, now_ms, encode(command), body)
        assert entry.lsn == context.lsn, (entry.lsn, context.lsn)
        group.entries.append(entry)
        group.logged += together
        events = outcome.events
        for each, result in zip(together, outcome.result, strict=True):
            each.judge(Outcome(each.command, result, events=events), entry.lsn)
            # They are told with the first, for all.
            events = ()
        return True

    def _run(
        self, connection: apsw.Connection, submission: Submission, now_ms: int, group: GroupCommit
    ) -> None:
        check_transaction(connection)
        log = self._log
        context = self._context(connection, now_ms, submission.body)
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


def _gathered(machine: StateMachine, waiting: Iterable[Submission]) -> Iterator[list[Submission]]:
    """Those that are to be one entry, and all others by themselves, in order."""
    together: list[Submission] = []
    key: Any = None
    size = 0
    for submission in waiting:
        gather = machine.gather(submission.command)
        own = gather.key(submission.command) if gather is not None else None
        if own is not None:
            own = own, submission.acks, type(submission.command)
        size += submission.size
        if own is None or own != key or size > _GATHERED_BYTES or len(together) == _GATHERED:
            if together:
                yield together
            together, key, size = [], own, submission.size
        together.append(submission)
    if together:
        yield together
