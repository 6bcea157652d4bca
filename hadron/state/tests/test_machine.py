"""Random histories: a leader's tables and a replica's are the same, and no promise is broken."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hadron.fakes.tables import SET, Replicated, dump
from hadron.model.errors import HadronError, NotFoundError, RequestError, SequenceError
from hadron.model.ids import Ballot
from hadron.model.limits import PRODUCER_IDLE_MS, PRODUCER_IDLE_STEP_MS, PRODUCER_WINDOW
from hadron.model.pipelines import Output, PipelineSpec, Retry, StageSpec
from hadron.model.schema import StreamSpec
from hadron.state.groups import progress as groups
from hadron.state.groups import views as group_views
from hadron.state.groups.progress import AckRecords, CreateGroup
from hadron.state.leadership import BeginBallot
from hadron.state.pipelines import definitions
from hadron.state.pipelines import views as pipeline_views
from hadron.state.pipelines.inputs import TriggerInstances
from hadron.state.pipelines.retries import Retried, RetryInstances
from hadron.state.pipelines.stage_runs import CompleteStages, FailStages
from hadron.state.streams import partitions as streams
from hadron.state.streams.partitions import AppendBatch

IN, OUT, PIPELINE = 1, 2, 3
STAGES = ("a", "b", "c", "d")
HAS_OUTPUT = ("a", "b", "d")


def stage(name: str, *dependencies: str, after: tuple[str, ...] = ()) -> StageSpec:
    return StageSpec(
        name=name,
        engine="handler",
        dependencies=dependencies,
        after=after,
        retry=Retry(3, 1_000),
        output=Output("out") if name in HAS_OUTPUT else None,
    )


SHAPES = (
    (stage("a"), stage("b", "a"), stage("c", "a"), stage("d", "a", "b", after=("c",))),
    (stage("a"), stage("b", "a")),
    (stage("a"), stage("b"), stage("c", after=("b",)), stage("d", "b")),
    (stage("a", after=("c",)), stage("c")),
)

few = st.integers(0, 2)
strange = st.sampled_from((False,) * 9 + (True,))


class Histories(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.tables = Replicated()
        self.tables.submit(BeginBallot("n1", b"u" * 16, (("n1", "leader"),), b"d" * 16, 1))
        self.tables.declare(
            ("Stream", "in", StreamSpec(partitions=(SET,))),
            ("Stream", "out", StreamSpec(partitions=(SET,))),
        )
        self.submit(AppendBatch(IN, 12, 9, b"", 0, -1))
        self.shape(0)
        self.producers: dict[bytes, tuple[int, list[tuple[int, int, int]]]] = {}
        self.last_ms: dict[bytes, int] = {}
        """Of the first batch in the latest hour that has one."""
        self.acked: dict[int, set[int]] = {}
        self.outputs: set[tuple[str, int]] = set()
        self.triggered: list[int] = []
        self.retried: set[int] = set()

    def submit(self, command: Any) -> Any:
        return self.tables.submit(command)

    @property
    def end(self) -> int:
        return streams.bounds(self.tables.db, IN).next_offset

    # --- streams --------------------------------------------------------------------------------

    @rule(count=st.integers(1, 5))
    def append(self, count: int) -> None:
        before = self.end
        assert self.submit(AppendBatch(IN, count, 9, b"", 0, -1)).base_offset == before

    @rule(who=few, epoch=few, step=st.integers(-12, 3), count=st.integers(1, 3))
    def append_idempotent(self, who: int, epoch: int, step: int, count: int) -> None:
        """The model: (epoch, [(sequence, count, base offset) of every batch of that epoch])."""
        pid = bytes([who]) * 16
        known_epoch, batches = self.producers.get(pid, (-1, []))
        expected = sum(batches[-1][:2]) if batches and epoch == known_epoch else 0
        sequence = max(expected + (step if step < 0 else max(step - 1, 0)), 0)
        repeated = [
            base
            for first, size, base in batches[-PRODUCER_WINDOW:]
            if (first, size) == (sequence, count)
        ]
        before = self.end
        try:
            result = self.submit(AppendBatch(IN, count, 9, pid, epoch, sequence))
        except SequenceError:
            assert epoch < known_epoch or sequence != expected
            assert epoch != known_epoch or not repeated
            assert self.end == before
            return
        if result.duplicate:
            assert epoch == known_epoch
            assert result.base_offset == repeated[-1]
            assert self.end == before
            return
        assert epoch >= known_epoch
        assert sequence == expected
        assert (result.base_offset, self.end) == (before, before + count)
        kept = batches if epoch == known_epoch else []
        if pid not in self.producers:
            idle = [
                (last_ms, other)
                for other, last_ms in self.last_ms.items()
                if last_ms < self.tables.now_ms - PRODUCER_IDLE_MS - PRODUCER_IDLE_STEP_MS
            ]
            for _, other in sorted(idle)[:2]:
                del self.producers[other], self.last_ms[other]
        self.producers[pid] = (epoch, [*kept, (sequence, count, before)])
        hours = (self.last_ms.get(pid, -1), self.tables.now_ms)
        if not kept or len({each // PRODUCER_IDLE_STEP_MS for each in hours}) > 1:
            self.last_ms[pid] = self.tables.now_ms

    # --- groups ---------------------------------------------------------------------------------

    @rule(name=few, data=st.data())
    def create_group(self, name: int, data: st.DataObject) -> None:
        floor = data.draw(st.integers(0, self.end + 1))
        known = groups.find(self.tables.db, IN, str(name))
        try:
            made = self.submit(CreateGroup(IN, str(name), floor))
        except HadronError:
            assert known is None
            assert floor > self.end
            return
        if known is not None:
            assert made == known
        else:
            self.acked[made.group_id] = set(range(floor))

    @precondition(lambda self: self.acked)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        group_id = data.draw(st.sampled_from(sorted(self.acked)))
        ((low,),) = self.tables.rows("SELECT floor FROM hadron_group WHERE group_id = ?", group_id)
        ranges = st.tuples(st.integers(max(low - 2, 0), min(low + 9, self.end)), st.integers(0, 4))
        spans = tuple(
            (first, first + more) for first, more in data.draw(st.lists(ranges, max_size=4))
        )
        try:
            floor = self.submit(AckRecords(group_id, spans))
        except HadronError:
            assert any(last >= self.end for _, last in spans)
            return
        for first, last in spans:
            self.acked[group_id].update(range(first, last + 1))
        assert floor == next(n for n in range(99_999) if n not in self.acked[group_id])

    # --- pipelines ------------------------------------------------------------------------------

    def shape(self, number: int) -> None:
        stages = SHAPES[number]
        spec = PipelineSpec(replica_set=SET, input="in", stages=stages, start="earliest")
        self.tables.declare(("Pipeline", "p", spec))
        self.stages = stages

    @precondition(lambda self: self.triggered)
    @rule(number=st.integers(0, len(SHAPES) - 1))
    def change_pipeline(self, number: int) -> None:
        self.shape(number)

    @rule(step=st.integers(0, 9), stale=strange, odd=st.booleans())
    def trigger(self, step: int, stale: bool, odd: bool) -> None:
        (cursor,) = pipeline_views.cursors(self.tables.db, PIPELINE)
        start = cursor.next_offset - stale
        to = min(start + step, self.end)
        offsets = tuple(n for n in range(max(start, 0), to) if not odd or n % 2)
        result = self.submit(TriggerInstances(PIPELINE, SET, start, to, offsets))
        assert result.stale == stale
        if not stale:
            self.triggered += offsets

    def some_stages(self, data: st.DataObject) -> tuple[str, list[int], tuple[int, ...], bool]:
        """A stage, instances for which it is ready, their attempts; or something else."""
        waiting: dict[str, list[int]] = {}
        for name, instance in self.tables.rows(
            "SELECT stage, instance_id FROM hadron_stage_run WHERE status = 1"
        ):
            waiting.setdefault(name, []).append(instance)
        wrong = not waiting or data.draw(strange)
        if wrong:
            name, known = data.draw(st.sampled_from(STAGES)), list(range(1, 9))
        else:
            name = data.draw(st.sampled_from(sorted(waiting)))
            known = waiting[name]
        ids = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=6, unique=not wrong))
        late = data.draw(st.sampled_from((0, 0, 0, 0, -1, 1)))
        attempts = tuple(self.attempt(name, instance) + late for instance in ids)
        return name, ids, attempts, bool(late)

    @precondition(lambda self: self.triggered)
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        name, ids, attempts, late = self.some_stages(data)
        out = OUT if name in HAS_OUTPUT else 0
        before = streams.bounds(self.tables.db, OUT).next_offset
        result = self.submit(CompleteStages(PIPELINE, name, tuple(ids), attempts, out, 9))
        if result.stale:
            assert streams.bounds(self.tables.db, OUT).next_offset == before
            return
        assert not late
        for index, instance in enumerate(ids):
            assert (name, instance) not in self.outputs, "an output is published once"
            self.outputs.add((name, instance))
            if out:
                assert result.appended.base_offset + index == before + index

    @precondition(lambda self: self.triggered)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        name, ids, attempts, _ = self.some_stages(data)
        self.submit(FailStages(PIPELINE, name, tuple(ids), attempts, "cold"))

    @precondition(lambda self: self.triggered)
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        """Those that failed are live; nothing that was done of them is done again."""
        status = dict(self.tables.rows("SELECT instance_id, status FROM hadron_instance"))
        failed = sorted(each for each in status if status[each] == 3)
        wrong = not failed or data.draw(strange)
        known = list(range(1, len(status) + 2)) if wrong else failed
        ids = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=6))
        chosen = {each for each in ids if status.get(each) == 3}
        try:
            done = self.submit(RetryInstances(PIPELINE, tuple(ids)))
        except NotFoundError:
            assert not status.keys() >= set(ids)
            return
        except RequestError:
            assert set(ids) - chosen - self.retried
            return
        assert set(ids) - chosen <= self.retried
        assert done == Retried(len(chosen), len(set(ids) - chosen))
        self.retried |= chosen

    def attempt(self, name: str, instance: int) -> int:
        rows = self.tables.rows(
            "SELECT attempts + 1 FROM hadron_stage_run WHERE stage = ? AND instance_id = ?",
            name,
            instance,
        )
        return rows[0][0] if rows else 1

    # --- time and leaders -----------------------------------------------------------------------

    @rule(ms=st.sampled_from((1, 1_000, 60_000, PRODUCER_IDLE_MS // 2)))
    def time_passes(self, ms: int) -> None:
        self.tables.now_ms += ms

    @precondition(lambda self: len(self.tables.log) % 7 == 0)
    @rule()
    def lead_again(self) -> None:
        self.tables.ballot = Ballot(1, self.tables.ballot.incarnation + 1)
        self.submit(BeginBallot("n1", b"u" * 16, (("n1", "leader"),), b"d" * 16, 1))

    # --- what must hold -------------------------------------------------------------------------

    @invariant()
    def progress_is_the_models(self) -> None:
        for group in group_views.summaries(self.tables.db):
            found = groups.find(self.tables.db, IN, group.name)
            assert found is not None
            members = set(range(found.floor))
            previous = found.floor
            for first, last in found.window.acknowledged:
                assert previous < first <= last, "ranges neither overlap nor touch"
                members.update(range(first, last + 1))
                previous = last + 1
            assert members == self.acked[group.group_id]
            assert found.floor not in members, "the floor has reached all that it may"

    @invariant()
    def every_trigger_made_one_instance(self) -> None:
        rows = self.tables.rows("SELECT offset FROM hadron_instance ORDER BY instance_id")
        assert [row[0] for row in rows] == self.triggered
        assert len(set(self.triggered)) == len(self.triggered)

    @invariant()
    def every_output_is_where_it_is_said_to_be(self) -> None:
        rows = self.tables.rows(
            "SELECT stage, instance_id, out_offset FROM hadron_stage_run WHERE status = 2"
        )
        assert {(name, instance) for name, instance, _ in rows} == self.outputs
        offsets = sorted(offset for _, _, offset in rows if offset is not None)
        assert offsets == list(range(streams.bounds(self.tables.db, OUT).next_offset))

    @invariant()
    def counters_are_what_a_recount_gives(self) -> None:
        counted = self.tables.rows(
            "SELECT sum(status = 1), sum(status = 2), sum(status = 3) FROM hadron_instance"
        )[0]
        assert self.tables.rows("SELECT live, done, failed FROM hadron_pipeline") == [
            tuple(number or 0 for number in counted)
        ]
        for name, *counts in self.tables.rows(
            "SELECT stage, ready, done, failed FROM hadron_stage_count"
        ):
            counted = self.tables.rows(
                "SELECT sum(status = 1), sum(status = 2), sum(status = 3) FROM hadron_stage_run"
                " WHERE stage = ?",
                name,
            )[0]
            assert counts == [number or 0 for number in counted]

    @invariant()
    def nobody_waits_in_vain(self) -> None:
        """A live instance has a stage that is ready, or failed and so would have ended it."""
        begun: dict[int, dict[str, int]] = {}
        for instance, name, status in self.tables.rows(
            "SELECT instance_id, stage, status FROM hadron_stage_run"
        ):
            begun.setdefault(instance, {})[name] = status
        declared = definitions.all_stages(self.tables.db, PIPELINE)
        for instance, version in self.tables.rows(
            "SELECT instance_id, version FROM hadron_instance WHERE status = 1"
        ):
            states = begun.get(instance, {})
            stages = declared[version]
            assert any(states.get(stage.name) != 2 for stage in stages)
            assert 3 not in states.values(), "a stage that failed ends its instance"
            for stage in stages:
                before = {*stage.dependencies, *stage.after}
                if all(states.get(name) == 2 for name in before):
                    assert states.get(stage.name, 0) > 0

    def teardown(self) -> None:
        if hasattr(self, "tables"):
            assert dump(self.tables.replica()) == dump(self.tables.db)


TestHistories = Histories.TestCase
# The simulator's room of tables plays more of them, against a model.
TestHistories.settings = settings(max_examples=50, stateful_step_count=50, deadline=None)
