"""What all groups of a leader that keep the order of keys hold in memory is bounded together, and
who is held back for others goes on once they have less (GROUPS G17)."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hadron.delivery import keys, shelf
from hadron.delivery.effects import Assignment, Rules
from hadron.delivery.keys import BatchKeys, KeyLines, KeyRoom
from hadron.delivery.machine import Group
from hadron.delivery.members import Member
from hadron.delivery.port import Flow
from hadron.delivery.shelf import Shelf, Shelves
from hadron.delivery.telling import held_back
from hadron.delivery.tests.support import Consumer
from hadron.model.batch import StampedBatch
from hadron.model.batch_building import BatchBuilder
from hadron.model.record import NewRecord
from hadron.serving.tests.stack import Stack, leading, until
from hadron.state.groups.progress import ORDER_KEY

END = 20


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "MAX_ORDERED", 4)
    monkeypatch.setattr(keys, "LEAST_ORDERED", 1)


def group_in(room: KeyRoom) -> tuple[Group, Member]:
    group = Group(0, (), rules=Rules(is_by_key=True), key_room=room)
    return group, group.join(100, lambda: True)


def deliver(group: Group, hashes: list[int]) -> list[int]:
    """The offsets of all that can be delivered now."""
    found = list[int]()
    while (chosen := group.choose(END, 0.0)) is not None:
        given = group.assign(chosen, END, END, 0.0, BatchKeys(0, hashes))
        if isinstance(given, Assignment):
            found += range(given.first, given.last + 1)
    return found


def settle(group: Group, member: Member, offset: int) -> None:
    for number in list(member.deliveries):
        group.acknowledge(member.number, number, offset, offset)
    group.settled([(offset, offset)], 0.0)


class TestMachines:
    def test_the_second_waits_for_what_the_first_one_has(self) -> None:
        """Two hundred groups of one stream, of which nobody acknowledges anything: 5 GB."""
        room, apart = KeyRoom(), list(range(1, END + 1))
        (one, its), (other, others) = group_in(room), group_in(room)
        assert deliver(one, apart) == [0, 1, 2, 3]
        assert deliver(other, apart) == [0], "who has nothing gets something"
        assert deliver(other, apart) == []
        assert held_back(other, END).startswith("5 records of all groups here")
        for offset in (0, 1):
            settle(one, its, offset)
        assert held_back(other, END) == ""
        assert deliver(other, apart) == [1]
        assert deliver(one, apart) == []
        settle(other, others, 0)
        assert deliver(other, apart) == [2]
        assert room.records == 4

    def test_those_in_line_are_in_memory_as_well(self) -> None:
        room = KeyRoom()
        (one, its), (other, _) = group_in(room), group_in(room)
        assert deliver(one, [7] * END) == [0]
        assert (room.records, one.frontier.cursor) == (4, 4)
        settle(one, its, 0)
        assert deliver(one, [7] * END) == [1]
        assert room.records == 4
        assert deliver(other, [0] * END) == list(range(END)), "they have no keys"
        assert one.keys is not None
        one.keys.clear()
        assert room.records == 0

    def test_a_key_costs_what_is_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.undo()
        count = 50_000
        lines, hashes = KeyLines(KeyRoom()), [each << 40 for each in range(1, count + 1)]
        tracemalloc.start()
        try:
            offset = 0
            while offset < count:
                _, offset = lines.advance(offset, count, 1, BatchKeys(0, hashes))
            used, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert lines.room.records == count
        assert used < 210 * count


def keyed(count: int) -> bytes:
    builder = BatchBuilder()
    for number in range(count):
        builder.add(NewRecord(str(number), key=f"k{number}"), 1)
    return builder.build()


class TestServed:
    @pytest.fixture
    async def stack(self, tmp_path: Path) -> AsyncIterator[Stack]:
        async with leading(tmp_path) as stack:
            await stack.stream("flights")
            await stack.append(1, data=keyed(6))
            yield stack

    async def test_whoever_waits_goes_on_with_what_the_one_before_leaves(
        self, stack: Stack
    ) -> None:
        """The second has no more hands; nobody acknowledges anything again."""
        one = await Consumer(stack, "one").join(order=ORDER_KEY)
        other = await Consumer(stack, "other").join(2, order=ORDER_KEY)
        third = await Consumer(stack, "third").join(order=ORDER_KEY)
        await one.until(0, 1, 2, 3)
        await other.until(0)
        await third.until(0)
        one.say(Flow(0))
        one.acknowledge(0, 3)
        await other.until(0, 1)
        await third.until(0, 1)
        assert stack.groups._on.key_room.records == 4

    async def test_who_leaves_makes_room(self, stack: Stack) -> None:
        one = await Consumer(stack, "one").join(order=ORDER_KEY)
        other = await Consumer(stack, "other").join(order=ORDER_KEY)
        await one.until(0, 1, 2, 3)
        await other.until(0)
        one.leave()
        await other.until(0, 1, 2, 3)
        other.leave()
        room = stack.groups._on.key_room
        await until(lambda: not room.records)
        assert not room._waiting


def test_hashes_of_keys_are_on_the_shelf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each group they may be half a megabyte."""
    batch = StampedBatch(0, 1_000, 1, 1, 1, keyed(1_000))
    nothing: Any = None
    shelves = Shelves()
    monkeypatch.setattr(shelf, "MAX_SHELVED_BYTES", 20_000)
    several = [Shelf(nothing, 1, shelves) for _ in range(3)]
    for each in several:
        each.keys(batch)
    assert shelves.bytes == 16_000
    assert [each._keys is not None for each in several] == [False, True, True]
    for each in several:
        each.clear()
    assert shelves.bytes == 0
