"""When digests are asked for: after something was logged, and never on their own account."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from hadron.serving.digests import DigestDriver
from hadron.serving.tests.stack import Stack, leading
from hadron.state.digests import StateDigest
from hadron.state.features import MACHINE


async def digests(stack: Stack) -> list[StateDigest]:
    rows = await stack.rows("SELECT command FROM hadron_log ORDER BY lsn")
    commands = [MACHINE.decode(row[0]) for row in rows]
    return [command for command in commands if isinstance(command, StateDigest)]


@pytest.mark.long
async def test_one_digest_for_what_was_logged_and_none_when_idle(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    autojump_clock.autojump_threshold = 0.02
    async with leading(tmp_path) as stack, trio.open_nursery() as nursery:
        nursery.start_soon(DigestDriver(stack.controller, 1.0).run)
        await trio.sleep(20)
        assert await digests(stack) == []
        stream = await stack.stream("events")
        for number in range(5):
            await stack.append(stream, b"%d" % number)
        await trio.sleep(20)
        (found,) = await digests(stack)
        assert len(found.digest) == 16
        end = stack.controller.written_lsn
        await trio.sleep(40)
        assert stack.controller.written_lsn == end
        await stack.append(stream, b"again")
        await trio.sleep(5)
        _, following = await digests(stack)
        assert following.table > found.table
        nursery.cancel_scope.cancel()


async def test_an_interval_of_nothing_means_never(tmp_path: Path) -> None:
    async with leading(tmp_path) as stack:
        await DigestDriver(stack.controller, 0).run()
