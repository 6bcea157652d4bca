"""The controller: a replica set's log while this node leads it, under one ballot.

A command's way: `submit` → the next group's transaction → the feeds and the disk at the same time →
quorum → the watermark moves → its answer, then the observers who push what has become visible.
All of it happens in callbacks on the event loop; no task is woken on the way.

Safety rule: everything that leaves this node passes `Waiters` or `query`, which hold it back until
the watermark covers what it was derived from (PROTOCOL A2).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import apsw
import trio

from hadron.model.errors import (
    FencedError,
    HadronError,
    NotReadyError,
    OverloadedError,
    RecordTooLargeError,
    ShuttingDownError,
)
from hadron.model.ids import Ballot, LogPosition
from hadron.model.limits import MAX_BATCH_BYTES
from hadron.model.ports import Clock, Database
from hadron.partition.gate import ByteGate
from hadron.partition.group_commit import GroupWriter, WrittenGroup
from hadron.partition.lines import Lines
from hadron.partition.observers import Observers
from hadron.partition.room import Room
from hadron.partition.submission import Done, Submission
from hadron.partition.waiters import MAJORITY, Waiters
from hadron.replication.feed import Feed, Ring, make_group
from hadron.replication.follower import FollowerLog
from hadron.replication.quorum import Quorum
from hadron.replication.trimming import LogHorizon
from hadron.state.leadership import Configuration
from hadron.state.machine import Command, Event
from hadron.storage.database import read_transaction
from hadron.storage.log import ENTRY_OVERHEAD_BYTES, Entry, last_lsn, read_after, sizes
from hadron.storage.store import Store
from hadron.storage.writer import Prepared
from hadron.wire.connection import Cork

_log = logging.getLogger(__name__)
T = TypeVar("T")

MAX_COMMAND_BYTES: Final = 3 << 19
"""A group of commands and one more of this size fit into the message of a frame: a command that
fits into none would be logged here and never reach a replica."""

MAX_UNCOMMITTED_BYTES: Final = 32 << 20
"""What may be written here while no majority has it, in memory and at risk; beyond it records are
refused. Four times what a replica's window holds, so a majority that keeps up never meets it."""

_MEASURED_ROWS: Final = 10_000
"""Rows of the log measured in one read."""

@dataclass(frozen=True, slots=True)
class Tuning:
    """Bounds and intervals, from the settings."""

    idle_notice_s: float
    ring_bytes: int = 8 << 20
    log_keep_bytes: int = 64 << 20
    log_max_lag_bytes: int = 1 << 30


@dataclass(slots=True)
class _Learner:
    """A peer without memory. `heard` are the voters that have confirmed this ballot since it came
    back."""

    name: str
    uuid: bytes
    heard: set[str]


