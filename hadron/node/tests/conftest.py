"""A clock for tests of whole nodes."""

from __future__ import annotations

import pytest
import trio.testing


@pytest.fixture
def clock() -> trio.testing.MockClock:
    """Runs five times as fast as the real one: timeouts pass sooner, disks are not slower.

    It does not jump: a node's threads work in real time, and a clock that jumped whenever the loop
    is idle would time out whatever waits for a disk.
    """
    return trio.testing.MockClock(rate=5)
