"""Each check finds what it is for, and nothing else does: good histories, each bad in one way."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest

from hadron.model.errors import SchemaError
from hadron.model.schema import Retention
from hadron.sim.checks.checker import CHECKS
from hadron.sim.evidence.evidence import SECOND
from hadron.sim.evidence.history import History
from hadron.sim.evidence.made import Made
from hadron.sim.evidence.node_files import NodeFile, RunRow, read_node
from hadron.sim.tests.support import PARTITION, STREAM, Scene, change, cut_log, rewrite
from hadron.sim.tests.test_group_replay import CASES as GROUP_CASES
from hadron.sim.tests.test_transaction_checks import CASES as TRANSACTION_CASES
from hadron.sim.tests.test_wait_checks import CASES as WAIT_CASES
from hadron.state.pipelines.retries import RetryInstances
from hadron.state.pipelines.stage_runs import FailStages
from hadron.state.streams.retention import TrimStream

Spoil = Callable[[Scene], None]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "hadron.db")


def busy(scene: Scene) -> None:
    """A bit of everything, all of it good."""
    scene.publish("a0", "a1", producer="a")
    scene.publish("b0", client="c2", acks="all")
    lost = scene.begin("a2", producer="a")
    scene.history.unknown(lost, "no answer")
    refused = scene.begin("c0")
    scene.history.refused(refused, "too late")
    scene.read(0, "a0", "a1", end=3)
    scene.publish("a3", producer="a")
    scene.group()
    scene.deliver(0, "a0", "a1", "b0")
    scene.ack((0, 0), (2, 2))
    scene.deliver(3, "a3")
    scene.settle((1, 1))
    scene.read(1, "a1", "b0", "a3", end=4)
    scene.history.event("heal")
    scene.publish("d0")
    scene.deliver(4, "d0")
    scene.history.event("drained", "g", "5")
    scene.end()
    scene.rule(progress_s=10.0)


def test_a_good_history_is_valid(scene: Scene) -> None:
    busy(scene)
    verdict = scene.verdict()
    assert not verdict.violations
    assert verdict.status == "valid"
    assert verdict.acknowledged == 5
    assert (verdict.read, verdict.delivered) == (5, 5)


def test_a_check_that_had_nothing_to_judge_is_no_proof(scene: Scene) -> None:
    busy(scene)
    assert "tables_follow_the_log" in scene.verdict().judged
    assert "one_output_per_stage" not in scene.verdict().judged
    for node in scene.files:
        del node.log[1]  # It was trimmed.
    assert "tables_follow_the_log" not in scene.verdict().judged


def test_nothing_acknowledged_proves_nothing(scene: Scene) -> None:
    scene.history.unknown(scene.begin("a"), "no answer")
    assert scene.verdict().status == "unknown"
    assert not scene.broken()


# --- what was acknowledged ----------------------------------------------------------------------


def gone(scene: Scene) -> None:
    scene.publish("x")
    operation = scene.begin("y")
    operation.runs = [(1, 1)]
    scene.history.ok(operation)


def elsewhere(scene: Scene) -> None:
    scene.publish("x")
    scene.publish("y", client="c2").runs = [(0, 1)]


def on_one_disk(scene: Scene) -> None:
    """All of it committed, as two files say; the third node is not there to agree."""
    scene.publish("x", acks="all")
    scene.end()
    cut_log(scene.files[2], 2)


def refused_and_there(scene: Scene) -> None:
    scene.publish("x")
    operation = scene.begin("y")
    scene.append(["y"])
    scene.history.refused(operation, "not in the log")


def twice(scene: Scene) -> None:
    scene.publish("x")
    scene.append(["x"])


def out_of_order(scene: Scene) -> None:
    first, second = scene.begin("a0", producer="a"), scene.begin("a1", producer="a")
    for value, operation in (("a1", second), ("a0", first)):
        operation.runs = [(scene.append([value]), 1)]
        scene.history.ok(operation)


def acknowledged_before_sent(scene: Scene) -> None:
    early = scene.begin("early", client="c1")
    scene.append(["late"])
    early.runs = [(scene.append(["early"]), 1)]
    scene.history.ok(early)
    late = scene.begin("late", client="c2")
    late.runs = [(0, 1)]
    scene.history.ok(late)


def from_nowhere(scene: Scene) -> None:
    scene.publish("x")
    scene.append(["y"])


# --- files --------------------------------------------------------------------------------------


def another_chain(scene: Scene) -> None:
    scene.publish("x")
    scene.end()
    node = scene.files[2]
    node.log[3] = change(node.log[3], chain=b"another chain...")


def beyond_its_log(scene: Scene) -> None:
    scene.publish("x")
    scene.publish("y")
    scene.end()
    cut_log(scene.files[2], 3)
    scene.files[2].committed_lsn = 4


def watermark_without_majority(scene: Scene) -> None:
    scene.publish("x")
    unknown = scene.begin("y")
    scene.append(["y"])
    scene.history.unknown(unknown, "no answer")
    scene.end()
    for node in scene.files[1:]:
        cut_log(node, 3)


def other_rows(scene: Scene) -> None:
    scene.publish("x")
    scene.end()
    scene.files[1].digests["hadron_producer"] = "other"


def rotten(scene: Scene) -> None:
    scene.publish("x")
    scene.end()
    scene.files[2].damage[3] = "the body of entry 3 does not match its hash"


def other_offsets(scene: Scene) -> None:
    scene.publish("x")
    scene.publish("y")
    scene.end()
    scene.files[2].batches[1] = replace(scene.files[2].batches[1], base_offset=7)
    scene.files[2].digests = {}
    scene.files[2].applied_lsn = 5
    scene.files[2].log[5] = change(scene.files[2].log[4], lsn=5, command=b"\x93\x03\x01\xa1x\x00")


def forgotten_producer(scene: Scene) -> None:
    scene.publish("x", producer="a")
    scene.end()
    for node in scene.files:
        node.producers.clear()


def floor_past_unacknowledged(scene: Scene) -> None:
    """All nodes agree on a floor that no command gives, though members did send such acks."""
    scene.publish("a", "b", "c")
    scene.group()
    scene.deliver(0, "a", "b", "c")
    scene.ack((2, 2))
    scene.settle((0, 1))
    scene.end()
    for node in scene.files:
        node.groups = [replace(node.groups[0], floor=3, ranges=())]


def lost_stream(scene: Scene) -> None:
    scene.publish("x")
    scene.history.ok(scene.history.apply("c1", [("Stream", "other")]))


# --- readers and groups -------------------------------------------------------------------------


def read_and_gone(scene: Scene) -> None:
    scene.publish("x")
    scene.read(0, "x", "y", end=2)


def delivered_and_gone(scene: Scene) -> None:
    scene.publish("x")
    scene.group()
    scene.deliver(0, "y")


def falling_watermark(scene: Scene) -> None:
    scene.publish("x")
    scene.publish("y")
    scene.read(0, "x", "y", end=2)
    scene.read(0, "x", end=1)


def acknowledged_and_not_shown(scene: Scene) -> None:
    scene.publish("x")
    scene.publish("y")
    scene.read(0, "x", end=1)


def lost_ack(scene: Scene) -> None:
    scene.publish("a", "b")
    scene.group()
    scene.deliver(0, "a", "b")
    scene.ack((0, 0))
    scene.history.ok(scene.settle((1, 1)))


def ack_of_nobody(scene: Scene) -> None:
    scene.publish("a", "b")
    scene.group()
    scene.deliver(0, "a", "b")
    scene.ack((0, 0)).ranges = []


def never_delivered(scene: Scene) -> None:
    scene.publish("a", "b")
    scene.group()
    scene.deliver(0, "a")
    scene.history.event("drained", "g", "2")


def never_delivered_since_a_reset(scene: Scene) -> None:
    scene.publish("a", "b")
    scene.group(floor=1)
    reset = scene.history.regroup("o0", "g", STREAM, PARTITION, "reset", "earliest")
    scene.reset(0)
    scene.history.ok(reset)
    scene.deliver(1, "b")
    scene.history.event("drained", "g", "2")


def drained_too_early(scene: Scene) -> None:
    scene.publish("a", "b")
    scene.group()
    scene.deliver(0, "a")
    scene.history.event("drained", "g", "1")


def group_gone(scene: Scene) -> None:
    scene.publish("a")
    scene.history.event("drained", "g", "1")


def group_deleted_and_drained_later(scene: Scene) -> None:
    scene.publish("a")
    scene.history.ok(scene.history.regroup("o0", "g", STREAM, PARTITION, "delete"))
    scene.history.event("drained", "g", "1")


def drained_too_early_and_reset(scene: Scene) -> None:
    scene.publish("a", "b")
    scene.group(floor=1)
    scene.history.event("drained", "g", "1")
    reset = scene.history.regroup("o0", "g", STREAM, PARTITION, "reset", "earliest")
    scene.reset(0)
    scene.history.ok(reset)


def drained_too_early_and_deleted(scene: Scene) -> None:
    scene.publish("a", "b")
    deletion = scene.history.regroup("o0", "g", STREAM, PARTITION, "delete")
    scene.history.event("drained", "g", "1")
    scene.history.ok(deletion)


# --- life ---------------------------------------------------------------------------------------


def slow_progress(scene: Scene) -> None:
    times = iter([1, 2, 3 * SECOND, 15 * SECOND, 16 * SECOND])
    scene.history = History(lambda: next(times))
    scene.publish("x")
    scene.history.event("heal")
    scene.publish("y")
    scene.rule(progress_s=10.0)


def no_progress(scene: Scene) -> None:
    scene.publish("x")
    scene.history.event("heal")
    scene.history.unknown(scene.begin("y"), "no answer")
    scene.rule(progress_s=10.0)


def stopped(scene: Scene) -> None:
    scene.publish("x")
    scene.rule(stops={"n2": "DivergedError: this node has applied entry 9"})


def never_done_with(scene: Scene) -> None:
    scene.publish("x")
    scene.rule(owed={"n2": ["room that deleted objects 7 have here"]})


def diverged(scene: Scene) -> None:
    """A leader may, and one whose disk was damaged; n3 is neither."""
    scene.publish("x")
    scene.history.event("damage", "n2")
    for name in ("n1", "n2", "n3"):
        scene.history.event("diverged", name, "this node has applied entry 9")
    scene.rule(leaders=frozenset({"n1"}))


def an_hour_ahead(scene: Scene) -> None:
    scene.publish("x")
    scene.rule(wall_start_ms=0)
    scene.end()
    for node in scene.files:
        node.batches = [
            replace(batch, append_ms=batch.append_ms + 3_600_000) for batch in node.batches
        ]


def trimmed(scene: Scene, limits: Retention, *, after_ms: int = 0) -> None:
    """Four of five batches are dropped."""
    scene.retain(limits)
    for number in range(5):
        scene.publish(f"x{number}")
    scene.clock_ms += after_ms
    scene.log(TrimStream(scene.stream_id, 4))


def all_but_the_last_dropped(scene: Scene) -> None:
    trimmed(scene, Retention(max_bytes=50_000))


def dropped_too_young(scene: Scene) -> None:
    trimmed(scene, Retention(max_age_ms=2_000), after_ms=1_000)


def neither_old_nor_too_much(scene: Scene) -> None:
    trimmed(scene, Retention(max_age_ms=2_000, max_bytes=50_000), after_ms=1_000)


def last_one_dropped(scene: Scene) -> None:
    """The newest batch stays, whatever its size."""
    trimmed(scene, Retention(max_bytes=10))
    scene.log(TrimStream(scene.stream_id, 5))


def dropped_without_a_word(scene: Scene) -> None:
    trimmed(scene, Retention(max_bytes=10))
    scene.publish("x5")
    scene.end()
    for node in scene.files:
        node.batches = node.batches[1:]
        node.bounds[scene.stream_id] = (5, 6)


def group_gone_everywhere(scene: Scene) -> None:
    scene.publish("x")
    scene.group()
    scene.serve("m")
    scene.end()
    for node in scene.files:
        node.groups = []


def worked(scene: Scene) -> None:
    """Two records went through a pipeline."""
    scene.publish("a", "b")
    scene.pipeline()
    scene.trigger(0, 2)
    scene.complete(1)
    scene.complete(2)
    scene.history.event("finishing", "flow")
    scene.end()


def triggered_twice(scene: Scene) -> None:
    worked(scene)
    for node in scene.files:
        rows = node.pipelines[scene.flow_id]
        rows.instances[3] = rows.instances[2]
        rows.runs["copy", 3] = RunRow(2, 0)
        rows.counts = (0, 3, 0, 0, 4)
        rows.stage_counts["copy"] = (0, 3, 0)
        node.pipelines[scene.flow_id].definitions.clear()


def not_triggered(scene: Scene) -> None:
    worked(scene)
    for node in scene.files:
        rows = node.pipelines[scene.flow_id]
        rows.instances[2] = rows.instances[2]._replace(partition="elsewhere")


def passed_over(scene: Scene) -> None:
    worked(scene)
    for node in scene.files:
        rows = node.pipelines[scene.flow_id]
        rows.inputs[0] = rows.inputs[0]._replace(truncations=1)


def done_before_its_stages(scene: Scene) -> None:
    worked(scene)
    for node in scene.files:
        rows = node.pipelines[scene.flow_id]
        rows.instances[2] = rows.instances[2]._replace(status=4)
        rows.counts = (0, 1, 0, 1, 3)
        rows.runs["check", 2] = RunRow(1, 0)
        rows.stage_counts["check"] = (1, 0, 0)


def miscounted(scene: Scene) -> None:
    worked(scene)
    for node in scene.files:
        rows = node.pipelines[scene.flow_id]
        rows.counts = (1, *rows.counts[1:])


def not_told_of(scene: Scene) -> None:
    """An instance is given up, and its dead letter is neither there nor due."""
    scene.publish("a")
    flow = scene.pipeline(dead_letters="letters")
    scene.trigger(0, 1)
    for attempt in range(1, 6):
        scene.log(FailStages(flow, "copy", (1,), (attempt,), "no"))
    scene.end()
    for node in scene.files:
        node.pipelines[flow].letters.clear()


def two_outputs_of_a_stage(scene: Scene) -> None:
    """Of two attempts; what a pipeline of that name has written before is nobody's."""
    scene.publish("a")
    flow = scene.pipeline()
    scene.trigger(0, 1)
    first, second = (f"{Made(flow, 'copy', 1, scene.made_ms(1), at)}w" for at in (1, 2))
    scene.complete(1, first)
    written_to_out(scene, second)
    scene.history.apply("f", [("Pipeline", "flow")], deletes=True)
    scene.end()


