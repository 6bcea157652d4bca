"""What a program may write for a name, a number, a duration or an instant. Pure.

One form each for every call of the client: subclasses of str and int count as what they are,
`timedelta` and `datetime` where a duration or an instant is meant, and the error for anything else
names the argument. A bare `TypeError` from the depths names neither it nor what would be right.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, TypeAlias

from hadron.model.errors import RequestError
from hadron.model.kinds import proper_kind
from hadron.model.limits import MAX_OFFSET
from hadron.model.problems import shorten
from hadron.model.schema import SchemaObject

ObjectName: TypeAlias = tuple[str, str, str] | SchemaObject
"""(kind, namespace, name), or the object itself."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)


def text_of(name: str, value: Any) -> str:
    """A name that is given, as a plain str. Raises `RequestError` for "" and for no text, which a
    lone surrogate is not either."""
    if not isinstance(value, str):
        raise RequestError(f"{name} {value!r} is {_kind(value)}", "give a str")
    if not value:
        raise RequestError(f'{name} is ""', "give a name")
    if not value.isascii():
        utf8_of(name, value)
    return str.__str__(value)


def utf8_of(what: str, text: str, kind: type[RequestError] = RequestError) -> bytes:
    """Raises `kind` naming `what`, and showing it, for what is no text: it has half of a pair."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise kind(
            f"{what} is not valid Unicode: {shorten(text)}: {error}",
            "replace the lone surrogate; a key or a value may be given as bytes",
        ) from error


def text_or_none_of(name: str, value: Any) -> str:
    """The same where "" means any."""
    return value if isinstance(value, str) and not value else text_of(name, value)


def names_of(name: str, value: Any) -> list[str] | None:
    """Names, or a single one; None stays None. Raises `RequestError` for what are none."""
    if value is None:
        return None
    given = [value] if isinstance(value, str | bytes) else value
    try:
        return [text_of(f"one of {name}", each) for each in given]
    except TypeError:
        raise RequestError(
            f"{name} {value!r} is {_kind(value)}", "give a name, or a list of names"
        ) from None


def retention_of(
    retention: Mapping[str, str | int] | None, max_age: str | None, max_bytes: int | str | None
) -> Mapping[str, str | int] | None:
    """What a stream keeps, as documents have it, given as a whole or as its parts; None keeps all.
    Raises `RequestError` for both."""
    parts = {"max_age": max_age, "max_bytes": max_bytes}
    given = {name: value for name, value in parts.items() if value is not None}
    if not given:
        return retention
    if retention is not None:
        raise RequestError(
            f"retention and {' and '.join(given)} are given", "give one or the other"
        )
    return given


class Named(NamedTuple):
    """An object by its name, and by its id where it was given as itself; else 0."""

    kind: str
    namespace: str
    name: str
    id: int


def objects_of(names: Any) -> list[Named]:
    """What names objects, one or several, which may be given as themselves. Raises `RequestError`
    for what names none."""
    is_one = _object_of(names) or isinstance(names, str) or not isinstance(names, Iterable)
    found = []
    for each in [names] if is_one else names:
        name = _object_of(each)
        if name is None:
            raise RequestError(
                f"{each!r} does not name an object",
                'give (kind, namespace, name), for example ("Stream", "default", "orders")',
            )
        object_id = each.id if isinstance(each, SchemaObject) else 0
        found.append(Named(proper_kind(name[0]), *name[1:], object_id))
    return found


def _object_of(value: Any) -> tuple[str, str, str] | None:
    if isinstance(value, SchemaObject):
        return value.kind, value.namespace, value.name
    if isinstance(value, tuple | list) and [isinstance(x, str) for x in value] == [True] * 3:
        return value[0], value[1], value[2]
    return None


def kind_or_none_of(value: Any) -> str:
    """A kind's proper name, "" where any is meant. Raises `RequestError`."""
    kind = text_or_none_of("kind", value)
    return proper_kind(kind) if kind else ""


def flag_of(name: str, value: Any) -> bool:
    """True or False, and nothing that Python merely takes for one: of "no" it thinks that it is
    true. Raises `RequestError`."""
    if value is True or value is False:
        return bool(value)
    raise RequestError(f"{name} {value!r} is no answer", "True or False")


