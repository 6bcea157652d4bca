"""Outputs that go to other sets; what people start and cancel."""

from __future__ import annotations

from typing import Any

import pytest

from hadron.fakes.tables import SET, dump
from hadron.model.errors import NotFoundError, RequestError, StaleCompletionError
from hadron.model.pipelines import PipelineSpec, Retry
from hadron.model.transactions import DELETED, Note, Participant, StatementResult, TransactionId
from hadron.state import schema
from hadron.state.machine import encode
from hadron.state.pipelines import cancellations, views
from hadron.state.pipelines.cancellations import CancelInstances, Cancelled, Started, StartInstances
from hadron.state.pipelines.publishing import PublishStages
from hadron.state.pipelines.retries import Retried, RetryInstances
from hadron.state.pipelines.tables import InstanceStatus
from hadron.state.schema import DeleteObjects
from hadron.state.streams.partitions import bounds
from hadron.state.tests.piping import IN, OUT, PIPELINE, Pipe, stage
from hadron.state.transactions.decisions import Decide, NoteFinished

LIVE, DONE, FAILED, CANCELLED = InstanceStatus


class TestPublishing:
    """Outputs that go to other sets, by transactions of the home."""

    AWAY = "other/p1"

    def decided(self, pipe: Pipe, *ids: int, version: int = 1) -> TransactionId:
        attempts = (1,) * len(ids)
        command = PublishStages(PIPELINE, "a", ids, attempts, (), version, OUT, self.AWAY)
        tx = TransactionId.of(SET, pipe.ballot, len(pipe.log) + (1 << 20))
        pipe.submit(Decide(tx, (Participant(self.AWAY, 7, 1),), (encode(command),)))
        return tx

    def finish(self, pipe: Pipe, tx: TransactionId, result: StatementResult) -> None:
        pipe.submit(NoteFinished((Note(tx, self.AWAY, (result,)),)))

    def test_a_stage_is_done_when_its_output_is_there(self) -> None:
        pipe = Pipe(stage("a", retry=Retry(1)), stage("b", "a"))
        pipe.trigger(3, 4, 5)
        tx = self.decided(pipe, 2, 1)
        assert (pipe.ready("a"), pipe.ready("b")) == ([3], [])
        assert pipe.fail("a", 1, 2).stale == (1, 2)
        assert pipe.complete("a", 1).stale == (1,)
        assert pipe.counts().publishing == {"a": 2}
        self.finish(pipe, tx, StatementResult(40, 2, 9))
        assert [each.dependencies for each in pipe.invocations("b")] == [
            (views.OutputRef(OUT, self.AWAY, 41),),
            (views.OutputRef(OUT, self.AWAY, 40),),
        ]
        assert pipe.counts().publishing == {}
        assert dump(pipe.replica()) == dump(pipe.db)

    def test_what_is_lost_there_fails_for_good(self) -> None:
        pipe = Pipe(stage("a"), stage("b", "a"))
        pipe.trigger(3)
        tx = self.decided(pipe, 1)
        self.finish(pipe, tx, DELETED)
        assert pipe.statuses() == [FAILED]
        pipe.retry(1)
        assert [each.attempt for each in pipe.invocations("a")] == [2]

    def test_one_that_does_not_wait_is_not_decided(self) -> None:
        pipe = Pipe(stage("a"))
        pipe.trigger(3)
        self.decided(pipe, 1)
        with pytest.raises(StaleCompletionError):
            self.decided(pipe, 1)
        alone = PublishStages(PIPELINE, "a", (1,), (1,), (), 1, OUT, self.AWAY)
        with pytest.raises(RequestError, match="by a transaction"):
            pipe.submit(alone)

    def test_of_a_pipeline_that_is_gone_nothing_is_done(self) -> None:
        pipe = Pipe(stage("a"))
        pipe.trigger(3)
        tx = self.decided(pipe, 1)
        pipe.submit(DeleteObjects(schema.current_index(pipe.db), (PIPELINE,)))
        self.finish(pipe, tx, StatementResult(40, 1, 9))
        assert pipe.rows("SELECT status FROM hadron_stage_run") == [(4,)]


