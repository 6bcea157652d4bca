"""What is told of a stream to readers that come with a cursor of their own (PROTOCOL D4)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hadron.model.errors import LogTruncatedError
from hadron.model.ids import Ballot
from hadron.serving.tests.stack import Stack, leading
from hadron.serving.visible import VisibleStreams
from hadron.state.retention import TrimStream

OTHER = Ballot(7, 7)


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with leading(tmp_path) as stack:
        await stack.stream("s")
        yield stack


def forgetful(stack: Stack) -> VisibleStreams:
    """One with nothing in memory."""
    return VisibleStreams(
        stack.store, stack.ballot, {1: stack.visible.bounds(1)}, stack.visible._replica_set,
        stack.catalog,
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
