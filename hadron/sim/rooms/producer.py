"""The client's producing side alone: programs that publish to made up logs while connections and
leaders are lost; and what must be true of what they were told, once all of that has ended.

    producer_logs   what a partition takes, written from the rules, and its leaders
    producer_wires  connections that are lost, over which a real session asks
"""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from hadron.client.connecting.background import Background
from hadron.client.producing.assembly import open_producer
from hadron.client.producing.producer import Producer
from hadron.client.producing.publisher import Pending
from hadron.client.producing.settings import ProducerSettings
from hadron.client.terms.results import Receipt
from hadron.fakes.scheduling import SimTime, run_seeded
from hadron.fakes.trace import Trace
from hadron.model.errors import (
    ClosedError,
    HadronError,
    NotFoundError,
    OutcomeUnknownError,
    PeerError,
    ProducerFencedError,
    RecordFates,
    SequenceError,
)
from hadron.model.schema import StreamSpec
from hadron.sim.rooms.played import Played
from hadron.sim.rooms.producer_logs import BEFORE_LOGGING, NOTHING, State
from hadron.sim.rooms.producer_wires import LATE_S, STREAM, Schema, Wires, World

_PARTITIONS: Final = ("p0", "p1", "p2")
_LENGTH_S: Final = 6.0
_SENDERS: Final = 2
_RECORDS: Final = 250
"""Of each of them."""

_ITEMS: Final = 90
"""Of an importer."""

_TOLD_LATE_S: Final = 1.0
"""So much after the delivery timeout all is told: it is looked for every half second."""

_LAST_TRIES: Final = 5
"""Records that a producer may take whose stream was deleted."""

_NAME: Final = "importer"

_HEALING_S: Final = 60.0
"""An importer that begins anew is through by then."""


@dataclass(eq=False)
class Sent:
    """A record that was accepted, and what its program was told."""

    value: bytes
    task: str
    key: str | None
    partition: str | None
    """That it names."""
    sent_s: float
    expect_offset: int | None = None
    expect_key_offset: int | None = None
    pending: Pending | None = None
    receipt: Receipt | None = None
    error: HadronError | None = None

    async def hear(self) -> None:
        """What becomes of it."""
        assert self.pending is not None
        try:
            self.receipt = await self.pending.wait()
        except HadronError as error:
            self.error = error


@dataclass
class History:
    """What is wrong with it, and how much there was in it."""

    problems: list[str] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    answers: int = 0
    many: list[tuple[list[bytes], RecordFates]] = field(default_factory=list)
    """What was given together, and how much of it was told to be where."""
    log: list[list[bytes]] = field(default_factory=list)


# --- faults -------------------------------------------------------------------------------------


async def lead(world: World, name: str, until_s: float, worst_s: float) -> None:
    """Leaders of one partition come and go."""
    partition, chance = world.partitions[name], world.chance
    while trio.current_time() < until_s:
        await trio.sleep(chance.expovariate(1.2))
        lost = partition.lose_leader()
        if lost is not None and lost.is_gone:
            world.cut(lost)
        await trio.sleep(chance.choice((0.0, 0.1, 1.0, worst_s)) * chance.random())
        partition.take_over()
        await trio.sleep(chance.choice((0.0, 0.2, 2.0)) * chance.random())
        zombie = partition.zombie
        partition.end_zombie()
        if zombie is not None and chance.random() < 0.7:
            world.cut(zombie)


async def trouble(world: World, until_s: float) -> None:
    """All else, in turn."""
    chance, usual_s = world.chance, world.commits_s
    while trio.current_time() < until_s:
        await trio.sleep(chance.expovariate(5))
        kind = chance.choice(("cut", "cut", "refuse", "final", "hold", "slow", "stall"))
        for_s = chance.expovariate(5)
        if kind == "cut":
            world.cut(None)
        elif kind == "refuse":
            world.refusing = chance.choice(BEFORE_LOGGING)
            await trio.sleep(for_s)
            world.refusing = None
        elif kind == "final":
            world.final = 0.2
            await trio.sleep(for_s)
            world.final = 0.0
        elif kind == "hold":
            held = chance.choice(list(world.partitions.values())).held
            held.add(b"k%d" % chance.randrange(3))
            await trio.sleep(for_s)
            held.clear()
        elif kind == "slow":
            world.commits_s = 0.3
            await trio.sleep(for_s)
            world.commits_s = usual_s
        else:
            world.stalls = 0.1
            await trio.sleep(for_s)
            world.stalls = 0.0


