"""Schema documents: the YAML that users write, read into declared objects.

Shape is judged here (keys, types, units), values by `checks`, so that documents and objects sent
by a client obey the same rules. Everything wrong with a file is told at once, each as
`file:line: what was found, what was expected`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from hadron.model.documents.checks import check_object
from hadron.model.documents.fields import keys_of, read_fields
from hadron.model.documents.kind import Kind
from hadron.model.documents.problem import Problem
from hadron.model.documents.rendering import to_document
from hadron.model.documents.spellings import spellings
from hadron.model.errors import SchemaError
from hadron.model.ids import DEFAULT_NAMESPACE
from hadron.model.kinds import KINDS
from hadron.model.marked_fields import Fields
from hadron.model.marked_yaml import Marked, line_at, mark, parse_yaml, read_text
from hadron.model.problems import Problems, ValuePath, did_you_mean, shorten
from hadron.model.schema import SchemaObject, Spec, StreamSpec

Declared: TypeAlias = "str | Path | Mapping[str, Any] | SchemaObject | Iterable[Declared]"
"""See `declared`."""


@dataclass(frozen=True, slots=True)
class Document:
    """One object and where it stands in its file."""

    object: SchemaObject
    file: str
    root: Marked
    is_flawed: bool = False
    """Something in it is wrong, or could not be read."""

    def line_of(self, path: ValuePath) -> int:
        """The line of a value, or of what encloses it when it is not there."""
        return line_at(self.root, path)


def parse_documents(text: str, file: str) -> list[SchemaObject]:
    """The objects that a multi-document YAML file declares, each valid on its own.

    Raises `SchemaError` listing every problem; `file` is its name in them. Whether the objects
    fit together, and to the schema, is for `validation.validate` to say.
    """
    return [document.object for document in parse_marked_documents(text, file)]


def load_documents(path: Path) -> list[SchemaObject]:
    """`parse_documents` of a file. A file that cannot be read is a `SchemaError` as well."""
    problems = Problems(str(path))
    text = read_text(path, problems)
    problems.raise_as(SchemaError)
    return parse_documents(text, str(path))


def parse_marked_documents(text: str, file: str) -> list[Document]:
    """`parse_documents`, with what it takes to find a problem's line later."""
    problems = Problems(file)
    documents, _ = read_documents(text, problems)
    problems.raise_as(SchemaError)
    return documents


def read_documents(text: str, problems: Problems) -> tuple[list[Document], bool]:
    """Every document whose kind is known, flawed ones too, and whether these are all.

    What is wrong is in `problems`.
    """
    roots = parse_yaml(text, problems)
    is_whole = not problems
    if not roots and is_whole:
        problems.add(0, "there are no documents", "at least one, such as kind: Stream")
    documents = _read_roots(roots, problems)
    return documents, is_whole and len(documents) == len(roots)


def _read_roots(roots: Iterable[Marked], problems: Problems) -> list[Document]:
    documents: list[Document] = []
    for root in roots:
        own = Problems(problems.file)
        obj = _read(Fields(root, own), own, root)
        if obj is not None:
            _check(Document(obj, problems.file, root), own)
            documents.append(Document(obj, problems.file, root, is_flawed=bool(own)))
        problems.extend(own)
    _check_unique(documents, problems)
    return documents


def declared(given: Declared) -> list[SchemaObject]:
    """The objects that a program declares, each valid on its own.

    Args:
        given: YAML text of one or more documents; a `Path` of such a file; a mapping with a
            document's keys; a `SchemaObject`; or several of these.

    Raises `SchemaError` listing every problem of a text, a file or a mapping.
    """
    if isinstance(given, SchemaObject):
        return [given]
    if isinstance(given, Path):
        return load_documents(given)
    if isinstance(given, str):
        if given.endswith((".yaml", ".yml")) and "\n" not in given:
            raise SchemaError(
                f"{given!r} is a file's name, not its text", f"give pathlib.Path({given!r})"
            )
        return parse_documents(given, "the text")
    if isinstance(given, Mapping):
        name = given.get("name")
        problems = Problems(f"{given.get('kind') or 'the object'} {name}" if name else "the object")
        documents = _read_roots([mark(given)], problems)
        problems.raise_as(SchemaError)
        return [document.object for document in documents]
    # Users are not held to the annotations.
    several: Any = given
    if isinstance(several, (bytes, bytearray)) or not isinstance(several, Iterable):
        raise SchemaError(
            f"a value of type {type(several).__name__} declares nothing",
            'give YAML text, a Path, a mapping such as {"kind": "Stream", "name": "s", '
            '"partitions": ["local/p0"]}, or several of these',
        )
    return [obj for each in several for obj in declared(each)]


