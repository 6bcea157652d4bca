"""A producer without a client: it numbers its batches itself, sends them again, leaves gaps, and
begins new epochs.

The real client never sends a sequence that does not follow, and a batch again only when it has to;
others do (PROTOCOL A2, D1). What it is told must agree with what it was told before.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import trio
from google.protobuf.message import Message

from hadron.model.batch_building import encode_values
from hadron.model.errors import HadronError, OffsetMismatchError, SequenceError
from hadron.model.limits import PRODUCER_WINDOW
from hadron.sim.actors.clients import STREAM, Actor
from hadron.sim.evidence.history import Publish
from hadron.sim.world.replica_set import World
from hadron.wire.connection import Connection
from hadron.wire.dialing import dial, talk
from hadron.wire.messages import Method, method, streams_pb2

PRODUCE: Final = method("Produce")
PRODUCE_IF: Final = method("ProduceIf")
_TRIES: Final = 4


class _Number(NamedTuple):
    """Of a batch, by its producer."""

    epoch: int
    sequence: int


def _after(number: _Number, publish: Publish) -> _Number:
    """The one that would have followed."""
    return _Number(number.epoch, number.sequence + len(publish.values))


async def produce_once(
    world: World,
    node: str,
    host: str,
    request: streams_pb2.ProduceRequest,
    attachment: bytes,
    timeout_s: float,
) -> Any:
    """One batch to one node; raises what `ask_once` raises, and `OffsetMismatchError` where the
    node says that what was expected is not so."""
    is_plain = not request.HasField("expect_offset")
    what = PRODUCE if is_plain else PRODUCE_IF
    answer = await ask_once(world, node, host, what, request, [attachment], timeout_s)
    if answer.HasField("mismatch"):
        told = answer.mismatch
        raise OffsetMismatchError(told.message, expected=told.expected, actual=told.actual)
    return answer


async def ask_once(
    world: World,
    node: str,
    host: str,
    what: Method,
    request: Message,
    attachments: list[bytes],
    timeout_s: float,
) -> Any:
    """One request to one node, on a connection of its own.

    Raises what the node answers, and `OSError` when nobody does.
    """

    async def ask(connection: Connection) -> Any:
        answer, _ = await connection.request(what, request, attachments, timeout_s=timeout_s)
        return answer

    network = world.network.boot(host)
    return await talk(await dial(network, world.config.node(node).address), ask)


class RawProducerActor(Actor):
    """Sends batches in order, some of them once more, some with a gap before them."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._values = 0

    async def run(self) -> None:
        while not self.stopping:
            self._sessions += 1
            await self._one_producer()
            await trio.sleep(self.random.uniform(0.05, 0.5))

    async def _one_producer(self) -> None:
        """Until the outcome of a batch stays unknown: what follows it would have no place, but in
        another epoch; and what should be refused may still arrive where it fits."""
        producer = self.random.randbytes(16)
        following, sent = _Number(0, 0), list[tuple[_Number, Publish]]()
        for _ in range(self.random.randint(4, 30)):
            if self.stopping:
                return
            dice = self.random.random()
            if dice < 0.15 and sent:
                await self._send_again(producer, *self.random.choice(sent[-4:]))
            elif dice < 0.35:
                if not await self._must_refuse(producer, *self._misfit(following, sent)):
                    return
            else:
                if dice < 0.4:
                    following = _Number(following.epoch + 1, 0)
                publish = self._begin(producer)
                if await self._send_until_known(producer, following, publish):
                    if following.sequence == 0 and sent:
                        # Of an epoch that is over.
                        if not await self._must_refuse(producer, _after(*sent[-1])):
                            return
                        sent = []
                    sent.append((following, publish))
                    following = _after(following, publish)
                elif self.random.random() < 0.5:
                    following = _Number(following.epoch + 1, 0)
                else:
                    return
            await self.pause(0.2)

    def _misfit(
        self, following: _Number, sent: list[tuple[_Number, Publish]]
    ) -> tuple[_Number, int]:
        """A number that does not follow, and of how many records: behind a gap, in the middle of an
        epoch that has not begun, or so old that nobody knows any more where it is."""
        dice = self.random.random()
        if dice < 0.3 and len(sent) > PRODUCER_WINDOW:
            number, publish = self.random.choice(sent[:-PRODUCER_WINDOW])
            return number, len(publish.values)
        gap = self.random.randint(1, 9)
        if dice < 0.5:
            return _Number(following.epoch + 1, gap), 1
        return _Number(following.epoch, following.sequence + gap), self.random.randint(1, 3)

    async def _send_until_known(self, producer: bytes, number: _Number, publish: Publish) -> bool:
        """Whether it was acknowledged in the end, by whoever leads then."""
        for _ in range(_TRIES):
            if await self._send(producer, number, publish):
                return True
            await trio.sleep(self.random.uniform(0.05, 0.3))
        return False

    def _begin(self, producer: bytes, count: int = 0) -> Publish:
        values = []
        for _ in range(count or self.random.randint(1, 3)):
            self._values += 1
            values.append(f"{self.host}/{self._values}")
        return self.history.publish(self.name, producer.hex(), STREAM, self.partition, values)

    async def _send(self, producer: bytes, number: _Number, publish: Publish) -> bool:
        """Whether it was acknowledged."""
        try:
            answer = await self._ask(producer, number, publish)
        except (HadronError, OSError) as error:
            self.history.unknown(publish, str(error))
            return False
        publish.runs = [(answer.base_offset, len(publish.values))]
        publish.duplicate = answer.duplicate
        self.history.ok(publish)
        return True

    async def _send_again(self, producer: bytes, number: _Number, publish: Publish) -> None:
        """What was acknowledged has its offset, however often it is sent."""
        try:
            answer = await self._ask(producer, number, publish)
        except (HadronError, OSError):
            return
        if (answer.base_offset, len(publish.values)) != publish.runs[0] or not answer.duplicate:
            raise AssertionError(
                f"{publish.values} of {self.name} was at {publish.runs}; sent again, it is at "
                f"{answer.base_offset}"
            )

    async def _must_refuse(self, producer: bytes, number: _Number, count: int = 1) -> bool:
        """Whether what does not follow was refused; else nobody has answered."""
        publish = self._begin(producer, count)
        try:
            answer = await self._ask(producer, number, publish)
        except SequenceError as error:
            self.history.refused(publish, error)
            return True
        except (HadronError, OSError) as error:
            self.history.unknown(publish, str(error))
            return False
        raise AssertionError(
            f"{number} of {self.name}, which follows nothing, was accepted at {answer.base_offset}"
        )

    async def _ask(self, producer: bytes, number: _Number, publish: Publish) -> Any:
        batch = encode_values(
            [value.encode() for value in publish.values],
            1,
            producer_id=producer,
            producer_epoch=number.epoch,
            sequence=number.sequence,
        )
        # Now and then wherever chance has it: those that do not lead say so.
        leads = self.world.config.leader.name
        node = leads if self.random.random() < 0.8 else self.random.choice(self.world.names)
        return await produce_once(
            self.world,
            node,
            self.host,
            streams_pb2.ProduceRequest(stream=STREAM, acks=streams_pb2.ACKS_MAJORITY),
            batch,
            self.random.uniform(0.5, 5.0),
        )
