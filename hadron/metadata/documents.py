"""Schema documents: the YAML that users write, read into declared objects.

Shape is judged here (keys, types, units), values by `checks`, so that documents and objects sent
by a client obey the same rules. Everything wrong with a file is told at once, each as
`file:line: what was found, what was expected`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hadron.metadata.checks import check_object
from hadron.metadata.problem import Problem
from hadron.model.errors import SchemaError
from hadron.model.ids import DEFAULT_NAMESPACE
from hadron.model.marked_fields import Fields
from hadron.model.marked_yaml import Marked, line_at, parse_yaml, read_text
from hadron.model.problems import Problems, ValuePath, did_you_mean, shorten
from hadron.model.schema import (
    SPECS,
    NamespaceSpec,
    Output,
    PipelineSpec,
    Retention,
    Retry,
    SchemaObject,
    Spec,
    StageSpec,
    StreamSpec,
)
from hadron.model.units import DURATION_FORM, SIZE_FORM, parse_duration_ms, parse_size

LATER_KINDS: Final = ("Queue", "Schedule", "Exchange", "Endpoint", "Token")
"""Kinds that Hadron's design has and this version does not."""

_PIPELINE: Final = PipelineSpec(replica_set="", input="", stages=())
_STAGE: Final = StageSpec(name="")


@dataclass(frozen=True, slots=True)
class Document:
    """One object and where it stands in its file."""

    object: SchemaObject
    file: str
    root: Marked

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
    roots = parse_yaml(text, problems)
    if not roots and not problems:
        problems.add(0, "there are no documents", "at least one, such as kind: Stream")
    documents = []
    for root in roots:
        own = Problems(file)
        obj = _read(Fields(root, own), own)
        if obj is not None:
            _check(Document(obj, file, root), own)
            documents.append(Document(obj, file, root))
        problems.extend(own)
    _check_unique(documents, problems)
    problems.raise_as(SchemaError)
    return documents


def _check(document: Document, problems: Problems) -> None:
    """Add what the values' rules say, unless the value could not be read in the first place."""
    for problem in check_object(document.object):
        if not _is_moot(problem, problems.paths):
            problems.add(document.line_of(problem.path), problem.text, problem.expected)


def _is_moot(problem: Problem, unreadable: set[ValuePath]) -> bool:
    path = problem.path
    for bad in unreadable:
        common = min(len(bad), len(path))
        if bad[:common] == path[:common]:
            return True
        # A stage whose name is not known may be the one that others wait for.
        names_a_stage = bad[:1] == ("stages",) and (len(bad) <= 2 or bad[2:] == ("name",))
        if names_a_stage and path[:1] == ("stages",):
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


def _read(fields: Fields, problems: Problems) -> SchemaObject | None:
    """The object, as far as it can be read; None when not even its kind is known."""
    if not fields.readable or not fields.require("kind", f"one of {', '.join(SPECS)}"):
        return None
    kind = fields.text("kind")
    reader = _READERS.get(kind)
    if reader is None:
        if ("kind",) not in problems.paths:
            _note_unknown_kind(fields, kind)
        return None
    name, namespace = fields.text("name"), fields.text("namespace", DEFAULT_NAMESPACE)
    obj = SchemaObject(kind=kind, name=name, namespace=namespace, spec=reader(fields))
    fields.finish()
    return obj


def _note_unknown_kind(fields: Fields, kind: str) -> None:
    known = f"one of {', '.join(SPECS)}"
    if kind in LATER_KINDS:
        fields.note("kind", f"kind {kind}, which this version of Hadron does not have yet", known)
    else:
        meant = did_you_mean(kind, (*SPECS, *LATER_KINDS))
        fields.note("kind", f"unknown kind {shorten(kind)}{meant}", known)


def _read_namespace(fields: Fields) -> Spec:
    return NamespaceSpec(description=fields.text("description"))


def _read_stream(fields: Fields) -> Spec:
    description = fields.text("description")
    partitions = fields.texts("partitions")
    retention = Retention()
    nested = fields.table("retention")
    if nested is not None:
        retention = Retention(
            max_age_ms=nested.parsed("max_age", parse_duration_ms, 0, DURATION_FORM),
            max_bytes=nested.parsed("max_bytes", parse_size, 0, SIZE_FORM),
        )
        nested.finish()
    return StreamSpec(partitions=partitions, retention=retention, description=description)


def _read_pipeline(fields: Fields) -> Spec:
    return PipelineSpec(
        description=fields.text("description"),
        replica_set=fields.text("replica_set"),
        input=fields.text("input"),
        triggers=fields.texts("triggers"),
        start=fields.text("start", _PIPELINE.start),
        max_parallel=fields.whole("max_parallel", _PIPELINE.max_parallel),
        stages=tuple(_read_stage(stage) for stage in fields.tables("stages") or ()),
    )


def _read_stage(fields: Fields) -> StageSpec:
    stage = StageSpec(
        name=fields.text("name"),
        engine=fields.text("engine", _STAGE.engine),
        run=fields.text("run"),
        schema=fields.text("schema"),
        dependencies=fields.texts("dependencies"),
        after=fields.texts("after"),
        delay_ms=fields.parsed("delay", parse_duration_ms, _STAGE.delay_ms, DURATION_FORM),
        timeout_ms=fields.parsed("timeout", parse_duration_ms, _STAGE.timeout_ms, DURATION_FORM),
        retry=_read_retry(fields.table("retry")),
        output=_read_output(fields),
    )
    fields.finish()
    return stage


def _read_retry(fields: Fields | None) -> Retry:
    if fields is None:
        return Retry()
    default = Retry()
    retry = Retry(
        max_attempts=fields.whole("max_attempts", default.max_attempts),
        backoff_ms=fields.parsed("backoff", parse_duration_ms, default.backoff_ms, DURATION_FORM),
    )
    fields.finish()
    return retry


def _read_output(stage: Fields) -> Output | None:
    fields = stage.table("output")
    if fields is None:
        # One that cannot be read is still one: stages that depend on it are not at fault.
        return Output(stream="") if stage.has("output") else None
    output = Output(stream=fields.text("stream"), partition=fields.text("partition"))
    fields.finish()
    return output


_READERS: Final[dict[str, Callable[[Fields], Spec]]] = {
    "Namespace": _read_namespace,
    "Stream": _read_stream,
    "Pipeline": _read_pipeline,
}
assert _READERS.keys() == SPECS.keys()
