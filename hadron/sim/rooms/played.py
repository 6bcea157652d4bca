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


def innermost(error: BaseException) -> str:
    """What has ended a world, and where, in one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    frame, where = error.__traceback__, ""
    while frame is not None:
        where = f"{frame.tb_frame.f_code.co_filename.rpartition('/')[2]}:{frame.tb_lineno}"
        frame = frame.tb_next
    return f"{type(error).__name__}: {error} at {where}"
