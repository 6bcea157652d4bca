"""Notes what leaders do with groups into a history, by listening at the last place before the wire.

Only there can be told what was given to whom in which order: on its way to a member a delivery may
be overtaken by the next leader's. Nodes that have crashed may still say something; nobody hears it
then, and it is noted as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final

from hadron.delivery.driver import GroupDriver
from hadron.delivery.effects import Assignment, Exhausted
from hadron.delivery.port import Nack
from hadron.delivery.sessions import MemberSession
from hadron.model.batch import StampedBatch
from hadron.model.errors import HadronError
from hadron.sim.evidence.history import Assign, GaveBack, History, Join, Leave, Serve, Stuck
from hadron.sim.evidence.labels import PASSING, label
from hadron.sim.notes.wrapping import wrapped
from hadron.state.groups.progress import ORDER_KEY, ORDER_NONE, ORDER_STRICT

_ORDERS: Final = {ORDER_NONE: "none", ORDER_STRICT: "strict", ORDER_KEY: "key"}


@contextmanager
def noting_groups(history: History, streams: Collection[str] = ()) -> Iterator[None]:
    """Note, for the length of the block, what groups' drivers give to their members, of all nodes
    of all worlds; of groups of these streams, or of all."""
    listener = _Listener(history, streams)
    with (
        wrapped(
            GroupDriver,
            __init__=listener.served,
            leave=listener.left,
            refuse=listener.gave_back,
            close=listener.closed,
            _dead_letters_refused=listener.refused,
        ),
        wrapped(MemberSession, deliver=listener.delivered),
    ):
        yield


class _Listener:
    """Wraps the functions that it is given."""

    def __init__(self, history: History, streams: Collection[str]) -> None:
        self._history = history
        self._streams = streams
        self._drivers: dict[GroupDriver, int] = {}
        self._joined: set[tuple[int, int]] = set()

    def served(self, original: Any) -> Any:
        def serve(driver: GroupDriver, *given: Any, **named: Any) -> None:
            original(driver, *given, **named)
            if self._streams and driver.origin.stream not in self._streams:
                return
            number = self._drivers[driver] = len(self._drivers) + 1
            progress, ballot = driver.progress, driver._ground.controller.ballot
            options, stream = progress.options, driver.origin.stream
            self._history.note(
                Serve(
                    at=self._history.tick(),
                    driver=number,
                    partition=driver.origin.partition,
                    group=progress.name,
                    stream=label(stream, progress.stream_id) if stream in PASSING else stream,
                    group_id=progress.group_id,
                    epoch=ballot.epoch,
                    incarnation=ballot.incarnation,
                    floor=progress.floor,
                    order=_ORDERS[options.order],
                    ack_deadline_ms=options.ack_deadline_ms,
                    max_attempts=options.max_attempts,
                    dead_letter=driver.dead_letter_stream,
                    fence=progress.fence,
                    node=driver._ground.controller.node,
                )
            )

        return serve

    def delivered(self, original: Any) -> Any:
        def deliver(session: MemberSession, given: Assignment, batch: StampedBatch) -> None:
            if session.driver not in self._drivers:
                original(session, given, batch)
                return
            driver, member = self._drivers[session.driver], session.member
            partition = session.driver.origin.partition
            if (driver, member.number) not in self._joined:
                self._joined.add((driver, member.number))
                self._history.note(
                    Join(
                        at=self._history.tick(),
                        driver=driver,
                        partition=partition,
                        session=member.number,
                        member=session.name,
                        max_in_flight=member.max_in_flight,
                    )
                )
            self._history.note(
                Assign(
                    at=self._history.tick(),
                    driver=driver,
                    partition=partition,
                    session=member.number,
                    number=given.delivery,
                    first=given.first,
                    last=given.last,
                    attempt=given.attempt,
                )
            )
            original(session, given, batch)

        return deliver

    def left(self, original: Any) -> Any:
        def leave(driver: GroupDriver, session: MemberSession, *reason: str) -> None:
            number = session.member.number
            if number in driver.sessions and driver in self._drivers:
                self._history.note(
                    Leave(
                        at=self._history.tick(),
                        driver=self._drivers[driver],
                        partition=driver.origin.partition,
                        session=number,
                    )
                )
            original(driver, session, *reason)

        return leave

    def gave_back(self, original: Any) -> Any:
        def refuse(driver: GroupDriver, session: MemberSession, said: Nack, now: float) -> None:
            if said.is_unseen and driver in self._drivers:
                for delivery, first, last in said.ranges:
                    self._history.note(
                        GaveBack(
                            at=self._history.tick(),
                            driver=self._drivers[driver],
                            partition=driver.origin.partition,
                            session=session.member.number,
                            number=delivery,
                            first=first,
                            last=last,
                        )
                    )
            original(driver, session, said, now)

        return refuse

    def closed(self, original: Any) -> Any:
        def close(driver: GroupDriver, reason: HadronError | None = None) -> None:
            if not driver.is_closed and driver in self._drivers:
                self._history.note(
                    Leave(
                        at=self._history.tick(),
                        driver=self._drivers[driver],
                        partition=driver.origin.partition,
                    )
                )
            original(driver, reason)

        return close

    def refused(self, original: Any) -> Any:
        def refuse(driver: GroupDriver, dead: Exhausted) -> None:
            if driver in self._drivers:
                self._history.note(
                    Stuck(
                        at=self._history.tick(),
                        driver=self._drivers[driver],
                        partition=driver.origin.partition,
                        first=dead.first,
                        last=dead.last,
                    )
                )
            original(driver, dead)

        return refuse
