"""Where reading starts, in the words of `--from` and of kcat's `-o`."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

import click

from hadron.cli.quantities import Whole
from hadron.model.errors import NotFoundError, OffsetOutOfRangeError, RequestError
from hadron.model.units import parse_duration_ms, parse_time_ms

MOMENT_HELP: Final = (
    "so long ago (-1h, -30m, -2d), 2026-01-31T12:00:00Z, 2026-01-31 for its midnight UTC, "
    "@MILLISECONDS."
)
FROM_HELP: Final = (
    "earliest, latest, an offset, -N for the last N of each partition, or a time: " + MOMENT_HELP
)
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_LAST_MS: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_AGO: Final = re.compile(r"-(\d[\d.]*\s*[a-zA-Z].*)")
_NUMBER: Final = re.compile(r"(|-|s?@)(\d+)")
_KINDS: Final[dict[str, Literal["offset", "last", "time"]]] = {
    "": "offset",
    "-": "last",
    "@": "time",
    "s@": "time",
}
_WORDS: Final[dict[str, Literal["earliest", "latest"]]] = {
    "earliest": "earliest",
    "beginning": "earliest",
    "latest": "latest",
    "end": "latest",
}


@dataclass(frozen=True, slots=True)
class Position:
    """A place in each of a stream's partitions.

    Attributes:
        kind: what `number` counts; "earliest" and "latest" have no number.
        number: an offset, how many from the end, or milliseconds since the Unix epoch.
    """

    kind: Literal["earliest", "latest", "offset", "last", "time"]
    number: int = 0

    @property
    def at_ms(self) -> int | None:
        """The time to ask offsets for, or None."""
        return self.number if self.kind == "time" else None

    def resolve(self, first_offset: int, next_offset: int, at_offset: int) -> int:
        """The offset that this means in a partition that holds [first_offset, next_offset)."""
        if self.kind == "earliest":
            return first_offset
        if self.kind == "latest":
            return next_offset
        if self.kind == "last":
            return max(first_offset, next_offset - self.number)
        return at_offset if self.kind == "time" else self.number

    @property
    def moment(self) -> datetime:
        """A time as `Client.read` takes it."""
        return _EPOCH + timedelta(milliseconds=min(self.number, _LAST_MS))

    @property
    def is_from_end(self) -> bool:
        """Whether it moves with every record."""
        return self.kind in ("latest", "last")


def clock_ms() -> int:
    """This machine's: milliseconds since the Unix epoch."""
    return time.time_ns() // 1_000_000


class MomentType(click.ParamType[int]):
    """The click type of a point in time: milliseconds since the Unix epoch.

    Args:
        now_ms: the clock from which "-1h" counts: milliseconds since the Unix epoch.
        expected: what is named where it is none.
    """

    name = "time"

    def __init__(
        self, now_ms: Callable[[], int] = clock_ms, *, expected: str = MOMENT_HELP
    ) -> None:
        self._now_ms = now_ms
        self._expected = expected

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Parse, or fail naming what was expected."""
        if isinstance(value, int):
            return value
        match = _NUMBER.fullmatch(value)
        if match and _KINDS[match[1]] == "time":
            return Whole().convert(match[2], param, ctx)
        if match := _AGO.fullmatch(value):
            try:
                ago_ms = parse_duration_ms(match[1])
            except RequestError as error:
                self.fail(f"{value!r} is no time ago: {error.message}, {error.hint}", param, ctx)
            return max(0, self._now_ms() - ago_ms)
        moment = f"{value}T00:00:00Z" if re.fullmatch(r"\d{4}-\d\d-\d\d", value) else value
        try:
            return parse_time_ms(moment)
        except RequestError:
            self.fail(f"{value!r} is none of: {self._expected}", param, ctx)


class PositionType(click.ParamType[Position]):
    """The click type of `--from`.

    Args:
        now_ms: as of `MomentType`.
    """

    name = "position"

    def __init__(self, now_ms: Callable[[], int] = clock_ms) -> None:
        self._moment = MomentType(now_ms, expected=FROM_HELP)

    def convert(
        self, value: str | Position, param: click.Parameter | None, ctx: click.Context | None
    ) -> Position:
        """Parse, or fail naming what was expected."""
        if isinstance(value, Position):
            return value
        if value in _WORDS:
            return Position(_WORDS[value])
        if match := _NUMBER.fullmatch(value):
            return Position(_KINDS[match[1]], Whole().convert(match[2], param, ctx))
        return Position("time", self._moment.convert(value, param, ctx))


def check_offset(where: str, offset: int, first_offset: int, next_offset: int) -> None:
    """Raise `OffsetOutOfRangeError` unless reading a partition that holds [first_offset,
    next_offset) may start at `offset`: the next record's is the last one that may be waited for."""
    if first_offset <= offset <= next_offset:
        return
    has = f"offsets {first_offset} to {next_offset - 1}" if first_offset < next_offset else "none"
    raise OffsetOutOfRangeError(
        f"there is no offset {offset} in {where}, which has {has}",
        "retention has dropped it; read from earliest"
        if offset < first_offset
        else f"the next record gets {next_offset}; latest waits for it, -N reads the last N",
    )


def check_partitions(stream: str, wanted: tuple[str, ...], known: list[str]) -> list[str]:
    """The partitions to read: `wanted`, or all. Raises `NotFoundError` for an unknown one."""
    for name in wanted:
        if name not in known:
            raise NotFoundError(
                f"stream {stream!r} has no partition {name!r}",
                f"its partitions: {', '.join(known)}",
            )
    return list(dict.fromkeys(wanted)) or known
