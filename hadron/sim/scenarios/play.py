"""What directed scenarios are written in: a few sentences of "who does what to whom".

A scenario is one of PROTOCOL's histories, played on purpose. It may look into nodes to wait for the
moment that it is about; what it claims, it claims as a client, and the checker judges it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final, Protocol

import trio
from google.protobuf.message import Message

from hadron.client import Client
from hadron.client.terms.results import BatchReceipt
from hadron.fakes.trace import Trace
from hadron.model.batch_building import encode_values
from hadron.model.errors import HadronError, OffsetMismatchError, RequestError
from hadron.model.record_batch import decode_batch
from hadron.node.settings import Settings
from hadron.sim.actors.clients import STREAM, text
from hadron.sim.actors.raw_producer import ask_once, produce_once
from hadron.sim.evidence.history import Acks, Publish, Read
from hadron.sim.notes.groups import noting_groups
from hadron.sim.notes.nodes import noting_divergence
from hadron.sim.runs.run import Judgement, Outcome, run_seed
from hadron.sim.runs.workload import Run, judgement
from hadron.sim.world.backups import Backups
from hadron.sim.world.replica_set import SETTINGS, World
from hadron.state import schema
from hadron.state.groups.progress import AckRecords
from hadron.state.schema import DeleteObjects
from hadron.state.streams.partitions import AppendBatch
from hadron.state.together import DoTogether
from hadron.wire.messages import method, streams_pb2

_ACKS: Final = {
    "majority": streams_pb2.ACKS_MAJORITY,
    "leader": streams_pb2.ACKS_LEADER,
    "all": streams_pb2.ACKS_ALL,
}


class Play(Run):
    """A world with a history, and the sentences."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._sent = 0

    @cached_property
    def backups(self) -> Backups:
        """The disk that operators have for them."""
        return Backups(self.world)

    # --- clients --------------------------------------------------------------------------------

    async def publish(
        self, *values: str, acks: Acks = "majority", timeout_s: float = 30.0, host: str = "c1"
    ) -> Publish:
        """Publish with a client of its own, which gives up after `timeout_s`."""
        operation = self.history.publish(
            host, "", STREAM, self.world.config.name, values, acks=acks
        )
        try:
            async with (
                self.world.client(host, connect_timeout_s=timeout_s) as client,
                client.producer(STREAM, acks=acks, delivery_timeout_s=timeout_s) as producer,
            ):
                receipts: Sequence[BatchReceipt] = await producer.send_many(values)
        except HadronError as error:
            self.history.unknown(operation, error)
        else:
            operation.runs = [(receipt.base_offset, receipt.count) for receipt in receipts]
            self.history.ok(operation)
        return operation

    async def produce(
        self,
        *values: str,
        producer: bytes = b"",
        sequence: int = -1,
        acks: Acks = "majority",
        timeout_s: float = 5.0,
        host: str = "c1",
        node: str = "n1",
        again: Publish | None = None,
        epoch: int = 0,
        expect_offset: int | None = None,
    ) -> Publish:
        """One request to one node on a connection of its own, without retries: a client that hangs
        up after `timeout_s`. `again` is the operation that this is a retry of."""
        operation = again or self.history.publish(
            host, producer.hex(), STREAM, self.world.config.name, values, acks=acks
        )
        batch = encode_values(
            [value.encode() for value in values],
            1,
            producer_id=producer,
            producer_epoch=epoch,
            sequence=sequence,
        )
        request = streams_pb2.ProduceRequest(
            stream=STREAM, acks=_ACKS[acks], expect_offset=expect_offset
        )
        try:
            answer = await produce_once(self.world, node, host, request, batch, timeout_s)
        except OffsetMismatchError as error:
            self.history.refused(operation, error)
        except (HadronError, OSError) as error:
            self.history.unknown(operation, error)
        else:
            assert isinstance(answer, streams_pb2.ProduceResponse)
            operation.runs = [(answer.base_offset, len(values))]
            operation.duplicate = answer.duplicate
            self.history.ok(operation)
        return operation

    async def claim(self, name: str, after: int | None = None, token: bytes = b"") -> int:
        """Ask who has a producer's name, or claim it; raises what the leader says."""
        request = streams_pb2.ClaimProducerRequest(
            stream=STREAM, name=name, after=after, token=token
        )
        what = method("ClaimProducer")
        answer = await ask_once(self.world, "n1", "c1", what, request, [], 5.0)
        return int(answer.claim)

    async def together(self, *values: str, host: str = "c1") -> Publish:
        """Publish each value as a batch of its own, all of them in one entry: at the leader itself,
        as no client does that."""
        operation = self.history.publish(host, "", STREAM, self.world.config.name, values)
        member = self.world.node(self.world.config.leader.name).member
        assert member._leadership is not None
        stream_id = member._store.writer.connection.execute(
            "SELECT id FROM hadron_schema_object WHERE name = ?", (STREAM,)
        ).get
        batches = [encode_values([value.encode()], 1) for value in values]
        command = DoTogether.of(
            *(AppendBatch(stream_id, 1, len(batch), b"", 0, -1) for batch in batches)
        )
        try:
            results = await member._leadership.controller.execute(command, b"".join(batches))
        except HadronError as error:
            self.history.unknown(operation, error)
        else:
            operation.runs = [(each.base_offset, each.count) for each in results]
            self.history.ok(operation)
        return operation

    async def acknowledge(self, group: str, *offsets: int) -> None:
        """Log that a group has dealt with these, behind the back of who serves it."""
        leader = self.world.node(self.world.config.leader.name).member
        assert leader._leadership is not None
        ranges = tuple((offset, offset) for offset in offsets)
        await leader._leadership.controller.execute(AckRecords(self._group(group)[0], ranges))

    async def delete(self, name: str) -> None:
        """A stream is deleted, at the leader itself: also while that reaches nobody, as no client
        does it then."""
        noted = self.history.apply("o0", [("Stream", name)], deletes=True)
        leader = self.world.node(self.world.config.leader.name).member
        assert leader._leadership is not None
        tables = leader._store.writer.connection
        stream_id = tables.execute(
            "SELECT id FROM hadron_schema_object WHERE name = ?", (name,)
        ).get
        command = DeleteObjects(schema.current_index(tables), (stream_id,))
        await leader._leadership.controller.execute(command)
        self.history.ok(noted)

    def dead_letters(self, group: str) -> int:
        """How many the leader's tables count."""
        return self._group(group)[1]

    def _group(self, name: str) -> tuple[int, int]:
        leader = self.world.node(self.world.config.leader.name).member
        row = leader._store.writer.connection.execute(
            "SELECT group_id, dead_lettered FROM hadron_group WHERE name = ?", (name,)
        ).fetchone()
        assert row is not None, f"there is no group {name}"
        group_id, count = row
        assert isinstance(group_id, int)
        assert isinstance(count, int)
        return group_id, count

    async def read(self, *, timeout_s: float = 5.0, host: str = "r1", offset: int = 0) -> Read:
        """What a reader is shown from `offset` on."""
        operation = self.history.read(host, STREAM, self.world.config.name, offset)
        try:
            async with self.world.client(
                host, connect_timeout_s=timeout_s, request_timeout_s=timeout_s
            ) as client:
                await self._fetch(client, operation)
        except HadronError as error:
            self.history.unknown(operation, error)
        return operation

    async def _fetch(self, client: Client, operation: Read) -> None:
        partition, position = operation.partition, operation.offset
        fetched = await client.fetch(STREAM, partition, position)
        for batch in fetched.batches:
            records = decode_batch(batch.data, base_offset=batch.base_offset).records(
                max(0, position - batch.base_offset)
            )
            operation.values.extend(text(record.value) for record in records)
        operation.end = fetched.next_offset
        self.history.ok(operation)

    async def follow(self, operation: Read, *, host: str = "r1") -> None:
        """Read on from the beginning until that fails."""
        try:
            async with self.world.client(host) as client:
                async for record in client.read(operation.stream, follow=True):
                    operation.values.append(text(record.value))
        except HadronError as error:
            self.history.unknown(operation, error)

    async def fill(self, count: int, size: int = 100, *, host: str = "c8") -> None:
        """Publish `count` records of about `size` bytes that the story is not about."""
        await self.publish(*(self.value(size) for _ in range(count)), host=host)

    def value(self, size: int = 100) -> str:
        """A value that no other record has."""
        self._sent += 1
        return f"filler {self._sent}:".ljust(size, ".")

    async def must_not_answer(self, node: str, name: str, question: Message) -> None:
        """Ask a node that leads no more, and may not know it; whatever it says would be stale, also
        that it is asked for nonsense: what there is says the tables."""
        answer: Message | RequestError
        try:
            answer = await ask_once(self.world, node, "c1", method(name), question, [], 10.0)
        except RequestError as refusal:
            answer = refusal
        except HadronError as error:
            self.world.trace.log(f"{node} does not answer {name}: {error}")
            return
        raise AssertionError(f"{node} answers {name} when it leads no more: {answer}")

    # --- nodes ----------------------------------------------------------------------------------

    def others(self, *names: str) -> list[str]:
        """All nodes but these."""
        return [name for name in self.world.names if name not in names]

    def part(self, *names: str) -> None:
        """Cut these nodes off from the other nodes; clients still reach everybody."""
        for name in names:
            self.world.network.isolate(name, *self.others(*names))
        self.history.event("cut", " ".join(names))

    def join(self, *names: str) -> None:
        """Undo `part`; what was held back is lost with its connections."""
        for name in names:
            for other in self.others(*names):
                self.world.network.break_connections(name, other, lose_all=True)
                self.world.network.heal(name, other)

    async def lose(self, name: str) -> None:
        """A node's disk, and with it the node, is gone, and so is what it had on the wire; it does
        not start again by itself."""
        self.world.network.break_connections(name, lose_all=True)
        await self.world.crash(name, power=False)
        self.world.wipe(name)

    async def back_up(self, name: str) -> Path:
        """An operator takes a backup of a running node."""
        async with self.world.client("operator") as client:
            return await self.backups.take(client, self.world, name)

    async def restore(self, name: str, backup: Path) -> None:
        """An operator puts a backup in the place of a node's state, and starts it again."""
        await self.world.stop(name)
        self.history.event("restore", name, "from a backup")
        self.backups.restore(self.world, name, backup)
        await self.world.start(name)

    async def recover(self) -> None:
        """An operator takes all disks as they are, whatever is lost with that."""
        world = self.world
        for name in world.names:
            world.recover(name)
        self.history.event("reconfigure", detail="loss")
        await world.start()
        await world.wait_serving()

    async def tail_on(self, name: str, *values: str) -> int:
        """Give the leader, which must not have a majority, and one more node entries that nobody
        acknowledges; returns the last one's lsn."""
        lsn = self.last_lsn("n1")
        for value in values:
            await self.produce(value, timeout_s=0.3)
        await self.wait_holds(name, lsn + len(values))
        return lsn + len(values)

    async def promote(
        self, leader: str, members: Sequence[str], *names: str, wait_s: float = 60.0
    ) -> None:
        """Raise the epoch: these members, one of them leading. The named nodes get the new file;
        wait until the leader serves, for no longer than `wait_s`."""
        world = self.world
        world.promote(leader, members)
        await self.hand_out(*names)
        if wait_s < 60.0:
            with trio.move_on_after(wait_s):
                await world.wait_serving()
        else:
            await world.wait_serving()

    async def hand_out(self, *names: str) -> None:
        """Start nodes again with the newest configuration file."""
        world = self.world
        for name in names:
            world.hand_out(name)
            await world.crash(name, power=False)
            await world.start(name)

    async def wait_holds(self, name: str, lsn: int, *, timeout_s: float = 30.0) -> None:
        """Until a node's log has the entry."""
        await self.world.wait_for(
            f"{name} holding {lsn}", lambda: self.world.status(name).last_lsn >= lsn, timeout_s
        )

    def first_offset(self, name: str) -> int:
        """Where the stream begins in a node's tables, as its writer has them."""
        row = (
            self.world.node(name)
            .member._store.writer.connection.execute(
                "SELECT first_offset FROM hadron_stream_partition WHERE stream_id ="
                " (SELECT id FROM hadron_schema_object WHERE name = ?)",
                (STREAM,),
            )
            .get
        )
        return int(row or 0)

    def last_lsn(self, name: str) -> int:
        return int(self.world.status(name).last_lsn)

    async def wait_promised(self, name: str, *, timeout_s: float = 30.0) -> None:
        """Until a node has promised the leader's ballot."""
        status = self.world.status
        await self.world.wait_for(
            f"{name}'s promise", lambda: status(name).ballot == status("n1").ballot, timeout_s
        )


