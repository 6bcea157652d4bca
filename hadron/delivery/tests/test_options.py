"""Groups with options over a real log: deadlines, heartbeats, order, dead letters, and the rest."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from hadron.delivery import groups as module
from hadron.delivery import letters, machine
from hadron.delivery.port import Ack, DeliveryRange, Extend, Flow, Heartbeat
from hadron.delivery.telling import held_back
from hadron.delivery.tests.support import Consumer, progress
from hadron.model.batch_building import BatchBuilder
from hadron.model.errors import (
    DeadlineExceededError,
    HadronError,
    NotReadyError,
    OffsetOutOfRangeError,
    RequestError,
)
from hadron.model.record import NewRecord
from hadron.model.record_batch import decode_batch
from hadron.model.schema import INDEXED, StreamSpec
from hadron.serving.tests.stack import Stack, leading, until
from hadron.state.groups import progress as groups
from hadron.state.groups import views as group_views
from hadron.state.groups.endings import DeadLetterRecords
from hadron.state.groups.progress import ORDER_KEY, ORDER_STRICT
from hadron.state.schema import DeleteObjects
from hadron.state.streams.retention import TrimStream

LETTERS: dict[str, Any] = {"max_attempts": 2, "dead_letter_stream": "letters"}


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with leading(tmp_path) as stack:
        await stack.stream("flights")
        await stack.stream("letters")
        yield stack


def keyed(records: Sequence[tuple[str, str]]) -> bytes:
    """A batch of (key, value)."""
    builder = BatchBuilder()
    for key, value in records:
        builder.add(
            NewRecord(value=value, key=key, type="t", headers={"h": key}, id=f"id-{value}"), 77
        )
    return builder.build(codec="zstd")


class TestOptions:
    async def test_they_are_told_and_kept(self, stack: Stack) -> None:
        wanted: dict[str, Any] = {"order": ORDER_KEY, "ack_deadline_ms": 9_000, **LETTERS}
        first = await Consumer(stack).join(**wanted)
        again = await Consumer(stack).join()
        for member in (first, again):
            told = member.call.sent[0][0].opened.options
            assert (told.order, told.ack_deadline_ms, told.max_attempts) == (2, 9_000, 2)
            assert (told.dead_letter_stream, told.ephemeral) == ("letters", False)

    @pytest.mark.parametrize(
        ("wanted", "message"),
        [
            ({"order": 1}, "has order 'key', this member asks for 'strict'"),
            ({"ack_deadline_ms": 1}, "has ack_deadline_s 0, this member asks for 0.001"),
            ({"max_attempts": 3}, "has max_attempts 2, this member asks for 3"),
            ({"dead_letter_stream": "x"}, "has dead_letter 'letters', this member asks"),
            ({"ephemeral": True}, "has ephemeral false, this member asks for true"),
        ],
    )
    async def test_others_are_refused_with_both_values(
        self, stack: Stack, wanted: dict[str, Any], message: str
    ) -> None:
        member = await Consumer(stack).join(order=ORDER_KEY, **LETTERS)
        with pytest.raises(RequestError, match=message):
            await Consumer(stack).join(**wanted)
        member.leave()
        await until(lambda: stack.groups.live(1, "billing") is None)
        with pytest.raises(RequestError, match=message):
            await Consumer(stack).join(**wanted)
        assert stack.groups.live(1, "billing") is None

    async def test_a_dead_letter_stream_that_was_deleted_is_told(self, stack: Stack) -> None:
        member = await Consumer(stack).join(**LETTERS)
        member.leave()
        await until(lambda: stack.groups.live(1, "billing") is None)
        letters, _ = stack.catalog.stream("default", "letters")
        await stack.controller.execute(DeleteObjects(stack.catalog.metadata_index, (letters.id,)))
        with pytest.raises(RequestError, match="dead letter stream of group 'billing' was deleted"):
            await Consumer(stack).join(**LETTERS)
        # Who names no options goes on.
        await Consumer(stack).join()

    @pytest.mark.parametrize(
        ("wanted", "message"),
        [
            ({"max_attempts": 3}, "max_attempts 3 and no dead letter stream"),
            ({"dead_letter_stream": "letters"}, "max_attempts 0 and the dead letter stream"),
            ({"max_attempts": 3, "dead_letter_stream": "nowhere"}, "'nowhere' does not exist"),
            ({"max_attempts": 3, "dead_letter_stream": "flights"}, "its own dead letter stream"),
            ({"max_attempts": 3, "dead_letter_stream": "far"}, "has no partition on local/p0"),
            ({"max_attempts": 3, "dead_letter_stream": "keyed"}, "has an index of keys"),
            ({"max_attempts": 1_001}, "max_attempts is 1001, it may be 0 to 1000"),
            ({"order": 3}, "order is 3, it may be 0 to 2"),
            ({"heartbeat_threshold": 0}, "heartbeat_threshold is 0"),
            ({"batch_wait_ms": 60_001}, "batch_wait_ms is 60001"),
            ({"member": "x" * 201}, "201 characters"),
            ({"start": "@12x"}, "cannot start at '@12x'"),
        ],
    )
    async def test_what_makes_no_sense_is_refused(
        self, stack: Stack, wanted: dict[str, Any], message: str
    ) -> None:
        await stack.declare("Stream", "far", StreamSpec(partitions=("local/p1",)))
        await stack.declare("Stream", "keyed", StreamSpec(partitions=("local/p0",), keys=INDEXED))
        with pytest.raises(RequestError, match=message):
            await Consumer(stack).join(**wanted)
        assert await stack.rows("SELECT * FROM hadron_group") == []

    async def test_a_start_in_time(self, stack: Stack, mock_clock: MockClock) -> None:
        await stack.append(1, b"0", b"1")
        mock_clock.jump(10)
        at_ms = stack.clock.now_ms()
        await stack.append(1, b"2")
        member = await Consumer(stack).join(start=f"@{at_ms}")
        assert member.offsets == [2]


class TestDeadlines:
    async def test_records_go_on_to_another_member(
        self, stack: Stack, mock_clock: MockClock
    ) -> None:
        await stack.append(1, b"0", b"1", b"2")
        slow = await Consumer(stack).join(ack_deadline_ms=30_000)
        await slow.until(0, 1, 2)
        slow.acknowledge(0, 0, confirmation=1)
        await slow.confirmed(1)
        other = await Consumer(stack).join()
        mock_clock.jump(20)
        slow.say(Extend())
        mock_clock.jump(20)
        await until(lambda: True)
        assert slow.events("revoked") == []
        mock_clock.jump(11)
        await other.until(1, 2)
        (revoked,) = slow.events("revoked")
        assert [(r.delivery, r.first_offset, r.last_offset) for r in revoked.ranges] == [(1, 1, 2)]
        assert (revoked.reason, other.deliveries[0].attempt) == ("ack deadline", 2)
        slow.acknowledge(1, 2, confirmation=2)
        assert len(await slow.confirmed(2)) == 1
        slow.say(Extend([DeliveryRange(1, 1, 2)]))
        assert slow.events("revoked")[-1].reason == "not held"
        assert await stack.rows("SELECT first, last, attempts FROM hadron_group_attempt") == [
            (1, 2, 1)
        ]


class TestHeartbeats:
    async def test_who_left_long_ago_is_not_remembered(self, stack: Stack) -> None:
        """Members that come and go, and have promised to be heard of within days."""
        await stack.append(1, b"0")
        promise: dict[str, Any] = {"heartbeat_interval_ms": 3_600_000, "heartbeat_threshold": 100}
        stays = await Consumer(stack).join(**promise)
        for _ in range(300):
            (await Consumer(stack).join(**promise)).leave()
        assert len(stays.driver._silence._heap) < 100

    async def test_who_falls_silent_loses_its_records(
        self, stack: Stack, mock_clock: MockClock
    ) -> None:
        await stack.append(1, b"0", b"1")
        silent = await Consumer(stack).join(
            member="worker-7", heartbeat_interval_ms=2_000, heartbeat_threshold=4
        )
        other = await Consumer(stack).join()
        for _ in range(3):
            mock_clock.jump(7.9)
            silent.say(Heartbeat())
            await trio.testing.wait_all_tasks_blocked()  # Who has been heard of is watched on.
        assert len(silent.events("heartbeat")) == 3
        assert other.offsets == []
        mock_clock.jump(8.1)
        await other.until(0, 1)
        assert isinstance(silent.call.failure, DeadlineExceededError)
        assert "worker-7 of group 'billing'" in str(silent.call.failure)
        silent.leave()
        assert other.driver.members == 1

    async def test_who_is_not_listened_to_is_not_silent(
        self, stack: Stack, mock_clock: MockClock
    ) -> None:
        """Its connection is not read, as too much waits for it there."""
        await stack.append(1, b"0")
        member = await Consumer(stack).join(heartbeat_interval_ms=1_000, heartbeat_threshold=3)
        other = await Consumer(stack).join()
        assert member.offsets == [0]
        mock_clock.jump(2.9)
        for _ in range(100):
            member.call.origin.deaf_s += 0.1
            mock_clock.jump(0.1)
            await trio.testing.wait_all_tasks_blocked()
        assert member.call.failure is None
        member.say(Heartbeat())
        mock_clock.jump(2.9)
        await trio.testing.wait_all_tasks_blocked()
        assert other.offsets == []
        mock_clock.jump(0.2)
        await other.until(0)
        assert isinstance(member.call.failure, DeadlineExceededError)

    async def test_who_promises_nothing_may_be_silent(
        self, stack: Stack, mock_clock: MockClock
    ) -> None:
        await stack.append(1, b"0")
        member = await Consumer(stack).join()
        mock_clock.jump(100_000)
        await until(lambda: True)
        assert (member.call.failure, member.driver.members) == (None, 1)


class TestRest:
    async def test_what_is_due_and_nobody_takes_is_not_asked_for_all_the_time(
        self, stack: Stack, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Found by the simulator: a node whose loop did nothing else."""
        await stack.append(1, b"0", b"1")
        gone = await Consumer(stack).join(1, ack_deadline_ms=60_000)
        full = await Consumer(stack).join(1)
        await gone.until(0)
        await full.until(1)
        gone.leave()
        full.say(Flow(1))
        pumps = 0
        pump = full.driver.pump

        def counted() -> None:
            nonlocal pumps
            pumps += 1
            pump()

        monkeypatch.setattr(full.driver, "pump", counted)
        mock_clock.jump(30)
        for _ in range(20):
            await until(lambda: True)
        assert pumps <= 2
        assert full.offsets == [1]


