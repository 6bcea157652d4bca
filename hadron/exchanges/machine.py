"""One exchange: who is subscribed, who gets what is published, and who has missed what. Pure.

What a client does not read waits here, within bounds (docs/EXCHANGES.md, X4); what has no room is
dropped, counted, and told before anything that comes after it (X3). Rules X1 and X2 are here, too:
a message goes to each matching subscription once, to one member of each group, and to each in the
order of its publisher. It looks at no clock and at no bytes; who sends is the driver.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from hadron.exchanges.packing import Packing
from hadron.exchanges.parcels import Gaps, Parcel, Published
from hadron.exchanges.routes import Routes
from hadron.model.errors import OverloadedError, RequestError
from hadron.model.ids import check_name
from hadron.model.limits import MAX_OFFSET
from hadron.model.topics import MAX_PATTERNS, check_pattern

SESSION_BYTES: Final = 4 << 20
"""What may wait for one client, beside its call's window: two largest batches."""

EXCHANGE_BYTES: Final = 32 << 20
LEADER_BYTES: Final = 64 << 20
"""What may wait for all clients of one exchange, and of all of a leader's."""

SESSION_PATTERNS: Final = 10_000
"""Of one client at one exchange: to end them all, as its connection does, takes some 20 ms."""

LEADER_PATTERNS: Final = 200_000
LEADER_NODES: Final = 600_000
"""Of all subscriptions at a leader, and of the trees that they make: some 300 bytes each."""

CUT_S: Final = 10.0
"""A client that has read nothing for so long, while messages for it were dropped, is cut off."""


class Room:
    """Bytes, patterns and nodes that a leader has for exchanges, and each of them.

    A client may have as much waiting as is left (dynamic thresholds, as in `wire.budget`): one that
    begins to be slow finds room, whatever others hold.
    """

    __slots__ = ("_max_bytes", "_parent", "held_bytes", "nodes", "patterns")

    def __init__(self, max_bytes: int = LEADER_BYTES, parent: Room | None = None) -> None:
        self._max_bytes = max_bytes
        self._parent = parent
        self.held_bytes = 0
        self.patterns = 0
        self.nodes = 0

    @property
    def free_bytes(self) -> int:
        free = self._max_bytes - self.held_bytes
        return free if self._parent is None else min(free, self._parent.free_bytes)

    def hold(self, size: int) -> None:
        self.held_bytes += size
        if self._parent is not None:
            self._parent.hold(size)

    def count(self, patterns: int, nodes: int) -> None:
        self.patterns += patterns
        self.nodes += nodes
        if self._parent is not None:
            self._parent.count(patterns, nodes)

    def check(self, patterns: int) -> None:
        """Raises `OverloadedError` when so many more are too many."""
        if self._parent is not None:
            self._parent.check(patterns)
        elif self.patterns + patterns > LEADER_PATTERNS or self.nodes > LEADER_NODES:
            raise OverloadedError(
                f"this leader has {self.patterns} patterns of subscriptions to exchanges, "
                f"{self.nodes} segments long, the limits are {LEADER_PATTERNS} and {LEADER_NODES}",
                "subscribe with fewer and wider ones, or spread exchanges over replica sets",
            )


class Subscription:
    """Compared by identity."""

    __slots__ = ("dropped", "dropped_by_client", "group", "id", "patterns", "session")

    def __init__(self, session: Session, id: int, patterns: tuple[str, ...], group: str) -> None:
        self.session = session
        self.id = id
        self.patterns = patterns
        self.group = group
        self.dropped = 0
        self.dropped_by_client = 0


class Session:
    """A client at the exchange; compared by identity."""

    __slots__ = (
        "ended",
        "missed",
        "patterns",
        "subscriptions",
        "unread_since",
        "waiting",
        "waiting_bytes",
        "writable",
    )

    def __init__(self, writable: Callable[[], bool]) -> None:
        self.writable = writable
        """Whether it may be sent something now."""
        self.subscriptions: dict[int, Subscription] = {}
        self.patterns = 0
        self.waiting: deque[Parcel | Gaps] = deque()
        self.waiting_bytes = 0
        self.missed: dict[int, int] = {}
        """By id; told before anything that comes later."""
        self.unread_since: float | None = None
        """When it was dropped for first, without having read anything since."""
        self.ended: dict[int, object] = {}
        """Ids of subscriptions that ended while something waited."""


