"""What holds for all tests: none of them is timed, property tests neither, and none leaves the
process otherwise than it was."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("hadron", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("hadron")


@pytest.fixture(autouse=True)
def logging_goes_on() -> Iterator[None]:
    """Turned off by one test, it would be missing in those that come later in its process."""
    yield
    assert logging.root.manager.disable == logging.NOTSET
