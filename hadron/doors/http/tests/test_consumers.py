"""Who polls under one name: one member after the other, each for itself."""
# ruff: noqa: ARG001 - time passes by the clock that each test asks for

from __future__ import annotations

import itertools
from types import SimpleNamespace, TracebackType
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from hadron.doors.http.consumers import Consumer, Consumers, Joined, Name
from hadron.doors.http.problems import HttpError
from hadron.model.errors import NotFoundError, PeerError

NAME = Name("n", "s", "g", "c")
OTHER = NAME._replace(consumer="d")


class Member:
    """Joins, and leaves, as its test lets it."""

    def __init__(self, *, fails: bool = False, leave_s: float = 0.0, join_s: float = 0.0) -> None:
        self._fails = fails
        self._leave_s = leave_s
        self._join_s = join_s
        self.is_in = False
        self._consumer = SimpleNamespace()

    async def __aenter__(self) -> Any:
        await trio.sleep(self._join_s)
        if self._fails:
            raise PeerError("no partition could be joined")
        self.is_in = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None
    ) -> None:
        await trio.sleep(self._leave_s)
        self.is_in = False


@pytest.fixture
async def consumers(nursery: trio.Nursery) -> Consumers:
    made = Consumers(2)
    await nursery.start(made.run)
    return made


def joined(idle_s: float = 60) -> Joined:
    return Joined(idle_s, "earliest", 10)


async def open_(consumers: Consumers, member: Member, name: Name = NAME, **its: float) -> Any:
    made: Any = lambda: member  # noqa: E731
    return await consumers.open(name, joined(**its), made)


@pytest.mark.parametrize("is_asked", [True, False])
async def test_who_leaves_keeps_its_place_until_it_has_left(
    autojump_clock: MockClock, consumers: Consumers, is_asked: bool
) -> None:
    """While its last acknowledgements are confirmed; else its end would be its successor's."""
    old, new = Member(leave_s=5), Member()
    first = await open_(consumers, old, idle_s=1)
    if is_asked:
        first.is_leaving.set()
    else:
        await trio.sleep(2)
    assert old.is_in
    with pytest.raises(NotFoundError, match="has left"):
        consumers.find(NAME)
    second = await open_(consumers, new)
    assert second is not first
    assert (old.is_in, new.is_in) == (False, True)
    await trio.sleep(10)
    assert consumers.find(NAME) is second
    assert await open_(consumers, Member()) is second


async def test_who_is_leaving_counts(autojump_clock: MockClock, consumers: Consumers) -> None:
    for number in range(2):
        name = NAME._replace(consumer=str(number))
        (await open_(consumers, Member(leave_s=5), name)).is_leaving.set()
    with pytest.raises(HttpError, match="2 consumers poll at this node") as caught:
        await open_(consumers, Member())
    assert caught.value.status == 429
    await trio.sleep(6)
    await open_(consumers, Member())


async def test_several_that_come_at_once_are_one(
    autojump_clock: MockClock, consumers: Consumers, nursery: trio.Nursery
) -> None:
    """Also where the first of them could not join, or has gone meanwhile."""
    members = [Member(fails=True, join_s=1), *(Member(join_s=1) for _ in range(4))]
    found: list[Any] = []
    failures: list[Exception] = []

    async def come(member: Member) -> None:
        try:
            found.append(await open_(consumers, member))
        except PeerError as error:
            failures.append(error)

    for member in members:
        nursery.start_soon(come, member)
        await trio.sleep(0.1)
    await trio.sleep(5)
    assert len(failures) == 1
    assert len(found) == 4
    assert len(set(map(id, found))) == 1
    assert sum(each.is_in for each in members) == 1
    with trio.move_on_after(0.5):
        await open_(consumers, Member(join_s=1), OTHER)
    with pytest.raises(NotFoundError, match="nobody has polled here"):
        consumers.find(OTHER)
    await open_(consumers, Member(), OTHER)


# --- what one holds -------------------------------------------------------------------------------


class Leaders:
    """A subscription that is given what its test says; each parcel has one record."""

    def __init__(self) -> None:
        self._consumer = SimpleNamespace()
        self._come: list[Any] = []
        self.done: list[int] = []
        self._parcels = itertools.count(1)
        self.channel = SimpleNamespace()

    def give(self, offset: int, partition: str = "p0") -> int:
        async def ack() -> None:
            self.done.append(offset)

        number = next(self._parcels)
        parcel = SimpleNamespace(number=number, channel=self.channel)
        record = SimpleNamespace(damage="", value_bytes=b"x")
        self._come.append(
            SimpleNamespace(
                partition=partition, offset=offset, record=record, _parcel=parcel, ack=ack
            )
        )
        return number

    async def poll(self, _patience_s: float) -> Any:
        return self._come.pop(0) if self._come else None

    def revoke(self, parcel: int, offset: int) -> None:
        self._consumer.on_gone(self.channel, parcel, offset, offset)

    def end(self) -> None:
        """The call, as when the leader dies; another one begins."""
        self._consumer.on_gone(self.channel, None, 0, -1)
        self.channel = SimpleNamespace()


class Polling:
    def __init__(self, most: int) -> None:
        self.leaders = Leaders()
        given: Any = self.leaders
        self.consumer = Consumer(given, Joined(60, "earliest", most), itertools.count(1))

    async def poll(self) -> list[str]:
        taken: dict[str, Any] = {}
        await self.consumer.poll(100, 0, taken)
        return list(taken)

    @property
    def again(self) -> list[int]:
        return [each.offset for each in self.consumer.held(100).values()]

    @property
    def kept(self) -> int:
        return len(self.consumer._held) + len(self.consumer._late)

    async def extend(self, *ids: str) -> list[str]:
        return await self.consumer.settle(ids, lambda each: each.ack(), ends=False)

    async def ack(self, *ids: str) -> list[str]:
        return await self.consumer.settle(ids, lambda each: each.ack(), ends=True)


async def test_what_others_have_does_not_come_again() -> None:
    polling = Polling(4)
    parcels = [polling.leaders.give(offset) for offset in range(4)]
    ids = await polling.poll()
    polling.leaders.revoke(parcels[1], 1)
    polling.leaders.revoke(parcels[1], 2)
    assert polling.again == [0, 2, 3]
    assert await polling.extend(*ids) == [ids[1]]
    # It may still count: whoever leads knows whether anybody has it.
    assert await polling.ack(*ids) == []
    assert polling.leaders.done == [0, 2, 3, 0, 1, 2, 3]
    assert (polling.kept, polling.consumer._places) == (0, {})


async def test_what_a_lost_call_has_brought_does_not_come_again() -> None:
    polling = Polling(4)
    polling.leaders.give(0)
    (old,) = await polling.poll()
    polling.leaders.end()
    assert polling.again == []
    polling.leaders.give(0)
    (new,) = await polling.poll()
    assert polling.again == [0]
    assert await polling.ack(old, new) == [old]


@pytest.mark.parametrize("how", ["revoked", "lost", "neither"])
async def test_what_is_never_acknowledged_is_forgotten(how: str) -> None:
    polling = Polling(2)
    first: list[str] = []
    for offset in range(50):
        found = []
        for partition in ("p0", "p1"):
            parcel = polling.leaders.give(offset, partition)
            found += await polling.poll()
            if how == "revoked":
                polling.leaders.revoke(parcel, offset)
        first = first or found
        if how == "lost" and offset % 7 == 0:
            polling.leaders.end()
    assert polling.kept <= 2 * 2 * 2
    assert len(polling.consumer._places) == polling.kept
    assert await polling.ack(*first, *found) == first