# --- programs -----------------------------------------------------------------------------------


def settings(chance: random.Random, name: str | None = None) -> ProducerSettings:
    """Small ones, of all kinds."""
    failover = chance.choice(("none", "unkeyed", "any", "duplicate"))
    return ProducerSettings(
        failover="none" if name is not None else failover,
        batch_bytes=chance.choice((20, 60, 200)),
        linger_ms=chance.choice((0, 5, 50)),
        max_buffer_bytes=chance.choice((300, 1_000, 5_000)),
        delivery_timeout_s=chance.choice((0.3, 1.0, 3.0)),
        name=name,
    ).checked()


@contextlib.asynccontextmanager
async def client(world: World, spec: StreamSpec) -> AsyncIterator[tuple[Wires, Schema]]:
    """A program's."""
    async with Background() as background:
        session = Wires(world, background, len(world.left))
        background.on_crash = session.close
        try:
            yield session, Schema(session, world, spec)
        finally:
            session.close()


class Sender:
    """One task of a program."""

    def __init__(self, world: World, producer: Producer, history: History, name: str) -> None:
        self._world = world
        self._chance = random.Random(world.chance.random())
        self._producer = producer
        self._history = history
        self._name = name
        self._count = 0
        self._expecting = self._chance.choice((0.05, 0.1, 0.5))
        """The share of records that expect something."""

    async def run(self, nursery: trio.Nursery, may_expect_keys: bool) -> None:
        chance = self._chance
        for _ in range(_RECORDS):
            kind = chance.random()
            if kind < 0.06:
                await trio.sleep(chance.expovariate(2))
            elif kind < 0.08:
                with contextlib.suppress(HadronError):
                    await self._producer.flush()
            elif kind < 0.16:
                await self._many()
            else:
                sent = self._following()
                if chance.random() < self._expecting:
                    self._expect(sent, may_expect_keys)
                await self.send(sent)
                nursery.start_soon(sent.hear)
            if chance.random() < 0.3:
                await trio.sleep(chance.expovariate(30))

    def _following(self) -> Sent:
        chance = self._chance
        self._count += 1
        return Sent(
            b"%s-%d" % (self._name.encode(), self._count),
            self._name,
            chance.choice((None, None, "k0", "k1", "k2")),
            chance.choice((None, None, None, *self._world.partitions)),
            trio.current_time(),
        )

    def _expect(self, sent: Sent, may_expect_keys: bool) -> None:
        """What is so now, or what may be so soon."""
        chance, partitions = self._chance, self._world.partitions
        sent.partition = chance.choice(tuple(partitions))
        leader = partitions[sent.partition].leader
        if leader is None:
            return
        if sent.key is not None and may_expect_keys:
            sent.expect_key_offset = leader.state.latest.get(sent.key.encode(), NOTHING)
        else:
            sent.expect_offset = len(leader.state.values) + chance.choice((0, 0, 1, 3))

    async def send(self, sent: Sent) -> None:
        sent.sent_s = trio.current_time()
        sent.pending = await self._producer.send_soon(
            sent.value,
            key=sent.key,
            partition=sent.partition,
            expect_offset=sent.expect_offset,
            expect_key_offset=sent.expect_key_offset,
        )
        sent.sent_s = trio.current_time()
        self._history.sent.append(sent)

    async def _many(self) -> None:
        """Whole batches, of which is told together what became of them."""
        values = []
        for _ in range(self._chance.randint(1, 12)):
            self._count += 1
            values.append(b"%s-%d" % (self._name.encode(), self._count))
        try:
            await self._producer.send_many(values)
            fates = RecordFates(len(values), 0, 0)
        except HadronError as error:
            assert error.fates is not None, error  # noqa: PT017
            fates = error.fates
        self._history.many.append((values, fates))


