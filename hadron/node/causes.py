"""Of all that the tasks of a node have raised, what ended it."""

from __future__ import annotations

from typing import TypeVar, cast

from hadron.model.errors import CorruptionError

_Error = TypeVar("_Error", bound=BaseException)


def first_of(group: BaseExceptionGroup[_Error]) -> _Error:
    """One of those that several tasks have raised."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return cast("_Error", error)


def damage_in(error: CorruptionError | ExceptionGroup[Exception]) -> CorruptionError | None:
    """The damage that ended a node, if nothing else did."""
    if isinstance(error, CorruptionError):
        return error
    damage, others = error.split(CorruptionError)
    return first_of(damage) if damage is not None and others is None else None
