"""A member's log as its leader writes it: promise, verify, append, apply what is committed.

Every step goes through the writer, one at a time, so a promise and an append never cross.
Safety rules: a replica fsyncs entries on receipt and applies them only once they are committed
(PROTOCOL A1); it acknowledges what it has verified to be equal to the leader's under this ballot,
never its own last lsn (B2).

Where the log that was chosen goes another way than what was applied here (a leader applies ahead of
the watermark), or an entry cannot be applied, the tables have *diverged*: nothing is applied from
then on, and a snapshot has to replace them. The log itself is sound and goes on: entries are
verified, stored and acknowledged, because a majority may need this disk meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import apsw

from hadron.model.errors import CorruptionError, FencedError, PeerError, StorageError
from hadron.model.ids import Ballot, LogPosition
from hadron.replication.configurations import begun_with, in_log, still_needed
from hadron.replication.watermark import Watermark
from hadron.state import leadership
from hadron.state.events import SchemaChanged
from hadron.state.execute import DivergedError, check_transaction, execute_logged
from hadron.state.leadership import Configuration
from hadron.state.machine import Context, StateMachine
from hadron.storage.database import transaction
from hadron.storage.identity import IdentityFile
from hadron.storage.log import (
    Entry,
    Log,
    drop_bodies,
    get_meta,
    get_text,
    read_commands,
    set_meta,
    verify_chain,
)
from hadron.storage.snapshot import DIVERGED
from hadron.storage.writer import Prepared

_READ_AT_ONCE: Final = 256
"""Commands in memory at a time."""

_APPLIED_AT_ONCE: Final = 2_048
"""In one transaction, in entries and rows that they change; the last entry may exceed it. Measured:
512 single records, which are three rows each, take 20 to 50 ms of the event loop."""


@dataclass(frozen=True, slots=True)
class AppendOutcome:
    """What became of an append. `reason` is "" when it was persisted, else "mismatch" or
    "fenced"."""

    match_lsn: int
    applied_lsn: int
    promised: Ballot
    reason: str = ""


class LostEntriesError(StorageError):
    """Entries that were committed are missing from the log that a leader has: the promise that the
    replica set lives by is broken, and this node keeps what it has rather than follow."""


class BadEntriesError(PeerError):
    """Entries that a peer sent do not continue the chain; this node's own log is unharmed."""


@contextmanager
def _bad_entries() -> Iterator[None]:
    try:
        yield
    except CorruptionError as error:
        raise BadEntriesError(
            error.message, "the disk or the memory of the node that sent it is damaged"
        ) from error


