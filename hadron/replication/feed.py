"""What a leader sends to one peer: what it is writing while the peer keeps up, else the log.

What one transaction has written is packed once and shared by all feeds. The latest are kept in a
ring, so that a peer that is a moment behind costs no reads; one that is further behind is fed from
the log in chunks, as fast as its window allows, without touching the path of live traffic. One
whose disk is exhausted is sent no entries, only notices, until it answers that it has room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import trio

from hadron.model.errors import DiskFullError, HadronError, PeerError, TrimmedError
from hadron.model.ids import Ballot, LogPosition
from hadron.replication.entries import pack
from hadron.storage.log import NEEDS_SNAPSHOT, Entry
from hadron.wire.connection import Connection
from hadron.wire.messages import ballot_from, ballot_to, method, position_to, replication_pb2

_APPEND: Final = method("Append")
_CHUNK_BYTES: Final = 1 << 20
_PERSISTED: Final = replication_pb2.AppendResponse.PERSISTED
_FENCED: Final = replication_pb2.AppendResponse.FENCED


@dataclass(frozen=True, slots=True)
class Packed:
    """Entries that were written in one transaction, ready to be sent."""

    first_lsn: int
    last: LogPosition
    message: replication_pb2.AppendRequest
    bodies: Sequence[bytes | memoryview]
    size: int


def pack_entries(ballot: Ballot, previous: LogPosition, entries: Sequence[Entry]) -> Packed:
    """Each feed that sends it adds what it tells besides: the watermark, the trim, the grant."""
    headers, bodies = pack(entries)
    message = replication_pb2.AppendRequest(
        ballot=ballot_to(ballot), previous=position_to(previous), entries=headers
    )
    size = sum(map(len, bodies)) + 64 * len(entries)
    return Packed(entries[0].lsn, entries[-1].position, message, bodies, size)


class Ring:
    """The latest of them, by their first lsn; bounded in bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._latest: deque[Packed] = deque()
        self._by_first: dict[int, Packed] = {}

    def push(self, packed: Packed) -> None:
        self._latest.append(packed)
        self._by_first[packed.first_lsn] = packed
        self._bytes += packed.size
        while self._bytes > self._max_bytes and len(self._latest) > 1:
            oldest = self._latest.popleft()
            del self._by_first[oldest.first_lsn]
            self._bytes -= oldest.size

    def starting_at(self, lsn: int) -> Packed | None:
        return self._by_first.get(lsn)


class FeedHost(Protocol):
    """What a feed needs from whoever leads."""

    ballot: Ballot
    ring: Ring

    @property
    def written_lsn(self) -> int:
        """The last lsn that was handed to the feeds."""
        ...

    @property
    def committed_lsn(self) -> int: ...

    @property
    def trim_lsn(self) -> int:
        """Members may drop their log's rows up to here."""
        ...

    async def read_log(self, from_lsn: int, max_bytes: int) -> tuple[LogPosition, list[Entry]]:
        """The position before `from_lsn` and entries from there on, empty when none is on disk."""
        ...

    def peer_persisted(self, name: str, match_lsn: int, applied_lsn: int) -> None: ...

    def notice(self) -> None:
        """A peer may be due a notice (`Feed.notice_due`)."""
        ...

    def peer_space(self, name: str, *, is_low: bool) -> None:
        """Whether the peer's disk has no room for ordinary writes."""
        ...

    def peer_granted(self, name: str) -> None:
        """The peer has recorded that it counts from now on."""
        ...

    def peer_fenced(self, name: str, promised: Ballot) -> None: ...


