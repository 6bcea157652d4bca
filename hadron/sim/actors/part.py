"""What a random world may have beside its stream and its groups."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from hadron.model.schema import SchemaObject
from hadron.sim.actors.clients import Actor


class Part(ABC):
    """Objects, and those who use them until the end."""

    def objects(self) -> Sequence[SchemaObject]:
        """Declared before anybody is at work."""
        return ()

    @abstractmethod
    def actors(self) -> Iterable[Actor]: ...

    @abstractmethod
    async def drain(self) -> None:
        """Once all is healed: return when nothing is owed any more."""

    def complaints(self) -> Sequence[str]:
        """The rules that were broken, as far as no checker of the history sees it."""
        return ()
