"""What a leader sends to one peer, and where two logs part."""
# ruff: noqa: ARG001, ARG002 - a clock is taken from a test's arguments; ports have their own

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from hadron.fakes.network import SimNetwork
from hadron.model.errors import CorruptionError, HadronError, TrimmedError
from hadron.model.ids import EMPTY_LOG, Ballot, LogPosition
from hadron.replication.entries import unpack
from hadron.replication.feed import Feed, Ring, find_common, pack_entries
from hadron.replication.tests.support import FIRST, UUID, make_entries
from hadron.storage.log import Entry
from hadron.wire.calls import AnyCall
from hadron.wire.connection import Connection
from hadron.wire.messages import ballot_to, method, position_from, replication_pb2

APPEND = method("Append")
_Outcome = replication_pb2.AppendResponse.Outcome


class Host:
    """`FeedHost`: a leader's log in memory, group by group."""

    def __init__(self, ring_bytes: int = 1 << 20) -> None:
        self.ballot = FIRST
        self.ring = Ring(ring_bytes)
        self.entries: list[Entry] = []
        self.on_disk = 0
        self.committed_lsn = 0
        self.trim_lsn = 0
        self.persisted: dict[str, int] = {}
        self.granted: list[str] = []
        self.notices = 0
        self.low: dict[str, bool] = {}
        self.fenced_by: list[Ballot] = []
        self.reads = 0

    @property
    def written_lsn(self) -> int:
        return len(self.entries)

    @property
    def head(self) -> LogPosition:
        return self.entries[-1].position if self.entries else EMPTY_LOG

    def write(self, feed: Feed | None, count: int = 1, *, size: int = 10) -> None:
        previous = self.head
        made = make_entries(previous, FIRST, [b"c"] * count, body=bytes(size))
        self.entries += made
        group = pack_entries(FIRST, previous, made)
        self.ring.push(group)
        if feed is not None:
            feed.offer(group)
        self.on_disk = self.written_lsn

    async def read_log(self, from_lsn: int, max_bytes: int) -> tuple[LogPosition, list[Entry]]:
        await trio.lowlevel.checkpoint()
        self.reads += 1
        previous = self.entries[from_lsn - 2].position if from_lsn > 1 else EMPTY_LOG
        found: list[Entry] = []
        for entry in self.entries[from_lsn - 1 : self.on_disk]:
            found.append(entry)
            if sum(known.size for known in found) >= max_bytes:
                break
        return previous, found

    def peer_persisted(self, name: str, match_lsn: int, applied_lsn: int) -> None:
        self.persisted[name] = match_lsn

    def notice(self) -> None:
        self.notices += 1

    def peer_space(self, name: str, *, is_low: bool) -> None:
        self.low[name] = is_low

    def peer_granted(self, name: str) -> None:
        self.granted.append(name)

    def peer_fenced(self, name: str, promised: Ballot) -> None:
        self.fenced_by.append(promised)


class DamagedHost(Host):
    async def read_log(self, from_lsn: int, max_bytes: int) -> tuple[LogPosition, list[Entry]]:
        raise HadronError(f"the body of entry {from_lsn} does not match its hash")