def _check(document: Document, problems: Problems) -> None:
    """Add what the values' rules say, unless the value could not be read in the first place."""
    for problem in check_object(document.object):
        if not _is_moot(problem, problems.paths, KINDS[document.object.kind].mutual):
            problems.add(document.line_of(problem.path), problem.text, problem.expected)


def _is_moot(problem: Problem, unreadable: set[ValuePath], mutual: str) -> bool:
    path = problem.path
    for bad in unreadable:
        common = min(len(bad), len(path))
        if bad[:common] == path[:common]:
            return True
        # An item whose name is not known may be the one that others mean.
        is_name = bad[:1] == (mutual,) and (len(bad) <= 2 or bad[2:] == ("name",))
        if is_name and path[:1] == (mutual,):
            return True
    return False


def _check_unique(documents: list[Document], problems: Problems) -> None:
    first: dict[str, Document] = {}
    for document in documents:
        label = document.object.label
        if document.object.name and label in first:
            found = f"{label} again (first in line {first[label].line_of(())})"
            problems.add(document.line_of(()), found, "each object once")
        first.setdefault(label, document)


_NESTED: Final = dict.fromkeys(
    ("metadata", "spec"), " (documents are flat: what is under it stands beside `kind`)"
)
"""What to say of the keys that people know from Kubernetes."""


def _read(fields: Fields, problems: Problems, root: Marked) -> SchemaObject | None:
    """The object, as far as it can be read; None when not even its kind is known."""
    if not fields.readable or not fields.require("kind", f"one of {', '.join(KINDS)}"):
        return None
    kind = fields.text("kind")
    known = KINDS.get(kind)
    if known is None:
        if ("kind",) not in problems.paths:
            _note_unknown_kind(fields, kind)
        return None
    name, namespace = fields.text("name"), fields.text("namespace", DEFAULT_NAMESPACE)
    cls = _class_of(known, fields)
    if cls is None:
        return None
    spec = read_fields(cls, fields)
    if known.spec is StreamSpec and fields.is_empty_list("partitions"):
        # Left out, they are where the stream lies already, or the cluster's only replica set.
        fields.note("partitions", "partitions: no partitions", "at least one replica set's name")
    obj = SchemaObject(kind=kind, name=name, namespace=namespace, spec=spec)
    fields.finish(_NESTED | _of_other_modes(known, cls))
    return obj if problems else _as_written(obj, root)


def _class_of(kind: Kind, fields: Fields) -> type[Spec] | None:
    """What a document declares; None where it says so of a mode that there is not."""
    mode = fields.text("mode") if kind.modes else ""
    if mode and mode not in kind.modes:
        found = f"unknown mode {shorten(mode)}{did_you_mean(mode, kind.modes)}"
        fields.note("mode", found, f"one of {', '.join(kind.modes)}")
        return None
    return kind.modes[mode] if mode else kind.spec


def _of_other_modes(kind: Kind, cls: type[Spec]) -> dict[str, str]:
    """What to say of the keys that only documents with another mode have."""
    own = keys_of(cls)
    return {
        key: f" (a {kind.name} with `mode: {mode}` has it)"
        for mode, other in kind.modes.items()
        for key in keys_of(other)
        if key not in own
    }


def _as_written(obj: SchemaObject, root: Marked) -> SchemaObject:
    """The object with the spellings of its document."""
    written = spellings(to_document(obj), root)
    if not written:
        return obj
    return replace(obj, spec=replace(obj.spec, written=written))


def _note_unknown_kind(fields: Fields, kind: str) -> None:
    known = f"one of {', '.join(KINDS)}"
    meant = did_you_mean(kind, KINDS)
    fields.note("kind", f"unknown kind {shorten(kind)}{meant}", known)
