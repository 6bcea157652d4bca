"""A group's progress on its way into the log, or into memory for an ephemeral one.

Safety rule: members hear that an acknowledgement counts once it is committed, and attempts are
logged before the acknowledgements that came after them.

While no majority answers members go on, and what they say waits here: as ranges, which count as
unsettled (BOUNDS W2), so that a group delivers nothing new once they are too many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from hadron.delivery.port import DeliveryRange, MemberSink
from hadron.model.errors import HadronError, OverloadedError
from hadron.model.ranges import Range, RangeSet
from hadron.partition.controller import Controller
from hadron.state.groups.attempts import Attempts
from hadron.state.groups.endings import EndDeliveries
from hadron.state.groups.progress import AckRecords

_RANGES_PER_ENTRY: Final = 500
"""Ranges that one command ends: about 5 ms of the writer's time when none of them touch."""

_TIDY_BEYOND: Final = 4 * _RANGES_PER_ENTRY
"""Attempts that wait for the log: with so many more than there were, those are dropped that later
ones replace."""

_MAX_CONFIRMATIONS: Final = 20_000
"""Of a group. A client waits for one at a time."""

T = TypeVar("T")

OnCommitted = Callable[[Sequence[Range], int], None]
"""Told what has become durable, and the group's floor then."""


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Who wants to hear that everything so far is committed."""

    sink: MemberSink
    number: int
    refused: list[DeliveryRange]

    def answer(self, floor: int) -> None:
        self.sink.confirm(self.number, self.refused, floor)


class Ledger(Protocol):
    """Where a group's progress goes."""

    @property
    def floor(self) -> int: ...

    @property
    def is_idle(self) -> bool:
        """Nothing is on its way."""
        ...

    @property
    def acknowledged_above(self) -> int:
        """Records above the floor; 0 where only the tables know."""
        ...

    @property
    def unlogged(self) -> int:
        """Pieces that were accepted and are in no entry yet."""
        ...

    def acknowledge(self, ranges: Sequence[Range]) -> None:
        """To be made durable with the next `flush`."""
        ...

    def confirm(self, confirmation: Confirmation) -> None:
        """To be answered once everything up to here is durable."""
        ...

    def record_attempts(self, ended: Sequence[Attempts]) -> None: ...

    def raise_floor(self, floor: int) -> None:
        """Progress was made without this ledger: by a dead letter, or by retention."""
        ...

    def flush(self) -> None: ...

    def close(self) -> None:
        """Log nothing more: another ledger keeps the group's progress from here on. What is on its
        way into the log may still arrive there."""
        ...


class _Unlogged:
    """What members have said, on its way into the log, and who wants to hear that it counts."""

    def __init__(self) -> None:
        self.acknowledged = RangeSet()
        self.ended: list[Attempts] = []
        self.confirmations: list[Confirmation] = []
        self._tidy_at = _TIDY_BEYOND

    def __bool__(self) -> bool:
        return bool(self.acknowledged or self.ended)

    @property
    def pieces(self) -> int:
        return self.acknowledged.fragments + len(self.ended)

    def end(self, ended: Sequence[Attempts]) -> None:
        self.ended.extend(ended)
        if len(self.ended) > self._tidy_at:
            # No majority is there, and members give the same records back time after time.
            self.ended = _latest(self.ended)
            self._tidy_at = 2 * len(self.ended) + _TIDY_BEYOND

    def take(self, most: int) -> tuple[list[Attempts], list[Range]]:
        """So many pieces of it, attempts first."""
        ended, self.ended = _take(_melt_attempts(self.ended), most)
        ranges = self.acknowledged.take(most - len(ended)) if not self.ended else []
        return ended, ranges


