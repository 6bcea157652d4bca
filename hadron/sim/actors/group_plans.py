"""What the groups of a random run are like: drawn from the seed alone, the same for all members.

A group keeps the options that it is created with, so whoever joins it names the same ones.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

LETTERS: Final = "letters"
"""The stream that dead letters go to."""

STRICT_BACKLOG: Final = 60
"""Records that a group in strict order is emptied of, one by one, at the end of a run."""


@dataclass(frozen=True)
class GroupPlan:
    """A group.

    Attributes:
        start: "time" is some seconds before somebody joins.
        members: how many use it at a time.
    """

    name: str
    order: Literal["none", "strict", "key"] = "none"
    ack_deadline_s: float = 0.0
    max_attempts: int = 0
    ephemeral: bool = False
    start: Literal["earliest", "latest", "time"] | int = "earliest"
    members: int = 1

    @property
    def is_plain(self) -> bool:
        """It is what members get that name no options."""
        return self == GroupPlan(self.name, start=self.start, members=self.members)

    def options(self, now_ms: int) -> dict[str, Any]:
        """Of `Client.subscribe`."""
        named: dict[str, Any] = {"group": self.name, "start": self.start}
        if self.start == "time":
            named["start"] = datetime.fromtimestamp(max(0, now_ms - 2_000) / 1_000, UTC)
        if self.is_plain:
            return named
        return named | {
            "order": self.order,
            "ack_deadline_s": self.ack_deadline_s,
            "max_attempts": self.max_attempts,
            "dead_letter": LETTERS if self.max_attempts else "",
            "ephemeral": self.ephemeral,
        }


def plans(seed: int | str, count: int) -> list[GroupPlan]:
    """The groups g0 … of a seed's run; the first one is often plain."""
    chance = random.Random(f"groups/{seed}")
    return [
        _plain(chance, "g0")
        if number == 0 and chance.random() < 0.5
        else drawn_plan(chance, f"g{number}")
        for number in range(count)
    ]


def _plain(chance: random.Random, name: str) -> GroupPlan:
    return GroupPlan(name, members=chance.randint(1, 4))


def drawn_plan(chance: random.Random, name: str) -> GroupPlan:
    """A group of any kind."""
    order = chance.choices(("none", "key", "strict"), (5, 3, 2))[0]
    starts: tuple[Any, ...] = ("earliest", "latest", "latest", "time", chance.randint(0, 5))
    return GroupPlan(
        name,
        order=order,  # type: ignore[arg-type]
        ack_deadline_s=chance.choice((0.0, 0.3, 1.0, 3.0)),
        max_attempts=chance.choice((0, 0, 1, 2, 3, 5)),
        ephemeral=chance.random() < 0.15,
        start=chance.choice(starts),
        members=chance.randint(2, 4),
    )
