"""What a room's world came to."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Played:
    """One seed's.

    Attributes:
        complaints: "rule: what is wrong".
        steps: how much was done.
        digest: of what was done: the same seed, the same digest.
    """

    complaints: list[str] = field(default_factory=list)
    steps: int = 0
    digest: str = ""
