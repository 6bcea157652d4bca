"""PIPELINES P2, P6, P8, P10: what a pipeline's leader says of it is what its tables have.

A runner believes what it is given: which records its invocation is of, which attempt it is, what
was given up. So does whoever looks at instances, and then retries or cancels them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from hadron.model.ids import DEFAULT_NAMESPACE
from hadron.model.kinds import spec_from_json
from hadron.model.pipelines import PipelineSpec, StageSpec
from hadron.sim.watch.entries import tables_lsn
from hadron.sim.watch.views import Complaints, NodeView, Question
from hadron.wire.messages import pipelines_pb2

_READY: Final = 1
_FAILED: Final = 3

_INSTANCE: Final = (
    "SELECT status, created_ms, version, stream_id, partition, offset FROM hadron_instance"
    " WHERE (pipeline_id, instance_id) = (?, ?)"
)
_RUN: Final = (
    "SELECT r.status, r.attempts, ifnull(t.attempts_before, 0), out_stream_id, out_partition,"
    " out_offset, reason FROM hadron_stage_run r LEFT JOIN hadron_stage_retry t"
    " USING (pipeline_id, stage, instance_id) WHERE (pipeline_id, instance_id, stage) = (?, ?, ?)"
)
_TRIED: Final = (
    "SELECT ended_ms, took_ms, runner, code_version, ifnull(reason, '') FROM hadron_stage_attempt"
    " WHERE (pipeline_id, instance_id, stage, attempt) = (?, ?, ?, ?)"
)
_DEFINITION: Final = "SELECT spec FROM hadron_definition WHERE (pipeline_id, version) = (?, ?)"
_LISTED: Final = (
    "SELECT json_group_array(instance_id) FROM (SELECT instance_id FROM hadron_instance"
    " WHERE pipeline_id = ?1 AND instance_id > ?2 AND (?3 = '' OR status = ?3)"
    " ORDER BY instance_id LIMIT ?4)"
)
_COUNTS: Final = "SELECT live, done, failed, cancelled FROM hadron_pipeline WHERE pipeline_id = ?"
_CURSOR: Final = (
    "SELECT next_offset, truncations FROM hadron_pipeline_input"
    " WHERE (pipeline_id, partition) = (?, ?)"
)

_INSTANCE_STATUS: Final = {1: "live", 2: "done", 3: "failed", 4: "cancelled"}
_STAGE_STATUS: Final = {
    0: ("waiting", "not run"),
    1: ("ready", "running", "awaiting"),
    2: ("done",),
    3: ("failed",),
    4: ("publishing",),
    5: ("skipped",),
    6: ("timed out",),
}

_ASKED: Final = ("ListInstances", "PipelineProgress")


class Given:
    """What every leader of pipelines says of them."""

    def __init__(self, complaints: Complaints) -> None:
        self._complaints = complaints
        self._asked: dict[int, int] = {}
        """By a question's order: the entry at which the tables stood."""

    def _complain(self, view: NodeView, text: str) -> None:
        self._complaints.add("E3 what is said of a pipeline is so", f"{view.name} {text}")

    def asked(self, question: Question) -> None:
        """A question has come."""
        if question.method in _ASKED:
            self._asked[question.order] = _stands_at(question.view)

    def refuses(self, question: Question) -> None:
        """A refusal leaves."""
        self._asked.pop(question.order, None)

    def answers(self, question: Question, answer: Any) -> None:
        """An answer leaves. Where nothing was logged meanwhile, it is of the tables as they are."""
        view, stood_at = question.view, self._asked.pop(question.order, 0)
        if not view.is_alive:
            return
        if question.method == "RunStages":
            self._runner_gets(view, answer)
        is_still = stood_at == _stands_at(view) > 0
        if question.method == "ListInstances":
            self._lists(view, question.message, answer, is_still)
        elif question.method == "PipelineProgress" and is_still:
            for each in answer.pipelines:
                self._tells_progress(view, each)

    # --- to runners -----------------------------------------------------------------------------

    def _runner_gets(self, view: NodeView, given: pipelines_pb2.Invocations) -> None:
        pipeline_id, name = given.pipeline_id, given.stage
        for each in given.invocations:
            instance = view.select(_INSTANCE, pipeline_id, each.instance_id)
            run = view.select(_RUN, pipeline_id, each.instance_id, name)
            if instance is None or run is None:
                # It has ended meanwhile, in what is not committed yet.
                continue
            _, created_ms, version, *root = instance
            status, attempts, before, *_ = run
            told = (each.created_ms, given.version, *_place(each.root))
            wanted = (created_ms, version, *root)
            who = f"gives a runner stage {name} of instance {each.instance_id}"
            if told != wanted:
                self._complain(view, f"{who} with (made, version, record) {told}, not {wanted}")
            if status != _READY or attempts + 1 != each.attempt:
                if each.attempt > attempts + 1:
                    self._complain(view, f"{who} for attempt {each.attempt}, {attempts} are over")
                continue
            if each.attempts_before != before:
                self._complain(
                    view, f"{who} with {each.attempts_before} attempts before, not {before}"
                )
            self._check_inputs(view, who, given, each, version)

    def _check_inputs(
        self,
        view: NodeView,
        who: str,
        given: pipelines_pb2.Invocations,
        each: pipelines_pb2.Invocation,
        version: int,
    ) -> None:
        """Outputs in the order that is declared, and what was given up for whom that is told."""
        row = view.select(_DEFINITION, given.pipeline_id, version)
        spec = spec_from_json("Pipeline", row[0]) if row is not None else None
        if not isinstance(spec, PipelineSpec):
            return
        stages: dict[str, StageSpec] = {stage.name: stage for stage in spec.stages}
        runs = {
            name: view.select(_RUN, given.pipeline_id, each.instance_id, name) for name in stages
        }
        wanted = [tuple(runs[name][3:6]) for name in stages[given.stage].dependencies]
        told = [_place(one) for one in each.dependencies]
        if told != wanted:
            self._complain(view, f"{who} with the inputs {told}, not {wanted}")
        lost = ("", "")
        if given.stage == spec.on_failure:
            failed = [
                (name, run[6] or "")
                for name, run in runs.items()
                if run is not None and run[0] == _FAILED and name != given.stage
            ]
            lost = failed[0] if failed else lost
        if (each.failed_stage, each.failure) != lost:
            self._complain(
                view, f"{who} for {each.failed_stage!r}, which was: {each.failure!r}, not {lost}"
            )

    # --- to people ------------------------------------------------------------------------------

    def _lists(self, view: NodeView, asked: Any, answer: Any, is_still: bool) -> None:
        pipeline_id = asked.pipeline_id
        if not pipeline_id:
            found = view.select(
                "SELECT id FROM hadron_schema_object"
                " WHERE kind = 'Pipeline' AND (namespace, name) = (?, ?)",
                asked.namespace or DEFAULT_NAMESPACE,
                asked.pipeline,
            )
            if found is None:
                return
            (pipeline_id,) = found
        for each in answer.instances:
            self._check_instance(view, pipeline_id, each, is_still)
        if is_still and not answer.more:
            self._check_ids(view, pipeline_id, asked, [each.id for each in answer.instances])

    def _check_ids(self, view: NodeView, pipeline_id: int, asked: Any, told: Sequence[int]) -> None:
        status = next((s for s, name in _INSTANCE_STATUS.items() if name == asked.status), "")
        after_id = min(asked.after_id, (1 << 63) - 1)
        row = view.select(_LISTED, pipeline_id, after_id, status, len(told) + 1)
        if row is not None and row[0] != str(list(told)).replace(" ", ""):
            self._complain(
                view,
                f"lists all {asked.status} instances of pipeline {pipeline_id} behind {after_id} "
                f"as {told}, they begin with {row[0]}",
            )

    def _check_instance(self, view: NodeView, pipeline_id: int, each: Any, is_still: bool) -> None:
        row = view.select(_INSTANCE, pipeline_id, each.id)
        who = f"shows instance {each.id} of pipeline {pipeline_id}"
        if row is None:
            return
        status, created_ms, _, *root = row
        told, wanted = (each.created_ms, *_place(each.root)), (created_ms, *root)
        if told != wanted:
            self._complain(view, f"{who} with (made, record) {told}, not {wanted}")
        if is_still and each.status != _INSTANCE_STATUS[status]:
            self._complain(view, f"{who} as {each.status}, not {_INSTANCE_STATUS[status]}")
        for stage in each.stages:
            at = f"{who}, stage {stage.name},"
            for one in stage.tried:
                row = view.select(_TRIED, pipeline_id, each.id, stage.name, one.number)
                took_ms = one.took_ms if one.HasField("took_ms") else -1
                attempt = (one.ended_ms, took_ms, one.runner, one.code_version, one.reason)
                if row is not None and tuple(row) != attempt:
                    self._complain(view, f"{at} attempt {one.number} {attempt}, not {row}")
            if is_still:
                run = view.select(_RUN, pipeline_id, each.id, stage.name)
                self._check_run(view, at, stage, run)

    def _check_run(self, view: NodeView, at: str, stage: Any, run: Any) -> None:
        status, attempts, before, *output, reason = run or (0, 0, 0, None, None, None, "")
        if stage.status not in _STAGE_STATUS[status]:
            self._complain(view, f"{at} as {stage.status}, not {_STAGE_STATUS[status][0]}")
        told = (stage.attempts, stage.reason)
        if told != (attempts - before, reason or ""):
            self._complain(view, f"{at} after {told}, not {(attempts - before, reason)}")
        has_output = stage.HasField("output")
        if has_output != (output[2] is not None) or (
            has_output and _place(stage.output) != tuple(output)
        ):
            self._complain(view, f"{at} with the output {stage.output}, not {output}")

    def _tells_progress(self, view: NodeView, told: Any) -> None:
        row = view.select(_COUNTS, told.id)
        who = f"says of pipeline {told.id}"
        counts = told.live, told.done, told.failed, told.cancelled
        if row is not None and (tuple(row) != counts or told.instances != sum(row)):
            self._complain(
                view, f"{who} that of {told.instances} (live, done, …) are {counts}, not {row}"
            )
        for each in told.inputs:
            row = view.select(_CURSOR, told.id, each.partition)
            if row is not None and tuple(row) != (each.offset, each.truncations):
                self._complain(
                    view,
                    f"{who} that it is at {each.offset} of {each.partition}, after "
                    f"{each.truncations} losses, not {row}",
                )


def _stands_at(view: NodeView) -> int:
    """The entry of the tables as they are; 0 where some are not committed, or nobody can tell."""
    lsn = tables_lsn(view.store.writer.connection) if view.is_alive else 0
    return lsn if lsn <= view.committed_lsn else 0


def _place(ref: pipelines_pb2.RecordRef) -> tuple[int, str, int]:
    return ref.stream_id, ref.partition, ref.offset
