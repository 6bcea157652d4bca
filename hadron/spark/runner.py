"""The stage runner: takes ready invocations in micro-batches and has them run on Spark.

One micro-batch is one DataFrame. While Spark works on one, the next is fetched and its input laid
out, so that Spark waits for nobody.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import trio

from hadron.model.backoff import Backoff
from hadron.model.errors import HadronError
from hadron.model.limits import DEFAULT_MICRO_BATCH
from hadron.model.pipelines import StageSpec
from hadron.spark.functions import code_version
from hadron.spark.microbatch import MicroBatch, MicroBatchWorker, Search
from hadron.spark.stage import is_alive, stopped
from hadron.wire.system import SystemRandom

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["MicroBatch", "RunnerTotals", "Search", "StageRunner"]

_log = logging.getLogger(__name__)

_CREDIT: Final = 2
"""Micro-batches held at a time: one that Spark works on, one being prepared."""

_POLL_S: Final = 0.2
"""How often a runner's own condition is asked."""

_LOOK_AFTER_S: Final = 5.0
"""How often is looked whether Spark is there; and for so long, at most, what runs says itself that
it is not."""

_LOOK_S: Final = 0.5
"""How often is looked whether records that are waited for can be read."""

_SAID_PER_TIMEOUT: Final = 4
"""How often what waits is said to be worked on."""

_MOST_SILENT_S: Final = 10.0
"""But no less often than so: a timeout may be a day."""

_MOST_WAITING: Final = 100_000
"""Instances that wait here for their records; no more micro-batches are taken beyond. Five times
the live ones that a pipeline has unless told otherwise."""

_MOST_BACK: Final = 8
"""Micro-batches that have waited and are tried again at a time: each loads its records."""

_FIRST_PAUSE_S: Final = 0.1
_MAX_PAUSE_S: Final = 5.0

Connect = Callable[[str], AbstractAsyncContextManager[Any]]


@dataclass(slots=True)
class RunnerTotals:
    """What a runner did over its whole life."""

    micro_batches: int = 0
    invocations: int = 0
    completed: int = 0
    failed: int = 0
    stale: int = 0
    given_up: int = 0
    """Of those that failed, how many are not tried again by themselves."""

    def add(self, batch: MicroBatch) -> None:
        self.micro_batches += 1
        self.invocations += batch.invocations
        self.completed += batch.completed
        self.failed += batch.failed
        self.stale += batch.stale
        self.given_up += batch.given_up


@dataclass(slots=True)
class _Taken:
    """A micro-batch, as it came.

    Attributes:
        calls_lost: as it was then: by a later one it is somebody else's.
        ended: set when no more of that call comes.
    """

    stream: Any
    message: Any
    calls_lost: int
    ended: trio.Event
    is_granted: bool = False
    told_s: float = 0.0

    @property
    def stage(self) -> str:
        return str(self.message.stage)

    @property
    def is_over(self) -> bool:
        return self.ended.is_set() or self.stream._calls_lost != self.calls_lost

    def begin(self) -> None:
        """Say that it is worked on."""
        self.told_s = trio.current_time()
        self.stream.begin(self.message, code_version(self.message.spec))

    def tell(self) -> None:
        """That what is left of it is still here, in time."""
        timeout_s = msgspec.json.decode(self.message.spec, type=StageSpec).timeout_ms / 1000
        every_s = min(timeout_s / _SAID_PER_TIMEOUT or _MOST_SILENT_S, _MOST_SILENT_S)
        if trio.current_time() >= self.told_s + every_s:
            self.begin()