async def publish(world: World, history: History, healed: trio.Event) -> None:
    """A program without a name: tasks that send whatever there is, and, once all is well, some
    records more, which must be logged."""
    chance = world.chance
    chosen = settings(chance, chance.choice((None, None, None, "publisher")))
    moves_keys = chosen.failover in ("any", "duplicate")
    keys = "" if moves_keys and len(world.partitions) > 1 else "indexed"
    async with client(world, StreamSpec(partitions=tuple(world.partitions), keys=keys)) as parts:
        producer = await _opened(parts, chosen)
        watching = trio.CancelScope()
        with contextlib.suppress(HadronError):
            async with producer, trio.open_nursery() as nursery:
                nursery.start_soon(watch, history, chosen.delivery_timeout_s, watching)
                async with trio.open_nursery() as hearing, trio.open_nursery() as sending:
                    senders = [
                        Sender(world, producer, history, f"t{number}") for number in range(_SENDERS)
                    ]
                    for sender in senders:
                        sending.start_soon(sender.run, hearing, keys != "")
                await healed.wait()
                await trio.sleep(chance.choice((0.0, 3.0, idle_s(chosen))))
                forget(world, chosen)
                await last_ones(world, history, senders[0], chosen)
                await delete(world, history, senders[0])
                watching.cancel()
        history.problems += left_over(producer)
    for each in history.sent:
        if each.receipt is None and each.error is None:
            history.problems.append(f"{each.value!r} has no outcome, and its producer is closed")
    history.problems += judge(world, history, chosen)


async def _opened(parts: tuple[Wires, Schema], chosen: ProducerSettings) -> Producer:
    """One with a name asks a leader first, and says so when there is none for too long: then the
    program tries again."""
    while True:
        try:
            return await open_producer(*parts, STREAM, chosen)
        except PeerError:
            await trio.sleep(0.3)


def idle_s(chosen: ProducerSettings) -> float:
    """Stands for the 24 hours after which a producer may be forgotten: nothing of it is under way
    any more."""
    return chosen.delivery_timeout_s + 2 * LATE_S


def forget(world: World, chosen: ProducerSettings) -> None:
    for partition in world.partitions.values():
        assert partition.leader is not None
        partition.leader.forget_idle(trio.current_time() - idle_s(chosen))


async def last_ones(
    world: World, history: History, sender: Sender, chosen: ProducerSettings
) -> None:
    """Nothing is wrong any more: what is sent now is logged. What is left of before is told first,
    or in time."""
    last = []
    for name in world.partitions:
        for number in range(3):
            sent = Sent(f"last-{name}-{number}".encode(), "last", None, name, trio.current_time())
            await sender.send(sent)
            last.append(sent)
    for sent in last:
        with trio.move_on_after(chosen.delivery_timeout_s + _TOLD_LATE_S):
            await sent.hear()
        if sent.receipt is None:
            history.problems.append(f"{sent.value!r} is not logged when all is well: {sent.error}")


async def delete(world: World, history: History, sender: Sender) -> None:
    """The stream is deleted: its producer hears that from a leader, and takes no record more."""
    world.deleted = True
    for number in range(_LAST_TRIES):
        sent = Sent(b"deleted-%d" % number, "deleted", None, None, trio.current_time())
        try:
            await sender.send(sent)
        except NotFoundError:
            return
        await sent.hear()
    history.problems.append(f"a producer goes on {_LAST_TRIES} records after its stream's end")


async def watch(history: History, timeout_s: float, scope: trio.CancelScope) -> None:
    """Everything is told in time."""
    told = 0
    with scope:
        while True:
            await trio.sleep(0.5)
            due_s = trio.current_time() - timeout_s - _TOLD_LATE_S
            while told < len(history.sent) and history.sent[told].sent_s < due_s:
                sent = history.sent[told]
                told += 1
                assert sent.pending is not None
                if not sent.pending.is_done:
                    history.problems.append(
                        f"{sent.value!r} has no outcome {due_s - sent.sent_s + timeout_s:.1f} s "
                        "after it was sent"
                    )


def left_over(producer: Producer) -> Iterator[str]:
    """What a producer still holds that is closed."""
    publisher = producer._publisher
    if publisher.buffer.bytes:
        yield f"{publisher.buffer.bytes} bytes of the buffer are not given back"
    for sender in publisher._router.senders:
        accumulator = sender.accumulator
        if accumulator.held_bytes or accumulator.in_flight or not accumulator.is_empty:
            yield (
                f"{accumulator.partition} holds {accumulator.held_bytes} bytes, "
                f"{accumulator.in_flight} calls, {len(accumulator.unresolved())} batches"
            )


