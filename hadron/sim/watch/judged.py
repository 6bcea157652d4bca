"""CLUSTER R8: a change of the schema is logged on the schema that it was judged against.

What became of it shows nothing of this while nobody else has changed what it refers to: here it is
held against all that there is when it is logged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final

from hadron.metadata.judging import Key
from hadron.model.schema import SchemaObject
from hadron.sim.watch.views import Complaints
from hadron.state.machine import Command, Context
from hadron.state.schema import ApplySchema, DeleteObjects

CHANGES: Final = (ApplySchema, DeleteObjects)

_OBJECTS: Final = "SELECT kind, namespace, name, id, metadata_index FROM hadron_schema_object"

_Standing = Mapping[Key, SchemaObject]

_AGAINST: ContextVar[_Standing | None] = ContextVar("against", default=None)
"""What this task has judged a change against, and not logged yet."""


class Judged:
    """Every change, where its leader logs it."""

    def __init__(self, complaints: Complaints) -> None:
        self._complaints = complaints
        self._asked: dict[int, tuple[Command, _Standing]] = {}

    @staticmethod
    def judges(existing: _Standing) -> None:
        """This task judges a change against what exists."""
        _AGAINST.set(existing)

    def submitted(self, command: Command) -> None:
        """This task has a change logged."""
        if isinstance(command, CHANGES) and (existing := _AGAINST.get()) is not None:
            self._asked[id(command)] = command, existing
            _AGAINST.set(None)

    def applied(
        self, apply: Callable[[Context, Command], Any], context: Context, command: Command
    ) -> Any:
        """Apply a change. A replica decodes its own: only who has judged it has this very one."""
        asked = self._asked.pop(id(command), None)
        if asked is None or asked[0] is not command:
            return apply(context, command)
        rows: Any = context.db.execute(_OBJECTS).fetchall()
        result = apply(context, command)
        there = {tuple(key): (object_id, index) for *key, object_id, index in rows}
        against = {key: (item.id, item.metadata_index) for key, item in asked[1].items() if item.id}
        if there != against:
            different = sorted(dict(there.items() ^ against.items()))
            self._complaints.add(
                "D3 a change is logged on the schema that it was judged against",
                f"{type(command).__name__} at entry {context.lsn} was judged against another one, "
                f"in which {different} are others",
            )
        return result
