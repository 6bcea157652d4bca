"""Pipelines that are a streaming query: what may be declared, and what each mode has of its own."""

from __future__ import annotations

import pytest

from hadron.metadata.deletion import references
from hadron.metadata.judging import Key, key_of
from hadron.metadata.pipelines import RULES
from hadron.metadata.validation import validate
from hadron.model.documents.pipelines import READ_OPTIONS, WRITE_OPTIONS
from hadron.model.documents.reading import parse_documents
from hadron.model.documents.rendering import to_yaml
from hadron.model.errors import SchemaError
from hadron.model.ids import is_valid_name
from hadron.model.kinds import spec_from_json
from hadron.model.pipelines import (
    PipelineSpec,
    StreamInput,
    StreamOutput,
    StreamPipelineSpec,
    sink_of,
)
from hadron.model.schema import SchemaObject, StreamSpec, spec_to_json

WHOLE = """\
kind: Pipeline
name: hourly
mode: stream
from:
  stream: flights
  start: earliest
  schema: carrier STRING, delay INT
run: my.module:delays
to:
  stream: delays
trigger: 10s
options:
  maxOffsetsPerTrigger: '5000'
  spark.sql.shuffle.partitions: '4'
"""
LEAST = """\
kind: Pipeline
name: hourly
mode: stream
from:
  stream: flights
run: my.module:delays
to:
  stream: delays
"""
STAGED = """\
kind: Pipeline
name: hourly
replica_set: local/p0
input: flights
stages: [{name: a, run: "m:f"}]
"""


def read(text: str) -> SchemaObject:
    (found,) = parse_documents(text, "f.yaml")
    return found


def problems(text: str) -> list[str]:
    with pytest.raises(SchemaError) as caught:
        parse_documents(text, "f.yaml")
    lines = str(caught.value).splitlines()
    return [line.strip().removeprefix("f.yaml:") for line in lines if "f.yaml:" in line]


def test_a_streaming_query_is_read_and_shown_as_it_was_written() -> None:
    found = read(WHOLE)
    assert found.spec == StreamPipelineSpec(
        source=StreamInput("flights", "earliest", "carrier STRING, delay INT"),
        run="my.module:delays",
        to=StreamOutput("delays"),
        trigger_ms=10_000,
        options={"maxOffsetsPerTrigger": "5000", "spark.sql.shuffle.partitions": "4"},
    )
    assert to_yaml(found) == WHOLE
    assert to_yaml(read(LEAST)) == LEAST
    for each in (found, read(LEAST), read(STAGED), read(f"{STAGED}mode: stage\n")):
        assert spec_from_json("Pipeline", spec_to_json(each.spec)) == each.spec
    assert isinstance(read(f"{STAGED}mode: stage\n").spec, PipelineSpec)


def test_a_mode_of_a_newer_version_is_refused() -> None:
    with pytest.raises(SchemaError, match="unknown mode 'dream' of a Pipeline"):
        spec_from_json("Pipeline", b'{"mode": "dream"}')


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("mode: steam", "unknown mode 'steam' (did you mean 'stream'?), expected one of stage"),
        ("input: flights", "unknown key 'input' (a Pipeline with `mode: stage` has it), expected"),
        ("stages: []", "unknown key 'stages' (a Pipeline with `mode: stage` has it), expected"),
        ("max_parallel: 3", "unknown key 'max_parallel' (a Pipeline with `mode: stage` has it)"),
        ("trigers: 3s", "unknown key 'trigers' (did you mean 'trigger'?), expected one of"),
        ("from: {stream: a, start: noon}", "from.start: 'noon' is not a start, expected earliest"),
        ("from: {start: latest}", "from.stream: missing, expected the name of a stream"),
        ("to: delays", "to is the text 'delays', expected a mapping"),
        ("to: {stream: a b}", "to.stream: 'a b' is not a valid name"),
        ("run: my.module", "run: 'my.module' does not name a function, expected package.module:"),
        ("run:", "run: missing, expected the query's function as package.module:function"),
        ("trigger: -1s", "trigger: "),
        ("output_mode: complete", "output_mode: 'complete': a stream's records are appended"),
        ("output_mode: update", "output_mode: 'update': Spark updates no sink"),
        ("output_mode: all", "output_mode: 'all': there is append, expected append"),
        ("options: {txnId: mine}", "options.txnId: 'txnId' is no option of a pipeline, expected"),
        ("options: {codecs: none}", "is no option of a pipeline (did you mean 'codec'?)"),
        ("options: {codec: [a]}", "options.codec is a list, expected text"),
    ],
)
def test_what_is_wrong_is_told(line: str, told: str) -> None:
    key = line.partition(":")[0]
    lines = LEAST.replace("from:\n  stream: flights", "from: {stream: flights}")
    lines = lines.replace("to:\n  stream: delays", "to: {stream: delays}")
    text = "\n".join(
        [each for each in lines.splitlines() if each.partition(":")[0] != key] + [line]
    )
    (found,) = problems(text)
    assert told in found


