"""Whether a set of declared objects may be applied to the schema as it stands.

Apply is one atomic change: all valid or nothing, so everything is judged against the schema as it
would be afterwards. Pure, and without YAML: the node that owns the schema runs it on what clients
send.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from hadron.metadata.loops import Loops
from hadron.metadata.shortening import shortened
from hadron.model.documents.checks import check_object
from hadron.model.documents.problem import Notes, Problem
from hadron.model.ids import DEFAULT_NAMESPACE
from hadron.model.problems import ValuePath, did_you_mean, shorten
from hadron.model.schema import (
    EndpointSpec,
    ExchangeSpec,
    NamespaceSpec,
    PipelineSpec,
    QueueSpec,
    ScheduleSpec,
    SchemaObject,
    Spec,
    StageSpec,
    StreamSpec,
    TokenSpec,
)

Key = tuple[str, str, str]
"""(kind, namespace, name): what an object is found by."""

Losses = Mapping[tuple[Key, str], str]
"""What a limit of a stream's retention, by its key, drops at once, in words; "" for nothing."""

INSIST: Final = "--allow-destructive (allow_destructive=True in the client) if it is meant"


def key_of(obj: SchemaObject) -> Key:
    return obj.kind, obj.namespace, obj.name


def validate(
    objects: Sequence[SchemaObject],
    existing: Mapping[Key, SchemaObject],
    *,
    replica_sets: Collection[str],
    allow_destructive: bool,
    losses: Losses | None = None,
) -> list[Problem]:
    """Every reason to refuse `objects`; none means that the whole set may be applied.

    Args:
        objects: what is declared; objects that are not among them stay as they are.
        existing: the schema as it stands.
        replica_sets: the names of the cluster's replica sets.
        allow_destructive: permits changes that lose something.
        losses: of retentions that are shortened; those that are not in it may drop anything.
    """
    own = [problem for obj in objects for problem in check_object(obj)]
    repeated = _check_unique(objects)
    labels = {problem.label for problem in own}
    broken = frozenset(key_of(obj) for obj in objects if obj.label in labels)
    after = {**existing, **{key_of(obj): obj for obj in objects}}
    judge = _Judge(
        existing, after, broken, frozenset(replica_sets), allow_destructive, losses or {}
    )
    # What an object with problems of its own refers to would only be noise.
    related = [
        problem for obj in objects if key_of(obj) not in broken for problem in judge.check(obj)
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
        broken: frozenset[Key],
        replica_sets: frozenset[str],
        allow_destructive: bool,
        losses: Losses,
    ) -> None:
        self._existing = existing
        self._after = after
        self._broken = broken
        self._replica_sets = replica_sets
        self._allow_destructive = allow_destructive
        self._losses = losses

    @functools.cached_property
    def _loops(self) -> Loops:
        return Loops(self._after.values())

    def check(self, obj: SchemaObject) -> list[Problem]:
        notes = Notes(obj.label)
        spec = obj.spec
        if not isinstance(spec, NamespaceSpec):
            self._check_namespace(notes, obj)
        before = self._existing.get(key_of(obj))
        previous = before.spec if before is not None else None
        if isinstance(spec, StreamSpec):
            old_stream = previous if isinstance(previous, StreamSpec) else None
            self._check_stream(notes, key_of(obj), spec, old_stream)
        elif isinstance(spec, PipelineSpec):
            old_pipeline = previous if isinstance(previous, PipelineSpec) else None
            self._check_pipeline(notes, obj.namespace, spec, old_pipeline)
            self._check_loops(notes, obj)
        elif isinstance(spec, QueueSpec):
            self._check_queue(notes, spec, previous if isinstance(previous, QueueSpec) else None)
        elif isinstance(spec, ScheduleSpec):
            self._check_target(notes, obj.namespace, spec)
        elif isinstance(spec, (ExchangeSpec, EndpointSpec)):
            self._check_home(notes, spec, previous)
        elif isinstance(spec, TokenSpec):
            self._check_token(notes, spec, previous if isinstance(previous, TokenSpec) else None)
        return notes.problems

    def check_dependents(self, objects: Sequence[SchemaObject]) -> list[Problem]:
        """What stays as it is, and would refer to a partition or a lane that goes away."""
        declared = {key_of(obj) for obj in objects}
        problems: list[Problem] = []
        for key, obj in self._existing.items():
            if key in declared:
                continue
            own = Notes(obj.label)
            if isinstance(obj.spec, PipelineSpec):
                for index, stage in enumerate(obj.spec.stages):
                    if stage.output and ("Stream", obj.namespace, stage.output.stream) in declared:
                        self._check_output(own, obj.namespace, obj.spec, index, stage)
            elif isinstance(obj.spec, ScheduleSpec):
                target = obj.spec.target
                kind = "Queue" if target.queue else "Stream"
                if (kind, obj.namespace, target.queue or target.stream) in declared:
                    self._check_target(own, obj.namespace, obj.spec)
            problems += own.problems
        return problems

    def _check_namespace(self, notes: Notes, obj: SchemaObject) -> None:
        self._find_namespace(notes, ("namespace",), obj.namespace)

    def _find_namespace(self, notes: Notes, path: ValuePath, name: str) -> None:
        # By key: there may be thousands of objects, and this is asked for each of them.
        if name == DEFAULT_NAMESPACE or ("Namespace", DEFAULT_NAMESPACE, name) in self._after:
            return
        known = [key[2] for key in self._after if key[0] == "Namespace"]
        found = f"there is no namespace {shorten(name)}{did_you_mean(name, known)}"
        notes.note(
            path, found,
            f"an existing one (`hadron create namespace {name}` makes it), or its declaration "
            "beside this",
        )

    def _check_replica_set(self, notes: Notes, path: ValuePath, name: str) -> None:
        if name not in self._replica_sets:
            meant = did_you_mean(name, self._replica_sets)
            known = ", ".join(sorted(self._replica_sets)) or "none is known yet"
            found = f"there is no replica set {shorten(name)}{meant}"
            notes.note(path, found, f"one of the cluster's ({known})", unheard=name)

    def _check_stream(
        self, notes: Notes, key: Key, spec: StreamSpec, before: StreamSpec | None
    ) -> None:
        if not spec.partitions:
            names = sorted(self._replica_sets)
            found = f"no partitions, and the cluster has {len(names)} replica sets"
            notes.note(("partitions",), found, f"some of {', '.join(names) or 'those to come'}")
        old = tuple(before.partitions) if before is not None else ()
        for index, partition in enumerate(spec.partitions):
            # What is in use was known when it was declared; its replica set may just be away.
            if partition not in old:
                self._check_replica_set(notes, ("partitions", index), partition)
        if self._allow_destructive:
            return
        for less in shortened(before.retention, spec.retention) if before is not None else ():
            amount = self._losses.get((key, less.key))
            if amount != "":
                found = f"{less.after} instead of {less.before}, which drops {less.drops} at once"
                found += f": {amount}" if amount else ""
                notes.note(("retention", less.key), found, f"{less.before}, or {INSIST}")
        if tuple(spec.partitions[: len(old)]) == old:
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

    def _check_loops(self, notes: Notes, obj: SchemaObject) -> None:
        for loop in self._loops.of(obj):
            if loop.is_endless:
                notes.note(
                    ("stages", loop.index, "output", "stream"),
                    f"{loop}, and every record is taken there: each output would start another "
                    "instance, for ever",
                    "another stream, or `triggers` which the outputs' types do not match",
                )

    def _find_stream(
        self, notes: Notes, path: ValuePath, namespace: str, name: str
    ) -> StreamSpec | None:
        found = self._find(notes, path, "Stream", namespace, name)
        assert found is None or isinstance(found, StreamSpec), found
        return found

    def _find(
        self, notes: Notes, path: ValuePath, kind: str, namespace: str, name: str
    ) -> Spec | None:
        """What is referred to; None when it is not there, or cannot be judged by."""
        key = kind, namespace, name
        if key in self._broken:
            return None
        if key in self._after:
            return self._after[key].spec
        others = [other[2] for other in self._after if other[:2] == (kind, namespace)]
        what = kind.lower()
        text = f"there is no {what} {shorten(name)} in namespace {namespace}"
        expected = f"an existing {what}, or its declaration beside this"
        notes.note(path, f"{text}{did_you_mean(name, others)}", expected)
        return None

    def _check_home(
        self, notes: Notes, spec: QueueSpec | ExchangeSpec | EndpointSpec, before: Spec | None
    ) -> None:
        if getattr(before, "replica_set", None) != spec.replica_set:
            self._check_replica_set(notes, ("replica_set",), spec.replica_set)

    def _check_queue(self, notes: Notes, spec: QueueSpec, before: QueueSpec | None) -> None:
        self._check_home(notes, spec, before)
        if before is None or self._allow_destructive:
            return
        if before.replica_set != spec.replica_set:
            _note_move(notes, "replica_set", before.replica_set, spec.replica_set, "its jobs")
        for name in before.lane_names:
            if name not in spec.lane_names:
                found = f"lane {shorten(name)} was removed, and may have jobs"
                notes.note(("lanes",), found, f"every existing lane, or {INSIST}")

    def _check_target(self, notes: Notes, namespace: str, spec: ScheduleSpec) -> None:
        target = spec.target
        if target.queue:
            queue = self._find(notes, ("target", "queue"), "Queue", namespace, target.queue)
            if not isinstance(queue, QueueSpec) or not target.lane:
                return
            if target.lane not in queue.lane_names:
                meant = did_you_mean(target.lane, queue.lane_names)
                found = f"queue {target.queue} has no lane {shorten(target.lane)}{meant}"
                notes.note(("target", "lane"), found, f"one of {', '.join(queue.lane_names)}")
            return
        stream = self._find_stream(notes, ("target", "stream"), namespace, target.stream)
        if stream is not None and target.partition not in stream.partitions:
            found = f"{shorten(target.partition)} is no partition of stream {target.stream}"
            notes.note(("target", "partition"), found, f"one of {', '.join(stream.partitions)}")

    def _check_token(self, notes: Notes, spec: TokenSpec, before: TokenSpec | None) -> None:
        for index, name in enumerate(spec.namespaces):
            if name != "*":
                self._find_namespace(notes, ("namespaces", index), name)
        if before is not None and before.sha256 != spec.sha256 and not self._allow_destructive:
            found = "changed, which would lock out whoever has the present secret"
            notes.note(("sha256",), found, f"{before.sha256}, or none to leave it, or {INSIST}")

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
            _note_move(notes, key, old, new, loses)


def _note_move(notes: Notes, key: str, old: str, new: str, loses: str) -> None:
    found = f"changed from {shorten(old)} to {shorten(new)}, which would lose {loses}"
    notes.note((key,), found, f"{old}, or {INSIST}")
