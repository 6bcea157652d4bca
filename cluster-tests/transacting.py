"""Transactions of several processes over four replica sets, and the judge of what came of them.

    async with under_transactions(fleet, row) as load:
        async with load.outage(): fleet[EU].kill("n1"); ...; await load.start(EU)

When the block ends, everything is healed, the group is drained, transactions come to an end, and
what the processes were told is held against the records in every node's file: all of a transaction
or none, where its receipts say, and nothing of it left over.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import apsw
import msgspec
import transactor
import trio
from crew import PATIENCE_S, Worker, run_program
from load import wait_in_step
from report import Row, quantile
from transactor import WORK, Begun, Done, Ended, Job, Named, Plan, read_journal

import hadron
from hadron.client import Client
from hadron.model.errors import HadronError
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.node.sql import open_records
from hadron.node.supervision.local_fleet import LocalFleet
from hadron.node.verification import verify_paths
from hadron.state.transactions.decisions import DECISION
from hadron.state.transactions.intents import INTENT
from hadron.state.transactions.locks import LOCK
from hadron.state.transactions.participations import PARTICIPATION
from hadron.testing.fleet import FaultyFleet

EU, US, AP, AF = "eu/p0", "us/p0", "ap/p0", "af/p0"
SETS: Final = {EU: 3, US: 3, AP: 1, AF: 1}
"""The first owns the schema. Two of three nodes, and two that are alone: their leader is all."""

OUTPUTS: Final = {"eu": (EU,), "us": (US,), "ap": (AP,), "af": (AF,)}
MOVED: Final = {"moved-ap": (AP,), "moved-us": (US,)}
STREAMS: Final = {**OUTPUTS, **MOVED, WORK: (EU, AF)}
_PUBLISHER: Final = Job(kind="publisher", tasks=8, streams=tuple(OUTPUTS))
_MOVER: Final = Job(kind="mover", tasks=2, streams=tuple(MOVED), pause_s=0.02)
CLIENTS: Final = {"c1": (_PUBLISHER, _MOVER), "c2": (_PUBLISHER, _MOVER)}
"""Processes by the name of their client."""


DOOMED: Final = "doomed"
"""The client of those that are killed, one after another."""

_TIMEOUTS_S: Final = {"c1": 30.0, "c2": 0.5, DOOMED: 10.0}
"""How long each asks what became of a commit."""

_DOOMED_JOBS: Final = (
    msgspec.structs.replace(_PUBLISHER, tasks=4, pause_s=0.01),
    msgspec.structs.replace(_MOVER, tasks=1),
)

PROGRESS_S: Final = 15.0
"""The bar: over each replica set a transaction that begins after healing is committed within this;
and so long, at most, a decided one waits while all are up."""

_POLL_S: Final = 0.05
_SECOND: Final = 1_000_000_000

Place = tuple[str, str, int]
"""A stream, a partition, an offset."""


class TransactionLoad:
    """The running load."""

    def __init__(self, fleet: FaultyFleet, row: Row, client: Client, nursery: trio.Nursery) -> None:
        self.fleet = fleet
        self.row = row
        self.done: list[Done] = []
        """Of transactions that were committed, in the order in which it was told."""
        self.outages: list[tuple[float, float]] = []
        """Wall time, ms: something was broken."""
        self.names: list[str] = []
        """Of all processes."""
        self._client = client
        self._nursery = nursery
        self._doomed: Worker | None = None
        self._news = trio.Event()

    # --- processes ------------------------------------------------------------------------------

    async def begin(self, name: str, client: str, jobs: tuple[Job, ...]) -> Worker:
        """Have a process do transactions."""
        self.names.append(name)
        journal = self.journal(name)
        plan = Plan(
            name=name,
            url=self.fleet.url,
            request_timeout_s=_TIMEOUTS_S[client],
            routes=self.fleet.routes(client),
            journal=str(journal),
            jobs=jobs,
        )
        program = [transactor.__file__, msgspec.json.encode(plan).decode()]
        run = partial(run_program, program, journal.with_suffix(".log"), self._heard)
        worker: Worker = await self._nursery.start(run)
        return worker

    def journal(self, name: str) -> Path:
        return self.fleet.directory / f"{name}.journal"

    async def kill_client(self) -> None:
        """SIGKILL the process that is doomed, and begin another one."""
        if self._doomed is not None:
            self._doomed.kill()
            await self._doomed.ended.wait()
            self.row.kills += 1
        number = sum(name.startswith(DOOMED) for name in self.names)
        self._doomed = await self.begin(f"{DOOMED}{number}", DOOMED, _DOOMED_JOBS)

    async def end_doomed(self) -> None:
        if self._doomed is not None:
            self._doomed.kill()
            await self._doomed.ended.wait()

    def _heard(self, line: bytes) -> None:
        self.done.append(msgspec.json.decode(line, type=Done))
        self._news.set()
        self._news = trio.Event()

    # --- what is committed ----------------------------------------------------------------------

    async def feed(self, records: int) -> None:
        """Publish records that are to be consumed."""
        async with self._client.producer(WORK) as producer:
            for number in range(records):
                await producer.send_soon(b"%d" % number)

    async def wait_more(self, transactions: int) -> None:
        """Until so many more were committed."""
        wanted = len(self.done) + transactions
        await self._until(lambda: len(self.done) >= wanted)

    async def goes_on(self) -> None:
        """Until transactions over each stream of each replica set were committed that began after
        this call; notes how long that took."""
        now, seen = time.monotonic_ns(), len(self.done)

        def missing() -> set[str]:
            fresh = (each for each in self.done[seen:] if each.began > now)
            return set(OUTPUTS) - {stream for each in fresh for stream in each.streams}

        await self._until(lambda: not missing())
        self.row.progress_s.append((time.monotonic_ns() - now) / _SECOND)

    async def _until(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(PATIENCE_S):
            while not condition():
                await self._news.wait()

    # --- faults ---------------------------------------------------------------------------------

    @asynccontextmanager
    async def outage(self) -> AsyncIterator[None]:
        """A block in which something breaks and is mended."""
        began = time.time() * 1_000
        yield
        self.outages.append((began, time.time() * 1_000))
        await self.goes_on()

    async def start(self, name: str) -> None:
        """Start what does not run of a replica set; returns once it serves."""
        cluster = self.fleet[name]
        for node in cluster.names:
            if not cluster.running(node):
                # From this thread: a node ends with the thread that started it.
                cluster.spawn(node)
        await trio.to_thread.run_sync(cluster.wait_ready, cluster.names)


@asynccontextmanager
async def under_transactions(fleet: FaultyFleet, row: Row) -> AsyncIterator[TransactionLoad]:
    """A load for the length of a block, judged at its end; fills in the row of the report.

    Raises `AssertionError` naming what is torn, lost, doubled or left over.
    """
    async with hadron.connect(fleet.url) as client:
        await client.apply(
            [
                SchemaObject(kind="Stream", name=name, spec=StreamSpec(partitions=partitions))
                for name, partitions in STREAMS.items()
            ]
        )
        reader = Reader(client)
        async with trio.open_nursery() as readers:
            for stream in (*OUTPUTS, *MOVED):
                readers.start_soon(reader.follow, stream)
            async with trio.open_nursery() as nursery:
                load = TransactionLoad(fleet, row, client, nursery)
                workers = [await load.begin(name, name, jobs) for name, jobs in CLIENTS.items()]
                await load.wait_more(100)
                yield load
                fleet.heal_all()
                await load.end_doomed()
                await _wait_drained(client)
                for worker in workers:
                    await worker.halt()
                for worker in workers:
                    await worker.end()
            await _wait_over(client)
            for cluster in fleet.values():
                await wait_in_step(cluster)
            await reader.wait_ends()
            readers.cancel_scope.cancel()
        known = await _ask(client, [load.journal(name) for name in load.names])
    nodes = [
        (name, fleet[name].config.node(node).data) for name in fleet for node in fleet[name].names
    ]
    found = [Found.read(name, directory) for name, directory in nodes]
    await trio.to_thread.run_sync(fleet.stop)
    violations = [
        *judge(known, found, reader.seen, row),
        *(each for name, directory in nodes for each in _left_over(name, directory)),
    ]
    verified = verify_paths([directory for _, directory in nodes])
    if not verified.ok:
        violations.append(f"the nodes' files: {verified}")
    _note_unfinished(load, fleet)
    row.verdict = "valid" if not violations else "INVALID"
    told = "\n".join(violations[:30])
    assert not violations, f"{len(violations)} violations, the first:\n{told}"


class Reader:
    """Follows streams while everything breaks: what it has seen has to stay."""

    def __init__(self, client: Client) -> None:
        self.seen: dict[str, dict[int, str]] = defaultdict(dict)
        self._client = client

    async def follow(self, stream: str) -> None:
        async for record in self._client.read(stream, follow=True):
            self.seen[stream][record.offset] = _text(record.value)

    async def wait_ends(self) -> None:
        """Until all has been read."""
        with trio.fail_after(PATIENCE_S):
            for stream in (*OUTPUTS, *MOVED):
                (bounds,) = await self._client.offsets(stream)
                while len(self.seen[stream]) < bounds.next_offset:  # noqa: ASYNC110
                    await trio.sleep(_POLL_S)


async def _wait_drained(client: Client) -> None:
    """Until the group has acknowledged every record."""
    seen = "no answer"
    with trio.move_on_after(PATIENCE_S):
        while True:
            try:
                groups = await client.groups(WORK)
            except HadronError as error:
                seen = str(error)
            else:
                if groups and all(each.floor == each.next_offset for each in groups):
                    return
                seen = "; ".join(f"{each.partition} {each.floor}" for each in groups)
            await trio.sleep(_POLL_S)
    raise AssertionError(f"the group is not drained after {PATIENCE_S:g} s: {seen}")


async def _wait_over(client: Client) -> None:
    """Until no leader has anything left of any transaction (`hadron tx list`)."""
    listed: object = "no answer"
    with trio.move_on_after(PATIENCE_S):
        while True:
            try:
                listed = await client.transactions()
            except HadronError as error:
                listed = error
            else:
                if not listed:
                    return
            await trio.sleep(_POLL_S)
    raise AssertionError(f"transactions are left over after {PATIENCE_S:g} s: {listed}")


# --- evidence -------------------------------------------------------------------------------------


@dataclass
class Known:
    """What was known of a transaction.

    Attributes:
        ended: what its program was told; None of a process that was killed.
        transaction: its id; "" where nobody was told.
        state: what its driver says of it in the end; "" where nobody can ask.
    """

    begun: Begun
    transaction: str = ""
    ended: Ended | None = None
    state: str = ""


async def _ask(client: Client, journals: Iterable[Path]) -> dict[str, Known]:
    """What became of all transactions, by their own names, as their programs and drivers say."""
    known: dict[str, Known] = {}
    for journal in journals:
        # There is none of a process that was killed before it could write it.
        for entry in read_journal(journal) if journal.exists() else ():
            if isinstance(entry, Begun):
                known[entry.uid] = Known(entry)
            elif isinstance(entry, Named):
                known[entry.uid].transaction = entry.transaction
            else:
                known[entry.uid].ended = entry
    for each in known.values():
        is_told = each.ended is not None and each.ended.outcome != "unknown"
        if each.transaction and not is_told:
            each.state = (await client.outcome(each.transaction)).state
    return known


@dataclass
class Found:
    """The records of a node's file: where each value is."""

    replica_set: str
    node: str
    places: dict[str, list[Place]] = field(default_factory=lambda: defaultdict(list))
    work: set[tuple[str, int]] = field(default_factory=set)

    @classmethod
    def read(cls, replica_set: str, directory: Path) -> Found:
        """Of a running node that is in step: all that it has is committed."""
        found = cls(replica_set, directory.name)
        with open_records(directory, ask_node=lambda *_: 1 << 60) as records:
            rows = records.db.execute("SELECT stream, partition, offset, value FROM record")
            for stream, partition, offset, value in rows:
                if stream == WORK:
                    found.work.add((partition, offset))
                else:
                    found.places[_text(value)].append((stream, partition, offset))
        return found


