"""The model of one replica set: an entry, and which part of the model it is for."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from hadron.model.errors import RequestError
from hadron.model.kinds import spec_from_json
from hadron.model.pipelines import PipelineSpec
from hadron.model.ranges import runs
from hadron.model.schema import StreamSpec
from hadron.sim.model import retries, signals
from hadron.sim.model.entry import Entry, Known, Refused, Rows
from hadron.sim.model.groups import Groups
from hadron.sim.model.pipeline import Pipeline
from hadron.sim.model.pipelines import Pipelines
from hadron.sim.model.schema import Ballots, Object, Schema
from hadron.sim.model.staging import Staging
from hadron.sim.model.streams import Body, Streams
from hadron.sim.model.transactions import Transactions
from hadron.state.adoption import AdoptObjects
from hadron.state.bodies import DropBodies
from hadron.state.digests import StateDigest
from hadron.state.dropping import DropObject
from hadron.state.features import MACHINE
from hadron.state.groups.changes import CollectGroups, DeleteGroup, ResetGroup
from hadron.state.groups.endings import DeadLetterRecords, EndDeliveries
from hadron.state.groups.progress import AckRecords, CreateGroup
from hadron.state.leadership import BeginBallot, FollowRules
from hadron.state.machine import Command
from hadron.state.pipelines.backfills import ControlBackfill, StartBackfill, StepBackfill
from hadron.state.pipelines.cancellations import CancelInstances, StartInstances
from hadron.state.pipelines.finished import DropInstances
from hadron.state.pipelines.inputs import MoveInput, OpenInput, TriggerInstances
from hadron.state.pipelines.letters import SendLetters
from hadron.state.pipelines.publishing import PublishStages
from hadron.state.pipelines.retries import RetryInstances
from hadron.state.pipelines.stage_runs import CompleteStages, FailStages
from hadron.state.pipelines.wait_inputs import OpenWait
from hadron.state.pipelines.waits import ExpireWaits, SignalInstance, SignalStages
from hadron.state.registry import RegisterReplicaSet
from hadron.state.schema import ApplySchema, DeleteObjects
from hadron.state.sinks.progress import AdvanceSink
from hadron.state.sinks.staging import DropStaged, GiveUpStaged, PublishStaged, StageBatches
from hadron.state.slices import SLICE_ROWS
from hadron.state.streams.keys import signed
from hadron.state.streams.partitions import AppendBatch, AppendGuarded
from hadron.state.streams.producers import ClaimProducer
from hadron.state.streams.retention import TrimStream
from hadron.state.together import DoTogether
from hadron.state.transactions.decisions import Decide, ForgetDecisions, NoteFinished
from hadron.state.transactions.intents import (
    AbortTransaction,
    FinishTransaction,
    ForgetTransactions,
    WriteIntents,
)
from hadron.state.transactions.joint_decisions import DecideAppends, DecideRun

STREAMS: Final = "M streams"
GROUPS: Final = "M groups"
PIPELINES: Final = "M pipelines"
SCHEMA: Final = "M schema"

AREAS: Final[dict[str, tuple[type[Command], ...]]] = {
    STREAMS: (
        AppendBatch,
        AppendGuarded,
        ClaimProducer,
        TrimStream,
        DoTogether,
        DropBodies,
        WriteIntents,
        FinishTransaction,
        AbortTransaction,
        ForgetTransactions,
        Decide,
        DecideAppends,
        DecideRun,
        NoteFinished,
        ForgetDecisions,
        StageBatches,
        GiveUpStaged,
        DropStaged,
        PublishStaged,
        AdvanceSink,
    ),
    GROUPS: (
        CreateGroup,
        AckRecords,
        EndDeliveries,
        DeadLetterRecords,
        ResetGroup,
        DeleteGroup,
        CollectGroups,
    ),
    PIPELINES: (
        TriggerInstances,
        OpenInput,
        MoveInput,
        StartInstances,
        CancelInstances,
        OpenWait,
        SignalStages,
        SignalInstance,
        ExpireWaits,
        CompleteStages,
        FailStages,
        PublishStages,
        SendLetters,
        DropInstances,
        StartBackfill,
        StepBackfill,
        ControlBackfill,
        RetryInstances,
    ),
    SCHEMA: (
        BeginBallot,
        FollowRules,
        ApplySchema,
        DeleteObjects,
        AdoptObjects,
        RegisterReplicaSet,
        DropObject,
        StateDigest,
    ),
}
"""By complaint: what is modelled."""

NOT_MODELLED: Final[dict[type[Command], str]] = {}
"""What is not, and why."""

AREA_OF: Final = {command: area for area, commands in AREAS.items() for command in commands}

TABLES: Final[dict[str, str]] = {
    **dict.fromkeys(
        ("stream_partition", "stream_batch", "stream_key", "counted_body", "producer"), STREAMS
    ),
    "key_lock": STREAMS,
    "producer_name": STREAMS,
    "producer_once": STREAMS,
    **dict.fromkeys(("staged", "staged_part", "sink"), STREAMS),
    **dict.fromkeys(
        ("participation", "intent", "lock", "decision", "decision_part", "decision_forgotten"),
        STREAMS,
    ),
    **dict.fromkeys(
        ("group", "group_ack", "group_attempt", "group_garbage", "retention_skip"), GROUPS
    ),
    **dict.fromkeys(
        (
            "pipeline",
            "definition",
            "pipeline_input",
            "pipeline_start",
            "instance",
            "stage_run",
            "stage_publishing",
            "start_request",
            "instance_letter",
            "looked_at",
            "backfill",
            "stage_retry",
            "stage_attempt",
            "stage_wait",
            "pipeline_wait",
            "pipeline_wait_start",
            "stage_count",
        ),
        PIPELINES,
    ),
    **dict.fromkeys(
        (
            "schema_object",
            "schema_index",
            "schema_tombstone",
            "schema_forgotten",
            "schema_lost",
            "schema_source",
            "schema_staged",
            "schema_kept",
            "replica_set",
            "dropped",
            "leadership",
            "apply_rules",
            "configuration",
            "digest_cursor",
        ),
        SCHEMA,
    ),
}
"""By table, in the model's words, which have no prefix: who complains of it."""

