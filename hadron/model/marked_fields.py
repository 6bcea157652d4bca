"""Reads one mapping of a marked file by key and type, noting everything that does not fit.

Reading goes on after a problem: a value that cannot be taken is noted and its default returned,
so that one look at the file tells everything. Whoever reads raises at the end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from hadron.model.errors import RequestError
from hadron.model.marked_yaml import Items, Marked, Scalar, Table, line_at, show
from hadron.model.problems import Problems, ValuePath, did_you_mean, show_path

T = TypeVar("T")
D = TypeVar("D")

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}")


class Fields:
    """The keys of one mapping; those that nobody asked for are unknown, which `finish` tells.

    Args:
        value: what stands in the file; anything but a mapping is noted and read as an empty one.
        problems: where mistakes go.
        path: where the mapping stands in its document, for messages.
    """

    def __init__(self, value: Marked, problems: Problems, path: ValuePath = ()) -> None:
        self._problems = problems
        self._known: list[str] = []
        self.path = path
        self.readable = isinstance(value, Table)
        self.line = value.line
        self._value = value
        self._entries = value.entries if isinstance(value, Table) else {}
        if not self.readable:
            found = f" is {_kind(value)}"
            problems.add_value(value.line, path, found, "a mapping of keys to values")

    def line_of(self, key: str) -> int:
        """The line of a key, or of the mapping when it is not there."""
        return line_at(self._value, (key,))

    def name_of(self, key: str) -> str:
        """The key with its path: `stages[0].name`."""
        return show_path((*self.path, key))

    def has(self, key: str) -> bool:
        """Whether the key is there with a value."""
        entry = self._entries.get(key)
        return entry is not None and not (isinstance(entry.value, Scalar) and entry.value.is_null)

    def is_empty_list(self, key: str) -> bool:
        """Whether it was written as `[]`."""
        entry = self._entries.get(key)
        return entry is not None and isinstance(entry.value, Items) and not entry.value.items

    def note(self, key: str, found: str, expected: str) -> None:
        """Note a problem at the line of `key`."""
        self._problems.add(self.line_of(key), found, expected)

    def take(self, key: str) -> Marked | None:
        """The value of a key, or None when it is absent or empty; the key becomes known."""
        if key not in self._known:
            self._known.append(key)
        return self._entries[key].value if self.has(key) else None

    def text(self, key: str, default: str = "") -> str:
        """A scalar as it was written."""
        return self.parsed(key, str, default, "text")

    def parsed(self, key: str, parse: Callable[[str], T], default: T, expected: str) -> T:
        """What `parse` makes of a scalar; it raises `RequestError` for what it cannot take.

        The error's hint, when it reads `expected …`, takes the place of `expected`.
        """
        value = self.take(key)
        if value is None:
            return default
        path = (*self.path, key)
        return self._parse(value, self.line_of(key), path, parse, default, expected)

    def whole(self, key: str, default: int) -> int:
        """A whole number of at most 18 digits."""
        return self.parsed(key, parse_whole, default, "a whole number")

    def flag(self, key: str, default: bool) -> bool:
        """true or false."""
        return self.parsed(key, parse_flag, default, "true or false")

    def required(self, key: str, parse: Callable[[str], T], default: T, expected: str) -> T:
        """`parsed` for a key that must be there."""
        self.require(key, expected)
        return self.parsed(key, parse, default, expected)

    def require(self, key: str, expected: str) -> bool:
        """Note a key that has no value, and return whether it has one."""
        if not self.has(key) and self.readable:
            self.note(key, f"{self.name_of(key)} is missing", expected)
        return self.has(key)

    def list_of(self, key: str, parse: Callable[[str], T], expected: str) -> tuple[T, ...]:
        """What `parse` makes of each scalar of a list, without those that it cannot take."""
        found: list[T] = []
        for index, item in enumerate(self._items(key, f"a list, each {expected}") or ()):
            path = (*self.path, key, index)
            parsed = self._parse(item, item.line, path, parse, None, expected)
            if parsed is not None:
                found.append(parsed)
        return tuple(found)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of scalars as they were written; absent is empty."""
        return self.list_of(key, str, "text")

    def texts_by_key(self, key: str) -> dict[str, str]:
        """A mapping of scalars as they were written; absent is empty."""
        inner = self.table(key)
        return {} if inner is None else {name: inner.text(name) for name in inner._entries}

    def table(self, key: str) -> Fields | None:
        """The fields of a nested mapping, or None when it is absent."""
        value = self.take(key)
        if value is None:
            return None
        if not isinstance(value, Table):
            self._note_kind(key, value, "a mapping of keys to values")
            return None
        return Fields(value, self._problems, (*self.path, key))

    def tables(self, key: str) -> list[Fields] | None:
        """The fields of each mapping in a list; absent is empty, None is no list."""
        items = self._items(key, "a list of mappings")
        if items is None:
            return None
        return [
            Fields(item, self._problems, (*self.path, key, index))
            for index, item in enumerate(items)
        ]

    def finish(self, elsewhere: Mapping[str, str] | None = None) -> None:
        """Note every key that nobody asked for; `elsewhere` has what is to be said of some."""
        expected = f"one of {', '.join(self._known)}"
        for key, entry in self._entries.items():
            if key not in self._known:
                why = (elsewhere or {}).get(key) or did_you_mean(key, self._known)
                found = f"unknown key {self.name_of(key)!r}{why}"
                self._problems.add(entry.line, found, expected)
                # The same list in each line would hide what differs.
                expected = "one of the same keys"

    def _parse(
        self,
        value: Marked,
        line: int,
        path: ValuePath,
        parse: Callable[[str], T],
        default: D,
        expected: str,
    ) -> T | D:
        if not isinstance(value, Scalar) or value.is_null:
            self._problems.add_value(line, path, f" is {_kind(value)}", expected)
            return default
        try:
            return parse(value.text)
        except RequestError as error:
            hint = error.hint.removeprefix("expected ") or expected
            # "'one' is not a whole number, expected a whole number" would say it twice.
            found = error.message.removesuffix(f" is not {hint}")
            self._problems.add_value(line, path, f": {found}", hint)
            return default

    def _items(self, key: str, expected: str) -> tuple[Marked, ...] | None:
        value = self.take(key)
        if value is None:
            return ()
        if not isinstance(value, Items):
            self._note_kind(key, value, expected)
            return None
        return value.items

    def _note_kind(self, key: str, value: Marked, expected: str) -> None:
        path = (*self.path, key)
        self._problems.add_value(self.line_of(key), path, f" is {_kind(value)}", expected)


def parse_whole(text: str) -> int:
    """A whole number in decimal digits. Raises `RequestError`."""
    if not _WHOLE.fullmatch(text):
        raise RequestError(f"{text!r} is not a whole number", "expected a whole number")
    return int(text)


def parse_flag(text: str) -> bool:
    """Raises `RequestError`."""
    if text not in ("true", "false"):
        raise RequestError(f"{text!r} is neither true nor false")
    return text == "true"


def _kind(value: Marked) -> str:
    is_text = isinstance(value, Scalar) and not value.is_null
    return f"the text {show(value)}" if is_text else show(value)