@pytest.mark.parametrize(
    "line", ["from: {stream: a}", "run: m:f", "to: {stream: a}", "trigger: 1s"]
)
def test_what_only_a_streaming_query_has_is_refused_in_stages(line: str) -> None:
    (found,) = problems(STAGED + line)
    key = line.partition(":")[0]
    assert f"unknown key {key!r} (a Pipeline with `mode: stream` has it), expected" in found


def test_options_are_those_of_the_reader_and_the_writer() -> None:
    pytest.importorskip("pyspark")
    from hadron.spark.source import options

    assert set(READ_OPTIONS) < set(options._KNOWN)
    assert set(WRITE_OPTIONS) < set(options._KNOWN_TO_WRITE)


def test_a_sinks_name_is_one_however_long_the_pipelines_is() -> None:
    assert sink_of("hourly", 17) == "pipeline.17.hourly"
    for name in ("x" * 100, "x" * 59 + ".x"):
        assert is_valid_name(sink_of(name, (1 << 63) - 1))


# --- what they refer to ---------------------------------------------------------------------------


def stream(name: str, keys: str = "") -> SchemaObject:
    spec = StreamSpec(partitions=("local/p0",), keys=keys)
    return SchemaObject(kind="Stream", name=name, spec=spec)


def streaming(name: str, source: str, target: str) -> SchemaObject:
    spec = StreamPipelineSpec(source=StreamInput(source), run="m:f", to=StreamOutput(target))
    return SchemaObject(kind="Pipeline", name=name, spec=spec)


STREAMS = [stream(each) for each in "abc"]


def refused(*objects: SchemaObject, existing: tuple[SchemaObject, ...] = ()) -> list[str]:
    there: dict[Key, SchemaObject] = {key_of(obj): obj for obj in (*STREAMS, *existing)}
    told = validate(objects, there, replica_sets={"local/p0"}, allow_destructive=False)
    return [str(problem) for problem in told]


def test_its_streams_exist_and_can_be_written() -> None:
    query = streaming("p", "a", "b")
    assert refused(query) == []
    assert refused(query, existing=(query,)) == []
    (told,) = refused(streaming("p", "d", "b"))
    assert "from.stream: there is no stream 'd' in namespace default" in told
    (told,) = refused(streaming("p", "a", "k"), stream("k", "indexed"))
    assert "to.stream: 'k' has an index of keys" in told
    assert [key[2] for key in references(query)] == ["default", "a", "b"]


def test_what_comes_back_to_its_own_input_is_refused() -> None:
    (told,) = refused(streaming("p", "a", "a"))
    assert "to.stream: 'a' is the pipeline's own input, and every record is taken there" in told
    assert told.endswith("for ever, expected another stream"), "it has no triggers"
    back = SchemaObject(kind="Pipeline", name="q", spec=read(STAGED.replace("flights", "b")).spec)
    assert refused(streaming("p", "a", "b"), back) == []
    (told,) = refused(streaming("p", "a", "b"), existing=(streaming("q", "b", "a"),))
    assert "'b' leads back to the pipeline's input, through 'q', and every record" in told


def test_neither_input_nor_mode_can_change() -> None:
    before, staged = streaming("p", "a", "b"), read(STAGED)
    assert RULES.refuse_change(before, streaming("p", "a", "c")) == []
    (told,) = RULES.refuse_change(before, streaming("p", "c", "b"))
    assert "from.stream: the pipeline has consumed a, and its query goes on in that" in str(told)
    for one, other in ((before, staged), (staged, before)):
        (told,) = RULES.refuse_change(one, other)
        assert "mode: the pipeline has run in another mode" in str(told)
