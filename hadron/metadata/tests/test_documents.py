"""Schema documents: what they declare, and what is told about those that cannot be read."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hadron.model.documents.reading import (
    declared,
    load_documents,
    parse_documents,
    parse_marked_documents,
)
from hadron.model.documents.rendering import differences, to_yaml
from hadron.model.errors import SchemaError
from hadron.model.pipelines import Output, PipelineSpec, Retry, StageSpec, Wait
from hadron.model.schema import NamespaceSpec, Retention, SchemaObject, StreamSpec

GOOD = """\
kind: Stream
name: flights
partitions: [aws.us-east-1/p0, gcp.us-east4/p0]
retention: {max_age: 7d, max_bytes: 10GiB}
---
kind: Pipeline
name: departures
replica_set: aws.us-east-1/p0
input: flights
triggers: [flight.departed]             # dot segments; * = one, > = the rest; none = all
start: earliest
max_parallel: 500
stages:
  - name: weather
    engine: spark
    run: hadron.demo.stages:join_weather     # DataFrame -> DataFrame
    output: {stream: flights-weather}
  - name: verdict
    dependencies: [weather]
    after: []
    delay: 0s
    timeout: 5m
    retry: {max_attempts: 5, backoff: 1s}
    run: hadron.demo.stages:verdict
    output: {stream: verdicts}
"""


def _problems(text: str) -> list[str]:
    """The problems of a file, without the file's name."""
    with pytest.raises(SchemaError) as caught:
        parse_documents(text, "f.yaml")
    heading, *several = caught.value.message.split("\n  ")
    if several:
        assert heading == f"{len(several)} problems in f.yaml:"
    return [line.removeprefix("f.yaml:") for line in several or [heading]]


def test_the_example_is_read() -> None:
    assert parse_documents(GOOD, "f.yaml") == [
        SchemaObject(
            kind="Stream",
            name="flights",
            spec=StreamSpec(
                partitions=("aws.us-east-1/p0", "gcp.us-east4/p0"),
                retention=Retention(max_age_ms=604_800_000, max_bytes=10 << 30),
            ),
        ),
        SchemaObject(
            kind="Pipeline",
            name="departures",
            spec=PipelineSpec(
                replica_set="aws.us-east-1/p0",
                input="flights",
                triggers=("flight.departed",),
                start="earliest",
                max_parallel=500,
                stages=(
                    StageSpec(
                        name="weather",
                        run="hadron.demo.stages:join_weather",
                        output=Output("flights-weather"),
                    ),
                    StageSpec(
                        name="verdict",
                        run="hadron.demo.stages:verdict",
                        dependencies=("weather",),
                        output=Output("verdicts"),
                    ),
                ),
            ),
        ),
    ]


def test_every_key_of_every_kind_is_read() -> None:
    text = """\
kind: Namespace
name: billing
description: |
  Money.
---
kind: Stream
namespace: billing
name: 2013
description: numbers are names, too
partitions: [a/b]
---
kind: Pipeline
namespace: billing
name: p
description: d
replica_set: a/b
input: '2013'
triggers: ['>', a.*.c]
start: 2013-01-01T05:00:00Z
stages:
  - name: s
    engine: handler
    after: []
    delay: 1.5s
    timeout: 1h30m
    retry: {max_attempts: 1, backoff: 0s}
    output: {stream: '2013', partition: a/b}
  - name: t
    run: m:f
    schema: a STRING
    after: [s]
"""
    namespace, stream, pipeline = parse_documents(text, "f.yaml")
    assert namespace == SchemaObject(
        kind="Namespace", name="billing", spec=NamespaceSpec(description="Money.\n")
    )
    assert stream.label == "Stream billing/2013"
    assert pipeline == SchemaObject(
        kind="Pipeline",
        namespace="billing",
        name="p",
        spec=PipelineSpec(
            description="d",
            replica_set="a/b",
            input="2013",
            triggers=(">", "a.*.c"),
            start="2013-01-01T05:00:00Z",
            stages=(
                StageSpec(
                    name="s",
                    engine="handler",
                    delay_ms=1_500,
                    timeout_ms=5_400_000,
                    retry=Retry(1, 0),
                    output=Output("2013", "a/b"),
                ),
                StageSpec(name="t", run="m:f", schema="a STRING", after=("s",)),
            ),
            written=(("stages[0].delay", "1.5s"), ("stages[0].timeout", "1h30m")),
        ),
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", " there are no documents, expected at least one, such as kind: Stream"),
        ("---\n---\n", " there are no documents"),
        ("- kind: Stream\n", "1: the document is a list, expected a mapping of keys to values"),
        ("kind: Stream\n\tname: x\n", "2: a tab in the indentation, expected spaces"),
        ("kind: Stream\nname: x\npartitions: [a\n", "4: "),
    ],
)
def test_a_file_of_another_shape_is_refused(text: str, problem: str) -> None:
    (told,) = _problems(text)
    assert told.startswith(problem)