class Peer:
    """Answers appends as a replica would; `hold` keeps the answers back."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.committed = 0
        self.appends = 0
        self.outcome = _Outcome.PERSISTED
        self.promised = FIRST
        self.hold = False
        self.stores_nothing = False
        self.applied = 0
        self.applies_at_once = 1 << 20
        self._held: list[tuple[AnyCall, replication_pb2.AppendResponse]] = []

    def append(self, call: AnyCall, request: Any, attachment: memoryview) -> None:
        self.appends += 1
        answer = replication_pb2.AppendResponse(
            outcome=self.outcome,
            promised=ballot_to(self.promised),
            stores_nothing=self.stores_nothing,
        )
        if self.outcome == _Outcome.PERSISTED:
            head = self.entries[-1].position if self.entries else EMPTY_LOG
            assert position_from(request.previous) == head
            self.entries += unpack(request.entries, attachment)
            self.committed = request.committed_lsn
            answer.match_lsn = len(self.entries)
            committed = min(self.committed, answer.match_lsn)
            self.applied = answer.applied_lsn = min(self.applied + self.applies_at_once, committed)
        if self.hold:
            self._held.append((call, answer))
        else:
            call.send(answer, end=True)

    def release(self) -> None:
        self.hold = False
        for call, answer in self._held:
            call.send(answer, end=True)
        self._held.clear()


class World:
    def __init__(self, host: Host, peer: Peer, feed: Feed, network: SimNetwork) -> None:
        self.host, self.peer, self.feed, self.network = host, peer, feed, network
        self.ended: list[HadronError] = []


@asynccontextmanager
async def feeding(host: Host, *, window_bytes: int = 1 << 20) -> AsyncIterator[World]:
    network = SimNetwork()
    listener = await network.host("peer").listen("peer:0")
    dialed = Connection(await network.host("leader").dial(listener.address), dialed=True)
    peer = Peer()
    accepted = Connection(
        await listener.accept(), dialed=False, handlers={APPEND.number: peer.append}
    )
    feed = Feed(host, "n2", dialed, EMPTY_LOG, window_bytes=window_bytes)
    world = World(host, peer, feed, network)

    async def run() -> None:
        try:
            await feed.run()
        except HadronError as error:
            world.ended.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(dialed.run)
        nursery.start_soon(accepted.run)
        nursery.start_soon(run)
        await wait_all_tasks_blocked()
        yield world
        nursery.cancel_scope.cancel()
    listener.close()


async def test_a_peer_that_stores_nothing_gets_notices_only(clock: MockClock) -> None:
    host = Host()
    async with feeding(host) as world:
        world.peer.stores_nothing = True
        host.write(world.feed)
        await wait_all_tasks_blocked()
        assert len(world.peer.entries) == 1, "it was not known yet"
        for _ in range(3):
            host.write(world.feed)
            await wait_all_tasks_blocked()
        host.committed_lsn = 2
        world.feed.send_notice()
        await wait_all_tasks_blocked()
        assert (len(world.peer.entries), world.peer.committed) == (1, 2)
        world.peer.stores_nothing = False
        world.feed.send_notice()
        await wait_all_tasks_blocked()
        assert len(world.peer.entries) == 4
        assert not world.ended


async def test_a_peer_that_applies_in_slices_is_told_until_it_is_done(clock: MockClock) -> None:
    host = Host()
    async with feeding(host) as world:
        world.peer.applies_at_once = 2
        host.write(world.feed, 5)
        await wait_all_tasks_blocked()
        assert not world.feed.notice_due
        host.committed_lsn = 5
        for applied in (2, 4, 5):
            assert world.feed.notice_due
            world.feed.send_notice()
            assert not world.feed.notice_due, "it may be done with this one"
            await wait_all_tasks_blocked()
            assert world.peer.applied == applied
        assert not world.feed.notice_due
        assert host.notices == 2


async def test_tables_that_have_diverged_are_waited_for_by_nobody(clock: MockClock) -> None:
    host = Host()
    async with feeding(host) as world:
        world.peer.applies_at_once = 0
        host.write(world.feed, 5)
        host.committed_lsn = 5
        world.feed.send_notice()
        await wait_all_tasks_blocked()
        assert not world.feed.notice_due
        assert not host.notices


async def test_live_groups_leave_at_once_and_cost_no_reads(autojump_clock: MockClock) -> None:
    host = Host()
    async with feeding(host) as world:
        for _ in range(20):
            host.write(world.feed, 3)
        await wait_all_tasks_blocked()
        assert world.peer.entries == host.entries
        assert host.persisted == {"n2": 60}
        assert host.reads == 0
        assert world.feed.is_live


async def test_who_is_behind_is_fed_from_the_ring_or_the_log(autojump_clock: MockClock) -> None:
    for ring_bytes, reads in ((1 << 20, False), (2_000, True)):
        host = Host(ring_bytes)
        for _ in range(50):
            host.write(None, 2, size=1_000)
        async with feeding(host) as world:
            await wait_all_tasks_blocked()
            assert world.peer.entries == host.entries
            assert (host.reads > 0) == reads
            host.write(world.feed)
            await wait_all_tasks_blocked()
            assert host.persisted == {"n2": 101}


async def test_no_more_is_under_way_than_the_window_allows(autojump_clock: MockClock) -> None:
    host = Host()
    async with feeding(host, window_bytes=10_000) as world:
        world.peer.hold = True
        for _ in range(50):
            host.write(world.feed, size=1_000)
        await wait_all_tasks_blocked()
        assert 9 <= len(world.peer.entries) <= 11
        world.peer.release()
        await wait_all_tasks_blocked()
        assert world.peer.entries == host.entries


async def test_an_idle_feed_ends_with_its_connection(autojump_clock: MockClock) -> None:
    host = Host()
    async with feeding(host) as world:
        host.write(world.feed)
        await wait_all_tasks_blocked()
        world.network.break_connections("peer")
        await wait_all_tasks_blocked()
        assert len(world.ended) == 1


async def test_a_new_feed_says_at_once_what_is_committed(autojump_clock: MockClock) -> None:
    host = Host()
    host.committed_lsn = 7
    async with feeding(host) as world:
        assert world.peer.appends == 1
        assert world.peer.committed == 7
        assert host.persisted == {"n2": 0}


async def test_a_fenced_feed_tells_its_host(autojump_clock: MockClock) -> None:
    host = Host()
    async with feeding(host) as world:
        world.peer.outcome, world.peer.promised = _Outcome.FENCED, Ballot(1, 5)
        host.write(world.feed)
        await wait_all_tasks_blocked()
        assert host.fenced_by == [Ballot(1, 5)]
        assert "1.5" in str(world.ended[0])


async def test_a_mismatch_ends_the_feed(autojump_clock: MockClock) -> None:
    host = Host()
    async with feeding(host) as world:
        world.peer.outcome = _Outcome.MISMATCH
        host.write(world.feed)
        await wait_all_tasks_blocked()
        assert world.ended
        assert host.persisted == {"n2": 0}


async def test_membership_is_granted_once_the_peer_has_said_so(autojump_clock: MockClock) -> None:
    host = Host()
    async with feeding(host) as world:
        world.peer.hold = True
        world.feed.grant_membership(UUID)
        await wait_all_tasks_blocked()
        assert host.granted == []
        world.peer.release()
        await wait_all_tasks_blocked()
        assert set(host.granted) == {"n2"}


async def test_a_failing_read_ends_the_feed_and_nothing_else(autojump_clock: MockClock) -> None:
    host = DamagedHost(ring_bytes=1)
    for _ in range(3):
        host.write(None)
    async with feeding(host) as world:
        assert "does not match its hash" in str(world.ended[0])


# --- find_common --------------------------------------------------------------------------------


@given(
    shared=st.integers(0, 20),
    ours=st.integers(0, 20),
    theirs=st.integers(0, 20),
    guess=st.booleans(),
)
def test_the_last_shared_position_is_found(
    shared: int, ours: int, theirs: int, guess: bool
) -> None:
    common = make_entries(EMPTY_LOG, FIRST, [b"c"] * shared)
    start = common[-1].position if common else EMPTY_LOG
    own = common + make_entries(start, Ballot(1, 2), [b"own"] * ours)
    other = common + make_entries(start, Ballot(1, 3), [b"other"] * theirs)
    asked = 0

    def position(entries: list[Entry], lsn: int) -> LogPosition | None:
        if lsn == 0:
            return EMPTY_LOG
        return entries[lsn - 1].position if lsn <= len(entries) else None

    async def search() -> LogPosition:
        async def ask_own(lsn: int) -> LogPosition | None:
            return position(own, lsn)

        async def ask_theirs(lsn: int) -> LogPosition | None:
            nonlocal asked
            asked += 1
            return position(other, lsn)

        return await find_common(
            ask_own,
            ask_theirs,
            0,
            min(len(own), len(other)),
            likely=position(other, len(other)) if guess else None,
        )

    assert trio.run(search) == start
    assert asked <= 6
    if guess and not theirs:
        assert asked == 0


@given(
    shared=st.integers(0, 20),
    ours=st.integers(1, 20),
    theirs=st.integers(1, 20),
    low=st.integers(1, 40),
)
def test_logs_that_parted_before_one_of_them_begins_have_no_shared_position(
    shared: int, ours: int, theirs: int, low: int
) -> None:
    """Where one was trimmed further than to where they parted, only a snapshot helps: whoever
    began at the other's first entry would be refused there for ever."""
    high = shared + min(ours, theirs)
    low = min(low, high)
    common = make_entries(EMPTY_LOG, FIRST, [b"c"] * shared)
    start = common[-1].position if common else EMPTY_LOG
    own = common + make_entries(start, Ballot(1, 2), [b"own"] * ours)
    other = common + make_entries(start, Ballot(1, 3), [b"other"] * theirs)

    async def ask_own(lsn: int) -> LogPosition | None:
        return own[lsn - 1].position if low <= lsn <= len(own) else None

    async def ask_theirs(lsn: int) -> LogPosition | None:
        return other[lsn - 1].position if low <= lsn <= len(other) else None

    async def search() -> LogPosition:
        return await find_common(ask_own, ask_theirs, low, high)

    if low <= shared:
        assert trio.run(search) == start
    else:
        with pytest.raises(TrimmedError):
            trio.run(search)