class Feed:
    """One peer's stream of entries under one ballot, over one connection.

    Args:
        match: the last position that peer and leader are known to share.
        has_room: whether the peer may be sent entries before it has said that it stores some.
    """

    def __init__(
        self,
        host: FeedHost,
        name: str,
        connection: Connection,
        match: LogPosition,
        *,
        window_bytes: int,
        has_room: bool = True,
    ) -> None:
        self._host = host
        self.name = name
        self._connection = connection
        self._window_bytes = window_bytes
        self._in_flight_bytes = 0
        self._peer_has_room = has_room
        self._next = match.lsn + 1
        self._previous = match
        self._committed_sent = 0
        self._is_behind = False
        """The peer had something left to apply when it answered last."""
        self.sent = 0
        """Messages sent so far."""
        self._wanted = trio.Event()
        self._failure: HadronError | None = None
        self._grant: bytes = b""

    @property
    def is_live(self) -> bool:
        """Whether the peer has been sent everything there is."""
        return self._next > self._host.written_lsn

    @property
    def may_send(self) -> bool:
        """Whether there is room for entries: on the way, and on the peer's disk."""
        return self._peer_has_room and self._in_flight_bytes < self._window_bytes

    def offer(self, packed: Packed) -> None:
        """New entries were written; send it now if the peer is up to it."""
        if packed.first_lsn == self._next and self.may_send:
            self._send_packed(packed)
        else:
            self._wanted.set()

    def grant_membership(self, uuid: bytes) -> None:
        """Tell the peer that it counts from now on."""
        if not self._grant:
            self._grant = uuid
            self.send_notice()

    def send_notice(self, on_answer: Callable[[], None] | None = None) -> None:
        """Send the watermark alone: to let an idle peer apply, or to hear that it still follows."""
        if self._failure is None:
            self._send(
                replication_pb2.AppendRequest(
                    ballot=ballot_to(self._host.ballot), previous=position_to(self._previous)
                ),
                (),
                0,
                on_answer,
            )

    @property
    def notice_due(self) -> bool:
        """Whether the peer has everything, but was last told of a lower watermark, or has not
        applied all of what it was told: of a long tail it applies a slice each time."""
        return self.is_live and (self._is_behind or self._committed_sent < self._host.committed_lsn)

    async def run(self) -> None:
        """Keep the peer fed until the connection ends or the peer refuses; raises why."""
        # At once, also when there is nothing to send: the peer learns that it is followed up, and
        # what is committed; the leader learns what the peer has.
        self.send_notice()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_connection)
            await self._feed()
            nursery.cancel_scope.cancel()
        assert self._failure is not None
        raise self._failure

    async def _watch_connection(self) -> None:
        """An idle feed has no call under way that would tell it."""
        self._fail(await self._connection.wait_closed())

    async def _feed(self) -> None:
        while self._failure is None:
            self._pump_ring()
            if self.is_live or not self.may_send:
                await self._wanted.wait()
                self._wanted = trio.Event()
                continue
            try:
                previous, entries = await self._host.read_log(self._next, _CHUNK_BYTES)
            except HadronError as error:
                self._fail(error)
                return
            if not entries:
                # Written but not yet on disk: the writer's report wakes us.
                await self._wanted.wait()
                self._wanted = trio.Event()
            elif previous == self._previous:
                self._send_packed(pack_entries(self._host.ballot, previous, entries))

    def wake(self) -> None:
        self._wanted.set()

    def _pump_ring(self) -> None:
        while self.may_send:
            packed = self._host.ring.starting_at(self._next)
            if packed is None:
                return
            self._send_packed(packed)

    def _send_packed(self, packed: Packed) -> None:
        assert packed.first_lsn == self._next, (packed.first_lsn, self._next)
        self._next = packed.last.lsn + 1
        self._previous = packed.last
        self._send(packed.message, packed.bodies, packed.size, None)

    def _send(
        self,
        message: replication_pb2.AppendRequest,
        bodies: Sequence[bytes | memoryview],
        size: int,
        on_answer: Callable[[], None] | None,
    ) -> None:
        committed = self._host.committed_lsn
        assert committed >= self._committed_sent, (committed, self._committed_sent)
        message.committed_lsn = committed
        message.trim_lsn = self._host.trim_lsn
        self._committed_sent = committed
        self._is_behind = False
        self.sent += 1
        message.grant_membership = bool(self._grant)
        message.replica_set_uuid = self._grant
        self._in_flight_bytes += size

        granted = bool(self._grant)

        def answered(answer: Any, _attachment: memoryview) -> None:
            self._in_flight_bytes -= size
            self._on_answer(answer)
            # Tables that have diverged have applied nothing, and will not.
            if 0 < answer.applied_lsn < min(committed, answer.match_lsn):
                self._is_behind = True
                self._host.notice()
            if granted and answer.outcome == _PERSISTED:
                self._host.peer_granted(self.name)
            if on_answer is not None and self._failure is None:
                on_answer()

        try:
            self._connection.call(
                _APPEND, message, bodies, on_message=answered, on_end=self._on_end
            )
        except HadronError as error:
            self._fail(error)

    def _on_answer(self, answer: replication_pb2.AppendResponse) -> None:
        self._host.peer_space(self.name, is_low=answer.low_on_space)
        self._peer_has_room = not answer.stores_nothing
        if answer.outcome == _PERSISTED:
            self._host.peer_persisted(self.name, answer.match_lsn, answer.applied_lsn)
            if not self.is_live:
                self._wanted.set()
        elif answer.outcome == _FENCED:
            promised = ballot_from(answer.promised)
            self._fail(HadronError(f"{self.name} has promised ballot {promised}"))
            self._host.peer_fenced(self.name, promised)
        else:
            self._fail(HadronError(f"{self.name}'s log is not where it was; looking again"))

    def _on_end(self, error: HadronError | None) -> None:
        if isinstance(error, DiskFullError):
            self._host.peer_space(self.name, is_low=True)
        if error is not None:
            self._fail(error)

    def _fail(self, error: HadronError) -> None:
        if self._failure is None:
            self._failure = error
        self._wanted.set()


