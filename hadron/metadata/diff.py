"""What an apply would change, and how that is shown to the person who asks for it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from hadron.metadata.judging import Key, key_of
from hadron.model.documents.problem import Problem
from hadron.model.documents.rendering import to_yaml
from hadron.model.kinds import spec_from_json
from hadron.model.schema import SchemaObject, Spec, Tombstone, spec_to_json

Action = Literal["created", "changed", "unchanged"]

_CONTEXT_LINES: Final = 3
_LOOK: Final = "look at what others have changed, and apply again"


@dataclass(frozen=True, slots=True)
class Change:
    """What happens to one declared object."""

    action: Action
    before: SchemaObject | None
    after: SchemaObject
    """As declared, with the id and index of `before`; both are 0 when it is created."""


class ShownChange(Protocol):
    """What `render_diff` needs of a change: this room's `Change`, or a client's."""

    @property
    def action(self) -> str: ...

    @property
    def before(self) -> SchemaObject | None: ...

    @property
    def after(self) -> SchemaObject | None: ...


def plan(objects: Iterable[SchemaObject], existing: Mapping[Key, SchemaObject]) -> list[Change]:
    """One change per declared object, in order; `objects` were validated before.

    Specifications are compared as they are read back from tables, so a repeated apply changes
    nothing, and neither does a default that is written out.
    """
    return [_plan_one(obj, existing.get(key_of(obj))) for obj in objects]


def overtaken(
    changes: Iterable[Change], since: int, gone_since: Iterable[Tombstone], forgotten_index: int
) -> Iterator[Problem]:
    """What was changed or deleted after the schema's index `since`, where this was asked for, and
    what may have been: deletions up to `forgotten_index` are not all in `gone_since`. Whoever asks
    again, because the answer was lost, finds what it wanted, or that others have gone on."""
    gone = {key_of(each): each for each in gone_since}
    for change in changes:
        if change.action == "unchanged":
            continue
        before, after = change.before, change.after
        index, how = 0, ""
        if before is not None and before.metadata_index > since:
            index, how = before.metadata_index, "made" if before.id > since else "changed"
        elif before is None and key_of(after) in gone:
            index, how = gone[key_of(after)].metadata_index, "deleted"
        if index:
            found = f"it was {how} at index {index}, after this was asked for at {since}"
        elif before is None and since < forgotten_index:
            found = (
                f"it may have been deleted since this was asked for at index {since}: what was "
                f"deleted up to {forgotten_index} is not remembered"
            )
        else:
            continue
        yield Problem(after.label, (), found, hint=_LOOK)


def render_diff(changes: Iterable[ShownChange]) -> str:
    """A unified diff of the objects' documents, as `kubectl diff` shows it; "" for no change.

    Plain text that ends in a newline; colours are up to whoever prints it.
    """
    return "".join(_render_one(change) for change in changes if change.action != "unchanged")


def _plan_one(obj: SchemaObject, before: SchemaObject | None) -> Change:
    if before is None:
        return Change("created", None, obj)
    if _as_stored(before) == _as_stored(obj):
        return Change("unchanged", before, before)
    after = SchemaObject(
        kind=obj.kind,
        name=obj.name,
        namespace=obj.namespace,
        spec=obj.spec,
        id=before.id,
        metadata_index=before.metadata_index,
    )
    return Change("changed", before, after)


def _as_stored(obj: SchemaObject) -> Spec:
    """Read back: JSON alone may or may not have a default that somebody has written out."""
    return spec_from_json(obj.kind, spec_to_json(obj.spec))


def _render_one(change: ShownChange) -> str:
    before, after = change.before, change.after
    lines = difflib.unified_diff(
        to_yaml(before).splitlines() if before else [],
        to_yaml(after).splitlines() if after else [],
        f"{before.label} (as it is)" if before else "(nothing)",
        f"{after.label} (as declared)" if after else "(nothing)",
        n=_CONTEXT_LINES,
        lineterm="",
    )
    return "".join(f"{line}\n" for line in lines)