def one_output_for_two(scene: Scene) -> None:
    worked(scene)
    for node in scene.files:
        runs = node.pipelines[scene.flow_id].runs
        runs["copy", 2] = runs["copy", 1]


def written_by_nobody(scene: Scene) -> None:
    """No stage is done, and what the pipeline writes to has a record."""
    scene.publish("a")
    scene.pipeline()
    written_to_out(scene, "x")


def written_to_out(scene: Scene, value: str) -> None:
    made = scene.history.publish("w", "", "out", PARTITION, [value])
    with closing(apsw.Connection(str(scene.path))) as db:
        out: Any = db.execute("SELECT id FROM hadron_schema_object WHERE name = 'out'").fetchone()
    events, scene.stream_id = scene.stream_id, out[0]
    made.runs = [(scene.append([value]), 1)]
    scene.stream_id = events
    scene.history.ok(made)


def completion_forgotten(scene: Scene) -> None:
    worked(scene)
    noted = scene.history.settle(
        "w", f"flow#{scene.flow_id}", "copy", STREAM, PARTITION, [(3, 3)], how="complete"
    )
    scene.history.ok(noted)


def never_done(scene: Scene) -> None:
    scene.publish("a", "b")
    scene.pipeline()
    scene.trigger(0, 2)
    scene.complete(1)
    scene.history.event("finishing", "flow")


