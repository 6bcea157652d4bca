"""Who polls under one name: one member after the other, each for itself."""
# ruff: noqa: ARG001 - time passes by the clock that each test asks for

from __future__ import annotations

from types import TracebackType
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from hadron.doors.http.consumers import Consumers, Joined, Name
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
