"""Which partition a record goes to. Pure.

A record with a key goes to partition `xxh3_64(key) % number of partitions`, in the order in which
the stream declares them (`hadron.model.batch.key_hash`; text as UTF-8; XXH3 with 64 bits and seed
0, so that a program in any language finds the same one): equal keys of all producers meet there,
those of one keep their order. It holds for as long as no partition is added; then keys are spread
anew.
Records without a key go round robin, a batch at a time: few large batches cost less than many small
ones ("sticky" partitioning, Kafka's KIP-480). Batches differ: who has had more than its share of
records is passed over. *(A producer sends what comes first alone, and what gathers meanwhile
together: one record here, 199 there, in turn.)* So is a partition that is away, and what it has
missed is not made up for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from hadron.model.batch import bytes_of, key_hash
from hadron.model.errors import NotFoundError
from hadron.model.replica_sets import in_region

PARTITIONERS: Final = ("key", "round_robin")
"""By the hash of the key, and round robin for records without one; or round robin for all."""


class Place(Protocol):
    """Somewhere to send records to."""

    @property
    def is_away(self) -> bool: ...


T = TypeVar("T", bound=Place)


class Partitioner(Generic[T]):
    """Chooses a place per partition, in declared order.

    Args:
        keyed: where records with a key go.
        free: where the others go, in the same order; may be the same places.
        first: which place the round begins with.
        by_key: whether keys matter.

    Attributes:
        taken: records without keys that went where they go since that is so; who sends them there
            counts.
    """

    def __init__(
        self, keyed: Sequence[T], free: Sequence[T], first: int = 0, *, by_key: bool = True
    ) -> None:
        self._keyed = keyed
        self._free = free
        self._current = first % len(free)
        self._by_key = by_key
        self.taken = 0
        self._given = [0] * len(free)
        """Records without a key that each place has had, or is taken to have had."""
        self._total = 0

    def choose(self, key: bytes | str | None) -> T:
        """The place for a record with this key; an away one only when all of its kind are."""
        if key is None or not self._by_key:
            place = self._free[self._current]
            if place.is_away:
                self._settle()
                self._current = self._next_up(self._free, self._current)
                place = self._free[self._current]
            return place
        index = key_hash(bytes_of(key)) % len(self._keyed)
        place = self._keyed[index]
        return self._keyed[self._next_up(self._keyed, index)] if place.is_away else place

    def advance(self) -> None:
        """A batch of records without keys is complete: the next one goes to the next place that has
        not had more than its share of them."""
        count, current = len(self._free), self._current
        self._settle()
        for step in range(1, count + 1):
            index = (current + step) % count
            missing = self._total // count - self._given[index]
            if self._free[index].is_away:
                self._give(index, max(0, missing))
            elif missing >= 0:
                self._current = index
                return
        self.skip()

    def skip(self) -> None:
        """There is no room: what comes next goes elsewhere."""
        self._settle()
        self._current = (self._current + 1) % len(self._free)

    def extend(self, keyed: Sequence[T], free: Sequence[T]) -> None:
        """The stream has more partitions now; earlier ones keep their positions."""
        share = self._total // len(self._given)
        self._keyed, self._free = keyed, free
        for index in range(len(self._given), len(free)):
            self._given.append(0)
            self._give(index, share)

    def _settle(self) -> None:
        self._give(self._current, self.taken)
        self.taken = 0

    def _give(self, index: int, records: int) -> None:
        self._given[index] += records
        self._total += records

    @staticmethod
    def _next_up(places: Sequence[T], index: int) -> int:
        for step in range(1, len(places)):
            other = (index + step) % len(places)
            if not places[other].is_away:
                return other
        return index


def partitions_in(partitions: Iterable[str], region: str, describe: Callable[[], str]) -> list[str]:
    """Those that lie in `region`. Raises `NotFoundError` when there is none, naming the stream by
    `describe`."""
    names = list(partitions)
    chosen = [name for name in names if in_region(name, region)]
    if not chosen:
        raise NotFoundError(
            f"{describe()} has no partition in the region {region!r}",
            f"it has {', '.join(names)}; a region is the beginning of such names up to a / or .",
        )
    return chosen
