"""The stage of a pipeline that a program runs itself: its invocations, one by one."""

from __future__ import annotations

import inspect
import logging
import os
import socket
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, Self

import anyio
import msgspec

from hadron.client.connecting.session import Session
from hadron.client.handling.absences import Absences
from hadron.client.handling.ends import End, Ends, Kind
from hadron.client.handling.invocation import Given, StageInvocation, reason_of
from hadron.client.handling.lateness import Lateness
from hadron.client.handling.micro_batches import MicroBatch, Turn
from hadron.client.handling.records import RECORD_BYTES, FetchedRecords, SentRecords
from hadron.client.pipelines.calls import PipelineCalls
from hadron.client.pipelines.stage_run import ReadyStages
from hadron.client.producing.new_records import Serializer
from hadron.client.reading.calls import ReadCalls
from hadron.client.terms.arguments import (
    check_deserializer,
    check_handler,
    check_serializer,
    text_of,
    text_or_none_of,
    whole_of,
)
from hadron.client.terms.opening import EnteredOnce, Opening
from hadron.model.errors import ClosedError, HadronError, StaleCompletionError
from hadron.model.limits import MAX_MICRO_BATCH
from hadron.model.pipelines import StageSpec
from hadron.model.record import Deserializer, Record
from hadron.wire.messages import pipelines_pb2

DEFAULT_INVOCATIONS: Final = 100
"""A commit takes some milliseconds: with so many at a time a thousand a second and more are done,
and a program that is killed has had few."""

_MAX_IN_FLIGHT: Final = 100_000

_BEGIN_EVERY_S: Final = 0.5
"""How often it is said that a micro-batch is worked on, while its invocations begin; well below the
time that a leader adds to a timeout."""

_SAID_PER_TIMEOUT: Final = 4
"""At least so often, where that is short."""

_MOST_WAITING: Final = 100_000
"""Invocations that wait here for their records while others come in their place: five times the
live instances that a pipeline has unless told otherwise."""

_ROOMS: Final = 8
"""Credit is given in so many steps for all that may be in flight."""

_log: Final = logging.getLogger(__name__)

Handler = Callable[[StageInvocation], Awaitable[Any] | Any]
"""Gets an invocation; what it returns is the output."""


AN_INVOCATION: Final = "an invocation"
"""What a handler takes, for who gives something else."""


class StageSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a program runs a stage; the arguments of `Client.stage`."""

    pipeline: str
    stage: str
    max_in_flight: int
    value_serializer: Serializer | None
    value_deserializer: Deserializer | None
    runner: str
    code_version: str

    def checked(self) -> Self:
        """Raises `RequestError`."""
        text_of("pipeline", self.pipeline)
        text_of("stage", self.stage)
        whole_of("max_in_flight", self.max_in_flight, 1, _MAX_IN_FLIGHT)
        check_serializer(self.value_serializer)
        check_deserializer(self.value_deserializer)
        text_or_none_of("runner", self.runner)
        text_or_none_of("code_version", self.code_version)
        return self


class StageInvocations(EnteredOnce):
    """Invocations of a stage, `async for invocation in client.stage(...)`.

    The program has at most `max_in_flight` that have not ended; those whose records are at a leader
    that is away wait beside them. When the connection to the pipeline's leader is lost all go to
    another runner at once, and what is said of them later counts if it is first. Leaving the loop,
    or its block, gives back what has not ended, without using up an attempt.

    The stage's timeout runs for an invocation from when it is handed out. One that has not ended by
    then has failed, and what is said of it later is stale.
    """

    def __init__(
        self, session: Session, calls: PipelineCalls, reading: ReadCalls, settings: StageSettings
    ) -> None:
        self._session = session
        self._calls = calls
        self._settings = settings
        self._ends = Ends(session, calls)
        self._fetched = FetchedRecords(reading, settings.value_deserializer)
        self._absences = Absences(session, self._fetched, self._wake, self._say_begun)
        self._stages: ReadyStages | None = None
        self._micro_batch: MicroBatch | None = None
        self._call = 0
        self._specs: dict[str, StageSpec] = {}
        self._taken = 0
        self._running = 0
        self._ended = 0
        self._lent = 0
        self._late = Lateness(session, self._is_ours)
        self._timing: anyio.CancelScope | None = None
        self._turn = anyio.Lock()

    def __repr__(self) -> str:
        return f"<StageInvocations {self}>"

    def __str__(self) -> str:
        settings = self._settings
        state = "not open yet" if self._stages is None else str(self._stages)
        return f"of stage {settings.stage!r} of {settings.pipeline!r}, {state}"

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StageInvocation:
        given = await self._next()
        if given is None:
            raise StopAsyncIteration
        return StageInvocation(given)

    async def run(self, handler: Handler) -> None:
        """Call `handler` with each invocation, `max_in_flight` at a time: what it returns is the
        output, unless it has ended the invocation itself. What it raises fails the attempt: the
        traceback goes to the log, and one line of it to the instance. It may be async, and is
        cancelled where it takes longer than the stage's timeout; or not: then one runs at a time.
        Returns when the stage or the client is closed. Raises `RequestError` where it returns
        something, and the stage declares no output, and for what cannot be called: no attempt is
        used up."""
        check_handler(handler, AN_INVOCATION)
        failure: HadronError | None = None

        async def handle(invocation: StageInvocation) -> None:
            nonlocal failure
            try:
                await self._handle(handler, invocation)
            except ClosedError:
                # The client is, and the loop ends by itself.
                return
            except HadronError as error:
                failure = failure or error
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            try:
                while (given := await self._next()) is not None:
                    tasks.start_soon(handle, StageInvocation(given))
            except HadronError as error:
                failure = failure or error
        if failure is not None:
            # Out of the group, which would wrap it.
            raise failure

    async def _handle(self, handler: Handler, invocation: StageInvocation) -> None:
        with anyio.CancelScope() as scope:
            invocation._given.on_late = scope.cancel
            async with invocation:
                value = handler(invocation)
                if inspect.isawaitable(value):
                    value = await value
                if not invocation.is_ended:
                    await invocation.complete(value)

    # --- one after the other ----------------------------------------------------------------------

    async def _next(self) -> Given | None:
        """With the records that it names; None once this is closed, or the client. Raises what
        ended it."""
        try:
            return await self._next_open()
        except ClosedError:
            if self._stages is None:
                raise
            return None

    async def _next_open(self) -> Given | None:
        # Several tasks may loop over one stage.
        async with self._turn:
            while True:
                stages = await self._open()
                self._give_back(stages)
                turns = self._turns(stages)
                if turns is None:
                    if not await stages.stir():
                        return None
                    continue
                # Who gives up waiting for it takes nothing away.
                given = await self._given(stages, turns[0])
                turns.popleft()
                if self._micro_batch is not None and not self._micro_batch.left:
                    self._micro_batch.let_go()
                    self._micro_batch = None
                if given is not None:
                    return given

    def _turns(self, stages: ReadyStages) -> deque[Turn] | None:
        """Where the next one stands; None where there is none, or no room for it."""
        if stages.is_closed or self._running >= self._settings.max_in_flight:
            return None
        if self._absences.back:
            return self._absences.back
        if self._micro_batch is None and (taken := stages.take_ready()) is not None:
            self._take(stages, *taken)
        return None if self._micro_batch is None else self._micro_batch.left

    async def _open(self) -> ReadyStages:
        if self._stages is None:
            settings = self._settings
            opening = pipelines_pb2.RunStagesRequest(
                pipeline=settings.pipeline,
                stages=[settings.stage],
                engine="handler",
                max_batch=min(settings.max_in_flight, MAX_MICRO_BATCH),
                credit=settings.max_in_flight,
                counts_invocations=True,
                record_bytes=RECORD_BYTES,
                runner=settings.runner or f"{socket.gethostname()}/{os.getpid()}",
                code_version=settings.code_version,
            )
            self._stages = await self._calls.ready(opening, takes_ahead=True)
            self._stages.start()
            self._timing = self._session.background.start(self._late.run)
        return self._stages

    def _take(self, stages: ReadyStages, sent: pipelines_pb2.Invocations, data: memoryview) -> None:
        stage = self._specs.get(sent.spec)
        if stage is None:
            # There are as many as definitions that instances live with.
            self._specs = {sent.spec: msgspec.json.decode(sent.spec, type=StageSpec)}
            stage = self._specs[sent.spec]
        records = SentRecords(sent, data, self._settings.value_deserializer)
        self._taken += 1
        self._micro_batch = MicroBatch(sent, records, stage, stages.calls_lost, self._taken)

    def _give_back(self, stages: ReadyStages) -> None:
        """What came with a call that was lost is others', but for what the program was handed."""
        if self._call == stages.calls_lost:
            return
        self._call = stages.calls_lost
        if self._micro_batch is not None:
            stages.grant(len(self._micro_batch.left))
            self._micro_batch = None
        for _ in range(self._absences.clear()):
            self._on_end()

    async def _given(self, stages: ReadyStages, turn: Turn) -> Given | None:
        """None where it names a record that is gone: it has failed then; or one that cannot be had
        now, for which it waits; or where this was closed meanwhile."""
        current, invocation, _ = turn
        found: list[Record] = []
        for ref in turn.references():
            try:
                record = current.find(ref) or await self._absences.get(ref, turn)
            except ClosedError:
                raise
            except HadronError as error:
                await self._give_up(current, invocation, error)
                return None
            if stages.is_closed:
                return None
            if record is None:
                self._wait(ref, turn)
                return None
            found.append(record)
        root, *others = found
        self._tell(current)
        given = Given(
            current.sent,
            invocation,
            current.stage,
            root,
            dict(zip(current.stage.dependencies, others, strict=True)),
            self._ends,
            self._settings.value_serializer,
            self._over,
            current.call,
        )
        given.on_return = lambda: self._return(given)
        self._late.add(given)
        self._running += 1
        return given

    def _wait(self, ref: pipelines_pb2.RecordRef, turn: Turn) -> None:
        """Another one may come in its place: once, however often it waits."""
        if turn.micro_batch.is_begun:
            self._tell(turn.micro_batch)
        self._absences.add(ref, turn)
        if self._lent < min(_MOST_WAITING, self._absences.count):
            self._lent += 1
            self._grant()

    def _tell(self, current: MicroBatch) -> None:
        """That it is worked on: its leader's time for it begins anew."""
        every_s = min(_BEGIN_EVERY_S, current.stage.timeout_ms / 1_000 / _SAID_PER_TIMEOUT)
        if anyio.current_time() - current.said_s >= every_s:
            self._say_begun([current])

    def _say_begun(self, micro_batches: list[MicroBatch]) -> None:
        """Of those that came with this call: another leader has such numbers of its own."""
        stages = self._stages
        if stages is None:
            return
        ours = [each for each in micro_batches if each.call == stages.calls_lost]
        for each in ours:
            each.said_s = anyio.current_time()
        if ours:
            stages.begin_all([each.sent.number for each in ours])

    def _is_ours(self, given: Given) -> bool:
        return self._stages is not None and given.call == self._stages.calls_lost

    async def _give_up(
        self, current: MicroBatch, invocation: pipelines_pb2.Invocation, error: HadronError
    ) -> None:
        """Of an attempt: its records are gone."""
        sent, why = current.sent, f"a record that it is about cannot be read: {reason_of(error)}"
        _log.error("stage %r of instance %d: %s", sent.stage, invocation.instance_id, why)

        async def say() -> None:
            end = End(invocation, 0)
            self._ends.add(Kind(sent.pipeline_id, sent.stage, sent.version, reason=why), end)
            await self._ends.wait(end)

        try:
            await self._ends.insist(say, lambda: self._stages is None or self._stages.is_closed)
        except StaleCompletionError as stale:
            _log.info("%s", stale)
        self._on_end()

    def _over(self, given: Given) -> None:
        self._late.discard(given)
        was_full = self._running >= self._settings.max_in_flight
        self._running -= 1
        self._on_end()
        if was_full:
            self._wake()

    def _return(self, given: Given) -> None:
        """It has not ended after all. Another one may have come in its place: for that one's end
        none does."""
        self._late.resume(given)
        self._running += 1
        self._ended -= 1

    def _on_end(self) -> None:
        """There is room for another one: for one that has waited here, where there are more than
        were counted, else for one of the leader's."""
        if self._lent > self._absences.count:
            self._lent -= 1
        else:
            self._grant()

    def _grant(self) -> None:
        """Where few have ended the leader has credit left for as many as are missing here."""
        self._ended += 1
        if self._stages is not None and self._ended * _ROOMS >= self._settings.max_in_flight:
            self._stages.grant(self._ended)
            self._ended = 0

    def _wake(self) -> None:
        if self._stages is not None:
            self._stages.wake()

    # --- life -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Take no more; what has not ended goes to other runners. Loops over it end."""
        if self._stages is not None:
            self._stages.stop()
        if self._timing is not None:
            self._timing.cancel()
        self._absences.close()

    async def __aenter__(self) -> Self:
        self._enter("stage")
        await self._open()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.close()


class StageOpening(Opening[StageInvocations]):
    """`Opening` of a stage, over which one may loop at once: `async for … in client.stage(…)`."""

    def __aiter__(self) -> StageLoop:
        return StageLoop(self)

    async def run(self, handler: Handler) -> None:
        """`StageInvocations.run`, in a block of its own."""
        # Before it is open: invocations that it was handed would be given back.
        check_handler(handler, AN_INVOCATION)
        async with self as stage:
            await stage.run(handler)


class StageLoop:
    """A loop without a block: it ends with what it stands in, wherever that is left."""

    def __init__(self, opening: StageOpening) -> None:
        self._opening = opening
        self._stage: StageInvocations | None = None
        self._thread = threading.get_ident()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StageInvocation:
        if self._stage is None:
            self._stage = await self._opening.__aenter__()
        return await self._stage.__anext__()

    def __del__(self) -> None:
        # A loop that is left gives its iterator up at once.
        if self._stage is not None and threading.get_ident() == self._thread:
            self._stage.close()
