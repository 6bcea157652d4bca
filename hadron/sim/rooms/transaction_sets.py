"""Replica sets in memory that drive transactions over each other: real
tables, made up logs and wires.

A set's log is what its leader has, committed up to a point. A new leader begins with that, and with
any part of what was not committed; what it leaves behind may come back with a later one, as long as
its own ballot has not begun on a majority (PROTOCOL B2): then it is gone for ever.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import apsw
import trio
import trio.testing

from hadron.fakes.tables import locked
from hadron.model.batch import read_head
from hadron.model.batch_building import encode_values
from hadron.model.errors import FencedError, HadronError, PeerError
from hadron.model.ids import Ballot
from hadron.model.ports import Database
from hadron.model.schema import StreamSpec, spec_to_json
from hadron.model.transactions import TransactionId
from hadron.partition.submission import Done
from hadron.state.execute import execute, execute_logged
from hadron.state.features import MACHINE
from hadron.state.groups import progress as groups
from hadron.state.groups.progress import AckRecords, CreateGroup
from hadron.state.leadership import BeginBallot
from hadron.state.machine import Command, Context, encode
from hadron.state.schema import ApplySchema, ObjectChange
from hadron.state.streams import partitions as streams
from hadron.state.streams.partitions import AppendBatch
from hadron.state.transactions import decisions, participations
from hadron.storage import bodies
from hadron.transactions.limits import LIMITS, Limits
from hadron.transactions.messages import Message, Statement
from hadron.transactions.part import Transactions

T = TypeVar("T")

SETS = ("p0", "p1", "p2", "p3")
STREAM, INPUT = 1, 2
"""Their ids; each has a partition at every set. A group consumes the second."""

GROUP = 4
"""Of the second: the entry that makes it."""

INPUTS = 64
"""Records of the second, at each set."""

_START_MS = 1_000_000


class Entry(NamedTuple):
    ballot: Ballot
    data: bytes
    body: bytes
    now_ms: int


class SeededRandom:
    """`ports.Random` by a seed."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def token_bytes(self, count: int) -> bytes:
        return self._chance.randbytes(count)

    def uniform(self, low: float, high: float) -> float:
        return self._chance.uniform(low, high)


