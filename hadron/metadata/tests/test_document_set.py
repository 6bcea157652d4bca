"""Files of documents: every mistake in all of them, and places for what the cluster says."""

from __future__ import annotations

from pathlib import Path

import pytest

from hadron.metadata.document_set import DocumentSet
from hadron.metadata.validation import validate
from hadron.model.documents.problem import schema_error
from hadron.model.errors import SchemaError

STREAM = """\
kind: Stream
name: flights
partitions:
  - a
  - moon
"""
SCHEDULE = """\
# Ours.
kind: Schedule
name: nightly
cron: 0 3 * * *
target:
  queue: emails
"""


def _set(**texts: str) -> DocumentSet:
    documents = DocumentSet()
    for name, text in texts.items():
        documents.parse(text, name)
    return documents


def _refusal(documents: DocumentSet) -> SchemaError:
    objects = documents.judgeable
    assert objects
    return schema_error(validate(objects, {}, replica_sets={"a"}, allow_destructive=False))


def _lines(error: SchemaError) -> list[str]:
    return [line.split(", expected")[0] for line in error.message.split("\n  ")]


def test_what_the_cluster_refuses_is_told_by_file_and_line() -> None:
    documents = _set(a=STREAM, b=SCHEDULE)
    assert [obj.name for obj in documents.objects] == ["flights", "nightly"]
    assert _lines(documents.located(_refusal(documents))) == [
        "2 problems in 2 files:",
        "a:5: partitions[1]: there is no replica set 'moon'",
        "b:6: target.queue: there is no queue 'emails' in namespace default",
    ]


def test_what_stands_in_no_file_comes_last_and_other_refusals_stay_as_they_are() -> None:
    documents = _set(a=STREAM)
    refusal = SchemaError(
        "2 problems with the schema:\n  Pipeline default/p: x, expected y\n"
        "  Stream default/flights: declared more than once, expected each object once"
    )
    assert documents.located(refusal).message == (
        "2 problems in a:\n  a:1: declared more than once, expected each object once\n"
        "  Pipeline default/p: x, expected y"
    )
    other = SchemaError("the schema changed meanwhile", "again", retryable=True)
    assert documents.located(other) is other


def test_mistakes_in_all_files_are_told_at_once(tmp_path: Path) -> None:
    documents = _set(a="kind: Stream\nname: x\npartitions: []\n", b="kind: [\n")
    documents.load(tmp_path / "nowhere.yaml")
    with pytest.raises(SchemaError) as raised:
        _ = documents.objects
    heading, first, second, third = _lines(raised.value)
    assert heading == "3 problems in 3 files:"
    assert first == "a:3: partitions: no partitions"
    assert second.startswith("b:2: ")
    assert third == f"{tmp_path}/nowhere.yaml: there is no such file"
    # The rest would seem to refer to what could not be read.
    assert documents.judgeable == []


def test_an_object_is_declared_in_one_file_only() -> None:
    documents = _set(a=SCHEDULE, b=SCHEDULE)
    with pytest.raises(SchemaError, match=r"^b:2: Schedule default/nightly again \(first in a:2\)"):
        _ = documents.objects


def test_what_the_cluster_would_say_to_the_rest_is_told_as_well() -> None:
    broken = "kind: Exchange\nname: x\nreplica_set: a\ncolour: red\n"
    documents = _set(a=STREAM + "---\n" + broken, b=SCHEDULE)
    documents.add_problems(_refusal(documents))
    with pytest.raises(SchemaError) as raised:
        _ = documents.objects
    assert _lines(raised.value) == [
        "3 problems in 2 files:",
        "a:5: partitions[1]: there is no replica set 'moon'",
        "a:10: unknown key 'colour'",
        "b:6: target.queue: there is no queue 'emails' in namespace default",
    ]


def test_nothing_is_said_twice_or_because_of_what_could_not_be_read() -> None:
    queue = "kind: Queue\nname: emails\nreplica_set: a\nlanes: slow\n"
    schedule = SCHEDULE + "  lane: slow\n"
    documents = _set(a=queue, b=schedule)
    documents.add_problems(_refusal(documents))
    with pytest.raises(SchemaError) as raised:
        _ = documents.objects
    assert raised.value.message == ("a:4: lanes is the text 'slow', expected a list of mappings")
