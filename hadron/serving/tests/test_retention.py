"""Retention on a leader: by size and by age, with the clock of the log, and what readers see."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from hadron.model.errors import CorruptionError, HadronError, NotReadyError, OffsetOutOfRangeError
from hadron.model.schema import Retention, StreamSpec
from hadron.replication.ballot import run_on_writer
from hadron.serving.retention import PAUSE_S, RetentionDriver
from hadron.serving.tests.stack import SET, Stack, leading
from hadron.state import slices
from hadron.state.groups.progress import CreateGroup
from hadron.state.streams import retention as retention_module
from hadron.state.streams.retention import TrimStream

BATCH = b"x" * 1_000
DAY_MS = 24 * 3600 * 1000


@contextlib.asynccontextmanager
async def keeping(
    directory: Path, retention: Retention, *, members: tuple[str, ...] = ("n1",)
) -> AsyncIterator[tuple[Stack, int]]:
    async with leading(directory, members=members) as stack:
        stream_id = await stack.declare(
            "Stream", "s", StreamSpec(partitions=(SET,), retention=retention)
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(RetentionDriver(stack.controller, stack.catalog, SET).run)
            yield stack, stream_id
            nursery.cancel_scope.cancel()


async def until(clock: MockClock, condition: Callable[[], bool]) -> None:
    """Let a round after the other pass until `condition`."""
    while not condition():
        await wait_all_tasks_blocked(0.001)
        clock.jump(PAUSE_S)


async def pass_by(clock: MockClock, days: float) -> None:
    """Let time pass, and the rounds that are due then."""
    await wait_all_tasks_blocked(0.01)
    clock.jump(days * DAY_MS / 1_000)
    for _ in range(10):
        await wait_all_tasks_blocked(0.01)
        clock.jump(PAUSE_S)


async def kept_bytes(stack: Stack) -> int:
    value = (await stack.rows("SELECT bytes FROM hadron_stream_partition"))[0][0]
    assert isinstance(value, int)
    return value


async def fill(stack: Stack, stream_id: int, count: int) -> None:
    for _ in range(count):
        await stack.append(stream_id, BATCH)


async def test_a_stream_keeps_its_size(tmp_path: Path, mock_clock: MockClock) -> None:
    async with keeping(tmp_path, Retention(max_bytes=20_000)) as (stack, stream_id):
        await fill(stack, stream_id, 100)
        await until(mock_clock, lambda: stack.visible.bounds(stream_id).first_offset == 82)
        await fill(stack, stream_id, 3)
        await until(mock_clock, lambda: stack.visible.bounds(stream_id).first_offset == 85)
        assert 18_000 < await kept_bytes(stack) <= 20_000
        first = stack.visible.bounds(stream_id).first_offset
        with pytest.raises(OffsetOutOfRangeError, match=f"first kept offset is {first}"):
            await stack.read(stream_id, first - 1)
        assert (await stack.read(stream_id, first))[0].base_offset == first


async def test_a_stream_forgets_what_is_old(tmp_path: Path, mock_clock: MockClock) -> None:
    async with keeping(tmp_path, Retention(max_age_ms=DAY_MS)) as (stack, stream_id):
        await pass_by(mock_clock, 3)
        await fill(stack, stream_id, 3)
        await pass_by(mock_clock, 0.5)
        await fill(stack, stream_id, 2)
        assert stack.visible.bounds(stream_id) == (0, 5)
        await pass_by(mock_clock, 0.6)
        await until(mock_clock, lambda: stack.visible.bounds(stream_id) == (3, 5))
        await pass_by(mock_clock, 1)
        # Age is a promise, also for the newest.
        await until(mock_clock, lambda: stack.visible.bounds(stream_id) == (5, 5))


async def test_a_limit_that_is_declared_later_counts(tmp_path: Path, mock_clock: MockClock) -> None:
    async with keeping(tmp_path, Retention()) as (stack, stream_id):
        await fill(stack, stream_id, 30)
        await pass_by(mock_clock, 1)
        assert stack.visible.bounds(stream_id) == (0, 30)
        await stack.declare(
            "Stream", "s", StreamSpec(partitions=(SET,), retention=Retention(max_bytes=5_000))
        )
        await until(mock_clock, lambda: stack.visible.bounds(stream_id).first_offset >= 25)


async def test_limits_that_are_raised_again_save_what_is_left(
    tmp_path: Path, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody writes 1 kB for 1 MB, and corrects it when ten of a hundred batches are gone."""
    monkeypatch.setattr(slices, "SLICE_BATCHES", 1)
    async with keeping(tmp_path, Retention()) as (stack, stream_id):
        await fill(stack, stream_id, 100)
        execute, dropped = stack.controller.execute, 0

        async def limit(max_bytes: int) -> None:
            retention = Retention(max_bytes=max_bytes)
            await stack.declare("Stream", "s", StreamSpec(partitions=(SET,), retention=retention))

        async def corrected(command: Any) -> Any:
            nonlocal dropped
            result = await execute(command)
            dropped += isinstance(command, TrimStream)
            if isinstance(command, TrimStream) and dropped == 10:
                await limit(1_000_000)
            return result

        monkeypatch.setattr(stack.controller, "execute", corrected)
        await limit(1_000)
        await until(mock_clock, lambda: dropped == 10)
        await pass_by(mock_clock, 1)
        assert stack.visible.bounds(stream_id) == (10, 100)


