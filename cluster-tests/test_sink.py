"""What a streaming query writes is there once, whenever its Spark dies, and whichever leader."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

import copier
import pytest
import windows
from crew import PATIENCE_S
from report import Row
from sparking import SparkProgram, Watch, committed

import hadron
from hadron.client import SyncClient
from hadron.model.pipelines import StreamInput, StreamOutput, StreamPipelineSpec, sink_of
from hadron.model.record import NewRecord, Record
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.node.supervision.local_fleet import LocalFleet

META, EU, US = "meta", "eu/p0", "us/p0"
SETS: Final = {META: 3, EU: 3, US: 1}
"""The first owns the schema, and drives what sinks publish; one is its leader alone."""

SEED: Final = 20_261_124
DEATHS: Final = 20
LEADERS: Final = (META, EU, US, EU, META, US)
"""Those that die, too, while a query stays: one in every third of its lives."""

AT_LEAST: Final = 6
"""Of the deaths: between staging and commit, and within the commit."""

ROWS: Final = 2_000
"""Of a micro-batch, while it is killed again and again."""

_STAGED, _WITHIN = "staged and not committed", "within the commit"

_STARTS_WITHIN_S: Final = 240.0
_ENDS_WITHIN_S: Final = 120.0
_AWAY_S: Final = 0.3
_STAGED_S: Final = 0.03
_COMMITTING_S: Final = 0.006
"""A death comes as late, at most, behind what it waited for."""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[LocalFleet]:
    with LocalFleet(tmp_path, SETS) as running:
        yield running


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(1_500)
def test_each_record_is_written_once_whenever_spark_dies(
    fleet: LocalFleet, tmp_path: Path, row: Row
) -> None:
    chance = random.Random(SEED)
    given = Counter[_Copied]()

    def start(log: Path, *, is_last: bool) -> SparkProgram:
        rows = "" if is_last else str(ROWS)
        program = [sys.executable, copier.__file__, fleet.url, str(tmp_path / "query"), rows]
        return SparkProgram(program, log, cwd=tmp_path, variables={})

    with hadron.connect_sync(fleet.url) as client:
        _declare(client, copier.IN, copier.OUT)

        def feed(count: int) -> None:
            records = [_made(chance, given.total() + number) for number in range(count)]
            given.update(_copied_of(each) for each in records)
            with client.producer(copier.IN) as producer:
                producer.send_many(records)

        with closing(Watch(fleet, META, copier.SINK)) as watch:
            lives = Lives(fleet, row, watch, tmp_path / "query", start, feed)
            lives.run()
        found = Counter(_copied(each) for each in client.read(copier.OUT))
        open_ones = client.transactions()
    row.acked = found.total()
    assert (found - given, given - found) == (Counter(), Counter())
    assert open_ones == []
    lives.judge()
    row.verdict = "valid"


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(1_500)
def test_windows_are_those_of_all_at_once_whenever_spark_dies(
    fleet: LocalFleet, tmp_path: Path, row: Row
) -> None:
    given: list[windows.Event] = []

    def start(log: Path, *, is_last: bool) -> SparkProgram:
        program = [sys.executable, "-m", "hadron", "pipeline", "run", "windows"]
        program += ["--master", "local[2]", "--checkpoints", str(tmp_path / "queries")]
        program += ["--until-idle"] if is_last else []
        here = Path(windows.__file__).parent
        return SparkProgram(program, log, cwd=here, variables={"HADRON_URL": fleet.url})

    with hadron.connect_sync(fleet.url) as client:
        _declare(client, "events", "counts")
        spec = StreamPipelineSpec(
            source=StreamInput("events", "earliest", windows.SCHEMA),
            run="windows:counted",
            to=StreamOutput("counts"),
            options={"maxOffsetsPerTrigger": str(ROWS), "spark.sql.shuffle.partitions": "2"},
        )
        client.apply([SchemaObject(kind="Pipeline", name="windows", spec=spec)])
        (pipeline,) = client.objects("Pipeline", "default", "windows")

        def feed(count: int) -> None:
            made = list(windows.events(len(given), len(given) + count))
            given.extend(made)
            with client.producer("events") as producer:
                producer.send_many([NewRecord(each, key=f"{n}") for n, each in enumerate(made)])

        with closing(Watch(fleet, META, sink_of("windows", pipeline.id))) as watch:
            lives = Lives(fleet, row, watch, tmp_path / "queries", start, feed)
            lives.run()
        found = [each.value_bytes for each in client.read("counts")]
        open_ones = client.transactions()
    row.acked = len(found)
    assert sorted(found) == sorted(windows.counted_at_once(given))
    assert open_ones == []
    lives.judge()
    row.verdict = "valid"


def _declare(client: SyncClient, *names: str) -> None:
    spec = StreamSpec(partitions=(EU, US))
    client.apply([SchemaObject(kind="Stream", name=name, spec=spec) for name in names])


# --- what is copied -------------------------------------------------------------------------------


class _Copied(NamedTuple):
    """All that there is of a record, but its place."""

    value: bytes
    key: bytes | None
    type: str
    timestamp_ms: int
    headers: frozenset[tuple[str, str]]


def _made(chance: random.Random, number: int) -> NewRecord:
    """Any bytes at all, some of them none; with its number, so that no two are alike."""
    headers = {"n": f"{number}", "ü": "\n"} if number % 3 == 0 else {}
    return NewRecord(
        chance.randbytes(chance.randint(0, 150)),
        key=f"k{number % 500}" if number % 4 else None,
        type="made" if number % 5 else "",
        timestamp_ms=1_700_000_000_000 + number,
        headers=headers,
    )


def _copied_of(sent: NewRecord) -> _Copied:
    key = sent.key.encode() if isinstance(sent.key, str) else sent.key
    assert isinstance(sent.value, bytes)
    assert sent.timestamp_ms is not None
    headers = frozenset((sent.headers or {}).items())
    return _Copied(sent.value, key, sent.type or "", sent.timestamp_ms, headers)


def _copied(read: Record) -> _Copied:
    key = read.key.encode() if isinstance(read.key, str) else read.key
    headers = frozenset(read.headers.items())
    return _Copied(read.value_bytes, key, read.type, read.timestamp_ms, headers)


# --- lives and deaths -----------------------------------------------------------------------------


class Lives:
    """One query in many lives, each of which ends in the midst of a micro-batch.

    Args:
        checkpoints: the query's, or where that is.
        start: begins a life.
        feed: puts more records into what the query reads.
    """

    def __init__(
        self,
        fleet: LocalFleet,
        row: Row,
        watch: Watch,
        checkpoints: Path,
        start: Callable[..., SparkProgram],
        feed: Callable[[int], None],
    ) -> None:
        self._fleet = fleet
        self._row = row
        self._watch = watch
        self._checkpoints = checkpoints
        self._start = start
        self._feed = feed
        self._chance = random.Random(SEED)
        self._fell = Counter[str]()
        self._starts_s: list[float] = []
        self._programs: list[SparkProgram] = []

    def run(self) -> None:
        """All of them; the last one ends when everything is written."""
        leaders = iter(LEADERS)
        try:
            for life in range(DEATHS):
                self._feed(3 * ROWS)
                leader = next(leaders, None) if life % 3 == 1 else None
                self._live(life, self._begin(is_last=False), leader)
            self._begin(is_last=True).wait(_ENDS_WITHIN_S)
        finally:
            for each in self._programs:
                each.end()

    def judge(self) -> None:
        """The deaths have come when they should."""
        told = ", ".join(f"{count} {when}" for when, count in sorted(self._fell.items()))
        self._row.notes.append(
            f"Spark was killed {self._fell.total()} times: {told}; from a start to the first "
            f"records that are staged it took {max(self._starts_s):.1f} s at most"
        )
        within = sum(count for when, count in self._fell.items() if when.startswith(_WITHIN))
        assert self._fell.total() == DEATHS
        assert min(self._fell[_STAGED], within) >= AT_LEAST, told

    def _begin(self, *, is_last: bool) -> SparkProgram:
        # What the life before has staged is there still, of the batch that this one repeats.
        self._watch.forget_staged()
        log = self._fleet.directory / f"life-{len(self._programs)}.log"
        self._programs.append(self._start(log, is_last=is_last))
        return self._programs[-1]

    def _live(self, life: int, program: SparkProgram, leader: str | None) -> None:
        """From a start to a SIGKILL."""
        watch, began_s = self._watch, time.monotonic()
        batch = watch.published() + 1
        batch = watch.wait_staged(batch, _STARTS_WITHIN_S, program.check)
        self._starts_s.append(time.monotonic() - began_s)
        if leader is not None:
            healed_s = self._lose_leader(leader)
            watch.wait_published(batch, PATIENCE_S, program.check)
            self._row.progress_s.append(time.monotonic() - healed_s)
        if leader is not None or self._chance.random() < 0.5:
            watch.wait_published(batch, PATIENCE_S, program.check)
            batch += 1
        batch = self._wait_moment(life, batch, program)
        program.kill(with_workers=self._chance.random() < 0.5)
        self._row.kills += 1
        self._fell[self._phase(batch)] += 1

    def _lose_leader(self, name: str) -> float:
        """SIGKILL a leader, which comes back; returns when it has."""
        cluster = self._fleet[name]
        cluster.kill(cluster.leader)
        self._row.kills += 1
        time.sleep(_AWAY_S)
        cluster.spawn(cluster.leader)
        cluster.wait_ready(cluster.names)
        return time.monotonic()

    def _wait_moment(self, life: int, batch: int, program: SparkProgram) -> int:
        """Until it is time to die; returns amid which batch that is."""
        watch = self._watch
        program.find_java()
        batch = watch.wait_staged(batch, PATIENCE_S, program.check)
        if life % 2:
            time.sleep(self._chance.uniform(0.0, _STAGED_S))
        else:
            watch.wait_committing(batch, PATIENCE_S, program.check)
            time.sleep(self._chance.uniform(0.0, _COMMITTING_S))
        return batch

    def _phase(self, batch: int) -> str:
        """In which one of this batch Spark has just died, as its remains tell."""
        watch = self._watch
        is_under_way, is_published = watch.is_committing(), watch.published() >= batch
        if committed(self._checkpoints) >= batch:
            return "behind the commit"
        if is_published:
            return f"{_WITHIN}, which was done, and Spark did not know"
        if is_under_way:
            watch.wait_quiet(PATIENCE_S)
            done = watch.published() >= batch
            return f"{_WITHIN}, {'which went on' if done else 'which was undone'}"
        return _STAGED if watch.staged() >= batch else "before anything was staged"
