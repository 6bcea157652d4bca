"""What an apply changes, how it is shown, and that rendered objects read back as they are."""

from __future__ import annotations

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from hadron.metadata.diff import Change, plan, render_diff
from hadron.metadata.judging import key_of
from hadron.model.documents.checks import check_object
from hadron.model.documents.reading import parse_documents
from hadron.model.documents.rendering import to_yaml
from hadron.model.pipelines import Output, PipelineSpec, Retry, StageSpec
from hadron.model.schema import NamespaceSpec, Retention, SchemaObject, Spec, StreamSpec
from hadron.model.services import (
    EndpointSpec,
    ExchangeSpec,
    Lane,
    QueueSpec,
    ScheduleSpec,
    Target,
    TokenSpec,
)

OLD = SchemaObject(
    kind="Stream",
    name="flights",
    id=7,
    metadata_index=9,
    spec=StreamSpec(partitions=("a/p0",), retention=Retention(604_800_000, 0)),
)
NEW = SchemaObject(
    kind="Stream",
    name="flights",
    spec=StreamSpec(partitions=("a/p0", "b/p0"), retention=Retention(86_400_000, 10 << 30)),
)


def test_a_plan_says_what_happens_to_each_object() -> None:
    same = msgspec.structs.replace(OLD, id=0, metadata_index=0)
    other = msgspec.structs.replace(NEW, name="other")
    existing = {key_of(OLD): OLD}
    assert plan([same], existing) == [Change("unchanged", OLD, OLD)]
    assert plan([NEW, other], existing) == [
        Change("changed", OLD, msgspec.structs.replace(NEW, id=7, metadata_index=9)),
        Change("created", None, other),
    ]


def test_objects_are_compared_as_they_are_stored() -> None:
    spec = StreamSpec(partitions=["a/p0"], retention=Retention(604_800_000, 0))  # type: ignore[arg-type]
    listed = SchemaObject(kind="Stream", name="flights", spec=spec)
    assert plan([listed], {key_of(OLD): OLD})[0].action == "unchanged"


def test_a_default_that_is_written_out_changes_nothing() -> None:
    # Made anew, so that it is another object than the default itself.
    lease_ms = int("30000")
    queue = SchemaObject(
        kind="Queue", name="emails", spec=QueueSpec(replica_set="a", lease_ms=lease_ms)
    )
    silent = msgspec.structs.replace(queue, spec=QueueSpec(replica_set="a"))
    assert plan([silent], {key_of(queue): queue})[0].action == "unchanged"


def test_a_diff_shows_the_lines_that_change() -> None:
    other = SchemaObject(kind="Namespace", name="billing", spec=NamespaceSpec(description="Money."))
    text = render_diff([*plan([NEW, other], {key_of(OLD): OLD}), Change("unchanged", OLD, OLD)])
    assert (
        text
        == """\
--- Stream default/flights (as it is)
+++ Stream default/flights (as declared)
@@ -2,5 +2,7 @@
 name: flights
 partitions:
 - a/p0
+- b/p0
 retention:
-  max_age: 7d
+  max_age: 1d
+  max_bytes: 10GiB
--- (nothing)
+++ Namespace billing (as declared)
@@ -0,0 +1,3 @@
+kind: Namespace
+name: billing
+description: Money.
"""
    )


def test_no_change_shows_nothing() -> None:
    assert render_diff(plan([OLD], {key_of(OLD): OLD})) == ""


def test_a_document_reads_like_one_that_a_person_wrote() -> None:
    pipeline = SchemaObject(
        kind="Pipeline",
        namespace="air",
        name="departures",
        spec=PipelineSpec(
            description="Two lines\nof text.\n",
            replica_set="local/p0",
            input="flights",
            triggers=("flight.*", ">"),
            start="0",
            stages=(
                StageSpec(name="weather", run="m:f", output=Output("w")),
                StageSpec(
                    name="on",
                    engine="handler",
                    dependencies=("weather",),
                    delay_ms=1_500,
                    timeout_ms=60_000,
                    retry=Retry(3, 2_000),
                    output=Output("v", "a/b"),
                ),
            ),
        ),
    )
    assert (
        to_yaml(pipeline)
        == """\
kind: Pipeline
name: departures
namespace: air
description: |
  Two lines
  of text.
replica_set: local/p0
input: flights
triggers:
- flight.*
- '>'
start: '0'
stages:
- name: weather
  run: m:f
  output:
    stream: w
- name: 'on'
  engine: handler
  dependencies:
  - weather
  delay: 1500ms
  timeout: 1m
  retry:
    max_attempts: 3
    backoff: 2s
  output:
    stream: v
    partition: a/b
"""
    )


_names = st.one_of(
    st.sampled_from(["on", "null", "1", "1e3", "0x1f", "y", "2013-01-01", "-", "-.-"]),
    st.lists(st.text(alphabet="-_aZ09", min_size=1, max_size=6), min_size=1, max_size=3).map(
        ".".join
    ),
)
_set_names = st.lists(_names, min_size=1, max_size=2).map("/".join)
_texts = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from(" \n\t:#'\"|>-\\\r\x85\u2028\ufeff"),
    max_size=120,
)
_waits = st.integers(1, 3_650 * 86_400_000)
_sizes = st.integers(0, (1 << 63) - 1)


