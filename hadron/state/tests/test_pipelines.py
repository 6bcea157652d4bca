"""Instances and stages: each trigger once, each output once, and nobody waits in vain."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hadron.fakes.tables import SET, dump
from hadron.model.errors import NotFoundError, RequestError, SchemaError
from hadron.model.pipelines import PipelineSpec, Retry, StageSpec
from hadron.state.pipelines import definitions, stories, views
from hadron.state.pipelines.inputs import Triggered, TriggerInstances
from hadron.state.pipelines.retries import Retried, RetryInstances
from hadron.state.pipelines.stage_runs import Completed, CompleteStages, FailStages
from hadron.state.pipelines.tables import InstanceStatus, StageStatus
from hadron.state.streams.partitions import bounds
from hadron.state.tests.piping import DIAMOND, IN, OUT, PIPELINE, Pipe, stage

LIVE, DONE, FAILED, _ = InstanceStatus
READY = StageStatus.READY


class TestStart:
    @pytest.mark.parametrize(
        ("start", "offset"),
        [
            ("earliest", 0),
            ("latest", 100),
            ("40", 40),
            ("999999999999999999", 100),
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01t00:10:00z", 0),
            ("1970-01-01T02:00:00.5+01:00", 100),
            ("2100-01-01T00:00:00Z", 100),
        ],
    )
    def test_the_cursor_begins_where_it_is_told(self, start: str, offset: int) -> None:
        """Whatever validation lets through: what fails here ends the node."""
        pipe = Pipe(*DIAMOND, start=start)
        assert views.cursors(pipe.db, PIPELINE) == [views.InputCursor(PIPELINE, SET, IN, offset)]

    def test_it_is_no_longer_asked_once_there_is_a_cursor(self) -> None:
        pipe = Pipe(*DIAMOND)
        pipe.trigger(5, to=50)
        pipe.stages(*DIAMOND, start="latest")
        assert views.cursors(pipe.db, PIPELINE)[0].next_offset == 50


class TestTrigger:
    def test_each_offset_makes_an_instance_whose_entry_stages_are_ready(self) -> None:
        pipe = Pipe(stage("a"), stage("b", "a"), stage("also"))
        assert pipe.trigger(3, 7, to=10) == Triggered(10, 2)
        assert pipe.rows("SELECT instance_id, status, offset FROM hadron_instance") == [
            (1, LIVE, 3),
            (2, LIVE, 7),
        ]
        assert (pipe.ready("a"), pipe.ready("b"), pipe.ready("also")) == ([1, 2], [], [1, 2])
        assert pipe.trigger(10, start=10, to=100) == Triggered(100, 1)
        assert pipe.counts() == views.PipelineCounts(
            3, 0, 0, {"a": (3, 0, 0), "also": (3, 0, 0), "b": (0, 0, 0)}
        )

    def test_a_moved_cursor_triggers_nothing(self) -> None:
        pipe = Pipe(*DIAMOND)
        pipe.trigger(3, to=10)
        for start in (0, 5, 11):
            assert pipe.trigger(3, start=start, to=20) == Triggered(10, 0, stale=True)
            assert pipe.again
        assert pipe.counts().live == 1

    def test_records_that_do_not_match_move_the_cursor(self) -> None:
        pipe = Pipe(*DIAMOND)
        assert pipe.trigger(to=60) == Triggered(60, 0)
        assert views.cursors(pipe.db, PIPELINE)[0].next_offset == 60

    @pytest.mark.parametrize(("pipeline", "partition"), [(9, SET), (PIPELINE, "other/p1")])
    def test_what_does_not_exist_is_refused(self, pipeline: int, partition: str) -> None:
        pipe = Pipe(*DIAMOND)
        with pytest.raises(NotFoundError):
            pipe.submit(TriggerInstances(pipeline, partition, 0, 1, (0,)))


class TestComplete:
    def test_an_instance_runs_through_its_stages(self) -> None:
        pipe = Pipe(*DIAMOND)
        pipe.trigger(3, 7)
        done = pipe.complete("a", 2, 1)
        assert done.appended is not None
        assert (done.appended.base_offset, done.appended.count, done.stale) == (0, 2, ())
        assert (pipe.ready("b"), pipe.ready("c")) == ([], [1, 2]), "b is delayed"
        assert views.next_ready_ms(pipe.db, PIPELINE, 1, "b", pipe.now_ms) == pipe.now_ms + 500
        pipe.now_ms += 500
        assert pipe.ready("b") == [1, 2]
        pipe.complete("b", 1, 2)
        assert pipe.ready("d") == []
        assert pipe.complete("c", 1, 2, output=False) == Completed(None)
        (first, second) = pipe.invocations("d")
        assert first == views.ReadyStage(
            1,
            1,
            views.OutputRef(IN, SET, 3),
            (views.OutputRef(OUT, SET, 1), views.OutputRef(OUT, SET, 2)),
            first.created_ms,
        )
        assert [(first.created_ms,)] == pipe.rows(
            "SELECT created_ms FROM hadron_instance WHERE instance_id = 1"
        )
        assert second.dependencies == (views.OutputRef(OUT, SET, 0), views.OutputRef(OUT, SET, 3))
        assert pipe.statuses() == [LIVE, LIVE]
        pipe.complete("d", 1)
        assert pipe.statuses() == [DONE, LIVE]
        pipe.complete("d", 2)
        assert pipe.counts() == views.PipelineCounts(0, 2, 0, dict.fromkeys("abcd", (0, 2, 0)))
        assert bounds(pipe.db, OUT).next_offset == 6

    @pytest.mark.parametrize(
        ("ids", "attempts", "stale"),
        [
            ((1, 2, 9), (1, 1, 1), (9,)),
            ((1, 2), (1, 2), (2,)),
            ((1, 1), (1, 1), (1,)),
            ((1 << 63, (1 << 64) - 1, 2), (1, 1, 1), (1 << 63, (1 << 64) - 1)),
            ((3,), (1,), (3,)),
        ],
        ids=["unknown", "another attempt", "doubled", "absurd", "done before"],
    )
    def test_one_stale_instance_and_nothing_happens(
        self, ids: tuple[int, ...], attempts: tuple[int, ...], stale: tuple[int, ...]
    ) -> None:
        pipe = Pipe(*DIAMOND)
        pipe.trigger(3, 7, 8)
        pipe.complete("a", 3)
        result = pipe.submit(CompleteStages(PIPELINE, "a", ids, attempts, OUT, 100))
        assert pipe.again
        assert result == Completed(None, stale)
        assert bounds(pipe.db, OUT).next_offset == 1
        assert pipe.counts().stages["a"] == (2, 1, 0)

    def test_a_stage_that_is_not_ready_cannot_complete(self) -> None:
        pipe = Pipe(*DIAMOND)
        pipe.trigger(3)
        assert pipe.complete("d", 1).stale == (1,)
        assert pipe.complete("nonsense", 1).stale == (1,)

    def test_outputs_need_a_partition_here(self) -> None:
        pipe = Pipe(*DIAMOND)
        pipe.trigger(3)
        with pytest.raises(NotFoundError, match="the id 77"):
            pipe.submit(CompleteStages(PIPELINE, "a", (1,), (1,), 77, 100))
        assert pipe.ready("a") == [1]

    def test_another_instance_of_that_number_is_stale(self) -> None:
        """It was made in a history that a restore has ended."""
        pipe = Pipe(stage("a"))
        pipe.trigger(3, 5)
        (made,), _ = pipe.rows("SELECT created_ms FROM hadron_instance ORDER BY instance_id")
        ended = pipe.submit(CompleteStages(PIPELINE, "a", (1, 2), (1, 1), OUT, 9, (made, made + 1)))
        assert ended == Completed(None, (2,))
        failed = pipe.submit(FailStages(PIPELINE, "a", (1, 2), (1, 1), "cold", (made - 1, made)))
        assert failed == Completed(None, (1,))
        assert pipe.complete("a", 2, attempt=1).stale == (2,), "it has failed"
        ended = pipe.submit(CompleteStages(PIPELINE, "a", (1,), (1,), OUT, 9, (made,)))
        assert isinstance(ended, Completed)
        assert ended.stale == ()


class TestFail:
    def test_it_is_tried_again_after_a_growing_while(self) -> None:
        pipe = Pipe(stage("a", retry=Retry(4, 1_000)))
        pipe.trigger(3)
        for attempt, backoff_ms in ((1, 1_000), (2, 2_000), (3, 4_000)):
            assert pipe.fail("a", 1, attempt=attempt) == Completed(None)
            assert pipe.ready("a") == []
            pause_ms = Retry(4, 1_000).pause_ms(attempt, 1)
            assert backoff_ms <= pause_ms < backoff_ms * 5 // 4
            pipe.now_ms += pause_ms - 1
            assert pipe.ready("a") == []
            pipe.now_ms += 1
            (item,) = pipe.invocations("a")
            assert item.attempt == attempt + 1
        pipe.fail("a", 1, attempt=4)
        assert pipe.statuses() == [FAILED]
        assert pipe.counts() == views.PipelineCounts(0, 0, 1, {"a": (0, 0, 1)})
        assert pipe.rows("SELECT status, attempts, reason FROM hadron_stage_run") == [
            (FAILED, 4, "cold")
        ]

    def test_the_attempt_that_failed_cannot_complete_any_more(self) -> None:
        pipe = Pipe(stage("a"))
        pipe.trigger(3)
        pipe.fail("a", 1)
        assert pipe.complete("a", 1, attempt=1).stale == (1,)
        assert pipe.complete("a", 1, attempt=2).stale == ()
        assert pipe.statuses() == [DONE]
        assert pipe.rows("SELECT reason FROM hadron_stage_run") == [(None,)]

    def test_those_that_are_not_stale_fail(self) -> None:
        pipe = Pipe(stage("a"))
        pipe.trigger(3, 4, 5)
        pipe.complete("a", 2)
        assert pipe.fail("a", 1, 2, 3) == Completed(None, (2,))
        assert pipe.rows("SELECT attempts FROM hadron_stage_run") == [(1,), (0,), (1,)]

    def test_when_all_are_stale_nothing_is_logged(self) -> None:
        pipe = Pipe(stage("a"))
        pipe.trigger(3)
        for ids, name in (((9,), "a"), ((1,), "nonsense"), ((1, 1), "a")):
            assert pipe.fail(name, *ids) == Completed(None, ids)
            assert pipe.again

    def test_a_failed_branch_ends_the_instance_once(self) -> None:
        pipe = Pipe(stage("a", retry=Retry(1)), stage("b", retry=Retry(1)))
        pipe.trigger(3)
        pipe.fail("a", 1)
        pipe.fail("b", 1)
        assert pipe.counts() == views.PipelineCounts(0, 0, 1, {"a": (0, 0, 1), "b": (0, 0, 1)})

    def test_the_longest_backoff_fits_a_row(self) -> None:
        pipe = Pipe(stage("a", retry=Retry(1_000, 3_650 * 86_400_000)))
        pipe.trigger(3)
        for attempt in range(1, 41):
            pipe.fail("a", 1, attempt=attempt)
        assert pipe.counts().stages["a"] == (1, 0, 0)


class TestRetry:
    """Failed instances run again: what was done stays, and no attempt's number is used twice."""

    def failed(self, *ids: int) -> Pipe:
        """A diamond whose last stage has failed twice, which is all that it may, for `ids`."""
        pipe = Pipe(*DIAMOND)
        pipe.trigger(3, 7, 8)
        pipe.complete("a", 1, 2, 3)
        pipe.now_ms += 500
        pipe.complete("b", 1, 2, 3)
        pipe.complete("c", 1, 2, 3, output=False)
        pipe.fail("d", *ids)
        pipe.fail("d", *ids, attempt=2)
        return pipe

    def test_only_what_failed_runs_again(self) -> None:
        pipe = self.failed(1, 2)
        assert pipe.statuses() == [FAILED, FAILED, LIVE]
        assert pipe.retry(2) == Retried(1, 0)
        assert pipe.statuses() == [FAILED, LIVE, LIVE]
        counts = {"a": (0, 3, 0), "b": (0, 3, 0), "c": (0, 3, 0), "d": (2, 0, 1)}
        assert pipe.counts() == views.PipelineCounts(2, 0, 1, counts)
        again = pipe.invocations("d")
        (item,) = [each for each in again if each.instance_id == 2]
        assert item == views.ReadyStage(
            2,
            3,
            views.OutputRef(IN, SET, 7),
            (views.OutputRef(OUT, SET, 1), views.OutputRef(OUT, SET, 4)),
            item.created_ms,
            2,
        )
        assert pipe.complete("d", 2, attempt=3).stale == ()
        assert pipe.statuses() == [FAILED, DONE, LIVE]
        assert bounds(pipe.db, OUT).next_offset == 7

    def test_attempts_begin_anew(self) -> None:
        pipe = self.failed(1)
        pipe.retry(1)
        pipe.fail("d", 1, attempt=3)
        assert pipe.ready("d") == [2, 3], "its first pause again"
        pipe.now_ms += 1_250
        assert pipe.ready("d") == [2, 3, 1]
        (shown,) = views.instances(pipe.db, PIPELINE, status=LIVE, after_id=0, limit=1)
        last = shown.stages[-1]
        assert replace(last, ready_ms=0, tried=()) == views.StageStory("d", READY, 1, None, "cold")
        assert [each.number for each in last.tried] == [1, 2, 3]
        pipe.fail("d", 1, attempt=4)
        assert pipe.statuses() == [FAILED, LIVE, LIVE]

    def test_a_late_runner_of_the_first_round_is_not_heard(self) -> None:
        pipe = self.failed(1)
        pipe.retry(1)
        for attempt in (1, 2):
            assert pipe.complete("d", 1, attempt=attempt).stale == (1,)
            assert pipe.fail("d", 1, attempt=attempt).stale == (1,)

    def test_it_may_be_repeated(self) -> None:
        pipe = self.failed(1, 2)
        pipe.retry(1, 2)
        assert (pipe.retry(1, 2), pipe.again) == (Retried(0, 2), True)
        pipe.complete("d", 1, attempt=3)
        assert (pipe.retry(1, 2, 2), pipe.again) == (Retried(0, 2), True), "done meanwhile"
        pipe.fail("d", 2, attempt=3)
        pipe.fail("d", 2, attempt=4)
        assert pipe.retry(1, 2) == Retried(1, 1)
        assert pipe.statuses() == [DONE, LIVE, LIVE]

    @pytest.mark.parametrize(
        ("ids", "error", "told"),
        [
            ((1, 3), RequestError, "instance 3 of pipeline 'p' has not failed: it is live"),
            ((1, 4), RequestError, "instance 4 of pipeline 'p' has not failed: it is done"),
            ((1, 99), NotFoundError, "'p' has no instance 99 ..hadron pipeline instances p -"),
            ((1, 1 << 63, (1 << 64) - 1), NotFoundError, r"instance 9223372036854775808 \(and 1"),
        ],
    )
    def test_what_has_not_failed_refuses_all(
        self, ids: tuple[int, ...], error: type[Exception], told: str
    ) -> None:
        pipe = self.failed(1, 2)
        pipe.trigger(50, start=100, to=100)
        for name in "abcd":
            pipe.now_ms += 500
            pipe.complete(name, 4, output=name != "c")
        before = pipe.rows("SELECT * FROM hadron_stage_run")
        with pytest.raises(error, match=told):
            pipe.retry(*ids)
        assert pipe.statuses() == [FAILED, FAILED, LIVE, DONE]
        assert pipe.rows("SELECT * FROM hadron_stage_run") == before

    def test_of_a_pipeline_that_is_not_here(self) -> None:
        pipe = self.failed(1)
        with pytest.raises(NotFoundError, match="pipeline 77 does not live here"):
            pipe.submit(RetryInstances(77, (1,)))

    def test_several_failed_stages_of_one_instance(self) -> None:
        pipe = Pipe(stage("a", retry=Retry(1)), stage("b", retry=Retry(1)), stage("c", "a", "b"))
        pipe.trigger(3)
        pipe.fail("a", 1)
        pipe.fail("b", 1)
        pipe.retry(1)
        assert pipe.counts() == views.PipelineCounts(
            1, 0, 0, {"a": (1, 0, 0), "b": (1, 0, 0), "c": (0, 0, 0)}
        )
        pipe.complete("a", 1, attempt=2)
        pipe.complete("b", 1, attempt=2)
        pipe.complete("c", 1)
        assert pipe.statuses() == [DONE]

    def test_it_goes_on_with_what_is_declared_now(self) -> None:
        pipe = Pipe(stage("a"), stage("b", "a", retry=Retry(1)))
        pipe.trigger(3, 4, 5)
        pipe.complete("a", 1, 2)
        pipe.fail("b", 1, 2)
        pipe.stages(stage("a"), stage("c", "a"))
        assert pipe.versions() == {1: 3, 2: 0}
        pipe.retry(1)
        assert pipe.versions() == {1: 2, 2: 1}
        assert (pipe.ready("b"), pipe.ready("c")) == ([], [1])
        pipe.complete("c", 1)
        pipe.stages(stage("a"))
        pipe.retry(2)
        assert pipe.statuses() == [DONE, DONE, LIVE], "what failed is declared no more"
        assert pipe.versions() == {1: 1, 3: 0}
        assert pipe.complete("b", 1).stale == (1,)

    def test_a_stage_that_has_another_place_now_waits_for_it(self) -> None:
        pipe = Pipe(stage("a", retry=Retry(1)), stage("b", retry=Retry(1)))
        pipe.trigger(3)
        pipe.fail("a", 1)
        pipe.stages(stage("x"), stage("a", retry=Retry(1)), stage("b", after=("x", "a")))
        pipe.retry(1)
        assert [pipe.ready(each) for each in "xab"] == [[1], [1], []]
        assert pipe.complete("b", 1).stale == (1,), "of the old place"
        pipe.complete("x", 1)
        pipe.complete("a", 1, attempt=2)
        assert pipe.complete("b", 1).stale == (1,), "its number is used up"
        pipe.complete("b", 1, attempt=2)
        assert pipe.statuses() == [DONE]

    def test_a_stage_that_has_an_output_now_runs_again(self) -> None:
        pipe = Pipe(stage("a", output=False), stage("b", after=("a",), retry=Retry(1)))
        pipe.trigger(3)
        pipe.complete("a", 1, output=False)
        pipe.fail("b", 1)
        pipe.stages(stage("a"), stage("b", "a"))
        pipe.retry(1)
        assert (pipe.ready("a"), pipe.ready("b")) == ([1], [])
        assert pipe.complete("a", 1).stale == (1,)
        pipe.complete("a", 1, attempt=2)
        assert pipe.ready("b") == [1]

    def test_what_comes_after_a_stage_that_runs_again_waits_for_it(self) -> None:
        pipe = Pipe(stage("a", output=False), stage("b", after=("a",), retry=Retry(1)))
        pipe.trigger(3)
        pipe.complete("a", 1, output=False)
        pipe.fail("b", 1)
        pipe.stages(stage("a"), stage("b", after=("a",), retry=Retry(1)))
        pipe.retry(1)
        assert (pipe.ready("a"), pipe.ready("b")) == ([1], [])
        pipe.complete("a", 1, attempt=2)
        assert pipe.ready("b") == [1]
        assert pipe.complete("b", 1, attempt=2).stale == (1,), "its number is used up"
        pipe.complete("b", 1, attempt=3)
        assert pipe.statuses() == [DONE]
        assert dump(pipe.replica()) == dump(pipe.db)

    def test_what_waits_once_more_has_all_its_attempts(self) -> None:
        """One that ran for the definition before uses up none of them."""
        retry = Retry(2, 0)
        pipe = Pipe(stage("a", output=False, retry=retry), stage("b", after=("a",), retry=retry))
        pipe.trigger(3)
        pipe.fail("a", 1)
        pipe.complete("a", 1, attempt=2, output=False)
        pipe.fail("b", 1)
        pipe.fail("b", 1, attempt=2)
        pipe.stages(stage("a", retry=retry), stage("b", after=("a",), retry=retry))
        pipe.retry(1)
        for name in "ab":
            (given,) = pipe.invocations(name)
            assert given.attempts_before == given.attempt - 1
            pipe.fail(name, 1, attempt=given.attempt)
            assert pipe.statuses() == [LIVE], "it has another one"
            pipe.complete(name, 1, attempt=given.attempt + 1)
        assert pipe.statuses() == [DONE]
        assert dump(pipe.replica()) == dump(pipe.db)

    def test_what_is_done_stays_whatever_its_name_was_in_other_definitions(self) -> None:
        """What tells of a failure in one is a step on the way in another."""

        def declare(on_failure: str, *stages: StageSpec) -> None:
            spec = PipelineSpec(
                replica_set=SET, input="in", start="earliest", stages=stages, on_failure=on_failure
            )
            pipe.declare(("Pipeline", "p", spec))

        a, clean = stage("a", retry=Retry(1)), stage("clean", retry=Retry(1))
        pipe = Pipe()
        declare("clean", a, clean)
        pipe.trigger(3, to=4)
        pipe.fail("a", 1)
        declare("", clean, stage("a", "clean", retry=Retry(1)))
        pipe.trigger(5, start=4, to=6)
        pipe.complete("clean", 2)
        pipe.fail("a", 2)
        pipe.retry(2)
        assert (pipe.ready("clean"), pipe.ready("a")) == ([1], [2])
        declare("clean", a, clean)
        pipe.fail("a", 2, attempt=2)
        assert pipe.ready("clean") == [1], "it keeps the definition that it has"
        pipe.retry(2)
        (given,) = pipe.invocations("a")
        pipe.fail("a", 2, attempt=given.attempt)
        assert pipe.ready("clean") == [1, 2], "it is what tells of a failure now"
        assert dump(pipe.replica()) == dump(pipe.db)

    def test_failed_instances_come_in_pages_by_an_index(self) -> None:
        pipe = self.failed(1, 3)
        for after_id, found in ((0, [1, 3]), (1, [3]), ((1 << 64) - 1, [])):
            failed = views.Chosen(FAILED)
            assert views.ids_of(pipe.db, PIPELINE, failed, after_id=after_id, limit=9) == found
        plan = pipe.rows(
            "EXPLAIN QUERY PLAN SELECT instance_id FROM hadron_instance WHERE pipeline_id = 3"
            " AND instance_id > 0 AND status = 3 ORDER BY instance_id LIMIT 1"
        )
        assert "instance_failed" in plan[0][-1]

    def test_replicas_follow(self) -> None:
        pipe = self.failed(1, 2)
        pipe.retry(1, 2)
        pipe.fail("d", 1, attempt=3)
        assert dump(pipe.replica()) == dump(pipe.db)


