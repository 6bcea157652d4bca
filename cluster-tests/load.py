"""A load of several processes, what it saw, and the judge of what came of it.

    async with under_load(cluster, row) as load:
        load.kill("n1"); await load.start("n1"); await load.progress()

When the block ends, everything is healed, producers come to an end, the group is drained, the nodes
are stopped, and the checker of the simulator holds the merged histories against their files.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Final

import trio
from crew import PATIENCE_S, run_worker
from report import Row
from worker import Acked, Job, Plan, text_of

import hadron
from hadron.client.connecting.ports import ClientPorts
from hadron.model.errors import CorruptionError, HadronError
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.node.supervision.cluster import LocalCluster
from hadron.node.verification import verify_paths
from hadron.sim.checks.checker import Verdict, check
from hadron.sim.checks.logs import acknowledged_is_durable, no_duplicates
from hadron.sim.evidence.evidence import Evidence, Rules
from hadron.sim.evidence.history import History, Publish
from hadron.sim.evidence.node_files import NodeFile, read_node
from hadron.state.features import MACHINE
from hadron.state.machine import StateMachine
from hadron.testing.cluster import FaultyCluster

STREAM: Final = "load"
GROUP: Final = "everyone"
ALONE: Final = "alone"
"""The name of a client, beside those of the load, which tests may let reach one node only."""

PROGRESS_S: Final = 10.0
"""The bar: a publish that begins after healing succeeds within this."""

PROMOTED_WITHIN_S: Final = 5.0
"""The bar: from the start of the members with a new file to a leader that serves."""

WORKERS: Final[dict[str, tuple[Job, ...]]] = {
    "c1": (
        Job(kind="single", name="single", pause_s=0.005),
        Job(kind="pipelined", name="pipelined", pause_s=0.1),
        Job(kind="bulk", name="bulk", pause_s=0.2),
        Job(kind="single", name="impatient", pause_s=0.02, delivery_timeout_s=1.0),
        Job(kind="single", name="cautious", acks="all", pause_s=0.1),
        Job(kind="single", name="hasty", acks="leader", pause_s=0.05),
    ),
    "c2": (
        Job(kind="member", name="m1", group=GROUP),
        Job(kind="reader", name="reader", pause_s=0.2),
    ),
    "c3": (Job(kind="member", name="m2", group=GROUP),),
}
"""Processes by the name of their client. Paced, so that minutes of it can be judged in seconds."""

_POLL_S: Final = 0.02
_STILL_S: Final = 1.0
_STILL_WITHIN_S: Final = 20.0


class Load:
    """The running load, and the faults that its history must know of."""

    def __init__(self, cluster: FaultyCluster) -> None:
        self.cluster = cluster
        self.history = History(time.monotonic_ns)
        self.acked: list[Acked] = []
        """Publishes that a majority has, in the order in which their workers told."""
        self.progress_s: list[float] = []
        """What `progress` measured."""
        self._news = trio.Event()
        self._faults: list[int] = []

    # --- what is acknowledged -------------------------------------------------------------------

    def heard(self, acked: Acked) -> None:
        """A worker says that a publish was acknowledged."""
        if acked.acks == "leader":
            # A leader that is alone says so too: that is no progress.
            return
        self.acked.append(acked)
        self._news.set()
        self._news = trio.Event()

    async def wait_more(self, publishes: int) -> None:
        """Until this many more publishes, of one record or many, were acknowledged."""
        wanted = len(self.acked) + publishes
        with trio.fail_after(PATIENCE_S):
            while len(self.acked) < wanted:
                await self._news.wait()

    async def progress(self) -> None:
        """Until a publish that begins after this call is acknowledged; notes the seconds, which
        are held against the bar in the end."""
        now, seen = self.history.tick(), len(self.acked)
        with trio.fail_after(PATIENCE_S):
            while not any(acked.began > now for acked in self.acked[seen:]):
                await self._news.wait()
        ended = min(acked.ended for acked in self.acked[seen:] if acked.began > now)
        self.progress_s.append((ended - now) / 1e9)

    async def is_still(self) -> bool:
        """Whether acknowledgements end, once those that were on their way have come."""
        with trio.move_on_after(_STILL_WITHIN_S):
            while True:
                with trio.move_on_after(_STILL_S):
                    await self._news.wait()
                    continue
                return True
        return False

    def pauses_s(self) -> list[float]:
        """For each fault: the longest time without an acknowledgement from then to the next."""
        ends = sorted(acked.ended for acked in self.acked)
        pauses = []
        for began, until in zip(self._faults, [*self._faults[1:], 1 << 62], strict=True):
            before = max((end for end in ends if end <= began), default=began)
            times = [before, *(end for end in ends if began < end <= until)]
            following = next((end for end in ends if end > until), None)
            times += [] if following is None else [following]
            gaps = [later - earlier for earlier, later in pairwise(times)]
            pauses.append(max(gaps, default=0) / 1e9)
        return pauses

    async def read_all(self) -> None:
        """Read the stream from its beginning, and note what was there.

        What is damaged is waited for: another member has a good copy. Raises `CorruptionError`
        when none comes, and other `HadronError`s.
        """
        cluster = self.cluster
        async with hadron.connect(cluster.url, ports=cluster.ports("judge")) as client:
            deadline = trio.current_time() + PROGRESS_S
            while True:
                noted = self.history.read("judge", STREAM, cluster.config.name, 0)
                try:
                    async for record in client.read(STREAM):
                        noted.values.append(text_of(record.value))
                except CorruptionError as error:
                    self.history.unknown(noted, error)
                    if trio.current_time() > deadline:
                        raise
                    await trio.sleep(_POLL_S)
                else:
                    self.history.ok(noted)
                    return

    # --- faults ---------------------------------------------------------------------------------

    def fault(self, kind: str, subject: str = "", detail: str = "") -> None:
        """Note that something breaks now."""
        self._faults.append(time.monotonic_ns())
        self.history.event(kind, subject, detail)

    def count(self, *kinds: str) -> int:
        return len(self.history.events(*kinds))

    def kill(self, name: str) -> None:
        """SIGKILL one node."""
        self.fault("crash", name)
        self.cluster.kill(name)

    def kill_all(self) -> None:
        """SIGKILL all nodes at the same moment."""
        self.fault("crash")
        self.cluster.kill_all()

    async def stop(self, name: str) -> None:
        """SIGTERM, and wait for the end."""
        self.fault("stop", name)
        await trio.to_thread.run_sync(self.cluster.stop, name)

    async def start(self, *names: str) -> None:
        """Start nodes; returns once they serve or follow."""
        for name in names:
            self.history.event("start", name)
        await start_nodes(self.cluster, *names)

    async def wait_ready(self, *names: str) -> None:
        """Until nodes serve or follow."""
        await trio.to_thread.run_sync(self.cluster.wait_ready, names)

    def wipe(self, name: str) -> None:
        """Lose a stopped node's disk."""
        self.history.event("wipe", name)
        self.cluster.wipe(name)

    def heal(self) -> None:
        """Undo everything that was done to the network."""
        self.cluster.heal_all()
        self.history.event("heal")