# --- judging ------------------------------------------------------------------------------------


def judge(world: World, history: History, chosen: ProducerSettings) -> Iterator[str]:
    """What is wrong with what was told, in words."""
    states = {name: partition.logged for name, partition in world.partitions.items()}
    logs = {name: state.values for name, state in states.items()}
    there = Counter(value for log in logs.values() for value in log)
    if chosen.failover != "duplicate":
        yield from (f"{value!r} is there {n} times" for value, n in there.items() if n > 1)
    for values, fates in history.many:
        found = sum(there[value] > 0 for value in values)
        if not fates.published <= found <= fates.published + fates.unknown:
            yield f"{found} of {len(values)} from {values[0]!r} on are there, and told: {fates}"
    for each in history.sent:
        error = each.error
        if each.receipt is not None:
            partition, offset = each.receipt.partition, each.receipt.offset
            if logs[partition][offset : offset + 1] != [each.value]:
                yield f"{each.value!r} is not at {partition}/{offset}, as its receipt says"
            yield from _judge_conditions(states[partition], each)
        elif isinstance(error, OutcomeUnknownError):
            if each.value not in world.left:
                yield f"{each.value!r} never left, and is called unknown: {error}"
        elif there[each.value]:
            yield f"{each.value!r} is in the log, and its sender was told: {error!r}"
        elif isinstance(error, SequenceError) and not isinstance(error, ProducerFencedError):
            yield f"{each.value!r} fails by what another has left open: {error!r}"
    yield from _judge_order(history.sent, chosen, len(logs))


def _judge_conditions(state: State, each: Sent) -> Iterator[str]:
    assert each.receipt is not None
    offset = each.receipt.offset
    if each.partition is not None and each.receipt.partition != each.partition:
        yield f"{each.value!r} of {each.partition} is in {each.receipt.partition}"
    if each.expect_offset is not None and each.expect_offset != offset:
        yield f"{each.value!r} is at {offset}, and expected {each.expect_offset}"
    if each.expect_key_offset is not None and each.key is not None:
        before = [at for at in range(offset) if state.keys[at] == each.key.encode()]
        if (before or [NOTHING])[-1] != each.expect_key_offset:
            yield f"{each.value!r} is behind {before[-1:]}, and expected {each.expect_key_offset}"


def _judge_order(sent: list[Sent], chosen: ProducerSettings, partitions: int) -> Iterator[str]:
    """As `Producer` promises it, of what one task has sent."""
    latest: dict[Any, Sent] = {}
    for each in sent:
        if each.receipt is None:
            continue
        lines: list[tuple[str, ...]] = []
        if each.partition is not None:
            lines.append(("of its partition", each.partition))
        elif each.key is not None and chosen.failover in ("none", "unkeyed"):
            lines.append(("of its key", each.key))
        if chosen.failover == "none" or (partitions == 1 and each.partition is None):
            lines.append(("of its place", each.receipt.partition))
        for line in lines:
            before = latest.get((each.task, *line))
            latest[each.task, *line] = each
            if before is None or before.receipt is None:
                continue
            if before.receipt.partition != each.receipt.partition:
                if line[0] == "of its key":
                    yield f"{before.value!r} and {each.value!r} have one key, and two partitions"
            elif before.receipt.offset >= each.receipt.offset:
                yield f"{each.value!r} stands before {before.value!r}, {line[0]}"


# --- importers ----------------------------------------------------------------------------------


async def bring(world: World, history: History, until: trio.Event) -> None:
    """A program that is started again whenever it ends by an error, and goes on behind what its
    name has brought (CLIENTS K10). Others may have been started with that name, too."""
    chance = random.Random(world.chance.random())
    while not until.is_set():
        chosen = settings(chance, _NAME)
        try:
            async with client(world, StreamSpec(partitions=tuple(world.partitions))) as parts:
                producer = await open_producer(*parts, STREAM, chosen)
                try:
                    async with producer:
                        await _bring_rest(producer, chance)
                finally:
                    history.problems += left_over(producer)
                until.set()
        except ProducerFencedError:
            await trio.sleep(chance.expovariate(0.3))
        except HadronError:
            await trio.sleep(chance.expovariate(3))


