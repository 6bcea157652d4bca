"""How times of endpoints' calls are shown."""

from __future__ import annotations

import pytest

from hadron.cli.endpoints.shown import shown_ms


@pytest.mark.parametrize(
    ("milliseconds", "shown"),
    [
        (0.0, ""),
        (0.004, "0.004ms"),
        (12.345, "12.3ms"),
        (999.4, "999ms"),
        (999.9, "1s"),
        (1_020.0, "1.02s"),
        (61_000.0, "61s"),
        (999_900.0, "1,000s"),
        (3_600_000.0, "3,600s"),
    ],
)
def test_times_are_read_without_powers_of_ten(milliseconds: float, shown: str) -> None:
    assert shown_ms(milliseconds) == shown