Probe = Callable[[int], Awaitable[LogPosition | None]]


async def find_common(
    own: Probe, theirs: Probe, low: int, high: int, *, likely: LogPosition | None = None
) -> LogPosition:
    """The last position that two logs share, by binary search: equal chains, equal prefixes.

    Args:
        own, theirs: the position at an lsn, None where a log has none.
        low: the higher of the two logs' anchors, below which one of them knows nothing.
        high: an lsn at or above the last shared one.
        likely: the end of their log, which most of the time is part of ours.

    Where one of them begins is looked at last, and only if they share nothing later. *(That entry
    is damaged in one log and trimmed in the other, so that nobody can give it back: both have all
    that follows, no ballot is won, and no third member gets a copy.)*

    Rows of either may be trimmed meanwhile. An entry that is not there any more says nothing of
    where the logs part: taken for one that differs, it would have what follows replaced, down to
    what is committed.

    Raises `TrimmedError` when they share nothing from `low` on, `PeerError` when what was to be
    compared was trimmed: the bounds are others by now.
    """
    if likely is not None and likely == await own(likely.lsn):
        return likely
    if low > high:
        raise TrimmedError(
            f"a log that ends at {high} is before {low}, where the other begins", NEEDS_SNAPSHOT
        )
    best: LogPosition | None = None
    while low < high:
        middle = (low + high + 1) // 2
        ours, other = await _still_there(own, middle), await _still_there(theirs, middle)
        if ours == other:
            low, best = middle, ours
        else:
            high = middle - 1
    if best is None:
        best = await _still_there(own, low)
        if low > 0 and best != await _still_there(theirs, low):
            raise TrimmedError(
                f"the logs parted before {low}, where one of them begins", NEEDS_SNAPSHOT
            )
    return best


async def _still_there(log: Probe, lsn: int) -> LogPosition:
    position = await log(lsn)
    if position is None:
        raise PeerError(f"entry {lsn} was trimmed while two logs were compared")
    return position