class Controller:
    """Leads one replica set under one ballot. `run` must be running."""

    def __init__(
        self,
        store: Store,
        follower: FollowerLog,
        *,
        ballot: Ballot,
        replica_set: str,
        node: str,
        members: Sequence[str],
        started_lsn: int,
        older: Sequence[Configuration] = (),
        begins_epoch: bool = False,
        clock: Clock,
        cork: Cork,
        gate: ByteGate,
        tuning: Tuning,
        on_fatal: Callable[[BaseException], None],
        on_trim: Callable[[int], None] = lambda _lsn: None,
    ) -> None:
        """
        Args:
            started_lsn: where this ballot's LeaderStarted will stand.
            older: configurations of which a majority must store that as well (PROTOCOL B5).
            begins_epoch: nobody has led with this configuration before.
            on_trim: told up to where members may trim their logs, this node included.
        """
        self.ballot = ballot
        self.machine = follower.machine
        self.node = node
        self.ring = Ring(tuning.ring_bytes)
        self.quorum = Quorum(node, members, started_lsn=started_lsn, older=older)
        self._older = tuple(older)
        self._begins_epoch = begins_epoch
        self._room = Room(store.space, members)
        self.applied_by: dict[str, int] = {}
        self.diverged: dict[str, int] = {}
        """How often a peer's tables turned out not to be the log's work, under this ballot."""
        self.needs_snapshot: dict[str, str] = {}
        """Peers that the log cannot bring up to date any more, and why."""
        self._store = store
        self._follower = follower
        self._writer = GroupWriter(store.log, follower.machine, ballot, replica_set)
        self._clock = clock
        self._cork = cork
        self._gate = gate
        self._tuning = tuning
        self.observers = Observers()
        """Told what has become visible, before anybody is answered."""
        self._on_fatal = on_fatal
        self._on_trim = on_trim
        self._horizon = LogHorizon(
            keep_bytes=tuning.log_keep_bytes, max_lag_bytes=tuning.log_max_lag_bytes
        )
        self._started_lsn = started_lsn
        self._waiting = Lines()
        self._writing = False
        self._commands = trio.Event()
        self._waiters = Waiters()
        self._written: deque[Submission] = deque()
        self._uncommitted_bytes = 0
        self._feeds: dict[str, Feed] = {}
        self._learners: dict[str, _Learner] = {}
        self._head = store.log.head
        self._persisted_lsn = self._head.lsn
        self._moved = trio.Event()
        self._notice_wanted = trio.Event()
        self._stopped: HadronError | None = None
        self._stop = trio.Event()
        self.quorum.record(node, self._persisted_lsn)

    @property
    def leads(self) -> bool:
        """Whether this leadership has not ended."""
        return self._stopped is None

    # --- commands -------------------------------------------------------------------------------

    def submit(
        self, command: Command, body: bytes | memoryview = b"", *, acks: int = MAJORITY, done: Done
    ) -> None:
        """Log `command`; `done(result, error)` is called once the answer may leave."""
        if self._stopped is not None:
            done(None, self._stopped)
            return
        submission = Submission(command, body, acks, done)
        if len(submission.encoded) > MAX_COMMAND_BYTES or len(body) > MAX_BATCH_BYTES:
            done(None, _too_large(submission))
            return
        if self._room.is_low and not command.uses_reserve:
            done(None, self._room.refusal())
            return
        if len(body) and self._uncommitted_bytes > MAX_UNCOMMITTED_BYTES:
            done(None, self._too_far_ahead())
            return
        self._gate.add(submission.size)
        self._waiting.append(submission)
        if not self._writing:
            self._writing = True
            self._commands.set()

    def _too_far_ahead(self) -> OverloadedError:
        return OverloadedError(
            f"{self._uncommitted_bytes} bytes wait for a majority of the nodes, "
            f"the limit is {MAX_UNCOMMITTED_BYTES}",
            "see `hadron status` for the nodes that are away or behind",
        )

    async def execute(self, command: Command, body: bytes | memoryview = b"") -> Any:
        """Log `command` and wait for its result; raises its refusal."""
        answered = trio.Event()
        outcome: list[tuple[Any, HadronError | None]] = []

        def done(result: Any, error: HadronError | None) -> None:
            outcome.append((result, error))
            answered.set()

        self.submit(command, body, done=done)
        await answered.wait()
        result, error = outcome[0]
        if error is not None:
            raise error
        return result

    async def _write_loop(self) -> None:
        """Start a group on the turn of the loop after the first command came: what arrives on
        other connections in the same turn goes into the same group."""
        while True:
            await self._commands.wait()
            self._commands = trio.Event()
            self._store.writer.commit(self._write, self._on_persisted)

    def _write(self, connection: apsw.Connection) -> Prepared:
        """Prepare a group and send it, before its own COMMIT."""
        group = self._writer.prepare(connection, self._waiting, self._clock.now_ms)
        self._on_written(group)
        return Prepared(group, group.size)

    def _on_written(self, group: WrittenGroup) -> None:
        """The group's bytes exist; its fsync is under way. Send it, and line up its answers."""
        if group.entries:
            self._head = group.entries[-1].position
            packed = make_group(self.ballot, group.previous, group.entries, self.committed_lsn)
            self.ring.push(packed)
            with self._cork:
                for feed in self._feeds.values():
                    feed.offer(packed)
            for entry in group.entries:
                self._horizon.add(entry.lsn, entry.size + ENTRY_OVERHEAD_BYTES)
            self._written.extend(group.logged)
            self._uncommitted_bytes += sum(submission.size for submission in group.logged)
        for submission in group.judged:
            self._waiters.add(submission)
        self._gate.remove(group.size)
        if self._stopped is not None:
            self._waiters.fail(self._stopped)

    def _on_persisted(self, group: WrittenGroup | None, error: BaseException | None) -> None:
        if group is None:
            assert error is not None
            self._on_fatal(error)
            return
        if group.entries:
            self._persisted_lsn = group.entries[-1].lsn
            self._follower.note_applied(self._persisted_lsn)
            self.quorum.record(self.node, self._persisted_lsn)
            for feed in self._feeds.values():
                if not feed.is_live:
                    feed.wake()
        self._writing = bool(self._waiting) and self._stopped is None
        if self._writing:
            # May be done before this returns, so what this group has reached is noted above.
            self._store.writer.commit(self._write, self._on_persisted)
        self._release()

    # --- the watermark --------------------------------------------------------------------------

    @property
    def written_lsn(self) -> int:
        return self._head.lsn

    @property
    def head(self) -> LogPosition:
        """Where the log ends; may be above the watermark."""
        return self._head

    @property
    def committed_lsn(self) -> int:
        return self.quorum.committed

    def peer_persisted(self, name: str, match_lsn: int, applied_lsn: int) -> None:
        if self._stopped is not None:
            # A late answer: what it would let out belongs to the next ballot now.
            return
        if not applied_lsn and self.applied_by.get(name):
            self.diverged[name] = self.diverged.get(name, 0) + 1
        self.applied_by[name] = applied_lsn
        if name in self._learners:
            self._grant_if_caught_up(name, match_lsn)
        if self.needs_snapshot and match_lsn > self.quorum.persisted(name):
            self.needs_snapshot.pop(name, None)
        before = self.quorum.on_all
        if self.quorum.record(name, match_lsn) or self.quorum.on_all != before:
            self._release()

    def _release(self) -> None:
        """Answer whom the watermark, or a slower disk, now allows; then show what is visible."""
        if self._stopped is not None:
            return
        committed = self.quorum.committed
        self._follower.committed_lsn = max(committed, self._follower.committed_lsn)
        has_moved = False
        visible: list[Event] = []
        while self._written and self._written[0].lsn <= committed:
            submission = self._written.popleft()
            self._uncommitted_bytes -= submission.size
            visible.extend(submission.events)
            has_moved = True
        with self._cork:
            if visible:
                self.observers.tell(visible)
            for submission in self._waiters.take(
                committed=committed, persisted=self._persisted_lsn, on_all=self.quorum.on_all
            ):
                submission.done(submission.result, submission.error)
        if has_moved:
            self._moved.set()
            self._moved = trio.Event()
            self._notice_wanted.set()
        if self._horizon.move(committed=committed, on_all=self.quorum.on_all):
            self._on_trim(self._horizon.lsn)

    # --- the log's length -----------------------------------------------------------------------

    @property
    def trim_lsn(self) -> int:
        """Members may drop their log's rows up to here (PROTOCOL A7)."""
        return self._horizon.lsn

    @property
    def droppable_lsn(self) -> int:
        """Retention may drop bodies of entries up to here. A connected peer that lacks them is
        waited for, within the lag limit; one that is away is not: it needs a snapshot then."""
        fed = min((self.quorum.persisted(name) for name in self._feeds), default=self._head.lsn)
        return min(self.committed_lsn, max(fed, self._horizon.lag_lsn))

    async def _measure_log(self) -> None:
        """Count what was in the log before this ballot, a slice at a time."""
        end, lsn, known = self._started_lsn, self._store.log.anchor.lsn + 1, list[tuple[int, int]]()
        while lsn < end:
            some = await self._store.readers.run(
                partial(sizes, from_lsn=lsn, max_rows=_MEASURED_ROWS)
            )
            known.extend(row for row in some if row[0] < end)
            if not some:
                break
            lsn = some[-1][0] + 1
        self._horizon.prepend(known)
        self._release()

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
        needed = len(self.quorum.members) // 2 + 1
        heard = {self.node}
        enough = trio.Event()
        if len(heard) >= needed:
            return

        def answered(name: str) -> None:
            if self.quorum.is_voter(name):
                heard.add(name)
            if len(heard) >= needed:
                enough.set()

        for name, feed in list(self._feeds.items()):
            feed.send_notice(partial(answered, name))
        with trio.move_on_after(timeout_s):
            await enough.wait()
        if self._stopped is not None:
            raise self._stopped
        if not enough.is_set():
            raise NotReadyError(
                f"{len(heard)} of {len(self.quorum.members)} members answered within "
                f"{timeout_s:g} s, and {needed} are needed",
                "see `hadron status` for the nodes that are away",
            )

    # --- peers ----------------------------------------------------------------------------------

    def attach(self, feed: Feed) -> None:
        """Feed a peer from now on."""
        self._feeds[feed.name] = feed
        feed.wake()
        for learner in self._learners.values():
            self._hear(learner, feed)

    def detach(self, feed: Feed) -> None:
        if self._feeds.get(feed.name) is feed:
            del self._feeds[feed.name]
            self._room.note(feed.name, is_low=False)
        self._learners.pop(feed.name, None)

    def teach(self, feed: Feed, uuid: bytes) -> None:
        """Feed a peer without memory; it counts once it has caught up with the watermark and with
        this ballot's first entry (all that may have been committed comes before), and so many
        others as meet every majority have said since then that they follow this ballot: it may
        have forgotten a higher one (PROTOCOL B3)."""
        self.quorum.demote(feed.name)
        learner = _Learner(feed.name, uuid, {self.node})
        self._learners[feed.name] = learner
        for other in list(self._feeds.values()):
            self._hear(learner, other)

    def _hear(self, learner: _Learner, feed: Feed) -> None:
        def follows() -> None:
            if self._learners.get(learner.name) is learner and self.quorum.is_voter(feed.name):
                learner.heard.add(feed.name)
                self._grant_if_caught_up(learner.name, self.quorum.persisted(learner.name))

        if feed.name != learner.name:
            feed.send_notice(follows)

    def _has_heard_enough(self, learner: _Learner) -> bool:
        """Until the first entry of an epoch is committed, its members cannot have stored anything
        without the older ones: those must be heard then."""
        committed = self.committed_lsn >= self._started_lsn
        if not committed and not all(
            len(learner.heard & known.names) >= known.amnesia_quorum for known in self._older
        ):
            return False
        members = self.quorum.members
        needed = len(members) - len(members) // 2
        return len(learner.heard) >= needed or (self._begins_epoch and not committed)

    def peer_space(self, name: str, *, is_low: bool) -> None:
        self._room.note(name, is_low=is_low)

    def peer_granted(self, name: str) -> None:
        if self._stopped is None and self._learners.pop(name, None) is not None:
            _log.info("%s has caught up and counts again", name)
            self.quorum.admit(name)
            feed = self._feeds.get(name)
            if feed is not None:
                # It can be heard for others now.
                for learner in self._learners.values():
                    self._hear(learner, feed)
            self._release()

    def _grant_if_caught_up(self, name: str, match_lsn: int) -> None:
        learner = self._learners[name]
        feed = self._feeds.get(name)
        if (
            feed is not None
            and self._has_heard_enough(learner)
            and max(self.committed_lsn, self._started_lsn) <= match_lsn
        ):
            feed.grant_membership(learner.uuid)

    def feed_of(self, name: str) -> Feed | None:
        return self._feeds.get(name)

    def peer_fenced(self, name: str, promised: Ballot) -> None:
        if promised > self.ballot:
            self.stop(
                FencedError(
                    f"{name} has promised ballot {promised}, this leader has {self.ballot}",
                    "another leader, or a newer configuration, took over",
                )
            )

    async def read_log(self, from_lsn: int, max_bytes: int) -> tuple[LogPosition, list[Entry]]:
        return await self._store.readers.run(
            lambda connection: read_after(connection, from_lsn, max_bytes=max_bytes)
        )

    # --- life -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Lead until `stop`; raises the reason."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write_loop)
            nursery.start_soon(self._notice_loop)
            nursery.start_soon(self._measure_log)
            nursery.start_soon(self._room.run, self._feeds)
            await self._stop.wait()
            nursery.cancel_scope.cancel()
        assert self._stopped is not None
        raise self._stopped

    def stop(self, reason: HadronError | None = None) -> None:
        """End leading: nothing is answered any more, everything that waits fails."""
        if self._stopped is not None:
            return
        self._stopped = reason or ShuttingDownError("the node is stopping")
        for submission in self._waiting.clear():
            self._gate.remove(submission.size)
            submission.done(None, self._stopped)
        self._waiters.fail(self._stopped)
        self._moved.set()
        self._stop.set()

    async def _notice_loop(self) -> None:
        """Tell replicas of a moved watermark when no entry does it (PROTOCOL A1: ≤ 10 ms)."""
        while True:
            await self._notice_wanted.wait()
            self._notice_wanted = trio.Event()
            while due := [(feed, feed.sent) for feed in self._feeds.values() if feed.notice_due]:
                await trio.sleep(self._tuning.idle_notice_s)
                for feed, sent_before in due:
                    # Whatever was sent meanwhile has told it, or will when it is answered.
                    if feed.notice_due and feed.sent == sent_before:
                        feed.send_notice()


def _too_large(submission: Submission) -> RecordTooLargeError:
    return RecordTooLargeError(
        f"{type(submission.command).__name__} has {len(submission.encoded)} bytes and a body of "
        f"{len(submission.body)}, the limits are {MAX_COMMAND_BYTES} and {MAX_BATCH_BYTES}",
        "do it in several smaller steps",
    )
