"""What directed scenarios of transactions are written in; see `play` and `region_play`."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import trio

from hadron.client import Client, Transaction
from hadron.model.batch_building import encode_values
from hadron.model.errors import HadronError
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.model.transactions import TransactionId
from hadron.partition.controller import Controller
from hadron.sim.actors.clients import STREAM
from hadron.sim.actors.group_plans import GroupPlan
from hadron.sim.actors.steps import DrainingMaker, Maker
from hadron.sim.actors.transactions import DEALS, OUTPUTS, Noted
from hadron.sim.evidence.history import Publish
from hadron.sim.notes.wrapping import wrapped
from hadron.sim.scenarios.region_play import RegionPlay
from hadron.sim.world.regions import AMERICA, EUROPE
from hadron.sim.world.replica_set import World
from hadron.state.machine import Command
from hadron.wire.dialing import dial
from hadron.wire.messages import method, transactions_pb2

TRANSACT: Final = method("Transact")
OUTCOME: Final = method("Outcome")

End = transactions_pb2.TransactRequest
Answer = transactions_pb2.OutcomeResponse


class Transactor:
    """Somebody who does transactions on purpose, with a client of its own."""

    def __init__(self, play: RegionPlay, client: Client, host: str) -> None:
        self.play = play
        self.client = client
        self.host = host
        self._values = 0

    def value(self) -> str:
        """Another one each time."""
        self._values += 1
        return f"{self.host}/{self._values} of a transaction"

    async def do(
        self,
        *places: str,
        driver: str | None = None,
        more: Callable[[Transaction], Awaitable[None]] | None = None,
        pause: Callable[[], Awaitable[None]] | None = None,
        rolls_back: bool = False,
        stream: str = STREAM,
    ) -> Noted:
        """One transaction, with a record for each of these partitions; `more` is what it does
        besides, `pause` what happens before it is to be committed. It is over, and known, when
        this returns."""
        noted: Noted | None = None
        try:
            async with self.client.transaction(driver=driver) as tx:
                noted = Noted(self.play.history, self.host, tx._work)
                try:
                    for place in places:
                        value = self.value()
                        given = await tx.publish(stream, value, partition=place)
                        noted.published(stream, place, value, given)
                    if more is not None:
                        await more(tx)
                    if pause is not None:
                        await pause()
                    if rolls_back:
                        await tx.rollback()
                    else:
                        noted.asks()
                        await tx.commit()
                finally:
                    noted.end()
        except HadronError as error:
            self.play.regions.trace.log(f"{self.host}: {error}")
        assert noted is not None
        await self.until_known(noted)
        return noted

    async def until_known(self, noted: Noted, timeout_s: float = 60.0) -> None:
        """Ask until it is known what became of it."""
        with trio.move_on_after(timeout_s):
            while not noted.is_settled and noted.operation.transaction:
                try:
                    found = await self.client.outcome(noted.operation.transaction)
                except HadronError:
                    await trio.sleep(0.2)
                    continue
                if found.state == "committed":
                    noted.tell("committed")
                elif found.state == "aborted":
                    noted.tell("rolled back", "its driver says so")
                await trio.sleep(0.2)
            return
        raise AssertionError(f"nobody says what became of {noted.operation.transaction}")


@asynccontextmanager
async def transactor(
    play: RegionPlay, host: str = "x1", request_timeout_s: float = 5.0
) -> AsyncIterator[Transactor]:
    async with play.regions.client(
        host, connect_timeout_s=60.0, request_timeout_s=request_timeout_s
    ) as client:
        yield Transactor(play, client, host)


@asynccontextmanager
async def failing(
    world: World, what: type[Command], *, is_logged: bool, away_s: float = 0.5
) -> AsyncIterator[trio.Event]:
    """The leader of a set fails once it is to log such a command: before that, or when it is
    committed and nobody has heard of it. It is started again after `away_s`; the block ends once
    that is so. Gives the event of the failure."""
    failed = trio.Event()
    is_armed = True

    def submits(original: Any) -> Any:
        def submit(controller: Controller, command: Command, body: Any = b"", **named: Any) -> None:
            nonlocal is_armed
            if is_armed and type(command) is what and controller.node in world.disks:
                is_armed = False
                if not is_logged:
                    failed.set()
                    return
                named["done"] = lambda _result, _error: failed.set()
            original(controller, command, body, **named)

        return submit

    async def crash() -> None:
        await failed.wait()
        name = world.config.leader.name
        await world.crash(name, power=True)
        await trio.sleep(away_s)
        await world.start(name)

    with wrapped(Controller, submit=submits):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(crash)
            yield failed
            with trio.fail_after(60.0):
                await failed.wait()
    await world.wait_serving()


async def until_prepared(world: World, count: int = 1) -> None:
    """Until the set's leader has so many entries of intents."""
    name = world.config.leader.name

    def has_some() -> bool:
        if not world.listens(name):
            return False
        connection = world.node(name).member._store.writer.connection
        found = connection.execute("SELECT count(*) FROM hadron_intent").get
        return isinstance(found, int) and found >= count

    await world.wait_for("intents", has_some)