def test_an_unknown_kind_is_refused_with_the_nearest_one() -> None:
    assert _problems("# one\nkind: Que\nname: x\nlanes: []\n") == [
        "2: unknown kind 'Que' (did you mean 'Queue'?), expected one of Namespace, Stream, "
        "Pipeline, Queue, Schedule, Exchange, Endpoint, Token"
    ]


def test_stages_have_names_of_their_own() -> None:
    text = GOOD.replace("name: verdict", "name: weather").replace("[weather]", "[]")
    assert _problems(text) == [
        "18: stages[1].name: 'weather' is another stage's name, expected unique names"
    ]


def test_a_stage_without_a_name_is_no_stage_for_failures() -> None:
    text = "kind: Pipeline\nname: p\nreplica_set: a\ninput: i\nstages:\n  - {engine: handler}\n"
    (problem,) = _problems(text)
    assert "stages[0].name" in problem


def test_a_pipeline_needs_stages() -> None:
    text = "kind: Pipeline\nname: p\nreplica_set: a\ninput: i\n"
    assert _problems(text) == ["1: stages: no stages, expected at least one stage"]
    assert _problems(text + "stages: []\n") == ["5: stages: no stages, expected at least one stage"]
    assert _problems(text + "stages: [x]\n") == [
        "5: stages[0] is the text 'x', expected a mapping of keys to values"
    ]


def test_what_a_stage_waits_for_is_read() -> None:
    text = """\
kind: Pipeline
name: p
replica_set: a
input: i
stages:
  - {name: paid, wait: {stream: payments, types: [paid.*], timeout: 24h, on_timeout: remind}}
  - {name: ok, wait: {signal: true}, output: {stream: answers}}
  - {name: ship, engine: handler, dependencies: [paid, ok]}
  - {name: remind, engine: handler}
"""
    (found,) = parse_documents(text, "f.yaml")
    assert isinstance(found.spec, PipelineSpec)
    paid, approved, *_ = found.spec.stages
    assert paid.wait == Wait("payments", ("paid.*",), False, 86_400_000, "remind")
    assert approved.wait == Wait(signal=True)
    assert paid.has_output
    assert parse_documents(to_yaml(found), "g.yaml") == [found]


def test_what_cannot_be_waited_for_is_refused() -> None:
    text = """\
kind: Pipeline
name: p
replica_set: a
input: i
on_failure: f
stages:
  - {name: a, run: "m:f", wait: {signal: true, stream: pay}}
  - {name: b, wait: {timeout: 1h, on_timeout: c}, delay: 3s}
  - {name: c, engine: handler, dependencies: [d]}
  - {name: d, wait: {stream: s, on_timeout: x}, output: {stream: pay}}
  - {name: e, wait: {signal: true, types: [a]}}
  - {name: f, wait: {signal: true}, timeout: 40s, retry: {max_attempts: 2}}
  - {name: g, wait: {signal: true, timeout: 1s, on_timeout: h}, after: [i]}
  - {name: h, engine: handler}
  - {name: i, engine: handler, after: [h]}
"""
    assert [each.partition(": ")[2].partition(", expected")[0] for each in _problems(text)] == [
        "stages[0].run: 'm:f' in a stage that waits",
        "stages[0].wait: both stream and signal",
        "stages[1].delay: a delay in a stage that waits",
        "stages[1].wait: neither stream nor signal",
        "stages[2].dependencies: 'd' need not be done when b has waited too long",
        "stages[3].output: an output of a stage that waits for a record, which is its output",
        "stages[3].wait.on_timeout: stage 'x' would never run: there is no timeout",
        "stages[3].wait.on_timeout: there is no stage 'x'",
        "stages[4].wait.types: types of signals, which have none",
        "stages[5].timeout: how long a function may take, in a stage that waits",
        "stages[5].retry: another attempt of a stage that waits",
        "stages[5].wait: stage 'f' runs when an instance is given up",
        "stages[6].after: a cycle, g waits for i waits for h waits for g",
    ]


