"""Whether a set of declared objects may be applied to the schema as it stands.

Apply is one atomic change: all valid or nothing, so everything is judged against the schema as it
would be afterwards. Pure, and without YAML: the node that owns the schema runs it on what clients
send.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from hadron.metadata.checks import check_object
from hadron.metadata.problem import Notes, Problem
from hadron.model.ids import DEFAULT_NAMESPACE
from hadron.model.problems import ValuePath, did_you_mean, shorten
from hadron.model.schema import NamespaceSpec, PipelineSpec, SchemaObject, StageSpec, StreamSpec

Key = tuple[str, str, str]
"""(kind, namespace, name): what an object is found by."""

INSIST: Final = "--allow-destructive (allow_destructive=True in the client) if it is meant"


def key_of(obj: SchemaObject) -> Key:
    return obj.kind, obj.namespace, obj.name


def validate(
    objects: Sequence[SchemaObject],
    existing: Mapping[Key, SchemaObject],
    *,
    replica_sets: Collection[str],
    allow_destructive: bool,
) -> list[Problem]:
    """Every reason to refuse `objects`; none means that the whole set may be applied.

    Args:
        objects: what is declared; objects that are not among them stay as they are.
        existing: the schema as it stands.
        replica_sets: the names of the cluster's replica sets.
        allow_destructive: permits changes that lose something.
    """
    own = [problem for obj in objects for problem in check_object(obj)]
    repeated = _check_unique(objects)
    broken = {problem.label for problem in own}
    after = {**existing, **{key_of(obj): obj for obj in objects}}
    judge = _Judge(existing, after, frozenset(replica_sets), allow_destructive)
    # What an object with problems of its own refers to would only be noise.
    related = [
        problem for obj in objects if obj.label not in broken for problem in judge.check(obj)
    ]
    return [*own, *repeated, *related, *judge.check_dependents(objects)]


def _check_unique(objects: Iterable[SchemaObject]) -> list[Problem]:
    seen: set[Key] = set()
    problems: list[Problem] = []
    for obj in objects:
        key = key_of(obj)
        if key in seen:
            problems.append(Problem(obj.label, (), "declared more than once", "each object once"))
        seen.add(key)
    return problems


class _Judge:
    """Compares one object with the schema before and after the change."""

    def __init__(
        self,
        existing: Mapping[Key, SchemaObject],
        after: Mapping[Key, SchemaObject],
        replica_sets: frozenset[str],
        allow_destructive: bool,
    ) -> None:
        self._existing = existing
        self._after = after
        self._replica_sets = replica_sets
        self._allow_destructive = allow_destructive

    def check(self, obj: SchemaObject) -> list[Problem]:
        notes = Notes(obj.label)
        spec = obj.spec
        if not isinstance(spec, NamespaceSpec):
            self._check_namespace(notes, obj)
        before = self._existing.get(key_of(obj))
        previous = before.spec if before is not None else None
        if isinstance(spec, StreamSpec):
            old_stream = previous if isinstance(previous, StreamSpec) else None
            self._check_stream(notes, spec, old_stream)
        elif isinstance(spec, PipelineSpec):
            old_pipeline = previous if isinstance(previous, PipelineSpec) else None
            self._check_pipeline(notes, obj.namespace, spec, old_pipeline)
        return notes.problems

    def check_dependents(self, objects: Sequence[SchemaObject]) -> list[Problem]:
        """Pipelines that stay as they are, and would write to a partition that goes away."""
        declared = {key_of(obj) for obj in objects}
        streams = {(obj.namespace, obj.name) for obj in objects if obj.kind == "Stream"}
        notes: list[Problem] = []
        for key, obj in self._existing.items():
            if key in declared or not isinstance(obj.spec, PipelineSpec):
                continue
            own = Notes(obj.label)
            for index, stage in enumerate(obj.spec.stages):
                if stage.output and (obj.namespace, stage.output.stream) in streams:
                    self._check_output(own, obj.namespace, obj.spec, index, stage)
            notes += own.problems
        return notes

    def _check_namespace(self, notes: Notes, obj: SchemaObject) -> None:
        known = [name for kind, _, name in self._after if kind == "Namespace"]
        if obj.namespace != DEFAULT_NAMESPACE and obj.namespace not in known:
            meant = did_you_mean(obj.namespace, [DEFAULT_NAMESPACE, *known])
            found = f"there is no namespace {shorten(obj.namespace)}{meant}"
            notes.note(("namespace",), found, "an existing one, or its declaration beside this")

    def _check_replica_set(self, notes: Notes, path: ValuePath, name: str) -> None:
        if name not in self._replica_sets:
            meant = did_you_mean(name, self._replica_sets)
            known = ", ".join(sorted(self._replica_sets)) or "none is known yet"
            found = f"there is no replica set {shorten(name)}{meant}"
            notes.note(path, found, f"one of the cluster's ({known})")

    def _check_stream(self, notes: Notes, spec: StreamSpec, before: StreamSpec | None) -> None:
        old = tuple(before.partitions) if before is not None else ()
        for index, partition in enumerate(spec.partitions):
            # What is in use was known when it was declared; its replica set may just be away.
            if partition not in old:
                self._check_replica_set(notes, ("partitions", index), partition)
        if self._allow_destructive or tuple(spec.partitions[: len(old)]) == old:
            return
        removed = [name for name in old if name not in spec.partitions]
        for name in removed:
            found = (
                f"{shorten(name)} was removed, which would lose its records and "
                "move keys to other partitions"
            )
            notes.note(("partitions",), found, f"every existing partition, or {INSIST}")
        if not removed:
            found = "the order of existing partitions was changed, which would move keys"
            expected = f"{', '.join(old)} first and new ones behind, or {INSIST}"
            notes.note(("partitions",), found, expected)

    def _check_pipeline(
        self, notes: Notes, namespace: str, spec: PipelineSpec, before: PipelineSpec | None
    ) -> None:
        if before is None or before.replica_set != spec.replica_set:
            self._check_replica_set(notes, ("replica_set",), spec.replica_set)
        self._find_stream(notes, ("input",), namespace, spec.input)
        for index, stage in enumerate(spec.stages):
            if stage.output is not None:
                self._check_output(notes, namespace, spec, index, stage)
        if before is not None and not self._allow_destructive:
            _check_losses(notes, spec, before)

    def _find_stream(
        self, notes: Notes, path: ValuePath, namespace: str, name: str
    ) -> StreamSpec | None:
        found = self._after.get(("Stream", namespace, name))
        if found is not None and isinstance(found.spec, StreamSpec):
            return found.spec
        streams = [key[2] for key in self._after if key[:2] == ("Stream", namespace)]
        text = f"there is no stream {shorten(name)} in namespace {namespace}"
        expected = "an existing stream, or its declaration beside this"
        notes.note(path, f"{text}{did_you_mean(name, streams)}", expected)
        return None

    def _check_output(
        self, notes: Notes, namespace: str, spec: PipelineSpec, index: int, stage: StageSpec
    ) -> None:
        assert stage.output is not None
        path: ValuePath = ("stages", index, "output")
        stream = self._find_stream(notes, (*path, "stream"), namespace, stage.output.stream)
        partition = stage.output.partition or spec.replica_set
        if stream is None or partition in stream.partitions:
            return
        why = "" if stage.output.partition else ", the pipeline's replica set,"
        found = f"{shorten(partition)}{why} is no partition of stream {stage.output.stream}"
        expected = f"one of {', '.join(stream.partitions)}"
        notes.note((*path, "partition"), found, expected)


def _check_losses(notes: Notes, spec: PipelineSpec, before: PipelineSpec) -> None:
    names = {stage.name for stage in spec.stages}
    for stage in before.stages:
        if stage.name not in names:
            found = f"stage {shorten(stage.name)} was removed, and may have live instances"
            notes.note(("stages",), found, f"every existing stage, or {INSIST}")
    for key, old, new, loses in (
        ("input", before.input, spec.input, "its progress in the old stream"),
        ("replica_set", before.replica_set, spec.replica_set, "its instances, which do not move"),
    ):
        if old != new:
            found = f"changed from {shorten(old)} to {shorten(new)}, which would lose {loses}"
            notes.note((key,), found, f"{old}, or {INSIST}")
