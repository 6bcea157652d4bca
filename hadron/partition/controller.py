"""The controller: a replica set's log of commands while this node leads it, under one ballot.

A command's way: `submit` → the next group's transaction → the feeds (`replication.feeding`) and the
disk at the same time → quorum → the watermark moves → the observers, who push what has become
visible, then its answer.
All of it happens in callbacks on the event loop; one task is woken, when the writer was idle.

Safety rule: answers pass `Waiters` or `query`, which hold them back until the watermark covers what
they were derived from (PROTOCOL A2). What is shown besides (the catalog, the streams' visible ends)
is what observers were told, and they are told no earlier.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import apsw
import trio

from hadron.model.errors import (
    HadronError,
    NotReadyError,
    OverloadedError,
    RecordTooLargeError,
    ShuttingDownError,
)
from hadron.model.ids import LogPosition
from hadron.model.limits import MAX_BATCH_BYTES, MAX_OPEN_CALLS
from hadron.model.ports import Clock, Database
from hadron.partition.gate import ByteGate
from hadron.partition.group_commit import GroupCommit, GroupCommitter
from hadron.partition.lines import Lines
from hadron.partition.observers import Observers
from hadron.partition.room import Room
from hadron.partition.submission import Done, Submission
from hadron.partition.waiters import ALL, LEADER, MAJORITY, Waiters
from hadron.replication.feed import Feed
from hadron.replication.feeding import Feeding
from hadron.replication.follower import FollowerLog
from hadron.replication.quorum import Quorum
from hadron.state.machine import Command, Event
from hadron.storage.database import read_transaction
from hadron.storage.log import last_lsn
from hadron.storage.store import Store
from hadron.storage.writer import Prepared
from hadron.wire.connection import Cork

T = TypeVar("T")

MAX_COMMAND_BYTES: Final = 3 << 19
"""A group of commands and one more of this size fit into the message of a frame: a command that
fits into none would be logged here and never reach a replica."""

MAX_UNCOMMITTED_BYTES: Final = 32 << 20
"""What may be written here while no majority has it, in memory and at risk; beyond it records are
refused. Four times what a replica's window holds, so a majority that keeps up never meets it."""

PATIENCE_S: Final = 0.002
"""For which what nobody waits for may wait for a group that begins anyway."""

MAX_WAITING: Final = MAX_OPEN_CALLS
"""Of commands that may wait for a majority, and of those that wait for all nodes, about 1 kB each:
who waits for an answer has a call, so more are those of callers that are gone, or ask for no
majority. What ends something (`Command.uses_reserve`) is refused at twice as many."""