class TestFlow:
    async def test_a_member_changes_its_window(self, stack: Stack) -> None:
        await stack.append(1, *[b"x"] * 10)
        member = await Consumer(stack).join(4)
        await member.until(0, 1, 2, 3)
        member.say(Flow(0))
        member.acknowledge(0, 3, confirmation=1)
        await member.confirmed(1)
        assert len(member.offsets) == 4
        member.say(Flow(6))
        await member.until(*range(10))
        with pytest.raises(RequestError, match="max_in_flight is 4294967295"):
            member.say(Flow((1 << 32) - 1))

    async def test_batches_come_when_full_or_after_a_while(
        self, stack: Stack, mock_clock: MockClock
    ) -> None:
        member = await Consumer(stack).join(batch_size=4, batch_wait_ms=5_000)
        for _ in range(3):
            await stack.append(1, b"x")
        assert member.offsets == []
        await stack.append(1, b"x")
        await member.until(0, 1, 2, 3)
        assert [d.ends_batch for d in member.deliveries] == [False, False, False, True]
        await stack.append(1, b"x")
        await stack.append(1, b"x")
        mock_clock.jump(5.1)
        await member.until(*range(6))
        assert [d.ends_batch for d in member.deliveries][4:] == [False, True]

    async def test_a_batch_that_cannot_go_on_is_ended(self, stack: Stack) -> None:
        member = await Consumer(stack).join(batch_size=4, batch_wait_ms=5_000)
        for _ in range(3):
            await stack.append(1, b"x")
        member.call.writable = False
        await stack.append(1, b"x")
        send, sent = member.call.send, 0

        def full_after_one(*args: Any) -> None:
            nonlocal sent
            send(*args)
            sent += 1
            member.call.writable = sent < 1

        member.call.writable = True
        member.call.send = full_after_one  # type: ignore[method-assign, assignment]
        member.call.on_writable()
        assert member.offsets == [0]
        assert len(member.events("batch_end")) == 1


