"""What a planted bug is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hadron.sim.mutants.seams import Patch


@dataclass(frozen=True)
class Mutant:
    """One bug.

    Attributes:
        name: what it is called in reports.
        bug: what goes wrong, in a sentence.
        patches: how it is planted.
        scenarios: directed ones whose history it breaks.
    """

    name: str
    bug: str
    patches: tuple[Patch, ...]
    scenarios: tuple[str, ...] = ()


MUTANTS: Final[dict[str, Mutant]] = {}
"""Every planted bug, by name."""


def plant(name: str, bug: str, *patches: Patch, scenarios: tuple[str, ...] = ()) -> None:
    """Put a bug on the list."""
    assert name not in MUTANTS, name
    MUTANTS[name] = Mutant(name, bug, patches, scenarios)
