"""Commands of groups and pipelines by chance."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from hadron.fakes.tables import SET
from hadron.model.ids import NO_BALLOT, Ballot
from hadron.sim.rooms.drawing import Drawing
from hadron.state.groups.changes import CollectGroups, DeleteGroup, ResetGroup
from hadron.state.groups.endings import DeadLetterRecords, EndDeliveries
from hadron.state.groups.progress import AckRecords, CreateGroup, GroupOptions
from hadron.state.machine import Command
from hadron.state.pipelines.backfills import ControlBackfill, StartBackfill, StepBackfill
from hadron.state.pipelines.cancellations import CancelInstances, StartInstances
from hadron.state.pipelines.finished import DropInstances
from hadron.state.pipelines.inputs import MoveInput, OpenInput, TriggerInstances
from hadron.state.pipelines.letters import SendLetters
from hadron.state.pipelines.retries import RetryInstances
from hadron.state.pipelines.stage_runs import CompleteStages, FailStages
from hadron.state.pipelines.wait_inputs import OpenWait
from hadron.state.pipelines.waits import ExpireWaits, Signal, SignalInstance, SignalStages

_STAGES: Final = ("one", "two", "three")


class FlowCommands(Drawing):
    """Of groups, and of pipelines' inputs, stages and instances."""

    def _ranges(self, stream_id: int) -> tuple[tuple[int, int], ...]:
        found, first = [], 0
        end = self._end(stream_id)
        for _ in range(self._random.randint(1, 3)):
            first = self._random.randint(first, max(first, end - 1))
            last = first + self._random.randint(0, 2)
            found.append((first, min(last, max(end - 1, first))))
            first = found[-1][1] + 1
        return tuple(found)

    def _of_groups(self) -> Command:
        rng = self._random
        chance = rng.random()
        if chance < 0.15:
            stream_id = self._stream()
            options = rng.choice((GroupOptions(), GroupOptions(1, 0, 3, 2)))
            floor = rng.randint(0, self._end(stream_id))
            return CreateGroup(stream_id, rng.choice("gh"), floor, options, rng.choice((-1, 0, 7)))
        if chance < 0.2:
            return CollectGroups()
        group_id = self._one("SELECT group_id FROM hadron_group")
        rows = self._tables.rows(
            "SELECT stream_id, floor FROM hadron_group WHERE group_id = ?", group_id
        )
        stream_id = rows[0][0] if rows else 0
        ranges = self._ranges(stream_id)
        if chance < 0.23:
            return DeleteGroup(group_id)
        if chance < 0.27:
            return ResetGroup(group_id, rng.randint(0, self._end(stream_id)), rng.randint(0, 9))
        if chance < 0.35:
            if rows and rng.random() < 0.3:
                # Over the floor: what others have acknowledged in part is no dead letter.
                floor = rows[0][1]
                ranges = ((max(floor - 1, 0), floor),)
            return DeadLetterRecords(group_id, self._stream(), ranges, 50)
        if chance < 0.6:
            tried = tuple((first, last, rng.randint(1, 2)) for first, last in ranges)
            return EndDeliveries(group_id, tried, rng.choice(((), self._ranges(stream_id))))
        return AckRecords(group_id, ranges)

    def _backfill(self, pipeline_id: int, cursors: list[tuple[Any, ...]]) -> Command | None:
        """Begin one, move it, or stop it."""
        rng = self._random
        known = self._tables.rows(
            "SELECT number, next_offset, to_offset FROM hadron_backfill WHERE pipeline_id = ?",
            pipeline_id,
        )
        if known and rng.random() < 0.7:
            number, begins, end = rng.choice(known)
            if rng.random() < 0.4:
                return ControlBackfill(pipeline_id, number, rng.choice((1, 2, 4)))
            to = min(begins + rng.randint(1, 5), max(end, begins + 1))
            offsets = tuple(at for at in range(begins, to) if rng.random() < 0.6)
            begins += rng.random() < 0.1
            return StepBackfill(pipeline_id, number, begins, to, offsets, self._keys(offsets))
        if not cursors:
            return None
        following, _, partition = rng.choice(cursors)
        first = rng.randint(0, max(following, 1))
        again, request = rng.random() < 0.3, rng.choice((b"r", rng.randbytes(4)))
        return StartBackfill(
            pipeline_id, partition, first, first + rng.randint(0, 9), 0, again, request
        )

    def _of_pipelines(self) -> Command:
        rng = self._random
        pipeline_id = self._one("SELECT id FROM hadron_schema_object WHERE kind = 'Pipeline'")
        cursor = self._tables.rows(
            "SELECT next_offset, stream_id, partition FROM hadron_pipeline_input"
            " WHERE pipeline_id = ? ORDER BY partition",
            pipeline_id,
        )
        if rng.random() < 0.08:
            return OpenInput(pipeline_id, "eu/p0", self._stream(), rng.randint(0, 3))
        if cursor and rng.random() < 0.25:
            begins, stream_id, partition = rng.choice(cursor)
            is_away = partition != SET
            end = begins + rng.randint(0, 3) if is_away else max(self._end(stream_id), begins)
            offsets = tuple(at for at in range(begins, end) if rng.random() < 0.4)
            ballot = Ballot(1, rng.randint(1, 9)) if is_away else NO_BALLOT
            begins += rng.random() < 0.1
            if is_away and rng.random() < 0.5:
                is_lost = rng.random() < 0.5
                return MoveInput(pipeline_id, partition, begins, end, is_lost, ballot)
            keys = self._keys(offsets)
            return TriggerInstances(pipeline_id, partition, begins, end, offsets, ballot, keys)
        if rng.random() < 0.12 and (waiting := self._of_waits(pipeline_id)) is not None:
            return waiting
        if rng.random() < 0.2:
            failed = self._tables.rows(
                "SELECT instance_id FROM hadron_instance WHERE pipeline_id = ? AND status = 3"
                " ORDER BY instance_id LIMIT 3",
                pipeline_id,
            )
            again = tuple(each for (each,) in failed) or (1,)
            return RetryInstances(pipeline_id, again, rng.random() < 0.3, self._keys(again))
        if rng.random() < 0.15 and (filling := self._backfill(pipeline_id, cursor)) is not None:
            return filling
        if rng.random() < 0.08:
            return DropInstances(pipeline_id, self._tables.now_ms - rng.choice((0, 1_000_000)))
        if rng.random() < 0.15:
            due = self._tables.rows(
                "SELECT instance_id FROM hadron_instance_letter WHERE pipeline_id = ? LIMIT 2",
                pipeline_id,
            )
            letters = tuple(each for (each,) in due) or (1,)
            return SendLetters(pipeline_id, letters, self._stream(), 80)
        if rng.random() < 0.05:
            found = self._tables.rows(
                "SELECT instance_id FROM hadron_instance WHERE pipeline_id = ?", pipeline_id
            )
            living = tuple(each for (each,) in found) or (1,)
            return CancelInstances(pipeline_id, tuple(rng.choices(living, k=2)))
        if rng.random() < 0.05:
            offsets = tuple(rng.choices(range(9), k=rng.randint(1, 2)))
            request = rng.choice((b"one", b"another", rng.randbytes(4)))
            keys = self._keys(offsets)
            return StartInstances(pipeline_id, self._stream(), SET, offsets, request, keys)
        return self._end_of_attempts(pipeline_id)

    def _keys(self, offsets: Collection[int]) -> bytes:
        """Of these records; some have none, and some leaders do not know that they matter."""
        if self._random.random() < 0.1:
            return b""
        return b"".join(self._random.choice((0, 5, 1 << 63)).to_bytes(8, "little") for _ in offsets)

    def _of_waits(self, pipeline_id: int) -> Command | None:
        """Records and signals come, or do not."""
        rng = self._random
        if rng.random() < 0.1:
            known = self._tables.rows(
                "SELECT stream_id FROM hadron_pipeline_wait WHERE pipeline_id = ?"
                " ORDER BY stream_id, partition",
                pipeline_id,
            )
            awaited = rng.choice([self._stream(), *(each for (each,) in known)])
            return OpenWait(pipeline_id, awaited, "eu/p0", rng.randint(0, 3))
        if rng.random() < 0.3:
            return ExpireWaits(pipeline_id, self._tables.now_ms + rng.choice((0, 1_000)))
        waiting = self._tables.rows(
            "SELECT instance_id, stage, stream_id FROM hadron_stage_wait WHERE pipeline_id = ?"
            " ORDER BY status <> 1, instance_id, stage LIMIT 4",
            pipeline_id,
        )
        if rng.random() < 0.3:
            number, stage, _ = rng.choice([*waiting, (1, "one", None)])
            output = rng.choice((0, self._stream()))
            return SignalInstance(pipeline_id, number, stage, output, 70)
        cursors = self._tables.rows(
            "SELECT stream_id, partition, next_offset FROM hadron_pipeline_wait"
            " WHERE pipeline_id = ? ORDER BY stream_id, partition",
            pipeline_id,
        )
        if not cursors:
            return None
        stream_id, partition, begins = rng.choice(cursors)
        begins += rng.random() < 0.1
        end = begins + rng.randint(0, 3)
        told = tuple(
            Signal(number, stage, rng.randint(begins, end))
            for number, stage, _ in waiting
            if rng.random() < 0.6
        )
        ballot = Ballot(1, rng.randint(1, 9)) if partition != SET else NO_BALLOT
        lost = partition != SET and rng.random() < 0.2
        return SignalStages(pipeline_id, stream_id, partition, begins, end, told, ballot, lost)

    def _end_of_attempts(self, pipeline_id: int) -> Command:
        """Of some stage that is ready, well or not."""
        rng = self._random
        stages = self._tables.rows(
            "SELECT DISTINCT stage FROM hadron_stage_run WHERE pipeline_id = ? AND status = 1"
            " ORDER BY stage",
            pipeline_id,
        )
        stage = rng.choice([name for (name,) in stages] or _STAGES)
        ready = self._tables.rows(
            "SELECT instance_id, attempts + 1, created_ms FROM hadron_stage_run r"
            " JOIN hadron_instance i USING (pipeline_id, instance_id)"
            " WHERE pipeline_id = ? AND stage = ? AND r.status = 1 LIMIT 4",
            pipeline_id,
            stage,
        )
        chosen = rng.sample(ready, rng.randint(min(1, len(ready)), len(ready))) or [(1, 1, 0)]
        if rng.random() < 0.1:
            chosen.append((chosen[0][0], rng.randint(1, 2), chosen[0][2]))
        ids, attempts, made = zip(*chosen, strict=True)
        created_ms = made if rng.random() < 0.5 else ()
        if rng.random() < 0.5:
            is_final = sum(ids) % 11 == 0
            return FailStages(
                pipeline_id, stage, ids, attempts, "why", created_ms, is_final, *self._told(ids)
            )
        output = rng.choice((0, self._stream()))
        return CompleteStages(
            pipeline_id, stage, ids, attempts, output, 70, created_ms, 0, *self._told(ids)
        )

    @staticmethod
    def _told(ids: Sequence[int]) -> tuple[str, str, tuple[int, ...]]:
        """What a runner says of itself: all, some or nothing. It is not drawn: what is said for
        people changes no seed's commands."""
        took_ms = tuple(each % 10 for each in ids)
        return (("", "", ()), ("n1/7", "v2", took_ms), ("n2/8", "", (5,)))[sum(ids) % 3]
