"""What is published, and what of it a client is told: batches, and which records of them are for
which of its subscriptions. Pure; the bytes of a batch are never looked at here."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

RUN_BYTES: Final = 16
"""What a run takes beside the ids, in memory and on the wire."""

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

    @property
    def said_bytes(self) -> int:
        """Beside its data and its topics: of bytes that a character has, `MESSAGE_BYTES` leaves
        room for the most."""
        return len(self.template) + len(self.stream) + len(self.partition)


class Run(NamedTuple):
    """Records `first` to `last` of a parcel's batch go to these subscriptions of the client."""

    batch: int
    first: int
    last: int
    ids: tuple[int, ...]

    @property
    def messages(self) -> int:
        return self.last - self.first + 1


class Layout:
    """Which records of which batches are told apart. One is made for all clients whose
    subscriptions match the same of a publication: a batch of many types has as many runs as
    records.

    Attributes:
        at, firsts, lasts, to: a column of each: of a run its batch, its first and last record, by
            their index, and the number of those who get it.
        counts: of messages, for each number.
        said_bytes: beside the batches, but for who gets them.
        form: whoever sends it keeps its own form of it here.
    """

    __slots__ = ("at", "batches", "counts", "firsts", "form", "lasts", "said_bytes", "to")

    def __init__(self, batches: list[Published], runs: Sequence[tuple[int, int, int, int]]) -> None:
        """`runs`: (batch, first, last, number) of each, in order."""
        self.batches = batches
        self.at: Sequence[int]
        self.firsts: Sequence[int]
        self.lasts: Sequence[int]
        self.to: Sequence[int]
        self.at, self.firsts, self.lasts, self.to = zip(*runs, strict=True)
        self.counts = [0] * (1 + max(self.to))
        for _, first, last, to in runs:
            self.counts[to] += last - first + 1
        self.said_bytes = RUN_BYTES * len(runs) + sum(each.said_bytes for each in batches)
        self.form: Any = None

    @property
    def data_bytes(self) -> int:
        return sum(len(each.data) for each in self.batches)

    def keep(self) -> None:
        """It has to wait: let it hold its own bytes, and not all that came in the same frame."""
        self.at, self.firsts = array("I", self.at), array("I", self.firsts)
        self.lasts, self.to = array("I", self.lasts), array("I", self.to)
        self.batches = [
            each._replace(data=bytes(each.data), topics=())
            if isinstance(each.data, memoryview)
            else each._replace(topics=())
            for each in self.batches
        ]


class Parcel:
    """What one publication is to one client.

    Attributes:
        recipients: ids of its subscriptions, by the numbers of the layout.
        size: what it counts while it waits; 0 before.
    """

    __slots__ = ("layout", "recipients", "size")

    def __init__(
        self, layout: Layout, recipients: Sequence[tuple[int, ...]], size: int = 0
    ) -> None:
        self.layout = layout
        self.recipients = recipients
        self.size = size

    @property
    def said_bytes(self) -> int:
        """Beside the batches."""
        return self.layout.said_bytes + ID_BYTES * sum(map(len, self.recipients))

    @property
    def runs(self) -> Iterator[Run]:
        layout = self.layout
        for at, first, last, to in zip(
            layout.at, layout.firsts, layout.lasts, layout.to, strict=True
        ):
            yield Run(at, first, last, self.recipients[to])

    def messages(self) -> Iterator[tuple[tuple[int, ...], int]]:
        """Of some subscriptions, so many for each."""
        return zip(self.recipients, self.layout.counts, strict=True)

    def without(self, gone: Mapping[int, object], has: Mapping[int, object]) -> Parcel:
        """The same for the subscriptions that are left; `gone` were ended since it was made."""
        if gone.keys().isdisjoint(each for ids in self.recipients for each in ids):
            return self
        left = [tuple(each for each in ids if each in has) for ids in self.recipients]
        return Parcel(self.layout, left, self.size)


def parts_of(parcel: Parcel, max_said_bytes: int = MESSAGE_BYTES) -> Iterator[Parcel]:
    """The same in parcels of which each is one message, whatever runs it has; mostly itself."""
    if parcel.said_bytes <= max_said_bytes:
        yield parcel
        return
    batches = parcel.layout.batches
    some: list[Run] = []
    known: set[tuple[int, ...]] = set()
    held = 0

    def size_of(run: Run) -> int:
        ids = 0 if run.ids in known else ID_BYTES * len(run.ids)
        # Runs are in order: a batch is said with the first of its own.
        is_said = some and some[-1].batch == run.batch
        return RUN_BYTES + ids + (0 if is_said else batches[run.batch].said_bytes)

    for run in parcel.runs:
        if some and held + size_of(run) > max_said_bytes:
            yield parcel_of(batches, some)
            some, held = [], 0
            known.clear()
        held += size_of(run)
        some.append(run)
        known.add(run.ids)
    yield parcel_of(batches, some)


def parcel_of(batches: Sequence[Published], runs: Sequence[Run]) -> Parcel:
    """With those of the batches that the runs are of."""
    places: dict[int, int] = {}
    numbers: dict[tuple[int, ...], int] = {}
    columns = [
        (
            places.setdefault(run.batch, len(places)),
            run.first,
            run.last,
            numbers.setdefault(run.ids, len(numbers)),
        )
        for run in runs
    ]
    return Parcel(Layout([batches[each] for each in places], columns), tuple(numbers))


class Gaps(NamedTuple):
    """Messages that subscriptions of a client have missed before whatever follows, by id."""

    messages: dict[int, int]

    @property
    def size(self) -> int:
        return 2 * ID_BYTES * len(self.messages)