class TestOrder:
    async def test_strict(self, stack: Stack) -> None:
        await stack.append(1, *[b"x"] * 3)
        one = await Consumer(stack).join(order=ORDER_STRICT)
        other = await Consumer(stack).join()
        assert (one.offsets, other.offsets) == ([0], [])
        one.refuse(0, 0)
        assert (one.offsets, other.offsets) == ([0], [0])
        other.acknowledge(0, 0)
        assert other.offsets == [0], "not before it is committed"
        await one.call.until(lambda: one.offsets == [0, 1])
        one.leave()
        assert other.offsets == [0, 1]

    async def test_by_key(self, stack: Stack) -> None:
        """The batch is compressed: only its index section was looked at."""
        data = keyed([("a", "0"), ("b", "1"), ("a", "2"), ("c", "3"), ("b", "4")])
        await stack.append(1, data=data)
        member = await Consumer(stack).join(order=ORDER_KEY)
        assert member.offsets == [0, 1, 3]
        member.refuse(1, 3_600)
        member.acknowledge(0, 0)
        await member.until(0, 1, 3, 2)
        assert member.driver.machine.keys is not None
        assert member.driver.machine.keys.behind == 1


class TestDeadLetters:
    async def test_a_record_is_written_again_and_acknowledged(self, stack: Stack) -> None:
        await stack.append(1, data=keyed([("a", "0"), ("b", "1"), ("c", "2")]))
        member = await Consumer(stack).join(**LETTERS)
        await member.until(0, 1, 2)
        member.refuse(1, 0, "no such flight")
        await member.until(0, 1, 2, 1)
        member.refuse(1, 0, "no such flight")
        watched: list[int] = []
        stack.visible.watch(2, lambda: watched.append(1))
        await until(lambda: bool(watched))
        (letter,) = await stack.read(2)
        (record,) = decode_batch(letter.data).records()
        assert (record.value, record.key, record.type, record.id) == ("1", "b", "t", "id-1")
        assert record.timestamp_ms == 77
        assert record.headers == {
            "h": "b",
            letters.REASON: "no such flight",
            letters.ATTEMPTS: "2",
            letters.ORIGIN_STREAM: "flights",
            letters.ORIGIN_PARTITION: "local/p0",
            letters.ORIGIN_OFFSET: "1",
            letters.GROUP: "billing",
        }
        member.acknowledge(0, 0)
        member.acknowledge(2, 2, confirmation=1)
        await member.confirmed(1)
        assert await progress(stack) == [(3, None, None)]
        (summary,) = await stack.controller.query(group_views.summaries)
        assert summary.dead_lettered == 1
        assert await stack.rows("SELECT * FROM hadron_group_attempt") == []

    async def test_attempts_count_across_leaders(self, tmp_path: Path) -> None:
        for leader in range(3):
            async with leading(tmp_path) as stack:
                if not leader:
                    await stack.stream("flights")
                    await stack.stream("letters")
                    await stack.append(1, b"0", b"1")
                member = await Consumer(stack).join(1, **LETTERS)
                if leader < 2:
                    await member.until(0)
                    assert member.deliveries[0].attempt == leader + 1
                    member.leave()
                    await until(lambda: stack.groups.live(1, "billing") is None)
                else:
                    await member.until(1)
                    await until(lambda: bool(stack.visible.bounds(2).next_offset))
                    (letter,) = await stack.read(2)
                    (record,) = decode_batch(letter.data).records()
                    assert record.headers[letters.REASON] == "its member has gone"

    async def test_one_that_cannot_be_written_is_delivered_again(
        self, stack: Stack, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
    ) -> None:
        await stack.append(1, b"0")
        member = await Consumer(stack).join(**LETTERS)
        execute = stack.controller.execute

        async def refuse(command: Any, body: bytes = b"") -> Any:
            if isinstance(command, DeadLetterRecords):
                raise HadronError("no room")
            return await execute(command, body)

        with monkeypatch.context() as patch:
            patch.setattr(stack.controller, "execute", refuse)
            member.refuse(0, 0)
            member.refuse(0, 0)
            await until(lambda: bool(member.driver.machine.waiting))
            mock_clock.jump(5.1)
            await member.until(0, 0, 0)
            assert member.deliveries[-1].attempt == 3
            member.refuse(0, 0)
            await until(lambda: bool(member.driver.machine.waiting))
            mock_clock.jump(5.1)
            assert member.offsets == [0, 0, 0], "twice as long each time"
        mock_clock.jump(5.0)
        await member.until(0, 0, 0, 0)
        member.refuse(0, 0)
        await until(lambda: stack.visible.bounds(2).next_offset == 1)

    async def test_of_several_those_that_are_written_are_delivered_no_more(
        self, stack: Stack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They stand together, in three batches; the stream is gone when the first is written."""
        for value in (b"0", b"1", b"2"):
            await stack.append(1, value)
        member = await Consumer(stack).join(**{**LETTERS, "max_attempts": 1})
        other = await Consumer(stack).join()
        await until(lambda: len(member.offsets + other.offsets) == 3)
        execute, letter = stack.controller.execute, stack.catalog.stream("default", "letters")[0].id

        async def delete_behind(command: Any, body: bytes = b"") -> Any:
            result = await execute(command, body)
            if isinstance(command, DeadLetterRecords) and stack.visible.bounds(letter).next_offset:
                await execute(DeleteObjects(stack.catalog.metadata_index, (letter,)))
            return result

        monkeypatch.setattr(stack.controller, "execute", delete_behind)
        machine = member.driver.machine
        given_back = [
            machine.refuse(each.member, each.number, 0, 2, 0.0).exhausted[0]
            for each in list(machine.held)
        ]
        member.driver._letters.write(sorted(given_back, key=lambda dead: dead.first))
        await until(lambda: bool(machine.waiting))
        assert machine.waiting.ranges() == [(1, 2)]
        assert machine.floor == 1

    def test_letters_that_nobody_can_write_are_tried_ever_more_rarely(self) -> None:
        pauses = [letters.pause_s(times, 1.0) for times in (1, 2, 3, 7, 8, 10_000)]
        assert pauses == [5.0, 10.0, 20.0, 300.0, 300.0, 300.0]
        assert letters.pause_s(1, 0.5) == 2.5

    async def test_one_that_was_acknowledged_after_all_does_not_take_others_along(
        self, stack: Stack
    ) -> None:
        """The whole of them is refused then; the rest would be neither acknowledged, nor in the
        dead letters, nor with anybody, until the leader changes."""
        await stack.append(1, *[b"0", b"1", b"2"])
        member = await Consumer(stack).join(**{**LETTERS, "max_attempts": 1})
        await member.until(0, 1, 2)
        group_id = member.driver.progress.group_id
        await stack.controller.execute(groups.AckRecords(group_id, ((1, 1),)))
        member.leave()
        await until(lambda: stack.groups.live(1, "billing") is None)
        assert await progress(stack) == [(3, None, None)]
        found = [
            record.headers[letters.ORIGIN_OFFSET]
            for batch in await stack.read(2)
            for record in decode_batch(batch.data).records()
        ]
        assert found == ["0", "2"]

    async def test_those_that_wait_to_be_written_hold_back_what_is_new(
        self, stack: Stack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A member gives everything back, faster than dead letters are committed: what waits to be
        written would fill the leader's memory."""
        monkeypatch.setattr(machine, "MAX_UNSETTLED", 10)
        await stack.append(1, *[b"x"] * 100)
        execute, gate = stack.controller.execute, trio.Event()

        async def slow(command: Any, body: bytes = b"") -> Any:
            if isinstance(command, DeadLetterRecords):
                await gate.wait()
            return await execute(command, body)

        monkeypatch.setattr(stack.controller, "execute", slow)
        member = await Consumer(stack).join(1, **{**LETTERS, "max_attempts": 1})

        def has(count: int) -> bool:
            return len(member.offsets) >= count

        async def give_back() -> None:
            for number in range(100):
                await member.call.until(partial(has, number + 1))
                member.refuse(member.offsets[number], 0, f"reason {number}")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(give_back)
            await until(lambda: member.driver.machine.dying == 10)
            assert "the limit" in held_back(member.driver.machine, 100)
            assert len(member.offsets) == 10
            gate.set()
        await until(lambda: stack.visible.bounds(2).next_offset == 100)

    async def test_neighbours_are_written_together(self, stack: Stack) -> None:
        await stack.append(1, *[b"x"] * 50)
        member = await Consumer(stack).join(**{**LETTERS, "max_attempts": 1})
        await member.call.until(lambda: len(member.offsets) == 50)
        for offset in range(50):
            member.refuse(offset, 0, "all of them")
        await until(lambda: stack.visible.bounds(2).next_offset == 50)
        assert len(await stack.read(2)) <= 2

    async def test_what_retention_has_overtaken_is_no_dead_letter(self, stack: Stack) -> None:
        await stack.append(1, b"0")
        await stack.append(1, b"1")
        member = await Consumer(stack).join(**{**LETTERS, "max_attempts": 1})
        await stack.controller.execute(TrimStream(1, 1))
        member.refuse(0, 0)
        member.refuse(1, 0)
        await until(lambda: member.driver.machine.floor == 2)
        assert stack.visible.bounds(2).next_offset == 1

    async def test_a_largest_record_fits_with_its_headers(self, stack: Stack) -> None:
        value = b"x" * ((1 << 20) - 100)
        await stack.append(1, value)
        await stack.append(1, value)
        member = await Consumer(stack).join(**{**LETTERS, "max_attempts": 1})
        member.leave()
        await until(lambda: stack.visible.bounds(2).next_offset == 2)


class TestServedAnew:
    async def test_who_was_just_joining_does_not_begin_with_what_was_known_before(
        self, stack: Stack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What it has read of the group is older than what the driver that gave up has logged:
        acknowledged records would be delivered again."""
        await stack.append(1, *[b"x"] * 3)
        member = await Consumer(stack).join(1)
        await member.until(0)
        create = stack.groups._create

        async def slow(*arguments: Any) -> Any:
            progress = await create(*arguments)
            monkeypatch.undo()
            member.acknowledge(0, 0, confirmation=1)
            await member.confirmed(1)
            member.driver._give_up(HadronError("a batch is damaged"))
            return progress

        monkeypatch.setattr(stack.groups, "_create", slow)
        with pytest.raises(NotReadyError, match="join again"):
            await Consumer(stack).join(1)
        again = await Consumer(stack).join(1)
        await again.until(1)

    async def test_who_gave_up_writes_no_dead_letter_any_more(
        self, stack: Stack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """That an attempt has ended is in no log yet, so the next driver delivers the record again,
        and it is acknowledged: it would be dealt with, and a dead letter."""
        await stack.append(1, b"0")
        member = await Consumer(stack).join(**{**LETTERS, "max_attempts": 1})
        await member.until(0)
        read, held, reads = stack.visible.read, trio.Event(), trio.Event()

        async def slow(*arguments: Any) -> Any:
            batches = await read(*arguments)
            reads.set()
            await held.wait()
            return batches

        monkeypatch.setattr(stack.visible, "read", slow)
        with monkeypatch.context() as patch:
            # As if it were on its way for long.
            patch.setattr(stack.controller, "submit", lambda *_, **__: None)
            member.refuse(0, 0)
        await reads.wait()
        monkeypatch.undo()
        member.driver._give_up(HadronError("a batch is damaged"))
        again = await Consumer(stack).join()
        await again.until(0)
        held.set()
        await until(lambda: member.driver._letters.is_idle)
        again.acknowledge(0, 0, confirmation=1)
        assert await again.confirmed(1) == []
        assert stack.visible.bounds(2).next_offset == 0

    async def test_who_gave_up_acknowledges_nothing_any_more(self, stack: Stack) -> None:
        """The next driver has delivered it again: it would be settled while a member holds it."""
        await stack.append(1, *[b"x"] * 3)
        member = await Consumer(stack).join()
        await member.until(0, 1, 2)
        member.acknowledge(0, 0)
        # The first is on its way into the log, and this one waits until that is there.
        member.acknowledge(2, 2)
        member.driver._give_up(HadronError("a batch is damaged"))
        again = await Consumer(stack).join()
        await again.until(1, 2)
        again.acknowledge(1, 1, confirmation=1)
        await again.confirmed(1)
        assert await progress(stack) == [(2, None, None)]

    async def test_members_take_nothing_but_a_reset_for_one(self, stack: Stack) -> None:
        """A `NotReadyError` would make them forget what they have acknowledged."""
        member = await Consumer(stack).join(1)
        member.driver._give_up(NotReadyError("1 of 3 members answered"))
        failure = member.call.failure
        assert failure is not None
        assert failure.retryable
        assert not isinstance(failure, NotReadyError)


class TestReading:
    @pytest.mark.parametrize(
        "error", [OffsetOutOfRangeError("offset 0 is gone"), NotReadyError("just dropping it")]
    )
    async def test_retention_that_overtakes_a_read_ends_nobodys_membership(
        self,
        stack: Stack,
        monkeypatch: pytest.MonkeyPatch,
        mock_clock: MockClock,
        error: HadronError,
    ) -> None:
        """The first would end it for good, the second mean a reset: the member would forget what
        it has acknowledged, and an ephemeral group where it was."""
        await stack.append(1, b"0")
        await stack.append(1, b"1")
        monkeypatch.setattr(stack.visible, "recent", lambda *_: None)
        read = stack.visible.read
        refusals = [error]

        async def racing(stream_id: int, offset: int, max_bytes: int) -> Any:
            if refusals:
                await stack.controller.execute(TrimStream(1, 1))
                raise refusals.pop()
            return await read(stream_id, offset, max_bytes)

        monkeypatch.setattr(stack.visible, "read", racing)
        member = await Consumer(stack).join()
        await until(lambda: not refusals)
        mock_clock.jump(1.0)
        await member.until(1)
        assert member.call.failure is None


class TestWindows:
    async def test_a_group_with_many_ranges_is_read_piece_by_piece(
        self, stack: Stack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for _ in range(20):
            await stack.append(1, *[b"x"] * 10)
        member = await Consumer(stack).join(1_000)
        await member.call.until(lambda: len(member.offsets) == 200)
        for offset in range(1, 200, 2):
            member.acknowledge(offset, offset)
        member.acknowledge(199, 199, confirmation=1)
        await member.confirmed(1)
        member.leave()
        await until(lambda: stack.groups.live(1, "billing") is None)
        whole = groups.window
        monkeypatch.setattr(
            groups, "window", lambda db, group, offset, rows=7: whole(db, group, offset, rows)
        )
        again = await Consumer(stack).join(1_000)
        await again.until(*range(0, 200, 2))


class TestEphemeral:
    async def test_its_floor_goes_over_what_retention_has_dropped(self, stack: Stack) -> None:
        for value in (b"0", b"1", b"2"):
            await stack.append(1, value)
        member = await Consumer(stack).join(ephemeral=True)
        await member.until(0, 1, 2)
        member.acknowledge(1, 1)
        member.acknowledge(2, 2)
        await stack.controller.execute(TrimStream(1, 1))
        await until(lambda: stack.visible.bounds(1).first_offset == 1)
        member.driver.pump()
        assert member.driver.floor == 3

    async def test_it_is_remembered_for_a_while(self, stack: Stack, mock_clock: MockClock) -> None:
        await stack.append(1, *[b"x"] * 4)
        member = await Consumer(stack).join(2, ephemeral=True)
        await member.until(0, 1)
        member.acknowledge(0, 1, confirmation=1)
        assert await member.confirmed(1) == []
        assert member.events("acked")[0].floor == 2
        await member.until(0, 1, 2, 3)
        member.leave()
        assert await stack.rows("SELECT * FROM hadron_group") == []
        mock_clock.jump(module.EPHEMERAL_GRACE_S - 1)
        again = await Consumer(stack).join(2)
        await again.until(2, 3)
        again.leave()
        mock_clock.jump(module.EPHEMERAL_GRACE_S - 1)
        await until(lambda: True)
        assert [driver.progress.name for driver in stack.groups.ephemeral()] == ["billing"]
        mock_clock.jump(2)
        await until(lambda: not stack.groups.ephemeral())

    async def test_who_comes_back_to_another_leader_says_where_it_was(self, stack: Stack) -> None:
        await stack.append(1, *[b"x"] * 4)
        member = await Consumer(stack).join(ephemeral=True, resume_offset=3)
        assert member.offsets == [3]

    async def test_a_durable_one_of_that_name_is_not_joined(self, stack: Stack) -> None:
        (await Consumer(stack).join()).leave()
        with pytest.raises(RequestError, match="ephemeral false"):
            await Consumer(stack).join(ephemeral=True)

    async def test_its_dead_letters_are_written_too(self, stack: Stack) -> None:
        await stack.append(1, b"0", b"1")
        member = await Consumer(stack).join(ephemeral=True, **{**LETTERS, "max_attempts": 1})
        member.refuse(0, 0)
        await until(lambda: member.driver.floor == 1)
        assert stack.visible.bounds(2).next_offset == 1

    async def test_it_can_be_reset_and_deleted(self, stack: Stack) -> None:
        await stack.append(1, b"0", b"1")
        member = await Consumer(stack).join(ephemeral=True)
        member.acknowledge(0, 1, confirmation=1)
        member.leave()
        assert await stack.groups.reset(1, "billing", "1") == (2, 1)
        assert (await Consumer(stack).join()).offsets == [1]
        assert await stack.groups.delete(1, "billing", force=True) == 1
        assert stack.groups.ephemeral() == []

    async def test_one_that_was_deleted_and_made_anew_knows_nothing_of_the_one_before(
        self, stack: Stack
    ) -> None:
        await stack.append(1, b"0", b"1")
        member = await Consumer(stack).join(ephemeral=True)
        await member.until(0, 1)
        assert member.fence == (*stack.ballot, 0)
        await stack.groups.delete(1, "billing", force=True)
        other = await Consumer(stack).join(ephemeral=True)
        assert other.fence == (*stack.ballot, 1)
        other.refuse(0, 60.0)
        away = await Consumer(stack).join(ephemeral=True, resume_offset=0)
        away.say(Ack([DeliveryRange(1, 0, 0)], 1, stack.ballot))
        assert len(await away.confirmed(1)) == 1

    async def test_one_that_goes_on_where_a_member_was_takes_its_late_acknowledgements(
        self, stack: Stack
    ) -> None:
        """Its leader has gone, and its memory with it."""
        await stack.append(1, b"0", b"1")
        member = await Consumer(stack).join(ephemeral=True, resume_offset=1)
        assert member.fence == (0, 0, 0)
        await member.until(1)
