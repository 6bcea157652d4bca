"""A load over the partitions of two regions, what it felt when one of them was away, and the judge.

    async with under_load(fleet, row) as load:
        async with load.outage("us/p0 killed", US):
            fleet.kill(US); await load.goes_on(); await load.start(US)

An outage ends when its partitions take records again, and the group gets them. When the block ends,
producers come to an end, the group is drained, the nodes are stopped, and the checker holds each
partition's part of the histories against its set's files; then all partitions together are searched
for records that are in two of them.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec
import trio
from crew import PATIENCE_S, run_worker
from load import PROGRESS_S, wait_in_step
from report import Row, quantile
from worker import Acked, Job, Plan

import hadron
from hadron.model.errors import HadronError
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.sim.checks.checker import Verdict, check
from hadron.sim.checks.logs import acknowledged_is_durable
from hadron.sim.evidence.evidence import Evidence, Rules, Violation
from hadron.sim.evidence.history import Apply, Deliver, Event, History, Publish, Transact
from hadron.sim.evidence.node_files import read_node
from hadron.testing.fleet import FaultyFleet

META, EU, US = "global/metadata", "eu/p0", "us/p0"
SETS: Final = {META: 3, EU: 3, US: 3}
REGIONS: Final = (EU, US)
STREAM: Final = "load"
GROUP: Final = "everyone"

PAUSE_S: Final = 3.0
"""The bar: for so long, at most, a producer of records without a key gets nothing
acknowledged when a region goes away; nor does the group get a record of the other region."""

_MEMBER: Final = Job(kind="member", name="", group=GROUP, acks_per_flush=100, flush_s=1.0)

WORKERS: Final[dict[str, tuple[Job, ...]]] = {
    "c1": (
        Job(kind="steady", name="u1", pause_s=0.02),
        Job(kind="steady", name="u2", pause_s=0.03),
        Job(kind="steady", name="k1", pause_s=0.05, keys=16),
        Job(kind="single", name="patient", pause_s=0.05),
    ),
    "c2": (
        Job(kind="steady", name="u3", pause_s=0.02),
        Job(kind="steady", name="k2", pause_s=0.05, keys=3),
        Job(kind="steady", name="pinned", pause_s=0.1, partition=US),
        msgspec.structs.replace(_MEMBER, name="m1"),
    ),
    "c3": (
        msgspec.structs.replace(_MEMBER, name="m2"),
        msgspec.structs.replace(_MEMBER, name="m3"),
    ),
    "c4": (
        # To leave takes seconds while a partition is away, for the acks: the others may all do so.
        msgspec.structs.replace(_MEMBER, name="m4", stays=True),
        Job(kind="reader", name="reads-eu", partition=EU, pause_s=0.2),
        Job(kind="reader", name="reads-us", partition=US, pause_s=0.2),
    ),
}
"""Processes by the name of their client."""

_JOBS: Final = [job for jobs in WORKERS.values() for job in jobs]
UNKEYED: Final = [
    job.name for job in _JOBS if job.kind == "steady" and not job.keys and not job.partition
]
"""Producers whose records any partition may take."""
KEYED: Final = [job.name for job in _JOBS if job.keys]

_POLL_S: Final = 0.02
_SECOND: Final = 1_000_000_000


@dataclass
class Outage:
    """Something broke, and was mended.

    Attributes:
        lost: partitions that nobody could reach meanwhile.
        began, back: ns; `back` is when everything runs, and is connected, again.
        refilled_s: from then until a publish that began later was acknowledged, by partition.
        others_s: the longest time without a delivery of each other partition, filled in at the end.
    """

    what: str
    lost: tuple[str, ...]
    began: int
    back: int = 0
    refilled_s: dict[str, float] | None = None
    others_s: Sequence[float] = ()


class RegionLoad:
    """The running load."""

    def __init__(self, fleet: FaultyFleet) -> None:
        self.fleet = fleet
        self.history = History(time.monotonic_ns)
        self.acked: list[Acked] = []
        """In the order in which workers told."""
        self.outages: list[Outage] = []
        self._news = trio.Event()

    def heard(self, acked: Acked) -> None:
        """A worker says that a publish was acknowledged."""
        self.acked.append(acked)
        self._news.set()
        self._news = trio.Event()

    async def goes_on(self, publishes: int = 150) -> None:
        """Until every producer of records without a key has so many acknowledged that it began to
        publish after this call."""
        now = self.history.tick()
        await self._until(
            lambda: all(self._begun_since(now, job=job) >= publishes for job in UNKEYED)
        )

    async def wait_taken(self, partition: str, job: str = "") -> float:
        """Until a partition has taken a record that was published after this call, by one producer
        or any; returns how long that took, in seconds."""
        now = self.history.tick()
        await self._until(lambda: self._begun_since(now, job=job, partition=partition) > 0)
        return (self.history.tick() - now) / _SECOND

    async def _wait_consumed(self, partition: str) -> None:
        """Until the group has acknowledged all that a partition has now."""
        end = None
        async with hadron.connect(self.fleet[partition].url) as client:
            with trio.fail_after(PATIENCE_S):
                while True:
                    for group in await client.groups(STREAM):
                        if group.partition == partition:
                            end = group.next_offset if end is None else end
                            if group.floor >= end:
                                return
                    await trio.sleep(_POLL_S)

    async def _until(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(PATIENCE_S):
            while not condition():
                await self._news.wait()

    def _begun_since(self, now: int, *, job: str = "", partition: str = "") -> int:
        count = 0
        for acked in reversed(self.acked):
            if acked.ended < now:
                break
            count += (
                acked.began > now and job in ("", acked.job) and partition in ("", acked.partition)
            )
        return count

    # --- faults ---------------------------------------------------------------------------------

    @asynccontextmanager
    async def outage(self, what: str, *lost: str) -> AsyncIterator[None]:
        """A block in which something breaks and is mended; `lost` are the partitions that are away
        meanwhile. Ends when they take records and the group has these: what breaks next would
        count as this one's."""
        outage = Outage(what, lost, self.history.tick())
        self.outages.append(outage)
        yield
        outage.back = self.history.tick()
        outage.refilled_s = {name: await self.wait_taken(name) for name in lost}
        for name in lost:
            await self._wait_consumed(name)

    def kill(self, replica_set: str) -> None:
        """SIGKILL every node of a set at once."""
        self.fleet.kill(replica_set)

    async def start(self, replica_set: str) -> None:
        """Start a set that was killed; returns once it serves."""
        cluster = self.fleet[replica_set]
        for name in cluster.names:
            # From this thread: a node ends with the thread that started it.
            cluster.spawn(name)
        await trio.to_thread.run_sync(cluster.wait_ready, cluster.names)

    # --- what was felt --------------------------------------------------------------------------

    def pauses_s(self, outage: Outage, jobs: Iterable[str], but: Sequence[str] = ()) -> list[float]:
        """For each of these producers its longest time without an acknowledgement (of partitions
        `but` these) while something was broken."""
        return [
            self.gap_s(
                outage,
                [
                    acked.ended
                    for acked in self.acked
                    if acked.job == job and acked.partition not in but
                ],
            )
            for job in jobs
        ]

    def gap_s(self, outage: Outage, times: list[int]) -> float:
        """The longest time between two of `times` (ns) that began before an outage was over, of
        which only the part is counted that lies between its beginning and the next one's."""
        after = self.outages[self.outages.index(outage) + 1 :]
        until = after[0].began if after else max(times, default=0)
        gaps = [
            min(later, until) - max(earlier, outage.began)
            for earlier, later in pairwise(sorted(times))
            if later > outage.began and earlier < outage.back
        ]
        return max(gaps, default=0) / _SECOND


