"""Pipelines, as they are declared: stages, and the event types that trigger them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from zlib import crc32

import msgspec

from hadron.model.schema import Duration, Spec

_MOST_DOUBLINGS: Final = 20
"""Of a pause before a retry: a second has become twelve days."""


_SINK_NAME: Final = 60
"""Characters of a pipeline's name in its sink's, for people: the id alone is enough."""


class Retry(msgspec.Struct, frozen=True, omit_defaults=True):
    """Attempts of one stage invocation; the n-th retry waits backoff_ms * 2 ** (n - 1), and up to a
    quarter of that more: what failed together does not come back all at once."""

    max_attempts: int = 5
    backoff_ms: Duration = 1_000

    def pause_ms(self, failures: int, instance_id: int | None = None) -> int:
        """Before the next attempt of an instance, after so many in vain, 1 or more; without one the
        shortest. Nodes must agree on it: its chance is a hash."""
        pause_ms = self.backoff_ms << min(failures - 1, _MOST_DOUBLINGS)
        if instance_id is None:
            return pause_ms
        chance = crc32(b"%d/%d" % (instance_id, failures))
        return pause_ms + (pause_ms * chance >> 34)


class Output(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a stage's output goes, if its function or handler chooses no partition. Empty: to the
    pipeline's."""

    stream: str
    partition: str = ""


FAIL: Final = "fail"
"""What becomes of an instance by default when it waits for too long."""


class Wait(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a stage waits for, instead of being run: a record of `stream` with the key of the record
    that triggered its instance, or `signal`, by a person or a program."""

    stream: str = ""
    types: tuple[str, ...] = ()
    """Patterns of event types, as triggers are; none is any record."""
    signal: bool = False
    timeout_ms: Duration = 0
    """From when it is the stage's turn; 0: for ever."""
    on_timeout: str = FAIL
    """"fail", or the stage that runs then, instead of those that follow."""


STAGE_TIMEOUT_MS: Final = 300_000
"""Of a stage that does not say how long its function may take."""


class StageSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One stage. It runs when `dependencies` and `after` are done and `delay_ms` has passed; one
    with a `wait` is done when that has come."""

    name: str
    engine: str = "spark"
    run: str = ""
    """`package.module:function`, for engine spark."""
    schema: str = ""
    """DDL of the JSON values, when the stage wants structs instead of strings."""
    dependencies: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    delay_ms: Duration = 0
    timeout_ms: Duration = STAGE_TIMEOUT_MS
    retry: Retry = Retry()
    output: Output | None = None
    wait: Wait | None = None

    @property
    def is_on_spark(self) -> bool:
        """Whether it has a function that Spark runs; nothing runs one that waits."""
        return self.engine == "spark" and self.wait is None

    @property
    def has_output(self) -> bool:
        """Whether others may depend on it: a record that came is an output, too."""
        return self.output is not None or (self.wait is not None and self.wait.stream != "")


class PipelineSpec(Spec, frozen=True, kw_only=True):
    """A DAG of stages on one replica set, one instance per matching record of `input`."""

    replica_set: str
    input: str
    triggers: tuple[str, ...] = ()
    """Event type patterns; none matches every record."""
    start: str = "latest"
    """"earliest", "latest", an offset, or an RFC 3339 time."""
    max_parallel: int = 20_000
    """So many are rows of two small tables; four of Spark's micro-batches, and a runner holds
    two."""
    stages: tuple[StageSpec, ...]
    on_failure: str = ""
    """The stage that runs for an instance which is given up; it waits for no other, and none for
    it."""
    dead_letters: str = ""
    """The stream that gets a record of each instance which is given up: its partition there."""
    keep_finished_ms: Duration = 7 * 86_400_000
    """How long instances are kept that are done, failed or cancelled; counters stay."""


class StreamInput(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a streaming query reads, and from where on when it begins."""

    stream: str
    start: str = "latest"
    """As a pipeline's: "earliest", "latest", an offset, or an RFC 3339 time."""
    schema: str = ""
    """DDL of the JSON values, which makes columns of them: `value.carrier`."""


class StreamOutput(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where what a streaming query returns goes."""

    stream: str


APPEND: Final = "append"


class StreamPipelineSpec(Spec, frozen=True, kw_only=True, tag_field="mode", tag="stream"):
    """A pipeline that is one Structured Streaming query, in a runner of its user's: no replica set
    runs anything of it, and how far it is stands in its sink (PROTOCOL E11)."""

    source: StreamInput = msgspec.field(name="from")
    run: str
    """`package.module:function`."""
    to: StreamOutput
    trigger_ms: Duration = 0
    """Between the beginnings of two micro-batches; 0: each follows the one before."""
    output_mode: str = APPEND
    options: dict[str, str] = msgspec.field(default_factory=dict)
    """Of the reader, of the writer, and Spark's own (`spark.…`), by the names that these have."""


def sink_of(pipeline: str, pipeline_id: int) -> str:
    """The name under which the cluster knows how far a streaming query is."""
    return f"pipeline.{pipeline_id}.{pipeline[:_SINK_NAME].rstrip('.')}"


Graph = dict[str, object]
"""By stage, its place: what it waits for, and where its output goes; "" has the one that runs for
what is given up."""


def place_of(stage: StageSpec) -> object:
    """What makes a stage another step of a pipeline, whoever runs it and however."""
    wait = stage.wait and (stage.wait.stream, stage.wait.signal, stage.wait.on_timeout)
    return frozenset(stage.dependencies), frozenset(stage.after), stage.output, wait


def branch_of(stage: StageSpec) -> str:
    """The stage that runs when this one has waited for too long; "" without one."""
    if stage.wait is None or stage.wait.on_timeout == FAIL:
        return ""
    return stage.wait.on_timeout


def branches_of(stages: Iterable[StageSpec]) -> frozenset[str]:
    """Stages that begin when another one has waited for too long."""
    return frozenset(name for each in stages if (name := branch_of(each)))


def graph_of(spec: PipelineSpec) -> Graph:
    """What an instance keeps of the declaration that it began with."""
    return {"": spec.on_failure, **{stage.name: place_of(stage) for stage in spec.stages}}


def as_declared(begun: PipelineSpec, now: PipelineSpec) -> tuple[StageSpec, ...]:
    """The stages of what began with `begun`: the graph is its own, and how a stage runs is what is
    declared `now`, where that has the stage at the same place."""
    known = {stage.name: stage for stage in now.stages}
    return tuple(
        known[stage.name]
        if stage.name in known and place_of(known[stage.name]) == place_of(stage)
        else stage
        for stage in begun.stages
    )


def matches_type(patterns: tuple[str, ...], event_type: str) -> bool:
    """Whether one of `patterns` matches: dot segments, `*` is one, `>` is one or more at the end.

    Everything, also records without a type, is matched by no patterns and by `>` alone.
    """
    if not patterns or ">" in patterns:
        return True
    return bool(event_type) and any(_matches(pattern, event_type) for pattern in patterns)


def _matches(pattern: str, event_type: str) -> bool:
    wanted, given = pattern.split("."), event_type.split(".")
    for index, segment in enumerate(wanted):
        if segment == ">":
            return index == len(wanted) - 1 and len(given) > index
        if index >= len(given) or (segment != "*" and segment != given[index]):
            return False
    return len(wanted) == len(given)
