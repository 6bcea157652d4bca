"""What does not get on ends a measurement; what does may take its time."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from hadron.bench.patience import STALLED_S, reached, within
from hadron.model.errors import DeadlineExceededError


async def test_what_gets_on_slowly_is_waited_for(autojump_clock: MockClock) -> None:
    seen = 0

    async def look() -> int:
        nonlocal seen
        await trio.sleep(STALLED_S * 0.9)
        seen += 1
        return seen

    await reached("done", 5, look)
    assert autojump_clock.current_time() > 4 * STALLED_S * 0.9
    assert seen == 5


async def test_what_does_not_is_told_with_what_there_was(autojump_clock: MockClock) -> None:
    del autojump_clock

    async def look() -> int:
        return 3

    with pytest.raises(DeadlineExceededError, match="3 of 5 done, and no progress for 60 s"):
        await reached("done", 5, look)


async def test_nobody_who_is_asked_has_to_answer(autojump_clock: MockClock) -> None:
    del autojump_clock
    with pytest.raises(DeadlineExceededError, match="0 of 5 done, and no progress for 7 s"):
        await reached("done", 5, trio.sleep_forever, stalled_s=7)


async def test_a_block_that_takes_too_long_says_for_what(autojump_clock: MockClock) -> None:
    del autojump_clock
    with within(2.0, "nothing"):
        await trio.sleep(1.0)
    with (
        pytest.raises(DeadlineExceededError, match="an output took more than 2 s"),
        within(2.0, "an output"),
    ):
        await trio.sleep_forever()