class Exchange:
    def __init__(self, room: Room) -> None:
        self.sessions: dict[Session, None] = {}
        self.published = 0
        self.deliveries = 0
        self.dropped = 0
        self.cut_off = 0
        self.without_topic = 0
        self._routes = Routes()
        self._room = Room(EXCHANGE_BYTES, room)
        self._turns: dict[str, int] = {}
        """Of each group with members: whose turn it is."""
        self._members: dict[str, int] = {}

    # --- who is here ----------------------------------------------------------------------------

    def attend(self, writable: Callable[[], bool]) -> Session:
        session = Session(writable)
        self.sessions[session] = None
        return session

    def leave(self, session: Session) -> None:
        """It has gone, with all its subscriptions."""
        if session not in self.sessions:
            return
        del self.sessions[session]
        for subscription in list(session.subscriptions.values()):
            self._end(subscription)
        self._room.hold(-session.waiting_bytes)
        session.waiting.clear()
        session.waiting_bytes = 0

    def close(self) -> None:
        """Everybody goes."""
        for session in list(self.sessions):
            self.leave(session)

    @property
    def subscriptions(self) -> Iterator[Subscription]:
        for session in self.sessions:
            yield from session.subscriptions.values()

    @property
    def has_subscriptions(self) -> bool:
        return self._room.patterns > 0

    def subscribe(self, session: Session, id: int, patterns: Sequence[str], group: str) -> None:
        """Raises `RequestError` for what makes no sense, `OverloadedError` for too many."""
        if not 1 <= len(patterns) <= MAX_PATTERNS:
            raise RequestError(
                f"a subscription with {len(patterns)} patterns", f"give 1 to {MAX_PATTERNS}"
            )
        for pattern in patterns:
            check_pattern(pattern)
        if group:
            check_name("group", group)
        if id in session.subscriptions:
            raise RequestError(f"a subscription has the id {id} already", "give each its own")
        wanted = tuple(dict.fromkeys(patterns))
        if session.patterns + len(wanted) > SESSION_PATTERNS:
            raise RequestError(
                f"{session.patterns} patterns of subscriptions are open from this client, the "
                f"limit is {SESSION_PATTERNS}",
                "subscribe with fewer and wider ones: a * or > takes many topics",
            )
        self._room.check(len(wanted))
        subscription = Subscription(session, id, wanted, group)
        session.subscriptions[id] = subscription
        session.ended.pop(id, None)
        session.patterns += len(wanted)
        if group:
            self._members[group] = self._members.get(group, 0) + 1
        self._change(subscription, self._routes.add, len(wanted))

    def unsubscribe(self, session: Session, id: int) -> None:
        """One that has ended already is gone."""
        subscription = session.subscriptions.get(id)
        if subscription is not None:
            self._end(subscription)
            if session.waiting:
                session.ended[id] = None

    def _end(self, subscription: Subscription) -> None:
        session = subscription.session
        del session.subscriptions[subscription.id]
        session.patterns -= len(subscription.patterns)
        session.missed.pop(subscription.id, None)
        group = subscription.group
        if group:
            self._members[group] -= 1
            if not self._members[group]:
                del self._members[group]
                self._turns.pop(group, None)
        self._change(subscription, self._routes.remove, -len(subscription.patterns))

    def _change(
        self, subscription: Subscription, change: Callable[[Subscription], None], patterns: int
    ) -> None:
        before = self._routes.nodes
        change(subscription)
        self._room.count(patterns, self._routes.nodes - before)

    # --- publishing -----------------------------------------------------------------------------

    def publish(
        self, batches: Sequence[Published], now: float
    ) -> tuple[list[tuple[Session, Parcel | Gaps]], list[Session]]:
        """What is to be sent now, in this order, and which clients are to be cut off."""
        parcels = self._pack(batches)
        sends: list[tuple[Session, Parcel | Gaps]] = []
        idle: list[Session] = []
        for session, parcel in parcels.items():
            if not session.waiting and session.writable():
                if session.missed:
                    sends.append((session, self._gaps(session)))
                session.unread_since = None
                sends.append((session, parcel))
                self._count(parcel)
            elif not self._keep(session, parcel):
                self._drop(session, parcel, now)
                if session.unread_since is not None and now - session.unread_since >= CUT_S:
                    idle.append(session)
        self.cut_off += len(idle)
        return sends, idle

    def _pack(self, batches: Sequence[Published]) -> dict[Session, Parcel]:
        packing = Packing()
        of = self._routes.of
        for batch in batches:
            packing.begin(batch)
            able: dict[tuple[str, str], Sequence[Subscription]] = {}
            for topic, first, last in batch.topics:
                self.published += last - first + 1
                route = of(topic)
                if route.clients:
                    packing.add(route, first, last)
                for group, members in route.groups:
                    takers = able.get((topic, group))
                    if takers is None:
                        takers = able[topic, group] = self._able(members, packing)
                    self._share(first, last, group, takers, packing)
        return packing.parcels()

    def _able(self, members: Sequence[Subscription], packing: Packing) -> Sequence[Subscription]:
        """Those of a group that are given messages of a batch: who does not read only when nobody
        else is there."""
        if len(members) == 1:
            return members
        able = [each for each in members if not each.session.waiting and each.session.writable()]
        able = able or [each for each in members if self._has_room(each.session, packing)]
        return able or members

    def _share(
        self, first: int, last: int, group: str, able: Sequence[Subscription], packing: Packing
    ) -> None:
        """Give messages of one topic to a group: to its members in turn, in pieces of a run."""
        turn = self._turns.get(group, 0)
        share = -(-(last - first + 1) // len(able))
        while first <= last:
            member = able[turn % len(able)]
            turn += 1
            stop = min(last, first + share - 1)
            packing.give(member, first, stop)
            first = stop + 1
        self._turns[group] = turn % (1 << 30)

    def _has_room(self, session: Session, packing: Packing) -> bool:
        """Whether the batch may wait for it, with what it is given already."""
        size = packing.size_with(session)
        return session.waiting_bytes + size <= min(SESSION_BYTES, self._room.free_bytes)

    def _count(self, parcel: Parcel) -> None:
        for ids, count in parcel.messages():
            self.deliveries += count * len(ids)

    def _keep(self, session: Session, parcel: Parcel) -> bool:
        """Let it wait; False where there is no room."""
        gaps = Gaps(dict(session.missed))
        parcel.size = parcel.layout.data_bytes + parcel.said_bytes
        size = parcel.size + gaps.size
        if session.waiting_bytes + size > min(SESSION_BYTES, self._room.free_bytes):
            return False
        if session.missed:
            session.waiting.append(gaps)
            session.missed.clear()
        parcel.layout.keep()
        session.waiting.append(parcel)
        session.waiting_bytes += size
        self._room.hold(size)
        self._count(parcel)
        return True

    def _drop(self, session: Session, parcel: Parcel, now: float) -> None:
        if session.unread_since is None:
            session.unread_since = now
        for ids, count in parcel.messages():
            for id in ids:
                session.missed[id] = session.missed.get(id, 0) + count
                session.subscriptions[id].dropped += count
            self.dropped += count * len(ids)

    def _gaps(self, session: Session) -> Gaps:
        missed, session.missed = session.missed, {}
        return Gaps(missed)

    # --- clients that read again ----------------------------------------------------------------

    def next(self, session: Session) -> Parcel | Gaps | None:
        """What a client that may be sent something gets next, of what has waited; None when that is
        all. What is for a subscription that has ended is for nobody (X1)."""
        session.unread_since = None
        while session.waiting:
            item = session.waiting.popleft()
            session.waiting_bytes -= item.size
            self._room.hold(-item.size)
            if session.ended:
                item = self._without_ended(session, item)
            if item.messages if isinstance(item, Gaps) else any(item.recipients):
                return item
        session.ended.clear()
        if session.missed:
            # Nothing may come for long: they need not wait for it to hear this.
            return self._gaps(session)
        return None

    def _without_ended(self, session: Session, item: Parcel | Gaps) -> Parcel | Gaps:
        has = session.subscriptions
        if isinstance(item, Gaps):
            return Gaps({id: count for id, count in item.messages.items() if id in has})
        return item.without(session.ended, has)

    def told_dropped(self, session: Session, id: int, messages: int) -> None:
        """A client has dropped messages itself."""
        subscription = session.subscriptions.get(id)
        if subscription is not None:
            # It may say anything, and what is told of it has to fit into a number.
            told = subscription.dropped_by_client + messages
            subscription.dropped_by_client = min(told, MAX_OFFSET)