async def test_limits_that_are_raised_while_the_oldest_are_looked_at_hold(
    tmp_path: Path, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was found to be due by limits that are no more is not asked to be dropped."""
    async with keeping(tmp_path, Retention()) as (stack, stream_id):
        await fill(stack, stream_id, 100)
        read = stack.controller.read
        is_raised = False

        async def limit(max_bytes: int) -> None:
            retention = Retention(max_bytes=max_bytes)
            await stack.declare("Stream", "s", StreamSpec(partitions=(SET,), retention=retention))

        async def slow(look: Callable[[Any], Any]) -> Any:
            nonlocal is_raised
            found = await read(look)
            if getattr(found, "first_offset", None) is not None and not is_raised:
                await limit(1_000_000)
                is_raised = True
            return found

        monkeypatch.setattr(stack.controller, "read", slow)
        await limit(1_000)
        await until(mock_clock, lambda: is_raised)
        await pass_by(mock_clock, 1)
        assert stack.visible.bounds(stream_id) == (0, 100)


@pytest.mark.parametrize(
    ("limits", "kept"), [(Retention(max_age_ms=1_000), 5), (Retention(max_bytes=1_200), 4)]
)
async def test_what_comes_while_a_stream_is_looked_at_starts_its_clock(
    tmp_path: Path,
    mock_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    limits: Retention,
    kept: int,
) -> None:
    """The look found nothing, or room; nothing more is appended, and the next look is far away."""
    async with keeping(tmp_path, Retention()) as (stack, stream_id):
        read = stack.controller.read
        is_filled = False

        async def slow(look: Callable[[Any], Any]) -> Any:
            nonlocal is_filled
            found = await read(look)
            if hasattr(found, "oldest_ms") and not is_filled:
                is_filled = True
                await fill(stack, stream_id, 5)
            return found

        monkeypatch.setattr(stack.controller, "read", slow)
        await stack.declare("Stream", "s", StreamSpec(partitions=(SET,), retention=limits))
        await until(mock_clock, lambda: is_filled)
        for _ in range(10):
            await wait_all_tasks_blocked(0.01)
            mock_clock.jump(PAUSE_S)
        assert stack.visible.bounds(stream_id).first_offset == kept


async def test_idle_streams_are_not_looked_at_for_a_busy_one(
    tmp_path: Path, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And are when their own time has come."""
    looked_at = Counter[int]()
    original = retention_module.due

    def due(db: Any, stream_id: int, **limits: Any) -> Any:
        looked_at[stream_id] += 1
        return original(db, stream_id, **limits)

    monkeypatch.setattr("hadron.serving.retention.retention.due", due)
    async with keeping(tmp_path, Retention(max_bytes=5_000)) as (stack, busy):
        weekly = StreamSpec(partitions=(SET,), retention=Retention(max_age_ms=7 * DAY_MS))
        idle = [await stack.declare("Stream", f"idle-{number}", weekly) for number in range(5)]
        for stream_id in idle:
            await fill(stack, stream_id, 2)
        await pass_by(mock_clock, 0)
        assert looked_at.keys() == {busy, *idle}
        looked_at.clear()

        def has_dropped() -> bool:
            first_offset, next_offset = stack.visible.bounds(busy)
            return next_offset - first_offset <= 5

        for _ in range(4):
            await fill(stack, busy, 10)
            await until(mock_clock, has_dropped)
        assert looked_at.keys() == {busy}
        await pass_by(mock_clock, 7.1)
        await until(mock_clock, lambda: all(stack.visible.bounds(i) == (2, 2) for i in idle))


@pytest.mark.parametrize("slice_batches", [1, slices.SLICE_BATCHES])
async def test_a_stream_filled_as_fast_as_it_is_emptied_keeps_no_other_from_its_retention(
    tmp_path: Path, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch, slice_batches: int
) -> None:
    """With each slice that is dropped of it, a batch comes."""
    monkeypatch.setattr(slices, "SLICE_BATCHES", slice_batches)
    async with keeping(tmp_path, Retention()) as (stack, busy):
        limited = StreamSpec(partitions=(SET,), retention=Retention(max_bytes=1_500))
        other = await stack.declare("Stream", "other", StreamSpec(partitions=(SET,)))
        await fill(stack, busy, 3)
        await fill(stack, other, 3)
        execute, trimmed = stack.controller.execute, list[int]()

        async def filling(command: Any, *body: Any) -> Any:
            result = await execute(command, *body)
            if isinstance(command, TrimStream):
                trimmed.append(command.stream_id)
                if command.stream_id == busy and trimmed.count(busy) < 20:
                    await fill(stack, busy, 1)
                if trimmed == [busy]:
                    await stack.declare("Stream", "other", limited)
            return result

        monkeypatch.setattr(stack.controller, "execute", filling)
        await stack.declare("Stream", "s", limited)
        await until(mock_clock, lambda: stack.visible.bounds(other).first_offset == 2)
        assert trimmed.index(other) <= 2


async def test_a_newest_batch_above_the_limit_is_left_alone_until_another_one_comes(
    tmp_path: Path, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    original = retention_module.due

    def due(db: Any, stream_id: int, **limits: Any) -> Any:
        nonlocal looks
        looks += 1
        return original(db, stream_id, **limits)

    monkeypatch.setattr("hadron.serving.retention.retention.due", due)
    async with keeping(tmp_path, Retention(max_bytes=500)) as (stack, stream_id):
        await fill(stack, stream_id, 2)
        await until(mock_clock, lambda: stack.visible.bounds(stream_id).first_offset == 1)
        await pass_by(mock_clock, 0)
        looks = 0
        await pass_by(mock_clock, 0)
        assert looks == 0
        await fill(stack, stream_id, 1)
        await until(mock_clock, lambda: stack.visible.bounds(stream_id).first_offset == 2)


async def test_a_node_without_limits_sleeps(tmp_path: Path, mock_clock: MockClock) -> None:
    async with keeping(tmp_path, Retention()) as (stack, stream_id):
        rounds = 0
        limited = RetentionDriver._limited

        def counted(driver: RetentionDriver) -> list[int]:
            nonlocal rounds
            rounds += 1
            return limited(driver)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RetentionDriver, "_limited", counted)
            await fill(stack, stream_id, 5)
            await pass_by(mock_clock, 1)
        assert rounds <= 2


async def test_who_is_overtaken_is_told_of(
    tmp_path: Path, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with keeping(tmp_path, Retention(max_bytes=5_000)) as (stack, stream_id):
        await stack.controller.execute(CreateGroup(stream_id, "billing", 0))
        with caplog.at_level(logging.WARNING):
            await fill(stack, stream_id, 20)
            await until(mock_clock, lambda: stack.visible.bounds(stream_id).first_offset > 12)
        lines = [r.getMessage() for r in caplog.records]
        assert any(
            line.startswith("group billing skipped ") and "of stream s" in line for line in lines
        )


async def test_a_connected_replica_is_waited_for(tmp_path: Path) -> None:
    async with keeping(tmp_path, Retention()) as (stack, stream_id):
        await fill(stack, stream_id, 4)
        controller = stack.controller
        assert controller.droppable_lsn == controller.committed_lsn

        class Connected:
            name = "n1"

        # As if n1's own disk were a peer's that has everything.
        controller.feeding.feeds["n1"] = Connected()  # type: ignore[assignment]
        assert controller.droppable_lsn == controller.committed_lsn
        controller.quorum._persisted["n1"] = 3
        assert controller.droppable_lsn == 3
        del controller.feeding.feeds["n1"]


async def test_what_is_dropped_but_not_committed_is_asked_for_again(tmp_path: Path) -> None:
    async with keeping(tmp_path, Retention()) as (stack, stream_id):
        await fill(stack, stream_id, 4)
        stack.visible._recent.clear()
        await stack.controller.execute(TrimStream(stream_id, 2))
        stack.visible._first[stream_id] = 0
        with pytest.raises(NotReadyError, match="offset 1 is just being dropped") as caught:
            await stack.read(stream_id, 1)
        assert caught.value.retryable
        with pytest.raises(NotReadyError, match="offset 0 is just being dropped"):
            await stack.visible.offset_at(stream_id, 1)
        # And so is a stream.
        stack.store.writer.connection.execute("DELETE FROM hadron_stream_partition")
        for answer in (stack.read(stream_id, 0), stack.visible.offset_at(stream_id, 1)):
            with pytest.raises(NotReadyError, match="just being d"):
                await answer


async def test_what_was_taken_from_its_stream_is_kept_until_it_comes_back(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    """Limits that are shortened meanwhile are judged by what they drop elsewhere."""
    async with keeping(tmp_path, Retention(max_bytes=200_000)) as (stack, stream_id):
        await fill(stack, stream_id, 100)
        shorter = Retention(max_age_ms=DAY_MS, max_bytes=20_000)
        elsewhere = StreamSpec(partitions=("eu/p0",), retention=shorter)
        await stack.declare("Stream", "s", elsewhere)
        await pass_by(mock_clock, days=2)
        assert stack.visible.bounds(stream_id).first_offset == 0
        here = StreamSpec(partitions=("eu/p0", SET), retention=shorter)
        await stack.declare("Stream", "s", here)
        await until(mock_clock, lambda: stack.visible.bounds(stream_id).first_offset == 100)


@pytest.mark.parametrize(
    "trouble",
    [CorruptionError("a page does not match its checksum"), HadronError("what a defect makes")],
    ids=lambda error: type(error).__name__,
)
async def test_a_stream_in_trouble_keeps_no_other_from_its_retention(
    tmp_path: Path,
    mock_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    trouble: HadronError,
) -> None:
    original = retention_module.due

    def due(db: Any, stream_id: int, **limits: Any) -> Any:
        if stream_id == bad:
            raise trouble
        return original(db, stream_id, **limits)

    async with leading(tmp_path) as stack:
        kept = StreamSpec(partitions=(SET,), retention=Retention(max_bytes=20_000))
        bad = await stack.declare("Stream", "a", kept)
        good = await stack.declare("Stream", "b", kept)
        monkeypatch.setattr("hadron.serving.retention.retention.due", due)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(RetentionDriver(stack.controller, stack.catalog, SET).run)
            await fill(stack, good, 100)
            with trio.fail_after(60):
                await until(mock_clock, lambda: stack.visible.bounds(good).first_offset == 82)
            await fill(stack, good, 3)
            with trio.fail_after(60):
                await until(mock_clock, lambda: stack.visible.bounds(good).first_offset == 85)
            nursery.cancel_scope.cancel()
    assert caplog.text.count(f"retention of stream {bad} pauses") == 1


async def test_a_stream_that_cannot_be_trimmed_keeps_no_other_from_its_retention(
    tmp_path: Path, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    kept = StreamSpec(partitions=(SET,), retention=Retention(max_bytes=20_000))
    async with leading(tmp_path) as stack:
        bad = await stack.declare("Stream", "a", kept)
        good = await stack.declare("Stream", "b", kept)
        group = await stack.controller.execute(CreateGroup(bad, "billing", 0))
        # What a defect, or somebody else's program, has left: a range at the floor.
        await run_on_writer(
            stack.store,
            lambda db: db.execute(f"INSERT INTO hadron_group_ack VALUES({group.group_id}, 0, 90)"),
        )
        await fill(stack, bad, 100)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(RetentionDriver(stack.controller, stack.catalog, SET).run)
            await fill(stack, good, 100)
            with trio.fail_after(60):
                await until(mock_clock, lambda: stack.visible.bounds(good).first_offset == 82)
            nursery.cancel_scope.cancel()
        assert stack.visible.bounds(bad).first_offset == 0
    told = f"retention of stream {bad} pauses: TrimStream cannot be applied"
    assert caplog.text.count(told) == 1
