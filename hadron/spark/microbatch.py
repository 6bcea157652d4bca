"""One micro-batch of a stage, from its invocations to their completions.

Safety rule: an output and its completion are one transaction on the server, which knows an attempt
by its number. So everything here may be repeated, lost or killed at any point: what the server
calls stale was dealt with by somebody else, and is dropped.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import pyarrow as pa
import trio

from hadron.model.backoff import Backoff
from hadron.model.errors import ConfigurationError, HadronError, PeerError, StaleCompletionError
from hadron.model.pipelines import PipelineSpec, Retry, StageSpec
from hadron.model.words import counted
from hadron.spark import inputs
from hadron.spark.failures import brief
from hadron.spark.functions import StageCodeError, check_functions, load_function
from hadron.spark.loading import Loader
from hadron.spark.outputs import Completion, Output, Refusal, encode, match_rows, pack
from hadron.spark.rounds import Part, Rounds
from hadron.spark.stage import StageResult
from hadron.spark.telling import say
from hadron.spark.threads import Threads
from hadron.wire.system import SystemRandom

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

_PATIENCE_S: Final = 30.0
"""How long a call is tried again; after that the server's timeout hands the work out anew."""

_FIRST_PAUSE_S: Final = 0.05
_MAX_PAUSE_S: Final = 2.0

_FEW: Final = 32
"""Instances without their row that are tried alone even where each costs a job."""

_VALUES: Final = re.compile(r"'[^']*'|[0-9][0-9,.]*(?:, [0-9]+)*(?:, …)?")
"""What differs between failures of one kind."""

_MAX_REASON: Final = 4_000
"""Characters of a failure's reason, for the report; its leader keeps half with the instance."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What became of one micro-batch; times in seconds.

    Attributes:
        invocations: how many were taken; the sum of the next three.
        completed: how many this runner completed.
        failed: how many it reported as failed.
        stale: how many somebody else had dealt with in the meantime.
        input_s: fetching and laying out the input.
        spark_s: the stage function and Spark's job, without waiting for a turn.
        output_s: encoding and completing.
        reasons: of each kind of failure how many there were, and the first one's words; the
            commonest first. Those that differ in numbers and quoted values are of a kind.
        failed_attempts: the attempt of every instance in `failed`, from 1 since it was retried.
        retry: what the stage declares about further attempts; None when it is not declared.
        dropped: what is told of rows that were nobody's; "" without any.
    """

    stage: str
    invocations: int
    completed: int
    failed: int
    stale: int
    input_s: float
    spark_s: float
    output_s: float
    reasons: tuple[tuple[int, str], ...] = ()
    failed_attempts: tuple[int, ...] = ()
    retry: Retry | None = None
    dropped: str = ""

    @property
    def given_up(self) -> int:
        """How many of the failed ones are not tried again by themselves."""
        if self.retry is None:
            return 0
        return sum(attempt >= self.retry.max_attempts for attempt in self.failed_attempts)


@dataclass(frozen=True, slots=True)
class Worked:
    """What became of a message, and what is left of it: invocations that wait for their records."""

    report: MicroBatch
    left: Any = None


@dataclass(frozen=True, slots=True)
class Search:
    """A function raised for a micro-batch of `invocations`: of `unknown` instances it is not known
    yet whether it raises for them. `reason` is the latest one."""

    stage: str
    invocations: int
    unknown: int
    reason: str