def given_up_early(scene: Scene) -> None:
    worked(scene)
    for node in scene.files:
        rows = node.pipelines[scene.flow_id]
        rows.runs["copy", 3] = RunRow(3, 0)
        rows.stage_counts["copy"] = (0, 2, 1)


def failed_again(scene: Scene, attempts: int) -> None:
    """An instance failed five times, was retried, and was given up after so many more."""
    scene.publish("a")
    flow = scene.pipeline()
    scene.trigger(0, 1)
    for attempt in range(1, 6):
        scene.log(FailStages(flow, "copy", (1,), (attempt,), "no"))
    scene.log(RetryInstances(flow, (1,)))
    for attempt in range(6, 6 + attempts):
        scene.log(FailStages(flow, "copy", (1,), (attempt,), "no"))
    scene.end()
    for node in scene.files:
        run = node.pipelines[flow].runs["copy", 1]
        node.pipelines[flow].runs["copy", 1] = run._replace(status=3)
        node.pipelines[flow].stage_counts["copy"] = (0, 0, 1)


def given_up_early_after_a_retry(scene: Scene) -> None:
    failed_again(scene, 1)


def test_what_is_given_up_after_a_retry_had_all_its_attempts_again(scene: Scene) -> None:
    failed_again(scene, 5)
    assert not scene.verdict().violations


