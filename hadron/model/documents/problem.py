"""One thing wrong with one declared object, wherever the object came from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hadron.model.errors import SchemaError
from hadron.model.problems import Suggestions, ValuePath, list_problems, show_path


@dataclass(frozen=True, slots=True)
class Problem:
    """What was found where, and what was expected instead."""

    label: str
    """The object: `Stream default/flights`."""
    path: ValuePath
    """The value, by its keys in the YAML document; empty for the object as a whole."""
    found: str
    expected: str = ""
    """"" where `found` says it all."""
    hint: str = ""
    """The way out, where what was expected is not one."""

    @property
    def text(self) -> str:
        """The problem without the object, for a reader who sees the line."""
        where = f"{show_path(self.path)}: " if self.path else ""
        return f"{where}{self.found}"

    def __str__(self) -> str:
        expected = f", expected {self.expected}" if self.expected else ""
        return f"{self.label}: {self.text}{expected}"


class Notes:
    """Collects the problems of one object."""

    def __init__(self, label: str, suggestions: Suggestions | None = None) -> None:
        self.label = label
        self._suggestions = suggestions or Suggestions()
        self.problems: list[Problem] = []

    def note(self, path: ValuePath, found: str, expected: str) -> None:
        self.problems.append(Problem(self.label, path, found, expected))

    def meant(self, given: str, known: Iterable[str]) -> str:
        """Which of the known words `given` may stand for, as far as a request is told."""
        return self._suggestions.of(given, known)


def schema_error(problems: Sequence[Problem]) -> SchemaError:
    """The error that refuses an apply or a deletion; there must be at least one problem."""
    hints = dict.fromkeys(each.hint for each in problems if each.hint)
    return SchemaError(list_problems(_lines(problems), "with the schema"), "\n".join(hints))


def _lines(problems: Iterable[Problem]) -> list[str]:
    return list(dict.fromkeys(map(str, problems)))
