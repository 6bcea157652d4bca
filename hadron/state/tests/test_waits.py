"""Stages that wait for a record or a signal."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from msgspec.structs import replace

from hadron.fakes.tables import SET, dump
from hadron.model.errors import ConflictError, NotFoundError, RequestError
from hadron.model.ids import Ballot
from hadron.model.pipelines import PipelineSpec, Retry, StageSpec, Wait
from hadron.model.schema import StreamSpec
from hadron.state import schema
from hadron.state.pipelines import retries, views, wait_inputs, waiting, waits
from hadron.state.pipelines.cancellations import CancelInstances, StartInstances
from hadron.state.pipelines.finished import DropInstances
from hadron.state.pipelines.inputs import Triggered, TriggerInstances
from hadron.state.pipelines.retries import RetryInstances
from hadron.state.pipelines.tables import InstanceStatus
from hadron.state.pipelines.wait_inputs import Moved, OpenWait
from hadron.state.pipelines.waits import (
    Expired,
    ExpireWaits,
    Signal,
    SignalInstance,
    Signalled,
    SignalStages,
)
from hadron.state.schema import DeleteObjects
from hadron.state.streams.partitions import AppendBatch
from hadron.state.streams.retention import TrimStream
from hadron.state.streams.skips import skips
from hadron.state.tests.piping import IN, OUT, PIPELINE, Pipe, stage

PAID = StageSpec(
    name="paid",
    dependencies=("order",),
    wait=Wait(stream="out", timeout_ms=60_000, on_timeout="remind"),
)
STAGES = (
    stage("order"),
    PAID,
    stage("ship", "paid", output=False),
    stage("remind", "order", output=False),
    stage("close", output=False, after=("ship", "remind")),
)

LIVE, DONE, FAILED, CANCELLED = InstanceStatus


def keys(*hashes: int) -> bytes:
    return struct.pack(f"<{len(hashes)}Q", *hashes)


class Waiting(Pipe):
    """A pipeline whose stages wait for records of `out`, which has five so far."""

    def __init__(self, *stages: StageSpec) -> None:
        super().__init__(stage("order"))
        self.at = 5
        self.submit(AppendBatch(OUT, self.at, 100, b"", 0, -1))
        self.stages(*(stages or STAGES))

    def make(self, *hashes: int) -> None:
        """An instance for each."""
        (cursor,) = views.cursors(self.db, PIPELINE)
        first = cursor.next_offset
        offsets = tuple(range(first, first + len(hashes)))
        command = TriggerInstances(
            PIPELINE, SET, first, first + len(hashes), offsets, key_hashes=keys(*hashes)
        )
        made = self.submit(command)
        assert isinstance(made, Triggered)
        assert made.created == len(hashes)

    def signal(self, *signals: tuple[int, str], offset: int | None = None) -> Moved:
        """One record comes, for all of them."""
        self.submit(AppendBatch(OUT, 1, 100, b"", 0, -1))
        (cursor,) = wait_inputs.cursors(self.db, PIPELINE)
        at = cursor.next_offset
        told = tuple(
            Signal(number, name, at if offset is None else offset) for number, name in signals
        )
        moved = self.submit(SignalStages(PIPELINE, OUT, SET, at, at + 1, told))
        assert isinstance(moved, Moved)
        return moved

    def by_hand(self, number: int, name: str, *, output: bool = False) -> Signalled:
        done = self.submit(
            SignalInstance(PIPELINE, number, name, OUT if output else 0, 100 if output else 0)
        )
        assert isinstance(done, Signalled)
        return done

    def expire(self) -> Expired:
        done = self.submit(ExpireWaits(PIPELINE, self.now_ms))
        assert isinstance(done, Expired)
        return done

    def story(self, number: int) -> dict[str, int]:
        (found,) = (
            each
            for each in views.instances(self.db, PIPELINE, status=None, after_id=0, limit=99)
            if each.instance_id == number
        )
        return {each.name: each.status for each in found.stages}

    def asked(self, *hashes: int) -> list[tuple[int, str]]:
        found = waiting.waiting_for(self.db, PIPELINE, OUT, hashes)
        return [(each.instance_id, each.stage) for each in found]

    @property
    def is_same(self) -> bool:
        return dump(self.replica()) == dump(self.db)


class TestRecords:
    def test_a_record_completes_the_stage_and_is_its_output(self) -> None:
        pipe = Waiting()
        pipe.make(7, 8)
        pipe.complete("order", 1, 2)
        assert pipe.asked(8, 9) == [(2, "paid")]
        pipe.signal((2, "paid"))
        assert pipe.ready("ship") == [2]
        (invocation,) = pipe.invocations("ship")
        (output,) = invocation.dependencies
        assert (output.stream_id, output.partition, output.offset) == (OUT, SET, 5)
        assert pipe.asked(8) == [], "it waits no more"
        assert pipe.counts().stages["paid"] == (1, 1, 0)
        assert pipe.is_same

    def test_one_that_comes_before_the_turn_counts(self) -> None:
        pipe = Waiting()
        pipe.make(7)
        pipe.signal((1, "paid"))
        assert pipe.ready("ship") == []
        pipe.complete("order", 1)
        assert pipe.ready("ship") == [1]
        assert pipe.is_same

    def test_the_first_counts(self) -> None:
        pipe = Waiting()
        pipe.make(7)
        pipe.signal((1, "paid"))
        pipe.signal((1, "paid"))
        pipe.complete("order", 1)
        (invocation,) = pipe.invocations("ship")
        assert invocation.dependencies[0].offset == 5

    def test_an_entry_says_where_the_cursor_was(self) -> None:
        pipe = Waiting()
        pipe.make(7)
        pipe.complete("order", 1)
        command = SignalStages(PIPELINE, OUT, SET, 4, 9, (Signal(1, "paid", 5),))
        assert pipe.submit(command) == Moved(5, stale=True)
        assert pipe.ready("ship") == []
        with pytest.raises(NotFoundError):
            pipe.submit(SignalStages(PIPELINE, IN, SET, 5, 9, ()))

    def test_a_trigger_without_a_key_is_given_up_when_its_turn_comes(self) -> None:
        pipe = Waiting()
        pipe.make(0, 7)
        assert pipe.statuses() == [LIVE, LIVE]
        pipe.complete("order", 1, 2)
        assert pipe.statuses() == [FAILED, LIVE]
        (reason,) = pipe.rows("SELECT reason FROM hadron_stage_run WHERE status = 3")
        assert reason == (waits.NO_KEY,)
        assert pipe.is_same

    def test_who_does_not_know_the_keys_yet_makes_no_instances(self) -> None:
        pipe = Waiting()
        assert pipe.trigger(0, 1) == Triggered(0, 0, stale=True)
        assert pipe.trigger(start=0, to=2) == Triggered(2, 0), "nothing is made of these"

    def test_signals_of_another_stream_are_passed_over(self) -> None:
        pipe = Waiting()
        pipe.make(7)
        pipe.stages(*STAGES, StageSpec(name="more", wait=Wait(stream="in")))
        command = SignalStages(PIPELINE, IN, SET, 100, 101, (Signal(1, "paid", 100),))
        assert pipe.submit(command) == Moved(101)
        assert pipe.asked(7) == [(1, "paid")]


class TestTime:
    def test_the_other_way_is_taken(self) -> None:
        pipe = Waiting()
        pipe.make(7, 8)
        pipe.complete("order", 1, 2)
        due_ms = waiting.next_due_ms(pipe.db, PIPELINE)
        assert due_ms == pipe.now_ms + 60_000
        pipe.signal((2, "paid"))
        pipe.now_ms += 60_000
        assert pipe.expire() == Expired(1, is_done=True)
        assert pipe.expire() == Expired(0, is_done=True)
        assert (pipe.ready("remind"), pipe.ready("ship"), pipe.ready("close")) == ([1], [2], [])
        assert pipe.story(1) == {"order": 2, "paid": 6, "ship": 5, "remind": 1}
        assert pipe.story(2) == {"order": 2, "paid": 2, "ship": 1, "remind": 5}
        pipe.signal((1, "paid"))
        assert pipe.story(1)["paid"] == 6, "it is too late"
        pipe.complete("remind", 1, output=False)
        pipe.complete("ship", 2, output=False)
        assert pipe.ready("close") == [1, 2], "whichever way they went"
        pipe.complete("close", 1, 2, output=False)
        assert pipe.statuses() == [DONE, DONE]
        assert pipe.is_same

    def test_or_the_instance_is_given_up(self) -> None:
        pipe = Waiting(StageSpec(name="paid", wait=Wait(stream="out", timeout_ms=1_000)))
        pipe.make(7)
        pipe.now_ms += 1_000
        pipe.expire()
        assert pipe.statuses() == [FAILED]
        assert pipe.counts().stages["paid"] == (0, 0, 1)
        assert pipe.rows("SELECT reason FROM hadron_stage_run") == [
            ("no record of out with the key of its trigger came within 1s",)
        ]
        pipe.retry(1)
        assert waiting.next_due_ms(pipe.db, PIPELINE) == pipe.now_ms + 1_000
        pipe.signal((1, "paid"))
        assert pipe.statuses() == [DONE]
        assert pipe.is_same

    def test_a_slice_at_a_time(self) -> None:
        pipe = Waiting(StageSpec(name="paid", wait=Wait(stream="out", timeout_ms=1_000)))
        pipe.make(*[7] * (waits.SLICE + 1))
        pipe.now_ms += 1_000
        assert pipe.expire() == Expired(waits.SLICE, is_done=False)
        assert pipe.expire() == Expired(1, is_done=True)
        assert set(pipe.statuses()) == {FAILED}

    def test_an_output_that_never_comes_skips_who_depends_on_it(self) -> None:
        pipe = Waiting(*STAGES, stage("bill", "paid"), stage("note", "bill", output=False))
        pipe.make(7)
        pipe.complete("order", 1)
        pipe.now_ms += 60_000
        pipe.expire()
        pipe.complete("remind", 1, output=False)
        pipe.complete("close", 1, output=False)
        assert pipe.statuses() == [DONE]
        assert pipe.story(1)["note"] == 5


class TestByHand:
    STAGES = (
        stage("ask", output=False),
        stage("approve", wait=Wait(signal=True, timeout_ms=1_000), after=("ask",)),
        stage("act", "approve", output=False),
    )

    def test_what_is_said_is_the_output(self) -> None:
        pipe = Waiting(*self.STAGES)
        pipe.make(0)
        assert pipe.trigger(5, start=1, to=9).created == 1, "keys do not matter to people"
        pipe.complete("ask", 1, 2, output=False)
        done = pipe.by_hand(1, "approve", output=True)
        assert done.appended is not None
        assert (done.appended.base_offset, done.again) == (5, False)
        assert [each.dependencies[0].offset for each in pipe.invocations("act")] == [5]
        again = pipe.by_hand(1, "approve", output=True)
        assert again.again
        assert again.appended is not None
        assert again.appended.base_offset == 5
        assert pipe.is_same

    def test_before_its_turn(self) -> None:
        pipe = Waiting(*self.STAGES)
        pipe.make(0)
        pipe.by_hand(1, "approve", output=True)
        assert pipe.ready("act") == []
        pipe.complete("ask", 1, output=False)
        assert pipe.ready("act") == [1]

    def test_what_does_not_wait_is_told(self) -> None:
        pipe = Waiting(*self.STAGES, StageSpec(name="paid", wait=Wait(stream="out")))
        pipe.make(7)
        with pytest.raises(NotFoundError, match="no instance 9: a signal is for one that"):
            pipe.by_hand(9, "approve")
        for name, told in (
            ("act", "^stage 'act' of instance 1 of Pipeline .* waits for no signal "),
            ("aprove", r"has no stage 'aprove' \(did you mean 'approve'\?\) "),
            ("deploy", r"has no stage 'deploy' \(of its"),
        ):
            with pytest.raises(NotFoundError, match=told) as caught:
                pipe.by_hand(1, name)
            assert caught.value.hint == "of its stages these wait for a signal: approve"
        with pytest.raises(RequestError, match="waits for a record, not for a signal"):
            pipe.by_hand(1, "paid")
        pipe.complete("ask", 1, output=False)
        pipe.now_ms += 1_000
        pipe.expire()
        with pytest.raises(RequestError, match="does not wait any more"):
            pipe.by_hand(1, "approve")

    def test_where_nothing_waits_for_a_signal_that_is_told(self) -> None:
        pipe = Waiting()
        pipe.make(7)
        with pytest.raises(NotFoundError, match="has no stage 'shup' ") as caught:
            pipe.by_hand(1, "shup")
        assert caught.value.hint == "none of its stages waits for a signal"


class TestInstances:
    def test_a_cancelled_one_waits_for_nothing(self) -> None:
        pipe = Waiting()
        pipe.make(7)
        pipe.complete("order", 1)
        pipe.submit(CancelInstances(PIPELINE, (1,)))
        assert pipe.asked(7) == []
        assert waiting.next_due_ms(pipe.db, PIPELINE) is None
        pipe.signal((1, "paid"))
        assert pipe.statuses() == [CANCELLED]
        assert pipe.ready("ship") == []

    def test_what_came_stays_when_it_is_retried(self) -> None:
        pipe = Waiting(
            stage("order"),
            PAID,
            stage("ship", "paid", output=False, retry=Retry(1)),
            stage("remind", output=False),
        )
        pipe.make(7)
        pipe.complete("order", 1)
        pipe.signal((1, "paid"))
        pipe.fail("ship", 1)
        assert pipe.statuses() == [FAILED]
        pipe.submit(RetryInstances(PIPELINE, (1,), from_start=True))
        assert (pipe.ready("order"), pipe.ready("ship")) == ([1], [])
        pipe.complete("order", 1, attempt=2)
        assert pipe.ready("ship") == [1]
        assert pipe.is_same

    def test_one_that_failed_elsewhere_still_gets_its_record(self) -> None:
        pipe = Waiting(stage("x", output=False, retry=Retry(1)), *STAGES)
        pipe.make(7)
        pipe.complete("order", 1)
        pipe.fail("x", 1)
        pipe.signal((1, "paid"))
        pipe.retry(1)
        assert pipe.story(1)["paid"] == DONE

    def test_a_retry_waits_for_what_is_declared_now(self) -> None:
        pipe = Waiting(stage("x", output=False, retry=Retry(1)), *STAGES)
        pipe.make(7)
        pipe.fail("x", 1)
        changed: tuple[Any, ...] = (stage("x", output=False), *STAGES)
        more = StageSpec(name="refund", wait=Wait(stream="out"), after=("x",))
        pipe.stages(*changed, more)
        pipe.retry(1)
        assert pipe.asked(7) == [(1, "paid"), (1, "refund")]
        assert pipe.is_same

    def test_a_stage_that_a_retry_brings_waits_with_the_key_of_the_trigger(self) -> None:
        """Nobody had asked for it when the instance was made."""
        pipe = Waiting(stage("x", output=False, retry=Retry(1)))
        for _ in range(2):
            pipe.make(0)
        pipe.fail("x", 1, 2)
        paid = StageSpec(name="paid", wait=Wait(stream="out"), after=("x",))
        pipe.stages(stage("x", output=False), paid)
        assert retries.needed_keys(pipe.db, PIPELINE, [1, 2]) == [1, 2]
        with pytest.raises(ConflictError, match="begun to wait for records a moment ago"):
            pipe.retry(1, 2)
        assert pipe.statuses() == [FAILED, FAILED], "nothing was done"
        pipe.submit(RetryInstances(PIPELINE, (2, 1), key_hashes=keys(0, 7)))
        assert retries.needed_keys(pipe.db, PIPELINE, [1, 2]) == [2], "its trigger has none"
        assert pipe.asked(7) == [(1, "paid")]
        pipe.complete("x", 1, 2, attempt=2, output=False)
        assert pipe.statuses() == [LIVE, FAILED]
        (reason,) = pipe.rows("SELECT reason FROM hadron_stage_run WHERE status = 3")
        assert reason == (waits.NO_KEY_NOW,), "it may have been gone"
        pipe.signal((1, "paid"))
        assert pipe.statuses() == [DONE, FAILED]
        assert pipe.is_same

    def test_branches_that_a_retry_brings_are_taken_or_not(self) -> None:
        plain = StageSpec(name="paid", wait=Wait(stream="out", timeout_ms=60_000))
        pipe = Waiting(stage("x", output=False, retry=Retry(1)), plain)
        pipe.make(7)
        pipe.signal((1, "paid"))
        pipe.fail("x", 1)
        wait = Wait(stream="out", timeout_ms=60_000, on_timeout="remind")
        pipe.stages(stage("x", output=False), StageSpec(name="paid", wait=wait), stage("remind"))
        pipe.retry(1)
        pipe.complete("x", 1, attempt=2, output=False)
        assert pipe.statuses() == [DONE], "nobody waits for what is not to run"

    def test_they_go_with_their_instances_and_pipelines(self) -> None:
        pipe = Waiting(StageSpec(name="paid", wait=Wait(stream="out")))
        pipe.make(7, 8)
        pipe.signal((1, "paid"))
        pipe.now_ms += 10
        pipe.submit(DropInstances(PIPELINE, pipe.now_ms))
        assert pipe.rows("SELECT instance_id FROM hadron_stage_wait") == [(2,)]
        pipe.submit(DeleteObjects(schema.current_index(pipe.db), (PIPELINE,)))
        assert pipe.is_same

    def test_started_by_hand(self) -> None:
        pipe = Waiting()
        pipe.submit(StartInstances(PIPELINE, IN, SET, (3,), b"r" * 16, keys(9)))
        assert pipe.asked(9) == [(1, "paid")]


class TestDeletedStreams:
    """Nothing comes of them, whatever has their name later."""

    REASON = (
        "stream out, of which it waits for a record, was deleted: retried, it goes on with what is "
        "declared then"
    )

    def deleted(self, pipe: Waiting) -> None:
        """The pipeline awaits it no more, and its instances do."""
        pipe.stages(stage("order", output=False))
        pipe.submit(DeleteObjects(schema.current_index(pipe.db), (OUT,)))

    def test_whose_turn_it_is_is_given_up(self) -> None:
        pipe = Waiting()
        pipe.make(7, 8, 9)
        pipe.complete("order", 1, 2)
        pipe.signal((2, "paid"))
        self.deleted(pipe)
        assert wait_inputs.cursors(pipe.db, PIPELINE) == [], "nobody looks at it"
        assert waiting.next_due_ms(pipe.db, PIPELINE) == 0
        assert pipe.expire() == Expired(2, is_done=True)
        assert pipe.statuses() == [FAILED, LIVE, LIVE]
        assert pipe.story(1) == {"order": 2, "paid": 3}, "it has not waited for too long"
        assert pipe.rows("SELECT reason FROM hadron_stage_run WHERE status = 3") == [(self.REASON,)]
        assert pipe.counts().stages["paid"] == (0, 1, 1)
        assert waiting.next_due_ms(pipe.db, PIPELINE) is None
        assert pipe.expire() == Expired(0, is_done=True)
        pipe.complete("order", 3, output=False)
        assert pipe.statuses() == [FAILED, LIVE, FAILED], "when its turn comes"
        assert pipe.is_same

    def test_one_whose_turn_comes_before_that_is_given_up_at_once(self) -> None:
        pipe = Waiting()
        pipe.make(7)
        self.deleted(pipe)
        pipe.complete("order", 1, output=False)
        assert pipe.statuses() == [FAILED]
        assert waiting.next_due_ms(pipe.db, PIPELINE) is None
        with pytest.raises(RequestError, match="not for a signal") as caught:
            pipe.by_hand(1, "paid")
        assert "its stream was deleted" in (caught.value.hint or "")
        assert pipe.is_same

    def test_what_is_retried_goes_on_with_what_is_declared_now(self) -> None:
        pipe = Waiting(StageSpec(name="paid", wait=Wait(stream="out")))
        pipe.make(7, 8)
        pipe.stages(stage("order", output=False))
        pipe.submit(DeleteObjects(schema.current_index(pipe.db), (OUT,)))
        pipe.expire()
        assert pipe.statuses() == [FAILED, FAILED]
        pipe.retry(1)
        assert pipe.ready("order") == [1]
        (again,) = pipe.declare(("Stream", "out", StreamSpec(partitions=(SET,))))
        pipe.stages(StageSpec(name="paid", wait=Wait(stream="out")))
        pipe.retry(2)
        assert [each[0] for each in waiting.waiting_for(pipe.db, PIPELINE, again, [7, 8])] == [2]
        assert waiting.next_due_ms(pipe.db, PIPELINE) is None
        assert pipe.is_same

    def test_who_waits_is_not_told_of_another_streams_records(self) -> None:
        """Of one that has got the name while the present definition awaits it."""
        pipe = Waiting()
        pipe.make(7)
        pipe.complete("order", 1)
        self.deleted(pipe)
        (again,) = pipe.declare(("Stream", "out", StreamSpec(partitions=(SET,))))
        pipe.stages(*STAGES)
        pipe.make(7)
        found = waiting.waiting_for(pipe.db, PIPELINE, again, [7])
        assert [each.instance_id for each in found] == [2]
        pipe.expire()
        assert pipe.statuses() == [FAILED, LIVE]
        assert pipe.is_same

    def test_a_slice_at_a_time(self) -> None:
        pipe = Waiting(StageSpec(name="paid", wait=Wait(stream="out")))
        pipe.make(*[7] * (waits.SLICE + 1))
        self.deleted(pipe)
        assert pipe.expire() == Expired(waits.SLICE, is_done=False)
        assert pipe.expire() == Expired(1, is_done=True)
        assert set(pipe.statuses()) == {FAILED}


class TestPartitions:
    def test_a_pipeline_begins_at_their_ends(self) -> None:
        pipe = Waiting()
        (cursor,) = wait_inputs.cursors(pipe.db, PIPELINE)
        assert (cursor.stream_id, cursor.partition, cursor.next_offset) == (OUT, SET, 5)

    def test_one_that_lives_elsewhere_is_noted(self) -> None:
        pipe = Waiting()
        spec = PipelineSpec(replica_set="eu/p9", input="in", stages=STAGES)
        (there,) = pipe.declare(("Pipeline", "q", spec))
        assert wait_inputs.start_of(pipe.db, there, OUT) == 5
        assert wait_inputs.start_of(pipe.db, PIPELINE, OUT) is None
        pipe.submit(AppendBatch(OUT, 1, 100, b"", 0, -1))
        pipe.declare(("Pipeline", "q", replace(spec, max_parallel=7)))
        assert wait_inputs.start_of(pipe.db, there, OUT) == 5, "noted once"
        pipe.submit(DeleteObjects(schema.current_index(pipe.db), (there,)))
        assert wait_inputs.start_of(pipe.db, there, OUT) is None
        assert pipe.is_same

    def test_another_sets_is_opened_where_that_noted(self) -> None:
        pipe = Waiting()
        pipe.submit(OpenWait(PIPELINE, OUT, "eu/p9", 3))
        pipe.submit(OpenWait(PIPELINE, OUT, "eu/p9", 4))
        assert pipe.again
        moved = SignalStages(PIPELINE, OUT, "eu/p9", 3, 1, (), Ballot(2, 7), is_truncated=True)
        assert pipe.submit(moved) == Moved(1)
        away = wait_inputs.cursors(pipe.db, PIPELINE)[0]
        assert away == wait_inputs.WaitCursor(OUT, "eu/p9", 1, Ballot(2, 7), 1)

    def test_what_nothing_waits_for_is_not_looked_at(self) -> None:
        """Its retention skipped what nobody wanted, and what had been there for long came first."""
        pipe = Waiting()
        pipe.submit(OpenWait(PIPELINE, OUT, "eu/p9", 3))
        pipe.make(7)
        pipe.stages(stage("order"))
        assert len(wait_inputs.cursors(pipe.db, PIPELINE)) == 2, "an instance waits"
        pipe.submit(CancelInstances(PIPELINE, (1,)))
        assert wait_inputs.cursors(pipe.db, PIPELINE) == []
        for told in (
            SignalStages(PIPELINE, OUT, SET, 5, 6, ()),
            OpenWait(PIPELINE, OUT, "eu/p9", 3),
        ):
            with pytest.raises(NotFoundError, match="waits for no records of Stream"):
                pipe.submit(told)
        pipe.submit(AppendBatch(OUT, 50, 100, b"", 0, -1))
        pipe.submit(TrimStream(OUT, 55))
        assert skips(pipe.db) == {}
        pipe.submit(AppendBatch(OUT, 7, 100, b"", 0, -1))
        pipe.stages(*STAGES)
        (cursor,) = wait_inputs.cursors(pipe.db, PIPELINE)
        assert cursor.next_offset == 62
        assert pipe.is_same

    def test_of_one_that_lives_elsewhere_the_start_is_noted_anew(self) -> None:
        pipe = Waiting()
        spec = PipelineSpec(replica_set="eu/p9", input="in", stages=STAGES)
        (there,) = pipe.declare(("Pipeline", "q", spec))
        pipe.declare(("Pipeline", "q", replace(spec, stages=(stage("order"),))))
        assert wait_inputs.start_of(pipe.db, there, OUT) == 5, "for instances that began before"
        pipe.submit(AppendBatch(OUT, 1, 100, b"", 0, -1))
        pipe.declare(("Pipeline", "q", spec))
        assert wait_inputs.start_of(pipe.db, there, OUT) == 6
        assert pipe.is_same

    def test_retention_is_told(self) -> None:
        pipe = Waiting()
        pipe.submit(AppendBatch(OUT, 10, 100, b"", 0, -1))
        pipe.submit(TrimStream(OUT, 15))
        assert skips(pipe.db) == {("pipeline", PIPELINE): 10}
        assert [each.next_offset for each in wait_inputs.cursors(pipe.db, PIPELINE)] == [15]

    def test_a_partition_that_comes_later_is_looked_at_from_its_beginning(self) -> None:
        pipe = Pipe(stage("order"))
        (late,) = pipe.declare(("Stream", "late", StreamSpec(partitions=("eu/p9",))))
        pipe.stages(StageSpec(name="paid", wait=Wait(stream="late")))
        assert wait_inputs.cursors(pipe.db, PIPELINE) == []
        pipe.declare(("Stream", "late", StreamSpec(partitions=("eu/p9", SET))))
        (cursor,) = wait_inputs.cursors(pipe.db, PIPELINE)
        assert (cursor.stream_id, cursor.next_offset) == (late, 0)
