"""A client's way to made up logs: a real session with connections that are lost while much is under
way on them, and a schema of one stream."""

# ruff: noqa: ARG002 - as much of what stands here for others as is asked for

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import trio

from hadron.client.connecting.background import Background
from hadron.client.connecting.ports import ClientPorts
from hadron.client.connecting.session import Session
from hadron.client.connecting.url import Endpoint
from hadron.client.schema.catalog import Catalog
from hadron.fakes.clocks import SimClock, SimRandom
from hadron.model.batch import bytes_of
from hadron.model.errors import (
    ConnectionLostError,
    HadronError,
    NotFoundError,
    NotReadyError,
    OffsetMismatchError,
    PeerError,
)
from hadron.model.record_batch import decode_batch
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.sim.rooms.producer_logs import (
    NOTHING,
    REMEMBERED,
    Answer,
    Batch,
    Claiming,
    Leader,
    Named,
    Partition,
    Place,
)
from hadron.wire.calling import Caller, OpenedCall
from hadron.wire.calls import ignore_end, ignore_writable
from hadron.wire.frames import Bytes
from hadron.wire.messages import Method, cluster_pb2, streams_pb2

STREAM: Final = "s"
LATE_S: Final = 2.0
"""So much later a leader may read what a lost connection has brought."""

_NO_MAJORITY_S: Final = 5.0
"""A leader that asks for its majority gives up."""


class World:
    """Partitions, and what happens to them: `producer_logs.Weather`."""

    def __init__(self, seed: str, names: Sequence[str], nursery: trio.Nursery) -> None:
        self.chance = random.Random(seed)
        self.refusing: type[HadronError] | None = None
        self.final = 0.0
        self.deleted = False
        self.commits_s = self.chance.choice((0.002, 0.01, 0.04))
        self.stalls = 0.0
        """The share of messages before which a connection stands still."""
        self.wires: list[Wire] = []
        self.left: set[bytes] = set()
        """Values that have gone out."""
        self.answers = 0
        self.problems: list[str] = []
        self._nursery = nursery
        self._slots: dict[int, list[Callable[[], None]]] = {}
        self.partitions = {name: Partition(name, self) for name in names}

    @property
    def now_s(self) -> float:
        return trio.current_time()

    def later(self, delay_s: float, work: Callable[[], None]) -> None:
        """Milliseconds are the grain: what falls into one is done by one task."""
        slot = int((trio.current_time() + delay_s) * 1_000) + 1
        if slot in self._slots:
            self._slots[slot].append(work)
        else:
            self._slots[slot] = [work]
            self._nursery.start_soon(self._do, slot)

    async def _do(self, slot: int) -> None:
        await trio.sleep_until(slot / 1_000)
        for work in self._slots.pop(slot):
            work()

    def cut(self, leader: Leader | None) -> None:
        """All connections to a leader, or to anybody."""
        for wire in list(self.wires):
            if leader is None or wire.leader is leader:
                wire.close(ConnectionLostError("cut"))


class Call:
    """One question: as much of `wire.calls.Exchange` as whoever asks has of it."""

    def __init__(
        self,
        on_message: Callable[[Any, memoryview], None],
        on_end: Callable[[HadronError | None], None],
    ) -> None:
        self.on_message = on_message
        self.on_end = on_end
        self.on_writable = ignore_writable
        self.is_open = True
        self.peer_ended = False
        self.writable = False

    def send(self, message: Any, attachments: Sequence[Bytes] = (), *, end: bool = False) -> None:
        raise AssertionError("one question, one message")

    def end(self) -> None:
        pass

    def cancel(self) -> None:
        self.is_open = False

    def consumed(self, size: int) -> None:
        pass

    def ended(self, message: Any, error: HadronError | None) -> None:
        """By its answer."""
        if self.is_open:
            self.is_open, self.peer_ended = False, True
            if message is not None:
                self.on_message(message, memoryview(b""))
            self.on_end(error)