@asynccontextmanager
async def under_load(fleet: FaultyFleet, row: Row) -> AsyncIterator[RegionLoad]:
    """A load for the length of a block, judged at its end; fills in the row of the report.

    Raises `AssertionError` naming the promises that were broken.
    """
    load = RegionLoad(fleet)
    applied = load.history.apply("judge", [("Stream", STREAM)])
    spec = StreamSpec(partitions=REGIONS)
    async with hadron.connect(fleet.url) as client:
        await client.apply([SchemaObject(kind="Stream", name=STREAM, spec=spec)])
    load.history.ok(applied)
    async with trio.open_nursery() as nursery:
        workers = [
            await nursery.start(run_worker, _plan(fleet, name, jobs), load.heard)
            for name, jobs in WORKERS.items()
        ]
        await load.goes_on(20)
        yield load
        fleet.heal_all()
        for worker in workers:
            await worker.halt()
        ends = await _wait_drained(fleet)
        drained = load.history.tick()
        for worker in workers:
            await worker.end()
    for cluster in fleet.values():
        await wait_in_step(cluster)
    await trio.to_thread.run_sync(fleet.stop)
    histories = [_history_path(fleet, name) for name in WORKERS]
    load.history.save(_history_path(fleet, "judge"))
    history = History.load(_history_path(fleet, "judge"), *histories)
    violations = list(judge(load, history, ends, drained, row))
    _note_what_was_felt(load, history, row)
    assert not violations, "\n".join(map(str, violations))
    pauses_s = [pause for outage in load.outages for pause in load.pauses_s(outage, UNKEYED)]
    assert quantile(pauses_s, 0.99) <= PAUSE_S, row.notes
    assert max(row.progress_s, default=0.0) <= PROGRESS_S, row.notes
    others_s = [gap for outage in load.outages for gap in outage.others_s]
    assert max(others_s, default=0.0) <= PAUSE_S, row.notes


