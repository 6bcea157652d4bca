"""A small scenario of the simulator's own tests: publish under faults, then look for every record.

The real workload and the checker judge far more; this one shows that the world itself holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import trio

from hadron.model.errors import HadronError
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.sim.faults.nemesis import FaultPlan, run_faults
from hadron.sim.runs.run import Judgement
from hadron.sim.world.replica_set import World

PARTITION = "local/p0"


async def declare(world: World, name: str = "s") -> None:
    async with world.client("c0", connect_timeout_s=60.0) as client:
        spec = StreamSpec(partitions=(PARTITION,))
        await client.apply([SchemaObject(kind="Stream", name=name, spec=spec)])


async def read_all(world: World, name: str = "s") -> dict[int, bytes]:
    """Every record of a stream by offset, as a new client reads it."""
    async with world.client("c9", connect_timeout_s=60.0) as client:
        return {record.offset: record.value async for record in client.read(name)}


@dataclass
class PublishUnderFaults:
    """Two producers publish while the nemesis works; what was acknowledged must be there."""

    records: int = 40
    plan: FaultPlan | None = None

    async def __call__(self, world: World) -> Judgement:
        acknowledged: dict[int, bytes] = {}
        await declare(world)
        async with trio.open_nursery() as faults:
            faults.start_soon(run_faults, world, self.plan or FaultPlan())
            async with trio.open_nursery() as producers:
                for host in ("c1", "c2"):
                    producers.start_soon(self._publish, world, host, acknowledged)
            faults.cancel_scope.cancel()
        await world.heal_everything()
        await world.wait_in_step()
        found = await read_all(world)
        lost = [
            f"offset {offset}: acknowledged {value!r}, found {found.get(offset)!r}"
            for offset, value in acknowledged.items()
            if found.get(offset) != value
        ]
        return Judgement(acknowledged=len(acknowledged), violations=lost)

    async def _publish(self, world: World, host: str, acknowledged: dict[int, bytes]) -> None:
        async with (
            world.client(host, connect_timeout_s=60.0) as client,
            client.producer("s") as producer,
        ):
            for number in range(self.records):
                value = f"{host}/{number}".encode()
                try:
                    receipt = await producer.send(value)
                except HadronError as error:
                    world.trace.log(f"{host}: {value!r} failed: {error}")
                else:
                    assert receipt.offset not in acknowledged
                    acknowledged[receipt.offset] = value
                await trio.sleep(world.random.expovariate(20.0))
