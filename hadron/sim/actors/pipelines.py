"""A pipeline at work in a simulated world: records that trigger it, and runners that hand in
outputs, fail, ask twice, sit on what they were given, and die with calls under way."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Final, Self

import msgspec
import trio

from hadron.client import Client
from hadron.client.pipelines.stage_run import StageRun
from hadron.model.batch_building import encode_values
from hadron.model.errors import HadronError
from hadron.model.pipelines import Output, PipelineSpec, Retry, StageSpec
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.sim.actors.clients import ClientActor
from hadron.sim.evidence.history import History, Publish
from hadron.sim.evidence.made import Made
from hadron.sim.world.replica_set import World
from hadron.wire.messages import pipelines_pb2

ORDERS: Final = "orders"
OUT: Final = "out"
GIVEN_UP: Final = "given-up"
FLOW: Final = "flow"

_HOPELESS: Final = 7
"""One instance in so many fails whoever tries."""

_MAX_ATTEMPTS: Final = 3
_PARALLEL: Final = 4
_ORDERS: Final = 25
"""Of a random run: each costs three entries, or more."""


def objects(
    replica_set: str,
    source: str,
    *,
    max_attempts: int,
    max_parallel: int,
    dead_letters: str = "",
    delay_ms: int = 0,
) -> list[SchemaObject]:
    """A pipeline of two stages over `source`, the first with an output, and what it writes to."""
    retry = Retry(max_attempts=max_attempts, backoff_ms=10)
    stages = (
        StageSpec(
            name="copy",
            engine="handler",
            output=Output(OUT),
            timeout_ms=2_000,
            retry=retry,
            delay_ms=delay_ms,
        ),
        StageSpec(
            name="check",
            engine="handler",
            dependencies=("copy",),
            delay_ms=delay_ms or 50,
            retry=retry,
        ),
    )
    flow = PipelineSpec(
        replica_set=replica_set,
        input=source,
        stages=stages,
        start="earliest",
        max_parallel=max_parallel,
        dead_letters=dead_letters,
    )
    return [
        SchemaObject(kind="Stream", name=OUT, spec=StreamSpec(partitions=(replica_set,))),
        SchemaObject(kind="Pipeline", name=FLOW, spec=flow),
    ]


@dataclass(frozen=True)
class Places:
    """Where a pipeline of a random run is, and what it reads and writes.

    Attributes:
        home: its replica set.
        inputs, outputs: partitions.
        keeps_ms: how long it keeps what has ended; 0 for as long as a run lasts, and longer.
        flow, source, sink: its own name, and those of its input and of what it writes.
    """

    home: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    keeps_ms: int = 0
    flow: str = FLOW
    source: str = ORDERS
    sink: str = OUT

    @property
    def is_alone(self) -> bool:
        """Whether there is one replica set."""
        return {self.home} == {*self.inputs, *self.outputs}


def alone(replica_set: str) -> Places:
    """All of it at one replica set."""
    return Places(replica_set, (replica_set,), (replica_set,))


def random_objects(places: Places) -> list[SchemaObject]:
    """Of a random run: with an input of its own, and a stream for each thing that it writes."""
    orders = StreamSpec(partitions=places.inputs)
    outputs = StreamSpec(partitions=tuple(dict.fromkeys((*places.outputs, places.home))))
    letters = StreamSpec(partitions=(places.home,))
    (_, flow) = objects(
        places.home,
        ORDERS,
        max_attempts=_MAX_ATTEMPTS,
        max_parallel=_PARALLEL,
        # Whenever one is given up: what was given up before that was declared has no letter.
        dead_letters=GIVEN_UP,
    )
    return [
        SchemaObject(kind="Stream", name=ORDERS, spec=orders),
        SchemaObject(kind="Stream", name=OUT, spec=outputs),
        SchemaObject(kind="Stream", name=GIVEN_UP, spec=letters),
        flow,
    ]


def changed_flow(
    chance: random.Random, places: Places, start: str, *, is_last: bool = False
) -> SchemaObject:
    """The pipeline of a random run as somebody may declare it anew: with other attempts, times and
    bounds, with an audit somewhere or without one, with the check or without it; and with somebody
    to tell of what is given up, or nobody. The last time there is room for all that is left."""
    retry = Retry(
        max_attempts=chance.randint(1, _MAX_ATTEMPTS), backoff_ms=chance.choice((10, 200))
    )
    # What is dropped cannot be asked for: where that is, instances go on their way.
    more: dict[str, Any] = {"keep_finished_ms": places.keeps_ms} if places.keeps_ms else {}
    output = Output(OUT, chance.choice(("", "", *places.outputs)))

    def stage(
        name: str, *, after: tuple[str, ...] = (), dependencies: tuple[str, ...] = ()
    ) -> StageSpec:
        return StageSpec(
            name=name,
            engine="handler",
            output=output if name == "copy" else None,
            timeout_ms=chance.choice((300, 2_000)),
            delay_ms=chance.choice((0, 0, 50, 1_000)),
            retry=retry,
            after=after,
            dependencies=dependencies,
        )

    audit = chance.choice(("", "first", "between", "last"))
    stages = [
        stage("copy", after=("audit",) if audit == "first" else ()),
        stage("check", dependencies=("copy",), after=("audit",) if audit == "between" else ()),
    ]
    if audit == "between" and chance.random() < 0.3:
        del stages[-1]
    if audit:
        stages.append(stage("audit", after=("check",) if audit == "last" else ()))
    if chance.random() < 0.4:
        stages.append(stage("tell"))
        more["on_failure"] = "tell"
    flow = PipelineSpec(
        replica_set=places.home,
        input=ORDERS,
        stages=tuple(stages),
        start=start,
        max_parallel=20 if is_last else chance.choice((1, _PARALLEL, 20)),
        dead_letters=GIVEN_UP,
        **more,
    )
    return SchemaObject(kind="Pipeline", name=FLOW, spec=flow)


class OrderActor(ClientActor):
    """Publishes what triggers the pipeline."""

    def __init__(self, world: World, history: History, host: str, seed: str) -> None:
        super().__init__(world, history, host, seed)
        self._sent = 0
        self._inputs: tuple[str, ...] = (self.partition,)

    def to(self, places: Places) -> OrderActor:
        """These are the partitions."""
        self._inputs = places.inputs
        return self

    async def session(self, client: Client) -> None:
        partition = self.random.choice(self._inputs) if len(self._inputs) > 1 else self._inputs[0]
        async with client.producer(ORDERS, partition=partition, delivery_timeout_s=4.0) as producer:
            while self._sent < _ORDERS and not self.stopping:
                self._sent += 1
                operation = self.history.publish(
                    self.name, self.name, ORDERS, partition, [f"{self.host}/{self._sent}"]
                )
                try:
                    receipt = await producer.send(operation.values[0])
                except HadronError as error:
                    self.ended(operation, error)
                    raise
                except trio.Cancelled:
                    # Nobody waits for it any more.
                    self.history.unknown(operation, "its client is gone")
                    raise
                self.history.published(operation, receipt.offset, duplicate=receipt.duplicate)
                await self.pause(0.4)
                if len(self._inputs) > 1 and self.random.random() < 0.2:
                    # To another partition.
                    return
        await trio.sleep(1.0)


class RunnerActor(ClientActor):
    """Takes invocations of all stages.

    Args:
        is_hopeful: no instance fails whoever tries; any attempt may by chance, as often as it is
            tried.
        failing: the share of attempts that chance lets fail.
    """

    def __init__(
        self,
        world: World,
        history: History,
        host: str,
        seed: str,
        *,
        is_hopeful: bool = False,
        failing: float = 0.15,
    ) -> None:
        super().__init__(world, history, host, seed)
        self._is_hopeful = is_hopeful
        self._failing = failing
        self._turn = 0
        self._places = alone(self.partition)

    def at(self, places: Places) -> Self:
        """The pipeline that it is for."""
        self._places = places
        return self

    async def session(self, client: Client) -> None:
        async with client.run_stages(
            self._places.flow,
            engine="handler",
            max_batch=self.random.choice((1, 3, 10)),
            credit=self.random.choice((1, 2)),
        ) as stages:
            await self._work(client, stages)

    async def _work(self, client: Client, stages: StageRun) -> None:
        while not self.stopping:
            given = None
            with trio.move_on_after(0.5):
                given = await anext(stages)
            if given is None:
                continue
            self._turn += 1
            dice = self.random.random()
            if dice < 0.05:
                # It takes longer than its stage may: others get them.
                await trio.sleep(self.random.uniform(0.5, 3.0))
            lost, kept = self._sort(given.invocations)
            if lost:
                await client.fail_stages(
                    given.pipeline_id,
                    given.stage,
                    [each.instance_id for each in lost],
                    [each.attempt for each in lost],
                    [each.created_ms for each in lost],
                    "cannot be done",
                )
                if dice > 0.8:
                    # A frozen process hands in what was failed for it meanwhile.
                    await self._complete(client, given, lost)
            if kept:
                await self._complete(client, given, kept)
                if dice > 0.9:
                    await self._complete(client, given, kept)
            stages.grant()

    def _sort(self, invocations: Any) -> tuple[list[Any], list[Any]]:
        """Those that fail, and those that succeed."""
        lost = [
            each
            for each in invocations
            if (each.instance_id % _HOPELESS == 0 and not self._is_hopeful)
            # Of others chance leaves the last attempt alone.
            or (
                (self._is_hopeful or each.attempt < _MAX_ATTEMPTS)
                and self.random.random() < self._failing
            )
        ]
        return lost, [each for each in invocations if each not in lost]

    async def _complete(
        self, client: Client, given: pipelines_pb2.Invocations, chosen: list[Any]
    ) -> None:
        history = self.history
        ids = [each.instance_id for each in chosen]
        attempts = [each.attempt for each in chosen]
        batch, made, wanted = None, None, ""
        output = msgspec.json.decode(given.spec, type=StageSpec).output
        if output is not None:
            # An attempt's output is its own: what a stale attempt made must not appear.
            self._turn += 1
            values = [
                f"{Made(given.pipeline_id, given.stage, each.instance_id, each.created_ms, at)}"
                f"{self.host}/{self._turn}"
                for each, at in zip(chosen, attempts, strict=True)
            ]
            wanted = self.random.choice(("", *self._places.outputs))
            place = wanted or output.partition or self._places.home
            made = history.publish(self.name, "", self._places.sink, place, values)
            batch = encode_values([value.encode() for value in values], 1)
        noted = history.settle(
            self.name,
            f"{self._places.flow}#{given.pipeline_id}",
            given.stage,
            self._places.source,
            self._places.home,
            [(x, x) for x in ids],
            how="complete",
        )
        try:
            answer = await client.complete_stages(
                given.pipeline_id,
                given.stage,
                ids,
                attempts,
                [each.created_ms for each in chosen],
                batch,
                wanted,
                version=given.version,
            )
        except HadronError as error:
            history.unknown(noted, error)
            if made is not None:
                history.unknown(made, error)
            raise
        if answer.stale_instance_ids:
            # Nothing was done; some of it by an earlier try, perhaps.
            history.unknown(noted, f"stale: {list(answer.stale_instance_ids)}")
            if made is not None:
                history.unknown(made, "stale")
            left = [each for each in chosen if each.instance_id not in answer.stale_instance_ids]
            if left:
                await self._complete(client, given, left)
            return
        history.ok(noted)
        if made is not None:
            made.runs = [(answer.base_offset, len(made.values))]
            history.ok(made)


class DrainingRunner(RunnerActor):
    """Finishes what is left, once everything is healed."""

    async def run(self) -> None:
        self.history.event("finishing", self._places.flow)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(super().run)
            await self._wait_done()
            self.stop()
            nursery.cancel_scope.cancel()

    async def _wait_done(self) -> None:
        """What clients have left on its way may still come in: it is looked at twice."""
        was_done = False
        while True:
            try:
                async with self.world.client(f"{self.host}w") as client:
                    while True:
                        is_all = not any(
                            each.stream == self._places.source and not each.ended
                            for each in self.history.of(Publish)
                        )
                        (flow,) = await client.pipeline_progress(self._places.flow)
                        if is_all and self._is_done(flow):
                            if was_done:
                                return
                            was_done = True
                            await trio.sleep(1.0)
                            continue
                        was_done = False
                        for each in flow.backfills:
                            if each.status == "paused":
                                await client.control_backfill(
                                    self._places.flow, each.number, "running"
                                )
                        await trio.sleep(0.2)
            except HadronError:
                await trio.sleep(0.2)

    def _is_done(self, flow: Any) -> bool:
        is_filled = all(each.status in ("done", "cancelled") for each in flow.backfills)
        is_read = all(each.offset >= each.next_offset for each in flow.inputs)
        known = {each.partition for each in flow.inputs}
        return known == {*self._places.inputs} and is_read and is_filled and flow.live == 0
