"""PROTOCOL D3: over a world's whole history an id of the schema, and an index, means one thing.

Whatever may become of the metadata set (it leads anew, it has lost its log's end and an operator
goes on with that, it is restored): what was committed there once, or adopted by any other set, has
been told to somebody, who keeps the id and sends by it.
"""

from __future__ import annotations

from typing import Any

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
        self._waiting.pop(view.name, None)

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
            name = thing.kind, thing.namespace, thing.name
            called, first = self._ids.setdefault(thing.id, (name, who))
            if called != name:
                self._complaints.add(
                    "D3 an id means one thing",
                    f"{who} {'/'.join(name)} with id {thing.id}, {first} {'/'.join(called)} so",
                )
