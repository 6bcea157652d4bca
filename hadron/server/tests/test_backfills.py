"""What is shown of a pipeline's backfills."""

from __future__ import annotations

from hadron.server.pipelines.backfills import shown
from hadron.state.pipelines.backfills import Backfill
from hadron.state.pipelines.tables import BackfillStatus


def test_old_ones_that_have_not_ended_are_shown_beside_the_latest() -> None:
    statuses = [
        BackfillStatus.RUNNING,
        BackfillStatus.DONE,
        BackfillStatus.PAUSED,
        BackfillStatus.CANCELLED,
        *[BackfillStatus.DONE] * 100,
    ]
    filling = [
        Backfill(number, "local/p0", 0, 0, 10, 0, False, status, 0)
        for number, status in enumerate(statuses, 1)
    ]
    told = shown(filling)
    assert [each.number for each in told] == [1, 3, *range(5, 105)]
    assert [each.status for each in told[:3]] == ["running", "paused", "done"]