def test_a_flag_is_true_or_false() -> None:
    stage = "{name: e, wait: {signal: maybe}}"
    text = f"kind: Pipeline\nname: p\nreplica_set: a\ninput: i\nstages: [{stage}]\n"
    assert _problems(text) == [
        "5: stages[0].wait.signal: 'maybe' is neither true nor false, expected true or false"
    ]


def test_cycles_are_named() -> None:
    text = """\
kind: Pipeline
name: p
replica_set: a
input: i
stages:
  - {name: entry, run: m:f, output: {stream: o}}
  - {name: a, run: m:f, after: [entry, c], output: {stream: o}}
  - {name: b, run: m:f, dependencies: [a], output: {stream: o}}
  - {name: c, run: m:f, dependencies: [b], output: {stream: o}}
  - {name: d, run: m:f, after: [c]}
  - name: x
    run: m:f
    after: [y]
  - name: y
    run: m:f
    after: [x]
"""
    assert _problems(text) == [
        "7: stages[1].after: a cycle, a waits for c waits for b waits for a, "
        "expected stages that do not wait for each other",
        "13: stages[5].after: a cycle, x waits for y waits for x, "
        "expected stages that do not wait for each other",
    ]


def test_a_pipeline_needs_an_entry_stage() -> None:
    """That is told once: of stages which wait for each other, or for what is not there, as that."""
    text = """\
kind: Pipeline
name: p
replica_set: a
input: i
stages:
  - {name: a, run: m:f, after: [b]}
  - {name: b, run: m:f, after: [a]}
"""
    assert _problems(text) == [
        "6: stages[0].after: a cycle, a waits for b waits for a, "
        "expected stages that do not wait for each other"
    ]
    (told,) = _problems(text.replace("[b]", "[c]"))
    assert "there is no stage 'c'" in told
    alone = text[: text.index("  - {name: b")].replace(", after: [b]", "") + "on_failure: a\n"
    assert _problems(alone) == [
        "5: stages: each runs only when an instance is given up, or another one has waited too "
        "long, expected an entry stage, which is neither on_failure nor an on_timeout"
    ]


def test_what_cannot_be_read_makes_no_problems_elsewhere() -> None:
    text = GOOD.replace("- name: weather", "- name: [weather]")
    assert _problems(text) == ["14: stages[0].name is a list, expected text"]
    text = GOOD.replace("{stream: flights-weather}", "[flights-weather]")
    assert _problems(text) == [
        "17: stages[0].output is a list, expected a mapping of keys to values"
    ]


def test_an_object_is_declared_once() -> None:
    again = "---\nkind: Stream\nname: flights\npartitions: [a]\n"
    assert _problems(GOOD + again) == [
        "27: Stream default/flights again (first in line 1), expected each object once"
    ]
    elsewhere = again.replace("name: flights", "name: flights\nnamespace: other")
    assert len(parse_documents(GOOD + elsewhere, "f.yaml")) == 3


def test_a_namespace_stands_in_none() -> None:
    assert _problems("kind: Namespace\nname: a\nnamespace: b\n") == [
        "3: namespace: 'b' around a namespace, expected no namespace: a namespace stands in none"
    ]