@given(low=st.integers(1, 20), shared=st.integers(1, 20), rest=st.integers(0, 20))
def test_damage_where_one_log_begins_hides_nothing_that_follows(
    low: int, shared: int, rest: int
) -> None:
    own = make_entries(EMPTY_LOG, FIRST, [b"c"] * (low + shared))
    other = own + make_entries(own[-1].position, FIRST, [b"d"] * rest)

    async def ask_own(lsn: int) -> LogPosition | None:
        return own[lsn - 1].position if low <= lsn <= len(own) else None

    async def ask_theirs(lsn: int) -> LogPosition | None:
        if lsn == low:
            raise CorruptionError(f"entry {lsn} does not continue the hash chain")
        return other[lsn - 1].position

    assert trio.run(find_common, ask_own, ask_theirs, low, len(own)) == own[-1].position


def test_a_ring_forgets_the_oldest() -> None:
    ring = Ring(1_000)
    host = Host()
    for _ in range(10):
        host.write(None, size=300)
    for index in range(10):
        previous = host.entries[index - 1].position if index else EMPTY_LOG
        ring.push(pack_entries(FIRST, previous, host.entries[index : index + 1]))
    assert ring.starting_at(1) is None
    group = ring.starting_at(10)
    assert group is not None
    assert group.last == host.head
