"""Late acknowledgements over a real log: which of them a leader counts (PROTOCOL D2)."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hadron.delivery.port import Ack, DeliveryRange
from hadron.delivery.tests.support import Consumer, progress
from hadron.model.errors import RequestError
from hadron.model.ids import Ballot
from hadron.serving.tests.stack import Stack, leading, until
from hadron.state.groups.progress import ORDER_STRICT, CreateGroup
from hadron.state.streams.partitions import PartitionBounds


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with leading(tmp_path) as stack:
        await stack.stream("flights")
        yield stack


async def made_under_an_earlier_leader(stack: Stack) -> None:
    await stack.controller.execute(CreateGroup(1, "billing", 0))
    stack.store.writer.connection.execute("UPDATE hadron_group SET fence_epoch = 0")


def written(stack: Stack, stream_id: int, ballot: tuple[int, int], *ends: int) -> None:
    """Records up to each of `ends` came under `ballot`, and under the next ones."""
    first = 0
    for end in ends:
        stack.store.writer.connection.execute(
            "UPDATE hadron_stream_batch SET epoch = ?, incarnation = ?"
            " WHERE stream_id = ? AND base_offset BETWEEN ? AND ?",
            (*ballot, stream_id, first, end - 1),
        )
        first, ballot = end, (ballot[0], ballot[1] + 1)
    stack.visible._begun[stream_id] = PartitionBounds(0, first)


class TestLateAcknowledgements:
    def late(self, member: Consumer, ballot: tuple[int, int], number: int, offset: int) -> None:
        member.say(Ack([DeliveryRange(number, offset, offset)], 1, Ballot(*ballot)))

    async def test_of_another_call_or_ballot(self, stack: Stack) -> None:
        await stack.append(1, *[b"x"] * 3)
        await made_under_an_earlier_leader(stack)
        written(stack, 1, (1, 0), 3)  # And so were the records.
        gone = await Consumer(stack).join(1)
        other = await Consumer(stack).join(1)
        await other.until(1)
        gone.leave()
        back = await Consumer(stack).join(1)
        assert (back.offsets, other.offsets) == ([0], [1])
        for ballot, number, offset in ((stack.ballot, 1, 0), ((1, 0), 50, 1)):
            self.late(back, ballot, number, offset)
            assert back.events("acked")[-1].refused, "somebody holds it"
        self.late(back, (1, 0), 50, 2)
        assert len(await back.confirmed(1)) == 1
        await until(lambda: bool(stack.controller.leads and back.driver.ledger.is_idle))
        assert await progress(stack) == [(0, 2, 2)], "nobody holds it"

    async def test_of_what_came_after_their_ballot(self, stack: Stack) -> None:
        """Under the next one, or under this one: records that nobody was given then."""
        for value in (b"0", b"1", b"2", b"3"):
            await stack.append(1, value)
        await made_under_an_earlier_leader(stack)
        written(stack, 1, (0, 5), 1, 2, 3)
        member = await Consumer(stack).join(1)
        await member.until(0)
        asked = list(itertools.product((1, 2, 3), (4, 5, 6, 7)))
        for offset, incarnation in asked:
            self.late(member, (0, incarnation), 50, offset)
        await member.call.until(lambda: len(member.events("acked")) == len(asked))
        refused = [bool(each.refused) for each in member.events("acked")]
        counted = [each for each, refused in zip(asked, refused, strict=True) if not refused]
        assert counted == [(1, 6), (1, 7), (2, 7)]

    async def test_what_was_refused_is_told_with_the_next_confirmation(self, stack: Stack) -> None:
        await stack.append(1, *[b"x"] * 3)
        member = await Consumer(stack).join(3)
        for offset in (0, 2):
            member.say(Ack([DeliveryRange(99, offset, offset)]))
        member.say(Ack(confirmation=1))
        member.say(Ack(confirmation=2))
        first, second = member.events("acked")
        assert [item.first_offset for item in first.refused] == [0, 2]
        assert not second.refused

    async def test_what_was_dealt_with_before_is_not_refused(self, stack: Stack) -> None:
        """Committed, but its call was lost before it heard that: who says it again on the next one
        was told that others have the records."""
        await stack.append(1, *[b"x"] * 20)
        slow = await Consumer(stack).join(10)
        gone = await Consumer(stack).join(10)
        await gone.until(*range(10, 20))
        gone.acknowledge(10, 19)
        gone.leave()
        back = await Consumer(stack).join(10)
        await until(lambda: back.driver.ledger.is_idle)
        assert await progress(stack) == [(0, 10, 19)]
        number = gone.deliveries[0].delivery
        back.say(Ack([DeliveryRange(number, 10, 19)], 1, Ballot(*stack.ballot)))
        assert await back.confirmed(1) == []
        slow.acknowledge(4, 5)
        slow.acknowledge(4, 5, confirmation=1)
        assert await slow.confirmed(1) == [], "it may say it twice, too"

    async def test_of_several_those_are_refused_that_nobody_has_dealt_with(
        self, stack: Stack
    ) -> None:
        await stack.append(1, *[b"x"] * 8)
        await stack.stream("letters")
        member = await Consumer(stack).join(8, max_attempts=1, dead_letter_stream="letters")
        await member.until(*range(8))
        member.acknowledge(2, 3)
        member.refuse(6, 0.0)
        member.acknowledge(0, 9, 1, delivery=99)
        member.acknowledge(0, 9, 2)
        refused = [
            [(each.first_offset, each.last_offset) for each in await member.confirmed(asked)]
            for asked in (1, 2)
        ]
        assert refused == [[(0, 1), (4, 9)], [(6, 6), (8, 9)]], "6 is to be a dead letter"

    async def test_a_member_that_never_asks_is_refused(
        self, stack: Stack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("hadron.delivery.sessions._MAX_REFUSED", 2)
        await stack.append(1, b"x")
        member = await Consumer(stack).join(3)
        for _ in range(2):
            member.say(Ack([DeliveryRange(99, 0, 0)]))
        with pytest.raises(RequestError, match="and it never asked"):
            member.say(Ack([DeliveryRange(99, 0, 0)]))

    async def test_what_its_last_one_counted_for_is_logged(
        self, stack: Stack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """More than it held; that ends its call. In strict order others would wait for ever."""
        monkeypatch.setattr("hadron.delivery.sessions._MAX_REFUSED", 2)
        await stack.append(1, b"x", b"y")
        member = await Consumer(stack).join(3, order=ORDER_STRICT)
        other = await Consumer(stack).join(3, order=ORDER_STRICT)
        await member.until(0)
        for _ in range(2):
            member.say(Ack([DeliveryRange(99, 0, 0)]))
        with pytest.raises(RequestError, match="and it never asked"):
            member.say(Ack([DeliveryRange(member.deliveries[-1].delivery, 0, 9)]))
        member.leave()
        await other.until(1)

    @pytest.mark.parametrize(
        ("ballot", "number", "offset"), [((1, 1), 99, 1), ((9, 9), 1, 1), ((1, 0), 1, 3)]
    )
    async def test_tokens_that_cannot_be(
        self, stack: Stack, ballot: tuple[int, int], number: int, offset: int
    ) -> None:
        """Not given out yet, of a ballot to come, of a record that is not there."""
        await stack.append(1, *[b"x"] * 3)
        member = await Consumer(stack).join(1)
        self.late(member, ballot, number, offset)
        assert len(await member.confirmed(1)) == 1
        assert await progress(stack) == [(0, None, None)]

    async def test_of_a_record_that_was_lost_and_has_another_in_its_place(
        self, stack: Stack
    ) -> None:
        """A tail was lost: whatever was delivered in an earlier ballot, it was not these."""
        await made_under_an_earlier_leader(stack)
        await stack.append(1, *[b"x"] * 3)
        member = await Consumer(stack).join(1)
        self.late(member, (1, 0), 50, 2)
        assert len(await member.confirmed(1)) == 1
        assert await progress(stack) == [(0, None, None)]
