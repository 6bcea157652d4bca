"""What can be said about one declared object without looking at any other.

Run twice: where documents are read, so that a user gets the line, and on the node that owns the
schema, because a client may send anything.
"""

from __future__ import annotations

from hadron.model.documents.names import check_named
from hadron.model.documents.problem import Notes, Problem
from hadron.model.ids import DEFAULT_NAMESPACE, NAME_FORM, is_valid_name
from hadron.model.kinds import KINDS
from hadron.model.limits import MAX_DESCRIPTION_LENGTH
from hadron.model.problems import Suggestions, shorten
from hadron.model.schema import SchemaObject


def check_object(obj: SchemaObject, suggestions: Suggestions | None = None) -> list[Problem]:
    """Every problem of `obj` on its own; none when it may be declared somewhere. `suggestions` are
    those of all that is judged with it."""
    notes = Notes(obj.label, suggestions)
    kind, spec = KINDS.get(obj.kind), obj.spec
    if kind is None or not isinstance(spec, kind.specs):
        notes.note(("kind",), f"unknown kind {shorten(obj.kind)}", f"one of {', '.join(KINDS)}")
        return notes.problems
    check_named(notes, ("name",), obj.name, is_valid_name, NAME_FORM)
    check_named(notes, ("namespace",), obj.namespace, is_valid_name, NAME_FORM)
    if len(spec.description) > MAX_DESCRIPTION_LENGTH:
        found = f"{len(spec.description)} characters"
        notes.note(("description",), found, f"at most {MAX_DESCRIPTION_LENGTH} characters")
    if kind.stands_in_none and obj.namespace != DEFAULT_NAMESPACE:
        found = f"{shorten(obj.namespace)} around a namespace"
        notes.note(("namespace",), found, "no namespace: a namespace stands in none")
    kind.check(notes, spec)
    return notes.problems
