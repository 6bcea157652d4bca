"""What is told of a stream to readers that come with a cursor of their own (PROTOCOL D4), and of
batches that share a body."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hadron.model.errors import CorruptionError, FencedError, LogTruncatedError
from hadron.model.ids import Ballot
from hadron.serving import visible as visible_module
from hadron.serving.tests import stack as stack_module
from hadron.serving.tests.stack import Stack, leading
from hadron.serving.visible import VisibleStreams
from hadron.state.machine import BatchShape
from hadron.state.schema import DeleteObjects
from hadron.state.streams.partitions import AppendBatch
from hadron.state.streams.retention import TrimStream
from hadron.state.tests.parted import MACHINE, AppendKept, KeepBody, a_batch
from hadron.state.together import DoTogether

OTHER = Ballot(7, 7)


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with leading(tmp_path) as stack:
        await stack.stream("s")
        yield stack


def forgetful(stack: Stack, stream_id: int = 1) -> VisibleStreams:
    """One with nothing in memory."""
    bounds = {stream_id: stack.visible.bounds(stream_id)}
    return VisibleStreams(
        stack.store, stack.ballot, bounds, stack.visible._replica_set, stack.catalog
    )


async def test_a_cursor_is_compared_with_the_batch_before_it(stack: Stack) -> None:
    await stack.append(1, b"0", b"1")
    await stack.append(1, b"2")
    assert stack.visible.recent_ballot(1, 2) == stack.ballot
    for visible in (stack.visible, forgetful(stack)):
        assert await visible.ballot_before(1, 0) is None
        for offset in (1, 2, 3):
            assert await visible.ballot_before(1, offset) == stack.ballot
            await visible.check_after(1, offset, stack.ballot)
            with pytest.raises(LogTruncatedError, match=f"another one there, of {stack.ballot}"):
                await visible.check_after(1, offset, OTHER)
        assert await visible.ballot_before(1, 4) is None
        with pytest.raises(LogTruncatedError, match=r"before offset 4 .* it ends at offset 3"):
            await visible.check_after(1, 4, stack.ballot)


async def test_nothing_is_told_of_what_retention_has_dropped(stack: Stack) -> None:
    for value in (b"0", b"1", b"2"):
        await stack.append(1, value)
    await stack.controller.execute(TrimStream(1, 2))
    for visible in (stack.visible, forgetful(stack)):
        assert await visible.ballot_before(1, 2) is None
        await visible.check_after(1, 2, OTHER)
        assert await visible.ballot_before(1, 3) == stack.ballot


async def test_batches_of_one_entry_are_visible_at_once_each_in_its_stream(stack: Stack) -> None:
    ids = [1, await stack.stream("t"), await stack.stream("u")]
    parts = [a_batch(text) for text in ("a", "bb", "ccc")]
    seen: list[list[int]] = []

    def look() -> None:
        seen.append([stack.visible.bounds(each).next_offset for each in ids])

    for each in ids:
        stack.visible.watch(each, look)
    commands = [
        AppendBatch(each, 1, len(data), b"", 0, -1) for each, data in zip(ids, parts, strict=True)
    ]
    results = await stack.controller.execute(DoTogether.of(*commands), b"".join(parts))
    assert [each.base_offset for each in results] == [0, 0, 0]
    assert seen == [[1, 1, 1]] * 3, "nobody sees one without the others"
    for each, data in zip(ids, parts, strict=True):
        (found,) = stack.visible.recent(each, 0, 1) or []
        assert bytes(found.data) == data
        (stored,) = await forgetful(stack, each).read(each, 0, 1)
        assert bytes(stored.data) == data
        assert (stored.append_ms, stored.epoch) == (found.append_ms, stack.ballot.epoch)


async def test_a_batch_whose_bytes_came_before_it_is_read_from_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those around it come from memory, and readers go over it without a gap."""
    monkeypatch.setattr(stack_module, "MACHINE", MACHINE)
    async with leading(tmp_path) as stack:
        stream_id = await stack.stream("s")
        data = a_batch("kept")
        lsn = await stack.controller.execute(KeepBody((BatchShape(1, len(data)),)), data)
        await stack.append(stream_id, b"before")
        finish = AppendKept(stream_id, 1, len(data), lsn, 0, is_last=True)
        await stack.controller.execute(finish)
        await stack.append(stream_id, b"after")
        recent = stack.visible.recent
        assert [each.base_offset for each in recent(stream_id, 0, 1 << 20) or []] == [0]
        assert recent(stream_id, 1, 1 << 20) is None
        assert [each.base_offset for each in recent(stream_id, 2, 1 << 20) or []] == [2]
        assert stack.visible.recent_ballot(stream_id, 1) == stack.ballot
        found: list[bytes] = []
        while len(found) < 3:
            found += [bytes(each.data) for each in await stack.read(stream_id, len(found))]
        assert found[1] == data


