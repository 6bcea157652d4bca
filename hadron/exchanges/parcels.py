"""What is published, and what of it a client is told: batches, and which records of them are for
which of its subscriptions. Pure; the bytes of a batch are never looked at here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

RUN_BYTES: Final = 64
"""What a run counts beside its ids, in memory and on the wire."""

ID_BYTES: Final = 8

MESSAGE_BYTES: Final = 1 << 20
"""Of the runs that one message has: well below the limit of a frame."""


class Published(NamedTuple):
    """A record batch.

    Attributes:
        topics: (topic, first, last) of runs of records, by their index, in order; a record that is
            in none has no topic.
        template, stream, partition: of a bridged one (`model.topics.expand`).
    """

    data: bytes | memoryview
    topics: Sequence[tuple[str, int, int]]
    template: str = ""
    stream: str = ""
    partition: str = ""


class Run(NamedTuple):
    """Records `first` to `last` of a parcel's batch go to these subscriptions of the client."""

    batch: int
    first: int
    last: int
    ids: tuple[int, ...]

    @property
    def messages(self) -> int:
        return self.last - self.first + 1


@dataclass(slots=True)
class Parcel:
    """What one publication is to one client."""

    batches: list[Published]
    runs: list[Run]
    size: int = 0

    def add(self, batch: Published, first: int, last: int, ids: tuple[int, ...]) -> None:
        """`ids` that are the same object are taken for the same, others are not looked at."""
        if not self.batches or self.batches[-1] is not batch:
            self.batches.append(batch)
            self.size += len(batch.data)
        index = len(self.batches) - 1
        if self.runs:
            run = self.runs[-1]
            if run.ids is ids and run.batch == index and run.last + 1 == first:
                self.runs[-1] = Run(index, run.first, last, ids)
                return
        self.runs.append(Run(index, first, last, ids))
        self.size += RUN_BYTES + ID_BYTES * len(ids)

    def keep(self) -> None:
        """It has to wait: let it hold its own bytes, and not all that came in the same frame."""
        self.batches = [
            each._replace(data=bytes(each.data), topics=())
            if isinstance(each.data, memoryview)
            else each._replace(topics=())
            for each in self.batches
        ]

    def without(self, gone: Mapping[int, object], has: Mapping[int, object]) -> Parcel:
        """The same for the subscriptions that are left; `gone` were ended since it was made."""
        if gone.keys().isdisjoint(each for run in self.runs for each in run.ids):
            return self
        runs = []
        for run in self.runs:
            ids = tuple(each for each in run.ids if each in has)
            if ids:
                runs.append(run._replace(ids=ids))
        return Parcel(self.batches, runs, self.size)


def parts_of(parcel: Parcel, max_run_bytes: int = MESSAGE_BYTES) -> Iterator[Parcel]:
    """The same in parcels of which each is one message, whatever runs it has; mostly itself."""
    total = parcel.size - sum(len(each.data) for each in parcel.batches)
    if total <= max_run_bytes:
        yield parcel
        return
    part = Parcel([], [])
    held = 0
    for run in parcel.runs:
        size = RUN_BYTES + ID_BYTES * len(run.ids)
        if held and held + size > max_run_bytes:
            yield part
            part, held = Parcel([], []), 0
        part.add(parcel.batches[run.batch], run.first, run.last, run.ids)
        held += size
    yield part


class Gaps(NamedTuple):
    """Messages that subscriptions of a client have missed before whatever follows, by id."""

    messages: dict[int, int]

    @property
    def size(self) -> int:
        return 2 * ID_BYTES * len(self.messages)