def test_what_was_refused_is_not_there_unless_somebody_else_declared_it(scene: Scene) -> None:
    scene.publish("a")
    scene.pipeline()
    refused = scene.history.apply("s", [("Stream", "out"), ("Stream", "not there")])
    scene.history.refused(refused, SchemaError("no"))
    assert scene.broken() == {"schema_is_durable"}
    scene.history.apply("t", [("Stream", "out")])
    assert not scene.broken()


def test_what_a_deleted_pipeline_wrote_is_nobodys(scene: Scene) -> None:
    written_by_nobody(scene)
    assert scene.broken() == {"one_output_per_stage"}
    scene.history.apply("f", [("Pipeline", "flow")], deletes=True)
    assert not scene.broken()


def test_how_many_attempts_a_changed_pipeline_had_is_not_known(scene: Scene) -> None:
    for _ in range(2):
        scene.history.apply("f", [("Pipeline", "flow")])
    given_up_early(scene)
    assert not scene.broken()


@pytest.mark.parametrize("lost", [4, 5])
def test_who_has_lost_as_many_runners_has_attempts_left(scene: Scene, lost: int) -> None:
    given_up_early(scene)
    for node in scene.files:
        runs = node.pipelines[scene.flow_id].runs
        why = f"stage 'copy' has lost {lost} runners that worked on this"
        runs["copy", 3] = runs["copy", 3]._replace(reason=why)
    assert scene.broken() == (set() if lost == 5 else {"stages_fail_after_all_attempts"})


