"""Which partition a record goes to. Pure.

A record with a key always goes to partition `xxh3_64(key) % number of partitions`, in the order
in which the stream declares them (`hadron.model.batch.key_hash`, text as UTF-8): equal keys keep
their order, also over several producers. Records without a key go round robin, a batch at a time:
few large batches cost less than many small ones ("sticky" partitioning, Kafka's KIP-480).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from hadron.model.batch import key_hash

T = TypeVar("T")


class Partitioner(Generic[T]):
    """Chooses among `choices`, one per partition in declared order."""

    def __init__(self, choices: Sequence[T], first: int = 0) -> None:
        self.choices = choices
        self._current = first % len(choices)

    def choose(self, key: bytes | str | None) -> T:
        """The place for a record with this key."""
        if key is None:
            return self.choices[self._current]
        data = key.encode() if isinstance(key, str) else bytes(key)
        return self.choices[key_hash(data) % len(self.choices)]

    def advance(self) -> None:
        """A batch of records without keys is complete: the next one goes elsewhere."""
        self._current = (self._current + 1) % len(self.choices)
