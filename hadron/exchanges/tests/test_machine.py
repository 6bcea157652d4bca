"""Random histories of one exchange, judged by the rules (docs/EXCHANGES.md), and the odd cases."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hadron.exchanges import machine as machines
from hadron.exchanges.machine import Exchange, Room, Session
from hadron.exchanges.parcels import Gaps, Layout, Parcel, Published, parts_of
from hadron.model.errors import OverloadedError, RequestError
from hadron.model.limits import MAX_MESSAGE_BYTES
from hadron.model.topics import matches
from hadron.server.exchanges.calls import CallSink
from hadron.serving.tests.stack import FakeCall


@dataclass
class Client:
    """What one client was told: by subscription, numbers of messages, or None for a gap."""

    session: Session
    window: int = 0
    told: dict[int, list[int | None]] = field(default_factory=dict)
    gaps: Counter[int] = field(default_factory=Counter)
    patterns: dict[int, tuple[str, ...]] = field(default_factory=dict)
    groups: dict[int, str] = field(default_factory=dict)
    live: set[int] = field(default_factory=set)


class World:
    """An exchange, its clients, and who was to get what."""

    def __init__(self) -> None:
        self.room = Room()
        self.exchange = Exchange(self.room)
        self.clients: list[Client] = []
        self.topics: list[str] = []
        self.now = 0.0
        self.owed: Counter[tuple[int, int]] = Counter()
        """By client and subscription: messages that it alone was to get."""
        self.group_messages: Counter[str] = Counter()
        self.ids = 0

    def attend(self) -> Client:
        client = Client(None)  # type: ignore[arg-type]
        client.session = self.exchange.attend(lambda: client.window > 0)
        self.clients.append(client)
        return client

    def subscribe(self, client: Client, patterns: tuple[str, ...], group: str) -> None:
        self.ids += 1
        self.exchange.subscribe(client.session, self.ids, patterns, group)
        client.patterns[self.ids], client.groups[self.ids] = patterns, group
        client.told[self.ids] = []
        client.live.add(self.ids)

    def unsubscribe(self, client: Client, id: int) -> None:
        self.exchange.unsubscribe(client.session, id)
        client.live.discard(id)

    def publish(self, topics: list[str]) -> None:
        start = len(self.topics)
        self.topics += topics
        for topic in topics:
            groups = set()
            for at, client in enumerate(self.clients):
                for id in client.live:
                    if any(matches(each, topic) for each in client.patterns[id]):
                        if client.groups[id]:
                            groups.add(client.groups[id])
                        else:
                            self.owed[at, id] += 1
            self.group_messages.update(groups)
        runs = [(topic, index, index) for index, topic in enumerate(topics)]
        # A batch's bytes say which messages it has.
        batch = Published(str(start).encode() + b"." * 50, runs)
        sends, idle = self.exchange.publish([batch], self.now)
        for session, item in sends:
            self.hear(next(each for each in self.clients if each.session is session), item)
        for session in idle:
            self.leave(next(each for each in self.clients if each.session is session))

    def read(self, client: Client, window: int) -> None:
        client.window += window
        while client.window > 0 and client.session in self.exchange.sessions:
            item = self.exchange.next(client.session)
            if item is None:
                return
            self.hear(client, item)

    def hear(self, client: Client, item: Parcel | Gaps) -> None:
        client.window -= 1
        if isinstance(item, Gaps):
            for id, count in item.messages.items():
                assert count > 0
                assert id in client.live, "a gap of a subscription that has ended"
                client.told[id].append(None)
                client.gaps[id] += count
            return
        for part in parts_of(item, 100):
            for run in part.runs:
                start = int(bytes(part.layout.batches[run.batch].data).rstrip(b"."))
                for id in run.ids:
                    assert id in client.live, "a message after unsubscribe"
                    client.told[id] += range(start + run.first, start + run.last + 1)

    def leave(self, client: Client) -> None:
        self.exchange.leave(client.session)
        client.live.clear()

    def judge(self) -> None:
        """Every client that is left has read everything."""
        for client in self.clients:
            if client.session in self.exchange.sessions:
                self.read(client, 1_000_000)
        got: Counter[tuple[str, int]] = Counter()
        for at, client in enumerate(self.clients):
            for id, told in client.told.items():
                numbers = [each for each in told if each is not None]
                assert numbers == sorted(set(numbers)), "twice, or out of order"
                for number in numbers:
                    topic = self.topics[number]
                    assert any(matches(each, topic) for each in client.patterns[id])
                    if client.groups[id]:
                        got[client.groups[id], number] += 1
                if not client.groups[id] and id in client.live:
                    assert len(numbers) + client.gaps[id] == self.owed[at, id], "a drop untold"
        assert all(count == 1 for count in got.values()), "two members of a group got it"
        if all(each.session in self.exchange.sessions for each in self.clients) and all(
            client.live == set(client.told) for client in self.clients
        ):
            for group, count in self.group_messages.items():
                delivered = sum(1 for name, _ in got if name == group)
                lost = sum(
                    client.gaps[id]
                    for client in self.clients
                    for id, name in client.groups.items()
                    if name == group
                )
                assert delivered + lost == count
            assert self.exchange.dropped == sum(sum(c.gaps.values()) for c in self.clients)
        waiting = sum(each.session.waiting_bytes for each in self.clients)
        assert self.room.held_bytes == waiting == 0


_patterns = st.lists(st.sampled_from(["a", "b", "a.*", "*.b", ">", "a.>", "*"]), min_size=1)
_topics = st.lists(st.sampled_from(["a", "b", "a.b", "b.b", "a.b.c"]), min_size=1, max_size=6)
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("attend")),
        st.tuples(st.just("subscribe"), st.integers(0, 9), _patterns, st.sampled_from("  gh")),
        st.tuples(st.just("unsubscribe"), st.integers(0, 9), st.integers(0, 9)),
        st.tuples(st.just("publish"), _topics),
        st.tuples(st.just("publish"), _topics),
        st.tuples(st.just("publish"), _topics),
        st.tuples(st.just("read"), st.integers(0, 9), st.integers(1, 5)),
        st.tuples(st.just("leave"), st.integers(0, 9)),
        st.tuples(st.just("wait"), st.integers(1, 5)),
    ),
    max_size=60,
)


def play(steps: list[tuple[object, ...]]) -> World:
    world = World()
    world.attend()
    for name, *arguments in steps:
        here = [each for each in world.clients if each.session in world.exchange.sessions]
        if name == "attend":
            world.attend()
        elif name == "publish":
            world.publish(arguments[0])  # type: ignore[arg-type]
        elif name == "wait":
            world.now += arguments[0]  # type: ignore[operator]
        elif here:
            client = here[arguments[0] % len(here)]  # type: ignore[operator]
            if name == "subscribe":
                world.subscribe(client, tuple(arguments[1]), str(arguments[2]).strip())  # type: ignore[arg-type]
            elif name == "read":
                world.read(client, arguments[1])  # type: ignore[arg-type]
            elif name == "leave":
                world.leave(client)
            elif client.live:
                ids = sorted(client.live)
                world.unsubscribe(client, ids[arguments[1] % len(ids)])  # type: ignore[operator]
    return world


@settings(max_examples=300, deadline=None)
@given(_steps, st.sampled_from([0, 300, 1_000, 1 << 20]))
def test_random_histories_keep_the_rules(steps: list[tuple[object, ...]], room: int) -> None:
    before = machines.SESSION_BYTES
    machines.SESSION_BYTES = room  # type: ignore[misc]
    try:
        play(steps).judge()
    finally:
        machines.SESSION_BYTES = before  # type: ignore[misc]


def _published(size: int, topic: str = "a", count: int = 1) -> Published:
    return Published(b"x" * size, [(topic, 0, count - 1)])


def test_what_waits_is_bounded_and_a_gap_comes_before_what_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machines, "SESSION_BYTES", 1_000)
    exchange = Exchange(Room())
    session = exchange.attend(lambda: False)
    exchange.subscribe(session, 7, [">"], "")
    for size in (400, 600, 300):
        assert exchange.publish([_published(size)], 0.0) == ([], [])
    assert session.waiting_bytes <= 1_000
    assert exchange.dropped == 1
    heard = [exchange.next(session) for _ in range(4)]
    assert [type(each) for each in heard] == [Parcel, Gaps, Parcel, type(None)]
    assert heard[1] == Gaps({7: 1})


def test_clients_share_the_room_and_one_that_begins_to_be_slow_finds_some() -> None:
    room = Room(10_000)
    exchange = Exchange(room)
    slow = [exchange.attend(lambda: False) for _ in range(20)]
    for number, session in enumerate(slow):
        exchange.subscribe(session, 1, [f"t.{number}"], "")
    for _ in range(100):
        exchange.publish([_published(200, f"t.{number}") for number in range(19)], 0.0)
    assert room.held_bytes <= 10_000
    exchange.publish([_published(200, "t.19")], 0.0)
    assert slow[19].waiting_bytes > 0
    exchange.close()
    assert (room.held_bytes, room.patterns, room.nodes) == (0, 0, 0)


def test_who_reads_nothing_while_messages_are_dropped_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machines, "SESSION_BYTES", 0)
    exchange = Exchange(Room())
    session = exchange.attend(lambda: False)
    exchange.subscribe(session, 1, ["a"], "")
    assert exchange.publish([_published(10)], 0.0) == ([], [])
    assert exchange.publish([_published(10)], machines.CUT_S - 1) == ([], [])
    # It reads again: that is told, and counted from here.
    assert exchange.next(session) == Gaps({1: 2})
    assert exchange.publish([_published(10)], machines.CUT_S + 1) == ([], [])
    assert exchange.publish([_published(10)], 3 * machines.CUT_S) == ([], [session])
    assert exchange.cut_off == 1


def test_a_group_gives_nothing_to_who_does_not_read_while_others_do() -> None:
    exchange = Exchange(Room())
    stuck, able = exchange.attend(lambda: False), exchange.attend(lambda: True)
    for session in (stuck, able):
        exchange.subscribe(session, 1, ["a"], "g")
    for _ in range(10):
        sends, _ = exchange.publish([_published(10, count=3)], 0.0)
        assert [session for session, _ in sends] == [able]
    assert stuck.waiting_bytes == 0


def test_a_group_shares_what_is_published_together() -> None:
    exchange = Exchange(Room())
    sessions = [exchange.attend(lambda: True) for _ in range(3)]
    for session in sessions:
        exchange.subscribe(session, 1, ["a"], "g")
    sends, _ = exchange.publish([_published(10, count=90)], 0.0)
    parcels = [item for _, item in sends if isinstance(item, Parcel)]
    assert [sum(run.messages for run in parcel.runs) for parcel in parcels] == [30, 30, 30]


def test_too_many_subscriptions_are_refused_and_those_that_are_there_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machines, "LEADER_PATTERNS", 30)
    monkeypatch.setattr(machines, "SESSION_PATTERNS", 20)
    room = Room()
    one, two = Exchange(room), Exchange(room)
    session, other = one.attend(lambda: True), two.attend(lambda: True)
    for id in range(20):
        one.subscribe(session, id, [f"a.{id}"], "")
    with pytest.raises(RequestError, match="the limit is 20"):
        one.subscribe(session, 20, ["b"], "")
    with pytest.raises(OverloadedError, match="20 patterns"):
        two.subscribe(other, 1, [f"a.{id}" for id in range(11)], "")
    two.subscribe(other, 1, ["a.1", "a.1"], "")
    with pytest.raises(RequestError, match="has the id 1"):
        two.subscribe(other, 1, ["b"], "")
    assert room.patterns == 21
    one.leave(session)
    assert room.patterns == 1


def test_a_message_with_very_many_runs_is_several() -> None:
    batch = Published(b"x", [])
    recipients = [tuple(range(each, each + 10)) for each in range(100)]
    parcel = Parcel(Layout([batch], [(0, each, each, each) for each in range(100)]), recipients)
    parts = list(parts_of(parcel, 1_000))
    assert len(parts) >= 10
    assert [run.first for part in parts for run in part.runs] == list(range(100))
    assert [run.ids for part in parts for run in part.runs] == recipients
    assert all(part.layout.batches == [batch] for part in parts)


def test_batches_that_say_much_of_themselves_are_several_messages() -> None:
    """Thousands of one record each become visible together, of a bridge with a long template: what
    fits into no frame is raised where the stream's end is told, and that ends the node."""
    batch = Published(b"x", [], "{stream}" * 255, "ü" * 100, "p" * 100)
    layout = Layout([batch] * 3_000, [(each, 0, 0, 0) for each in range(3_000)])
    call: Any = FakeCall()
    for part in parts_of(Parcel(layout, [(1,)])):
        CallSink(call).deliver(part)
    assert all(message.ByteSize() < MAX_MESSAGE_BYTES // 2 for message, _ in call.sent)
    assert sum(len(message.messages.batches) for message, _ in call.sent) == 3_000


def test_clients_with_the_same_subscriptions_share_what_they_are_told() -> None:
    """A batch of two types in turn is taken apart once, and not for each client."""
    exchange = Exchange(Room())
    wanted = {"all": [">"], "also": ["eu", "us"], "eu": ["eu"], "other eu": ["eu"], "no": ["x"]}
    sessions = {}
    for number, (name, patterns) in enumerate(wanted.items()):
        sessions[name] = exchange.attend(lambda: True)
        exchange.subscribe(sessions[name], number, patterns, "")
    batch = Published(b"x", [(("eu", "us")[each % 2], each, each) for each in range(100)])
    sends, _ = exchange.publish([batch], 0.0)
    told = {session: item for session, item in sends if isinstance(item, Parcel)}
    assert sessions["no"] not in told
    layouts = {name: told[sessions[name]].layout for name in wanted if name != "no"}
    assert layouts["all"] is layouts["also"]
    assert layouts["eu"] is layouts["other eu"]
    assert len(layouts["all"].at) == 1, "who gets both types gets one run"
    assert [run[1:] for run in told[sessions["other eu"]].runs] == [
        (each, each, (3,)) for each in range(0, 100, 2)
    ]
    assert exchange.deliveries == 100 + 100 + 50 + 50


def test_a_groups_message_waits_for_a_member_that_has_room() -> None:
    """Also while nobody can be written to this very moment."""
    exchange = Exchange(Room())
    full, free = exchange.attend(lambda: False), exchange.attend(lambda: False)
    for number, session in enumerate((full, free), 1):
        exchange.subscribe(session, number, ["t"], "g")
    while full.waiting_bytes + 100_000 < machines.SESSION_BYTES:
        exchange.publish([Published(b"." * 100_000, [("t", 0, 0)])], 0.0)
    while exchange.next(free) is not None:
        pass
    # Something is on its way to it.
    exchange.publish([Published(b".", [("t", 0, 0)])] * 2, 0.0)
    for _ in range(10):
        exchange.publish([Published(b"." * 100_000, [("t", 0, 0)])], 0.0)
    assert not exchange.dropped
