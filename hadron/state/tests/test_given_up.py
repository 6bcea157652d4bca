"""What becomes of instances that are given up."""

from __future__ import annotations

import pytest

from hadron.fakes.tables import SET, dump
from hadron.model.pipelines import PipelineSpec, Retry
from hadron.state.pipelines import finished, views
from hadron.state.pipelines import letters as instance_letters
from hadron.state.pipelines.cancellations import CancelInstances
from hadron.state.pipelines.finished import DropInstances
from hadron.state.pipelines.letters import SendLetters, Sent
from hadron.state.pipelines.tables import InstanceStatus
from hadron.state.slices import Dropped
from hadron.state.streams.partitions import bounds
from hadron.state.tests.piping import OUT, PIPELINE, Pipe, stage

LIVE, DONE, FAILED, _ = InstanceStatus


class TestOnFailure:
    """A stage that runs for what is given up."""

    STAGES = (
        stage("a", retry=Retry(2, 0)),
        stage("b", "a", retry=Retry(1)),
        stage("x", retry=Retry(1)),
        stage("tell", output=False, retry=Retry(1)),
    )

    def pipe(self) -> Pipe:
        pipe = Pipe()
        spec = PipelineSpec(
            replica_set=SET, input="in", start="earliest", stages=self.STAGES, on_failure="tell"
        )
        pipe.declare(("Pipeline", "p", spec))
        return pipe

    def told(self, pipe: Pipe) -> list[tuple[int, str, str]]:
        found = views.with_failures(pipe.db, PIPELINE, pipe.invocations("tell"), self.STAGES[:-1])
        return [(each.instance_id, each.failed_stage, each.failure) for each in found]

    def test_it_runs_once_for_each_instance_that_is_given_up(self) -> None:
        pipe = self.pipe()
        pipe.trigger(3, 4, 5)
        assert pipe.ready("tell") == []
        pipe.fail("a", 1, 2)
        assert pipe.ready("tell") == []
        pipe.complete("a", 2, attempt=2)
        pipe.fail("a", 1, attempt=2)
        pipe.fail("b", 2)
        pipe.fail("x", 1)
        assert pipe.statuses() == [FAILED, FAILED, LIVE]
        assert self.told(pipe) == [(1, "a", "cold"), (2, "b", "cold")]
        pipe.complete("tell", 1, output=False)
        pipe.fail("tell", 2)
        assert pipe.statuses() == [FAILED, FAILED, LIVE]
        assert pipe.counts().stages["tell"] == (0, 1, 1)
        assert dump(pipe.replica()) == dump(pipe.db)

    def test_an_instance_is_done_without_it(self) -> None:
        pipe = self.pipe()
        pipe.trigger(3)
        for name in "abx":
            pipe.complete(name, 1)
        assert pipe.statuses() == [DONE]

    def test_a_retry_calls_it_off_until_the_next_time(self) -> None:
        pipe = self.pipe()
        pipe.trigger(3, 4)
        pipe.fail("x", 1, 2)
        pipe.complete("tell", 1, output=False)
        pipe.retry(1, 2)
        assert pipe.ready("tell") == []
        assert pipe.complete("tell", 2, output=False).stale == (2,), "it was called off"
        pipe.fail("x", 1, 2, attempt=2)
        assert pipe.ready("tell") == [1, 2]
        assert [each.attempt for each in pipe.invocations("tell")] == [2, 2]


class TestLetters:
    """A record of each instance that is given up."""

    def pipe(self) -> Pipe:
        pipe = Pipe()
        stages = (stage("a", retry=Retry(1)), stage("x", retry=Retry(1)))
        spec = PipelineSpec(
            replica_set=SET, input="in", start="earliest", stages=stages, dead_letters="out"
        )
        pipe.declare(("Pipeline", "p", spec))
        return pipe

    def due(self, pipe: Pipe) -> list[tuple[int, str]]:
        found = instance_letters.due(pipe.db, PIPELINE, 9)
        return [(each.instance_id, each.stage) for each in found]

    def test_each_is_sent_once(self) -> None:
        pipe = self.pipe()
        pipe.trigger(3, 4, 5)
        pipe.fail("a", 1)
        pipe.fail("x", 1, 2)
        assert self.due(pipe) == [(1, "a"), (2, "x")]
        (first, _) = instance_letters.due(pipe.db, PIPELINE, 9)
        assert (first.reason, first.attempts, first.offset) == ("cold", 1, 3)
        sent = pipe.submit(SendLetters(PIPELINE, (1, 2), OUT, 90))
        assert isinstance(sent, Sent)
        assert sent.appended is not None
        assert (sent.appended.base_offset, sent.appended.count) == (0, 2)
        for again in ((1, 2), (2,), (3,)):
            assert pipe.submit(SendLetters(PIPELINE, again, OUT, 90)) == Sent(None)
            assert pipe.again
        assert (self.due(pipe), bounds(pipe.db, OUT).next_offset) == ([], 2)
        pipe.fail("a", 2)
        assert self.due(pipe) == [], "it had failed before"
        pipe.retry(1)
        pipe.fail("a", 1, attempt=2)
        assert self.due(pipe) == [(1, "a")], "given up once more"
        assert dump(pipe.replica()) == dump(pipe.db)

    def test_those_that_wait_go_with_their_stream(self) -> None:
        """They would keep their instances for ever."""
        pipe = self.pipe()
        pipe.trigger(3)
        pipe.fail("a", 1)
        spec = PipelineSpec(
            replica_set=SET,
            input="in",
            start="earliest",
            stages=(stage("a", retry=Retry(1)), stage("x", retry=Retry(1))),
        )
        pipe.declare(("Pipeline", "p", spec))
        assert self.due(pipe) == []

    def test_without_a_stream_none_is_due(self) -> None:
        pipe = Pipe(stage("a", retry=Retry(1)))
        pipe.trigger(3)
        pipe.fail("a", 1)
        assert self.due(pipe) == []