class Wire(Caller):
    """A connection to one leader: questions arrive in their order, or, once it was lost, the first
    of them do, late."""

    def __init__(self, world: World, leader: Leader) -> None:
        self.leader = leader
        self._world = world
        self._calls: dict[Call, bytes] = {}
        """By call, whose batch it carries."""
        self._is_closed = False
        self._free_at_s = 0.0
        self._asked = self._arrived = 0
        self._read_to = 1 << 60
        """So many questions arrive."""
        self._late_s = 0.0
        world.wires.append(self)

    @property
    def peer(self) -> str:
        return self.leader.partition.name

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def close(self, reason: HadronError | None = None) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._world.wires.remove(self)
        chance = self._world.chance
        self._read_to = chance.choice((self._asked, chance.randint(self._arrived, self._asked)))
        self._late_s = chance.choice((0.0, 0.5, LATE_S)) * chance.random()
        calls, self._calls = self._calls, {}
        for call in calls:
            call.ended(None, reason or ConnectionLostError("closed"))

    def call(
        self,
        method: Method,
        message: Any,
        attachments: Sequence[Bytes] = (),
        *,
        on_message: Callable[[Any, memoryview], None],
        on_end: Callable[[HadronError | None], None] = ignore_end,
        end: bool = True,
    ) -> OpenedCall:
        if self._is_closed:
            raise ConnectionLostError("closed")
        call = Call(on_message, on_end)
        self._calls[call] = b""
        ask = self._asking(method.name, message, attachments, call)
        world = self._world
        now_s, chance = trio.current_time(), world.chance
        self._free_at_s = max(self._free_at_s, now_s) + chance.uniform(0.0, 0.004)
        if chance.random() < world.stalls:
            self._free_at_s += chance.uniform(0.0, 1.0)
        self._asked += 1
        number = self._asked
        world.later(self._free_at_s - now_s, lambda: self._arrive(number, ask))
        return call

    def _arrive(self, number: int, ask: Callable[[], None]) -> None:
        if number > self._read_to:
            return
        if self._late_s:
            self._world.later(self._late_s, ask)
        else:
            self._arrived = number
            ask()

    def _asking(
        self, name: str, message: Any, attachments: Sequence[Bytes], call: Call
    ) -> Callable[[], None]:
        leader = self.leader
        if name in ("Produce", "ProduceIf"):
            batch = batch_of(message, bytes(attachments[0]))
            self._world.left.update(batch.values)
            self._calls[call] = batch.producer
            under_way = sum(
                each.is_open and of == batch.producer for each, of in self._calls.items()
            )
            if under_way > REMEMBERED:
                self._world.problems.append(
                    f"{under_way} batches of a producer are under way, and {REMEMBERED} are known"
                )
            return lambda: leader.append(batch, lambda answer: self._told(call, answer))
        if name == "ClaimProducer":
            who: Claiming | str = message.name
            if message.HasField("after"):
                who = Claiming(message.name, message.after, message.token)
            return lambda: leader.claim(who, lambda answer: self._told(call, answer))
        if name == "Offsets":
            return lambda: self._confirm(call)
        assert name == "Topology", name
        # Any node says that, and this one knows nobody else.
        return lambda: self._say(call, cluster_pb2.TopologyResponse(), None)

    def _confirm(self, call: Call) -> None:
        if self.leader.is_cut and not self.leader.is_over:
            self._world.later(
                _NO_MAJORITY_S, lambda: self._told(call, NotReadyError("no majority"))
            )
        elif self.leader.is_over:
            self._told(call, NotReadyError("leads no more"))
        else:
            self._say(call, streams_pb2.OffsetsResponse(), None)

    def _told(self, call: Call, answer: Answer) -> None:
        if isinstance(answer, OffsetMismatchError):
            mismatch = streams_pb2.ProduceResponse.Mismatch(
                expected=answer.expected, actual=answer.actual
            )
            self._say(call, streams_pb2.ProduceResponse(mismatch=mismatch), None)
        elif isinstance(answer, HadronError):
            self._say(call, None, answer)
        elif isinstance(answer, Named):
            named = streams_pb2.ClaimProducerResponse(claim=answer.claim, last_sequence=answer.last)
            self._say(call, named, None)
        else:
            assert isinstance(answer, Place)
            place = streams_pb2.ProduceResponse(
                base_offset=answer.offset, duplicate=answer.duplicate
            )
            self._say(call, place, None)

    def _say(self, call: Call, message: Any, error: HadronError | None) -> None:
        """Answers pass each other: it is calls that are in order."""
        chance = self._world.chance
        delay_s = chance.uniform(0.0, 0.004)
        if chance.random() < self._world.stalls:
            delay_s += chance.uniform(0.0, 1.0)
        self._world.later(delay_s, lambda: self._hear(call, message, error))

    def _hear(self, call: Call, message: Any, error: HadronError | None) -> None:
        if not self._is_closed:
            self.heard += 1
            self._world.answers += 1
            self._calls.pop(call, None)
            call.ended(message, error)