class Leader:
    """One leadership: `ports.Log` over tables in memory, and `ports.Leaders` over the world's
    wires. Tables are its own; what it has logged is committed as long as nobody else leads."""

    def __init__(self, replica_set: ReplicaSet, entries: list[Entry], ballot: Ballot) -> None:
        self.set = replica_set
        self.world = replica_set.world
        self.entries = entries
        self.committed = 0
        self.leads = True
        self.is_deposed = self.is_gone = False
        self.sent: list[tuple[float, str, Message]] = []
        """When, to which set, and what."""
        self.heard: list[tuple[float, Message]] = []
        self.begins_at = trio.current_time() + self.world.chance.choice(
            (0.0, self.world.chance.uniform(0.0, self.world.begins_s))
        )
        self._ballot = ballot
        self._pending: deque[tuple[int, Any, HadronError | None, Done]] = deque()
        self._moved = trio.Event()
        self.db = apsw.Connection(":memory:")
        self.db.execute(bodies.TABLES + MACHINE.tables)
        for lsn, entry in enumerate(entries, 1):
            context = self._context(lsn, entry.ballot, entry.now_ms, entry.body)
            execute_logged(context, entry.data)
            if entry.body:
                bodies.insert(self.db, lsn, entry.body)
        self.part: Transactions = Transactions(
            self, self.set.name, self, SeededRandom(self.world.chance), self.world.limits
        )
        self.scope = trio.CancelScope()

    def _context(self, lsn: int, ballot: Ballot, now_ms: int, body: bytes) -> Context:
        return Context(
            machine=MACHINE,
            db=self.db,
            lsn=lsn,
            now_ms=now_ms,
            drop_bodies=bodies.delete,
            replica_set=self.set.name,
            ballot=ballot,
            body=body,
        )

    @property
    def ballot(self) -> Ballot:
        return self._ballot

    @property
    def now_ms(self) -> int:
        return _START_MS + round(trio.current_time() * 1_000)

    def log_now_ms(self) -> int:
        return self.now_ms

    # --- the log --------------------------------------------------------------------------------

    def submit(self, command: Command, body: bytes | memoryview = b"", *, done: Done) -> None:
        if not self.leads:
            done(None, FencedError(f"{self.set.name} is led by another"))
            return
        body = bytes(body)
        lsn = len(self.entries) + 1
        self.db.execute("BEGIN")
        outcome = execute(self._context(lsn, self._ballot, self.now_ms, body), command)
        if outcome.command is not None:
            data = encode(outcome.command)
            self.entries.append(Entry(self._ballot, data, body, self.now_ms))
            if body:
                bodies.insert(self.db, lsn, body)
        self.db.execute("COMMIT")
        lsn = len(self.entries)
        self._pending.append((lsn, outcome.result, outcome.error, done))
        self.world.later(self.world.commit_s(), lambda: self._commit(lsn))

    async def execute(self, command: Command) -> Any:
        outcome: list[tuple[Any, HadronError | None]] = []
        answered = trio.Event()

        def done(result: Any, error: HadronError | None) -> None:
            outcome.append((result, error))
            answered.set()

        self.submit(command, done=done)
        await answered.wait()
        result, error = outcome[0]
        if error is not None:
            raise error
        return result

    def _commit(self, lsn: int) -> None:
        if self.is_deposed or not self.leads or lsn < self.set.started_lsn:
            return
        if trio.current_time() < self.begins_at:
            self.world.later(self.begins_at - trio.current_time(), lambda: self._commit(lsn))
            return
        # What other disks have beyond it is gone for ever.
        self.set.others.clear()
        self.committed = self.set.committed = max(self.committed, lsn)
        while self._pending and self._pending[0][0] <= self.committed:
            _, result, error, done = self._pending.popleft()
            done(result, error)
        self._moved.set()
        self._moved = trio.Event()

    async def read(self, read: Callable[[Database], T]) -> T:
        """As `Controller.read`: for planted bugs."""
        await trio.lowlevel.checkpoint()
        return read(self.db)

    async def query(self, read: Callable[[Database], T]) -> T:
        await trio.lowlevel.checkpoint()
        result, lsn = read(self.db), len(self.entries)
        while self.committed < lsn and self.leads:
            await self._moved.wait()
        if not self.leads:
            raise FencedError(f"{self.set.name} is led by another")
        return result

    async def confirm_leadership(self) -> None:
        await trio.sleep(self.world.commit_s())
        while self.leads and self.is_deposed:
            await self._moved.wait()
        if not self.leads:
            raise FencedError(f"{self.set.name} is led by another")

    # --- its life -------------------------------------------------------------------------------

    async def run(self) -> None:
        with self.scope:
            await self.part.run()

    def start(self) -> None:
        self.set.started_lsn = len(self.entries) + 1
        started = BeginBallot("n1", b"u" * 16, (("n1", "leader"),), b"d" * 16, MACHINE.version)
        self.submit(started, done=lambda _result, _error: None)
        self.world.nursery.start_soon(self.run)

    def crash(self) -> None:
        """It is gone, and says nothing to anybody."""
        self.is_deposed = self.is_gone = True
        self.leads = False
        self._pending.clear()
        self.scope.cancel()

    def stop(self) -> None:
        """It has heard of another leader."""
        if not self.leads:
            return
        reason = FencedError(f"{self.set.name} is led by another")
        self.part.stop(reason)
        self.leads = False
        pending, self._pending = list(self._pending), deque()
        for _, _, _, done in pending:
            done(None, reason)
        self._moved.set()
        self.scope.cancel()

    # --- other leaders --------------------------------------------------------------------------

    def knows(self, replica_set: str) -> bool:
        return replica_set in self.world.sets

    def send(self, replica_set: str, message: Message) -> None:
        if self.leads:
            self.sent.append((trio.current_time(), replica_set, message))
            self.world.send(self, replica_set, message)


class ReplicaSet:
    """One replica set: what its disks hold."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.committed = self.started_lsn = 0
        self.others: list[list[Entry]] = []
        """Logs on the disks of earlier leaders."""
        self.incarnation = 0
        self.leader: Leader | None = None
        self.zombie: Leader | None = None
        self.lead([])

    def lead(self, entries: list[Entry]) -> Leader:
        self.incarnation += 1
        leader = self.leader = Leader(self, entries, Ballot(1, self.incarnation))
        leader.start()
        return leader

    def fail(self, chance: random.Random, *, crashes: bool) -> None:
        """The leader is the leader no more; without a crash it will find that out later."""
        leader, self.leader = self.leader, None
        if leader is None:
            return
        self.others.append(leader.entries)
        if crashes:
            leader.crash()
            return
        if self.zombie is not None:
            self.zombie.stop()
        leader.is_deposed = True
        self.zombie = leader
        self.world.later(chance.uniform(0.0, 3.0), leader.stop)

    def take_over(self, chance: random.Random) -> None:
        """Another one leads, with all that was committed, and some of the rest."""
        if self.leader is not None:
            return
        longest = self.others[-1]
        kept = chance.choice(
            [*self.others, longest[: chance.randint(self.committed, len(longest))]]
        )
        del self.others[:-3]
        self.lead(list(kept))

    # --- what is found --------------------------------------------------------------------------

    @property
    def db(self) -> apsw.Connection:
        assert self.leader is not None
        return self.leader.db

    def values(self) -> dict[int, bytes]:
        """The stream's records, by offset."""
        found: dict[int, bytes] = {}
        bounds = streams.bounds(self.db, STREAM)
        for batch in streams.read_batches(
            self.db, STREAM, 0, below=bounds.next_offset, max_bytes=1 << 30
        ):
            head = read_head(batch.data)
            assert head.n == 1
            found[batch.base_offset] = bytes(batch.data)
        return found

    def acknowledged(self) -> set[int]:
        floor, _ = groups.reach(self.db, GROUP)
        left = groups.unacknowledged(self.db, GROUP, floor, INPUTS - 1)
        return {*range(INPUTS)} - {n for first, last in left for n in range(first, last + 1)}

    def leftovers(self) -> Iterator[str]:
        for each in participations.held(self.db, after_lsn=0, limit=1_000):
            yield f"{self.name} still has {each}"
        for table in ("hadron_intent", "hadron_lock"):
            for row in self.db.execute(f"SELECT * FROM {table}"):
                yield f"{self.name} has {table} {row}"
        if locked(self.db, "group", GROUP):
            yield f"{self.name} has locked deliveries"
        for waiting in decisions.unfinished(self.db, self.name, after_lsn=0, limit=1_000):
            yield f"{self.name} waits for {waiting}"
        for row in self.db.execute("SELECT * FROM hadron_counted_body WHERE holds > 0"):
            yield f"{self.name} holds a body: {row}"


