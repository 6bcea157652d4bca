"""Where the query of a pipeline begins, as it is said to the reader."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hadron.client.terms.results import PartitionOffsets
from hadron.model.pipelines import StreamInput, StreamOutput, StreamPipelineSpec
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.spark import streaming
from hadron.spark.source.options import parse_options
from hadron.spark.source.ranges import locate
from hadron.spark.streaming import StreamRunner


class Reader:
    """Takes what a `DataStreamReader` is told."""

    def __init__(self) -> None:
        self.told: dict[str, str] = {}

    @property
    def readStream(self) -> Reader:  # noqa: N802
        return self

    def format(self, name: str) -> Reader:
        return self.option("format", name)

    def option(self, name: str, value: str) -> Reader:
        return self.options(**{name: value})

    def options(self, **given: str) -> Reader:
        self.told |= given
        return self

    def load(self) -> Reader:
        return self


class Streams:
    """A client that knows which partitions a stream has."""

    spec = StreamSpec(partitions=("a/p0", "b/p1"))

    def __enter__(self) -> Streams:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def stream(self, _name: str) -> Streams:
        return self


@pytest.mark.parametrize(
    ("start", "options", "told"),
    [
        ("100", {}, {"startingOffsets": {"a/p0": 100, "b/p1": 100}}),
        ("100", {"partitions": " b/p1, "}, {"startingOffsets": {"b/p1": 100}}),
        ("earliest", {"partitions": "b/p1"}, {"startingOffsets": "earliest"}),
        ("2013-01-01T05:00:00Z", {}, {"startingTimestamp": "2013-01-01T05:00:00Z"}),
    ],
)
def test_an_offset_to_start_from_is_of_the_partitions_that_are_read(
    monkeypatch: pytest.MonkeyPatch, start: str, options: dict[str, str], told: dict[str, Any]
) -> None:
    monkeypatch.setattr(streaming, "connect", lambda _url: Streams())
    spec = StreamPipelineSpec(
        source=StreamInput("in", start), run="m:f", to=StreamOutput("out"), options=options
    )
    reader: Any = Reader()
    pipeline = SchemaObject(kind="Pipeline", name="p", spec=spec)
    StreamRunner("hadron://x", pipeline, reader, reader)._read()
    found = {name: text for name, text in reader.told.items() if name.startswith("starting")}
    if start == "100":
        found = {name: json.loads(text) for name, text in found.items()}
        known = {name: PartitionOffsets(name, 0, 500) for name in Streams.spec.partitions}
        del reader.told["format"]
        read = parse_options(reader.told, streaming=True)
        kept = {name: known[name] for name in read.partitions or known}
        assert set(locate(read.starting, kept, read).values()) == {100}
    assert found == told
