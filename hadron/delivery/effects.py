"""What a group goes by, and what its machine tells the driver to do.

A decision returns all that follows from it; nothing waits inside the machine to be fetched.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from hadron.model.ranges import Range
from hadron.state.groups.attempts import Attempts
from hadron.state.groups.progress import ORDER_KEY, ORDER_STRICT, GroupOptions


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

    @property
    def waits_for_commits(self) -> bool:
        """Whether what follows a record comes once its acknowledgement is committed (GROUPS G3)."""
        return self.is_strict or self.is_by_key

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
    """Tell a member that it does not hold these any more: it has not acknowledged them in time."""

    member: int
    delivery: int
    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Exhausted:
    """Write these, whose last attempt has ended, to the dead letters; then call `Group.settled`, or
    `Group.put_back` when they cannot be written."""

    first: int
    last: int
    attempts: int
    reason: str


@dataclass(slots=True)
class Effects:
    """What follows from a decision. What is written goes before what is sent: to send may be to
    find that a member has gone, and what ends then ended later.

    Attributes:
        ended: attempts to be recorded.
        acknowledged: to be logged.
    """

    ended: list[Attempts] = field(default_factory=list)
    acknowledged: list[Range] = field(default_factory=list)
    exhausted: list[Exhausted] = field(default_factory=list)
    expired: list[Expired] = field(default_factory=list)

    def then(self, others: Effects) -> None:
        """What follows from another decision comes behind."""
        self.ended += others.ended
        self.acknowledged += others.acknowledged
        self.exhausted += others.exhausted
        self.expired += others.expired
