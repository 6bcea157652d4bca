"""Whoever has several commands done in one entry, all of them or none: at the leader itself, as no
client does that yet."""

from __future__ import annotations

import trio

from hadron.model.batch_building import encode_values
from hadron.model.errors import HadronError
from hadron.partition.controller import Controller
from hadron.sim.actors.clients import STREAM, Actor
from hadron.sim.evidence.history import Publish
from hadron.state.streams.partitions import AppendBatch
from hadron.state.together import DoTogether

_STREAM_ID = "SELECT id FROM hadron_schema_object WHERE kind = 'Stream' AND name = ?"
_ENTRIES = 25
"""Of a run."""


class TogetherActor(Actor):
    """Publishes some batches as one entry, under numbers of its own, and what has no outcome once
    more: it is there as a whole, or not at all."""

    async def run(self) -> None:
        for number in range(_ENTRIES):
            await trio.sleep(self.random.uniform(0.05, 1.0))
            if self.stopping:
                return
            batches = [
                [
                    f"{self.host}/{number}.{part}.{index}"
                    for index in range(self.random.randint(1, 3))
                ]
                for part in range(self.random.randint(1, 3))
            ]
            values = [value for batch in batches for value in batch]
            operation = self.history.publish(self.name, "", STREAM, self.partition, values)
            await self._publish(operation, batches, self.random.randbytes(16))

    async def _publish(
        self, operation: Publish, batches: list[list[str]], producer_id: bytes
    ) -> None:
        """Until its outcome is known, as often as a caller has patience for."""
        bodies = [encode_values([value.encode() for value in batch], 1) for batch in batches]
        for _ in range(3):
            controller = self._leader()
            if controller is None:
                await trio.sleep(0.3)
                continue
            name = self.world.config.leader.name
            node = self.world.node(name)
            stream_id = self._stream_id()
            sequence, commands = 0, []
            for batch, body in zip(batches, bodies, strict=True):
                commands.append(
                    AppendBatch(stream_id, len(batch), len(body), producer_id, 0, sequence)
                )
                sequence += len(batch)
            try:
                with trio.fail_after(5.0):
                    results = await controller.execute(DoTogether.of(*commands), b"".join(bodies))
            except (HadronError, trio.TooSlowError) as error:
                self.history.unknown(operation, str(error))
                continue
            if not self.world.running(name) or self.world.node(name) is not node:
                # What a node that has crashed still says reaches nobody.
                self.history.unknown(operation, f"{name} has crashed")
                continue
            operation.runs = [(each.base_offset, each.count) for each in results]
            self.history.ok(operation)
            return

    def _leader(self) -> Controller | None:
        """Who leads and says so, if anybody does."""
        name = self.world.config.leader.name
        if not self.world.is_serving():
            return None
        leadership = self.world.node(name).member._leadership
        return leadership.controller if leadership is not None else None

    def _stream_id(self) -> int:
        store = self.world.node(self.world.config.leader.name).member._store
        found = store.writer.connection.execute(_STREAM_ID, (STREAM,)).get
        assert isinstance(found, int)
        return found
