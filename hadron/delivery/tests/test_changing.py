"""Groups that are changed, reset and deleted under their members, over a real log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from hadron.delivery.port import Ack, DeliveryRange
from hadron.delivery.tests.support import Consumer
from hadron.model.errors import (
    FencedError,
    NotFoundError,
    NotReadyError,
    OffsetOutOfRangeError,
    PeerError,
    RequestError,
)
from hadron.serving.tests.stack import Stack, leading, until
from hadron.state.groups.changes import CollectGroups, ResetGroup
from hadron.state.groups.progress import AckRecords, CreateGroup
from hadron.state.streams.retention import TrimStream


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with leading(tmp_path) as stack:
        await stack.stream("flights")
        await stack.stream("letters")
        yield stack


class TestChanging:
    async def test_who_joins_meanwhile_is_not_served_by_what_was_before(
        self, stack: Stack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It has the group's progress in hand while a reset comes to pass."""
        await stack.append(1, b"0", b"1")
        before = await Consumer(stack).join()
        before.acknowledge(0, 1, confirmation=1)
        await before.confirmed(1)
        before.leave()
        await until(lambda: stack.groups.live(1, "billing") is None)
        execute, has_read, is_reset = stack.controller.execute, trio.Event(), trio.Event()

        async def slow(command: Any, *given: Any) -> Any:
            result = await execute(command, *given)
            if isinstance(command, CreateGroup) and not is_reset.is_set():
                has_read.set()
                await is_reset.wait()
            return result

        monkeypatch.setattr(stack.controller, "execute", slow)

        async def reset() -> None:
            await has_read.wait()
            assert await stack.groups.reset(1, "billing", "earliest", force=True) == (2, 0)
            is_reset.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(reset)
            with pytest.raises(NotReadyError, match="join again"):
                await Consumer(stack).join()
        assert (await Consumer(stack).join()).offsets == [0, 1]

    async def test_who_joins_as_leading_ends_is_no_member_of_what_has_ended(
        self, stack: Stack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The groups hear of the end a moment after the log, and what was asked of it was answered
        a moment before."""
        execute = stack.controller.execute

        async def last(command: Any, *given: Any) -> Any:
            result = await execute(command, *given)
            stack.controller.stop(FencedError("another leads"))
            return result

        monkeypatch.setattr(stack.controller, "execute", last)
        late = Consumer(stack)
        with pytest.raises(NotReadyError, match="join again"):
            await late.join()
        assert not late.call.sent

    async def test_what_is_made_to_be_reset_is_not_begun_in_memory_as_well(
        self, stack: Stack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begin = stack.groups._begin_ephemeral

        async def slow(*arguments: Any) -> Any:
            found = await begin(*arguments)
            with pytest.raises(RequestError, match="1 member is connected"):
                await stack.groups.reset(1, "billing", "earliest", create=True)
            return found

        monkeypatch.setattr(stack.groups, "_begin_ephemeral", slow)
        with pytest.raises(NotReadyError, match="join again"):
            await Consumer(stack).join(ephemeral=True)
        assert stack.groups.ephemeral() == []

    async def test_reset(self, stack: Stack) -> None:
        await stack.append(1, *[b"x"] * 6)
        member = await Consumer(stack).join()
        member.acknowledge(0, 2)
        member.acknowledge(4, 4, confirmation=1)
        await member.confirmed(1)
        with pytest.raises(RequestError, match="1 member is connected"):
            await stack.groups.reset(1, "billing", "earliest")
        with pytest.raises(OffsetOutOfRangeError):
            await stack.groups.reset(1, "billing", "7", force=True)
        assert member.call.failure is None
        assert await stack.groups.reset(1, "billing", "1", force=True) == (3, 1)
        assert isinstance(member.call.failure, PeerError)
        assert member.call.failure.retryable
        again = await Consumer(stack).join()
        assert member.fence < again.fence == (*stack.ballot, 1)
        await again.until(1, 2, 3, 4, 5)
        again.say(Ack([DeliveryRange(1, 5, 5)], 1, stack.ballot))
        assert len(await again.confirmed(1)) == 1, "from before the reset"
        again.leave()
        assert await stack.groups.reset(1, "billing", "latest") == (1, 6)
        await collected(stack)
        assert await stack.rows("SELECT * FROM hadron_group_ack") == []

    async def test_members_forget_nothing_for_a_reset_that_is_refused(
        self, stack: Stack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Retention is quicker. What they have acknowledged, and is in doubt, counts as ever."""
        for _ in range(3):
            await stack.append(1, b"x")
        member = await Consumer(stack).join()
        execute = stack.controller.execute

        async def slow(command: Any, *given: Any) -> Any:
            if isinstance(command, ResetGroup):
                await execute(TrimStream(1, 1))
            return await execute(command, *given)

        monkeypatch.setattr(stack.controller, "execute", slow)
        with pytest.raises(OffsetOutOfRangeError):
            await stack.groups.reset(1, "billing", "earliest", force=True)
        assert not isinstance(member.call.failure, NotReadyError), "they would take it for a reset"
        again = await Consumer(stack).join()
        assert again.fence == member.fence

    async def test_what_was_given_back_is_not_acknowledged_by_a_delivery_from_before_a_reset(
        self, stack: Stack
    ) -> None:
        """Nobody holds the record, and the token is of this ballot: it counts no more for that."""
        await stack.append(1, b"0", b"1")
        await (await Consumer(stack).join()).until(0, 1)
        await stack.groups.reset(1, "billing", "earliest", force=True)
        other = await Consumer(stack).join()
        await other.until(0, 1)
        other.refuse(0, 60.0)
        away = await Consumer(stack).join()
        old = DeliveryRange(1, 0, 0)
        for number, ballot in enumerate((stack.ballot, None), 1):
            away.say(Ack([old], number, ballot))
            assert len(await away.confirmed(number)) == 1
        assert away.driver.floor == 0

    async def test_delete(self, stack: Stack) -> None:
        await stack.append(1, *[b"x"] * 6)
        member = await Consumer(stack).join()
        member.acknowledge(0, 2, confirmation=1)
        await member.confirmed(1)
        with pytest.raises(RequestError, match="cannot be deleted"):
            await stack.groups.delete(1, "billing")
        assert await stack.groups.delete(1, "billing", force=True) == 3
        assert member.call.failure is not None
        assert not member.call.failure.retryable, "or it would make the group again"
        with pytest.raises(NotFoundError, match="has no group 'billing'"):
            await stack.groups.delete(1, "billing")
        again = await Consumer(stack).join(2)
        assert again.offsets == [0, 1]
        again.say(Ack([DeliveryRange(1, 5, 5)], 1, stack.ballot))
        assert len(again.events("acked")[-1].refused) == 1, "another group had the name"

    async def test_what_was_left_behind_goes_under_the_next_leader(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with leading(tmp_path) as stack:
            await stack.stream("flights")
            await stack.append(1, *[b"x"] * 6)
            member = await Consumer(stack).join()
            member.acknowledge(4, 4, confirmation=1)
            await member.confirmed(1)
            with monkeypatch.context() as patch:
                patch.setattr(stack.groups, "_left_behind", trio.Event())
                await stack.groups.delete(1, "billing", force=True)
            assert len(await stack.rows("SELECT * FROM hadron_group_garbage")) == 1
        async with leading(tmp_path) as stack:
            await collected(stack)
            assert await stack.rows("SELECT * FROM hadron_group_ack") == []

    async def test_what_is_left_behind_as_the_last_of_it_goes(
        self, stack: Stack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whoever collected had its answer, and not read it yet: the rows stayed, for as long as
        nobody else reset a group."""
        await leave_behind(stack, "first", "second")
        execute, answers = stack.controller.execute, list[bool]()

        async def slow(command: Any, *given: Any) -> Any:
            found = await execute(command, *given)
            if isinstance(command, CollectGroups):
                answers.append(found)
                if answers.count(False) == 1 and not found:
                    await stack.groups.reset(1, "second", "earliest")
            return found

        monkeypatch.setattr(stack.controller, "execute", slow)
        await stack.groups.reset(1, "first", "earliest")
        await until(lambda: False in answers)
        await collected(stack)

    async def test_what_a_reset_leaves_behind_whose_caller_has_gone(
        self, stack: Stack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await leave_behind(stack, "billing")
        commit, held = stack.store.writer.commit, list[tuple[Any, ...]]()
        with monkeypatch.context() as patch:
            patch.setattr(stack.store.writer, "commit", lambda *given: held.append(given))
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(stack.groups.reset, 1, "billing", "earliest")
                    await until(lambda: bool(held))
                    scope.cancel()
            # Whoever collects has had every opportunity to look.
            for _ in range(3):
                await stack.rows("SELECT * FROM hadron_group_garbage")
                await wait_all_tasks_blocked(0.01)
        for given in held:
            commit(*given)
        while not await stack.rows("SELECT * FROM hadron_group WHERE floor = 0"):
            await wait_all_tasks_blocked(0.001)
        await collected(stack)


async def leave_behind(stack: Stack, *names: str) -> None:
    """Groups that leave something behind when they are reset."""
    await stack.append(1, *[b"x"] * 6)
    for name in names:
        made = await stack.controller.execute(CreateGroup(1, name, 1))
        await stack.controller.execute(AckRecords(made.group_id, ((4, 4),)))


async def collected(stack: Stack) -> None:
    """Wait until nothing is left behind."""
    with trio.fail_after(5):
        while await stack.rows("SELECT * FROM hadron_group_garbage"):
            await wait_all_tasks_blocked(0.001)