# --- one that speaks what is on the wire ----------------------------------------------------------


class RawCall:
    """A client's call to a driver, which says anything at any time, again if it likes."""

    def __init__(self, play: RegionPlay, home: str, stream_id: int) -> None:
        self._play = play
        self._home = home
        self._stream_id = stream_id
        self._answers: deque[transactions_pb2.TransactEvent.Answer] = deque()
        self._came = trio.Event()
        self._call: Any = None
        self._ended: Exception | None = None
        self.block = transactions_pb2.TransactEvent.Block()

    @asynccontextmanager
    async def open(self, host: str) -> AsyncIterator[RawCall]:
        world = self._play.regions.sets[self._home]
        network = self._play.regions.network.boot(host)
        connection = await dial(network, world.config.leader.address)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.run)
            self._call = connection.call(
                TRANSACT, End(), on_message=self._hear, on_end=self._end, end=False
            )
            while not self.block.size:
                await self._came.wait()
            yield self
            nursery.cancel_scope.cancel()

    def _hear(self, event: transactions_pb2.TransactEvent, _attachment: memoryview) -> None:
        for answer in event.answers:
            if answer.HasField("block"):
                self.block = answer.block
            else:
                self._answers.append(answer)
        self._came.set()
        self._came = trio.Event()

    def _end(self, error: HadronError | None) -> None:
        self._ended = error or AssertionError("the call has ended")
        self._came.set()

    def id(self, number: int) -> TransactionId:
        ballot = self.block.ballot
        return TransactionId(self._home, ballot.epoch, ballot.incarnation, number)

    def say(
        self,
        number: int,
        *values: str,
        place: str = "",
        first: int = 0,
        end: Any = End.OPEN,
        records: Sequence[int] = (),
    ) -> Callable[[], None]:
        """Each value is a statement of its own, or, with `records`, all of them are one; what is
        returned says the same again."""
        encoded = [value.encode() for value in values]
        batches = [encode_values(some, 1) for some in ([encoded] if records else zip(encoded))]
        publish = transactions_pb2.Statement.Publish(stream_id=self._stream_id)
        part = End.Part(
            number=number,
            first=first,
            statements=[
                transactions_pb2.Statement(
                    replica_set=place or self._home, length=len(batch), publish=publish
                )
                for batch in batches
            ],
            end=end,
            records=records,
        )

        def send() -> None:
            self._call.send(End(parts=[part]), batches)

        send()
        return send

    async def answer(self, number: int) -> str:
        """The kind of the next answer to this transaction."""
        while True:
            for answer in list(self._answers):
                kind = answer.WhichOneof("kind") or ""
                if getattr(answer, kind).number == number:
                    self._answers.remove(answer)
                    return kind
            if self._ended is not None:
                raise self._ended
            await self._came.wait()


@asynccontextmanager
async def raw_call(play: RegionPlay, home: str, host: str = "w1") -> AsyncIterator[RawCall]:
    async with play.regions.client(host, connect_timeout_s=60.0) as client:
        stream_id = (await client.stream(STREAM)).id
    async with RawCall(play, home, stream_id).open(host) as call:
        yield call


def expected(play: RegionPlay, place: str, *values: str) -> list[Publish]:
    """Records of which the scenario says itself whether they are to be there."""
    return [play.history.publish("w1", "", STREAM, place, [value]) for value in values]


# --- a group whose members acknowledge in transactions --------------------------------------------


async def declare_deals(play: RegionPlay, count: int = 12) -> None:
    """Streams to take from, and to publish to; the first has so many records in Europe."""
    spec = StreamSpec(partitions=(EUROPE, AMERICA))
    objects = [SchemaObject(kind="Stream", name=name, spec=spec) for name in (DEALS, OUTPUTS)]
    assert await play.change(objects)
    await play.regions.wait_same_schema()
    async with (
        play.regions.client("c1", connect_timeout_s=60.0) as client,
        client.producer(DEALS, partition=EUROPE) as producer,
    ):
        for number in range(count):
            operation = play.history.publish("c1", "", DEALS, EUROPE, [f"deal {number}"])
            await play.send(producer, operation)


async def drain_deals(play: RegionPlay, plan: GroupPlan, members: Sequence[Maker]) -> None:
    """Somebody makes something of all that these members have left, and it is over."""
    world = play.regions.metadata
    places: Sequence[str] = (EUROPE, AMERICA)
    last = DrainingMaker(world, play.history, "dy", f"{world.seed}/dy", places, plan=plan)
    with trio.fail_after(60.0):
        await last.run()
        for each in (last, *members):
            await each.until_resolved()
