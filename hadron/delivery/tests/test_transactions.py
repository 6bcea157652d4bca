"""Records that transactions acknowledge: what becomes of them, and what their members hear."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from hadron.delivery.port import DeliveryRange, Extend
from hadron.delivery.telling import held_back
from hadron.delivery.tests.support import Consumer, progress
from hadron.model.errors import ConflictError, HadronError
from hadron.model.ranges import Range
from hadron.model.transactions import DELETED, DELIVERIES, DONE, Lock, TransactionId
from hadron.serving.tests.stack import SET, Stack, leading, until
from hadron.state.groups import progress as groups
from hadron.state.groups.endings import DeadLetterRecords
from hadron.state.groups.progress import ORDER_STRICT, AckRecords, CreateGroup, Progress
from hadron.state.machine import encode
from hadron.state.transactions.decisions import Decide
from hadron.state.transactions.intents import AbortTransaction, FinishTransaction, WriteIntents

A, B = TransactionId("local/p1", 1, 7, 1), TransactionId("local/p1", 1, 7, 2)


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with leading(tmp_path) as stack:
        await stack.stream("flights")
        yield stack


async def group_id(stack: Stack) -> int:
    ((found,),) = await stack.rows("SELECT group_id FROM hadron_group")
    assert isinstance(found, int)
    return found


async def prepare(stack: Stack, transaction: TransactionId, *ranges: Range) -> int:
    command = AckRecords(await group_id(stack), ranges)
    prepared = await stack.controller.execute(WriteIntents(transaction, 0, (encode(command),)))
    lsn: int = prepared.prepared_lsn
    return lsn


async def finish(stack: Stack, transaction: TransactionId, lsn: int) -> Any:
    return await stack.controller.execute(FinishTransaction(transaction, lsn, 1))


async def abort(stack: Stack, transaction: TransactionId) -> None:
    await stack.controller.execute(AbortTransaction(transaction))


async def member_of(stack: Stack, records: int = 4, **options: Any) -> Consumer:
    await stack.append(1, *[b"x"] * records)
    return await Consumer(stack).join(**options)


class TestAParticipant:
    async def test_what_is_prepared_is_the_transactions_until_it_is_done(
        self, stack: Stack, mock_clock: MockClock
    ) -> None:
        member = await member_of(stack, ack_deadline_ms=10_000)
        await member.until(0, 1, 2, 3)
        lsn = await prepare(stack, A, (1, 2))
        other = await Consumer(stack).join()
        mock_clock.jump(30.0)
        await other.until(0, 3)
        assert len(member.events("revoked")[0].ranges) == 2
        assert await finish(stack, A, lsn) == (DONE,)
        assert [row[1:] for row in await progress(stack)] == [(1, 2)]
        assert member.session.member.credit == 100
        other.acknowledge(0, 0)
        other.acknowledge(3, 3, confirmation=1)
        assert await other.confirmed(1) == []
        assert await progress(stack) == [(4, None, None)]
        assert other.driver.floor == 4

    async def test_its_holder_is_told_whose_it_is(self, stack: Stack) -> None:
        member = await member_of(stack)
        await member.until(0, 1, 2, 3)
        await prepare(stack, A, (1, 2))
        member.acknowledge(0, 3, confirmation=1)
        (refused,) = await member.confirmed(1)
        assert (refused.first_offset, refused.last_offset) == (1, 2)
        member.refuse(1, 0.0)
        told = member.events("conflict")
        assert [(each.transaction, each.ranges[0].first_offset) for each in told] == [
            (str(A), 1),
            (str(A), 1),
        ]
        assert [row[1:] for row in await progress(stack)] == [(3, 3)]
        await abort(stack, A)
        member.acknowledge(1, 2, confirmation=2, delivery=1)
        assert await member.confirmed(2) == []
        assert await progress(stack) == [(4, None, None)], "what it has said before counts now"

    async def test_who_is_still_at_work_does_not_lose_it(self, stack: Stack) -> None:
        member = await member_of(stack, ack_deadline_ms=10_000)
        await member.until(0, 1, 2, 3)
        await prepare(stack, A, (0, 3))
        member.say(Extend([DeliveryRange(1, 0, 3)]))
        assert member.events("revoked") == []

    async def test_what_it_has_done_does_not_come_back_when_its_letter_cannot_be_written(
        self, stack: Stack, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        member = await member_of(
            stack, 3, max_attempts=1, dead_letter_stream=await letters(stack), order=ORDER_STRICT
        )
        execute, held = stack.controller.execute, trio.Event()

        async def refuse(command: Any, body: bytes = b"") -> Any:
            if isinstance(command, DeadLetterRecords):
                await held.wait()
                raise HadronError("no room")
            return await execute(command, body)

        with monkeypatch.context() as patch:
            patch.setattr(stack.controller, "execute", refuse)
            await member.until(0)
            member.refuse(0, 0.0)
            lsn = await prepare(stack, A, (0, 0))
            assert await finish(stack, A, lsn) == (DONE,)
            held.set()
            await member.until(0, 1)
        mock_clock.jump(1_000.0)
        member.acknowledge(1, 1, confirmation=1)
        assert await member.confirmed(1) == []
        await member.until(0, 1, 2)

    async def test_after_a_rollback_somebody_else_gets_what_its_member_left(
        self, stack: Stack
    ) -> None:
        member = await member_of(stack, max_attempts=3, dead_letter_stream=await letters(stack))
        await member.until(0, 1, 2, 3)
        await prepare(stack, A, (0, 1))
        member.leave()
        other = await Consumer(stack).join()
        await other.until(2, 3)
        await abort(stack, A)
        await other.until(2, 3, 0, 1)
        assert [each.attempt for each in other.deliveries] == [2, 2]
        await until(lambda: other.driver.ledger.is_idle)
        tried = await stack.rows("SELECT first, last, attempts FROM hadron_group_attempt")
        assert tried == [(0, 3, 1)]

    async def test_a_group_without_members_is_remembered_meanwhile(self, stack: Stack) -> None:
        member = await member_of(stack)
        await member.until(0, 1, 2, 3)
        lsn = await prepare(stack, A, (0, 1))
        member.leave()
        await wait_all_tasks_blocked(0.001)
        assert stack.groups.live(1, "billing") is not None
        await finish(stack, A, lsn)
        await wait_all_tasks_blocked(0.001)
        assert stack.groups.live(1, "billing") is None

    async def test_who_joins_later_is_not_given_it(self, stack: Stack) -> None:
        member = await member_of(stack, 4)
        await member.until(0, 1, 2, 3)
        member.leave()
        await wait_all_tasks_blocked(0.001)
        assert stack.groups.live(1, "billing") is None
        await prepare(stack, A, (1, 2))
        other = await Consumer(stack).join()
        await other.until(0, 3)
        await abort(stack, A)
        await other.until(0, 3, 1, 2)

    async def test_in_order_what_follows_waits_for_its_end(self, stack: Stack) -> None:
        member = await member_of(stack, 3, order=groups.ORDER_STRICT)
        await member.until(0)
        lsn = await prepare(stack, A, (0, 0))
        await wait_all_tasks_blocked(0.001)
        assert member.offsets == [0]
        assert f"transaction {A} is acknowledging" in held_back(member.driver.machine, 3)
        await finish(stack, A, lsn)
        await member.until(0, 1)

    async def test_what_is_reset_meanwhile_is_not_done(self, stack: Stack) -> None:
        member = await member_of(stack, 2)
        await member.until(0, 1)
        lsn = await prepare(stack, A, (0, 1))
        await stack.groups.reset(1, "billing", "earliest", force=True)
        other = await Consumer(stack).join()
        await other.until(0, 1)
        assert await finish(stack, A, lsn) == (DELETED,)
        other.acknowledge(0, 1, confirmation=1)
        assert await other.confirmed(1) == []

    async def test_a_deletion_ends_it_too(self, stack: Stack) -> None:
        member = await member_of(stack, 2)
        await member.until(0, 1)
        lsn = await prepare(stack, A, (0, 1))
        await stack.groups.delete(1, "billing", force=True)
        assert await finish(stack, A, lsn) == (DELETED,)
        assert stack.locks.held(DELIVERIES, 1) == []

    async def test_an_acknowledgement_that_the_log_has_after_the_prepare(
        self, stack: Stack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The leader had counted it: the group is served anew, and its members hear of it."""
        member = await member_of(stack)
        await member.until(0, 1, 2, 3)
        with monkeypatch.context() as patch:
            # As if it was not committed yet.
            patch.setattr(member.driver, "take", lambda *_: None)
            await prepare(stack, A, (1, 1))
        member.acknowledge(0, 1)
        await member.call.until(lambda: member.call.failure is not None)
        assert "is served anew" in str(member.call.failure)
        other = await Consumer(stack).join()
        await other.until(0, 2, 3)
        assert await progress(stack) == [(0, None, None)]