class World:
    """All sets and the wires between them. Use `trio.run` under a `MockClock`."""

    def __init__(
        self,
        seed: int,
        nursery: trio.Nursery,
        sets: tuple[str, ...] = SETS,
        limits: Limits = LIMITS,
    ) -> None:
        self.chance = random.Random(seed)
        self.nursery = nursery
        self.limits = limits
        self.loss = self.doubling = 0.0
        self.delay_s = self.commits_s = 0.002
        self.begins_s = 0.0
        """At most: from a new leader's first entry until a majority has it."""
        self.heard: list[tuple[str, str, Message]] = []
        """What was delivered, for tests of single messages: (from, to, what)."""
        self.on_message: Callable[[str, str, Message], bool] = lambda _from, _to, _message: True
        """Whether a message is delivered as it is sent."""
        self.sets: dict[str, ReplicaSet] = {}
        for name in sets:
            self.sets[name] = ReplicaSet(self, name)
            self._declare(self.sets[name], sets)

    def _declare(self, replica_set: ReplicaSet, sets: tuple[str, ...]) -> None:
        leader = replica_set.leader
        assert leader is not None
        spec = spec_to_json(StreamSpec(partitions=sets)).decode()
        changes = tuple(ObjectChange("Stream", "default", name, spec) for name in ("s", "in"))
        data = encode_values([b"x"] * INPUTS, 0)

        def must(_result: Any, error: HadronError | None) -> None:
            assert error is None, error

        leader.submit(ApplySchema(0, changes), done=must)
        leader.submit(AppendBatch(INPUT, INPUTS, len(data), b"", 0, -1), data, done=must)
        leader.submit(CreateGroup(INPUT, "g", 0), done=must)

    def later(self, delay_s: float, work: Callable[[], None]) -> None:
        async def task() -> None:
            await trio.sleep(delay_s)
            work()

        self.nursery.start_soon(task)

    def commit_s(self) -> float:
        return self.chance.uniform(0.0, 2 * self.commits_s)

    def send(self, leader: Leader, to: str, message: Message) -> None:
        chance = self.chance
        if not self.on_message(leader.set.name, to, message) or chance.random() < self.loss:
            return
        copies = 2 if chance.random() < self.doubling else 1
        for copy in range(copies):
            delay_s = chance.expovariate(1 / self.delay_s)
            if copy or chance.random() < self.doubling / 4:
                delay_s += chance.uniform(0.0, 5.0)
            self.later(delay_s, lambda: self._deliver(leader, to, message))

    def _deliver(self, sender: Leader, to: str, message: Message) -> None:
        target = self.sets[to]
        leader = target.leader
        zombie = target.zombie
        if zombie is not None and zombie.leads and self.chance.random() < 0.3:
            leader = zombie
        if leader is None:
            if sender.leads and self.chance.random() < 0.5:
                sender.part.unanswered(to, PeerError(f"nobody leads {to}"))
            return
        self.heard.append((sender.set.name, to, message))
        leader.heard.append((trio.current_time(), message))
        leader.part.receive(sender.set.name, message)

    def leader(self, name: str) -> Leader:
        leader = self.sets[name].leader
        assert leader is not None
        return leader


def publishing(target: str, value: str) -> Statement:
    """Publish one record to the stream's partition at `target`."""
    data = encode_values([value.encode()], 0)
    return Statement(target, encode(AppendBatch(STREAM, 1, len(data), b"", 0, -1)), data)


def acknowledging(target: str, offset: int) -> Statement:
    return Statement(target, encode(AckRecords(GROUP, ((offset, offset),))))


def driven(world: World, transaction: TransactionId) -> decisions.Decided | None:
    """What its driver's tables say."""
    return decisions.find(world.sets[transaction.replica_set].db, transaction)
