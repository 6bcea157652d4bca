"""Values as JSON, and what of a value is none. Pure.

A module of its own because the encoder's errors name a type and no place, and because it writes
some things that no reader gets back as they were: NaN as null, two keys as one text. Both are found
by a second look, at few values only: what comes out of the encoder shows whether it may be needed.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

_WAYS: Final = (
    ("to_dict", ': send what its .to_dict() gives, row by row .to_dict("records")'),
    ("tolist", ": send its .tolist()"),
)

_NUMBER_AS_KEY: Final = re.compile(rb'"-?[0-9.]+":')
"""Where keys of different types may have become the same text."""

_NON_FINITE: Final = "it contains NaN or an infinity"


def encode_json(value: Any) -> bytes:
    """A value as JSON. Raises `ValueError` that says what of it is none and where, and
    `RecursionError` for one that is nested too deeply.

    Keys may be what becomes a text: int and float, dates, UUIDs. Not bool, whose text in JSON would
    be 1 or 0, and no two that come to the same text.
    """
    try:
        data = _encode(value)
    except (TypeError, ValueError) as error:
        raise ValueError(_trouble(value) or str(error)) from error
    if b"null" in data or _NUMBER_AS_KEY.search(data):
        trouble = _trouble(value)
        if trouble:
            raise ValueError(trouble)
    return data


def json_text(text: str | bytes) -> msgspec.Raw:
    """A text that is one JSON value, as it was written. Raises `ValueError` for what is none, or
    what its readers could not decode: numbers out of range, or too many levels.

    All of it is decoded: a text that is only skipped may have any numbers.
    """
    try:
        _decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    return msgspec.Raw(text.strip() if isinstance(text, bytes) else text.strip().encode())


def _to_json(value: Any) -> Any:
    """What msgspec does not know by itself: models of pydantic, scalars of numpy and their like.

    Neither library is imported here: their values are known by what they can do.
    """
    kind = type(value)
    if callable(getattr(kind, "model_dump", None)):
        plain = value.model_dump(mode="json")
    elif isinstance(value, str):
        plain = str.__str__(value)
    elif isinstance(value, bytes):
        plain = bytes(value)
    elif callable(getattr(kind, "item", None)) and getattr(value, "shape", None) == ():
        plain = value.item()
    elif isinstance(value, datetime) and value == value:
        plain = value.isoformat()
    elif isinstance(value, (int, float)):
        plain = float(value) if isinstance(value, float) else int(value)
    else:
        ways = (way for method, way in _WAYS if callable(getattr(kind, method, None)))
        raise TypeError(f"{_name(kind)} is no JSON value" + next(ways, ""))
    if type(plain) is kind:
        raise TypeError(f"{_name(kind)} is no JSON value")
    if trouble := _trouble(plain):
        raise ValueError(trouble)
    return plain


_decode: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.Encoder(order=None, enc_hook=_to_json).encode


def _trouble(value: Any, path: str = "") -> str:
    """What of a value is no JSON, and where; "" when nothing is."""
    if isinstance(value, float):
        return "" if math.isfinite(value) else _at(path, _NON_FINITE)
    if isinstance(value, Mapping):
        return _of_keys(value, path) or _first(
            _trouble(item, f"{path}[{key!r}]") for key, item in value.items()
        )
    if isinstance(value, (list, tuple, set, frozenset)):
        return _first(_trouble(item, f"{path}[{index}]") for index, item in enumerate(value))
    try:
        if msgspec.inspect.is_struct(value) or dataclasses.is_dataclass(value):
            return _trouble(msgspec.to_builtins(value, enc_hook=_to_json), path)
        _encode(value)
    except (TypeError, ValueError) as error:
        return _at(path, str(error))
    return ""


def _of_keys(value: Mapping[Any, Any], path: str) -> str:
    texts: dict[bytes, Any] = {}
    for key in value:
        try:
            if isinstance(key, bool):
                raise TypeError("JSON has none such")
            text = _encode({key: None})
        except (TypeError, ValueError) as error:
            return _at(path, f"its key {key!r} is no text but {_name(type(key))}: {error}")
        if text in texts:
            return _at(path, f"its keys {texts[text]!r} and {key!r} are the same in JSON")
        texts[text] = key
    return ""


def _first(troubles: Iterable[str]) -> str:
    return next(filter(None, troubles), "")


def _at(path: str, trouble: str) -> str:
    return f"at {path}: {trouble}" if path else trouble


def _name(kind: type) -> str:
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"