class TestChangedPipelines:
    """An instance keeps the graph that it began with; how its stages run is what is declared."""

    def test_an_instance_ends_with_the_stages_that_it_began_with(self) -> None:
        pipe = Pipe(stage("a"), stage("b", "a"))
        pipe.trigger(3, to=50)
        pipe.complete("a", 1)
        pipe.stages(stage("a"), stage("b", "a"), stage("c", after=("b",)), stage("x"))
        pipe.trigger(60, start=50)
        assert pipe.ready("x") == [2]
        assert pipe.versions() == {1: 1, 2: 1}
        pipe.complete("a", 2)
        assert pipe.ready("b") == [1, 2]
        pipe.complete("b", 1, 2)
        assert pipe.statuses() == [DONE, LIVE]
        assert pipe.ready("c") == [2]
        assert pipe.versions() == {2: 1}, "nobody needs the first one"
        pipe.complete("c", 2)
        pipe.complete("x", 2)
        assert pipe.statuses() == [DONE, DONE]

    def test_stages_that_are_declared_no_more_run_for_those_that_have_them(self) -> None:
        pipe = Pipe(stage("a"), stage("b", "a"))
        pipe.trigger(3)
        pipe.stages(stage("c"))
        assert (pipe.ready("a"), pipe.ready("c")) == ([1], [])
        pipe.complete("a", 1)
        pipe.complete("b", 1)
        assert pipe.statuses() == [DONE]
        assert pipe.counts().stages == {"a": (0, 1, 0), "b": (0, 1, 0), "c": (0, 0, 0)}

    def test_how_a_stage_runs_is_what_is_declared_now(self) -> None:
        pipe = Pipe(stage("a", retry=Retry(1)), stage("b", "a", delay_ms=5))
        pipe.trigger(3, 4)
        pipe.stages(stage("a", retry=Retry(9)), stage("b", "a", delay_ms=500), stage("c"))
        pipe.fail("a", 1)
        assert pipe.statuses() == [LIVE, LIVE]
        pipe.complete("a", 2)
        assert pipe.rows("SELECT ready_ms FROM hadron_stage_run WHERE stage = 'b'") == [
            (pipe.now_ms + 500,)
        ]

    def test_of_a_stage_at_another_place_the_old_declaration_counts(self) -> None:
        pipe = Pipe(stage("a", retry=Retry(1)), stage("b"))
        pipe.trigger(3)
        pipe.stages(stage("b"), stage("a", "b", retry=Retry(9)))
        pipe.fail("a", 1)
        assert pipe.statuses() == [FAILED]
        assert pipe.versions() == {1: 1, 2: 0}, "it may be retried"

    def test_the_same_graph_is_the_same_definition(self) -> None:
        pipe = Pipe(*DIAMOND)
        pipe.trigger(3, 4)
        pipe.complete("a", 1)
        before = pipe.rows("SELECT * FROM hadron_stage_run")
        pipe.stages(*DIAMOND[:3], stage("d", "b", "a", after=("c",), timeout_ms=7))
        assert pipe.rows("SELECT * FROM hadron_stage_run") == before
        assert pipe.versions() == {1: 2}

    def test_outputs_go_where_they_went_when_the_instance_began(self) -> None:
        pipe = Pipe(stage("a"))
        pipe.trigger(3, to=5)
        pipe.stages(stage("a", output=False))
        pipe.trigger(6, start=5)
        mixed = CompleteStages(PIPELINE, "a", (1, 2), (1, 1), OUT, 100, (), 1)
        assert pipe.submit(mixed) == Completed(None, (2,))
        pipe.submit(CompleteStages(PIPELINE, "a", (1,), (1,), OUT, 100, (), 1))
        assert pipe.statuses() == [DONE, LIVE]

    def test_another_input_is_refused(self) -> None:
        pipe = Pipe(*DIAMOND)
        spec = PipelineSpec(replica_set=SET, input="out", stages=DIAMOND)
        with pytest.raises(SchemaError, match="has consumed another stream"):
            pipe.declare(("Pipeline", "p", spec))


