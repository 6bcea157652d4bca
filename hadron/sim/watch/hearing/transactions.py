"""Transactions: what leaders log of them, and what they say to clients and to each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import apsw

from hadron.delivery.driver import GroupDriver
from hadron.delivery.effects import Assignment
from hadron.delivery.groups import Groups
from hadron.delivery.sessions import MemberSession
from hadron.model.batch import StampedBatch
from hadron.model.errors import HadronError
from hadron.model.transactions import DELIVERIES, Lock, numbered
from hadron.node.leader_links import LeaderLinks
from hadron.partition.controller import Controller
from hadron.partition.group_commit import GroupCommitter
from hadron.partition.submission import Submission
from hadron.sim.watch.answers import for_others
from hadron.sim.watch.known import Known, Wrappers
from hadron.sim.watch.marks import Mark
from hadron.sim.watch.transactions import CLIENT
from hadron.state.features import MACHINE
from hadron.state.groups.progress import AckRecords
from hadron.state.transactions.decisions import Decide, NoteFinished
from hadron.state.transactions.intents import AbortTransaction, FinishTransaction, WriteIntents
from hadron.state.transactions.joint_decisions import DecideRun
from hadron.transactions.callers import Callers
from hadron.transactions.claims import Claim, Claims
from hadron.transactions.driver import Driver, Outcome, State
from hadron.transactions.effects import Event, Requested
from hadron.transactions.messages import (
    Add,
    Answer,
    Commit,
    Committed,
    Fate,
    Finish,
    Forget,
    Message,
    RolledBack,
    Told,
)
from hadron.transactions.part import Transactions

_LOGGED: Final = frozenset(
    {WriteIntents, Decide, DecideRun, FinishTransaction, AbortTransaction, NoteFinished}
)


class HearsTransactions:
    def __init__(self, known: Known) -> None:
        self._known = known
        self._logs: WeakKeyDictionary[Callers | Claims, Controller] = WeakKeyDictionary()
        self._given: WeakKeyDictionary[GroupDriver, dict[int, int]] = WeakKeyDictionary()
        """By offset: in which delivery it was given to somebody last."""

    def wrappers(self) -> Wrappers:
        """By what is wrapped: what hears of each function."""
        return [
            (GroupCommitter, {"_run": self.logs, "_run_as_one": self.logs_as_one}),
            (Transactions, {"__init__": self.begins, "stop": self.stops}),
            (Driver, {"step": self.steps, "outcome": self.answers}),
            (Callers, {"answer": self.replies}),
            (LeaderLinks, {"send": self.sends}),
            (Claims, {"claim": self.claims, "settle": self.settles}),
            (Groups, {"check_held": self.lets_acknowledge}),
            (MemberSession, {"deliver": self.delivers}),
        ]

    def _mark(self, controller: Any) -> Mark | None:
        mark = self._known.ballots.mark_of(controller)
        return mark if mark is not None and mark.view.is_alive else None

    def logs(self, original: Any) -> Any:
        def run(
            writer: GroupCommitter,
            connection: apsw.Connection,
            submission: Submission,
            *others: Any,
        ) -> None:
            command: Any = submission.command
            view = self._known.by_part.get(writer) if type(command) in _LOGGED else None
            mark = self._mark(view.controller) if view is not None else None
            if mark is None:
                original(writer, connection, submission, *others)
                return
            watch = self._known.transactions
            # Of what is noted together each has its decision here, and no intent.
            is_of_one = not isinstance(command, NoteFinished)
            before = watch.prepared_here(mark, command.transaction) if is_of_one else 0
            original(writer, connection, submission, *others)
            if submission.error is None:
                lsn = submission.lsn if submission.logged else 0
                self._known.judging(watch.logged, mark, command, lsn, submission.result, before)

        return run

    def logs_as_one(self, original: Any) -> Any:
        """Decisions that waited at the same time; what is refused comes to `logs` one by one."""

        def run_as_one(
            writer: GroupCommitter,
            connection: apsw.Connection,
            together: Sequence[Submission],
            *others: Any,
        ) -> bool:
            is_logged: bool = original(writer, connection, together, *others)
            view = self._known.by_part.get(writer) if is_logged else None
            mark = self._mark(view.controller) if view is not None else None
            if mark is not None:
                for each in together:
                    assert isinstance(each.command, Decide), each.command
                    self._known.judging(
                        self._known.transactions.logged,
                        mark,
                        each.command,
                        each.lsn,
                        each.result,
                        0,
                    )
            return is_logged

        return run_as_one

    def begins(self, original: Any) -> Any:
        def begin(part: Transactions, log: Controller, *given: Any, **named: Any) -> None:
            original(part, log, *given, **named)
            self._logs[part.claims] = self._logs[part.driver.callers] = log

        return begin

    def stops(self, original: Any) -> Any:
        """Clients are told that leading ends, by whoever has found that out."""

        def stop(part: Transactions, reason: HadronError) -> None:
            with for_others():
                original(part, reason)

        return stop

    def steps(self, original: Any) -> Any:
        """What a driver does at its own set is in no table before it is decided."""

        def step(driver: Driver, event: Event) -> None:
            original(driver, event)
            request = event.request if isinstance(event, Requested) else None
            if isinstance(request, Add | Commit):
                self._known.judging(self._takes, driver, request)

        return step

    def _takes(self, driver: Driver, request: Add | Commit) -> None:
        if driver.machine.held(request.transaction) is None:
            return
        locks = [
            Lock(DELIVERIES, command.group_id, "", command.ranges)
            for each in request.statements
            if each.target == driver._home
            and isinstance(command := MACHINE.decode(each.command), AckRecords)
        ]
        if locks:
            self._known.transactions.driven(driver._log, request.transaction, locks)

    def replies(self, original: Any) -> Any:
        def reply(callers: Callers, number: int, answer: Answer) -> None:
            log = self._logs.get(callers)
            if log is not None:
                self._known.judging(self._told, log, answer)
            original(callers, number, answer)

        return reply

    def _told(self, log: Controller, answer: Answer) -> None:
        mark, watch = self._mark(log), self._known.transactions
        if isinstance(answer, Committed | RolledBack):
            watch.answered(log, answer.transaction)
        if mark is not None and isinstance(answer, RolledBack):
            watch.told_aborted(mark, f"a client of {mark.view.name}", answer.transaction)
        elif mark is not None and isinstance(answer, Committed):
            for each in numbered(answer.transaction, answer.transactions):
                watch.told_committed(mark, each, CLIENT)

    def answers(self, original: Any) -> Any:
        async def outcome(driver: Driver, transaction: Any, **named: Any) -> Outcome:
            found: Outcome = await original(driver, transaction, **named)
            mark, watch = self._mark(driver._log), self._known.transactions
            if mark is not None and found.state is State.ABORTED:
                who = f"who has asked {mark.view.name}"
                self._known.judging(watch.told_aborted, mark, who, transaction)
            elif mark is not None and found.state is State.COMMITTED:
                self._known.judging(watch.told_committed, mark, transaction, "who asks")
            return found

        return outcome

    def sends(self, original: Any) -> Any:
        def send(links: LeaderLinks, name: str, message: Message) -> None:
            mark = self._mark(links._leading.controller)
            if mark is not None:
                self._known.judging(self._said, mark, name, message)
            original(links, name, message)

        return send

    def _said(self, mark: Mark, name: str, message: Message) -> None:
        watch = self._known.transactions
        fate = message.fate if isinstance(message, Told) else None
        if isinstance(message, Finish) or fate is Fate.COMMITTED:
            watch.told_committed(mark, message.transaction, name)  # type: ignore[union-attr]
        elif isinstance(message, Forget):
            for each in message.transactions:
                watch.told_over(mark, each, name)
        elif fate is Fate.OVER:
            watch.told_over(mark, message.transaction, name)  # type: ignore[union-attr]
        elif fate is Fate.ABORTED:
            watch.told_aborted(mark, name, message.transaction)  # type: ignore[union-attr]

    # --- what is taken --------------------------------------------------------------------------

    def claims(self, original: Any) -> Any:
        def claim(claims: Claims, claim: Claim, locks: Iterable[Lock]) -> None:
            locks = list(locks)
            original(claims, claim, locks)
            self._known.transactions.claimed(self._logs.get(claims), claim, locks)

        return claim

    def settles(self, original: Any) -> Any:
        def settle(claims: Claims, claim: Claim) -> None:
            self._known.transactions.settled(self._logs.get(claims), claim)
            original(claims, claim)

        return settle

    def lets_acknowledge(self, original: Any) -> Any:
        def check_held(
            groups: Groups, transaction: Any, stream_id: int, name: str, ballot: Any, ranges: Any
        ) -> int:
            group_id: int = original(groups, transaction, stream_id, name, ballot, ranges)
            driver = groups._drivers.get((stream_id, name))
            mark = self._mark(driver._ground.controller) if driver is not None else None
            if driver is not None and mark is not None:
                self._known.judging(
                    self._known.transactions.acknowledges,
                    mark,
                    transaction,
                    self._given.get(driver, {}),
                    ranges,
                )
            return group_id

        return check_held

    def delivers(self, original: Any) -> Any:
        def deliver(session: MemberSession, given: Assignment, batch: StampedBatch) -> None:
            controller = session.driver._ground.controller
            mark, group_id = self._mark(controller), session.driver.progress.group_id
            if mark is not None and group_id:
                self._known.judging(
                    self._known.transactions.delivered,
                    mark,
                    controller,
                    group_id,
                    given.first,
                    given.last,
                )
            numbers = self._given.setdefault(session.driver, {})
            numbers.update(dict.fromkeys(range(given.first, given.last + 1), given.delivery))
            original(session, given, batch)

        return deliver