_JOINABLE: Final = (
    AppendBatch,
    AppendGuarded,
    AckRecords,
    EndDeliveries,
    DeadLetterRecords,
    CompleteStages,
    FailStages,
)
"""What may be one of several commands of an entry."""

CHANGES_MUCH: Final = (
    ApplySchema,
    DeleteObjects,
    AdoptObjects,
    DoTogether,
    WriteIntents,
    Decide,
    DecideAppends,
    DecideRun,
)
"""What the model may refuse half way."""


class Model:
    """What the entries of one log come to."""

    def __init__(self, replica_set: str) -> None:
        self.replica_set = replica_set
        self.streams = Streams()
        self.groups = Groups(self.streams)
        self.schema = Schema(self._declare, self._close)
        self.pipelines = Pipelines(replica_set, self.streams, self.schema.objects)
        self.staging = Staging(self.streams, self.schema.objects)
        self.transactions = Transactions(
            replica_set,
            self.streams,
            self.groups,
            self.pipelines,
            self.staging,
            self.schema.objects,
        )
        self.staging.is_locked = self.transactions.is_publishing
        self.pipelines.check_free = self.transactions.check_stages_free
        self.ballots = Ballots()
        self.digested: tuple[str, int] | None = None

    def clone(self) -> Model:
        copied = pickle.loads(pickle.dumps(self, pickle.HIGHEST_PROTOCOL))
        assert isinstance(copied, Model)
        return copied

    def apply(self, entry: Entry) -> Any:
        """What the command returns: values, and dicts of those fields that matter.

        Raises `Refused` and `Known`; then nothing has changed, but after `CHANGES_MUCH`.
        """
        command = entry.command
        if isinstance(command, DoTogether):
            return self._together(entry, command)
        self._check_locks(command)
        runs: dict[type[Command], Callable[[Entry, Any], Any]] = {
            AppendBatch: self.streams.append_batch,
            AppendGuarded: self.streams.append_guarded,
            ClaimProducer: self.streams.claim,
            TrimStream: self._trim,
            CreateGroup: self.groups.create,
            AckRecords: self.groups.acknowledge,
            EndDeliveries: self.groups.end_deliveries,
            DeadLetterRecords: self.groups.dead_letter,
            ResetGroup: self.groups.reset,
            DeleteGroup: self.groups.delete,
            CollectGroups: self._collect,
            TriggerInstances: self.pipelines.trigger,
            OpenInput: self.pipelines.open_input,
            MoveInput: self._move_input,
            CompleteStages: self.pipelines.complete,
            FailStages: self.pipelines.fail,
            RetryInstances: partial(retries.retry, self.pipelines),
            PublishStages: _refuse,
            SendLetters: self.pipelines.send_letters,
            DropInstances: self.pipelines.drop,
            StartBackfill: self.pipelines.start_backfill,
            StepBackfill: self.pipelines.step_backfill,
            ControlBackfill: self.pipelines.control_backfill,
            StartInstances: self.pipelines.start,
            CancelInstances: self.pipelines.cancel,
            OpenWait: partial(signals.open_wait, self.pipelines),
            SignalStages: partial(signals.signal, self.pipelines),
            SignalInstance: partial(signals.signal_one, self.pipelines),
            ExpireWaits: partial(signals.expire, self.pipelines),
            BeginBallot: self._started,
            FollowRules: self.ballots.follow,
            ApplySchema: self.schema.apply,
            DeleteObjects: self.schema.delete,
            AdoptObjects: self.schema.adopt,
            RegisterReplicaSet: self.schema.register,
            DropObject: self._drop,
            DropBodies: self._drop_bodies,
            StateDigest: self._digest,
            WriteIntents: self.transactions.write,
            FinishTransaction: self.transactions.finish,
            AbortTransaction: self.transactions.abort,
            ForgetTransactions: self.transactions.forget,
            Decide: self.transactions.decide,
            DecideAppends: self.transactions.decide_appends,
            DecideRun: self.transactions.decide_run,
            NoteFinished: self.transactions.note,
            ForgetDecisions: self.transactions.forget_decisions,
            StageBatches: self.staging.stage,
            GiveUpStaged: self.staging.give_up,
            DropStaged: self.staging.drop,
            PublishStaged: _refuse,
            AdvanceSink: _refuse,
        }
        result = runs[type(command)](entry, command)
        self.pipelines.forget_definitions()
        return result

    def rows(self) -> Rows:
        return {
            **self.streams.rows(),
            **self.groups.rows(),
            **self.pipelines.rows(),
            **self.transactions.rows(),
            **self.schema.rows(),
            **self.ballots.rows(),
            **self.staging.rows(),
            "digest_cursor": [] if self.digested is None else [(1, *self.digested)],
        }

    # --- what is of several parts ----------------------------------------------------------------

    def _together(self, entry: Entry, command: DoTogether) -> list[Any]:
        """All of them in order, or none."""
        commands = parts_of(command)
        sizes = [batch[2] if (batch := batch_of(each)) is not None else 0 for each in commands]
        start = None
        if sum(batch_of(each) is not None for each in commands) > 1:
            self.streams.bodies[entry.lsn] = Body(sum(sizes), entry.now_ms, entry.ballot)
            start = 0
        results, known = [], 0
        for each, size in zip(commands, sizes, strict=True):
            if type(each) not in _JOINABLE:
                raise Refused(RequestError)
            try:
                results.append(self.apply(replace(entry, command=each, start=start)))
            except Known as done:
                results.append(done.result)
                known += 1
            start = start + size if start is not None else None
        if known == len(commands):
            raise Known(results)
        if known:
            raise Refused(RequestError)
        return results

    def _check_locks(self, command: Command) -> None:
        """Nobody ends what a transaction holds."""
        if isinstance(command, EndDeliveries | DeadLetterRecords) and command.group_id:
            self.groups.find(command.group_id)
        if not isinstance(command, PublishStaged | AdvanceSink):
            self.transactions.check_free(command)

    def _drop_bodies(self, _entry: Entry, command: DropBodies) -> dict[str, Any]:
        bodies, size = self.streams.drop_bodies(command.until_lsn)
        result = _dropped(bodies, size, is_done=not self.streams.idle())
        if not bodies:
            raise Known(result)
        return result

    def _declare(self, _entry: Entry, object_id: int, item: Object) -> None:
        kind, namespace, _ = item.name
        if kind == "Stream":
            spec = spec_from_json(kind, item.spec)
            assert isinstance(spec, StreamSpec)
            if self.replica_set in spec.partitions and object_id not in self.streams.open:
                self.streams.open[object_id] = 0, 0
                self.pipelines.opened(namespace, item.name[2], object_id)
        elif kind == "Pipeline":
            pipeline = spec_from_json(kind, self.schema.objects[object_id].spec)
            if not isinstance(pipeline, PipelineSpec):
                return
            source = self.schema.find(("Stream", namespace, pipeline.input))
            self.pipelines.declared(object_id, pipeline, source)

    def _close(self, kind: str, object_id: int) -> bool:
        """An object is no more; whether it leaves something that is dropped later."""
        if kind == "Stream":
            self.pipelines.close_stream(object_id)
            is_left = self.streams.close(object_id)
            return bool(self.groups.of_stream(object_id)) or is_left
        if kind == "Pipeline":
            self.groups.skipped.pop(("pipeline", object_id), None)
            return self.pipelines.close(object_id)
        return False

    def _trim(self, entry: Entry, command: TrimStream) -> dict[str, Any]:
        """D2: whole batches, the oldest; whoever had not seen them is moved, and that is told."""
        first, gone = self.streams.trim(command.stream_id, command.first_offset)
        result = {
            "first_offset": first,
            "batches": len(gone),
            "bytes": sum(each.size for each in gone),
        }
        if not gone:
            raise Known(result)
        skipped = self.groups.trimmed(entry, command.stream_id, first)
        for pipeline_id, records in self.pipelines.trimmed(command.stream_id, first):
            self.groups.skip(entry, "pipeline", pipeline_id, records)
            skipped.append({"kind": "pipeline", "id": pipeline_id, "records": records})
        return {**result, "skipped": skipped}

    def _move_input(self, entry: Entry, command: MoveInput) -> dict[str, Any]:
        """P5, D2: what was not looked at is told."""
        result, skipped = self.pipelines.move_input(entry, command)
        if skipped:
            self.groups.skip(entry, "pipeline", command.pipeline_id, skipped)
        return result

    def _collect(self, _entry: Entry, _command: CollectGroups) -> bool:
        return self.groups.collect()

    def _started(self, entry: Entry, command: BeginBallot) -> None:
        is_another = self.ballots.started(entry, command)
        if command.above_index and is_another:
            self.schema.begin_history(command.above_index)
        elif command.above_index:
            self.schema.go_on_above(command.above_index)

    def _digest(self, entry: Entry, command: StateDigest) -> dict[str, Any]:
        """Digests are of what is stored, which the model has not; it is another witness."""
        self.digested = command.table, entry.lsn
        return {"lsn": entry.lsn, "rows": command.count, "is_last": command.is_last}

    def _drop(self, _entry: Entry, command: DropObject) -> dict[str, Any]:
        """D3, F3: a slice of what a deleted object has left, never a body that a member needs."""
        object_id = command.object_id
        if object_id not in self.schema.dropped:
            raise Known(_dropped(0, 0, is_done=True))
        if self.schema.dropped[object_id][0] == "Stream":
            batches, size = self.streams.drop_batches(object_id, command.until_lsn)
            if batches:
                return _dropped(batches, size, is_done=False)
            if self.streams.batches.get(object_id):
                raise Known(_dropped(0, 0, is_done=False))
        left = self._left(object_id)
        for forget in left[:SLICE_ROWS]:
            forget()
        is_done = len(left) < SLICE_ROWS
        if is_done:
            del self.schema.dropped[object_id]
        return _dropped(min(len(left), SLICE_ROWS), 0, is_done=is_done)

    def _left(self, object_id: int) -> list[Callable[[], Any]]:
        """How to forget each row of a deleted object, in the order in which they go."""
        if self.schema.dropped[object_id][0] == "Pipeline":
            return self._left_of_pipeline(object_id)
        groups, producers = self.groups, self.streams.producers.get(object_id, {})
        names, once = self.streams.names.get(object_id, {}), self.streams.once
        keys = self.streams.keys.get(object_id, {})
        ids = groups.of_stream(object_id)
        return [
            *(_without(producers, each) for each in sorted(producers)),
            *(_without(names, each) for each in sorted(names)),
            *(_without(once, each) for each in once if each == object_id),
            *(_without(keys, each) for each in sorted(keys, key=signed)),
            *(
                _without(groups.skipped, ("group", each))
                for each in ids
                if ("group", each) in groups.skipped
            ),
            *(row for each in ids for row in groups.left_acknowledged(each)),
            *(row for each in ids for row in groups.left_attempts(each)),
            *(_without(groups.by_id, each) for each in ids),
        ]

    def _left_of_pipeline(self, pipeline_id: int) -> list[Callable[[], Any]]:
        pipeline = self.pipelines.by_id.get(pipeline_id)
        if pipeline is None:
            return []
        runs, retries = sorted(pipeline.runs), sorted(pipeline.retried)
        publishing = self.pipelines.publishing
        on_their_way = [
            partial(commands.__setitem__, at, None)
            for _, commands in sorted(publishing.items())
            for at, each in enumerate(commands)
            if each is not None and each.pipeline_id == pipeline_id
        ]
        return [
            *(_without(pipeline.runs, key) for key in runs),
            *on_their_way,
            *(_without(pipeline.retried, key) for key in retries),
            *(_without(pipeline.tried, key) for key in sorted(pipeline.tried)),
            *(_without(pipeline.waits.by_stage, key) for key in sorted(pipeline.waits.by_stage)),
            *(_without(pipeline.instances, key) for key in sorted(pipeline.instances)),
            *(_without(pipeline.counted, stage) for stage in sorted(pipeline.counted)),
            *(_without(pipeline.started, request) for request in sorted(pipeline.started)),
            *(_without(pipeline.letters, number) for number in sorted(pipeline.letters)),
            *_unlook(pipeline),
            *(_without(pipeline.backfills, number) for number in sorted(pipeline.backfills)),
            *(_without(pipeline.cursors, name) for name in sorted(pipeline.cursors)),
            *(_without(pipeline.waits.cursors, key) for key in sorted(pipeline.waits.cursors)),
            *(_without(pipeline.held, version) for version in sorted(pipeline.held)),
        ]