@asynccontextmanager
async def under_load(
    cluster: FaultyCluster, row: Row, *, machine: StateMachine = MACHINE
) -> AsyncIterator[Load]:
    """A load for the length of a block, judged at its end; fills in the row of the report.

    Args:
        machine: what understands the logs of the nodes.

    Raises `AssertionError` naming the promises that were broken.
    """
    load = Load(cluster)
    applied = load.history.apply("judge", [("Stream", STREAM)])
    spec = StreamSpec(partitions=(cluster.config.name,))
    async with hadron.connect(cluster.url, ports=cluster.ports("judge")) as client:
        await client.apply([SchemaObject(kind="Stream", name=STREAM, spec=spec)])
    load.history.ok(applied)
    async with trio.open_nursery() as nursery:
        workers = [
            await nursery.start(run_worker, _plan(cluster, name, jobs), load.heard)
            for name, jobs in WORKERS.items()
        ]
        await load.wait_more(100)
        yield load
        load.heal()
        await load.progress()
        for worker in workers:
            await worker.halt()
        end = await _wait_drained(cluster)
        load.history.event("drained", GROUP, str(end))
        for worker in workers:
            await worker.end()
    await wait_in_step(cluster, ports=cluster.ports("judge"))
    await trio.to_thread.run_sync(cluster.stop_all)
    files = [_read_file(load, name) for name in cluster.names]
    verdict = judge(load, files, row, machine=machine)
    assert verdict.status == "valid", "\n".join(map(str, verdict.violations))
    assert max(load.progress_s) <= PROGRESS_S