@dataclass(slots=True)
class _Course:
    """The state of one micro-batch while it is worked on."""

    pipeline_id: int
    stage: str
    invocations: Sequence[Any]
    begin: Callable[[], None] = lambda: None
    """Tells that it is worked on."""
    spec: str = ""
    """The stage, as it is declared for these."""
    version: int = 0
    completed: int = 0
    stale: int = 0
    reasons: dict[str, tuple[int, str]] = field(default_factory=dict)
    """By kind, see `MicroBatch.reasons`."""
    failed_attempts: list[int] = field(default_factory=list)
    retry: Retry | None = None
    input_s: float = 0.0
    spark_s: float = 0.0
    output_s: float = 0.0
    dropped: str = ""
    """What is told of rows that were nobody's."""
    open_ids: dict[int, int] = field(default_factory=dict)
    """Attempt by instance id, of the instances that nothing has been said about yet."""
    before: dict[int, int] = field(default_factory=dict)
    """By instance id, the attempts from before it was retried."""
    left: list[Any] = field(default_factory=list)
    """Invocations of which a record's leader is away; nothing is said about them."""
    created_ms: dict[int, int] = field(default_factory=dict)
    """By instance id; which instance it is."""
    refused: list[Refusal] = field(default_factory=list)
    """What is reported as failed, once everything else has been said: the next attempt may begin
    at once, and would end, and be told of, before this one."""

    def refuse(self, refused: Sequence[Refusal]) -> None:
        self.refused += refused
        for refusal in refused:
            self.open_ids.pop(refusal.instance_id, None)

    def leave(self, invocations: Sequence[Any]) -> None:
        self.left += invocations
        for each in invocations:
            self.open_ids.pop(each.instance_id, None)

    def report(self) -> MicroBatch:
        return MicroBatch(
            self.stage,
            len(self.invocations) - len(self.left),
            self.completed,
            len(self.failed_attempts),
            self.stale,
            self.input_s,
            self.spark_s,
            self.output_s,
            tuple(sorted(self.reasons.values(), key=lambda each: -each[0])),
            tuple(self.failed_attempts),
            self.retry,
            self.dropped,
        )


