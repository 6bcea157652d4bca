"""How mistakes in what people write are told: all at once, each with its place and the way out.

A problem reads `place: what was found, what was expected`. Configuration, schema documents and
commands say it alike because they all say it through here.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

from hadron.model.errors import RequestError

ValuePath = tuple[str | int, ...]
"""Where a value stands inside a document: ("stages", 0, "name")."""

_SHOWN: Final = 60


class Problems:
    """Collects everything wrong with one file, so that the user hears all of it at once."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.paths: set[ValuePath] = set()
        """Where values stand that could not be read: what is said about them next is moot."""
        self._found: list[tuple[int, str]] = []

    def add(self, line: int, found: str, expected: str) -> None:
        """Note that `found` stands in `line` (from 1; 0 for the file as a whole)."""
        where = f"{self.file}:{line}" if line else self.file
        self.add_at(where, found, expected, line)

    def add_value(self, line: int, path: ValuePath, found: str, expected: str) -> None:
        """Note that the value at `path` cannot be read."""
        self.paths.add(path)
        self.add(line, f"{show_path(path) or 'the document'}{found}", expected)

    def extend(self, other: Problems) -> None:
        """Take over what was noted for a part of the file."""
        self._found += other._found

    def add_at(self, where: str, found: str, expected: str, line: int = 0) -> None:
        """Note a problem of something other than a line, such as an environment variable."""
        text = f"{where}: {found}, expected {expected}"
        if (line, text) not in self._found:
            self._found.append((line, text))

    def __len__(self) -> int:
        return len(self._found)

    def lines(self) -> list[str]:
        """Each problem as a sentence, in the file's order."""
        return [text for _, text in sorted(self._found, key=lambda found: found[0])]

    def raise_as(self, error: type[RequestError]) -> None:
        """Raise `error` listing every problem; nothing when there is none."""
        if self._found:
            raise error(list_problems(self.lines(), f"in {self.file}"))


def list_problems(lines: list[str], where: str) -> str:
    """One problem as it is; several as an indented list under a heading."""
    if len(lines) == 1:
        return lines[0]
    return "\n  ".join([f"{len(lines)} problems {where}:", *lines])


def show_path(path: ValuePath) -> str:
    """`stages[0].retry.max_attempts`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def shorten(value: object) -> str:
    """Text, or what was given in its place, as Python writes it, and cut when it would fill the
    screen."""
    if isinstance(value, str):
        return repr(value if len(value) <= _SHOWN else value[: _SHOWN - 3] + "...")
    if isinstance(value, bytes):
        return repr(value if len(value) <= _SHOWN else value[: _SHOWN - 3] + b"...")
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """` (did you mean 'flights'?)` for the known word closest to `given`, or "" when none is."""
    by_folded = {word.lower(): word for word in known}
    folded = given[:200].lower()
    close = difflib.get_close_matches(folded, by_folded, n=1, cutoff=0.7) or [
        # Of a short word two letters that are exchanged are most of it.
        word
        for word in by_folded
        if sorted(word) == sorted(folded)
    ]
    return f" (did you mean {by_folded[close[0]]!r}?)" if close else ""


def setting(value: object) -> str:
    """A setting in a sentence, as people write it: `true`, `none`, `'strict'`, `30`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "none" if value is None or value == "" else repr(value)


def one_of(words: Iterable[str]) -> str:
    """`fsync or os`; `a, b or c`: alternatives in a sentence. There must be at least one."""
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last
