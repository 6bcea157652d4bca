"""Who fills a pipeline with what it has not looked at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from hadron.model.ids import NO_BALLOT
from hadron.pipelines.backfilling import Backfilling
from hadron.pipelines.sources import Gap
from hadron.state.pipelines.backfills import Backfill, StepBackfill, Stepped
from hadron.state.pipelines.tables import BackfillStatus

_FROM, _TO = 500, 1_000


class _Set:
    """Another set's partition, which keeps nothing before `following`; and the log of here."""

    def __init__(self, following: int) -> None:
        self.following = following
        self.asked = 0
        self.steps: list[StepBackfill] = []

    async def query(self, _read: Any) -> list[Backfill]:
        status = BackfillStatus.DONE if self.steps else BackfillStatus.RUNNING
        return [Backfill(1, "b/p0", 0, _FROM, _TO, 0, False, status, 0)]

    async def execute(self, command: StepBackfill) -> Stepped:
        self.steps.append(command)
        return Stepped(command.to_offset, 0)

    async def converse(self, _name: str, _id: int, _index: int, conversation: Any) -> None:
        self.asked += 1
        await conversation(self)

    async def read(self, _offset: int, _after: Any) -> Gap:
        await trio.lowlevel.checkpoint()
        return Gap(self.following, NO_BALLOT, is_truncated=self.following < _FROM)


@pytest.mark.parametrize("following", [300, 2_000])
async def test_what_was_lost_is_not_asked_for_without_a_pause(
    following: int,
    autojump_clock: MockClock,  # noqa: ARG001
) -> None:
    """A set was restored to an end before the backfill; or retention has dropped all of it."""
    there: Any = _Set(following)
    spec: Any = SimpleNamespace(replica_set="a/p0", triggers=())
    none: Any = None
    filling = Backfilling(1, lambda: spec, lambda: (7, 1), there, none, there, none)
    with trio.move_on_after(9.5):
        await filling.run()
    if following < _FROM:
        assert (there.asked, there.steps) == (10, [])
    else:
        (step,) = there.steps
        assert (there.asked, step.from_offset, step.to_offset) == (1, _FROM, _TO)