class LoggedLedger:
    """Of a durable group. One command at a time: what ends meanwhile, one way or the other, goes
    into the next one. So a group costs an entry per round, however fast its members are.

    Who asks for a confirmation waits for what was said before: what is said once its turn has come
    goes behind that, however much of it there is.
    """

    def __init__(
        self,
        controller: Controller,
        group_id: int,
        floor: int,
        on_committed: OnCommitted,
        on_failure: Callable[[HadronError], None],
        *,
        is_awaited: bool = False,
    ) -> None:
        """`is_awaited`: what follows waits until acknowledgements are committed."""
        self._is_awaited = is_awaited
        self.floor = floor
        self._controller = controller
        self._group_id = group_id
        self._on_committed = on_committed
        self._on_failure = on_failure
        self._first = _Unlogged()
        self._behind = _Unlogged()
        """What is said while somebody waits to hear of the first."""
        self._logging = False
        self._closed = False

    acknowledged_above = 0

    @property
    def is_idle(self) -> bool:
        return not (self._logging or self._first or self._behind)

    @property
    def unlogged(self) -> int:
        return self._first.pieces + self._behind.pieces

    @property
    def _open(self) -> _Unlogged:
        """What is said now belongs to it."""
        return self._behind if self._first.confirmations else self._first

    def acknowledge(self, ranges: Sequence[Range]) -> None:
        acknowledged = self._open.acknowledged
        for first, last in ranges:
            acknowledged.add(first, last)

    def confirm(self, confirmation: Confirmation) -> None:
        """Raises `OverloadedError` when too many wait for theirs."""
        waiting = len(self._first.confirmations) + len(self._behind.confirmations)
        if waiting >= _MAX_CONFIRMATIONS:
            raise OverloadedError(
                f"{waiting} confirmations wait until what is acknowledged is on a majority",
                "ask for one at a time; see `hadron status` for who is away",
            )
        (self._behind if self._behind else self._first).confirmations.append(confirmation)

    def raise_floor(self, floor: int) -> None:
        self.floor = max(self.floor, floor)

    def record_attempts(self, ended: Sequence[Attempts]) -> None:
        self._open.end(ended)
        self.flush()

    def close(self) -> None:
        self._closed = True

    def flush(self) -> None:
        if self._closed:
            return
        if self._logging:
            if self._first.confirmations:
                self._controller.hurry()
            return
        ended: list[Attempts] = []
        acknowledged = RangeSet()
        confirmations: list[Confirmation] = []
        while not ended:
            ended, ranges = self._first.take(_RANGES_PER_ENTRY - acknowledged.fragments)
            for first, last in ranges:
                acknowledged.add(first, last)
            if self._first:
                break
            confirmations += self._first.confirmations
            if not self._behind and not self._behind.confirmations:
                self._first.confirmations = []
                break
            self._first, self._behind = self._behind, _Unlogged()
        ranges = acknowledged.ranges()
        if ended or ranges:
            self._log(ended, ranges, confirmations)
        else:
            self._answer(confirmations)

    def _log(
        self, ended: list[Attempts], ranges: list[Range], confirmations: list[Confirmation]
    ) -> None:
        self._logging = True
        self._controller.submit(
            EndDeliveries(self._group_id, tuple(ended), tuple(ranges))
            if ended
            else AckRecords(self._group_id, tuple(ranges)),
            done=partial(self._logged, ranges, confirmations),
            is_patient=not (confirmations or self._is_awaited),
        )

    def _logged(
        self,
        ranges: list[Range],
        confirmations: list[Confirmation],
        floor: Any,
        error: HadronError | None,
    ) -> None:
        self._logging = False
        if self._closed:
            return
        if error is not None:
            self._on_failure(error)
            return
        self.raise_floor(floor)
        self._answer(confirmations)
        self.flush()
        self._on_committed(ranges, self.floor)

    def _answer(self, confirmations: list[Confirmation]) -> None:
        for confirmation in confirmations:
            confirmation.answer(self.floor)


class MemoryLedger:
    """Of an ephemeral group: the leader's memory is all there is."""

    def __init__(self, floor: int, on_committed: OnCommitted) -> None:
        self.floor = floor
        self._on_committed = on_committed
        self._above = RangeSet()
        self._fresh: list[Range] = []
        self._confirmations: list[Confirmation] = []

    is_idle = True
    unlogged = 0

    @property
    def acknowledged_above(self) -> int:
        return len(self._above)

    def acknowledge(self, ranges: Sequence[Range]) -> None:
        for first, last in ranges:
            self._above.add(first, last)
            self._fresh.append((first, last))
        self.raise_floor(self.floor)

    def confirm(self, confirmation: Confirmation) -> None:
        self._confirmations.append(confirmation)

    def raise_floor(self, floor: int) -> None:
        self.floor = self._above.next_gap(max(self.floor, floor))
        self._above.remove_below(self.floor)

    def record_attempts(self, ended: Sequence[Attempts]) -> None:
        """The machine knows them for as long as there is anything to know."""

    def close(self) -> None:
        """Nothing of it is ever logged."""

    def flush(self) -> None:
        fresh, self._fresh = self._fresh, []
        confirmations, self._confirmations = self._confirmations, []
        for confirmation in confirmations:
            confirmation.answer(self.floor)
        if fresh:
            self._on_committed(fresh, self.floor)


def _take(items: list[T], count: int) -> tuple[list[T], list[T]]:
    """The first ones, and the others."""
    return (items, []) if len(items) <= count else (items[:count], items[count:])


def _latest(ended: list[Attempts]) -> list[Attempts]:
    """Of each offset the attempt that ended last, ascending."""
    seen, kept = RangeSet(), list[Attempts]()
    for first, last, number in reversed(ended):
        kept += [(a, b, number) for a, b in seen.gaps(first, last)]
        seen.add(first, last)
    return sorted(kept)


def _melt_attempts(ended: list[Attempts]) -> list[Attempts]:
    """Join those that follow each other: what was delivered together mostly ends one record after
    the other. They stay in the order in which they ended, for a later number replaces one."""
    if len(ended) < 2:
        return ended
    melted: list[Attempts] = []
    for first, last, number in ended:
        if melted and melted[-1][1:] == (first - 1, number):
            melted[-1] = (melted[-1][0], last, number)
        else:
            melted.append((first, last, number))
    return melted
