from __future__ import annotations

import random
import time

import pytest

from hadron.wire.system import SystemClock, SystemRandom


def test_the_clock_goes_on_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    asleep = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    monkeypatch.setattr(time, "clock_gettime", {asleep: 3_600.0}.__getitem__)
    assert SystemClock().monotonic_s() == 3_600.0


def test_jitter_is_not_what_a_program_has_seeded() -> None:
    """Every worker of a program may do so, and all would come back at the same moments."""
    state = random.getstate()
    try:
        drawn = []
        for _ in range(2):
            random.seed(1)
            drawn.append([SystemRandom().uniform(0.0, 1.0) for _ in range(4)])
    finally:
        random.setstate(state)
    assert drawn[0] != drawn[1]
    assert all(0.0 <= number <= 1.0 for number in drawn[0] + drawn[1])
