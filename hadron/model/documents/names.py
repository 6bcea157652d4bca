"""Names inside declared objects: what each may look like, and how it is told when it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hadron.model.documents.problem import Notes
from hadron.model.ids import is_valid_replica_set_name
from hadron.model.problems import ValuePath, shorten

SET_NAME_FORM: Final = "a replica set's name such as aws.us-east-1/p0"


def check_named(
    notes: Notes, path: ValuePath, name: str, is_valid: Callable[[str], bool], form: str
) -> None:
    """Note a name that is missing or does not follow its rule."""
    if not name:
        notes.note(path, "missing", form)
    elif not is_valid(name):
        notes.note(path, f"{shorten(name)} is not a valid name", form)


def check_replica_set(notes: Notes, name: str) -> None:
    """Note an object's `replica_set` that is missing or cannot be one's name."""
    check_named(notes, ("replica_set",), name, is_valid_replica_set_name, SET_NAME_FORM)
