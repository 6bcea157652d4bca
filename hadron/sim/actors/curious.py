"""Whoever asks what there is to know, of whichever node, at any time; and whoever changes the
schema meanwhile. What they are told is judged where it leaves the node (`watch`)."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

import trio

from hadron.client import Client
from hadron.model.errors import (
    HadronError,
    LogTruncatedError,
    NotFoundError,
    RequestError,
    SchemaError,
)
from hadron.model.ids import Ballot
from hadron.model.pipelines import Output, PipelineSpec, StageSpec
from hadron.model.schema import Retention, SchemaObject, Spec, StreamSpec
from hadron.sim.actors.clients import STREAM, ClientActor
from hadron.sim.actors.raw_producer import ask_once
from hadron.sim.evidence.history import History
from hadron.sim.world.replica_set import World
from hadron.wire.messages import method, schema_pb2, snapshots_pb2

_EXTRA: Final = tuple(f"extra{number}" for number in range(4))
"""Streams that come and go, and that nobody uses."""


async def list_streams(world: World, node: str, host: str) -> None:
    """Of a node whatever its role: it answers from its own copy."""
    request = schema_pb2.GetObjectsRequest(kind="Stream")
    with contextlib.suppress(OSError):
        await ask_once(world, node, host, method("GetObjects"), request, [], 2.0)


class CuriousActor(ClientActor):
    """Asks for groups, for the schema at a node, for offsets; for a copy now and then."""

    async def session(self, client: Client) -> None:
        for _ in range(self.random.randint(2, 12)):
            if self.stopping:
                return
            dice = self.random.random()
            if dice < 0.3:
                await client.groups(STREAM)
            elif dice < 0.4:
                await self._describe(client)
            elif dice < 0.5:
                await self._ask_for_instances(client)
            elif dice < 0.53:
                await self._go_on_elsewhere(client)
            elif dice < 0.6:
                await client.offsets(STREAM, at_ms=self.world.clocks[self._node()].now_ms() - 500)
            elif dice < 0.95:
                await self._ask_for_schema()
            else:
                await self._ask_for_copies()
            await self.pause(0.4)

    def _node(self) -> str:
        return self.random.choice(self.world.names)

    async def _describe(self, client: Client) -> None:
        for group in await client.groups(STREAM):
            try:
                await client.describe_group(STREAM, group.group)
            except NotFoundError:
                continue

    async def _ask_for_instances(self, client: Client) -> None:
        for pipeline in await client.pipeline_progress():
            await client.instances(pipeline.name)

    async def _go_on_elsewhere(self, client: Client) -> None:
        """With the cursor of a log that went another way."""
        (known,) = await client.offsets(STREAM, partition=self.partition)
        stream = await client.stream(STREAM)
        try:
            await client.fetch(
                STREAM,
                self.partition,
                known.next_offset,
                stream_id=stream.id,
                after=Ballot(1, 1_000_000),
            )
        except LogTruncatedError:
            return

    async def _ask_for_schema(self) -> None:
        await list_streams(self.world, self._node(), self.host)

    async def _ask_for_copies(self) -> None:
        """As two backups would, in turn: the second is not to be as old as the first."""
        node = self._node()
        for _ in range(2):
            request = snapshots_pb2.OpenSnapshotRequest()
            try:
                await ask_once(
                    self.world, node, self.host, method("OpenSnapshot"), request, [], 25.0
                )
            except OSError:
                return
            await self.pause(0.5)


class SchemaActor(ClientActor):
    """Declares streams, those that nobody uses unless told otherwise, and deletes them."""

    def __init__(
        self, world: World, history: History, host: str, seed: str, names: Sequence[str] = _EXTRA
    ) -> None:
        super().__init__(world, history, host, seed)
        self._names = names
        self._wrong = 0
        self._kept: SchemaObject | None = None
        """A stream with a record that is never dropped."""
        self.finished = trio.Event()

    async def run(self) -> None:
        await super().run()
        self.finished.set()

    async def session(self, client: Client) -> None:
        for _ in range(self.random.randint(1, 4)):
            if self.stopping:
                return
            name = self.random.choice(self._names)
            if self.random.random() < 0.15:
                await self._declare_nonsense(client)
                continue
            if self.random.random() < 0.2:
                await self.lose_what_is_kept(client)
                continue
            if self.random.random() < 0.6:
                await self._declare(client, name)
            else:
                await self._delete(client, name)
            await self.pause(1.5)

    async def _declare_nonsense(self, client: Client) -> None:
        """What must be refused, and with it what is right beside it: a pipeline before its input is
        there, or that leads back to it, and a stream where there is no replica set."""
        self._wrong += 1
        right, wrong = (f"{self.host}-{what}{self._wrong}" for what in ("right", "wrong"))

        def flow(source: str, output: Output | None = None) -> PipelineSpec:
            stage = StageSpec(name="only", engine="handler", output=output)
            return PipelineSpec(replica_set=self.partition, input=source, stages=(stage,))

        spec: Spec = self.random.choice(
            (
                flow("nobody-has-it"),
                flow(right, Output(right)),
                flow(right, Output("nobody-has-it")),
                StreamSpec(partitions=("nowhere/p9",)),
            )
        )
        kind = "Stream" if isinstance(spec, StreamSpec) else "Pipeline"
        both = [
            SchemaObject(kind=kind, name=wrong, spec=spec),
            SchemaObject(kind="Stream", name=right, spec=StreamSpec(partitions=(self.partition,))),
        ]
        noted = self.history.apply(self.name, [(each.kind, each.name) for each in both])
        try:
            await client.apply(both)
        except SchemaError as error:
            self.history.refused(noted, error)
        except HadronError as error:
            self.history.unknown(noted, error)
            raise
        else:
            raise AssertionError(f"{wrong}, which is {spec}, was accepted")

    async def lose_what_is_kept(self, client: Client) -> None:
        """What would lose a record, and nobody insists on; and what is meant for another stream. Of
        a stream that is this actor's alone: nobody else has it dropped or deleted."""
        name = f"{self.host}-kept"
        if self._kept is None:
            await self._declare(client, name)
            value = f"kept by {self.name}"
            operation = self.history.publish(self.name, "", name, self.partition, [value])
            try:
                receipt = await client.send(name, value)
            except HadronError as error:
                self.ended(operation, error)
                raise
            self.history.published(operation, receipt.offset, duplicate=receipt.duplicate)
            self._kept = await client.stream(name)
        lose = self.random.choice((self._shorten, self._delete_kept, self._delete_another))
        try:
            await lose(client, self._kept)
        except (RequestError, OSError):
            return
        raise AssertionError(f"{self.name} has lost what is kept in {name}: {lose.__name__}")

    async def _shorten(self, client: Client, kept: SchemaObject) -> None:
        spec = StreamSpec(partitions=(self.partition,), retention=Retention(max_bytes=1))
        await client.apply([SchemaObject(kind=kept.kind, name=kept.name, spec=spec)])

    async def _delete_kept(self, client: Client, kept: SchemaObject) -> None:
        await client.delete([(kept.kind, kept.namespace, kept.name)])

    async def _delete_another(self, _client: Client, kept: SchemaObject) -> None:
        request = schema_pb2.DeleteObjectsRequest(allow_destructive=True)
        request.names.add(kind=kept.kind, name=kept.name, id=kept.id + 1_000_000)
        leader = self.world.config.leader.name
        await ask_once(self.world, leader, self.host, method("DeleteObjects"), request, [], 5.0)

    async def _declare(self, client: Client, name: str) -> None:
        spec = StreamSpec(
            partitions=(self.partition,), description=f"{self.host} {self.random.random()}"
        )
        noted = self.history.apply(self.name, [("Stream", name)])
        try:
            applied = await client.apply([SchemaObject(kind="Stream", name=name, spec=spec)])
        except HadronError as error:
            self.ended(noted, error)
            raise
        noted.metadata_index = applied.metadata_index
        self.history.ok(noted)

    async def _delete(self, client: Client, name: str) -> None:
        noted = self.history.apply(self.name, [("Stream", name)], deletes=True)
        try:
            gone = await client.delete([("Stream", "default", name)], allow_destructive=True)
        except RequestError as error:
            # It may be an earlier try that has done it.
            self.history.unknown(noted, error)
        except HadronError as error:
            self.history.unknown(noted, error)
            raise
        else:
            noted.ids = [item.id for item in gone]
            self.history.ok(noted)