def _read_file(load: Load, name: str) -> NodeFile:
    """A stopped node's file. Damage done by the test may be left where nobody has looked since, if
    only `hadron verify` finds it: then the checker does not go by this file's tables."""
    file = read_node(name, load.cluster.database(name))
    if name in {event.subject for event in load.history.events("damage")}:
        verified = verify_paths([load.cluster.config.node(name).data])
        if not verified.ok:
            file = NodeFile(name, file.log, committed_lsn=file.committed_lsn, damage=file.damage)
    return file


def judge(
    load: Load, files: Sequence[NodeFile], row: Row, *, machine: StateMachine = MACHINE
) -> Verdict:
    """The checker's verdict over all histories and the nodes' files."""
    cluster = load.cluster
    load.history.save(_history_path(cluster, "judge"))
    history = History.load(*(_history_path(cluster, name) for name in ("judge", *WORKERS)))
    load.history = history
    rules = Rules(
        members=len(cluster.names),
        durability=cluster.config.settings.durability,  # type: ignore[arg-type]
        progress_s=PROGRESS_S,
        machine=machine,
    )
    verdict = check(history, files, rules)
    _fill(row, load, verdict)
    if verdict.violations:
        # The verdict tells a few of each kind only.
        evidence = Evidence(history, list(files), rules)
        row.lost = sum(1 for _ in acknowledged_is_durable(evidence))
        row.duplicated = sum(1 for _ in no_duplicates(evidence))
    return verdict


def _fill(row: Row, load: Load, verdict: Verdict) -> None:
    publishes = load.history.of(Publish)
    row.kills = load.count("crash")
    row.partitions = load.count("cut")
    row.acked = verdict.acknowledged
    row.unknown = sum(len(p.values) for p in publishes if p.outcome == "unknown")
    row.refused = sum(len(p.values) for p in publishes if p.outcome == "refused")
    row.delivered = verdict.delivered
    row.pauses_s = load.pauses_s()
    row.progress_s = load.progress_s
    row.verdict = verdict.status


def _plan(cluster: FaultyCluster, name: str, jobs: tuple[Job, ...]) -> Plan:
    return Plan(
        name=name,
        url=cluster.url,
        routes=cluster.routes(name),
        stream=STREAM,
        partition=cluster.config.name,
        history=str(_history_path(cluster, name)),
        jobs=jobs,
    )


def _history_path(cluster: FaultyCluster, name: str) -> Path:
    return cluster.directory / f"{name}.history"


# --- the end --------------------------------------------------------------------------------------


async def _wait_drained(cluster: FaultyCluster) -> int:
    """Until the group has acknowledged every record; returns the stream's end."""
    seen = "no answer"
    async with hadron.connect(cluster.url, ports=cluster.ports("judge")) as client:
        with trio.move_on_after(PATIENCE_S):
            while True:
                try:
                    groups = await client.groups(STREAM)
                except HadronError as error:
                    seen = str(error)
                else:
                    if groups and all(group.floor == group.next_offset for group in groups):
                        return int(groups[0].next_offset)
                    seen = "; ".join(str(group).replace("\n", " ") for group in groups)
                await trio.sleep(_POLL_S)
    raise AssertionError(f"the group is not drained after {PATIENCE_S:g} s: {seen}")


async def start_nodes(cluster: LocalCluster, *names: str) -> None:
    """Start nodes; returns once they serve or follow. They are started by this thread: a node ends
    with the one that started it, and a thread that only waits is idle soon."""
    for name in names:
        cluster.spawn(name)
    await trio.to_thread.run_sync(cluster.wait_ready, names)


async def wait_in_step(cluster: LocalCluster, *, ports: ClientPorts | None = None) -> None:
    """Until every node has applied what the leader has committed."""
    seen: dict[str, str] = {}
    async with hadron.connect(cluster.url, ports=ports) as client:
        with trio.move_on_after(PATIENCE_S):
            while True:
                leader = await client.status(cluster.address(cluster.leader))
                for name in cluster.names:
                    status = await client.status(cluster.address(name))
                    seen[name] = f"{status.state} {status.trouble} at {status.applied_lsn}"
                    if status.applied_lsn < leader.last_lsn:
                        break
                else:
                    if leader.committed_lsn == leader.last_lsn:
                        return
                await trio.sleep(_POLL_S)
    raise AssertionError(f"nodes are not in step after {PATIENCE_S:g} s: {seen}")
