"""PROTOCOL D3: over a world's whole history an id of the schema, and an index, means one thing.

Whatever may become of the metadata set (it leads anew, it has lost its log's end and an operator
goes on with that, it is restored): what was committed there once, or adopted by any other set, has
been told to somebody, who keeps the id and sends by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hadron.model.errors import HadronError, NotFoundError
from hadron.model.schema import RegisteredSet, SchemaObject, Tombstone
from hadron.partition.controller import Controller
from hadron.sim.watch.ballots import Ballots
from hadron.sim.watch.views import Complaints, NodeView
from hadron.state.adoption import Adopted
from hadron.state.machine import Context
from hadron.state.schema import Deleted

_Thing = SchemaObject | Tombstone | RegisteredSet


class Meanings:
    """Every id and every index that somebody may have heard of."""

    def __init__(self, complaints: Complaints, ballots: Ballots) -> None:
        self._complaints = complaints
        self._ballots = ballots
        self._ids: dict[int, tuple[tuple[str, str, str], str]] = {}
        self._indexes: dict[int, tuple[_Thing, str]] = {}
        self._changes: dict[int, list[_Thing]] = {}
        """By id: what became of it, since somebody went on with an older schema at last."""
        self._is_older = False
        """Nodes may have, and tell once more, what the metadata set has lost."""
        self._waiting: dict[str, dict[int, list[_Thing]]] = {}
        """By node and entry: what its leader has made of the schema, and is not committed."""

    def applied(self, view: NodeView, context: Context, result: Any) -> None:
        """An entry has changed the schema of a node."""
        if isinstance(result, Adopted):
            # The metadata set has said it, so it was committed there.
            things: list[_Thing] = [*result.objects, *result.deleted, *result.replica_sets]
            for thing in things:
                self._tell(thing, f"{view.name} adopts")
        elif isinstance(result, Deleted):
            self._wait(view, context.lsn, list(result.deleted))
        elif isinstance(result, RegisteredSet):
            self._wait(view, context.lsn, [result])
        elif isinstance(result, tuple):
            self._wait(view, context.lsn, list(result))

    def _wait(self, view: NodeView, lsn: int, things: list[_Thing]) -> None:
        self._waiting.setdefault(view.name, {})[lsn] = things

    def opened(self, view: NodeView) -> None:
        """What a node had not committed may be gone; it applies what is left anew, or has it."""
        waiting = self._waiting.pop(view.name, {})
        if kept := {lsn: things for lsn, things in waiting.items() if _has(view, things)}:
            self._waiting[view.name] = kept

    def forget(self) -> None:
        """An older schema may be the one that there is: what was changed since was not."""
        self._changes.clear()
        self._is_older = True

    def shown(self, view: NodeView, objects: Iterable[Any], index: int) -> None:
        """A node answers with the schema as of `index`, whatever its role is."""
        for item in objects:
            for thing in self._changes.get(item.id, ()):
                if item.metadata_index < thing.metadata_index <= index:
                    what = "was deleted" if isinstance(thing, Tombstone) else "was changed"
                    self._complaints.add(
                        "D3 the schema is shown as of its index",
                        f"{view.name} shows {item.kind} {item.name!r} with id {item.id} as of "
                        f"index {index}, which {what} at {thing.metadata_index}",
                    )

    def lists(self, view: NodeView, request: Any, answer: Any) -> None:
        """A node answers which objects there are: all that it knows of, or a page of them."""
        listed = {item.id for item in answer.objects}
        last = max(listed, default=0) if answer.more else None
        after = request.after_id if request.HasField("after_id") else 0
        wanted = request.kind, request.namespace, request.name
        for object_id, changes in self._changes.items() if not self._is_older else ():
            known = [each for each in changes if each.metadata_index <= answer.metadata_index]
            latest = max(known, key=lambda each: each.metadata_index, default=None)
            if not isinstance(latest, SchemaObject) or object_id in listed or object_id <= after:
                continue
            named = latest.kind, latest.namespace, latest.name
            pairs = zip(wanted, named, strict=True)
            is_wanted = all(not want or want == name for want, name in pairs)
            if is_wanted and (last is None or object_id < last):
                self._complaints.add(
                    "D3 what exists is listed",
                    f"{view.name} lists objects as of index {answer.metadata_index}, and not "
                    f"{latest.kind} {latest.name!r} with id {object_id}, which is there since "
                    f"{latest.metadata_index}",
                )

    def refused(self, view: NodeView, request: Any, error: HadronError) -> None:
        """A node says of an id that there is nothing of that kind: it must have heard of all that
        the caller has."""
        seen = getattr(request, "metadata_index", 0)
        wanted = getattr(request, "stream_id", 0) or getattr(request, "pipeline_id", 0)
        if not isinstance(error, NotFoundError) or not wanted or not view.is_alive:
            return
        row = view.select("SELECT metadata_index FROM hadron_schema_index")
        known = row[0] if row is not None else 0
        found = view.select("SELECT 1 FROM hadron_schema_object WHERE id = ?", wanted)
        if known < seen and found is None:
            self._complaints.add(
                "D3 who is behind says so",
                f"{view.name} knows the schema at index {known}, and tells somebody who has seen "
                f"{seen}: {error.message}",
            )

    def releases(self, controller: Controller) -> None:
        """The watermark has moved."""
        mark = self._ballots.mark_of(controller)
        waiting = self._waiting.get(mark.view.name) if mark is not None else None
        if mark is None or not waiting or not mark.view.is_alive:
            return
        for lsn in [lsn for lsn in waiting if lsn <= mark.true_lsn]:
            for thing in waiting.pop(lsn):
                self._tell(thing, f"{mark.view.name} has committed at entry {lsn}")

    def _tell(self, thing: _Thing, who: str) -> None:
        index = thing.metadata_index
        if index > 0:
            known, first = self._indexes.setdefault(index, (thing, who))
            if known != thing:
                self._complaints.add(
                    "D3 an index means one thing",
                    f"{who} {thing} at index {index}, {first} {known}",
                )
        if not isinstance(thing, RegisteredSet):
            changes = self._changes.setdefault(thing.id, [])
            if thing not in changes:
                changes.append(thing)
            name = thing.kind, thing.namespace, thing.name
            called, first = self._ids.setdefault(thing.id, (name, who))
            if called != name:
                self._complaints.add(
                    "D3 an id means one thing",
                    f"{who} {'/'.join(name)} with id {thing.id}, {first} {'/'.join(called)} so",
                )


def _has(view: NodeView, things: Iterable[_Thing]) -> bool:
    """Whether a node's tables have these changes of the schema."""
    row = view.select("SELECT metadata_index FROM hadron_schema_index")
    index = row[0] if row is not None else 0
    return all(thing.metadata_index <= index and _is_so(view, thing) for thing in things)


def _is_so(view: NodeView, thing: _Thing) -> bool:
    if isinstance(thing, RegisteredSet):
        known = view.select(
            "SELECT uuid, epoch, metadata_index FROM hadron_replica_set WHERE name = ?", thing.name
        )
        return bool(known == (thing.uuid, thing.epoch, thing.metadata_index))
    found = view.select("SELECT metadata_index FROM hadron_schema_object WHERE id = ?", thing.id)
    if isinstance(thing, Tombstone):
        return found is None
    return found is not None and found[0] == thing.metadata_index
