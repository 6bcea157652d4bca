"""A month of flights through two stages, from two replica sets to a third, while runners, their
Sparks and leaders die: what comes out is what plain Python makes of it, to the byte."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest
from crew import PATIENCE_S
from departures import FLIGHTS, PIPELINE, declare, judge
from report import Row
from sparking import SparkProgram

import hadron
from hadron.client import SyncClient
from hadron.demo.flights import flight_record, load_flights
from hadron.model.errors import HadronError
from hadron.model.record import NewRecord
from hadron.node.supervision.local_fleet import LocalFleet
from hadron.wire.messages import pipelines_pb2

EU, US, AP = "eu/p0", "us/p0", "ap/p0"
SETS: Final = {EU: 3, US: 3, AP: 1}
"""The first owns the schema and is the pipeline's home; flights come to the first two, outputs go
to the third, whose leader is all of it."""

SEED: Final = 20_130_131
RUNNERS: Final = 3
DEATHS: Final = 20
LEADERS: Final = (EU, AP, US, AP, US, EU)
"""Those that die, too: one with every third runner."""

BATCH: Final = 100
"""Instances of a micro-batch; a runner holds two."""

MOST_IDLE: Final = 3
"""Deaths that met no runner at work: on a busy machine two may be done before the third begins."""

_STARTS_WITHIN_S: Final = 240.0
_AWAY_S: Final = 0.3
_WORKS_S: Final = 0.3
"""A runner dies as late, at most, after it was given work."""
_POLL_S: Final = 0.01

Progress = pipelines_pb2.PipelineProgressResponse.Pipeline


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[LocalFleet]:
    with LocalFleet(tmp_path, SETS) as running:
        yield running


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(1_500)
def test_each_flight_is_judged_once_whoever_dies(fleet: LocalFleet, row: Row) -> None:
    flights = [flight_record(each) for each in load_flights()]
    size = len(flights) // DEATHS
    with hadron.connect_sync(fleet.url) as client:
        declare(client, EU, (EU, US), AP)
        month = Month(fleet, client, row)
        try:
            for death in range(DEATHS):
                some = flights[death * size : (death + 1) * size]
                month.lose_one(death, some)
            month.finish(flights[DEATHS * size :], len(flights))
        finally:
            month.end()
        judge(client)
        assert client.transactions() == []
    row.acked = len(flights)
    month.judge()
    row.verdict = "valid"


class Month:
    """Flights as they come, and the runners that work on them."""

    def __init__(self, fleet: LocalFleet, client: SyncClient, row: Row) -> None:
        self._fleet = fleet
        self._client = client
        self._row = row
        self._chance = random.Random(SEED)
        self._leaders = iter(LEADERS)
        self._started = 0
        self._fed = 0
        self._idle = 0
        self._dead: list[SparkProgram] = []
        self._fell = Counter[str]()
        self._runners = [self._start() for _ in range(RUNNERS)]

    def lose_one(self, death: int, flights: Sequence[NewRecord]) -> None:
        """A runner dies while all of them are at work on these."""
        self._wait("all runners there", lambda told: _attending(told) == RUNNERS)
        self._feed(flights)
        # More than two could hold.
        full = 2 * (RUNNERS - 1) * BATCH
        told = self._wait(
            "all runners at work",
            lambda told: _running(told) > full or told.done + told.failed == self._fed,
        )
        self._idle += _running(told) <= full
        time.sleep(self._chance.uniform(0.0, _WORKS_S))
        self._kill(death)
        if death % 3 == 2:
            self._lose_leader(next(self._leaders))

    def finish(self, flights: Sequence[NewRecord], count: int) -> None:
        """Until all is done that is to be done."""
        self._feed(flights)
        self._wait(f"{count} done", lambda told: told.done + told.failed == count)
        (told,) = self._client.pipeline_progress(PIPELINE)
        assert (told.instances, told.done, told.failed) == (count, count, 0)

    def judge(self) -> None:
        told = ", ".join(f"{count} {what}" for what, count in sorted(self._fell.items()))
        self._row.notes.append(f"of {RUNNERS} runners at work one was killed: {told}")
        self._row.notes.append(f"deaths that met no runner at work: {self._idle}")
        assert self._fell.total() == DEATHS
        assert self._idle <= MOST_IDLE
        assert next(self._leaders, None) is None

    def end(self) -> None:
        for each in (*self._runners, *self._dead):
            each.end()

    # --- runners --------------------------------------------------------------------------------

    def _start(self) -> SparkProgram:
        program = [sys.executable, "-m", "hadron", "pipeline", "run", PIPELINE]
        program += ["--master", "local[1]", "--max-batch", str(BATCH)]
        self._started += 1
        log = self._fleet.directory / f"runner-{self._started}.log"
        variables = {"HADRON_URL": self._fleet.url}
        return SparkProgram(program, log, cwd=self._fleet.directory, variables=variables)

    def _kill(self, death: int) -> None:
        """The next runner in turn: all of it, but its workers, or its Java alone."""
        number = death % RUNNERS
        runner = self._runners[number]
        runner.check()
        if death % 2:
            runner.kill_java()
            runner.wait_failed(PATIENCE_S, "Spark stopped while")
            self._fell["its Java alone"] += 1
        else:
            with_workers = self._chance.random() < 0.5
            runner.kill(with_workers=with_workers)
            self._fell["all of it" if with_workers else "and its Java"] += 1
        self._row.kills += 1
        self._dead.append(runner)
        self._runners[number] = self._start()

    def _lose_leader(self, name: str) -> None:
        """SIGKILL a leader, which comes back."""
        cluster = self._fleet[name]
        cluster.kill(cluster.leader)
        self._row.kills += 1
        time.sleep(_AWAY_S)
        cluster.spawn(cluster.leader)
        cluster.wait_ready(cluster.names)
        began_s, before = time.monotonic(), self._done()
        self._wait("progress", lambda told: told.done > before or not told.live)
        self._row.progress_s.append(time.monotonic() - began_s)

    # --- the pipeline ---------------------------------------------------------------------------

    def _feed(self, flights: Sequence[NewRecord]) -> None:
        with self._client.producer(FLIGHTS) as producer:
            producer.send_many(flights)
        self._fed += len(flights)

    def _done(self) -> int:
        (told,) = self._client.pipeline_progress(PIPELINE)
        return told.done

    def _wait(self, what: str, condition: Callable[[Progress], bool]) -> Progress:
        until_s = time.monotonic() + _STARTS_WITHIN_S
        while True:
            for each in self._runners:
                each.check()
            try:
                (told,) = self._client.pipeline_progress(PIPELINE)
            except HadronError as error:
                if not error.retryable:
                    raise
            else:
                if condition(told):
                    return told
                assert time.monotonic() < until_s, f"not {what}: {told}"
            time.sleep(_POLL_S)


def _running(told: Progress) -> int:
    return sum(each.running for each in told.stages)


def _attending(told: Progress) -> int:
    return min(each.runners for each in told.stages)
