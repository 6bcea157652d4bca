"""What becomes of a record that was delivered in vain (GROUPS G4, G16). Pure."""

from __future__ import annotations

import enum
from typing import NamedTuple

from hadron.delivery.patience import ASKED_CAP_S, again_after_s


class Cause(enum.Enum):
    """Why a delivery was in vain."""

    UNSEEN = "its program was never handed it"
    FAILED = "its program refused it, or let its deadline pass"
    LOST_ALONE = "its member has gone, and held nothing else"
    LOST_WITH_OTHERS = "its member has gone: of which of its records nobody knows"


class Tries(NamedTuple):
    """How often a record was delivered, and how it is delivered next.

    Attributes:
        attempt: the next one, from 1, or the one that is under way.
        is_apart: whoever is given it holds nothing else.
        spared: attempts that were lost with members that held others beside it. It has them back
            when its last one has failed.
    """

    attempt: int
    is_apart: bool = False
    spared: int = 0

    def after(self, cause: Cause, most: int) -> Tries | None:
        """The next delivery of those that were in vain; None for a dead letter. `most` attempts,
        0 for any number."""
        if cause is Cause.UNSEEN:
            return self
        is_shared = cause is Cause.LOST_WITH_OTHERS
        if not 0 < most <= self.attempt:
            return Tries(self.attempt + 1, spared=self.spared + is_shared)
        if is_shared and most > 1:
            return self._replace(is_apart=True)
        if cause is Cause.FAILED and self.spared:
            return Tries(self.attempt, spared=self.spared - 1)
        # What wants one attempt wants no second one.
        return None


class Refusal(NamedTuple):
    """A member gives back what it was given: a nack.

    Attributes:
        said_at: when, on the monotonic clock.
        delay_s: what the member wants; None leaves it to the leader.
        is_unseen: its program was never handed it.
        share: random, 0.5 to 1 (`patience`).
    """

    said_at: float
    delay_s: float | None = None
    reason: str = ""
    is_unseen: bool = False
    share: float = 1.0

    @property
    def cause(self) -> Cause:
        return Cause.UNSEEN if self.is_unseen else Cause.FAILED

    @property
    def is_soon(self) -> bool:
        """Who does that many in a row rests."""
        return self.delay_s is None or self.delay_s < ASKED_CAP_S

    def not_before(self, attempt: int) -> float:
        """When it may be delivered again."""
        if self.is_unseen:
            return self.said_at + (self.delay_s or 0.0)
        return self.said_at + again_after_s(attempt, self.delay_s, self.share)