def test_completions_of_another_pipeline_of_that_name_are_not_there(scene: Scene) -> None:
    worked(scene)
    noted = scene.history.settle(
        "w", "flow#1000", "copy", STREAM, PARTITION, [(3, 3)], how="complete"
    )
    scene.history.ok(noted)
    assert not scene.broken()


def test_a_pipeline_that_did_its_work_is_valid(scene: Scene) -> None:
    worked(scene)
    assert not scene.verdict().violations


@pytest.mark.parametrize(
    ("limits", "after_ms"),
    [
        (Retention(max_bytes=10), 0),
        (Retention(max_age_ms=2_000), 3_000),
        (Retention(max_age_ms=2_000, max_bytes=10), 1_000),
        (Retention(max_age_ms=2_000, max_bytes=50_000), 3_000),
    ],
)
def test_retention_may_drop_what_is_over_a_bound(
    scene: Scene, limits: Retention, after_ms: int
) -> None:
    trimmed(scene, limits, after_ms=after_ms)
    assert not scene.verdict().violations


def test_how_far_a_log_goes_is_not_judged_by_a_file_that_is_read_in_part(scene: Scene) -> None:
    beyond_its_log(scene)
    assert [each.invariant for each in scene.verdict().violations] == ["files_agree"]
    scene.history.event("damage", "n3")
    scene.files[2].damage[0] = "CorruptError: database disk image is malformed"
    assert not scene.verdict().violations