class TestViews:
    def test_instances_by_status_and_page(self) -> None:
        pipe = Pipe(stage("a", retry=Retry(1)))
        pipe.trigger(*range(10))
        pipe.complete("a", 1, 2)
        pipe.fail("a", 3)

        def ids(status: int | None, after_id: int = 0, limit: int = 100) -> list[int]:
            found = views.instances(
                pipe.db, PIPELINE, status=status, after_id=after_id, limit=limit
            )
            return [item.instance_id for item in found]

        assert (ids(DONE), ids(FAILED), ids(LIVE)) == ([1, 2], [3], [4, 5, 6, 7, 8, 9, 10])
        assert (ids(None, 2, 3), ids(None, (1 << 64) - 1)) == ([3, 4, 5], [])
        (done, *_) = views.instances(pipe.db, PIPELINE, status=DONE, after_id=0, limit=1)
        assert done.root == views.OutputRef(IN, SET, 0)
        output = views.OutputRef(OUT, SET, 0)
        (tried,) = done.stages[0].tried
        assert done.stages == (
            views.StageStory("a", DONE, 0, output, "", 1_000_000, tried=(tried,)),
        )
        assert (tried.number, tried.ended_ms) == (1, 1_000_000)

    def test_ready_stages_wait_their_turn(self) -> None:
        pipe = Pipe(stage("a", retry=Retry(5, 0)))
        pipe.trigger(*range(6))
        pipe.now_ms += 10
        pipe.fail("a", 1)
        found = pipe.invocations("a", limit=4, except_ids={3})
        assert [item.instance_id for item in found] == [2, 4, 5, 6]
        assert pipe.ready("a")[-1] == 1, "a retry queues up behind"
        assert READY == 1


def test_how_fast_a_stage_is_is_told_of_its_latest_attempts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where these are of old instances, as after a retry."""
    monkeypatch.setattr(stories, "_LATEST", 3)
    pipe = Pipe(stage("a", retry=Retry(1, 0)))
    pipe.trigger(*range(10))
    pipe.fail("a", 1, 2)
    pipe.complete("a", *range(3, 11))
    pipe.now_ms += 600_000
    pipe.retry(1, 2)
    pipe.complete("a", 1, 2, attempt=2)
    declared = definitions.all_stages(pipe.db, PIPELINE)
    found = stories.paces(pipe.db, PIPELINE, declared, pipe.now_ms)
    assert found.stages["a"].per_s == pytest.approx(2 / 60)
    (plan,) = pipe.rows(f"EXPLAIN QUERY PLAN {stories._ENDED}", PIPELINE, "a", 3)
    assert "COVERING INDEX hadron_stage_attempt_ended" in plan[3]
