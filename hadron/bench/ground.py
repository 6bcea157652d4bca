"""What all parts of `hadron bench groups` stand on: the plan, and a cluster with its clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final

from hadron.bench import deliveries
from hadron.bench.stats import ProcessUse
from hadron.bench.workloads import declare
from hadron.client import Client, connect

_READ_PER_S: Final = 1_000_000
"""Records of the stream that is consumed, per second of a measurement: some groups may read all of
it before time is up, and then their time is shorter."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure.

    Attributes:
        seconds: that each measurement takes.
        rounds: of all measurements that are compared with each other.
        log_records: in the long log; fewer when `fill_s` does not suffice.
        fill_s: for filling it, at most.
        idle_members: whose memory is measured, each on a connection of its own.
        holes: records that one member holds back, with acknowledged ones between them; the leader
            delivers nothing new behind `MAX_UNSETTLED` of them.
        parts: names from `PARTS`.
    """

    nodes: int
    record_bytes: int
    durability: str
    seconds: float
    rounds: int
    log_records: int
    fill_s: float
    idle_members: int
    holes: int
    parts: Sequence[str]


@dataclass(slots=True)
class Ground:
    """What all parts stand on: a cluster of its own, and clients of it in this process.

    Attributes:
        held: streams that are filled already, and with how many records.
    """

    url: str
    plan: Plan
    leader: ProcessUse
    client: Client
    stack: AsyncExitStack
    tell: Callable[[str], None]
    held: dict[str, int] = field(default_factory=dict)
    _clients: list[Client] = field(default_factory=list)

    async def clients(self, count: int) -> list[Client]:
        """Each has a connection of its own; they stay for the next who asks."""
        while len(self._clients) < count:
            self._clients.append(await self.stack.enter_async_context(connect(self.url)))
        return self._clients[:count]

    async def stream(self, name: str, records: int, size: int) -> int:
        """A stream with so many records, or what there was time for; returns how many."""
        if name not in self.held:
            self.tell(f"  publishing {records:,} records of {size} B")
            await declare(self.client, name)
            self.held[name] = await deliveries.fill(
                self.client, name, records, size, self.plan.fill_s
            )
        return self.held[name]

    async def fan(self) -> str:
        """The stream that members consume as fast as they can."""
        wanted = round(_READ_PER_S * self.plan.seconds)
        await self.stream("fan", wanted, self.plan.record_bytes)
        return "fan"

    async def long_log(self) -> tuple[str, int]:
        """The long log's name, and how many records it has."""
        return "long", await self.stream("long", self.plan.log_records, deliveries.SMALL_BYTES)
