"""What a kind of objects is to whoever reads and checks them; `hadron.model.kinds` has all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hadron.model.documents.problem import Notes
from hadron.model.schema import Spec


def _has_no_more_rules(_notes: Notes, _spec: object) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """
    Attributes:
        spec: what one declares.
        modes: what else one may declare, each by what its document's `mode` says; `spec` is among
            them, under its own. None where documents have no such key.
        check: notes what is wrong with a specification, by itself.
        stands_in_none: its objects have no namespace around them.
        mutual: the key of a list whose items call each other by name, or "".
        missing: for a kind that is stored, and does nothing in this version: what that means to who
            declares one.
    """

    name: str
    spec: type[Spec]
    modes: Mapping[str, type[Spec]] = field(default_factory=dict)
    check: Callable[[Notes, Any], None] = _has_no_more_rules
    stands_in_none: bool = False
    mutual: str = ""
    missing: str = ""

    @property
    def specs(self) -> tuple[type[Spec], ...]:
        return tuple(self.modes.values()) or (self.spec,)
