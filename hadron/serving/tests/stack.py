"""A leader's parts over one data directory, without a network: for the tests of several rooms.

Time is trio's: under a `MockClock` nothing happens until the test says how late it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import trio
import trio.testing

from hadron.delivery.groups import Groups
from hadron.model.batch import StampedBatch, read_head
from hadron.model.batch_building import encode_values
from hadron.model.errors import HadronError, ShuttingDownError
from hadron.model.ids import Ballot
from hadron.model.schema import Spec, StreamSpec, spec_to_json
from hadron.node.world import SystemDisk
from hadron.partition.controller import Controller
from hadron.partition.gate import ByteGate
from hadron.pipelines.driver import Pipelines
from hadron.replication.feeding import Feeding, Tuning
from hadron.replication.follower import FollowerLog
from hadron.replication.watermark import Watermark
from hadron.serving.catalog import Catalog
from hadron.serving.lock_table import LockTable
from hadron.serving.visible import VisibleStreams
from hadron.state import schema
from hadron.state.features import MACHINE
from hadron.state.leadership import BeginBallot
from hadron.state.schema import ApplySchema, ObjectChange
from hadron.state.streams import partitions as streams
from hadron.state.streams.partitions import AppendBatch
from hadron.state.streams.producers import Appended
from hadron.state.transactions.locks import all_held
from hadron.storage.store import Store
from hadron.wire.connection import Cork
from hadron.wire.system import SystemClock

SET = "local/p0"
DIGEST, UUID = b"d" * 16, b"u" * 16


class TrioClock:
    """Wall time that follows trio's clock."""

    def now_ms(self) -> int:
        return 1_700_000_000_000 + round(trio.current_time() * 1_000)

    def monotonic_s(self) -> float:
        return trio.current_time()


