"""What the members of the logs' room are made of below the log: what survives a crash, a writer
whose COMMIT takes its time, and a state machine that is too small to be wrong.

A crash loses what is not committed. There are no files: what disks do beyond that, whole worlds
show.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import apsw
import trio

from hadron.fakes.clocks import SimRandom
from hadron.model.errors import HadronError, RequestError, ShuttingDownError
from hadron.model.ids import NO_BALLOT
from hadron.state import leadership
from hadron.state.machine import Command, Context, Event, Feature, Gather, NoChange, StateMachine
from hadron.storage import log
from hadron.storage.identity import TABLES, IdentityFile
from hadron.storage.tables import make_tables
from hadron.storage.writer import Done, Job, Prepare

T = TypeVar("T")

SET: Final = "room/p0"

_NUMBERS: Final = "SELECT count(*) FROM hadron_put WHERE client = ?"


class Put(Command[int], frozen=True, array_like=True, tag=100):
    """A client's next one; its result is where it is in the log."""

    client: int
    number: int


class PutSoon(Put, frozen=True, array_like=True, tag=101):
    """In the line of those that have a share of each commit."""

    is_rationed: ClassVar[bool] = True


class PutAll(Command[tuple[int, ...]], frozen=True, array_like=True, tag=102):
    """Several in one entry, of clients with even numbers."""

    puts: tuple[tuple[int, int], ...]


class Was(Event, frozen=True):
    """It is there."""

    client: int
    number: int
    lsn: int


class NotNextError(RequestError, travels=False):
    """A number that does not follow; `has` are there."""

    def __init__(self, client: int, number: int, has: int) -> None:
        super().__init__(f"{client} has {has} here, {number} does not follow")
        self.client, self.has = client, has


def _apply_put(context: Context, command: Put) -> int:
    client, number = command.client, command.number
    row = context.db.execute(
        "SELECT lsn FROM hadron_put WHERE client = ? AND number = ?", (client, number)
    ).fetchone()
    if row is not None:
        raise NoChange(row[0])
    (has,) = context.db.execute(_NUMBERS, (client,)).fetchone() or (0,)
    if number != has + 1:
        raise NotNextError(client, number, has)
    context.db.execute(
        "INSERT INTO hadron_put VALUES(?, ?, ?, ?, ?)",
        (client, number, context.lsn, context.now_ms, str(context.ballot)),
    )
    context.emit(Was(client, number, context.lsn))
    return context.lsn


def _apply_all(context: Context, command: PutAll) -> tuple[int, ...]:
    try:
        return tuple(_apply_put(context, Put(*each)) for each in command.puts)
    except NoChange:
        raise RequestError("one of them was done before") from None


PUTS: Final = Feature(
    name="puts",
    tables="CREATE TABLE IF NOT EXISTS hadron_put(client INTEGER NOT NULL, number INTEGER NOT NULL,"
    " lsn INTEGER NOT NULL, now_ms INTEGER NOT NULL, ballot TEXT NOT NULL,"
    " PRIMARY KEY(client, number)) STRICT;",
    commands={Put: _apply_put, PutSoon: _apply_put, PutAll: _apply_all},
    gathers={
        Put: Gather(
            key=lambda put: 1 if put.client % 2 == 0 else None,
            join=lambda puts: PutAll(tuple((put.client, put.number) for put in puts)),
        )
    },
)

MACHINE: Final = StateMachine((leadership.FEATURE, PUTS), version=1)


class Disk:
    """What a member has left after a crash.

    Attributes:
        chains: of what its log holds, by lsn, above what is known to be committed everywhere; as of
            the last COMMIT.
    """

    def __init__(self) -> None:
        self.db = apsw.Connection(":memory:")
        make_tables(self.db, log.TABLES + MACHINE.tables)
        self.node = apsw.Connection(":memory:")
        self.chains: dict[int, bytes] = {}
        self.known_lsn = 0
        """Above which `chains` are."""
        self.is_ahead = False
        """Its tables may hold what no majority has: of a leader, or of one's copy."""

        self.promised = NO_BALLOT
        self.is_lost = False
        """It is new in the place of one that was counted, and does not count yet."""

    def crash(self) -> None:
        for connection in (self.db, self.node):
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def look(self, above: int) -> None:
        """See what it holds above an entry."""
        rows: Any = self.db.execute(
            f"SELECT lsn, chain FROM {log.LOG} WHERE lsn > ? ORDER BY lsn", (above,)
        )
        self.chains = dict(rows)
        self.known_lsn = above

    def holds(self, lsn: int, chain: bytes) -> bool:
        """Whether it has this entry, or has trimmed it."""
        known = self.chains.get(lsn)
        if known is None:
            row = self.db.execute(f"SELECT chain FROM {log.LOG} WHERE lsn = ?", (lsn,)).fetchone()
            # What is above is not committed here, if anything is.
            known = row[0] if row is not None and lsn <= self.known_lsn else None
        return known == chain if known is not None else lsn < log.first_lsn(self.db)


