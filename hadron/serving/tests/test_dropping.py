"""Dropping deleted objects on a leader: slice by slice, beside everything else."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from hadron.model.errors import NotFoundError
from hadron.serving.dropping import DropDriver
from hadron.serving.tests.stack import SET, leading, until
from hadron.state import slices
from hadron.state.schema import DeleteObjects


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
        stack.visible.on_gone(told.append)
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
