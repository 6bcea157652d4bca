"""Pipelines over a real log: triggers in, invocations to runners, each output once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock, wait_all_tasks_blocked

from hadron.model.batch import BatchHead, StampedBatch, judge_batch
from hadron.model.batch_building import BatchBuilder, encode_values
from hadron.model.errors import (
    CorruptionError,
    HadronError,
    LogTruncatedError,
    NotFoundError,
    RecordTooLargeError,
    RequestError,
    ShuttingDownError,
    UnreachableError,
)
from hadron.model.pipelines import Output, PipelineSpec, Retry, StageSpec
from hadron.model.record import NewRecord
from hadron.model.record_batch import decode_batch
from hadron.model.schema import StreamSpec
from hadron.node.pipelines.other_leaders import LeaderSource
from hadron.pipelines import dispatcher
from hadron.pipelines import driver as module
from hadron.pipelines.driver import PipelineDriver
from hadron.pipelines.runners import Ended, RunnerSession
from hadron.server.pipelines.runners import CallSink
from hadron.server.streams import batch_info
from hadron.serving.tests.stack import SET, FakeCall, Stack, leading, until
from hadron.state.pipelines.publishing import PublishStages
from hadron.state.pipelines.retries import Retried
from hadron.state.pipelines.stage_runs import Completed
from hadron.state.pipelines.tables import InstanceStatus
from hadron.state.pipelines.views import Chosen
from hadron.state.schema import DeleteObjects
from hadron.wire.messages import Method, common_pb2, pipelines_pb2, streams_pb2

IN, OUT, PIPELINE = 1, 2, 3
ENRICH = StageSpec(name="enrich", engine="handler", output=Output("out"), retry=Retry(3, 1_000))
DECIDE = StageSpec(
    name="decide",
    engine="handler",
    dependencies=("enrich",),
    output=Output("out"),
    timeout_ms=60_000,
)


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with leading(tmp_path) as stack:
        assert (await stack.stream("in"), await stack.stream("out")) == (IN, OUT)
        yield stack


async def declare(stack: Stack, *stages: StageSpec, **fields: Any) -> PipelineDriver:
    fields = {"replica_set": SET, "input": "in", "start": "earliest", **fields}
    assert await stack.declare("Pipeline", "p", PipelineSpec(stages=stages, **fields)) == PIPELINE
    await until(lambda: PIPELINE in stack.pipelines._drivers)
    return stack.pipelines.driver(PIPELINE)


def sink_of(driver: PipelineDriver, call: Any) -> CallSink:
    return CallSink(call, driver._catalog, driver.item.id)


class Runner:
    """A runner's call, and the invocations that came on it."""

    def __init__(
        self, driver: PipelineDriver, *stages: str, credit: int = 1, max_batch: int = 0
    ) -> None:
        self.driver = driver
        self.call = FakeCall()
        self.session: RunnerSession = driver.dispatcher.join(
            sink_of(driver, self.call), "handler", stages, max_batch, credit, driver.spec.stages
        )

    def grant(self, credit: int = 1) -> None:
        self.driver.dispatcher.grant(self.session, credit)

    def begin(self, *which: int) -> None:
        """It works on these of what it was given, or on all of it."""
        numbers = [message.number for message, _ in self.call.sent]
        chosen = [numbers[each] for each in which] or numbers
        self.driver.dispatcher.begin(self.session, chosen)

    @property
    def got(self) -> list[tuple[str, list[int], list[int]]]:
        """(stage, instances, attempts) of each micro-batch."""
        return [
            (m.stage, [i.instance_id for i in m.invocations], [i.attempt for i in m.invocations])
            for m, _ in self.call.sent
        ]

    @property
    def ids(self) -> list[int]:
        return [instance for _, ids, _ in self.got for instance in ids]

    async def until(self, *batches: tuple[str, list[int], list[int]]) -> None:
        await self.call.until(lambda: len(self.got) >= len(batches))
        assert self.got == list(batches)


async def complete(
    driver: PipelineDriver,
    stage: str,
    ids: Sequence[int],
    *,
    attempt: int = 1,
    outputs: int | None = None,
    data: bytes = b"",
    partition: str = "",
    version: int = 0,
) -> Completed:
    ended = Ended(stage, tuple(ids), (attempt,) * len(ids), (), version)
    count = len(ids) if outputs is None else outputs
    data = data or (encode_values([b"out"] * count, 1) if count else b"")
    return await driver.complete(ended, memoryview(data), partition)


async def fail(
    driver: PipelineDriver, stage: str, ids: Sequence[int], *, attempt: int = 1
) -> Completed:
    return await driver.fail(Ended(stage, tuple(ids), (attempt,) * len(ids)), "cold" * 1_000)