async def test_a_peers_copy_stands_in_for_each_part_of_a_lost_body(stack: Stack) -> None:
    """Two streams have parts of one body, whose page is lost: either's reader gets its part of the
    copy that another member gave."""
    ids, parts = [1, await stack.stream("t")], [a_batch("a"), a_batch("bb")]
    commands = [
        AppendBatch(each, 1, len(data), b"", 0, -1) for each, data in zip(ids, parts, strict=True)
    ]
    await stack.controller.execute(DoTogether.of(*commands), b"".join(parts))
    lsn = stack.store.log.head.lsn
    stack.store.writer.connection.execute("DELETE FROM hadron_body WHERE lsn = ?", (lsn,))
    for each in ids:
        with pytest.raises(CorruptionError) as caught:
            await forgetful(stack, each).read(each, 0, 1)
        assert caught.value.lsn == lsn
    stack.store.readers.copies[lsn] = b"".join(parts)
    for each, data in zip(ids, parts, strict=True):
        (found,) = await forgetful(stack, each).read(each, 0, 1)
        assert bytes(found.data) == data


@pytest.mark.parametrize(
    "look",
    [
        lambda visible: visible.read(1, 0, 1),
        lambda visible: visible.offset_at(1, 1),
        lambda visible: visible.ballot_before(1, 1),
        lambda visible: visible.check_after(1, 1, OTHER),
    ],
    ids=["read", "offset_at", "ballot_before", "check_after"],
)
async def test_nothing_is_told_of_a_stream_when_leading_ends_while_the_disk_is_read(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, look: Callable[[VisibleStreams], Awaitable[Any]]
) -> None:
    """PROTOCOL A2: what was begun before is not answered after."""
    await stack.append(1, b"0")
    visible, run = forgetful(stack), stack.store.readers.run

    async def read(job: Any) -> Any:
        found = await run(job)
        visible.end(FencedError("another leader took over"))
        return found

    monkeypatch.setattr(stack.store.readers, "run", read)
    with pytest.raises(FencedError, match="another leader"):
        await look(visible)


class _Compared:
    """A watcher that counts how often one was compared with another."""

    times = 0

    def __call__(self) -> None:
        pass

    def __eq__(self, other: object) -> bool:
        _Compared.times += 1
        return self is other

    __hash__ = object.__hash__


async def test_who_stops_watching_is_not_looked_for_among_the_others(stack: Stack) -> None:
    """Eight thousand long polls were let go by one record: the leader's loop stood still for
    0.7 s, as each was looked for from the first one on."""
    stops = [stack.visible.watch(1, _Compared()) for _ in range(100)]
    _Compared.times = 0
    for stop in reversed(stops):
        stop()
    assert _Compared.times < len(stops)


class _Looked(deque[Any]):
    """One that counts how often all of one are looked through."""

    times = 0

    def __iter__(self) -> Iterator[Any]:
        _Looked.times += 1
        return super().__iter__()


async def test_what_is_kept_is_looked_through_once_for_all_that_are_deleted_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion of 9,000 streams stopped the leader's loop for 15 s."""
    monkeypatch.setattr(visible_module, "deque", _Looked)
    async with leading(tmp_path) as stack:
        ids = [await stack.stream(f"s{number}") for number in range(20)]
        for _ in range(3):
            for stream_id in ids:
                await stack.append(stream_id, b"v")
        gone, kept = ids[::2], ids[1::2]
        before = stack.visible._recent_bytes
        told: list[list[int]] = []
        stack.visible.on_gone(lambda together: told.append(list(together)))
        _Looked.times = 0
        await stack.controller.execute(DeleteObjects(stack.catalog.metadata_index, tuple(gone)))
        assert _Looked.times < 5
        assert told == [gone], "whoever serves them is told once"
        assert stack.visible._recent_bytes == before // 2
        assert [each for each, _ in stack.visible._order] == kept * 3
        monkeypatch.setattr(visible_module, "_RECENT_BYTES", before // 4)
        for stream_id in kept:
            await stack.append(stream_id, b"w")
            assert stack.visible._recent_bytes <= before // 4
            found = stack.visible.recent(stream_id, 3, 1) or []
            assert [each.base_offset for each in found] == [3]


async def test_what_is_learned_of_a_stream_that_is_gone_by_then_is_forgotten(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the same id may be opened again: where the other one ended means nothing in it."""
    visible = forgetful(stack)
    visible.observe(stack.controller.observers)

    async def learned(_read: object) -> list[tuple[Ballot, int]]:
        await stack.controller.execute(DeleteObjects(stack.catalog.metadata_index, (1,)))
        return [(OTHER, 5)]

    monkeypatch.setattr(stack.store.readers, "run", learned)
    await visible.learn_ends(1)
    assert visible.ended_at(1, OTHER) == 0


async def test_nothing_is_remembered_of_streams_that_are_gone(stack: Stack) -> None:
    visible = forgetful(stack)
    visible.observe(stack.controller.observers)
    await visible.learn_ends(1)
    stop = visible.watch(1, lambda: None)
    assert visible._ends
    visible.watch(1, print)()
    assert len(visible._watchers[1]) == 1
    await stack.controller.execute(DeleteObjects(stack.catalog.metadata_index, (1,)))
    stop()
    assert [visible._ends, visible._begun, visible._watchers, visible._next] == [{}] * 4
    for _ in range(2):
        visible.watch(2, lambda: None)()
    assert not visible._watchers