class TestByHand:
    def cancel(self, pipe: Pipe, *ids: int) -> Cancelled:
        result = pipe.submit(CancelInstances(PIPELINE, ids))
        assert isinstance(result, Cancelled)
        return result

    def test_what_is_cancelled_does_not_go_on(self) -> None:
        pipe = Pipe(stage("a", retry=Retry(1)), stage("b", "a"), stage("x"))
        pipe.trigger(3, 4, 5, 6)
        pipe.complete("a", 1)
        pipe.fail("a", 2)
        for name in "ax":
            pipe.complete(name, 3)
        pipe.complete("b", 3)
        assert self.cancel(pipe, 1, 2, 3, 2) == Cancelled(2, 1)
        assert pipe.statuses() == [CANCELLED, CANCELLED, DONE, LIVE]
        assert (pipe.ready("b"), pipe.ready("x"), pipe.ready("a")) == ([], [4], [4])
        for attempt in (1, 2):
            assert pipe.complete("b", 1, attempt=attempt).stale == (1,)
            assert pipe.fail("x", 2, attempt=attempt).stale == (2,)
        counts = pipe.counts()
        assert (counts.live, counts.done, counts.failed, counts.cancelled) == (1, 1, 0, 2)
        assert counts.stages == {"a": (1, 2, 1), "b": (0, 1, 0), "x": (1, 1, 0)}
        assert (self.cancel(pipe, 1, 2), pipe.again) == (Cancelled(0, 2), True)
        with pytest.raises(NotFoundError, match="has no instance 9"):
            self.cancel(pipe, 4, 9)
        with pytest.raises(RequestError, match="has not failed: it is cancelled"):
            pipe.retry(1)
        assert pipe.versions() == {1: 1}

    def test_an_output_that_comes_after_it_was_cancelled_starts_nothing(self) -> None:
        pipe = Pipe(stage("a"), stage("b", "a"))
        pipe.trigger(3)
        decided = TestPublishing().decided(pipe, 1)
        self.cancel(pipe, 1)
        TestPublishing().finish(pipe, decided, StatementResult(40, 1, 9))
        assert (pipe.statuses(), pipe.ready("b")) == ([CANCELLED], [])

    def test_nobody_is_told_of_an_output_that_is_lost_after_it_was_cancelled(self) -> None:
        """Not with another definition, either, when the one that it had is gone."""
        for is_changed in (False, True):
            pipe = Pipe()
            self.telling(pipe, "b")
            pipe.trigger(3, 4, to=5)
            decided = TestPublishing().decided(pipe, 1, version=2)
            self.cancel(pipe, 1, 2)
            if is_changed:
                self.telling(pipe, "c")
                pipe.trigger(6, start=5, to=7)
                self.telling(pipe, "d")
            TestPublishing().finish(pipe, decided, DELETED)
            assert pipe.statuses()[:2] == [CANCELLED, CANCELLED]
            assert pipe.ready("tell") == []
            assert dump(pipe.replica()) == dump(pipe.db)

    def telling(self, pipe: Pipe, last: str) -> None:
        stages = (stage("a"), stage(last, "a"), stage("tell"))
        spec = PipelineSpec(
            replica_set=SET, input="in", start="earliest", stages=stages, on_failure="tell"
        )
        pipe.declare(("Pipeline", "p", spec))

    def test_instances_are_chosen_by_what_they_are(self) -> None:
        pipe = Pipe(stage("a", retry=Retry(1)), stage("b", "a", retry=Retry(1)))
        pipe.trigger(3, 4, to=5)
        made_ms = pipe.now_ms
        pipe.now_ms += 1_000
        pipe.trigger(6, 7, start=5, to=8)
        pipe.complete("a", 2, 3)
        pipe.fail("a", 4)

        def ids(status: int, **fields: Any) -> list[int]:
            return views.ids_of(
                pipe.db, PIPELINE, views.Chosen(status, **fields), after_id=0, limit=9
            )

        assert (ids(LIVE), ids(FAILED)) == ([1, 2, 3], [4])
        assert ids(LIVE, stage="b") == [2, 3]
        assert ids(LIVE, stage="b", before_ms=made_ms + 500) == [2]
        pipe.fail("b", 2)
        assert (ids(FAILED, failed_stage="a"), ids(FAILED, failed_stage="b")) == ([4], [2])
        assert ids(FAILED, before_ms=made_ms + 500) == [2]

    def test_a_start_is_done_once_for_its_request(self) -> None:
        pipe = Pipe(stage("a"))
        pipe.trigger(3)
        start = StartInstances(PIPELINE, OUT, "eu/p0", (7, 7, 9), b"r" * 16)
        assert pipe.submit(start) == Started(2, 3)
        assert (pipe.submit(start), pipe.again) == (Started(2, 3), True)
        other = StartInstances(PIPELINE, IN, SET, (3,), b"s" * 16)
        assert pipe.submit(other) == Started(5, 1)
        rows = "SELECT stream_id, partition, offset FROM hadron_instance ORDER BY instance_id"
        assert pipe.rows(rows) == [
            (IN, SET, 3),
            (OUT, "eu/p0", 7),
            (OUT, "eu/p0", 7),
            (OUT, "eu/p0", 9),
            (IN, SET, 3),
        ]
        assert pipe.ready("a") == [1, 2, 3, 4, 5]
        assert views.cursors(pipe.db, PIPELINE)[0].next_offset == 100

    def test_of_the_requests_the_latest_are_known(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cancellations, "KEPT_REQUESTS", 2)
        pipe = Pipe(stage("a"))
        for name in (b"1", b"2", b"3"):
            pipe.submit(StartInstances(PIPELINE, IN, SET, (7,), name * 16))
        kept = pipe.rows("SELECT request FROM hadron_start_request ORDER BY first_id")
        assert kept == [(b"2" * 16,), (b"3" * 16,)]

    def test_a_retry_from_the_start_does_all_again(self) -> None:
        pipe = Pipe(stage("a"), stage("b", "a", retry=Retry(2, 0)), stage("x"))
        pipe.trigger(3)
        pipe.complete("a", 1)
        pipe.fail("b", 1)
        pipe.fail("b", 1, attempt=2)
        assert pipe.submit(RetryInstances(PIPELINE, (1,), True)) == Retried(1, 0)
        assert [pipe.ready(each) for each in "abx"] == [[1], [], [1]]
        assert pipe.counts().stages == {"a": (1, 0, 0), "b": (0, 0, 0), "x": (1, 0, 0)}
        assert pipe.complete("a", 1).stale == (1,), "of the first round"
        assert pipe.complete("x", 1).stale == (1,), "it was under way"
        assert [each.attempt for each in pipe.invocations("a")] == [2]
        pipe.complete("a", 1, attempt=2)
        pipe.complete("x", 1, attempt=2)
        pipe.fail("b", 1, attempt=3)
        assert pipe.statuses() == [LIVE], "all attempts again"
        pipe.complete("b", 1, attempt=4)
        assert pipe.statuses() == [DONE]
        assert bounds(pipe.db, OUT).next_offset == 4
        assert dump(pipe.replica()) == dump(pipe.db)