class EvenRandom:
    """`ports.Random` that always draws the highest."""

    def token_bytes(self, count: int) -> bytes:
        return b"r" * count

    def uniform(self, low: float, high: float) -> float:
        return max(low, high)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that nobody tells of."""
    while not condition():
        await trio.testing.wait_all_tasks_blocked(0.001)


class FakeOrigin:
    """Where a call comes from: nobody listens for so long as a test says."""

    deaf_s = 0.0


class FakeCall:
    """What drivers need of a `wire.calls.Call`; keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, bytes]] = []
        self.writable = True
        self.failure: HadronError | None = None
        self.on_writable: Callable[[], None] = lambda: None
        self.origin = FakeOrigin()
        self._news = trio.Event()

    def send(self, message: Any, attachments: Sequence[bytes | memoryview] = ()) -> None:
        # As it is at this moment: whoever sent it may fill it anew.
        message = type(message).FromString(message.SerializeToString())
        self.sent.append((message, b"".join(bytes(part) for part in attachments)))
        self._tell()

    def fail(self, error: HadronError) -> None:
        self.failure = error
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = trio.Event()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition`, which is looked at whenever something was sent."""
        while not condition():
            await self._news.wait()


class Stack:
    """`members` other than n1 exist on paper only; `peer` speaks for one."""

    def __init__(self, store: Store, members: Sequence[str], tuning: Tuning) -> None:
        self.clock = TrioClock()
        self.random = EvenRandom()
        self.store = store
        self.fatal: list[BaseException] = []
        self.gate = ByteGate(1 << 20)
        watermark = Watermark.noted_in(store.writer.connection)
        self.follower = FollowerLog(
            store.writer.connection, store.log, store.identity, MACHINE, SET, watermark
        )
        promised = store.identity.current.promised
        self.ballot = Ballot(1, promised.incarnation + 1)
        store.identity.promise(self.ballot, DIGEST)
        cork = Cork()
        feeding = Feeding(
            store,
            watermark,
            ballot=self.ballot,
            node="n1",
            members=members,
            started_lsn=store.log.head.lsn + 1,
            cork=cork,
            tuning=tuning,
        )
        self.controller = Controller(
            store,
            self.follower,
            feeding,
            replica_set=SET,
            clock=self.clock,
            cork=cork,
            gate=self.gate,
            on_fatal=self.fatal.append,
            # Many of these tests have a clock that stands.
            patience_s=0.0,
        )
        self.catalog: Catalog
        self.visible: VisibleStreams
        self.locks: LockTable
        self.groups: Groups
        self.pipelines: Pipelines

    async def begin(self) -> None:
        """As `node.leadership` does it, once `BeginBallot` is committed."""
        controller = self.controller
        await controller.execute(
            BeginBallot("n1", UUID, (("n1", "leader"),), DIGEST, MACHINE.version)
        )
        self.store.identity.become_member(UUID)
        bounds, objects, index, held = await controller.query(
            lambda db: (
                streams.all_bounds(db),
                schema.all_objects(db),
                schema.current_index(db),
                all_held(db),
            )
        )
        self.catalog = Catalog(objects, index)
        self.visible = VisibleStreams(self.store, self.ballot, bounds, SET, self.catalog)
        self.catalog.observe(controller.observers)
        self.visible.observe(controller.observers)
        self.locks = LockTable(held, controller.log_now_ms)
        self.locks.observe(controller.observers)
        self.groups = Groups(controller, self.visible, self.catalog, SET, self.random, self.locks)
        self.pipelines = Pipelines(
            controller, self.catalog, self.visible, self.clock, SET, self.locks, self.random
        )

    def peer(self, name: str, lsn: int | None = None) -> None:
        """`name` has everything, or everything up to `lsn`, on its disk."""
        self.controller.quorum.admit(name)
        reached = self.controller.written_lsn if lsn is None else lsn
        self.controller.feeding.peer_persisted(name, reached, 0)

    async def declare(self, kind: str, name: str, spec: Spec) -> int:
        """Create or change an object; returns its id."""
        change = ObjectChange(kind, "default", name, spec_to_json(spec).decode())
        (item,) = await self.controller.execute(ApplySchema(self.catalog.metadata_index, (change,)))
        assert isinstance(item.id, int)
        return item.id

    async def stream(self, name: str) -> int:
        return await self.declare("Stream", name, StreamSpec(partitions=(SET,)))

    async def append(self, stream_id: int, *values: bytes, data: bytes = b"") -> Appended:
        data = data or encode_values(values, self.clock.now_ms())
        result = await self.controller.execute(
            AppendBatch.of(stream_id, read_head(data), len(data)), data
        )
        assert isinstance(result, Appended)
        return result

    async def read(self, stream_id: int, offset: int = 0) -> list[StampedBatch]:
        return await self.visible.read(stream_id, offset, 1 << 30)

    async def rows(self, sql: str, *bindings: Any) -> list[tuple[Any, ...]]:
        return await self.controller.query(lambda db: db.execute(sql, bindings).fetchall())


@contextlib.asynccontextmanager
async def leading(
    directory: Path, *, members: Sequence[str] = ("n1",), services: bool = True
) -> AsyncIterator[Stack]:
    """A stack that leads. Without `services` only its controller runs, not even committed."""
    token = trio.lowlevel.current_trio_token()
    fatal: list[BaseException] = []
    store = Store(
        directory,
        cluster="test",
        replica_set=SET,
        node="n1",
        tables=MACHINE.tables,
        durability="os",
        # None in a short test: whoever damages its write-ahead log needs all of it there.
        checkpoint_bytes=16 << 20,
        reader_threads=2,
        disk=SystemDisk(),
        clock=SystemClock(),
        post=partial(token.run_sync_soon, idempotent=True),
        on_fatal=fatal.append,
    )
    try:
        stack = Stack(store, members, Tuning(idle_notice_s=0.005))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.run)
            nursery.start_soon(_run, stack.controller)
            if services:
                await stack.begin()
                nursery.start_soon(stack.groups.run)
                nursery.start_soon(stack.pipelines.run)
            yield stack
            stack.controller.stop(ShuttingDownError("the test is over"))
            nursery.cancel_scope.cancel()
        assert all(error in stack.fatal for error in fatal), "a node hears of what ends it"
    finally:
        store.close()


async def _run(controller: Controller) -> None:
    with contextlib.suppress(HadronError):
        await controller.run()