class Controller:
    """Leads one replica set under one ballot. `run` must be running."""

    def __init__(
        self,
        store: Store,
        follower: FollowerLog,
        feeding: Feeding,
        *,
        replica_set: str,
        clock: Clock,
        cork: Cork,
        gate: ByteGate,
        on_fatal: Callable[[BaseException], None],
        on_fenced: Callable[[HadronError], None] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """
        Args:
            feeding: what members are fed with, under the ballot that was won.
            on_fenced: told at once when a member follows another ballot; None: `stop` is.
            patience_s: of what nobody waits for (`submit`).
        """
        self.ballot = feeding.ballot
        self.machine = follower.machine
        self.node = feeding.node
        self.feeding = feeding
        self.observers = Observers()
        """Told what has become visible, before anybody is answered."""
        self._store = store
        self._follower = follower
        self._committer = GroupCommitter(store.log, follower.machine, self.ballot, replica_set)
        self._room = Room(store.space, feeding.quorum.members)
        self._clock = clock
        self._cork = cork
        self._gate = gate
        self._on_fatal = on_fatal
        self._queued = Lines()
        """For the next group."""
        self._is_committing = False
        self._patience_s = patience_s
        self._is_hurried = False
        self._submitted = trio.Event()
        self._waits = trio.Event()
        self._unanswered = Waiters()
        self._uncommitted: deque[Submission] = deque()
        """Logged here, and above the watermark; what was refused or done before is not."""
        self._uncommitted_bytes = 0
        self._persisted_lsn = feeding.head.lsn
        self._moved = trio.Event()
        self._is_answering = False
        self._to_say: deque[Callable[[], None]] = deque()
        self._stopped: HadronError | None = None
        self._stop = trio.Event()
        feeding.on_moved = self._release
        feeding.on_fenced = on_fenced or self.stop
        feeding.on_space = lambda name, is_low: self._room.note(name, is_low=is_low)

    @property
    def leads(self) -> bool:
        """Whether this leadership has not ended."""
        return self._stopped is None

    # --- commands -------------------------------------------------------------------------------

    def submit(
        self,
        command: Command,
        body: bytes | memoryview = b"",
        *,
        acks: int = MAJORITY,
        done: Done,
        is_patient: bool = False,
    ) -> None:
        """Log `command`; `done(result, error)` is called once the answer may leave. For one that is
        patient nobody waits: it begins no group by itself for `PATIENCE_S`, and goes with what
        comes meanwhile."""
        if self._stopped is not None:
            done(None, self._stopped)
            return
        submission = Submission(command, body, acks, done, is_patient=is_patient)
        if len(submission.encoded) > MAX_COMMAND_BYTES or len(body) > MAX_BATCH_BYTES:
            done(None, _too_large(submission))
            return
        if self._room.is_low and not command.uses_reserve:
            done(None, self._room.refusal())
            return
        refusal = self._too_far_ahead(submission)
        if refusal is not None:
            done(None, refusal)
            return
        self._gate.add(submission.size)
        self._queued.append(submission)
        if not self._is_committing:
            self._begin(at_once=not is_patient)

    def hurry(self) -> None:
        """Somebody waits for what is patient by now."""
        self._is_hurried = bool(self._queued)
        if self._is_hurried and not self._is_committing and self._stopped is None:
            self._begin(at_once=True)

    def _begin(self, *, at_once: bool) -> None:
        if at_once:
            self._is_committing = True
            self._submitted.set()
        else:
            self._waits.set()

    async def wait_room(self) -> None:
        """Until so little waits here that more may come: for what no connection's gate holds
        back."""
        await self._gate.wait_open()

    def _too_far_ahead(self, submission: Submission) -> OverloadedError | None:
        """Why it is refused, where too much waits for other nodes' disks already."""
        waiting = max(len(self._uncommitted), self._unanswered.waiting_with(submission.acks))
        if len(submission.body) and self._uncommitted_bytes > MAX_UNCOMMITTED_BYTES:
            what, limit = f"{self._uncommitted_bytes} bytes wait", MAX_UNCOMMITTED_BYTES
        elif waiting >= (limit := MAX_WAITING * (2 if submission.command.uses_reserve else 1)):
            what = f"{waiting} commands wait"
        else:
            return None
        whom = "all of the nodes" if submission.acks == ALL else "a majority of the nodes"
        return OverloadedError(
            f"{what} for {whom}, the limit is {limit}",
            "see `hadron status` for the nodes that are away or behind",
        )

    async def execute(self, command: Command[T], body: bytes | memoryview = b"") -> T:
        """Log `command` and wait for its result; raises its refusal."""
        answered = trio.Event()
        outcome: list[tuple[T, HadronError | None]] = []

        def done(result: Any, error: HadronError | None) -> None:
            outcome.append((result, error))
            answered.set()

        self.submit(command, body, done=done)
        await answered.wait()
        result, error = outcome[0]
        if error is not None:
            raise error
        return result

    async def _commit_loop(self) -> None:
        """Start a group on the turn of the loop after the first command came: what arrives on
        other connections in the same turn goes into the same group."""
        while True:
            await self._submitted.wait()
            self._submitted = trio.Event()
            self._store.writer.commit(self._prepare, self._on_persisted)

    async def _patience_loop(self) -> None:
        """Begin a group where only patient ones came."""
        while True:
            await self._waits.wait()
            await trio.sleep(self._patience_s)
            self._waits = trio.Event()
            self.hurry()

    def _prepare(self, connection: apsw.Connection) -> Prepared:
        """Prepare a group and send it, before its own COMMIT."""
        group = self._committer.prepare(connection, self._queued, self._clock.now_ms)
        # What there was no room for has been patient.
        self._is_hurried = bool(self._queued)
        self._on_prepared(group)
        return Prepared(group, group.size)

    def _on_prepared(self, group: GroupCommit) -> None:
        """The group's bytes exist; its COMMIT is next. Send it, and line up its answers."""
        if group.entries:
            self.feeding.offer(group.previous, group.entries)
            self._uncommitted.extend(group.logged)
            self._uncommitted_bytes += sum(submission.size for submission in group.logged)
        for submission in group.judged:
            self._unanswered.add(submission)
        self._gate.remove(group.size)
        # `stop` takes what waits, and nothing is let in after it.
        assert self._stopped is None or not group.judged, group.judged

    def _on_persisted(self, group: GroupCommit | None, error: BaseException | None) -> None:
        if group is None:
            assert error is not None
            self._on_fatal(error)
            return
        if group.entries:
            self._persisted_lsn = group.entries[-1].lsn
            self._follower.note_applied(self._persisted_lsn)
            self.feeding.note_own(self._persisted_lsn)
        is_urgent = self._is_hurried or self._queued.urgent > 0
        self._is_committing = is_urgent and self._stopped is None
        if self._is_committing:
            # May be done before this returns, so what this group has reached is noted above.
            self._store.writer.commit(self._prepare, self._on_persisted)
        elif self._queued:
            self._begin(at_once=False)
        self._release()

    # --- the watermark --------------------------------------------------------------------------

    @property
    def written_lsn(self) -> int:
        return self.feeding.written_lsn

    @property
    def head(self) -> LogPosition:
        """Where the log ends; may be above the watermark."""
        return self.feeding.head

    @property
    def quorum(self) -> Quorum:
        return self.feeding.quorum

    @property
    def committed_lsn(self) -> int:
        return self.feeding.committed_lsn

    @property
    def droppable_lsn(self) -> int:
        """Retention may drop bodies of entries up to here."""
        return self.feeding.droppable_lsn

    def feed_of(self, name: str) -> Feed | None:
        return self.feeding.feeds.get(name)

    def _release(self) -> None:
        """Show what the watermark makes visible; then answer whom it, or a slower disk, allows."""
        if self._stopped is not None:
            return
        committed = self.feeding.settle()
        assert committed <= self._persisted_lsn, (committed, self._persisted_lsn)
        has_moved = False
        visible: list[Event] = []
        while self._uncommitted and self._uncommitted[0].lsn <= committed:
            submission = self._uncommitted.popleft()
            self._uncommitted_bytes -= submission.size
            visible.extend(submission.shown())
            has_moved = True
        assert self._uncommitted or not self._uncommitted_bytes, self._uncommitted_bytes
        due = self._unanswered.take(
            committed=committed, persisted=self._persisted_lsn, on_all=self.quorum.on_all
        )
        try:
            if visible or due:
                self._tell(visible, due, committed)
        finally:
            self._unanswered.put_back(due)
            if has_moved:
                self._moved.set()
                self._moved = trio.Event()
                self.feeding.notice()
            self.feeding.let_go()

    def _tell(self, visible: Sequence[Event], due: deque[Submission], committed: int) -> None:
        assert not self._is_answering
        failure: Exception | None = None
        with self._cork:
            self._is_answering = True
            try:
                if visible and not self._have_heard(visible):
                    return
                while due:
                    submission = due.popleft()
                    # Of PROTOCOL A2: whoever asks for no majority is told of no more than its own.
                    assert submission.lsn <= committed or submission.acks == LEADER, submission.lsn
                    try:
                        submission.done(submission.result, submission.error)
                    except Exception as error:
                        # It is one call's end; who comes after it is answered all the same.
                        failure = failure or error
                self._say_all()
            finally:
                self._is_answering = False
        if failure is not None:
            raise failure

    def _have_heard(self, events: Sequence[Event]) -> bool:
        try:
            self.observers.tell(events)
        except Exception as error:
            # Some of them have not, and never will: what they show would differ from the log.
            self._on_fatal(error)
            return False
        return True

    def once_answered(self, function: Callable[[], None]) -> None:
        """Call it once those were answered who can be now, so that answers to one peer may leave
        together: at once, when nobody is being answered."""
        self._to_say.append(function)
        if not self._is_answering:
            self._say_all()

    def _say_all(self) -> None:
        while self._to_say:
            self._to_say.popleft()()

    async def wait_committed(self, lsn: int) -> None:
        """Return once the watermark covers `lsn` in this ballot; raises when leading ends."""
        while self.committed_lsn < lsn and self._stopped is None:
            await self._moved.wait()
        if self._stopped is not None:
            raise self._stopped

    def log_now_ms(self) -> int:
        """The clock of the log: what the next entry would be stamped with (PROTOCOL B8)."""
        return max(self._clock.now_ms(), self._store.log.last_ms)

    async def read(self, read: Callable[[Database], T]) -> T:
        """Read tables as they are here, committed or not: to decide what to submit, and nothing
        that leaves this node."""
        return await self._store.readers.run(read)

    async def query(self, read: Callable[[Database], T]) -> T:
        """Read tables, and return once everything that was read is committed (PROTOCOL A2)."""

        def read_with_lsn(connection: apsw.Connection) -> tuple[T, int]:
            with read_transaction(connection):
                return read(connection), last_lsn(connection)

        result, lsn = await self._store.readers.run(read_with_lsn)
        await self.wait_committed(lsn)
        return result

    async def confirm_leadership(self, timeout_s: float = 5.0) -> None:
        """A majority follows this ballot *now*: a deposed leader must not answer from a stale
        table (PROTOCOL A2). Raises `NotReadyError` when no majority answers in time."""
        following, is_majority = await self.feeding.majority.confirm(timeout_s)
        if self._stopped is not None:
            raise self._stopped
        if not is_majority:
            members = self.quorum.members
            raise NotReadyError(
                f"{following} of {len(members)} members answered within {timeout_s:g} s, and "
                f"{len(members) // 2 + 1} are needed",
                "see `hadron status` for the nodes that are away",
            )

    # --- life -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Lead until `stop`; raises the reason."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._commit_loop)
            nursery.start_soon(self._patience_loop)
            nursery.start_soon(self.feeding.run_notices)
            nursery.start_soon(self.feeding.measure_log)
            nursery.start_soon(self.feeding.stalls.run)
            nursery.start_soon(self._room.run, self.feeding.feeds)
            await self._stop.wait()
            nursery.cancel_scope.cancel()
        assert self._stopped is not None
        raise self._stopped

    def stop(self, reason: HadronError | None = None) -> None:
        """End leading: nothing is answered any more, everything that waits fails."""
        if self._stopped is not None:
            return
        self._stopped = reason or ShuttingDownError("the node is stopping")
        self.feeding.stop()
        for submission in self._queued.clear():
            self._gate.remove(submission.size)
            submission.done(None, self._stopped)
        self._unanswered.fail(self._stopped)
        self._moved.set()
        self._stop.set()


def _too_large(submission: Submission) -> RecordTooLargeError:
    return RecordTooLargeError(
        f"{type(submission.command).__name__} has {len(submission.encoded)} bytes and a body of "
        f"{len(submission.body)}, the limits are {MAX_COMMAND_BYTES} and {MAX_BATCH_BYTES}",
        "do it in several smaller steps",
    )
