"""What holds for all tests: none of them is timed, property tests neither, and none leaves the
process otherwise than it was."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import trio.testing
from hypothesis import HealthCheck, settings

settings.register_profile("hadron", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("hadron")

_COLLECT_EVERY: Final = 20_000
"""Objects more than before at which the garbage collector looks at the youngest, as it is for the
simulator's workers. Every 700 objects, it takes a seventh of the time of a scenario."""

_MEMORY: Final = Path("/dev/shm")
_ROOM_BYTES: Final = 4 << 30
"""Several times what a whole run has in files at any time."""


def pytest_configure(config: pytest.Config) -> None:
    """Tests' files are in memory where there is room: a flush to a disk takes milliseconds, and
    waiting for them is half of the time of tests that open nodes. What powers lost and disks do is
    the simulator's; `make cluster-tests` does not read this file and runs on the disk, as does
    whoever names a directory with `--basetemp` or in PYTEST_DEBUG_TEMPROOT."""
    if config.option.basetemp is None and _is_roomy(_MEMORY):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))
    gc.set_threshold(_COLLECT_EVERY)


def _is_roomy(memory: Path) -> bool:
    """Programs can be started from there, too."""
    try:
        found = os.statvfs(memory)
    except OSError:
        return False
    return not found.f_flag & os.ST_NOEXEC and found.f_bavail * found.f_frsize >= _ROOM_BYTES


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: no collection needs to walk over them again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def clock() -> trio.testing.MockClock:
    """Of a test that opens nodes and waits for limits: runs five times as fast as the real one,
    disks are not slower.

    It does not jump: a node's threads work in real time, and a clock that jumped whenever the loop
    is idle would time out whatever waits for a disk.
    """
    return trio.testing.MockClock(rate=5)


@pytest.fixture(autouse=True)
def logging_goes_on() -> Iterator[None]:
    """Turned off by one test, it would be missing in those that come later in its process."""
    yield
    assert logging.root.manager.disable == logging.NOTSET