def test_everything_wrong_is_told_at_once_and_in_order() -> None:
    text = (
        GOOD.replace("7d", "seven")
        .replace("input: flights\n", "")
        .replace("5m", "5")
        .replace("kind: Stream", "knid: x\nkind: Stream")
        + "---\nkind: Topic\n---\nname: x\n"
    )
    lines = [int(problem.partition(":")[0]) for problem in _problems(text)]
    assert lines == [1, 5, 7, 22, 27, 29]


def test_documents_know_the_lines_of_their_values() -> None:
    _, pipeline = parse_marked_documents(GOOD, "f.yaml")
    assert pipeline.line_of(()) == 6
    assert pipeline.line_of(("stages", 1, "retry", "backoff")) == 23
    assert pipeline.line_of(("stages", 1, "output", "partition")) == 25
    assert pipeline.line_of(("description",)) == 6


def test_files_are_loaded_or_refused(tmp_path: Path) -> None:
    file = tmp_path / "schema.yaml"
    file.write_text(GOOD)
    assert load_documents(file) == parse_documents(GOOD, "schema.yaml")
    file.write_bytes(b"\x89PNG\r\n")
    with pytest.raises(SchemaError, match=r"schema.yaml:1: byte 0x89, which is not UTF-8"):
        load_documents(file)
    with pytest.raises(SchemaError, match="there is no such file"):
        load_documents(tmp_path / "none.yaml")


@given(st.text(max_size=40), st.integers(0, len(GOOD)), st.integers(0, 20))
def test_a_damaged_file_is_read_or_refused(text: str, at: int, cut: int) -> None:
    with suppress(SchemaError):
        parse_documents(GOOD[:at] + text + GOOD[at + cut :], "f.yaml")


def test_what_differs_is_named_and_how_it_was_written_is_no_difference() -> None:
    def stream(max_age: str, description: str = "") -> SchemaObject:
        return declared(
            {
                "kind": "Stream",
                "name": "s",
                "partitions": ["local/p0"],
                "description": description,
                "retention": {"max_age": max_age},
            }
        )[0]

    assert differences(stream("7d"), stream("168h")) == ""
    assert differences(stream("7d"), stream("1d", "d")) == (
        "retention is {max_age: 7d}, here it is {max_age: 1d}; description is not set, here it is d"
    )


def test_settings_that_differ_are_told_as_documents_have_them() -> None:
    def endpoint(**more: Any) -> SchemaObject:
        about: dict[str, Any] = {"kind": "Endpoint", "name": "e", "replica_set": "local/p0"}
        return declared(about | more)[0]

    told = differences(endpoint(idempotent=True), endpoint(max_waiting=3))
    assert told == "idempotent is true, here it is not set; max_waiting is not set, here it is 3"


def test_the_page_on_pipelines_has_every_key_and_an_example() -> None:
    page = (Path(__file__).parents[3] / "docs" / "PIPELINES.md").read_text()
    declaring = page.partition("## Declaring one")[2].partition("## Rules")[0]
    example = declaring.partition("```yaml\n")[2].partition("```")[0]
    (found,) = parse_documents(example, "orders.yaml")
    assert isinstance(found.spec, PipelineSpec)
    assert [stage.name for stage in found.spec.stages] == [
        "price",
        "paid",
        "remind",
        "approve",
        "ship",
        "sorry",
    ]
    ((pipeline, signalled),) = re.findall(r"hadron pipeline signal (\S+) \d+ (\w+) '", page)
    (waits,) = (stage for stage in found.spec.stages if stage.name == signalled)
    assert (pipeline, waits.output) == (found.name, Output("approvals")), "it takes what is said"
    of_pipelines, of_stages, of_waits = re.split(r"\nOf ", declaring)[1:]
    for part, spec in ((of_pipelines, PipelineSpec), (of_stages, StageSpec), (of_waits, Wait)):
        keys = re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE)
        # How sizes were written is no key.
        fields = set(spec.__struct_fields__) - {"written"}
        assert sorted(keys) == sorted(each.removesuffix("_ms") for each in fields)