def batch_of(request: streams_pb2.ProduceRequest, data: bytes) -> Batch:
    """As its request asks for it."""
    records = decode_batch(data)
    head = records.head
    values = tuple(records.value_bytes())
    keys: tuple[bytes | None, ...] = (None,) * len(values)
    if len(head.kh):
        found = map(records.key, range(head.n))
        keys = tuple(bytes_of(key) if key is not None else None for key in found)
    return Batch(
        head.pid,
        head.pep,
        head.seq,
        values,
        keys,
        request.expect_offset if request.HasField("expect_offset") else None,
        request.expect_key_offset if request.HasField("expect_key_offset") else None,
        request.last_sequence if request.HasField("last_sequence") else NOTHING,
    )


class Wires(Session):
    """A session whose leaders are made up."""

    def __init__(self, world: World, background: Background, number: int) -> None:
        ports = ClientPorts(clock=SimClock(), random=SimRandom(f"{world.chance.random()} {number}"))
        super().__init__(Endpoint(addresses=("made-up:1",)), ports, background, request_timeout_s=8)
        self._world = world
        self._to: dict[str, Wire] = {}
        self._started = True

    async def refresh(self) -> None:
        await trio.lowlevel.checkpoint()

    def connection_now(self, replica_set: str) -> Caller | None:
        wire = self._to.get(replica_set)
        if wire is None or wire.is_closed or replica_set in self._suspects:
            return None
        return wire

    async def connect(self, replica_set: str) -> Caller:
        chance = self._world.chance
        await trio.sleep(chance.uniform(0.0, 0.01))
        self.check_open()
        known = self.connection_now(replica_set)
        if known is not None:
            return known
        partition = self._world.partitions[replica_set]
        leader = partition.leader
        if partition.zombie is not None and chance.random() < 0.3:
            leader = partition.zombie
        if leader is None:
            raise PeerError("nobody leads")
        wire = self._to.get(replica_set)
        if wire is None or wire.is_closed or wire.leader is not leader:
            wire = self._to[replica_set] = Wire(self._world, leader)
        self._suspects.discard(replica_set)
        return wire


class Schema(Catalog):
    """One stream, until it is deleted. Nobody tells that: who needs to know asks."""

    def __init__(self, session: Session, world: World, spec: StreamSpec) -> None:
        super().__init__(session)
        self._world = world
        self._only = SchemaObject(kind="Stream", name=STREAM, spec=spec, id=1, metadata_index=1)

    async def stream(self, name: str) -> SchemaObject:
        await trio.lowlevel.checkpoint()
        if self._world.deleted:
            raise NotFoundError(f"there is no stream {name!r}")
        return self._only