class StageRunner:
    """Runs the Spark stages of one pipeline. One runner runs once.

    Args:
        url: the server, as for `hadron.connect`; its namespace is the pipeline's.
        pipeline: the pipeline's name.
        master: where Spark runs, when no session is given.
        max_batch: invocations per micro-batch, at most.
        stages: names of the stages to run; all Spark stages when empty.
        spark: a session to use; otherwise one is made, and stopped at the end.
        on_progress: called after every micro-batch, in the thread of `run`; must be quick.
        on_search: called likewise while the instances are looked for that a function raises for.
        connect: opens an async client under trio; `hadron.connect` when None.
    """

    def __init__(
        self,
        url: str,
        pipeline: str,
        *,
        master: str = "local[*]",
        max_batch: int = DEFAULT_MICRO_BATCH,
        stages: Sequence[str] = (),
        spark: SparkSession | None = None,
        on_progress: Callable[[MicroBatch], None] | None = None,
        on_search: Callable[[Search], None] = lambda _: None,
        connect: Connect | None = None,
    ) -> None:
        self._url = url
        self._pipeline = pipeline
        self._master = master
        self._max_batch = max_batch
        self._stages = tuple(stages)
        self._spark = spark
        self._on_progress = on_progress
        self._on_search = on_search
        self._connect = connect or _default_connect
        self._asked_to_stop = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._stopping = trio.Event()
        self._receiving: trio.CancelScope | None = None
        self._failure: Exception | None = None
        self._given_up: HadronError | None = None
        self._waiting = 0
        self._back = 0
        self.totals = RunnerTotals()

    def run(self, until: Callable[[], bool] | None = None) -> RunnerTotals:
        """Serve until `stop`, or until `until()`, asked a few times a second, is true.

        Blocks the calling thread. Micro-batches under way are finished first. Connection trouble
        is waited out; a `HadronError` that waiting cannot mend is raised, such as `NotFoundError`
        for the pipeline, `StageCodeError` when a stage's function cannot be loaded or is wrong, or
        `ConfigurationError` when Spark does not start or is gone.
        """
        with self._session() as spark:
            trio.run(self._main, spark, until)
        if self._failure is not None:
            raise self._failure
        return self.totals

    def stop(self) -> None:
        """Ask `run` to return. May be called from any thread, a signal handler, or beforehand."""
        self._asked_to_stop.set()
        token = self._token
        if token is not None:
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(self._stop_receiving)

    @contextlib.contextmanager
    def _session(self) -> Iterator[SparkSession]:
        if self._spark is not None:
            yield self._spark
            return
        from hadron.spark.session import session, warm_up

        spark = session(self._master, f"hadron {self._pipeline}")
        try:
            warm_up(spark)
            yield spark
        finally:
            spark.stop()

    async def _main(self, spark: SparkSession, until: Callable[[], bool] | None) -> None:
        self._token = trio.lowlevel.current_trio_token()
        if self._asked_to_stop.is_set():
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_after, spark)
            if until is not None:
                nursery.start_soon(self._watch, until)
            try:
                async with self._connect(self._url) as client:
                    worker = MicroBatchWorker(client, self._pipeline, spark, self._on_search)
                    await self._serve(client, worker)
            except HadronError as error:
                self._fail(error)
            nursery.cancel_scope.cancel()

    async def _watch(self, until: Callable[[], bool]) -> None:
        try:
            while not self._stopping.is_set() and not await trio.to_thread.run_sync(until):
                with trio.move_on_after(_POLL_S):
                    await self._stopping.wait()
        except Exception as error:
            self._fail(error)
        self._stop_receiving()

    async def _look_after(self, spark: SparkSession) -> None:
        """A runner without work would hear of it with the next that it is given, and lose that."""
        there = partial(trio.to_thread.run_sync, is_alive, spark, abandon_on_cancel=True)
        while await there():  # noqa: ASYNC110 - Java that goes tells nobody
            await trio.sleep(_LOOK_AFTER_S)
        await trio.sleep(_LOOK_AFTER_S)
        self._fail(stopped("while the stage runner waited for work"))

    async def _serve(self, client: Any, worker: MicroBatchWorker) -> None:
        """Take work, again after every disconnection. Failures are kept, not raised: the client's
        own task group would wrap them."""
        backoff = Backoff(SystemRandom(), _FIRST_PAUSE_S, _MAX_PAUSE_S)
        while not self._stopping.is_set():
            taken = self.totals.micro_batches
            error = await self._take(client, worker)
            if error is not None and not error.retryable:
                self._fail(error)
            if self._stopping.is_set():
                return
            if self.totals.micro_batches > taken:
                backoff.reset()
            _log.warning("pipeline %s: the call ended (%s); again", self._pipeline, error)
            with trio.move_on_after(backoff.next_s()):
                await self._stopping.wait()

    async def _take(self, client: Any, worker: MicroBatchWorker) -> HadronError | None:
        """One call for work, until it ends; what ended it, or None."""
        ended_by: HadronError | None = None
        self._given_up = None
        ended = trio.Event()
        opening = client.run_stages(
            self._pipeline,
            engine="spark",
            stages=self._stages,
            max_batch=self._max_batch,
            credit=_CREDIT,
            takes_ahead=True,
            runner=f"{socket.gethostname()}/{os.getpid()}",
        )
        try:
            await worker.check_functions(self._stages)
            async with opening as stream, trio.open_nursery() as nursery:
                with trio.CancelScope() as self._receiving:
                    if self._stopping.is_set():
                        return None
                    try:
                        async for invocations in stream:
                            taken = _Taken(stream, invocations, stream._calls_lost, ended)
                            nursery.start_soon(self._process, worker, taken)
                    except HadronError as error:
                        ended_by = error
                ended.set()
        except HadronError as error:
            ended_by = ended_by or error
        finally:
            self._receiving = None
        return ended_by or self._given_up

    async def _process(self, worker: MicroBatchWorker, taken: _Taken) -> None:
        try:
            done = await worker.process(taken.message, taken.begin)
            self._report(done.report)
            with self._waits(done.left):
                self._grant(taken)
                while done.left is not None and await self._wait(worker, taken, done.left):
                    self._back += 1
                    try:
                        done = await worker.process(done.left, taken.begin, is_patient=False)
                    finally:
                        self._back -= 1
                    self._report(done.report)
            self._grant(taken)
        except HadronError as error:
            # The server hands the invocations out again: to us, or to somebody else.
            if error.retryable:
                _log.warning("stage %s: a micro-batch was given up: %s", taken.stage, error)
                # Ending the call gives it back at once. Otherwise the server would wait for it
                # until the stage's timeout, and for the credit that it took for ever.
                self._given_up = error
                if self._receiving is not None:
                    self._receiving.cancel()
            else:
                self._fail(error)
        except Exception as error:
            # A mistake of ours: raised here, it would end the runner within groups of exceptions.
            self._fail(error)

    def _report(self, done: MicroBatch) -> None:
        if not done.invocations:
            return
        self.totals.add(done)
        if self._on_progress is not None:
            self._on_progress(done)

    @contextlib.contextmanager
    def _waits(self, left: Any) -> Iterator[None]:
        count = len(left.invocations) if left is not None else 0
        self._waiting += count
        try:
            yield
        finally:
            self._waiting -= count

    def _grant(self, taken: _Taken) -> None:
        """Ask for another micro-batch instead of this one, once."""
        if taken.is_granted or self._stopping.is_set() or self._waiting > _MOST_WAITING:
            return
        taken.is_granted = True
        taken.stream.grant(1)

    async def _wait(self, worker: MicroBatchWorker, taken: _Taken, left: Any) -> bool:
        """Until it is worth another try, as handlers wait for their records (PIPELINES P15); False
        when this is over: then it is given back, or has been."""
        while not self._stopping.is_set() and not taken.is_over:
            with trio.move_on_after(_LOOK_S):
                await taken.ended.wait()
            if taken.is_over:
                break
            taken.tell()
            if self._back < _MOST_BACK and worker.is_worth_it(left):
                return True
        return False

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._stop_receiving()

    def _stop_receiving(self) -> None:
        self._stopping.set()
        if self._receiving is not None:
            self._receiving.cancel()


def _default_connect(url: str) -> AbstractAsyncContextManager[Any]:
    import hadron

    client: AbstractAsyncContextManager[Any] = hadron.connect(url)
    return client