def _text(value: object) -> str:
    return bytes(value).decode() if isinstance(value, bytes | memoryview) else str(value)


# --- judging --------------------------------------------------------------------------------------


def judge(
    known: dict[str, Known], found: Sequence[Found], seen: dict[str, dict[int, str]], row: Row
) -> Iterator[str]:
    """All of a transaction or nothing, where its receipts say; on every node, and for readers.

    Args:
        seen: by them: value by offset by stream.
    """
    leaders: dict[str, Found] = {}
    for node in found:
        leader = leaders.setdefault(node.replica_set, node)
        if (node.places, node.work) != (leader.places, leader.work):
            yield f"{node.node} has other records than {leader.node}"
    places: dict[str, list[Place]] = defaultdict(list)
    for leader in leaders.values():
        for value, where in leader.places.items():
            places[value] += where
    done: list[Known] = []
    for each in known.values():
        violations, is_done = _judge_one(each, places)
        yield from violations
        if is_done:
            done.append(each)
    yield from _nothing_else(done, places)
    yield from _moved_once(done, set().union(*(leader.work for leader in leaders.values())))
    for stream, by_offset in seen.items():
        for offset, value in by_offset.items():
            if (stream, *STREAMS[stream], offset) not in places.get(value, ()):
                yield f"a reader saw {value} at {stream}@{offset}, where it is not"
    outcomes = Counter(
        "killed" if each.ended is None else each.ended.outcome for each in known.values()
    )
    on_purpose = sum(each.begun.is_to_roll_back for each in known.values())
    row.acked = sum(len(each.begun.records) for each in done)
    row.unknown, row.refused = outcomes["unknown"], outcomes["rolled back"] - on_purpose
    widths = Counter(len({s for s, _ in each.begun.records}) for each in done)
    row.notes.append(
        f"{len(known):,} transactions: {outcomes['committed']:,} committed (over "
        + ", ".join(f"{width} sets: {count:,}" for width, count in sorted(widths.items()))
        + f"), {outcomes['rolled back']:,} rolled back ({on_purpose:,} on purpose), "
        f"{outcomes['unknown']:,} of unknown outcome, {outcomes['killed']:,} of killed clients; "
        f"{len(done):,} are in the streams with {row.acked:,} records"
    )


