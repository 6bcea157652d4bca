"""YAML that remembers its lines: files that people write, read so that every mistake is named.

A room of its own inside `model`, and the only module there that needs PyYAML, because two rooms
that may not see each other read files with it: `node` its configuration, `metadata` schema
documents. It is as pure as the rest: text in, values or problems out.

The tree keeps scalars as they were written. YAML 1.1 would turn `on` into True, `1:30` into 90
and a version `1.10` into 1.1; a reader here asks for a type, and the text is all it gets. Only
what a file of this kind needs is taken: duplicate keys, keys that are not text, custom tags and
recursive aliases are problems, not surprises.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from hadron.model.limits import MAX_MESSAGE_BYTES
from hadron.model.problems import Problems, ValuePath, shorten

MAX_FILE_BYTES: Final = MAX_MESSAGE_BYTES
"""A schema travels in one message, and a configuration is smaller still."""

MAX_NODES: Final = 100_000
"""Values in one document, counted as they are read, and again after aliases are followed: refuses
alias bombs. So many take seconds to read, where each is two bytes of the text."""

_NULL: Final = "tag:yaml.org,2002:null"
_TAGS: Final = frozenset(
    f"tag:yaml.org,2002:{name}"
    for name in ("str", "int", "float", "bool", "null", "timestamp", "merge", "value", "map", "seq")
)
_SURROGATES: Final = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value as written; `is_null` when it is empty, `~` or `null` without quotes."""

    line: int
    text: str
    is_null: bool


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    line: int
    items: tuple[Marked, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a mapping: the line of the key, and its value."""

    line: int
    value: Marked


@dataclass(frozen=True, slots=True)
class Table:
    """A mapping, keys in the file's order."""

    line: int
    entries: dict[str, Entry]


Marked = Scalar | Items | Table


def read_text(path: Path, problems: Problems) -> str:
    """The text of a file; "" with a problem noted when there is no readable text."""
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        problems.add(0, "there is no such file", "a YAML file")
        return ""
    except IsADirectoryError:
        problems.add(0, "this is a directory", "a YAML file")
        return ""
    except (OSError, ValueError) as error:
        problems.add(0, f"cannot be read: {error}", "a readable YAML file")
        return ""
    return decode_text(data, problems)


def decode_text(data: bytes, problems: Problems) -> str:
    """The text of a file that has these bytes, or one more than it may have; "" with a problem
    noted."""
    if len(data) > MAX_FILE_BYTES:
        problems.add(0, f"more than {MAX_FILE_BYTES} bytes", "a smaller YAML file")
        return ""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        found = f"byte 0x{data[error.start]:02x}, which is not UTF-8"
        problems.add(line, found, "a YAML text file")
        return ""


def parse_yaml(text: str, problems: Problems) -> list[Marked]:
    """Every non-empty document of `text`, as far as it can be read; the rest is in `problems`."""
    documents: list[Marked] = []
    try:
        for root in yaml.compose_all(text, Loader=_Loader):
            marked = _Converter(problems).convert(root)
            if marked is not None and not (isinstance(marked, Scalar) and marked.is_null):
                documents.append(marked)
    except _TooManyError as error:
        _note_too_many(error.line, problems)
    except yaml.MarkedYAMLError as error:
        _note_syntax_error(error, problems)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        character = text[error.position : error.position + 1]
        found = f"the character {character!a}, which YAML does not allow"
        problems.add(line, found, "a YAML text file")
    except (ValueError, OverflowError) as error:
        # PyYAML lets a few of these through, for escapes such as "\UFFFFFFFF".
        problems.add(0, f"text that PyYAML cannot read ({error})", "valid YAML")
    except RecursionError:
        problems.add(0, "too many nested values", "a flatter YAML file")
    return documents


def mark(value: Any) -> Marked:
    """A program's own value as if it had been written, in no line: what is no mapping, list, text,
    number or bool is taken for its text, which whoever reads it judges."""
    if isinstance(value, Mapping):
        return Table(0, {str(key): Entry(0, mark(each)) for key, each in value.items()})
    if isinstance(value, (list, tuple)):
        return Items(0, tuple(map(mark, value)))
    if isinstance(value, bool):
        return Scalar(0, str(value).lower(), is_null=False)
    return Scalar(0, "" if value is None else str(value), is_null=value is None)


def show(value: Marked | None) -> str:
    """A value in a message: its text shortened, or what kind of thing it is."""
    if value is None or (isinstance(value, Scalar) and value.is_null):
        return "empty"
    if isinstance(value, Scalar):
        return shorten(value.text)
    return "a list" if isinstance(value, Items) else "a mapping"


def line_at(value: Marked, path: ValuePath) -> int:
    """The line of the value at `path`, or of the closest enclosing one that the file has."""
    line = value.line
    for step in path:
        if isinstance(value, Table) and isinstance(step, str) and step in value.entries:
            entry = value.entries[step]
            line, value = entry.line, entry.value
        elif isinstance(value, Items) and isinstance(step, int) and step < len(value.items):
            value = value.items[step]
            line = value.line
        else:
            break
    return line


class _TooManyError(Exception):
    """More values than a document may have, up to this line."""

    def __init__(self, line: int) -> None:
        self.line = line


class _Loader(yaml.SafeLoader):
    """Raises `_TooManyError` before a document that has too many values is read to its end."""

    _count = 0

    def compose_document(self) -> yaml.Node | None:
        self._count = 0
        return super().compose_document()

    def descend_resolver(self, current_node: Any, current_index: Any) -> None:
        """Called with each node, and whose it is, before what is in it is read."""
        is_key = current_node is not None and current_index is None
        self._count += not is_key
        if self._count > MAX_NODES:
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]
            raise _TooManyError(event.start_mark.line + 1)
        super().descend_resolver(current_node, current_index)


