"""Partitions of the input, here and at other sets."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hadron.fakes.tables import SET, Replicated, dump
from hadron.model.errors import NotFoundError
from hadron.model.ids import NO_BALLOT, Ballot
from hadron.model.pipelines import PipelineSpec, StreamInput, StreamOutput, StreamPipelineSpec
from hadron.model.schema import StreamSpec
from hadron.state import schema
from hadron.state.features import FEATURES
from hadron.state.machine import Event, Feature, StateMachine
from hadron.state.pipelines import views
from hadron.state.pipelines.inputs import (
    MoveInput,
    OpenInput,
    Triggered,
    TriggerInstances,
    start_of,
)
from hadron.state.schema import DeleteObjects
from hadron.state.streams.partitions import AppendBatch
from hadron.state.streams.skips import skips
from hadron.state.tests.piping import DIAMOND, IN, OUT, PIPELINE, Pipe, stage


class TestInputs:
    """Partitions of the input that other sets have."""

    AWAY = "other/p1"

    def test_one_is_opened_once(self) -> None:
        pipe = Pipe(*DIAMOND)
        pipe.submit(OpenInput(PIPELINE, self.AWAY, IN, 7))
        pipe.submit(OpenInput(PIPELINE, self.AWAY, IN, 70))
        assert pipe.again
        here, away = views.cursors(pipe.db, PIPELINE)
        assert (here.next_offset, away.next_offset) == (0, 7)
        for wrong in (OpenInput(9, self.AWAY, IN, 0), OpenInput(PIPELINE, "x/p0", OUT, 0)):
            with pytest.raises(NotFoundError, match="does not consume"):
                pipe.submit(wrong)

    def test_each_has_a_cursor_with_the_ballot_of_what_was_read(self) -> None:
        pipe = Pipe(*DIAMOND)
        pipe.submit(OpenInput(PIPELINE, self.AWAY, IN, 7))
        pipe.submit(TriggerInstances(PIPELINE, self.AWAY, 7, 9, (8,), Ballot(1, 5)))
        pipe.trigger(8, to=10)
        here, away = views.cursors(pipe.db, PIPELINE)
        assert (here.next_offset, here.ballot) == (10, NO_BALLOT)
        assert (away.next_offset, away.ballot) == (9, Ballot(1, 5))
        assert pipe.rows("SELECT partition, offset FROM hadron_instance") == [
            (self.AWAY, 8),
            (SET, 8),
        ]

    def test_what_is_not_there_is_told(self) -> None:
        pipe = Pipe(*DIAMOND)
        pipe.submit(OpenInput(PIPELINE, self.AWAY, IN, 7))
        pipe.submit(MoveInput(PIPELINE, self.AWAY, 7, 20, False))
        assert skips(pipe.db) == {("pipeline", PIPELINE): 13}
        back = MoveInput(PIPELINE, self.AWAY, 20, 3, True, Ballot(2, 1))
        assert pipe.submit(back) == Triggered(3, 0)
        assert pipe.submit(back) == Triggered(3, 0, stale=True)
        assert pipe.again
        assert skips(pipe.db) == {("pipeline", PIPELINE): 13}
        (_, away) = views.cursors(pipe.db, PIPELINE)
        assert away == views.InputCursor(PIPELINE, self.AWAY, IN, 3, Ballot(2, 1), 1)

    def test_a_set_notes_where_a_pipeline_that_lives_elsewhere_starts_in_it(self) -> None:
        pipe = Pipe(*DIAMOND)
        spec = PipelineSpec(replica_set=self.AWAY, input="in", stages=DIAMOND, start="latest")
        (there,) = pipe.declare(("Pipeline", "q", spec))
        assert (start_of(pipe.db, there), start_of(pipe.db, PIPELINE)) == (100, None)
        pipe.submit(AppendBatch(IN, 10, 1_000, b"", 0, -1))
        pipe.declare(("Pipeline", "q", replace(spec, start="earliest")))
        assert start_of(pipe.db, there) == 100, "noted once"
        pipe.declare(("Pipeline", "q", replace(spec, replica_set="third/p0")))
        assert start_of(pipe.db, there) == 110, "at its new home it starts anew"
        pipe.submit(DeleteObjects(schema.current_index(pipe.db), (there,)))
        assert start_of(pipe.db, there) is None

    @pytest.mark.parametrize("features", [FEATURES, FEATURES[::-1]], ids=["in order", "reversed"])
    def test_a_partition_that_comes_later_is_consumed_from_its_beginning_on(
        self, monkeypatch: pytest.MonkeyPatch, features: tuple[Feature, ...]
    ) -> None:
        """Whichever feature is told of the stream first, and whatever others say of it."""
        others = Feature(name="others", declared={"Stream": lambda told, _: told.emit(Event())})
        machine = StateMachine((each for own in features for each in (own, others)), version=1)
        monkeypatch.setattr("hadron.fakes.tables.MACHINE", machine)
        pipe = Replicated()
        pipe.declare(("Stream", "in", StreamSpec(partitions=(self.AWAY,))))
        own = PipelineSpec(replica_set=SET, input="in", stages=(stage("a", output=False),))
        here, there = pipe.declare(
            ("Pipeline", "p", own), ("Pipeline", "q", replace(own, replica_set=self.AWAY))
        )
        assert (views.cursors(pipe.db, here), start_of(pipe.db, there)) == ([], None)
        pipe.declare(("Stream", "in", StreamSpec(partitions=(self.AWAY, SET))))
        assert [each.next_offset for each in views.cursors(pipe.db, here)] == [0]
        assert start_of(pipe.db, there) == 0
        assert dump(pipe.replica()) == dump(pipe.db)

    def test_a_streaming_query_consumes_nothing_here(self) -> None:
        pipe = Pipe(*DIAMOND)
        query = StreamPipelineSpec(source=StreamInput("in"), run="m:f", to=StreamOutput("out"))
        (there,) = pipe.declare(("Pipeline", "q", query))
        pipe.declare(("Stream", "in", StreamSpec(partitions=(SET, self.AWAY))))
        assert (views.cursors(pipe.db, there), start_of(pipe.db, there)) == ([], None)
        late = StreamPipelineSpec(source=StreamInput("new"), run="m:f", to=StreamOutput("out"))
        pipe.declare(("Pipeline", "r", late))
        pipe.declare(("Stream", "new", StreamSpec(partitions=(SET,))))
        pipe.submit(DeleteObjects(schema.current_index(pipe.db), (there,)))
        assert dump(pipe.replica()) == dump(pipe.db)