def whole_of(name: str, value: Any, least: int, most: int | None = None) -> int:
    """An integer within bounds, both inclusive. Raises `RequestError`."""
    number = _index(value)
    if number is None:
        bounds = _span(least, most)
        raise RequestError(f"{name} {value!r} is {_kind(value)}", f"give an int, {bounds}")
    if number < least or (most is not None and number > most):
        raise RequestError(f"{name} {number} is out of bounds", _span(least, most))
    return number


def seconds_of(name: str, value: Any, least: float, most: float | None = None) -> float:
    """A duration in seconds, within bounds, both inclusive. Raises `RequestError`."""
    return _number_of(name, value, "seconds", 1.0, least, most)


def patience_of(value: Any, name: str = "timeout_s") -> float | None:
    """How long somebody waits at most, in seconds; None stays None. Raises `RequestError`."""
    return None if value is None else seconds_of(name, value, 0)


def milliseconds_of(name: str, value: Any, least: float, most: float | None = None) -> float:
    """A duration in milliseconds, within bounds, both inclusive. Raises `RequestError`."""
    return _number_of(name, value, "milliseconds", 1_000.0, least, most)


def _number_of(
    name: str, value: Any, unit: str, per_second: float, least: float, most: float | None
) -> float:
    if isinstance(value, timedelta):
        number = value.total_seconds() * per_second
    elif isinstance(value, bool) or not hasattr(type(value), "__float__"):
        raise RequestError(
            f"{name} {value!r} is {_kind(value)}",
            f"give {unit} as a number, {_span(least, most)}, or a timedelta",
        )
    else:
        number = float(value)
    # What is not a number is not in any bounds either.
    if not least <= number or (most is not None and number > most):
        raise RequestError(f"{name} {value!r} is out of bounds", f"{_span(least, most)} {unit}")
    return number


def offset_of(name: str, value: Any) -> int:
    """An offset. Raises `RequestError`."""
    return whole_of(name, value, 0, MAX_OFFSET)


def instant_ms(name: str, value: Any) -> int:
    """Milliseconds since the Unix epoch of an instant: these themselves, or a datetime with its
    time zone, whose microseconds are cut. Raises `RequestError`."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise RequestError(
                f"{name} {value.isoformat()} does not say in which time zone",
                "for example datetime.now(UTC), or .astimezone() for the local one",
            )
        return (value - _EPOCH) // _MS
    number = _index(value)
    if number is None:
        raise RequestError(
            f"{name} {value!r} is {_kind(value)}",
            "give milliseconds since the Unix epoch as an int, or a datetime with a time zone",
        )
    if number >> 63 not in (0, -1):
        raise RequestError(f"{name} {number} is out of bounds", "64 bits, signed")
    return number


def _index(value: Any) -> int | None:
    """An integer of whatever library; None for what is none, and bool is none here."""
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        return None
    return int(value.__index__())


def _kind(value: Any) -> str:
    return f"of type {type(value).__name__}"


def _span(least: float, most: float | None) -> str:
    if most is None or math.isinf(most):
        return f"{least:g} or more"
    return f"{least:g} to {most:,}"


def check_deserializer(deserializer: object) -> None:
    """Raises `RequestError` when it cannot be called."""
    if deserializer is not None:
        wanted = "a function that takes a value as it was sent, such as json.loads"
        check_called("value_deserializer", deserializer, wanted)


def check_serializer(serializer: object) -> None:
    """Raises `RequestError` when it cannot be called."""
    if serializer is not None:
        wanted = "a function from a value to bytes, str or anything JSON, such as json.dumps"
        check_called("value_serializer", serializer, wanted)


def check_handler(handler: object, takes: str) -> None:
    """Raises `RequestError` when it cannot be called: of the mistake of one line each call, or each
    attempt of a stage, would fail."""
    wanted = f"a function that takes {takes}; where another one makes it, with its `return`"
    check_called("handler", handler, wanted)


def check_called(name: str, function: object, wanted: str) -> None:
    """Raises `RequestError` when it cannot be called, saying what is wanted instead."""
    if not callable(function):
        raise RequestError(f"{name} {function!r} cannot be called", f"give {wanted}")