async def instances(stack: Stack) -> list[tuple[int, int]]:
    """(trigger's offset, status) of each."""
    return await stack.rows("SELECT offset, status FROM hadron_instance ORDER BY instance_id")


async def consumed(stack: Stack, offset: int) -> None:
    """Until the cursor is there."""
    while await stack.rows("SELECT next_offset FROM hadron_pipeline_input") != [(offset,)]:
        await wait_all_tasks_blocked(0.001)


class TestConsuming:
    async def test_records_that_match_make_instances(self, stack: Stack) -> None:
        await declare(stack, ENRICH, triggers=("flight.*", "weather.>"))
        builder = BatchBuilder()
        types = ("flight.departed", "noise", "flight.a.b", "weather.a.b", "", "flight.landed")
        for name in types:
            builder.add(NewRecord(value=b"x", type=name), 1)
        await stack.append(IN, data=builder.build())
        await stack.append(IN, b"without a type")
        await consumed(stack, 7)
        assert await instances(stack) == [(0, 1), (3, 1), (5, 1)]

    async def test_records_without_a_type_that_pass_by_are_counted(
        self, stack: Stack, caplog: pytest.LogCaptureFixture
    ) -> None:
        driver = await declare(stack, ENRICH, triggers=("flight.*", "*"), max_parallel=2)
        builder = BatchBuilder()
        for name in ("", "flight.departed", "", "noise.other", "", "flight.landed", "single", ""):
            builder.add(NewRecord(value=b"x", type=name), 1)
        await stack.append(IN, data=builder.build())
        await consumed(stack, 6)
        assert driver.consumer.untyped == 3
        await complete(driver, "enrich", [1, 2])
        await consumed(stack, 8)
        assert driver.consumer.untyped == 4, "each one once"
        assert await instances(stack) == [(1, 2), (5, 2), (6, 1)]
        assert caplog.text.count("records without a type pass by") == 1

    @pytest.mark.parametrize("triggers", [(), (">",)])
    async def test_triggers_that_mean_everything(
        self, stack: Stack, triggers: tuple[str, ...]
    ) -> None:
        driver = await declare(stack, ENRICH, triggers=triggers)
        await stack.append(IN, b"without a type")
        await consumed(stack, 1)
        assert (await instances(stack), driver.consumer.untyped) == ([(0, 1)], 0)

    async def test_only_so_many_are_live_at_once(self, stack: Stack) -> None:
        driver = await declare(stack, ENRICH, max_parallel=3)
        runner = Runner(driver, credit=100)
        await stack.append(IN, *[b"x"] * 10)
        done = 0
        while done < 10:
            await runner.call.until(lambda done=done: len(runner.ids) > done)  # type: ignore[misc]
            live = await stack.rows("SELECT live FROM hadron_pipeline")
            assert live[0][0] <= 3
            new = runner.ids[done:]
            await complete(driver, "enrich", new)
            done += len(new)
        assert sorted(runner.ids) == list(range(1, 11))
        assert await instances(stack) == [(offset, 2) for offset in range(10)]

    async def test_it_starts_in_the_middle_and_goes_on_after_a_restart(
        self, tmp_path: Path
    ) -> None:
        async with leading(tmp_path) as stack:
            await stack.stream("in")
            await stack.stream("out")
            await stack.append(IN, *[b"x"] * 5)
            await declare(stack, ENRICH, start="3")
            await consumed(stack, 5)
        async with leading(tmp_path) as stack:
            await stack.append(IN, b"x")
            await consumed(stack, 6)
            assert [offset for offset, _ in await instances(stack)] == [3, 4, 5]

    async def test_more_parallel_instances_may_be_allowed_later(self, stack: Stack) -> None:
        await declare(stack, ENRICH, max_parallel=1)
        await stack.append(IN, *[b"x"] * 4)
        await consumed(stack, 1)
        await declare(stack, ENRICH, max_parallel=3)
        await consumed(stack, 3)

    async def test_trouble_of_one_pipeline_is_its_own(
        self,
        stack: Stack,
        mock_clock: MockClock,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        await declare(stack, ENRICH)
        read = stack.visible.read
        failed: list[int] = []

        async def broken(*_: Any) -> Any:
            failed.append(1)
            raise CorruptionError("a batch's checksum is wrong")

        with monkeypatch.context() as patch:
            patch.setattr(stack.visible, "read", broken)
            await stack.append(IN, b"x")
            await until(lambda: bool(failed))
            await wait_all_tasks_blocked()
        assert stack.visible.read == read
        assert (
            "Pipeline default/p, input local/p0 pauses: a batch's checksum is wrong" in caplog.text
        )
        mock_clock.jump(1.5)
        await consumed(stack, 1)


class Elsewhere:
    """Another set's leader; each conversation begins with what it is asked first."""

    def __init__(self, *batches: StampedBatch) -> None:
        self.batches = list(batches)
        self.first = 0
        self.lost = False
        self.asked = 0
        self.news = trio.Event()

    async def converse(
        self, partition: str, stream_id: int, metadata_index: int, conversation: Any
    ) -> None:
        assert partition == "other/p1"
        await conversation(LeaderSource(self._ask, partition, stream_id, metadata_index))

    async def _ask(self, method: Method, request: Any) -> tuple[Any, memoryview]:
        self.asked += 1
        await trio.lowlevel.checkpoint()
        if method.name == "PipelineStart":
            assert request.pipeline_id == PIPELINE
            return pipelines_pb2.PipelineStartResponse(offset=0), memoryview(b"")
        following = self.batches[-1].next_offset
        if method.name == "Offsets":
            there = streams_pb2.OffsetsResponse.Partition(
                first_offset=self.first,
                next_offset=following,
                ballot=common_pb2.Ballot(epoch=1, incarnation=9),
            )
            return streams_pb2.OffsetsResponse(partitions=[there]), memoryview(b"")
        if self.lost:
            assert request.after.incarnation == 4
            self.lost = False
            raise LogTruncatedError("the log does not have the record before it")
        while request.offset >= self.batches[-1].next_offset:
            self.news = trio.Event()
            await self.news.wait()
            if self.lost:
                raise UnreachableError("the connection was lost")
        found = [each for each in self.batches if each.next_offset > request.offset]
        answer = streams_pb2.FetchResponse(
            batches=[batch_info(each) for each in found], next_offset=following
        )
        return answer, memoryview(b"".join(each.data for each in found))


class TestFailures:
    async def test_letters_tell_what_was_given_up(self, stack: Stack) -> None:
        assert await stack.declare("Stream", "letters", StreamSpec(partitions=(SET,))) == 3
        spec = PipelineSpec(
            replica_set=SET,
            input="in",
            start="earliest",
            dead_letters="letters",
            on_failure="tell",
            stages=(replace(ENRICH, retry=Retry(1)), StageSpec(name="tell", engine="handler")),
        )
        pipeline_id = await stack.declare("Pipeline", "q", spec)
        await until(lambda: pipeline_id in stack.pipelines._drivers)
        driver = stack.pipelines.driver(pipeline_id)
        runner = Runner(driver, credit=9)
        await stack.append(IN, b"a", b"b")
        await runner.until(("enrich", [1, 2], [1, 1]))
        await fail(driver, "enrich", [2])
        await runner.call.until(lambda: len(runner.got) == 2)
        assert runner.got[1] == ("tell", [2], [1])
        (invocation,) = runner.call.sent[1][0].invocations
        assert invocation.failed_stage == "enrich"
        assert invocation.failure.startswith("coldcold")
        while not (found := await stack.read(3)):
            await trio.lowlevel.checkpoint()
        (batch,) = found
        (record,) = decode_batch(batch.data, base_offset=0).records()
        assert (record.key, record.type) == (f"{SET}/1", "hadron.instance.failed")
        told = msgspec.json.decode(record.value)
        assert told["reason"].startswith("cold")
        del told["reason"], told["created_ms"]
        assert told == {
            "pipeline": "q",
            "instance": 2,
            "stage": "enrich",
            "attempts": 1,
            "stream": "in",
            "partition": SET,
            "offset": 1,
        }
        await wait_all_tasks_blocked(0.01)
        assert len(await stack.read(3)) == 1

    async def test_what_has_ended_long_ago_is_dropped(
        self, stack: Stack, mock_clock: MockClock
    ) -> None:
        driver = await declare(stack, ENRICH, keep_finished_ms=60_000)
        await stack.append(IN, b"a", b"b")
        await consumed(stack, 2)
        await complete(driver, "enrich", [1])
        mock_clock.jump(50)
        await wait_all_tasks_blocked(0.01)
        assert await instances(stack) == [(0, 2), (1, 1)]
        # Who forgets looks when something is due, and may have slept since the jump only.
        while await instances(stack) != [(1, 1)]:
            mock_clock.jump(20)
            await wait_all_tasks_blocked(0.01)


class TestOtherSets:
    async def test_a_partition_that_has_lost_what_was_read_goes_on_at_its_end(
        self, tmp_path: Path, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        def stamped(base: int, incarnation: int, *values: bytes) -> StampedBatch:
            data = encode_values(values, 1)
            return StampedBatch(base, len(values), 1, 1, incarnation, memoryview(data))

        async with leading(tmp_path) as stack:
            there = Elsewhere(stamped(0, 4, b"a", b"b", b"c"))
            stack.pipelines._others = there
            await stack.declare("Stream", "in", StreamSpec(partitions=(SET, "other/p1")))
            await stack.stream("out")
            driver = await declare(stack, ENRICH)
            await until(lambda: there.asked > 1)
            wanted = [("other/p1", at) for at in range(3)]
            sql = "SELECT partition, offset FROM hadron_instance ORDER BY instance_id"
            while await stack.rows(sql) != wanted:
                await trio.lowlevel.checkpoint()
            there.batches, there.lost = [stamped(0, 9, b"x")], True
            there.news.set()
            await wait_all_tasks_blocked(0.01)
            assert "connection was lost" in driver.consumer.followers["other/p1"].trouble
            assert stack.pipelines.troubles == [], "not yet"
            driver.consumer.followers["other/p1"]._since -= 11
            (told,) = stack.pipelines.troubles
            assert told.startswith("Pipeline default/p does not read other/p1: the connection")
            mock_clock.jump(60)
            truncated = (
                "SELECT next_offset, truncations FROM hadron_pipeline_input"
                " WHERE partition = 'other/p1'"
            )
            while await stack.rows(truncated) != [(1, 1)]:
                await trio.lowlevel.checkpoint()
            assert "other/p1 has lost records that were looked at" in caplog.text
            there.batches.append(stamped(1, 9, b"y"))
            there.news.set()
            while await stack.rows(sql) != [*wanted, ("other/p1", 1)]:
                await trio.lowlevel.checkpoint()
            assert not any(each.trouble for each in driver.consumer.followers.values())
            assert stack.pipelines.troubles == []


class TestDispatching:
    async def test_stages_follow_each_other(self, stack: Stack) -> None:
        driver = await declare(stack, ENRICH, DECIDE)
        runner = Runner(driver, credit=10)
        await stack.append(IN, b"a", b"b")
        await runner.until(("enrich", [1, 2], [1, 1]))
        done = await complete(driver, "enrich", [1, 2])
        assert (done.appended and done.appended.base_offset, done.stale) == (0, ())
        await runner.until(("enrich", [1, 2], [1, 1]), ("decide", [1, 2], [1, 1]))
        message: pipelines_pb2.Invocations = runner.call.sent[-1][0]
        first = message.invocations[0]
        assert (first.root.stream, first.root.partition, first.root.offset) == ("in", SET, 0)
        assert [(r.stream, r.offset) for r in first.dependencies] == [("out", 0)]
        await complete(driver, "decide", [1, 2])
        assert await instances(stack) == [(0, 2), (1, 2)]
        assert (
            len(driver.dispatcher.assignments.assigned("enrich"))
            == len(driver.dispatcher.assignments.assigned("decide"))
            == 0
        )

    async def test_who_runs_all_stages_runs_those_that_come_later(self, stack: Stack) -> None:
        driver = await declare(stack, ENRICH)
        every = Runner(driver, credit=10)
        await stack.append(IN, b"a")
        await every.until(("enrich", [1], [1]))
        one = Runner(driver, "enrich", credit=10)
        await declare(stack, ENRICH, replace(ENRICH, name="audit"))
        await stack.append(IN, b"b")
        await every.call.until(lambda: len(every.got) == 2)
        assert every.got[1:] == [("audit", [2], [1])]
        await one.until(("enrich", [2], [1]))

    async def test_stages_that_are_declared_no_more_run_for_those_that_have_them(
        self, stack: Stack
    ) -> None:
        driver = await declare(
            stack,
            replace(ENRICH, output=None),
            StageSpec(name="old", engine="handler", after=("enrich",)),
        )
        await stack.append(IN, b"a")
        await consumed(stack, 1)
        await declare(stack, ENRICH)
        await stack.append(IN, b"b")
        await consumed(stack, 2)
        runner = Runner(driver, credit=9)
        await runner.until(("enrich", [1], [1]), ("enrich", [2], [1]))
        first, second = (message for message, _ in runner.call.sent)
        assert (first.version, second.version) == (1, 2)
        told = [msgspec.json.decode(each.spec, type=StageSpec) for each in (first, second)]
        assert told == [replace(ENRICH, output=None), ENRICH]
        with pytest.raises(RequestError, match="send the `version` of the invocations"):
            await complete(driver, "enrich", [1], outputs=0)
        assert (await complete(driver, "enrich", [1], outputs=0, version=1)).stale == ()
        assert (await complete(driver, "enrich", [2], version=2)).stale == ()
        await runner.call.until(lambda: len(runner.got) == 3)
        await complete(driver, "old", [1], outputs=0)
        assert await instances(stack) == [(0, 2), (1, 2)]

    async def test_a_runner_gets_what_its_credit_allows(self, stack: Stack) -> None:
        driver = await declare(stack, ENRICH)
        runner = Runner(driver, credit=1, max_batch=2)
        await stack.append(IN, *[b"x"] * 5)
        await runner.until(("enrich", [1, 2], [1, 1]))
        runner.grant(1)
        await runner.call.until(lambda: len(runner.got) == 2)
        await wait_all_tasks_blocked(0.01)
        assert runner.ids == [1, 2, 3, 4]

    async def test_one_that_comes_back_with_its_hands_full_gets_nothing_yet(
        self, stack: Stack
    ) -> None:
        driver = await declare(stack, ENRICH)
        runner = Runner(driver, credit=0)
        await stack.append(IN, b"x")
        await wait_all_tasks_blocked(0.01)
        assert runner.got == []
        runner.grant(1)
        await runner.until(("enrich", [1], [1]))

    async def test_one_that_does_not_read_is_not_sent_more(self, stack: Stack) -> None:
        driver = await declare(stack, ENRICH)
        runner = Runner(driver, credit=10)
        runner.call.writable = False
        await stack.append(IN, b"x")
        await consumed(stack, 1)
        await wait_all_tasks_blocked(0.01)
        assert runner.got == []
        runner.call.writable = True
        runner.call.on_writable()
        await runner.until(("enrich", [1], [1]))

    async def test_a_micro_batch_fits_into_a_frame(
        self, stack: Stack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dispatcher, "_INVOCATIONS_BYTES", 300)
        driver = await declare(stack, ENRICH)
        await stack.append(IN, *[b"x"] * 20)
        runner = Runner(driver, credit=100)
        await runner.call.until(lambda: len(runner.ids) == 20)
        assert sorted(runner.ids) == list(range(1, 21))
        assert len(runner.got) > 3
        assert all(message.ByteSize() <= 300 for message, _ in runner.call.sent)

    async def test_what_a_runner_held_goes_to_another_one(self, stack: Stack) -> None:
        driver = await declare(stack, ENRICH)
        gone = Runner(driver, credit=10)
        await stack.append(IN, b"a", b"b")
        await gone.until(("enrich", [1, 2], [1, 1]))
        await complete(driver, "enrich", [2])
        other = Runner(driver, credit=10)
        driver.dispatcher.leave(gone.session)
        await other.until(("enrich", [1], [1]))
        assert (await complete(driver, "enrich", [1])).stale == ()
        assert (await complete(driver, "enrich", [1])).stale == (1,), "the first one's, late"
        assert len(await stack.read(OUT)) == 2

    async def test_that_runners_have_different_code_is_warned_of_once(
        self, stack: Stack, caplog: pytest.LogCaptureFixture
    ) -> None:
        driver = await declare(stack, ENRICH)
        for code in ("old", "new", "new", "newer"):
            runner = Runner(driver)
            await stack.append(IN, b"a")
            await runner.call.until(lambda runner=runner: len(runner.got) == 1)  # type: ignore[misc]
            driver.dispatcher.begin(runner.session, [runner.call.sent[0][0].number], code)
        (told,) = [each.getMessage() for each in caplog.records if "different" in each.message]
        assert told.startswith("runners of stage 'enrich' of pipeline ")
        assert ": new at " in told
        assert "; old at " in told

    async def test_what_takes_too_long_goes_to_another_one(
        self, stack: Stack, mock_clock: MockClock
    ) -> None:
        driver = await declare(stack, ENRICH, DECIDE)
        slow = Runner(driver, "decide", credit=10)
        await stack.append(IN, b"a")
        await consumed(stack, 1)
        await complete(driver, "enrich", [1])
        await slow.until(("decide", [1], [1]))
        driver.dispatcher.leave(Runner(driver, "decide", credit=10).session)
        slow.begin()
        mock_clock.jump(61)
        await wait_all_tasks_blocked(0.01)
        assert len(slow.got) == 1
        mock_clock.jump(2)
        await slow.until(("decide", [1], [1]), ("decide", [1], [1]))
        results = [await complete(driver, "decide", [1]) for _ in range(2)]
        assert [result.stale for result in results] == [(), (1,)]
        assert sum(batch.count for batch in await stack.read(OUT)) == 2

    async def test_a_runner_that_has_not_begun_keeps_what_it_has(
        self, stack: Stack, mock_clock: MockClock
    ) -> None:
        driver = await declare(stack, replace(DECIDE, dependencies=()))
        busy, idle = Runner(driver, credit=2, max_batch=1), Runner(driver, credit=0)
        await stack.append(IN, b"a", b"b")
        await busy.until(("decide", [1], [1]), ("decide", [2], [1]))
        busy.begin(0)
        idle.grant(9)
        mock_clock.jump(50)
        busy.begin(0)
        mock_clock.jump(50)
        await wait_all_tasks_blocked(0.01)
        assert idle.got == []
        mock_clock.jump(13)
        await idle.until(("decide", [1], [1]))
        driver.dispatcher.leave(busy.session)
        await idle.until(("decide", [1], [1]), ("decide", [2], [1]))

    async def test_retries_wait_and_end(self, stack: Stack, mock_clock: MockClock) -> None:
        driver = await declare(stack, ENRICH)
        runner = Runner(driver, credit=10)
        await stack.append(IN, b"a")
        await runner.until(("enrich", [1], [1]))
        for attempt, backoff_s in ((1, 1), (2, 2)):
            await fail(driver, "enrich", [1], attempt=attempt)
            mock_clock.jump(backoff_s - 0.1)
            await wait_all_tasks_blocked(0.01)
            assert len(runner.got) == attempt
            mock_clock.jump(0.2 + backoff_s / 4)
            await runner.call.until(lambda attempt=attempt: len(runner.got) > attempt)  # type: ignore[misc]
            assert runner.got[-1] == ("enrich", [1], [attempt + 1])
        await fail(driver, "enrich", [1], attempt=3)
        assert await instances(stack) == [(0, 3)]
        ((reason,),) = await stack.rows("SELECT reason FROM hadron_stage_run")
        assert len(reason) == 2_000
        assert (await complete(driver, "enrich", [1], attempt=3)).stale == (1,)
        assert await stack.read(OUT) == []

    async def test_a_delay_ends_when_the_wall_clock_has_jumped_over_it(
        self, stack: Stack, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        driver = await declare(stack, replace(ENRICH, delay_ms=86_400_000))
        runner = Runner(driver, credit=10)
        await stack.append(IN, b"a")
        await consumed(stack, 1)
        await wait_all_tasks_blocked(0.01)
        wall_ms = stack.clock.now_ms
        monkeypatch.setattr(stack.clock, "now_ms", lambda: wall_ms() + 86_400_000)
        mock_clock.jump(601)
        await runner.until(("enrich", [1], [1]))

    async def test_what_fails_while_it_is_looked_for_waits_as_long_as_it_is_to(
        self, stack: Stack, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        driver = await declare(stack, ENRICH)
        gone = Runner(driver, credit=10)
        await stack.append(IN, b"a")
        await gone.until(("enrich", [1], [1]))
        query, found = driver.dispatcher._controller.query, []

        async def query_slowly(read: Any) -> Any:
            monkeypatch.undo()
            found.append(await query(read))
            assert (await fail(driver, "enrich", [1])).stale == ()
            return found[0]

        monkeypatch.setattr(driver.dispatcher._controller, "query", query_slowly)
        driver.dispatcher.leave(gone.session)
        other = Runner(driver, credit=10)
        await wait_all_tasks_blocked(0.01)
        ((_, (ready,)),) = found
        assert [each.instance_id for each in ready.invocations] == [1]
        assert other.got == []
        mock_clock.jump(1.3)
        await other.until(("enrich", [1], [2]))

    async def test_failed_instances_run_again_when_asked_to(
        self, stack: Stack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "MAX_RETRIES", 3)
        driver = await declare(stack, replace(ENRICH, retry=Retry(1)), DECIDE)
        runner = Runner(driver, credit=10)
        await stack.append(IN, *[b"x"] * 8)
        await runner.until(("enrich", list(range(1, 9)), [1] * 8))
        await complete(driver, "enrich", [2])
        await fail(driver, "enrich", [1, 3, 4, 5, 6, 7, 8])
        assert (await stack.rows("SELECT live, failed FROM hadron_pipeline")) == [(1, 7)]
        others = Chosen(InstanceStatus.FAILED, failed_stage="decide")
        assert await driver.retry((), others) == (Retried(0, 0), 0, False)
        after_id, more, retried = 0, True, 0
        while more:
            done, after_id, more = await driver.retry((), Chosen(InstanceStatus.FAILED), after_id)
            retried += done.retried
            assert done.retried <= 3
        assert retried == 7
        again = [1, 3, 4, 5, 6, 7, 8]
        await runner.call.until(lambda: len(runner.ids) == 8 + 1 + 7)
        told = {
            item.instance_id: (item.attempt, item.attempts_before)
            for message, _ in runner.call.sent[1:]
            if message.stage == "enrich"
            for item in message.invocations
        }
        assert told == dict.fromkeys(again, (2, 1))
        await complete(driver, "enrich", again, attempt=2)
        await complete(driver, "decide", list(range(1, 9)))
        assert await instances(stack) == [(offset, 2) for offset in range(8)]
        assert sum(batch.count for batch in await stack.read(OUT)) == 16
        assert await driver.retry((), Chosen(InstanceStatus.FAILED)) == (Retried(0, 0), 0, False)

    async def test_what_cannot_be_retried_is_refused(self, stack: Stack) -> None:
        driver = await declare(stack, ENRICH)
        await stack.append(IN, b"a")
        await consumed(stack, 1)
        with pytest.raises(RequestError, match="instance 1 of pipeline 'p' has not failed"):
            await driver.retry((1,), Chosen(InstanceStatus.FAILED))
        with pytest.raises(NotFoundError, match="has no instance 2"):
            await driver.retry((2,), Chosen(InstanceStatus.FAILED))
        with pytest.raises(RequestError, match="1001 instances are more than 1000 at a time"):
            await driver.retry(tuple(range(1_001)), Chosen(InstanceStatus.FAILED))

    async def test_who_led_calls_nothing_stale_that_a_successor_may_wait_for(
        self, stack: Stack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        driver = await declare(stack, ENRICH)
        asked: list[str] = []

        async def confirm() -> None:
            asked.append("who leads")

        monkeypatch.setattr(driver, "_outputs", object())
        monkeypatch.setattr(driver._controller, "confirm_leadership", confirm)
        command = PublishStages(PIPELINE, "enrich", (1,), (2,), (), 0, OUT, "elsewhere")
        assert (await driver._publish(command, 0, memoryview(b""))).stale == (1,)
        assert asked == ["who leads"]

    async def test_a_stale_failure_takes_nothing_from_who_is_at_work(self, stack: Stack) -> None:
        driver = await declare(stack, ENRICH)
        runner = Runner(driver, credit=10)
        await stack.append(IN, b"a", b"b")
        await runner.until(("enrich", [1, 2], [1, 1]))
        assert (await fail(driver, "enrich", [1], attempt=7)).stale == (1,)
        assert len(driver.dispatcher.assignments.assigned("enrich")) == 2
        ended = Ended("enrich", (1, 2), (7, 1))
        assert (await driver.fail(ended, "cold")).stale == (1,)
        assert set(driver.dispatcher.assignments.assigned("enrich")) == {1}

    async def test_two_runners_never_publish_one_output_twice(self, stack: Stack) -> None:
        driver = await declare(stack, ENRICH, DECIDE, max_parallel=7)
        await stack.append(IN, *[b"x"] * 40)
        runners = [Runner(driver, credit=2, max_batch=3) for _ in range(3)]
        seen = [0, 0, 0]
        while sum(status == 2 for _, status in await instances(stack)) < 40:
            for index, runner in enumerate(runners):
                for stage, ids, _ in runner.got[seen[index] :]:
                    seen[index] += 1
                    await complete(driver, stage, ids)
                    assert set((await complete(driver, stage, ids)).stale) == set(ids)
                    runner.grant(1)
        rows = await stack.rows("SELECT out_offset FROM hadron_stage_run ORDER BY out_offset")
        assert [offset for (offset,) in rows] == list(range(80))
        values = [
            record.value
            for batch in await stack.read(OUT)
            for record in decode_batch(batch.data).records()
        ]
        assert values == [b"out"] * 80


class TestRequests:
    @pytest.fixture
    async def driver(self, stack: Stack) -> PipelineDriver:
        silent = StageSpec(name="silent", engine="handler")
        driver = await declare(stack, ENRICH, silent)
        await stack.append(IN, b"a")
        await consumed(stack, 1)
        return driver

    async def test_a_runner_for_a_stage_that_is_not_there(self, driver: PipelineDriver) -> None:
        with pytest.raises(NotFoundError, match="has no stage nonsense") as caught:
            Runner(driver, "nonsense")
        assert "it has: enrich, silent" in caught.value.hint

    async def test_a_runner_of_another_engine(self, driver: PipelineDriver) -> None:
        sink = sink_of(driver, FakeCall())
        with pytest.raises(NotFoundError, match="with engine 'spark'") as caught:
            driver.dispatcher.join(sink, "spark", ["enrich"], 0, 1, driver.spec.stages)
        assert caught.value.hint == "enrich has engine 'handler'"

    async def test_what_does_not_fit_the_declaration_is_refused(
        self, driver: PipelineDriver
    ) -> None:
        for options, match in (
            ({"stage": "enrich", "ids": [1], "outputs": 2}, "1 instances are completed with 2"),
            ({"stage": "silent", "ids": [1], "outputs": 1}, "declares no output"),
            (
                {"stage": "enrich", "ids": [1], "partition": "other/p1"},
                "has no partition 'other/p1'",
            ),
            ({"stage": "nonsense", "ids": [1]}, "has no stage 'nonsense'"),
            ({"stage": "enrich", "ids": [], "data": b"x"}, "0 instances come with 0"),
            ({"stage": "enrich", "ids": list(range(70_000)), "data": b"x"}, "are more than"),
        ):
            with pytest.raises(RequestError, match=match):
                await complete(driver, **options)

    async def test_a_damaged_batch_is_refused(self, driver: PipelineDriver) -> None:
        data = bytearray(encode_values([b"x"], 1))
        data[-1] ^= 1
        for bad in (bytes(data), b"nonsense"):
            with pytest.raises(CorruptionError):
                await complete(driver, "enrich", [1], data=bad)

    async def test_a_batch_is_judged_once(
        self, driver: PipelineDriver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It may have two megabytes, which nobody else is served for."""
        judged: list[int] = []

        def judge(outputs: memoryview) -> BatchHead:
            judged.append(len(outputs))
            return judge_batch(outputs)

        monkeypatch.setattr("hadron.pipelines.completions.judge_batch", judge)
        await complete(driver, "enrich", [1])
        assert len(judged) == 1

    async def test_an_output_that_would_not_replicate_is_refused(
        self, driver: PipelineDriver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from hadron.model import batch

        with monkeypatch.context() as patch:
            patch.setattr(batch, "MAX_BATCH_BYTES", 1 << 30)
            data = encode_values([b"x" * 900_000] * 3, 1)
        with pytest.raises(HadronError) as caught:
            await complete(driver, "enrich", [1, 2, 3], data=data)
        assert isinstance(caught.value, RecordTooLargeError)

    async def test_attempts_for_all_instances(self, driver: PipelineDriver) -> None:
        with pytest.raises(RequestError, match="2 instances come with 1 attempts"):
            await driver.complete(Ended("enrich", (1, 2), (1,)), memoryview(b""))
        with pytest.raises(RequestError, match="2 instances come with 1 times of creation"):
            await driver.complete(Ended("enrich", (1, 2), (1, 1), (5,)), memoryview(b""))

    async def test_a_stage_without_output_publishes_nothing(
        self, stack: Stack, driver: PipelineDriver
    ) -> None:
        assert await complete(driver, "silent", [1], outputs=0) == Completed(None)
        assert await stack.read(OUT) == []

    async def test_an_unknown_pipeline(self, stack: Stack) -> None:
        with pytest.raises(NotFoundError, match="no object has the id 77"):
            stack.pipelines.driver(77)

    async def test_stopping_tells_every_runner(self, stack: Stack, driver: PipelineDriver) -> None:
        runner = Runner(driver)
        stack.pipelines.stop(ShuttingDownError("the node is stopping"))
        assert isinstance(runner.call.failure, ShuttingDownError)
        driver.dispatcher.leave(runner.session)


async def test_records_of_a_deleted_stream_are_spoken_of_by_its_name(stack: Stack) -> None:
    """Its output goes elsewhere by now, and what it once wrote to was deleted."""
    await declare(stack, ENRICH, DECIDE)
    driver = stack.pipelines.driver(PIPELINE)
    runner = Runner(driver, "enrich")
    await stack.append(IN, b"x")
    await runner.until(("enrich", [1], [1]))
    await complete(driver, "enrich", [1])
    await stack.stream("elsewhere")
    stages = tuple(replace(each, output=Output("elsewhere")) for each in (ENRICH, DECIDE))
    await stack.declare(
        "Pipeline", "p", PipelineSpec(stages=stages, replica_set=SET, input="in", start="earliest")
    )
    await stack.controller.execute(DeleteObjects(stack.catalog.metadata_index, (OUT,)))
    deciding = Runner(driver, "decide")
    await deciding.until(("decide", [1], [1]))
    (invocation,) = deciding.call.sent[0][0].invocations
    assert (invocation.dependencies[0].stream, invocation.root.stream) == ("out", "in")
