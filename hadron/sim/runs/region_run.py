"""What every run over several replica sets does before and after what it is about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import trio

from hadron.client import Client
from hadron.client.producing.producer import Producer
from hadron.client.producing.publisher import Pending
from hadron.fakes.clocks import wall_ms
from hadron.model.errors import DeadlineExceededError, HadronError, RequestError
from hadron.model.schema import Retention, SchemaObject, StreamSpec
from hadron.sim.actors.clients import STREAM
from hadron.sim.checks.checker import Verdict
from hadron.sim.checks.regions import check_regions
from hadron.sim.evidence.evidence import Rules
from hadron.sim.evidence.history import Operation, Publish
from hadron.sim.evidence.node_files import read_node
from hadron.sim.evidence.regions import Cluster
from hadron.sim.notes.nodes import Stops, noting_divergence, observe, open_history
from hadron.sim.runs.debts import settle
from hadron.sim.runs.workload import NO_RETENTION, PROGRESS_S
from hadron.sim.world.regions import Regions
from hadron.sim.world.replica_set import World


class RegionRun:
    """A cluster with a history.

    Args:
        retention: of the stream that everybody uses.
    """

    def __init__(self, regions: Regions, retention: Retention = NO_RETENTION) -> None:
        self.regions = regions
        self.retention = retention
        self.owed: dict[str, list[str]] = {}
        self.history = open_history()
        self._stops: dict[str, Stops] = {
            name: observe(world, self.history) for name, world in regions.sets.items()
        }
        self._leaders = {name: world.config.leader.name for name, world in regions.sets.items()}
        self._last = 0

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note what nodes find out about their tables, for the length of the block."""
        with ExitStack() as undo:
            for world in self.regions.sets.values():
                undo.enter_context(noting_divergence(world, self.history))
            yield

    # --- the schema -----------------------------------------------------------------------------

    async def declare(self, name: str = STREAM, partitions: Sequence[str] = ()) -> None:
        """Declare a stream, over all regions when no partitions are named, as often as it takes."""
        chosen = tuple(partitions) or tuple(world.config.name for world in self.regions.regions)
        spec = StreamSpec(
            partitions=chosen, retention=self.retention if name == STREAM else NO_RETENTION
        )
        await self.declare_objects([SchemaObject(kind="Stream", name=name, spec=spec)])

    async def declare_objects(self, objects: Sequence[SchemaObject]) -> None:
        """Until it is known to be so."""
        while not await self.change(objects):  # noqa: ASYNC110 - simulated time
            await trio.sleep(0.1)

    async def change(self, objects: Sequence[SchemaObject], host: str = "c0") -> bool:
        """Declare objects with a client of its own; whether that was acknowledged."""
        operation = self.history.apply(host, [(each.kind, each.name) for each in objects])
        try:
            async with self.regions.client(host) as client:
                applied = await client.apply(objects)
        except HadronError as error:
            self.ended(operation, error)
            return False
        operation.metadata_index = applied.metadata_index
        self.history.ok(operation)
        return True

    async def delete(self, name: str, host: str = "c0") -> None:
        """Delete a stream, as often as it takes."""
        while True:
            try:
                async with self.regions.client(host) as client:
                    await client.delete([("Stream", "default", name)], allow_destructive=True)
                    return
            except RequestError:
                return  # It is gone: an earlier try was answered too late.
            except HadronError:
                await trio.sleep(0.1)

    # --- publishing -----------------------------------------------------------------------------

    async def send(self, producer: Producer, operation: Publish, key: str | None = None) -> None:
        """Send an operation's one value, and note what became of it."""
        try:
            pending = await producer.send_soon(operation.values[0], key=key)
        except HadronError as error:
            # It knows already, as when its stream is gone.
            self.history.refused(operation, error)
            return
        await self.settle(operation, pending)

    async def settle(self, operation: Publish, pending: Pending) -> HadronError | None:
        """Note what became of a record; returns its error."""
        try:
            receipt = await pending.wait()
        except HadronError as error:
            self.ended(operation, error)
            return error
        operation.partition = receipt.partition
        self.history.published(operation, receipt.offset, duplicate=receipt.duplicate)
        return None

    def ended(self, operation: Operation, error: HadronError) -> None:
        """Note how an operation failed, as far as its error promises anything."""
        if isinstance(error, DeadlineExceededError | RequestError):
            self.history.refused(operation, error)
        else:
            self.history.unknown(operation, error)

    # --- the end --------------------------------------------------------------------------------

    async def heal(self) -> None:
        """Mend everything; from here on there must be progress."""
        await self.regions.heal_everything()
        self.history.event("heal")

    async def operate(self) -> None:
        """What operators do once everything is healed, for ever."""
        while True:
            damaged = {event.subject for event in self.history.events("damage")}
            for world in self.regions.sets.values():
                await world.operate(damaged)
            await trio.sleep(0.5)

    async def finish(self) -> Verdict:
        """Publish once more in every region, wait until all is in step, stop the nodes, judge."""
        await self.publish_once_more()
        await self.regions.wait_same_schema()
        await self.regions.wait_in_step()
        self.owed = await settle(self.regions.sets.values())
        await self.regions.wait_in_step()
        await self.regions.stop()
        return self.judge()

    async def publish_once_more(self) -> None:
        """In every region."""
        async with trio.open_nursery() as nursery:
            for world in self.regions.regions:
                nursery.start_soon(self._publish_once_more, world)

    async def _publish_once_more(self, world: World) -> None:
        name = world.config.name
        host = f"last-{name.partition('.')[0]}"
        with trio.move_on_after(2 * PROGRESS_S):
            while True:
                self._last += 1
                operation = self.history.publish(host, "", STREAM, name, [f"last {self._last}"])
                try:
                    async with self.regions.client(host) as client:
                        if await self._publish_at(client, operation):
                            return
                except HadronError as error:
                    self.ended(operation, error)

    async def _publish_at(self, client: Client, operation: Publish) -> bool:
        async with client.producer(
            STREAM, partition=operation.partition, delivery_timeout_s=20.0
        ) as producer:
            await self.send(producer, operation)
        return operation.outcome == "ok"

    def judge(self, *, progress_s: float | None = PROGRESS_S) -> Verdict:
        """Hold the history against the files of the nodes, which must be stopped."""
        return check_regions(self.cluster(progress_s))

    def cluster(self, progress_s: float | None) -> Cluster:
        """History and files; the nodes must be stopped."""
        sets = self.regions.sets
        return Cluster(
            self.history,
            self.regions.metadata_name,
            files={
                # Not the simulated disk: what a person with the file in hand would see.
                name: [
                    read_node(node, world.data(node) / "hadron.db", vfs="unix")
                    for node in world.names
                ]
                for name, world in sets.items()
            },
            rules={name: self._rules(name, progress_s) for name in sets},
        )

    def _rules(self, name: str, progress_s: float | None) -> Rules:
        world, first = self.regions.sets[name], self._leaders[name]
        later = {
            event.subject
            for event in self.history.events("promote", "reconfigure")
            if event.subject in world.disks
        }
        return Rules(
            members=len(world.names),
            leader=first,
            leaders=frozenset({first, *later}),
            progress_s=None if name == self.regions.metadata_name else progress_s,
            retention=self.retention != NO_RETENTION,
            wall_start_ms=wall_ms(0.0),
            stops=self._stops[name].unprovoked,
            owed={node: what for node, what in self.owed.items() if node in world.disks},
        )