class MicroBatchWorker:
    """Works micro-batches of one pipeline off, several at a time, Spark's part one at a time."""

    def __init__(
        self,
        client: Any,
        pipeline: str,
        spark: SparkSession,
        on_search: Callable[[Search], None] = lambda _: None,
    ) -> None:
        self._on_search = on_search
        self._client = client
        self._pipeline = pipeline
        self._spark = spark
        self._loader = Loader(client)
        self._turn = trio.Lock()
        self._threads = Threads()

    async def check_functions(self, stages: Sequence[str]) -> None:
        """Load what `stages` run, or all Spark stages. Raises `StageError`; see `functions`."""
        client = self._client
        for found in await client.objects("Pipeline", client.namespace, self._pipeline):
            if isinstance(found.spec, PipelineSpec):
                check_functions(self._pipeline, found.spec, stages)

    async def process(
        self, message: Any, begin: Callable[[], None] = lambda: None, *, is_patient: bool = True
    ) -> Worked:
        """Run one `Invocations` message and report every one of its instances, but those of which a
        record's leader is away: for long, or, when not `is_patient`, at all. `begin` is called when
        it is worked on, and again while it is: nobody else is to be given it meanwhile.

        Raises a retryable error when the server stayed away, `ConfigurationError` when Spark is
        gone, and `StageCodeError` when the stage's function cannot be loaded here or is wrong
        whatever its input; what it does wrong for some records is reported to the server instead.
        """
        invocations = message.invocations
        course = _Course(message.pipeline_id, message.stage, invocations, begin)
        course.spec, course.version = message.spec, message.version
        course.open_ids = {each.instance_id: each.attempt for each in invocations}
        course.created_ms = {each.instance_id: each.created_ms for each in invocations}
        course.before = {each.instance_id: each.attempts_before for each in invocations}
        try:
            await self._run(course, is_patient)
        except HadronError as error:
            if error.retryable or isinstance(error, (ConfigurationError, StageCodeError)):
                raise
            course.refuse([Refusal(*pair, str(error)) for pair in course.open_ids.items()])
        await self._fail(course)
        if not course.left:
            return Worked(course.report())
        if is_patient:
            _log.warning(
                "pipeline %s, stage %s: %s for records that cannot be read now (%s)",
                self._pipeline,
                course.stage,
                counted(len(course.left), "instance waits", "instances wait"),
                self._loader.why_away(_references(course.left)),
            )
        return Worked(course.report(), _with(message, course.left))

    def is_worth_it(self, left: Any) -> bool:
        """Whether more of what was left may run by now."""
        return self._loader.is_worth_it(_references(left.invocations))

    async def _run(self, course: _Course, is_patient: bool) -> None:
        stage = msgspec.json.decode(course.spec, type=StageSpec)
        course.retry = stage.retry
        # Now, while nothing has been said about any instance: this would be nobody's failure.
        load_function(stage)
        rounds = Rounds(self._spark, self._turn, self._threads, stage, course.begin)
        if not is_patient:
            rounds.tell()
        left = list(course.invocations)
        count = len(left)
        try:
            while left:
                some, later = await self._run_some(course, stage, rounds, left[:count], is_patient)
                left = later + left[count:]
                if not some:
                    # One column took the room of another.
                    count = max(1, len(later) // 2)
        finally:
            course.spark_s = rounds.spark_s

    async def _run_some(
        self,
        course: _Course,
        stage: StageSpec,
        rounds: Rounds,
        invocations: list[Any],
        is_patient: bool,
    ) -> tuple[int, list[Any]]:
        """As many of these as there is room for. Returns how many, and the others."""
        whole, later = await self._input(course, stage, invocations, is_patient)
        if whole is None:
            return 0, later
        await self._run_whole(course, stage, rounds, whole)
        return len(whole), later

    async def _run_whole(
        self, course: _Course, stage: StageSpec, rounds: Rounds, whole: Part
    ) -> None:
        # What failed before did so by itself: those that come with it must not wait for that again.
        failed = {
            each.instance_id
            for each in whole.invocations
            if each.attempt > each.attempts_before + 1
        }
        fresh, known = whole.only(failed, among=False), whole.only(failed)
        odd = await self._run_parts(course, stage, rounds, [fresh] if fresh else [])
        odd |= await self._run_parts(course, stage, rounds, known.alone())
        await self._run_odd(course, stage, rounds, whole.only(odd))

    async def _run_parts(
        self, course: _Course, stage: StageSpec, rounds: Rounds, parts: Sequence[Part]
    ) -> dict[int, Refusal]:
        """Run these. Of one for which the function raises smaller ones run, down to single rows: a
        record that no function can digest must not fail those that came with it. Returns, by id,
        the instances that have no row, or several, in a part with others."""
        odd: dict[int, Refusal] = {}
        while parts:
            smaller: list[Part] = []
            given: list[tuple[Part, StageResult]] = []
            reason = ""
            for part, end in zip(parts, await rounds.run(parts), strict=True):
                if isinstance(end, StageResult):
                    given.append((part, end))
                elif len(part) == 1:
                    course.refuse(part.refusals(str(end)))
                else:
                    smaller += rounds.smaller(part, end)
                    reason = str(end)
            for alike in _alike(given):
                odd |= await self._settle(course, stage, alike)
            if smaller:
                unknown = sum(map(len, smaller))
                self._on_search(Search(stage.name, len(course.invocations), unknown, reason))
            parts = smaller
        return odd

    async def _run_odd(self, course: _Course, stage: StageSpec, rounds: Rounds, odd: Part) -> None:
        """Run again what had not its one row, without those whose rows may have been taken for
        its own: then it is known whose fault that is."""
        alone = odd.alone()
        if len(alone) > _FEW and await rounds.plan(alone) is None:
            alone = [odd]
        course.refuse([*(await self._run_parts(course, stage, rounds, alone)).values()])

    async def _settle(
        self, course: _Course, stage: StageSpec, given: Sequence[tuple[Part, StageResult]]
    ) -> dict[int, Refusal]:
        """Report what the stage gave for each invocation of these parts, which are alike; see
        `_run_parts`."""
        began = time.perf_counter()
        invocations = [each for part, _ in given for each in part.invocations]
        result = StageResult(
            pa.concat_tables([each.table for _, each in given]), given[0][1].values_are_json
        )
        ids = [each.instance_id for each in invocations]
        matched = match_rows(stage, result, ids, [each.attempt for each in invocations])
        if matched.dropped and not course.dropped:
            course.dropped = matched.dropped
            # The runner's user is told once per micro-batch, by its report.
            _log.info("pipeline %s: %s", self._pipeline, matched.dropped)
        completions, unusable = pack(matched.outputs, _now_ms())
        alone = {part.invocations[0].instance_id for part, _ in given if len(part) == 1}
        final = [each for each in matched.odd if each.instance_id in alone]
        course.refuse(matched.failed + unusable + final)
        # Each by itself: what goes to one that is away holds up nothing that goes elsewhere.
        partitions: dict[str, list[Completion]] = {}
        for each in completions:
            partitions.setdefault(each.outputs[0].partition, []).append(each)
        lanes = [partial(self._complete_all, course, lane) for lane in partitions.values()]
        if lanes:
            await say(course.begin, lanes)
        course.output_s += time.perf_counter() - began
        return {each.instance_id: each for each in matched.odd if each.instance_id not in alone}

    # --- the input ------------------------------------------------------------------------------

    async def _input(
        self, course: _Course, stage: StageSpec, invocations: list[Any], is_patient: bool
    ) -> tuple[Part | None, list[Any]]:
        """Those that can run, and those for which there is no room beside them; the others are
        reported as failed, or left."""
        began = time.perf_counter()
        columns = [[each.root for each in invocations]]
        columns += [
            [each.dependencies[position] for each in invocations]
            for position in range(len(stage.dependencies))
        ]
        rows: list[inputs.Rows] = []

        async def load() -> None:
            rows.extend(await self._loader.load(columns, is_patient=is_patient))

        if is_patient and len(invocations) == len(course.invocations):
            await load()
        else:
            # Some have begun, or wait since: their time runs, and a leader that is away takes long
            # to be found so.
            await say(course.begin, [load])
        for found in rows:
            course.refuse(
                [
                    Refusal(each.instance_id, each.attempt, found.lost[row])
                    for row, each in enumerate(invocations)
                    if row in found.lost and each.instance_id in course.open_ids
                ]
            )
        away = [invocations[row] for row in sorted({row for found in rows for row in found.away})]
        course.leave([each for each in away if each.instance_id in course.open_ids])
        waits = {row for found in rows for row in found.later}
        is_open = [each.instance_id in course.open_ids for each in invocations]
        later = [invocations[row] for row in sorted(waits) if is_open[row]]
        kept = [each and row not in waits for row, each in enumerate(is_open)]
        invocations = [each for each, keep in zip(invocations, kept, strict=True) if keep]
        table = None
        if invocations:
            rows = [found.only(kept) for found in rows]
            ids = [each.instance_id for each in invocations]
            failures = [(each.failed_stage, each.failure) for each in invocations]
            told = failures if any(name for name, _ in failures) else ()
            table = inputs.to_table(stage, ids, rows[0], rows[1:], told)
        course.input_s += time.perf_counter() - began
        return Part(invocations, table) if invocations else None, later

    # --- the output -----------------------------------------------------------------------------

    async def _complete_all(self, course: _Course, completions: Sequence[Completion]) -> None:
        """One after the other: outputs of one partition stay in the order of their instances."""
        for each in completions:
            await self._complete(course, each)

    async def _complete(self, course: _Course, completion: Completion) -> None:
        """Complete what is not stale. What the server refuses for good is reported as failed."""
        left, data = completion.outputs, completion.data
        while left:
            try:
                stale = await self._complete_once(course, left, data)
            except StaleCompletionError:
                stale = {output.instance_id for output in left}
            except HadronError as error:
                if error.retryable:
                    raise
                course.refuse(
                    [Refusal(each.instance_id, each.attempt, str(error)) for each in left]
                )
                return
            gone = [output for output in left if not stale or output.instance_id in stale]
            if not gone:
                raise PeerError(f"the server calls strange instances stale: {sorted(stale)}")
            for output in gone:
                course.open_ids.pop(output.instance_id, None)
            if not stale:
                course.completed += len(left)
                return
            course.stale += len(gone)
            left = [output for output in left if output.instance_id not in stale]
            data = encode(left, _now_ms()) if left else None

    async def _complete_once(
        self, course: _Course, left: Sequence[Output], data: bytes | None
    ) -> set[int]:
        response = await self._patiently(
            lambda: self._client.complete_stages(
                course.pipeline_id,
                course.stage,
                [each.instance_id for each in left],
                [each.attempt for each in left],
                [course.created_ms[each.instance_id] for each in left],
                data,
                partition=left[0].partition,
                version=course.version,
            )
        )
        return set(response.stale_instance_ids)

    async def _fail(self, course: _Course) -> None:
        """Report what was refused, one call for each reason."""
        by_reason: dict[str, list[Refusal]] = {}
        for refusal in course.refused:
            by_reason.setdefault(refusal.reason[:_MAX_REASON], []).append(refusal)
        calls = []
        for reason, group in by_reason.items():
            # The runner's user is told once per micro-batch, by its report.
            _log.info(
                "pipeline %s, stage %s: failures: %d: %s",
                self._pipeline,
                course.stage,
                len(group),
                brief(reason),
            )
            kind = _VALUES.sub("#", brief(reason))
            count, first = course.reasons.get(kind, (0, reason))
            course.reasons[kind] = count + len(group), first
            course.failed_attempts += [
                refusal.attempt - course.before.get(refusal.instance_id, 0) for refusal in group
            ]
            calls.append(partial(self._report, course, group, reason))
        if calls:
            await say(course.begin, calls)

    async def _report(self, course: _Course, group: Sequence[Refusal], reason: str) -> None:
        try:
            await self._patiently(
                lambda: self._client.fail_stages(
                    course.pipeline_id,
                    course.stage,
                    [each.instance_id for each in group],
                    [each.attempt for each in group],
                    [course.created_ms[each.instance_id] for each in group],
                    reason,
                )
            )
        except HadronError as error:
            # Stale, or the pipeline is gone: there is nobody left to tell.
            if error.retryable:
                raise
            _log.warning("stage %s: the failure was not taken: %s", course.stage, error)

    async def _patiently(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Call again while the server is away; completions may be repeated without harm."""
        backoff = Backoff(SystemRandom(), _FIRST_PAUSE_S, _MAX_PAUSE_S)
        deadline = trio.current_time() + _PATIENCE_S
        while True:
            try:
                return await call()
            except HadronError as error:
                if not error.retryable or trio.current_time() > deadline:
                    raise
            await trio.sleep(backoff.next_s())


def _references(invocations: Sequence[Any]) -> Iterator[Any]:
    for each in invocations:
        yield from (each.root, *each.dependencies)


def _with(message: Any, invocations: Sequence[Any]) -> Any:
    """A copy with these alone: the others' memory is not kept."""
    copy = type(message)(
        stage=message.stage,
        pipeline_id=message.pipeline_id,
        number=message.number,
        version=message.version,
        spec=message.spec,
    )
    copy.invocations.extend(invocations)
    return copy


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _alike(given: Sequence[tuple[Part, StageResult]]) -> list[list[tuple[Part, StageResult]]]:
    """By the columns that a function gave, and what its values are: it may choose them anew for
    each part."""
    groups: dict[tuple[str, bool], list[tuple[Part, StageResult]]] = {}
    for part, result in given:
        schema = result.table.schema.to_string(show_schema_metadata=False)
        groups.setdefault((schema, result.values_are_json), []).append((part, result))
    return list(groups.values())
