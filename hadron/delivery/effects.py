"""What a group goes by, and what its machine tells the driver to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hadron.model.ranges import Range
from hadron.state.groups import ORDER_KEY, ORDER_STRICT, GroupOptions


@dataclass(frozen=True, slots=True)
class Rules:
    """How a group delivers.

    Attributes:
        deadline_s: for an acknowledgement, from the delivery; None for none.
        max_attempts: 0 for no limit.
    """

    is_strict: bool = False
    is_by_key: bool = False
    deadline_s: float | None = None
    max_attempts: int = 0

    @classmethod
    def of(cls, options: GroupOptions) -> Rules:
        return cls(
            is_strict=options.order == ORDER_STRICT,
            is_by_key=options.order == ORDER_KEY,
            deadline_s=options.ack_deadline_ms / 1_000 if options.ack_deadline_ms else None,
            max_attempts=options.max_attempts,
        )


PLAIN: Final = Rules()
"""No order, no deadline, no limit."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """Send these offsets, all of one batch, to a member."""

    member: int
    delivery: int
    first: int
    last: int
    attempt: int
    ends_batch: bool = False


@dataclass(frozen=True, slots=True)
class Expired:
    """Offsets that a member has not acknowledged in time, and does not hold any more."""

    member: int
    delivery: int
    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Exhausted:
    """Offsets whose last attempt has ended: dead letters."""

    first: int
    last: int
    attempts: int
    reason: str
