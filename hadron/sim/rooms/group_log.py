"""What a room stands on: one replica set's tables in memory, and a log whose commits come late.

A command is applied when it is committed, which answers what a leader would that had applied it
before and held its answer back. What waits when a leader goes is committed up to a point that
nobody hears of, and lost from there on. A restore takes back what was committed, too.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Final, NamedTuple, TypeVar, cast

import apsw
import trio

from hadron.delivery.groups import Groups
from hadron.model.errors import DiskFullError, FencedError, HadronError
from hadron.model.ids import Ballot
from hadron.model.ports import Database
from hadron.model.schema import StreamSpec, spec_to_json
from hadron.partition.controller import Controller
from hadron.partition.observers import Observers
from hadron.partition.submission import Done
from hadron.serving.catalog import Catalog
from hadron.serving.lock_table import LockTable
from hadron.serving.visible import VisibleStreams
from hadron.sim.rooms.transaction_sets import SeededRandom
from hadron.state import schema
from hadron.state.execute import Outcome, execute
from hadron.state.features import MACHINE
from hadron.state.machine import Command, Context
from hadron.state.schema import ApplySchema, ObjectChange
from hadron.state.streams import partitions as streams
from hadron.state.transactions.locks import all_held
from hadron.storage import bodies

T = TypeVar("T")

SET: Final = "local/p0"
_START_MS: Final = 1_700_000_000_000
_PATIENCE_S: Final = 0.002
"""As `partition.controller` has it."""


class Snapshot(NamedTuple):
    """The tables at one moment."""

    data: bytes
    lsn: int


@cache
def _empty() -> bytes:
    """Tables are made once: that takes longer than a short history."""
    db = apsw.Connection(":memory:")
    db.execute(bodies.TABLES + MACHINE.tables)
    return db.serialize("main")


class Tables:
    """Of one replica set: all that is committed."""

    def __init__(self) -> None:
        self.lsn = 0
        self.db: Database
        self.restore(Snapshot(_empty(), 0))

    def restore(self, snapshot: Snapshot) -> None:
        connection = apsw.Connection(":memory:")
        connection.deserialize("main", snapshot.data)
        self._connection = connection
        self.db, self.lsn = connection, snapshot.lsn

    def snapshot(self) -> Snapshot:
        return Snapshot(self._connection.serialize("main"), self.lsn)

    def apply(self, command: Command, body: bytes, ballot: Ballot) -> Outcome:
        context = Context(
            machine=MACHINE,
            db=self.db,
            lsn=self.lsn + 1,
            now_ms=now_ms(),
            drop_bodies=partial(bodies.delete, self.db),
            replica_set=SET,
            ballot=ballot,
            body=body,
        )
        outcome = execute(context, command)
        if outcome.command is not None:
            self.lsn += 1
            if body:
                bodies.insert(self.db, self.lsn, body)
        return outcome

    def declare(self, *names: str) -> list[int]:
        """Streams; returns their ids."""
        changes = tuple(stream_change(name, SET) for name in names)
        outcome = self.apply(ApplySchema(0, changes), b"", Ballot(1, 1))
        assert outcome.error is None, outcome.error
        return [item.id for item in outcome.result]


def stream_change(name: str, partition: str) -> ObjectChange:
    """A stream with one partition."""
    spec = spec_to_json(StreamSpec(partitions=(partition,))).decode()
    return ObjectChange("Stream", "default", name, spec)


def now_ms() -> int:
    return _START_MS + round(trio.current_time() * 1_000)


@dataclass(slots=True)
class _Waiting:
    """What waits for the log: a command, or somebody who reads."""

    done: Done
    command: Command | None = None
    body: bytes = b""
    read: Callable[[Database], Any] | None = None


@dataclass
class Log:
    """A leadership's log: what a room needs of `partition.controller.Controller`, and of the store
    behind `serving.visible`.

    Attributes:
        on_submitted: told of each command that the leader has for the log.
        on_applied: told of each command and what it came to, before anybody else is.
        has_room: without it commands that use no reserve are refused.
    """

    tables: Tables
    ballot: Ballot
    chance: random.Random
    on_submitted: Callable[[Command], None]
    on_applied: Callable[[Command, bytes, Outcome], None]
    on_refused: Callable[[Command], None]
    observers: Observers = field(default_factory=Observers)
    has_room: bool = True
    leads: bool = True
    is_slow: bool = False
    _waiting: deque[_Waiting] = field(default_factory=deque)
    _some: trio.Event = field(default_factory=trio.Event)
    _urgent: trio.Event = field(default_factory=trio.Event)
    copies: dict[int, bytes] = field(default_factory=dict)

    @property
    def readers(self) -> Log:
        """Of the store."""
        return self

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def log_now_ms(self) -> int:
        return now_ms()

    def submit(
        self,
        command: Command,
        body: bytes | memoryview = b"",
        *,
        done: Done,
        is_patient: bool = False,
    ) -> None:
        if not self.leads:
            done(None, _fenced())
            return
        self.on_submitted(command)
        if not self.has_room and not command.uses_reserve:
            error = DiskFullError("the disk has no room for more")
            self.on_refused(command)
            done(None, error)
        else:
            self._wait(_Waiting(done, command, bytes(body)), is_patient=is_patient)

    def hurry(self) -> None:
        if self._waiting:
            self._urgent.set()

    def _wait(self, each: _Waiting, *, is_patient: bool = False) -> None:
        self._waiting.append(each)
        self._some.set()
        if not is_patient:
            self._urgent.set()

    async def _answer(self, of: Callable[[Done], None]) -> Any:
        outcome: list[tuple[Any, HadronError | None]] = []
        answered = trio.Event()

        def done(result: Any, error: HadronError | None) -> None:
            outcome.append((result, error))
            answered.set()

        of(done)
        await answered.wait()
        result, error = outcome[0]
        if error is not None:
            raise error
        return result

    async def execute(self, command: Command, body: bytes | memoryview = b"") -> Any:
        return await self._answer(lambda done: self.submit(command, body, done=done))

    async def query(self, read: Callable[[Database], T]) -> T:
        if not self.leads:
            raise _fenced()
        found = await self._answer(lambda done: self._wait(_Waiting(done, read=read)))
        return cast(T, found)

    async def confirm_leadership(self) -> None:
        await self.query(lambda _db: None)

    async def read(self, read: Callable[[Database], T]) -> T:
        return await self.run(read)

    async def run(self, read: Callable[[Database], T]) -> T:
        """As `Store.readers`: from the disk."""
        await trio.sleep(self.chance.choice((0.0, 0.001, 0.02)))
        return read(self.tables.db)

    # --- commits --------------------------------------------------------------------------------

    async def run_commits(self) -> None:
        """For ever: what waits is committed after a while, all of it or a part."""
        chance = self.chance
        while True:
            await self._some.wait()
            with trio.move_on_after(_PATIENCE_S):
                await self._urgent.wait()
            slow = (0.0, 0.02, 0.3, 1.5) if self.is_slow else (0.0, 0.001, 0.005)
            await trio.sleep(chance.choice(slow))
            whole = chance.random() < 0.7
            self.commit(len(self._waiting) if whole else chance.randint(1, len(self._waiting) or 1))

    def commit(self, count: int, *, is_heard: bool = True) -> None:
        """So many are committed together; unless they are heard of their leader is gone."""
        answers: list[tuple[Done, Any, HadronError | None]] = []
        for _ in range(min(count, len(self._waiting))):
            each = self._waiting.popleft()
            if each.command is None:
                assert each.read is not None
                try:
                    answers.append((each.done, each.read(self.tables.db), None))
                except HadronError as refusal:
                    answers.append((each.done, None, refusal))
                continue
            outcome = self.tables.apply(each.command, each.body, self.ballot)
            if outcome.error is None:
                self.on_applied(each.command, each.body, outcome)
            elif is_heard:
                self.on_refused(each.command)
            if is_heard:
                self.observers.tell(outcome.events)
            answers.append((each.done, outcome.result, outcome.error))
        if not self._waiting:
            self._some, self._urgent = trio.Event(), trio.Event()
        if not is_heard:
            return
        for done, result, error in answers:
            if self.leads:
                done(result, error)
            else:
                done(None, _fenced())

    def end(self, committed: int) -> None:
        """Another node leads, which has so many of those that wait; the others are lost."""
        self.leads = False
        waiting = list(self._waiting)
        self.commit(committed, is_heard=False)
        self._waiting.clear()
        for each in waiting:
            each.done(None, _fenced())


def _fenced() -> FencedError:
    return FencedError("another node leads")


class Leadership:
    """The groups of one leader; `run` must be running."""

    def __init__(self, log: Log, random_port: SeededRandom) -> None:
        self.log = log
        self.scope = trio.CancelScope()
        db = log.tables.db
        controller: Any = log
        self.catalog = Catalog(schema.all_objects(db), schema.current_index(db))
        self.visible = VisibleStreams(
            controller, log.ballot, streams.all_bounds(db), SET, self.catalog
        )
        self.catalog.observe(log.observers)
        self.visible.observe(log.observers)
        self.locks = LockTable(all_held(db), log.log_now_ms)
        self.locks.observe(log.observers)
        self.groups = Groups(
            cast(Controller, controller), self.visible, self.catalog, SET, random_port, self.locks
        )

    async def run(self) -> None:
        with self.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.groups.run)
                nursery.start_soon(self.log.run_commits)


def offsets_of(ranges: Iterable[tuple[int, int]]) -> list[int]:
    return [offset for first, last in ranges for offset in range(first, last + 1)]
