"""Groups over a real log: what members are sent, and what their acknowledgements leave behind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from hadron.delivery import ledger as ledger_module
from hadron.delivery import shelf
from hadron.delivery.joining import Joining
from hadron.delivery.ledger import Confirmation, LoggedLedger
from hadron.delivery.port import Ack, DeliveryRange, Nack
from hadron.delivery.tests.support import Consumer, progress
from hadron.model.errors import (
    HadronError,
    NotFoundError,
    OverloadedError,
    RequestError,
    ShuttingDownError,
)
from hadron.model.limits import SUBSCRIPTION_BATCH_MEMORY
from hadron.model.record_batch import decode_batch
from hadron.serving.tests.stack import Stack, leading, until
from hadron.state.groups.progress import AckRecords


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with leading(tmp_path) as stack:
        await stack.stream("flights")
        yield stack


class TestJoining:
    async def test_a_new_group_starts_where_it_is_told(self, stack: Stack) -> None:
        await stack.append(1, b"0", b"1", b"2")
        for start, floor in (("", 0), ("earliest", 0), ("latest", 3), ("2", 2)):
            member = await Consumer(stack, f"from-{start}").join(start=start)
            opened = member.call.sent[0][0].opened
            assert (opened.floor, opened.ballot.incarnation) == (floor, 1)
            assert member.offsets == list(range(floor, 3))

    @pytest.mark.parametrize(
        "start", ["later", "-1", "4", "1.5", "²", "٣", "9" * 18, "9" * 30, "9" * 5_000]
    )
    async def test_a_bad_start_is_refused(self, stack: Stack, start: str) -> None:
        await stack.append(1, b"0", b"1", b"2")
        with pytest.raises(RequestError, match="cannot start at"):
            await Consumer(stack).join(start=start)
        assert stack.groups.live(1, "billing") is None

    @pytest.mark.parametrize("window", [0, 100_001, (1 << 32) - 1])
    async def test_a_bad_window_is_refused(self, stack: Stack, window: int) -> None:
        with pytest.raises(RequestError, match=f"max_in_flight is {window}"):
            await Consumer(stack).join(window)

    async def test_a_stream_that_is_not_here(self, stack: Stack) -> None:
        nobody: Any = None
        with pytest.raises(NotFoundError):
            await stack.groups.subscribe(nobody, 9, Joining("billing"))

    async def test_it_is_nobodys_business_that_another_group_changes(
        self, stack: Stack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nor that its own is asked to, and does not: one client that deletes what is not there, in
        a loop, would let nobody join at this leader."""
        other = await Consumer(stack, "other").join()
        create = stack.groups._create

        async def slow(*arguments: Any) -> Any:
            found = await create(*arguments)
            monkeypatch.undo()
            with pytest.raises(NotFoundError):
                await stack.groups.delete(1, "nope")
            with pytest.raises(RequestError, match="1 member is connected"):
                await stack.groups.delete(1, "billing")
            await stack.groups.reset(1, "other", "earliest", force=True)
            (await Consumer(stack, "third").join()).driver._give_up(HadronError("damaged"))
            return found

        monkeypatch.setattr(stack.groups, "_create", slow)
        member = await Consumer(stack).join()
        assert other.call.failure is not None
        assert not member.driver.is_closed


class TestEndings:
    async def test_a_round_is_one_entry_whatever_has_ended(self, stack: Stack) -> None:
        await stack.append(1, *[b"x"] * 300)
        member = await Consumer(stack).join(300)
        await member.call.until(lambda: len(member.offsets) == 300)
        before = stack.controller.written_lsn
        for offset in range(0, 300, 3):
            member.acknowledge(offset, offset)
            member.refuse(offset + 1, 60.0)
        member.acknowledge(299, 299, confirmation=1)
        await member.confirmed(1)
        assert stack.controller.written_lsn - before <= 3
        tried = await stack.rows(
            "SELECT count(*), min(attempts), max(attempts) FROM hadron_group_attempt"
        )
        assert tried == [(100, 1, 1)]
        assert (await stack.rows("SELECT floor FROM hadron_group"))[0] == (1,)

    async def test_more_than_an_entry_takes(
        self, stack: Stack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ledger_module, "_RANGES_PER_ENTRY", 7)
        await stack.append(1, *[b"x"] * 100)
        member = await Consumer(stack).join(100)
        await member.call.until(lambda: len(member.offsets) == 100)
        for offset in range(0, 100, 4):
            member.refuse(offset, 60.0)
            member.acknowledge(offset + 2, offset + 2)
        member.acknowledge(99, 99, confirmation=1)
        assert await member.confirmed(1) == []
        assert len(await progress(stack)) == 25
        assert await stack.rows("SELECT count(*) FROM hadron_group_attempt") == [(25,)]


