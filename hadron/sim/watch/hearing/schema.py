"""Changes of the schema as their leader judges them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hadron.metadata import driver
from hadron.metadata.judging import Key
from hadron.model.schema import SchemaObject
from hadron.sim.watch.known import Known, Wrappers


class HearsSchema:
    def __init__(self, known: Known) -> None:
        self._known = known

    def wrappers(self) -> Wrappers:
        """By what is wrapped: what hears of each function."""
        return [(driver, {"validate": self.judges, "validate_deletion": self.judges})]

    def judges(self, original: Any) -> Any:
        def judge(given: Sequence[Any], existing: Mapping[Key, SchemaObject], **named: Any) -> Any:
            self._known.judged.judges(existing)
            return original(given, existing, **named)

        return judge