def _note_too_many(line: int, problems: Problems) -> None:
    problems.add(line, f"more than {MAX_NODES} values", "a smaller document")


def _note_syntax_error(error: yaml.MarkedYAMLError, problems: Problems) -> None:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 0
    problem = str(error.problem or error.context or error)
    if "'\\t'" in problem:
        problems.add(line, "a tab in the indentation", "spaces")
    elif error.context and error.problem:
        problems.add(line, f"{problem} {error.context}", "valid YAML")
    else:
        problems.add(line, problem, "valid YAML")


class _Converter:
    """Turns PyYAML's nodes into marked values, one document at a time."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._count = 0
        self._open: set[int] = set()
        """Collections that are being converted: meeting one again is a recursive alias."""

    def convert(self, node: yaml.Node | None) -> Marked | None:
        """None when the node cannot be taken; the reason is noted."""
        if node is None:
            return None
        line = node.start_mark.line + 1
        self._count += 1
        if self._count > MAX_NODES:
            if self._count == MAX_NODES + 1:
                _note_too_many(line, self._problems)
            return None
        if node.tag not in _TAGS:
            self._problems.add(line, f"the tag {shorten(node.tag)}", "plain values without tags")
            return None
        if isinstance(node, yaml.ScalarNode):
            if _SURROGATES.search(node.value):
                self._problems.add(line, "half of a surrogate pair", "text that UTF-8 can hold")
                return None
            return Scalar(line, node.value, node.tag == _NULL)
        if id(node) in self._open:
            self._problems.add(line, "an alias that contains itself", "values that end")
            return None
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return Items(line, tuple(self._values(node)))
            assert isinstance(node, yaml.MappingNode), node
            return Table(line, self._entries(node))
        finally:
            self._open.discard(id(node))

    def _values(self, node: yaml.SequenceNode) -> Iterator[Marked]:
        for item in node.value:
            marked = self.convert(item)
            if marked is not None:
                yield marked

    def _entries(self, node: yaml.MappingNode) -> dict[str, Entry]:
        entries: dict[str, Entry] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or key.tag == _NULL:
                self._problems.add(line, "a key that is not text", "a text key")
                continue
            if key.value in entries:
                first = entries[key.value].line
                found = f"the key {shorten(key.value)} again (first in line {first})"
                self._problems.add(line, found, "each key once")
                continue
            marked = self.convert(value)
            if marked is not None:
                entries[key.value] = Entry(line, marked)
        return entries