def _plan(fleet: FaultyFleet, name: str, jobs: tuple[Job, ...]) -> Plan:
    return Plan(
        name=name,
        url=fleet.url,
        routes=fleet.routes(name),
        stream=STREAM,
        partition="",
        history=str(_history_path(fleet, name)),
        jobs=jobs,
    )


def _history_path(fleet: FaultyFleet, name: str) -> Path:
    return fleet.directory / f"{name}.history"


async def _wait_drained(fleet: FaultyFleet) -> dict[str, int]:
    """Until the group has acknowledged every record; returns the partitions' ends."""
    seen = "no answer"
    async with hadron.connect(fleet.url) as client:
        with trio.move_on_after(PATIENCE_S):
            while True:
                try:
                    groups = await client.groups(STREAM)
                except HadronError as error:
                    seen = str(error)
                else:
                    ends = {each.partition: each.next_offset for each in groups}
                    floors = {each.partition: each.floor for each in groups}
                    if floors == ends and ends.keys() == set(REGIONS):
                        return ends
                    seen = f"floors {floors}, ends {ends}"
                await trio.sleep(_POLL_S)
    raise AssertionError(f"the group is not drained after {PATIENCE_S:g} s: {seen}")


# --- judging --------------------------------------------------------------------------------------


def judge(
    load: RegionLoad, history: History, ends: dict[str, int], drained: int, row: Row
) -> Iterator[Violation]:
    """What the checker finds in each set, and in all of them together.

    Args:
        ends: where the group stood at each partition when it was drained, at the tick `drained`.
    """
    found: dict[str, Evidence] = {}
    for name, cluster in load.fleet.items():
        part = _part(history, name)
        if name in ends:
            part.entries.append(
                Event(at=drained, kind="drained", subject=GROUP, detail=str(ends[name]))
            )
        files = [read_node(node, cluster.database(node)) for node in cluster.names]
        durability = cluster.config.settings.durability
        rules = Rules(members=len(files), durability=durability)  # type: ignore[arg-type]
        verdict = check(part, files, rules)
        yield from verdict.violations
        if name in ends:
            found[name] = evidence = Evidence(part, files, rules)
            _count(row, verdict, evidence)
    twice = list(published_twice(found))
    row.duplicated = len(twice)
    row.verdict = "valid"
    yield from twice


