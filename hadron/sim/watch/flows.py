"""PROTOCOL E3, PIPELINES P1, P5, P8 to P10, P12, P13: what an entry does to pipelines, held against
what was before, and what leaders hand out, against what they have applied.

Nothing here goes by what the tables say of times: when a stage may run is worked out again, from
the entry that has let it run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from hadron.model.kinds import spec_from_json
from hadron.model.pipelines import PipelineSpec, StageSpec, as_declared
from hadron.model.ports import Database
from hadron.model.transactions import STAGES
from hadron.sim.watch.views import Complaints, NodeView
from hadron.state.machine import Command, Context
from hadron.state.pipelines.backfills import StepBackfill
from hadron.state.pipelines.cancellations import CancelInstances, StartInstances
from hadron.state.pipelines.finished import DropInstances
from hadron.state.pipelines.inputs import MoveInput, TriggerInstances
from hadron.state.pipelines.retries import RetryInstances
from hadron.state.pipelines.stage_runs import CompleteStages, FailStages
from hadron.state.pipelines.waits import ExpireWaits, SignalInstance, SignalStages
from hadron.state.transactions.decisions import NoteFinished

COMMANDS: Final = (
    TriggerInstances,
    MoveInput,
    StartInstances,
    StepBackfill,
    CompleteStages,
    FailStages,
    CancelInstances,
    RetryInstances,
    DropInstances,
    NoteFinished,
    SignalStages,
    SignalInstance,
    ExpireWaits,
)
_WAITS: Final = (SignalStages, SignalInstance, ExpireWaits)
"""Of these the model tells what they may begin."""

_READY: Final = 1
_DONE: Final = 2
_FAILED: Final = 3
_CANCELLED: Final = 4
_PUBLISHING: Final = 4
_LATE_MS: Final = 1
"""Two clocks of a node round."""

_ENDS: Final = (_DONE, _FAILED)
_STAYS: Final = "E3 what is cancelled stays as it is"

_INSTANCES: Final = (
    "SELECT instance_id, status, partition, offset, created_ms, version, ended_ms"
    " FROM hadron_instance WHERE pipeline_id = ?"
)
_RUNS: Final = (
    "SELECT stage, instance_id, status, attempts, attempts - ifnull(attempts_before, 0), out_offset"
    " FROM hadron_stage_run LEFT JOIN hadron_stage_retry USING (pipeline_id, stage, instance_id)"
    " WHERE pipeline_id = ?"
)
_SPECS: Final = (
    "SELECT d.version, d.spec, o.spec FROM hadron_definition d"
    " JOIN hadron_schema_object o ON o.id = d.pipeline_id WHERE d.pipeline_id = ?"
)
_OUTPUTS: Final = (
    "SELECT DISTINCT pipeline_id FROM hadron_stage_publishing JOIN hadron_pipeline"
    " USING (pipeline_id)"
)
_FIRST: Final = (
    "SELECT p.first_offset FROM hadron_stream_partition p JOIN hadron_pipeline_start s"
    " USING (stream_id) WHERE s.pipeline_id = ?"
)
_GIVEN: Final = (
    "SELECT r.status, i.created_ms, i.status, r.attempts FROM hadron_stage_run r"
    " JOIN hadron_instance i USING (pipeline_id, instance_id)"
    " WHERE r.pipeline_id = ? AND r.stage = ? AND r.instance_id = ?"
)
_LOCKED: Final = (
    "SELECT prepared_lsn FROM hadron_lock WHERE kind = ? AND owner_id = ? AND name = ?"
    " AND first <= ? AND last >= ? LIMIT 1"
)


class _Instance(NamedTuple):
    status: int
    partition: str
    offset: int
    created_ms: int
    version: int
    ended_ms: int | None


class _Run(NamedTuple):
    status: int
    attempts: int
    counted: int
    out_offset: int | None


@lru_cache(maxsize=256)
def _parsed(text: str) -> PipelineSpec:
    found = spec_from_json("Pipeline", text)
    assert isinstance(found, PipelineSpec)
    return found


class _Tables:
    """What one pipeline has."""

    def __init__(self, db: Database, pipeline_id: int) -> None:
        rows: Any = db.execute(_INSTANCES, (pipeline_id,))
        self.instances = {row[0]: _Instance(*row[1:]) for row in rows}
        rows = db.execute(_RUNS, (pipeline_id,))
        self.runs = {(row[0], row[1]): _Run(*row[2:]) for row in rows}
        rows = db.execute(_SPECS, (pipeline_id,))
        self.specs = {row[0]: (_parsed(row[1]), _parsed(row[2])) for row in rows}

    def stage(self, name: str, instance_id: int) -> StageSpec | None:
        """As the instance has it, and as it is declared."""
        begun, now = self.specs.get(self.instances[instance_id].version, (None, None))
        stages = as_declared(begun, now) if begun is not None and now is not None else ()
        return next((each for each in stages if each.name == name), None)

    def on_failure(self, instance_id: int) -> str:
        begun, _ = self.specs.get(self.instances[instance_id].version, (None, None))
        return begun.on_failure if begun is not None else ""

    def keep_ms(self) -> int | None:
        return next((now.keep_finished_ms for _, now in self.specs.values()), None)


class Flows:
    """Every pipeline of a run, on its leaders: replicas' tables are held against theirs."""

    def __init__(self, complaints: Complaints, views: Mapping[str, NodeView]) -> None:
        self._complaints = complaints
        self._views = views
        self._by_hand: set[tuple[str, int, int, int]] = set()
        """Instances that were wanted beside the one that a record makes, by set, pipeline, id and
        when they were made."""
        self._since: dict[tuple[str, int, str], int] = {}
        """By set, pipeline and partition: the first instance since that had lost its end."""
        self._not_before: dict[tuple[str, int, str, int, int, int], tuple[int, int]] = {}
        """By set, pipeline, stage, instance, when that was made, and its attempts: when it may run,
        of leaders who have seen different ones the earliest, and the entry that says so."""

    # --- entries --------------------------------------------------------------------------------

    def before(self, context: Context, command: Command) -> dict[int, _Tables]:
        """To be called before it is applied; what it is about, by pipeline."""
        if isinstance(command, NoteFinished):
            rows: Any = context.db.execute(_OUTPUTS).fetchall()
            return {each: _Tables(context.db, each) for (each,) in rows}
        pipeline_id: int = command.pipeline_id  # type: ignore[attr-defined]
        return {pipeline_id: _Tables(context.db, pipeline_id)}

    def applied(
        self, view: NodeView, context: Context, command: Command, was: dict[int, _Tables]
    ) -> None:
        for pipeline_id, before in was.items():
            now = _Tables(context.db, pipeline_id)
            self._check_cancelled(view, context, command, before, now)
            if isinstance(command, ExpireWaits) and command.before_ms > context.now_ms:
                self._complain(
                    "E3 a wait ends when its time is over",
                    view,
                    context,
                    f"what is due at {command.before_ms} ends at {context.now_ms}",
                )
            if isinstance(command, _WAITS):
                continue
            self._check_made(view, context, command, pipeline_id, before, now)
            self._check_ready(view, context, command, pipeline_id, before, now)
            self._check_done(view, context, before, now)
            if isinstance(command, MoveInput) and not command.is_truncated:
                self._check_moved(view, context, command)
            if isinstance(command, RetryInstances):
                self._check_retried(view, context, command, before, now)
            if isinstance(command, DropInstances):
                self._check_dropped(view, context, before, now)

    def _complain(self, rule: str, view: NodeView, context: Context, what: str) -> None:
        self._complaints.add(rule, f"{view.name} at entry {context.lsn}: {what}")

    def _check_cancelled(
        self, view: NodeView, context: Context, command: Command, before: _Tables, now: _Tables
    ) -> None:
        """P10: nothing of an instance happens once it is cancelled, until it is dropped; but that
        an output comes to its end which was decided before."""
        over = {
            each
            for each, row in before.instances.items()
            if row.status == _CANCELLED and each in now.instances
        }
        for each in sorted(over):
            was = before.instances[each]
            # What is on its way to its output is kept once more, instead of being dropped.
            if now.instances[each]._replace(ended_ms=was.ended_ms) != was:
                self._complain(
                    _STAYS,
                    view,
                    context,
                    f"instance {each} was cancelled, and {type(command).__name__} makes of "
                    f"{was} {now.instances[each]}",
                )
        for key, run in sorted(now.runs.items()):
            begun = before.runs.get(key)
            if key[1] not in over or run == begun:
                continue
            is_end = begun is not None and begun.status == _PUBLISHING and run.status in _ENDS
            if not is_end or not isinstance(command, NoteFinished):
                self._complain(
                    _STAYS,
                    view,
                    context,
                    f"instance {key[1]} was cancelled, and {type(command).__name__} makes of its "
                    f"stage {key[0]} {run}, which was {begun}",
                )

    def _check_made(
        self,
        view: NodeView,
        context: Context,
        command: Command,
        pipeline_id: int,
        before: _Tables,
        now: _Tables,
    ) -> None:
        """P5, P13: a cursor, or a backfill, makes an instance of each record that it comes by, and
        of one that has none."""
        name = view.replica_set
        if isinstance(command, MoveInput) and command.is_truncated:
            key = name, pipeline_id, command.partition
            self._since[key] = max(now.instances, default=0) + 1
        made = {each: now.instances[each] for each in now.instances.keys() - before.instances}
        is_again = isinstance(command, StepBackfill) and _is_again(context.db, command)
        if isinstance(command, StartInstances) or is_again:
            self._by_hand.update(
                (name, pipeline_id, *_key(each, row)) for each, row in made.items()
            )
        elif made:
            rows = now.instances.items()
            count = Counter(
                (row.partition, row.offset)
                for each, row in rows
                if (name, pipeline_id, *_key(each, row)) not in self._by_hand
                and each >= self._since.get((name, pipeline_id, row.partition), 0)
            )
            for each, row in made.items():
                if count[row.partition, row.offset] > 1:
                    self._complain(
                        "E3 a record makes one instance",
                        view,
                        context,
                        f"instance {each} of pipeline {pipeline_id} is of offset {row.offset} of "
                        f"{row.partition}, which has one",
                    )
        if isinstance(command, TriggerInstances) and not any(
            now_declared.triggers for _, now_declared in now.specs.values()
        ):
            passed = set(range(command.from_offset, command.to_offset))
            passed.difference_update(row.offset for row in made.values())
            if passed:
                self._complain(
                    "E3 no record is passed over",
                    view,
                    context,
                    f"pipeline {pipeline_id} has come by offsets {sorted(passed)[:5]} of "
                    f"{command.partition}, and made no instance of them",
                )

    def _check_moved(self, view: NodeView, context: Context, command: MoveInput) -> None:
        """P5: a cursor passes what retention has dropped, and nothing else."""
        for each in self._views.values():
            leads = each.controller is not None and each.controller.leads and each.is_alive
            if not leads or each.replica_set != command.partition:
                continue
            row = each.select(_FIRST, command.pipeline_id)
            if row is not None and row[0] < command.to_offset:
                self._complain(
                    "E3 no record is passed over",
                    view,
                    context,
                    f"pipeline {command.pipeline_id} goes on at {command.to_offset} in "
                    f"{command.partition}, of which {row[0]} is there",
                )

    def _check_done(self, view: NodeView, context: Context, before: _Tables, now: _Tables) -> None:
        """P9: a stage that is done says where its output is, if it has any."""
        for (stage, instance_id), run in now.runs.items():
            was = before.runs.get((stage, instance_id))
            is_new = run.status == _DONE and (was is None or was.status != _DONE)
            spec = now.stage(stage, instance_id) if is_new else None
            if spec is not None and (spec.output is None) != (run.out_offset is None):
                self._complain(
                    "E3 what is done has its output",
                    view,
                    context,
                    f"stage {stage} of instance {instance_id} is done, its output is at "
                    f"{run.out_offset}, it declares {spec.output}",
                )

    def _check_ready(
        self,
        view: NodeView,
        context: Context,
        command: Command,
        pipeline_id: int,
        before: _Tables,
        now: _Tables,
    ) -> None:
        """P6, P10: what may run now has all done that it waits for, and its instance goes on."""
        for (stage, instance_id), run in now.runs.items():
            was = before.runs.get((stage, instance_id))
            instance = now.instances.get(instance_id)
            if run.status != _READY or instance is None:
                continue
            is_told = stage == now.on_failure(instance_id)
            if instance.status not in (1, 3) or (is_told and instance.status != _FAILED):
                self._complain(
                    "E3 nothing of an ended instance runs",
                    view,
                    context,
                    f"stage {stage} of instance {instance_id} of pipeline {pipeline_id} may run; "
                    f"that has status {instance.status}",
                )
            if was is not None and was.status == _READY and was.attempts == run.attempts:
                continue
            spec = now.stage(stage, instance_id)
            if spec is None:
                continue
            waits_for = {*spec.dependencies, *spec.after}
            open_ = {
                each for each in waits_for if now.runs.get((each, instance_id), run).status != _DONE
            }
            if open_ and not isinstance(command, FailStages):
                self._complain(
                    "E3 a stage waits for what is before it",
                    view,
                    context,
                    f"stage {stage} of instance {instance_id} of pipeline {pipeline_id} may run; "
                    f"{sorted(open_)} are not done",
                )
            pause_ms = spec.delay_ms
            if isinstance(command, FailStages) and was is not None and was.status == _READY:
                pause_ms = spec.retry.pause_ms(run.counted)
            elif isinstance(command, RetryInstances) and was is not None and was.status == _FAILED:
                pause_ms = 0
            key = view.replica_set, pipeline_id, stage, instance_id
            attempt = (*key, instance.created_ms, run.attempts)
            at_ms = context.now_ms + pause_ms
            said = at_ms, context.lsn
            self._not_before[attempt] = min(said, self._not_before.get(attempt, said))

    def _check_retried(
        self,
        view: NodeView,
        context: Context,
        command: RetryInstances,
        before: _Tables,
        now: _Tables,
    ) -> None:
        """P1, P6: what was done stays done, where it was to: from the start it is done again, and
        what has an output now, and had none."""
        if command.from_start:
            return
        for (stage, instance_id), run in before.runs.items():
            after = now.runs.get((stage, instance_id))
            spec = now.stage(stage, instance_id)
            has_output = spec is not None and spec.output is not None
            told = before.on_failure(instance_id), now.on_failure(instance_id)
            may_again = stage in told or (has_output and run.out_offset is None)
            if run.status == _DONE and not may_again and (after is None or after[0] != _DONE):
                self._complain(
                    "E3 what is done is not done again",
                    view,
                    context,
                    f"stage {stage} of instance {instance_id} was done, and is {after} after a "
                    "retry",
                )

    def _check_dropped(
        self, view: NodeView, context: Context, before: _Tables, now: _Tables
    ) -> None:
        """P12: only what has ended long ago, and has nothing left that is to run, or is awaited,
        or is on its way to its output."""
        keep_ms = now.keep_ms()
        for (stage, instance_id), run in before.runs.items():
            if instance_id not in now.instances and run.status in (_READY, _PUBLISHING):
                self._complain(
                    "E3 what is to run is not dropped",
                    view,
                    context,
                    f"instance {instance_id} is dropped, whose stage {stage} has status "
                    f"{run.status}",
                )
        for instance_id in before.instances.keys() - now.instances:
            row = before.instances[instance_id]
            age_ms = None if row.ended_ms is None else context.now_ms - row.ended_ms
            if row.status == 1 or age_ms is None or (keep_ms is not None and age_ms < keep_ms):
                self._complain(
                    "E3 what has ended is kept for a while",
                    view,
                    context,
                    f"instance {instance_id} with status {row.status} is dropped {age_ms} ms after "
                    f"its end, it is to be kept for {keep_ms}",
                )

    # --- what is handed out ---------------------------------------------------------------------

    def handed_out(
        self, view: NodeView, pipeline_id: int, stage: str, ids: list[int], now_ms: int
    ) -> None:
        """A leader gives a runner these."""
        for instance_id in ids:
            row = view.select(_GIVEN, pipeline_id, stage, instance_id)
            if row is None:
                continue
            status, created_ms, of_instance, attempts = row
            who = f"{view.name} hands out stage {stage} of instance {instance_id}"
            locked = view.select(_LOCKED, STAGES, pipeline_id, stage, instance_id, instance_id)
            if status == 4 or locked is not None:
                self._complaints.add(
                    "E3 what a transaction ends is given to nobody",
                    f"{who}, which a transaction ends",
                )
            if of_instance == 4 and status != 0:
                self._complaints.add(
                    "E3 nothing of an ended instance runs", f"{who}, which is cancelled"
                )
            key = view.replica_set, pipeline_id, stage, instance_id
            not_before_ms, lsn = self._not_before.get((*key, created_ms, attempts), (0, 0))
            # Before it is committed nobody may know of it.
            if lsn <= view.committed_lsn and now_ms < not_before_ms - _LATE_MS:
                self._complaints.add(
                    "E3 a stage waits as long as it is to",
                    f"{who} {not_before_ms - now_ms} ms before it may run",
                )


def _key(instance_id: int, row: _Instance) -> tuple[int, int]:
    return instance_id, row.created_ms


def _is_again(db: Database, command: StepBackfill) -> bool:
    rows: Any = db.execute(
        "SELECT again FROM hadron_backfill WHERE pipeline_id = ? AND number = ?",
        (command.pipeline_id, command.number),
    ).fetchall()
    return bool(rows and rows[0][0])