Body = Callable[[Play], Awaitable[None]]


@dataclass(frozen=True)
class Directed:
    """A named scenario.

    Attributes:
        name: what tests, planted bugs and `docs/` call it.
        rule: the rule of PROTOCOL that it proves.
        history: what happens, in a sentence.
        body: plays it; the end (healing, judging) follows by itself.
    """

    name: str
    rule: str
    history: str
    body: Body
    nodes: int = 3
    settings: Settings = field(default=SETTINGS)

    async def __call__(self, world: World) -> Judgement:
        play = Play(world)
        with noting_divergence(world, play.history), noting_groups(play.history):
            return await self._act(play)

    async def _act(self, play: Play) -> Judgement:
        await play.declare()
        await play.world.wait_in_step()
        await self.body(play)
        async with trio.open_nursery() as nursery:
            await play.heal()
            nursery.start_soon(play.operate)
            await play.drain()
            verdict = await play.finish()
            nursery.cancel_scope.cancel()
        return judgement(verdict)

    def play(self, seed: int = 0, trace: Trace | None = None) -> Outcome:
        """Run it in the world of `seed`."""
        return run_seed(seed, self, nodes=self.nodes, settings=self.settings, trace=trace)


class Playable(Protocol):
    """A directed scenario in any kind of world; attributes as of `Directed`."""

    @property
    def name(self) -> str: ...

    @property
    def rule(self) -> str: ...

    @property
    def history(self) -> str: ...

    def play(self, seed: int = 0, trace: Trace | None = None) -> Outcome: ...


SCENARIOS: Final[dict[str, Playable]] = {}
"""Every directed scenario, by name."""


def scenario(rule: str, *, nodes: int = 3, settings: Settings = SETTINGS) -> Callable[[Body], Body]:
    """Register a scenario under its function's name; its docstring is the history."""

    def register(body: Body) -> Body:
        name = getattr(body, "__name__", "").replace("_", "-")
        history = " ".join((body.__doc__ or "").split())
        assert name not in SCENARIOS, name
        assert history, name
        SCENARIOS[name] = Directed(name, rule, history, body, nodes, settings)
        return body

    return register