def _unlook(pipeline: Pipeline) -> list[Callable[[], Any]]:
    """How to forget each range that was looked at."""
    return [
        partial(offsets.difference_update, range(first, last + 1))
        for _, offsets in sorted(pipeline.looked_at.items())
        for first, last in runs(sorted(offsets))
    ]


def _refuse(_entry: Entry, _command: Command) -> None:
    """It stands in transactions only."""
    raise Refused(RequestError)


def batch_of(command: Command) -> tuple[int, int, int] | None:
    """(stream id, records, bytes) of the batch that a command appends; None when it does not."""
    if isinstance(command, AppendBatch):
        return command.stream_id, command.count, command.size
    if isinstance(command, CompleteStages) and command.out_stream_id:
        return command.out_stream_id, len(command.instance_ids), command.size
    if isinstance(command, SendLetters):
        return command.out_stream_id, len(command.instance_ids), command.size
    if isinstance(command, DeadLetterRecords):
        count = sum(last - first + 1 for first, last in command.ranges)
        return command.out_stream_id, count, command.size
    return None


def parts_of(command: Command) -> list[Command]:
    """The commands that an entry is made of."""
    if isinstance(command, DoTogether):
        return [MACHINE.decode(each) for each in command.commands]
    return [command]


def _without(known: dict[Any, Any], key: Any) -> Callable[[], Any]:
    return lambda: known.pop(key)


def _dropped(rows: int, size: int, *, is_done: bool) -> dict[str, Any]:
    return {"rows": rows, "bytes": size, "is_done": is_done}


__all__ = ["AREAS", "AREA_OF", "NOT_MODELLED", "TABLES", "Entry", "Known", "Model", "Refused"]