def test_retention_is_not_judged_by_a_log_that_does_not_reach_back(scene: Scene) -> None:
    all_but_the_last_dropped(scene)
    scene.end()
    for node in scene.files:
        node.log = {lsn: row for lsn, row in node.log.items() if lsn >= 8}
    assert not scene.verdict().violations


CASES: list[tuple[Spoil, str]] = [
    (gone, "acknowledged_is_durable"),
    (elsewhere, "acknowledged_is_durable"),
    (on_one_disk, "acknowledged_is_durable"),
    (refused_and_there, "refused_is_absent"),
    (twice, "no_duplicates"),
    (out_of_order, "producer_order"),
    (acknowledged_before_sent, "real_time_order"),
    (from_nowhere, "nothing_from_nowhere"),
    (beyond_its_log, "files_agree"),
    (another_chain, "files_agree"),
    (watermark_without_majority, "committed_is_on_a_majority"),
    (other_rows, "tables_agree"),
    (rotten, "files_are_whole"),
    (diverged, "replicas_never_diverge"),
    (other_offsets, "tables_follow_the_log"),
    (forgotten_producer, "tables_follow_the_log"),
    (floor_past_unacknowledged, "tables_follow_the_log"),
    (lost_stream, "schema_is_durable"),
    (read_and_gone, "shown_is_committed"),
    (delivered_and_gone, "shown_is_committed"),
    (falling_watermark, "watermark_never_falls"),
    (acknowledged_and_not_shown, "watermark_never_falls"),
    (lost_ack, "confirmed_acks_stay"),
    (ack_of_nobody, "nothing_acknowledged_by_nobody"),
    (never_delivered, "everything_is_delivered"),
    (never_delivered_since_a_reset, "everything_is_delivered"),
    (drained_too_early, "everything_is_delivered"),
    (drained_too_early_and_reset, "everything_is_delivered"),
    (group_gone, "everything_is_delivered"),
    (group_deleted_and_drained_later, "everything_is_delivered"),
    (drained_too_early_and_deleted, "everything_is_delivered"),
    (an_hour_ahead, "stamps_are_the_time"),
    (all_but_the_last_dropped, "retention_keeps_its_bounds"),
    (dropped_too_young, "retention_keeps_its_bounds"),
    (neither_old_nor_too_much, "retention_keeps_its_bounds"),
    (last_one_dropped, "retention_keeps_its_bounds"),
    (dropped_without_a_word, "retention_keeps_its_bounds"),
    (group_gone_everywhere, "groups_stay"),
    (triggered_twice, "one_instance_per_trigger"),
    (not_triggered, "one_instance_per_trigger"),
    (one_output_for_two, "one_output_per_stage"),
    (written_by_nobody, "one_output_per_stage"),
    (completion_forgotten, "completions_stay"),
    (never_done, "every_instance_ends"),
    (given_up_early, "stages_fail_after_all_attempts"),
    (given_up_early_after_a_retry, "stages_fail_after_all_attempts"),
    (slow_progress, "progress"),
    (no_progress, "progress"),
    (passed_over, "nothing_is_passed_over"),
    (done_before_its_stages, "instances_are_what_their_stages_are"),
    (miscounted, "counters_agree"),
    (not_told_of, "given_up_is_told_once"),
    (two_outputs_of_a_stage, "one_output_per_attempt"),
    (stopped, "no_unprovoked_stop"),
    (never_done_with, "nothing_is_owed"),
]


