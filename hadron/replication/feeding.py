"""Feeding the members under one ballot: what is sent, what they have, and what that lets go.

Whoever leads hands over each group of entries as it is written, and says when it is on its own
disk; here are the feeds, who counts, the watermark that follows from both, and up to where nobody
needs the log any more. What entries mean, and who waits for them, nobody knows here.

Safety rule: the watermark is `Quorum`'s alone, and moves only by what disks have said (PROTOCOL A3,
B2); after `stop` nothing that a peer says counts: it belongs to the next ballot then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import trio

from hadron.model.errors import FencedError
from hadron.model.ids import Ballot, LogPosition
from hadron.replication.feed import Feed, Ring, pack_entries
from hadron.replication.learners import Learners
from hadron.replication.majority import MajorityRounds
from hadron.replication.quorum import Quorum
from hadron.replication.stalls import MajorityStalls
from hadron.replication.trimming import LogHorizon
from hadron.replication.watermark import Watermark
from hadron.state.leadership import Configuration
from hadron.storage.log import ENTRY_OVERHEAD_BYTES, Entry, read_after, sizes
from hadron.storage.store import Store
from hadron.wire.connection import Cork

_log = logging.getLogger(__name__)

_MEASURED_ROWS: Final = 10_000
"""Rows of the log measured in one read."""

_RETURN_S: Final = 30.0
"""Bodies are kept so long for a peer that was told to fetch a snapshot: it is told every second
while it is connected, and away for a moment when it is reopened on its copy."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """Bounds and intervals, from the settings."""

    idle_notice_s: float
    ring_bytes: int = 8 << 20
    log_keep_bytes: int = 64 << 20
    log_max_lag_bytes: int = 1 << 30


class Straggler(NamedTuple):
    """A peer that the log cannot bring up to date any more.

    Attributes:
        reason: for people.
        lsn: how far the log went when it was told so first: its copy ends there, or later.
        told_s: when it was told so last, by trio's clock.
    """

    reason: str
    lsn: int
    told_s: float


class Feeding:
    """The feeds of one ballot: a `FeedHost`.

    Attributes:
        head: where the log ends that was handed to the feeds; may be above the watermark.
        feeds: of the peers that are connected.
        diverged: how often a peer's tables turned out not to be the log's work.
        needs_snapshot: peers that the log cannot bring up to date any more.
        on_moved: what disks hold has changed: the watermark, or what all of them have.
        on_fenced: a peer has promised a higher ballot.
        on_space: told (name, is_low) of a peer's disk.
    """

    def __init__(
        self,
        store: Store,
        watermark: Watermark,
        *,
        ballot: Ballot,
        node: str,
        members: Sequence[str],
        started_lsn: int,
        older: Sequence[Configuration] = (),
        begins_epoch: bool = False,
        cork: Cork,
        tuning: Tuning,
        on_trim: Callable[[int], None] = lambda _lsn: None,
    ) -> None:
        """
        Args:
            watermark: this node's, raised by this ballot's.
            started_lsn: where this ballot's BeginBallot will stand.
            older: configurations of which a majority must store that as well (PROTOCOL B5).
            begins_epoch: nobody has led with this configuration before.
            on_trim: told up to where members may trim their logs, this node included.
        """
        self.ballot = ballot
        self.node = node
        self.started_lsn = started_lsn
        assert started_lsn > store.log.head.lsn, (started_lsn, store.log.head)
        assert ballot >= store.log.head.ballot, (ballot, store.log.head)
        self.tuning = tuning
        self.head = store.log.head
        self.ring = Ring(tuning.ring_bytes)
        self.quorum = Quorum(node, members, started_lsn=started_lsn, older=older)
        self.applied_by: dict[str, int] = {}
        self.diverged: dict[str, int] = {}
        self.needs_snapshot: dict[str, Straggler] = {}
        self.feeds: dict[str, Feed] = {}
        self.on_moved: Callable[[], None] = lambda: None
        self.on_fenced: Callable[[FencedError], None] = lambda _error: None
        self.on_space: Callable[[str, bool], None] = lambda _name, _is_low: None
        self._store = store
        self._watermark = watermark
        self._cork = cork
        self._on_trim = on_trim
        self._learners = Learners(
            self.quorum,
            self.feeds,
            node=node,
            started_lsn=started_lsn,
            older=older,
            begins_epoch=begins_epoch,
        )
        self.majority = MajorityRounds(self.quorum, self.feeds, node=node)
        self.stalls = MajorityStalls(self.quorum, self.feeds, node=node)
        self._horizon = self._new_horizon()
        self._notice_wanted = trio.Event()
        self._has_ended = False
        self.quorum.record(node, self.head.lsn)

    @property
    def written_lsn(self) -> int:
        return self.head.lsn

    @property
    def committed_lsn(self) -> int:
        """The watermark of this ballot; 0 before its first entry is committed."""
        return self.quorum.committed

    def settle(self) -> int:
        """The watermark of this ballot; this node goes by it from now on (PROTOCOL A3)."""
        committed = self.committed_lsn
        assert not self._has_ended
        assert committed <= self.quorum.persisted(self.node), (committed, self.head)
        if committed:
            self._watermark.rise(committed)
        return committed

    def stop(self) -> None:
        """This ballot is over: late answers change nothing."""
        self._has_ended = True
        self.majority.stop()

    # --- what is written ------------------------------------------------------------------------

    def offer(self, previous: LogPosition, entries: Sequence[Entry]) -> None:
        """The entries exist, their COMMIT is next: send them to all who are up to it."""
        assert previous == self.head, (previous, self.head)
        assert entries[0].lsn == self.head.lsn + 1 > self.committed_lsn, (self.head, entries[0].lsn)
        self.head = entries[-1].position
        packed = pack_entries(self.ballot, previous, entries)
        self.ring.push(packed)
        with self._cork:
            for feed in self.feeds.values():
                feed.offer(packed)
        for entry in entries:
            self._horizon.add(entry.lsn, entry.size + ENTRY_OVERHEAD_BYTES)

    def note_own(self, lsn: int) -> None:
        """This node's disk has everything up to `lsn`."""
        assert lsn <= self.head.lsn
        self.quorum.record(self.node, lsn)
        for feed in self.feeds.values():
            if not feed.is_live:
                feed.wake()

    def notice(self) -> None:
        """The watermark has moved: those that no entry tells of it are told."""
        self._notice_wanted.set()

    async def run_notices(self) -> None:
        """Tell replicas of a moved watermark when no entry does it (PROTOCOL A1: ≤ 10 ms)."""
        while True:
            await self._notice_wanted.wait()
            self._notice_wanted = trio.Event()
            while due := [(feed, feed.sent) for feed in self.feeds.values() if feed.notice_due]:
                await trio.sleep(self.tuning.idle_notice_s)
                for feed, sent_before in due:
                    # Whatever was sent meanwhile has told it, or will when it is answered.
                    if feed.notice_due and feed.sent == sent_before:
                        feed.send_notice()

    # --- the log's length -----------------------------------------------------------------------

    @property
    def trim_lsn(self) -> int:
        """Members may drop their log's rows up to here (PROTOCOL A7)."""
        return self._horizon.lsn

    @property
    def droppable_lsn(self) -> int:
        """Retention may drop bodies of entries up to here. A connected peer that lacks them is
        waited for, within the lag limit, and one that fetches a snapshot, from whomever, for those
        behind its copy's end; one that is away is not: it needs a snapshot then."""
        fed = min(self._reached(), default=self.head.lsn)
        return min(self.committed_lsn, max(fed, self._horizon.lag_lsn))

    def _reached(self) -> Iterator[int]:
        """Of each peer that is waited for, up to where it needs nothing of the log."""
        yield from map(self.quorum.persisted, self.feeds)
        for straggler in self.needs_snapshot.values():
            if trio.current_time() < straggler.told_s + _RETURN_S:
                yield straggler.lsn

    def let_go(self) -> None:
        """Have logs trimmed as far as nobody needs them."""
        if self._horizon.move(committed=self.committed_lsn, on_all=self.quorum.on_all):
            assert self._horizon.lsn <= self.committed_lsn, (self._horizon.lsn, self.committed_lsn)
            self._on_trim(self._horizon.lsn)

    async def measure_log(self) -> None:
        """Count what was in the log before this ballot, a slice at a time: a gigabyte of small
        entries is millions of rows."""
        end, lsn, older = self.started_lsn, self._store.log.anchor.lsn + 1, self._new_horizon()
        while lsn < end:
            some = await self._store.readers.run(
                partial(sizes, from_lsn=lsn, max_rows=_MEASURED_ROWS)
            )
            if not some:
                break
            for lsn, size in some:
                if lsn < end:
                    older.add(lsn, size)
            lsn += 1
        self._horizon.prepend(older)
        self.on_moved()

    def _new_horizon(self) -> LogHorizon:
        tuning = self.tuning
        return LogHorizon(keep_bytes=tuning.log_keep_bytes, max_lag_bytes=tuning.log_max_lag_bytes)

    # --- peers ----------------------------------------------------------------------------------

    def attach(self, feed: Feed) -> None:
        """Feed a peer from now on."""
        self.feeds[feed.name] = feed
        feed.wake()
        self._ask(feed)

    def detach(self, feed: Feed) -> None:
        if self.feeds.get(feed.name) is feed:
            del self.feeds[feed.name]
        self._learners.forget(feed.name)

    def teach(self, feed: Feed, uuid: bytes) -> None:
        """Feed a peer without memory; it counts when it is granted that (PROTOCOL B3)."""
        self._learners.teach(feed, uuid)

    def _ask(self, feed: Feed) -> None:
        """It is fed, or counts, from now on: it can be heard."""
        self._learners.ask(feed)
        self.majority.ask(feed)

    # --- what peers say -------------------------------------------------------------------------

    def peer_persisted(self, name: str, match_lsn: int, applied_lsn: int) -> None:
        if self._has_ended:
            # A late answer: what it would let out belongs to the next ballot now.
            return
        if not applied_lsn and self.applied_by.get(name):
            self.diverged[name] = self.diverged.get(name, 0) + 1
        self.applied_by[name] = applied_lsn
        self._learners.note_persisted(name, match_lsn)
        straggler = self.needs_snapshot.get(name)
        if straggler is not None and match_lsn >= straggler.lsn:
            del self.needs_snapshot[name]
        # Whatever moved it was told of, or who waits for that would for somebody's next entry.
        assert self._watermark.lsn >= self.committed_lsn, (self._watermark.lsn, self.committed_lsn)
        before = self.quorum.on_all
        if self.quorum.record(name, match_lsn) or self.quorum.on_all != before:
            self.on_moved()

    def note_straggler(self, name: str, reason: str) -> bool:
        """The log cannot bring the peer up to date any more, and it is told so now; returns whether
        that is news."""
        known = self.needs_snapshot.get(name)
        lsn = known.lsn if known is not None else self.written_lsn
        self.needs_snapshot[name] = Straggler(reason, lsn, trio.current_time())
        return known is None

    def peer_space(self, name: str, *, is_low: bool) -> None:
        """What a peer says of its disk holds until it says otherwise, or its connection ends."""
        self.on_space(name, is_low)

    def peer_granted(self, name: str) -> None:
        if not self._has_ended and self._learners.forget(name):
            _log.info("%s has caught up and counts again", name)
            feed = self.feeds.get(name)
            if feed is not None:
                self._ask(feed)
            self.admit(name)

    def admit(self, name: str) -> None:
        """Count its disk from now on. What it holds may be what a majority lacked, and is no news
        when it says so again."""
        self.quorum.admit(name)
        self.on_moved()

    def peer_fenced(self, name: str, promised: Ballot) -> None:
        # The promise may be the next ballot's own: a late answer must not end that.
        if not self._has_ended and promised > self.ballot:
            self.on_fenced(
                FencedError(
                    f"{name} has promised ballot {promised}, this leader has {self.ballot}",
                    "another leader, or a newer configuration, took over",
                )
            )

    async def read_log(self, from_lsn: int, max_bytes: int) -> tuple[LogPosition, list[Entry]]:
        return await self._store.readers.run(
            lambda connection: read_after(connection, from_lsn, max_bytes=max_bytes)
        )
