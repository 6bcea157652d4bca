"""Pipelines: cursors, instances, and what each stage of each instance has done (E3, P1, P2).

No counter is kept: how many instances are live is counted where somebody asks."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from hadron.model.errors import ConflictError, NotFoundError, RequestError, SchemaError
from hadron.model.kinds import spec_from_json
from hadron.model.pipelines import PipelineSpec, StageSpec
from hadron.model.units import parse_time_ms
from hadron.sim.model.entry import Entry, Known, Refused, Rows
from hadron.sim.model.pipeline import (
    CANCELLED,
    DONE,
    FAILED,
    LIVE,
    PUBLISHING,
    READY,
    WAITING,
    Backfill,
    Cursor,
    Pipeline,
    parsed,
)
from hadron.sim.model.pipeline_rows import rows_of
from hadron.sim.model.streams import Streams, appended
from hadron.sim.model.waits import ARMED, Awaited, WaitCursor, awaited_streams, chosen, keys_of
from hadron.state.pipelines.backfills import ControlBackfill, StartBackfill, StepBackfill
from hadron.state.pipelines.cancellations import CancelInstances, StartInstances
from hadron.state.pipelines.finished import SLICE_INSTANCES, DropInstances
from hadron.state.pipelines.inputs import MoveInput, OpenInput, TriggerInstances
from hadron.state.pipelines.letters import SendLetters
from hadron.state.pipelines.publishing import PublishStages
from hadron.state.pipelines.stage_runs import CompleteStages, FailStages


class Declared(Protocol):
    """An object of the schema; its specification is JSON."""

    name: tuple[str, str, str]
    """Kind, namespace, name."""
    spec: str


_LOST: Final = (
    "its output's stream was deleted, or its transaction given up, before the output was there"
)


def _all_free(_pipeline_id: int, _instance_ids: Sequence[int]) -> None:
    pass


@dataclass(slots=True)
class Pipelines:
    """Attributes:
    starts: of those that live elsewhere: their home, the stream, and where they start in what is
        here.
    wait_starts: by pipeline and awaited stream, the same: its home, and where it begins.
    publishing: by the entry that has decided it: outputs on their way to other sets; None once one
        is there.
    objects: all that are declared, of whatever kind.
    check_free: refuses instances of which a transaction ends a stage.
    """

    replica_set: str
    streams: Streams
    objects: Mapping[int, Declared]
    by_id: dict[int, Pipeline] = field(default_factory=dict)
    starts: dict[int, tuple[str, int, int]] = field(default_factory=dict)
    wait_starts: dict[tuple[int, int], tuple[str, int]] = field(default_factory=dict)
    publishing: dict[int, list[PublishStages | None]] = field(default_factory=dict)
    check_free: Callable[[int, Sequence[int]], None] = _all_free

    def declared(self, pipeline_id: int, spec: PipelineSpec, stream_id: int | None) -> None:
        """It is new, or has changed; `stream_id` is its input's."""
        if stream_id is None:
            return
        if spec.replica_set == self.replica_set:
            known = self.by_id.get(pipeline_id)
            if known is not None and known.is_here and known.input != stream_id:
                raise Refused(SchemaError)
            pipeline = self.by_id.setdefault(pipeline_id, Pipeline(stream_id))
            pipeline.stages |= {stage.name for stage in spec.stages}
            stored = self.objects[pipeline_id].spec
            pipeline.declare(stored)
            if not parsed(stored).dead_letters:
                pipeline.letters.clear()
        self.open(pipeline_id, spec, stream_id)
        self.open_waits(pipeline_id, spec)

    def open_waits(self, pipeline_id: int, spec: PipelineSpec) -> None:
        """P14: where what it awaits begins in the partitions here."""
        now = {self._stream(pipeline_id, name) for name in awaited_streams(spec.stages)}
        for start in [each for each in self.wait_starts if each[0] == pipeline_id]:
            if start[1] not in now:
                self.wait_starts[start] = "", self.wait_starts[start][1]
        for name in awaited_streams(spec.stages):
            stream_id = self._stream(pipeline_id, name)
            if stream_id not in self.streams.open:
                continue
            _, end = self.streams.bounds(stream_id)
            if spec.replica_set == self.replica_set:
                pipeline = self.by_id.get(pipeline_id)
                if pipeline is not None and pipeline.is_here:
                    key = stream_id, self.replica_set
                    pipeline.waits.cursors.setdefault(key, WaitCursor(end))
            elif self.wait_starts.get((pipeline_id, stream_id), ("",))[0] != spec.replica_set:
                self.wait_starts[pipeline_id, stream_id] = spec.replica_set, end

    def awaited(self, pipeline_id: int) -> set[int]:
        """The streams that some instance may wait for records of."""
        texts = self.by_id[pipeline_id].definitions.values()
        names = {name for text in texts for name in awaited_streams(parsed(text).stages)}
        return {self._stream(pipeline_id, name) for name in names} - {0}

    def forget_definitions(self) -> None:
        """P6, P14: those that no instance needs go, and the cursors of what nothing awaits then."""
        for pipeline_id, pipeline in self.by_id.items():
            gone = pipeline.definitions.keys() - pipeline.needed().keys()
            if not gone or not pipeline.is_here:
                continue
            for version in gone:
                del pipeline.definitions[version]
            awaited, cursors = self.awaited(pipeline_id), pipeline.waits.cursors
            for key in [each for each in cursors if each[0] not in awaited]:
                del cursors[key]

    def _stream(self, pipeline_id: int, name: str) -> int:
        """Of the pipeline's namespace; 0 where there is none."""
        _, space, _ = self.objects[pipeline_id].name
        for object_id, declared in self.objects.items():
            if declared.name == ("Stream", space, name):
                return object_id
        return 0

    def open(self, pipeline_id: int, spec: PipelineSpec, stream_id: int) -> None:
        """P5: where it starts in the partition here, if there is one."""
        if stream_id not in self.streams.open:
            return
        start = self._start(stream_id, spec.start)
        if spec.replica_set == self.replica_set:
            self.by_id[pipeline_id].cursors.setdefault(
                self.replica_set, Cursor(stream_id, start, start)
            )
        elif self.starts.get(pipeline_id, ())[:2] != (spec.replica_set, stream_id):
            self.starts[pipeline_id] = spec.replica_set, stream_id, start

    def opened(self, namespace: str, name: str, stream_id: int) -> None:
        """A stream has got a partition here."""
        for pipeline_id, declared in self.objects.items():
            kind, space, _ = declared.name
            if (kind, space) != ("Pipeline", namespace):
                continue
            spec = spec_from_json("Pipeline", declared.spec)
            if not isinstance(spec, PipelineSpec):
                continue
            known = self.by_id.get(pipeline_id)
            is_known = known is not None and known.input == stream_id
            if spec.input == name and (is_known or spec.replica_set != self.replica_set):
                self.open(pipeline_id, spec, stream_id)
            if name in awaited_streams(spec.stages):
                self.open_waits(pipeline_id, spec)

    def _start(self, stream_id: int, start: str) -> int:
        first, following = self.streams.bounds(stream_id)
        if start == "earliest":
            return first
        if start == "latest":
            return following
        if start.isdigit():
            return min(max(int(start), first), following)
        return self.streams.offset_at(stream_id, parse_time_ms(start))

    def close(self, pipeline_id: int) -> bool:
        """It is deleted; whether anything of it is left."""
        self.starts.pop(pipeline_id, None)
        for key in [each for each in self.wait_starts if each[0] == pipeline_id]:
            del self.wait_starts[key]
        pipeline = self.by_id.get(pipeline_id)
        if pipeline is None or not pipeline.is_here:
            return False
        pipeline.counted = {stage: pipeline.count(stage) for stage in pipeline.stages}
        pipeline.held = pipeline.needed()
        pipeline.is_here = False
        return True

    def close_stream(self, stream_id: int) -> None:
        """P14: it is deleted, and is looked at no more; who waits for its records waits for none of
        another stream with its name."""
        for start in [each for each in self.wait_starts if each[1] == stream_id]:
            del self.wait_starts[start]
        for pipeline in self.by_id.values():
            for key in [each for each in pipeline.waits.cursors if each[0] == stream_id]:
                del pipeline.waits.cursors[key]
            for awaited in pipeline.waits.by_stage.values():
                if awaited.stream_id == stream_id:
                    awaited.is_deleted = True

    def trimmed(self, stream_id: int, first_offset: int) -> list[tuple[int, int]]:
        """(pipeline, records) that retention has dropped before they were looked at."""
        skipped = []
        for pipeline_id, pipeline in sorted(self.by_id.items()):
            known = pipeline.cursors.get(self.replica_set)
            if known is not None and known.stream_id == stream_id and known.offset < first_offset:
                pipeline.cursors[self.replica_set] = known._replace(offset=first_offset)
                skipped.append((pipeline_id, first_offset - known.offset))
        key = stream_id, self.replica_set
        for pipeline_id, pipeline in sorted(self.by_id.items()):
            at = pipeline.waits.cursors.get(key)
            if at is not None and at.offset < first_offset:
                pipeline.waits.cursors[key] = at._replace(offset=first_offset)
                skipped.append((pipeline_id, first_offset - at.offset))
        return skipped

    def trigger(self, entry: Entry, command: TriggerInstances) -> dict[str, Any]:
        if command.offsets and self._lacks_keys(command.pipeline_id, command.key_hashes):
            raise Known({"next_offset": command.from_offset, "created": 0, "stale": True})
        pipeline, cursor = self._cursor(command)
        stream_id = cursor.stream_id
        made: list[int] = []
        if command.offsets:
            if not pipeline.is_here:
                raise Refused(NotFoundError)
            made = self._make(
                entry, command, stream_id, command.partition, command.offsets, command.key_hashes
            )
        pipeline.cursors[command.partition] = cursor._replace(
            offset=command.to_offset, ballot=command.ballot
        )
        return {"next_offset": command.to_offset, "created": len(made), "stale": False}

    def _lacks_keys(self, pipeline_id: int, packed: bytes) -> bool:
        """P14: who makes instances that await records must know their keys."""
        pipeline = self.by_id.get(pipeline_id)
        if packed or pipeline is None or not pipeline.is_here:
            return False
        newest = parsed(pipeline.definitions[max(pipeline.definitions)])
        return bool(awaited_streams(newest.stages))

    def _make(
        self,
        entry: Entry,
        command: TriggerInstances | StartInstances | StepBackfill,
        stream_id: int,
        partition: str,
        offsets: Sequence[int],
        packed: bytes,
    ) -> list[int]:
        """Instances, which wait from now on."""
        spec, pipeline = self.spec_of(command.pipeline_id), self.by_id[command.pipeline_id]
        made = pipeline.make(stream_id, partition, offsets, entry.now_ms)
        stages = pipeline.stages_of(max(pipeline.definitions), spec).values()
        for number, key in zip(made, keys_of(packed, len(made)), strict=True):
            for stage in stages:
                if stage.wait is not None:
                    awaited = Awaited(self.awaited_stream(command.pipeline_id, stage), key)
                    awaited.is_deleted = awaited.stream_id == 0
                    pipeline.waits.by_stage[number, stage.name] = awaited
        pipeline.step(spec, made, entry.now_ms)
        return made

    def awaited_stream(self, pipeline_id: int, stage: StageSpec) -> int | None:
        assert stage.wait is not None
        return self._stream(pipeline_id, stage.wait.stream) if stage.wait.stream else None

    def _cursor(self, command: TriggerInstances | MoveInput) -> tuple[Pipeline, Cursor]:
        """Which is where the command says that it is."""
        pipeline = self.by_id.get(command.pipeline_id)
        if pipeline is None or command.partition not in pipeline.cursors:
            raise Refused(NotFoundError)
        cursor = pipeline.cursors[command.partition]
        if cursor.offset != command.from_offset:
            raise Known({"next_offset": cursor.offset, "created": 0, "stale": True})
        return pipeline, cursor

    def start(self, entry: Entry, command: StartInstances) -> dict[str, int]:
        """P10: once for each request."""
        pipeline = self.by_id.get(command.pipeline_id)
        if pipeline is not None and command.request in pipeline.started:
            first_id, count = pipeline.started[command.request]
            raise Known({"first_id": first_id, "count": count})
        if pipeline is None or not pipeline.is_here:
            raise Refused(NotFoundError)
        if self._lacks_keys(command.pipeline_id, command.key_hashes):
            raise Refused(ConflictError)
        first_id = pipeline.next_instance
        place = command.stream_id, command.partition, command.offsets
        made = self._make(entry, command, *place, command.key_hashes)
        pipeline.started[command.request] = first_id, len(made)
        return {"first_id": first_id, "count": len(made)}

    def cancel(self, entry: Entry, command: CancelInstances) -> dict[str, int]:
        """P10: nothing of them runs any more."""
        pipeline = self.by_id.get(command.pipeline_id)
        if pipeline is None or not pipeline.is_here:
            raise Refused(NotFoundError)
        ids = set(command.instance_ids)
        if not ids <= pipeline.instances.keys():
            raise Refused(NotFoundError)
        ending = {each for each in ids if pipeline.instances[each].status in (LIVE, FAILED)}
        if not ending:
            raise Known({"cancelled": 0, "others": len(ids)})
        self.check_free(command.pipeline_id, sorted(ending))
        for (_, instance_id), run in pipeline.runs.items():
            if instance_id in ending and run.status == READY:
                run.status, run.attempts = WAITING, run.attempts + 1
        for (number, _), awaited in pipeline.waits.by_stage.items():
            if number in ending and awaited.status == ARMED:
                awaited.end()
        for instance_id in ending:
            pipeline.instances[instance_id].end(CANCELLED, entry.now_ms)
        return {"cancelled": len(ending), "others": len(ids) - len(ending)}

    def open_input(self, _entry: Entry, command: OpenInput) -> None:
        pipeline = self.by_id.get(command.pipeline_id)
        if pipeline is None or not pipeline.is_here or pipeline.input != command.stream_id:
            raise Refused(NotFoundError)
        if command.partition in pipeline.cursors:
            raise Known(None)
        pipeline.cursors[command.partition] = Cursor(
            command.stream_id, command.offset, command.offset
        )

    def move_input(self, _entry: Entry, command: MoveInput) -> tuple[dict[str, Any], int]:
        """Its result, and how many records count as skipped."""
        pipeline, cursor = self._cursor(command)
        pipeline.cursors[command.partition] = cursor._replace(
            offset=command.to_offset,
            ballot=command.ballot,
            truncations=cursor.truncations + command.is_truncated,
        )
        if command.is_truncated:
            moved = pipeline.cursors[command.partition]
            pipeline.cursors[command.partition] = moved._replace(first=moved.offset)
            pipeline.looked_at.pop(command.partition, None)
            for backfill in pipeline.backfills.values():
                if backfill.partition == command.partition and backfill.status in (1, 2):
                    backfill.status = 4
        skipped = 0
        if pipeline.is_here and not command.is_truncated:
            skipped = max(0, command.to_offset - command.from_offset)
        return {"next_offset": command.to_offset, "created": 0, "stale": False}, skipped

    def spec_of(self, pipeline_id: int) -> PipelineSpec:
        if pipeline_id not in self.objects:
            raise Refused(NotFoundError)
        return parsed(self.objects[pipeline_id].spec)

    def stale(self, command: CompleteStages | FailStages | PublishStages) -> list[int]:
        """Those whose stage does not wait for just this attempt of this instance."""
        pipeline = self.by_id.get(command.pipeline_id, Pipeline(0))
        created_ms = command.created_ms or (None,) * len(command.instance_ids)
        stale: list[int] = []
        seen: set[int] = set()
        for instance_id, attempt, made_ms in zip(
            command.instance_ids, command.attempts, created_ms, strict=True
        ):
            run = pipeline.runs.get((command.stage, instance_id))
            instance = pipeline.instances.get(instance_id)
            waits = (
                run is not None
                and instance is not None
                and instance_id not in seen
                and run.status == READY
                and run.attempts + 1 == attempt
                and made_ms in (None, instance.created_ms)
                and (instance_id, command.stage) not in pipeline.waits.by_stage
                and (isinstance(command, FailStages) or command.version in (0, run.version))
            )
            seen.add(instance_id)
            if not waits:
                stale.append(instance_id)
        return stale

    def complete(self, entry: Entry, command: CompleteStages) -> dict[str, Any]:
        stale = self.stale(command)
        if stale:
            raise Known({"appended": None, "stale": stale})
        ids, output = command.instance_ids, command.out_stream_id
        if output:
            self.streams.bounds(output)
        spec = self.spec_of(command.pipeline_id)
        done = None
        if output:
            base = self.streams.append(entry, output, len(ids), command.size)
            done = appended(base, len(ids), entry.now_ms, -1)
        pipeline = self.by_id[command.pipeline_id]
        for index, instance_id in enumerate(ids):
            run = pipeline.runs[command.stage, instance_id]
            run.status, run.reason = DONE, None
            run.output = (output, self.replica_set, base + index) if output else (None,) * 3
            pipeline.tell(entry.now_ms, command, index)
        self._advance(pipeline, spec, command.stage, list(ids), entry.now_ms)
        return {"appended": done, "stale": []}

    def publish(self, entry: Entry, command: PublishStages) -> None:
        """P9: from here on it is nobody's; it is done once the other set has finished."""
        pipeline = self.by_id[command.pipeline_id]
        for index, instance_id in enumerate(command.instance_ids):
            run = pipeline.runs[command.stage, instance_id]
            run.status, run.reason = PUBLISHING, None
            pipeline.tell(entry.now_ms, command, index)
        self.publishing.setdefault(entry.lsn, []).append(command)

    def published(
        self,
        entry: Entry,
        lsn: int,
        participant: str,
        results: Sequence[tuple[int, int, int, bool]],
    ) -> None:
        """A participant of what was decided in the entry `lsn` has finished."""
        waiting = self.publishing.get(lsn, [])
        there = [each for each in waiting if each is not None and each.partition == participant]
        for index, command in enumerate(there):
            waiting[waiting.index(command)] = None
            pipeline = self.by_id.get(command.pipeline_id)
            if pipeline is None or not pipeline.is_here:
                continue
            base, _, _, is_deleted = results[index] if index < len(results) else (-1, 0, 0, True)
            done: list[int] = []
            lost: list[int] = []
            for at, instance_id in enumerate(command.instance_ids):
                run = pipeline.runs.get((command.stage, instance_id))
                if run is None or run.status != PUBLISHING:
                    continue
                if is_deleted or base < 0:
                    run.status, run.attempts, run.reason = FAILED, run.attempts + 1, _LOST
                    lost.append(instance_id)
                else:
                    run.status = DONE
                    run.output = command.stream_id, participant, base + at
                    if pipeline.instances[instance_id].status != CANCELLED:
                        done.append(instance_id)
            now = self.spec_of(command.pipeline_id)
            for instance_id in lost:
                pipeline.give_up(now, command.stage, instance_id, entry.now_ms)
            self._advance(pipeline, now, command.stage, done, entry.now_ms)

    def _advance(
        self, pipeline: Pipeline, now: PipelineSpec, stage: str, ids: list[int], now_ms: int
    ) -> None:
        """Only what waited for this stage is looked at."""
        for instance_id in ids:
            pipeline.advance(now, stage, instance_id, now_ms)

    def fail(self, entry: Entry, command: FailStages) -> dict[str, Any]:
        stale = set(self.stale(command))
        failed = [
            (instance_id, attempt)
            for instance_id, attempt in zip(command.instance_ids, command.attempts, strict=True)
            if instance_id not in stale
        ]
        pipeline = self.by_id.get(command.pipeline_id)
        if pipeline is None or not pipeline.is_here or not failed:
            raise Known({"appended": None, "stale": list(command.instance_ids)})
        now = self.spec_of(command.pipeline_id)
        for instance_id, attempt in failed:
            run = pipeline.runs[command.stage, instance_id]
            instance = pipeline.instances[instance_id]
            retry = pipeline.stages_of(instance.version, now)[command.stage].retry
            counted = attempt - pipeline.retried.get((command.stage, instance_id), 0)
            run.attempts, run.reason = attempt, command.reason
            pipeline.tell(entry.now_ms, command, command.instance_ids.index(instance_id))
            pause_ms = retry.backoff_ms * 2 ** min(counted - 1, 20)
            chance = zlib.crc32(f"{instance_id}/{counted}".encode())
            run.ready_ms = entry.now_ms + pause_ms + pause_ms * chance // 2**34
            if command.is_final or counted >= retry.max_attempts:
                run.status = FAILED
                pipeline.give_up(now, command.stage, instance_id, entry.now_ms)
        return {"appended": None, "stale": sorted(stale)}

    def start_backfill(self, _entry: Entry, command: StartBackfill) -> dict[str, int]:
        """P13: as far as the triggers have come."""
        pipeline = self.by_id.get(command.pipeline_id)
        known = pipeline.backfills if pipeline is not None else {}
        for number, backfill in known.items():
            if backfill.request == command.request:
                raise Known({"number": number, "next_offset": backfill.at})
        if pipeline is None or not pipeline.is_here or command.partition not in pipeline.cursors:
            raise Refused(NotFoundError)
        end = min(command.to_offset, pipeline.cursors[command.partition].offset)
        if not 0 <= command.from_offset < end:
            raise Refused(RequestError)
        number = max(known, default=0) + 1
        known[number] = Backfill(
            command.partition,
            command.from_offset,
            command.from_offset,
            end,
            command.per_s,
            command.again,
            command.request,
        )
        return {"number": number, "next_offset": command.from_offset}

    def step_backfill(self, entry: Entry, command: StepBackfill) -> dict[str, Any]:
        """P13: an instance of each record that nobody has looked at, or of all."""
        pipeline = self.by_id.get(command.pipeline_id)
        backfill = pipeline.backfills.get(command.number) if pipeline is not None else None
        if pipeline is None or backfill is None:
            raise Refused(NotFoundError)
        if backfill.status != 1 or backfill.at != command.from_offset or not pipeline.is_here:
            raise Known({"next_offset": backfill.at, "created": 0, "stale": True})
        if command.offsets and self._lacks_keys(command.pipeline_id, command.key_hashes):
            raise Known({"next_offset": backfill.at, "created": 0, "stale": True})
        cursor = pipeline.cursors[backfill.partition]
        looked_at = pipeline.looked_at.setdefault(backfill.partition, set())
        seen = looked_at | set(range(cursor.first, cursor.offset))
        offsets = [each for each in command.offsets if backfill.again or each not in seen]
        if offsets:
            packed = chosen(command.key_hashes, command.offsets, offsets)
            place = cursor.stream_id, backfill.partition, offsets
            self._make(entry, command, *place, packed)
        looked_at |= set(range(command.from_offset, command.to_offset))
        backfill.at = command.to_offset
        backfill.created += len(offsets)
        if backfill.at >= backfill.end:
            backfill.status = 3
        return {"next_offset": backfill.at, "created": len(offsets), "stale": False}

    def control_backfill(self, _entry: Entry, command: ControlBackfill) -> int:
        pipeline = self.by_id.get(command.pipeline_id)
        backfill = pipeline.backfills.get(command.number) if pipeline is not None else None
        if backfill is None:
            raise Refused(NotFoundError)
        if backfill.status in (3, 4, command.status):
            raise Known(backfill.status)
        backfill.status = command.status
        return command.status

    def drop(self, entry: Entry, command: DropInstances) -> dict[str, Any]:
        """P12: what has ended, the oldest first, and what they have; counters stay. What has
        something left to do is kept once more."""
        pipeline = self.by_id.get(command.pipeline_id)
        due: list[tuple[int, int]] = []
        if pipeline is not None and pipeline.is_here:
            due = sorted(
                (made.ended_ms, number)
                for number, made in pipeline.instances.items()
                if made.ended_ms is not None and made.ended_ms < command.before_ms
            )
        if pipeline is None or not due:
            raise Known({"rows": 0, "bytes": 0, "is_done": True})
        chosen = {number for _, number in due[:SLICE_INSTANCES]}
        held = pipeline.letters.keys() | {
            number
            for (_, number), run in pipeline.runs.items()
            if run.status in (READY, PUBLISHING)
        }
        for number in chosen & held:
            pipeline.instances[number].ended_ms = entry.now_ms
        going = chosen - held
        for key in [key for key in pipeline.runs if key[1] in going]:
            run = pipeline.runs.pop(key)
            pipeline.gone[key[0], run.status] += 1
            pipeline.retried.pop(key, None)
        for told in [each for each in pipeline.tried if each[1] in going]:
            del pipeline.tried[told]
        for waiting in [each for each in pipeline.waits.by_stage if each[0] in going]:
            del pipeline.waits.by_stage[waiting]
        for number in going:
            pipeline.gone[pipeline.instances.pop(number).status] += 1
        return {"rows": len(going), "bytes": 0, "is_done": len(due) <= SLICE_INSTANCES}

    def send_letters(self, entry: Entry, command: SendLetters) -> dict[str, Any]:
        """P11: all of them, once."""
        pipeline = self.by_id.get(command.pipeline_id)
        ids = command.instance_ids
        due = pipeline.letters if pipeline is not None else {}
        if len(due.keys() & set(ids)) != len(ids):
            raise Known({"appended": None})
        self.streams.bounds(command.out_stream_id)
        base = self.streams.append(entry, command.out_stream_id, len(ids), command.size)
        for each in ids:
            del due[each]
        return {"appended": appended(base, len(ids), entry.now_ms, -1)}

    def rows(self) -> Rows:
        return rows_of(self)