@pytest.mark.parametrize(
    ("spoil", "invariant"), CASES, ids=[getattr(spoil, "__name__", "") for spoil, _ in CASES]
)
def test_only_the_check_that_it_is_for_finds_it(scene: Scene, spoil: Spoil, invariant: str) -> None:
    spoil(scene)
    assert scene.broken() == {invariant}
    assert scene.verdict().status == "invalid"


def test_every_check_has_a_history_that_it_finds_fault_with() -> None:
    rules = {invariant for _, invariant in (*CASES, *TRANSACTION_CASES, *WAIT_CASES)}
    checks = {check.__name__ for check in CHECKS}
    assert rules | {invariant for _, invariant in GROUP_CASES} >= checks - {
        "deliveries_keep_the_rules",
        "one_letter_each",
    }
    assert rules <= checks


# --- what was never promised --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "subject", "durability", "survives"),
    [
        ("crash", "n1", "fsync", True),
        ("power", "n1", "fsync", True),
        ("power", "n1", "os", False),
        ("power", "n2", "os", True),
        ("wipe", "n1", "fsync", False),
        ("wipe", "n2", "fsync", True),
        ("damage", "n1", "fsync", False),
        ("promote", "n2", "fsync", False),
        ("reconfigure", "n2", "fsync", False),
    ],
)
def test_acks_of_the_leader_alone(
    scene: Scene, kind: str, subject: str, durability: str, survives: bool
) -> None:
    scene.publish("x")
    operation = scene.begin("y", acks="leader")
    operation.runs = [(1, 1)]
    scene.history.ok(operation)
    scene.history.event(kind, subject)
    scene.rule(durability=durability)
    assert scene.broken() == ({"acknowledged_is_durable"} if survives else set())


@pytest.mark.parametrize(
    ("durability", "lost", "survives"),
    [("fsync", "n1 n2 n3", True), ("os", "n1", True), ("os", "n1 n2", False)],
)
def test_acks_of_a_majority_when_power_fails(
    scene: Scene, durability: str, lost: str, survives: bool
) -> None:
    scene.publish("x")
    operation = scene.begin("y")
    operation.runs = [(1, 1)]
    scene.history.ok(operation)
    for name in lost.split():
        scene.history.event("power", name)
    scene.rule(durability=durability)
    assert scene.broken() == ({"acknowledged_is_durable"} if survives else set())


def test_what_befell_the_disks_before_is_no_excuse(scene: Scene) -> None:
    scene.history.event("wipe", "n1")
    operation = scene.begin("y", acks="leader")
    operation.runs = [(0, 1)]
    scene.history.ok(operation)
    assert scene.broken() == {"acknowledged_is_durable"}


def test_one_that_was_given_up_may_arrive_after_later_ones(scene: Scene) -> None:
    first = scene.begin("a0", producer="a")
    scene.history.unknown(first, "no answer")
    scene.publish("a1", producer="a")
    scene.append(["a0"], "b")
    assert scene.broken() == set()


def test_damage_that_was_done_on_purpose_is_no_violation(scene: Scene) -> None:
    scene.history.event("damage", "n3")
    rotten(scene)
    assert scene.broken() == set()


def test_what_was_shown_before_a_loss_may_be_gone_and_nothing_later(scene: Scene) -> None:
    scene.publish("x")
    scene.read(0, "x", "y", end=2)
    scene.history.event("reconfigure", detail="loss")
    assert scene.broken() == set()
    scene.read(0, "x", "z", end=2)
    assert scene.broken() == {"shown_is_committed"}


def test_retention_may_drop_what_was_acknowledged(scene: Scene) -> None:
    scene.publish("x")
    scene.publish("y")
    scene.read(0, "x", end=2)
    scene.end()
    for node in scene.files:
        node.batches = node.batches[1:]
        node.bounds[scene.stream_id] = (1, 2)
    assert scene.broken() == {"acknowledged_is_durable", "shown_is_committed"}
    scene.rule(retention=True)
    assert scene.broken() == set()


