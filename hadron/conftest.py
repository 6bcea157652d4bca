"""What holds for all tests: none of them is timed, property tests neither, and none leaves the
process otherwise than it was."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("hadron", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("hadron")

_COLLECT_EVERY: Final = 20_000
"""Objects more than before at which the garbage collector looks at the youngest, as it is for the
simulator's workers. Every 700 objects, it takes a seventh of the time of a scenario."""


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: no collection needs to walk over them again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_EVERY)


@pytest.fixture(autouse=True)
def logging_goes_on() -> Iterator[None]:
    """Turned off by one test, it would be missing in those that come later in its process."""
    yield
    assert logging.root.manager.disable == logging.NOTSET
