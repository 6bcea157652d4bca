"""Durations and sizes as options, in the spelling of configuration files and schema documents."""

from __future__ import annotations

import click


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


class Written(click.ParamType[str]):
    """A duration or a size, as it was written, for a document that says it in the same words.

    Args:
        name: "duration" or "size".
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """The text, or fail naming what was expected."""
        from hadron.model.errors import RequestError
        from hadron.model.units import parse_duration_ms, parse_size

        try:
            (parse_duration_ms if self.name == "duration" else parse_size)(value)
        except RequestError as error:
            self.fail(f"{error.message}, {error.hint}", param, ctx)
        return value
