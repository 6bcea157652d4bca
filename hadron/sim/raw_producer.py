"""A producer without a client: it numbers its batches itself, sends them again, and leaves gaps.

The real client never sends a sequence that does not follow, and a batch again only when it has to;
others do (PROTOCOL A2, D1). What it is told must agree with what it was told before.
"""

from __future__ import annotations

from typing import Any, Final

import trio
from google.protobuf.message import Message

from hadron.model.batch import encode_values
from hadron.model.errors import HadronError, SequenceError
from hadron.sim.history import Publish
from hadron.sim.workload_clients import STREAM, Actor
from hadron.sim.world import World
from hadron.wire.connection import Connection
from hadron.wire.dialing import dial, talk
from hadron.wire.messages import Method, method, streams_pb2

PRODUCE: Final = method("Produce")
_TRIES: Final = 4


async def produce_once(
    world: World, node: str, host: str, request: Message, attachment: bytes, timeout_s: float
) -> Any:
    """One batch to one node; raises what `ask_once` raises."""
    return await ask_once(world, node, host, PRODUCE, request, [attachment], timeout_s)


async def ask_once(
    world: World, node: str, host: str, what: Method, request: Message,
    attachments: list[bytes], timeout_s: float,
) -> Any:
    """One request to one node, on a connection of its own.

    Raises what the node answers, and `OSError` when nobody does.
    """

    async def ask(connection: Connection) -> Any:
        answer, _ = await connection.request(what, request, attachments, timeout_s=timeout_s)
        return answer

    network = world.network.host(host)
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
        """Until the outcome of a batch stays unknown: what follows it would have no place."""
        producer = self.random.randbytes(16)
        sequence, sent = 0, list[tuple[int, Publish]]()
        for _ in range(self.random.randint(4, 30)):
            if self.stopping:
                return
            dice = self.random.random()
            if dice < 0.15 and sent:
                await self._send_again(producer, *self.random.choice(sent[-4:]))
            elif dice < 0.35:
                await self._leave_a_gap(producer, sequence + self.random.randint(1, 9))
            else:
                publish = self._begin(producer)
                for _ in range(_TRIES):
                    if await self._send(producer, sequence, publish):
                        break
                    await trio.sleep(self.random.uniform(0.05, 0.3))
                else:
                    return
                sent.append((sequence, publish))
                sequence += len(publish.values)
            await self.pause(0.2)

    def _begin(self, producer: bytes) -> Publish:
        values = []
        for _ in range(self.random.randint(1, 3)):
            self._values += 1
            values.append(f"{self.host}/{self._values}")
        return self.history.publish(
            self.name, producer.hex(), STREAM, self.partition, values
        )

    async def _send(self, producer: bytes, sequence: int, publish: Publish) -> bool:
        """Whether it was acknowledged."""
        try:
            answer = await self._ask(producer, sequence, publish)
        except (HadronError, OSError) as error:
            self.history.unknown(publish, str(error))
            return False
        publish.runs = [(answer.base_offset, len(publish.values))]
        publish.duplicate = answer.duplicate
        self.history.ok(publish)
        return True

    async def _send_again(self, producer: bytes, sequence: int, publish: Publish) -> None:
        """What was acknowledged has its offset, however often it is sent."""
        try:
            answer = await self._ask(producer, sequence, publish)
        except (HadronError, OSError):
            return
        if (answer.base_offset, len(publish.values)) != publish.runs[0] or not answer.duplicate:
            raise AssertionError(
                f"{publish.values} of {self.name} was at {publish.runs}; sent again, it is at "
                f"{answer.base_offset}"
            )

    async def _leave_a_gap(self, producer: bytes, sequence: int) -> None:
        """A sequence that does not follow must be refused."""
        publish = self._begin(producer)
        try:
            answer = await self._ask(producer, sequence, publish)
        except SequenceError as error:
            self.history.refused(publish, error)
        except (HadronError, OSError) as error:
            self.history.unknown(publish, str(error))
        else:
            raise AssertionError(
                f"sequence {sequence} of {self.name}, which follows nothing, was accepted at "
                f"{answer.base_offset}"
            )

    async def _ask(self, producer: bytes, sequence: int, publish: Publish) -> Any:
        batch = encode_values(
            [value.encode() for value in publish.values], 1, producer_id=producer,
            sequence=sequence,
        )
        # Now and then wherever chance has it: those that do not lead say so.
        leads = self.world.config.leader.name
        node = leads if self.random.random() < 0.8 else self.random.choice(self.world.names)
        return await produce_once(
            self.world, node, self.host,
            streams_pb2.ProduceRequest(stream=STREAM, acks=streams_pb2.ACKS_MAJORITY), batch,
            self.random.uniform(0.5, 5.0),
        )
