"""The random run: clients at work while the nemesis is, then healing, draining, and judgement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from hadron.fakes.clocks import wall_ms
from hadron.model.errors import HadronError
from hadron.model.schema import Retention, SchemaObject, StreamSpec
from hadron.sim.actors.calls import Calling, has_calls
from hadron.sim.actors.clients import STREAM, ProducerActor
from hadron.sim.actors.crowd import actors, has_pipeline, pipeline_actors, pipeline_places
from hadron.sim.actors.following import Following, has_followers
from hadron.sim.actors.group_plans import LETTERS, GroupPlan, plans
from hadron.sim.actors.members import DrainingMember
from hadron.sim.actors.messages import Messaging, has_messages
from hadron.sim.actors.operators import note_retention
from hadron.sim.actors.part import Part
from hadron.sim.actors.passing import Passing
from hadron.sim.actors.pipeline_operator import PipelineOperator
from hadron.sim.actors.pipelines import DrainingRunner, alone, random_objects
from hadron.sim.actors.transacting import Transacting, has_transactions
from hadron.sim.actors.waiting import Waiting, has_waits
from hadron.sim.checks.checker import Verdict, check
from hadron.sim.evidence.evidence import Rules
from hadron.sim.evidence.history import History, Publish
from hadron.sim.evidence.labels import labelled, labelled_in, of_those_that_exist, streams_of
from hadron.sim.evidence.node_files import NodeFile, read_node
from hadron.sim.faults.nemesis import FaultPlan, run_faults
from hadron.sim.notes.groups import noting_groups
from hadron.sim.notes.nodes import Stops, noting_divergence, observe, open_history
from hadron.sim.runs.debts import settle
from hadron.sim.runs.run import Judgement
from hadron.sim.world.replica_set import World

PROGRESS_S: Final = 30.0
"""Simulated seconds after healing within which a publish must succeed."""

NO_RETENTION: Final = Retention()

_GROUPS: Final = 2

_DRAIN_S: Final = 90.0
"""Simulated seconds within which everything must be acknowledged, once everything is healed."""


@dataclass(frozen=True)
class RandomRun:
    """A scenario: everybody works under the faults of `plan`.

    Attributes:
        retention: of the stream that everybody uses.
        acknowledged: records after which it ends, if `least_s` are over.
        least_s, most_s: simulated seconds under faults.
    """

    plan: FaultPlan | None = None
    retention: Retention = NO_RETENTION
    acknowledged: int = 350
    least_s: float = 8.0
    most_s: float = 60.0

    async def __call__(self, world: World) -> Judgement:
        run = Run(world, self.retention)
        with noting_divergence(world, run.history), noting_groups(run.history):
            return await self._work(run)

    async def _work(self, run: Run) -> Judgement:
        world = run.world
        await run.declare()
        groups = plans(world.seed, _GROUPS)
        crowd = list(actors(world, run.history, world.seed, groups))
        if has_pipeline(world.seed):
            places = pipeline_places(world.config.name, world.seed)
            await run.declare_objects(random_objects(places))
            run.has_pipeline = True
            crowd += pipeline_actors(world, run.history, world.seed)
        run.pipeline_changes = [
            actor.finished for actor in crowd if isinstance(actor, PipelineOperator)
        ]
        run.parts = list(_parts(world, run.history))
        for part in run.parts:
            if objects := part.objects():
                await run.declare_objects(objects)
            crowd += part.actors()
        async with trio.open_nursery() as operating:
            async with trio.open_nursery() as clients:
                for actor in crowd:
                    clients.start_soon(actor.run)
                async with trio.open_nursery() as faults:
                    faults.start_soon(run_faults, world, self.plan or FaultPlan())
                    await self._under_faults(run.history)
                    faults.cancel_scope.cancel()
                await run.heal()
                operating.start_soon(run.operate)
                for actor in crowd:
                    actor.stop()
                await run.drain(groups)
                clients.cancel_scope.cancel()
            verdict = await run.finish()
            operating.cancel_scope.cancel()
        found = judgement(verdict)
        for part in run.parts:
            found.violations += part.complaints()
        return found

    async def _under_faults(self, history: History) -> None:
        await trio.sleep(self.least_s)
        with trio.move_on_after(self.most_s - self.least_s):
            while acknowledged(history) < self.acknowledged:  # noqa: ASYNC110 - simulated time
                await trio.sleep(0.5)


def _parts(world: World, history: History) -> Iterator[Part]:
    """Those that this world has."""
    if has_transactions(world.seed, is_alone=True):
        here = (world.config.name,)
        yield Transacting(world, history, world.seed, here, here)
    yield Passing(world, history, world.seed)
    if has_calls(world.seed):
        yield Calling(world, history)
    if has_messages(world.seed):
        yield Messaging(world, history)
    if has_waits(world.seed):
        yield Waiting(world, history, world.seed, (world.config.name,))
    if has_followers(world.seed):
        yield Following([world], history)


class Run:
    """A world with a history: what every scenario does before and after what it is about."""

    def __init__(self, world: World, retention: Retention = NO_RETENTION) -> None:
        self.world = world
        self.retention = retention
        self.history: History = open_history()
        self.stops: Stops = observe(world, self.history)
        self.has_pipeline = False
        self.pipeline_changes: Sequence[trio.Event] = ()
        """Set once nobody changes the pipeline any more."""
        self.parts: Sequence[Part] = ()
        self.owed: dict[str, list[str]] = {}
        self._first_leader = world.config.leader.name

    async def declare(self) -> None:
        """Declare the stream, and one for dead letters, as often as it takes."""
        if self.retention != NO_RETENTION:
            note_retention(self.history, self.retention)
        spec = StreamSpec(partitions=(self.world.config.name,), retention=self.retention)
        letters = StreamSpec(partitions=(self.world.config.name,))
        await self.declare_objects(
            [
                SchemaObject(kind="Stream", name=STREAM, spec=spec),
                SchemaObject(kind="Stream", name=LETTERS, spec=letters),
            ]
        )

    async def declare_objects(self, objects: Sequence[SchemaObject]) -> None:
        """Declare objects, as often as it takes."""
        while True:
            operation = self.history.apply("c0", [(each.kind, each.name) for each in objects])
            try:
                async with self.world.client("c0") as client:
                    await client.apply(objects)
            except HadronError as error:
                self.history.unknown(operation, error)
                await trio.sleep(0.1)
            else:
                self.history.ok(operation)
                return

    async def heal(self) -> None:
        """Mend everything; from here on there must be progress."""
        await self.world.heal_everything()
        self.history.event("heal")

    async def operate(self) -> None:
        """What an operator does once everything is healed, for ever."""
        while True:
            await self.world.operate({event.subject for event in self.history.events("damage")})
            await trio.sleep(0.5)

    async def drain(self, groups: Sequence[GroupPlan] = ()) -> None:
        """Publish once more, and have all done that is to be done."""
        world = self.world
        world = self.world
        await self._publish_once_more()
        with trio.move_on_after(_DRAIN_S):
            async with trio.open_nursery() as nursery:
                for number, plan in enumerate(groups):
                    self.history.event("draining", plan.name)
                    host = f"d{number}"
                    seed = f"{world.seed}/{host}"
                    member = DrainingMember(world, self.history, host, seed, plan)
                    nursery.start_soon(member.run)
                if self.has_pipeline:
                    nursery.start_soon(self._finish_pipeline)
                for part in self.parts:
                    nursery.start_soon(part.drain)

    async def finish(self) -> Verdict:
        """Wait until all is at rest, stop the nodes, and judge."""
        world = self.world
        await world.wait_in_step()
        self.owed = await settle([world])
        await world.wait_in_step()
        await world.stop()
        return self.judge()

    async def _finish_pipeline(self) -> None:
        for ended in self.pipeline_changes:
            await ended.wait()
        last = DrainingRunner(self.world, self.history, "dw", f"{self.world.seed}/dw")
        await last.at(alone(self.world.config.name)).run()

    async def _publish_once_more(self) -> None:
        actor = ProducerActor(self.world, self.history, "last", f"{self.world.seed}/last")
        with trio.move_on_after(2 * PROGRESS_S):
            while not actor.stopping:
                operation = self.history.publish(
                    "last", "", STREAM, actor.partition, [f"last/{trio.current_time():.6f}"]
                )
                try:
                    async with (
                        self.world.client("last") as client,
                        client.producer(STREAM, delivery_timeout_s=20.0) as producer,
                    ):
                        receipt = await producer.send(operation.values[0])
                except HadronError as error:
                    actor.ended(operation, error)
                else:
                    operation.runs = [(receipt.offset, 1)]
                    self.history.ok(operation)
                    return

    def judge(self, *, progress_s: float | None = PROGRESS_S) -> Verdict:
        """Hold the history against the files of the nodes, which must be stopped."""
        world = self.world
        files = [
            # Not the simulated disk: what a person with the file in hand would see.
            read_node(name, world.data(name) / "hadron.db", vfs="unix")
            for name in world.names
        ]
        rules = Rules(
            members=len(world.names),
            leader=self._first_leader,
            leaders=frozenset(
                {
                    self._first_leader,
                    *(event.subject for event in self.history.events("promote", "reconfigure")),
                }
            ),
            durability="os" if world.config.settings.durability == "os" else "fsync",
            progress_s=progress_s,
            retention=self.retention != NO_RETENTION or bool(self.history.events("retention")),
            wall_start_ms=None if world.clocks[world.names[0]].calendar_s else wall_ms(0.0),
            stops=self.stops.unprovoked,
            owed=self.owed,
        )
        return check(*self._told_apart(files), rules)

    def _told_apart(self, files: Sequence[NodeFile]) -> tuple[History, list[NodeFile]]:
        """With streams that came and went as what they were."""
        names = labelled_in(self.history)
        found = [labelled(file, names) for file in files]
        history = History(self.history.tick)
        history.entries = of_those_that_exist(self.history.entries, streams_of(found))
        return history, found


def acknowledged(history: History) -> int:
    """Records acknowledged so far."""
    return sum(
        len(entry.values)
        for entry in history.entries
        if isinstance(entry, Publish) and entry.outcome == "ok"
    )


def judgement(verdict: Verdict) -> Judgement:
    """A verdict as the simulator reports it; one that proves nothing is a violation."""
    violations = [str(violation) for violation in verdict.violations]
    if verdict.status == "unknown":
        violations.append("unknown: nothing was acknowledged, so nothing is proven")
    return Judgement(
        acknowledged=verdict.acknowledged,
        operations=verdict.operations,
        violations=violations,
        judged=sorted(verdict.judged),
    )