class FollowerLog:
    """What the writer runs for a member's log. While it has a job, nobody else changes it."""

    def __init__(
        self,
        connection: apsw.Connection,
        log: Log,
        identity: IdentityFile,
        machine: StateMachine,
        replica_set: str,
        watermark: Watermark,
    ) -> None:
        leadership.check_known(connection, machine, replica_set)
        self.machine = machine
        self._log = log
        self._identity = identity
        self._replica_set = replica_set
        self.diverged = get_text(connection, DIVERGED)
        """Why the tables are worth nothing; "" when they are what the log makes of them."""
        self.on_diverged: Callable[[str], None] = lambda _reason: None
        self.applied_lsn = 0 if self.diverged else get_meta(connection, "applied_lsn")
        """Where the tables are in the transaction at hand; 0 when they have diverged."""
        self.stored_applied_lsn = self.applied_lsn
        """Where they are for everybody else: the last COMMIT that has returned."""
        self.schema_lsn = 0
        """The latest entry applied here, as a replica, that has changed the schema."""
        self._watermark = watermark
        self._noted_lsn = get_meta(connection, "committed_lsn")
        """What the file says of the watermark."""
        assert self._noted_lsn <= watermark.lsn
        self._configurations = self.configurations_in_log(connection)

    @property
    def committed_lsn(self) -> int:
        """What this node knows to be committed, whoever leads."""
        return self._watermark.lsn

    def configurations_in_log(self, connection: apsw.Connection) -> list[Configuration]:
        """All of them, by lsn, committed or not."""
        base = self.committed_lsn if self.diverged else self.applied_lsn
        return in_log(connection, base, self._log.head.lsn)

    @property
    def configurations(self) -> list[Configuration]:
        """Those of this log of which a new leader needs a majority (PROTOCOL B5), by lsn."""
        head = self._log.head.lsn
        held = [known for known in self._configurations if known.lsn <= head]
        return still_needed(held, self.committed_lsn)

    def note_applied(self, lsn: int) -> None:
        """The tables are at `lsn`, stored: what a leader says, which applies as it writes."""
        assert self.applied_lsn <= lsn <= self._log.head.lsn, (self.applied_lsn, lsn)
        self.applied_lsn = self.stored_applied_lsn = lsn

    def note_committed(self, connection: apsw.Connection) -> None:
        """Write the watermark down: what a leader does when its first entry is committed."""
        with transaction(connection):
            set_meta(connection, "committed_lsn", self.committed_lsn)
        self._configurations = self.configurations_in_log(connection)

    @property
    def head(self) -> LogPosition:
        return self._log.head

    @property
    def anchor(self) -> LogPosition:
        """What this log's first row continues."""
        return self._log.anchor

    def promise(self, ballot: Ballot, digest: bytes, uuid: bytes, *, found: bool) -> LogPosition:
        """Promise a ballot; fsynced on return. Returns where this log ends.

        Raises `FencedError` when a higher one was promised, or when this disk belongs to another
        replica set.
        """
        own = self._identity.current
        if own.uuid and uuid and own.uuid != uuid:
            raise FencedError(
                f"this disk holds replica set {own.uuid.hex()}, the leader's is {uuid.hex()}"
            )
        if found and self._log.head.lsn != 0:
            raise FencedError(
                "the leader wants to found the replica set anew, but this node's log holds "
                f"{self._log.head.lsn} entries",
                "was the leader's disk lost while it was told otherwise?",
            )
        if found and self._identity.has_forgotten:
            raise FencedError(
                "the leader wants to found the replica set anew, but this node was a member of it "
                "and has lost its log",
                "was the leader's disk lost as well?",
            )
        self._identity.promise(ballot, digest)
        if found:
            self._identity.become_member(uuid)
        return self._log.head

    def join(self, ballot: Ballot, verified: LogPosition, uuid: bytes) -> None:
        """Count in majorities from now on, as the leader of `ballot` says, by whom this log is
        known to be equal up to `verified`; does nothing when that is not so any more. Fsynced on
        return; a job for the writer."""
        is_led = ballot == self._identity.current.promised
        if is_led and self._log.position_at(verified.lsn) == verified:
            self._identity.become_member(uuid)

    def prepare_append(
        self,
        connection: apsw.Connection,
        ballot: Ballot,
        previous: LogPosition,
        entries: list[Entry],
        committed_lsn: int,
    ) -> Prepared:
        """Verify and write `entries`, and apply what is committed; a commit for the writer, whose
        result is an `AppendOutcome`.

        Of a long tail a slice is applied, at least as many entries as are written, so that it gets
        shorter; who sees by the answer that something is left, tells the watermark again.
        Tables that have diverged are marked so, durably, and the append goes on without them.
        Raises `BadEntriesError` when an entry's content does not give its chain (nothing is
        written), `LostEntriesError` when they would replace what is committed, `CorruptionError`
        when this node's own log cannot be read.
        """
        promised = self._identity.current.promised
        if ballot != promised:
            return Prepared(AppendOutcome(0, self.applied_lsn, promised, "fenced"), 0)
        known = self._log.position_at(previous.lsn)
        if known != previous:
            return Prepared(AppendOutcome(0, self.applied_lsn, promised, "mismatch"), 0)
        match_lsn = entries[-1].lsn if entries else previous.lsn
        committed = max(self.committed_lsn, min(committed_lsn, match_lsn))
        new = self._unknown(previous, entries)
        try:
            self._write(connection, new, committed)
        except DivergedError as error:
            self._mark_diverged(connection, error)
            self._write(connection, new, committed)
        size = sum(entry.size for entry in new)
        return Prepared(AppendOutcome(match_lsn, self.applied_lsn, promised), size)

    def _write(self, connection: apsw.Connection, new: list[Entry], committed: int) -> None:
        # Of tables that are ahead of the watermark (an old leader's, or a copy of one's that was
        # not committed) the file has to say when it has caught up: nobody else may be left to
        # tell after a restart, and then no other node could have them.
        is_told = committed <= min(self.applied_lsn, self._noted_lsn)
        if not new and (is_told or self.diverged):
            self._watermark.rise(committed)
        else:
            # Flushed also where nothing is new: a commit that is not must never stand before one
            # that is, or a power failure between them would look like damage (PROTOCOL B4).
            self._begin_write(connection, new, committed, until=committed)

    def _mark_diverged(self, connection: apsw.Connection, error: DivergedError) -> None:
        """Durable before anything is dropped: a restart must not apply to these tables."""
        with transaction(connection):
            set_meta(connection, DIVERGED, error.message)
        self.diverged = error.message
        self.applied_lsn = self.stored_applied_lsn = 0
        self.on_diverged(error.message)

    def _unknown(self, previous: LogPosition, entries: list[Entry]) -> list[Entry]:
        """What follows the entries that this log already has; equal chains, equal prefixes. Raises
        `BadEntriesError`."""
        if not entries or entries[0].lsn == self._log.head.lsn + 1:
            return entries
        # This log's own are dropped for them: not for such as are damaged.
        with _bad_entries():
            verify_chain(entries, previous)
        for index, entry in enumerate(entries):
            known = self._log.position_at(entry.lsn)
            if known is None or known.chain != entry.chain:
                return entries[index:]
        return []

    def _append(self, entries: list[Entry]) -> None:
        if entries[0].lsn <= self._log.head.lsn:
            self.drop_after(entries[0].lsn - 1)
        self.append_copies(entries)

    def append_copies(self, entries: list[Entry]) -> None:
        """Write entries that another node made; the caller owns the transaction.

        Raises `BadEntriesError`.
        """
        for entry in entries:
            self._note_configuration(entry)
            with _bad_entries():
                self._log.append_copy(entry)

    def _note_configuration(self, entry: Entry) -> None:
        """An entry takes its place, and that of one which was dropped or never written."""
        known = [each for each in self._configurations if each.lsn < entry.lsn]
        configuration = begun_with(entry)
        if configuration is not None and all(each.epoch != configuration.epoch for each in known):
            known.append(configuration)
        self._configurations = known

    def _begin_write(
        self, connection: apsw.Connection, new: list[Entry], committed: int, *, until: int
    ) -> None:
        """Write and apply in a transaction that is left open, or rolled back when something is
        wrong."""
        applied_before = self.applied_lsn
        connection.execute("BEGIN IMMEDIATE")
        try:
            if new:
                self._append(new)
            assert committed <= self._log.head.lsn, (committed, self._log.head)
            self._apply_some(connection, until, at_least=len(new))
            check_transaction(connection)
            set_meta(connection, "committed_lsn", committed)
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            self.applied_lsn = applied_before
            self._log.reload()
            raise
        self._watermark.rise(committed)
        self._noted_lsn = committed

    def drop_after(self, lsn: int) -> None:
        """Drop an uncommitted tail.

        Raises `DivergedError` when some of it was applied, `LostEntriesError` when some of it is
        known to be committed.
        """
        if lsn < self.committed_lsn:
            raise LostEntriesError(
                f"entry {self.committed_lsn} is committed, but the leader's log goes another way "
                f"after {lsn}",
                "was the leader, or a majority, started on old or foreign data? keep this "
                "directory: it has what they lost",
            )
        if lsn < self.applied_lsn:
            raise DivergedError(
                f"this node has applied entry {self.applied_lsn}, but its replica set's log went "
                f"another way after {lsn}"
            )
        self._log.drop_after(lsn)

    def replace_after(self, connection: apsw.Connection, lsn: int) -> None:
        """Drop what follows `lsn`, whatever was applied: the replica set's log goes another way."""
        try:
            with transaction(connection):
                self.drop_after(lsn)
        except DivergedError as error:
            self._mark_diverged(connection, error)
            with transaction(connection):
                self.drop_after(lsn)

    def _apply_some(self, connection: apsw.Connection, until: int, *, at_least: int) -> None:
        """Apply entries up to `until`: `at_least` so many, and others while they are not too much
        for one transaction (PROTOCOL F3)."""
        if until <= self.applied_lsn or self.diverged:
            return
        begin, changed = self.applied_lsn, connection.total_changes()

        def is_enough() -> bool:
            count = self.applied_lsn - begin
            rows = connection.total_changes() - changed
            return count >= at_least and count + rows >= _APPLIED_AT_ONCE

        while self.applied_lsn < until and not is_enough():
            last = min(until, self.applied_lsn + _READ_AT_ONCE)
            entries = read_commands(connection, self.applied_lsn + 1, last)
            if not entries or entries[0].lsn != self.applied_lsn + 1:
                raise CorruptionError(f"entry {self.applied_lsn + 1} is missing from the log")
            for entry in entries:
                context = Context(
                    machine=self.machine,
                    db=connection,
                    lsn=entry.lsn,
                    now_ms=entry.now_ms,
                    drop_bodies=drop_bodies,
                    replica_set=self._replica_set,
                    ballot=entry.ballot,
                )
                execute_logged(context, entry.command)
                assert entry.lsn == self.applied_lsn + 1, (entry.lsn, self.applied_lsn)
                self.applied_lsn = entry.lsn
                if any(type(event) is SchemaChanged for event in context.events):
                    self.schema_lsn = entry.lsn
                if is_enough():
                    break
        assert self.applied_lsn <= self._log.head.lsn, (self.applied_lsn, self._log.head)
        set_meta(connection, "applied_lsn", self.applied_lsn)

    def apply_ahead(self, connection: apsw.Connection) -> bool:
        """Apply a slice of the log, committed or not; returns whether that was the last one. All of
        it is what a node applies before it leads (PROTOCOL A1).

        None of it is known to be committed by that: the watermark stays where it is.
        Raises `DivergedError`, after it has been noted, when the tables are not what they were.
        """
        if not self.diverged:
            try:
                self._begin_write(connection, [], self.committed_lsn, until=self._log.head.lsn)
                connection.execute("COMMIT")
                self.stored_applied_lsn = self.applied_lsn
            except DivergedError as error:
                self._mark_diverged(connection, error)
        if self.diverged:
            raise DivergedError(
                f"this node cannot lead with the tables that it has: {self.diverged}",
                "it needs a snapshot from another member",
            )
        return self.applied_lsn == self._log.head.lsn
