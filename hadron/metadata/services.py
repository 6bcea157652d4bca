"""What queues, schedules, exchanges, endpoints and tokens must keep to. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from hadron.metadata.judging import INSIST, Judge, Key, KindRules, note_move
from hadron.model.documents.problem import Notes
from hadron.model.ids import DEFAULT_NAMESPACE
from hadron.model.problems import shorten, some_of
from hadron.model.schema import SchemaObject, Spec
from hadron.model.services import ExchangeSpec, QueueSpec, ScheduleSpec, TokenSpec


def _check_home(judge: Judge, notes: Notes, obj: SchemaObject, before: Spec | None) -> None:
    judge.check_home(notes, obj.spec, before)


def _check_queue(judge: Judge, notes: Notes, obj: SchemaObject, before: QueueSpec | None) -> None:
    spec = obj.spec
    assert isinstance(spec, QueueSpec)
    judge.check_home(notes, spec, before)
    if before is None or judge.allow_destructive:
        return
    if before.replica_set != spec.replica_set:
        note_move(notes, "replica_set", before.replica_set, spec.replica_set, "its jobs")
    for name in before.lane_names:
        if name not in spec.lane_names:
            found = f"lane {shorten(name)} was removed, and may have jobs"
            notes.note(("lanes",), found, f"every existing lane, or {INSIST}")


def _check_schedule(judge: Judge, notes: Notes, obj: SchemaObject, _before: object) -> None:
    assert isinstance(obj.spec, ScheduleSpec)
    target = obj.spec.target
    if target.queue:
        queue = judge.find(notes, ("target", "queue"), "Queue", obj.namespace, target.queue)
        if not isinstance(queue, QueueSpec) or not target.lane:
            return
        if target.lane not in queue.lane_names:
            meant = notes.meant(target.lane, queue.lane_names)
            found = f"queue {target.queue} has no lane {shorten(target.lane)}{meant}"
            notes.note(("target", "lane"), found, f"one of {some_of(queue.lane_names)}")
        return
    stream = judge.find_stream(notes, ("target", "stream"), obj.namespace, target.stream)
    if stream is not None and target.partition not in stream.partitions:
        found = f"{shorten(target.partition)} is no partition of stream {target.stream}"
        notes.note(("target", "partition"), found, f"one of {some_of(stream.partitions)}")


def _target(obj: SchemaObject) -> Iterator[Key]:
    assert isinstance(obj.spec, ScheduleSpec)
    target = obj.spec.target
    yield ("Queue" if target.queue else "Stream"), obj.namespace, target.queue or target.stream


def _recheck_schedule(
    judge: Judge, notes: Notes, obj: SchemaObject, declared: Collection[Key]
) -> None:
    """Its target's partition or lane may go away."""
    if any(key in declared for key in _target(obj)):
        _check_schedule(judge, notes, obj, None)


def _check_exchange(judge: Judge, notes: Notes, obj: SchemaObject, before: Spec | None) -> None:
    spec = obj.spec
    assert isinstance(spec, ExchangeSpec)
    judge.check_home(notes, spec, before)
    for key in ("from_stream", "to_stream"):
        name = getattr(spec, key)
        stream = judge.find_stream(notes, (key,), obj.namespace, name) if name else None
        if stream is not None and spec.replica_set not in stream.partitions:
            found = f"stream {name} has no partition on {shorten(spec.replica_set)}"
            notes.note((key,), found, f"a stream there; it has {some_of(stream.partitions)}")


def _bridged(obj: SchemaObject) -> Iterator[Key]:
    assert isinstance(obj.spec, ExchangeSpec)
    for name in (obj.spec.from_stream, obj.spec.to_stream):
        if name:
            yield "Stream", obj.namespace, name


def _recheck_exchange(
    judge: Judge, notes: Notes, obj: SchemaObject, declared: Collection[Key]
) -> None:
    """A stream's partition may go away."""
    if any(key in declared for key in _bridged(obj)):
        _check_exchange(judge, notes, obj, obj.spec)


def _check_token(judge: Judge, notes: Notes, obj: SchemaObject, before: TokenSpec | None) -> None:
    spec = obj.spec
    assert isinstance(spec, TokenSpec)
    for index, name in enumerate(spec.namespaces):
        if name != "*":
            judge.find_namespace(notes, ("namespaces", index), name)
    if before is not None and before.sha256 != spec.sha256 and not judge.allow_destructive:
        found = "changed, which would lock out whoever has the present secret"
        notes.note(("sha256",), found, f"{before.sha256}, or none to leave it, or {INSIST}")


def _namespaces(obj: SchemaObject) -> Iterator[Key]:
    assert isinstance(obj.spec, TokenSpec)
    for name in obj.spec.namespaces:
        if name != "*":
            yield "Namespace", DEFAULT_NAMESPACE, name


RULES: Final = {
    "Queue": KindRules(check=_check_queue, holds="its jobs"),
    "Schedule": KindRules(check=_check_schedule, recheck=_recheck_schedule, references=_target),
    "Exchange": KindRules(check=_check_exchange, recheck=_recheck_exchange, references=_bridged),
    "Endpoint": KindRules(check=_check_home),
    "Token": KindRules(check=_check_token, references=_namespaces),
}