def _judge_one(each: Known, places: dict[str, list[Place]]) -> tuple[list[str], bool]:
    """What is wrong with a transaction, and whether it is in the streams."""
    uid, ended = each.begun.uid, each.ended
    label = f"{uid} ({each.transaction or 'without a name'})"
    wrong = []
    missing: list[str] = []
    there: list[str] = []
    for stream, value in each.begun.records:
        where = [place for place in places.get(value, ()) if place[0] == stream]
        (there if where else missing).append(f"{stream} {value}")
        if len(where) > 1:
            wrong.append(f"doubled: {label}: {value} is at {where}")
    if missing and there:
        wrong.append(f"torn: {label}: {there} are there, {missing} are not")
    is_done = bool(there)
    if ended is not None and ended.outcome == "committed" and not is_done:
        wrong.append(f"lost: {label} was committed, and is nowhere")
    if ended is not None and ended.outcome == "rolled back" and is_done:
        wrong.append(f"{label} was rolled back ({ended.error}), and {there} are there")
    # Who has lost a delivery to others goes on with what comes then.
    if ended is not None and not ended.is_retryable and not each.begun.moved:
        wrong.append(f"{label} is not to be tried again: {ended.error}")
    if each.begun.is_to_roll_back and is_done:
        wrong.append(f"{label} was rolled back on purpose, and {there} are there")
    if each.state and each.state != ("committed" if is_done else "aborted"):
        wrong.append(f"{label} is {each.state}, says its driver, and there are {there}")
    if ended is not None:
        for value, partition, offset in ended.receipts:
            if not any(place[1:] == (partition, offset) for place in places.get(value, ())):
                wrong.append(f"lost: {label}: {value} is not at {partition}@{offset}")
    by_stream: dict[str, list[int]] = defaultdict(list)
    for stream, value in each.begun.records:
        by_stream[stream] += [place[2] for place in places.get(value, ()) if place[0] == stream]
    if any(offsets != sorted(offsets) for offsets in by_stream.values()):
        wrong.append(f"{label} is in another order than it was published in: {dict(by_stream)}")
    return wrong, is_done


