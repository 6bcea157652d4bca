"""Stages that wait, and ways that are not taken: P14, written a second time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from hadron.model.ids import NO_BALLOT, Ballot
from hadron.model.pipelines import StageSpec, Wait
from hadron.model.units import format_duration

OVER: Final = 0
ARMED: Final = 1
CAME: Final = 2
SKIPPED: Final = 5
LATE: Final = 6
"""Of a stage, as `SKIPPED`."""
PASSED: Final = (2, SKIPPED, LATE)
"""Done, or as good as that to what comes after."""
NO_KEY: Final = (
    "the record that triggered it has no key, by which another is awaited{}: publish it with one, "
    "or wait for a signal"
)
WAS_GONE: Final = ", or was gone when the instance was retried"
"""Of one that ever was."""


@dataclass(slots=True)
class Awaited:
    """What a stage of an instance waits for: a record with the key of this hash, or, without a
    stream, a signal. `is_deleted`: the stream is no more."""

    stream_id: int | None
    key: int | None
    status: int = ARMED
    due_ms: int | None = None
    output: tuple[int | None, str | None, int | None] = (None, None, None)
    is_deleted: bool = False

    def end(self) -> None:
        self.status, self.due_ms = OVER, None


class WaitCursor(NamedTuple):
    offset: int
    ballot: Ballot = NO_BALLOT
    truncations: int = 0


@dataclass(slots=True)
class Waits:
    """Of one pipeline.

    Attributes:
        by_stage: by (instance, stage).
        cursors: by (stream, partition).
    """

    by_stage: dict[tuple[int, str], Awaited] = field(default_factory=dict)
    cursors: dict[tuple[int, str], WaitCursor] = field(default_factory=dict)

    def lost(self) -> list[tuple[int, str]]:
        """What waits, by a key, for records of streams that are no more, in the order in which it
        is given up."""
        lost = [
            (each.stream_id or 0, each.key, *at)
            for at, each in self.by_stage.items()
            if each.is_deleted and each.status == ARMED and each.key is not None
        ]
        return [(number, stage) for _, _, number, stage in sorted(lost)]

    def of(self, instance_id: int) -> dict[str, Awaited]:
        return {
            stage: each for (number, stage), each in self.by_stage.items() if number == instance_id
        }


def other_way(stage: StageSpec) -> str | None:
    """What runs when it has waited for too long."""
    return None if stage.wait is None or stage.wait.on_timeout == "fail" else stage.wait.on_timeout


def other_ways(stages: Iterable[StageSpec]) -> set[str | None]:
    return {other_way(each) for each in stages} - {None}


def awaited_streams(stages: Iterable[StageSpec]) -> list[str]:
    return sorted({each.wait.stream for each in stages if each.wait is not None} - {""})


def keys_of(packed: bytes, count: int) -> list[int | None]:
    """Signed, as tables have them; None without one."""
    found = [
        int.from_bytes(packed[at : at + 8], "little", signed=True) or None
        for at in range(0, len(packed), 8)
    ]
    return found or [None] * count


def chosen(packed: bytes, offsets: Sequence[int], kept: Sequence[int]) -> bytes:
    """The hashes of some of the records."""
    parts = [packed[at : at + 8] for at in range(0, len(packed), 8)]
    return b"".join(each for each, at in zip(parts, offsets, strict=False) if at in kept)


def deleted(wait: Wait) -> str:
    """Why it is given up, whatever comes."""
    return (
        f"stream {wait.stream}, of which it waits for a record, was deleted: retried, it goes on "
        "with what is declared then"
    )


def too_late(wait: Wait) -> str:
    """Why it is given up."""
    what = "no signal"
    if wait.stream:
        what = f"no record of {wait.stream} with the key of its trigger"
    when = f"within {format_duration(wait.timeout_ms)}" if wait.timeout_ms else "in time"
    return f"{what} came {when}"
