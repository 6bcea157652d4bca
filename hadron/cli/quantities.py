"""Values of options: durations and sizes, in the spelling of configuration files and schema
documents, and names with values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import click

LARGEST: Final = (1 << 63) - 1
"""Offsets, times and ids are stored as SQLite integers, and messages have hardly more room."""

_T = TypeVar("_T")
_Function = TypeVar("_Function", bound=Callable[..., Any])


def once(_ctx: click.Context, _parameter: click.Parameter, values: Sequence[_T]) -> _T | None:
    """The callback of an option that is `multiple` so that a second one can be refused: with
    others the last one counts, and what the first one says would silently not be done."""
    if len(values) > 1:
        raise click.BadParameter(f"is given {len(values)} times, expected one")
    return values[0] if values else None


def pairs(
    _ctx: click.Context, _parameter: click.Parameter, values: Sequence[str]
) -> dict[str, str]:
    """The callback of an option NAME=VALUE that may be repeated, each name once."""
    found: dict[str, str] = {}
    for value in values:
        name, equals, content = value.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{value!r} is not NAME=VALUE")
        if name in found:
            raise click.BadParameter(f"{name!r} is given twice")
        found[name] = content
    return found


def header_option(help: str) -> Callable[[_Function], _Function]:
    """--header, whose value is `headers`."""
    return click.option(
        "--header", "-H", "headers", multiple=True, metavar="NAME=VALUE", callback=pairs, help=help
    )


class Whole(click.IntRange):
    """A whole number that goes into a message: bounded there, so here, and in words. Help names no
    bound that nobody meets.

    Args:
        largest: what its field takes.
    """

    def __init__(self, min: int = 0, largest: int = LARGEST) -> None:
        super().__init__(min)
        self._largest = largest

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse, or fail naming what was expected."""
        number = int(super().convert(value, param, ctx))
        if number > self._largest:
            self.fail(f"{number} is too large, expected {self._largest} at most", param, ctx)
        return number


class Duration(click.ParamType[float]):
    """Seconds, from "500ms", "30s", "5m".

    Args:
        is_above_zero: whether 0s is refused.
    """

    name = "duration"

    def __init__(self, *, is_above_zero: bool = False) -> None:
        self._is_above_zero = is_above_zero

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parse, or fail naming what was expected."""
        if isinstance(value, float):
            return value
        from hadron.model.errors import RequestError
        from hadron.model.units import parse_duration_ms

        try:
            seconds = parse_duration_ms(value) / 1_000
        except RequestError as error:
            self.fail(f"{error.message}, such as 500ms, 30s or 5m", param, ctx)
        if self._is_above_zero and not seconds:
            self.fail(f"{value!r} is no time at all, give 1ms or more", param, ctx)
        return seconds


class Checked(click.ParamType[str]):
    """A text that must be fit for what it is, before anybody is asked anything.

    Args:
        name: what it is.
        check: raises `RequestError` for what is not fit.
    """

    def __init__(self, name: str, check: Callable[[str], object]) -> None:
        self.name = name
        self._check = check

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text, or fail naming what was expected."""
        from hadron.model.errors import RequestError

        try:
            self._check(value)
        except RequestError as error:
            self.fail("; ".join(filter(None, [error.message, error.hint])), param, ctx)
        return value


class Written(click.ParamType[str]):
    """A duration or a size, as it was written, for a document that says it in the same words.

    Args:
        name: "duration" or "size".
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text, or fail naming what was expected."""
        from hadron.model.errors import RequestError
        from hadron.model.units import parse_duration_ms, parse_size

        try:
            (parse_duration_ms if self.name == "duration" else parse_size)(value)
        except RequestError as error:
            self.fail(f"{error.message}, {error.hint}", param, ctx)
        return value


def duration(milliseconds: int) -> str:
    """The largest unit that has at least one of it, and the next: `3h 20m`."""
    seconds = milliseconds / 1_000
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    for unit, size, lesser, least in (
        ("d", 86_400, "h", 3_600),
        ("h", 3_600, "m", 60),
        ("m", 60, "s", 1),
    ):
        if whole >= size:
            rest = whole % size // least
            return f"{whole // size}{unit}" + (f" {rest}{lesser}" if rest else "")
    return f"{whole}s"
