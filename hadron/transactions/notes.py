"""That participants have finished: gathered for a moment, to be one entry of the driver's log, and
one message to each of them. Pure.

Nobody waits for it, and an entry for each would cost as much as what people wait for. Safety rule:
participants are told to forget only what is noted in the log; what was gathered and is not logged
when a leadership ends, the next one has finished once more, and is answered the same.
"""

from __future__ import annotations

from collections.abc import Iterable

from hadron.model.transactions import Note, TransactionId
from hadron.transactions.effects import LogFinished
from hadron.transactions.limits import MAX_NOTED_RESULTS, MAX_NOTES, Limits


class Notes:
    """Of one leadership."""

    def __init__(self, limits: Limits) -> None:
        self.due: float | None = None
        """When they are to be logged."""
        self._limits = limits
        self._notes: list[Note] = []
        self._results = 0

    def add(self, note: Note, now: float, *, at_once: bool) -> None:
        self._notes.append(note)
        self._results += len(note.results)
        is_full = len(self._notes) >= MAX_NOTES or self._results >= MAX_NOTED_RESULTS
        if at_once or is_full:
            self.due = now
        elif self.due is None:
            self.due = now + self._limits.note_s

    def take(self, now: float) -> Iterable[LogFinished]:
        """What is to be logged now."""
        if self.due is None or now < self.due:
            return ()
        notes, self._notes = tuple(self._notes), []
        self.due, self._results = None, 0
        return (LogFinished(notes),)


def by_participant(notes: Iterable[Note]) -> dict[str, tuple[TransactionId, ...]]:
    found: dict[str, list[TransactionId]] = {}
    for each in notes:
        found.setdefault(each.participant, []).append(each.transaction)
    return {name: tuple(transactions) for name, transactions in found.items()}
