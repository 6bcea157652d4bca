"""Dropping deleted objects on a leader: slice by slice, beside everything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from hadron.model.errors import HadronError, NotFoundError
from hadron.serving.dropping import DropDriver
from hadron.serving.tests import stack as stack_module
from hadron.serving.tests.stack import SET, leading, until
from hadron.state import bodies, slices
from hadron.state.bodies import DropBodies
from hadron.state.dropping import DropObject
from hadron.state.machine import BatchShape
from hadron.state.schema import DeleteObjects
from hadron.state.tests.parted import MACHINE, GiveUp, KeepBody, a_batch


async def test_a_deleted_stream_is_gone_at_once_and_its_rows_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "SLICE_BATCHES", 2)
    async with leading(tmp_path) as stack, trio.open_nursery() as nursery:
        nursery.start_soon(DropDriver(stack.controller, stack.catalog).run)
        gone, kept = await stack.stream("gone"), await stack.stream("kept")
        for _ in range(7):
            await stack.append(gone, b"v")
        await stack.append(kept, b"stays")
        told: list[int] = []
        stack.visible.on_gone(told.extend)
        moved: list[None] = []
        stack.visible.watch(gone, lambda: moved.append(None))
        await stack.controller.execute(DeleteObjects(stack.catalog.metadata_index, (gone,)))
        assert told == [gone]
        assert moved == [None]
        for ask in (stack.visible.bounds, stack.catalog.by_id):
            with pytest.raises(NotFoundError):
                ask(gone)
        with pytest.raises(NotFoundError):
            await stack.append(gone, b"v")
        left = None
        while left != []:
            left = await stack.rows("SELECT id FROM hadron_dropped")
        assert await stack.rows("SELECT DISTINCT stream_id FROM hadron_stream_batch") == [(kept,)]
        assert len(await stack.read(kept)) == 1
        # As many commands as slices, and the one that found nothing left.
        entries = await stack.rows("SELECT count(*) FROM hadron_log")
        assert entries == [(1 + 2 + 8 + 1 + 5,)]
        nursery.cancel_scope.cancel()


async def test_what_cannot_be_dropped_keeps_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with leading(tmp_path) as stack:
        bad, other = await stack.stream("bad"), await stack.stream("other")
        for stream_id in (bad, other):
            await stack.append(stream_id, b"v")
        execute, tries = stack.controller.execute, 0

        async def refuse(command: Any, body: bytes = b"") -> Any:
            nonlocal tries
            if isinstance(command, DropBodies) or command == DropObject(bad, command.until_lsn):
                tries += 1
                raise HadronError("what a defect makes of it")
            return await execute(command, body)

        await execute(DeleteObjects(stack.catalog.metadata_index, (bad, other)))
        monkeypatch.setattr(stack.controller, "execute", refuse)
        monkeypatch.setattr(bodies, "has_unnamed", lambda _db: True)
        driver = DropDriver(stack.controller, stack.catalog)
        for _ in range(3):
            assert await driver._round(), "it is to be looked at again"
        assert await stack.rows("SELECT id FROM hadron_dropped") == [(bad,)]
        assert tries == 6
        monkeypatch.undo()
        assert not await driver._round()
        assert await stack.rows("SELECT id FROM hadron_dropped") == []
    for what in ("bodies", f"stream {bad}"):
        assert caplog.text.count(f"dropping of {what} pauses: what a defect makes of it") == 1


async def test_members_of_a_deleted_stream_hear_of_it(tmp_path: Path) -> None:
    async with leading(tmp_path) as stack:
        stream_id = await stack.stream("s")
        arrived = trio.Event()
        stack.visible.watch(stream_id, arrived.set)
        await stack.controller.execute(DeleteObjects(stack.catalog.metadata_index, (stream_id,)))
        await until(arrived.is_set)
        assert await stack.rows("SELECT 1 FROM hadron_stream_partition") == []
        again = await stack.stream("s")
        assert again != stream_id
        assert stack.visible.bounds(again).next_offset == 0
        assert stack.catalog.stream("default", "s")[0].id == again
        assert SET in stack.catalog.stream("default", "s")[1].partitions


async def test_a_body_that_was_kept_for_nothing_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that another leadership has left; one that is still held stays."""
    monkeypatch.setattr(stack_module, "MACHINE", MACHINE)
    data = a_batch("kept")
    keep = KeepBody((BatchShape(1, len(data)),))
    async with leading(tmp_path) as stack:
        left = await stack.controller.execute(keep, data)
        await stack.controller.execute(GiveUp(left))
    async with leading(tmp_path) as stack, trio.open_nursery() as nursery:
        nursery.start_soon(DropDriver(stack.controller, stack.catalog).run)

        async def bodies() -> set[int]:
            rows = await stack.rows("SELECT lsn FROM hadron_body WHERE length(bytes) > 0")
            return {lsn for (lsn,) in rows}

        held, given_up = [await stack.controller.execute(keep, data) for _ in range(2)]
        with trio.fail_after(10):
            while await bodies() != {held, given_up}:
                await trio.testing.wait_all_tasks_blocked(0.001)
            await trio.testing.wait_all_tasks_blocked(0.001)
            await stack.controller.execute(GiveUp(given_up))
            while await bodies() != {held}:
                await trio.testing.wait_all_tasks_blocked(0.001)
        assert await stack.rows("SELECT lsn FROM hadron_counted_body") == [(held,)]
        nursery.cancel_scope.cancel()


async def test_a_body_waits_for_a_member_that_does_not_have_its_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack_module, "MACHINE", MACHINE)
    data = a_batch("kept")
    async with leading(tmp_path) as stack:
        lsn = await stack.controller.execute(KeepBody((BatchShape(1, len(data)),)), data)
        await stack.controller.execute(GiveUp(lsn))
        driver = DropDriver(stack.controller, stack.catalog)
        monkeypatch.setattr(type(stack.controller), "droppable_lsn", lsn - 1)
        assert await driver._round(), "something had to be left"
        assert await stack.rows("SELECT bytes FROM hadron_body WHERE lsn = ?", lsn) == [(data,)]
        monkeypatch.setattr(type(stack.controller), "droppable_lsn", lsn)
        assert not await driver._round()
        assert await stack.rows("SELECT bytes FROM hadron_body WHERE lsn = ?", lsn) == [(b"",)]
