"""What can be said about one declared object without looking at any other.

Run twice: where documents are read, so that a user gets the line, and on the node that owns the
schema, because a client may send anything.
"""

from __future__ import annotations

import re
from typing import Final

from hadron.model.documents.names import NAME_FORM, SET_NAME_FORM, check_named, check_replica_set
from hadron.model.documents.problem import Notes, Problem
from hadron.model.documents.services import check_service
from hadron.model.documents.stages import check_stages
from hadron.model.errors import RequestError
from hadron.model.ids import DEFAULT_NAMESPACE, is_valid_name, is_valid_replica_set_name
from hadron.model.limits import MAX_DESCRIPTION_LENGTH
from hadron.model.problems import did_you_mean, shorten
from hadron.model.schema import SPECS, NamespaceSpec, PipelineSpec, SchemaObject, StreamSpec
from hadron.model.units import parse_time_ms

START_FORM: Final = "earliest, latest, an offset, or an RFC 3339 time such as 2013-01-01T05:00:00Z"
TRIGGER_FORM: Final = (
    "dot segments such as flight.departed; a whole segment may be *, and the last one >"
)

MAX_PARTITIONS: Final = 1_000
"""A client keeps a connection per leader; more is a design that wants another stream."""
MAX_TRIGGERS: Final = 100
"""Each is compared with each event type of a batch."""
MAX_PARALLEL: Final = 1_000_000
"""Instances that are open at once are rows that every scheduling round may look at."""

_OFFSET: Final = re.compile(r"[0-9]{1,18}")


def check_object(obj: SchemaObject) -> list[Problem]:
    """Every problem of `obj` on its own; none when it may be declared somewhere."""
    notes = Notes(obj.label)
    spec = obj.spec
    if not isinstance(spec, SPECS.get(obj.kind, ())):
        notes.note(("kind",), f"unknown kind {shorten(obj.kind)}", f"one of {', '.join(SPECS)}")
        return notes.problems
    check_named(notes, ("name",), obj.name, is_valid_name, NAME_FORM)
    check_named(notes, ("namespace",), obj.namespace, is_valid_name, NAME_FORM)
    if len(spec.description) > MAX_DESCRIPTION_LENGTH:
        found = f"{len(spec.description)} characters"
        notes.note(("description",), found, f"at most {MAX_DESCRIPTION_LENGTH} characters")
    if isinstance(spec, StreamSpec):
        _check_stream(notes, spec)
    elif isinstance(spec, PipelineSpec):
        _check_pipeline(notes, spec)
    elif not isinstance(spec, NamespaceSpec):
        check_service(notes, spec)
    elif obj.namespace != DEFAULT_NAMESPACE:
        found = f"{shorten(obj.namespace)} around a namespace"
        notes.note(("namespace",), found, "no namespace: a namespace stands in none")
    return notes.problems


def is_valid_start(start: str) -> bool:
    """Whether a pipeline may start there: earliest, latest, an offset, or an RFC 3339 time."""
    if start in ("earliest", "latest") or _OFFSET.fullmatch(start):
        return True
    try:
        return parse_time_ms(start) >= 0
    except RequestError:
        return False


def is_valid_trigger(pattern: str) -> bool:
    """Whether `hadron.model.schema.matches_type` can make sense of the pattern."""
    *most, last = pattern.split(".")
    if not all(map(_is_valid_segment, most)) or ">" in most:
        return False
    return last == ">" or _is_valid_segment(last)


def _is_valid_segment(segment: str) -> bool:
    if segment == "*":
        return True
    return bool(segment) and segment.isprintable() and not any(c in segment for c in "*> ")


def _check_stream(notes: Notes, spec: StreamSpec) -> None:
    if len(spec.partitions) > MAX_PARTITIONS:
        found = f"{len(spec.partitions)} partitions"
        notes.note(("partitions",), found, f"at most {MAX_PARTITIONS}")
    seen: set[str] = set()
    for index, partition in enumerate(spec.partitions):
        path = ("partitions", index)
        check_named(notes, path, partition, is_valid_replica_set_name, SET_NAME_FORM)
        if partition in seen:
            notes.note(path, f"{shorten(partition)} again", "each partition once")
        seen.add(partition)
    retention = spec.retention
    for key, value in (("max_age", retention.max_age_ms), ("max_bytes", retention.max_bytes)):
        if value < 0:
            notes.note(("retention", key), f"{value}", "0 (without limit) or more")


def _check_pipeline(notes: Notes, spec: PipelineSpec) -> None:
    check_replica_set(notes, spec.replica_set)
    check_named(notes, ("input",), spec.input, is_valid_name, "the name of a stream")
    if len(spec.triggers) > MAX_TRIGGERS:
        notes.note(("triggers",), f"{len(spec.triggers)} patterns", f"at most {MAX_TRIGGERS}")
    for index, pattern in enumerate(spec.triggers):
        if not is_valid_trigger(pattern):
            notes.note(("triggers", index), f"{shorten(pattern)} is not a pattern", TRIGGER_FORM)
    if not is_valid_start(spec.start):
        meant = did_you_mean(spec.start, ("earliest", "latest"))
        notes.note(("start",), f"{shorten(spec.start)} is not a start{meant}", START_FORM)
    if not 1 <= spec.max_parallel <= MAX_PARALLEL:
        notes.note(("max_parallel",), f"{spec.max_parallel}", f"1 to {MAX_PARALLEL}")
    check_stages(notes, spec.stages)