async def _bring_rest(producer: Producer, chance: random.Random) -> None:
    """Some give again themselves what has failed; of these some give one again, and go on where
    they were, with what must be refused while others are missing."""
    reached = 0
    for left in reversed(range(chance.choice((1, 1, 4, 9)))):
        try:
            position = await producer.last_sequence() + 1
            numbers = [*range(max(0, position - chance.choice((0, 0, 5))), _ITEMS)]
            if _ITEMS > reached > position and chance.random() < 0.5:
                numbers = [position, *range(reached, _ITEMS)]
            for number in numbers:
                await producer.send_soon(b"%d" % number, key=f"k{number % 7}", sequence=number)
                reached = max(reached, number + 1)
                if chance.random() < 0.3:
                    await trio.sleep(chance.expovariate(10))
            await producer.flush()
        except (ProducerFencedError, ClosedError):
            raise
        except HadronError:
            if not left:
                raise
            await trio.sleep(chance.expovariate(10))
        else:
            return


async def import_all(world: World, history: History, healed: trio.Event) -> None:
    """Two of them, who shut each other out."""
    until = trio.Event()
    with trio.move_on_after(_LENGTH_S + _HEALING_S) as scope:
        async with trio.open_nursery() as nursery:
            for _ in range(world.chance.choice((1, 2))):
                nursery.start_soon(bring, world, history, until)
    await healed.wait()
    if scope.cancelled_caught:
        history.problems.append("the importers do not come to their end")
    logs = {name: partition.logged.values for name, partition in world.partitions.items()}
    brought = sorted(int(value) for log in logs.values() for value in log)
    if brought != list(range(_ITEMS)):
        times = Counter(brought)
        lost = [number for number in range(_ITEMS) if not times[number]]
        doubled = [number for number in times if times[number] > 1]
        history.problems.append(f"the importers have lost {lost}, and doubled {doubled}")
    for name, log in logs.items():
        numbers = [int(value) for value in log]
        if numbers != sorted(numbers):
            history.problems.append(f"the importers have brought {numbers} in this order to {name}")


# --- worlds -------------------------------------------------------------------------------------


def play_one(seed: int, *, is_named: bool) -> History:
    history = History()

    async def main(_time: SimTime) -> None:
        async with trio.open_nursery() as nursery:
            chance = random.Random(f"{seed} partitions")
            names = _PARTITIONS[: chance.choice((1, 1, 2, 3))]
            world = World(f"producer {seed} {is_named}", names, nursery)
            healed = trio.Event()
            async with trio.open_nursery() as playing:
                playing.start_soon(import_all if is_named else publish, world, history, healed)
                await _break(world)
                healed.set()
            history.problems += world.problems
            history.answers = world.answers
            history.log = [partition.logged.values for partition in world.partitions.values()]
            nursery.cancel_scope.cancel()

    run_seeded(seed, main, Trace())
    return history


async def _break(world: World) -> None:
    """For a while; then all is well."""
    until_s = trio.current_time() + _LENGTH_S
    worst_s = world.chance.choice((2.0, 8.0))
    async with trio.open_nursery() as breaking:
        for name in world.partitions:
            breaking.start_soon(lead, world, name, until_s, worst_s)
        for _ in range(2):
            breaking.start_soon(trouble, world, until_s)
    await trio.sleep(0.5)


def play(seed: int) -> Played:
    """Two histories of that seed: of producers without a name, and with one."""
    found, log = Played(), hashlib.blake2b(digest_size=8)
    for is_named in (False, True):
        kind = "named" if is_named else "plain"
        try:
            history = play_one(seed, is_named=is_named)
        except Exception as error:  # a bug may end a program
            found.complaints.append(f"raised: {kind}: {type(error).__name__}: {error}")
            continue
        found.complaints += [f"told: {kind}: {each}" for each in history.problems]
        found.steps += history.answers
        log.update(repr(history.log).encode())
    found.digest = log.hexdigest()
    return found
