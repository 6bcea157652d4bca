"""How long, and how often, something that is declared may wait and be tried again."""

from __future__ import annotations

from typing import Final

from hadron.model.documents.problem import Notes
from hadron.model.problems import ValuePath
from hadron.model.units import format_duration

MAX_ATTEMPTS: Final = 1_000
MAX_WAIT_MS: Final = 3_650 * 86_400_000
"""Ten years: a delay added to the clock stays far from the end of its integer."""


def check_wait(notes: Notes, path: ValuePath, ms: int, least: int) -> None:
    """Note a duration in milliseconds that is below `least` or above ten years."""
    if not least <= ms <= MAX_WAIT_MS:
        shown = format_duration(ms) if ms >= 0 else f"{ms}ms"
        expected = f"{format_duration(least)} to {format_duration(MAX_WAIT_MS)}"
        notes.note(path, f"{shown} is out of range", expected)