class TestDelivering:
    async def test_records_arrive_as_they_become_visible(self, stack: Stack) -> None:
        member = await Consumer(stack).join()
        await stack.append(1, b"0", b"1")
        await member.until(0, 1)
        await stack.append(1, b"2")
        await member.until(0, 1, 2)
        batches = [decode_batch(data) for _, data in member.call.sent[1:]]
        values = [record.value for batch in batches for record in batch.records()]
        assert values == [b"0", b"1", b"2"]

    async def test_old_records_are_read_again(self, stack: Stack) -> None:
        await stack.append(1, *[b"%d" % n for n in range(10)])
        stack.visible._recent.clear()
        member = await Consumer(stack).join(4)
        await member.until(0, 1, 2, 3)
        member.acknowledge(0, 3)
        await member.until(*range(8))

    async def test_a_batch_in_slices_is_attached_once(self, stack: Stack) -> None:
        await stack.append(1, *[b"x"] * 8)
        member = await Consumer(stack).join(2)
        for first in range(0, 8, 2):
            await member.call.until(lambda first=first: len(member.offsets) == first + 2)  # type: ignore[misc]
            member.acknowledge(first, first + 1)
        sizes = [len(data) for m, data in member.call.sent if m.WhichOneof("kind") == "delivery"]
        assert [size > 0 for size in sizes] == [True, False, False, False]
        assert [d.batch.length for d in member.deliveries] == sizes

    async def test_only_so_many_batches_are_remembered(self, stack: Stack) -> None:
        for _ in range(SUBSCRIPTION_BATCH_MEMORY + 1):
            await stack.append(1, b"x")
        member = await Consumer(stack).join()
        await member.call.until(lambda: len(member.offsets) == SUBSCRIPTION_BATCH_MEMORY + 1)
        member.refuse(0, 0)
        member.refuse(SUBSCRIPTION_BATCH_MEMORY, 0)
        await member.call.until(lambda: len(member.offsets) == SUBSCRIPTION_BATCH_MEMORY + 3)
        forgotten, remembered = member.deliveries[-2:]
        assert (forgotten.first_offset, forgotten.batch.length > 0) == (0, True)
        assert remembered.batch.length == 0

    async def test_a_member_that_cannot_be_written_to_costs_nothing(self, stack: Stack) -> None:
        slow, quick = await Consumer(stack).join(), await Consumer(stack).join()
        slow.call.writable = False
        for _ in range(20):
            await stack.append(1, b"x")
        await quick.until(*range(20))
        assert slow.offsets == []
        quick.acknowledge(0, 0, delivery=quick.deliveries[0].delivery)
        quick.call.writable = False
        await stack.append(1, b"x")
        slow.call.writable = True
        slow.call.on_writable()
        await slow.until(20)

    async def test_who_leaves_as_the_end_of_another_batch_is_told_takes_nobody_along(
        self, stack: Stack
    ) -> None:
        """Both are on one connection, which breaks with that: the record goes to who is left."""
        await stack.append(1, b"0", b"1")
        await stack.append(1, b"2")
        batching, other = Consumer(stack), Consumer(stack)
        other.call.writable = False
        await other.join(10)
        told = batching.call.send

        def send(message: Any, attachments: Any = ()) -> None:
            told(message, attachments)
            kind = message.WhichOneof("kind")
            if kind == "delivery":
                batching.call.writable, other.call.writable = False, True
                other.driver.machine.became_writable(other.session.member.number)
            elif kind == "batch_end":
                other.leave()

        batching.call.send = send  # type: ignore[method-assign]
        await batching.join(10, batch_size=10, batch_wait_ms=0)
        await batching.call.until(lambda: batching.events("batch_end") != [])
        batching.leave()
        third = await Consumer(stack).join(10)
        await third.until(0, 1, 2)
        assert other.deliveries == []
        assert not stack.fatal

    async def test_many_deliveries_leave_a_turn_to_others(self, stack: Stack) -> None:
        for _ in range(200):
            await stack.append(1, b"x")
        member = await Consumer(stack).join(1_000)
        assert len(member.deliveries) == 64
        await member.until(*range(200))

    async def test_old_redeliveries_do_not_push_each_other_out(
        self, stack: Stack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What was read for the record that is wanted now must still be there when it is sent."""
        monkeypatch.setattr(shelf, "_KEPT_BYTES", 20_000)
        monkeypatch.setattr(shelf, "_READ_BYTES", 9_000)
        for _ in range(60):
            await stack.append(1, b"x" * 300)
        stack.visible._recent.clear()
        first = await Consumer(stack).join(1_000)
        await first.until(*range(60))
        reads: list[int] = []
        read = stack.visible.read

        async def counted(stream_id: int, offset: int, max_bytes: int) -> Any:
            reads.append(offset)
            return await read(stream_id, offset, max_bytes)

        monkeypatch.setattr(stack.visible, "read", counted)
        second = await Consumer(stack).join(1_000)
        first.leave()
        await second.call.until(lambda: len(second.offsets) == 60)
        assert second.offsets == list(range(60))
        assert len(reads) < 12


class TestAcknowledging:
    async def test_progress_is_logged_and_confirmed(self, stack: Stack) -> None:
        await stack.append(1, *[b"x"] * 10)
        member = await Consumer(stack).join()
        await member.until(*range(10))
        member.acknowledge(0, 3)
        member.acknowledge(7, 8, confirmation=5)
        assert await member.confirmed(5) == []
        assert await progress(stack) == [(4, 7, 8)]
        assert member.driver.machine.floor == 4

    async def test_what_is_not_the_members_is_said_to_be_refused(self, stack: Stack) -> None:
        await stack.append(1, *[b"x"] * 4)
        one = await Consumer(stack).join(2)
        other = await Consumer(stack).join(2)
        await other.until(2, 3)
        other.acknowledge(0, 1, confirmation=1, delivery=one.deliveries[0].delivery)
        other.acknowledge(2, 3, confirmation=2)
        assert [r.first_offset for r in await other.confirmed(1)] == [0]
        assert await other.confirmed(2) == []
        assert await progress(stack) == [(0, 2, 3)]

    async def test_a_confirmation_without_acknowledgements_waits_for_those_before(
        self, stack: Stack
    ) -> None:
        await stack.append(1, b"x", b"y")
        member = await Consumer(stack).join()
        await member.until(0, 1)
        member.say(Ack(confirmation=1))
        assert await member.confirmed(1) == []
        member.acknowledge(0, 1)
        member.say(Ack(confirmation=2))
        await member.confirmed(2)
        assert await progress(stack) == [(2, None, None)]

    async def test_absurd_ranges_are_refused_and_change_nothing(self, stack: Stack) -> None:
        await stack.append(1, *[b"x"] * 100)
        member = await Consumer(stack).join()
        await member.call.until(lambda: len(member.offsets) == 100)
        for first, last in ((50, 40), ((1 << 64) - 1, 0)):
            with pytest.raises(RequestError, match="are no range"):
                member.acknowledge(first, last, delivery=1)
            with pytest.raises(RequestError, match="are no range"):
                member.say(Nack([DeliveryRange(1, first, last)]))
        member.acknowledge(0, (1 << 64) - 1, confirmation=1, delivery=1)
        assert len(await member.confirmed(1)) == 1, "more than was held"
        assert await progress(stack) == [(100, None, None)]
        assert member.session.member.credit == 100

    async def test_very_many_ranges_take_several_entries(
        self, stack: Stack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ledger_module, "_RANGES_PER_ENTRY", 10)
        await stack.append(1, *[b"x"] * 100)
        member = await Consumer(stack).join()
        await member.call.until(lambda: len(member.offsets) == 100)
        before = stack.controller.written_lsn
        member.say(Ack([DeliveryRange(1, n, n) for n in range(1, 100, 2)], 1))
        assert await member.confirmed(1) == []
        assert stack.controller.written_lsn == before + 5
        assert len(await progress(stack)) == 50

    async def test_when_progress_cannot_be_logged_the_group_starts_anew(
        self, stack: Stack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Or what was acknowledged would never be delivered again, and never be committed."""
        await stack.append(1, b"x", b"y")
        member = await Consumer(stack).join()
        await member.until(0, 1)
        submit = stack.controller.submit

        def refuse(command: Any, *args: Any, done: Any, **options: Any) -> None:
            if isinstance(command, AckRecords):
                done(None, HadronError("not today"))
            else:
                submit(command, *args, done=done, **options)

        with monkeypatch.context() as patch:
            patch.setattr(stack.controller, "submit", refuse)
            member.acknowledge(0, 0, confirmation=1)
        assert str(member.call.failure) == "not today"
        assert stack.groups.live(1, "billing") is None
        again = await Consumer(stack).join()
        await again.until(0, 1)


class TestRedelivery:
    async def test_a_member_that_goes_leaves_its_records_to_others(self, stack: Stack) -> None:
        await stack.append(1, *[b"x"] * 4)
        gone = await Consumer(stack).join()
        await gone.until(0, 1, 2, 3)
        gone.acknowledge(1, 1)
        other = await Consumer(stack).join()
        gone.leave()
        await other.until(0, 2, 3)
        assert [d.attempt for d in other.deliveries] == [2, 2]

    async def test_refused_records_come_back_in_their_time(
        self, stack: Stack, mock_clock: MockClock
    ) -> None:
        """The sooner one first, also when the later one was refused before."""
        await stack.append(1, b"x", b"y", b"z")
        member = await Consumer(stack).join()
        await member.until(0, 1, 2)
        member.refuse(0, 3_600)
        member.refuse(1, 5)
        member.refuse(2, 60)
        mock_clock.jump(4.9)
        await until(lambda: True)
        assert member.offsets == [0, 1, 2]
        mock_clock.jump(0.2)
        await member.until(0, 1, 2, 1)
        mock_clock.jump(60)
        await member.until(0, 1, 2, 1, 2)
        mock_clock.jump(3_600)
        await member.until(0, 1, 2, 1, 2, 0)
        assert [d.attempt for d in member.deliveries] == [1, 2, 2, 2]

    async def test_a_delay_goes_on_while_nobody_is_there(
        self, stack: Stack, mock_clock: MockClock
    ) -> None:
        """It was at an end as soon as the last member had lost its connection."""
        await stack.append(1, b"x")
        member = await Consumer(stack).join()
        await member.until(0)
        member.refuse(0, 60)
        member.leave()
        await until(lambda: member.driver.is_idle)
        mock_clock.jump(50.0)
        other = await Consumer(stack).join()
        assert other.driver is member.driver
        assert other.driver.machine.waiting.delayed(trio.current_time()) == 1
        assert other.offsets == []
        mock_clock.jump(10.1)
        await other.until(0)
        other.refuse(0, 60)
        other.leave()
        await until(lambda: other.driver.is_idle)
        assert stack.groups.live(1, "billing") is other.driver
        mock_clock.jump(60.1)
        await until(lambda: stack.groups.live(1, "billing") is None)

    async def test_after_a_restart_only_what_is_unacknowledged_comes(self, tmp_path: Path) -> None:
        async with leading(tmp_path) as stack:
            await stack.stream("flights")
            await stack.append(1, *[b"x"] * 6)
            member = await Consumer(stack).join()
            await member.until(*range(6))
            member.acknowledge(0, 1)
            member.acknowledge(3, 4, confirmation=1)
            await member.confirmed(1)
        async with leading(tmp_path) as stack:
            member = await Consumer(stack).join()
            await member.until(2, 5)


class TestDriversEnd:
    async def test_one_without_members_is_forgotten(self, stack: Stack) -> None:
        member = await Consumer(stack).join()
        member.leave()
        assert stack.groups.live(1, "billing") is None
        member.leave()

    async def test_one_that_still_logs_is_forgotten_afterwards(self, stack: Stack) -> None:
        """Consumers acknowledge, then go: else each group would be remembered for ever."""
        await stack.append(1, b"x")
        member = await Consumer(stack).join()
        await member.until(0)
        member.acknowledge(0, 0)
        member.leave()
        await until(lambda: stack.groups.live(1, "billing") is None)
        assert await progress(stack) == [(1, None, None)]
        assert not stack.visible._watchers

    async def test_what_was_kept_is_let_go_once_caught_up(self, stack: Stack) -> None:
        await stack.append(1, b"x")
        stack.visible._recent.clear()
        member = await Consumer(stack).join()
        await member.until(0)
        await until(lambda: not member.driver._shelf._batches)

    async def test_what_all_groups_keep_is_bounded(
        self, stack: Stack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Members that stop at their first record, in many groups of a long stream."""
        for _ in range(10):
            await stack.append(1, bytes(10_000))
        monkeypatch.setattr(stack.visible, "recent", lambda *_: None)
        monkeypatch.setattr(shelf, "MAX_SHELVED_BYTES", 350_000)
        members = []
        for number in range(8):
            members.append(await Consumer(stack, f"g{number}").join(1))
            # The order of joining is not the order of reading, which other threads do.
            await members[-1].until(0)
        sizes = [sum(map(shelf._footprint, member.driver._shelf._batches)) for member in members]
        assert sum(sizes) <= 350_000
        assert [size > 0 for size in sizes[-3:]] == [True] * 3, "those that read last"
        shelves = stack.groups._on.shelves
        assert shelves.bytes == sum(sizes)
        # What was let go is read again.
        for offset in (1, 2):
            for member in members:
                member.acknowledge(offset - 1, offset - 1)
                await member.until(*range(offset + 1))
        for member in members:
            member.leave()
        await until(lambda: shelves.bytes == 0)

    async def test_an_unreadable_batch_ends_the_members_calls(
        self, stack: Stack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They join again; meanwhile nobody holds what they were sent."""
        await stack.append(1, b"x")
        member = await Consumer(stack).join()
        await member.until(0)

        async def fail(*_: Any) -> Any:
            raise HadronError("unreadable")

        with monkeypatch.context() as patch:
            patch.setattr(stack.visible, "read", fail)
            patch.setattr(stack.visible, "recent", lambda *_: None)
            await stack.append(1, b"y")
            await member.call.until(lambda: member.call.failure is not None)
        assert stack.groups.live(1, "billing") is None
        again = await Consumer(stack).join()
        await again.until(0, 1)

    async def test_progress_that_was_read_too_early_is_not_used(self, stack: Stack) -> None:
        """One member's join is answered after another one has come, acknowledged and gone."""
        await stack.append(1, b"x", b"y")
        late = Consumer(stack)
        execute = stack.controller.execute

        async def slow(command: Any, *args: Any) -> Any:
            result = await execute(command, *args)
            stack.controller.execute = execute  # type: ignore[method-assign]
            quick = await Consumer(stack).join()
            await quick.until(0, 1)
            quick.acknowledge(0, 0, confirmation=1)
            await quick.confirmed(1)
            quick.leave()
            return result

        stack.controller.execute = slow  # type: ignore[method-assign,assignment]
        await late.join()
        await late.until(1)

    async def test_stopping_tells_every_member(self, stack: Stack) -> None:
        members = [await Consumer(stack, name).join() for name in ("a", "a", "b")]
        stack.groups.stop(ShuttingDownError("the node is stopping"))
        assert all(isinstance(m.call.failure, ShuttingDownError) for m in members)
        assert stack.groups.live(1, "a") is None
        for member in members:
            member.leave()

    async def test_members_hear_when_leading_ends_around_them(self, tmp_path: Path) -> None:
        """A fenced leader's tasks are cancelled before anybody says why; a member that heard
        nothing would wait at this node for ever."""
        async with leading(tmp_path) as stack:
            await stack.stream("flights")
            consumer = await Consumer(stack).join()
        assert isinstance(consumer.call.failure, ShuttingDownError)

    async def test_calls_that_end_after_the_node_start_nothing(self, tmp_path: Path) -> None:
        async with leading(tmp_path) as stack:
            await stack.stream("flights")
            await stack.append(1, b"0")
            first, second = await Consumer(stack).join(), await Consumer(stack).join()
            await first.until(0)
        first.refuse(0, delay_s=10)
        second.leave()
        first.leave()
        assert first.driver.is_closed


def test_only_so_many_confirmations_wait_for_a_majority(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoMajority:
        def submit(self, *_: Any, **__: Any) -> None:
            """Nothing is committed."""

        def hurry(self) -> None:
            """However much somebody waits for it."""

    monkeypatch.setattr(ledger_module, "_MAX_CONFIRMATIONS", 3)
    controller: Any = NoMajority()
    ledger = LoggedLedger(controller, 1, 0, lambda *_: None, lambda _: None)
    sink: Any = None
    ledger.acknowledge([(0, 0)])
    ledger.flush()
    for number in range(3):
        ledger.confirm(Confirmation(sink, number, []))
        ledger.flush()
    with pytest.raises(OverloadedError, match="3 confirmations wait"):
        ledger.confirm(Confirmation(sink, 3, []))
