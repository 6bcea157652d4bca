"""What a shorter retention drops at once: pure, so that the node that judges a change and the
command that shows it say the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from hadron.model.schema import Retention
from hadron.model.units import format_duration, format_size


@dataclass(frozen=True, slots=True)
class Shortened:
    """One limit of a retention that keeps less than before.

    Attributes:
        key: as documents have it.
        before: as documents write it; "no limit".
        drops: which records go, in words.
    """

    key: str
    before: str
    after: str
    drops: str


_AGE: Final = "what is older than {}"
_BYTES: Final = "what is beyond the newest {} of a partition"


def shortened(before: Retention, after: Retention) -> list[Shortened]:
    """The limits by which `after` keeps less than `before`."""
    return [
        *_one("max_age", before.max_age_ms, after.max_age_ms, format_duration, _AGE),
        *_one("max_bytes", before.max_bytes, after.max_bytes, format_size, _BYTES),
    ]


def _one(
    key: str, before: int, after: int, write: Callable[[int], str], drops: str
) -> list[Shortened]:
    if after == 0 or 0 < before <= after:
        return []
    shown = write(before) if before else "no limit"
    return [Shortened(key, shown, write(after), drops.format(write(after)))]
