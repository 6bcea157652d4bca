"""How mistakes in what people write are told: all at once, each with its place and the way out.

A problem reads `place: what was found, what was expected`. Configuration, schema documents and
commands say it alike because they all say it through here.
"""

from __future__ import annotations

import difflib
import string
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from hadron.model.errors import RequestError

ValuePath = tuple[str | int, ...]
"""Where a value stands inside a document: ("stages", 0, "name")."""

_SHOWN: Final = 60

_LOOKED_AT: Final = 10_000
"""Known words among which a mistake's is sought, on a leader's loop, 1 µs each. Of more the first.
"""

_LETTERS: Final = string.ascii_lowercase + string.digits + "-_./"

_COMPARED: Final = 32
"""Those of them that are compared letter by letter: 0.1 ms each."""

_NAMED: Final = 20
"""Names that a sentence lists."""

_SUGGESTED: Final = 10
"""Problems of a request that are told what may have been meant: each takes a look at all words."""


class Problems:
    """Collects everything wrong with one file, so that the user hears all of it at once."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.paths: set[ValuePath] = set()
        """Where values stand that could not be read: what is said about them next is moot."""
        self._found: dict[tuple[int, str], None] = {}

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
        self._found |= other._found

    def add_at(self, where: str, found: str, expected: str, line: int = 0) -> None:
        """Note a problem of something other than a line, such as an environment variable."""
        self._found[line, f"{where}: {found}, expected {expected}"] = None

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
    try:
        text = repr(value)
    except Exception:
        # A class of a program's own may raise when it is asked.
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """` (did you mean 'flights'?)` for the known word closest to `given`, or "" when none is. Of
    thousands, the most alike are compared."""
    by_folded = {word.lower(): word for word in islice(known, _LOOKED_AT)}
    folded = given[:200].lower()
    near = _most_alike(folded, by_folded) if len(by_folded) > _COMPARED else by_folded
    close = difflib.get_close_matches(folded, near, n=1, cutoff=0.7) or [
        # Of a short word two letters that are exchanged are most of it.
        word
        for word in near
        if sorted(word) == sorted(folded)
    ]
    meant = by_folded[close[0]] if close else given
    # What was asked for may have come to be since: that is no mistake in its name.
    return f" (did you mean {meant!r}?)" if meant != given else ""


def _most_alike(given: str, words: Collection[str]) -> list[str]:
    """As many as are compared: those that one mistake turns into `given`, however many begin and
    end like it; then those that begin or end most like it."""
    slips = (word for word in _one_off(given) if word in words)
    backwards = sorted(word[::-1] for word in words)
    ends = [word[::-1] for word in _beside(given[::-1], backwards)]
    found = dict.fromkeys([*islice(slips, _COMPARED), *_beside(given, sorted(words)), *ends])
    return list(found)[:_COMPARED]


def _one_off(word: str) -> Iterator[str]:
    """What becomes of a word by one letter: exchanged with the next, left out, another, or more."""
    for index in range(len(word) + 1):
        before, behind = word[:index], word[index:]
        yield before + behind[1:2] + behind[:1] + behind[2:]
        yield before + behind[1:]
        for letter in _LETTERS:
            yield before + letter + behind[1:]
            yield before + letter + behind


def _beside(given: str, words: Sequence[str]) -> Sequence[str]:
    """Those that `given` would stand between: of all in order, they begin most like it."""
    at = bisect_left(words, given)
    return words[max(0, at - _COMPARED // 4) : at + _COMPARED // 4]


class Suggestions:
    """`did_you_mean` of one request, which may err in each of ten thousand names: of the first it
    is told what may have been meant, for the others nobody looks at what is known."""

    def __init__(self) -> None:
        self._left = _SUGGESTED

    def of(self, given: str, known: Iterable[str]) -> str:
        """As `did_you_mean`, or "" for a later one. Give a generator of `known`."""
        if not self._left:
            return ""
        self._left -= 1
        return did_you_mean(given, known)


def some_of(names: Collection[str]) -> str:
    """`a, b, c`; of many the first: each of ten thousand problems may list what there is."""
    more = len(names) - _NAMED
    return ", ".join(islice(names, _NAMED)) + (f" and {more} more" if more > 0 else "")


def setting(value: object) -> str:
    """A setting in a sentence, as people write it: `true`, `none`, `'strict'`, `30`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "none" if value is None or value == "" else repr(value)


def one_of(words: Iterable[str]) -> str:
    """`fsync or os`; `a, b or c`: alternatives in a sentence. There must be at least one."""
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last