class Identity(IdentityFile):
    """`node.db` in memory."""

    def __init__(self, disk: Disk, node: str) -> None:
        self._lock = threading.Lock()
        self._path = Path("node.db")
        self._db = disk.node
        self._open("room", SET, node)

    def _prepare(self) -> None:
        make_tables(self._db, TABLES)


class Writer:
    """Does jobs and commits in order, each of which takes its time."""

    def __init__(self, disk: Disk, chance: SimRandom, on_written: Callable[[], None]) -> None:
        self.connection = disk.db
        self._chance = chance
        self._on_written = on_written
        self._waiting: deque[tuple[Job | None, Prepare | None, Done]] = deque()
        self._wanted = trio.Event()
        self._written = trio.Event()
        self.has_ended = False
        self.slow_s = 0.0005
        self.is_away = False

    def submit(self, job: Job, done: Done) -> None:
        self._add(job, None, done)

    def commit(self, prepare: Prepare, done: Done) -> None:
        if not self.has_ended:
            self._add(None, prepare, done)

    def _add(self, job: Job | None, prepare: Prepare | None, done: Done) -> None:
        if self.has_ended:
            done(None, ShuttingDownError("it has crashed"))
            return
        self._waiting.append((job, prepare, done))
        self._wanted.set()

    def waits_last(self, prepare: Prepare) -> bool:
        return bool(self._waiting) and self._waiting[-1][1] == prepare

    def post(self, report: Callable[[], None]) -> None:
        report()

    async def settled(self) -> None:
        """Until what readers see is what was committed."""
        await trio.lowlevel.checkpoint()
        while self.connection.in_transaction:
            await self._written.wait()

    async def run(self) -> None:
        try:
            while True:
                while not self._waiting:
                    await self._wanted.wait()
                    self._wanted = trio.Event()
                await self._do(*self._waiting.popleft())
        finally:
            self.has_ended = True
            for job, _, done in self._waiting:
                if job is not None:
                    done(None, ShuttingDownError("it has crashed"))

    async def _do(self, job: Job | None, prepare: Prepare | None, done: Done) -> None:
        result, error = None, None
        try:
            if prepare is not None:
                result = prepare(self.connection).result
                if self.connection.in_transaction:
                    await self._pause()
                    self.connection.execute("COMMIT")
            else:
                assert job is not None
                await self._pause(done)
                result = job(self.connection)
        except HadronError as caught:
            error = caught
        self._written.set()
        self._written = trio.Event()
        self._on_written()
        done(result, error)

    async def _pause(self, done: Done | None = None) -> None:
        try:
            await trio.sleep(self._chance.uniform(0.0, 2 * self.slow_s))
        except trio.Cancelled:
            if done is not None:
                done(None, ShuttingDownError("it has crashed"))
            raise


class Readers:
    """Reads what is committed."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def run(self, read: Callable[[apsw.Connection], T]) -> T:
        await self._writer.settled()
        return read(self._writer.connection)


class Space:
    """There is enough of it."""

    is_low = is_exhausted = False


class Store:
    """`storage.store.Store`, as far as replication asks it."""

    def __init__(
        self, disk: Disk, node: str, chance: SimRandom, on_written: Callable[[], None]
    ) -> None:
        disk.crash()
        self.identity = Identity(disk, node)
        self.identity.name_disk(chance.token_bytes(16))
        self.log = log.Log(disk.db)
        self.writer = Writer(disk, chance, on_written)
        self.readers = Readers(self.writer)
        self.space = Space()


def puts_of(commands: Sequence[tuple[int, bytes]]) -> list[tuple[int, int, int]]:
    """(client, number, lsn) of all that a log does."""
    found = []
    for lsn, data in commands:
        command = MACHINE.decode(data)
        if isinstance(command, Put):
            found.append((command.client, command.number, lsn))
        elif isinstance(command, PutAll):
            found += [(client, number, lsn) for client, number in command.puts]
    return found