class TestFinished:
    """What has ended goes after a while."""

    def drop(self, pipe: Pipe, before_ms: int) -> Dropped:
        result = pipe.submit(DropInstances(PIPELINE, before_ms))
        assert isinstance(result, Dropped)
        return result

    def test_what_ended_goes_after_a_while_and_stays_counted(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pipe = Pipe(stage("a", retry=Retry(1)), stage("b", "a"), stage("x"))
        pipe.trigger(*range(6))
        for name in "abx":
            pipe.complete(name, 1, 2)
        pipe.fail("a", 3)
        pipe.complete("x", 3)
        pipe.submit(CancelInstances(PIPELINE, (4,)))
        pipe.now_ms += 1_000
        for name in "abx":
            pipe.complete(name, 5)
        counts = pipe.counts()
        monkeypatch.setattr(finished, "SLICE_INSTANCES", 3)
        assert finished.oldest_end_ms(pipe.db, PIPELINE) is not None
        assert self.drop(pipe, pipe.now_ms - 500) == Dropped(3)
        assert self.drop(pipe, pipe.now_ms - 500) == Dropped(1, is_done=True)
        assert (self.drop(pipe, pipe.now_ms - 500), pipe.again) == (Dropped(0, is_done=True), True)
        assert pipe.rows("SELECT instance_id FROM hadron_instance") == [(5,), (6,)]
        assert pipe.rows("SELECT DISTINCT instance_id FROM hadron_stage_run ORDER BY 1") == [
            (5,),
            (6,),
        ]
        left = pipe.counts()
        assert (left.live, left.done, left.failed, left.cancelled) == (1, 3, 1, 1)
        assert {name: done for name, (_, done, _) in left.stages.items()} == {
            name: done for name, (_, done, _) in counts.stages.items()
        }
        assert left.stages["x"][0] == 1
        assert pipe.versions() == {1: 1}
        assert dump(pipe.replica()) == dump(pipe.db)

    def test_what_has_something_left_to_do_is_kept_once_more(self) -> None:
        """What tells of a failure may wait for longer than that, and would go unsaid."""
        pipe = TestOnFailure().pipe()
        pipe.trigger(3, 4)
        pipe.submit(CancelInstances(PIPELINE, (2,)))
        pipe.complete("x", 1)
        pipe.fail("a", 1)
        pipe.fail("a", 1, attempt=2)
        assert pipe.ready("tell") == [1]
        pipe.now_ms += 1_000
        assert self.drop(pipe, pipe.now_ms - 500) == Dropped(1, is_done=True), "the cancelled one"
        assert finished.oldest_end_ms(pipe.db, PIPELINE) == pipe.now_ms
        assert (self.drop(pipe, pipe.now_ms - 500), pipe.again) == (Dropped(0, is_done=True), True)
        assert pipe.ready("tell") == [1]
        pipe.complete("tell", 1, output=False)
        pipe.now_ms += 1_000
        assert self.drop(pipe, pipe.now_ms - 500) == Dropped(1, is_done=True)
        assert pipe.counts().stages["tell"] == (0, 1, 0)
        assert dump(pipe.replica()) == dump(pipe.db)

    def test_no_letter_is_lost(self) -> None:
        pipe = TestLetters().pipe()
        pipe.trigger(3)
        pipe.fail("a", 1)
        pipe.complete("x", 1)
        pipe.now_ms += 1_000
        assert self.drop(pipe, pipe.now_ms) == Dropped(0, is_done=True)
        pipe.submit(SendLetters(PIPELINE, (1,), OUT, 90))
        pipe.now_ms += 1_000
        assert self.drop(pipe, pipe.now_ms) == Dropped(1, is_done=True)
