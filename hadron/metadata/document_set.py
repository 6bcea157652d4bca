"""The documents of one apply, from any number of files, and everything that is wrong with them.

The node that owns the schema judges objects and knows no files; it names the object and the value.
Whoever has the files puts file and line in front of what it says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from hadron.metadata.deletion import references
from hadron.metadata.judging import key_of
from hadron.model.documents.reading import Document, read_documents
from hadron.model.errors import SchemaError
from hadron.model.marked_yaml import decode_text, read_text
from hadron.model.problems import Problems, ValuePath, list_problems
from hadron.model.schema import SchemaObject

_PATH: Final = re.compile(r"((?:[a-z_0-9]+|\[\d+\])(?:\.[a-z_0-9]+|\[\d+\])*): ")
_STEP: Final = re.compile(r"([a-z_0-9]+)|\[(\d+)\]")


class DocumentSet:
    """Add files, then ask for `objects`, which raises `SchemaError` when anything is wrong."""

    def __init__(self) -> None:
        self._documents: list[Document] = []
        self._files: list[str] = []
        self._lines: list[str] = []
        self._is_whole = True

    def load(self, path: Path) -> None:
        """Add a file. One that cannot be read is a problem like others."""
        problems = Problems(str(path))
        self._add(read_text(path, problems), str(path), problems)

    def load_bytes(self, data: bytes, file: str) -> None:
        """Add what a file has; `file` is its name in messages. Of one that is too large no more
        need be given than a byte that it may not have."""
        problems = Problems(file)
        self._add(decode_text(data, problems), file, problems)

    def _add(self, text: str, file: str, problems: Problems) -> None:
        if problems:
            self._files.append(file)
            self._lines += problems.lines()
            self._is_whole = False
        else:
            self.parse(text, file)

    def parse(self, text: str, file: str) -> None:
        """Add a file's text; `file` is its name in messages."""
        problems = Problems(file)
        documents, is_whole = read_documents(text, problems)
        self._check_unique(documents, problems)
        self._files.append(file)
        self._lines += problems.lines()
        self._is_whole &= is_whole
        self._documents += documents

    def _check_unique(self, documents: Iterable[Document], problems: Problems) -> None:
        first = {document.object.label: document for document in reversed(self._documents)}
        for document in documents:
            other = first.get(document.object.label)
            if document.object.name and other is not None:
                where = f"{other.file}:{other.line_of(())}"
                found = f"{document.object.label} again (first in {where})"
                problems.add(document.line_of(()), found, "each object once")

    @property
    def objects(self) -> list[SchemaObject]:
        """What the documents declare. Raises `SchemaError` listing every problem."""
        if self._lines:
            raise self._error(self._lines)
        return [document.object for document in self._documents]

    @property
    def judgeable(self) -> list[SchemaObject]:
        """All that is declared, flawed objects among it, for a dry run that tells what else is
        wrong: `add_problems` takes that. Nothing when some document's object is not even known,
        because others would seem to refer to nothing."""
        known = [document.object for document in self._documents]
        labels = {obj.label for obj in known}
        if not self._is_whole or len(labels) < len(known):
            return []
        return known if all(obj.name for obj in known) else []

    def add_problems(self, refusal: SchemaError) -> None:
        """Note what the node that owns the schema has against `judgeable`, but for what is known
        already, and what may follow from it."""
        flawed = {key_of(each.object) for each in self._documents if each.is_flawed}
        moot = {
            each.object.label
            for each in self._documents
            if each.is_flawed or flawed.intersection(references(each.object))
        }
        self._lines += [
            self._locate(line)
            for line in _lines(refusal)
            if not any(line.startswith(f"{label}: ") for label in moot)
        ]

    def located(self, refusal: SchemaError) -> SchemaError:
        """A refusal of `objects`, with file and line in front of each problem."""
        lines = [self._locate(line) for line in _lines(refusal)]
        if lines == _lines(refusal):
            return refusal
        return self._error(lines, refusal.hint)

    def _error(self, lines: list[str], hint: str = "") -> SchemaError:
        where = f"in {self._files[0]}" if len(self._files) == 1 else f"in {len(self._files)} files"
        return SchemaError(list_problems(sorted(lines, key=self._place), where), hint)

    def _place(self, line: str) -> tuple[int, int]:
        """By file as they were given, and line; what has no place comes last."""
        for index, file in enumerate(self._files):
            found = re.match(rf"{re.escape(file)}(?::(\d+))?: ", line)
            if found:
                return index, int(found[1] or 0)
        return len(self._files), 0

    def _locate(self, line: str) -> str:
        for document in self._documents:
            label = f"{document.object.label}: "
            if line.startswith(label):
                text = line.removeprefix(label)
                path = _PATH.match(text)
                number = document.line_of(_parse_path(path[1]) if path else ())
                return f"{document.file}:{number}: {text}"
        return line


def _lines(refusal: SchemaError) -> list[str]:
    """The problems in a message that `list_problems` made."""
    heading, *problems = refusal.message.split("\n  ")
    return problems or [heading]


def _parse_path(text: str) -> ValuePath:
    """What `show_path` has shown."""
    return tuple(int(index) if index else key for key, index in _STEP.findall(text))