def _nothing_else(done: Sequence[Known], places: dict[str, list[Place]]) -> Iterator[str]:
    values = {value for each in done for _, value in each.begun.records}
    for value, where in places.items():
        if value not in values:
            yield f"{value} is at {where}, and of no transaction"


def _moved_once(done: Sequence[Known], work: set[tuple[str, int]]) -> Iterator[str]:
    """Each record of the group was acknowledged with its outputs, once."""
    moved = Counter(place for each in done for place in each.begun.moved)
    twice = [place for place, count in moved.items() if count > 1]
    if twice or moved.keys() != work:
        yield (
            f"{len(moved)} of {len(work)} records were moved; not: "
            f"{sorted(work - moved.keys())[:10]}, more than once: {twice[:10]}"
        )


def _left_over(replica_set: str, directory: Path) -> Iterator[str]:
    """What a stopped node's file still has of transactions."""
    unfinished = f"(SELECT 1 FROM {DECISION} WHERE finished_ms IS NULL)"
    with closing(
        apsw.Connection(str(directory / "hadron.db"), flags=apsw.SQLITE_OPEN_READONLY)
    ) as db:
        for table in (INTENT, LOCK, PARTICIPATION, unfinished):
            count = db.execute(f"SELECT count(*) FROM {table}").get
            if count:
                yield f"left over: {count} rows in {table} of {directory.name} ({replica_set})"


def _note_unfinished(load: TransactionLoad, fleet: LocalFleet) -> None:
    """How long decided transactions waited for their participants, as their drivers' tables say."""
    took_ms: list[float] = []
    up_ms: list[float] = []
    for cluster in fleet.values():
        path = cluster.database(cluster.leader)
        with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as db:
            for decided, finished in db.execute(
                f"SELECT decided_ms, finished_ms FROM {DECISION} WHERE finished_ms > 0"
            ):
                broken = sum(
                    max(0.0, min(finished, until) - max(decided, since))
                    for since, until in load.outages
                )
                took_ms.append(finished - decided)
                up_ms.append(max(0.0, finished - decided - broken))
    load.row.notes.append(
        f"{len(took_ms):,} were decided; the longest time that one stayed unfinished while all "
        f"were up: {max(up_ms):,.0f} ms (p50 {quantile(up_ms, 0.5):.0f} ms, p99 "
        f"{quantile(up_ms, 0.99):.0f} ms); with outages: {max(took_ms):,.0f} ms"
    )
    assert max(up_ms) <= PROGRESS_S * 1_000, load.row.notes
    assert max(load.row.progress_s) <= PROGRESS_S, load.row.progress_s
