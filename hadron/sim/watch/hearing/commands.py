"""Commands on their way: submitted, logged, committed, told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from hadron.delivery.effects import Assignment
from hadron.delivery.ledger import Confirmation, LoggedLedger
from hadron.delivery.sessions import MemberSession
from hadron.model.batch import StampedBatch
from hadron.partition.controller import Controller
from hadron.partition.group_commit import GroupCommit, GroupCommitter
from hadron.partition.observers import Observers
from hadron.partition.submission import Submission
from hadron.partition.waiters import MAJORITY
from hadron.serving.visible import VisibleStreams
from hadron.sim.watch.answers import Told, for_others
from hadron.sim.watch.known import Known, Wrappers
from hadron.state.events import BatchAppended
from hadron.state.machine import Command, Event
from hadron.state.transactions.events import TransactionAborted, TransactionFinished


class HearsCommands:
    def __init__(self, known: Known) -> None:
        self._known = known
        self._lsns: dict[int, tuple[Event, int]] = {}

    def wrappers(self) -> Wrappers:
        """By what is wrapped: what hears of each function."""
        return [
            (
                Controller,
                {"submit": self.submits, "_on_persisted": self.writes, "_release": self.releases},
            ),
            (Observers, {"tell": self.tells}),
            (
                GroupCommitter,
                {
                    "_run": self.judges,
                    "_run_as_one": self.judges_together,
                    "prepare": self.prepares,
                },
            ),
            (VisibleStreams, {"__init__": self.makes_visible, "_advance": self.advances}),
            (MemberSession, {"deliver": self.delivers}),
            (LoggedLedger, {"acknowledge": self.acknowledges, "confirm": self.confirms}),
            (Confirmation, {"answer": self.confirmed}),
        ]

    def submits(self, original: Any) -> Any:
        def submit(
            controller: Controller,
            command: Command,
            body: bytes | memoryview = b"",
            *,
            acks: int = MAJORITY,
            done: Any,
            is_patient: bool = False,
        ) -> None:
            self._known.entries.submitted(controller, command)
            self._known.judged.submitted(command)
            told = Told(self._known.answers, controller, type(command).__name__, acks, done)
            original(controller, command, body, acks=acks, done=told, is_patient=is_patient)

        return submit

    def judges(self, original: Any) -> Any:
        def run(
            writer: GroupCommitter,
            connection: apsw.Connection,
            submission: Submission,
            *others: Any,
        ) -> None:
            original(writer, connection, submission, *others)
            self._judged(submission, writer._log.head.lsn)

        return run

    def judges_together(self, original: Any) -> Any:
        def run(
            writer: GroupCommitter,
            connection: apsw.Connection,
            together: Sequence[Submission],
            *others: Any,
        ) -> bool:
            is_logged: bool = original(writer, connection, together, *others)
            if is_logged:
                for submission in together:
                    self._judged(submission, writer._log.head.lsn)
            return is_logged

        return run

    def _judged(self, submission: Submission, head_lsn: int) -> None:
        if isinstance(submission.done, Told):
            submission.done.lsn = head_lsn
            submission.done.is_logged = submission.logged
        for event in submission.events:
            self._lsns[id(event)] = (event, submission.lsn)

    def prepares(self, original: Any) -> Any:
        def prepare(writer: GroupCommitter, *given: Any) -> GroupCommit:
            group: GroupCommit = original(writer, *given)
            view = self._known.by_part.get(writer)
            self._known.branches.prepared(group)
            if view is not None and view.controller is not None:
                self._known.entries.stamped(view, group, len(view.controller.quorum.members))
            return group

        return prepare

    def writes(self, original: Any) -> Any:
        def persisted(
            controller: Controller, group: GroupCommit | None, error: BaseException | None
        ) -> None:
            self._known.ballots.wrote(controller, group)
            view = self._known.by_part.get(controller)
            if view is not None and view.is_alive and error is None:
                self._known.histories.written(view.store.writer.connection)
            original(controller, group, error)

        return persisted

    def releases(self, original: Any) -> Any:
        def release(controller: Controller) -> None:
            self._known.ballots.releases(controller)
            self._known.branches.releases(controller)
            self._known.meanings.releases(controller)
            with for_others():
                original(controller)
            self._known.answers.released(controller)

        return release

    def tells(self, original: Any) -> Any:
        def tell(observers: Observers, events: Sequence[Event]) -> None:
            lsn = max(self._lsns.pop(id(event), (event, 0))[1] for event in events)
            if (leader := self._known.leaders.get(observers)) is not None:
                self._known.answers.shows(leader, lsn)
                for event in events:
                    if isinstance(event, TransactionAborted | TransactionFinished):
                        self._known.transactions.ended(leader, event.transaction)
            original(observers, events)

        return tell

    def makes_visible(self, original: Any) -> Any:
        def make(visible: VisibleStreams, *given: Any) -> None:
            original(visible, *given)
            self._known.answers.makes_visible(visible)
            self._known.records.makes_visible(visible)

        return make

    def advances(self, original: Any) -> Any:
        def advance(visible: VisibleStreams, event: BatchAppended) -> None:
            mark = self._known.ballots.marks.get((visible._replica_set, visible._ballot))
            if mark is not None:
                self._known.answers.moves(mark, event.stream_id, event.base_offset + event.count)
            end = event.base_offset + event.count
            self._known.awaited.shown((visible._replica_set, event.stream_id), end)
            original(visible, event)

        return advance

    def delivers(self, original: Any) -> Any:
        def deliver(session: MemberSession, given: Assignment, batch: StampedBatch) -> None:
            self._known.answers.delivered(session.driver, given.first, given.last, given.attempt)
            self._known.serving.delivered(session, given, batch)
            original(session, given, batch)

        return deliver

    def acknowledges(self, original: Any) -> Any:
        def acknowledge(ledger: LoggedLedger, ranges: Sequence[tuple[int, int]]) -> None:
            self._known.answers.acknowledged(ledger, ranges)
            self._known.serving.acknowledged(ledger, ranges)
            original(ledger, ranges)

        return acknowledge

    def confirms(self, original: Any) -> Any:
        def confirm(ledger: LoggedLedger, confirmation: Confirmation) -> None:
            self._known.answers.asked_to_confirm(ledger, confirmation)
            original(ledger, confirmation)

        return confirm

    def confirmed(self, original: Any) -> Any:
        def answer(confirmation: Confirmation, floor: int) -> None:
            self._known.answers.confirms(confirmation)
            original(confirmation, floor)

        return answer
