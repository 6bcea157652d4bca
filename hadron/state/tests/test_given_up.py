"""What becomes of instances that are given up."""

from __future__ import annotations

from hadron.model.pipelines import PipelineSpec, Retry
from hadron.state import instance_letters
from hadron.state import pipeline_views as views
from hadron.state.instance_letters import SendLetters, Sent
from hadron.state.pipeline_tables import DONE, FAILED, LIVE
from hadron.state.streams import bounds
from hadron.state.tests.piping import OUT, PIPELINE, Pipe, stage
from hadron.state.tests.support import SET, dump


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

    def test_without_a_stream_none_is_due(self) -> None:
        pipe = Pipe(stage("a", retry=Retry(1)))
        pipe.trigger(3)
        pipe.fail("a", 1)
        assert self.due(pipe) == []