class TestTheDriversOwn:
    """Statements of the own replica set's transactions are in no table before they are decided."""

    async def test_they_are_taken_while_their_transaction_is_open(self, stack: Stack) -> None:
        member = await member_of(stack)
        await member.until(0, 1, 2, 3)
        own = TransactionId.of(SET, stack.controller.ballot, 1)
        command = AckRecords(await group_id(stack), ((0, 1),))
        lock = Lock(DELIVERIES, command.group_id, "", command.ranges)
        assert stack.locks.take(own, [lock]) == [lock]
        with pytest.raises(ConflictError, match=f"transaction {own} holds offsets 0 to 1"):
            stack.locks.take(A, [lock])
        member.acknowledge(0, 3, confirmation=1)
        assert await member.confirmed(1) != []
        await stack.controller.execute(Decide(own, (), (encode(command),)))
        assert await progress(stack) == [(4, None, None)]
        assert (member.driver.floor, member.driver.machine.taken.records) == (4, 0)
        assert stack.locks.held(DELIVERIES, command.group_id) == []

    async def test_rolled_back_they_are_their_members_again(self, stack: Stack) -> None:
        member = await member_of(stack)
        await member.until(0, 1, 2, 3)
        own = TransactionId.of(SET, stack.controller.ballot, 1)
        lock = Lock(DELIVERIES, await group_id(stack), "", ((0, 1),))
        stack.locks.free(own, stack.locks.take(own, [lock]))
        member.acknowledge(0, 3, confirmation=1)
        assert await member.confirmed(1) == []

    async def test_what_their_member_gives_back_before_their_leader_hears_of_the_rollback(
        self, stack: Stack
    ) -> None:
        """They were with it for ever: it had said all that it had to say of them."""
        member = await member_of(stack)
        await member.until(0, 1, 2, 3)
        own = TransactionId.of(SET, stack.controller.ballot, 1)
        lock = Lock(DELIVERIES, await group_id(stack), "", ((0, 1),))
        taken = stack.locks.take(own, [lock])
        member.refuse(0, 0.0)
        member.acknowledge(1, 1)
        other = await Consumer(stack).join()
        assert other.offsets == []
        stack.locks.free(own, taken)
        await other.until(0)
        assert other.deliveries[0].attempt == 2
        assert member.session.member.credit == 98
        other.acknowledge(0, 0, confirmation=1)
        assert await other.confirmed(1) == []
        assert await progress(stack) == [(2, None, None)]

    async def test_what_was_decided_while_somebody_joins(
        self, stack: Stack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What was read of the group is older than what a transaction has acknowledged since."""
        member = await member_of(stack)
        await member.until(0, 1, 2, 3)
        member.leave()
        await wait_all_tasks_blocked(0.001)
        command = AckRecords(await group_id(stack), ((0, 1),))
        own = TransactionId.of(SET, stack.controller.ballot, 1)
        original = stack.groups._create
        times = 0

        async def create(*given: Any) -> Progress:
            nonlocal times
            times += 1
            found = await original(*given)
            if times == 1:
                await stack.controller.execute(Decide(own, (), (encode(command),)))
            return found

        monkeypatch.setattr(stack.groups, "_create", create)
        with trio.fail_after(10):
            other = await Consumer(stack).join()
            await other.until(2, 3)
        assert times == 2


class TestWhoJoinsWhileTransactionsAcknowledge:
    """One acknowledges in each round in which the group is read."""

    async def test_beside_other_members(
        self, stack: Stack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It could not, for as long as they went on; their driver had heard of all of it."""
        member = await member_of(stack, 100)
        await member.until(*range(100))
        rounds = acknowledging(stack, monkeypatch, [(n, n) for n in range(99)])
        other = await Consumer(stack).join()
        assert len(rounds) == 1
        assert other.driver is member.driver
        assert other.driver.floor == len(rounds)

    async def test_as_the_first(self, stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
        """What acknowledges where nobody is served was prepared before, and comes to an end."""
        member = await member_of(stack, 6)
        await member.until(0, 1, 2, 3, 4, 5)
        member.leave()
        await wait_all_tasks_blocked(0.001)
        assert stack.groups.live(1, "billing") is None
        rounds = acknowledging(stack, monkeypatch, [(0, 0), (2, 2), (4, 4)])
        other = await Consumer(stack).join()
        await other.until(1, 3, 5)
        assert len(rounds) == 4

    async def test_of_two_that_come_first_together(
        self, stack: Stack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The one that is quicker makes the driver, and the other one has no more to read."""
        member = await member_of(stack, 6)
        await member.until(0, 1, 2, 3, 4, 5)
        member.leave()
        await wait_all_tasks_blocked(0.001)
        acknowledging(stack, monkeypatch, [(0, 0), (2, 2)])
        others = [Consumer(stack), Consumer(stack)]
        async with trio.open_nursery() as nursery:
            for other in others:
                nursery.start_soon(other.join)
        assert others[0].driver is others[1].driver
        await others[0].call.until(lambda: len(others[0].offsets) + len(others[1].offsets) == 4)
        assert sorted(others[0].offsets + others[1].offsets) == [1, 3, 4, 5]


def acknowledging(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, ranges: Sequence[Range]
) -> list[Range | None]:
    """Of each round in which somebody reads the group, what a transaction acknowledges before who
    reads it can go on; None once they all have."""
    original = stack.controller.execute
    left, rounds = list(ranges), list[Range | None]()

    async def execute(command: Any, body: bytes = b"") -> Any:
        found = await original(command, body)
        if isinstance(command, CreateGroup):
            rounds.append(left.pop(0) if left else None)
            if (mine := rounds[-1]) is not None:
                own = TransactionId.of(SET, stack.controller.ballot, len(rounds))
                acks = AckRecords(found.group_id, (mine,))
                await original(Decide(own, (), (encode(acks),)))
        return found

    monkeypatch.setattr(stack.controller, "execute", execute)
    return rounds


async def letters(stack: Stack) -> str:
    await stack.stream("letters")
    return "letters"
