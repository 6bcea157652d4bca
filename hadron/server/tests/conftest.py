"""A clock for tests of whole nodes."""

from __future__ import annotations

import pytest
import trio.testing


@pytest.fixture
def clock() -> trio.testing.MockClock:
    """Runs five times as fast as the real one; see `hadron/node/tests/conftest.py`."""
    return trio.testing.MockClock(rate=5)
