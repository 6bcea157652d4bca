"""How partitions share a producer's buffer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
import trio.testing

from hadron.client.producing.buffer import SendBuffer


@dataclass(eq=False)
class Place:
    """What the buffer looks at of a sender and its accumulator."""

    held_bytes: int = 0
    is_away: bool = False

    @property
    def accumulator(self) -> Place:
        return self


@dataclass
class Places:
    """A router whose keys are the numbers of partitions."""

    senders: list[Place] = field(default_factory=lambda: [Place() for _ in range(4)])
    current: int = 0

    @property
    def only(self) -> Place | None:
        return self.senders[0] if len(self.senders) == 1 else None

    @property
    def senders_without_key(self) -> list[Place]:
        return self.senders

    def choose(self, key: bytes | None) -> Place:
        return self.senders[self.current if key is None else int(key)]

    def is_free(self, key: bytes | None) -> bool:
        return key is None

    def skip(self) -> None:
        self.current = (self.current + 1) % len(self.senders)


def make(places: Places, max_bytes: int = 1_200) -> SendBuffer:
    router: Any = places
    return SendBuffer(max_bytes, router, lambda: None)


def put(buffer: SendBuffer, place: Any, size: int = 10) -> None:
    place.held_bytes += size
    buffer.bytes += size


def fill(buffer: SendBuffer, place: Any) -> int:
    while buffer.has_room(place):
        put(buffer, place)
    held: int = place.held_bytes
    return held


def test_those_that_are_stuck_leave_an_equal_share_to_the_others() -> None:
    places = Places()
    buffer = make(places)
    assert [fill(buffer, place) for place in places.senders] == [600, 300, 150, 80]
    alone = Places([Place()])
    assert fill(make(alone), alone.senders[0]) == 1_200, "there is nobody to leave something to"


@pytest.mark.parametrize(("key", "frees"), [(b"0", 0), (b"1", 1), (None, 1)])
async def test_who_waits_goes_on_when_there_is_room(key: bytes | None, frees: int) -> None:
    places = Places()
    buffer = make(places)
    for place in places.senders:
        fill(buffer, place)
    gone_on: list[Any] = []

    async def wait() -> None:
        gone_on.append(await buffer.wait(key))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert not gone_on
        places.senders[frees].held_bytes -= 290
        buffer.freed(290)
    assert gone_on == [places.senders[frees]]


async def test_without_a_key_a_record_passes_a_partition_that_is_full() -> None:
    places = Places()
    buffer = make(places)
    fill(buffer, places.senders[0])
    found: Any = await buffer.wait(None)
    assert found is places.senders[1]


async def test_who_waits_for_a_partition_that_goes_away_looks_where_else_to_go() -> None:
    places = Places()
    buffer = make(places)
    fill(buffer, places.senders[0])
    gone_on: list[Any] = []

    async def wait() -> None:
        gone_on.append(await buffer.wait(b"0"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        other = Place()
        places.senders[0].is_away, places.senders[0] = True, other
        buffer.look()
    assert gone_on == [other]