@st.composite
def _stages(draw: st.DrawFn) -> tuple[StageSpec, ...]:
    """A graph: each stage waits for earlier ones only, those with an output for data."""
    names = draw(st.lists(_names.map("s-{}".format), min_size=1, max_size=5, unique=True))
    stages: list[StageSpec] = []
    for name in names:
        handler = draw(st.booleans())
        with_output = [stage.name for stage in stages if stage.output]
        earlier = [stage.name for stage in stages]
        stages.append(
            StageSpec(
                name=name,
                engine="handler" if handler else "spark",
                run="" if handler else draw(st.sampled_from(["a:b", "a.b.c:d"])),
                schema="" if handler else draw(_texts),
                dependencies=_some(draw, with_output),
                after=_some(draw, earlier),
                delay_ms=draw(_waits),
                timeout_ms=draw(_waits),
                retry=draw(st.builds(Retry, st.integers(1, 1_000), _waits)),
                output=draw(st.none() | st.builds(Output, _names, st.just("") | _set_names)),
            )
        )
    return tuple(stages)


def _some(draw: st.DrawFn, names: list[str]) -> tuple[str, ...]:
    return tuple(draw(st.lists(st.sampled_from(names), unique=True))) if names else ()


_specs = st.one_of(
    st.tuples(st.just("Namespace"), st.builds(NamespaceSpec, description=_texts)),
    st.tuples(
        st.just("Stream"),
        st.builds(
            StreamSpec,
            partitions=st.lists(_set_names, min_size=1, max_size=4, unique=True).map(tuple),
            retention=st.builds(Retention, _sizes, _sizes),
            description=_texts,
        ),
    ),
    st.tuples(
        st.just("Pipeline"),
        st.builds(
            PipelineSpec,
            replica_set=_set_names,
            input=_names,
            stages=_stages(),
            triggers=st.lists(
                st.sampled_from(["*", ">", "a.*.b", "on", "1.2", "a.>", "%x", "&a", "é"])
            ).map(tuple),
            start=st.sampled_from(["earliest", "latest", "0", "017", "2013-01-01T05:00:00Z"]),
            max_parallel=st.integers(1, 1_000_000),
            description=_texts,
        ),
    ),
    st.tuples(
        st.just("Queue"),
        st.builds(
            QueueSpec,
            replica_set=_set_names,
            lanes=st.lists(
                st.builds(Lane, _names, st.integers(1, 1_000)),
                max_size=4,
                unique_by=lambda lane: lane.name,
            ).map(tuple),
            max_attempts=st.integers(1, 1_000),
            lease_ms=_waits,
            backoff_ms=_waits,
            result_ttl_ms=_waits | st.just(0),
            description=_texts,
        ),
    ),
    st.tuples(
        st.just("Schedule"),
        st.builds(
            ScheduleSpec,
            cron=st.sampled_from(["* * * * *", "@every 5m", "*/5 0 1-3,9 * jan,feb sun"]),
            target=st.builds(
                Target, queue=_names, lane=_names | st.just(""), priority=st.integers(-9, 9)
            )
            | st.builds(Target, stream=_names, partition=_set_names, type=_texts, key=_texts),
            value=_texts,
            catch_up=st.sampled_from(["none", "latest", "all"]),
            description=_texts,
        ),
    ),
    st.tuples(st.just("Exchange"), st.builds(ExchangeSpec, replica_set=_set_names)),
    st.tuples(
        st.just("Endpoint"), st.builds(EndpointSpec, replica_set=_set_names, description=_texts)
    ),
    st.tuples(
        st.just("Token"),
        st.builds(
            TokenSpec,
            access=st.sampled_from(["read", "write", "admin"]),
            namespaces=st.just(("*",)) | st.lists(_names, max_size=3, unique=True).map(tuple),
            expires_ms=st.integers(0, 253_402_300_799_999),
            sha256=st.just("") | st.text("0123456789abcdef", min_size=64, max_size=64),
            description=_texts,
        ),
    ),
)


@given(_specs, _names, _names)
@example(("Namespace", NamespaceSpec(description="24h ")), "on", "on")
def test_rendered_and_read_again_it_is_the_same(
    kind_and_spec: tuple[str, Spec], name: str, space: str
) -> None:
    kind, spec = kind_and_spec
    namespace = "default" if kind == "Namespace" else space
    obj = SchemaObject(kind=kind, name=name, namespace=namespace, spec=spec)
    assert check_object(obj) == []
    assert parse_documents(to_yaml(obj), "f.yaml") == [obj]
    both = f"{to_yaml(obj)}---\n{to_yaml(OLD)}"
    assert parse_documents(both, "f.yaml")[0] == obj
