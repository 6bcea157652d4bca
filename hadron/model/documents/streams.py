"""Streams, each on its own."""

from __future__ import annotations

from typing import Final

from hadron.model.documents.kind import Kind
from hadron.model.documents.names import SET_NAME_FORM, check_named
from hadron.model.documents.problem import Notes
from hadron.model.ids import is_valid_replica_set_name
from hadron.model.problems import shorten
from hadron.model.schema import INDEXED, StreamSpec

MAX_PARTITIONS: Final = 1_000
"""A client keeps a connection per leader; more is a design that wants another stream."""


def _check(notes: Notes, spec: StreamSpec) -> None:
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
    if spec.keys not in ("", INDEXED):
        notes.note(("keys",), shorten(spec.keys), f"{INDEXED}, or nothing")
    retention = spec.retention
    for key, value in (("max_age", retention.max_age_ms), ("max_bytes", retention.max_bytes)):
        if value < 0:
            notes.note(("retention", key), f"{value}", "0 (without limit) or more")


KIND: Final = Kind(name="Stream", spec=StreamSpec, check=_check)
