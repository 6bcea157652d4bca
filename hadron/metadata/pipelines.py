"""What declared pipelines must keep to: their input and outputs, and what a change would lose.
Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from hadron.metadata.judging import Judge, Key, KindRules, note_move
from hadron.metadata.pipeline_loops import Loops
from hadron.model.documents.problem import Notes, Problem
from hadron.model.pipelines import PipelineSpec, StageSpec, StreamPipelineSpec
from hadron.model.problems import ValuePath, shorten, some_of
from hadron.model.schema import SchemaObject, Spec, StreamSpec


def _spec(obj: SchemaObject) -> PipelineSpec:
    assert isinstance(obj.spec, PipelineSpec)
    return obj.spec


def _check(judge: Judge, notes: Notes, obj: SchemaObject, before: Spec | None) -> None:
    expected = "another stream"
    if isinstance(obj.spec, StreamPipelineSpec):
        judge.find_stream(notes, ("from", "stream"), obj.namespace, obj.spec.source.stream)
        path: ValuePath = ("to", "stream")
        output = judge.find_stream(notes, path, obj.namespace, obj.spec.to.stream)
        _check_writable(notes, path, obj.spec.to.stream, output)
    else:
        _check_staged(judge, notes, obj, before)
        expected += ", or `triggers` which the outputs' types do not match"
    for loop in judge.view(Loops).of(obj, only_endless=True):
        notes.note(
            loop.path,
            f"{loop}, and every record is taken there: each output would make another one, "
            "for ever",
            expected,
        )


def _check_staged(judge: Judge, notes: Notes, obj: SchemaObject, before: Spec | None) -> None:
    spec = _spec(obj)
    judge.check_home(notes, spec, before)
    judge.find_stream(notes, ("input",), obj.namespace, spec.input)
    for index, stage in enumerate(spec.stages):
        if stage.output is not None:
            _check_output(judge, notes, obj, index, stage)
        if stage.wait is not None:
            _check_wait(judge, notes, obj, index, stage)
    _check_letters(judge, notes, obj)
    if isinstance(before, PipelineSpec) and not judge.allow_destructive:
        _check_losses(notes, spec, before)


def _check_writable(notes: Notes, path: ValuePath, name: str, stream: StreamSpec | None) -> None:
    if stream is not None and stream.has_key_index:
        found = f"{shorten(name)} has an index of keys, which producers fill"
        notes.note(path, found, "a stream without `keys: indexed`")


def _check_letters(judge: Judge, notes: Notes, obj: SchemaObject) -> None:
    spec, path = _spec(obj), ("dead_letters",)
    if not spec.dead_letters:
        return
    stream = judge.find_stream(notes, path, obj.namespace, spec.dead_letters)
    if spec.dead_letters == spec.input:
        found = f"{shorten(spec.input)} is the pipeline's own input: letters may start instances"
        notes.note(path, found, "another stream")
    _check_writable(notes, path, spec.dead_letters, stream)
    if stream is not None and spec.replica_set not in stream.partitions:
        found = (
            f"{shorten(spec.dead_letters)} has no partition on {shorten(spec.replica_set)}, where "
            "the pipeline lives"
        )
        notes.note(path, found, "one there")


def _recheck(judge: Judge, notes: Notes, obj: SchemaObject, declared: Collection[Key]) -> None:
    """An output's partition may go away. A streaming query has no home, and asks for none."""
    if isinstance(obj.spec, StreamPipelineSpec):
        return
    if ("Stream", obj.namespace, _spec(obj).dead_letters) in declared:
        _check_letters(judge, notes, obj)
    for index, stage in enumerate(_spec(obj).stages):
        if stage.output and ("Stream", obj.namespace, stage.output.stream) in declared:
            _check_output(judge, notes, obj, index, stage)


def _check_output(
    judge: Judge, notes: Notes, obj: SchemaObject, index: int, stage: StageSpec
) -> None:
    assert stage.output is not None
    path: ValuePath = ("stages", index, "output")
    stream = judge.find_stream(notes, (*path, "stream"), obj.namespace, stage.output.stream)
    partition = stage.output.partition or _spec(obj).replica_set
    _check_writable(notes, (*path, "stream"), stage.output.stream, stream)
    if stream is None or partition in stream.partitions:
        return
    why = "" if stage.output.partition else ", the pipeline's replica set,"
    found = f"{shorten(partition)}{why} is no partition of stream {stage.output.stream}"
    expected = f"one of {some_of(stream.partitions)}"
    notes.note((*path, "partition"), found, expected)


def _check_wait(
    judge: Judge, notes: Notes, obj: SchemaObject, index: int, stage: StageSpec
) -> None:
    assert stage.wait is not None
    path: ValuePath = ("stages", index)
    if stage.wait.stream:
        judge.find_stream(notes, (*path, "wait", "stream"), obj.namespace, stage.wait.stream)
    partition = stage.output.partition if stage.output is not None else ""
    if partition not in ("", _spec(obj).replica_set):
        found = f"{shorten(partition)} is not where the pipeline lives, which takes signals"
        notes.note((*path, "output", "partition"), found, _spec(obj).replica_set)


def _check_losses(notes: Notes, spec: PipelineSpec, before: PipelineSpec) -> None:
    for key, old, new, loses in (
        ("input", before.input, spec.input, "its progress in the old stream"),
        ("replica_set", before.replica_set, spec.replica_set, "its instances, which do not move"),
    ):
        if old != new:
            note_move(notes, key, old, new, loses)


def _references(obj: SchemaObject) -> Iterator[Key]:
    if isinstance(obj.spec, StreamPipelineSpec):
        yield "Stream", obj.namespace, obj.spec.source.stream
        yield "Stream", obj.namespace, obj.spec.to.stream
        return
    spec = _spec(obj)
    yield "Stream", obj.namespace, spec.input
    if spec.dead_letters:
        yield "Stream", obj.namespace, spec.dead_letters
    for stage in spec.stages:
        if stage.output is not None:
            yield "Stream", obj.namespace, stage.output.stream
        if stage.wait is not None and stage.wait.stream:
            yield "Stream", obj.namespace, stage.wait.stream


def _refuse_change(before: SchemaObject, after: SchemaObject) -> list[Problem]:
    """What a pipeline has made belongs to the stream that it has consumed, and to how it runs,
    whoever insists."""
    if type(before.spec) is not type(after.spec):
        path: ValuePath = ("mode",)
        found = "the pipeline has run in another mode, and neither goes on where the other one was"
    elif _consumed(before) == _consumed(after):
        return []
    elif isinstance(after.spec, StreamPipelineSpec):
        path = ("from", "stream")
        found = f"the pipeline has consumed {_consumed(before)}, and its query goes on in that"
    else:
        path = ("input",)
        found = (
            f"the pipeline has consumed another stream, its instances belong to {_consumed(before)}"
        )
    expected = "that one; or a pipeline with another name for the new input"
    if path == ("mode",):
        expected = "that one; or a pipeline with another name"
    return [Problem(after.label, path, found, expected)]


def _consumed(obj: SchemaObject) -> str:
    spec = obj.spec
    return spec.source.stream if isinstance(spec, StreamPipelineSpec) else _spec(obj).input


RULES: Final = KindRules(
    check=_check,
    recheck=_recheck,
    references=_references,
    refuse_change=_refuse_change,
    holds="its instances, or how far its query is",
)
