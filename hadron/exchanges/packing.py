"""Who gets what of one publication, put together once for all clients that get the same. Pure.

Records are grouped by their audience: the clients, with their subscriptions, that get them all. So
a batch of two types in turn costs a step for each record, and one for each client, where what they
subscribe to is equal; else a step for each record and kind of client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from hadron.exchanges.parcels import Layout, Parcel, Published
from hadron.exchanges.routes import Route

if TYPE_CHECKING:
    from hadron.exchanges.machine import Session, Subscription

Pieces: TypeAlias = list[tuple[int, int, int]]
"""Records with one audience: (batch, first, last), in order."""


class Packing:
    def __init__(self) -> None:
        self._batches: list[Published] = []
        self._lots: list[Pieces] = []
        self._of_audience: dict[int, Pieces] = {}
        self._of_member: dict[Subscription, Pieces] = {}
        self._given: dict[Session, list[tuple[int, tuple[int, ...]]]] = {}
        """To each client which lots, and for which of its subscriptions."""
        self._shared_bytes: dict[Session, int] = {}
        """Of batches with something for a client as a member of a group."""

    def begin(self, batch: Published) -> None:
        """What follows is of this one."""
        self._batches.append(batch)

    def add(self, route: Route, first: int, last: int) -> None:
        """Its clients get these records, all of them."""
        pieces = self._of_audience.get(route.audience)
        if pieces is None:
            pieces = self._of_audience[route.audience] = self._new_lot()
            number = len(self._lots) - 1
            for session, ids in route.clients:
                self._given.setdefault(session, []).append((number, ids))
        self._put(pieces, first, last)

    def give(self, member: Subscription, first: int, last: int) -> None:
        """A member of a group gets these, and nobody else of it."""
        pieces = self._of_member.get(member)
        session = member.session
        if pieces is None:
            pieces = self._of_member[member] = self._new_lot()
            self._given.setdefault(session, []).append((len(self._lots) - 1, (member.id,)))
        if not pieces or pieces[-1][0] != len(self._batches) - 1:
            self._shared_bytes[session] = self.size_with(session)
        self._put(pieces, first, last)

    def size_with(self, session: Session) -> int:
        """Bytes that a client is given in groups once it is given of this batch, too."""
        return self._shared_bytes.get(session, 0) + len(self._batches[-1].data)

    def _new_lot(self) -> Pieces:
        self._lots.append([])
        return self._lots[-1]

    def _put(self, pieces: Pieces, first: int, last: int) -> None:
        at = len(self._batches) - 1
        if pieces and pieces[-1][0] == at and pieces[-1][2] + 1 == first:
            pieces[-1] = at, pieces[-1][1], last
        else:
            pieces.append((at, first, last))

    def parcels(self) -> dict[Session, Parcel]:
        layouts: dict[tuple[tuple[int, int], ...], Layout] = {}
        parcels = {}
        for session, given in self._given.items():
            # Which ids are equal counts, not which they are: clients number their own.
            numbers: dict[tuple[int, ...], int] = {}
            key = tuple((lot, numbers.setdefault(ids, len(numbers))) for lot, ids in given)
            layout = layouts.get(key)
            if layout is None:
                layout = layouts[key] = self._layout(key)
            parcels[session] = Parcel(layout, tuple(numbers))
        return parcels

    def _layout(self, chosen: Sequence[tuple[int, int]]) -> Layout:
        runs = [(*piece, to) for lot, to in chosen for piece in self._lots[lot]]
        if len(chosen) > 1:
            # Each lot is in order already.
            runs = list(_melted(sorted(runs)))
        if len(self._batches) == 1:
            return Layout(self._batches, runs)
        places = {at: place for place, at in enumerate(dict.fromkeys(run[0] for run in runs))}
        return Layout(
            [self._batches[at] for at in places],
            [(places[at], first, last, to) for at, first, last, to in runs],
        )


def _melted(runs: Iterable[tuple[int, int, int, int]]) -> Iterator[tuple[int, int, int, int]]:
    """Runs that follow one another, and go to the same, are one."""
    known: tuple[int, int, int, int] | None = None
    for at, first, last, to in runs:
        if known is not None and known[0] == at and known[2] + 1 == first and known[3] == to:
            known = at, known[1], last, to
            continue
        if known is not None:
            yield known
        known = at, first, last, to
    if known is not None:
        yield known
