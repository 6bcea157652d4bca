"""Quantities come back as they were written, wherever they stand."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from hadron.metadata.diff import plan
from hadron.metadata.judging import key_of
from hadron.model.documents.reading import parse_documents
from hadron.model.documents.rendering import to_document, to_yaml
from hadron.model.kinds import spec_from_json
from hadron.model.schema import Retention, SchemaObject, spec_to_json

STREAM = "kind: Stream\nname: s\npartitions: [p]\nretention: {{max_bytes: {}, max_age: {}}}\n"
PIPELINE = """\
kind: Pipeline
name: p
replica_set: r
input: s
stages:
  - {name: a, engine: handler, timeout: 90m}
  - {name: b, engine: handler, delay: 1.5s, timeout: 48h, retry: {backoff: 1h30m}}
"""


def read(text: str) -> SchemaObject:
    (found,) = parse_documents(text, "f")
    # Through the tables, and the wire.
    return replace(found, spec=spec_from_json(found.kind, spec_to_json(found.spec)))


@pytest.mark.parametrize(
    ("size", "age"),
    [
        ("10GiB", "7d"),
        ("128kB", "24h"),
        ("1024MiB", "1.5s"),
        ("1.5GiB", "1h30m"),
        ("16TB", "0.5s"),
        ("1 GiB", "168h"),
        ("1000000", "60s"),
        ("10gib", "1d12h"),
    ],
)
def test_as_they_were_written(size: str, age: str) -> None:
    obj = read(STREAM.format(size, age))
    shown: dict[str, Any] = yaml.safe_load(to_yaml(obj))
    assert shown["retention"] == {
        "max_bytes": int(size) if size.isdecimal() else size,
        "max_age": age,
    }
    again = read(to_yaml(obj))
    assert again.spec == obj.spec
    (change,) = plan([again], {key_of(obj): obj})
    assert change.action == "unchanged"


def test_in_every_stage() -> None:
    shown = to_document(read(PIPELINE))
    assert [stage.get("timeout") for stage in shown["stages"]] == ["90m", "48h"]
    assert shown["stages"][1]["delay"] == "1.5s"
    assert shown["stages"][1]["retry"]["backoff"] == "1h30m"


def test_another_spelling_is_a_change() -> None:
    before, after = (read(STREAM.format(size, "7d")) for size in ("1GiB", "1024MiB"))
    (change,) = plan([after], {key_of(before): before})
    assert change.action == "changed"


def test_a_spelling_of_another_number_is_not_shown() -> None:
    """Whoever sends objects may change the number and leave the rest."""
    obj = read(STREAM.format("128kB", "24h"))
    spec: Any = obj.spec
    assert spec.written
    changed = replace(obj, spec=replace(spec, retention=Retention(max_bytes=1 << 30)))
    assert to_document(changed)["retention"] == {"max_bytes": "1GiB"}


def test_texts_that_look_like_quantities_are_texts() -> None:
    obj = read("kind: Stream\nname: 24h\npartitions: [1d]\ndescription: 128kB\n")
    assert to_document(obj) == {
        "kind": "Stream",
        "name": "24h",
        "description": "128kB",
        "partitions": ["1d"],
    }