def _part(history: History, partition: str) -> History:
    """What one partition may have to do with: what it acknowledged, delivered or showed, and what
    may be in it, as nobody was told where it is."""
    part = History(lambda: 0)
    for entry in history.entries:
        if isinstance(entry, Publish) and not entry.partition:
            part.entries.append(msgspec.structs.replace(entry, partition=partition))
        elif isinstance(entry, Apply | Event | Transact) or entry.partition == partition:
            part.entries.append(entry)
    return part


def published_twice(found: dict[str, Evidence]) -> Iterator[Violation]:
    """A record is in one partition at most, and there at one offset (PROTOCOL D1)."""
    places: dict[str, str] = {}
    for partition, evidence in found.items():
        for stream, contents in evidence.streams.items():
            for offset, value in contents.values.items():
                place = f"{stream}@{offset} of {partition}"
                before = places.setdefault(value, place)
                if before != place:
                    yield Violation("published_once", f"{value!r} is at {before} and at {place}")


def _count(row: Row, verdict: Verdict, evidence: Evidence) -> None:
    publishes = evidence.publishes
    row.acked += verdict.acknowledged
    row.delivered += verdict.delivered
    # Of these nobody knows the partition: they are part of every partition's history.
    row.unknown = sum(len(p.values) for p in publishes if p.outcome == "unknown")
    row.refused = sum(len(p.values) for p in publishes if p.outcome == "refused")
    row.lost += sum(1 for _ in acknowledged_is_durable(evidence))


def _note_what_was_felt(load: RegionLoad, history: History, row: Row) -> None:
    """A line for each outage, and all of them in the table."""
    deliveries = history.of(Deliver)
    for outage in load.outages:
        pauses = load.pauses_s(outage, UNKEYED)
        row.pauses_s += pauses
        told = [
            f"{outage.what} for {(outage.back - outage.began) / _SECOND:.1f} s: producers without "
            f"keys paused for {_times(pauses)} at most"
        ]
        if outage.lost:
            others = [name for name in REGIONS if name not in outage.lost]
            outage.others_s = [
                load.gap_s(outage, [each.began for each in deliveries if each.partition == name])
                for name in others
            ]
            keyed = load.pauses_s(outage, KEYED, outage.lost)
            told.append(
                f"{' and '.join(others)} meanwhile: keyed records after {_times(keyed)}, "
                f"deliveries after {_times(outage.others_s)} at most"
            )
        for name, refilled_s in (outage.refilled_s or {}).items():
            row.progress_s.append(refilled_s)
            delivered_s = _delivered_after_s(deliveries, name, outage.back)
            row.progress_s.append(delivered_s)
            told.append(
                f"{name} once it was back: took records after {refilled_s:.2f} s, delivered after "
                f"{delivered_s:.2f} s"
            )
        longest = max(
            (
                each.ended - each.began
                for each in load.acked
                if each.job in (*UNKEYED, "patient")
                and each.began < outage.back
                and each.ended > outage.began
            ),
            default=0,
        )
        told.append(f"the longest wait of one record without a key: {longest / _SECOND:.2f} s")
        row.notes.append("; ".join(told))


def _delivered_after_s(deliveries: Sequence[Deliver], partition: str, since: int) -> float:
    """From a tick to the first delivery of a partition after it."""
    times = [each.began for each in deliveries if each.partition == partition]
    return (min(time for time in times if time > since) - since) / _SECOND


def _times(seconds: Sequence[float]) -> str:
    return " ".join(f"{each:.2f}" for each in sorted(seconds)) + " s"