@pytest.mark.parametrize("ends", [True, False])
def test_a_group_that_was_drained_may_be_deleted_meanwhile(scene: Scene, ends: bool) -> None:
    # Seed 339: the operator's deletion waited for a leader, and came after the last member left.
    scene.publish("a")
    deletion = scene.history.regroup("o0", "g", STREAM, PARTITION, "delete")
    scene.history.event("drained", "g", "1")
    if ends:
        scene.history.ok(deletion)
    assert scene.broken() == set()


@pytest.mark.parametrize("ends", [True, False])
def test_a_group_that_was_drained_may_be_reset_meanwhile(scene: Scene, ends: bool) -> None:
    # Seed 4008: it had been drained from 1 on, and nobody joined any more after it was at 0 again.
    scene.publish("a", "b")
    scene.group(floor=1)
    scene.serve("c2/m1", floor=1)
    scene.assign(1, 1)
    scene.deliver(1, "b")
    scene.ack((1, 1))
    scene.history.event("drained", "g", "2")
    reset = scene.history.regroup("o0", "g", STREAM, PARTITION, "reset", "earliest")
    scene.reset(0)
    if ends:
        scene.history.ok(reset)
    assert scene.broken() == set()


def test_where_a_group_was_reset_to_may_have_left_the_log(scene: Scene) -> None:
    # And nobody has joined since: where it stands is where it began.
    scene.publish("a", "b")
    scene.group()
    scene.serve("c2/m1")
    scene.reset(1)
    scene.end()
    for node in scene.files:
        node.log.clear()
    assert "nothing_acknowledged_by_nobody" not in scene.broken()


def test_an_old_leader_may_show_what_it_knew(scene: Scene) -> None:
    falling_watermark(scene)
    scene.history.event("promote", "n2")
    assert scene.broken() == set()


def test_many_violations_of_one_kind_are_told_once_each_up_to_five(scene: Scene) -> None:
    scene.publish("x")
    for number in range(9):
        scene.append([f"nobody's {number}"])
    assert len(scene.verdict().violations) == 5


# --- reading files ------------------------------------------------------------------------------


def test_a_file_is_read_with_its_log_tables_and_digests(scene: Scene) -> None:
    busy(scene)
    node = scene.files[0]
    assert node.first_lsn == 1
    assert node.last_lsn == node.applied_lsn == node.committed_lsn == 8
    assert not node.damage
    assert [batch.base_offset for batch in node.batches] == [0, 2, 3, 4]
    assert node.groups[0].floor == 1
    assert node.groups[0].ranges == ((2, 2),)
    assert node.digests.keys() >= {
        "hadron_stream_batch",
        "hadron_group",
        "hadron_producer",
        "hadron_schema_object",
    }
    assert not {"hadron_log", "hadron_body", "hadron_meta"} & node.digests.keys()


@pytest.mark.parametrize(
    ("statement", "lsn", "what"),
    [
        ("UPDATE hadron_body SET bytes = zeroblob(9) WHERE lsn = 3", 3, "does not match its hash"),
        (
            "UPDATE hadron_log SET now_ms = now_ms + 1 WHERE lsn = 3",
            3,
            "does not continue the chain",
        ),
        ("UPDATE hadron_log SET command = x'00' WHERE lsn = 2", 2, "does not continue the chain"),
        ("DELETE FROM hadron_log WHERE lsn = 2", 3, "entry 2 is missing"),
        ("UPDATE hadron_log SET incarnation = 9 WHERE lsn = 3", 4, "of an earlier ballot"),
    ],
)
def test_damage_is_noted_where_it_is(scene: Scene, statement: str, lsn: int, what: str) -> None:
    busy(scene)
    rewrite(scene.path, statement)
    assert what in read_node("n1", scene.path).damage[lsn]


def test_a_file_that_is_no_database(scene: Scene, tmp_path: Path) -> None:
    busy(scene)
    path = tmp_path / "other.db"
    path.write_bytes(b"not a database, but long enough to look like one" * 100)
    assert "NotADBError" in read_node("n1", path).damage[0]
    assert read_node("n1", tmp_path / "missing.db") == NodeFile("n1")
