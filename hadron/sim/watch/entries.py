"""PROTOCOL B8, D1, D2, E3: what an entry may do to the tables, held against what they were before
it, and what time it may have."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final, NamedTuple

import apsw

from hadron.fakes.clocks import wall_ms
from hadron.model.kinds import spec_from_json
from hadron.model.pipelines import PipelineSpec, as_declared
from hadron.model.ports import Database
from hadron.model.schema import Retention, StreamSpec
from hadron.partition.controller import Controller
from hadron.partition.group_commit import GroupCommit
from hadron.sim.watch.cursors import MOVES, Cursors
from hadron.sim.watch.flows import COMMANDS, Flows
from hadron.sim.watch.instances import Instances
from hadron.sim.watch.meanings import Meanings
from hadron.sim.watch.views import Complaints, NodeView
from hadron.state.adoption import AdoptObjects
from hadron.state.groups.endings import DeadLetterRecords, EndDeliveries
from hadron.state.groups.progress import AckRecords
from hadron.state.machine import Command, Context
from hadron.state.pipelines.letters import SendLetters
from hadron.state.pipelines.retries import RetryInstances
from hadron.state.pipelines.stage_runs import CompleteStages, FailStages
from hadron.state.registry import RegisterReplicaSet
from hadron.state.schema import ApplySchema, DeleteObjects
from hadron.state.sinks.staging import PublishStaged
from hadron.state.streams.partitions import AppendBatch
from hadron.state.streams.producers import Appended
from hadron.state.streams.retention import TrimStream

_SKEW_MS: Final = 16_000
"""Between an entry's time and the world's: 5 s that a leader's clock may be off its peers', 5 s by
which it may jump until it is looked at, and as much as the peers' own may be off."""

_SKEW_ALONE_MS: Final = 80_000
"""The same of a node without peers, whose clock faults set up to a minute off."""

_BATCHES: Final = (
    "SELECT base_offset, count, append_ms, bytes, lsn FROM hadron_stream_batch WHERE stream_id = ?"
    " ORDER BY base_offset"
)


_FLOOR: Final = (
    "SELECT o.name, g.name, g.floor FROM hadron_group g JOIN hadron_schema_object o"
    " ON o.id = g.stream_id"
    " WHERE g.group_id = ?"
)

_RUNS: Final = (
    "SELECT r.stage, r.instance_id, r.status, r.attempts, ifnull(t.attempts_before, 0)"
    " FROM hadron_stage_run r LEFT JOIN hadron_stage_retry t"
    " USING (pipeline_id, stage, instance_id)"
    " WHERE pipeline_id = ? AND instance_id IN (SELECT value FROM json_each(?))"
)
_MADE: Final = (
    "SELECT instance_id, created_ms FROM hadron_instance WHERE pipeline_id = ?"
    " AND instance_id IN (SELECT value FROM json_each(?))"
)
_DEFINITIONS: Final = (
    "SELECT i.instance_id, d.spec, o.spec FROM hadron_instance i JOIN hadron_definition d"
    " USING (pipeline_id, version) JOIN hadron_schema_object o ON o.id = i.pipeline_id"
    " WHERE i.pipeline_id = ?"
)
_WAITING: Final = 0
_READY: Final = 1
_FAILED: Final = 3

_MOVES_FLOOR: Final = (AckRecords, DeadLetterRecords, EndDeliveries)
_STREAMS: Final = "SELECT id, spec FROM hadron_schema_object WHERE kind = 'Stream'"
_CHANGES_SCHEMA: Final = (ApplySchema, DeleteObjects, AdoptObjects, RegisterReplicaSet)

SCHEMA: Final = "schema"


class Ends:
    """Which entry has moved what to where, on each node: by a stream's id its end, by `SCHEMA` the
    schema's index, by ("group", stream, name) its floor."""

    def __init__(self) -> None:
        self._ends: dict[tuple[str, Hashable], tuple[list[int], list[int]]] = {}

    def note(self, node: str, key: Hashable, lsn: int, before: int, end: int) -> None:
        lsns, ends = self._ends.setdefault((node, key), ([], []))
        while lsns and (
            lsns[-1] > lsn or (lsns[-1] == lsn and ends[-1] != before) or ends[-1] > end
        ):
            # Rolled back, or another leader's has taken its place; or it was reset. An entry may
            # move an end more than once.
            lsns.pop()
            ends.pop()
        for at, value in ((0, before), (lsn, end)):
            if not ends or ends[-1] < value:
                lsns.append(at)
                ends.append(value)

    def opened(self, node: str, applied_lsn: int) -> None:
        """Its tables stand at entry `applied_lsn`, perhaps as a copy of another node's: what this
        node had applied beyond that is none of their history."""
        for (of, _), (lsns, ends) in self._ends.items():
            while of == node and lsns and lsns[-1] > applied_lsn:
                lsns.pop()
                ends.pop()

    def lsn_of(self, node: str, key: Hashable, end: int) -> int:
        """Which entry has brought it to `end` or beyond; 0 when that is not known."""
        lsns, ends = self._ends.get((node, key), ([], []))
        place = bisect_left(ends, end)
        # What came with a copy of another node's tables was not heard.
        return lsns[place] if place < len(lsns) else 0


class Acknowledged:
    """Which entry has acknowledged which of a group's offsets, on each node."""

    def __init__(self) -> None:
        self._lsns: dict[tuple[str, int], dict[int, int]] = {}

    def opened(self, node: str) -> None:
        """Its tables may be a copy of another node's, which has none of what this one had applied
        of a history that was dropped."""
        for key in [key for key in self._lsns if key[0] == node]:
            del self._lsns[key]

    def note(self, node: str, group_id: int, lsn: int, ranges: Iterable[tuple[int, int]]) -> None:
        known = self._lsns.setdefault((node, group_id), {})
        for first, last in ranges:
            known.update(dict.fromkeys(range(first, last + 1), lsn))

    def lsn_of(self, node: str, group_id: int, offset: int) -> int | None:
        """None when no entry has since its tables were opened."""
        return self._lsns.get((node, group_id), {}).get(offset)


class Entries:
    """Every command where it is applied."""

    def __init__(
        self,
        complaints: Complaints,
        ends: Ends,
        acknowledged: Acknowledged,
        meanings: Meanings,
        flows: Flows,
        cursors: Cursors,
    ) -> None:
        self._flows = flows
        self._cursors = cursors
        self._complaints = complaints
        self._ends = ends
        self._acknowledged = acknowledged
        self._meanings = meanings
        self._instances = Instances(complaints)
        self._views: dict[int, NodeView] = {}
        self._limits: dict[tuple[str, int], list[tuple[int, Retention]]] = {}
        """By node and stream: since which entry which limits hold, since its tables were opened."""
        self._asked: dict[int, tuple[TrimStream, int, int]] = {}
        """What was committed when somebody asked for it, and when that was by the log's clock."""

    def opened(self, view: NodeView) -> None:
        connection = view.store.writer.connection
        self._views[id(connection)] = view
        self._ends.opened(view.name, tables_lsn(connection))
        self._acknowledged.opened(view.name)
        self._open_limits(view.name, connection)

    def submitted(self, controller: Controller, command: Command) -> None:
        """A leader is to run it."""
        if isinstance(command, TrimStream):
            self._asked[id(command)] = command, controller.committed_lsn, controller.log_now_ms()

    def is_heard(self, connection: apsw.Connection) -> bool:
        """Whether it is a node's, which has not crashed."""
        view = self._views.get(id(connection))
        return view is not None and view.is_alive

    def applied(
        self, apply: Callable[[Context, Command], Any], context: Context, command: Command
    ) -> Any:
        """Apply a command, and look at what it has done."""
        view = self._views.get(id(context.db))
        if view is None or not view.is_alive:
            return apply(context, command)
        leads = view.controller is not None and view.controller.leads
        if not leads or not isinstance(command, COMMANDS):
            return self._applied(apply, view, context, command)
        was = self._flows.before(context, command)
        result = self._applied(apply, view, context, command)
        self._judging(self._flows.applied, view, context, command, was)
        if isinstance(command, MOVES):
            self._judging(self._cursors.moved, view, context, command)
        return result

    def _applied(
        self,
        apply: Callable[[Context, Command], Any],
        view: NodeView,
        context: Context,
        command: Command,
    ) -> Any:
        if isinstance(command, TrimStream):
            before = context.db.execute(_BATCHES, (command.stream_id,)).fetchall()
            result = apply(context, command)
            self._judging(self._check_trim, view, context, command, before)
            return result
        if isinstance(command, FailStages | RetryInstances):
            ran = _runs(context, command)
            result = apply(context, command)
            self._judging(self._check_attempts, view, context, command, ran)
            self._judging(self._instances.moved, view, context, command.pipeline_id)
            return result
        if isinstance(command, CompleteStages):
            ran = _runs(context, command)
            result = apply(context, command)
            self._judging(self._check_completed, view, context, command, ran)
            self._judging(self._instances.moved, view, context, command.pipeline_id)
            self._judging(self._note_end, view, context, command, result)
            return result
        if isinstance(command, AppendBatch) and command.producer_id and command.sequence >= 0:
            row = context.db.execute(
                "SELECT next_sequence, producer_epoch FROM hadron_producer WHERE stream_id = ?"
                " AND producer_id = ?",
                (command.stream_id, command.producer_id),
            ).fetchone()
            result = apply(context, command)
            self._judging(self._check_sequence, view, context, command, row)
            self._judging(self._note_end, view, context, command, result)
            return result
        state: Any = None
        if isinstance(command, _CHANGES_SCHEMA):
            state = _schema_index(context)
        elif isinstance(command, _MOVES_FLOOR) and command.group_id:
            state = context.db.execute(_FLOOR, (command.group_id,)).fetchone()
        result = apply(context, command)
        self._judging(self._note_end, view, context, command, result, state)
        return result

    def done(
        self, do: Callable[[Context, Command], Any], context: Context, command: Command
    ) -> Any:
        """Do a transaction's statement, and note what it has moved."""
        view = self._views.get(id(context.db))
        if view is None or not view.is_alive:
            return do(context, command)
        floor: Any = None
        if isinstance(command, AckRecords):
            floor = context.db.execute(_FLOOR, (command.group_id,)).fetchone()
        result = do(context, command)
        if not result.is_deleted:
            self._judging(self._note_done, view, context, command, result, floor)
        return result

    def _note_done(
        self, view: NodeView, context: Context, command: Command, result: Any, floor: Any
    ) -> None:
        if isinstance(command, AckRecords):
            self._note_end(view, context, command, None, floor)
        elif result.count:
            appends = isinstance(command, AppendBatch | PublishStaged)
            stream_id = command.stream_id if appends else command.out_stream_id  # type: ignore[attr-defined]
            first = result.base_offset
            self._note_appended(view, context, stream_id, first, first + result.count)

    def _judging(self, judge: Callable[..., None], *given: Any) -> None:
        """What goes wrong here must not look like a refusal of the command. A disk that fails while
        this looks fails under the node: SQLite has ended its transaction."""
        try:
            judge(*given)
        except (apsw.IOError, apsw.CorruptError):
            raise
        except Exception as error:
            self._complaints.add("who watches is at fault", f"{type(error).__name__}: {error}")

    def _note_end(
        self, view: NodeView, context: Context, command: Command, result: Any, before: Any = None
    ) -> None:
        """What moves forward, and is shown by its number."""
        appended = result
        if isinstance(command, AppendBatch):
            stream_id = command.stream_id
        elif isinstance(command, CompleteStages | DeadLetterRecords | SendLetters):
            stream_id, appended = command.out_stream_id, result.appended
        if isinstance(appended, Appended):
            end = appended.base_offset + appended.count
            self._note_appended(view, context, stream_id, appended.base_offset, end)
        if isinstance(command, _CHANGES_SCHEMA):
            self._ends.note(view.name, SCHEMA, context.lsn, before, _schema_index(context))
            self._note_limits(view, context)
            self._meanings.applied(view, context, result)
            self._instances.moved(view, context, None)
        elif isinstance(command, _MOVES_FLOOR) and command.group_id:
            ranges = command.acknowledged if isinstance(command, EndDeliveries) else command.ranges
            self._acknowledged.note(view.name, command.group_id, context.lsn, ranges)
            after = context.db.execute(_FLOOR, (command.group_id,)).fetchone()
            if after is not None and before is not None and after[2] > before[2]:
                key = "group", *after[:2]
                self._ends.note(view.name, key, context.lsn, before[2], after[2])

    def _note_appended(
        self, view: NodeView, context: Context, stream_id: int, first: int, end: int
    ) -> None:
        self._ends.note(view.name, stream_id, context.lsn, first, end)
        self._cursors.appended(view.replica_set, stream_id, first, end, context.ballot)

    def _check_sequence(
        self, view: NodeView, context: Context, command: AppendBatch, row: Any
    ) -> None:
        """D1: a producer's batch follows the one before; one that is not known begins at 0."""
        begins = row is None or command.producer_epoch > row[1]
        expected = 0 if begins else row[0]
        if command.sequence != expected:
            self._complaints.add(
                "D1 sequences follow each other",
                f"{view.name} appends sequence {command.sequence} of producer "
                f"{command.producer_id.hex()} at entry {context.lsn}, {expected} was next",
            )

    def _open_limits(self, node: str, connection: apsw.Connection) -> None:
        """Its tables may be a copy of another node's: the entries that have changed limits there
        were not heard here. Whoever leads with these tables knows no others."""
        for key in [key for key in self._limits if key[0] == node]:
            del self._limits[key]
        try:
            found = _retentions(connection)
        except apsw.Error:
            # There are no tables yet, or none that can be read.
            return
        for stream_id, limits in found:
            self._limits[node, stream_id] = [(0, limits)]

    def _note_limits(self, view: NodeView, context: Context) -> None:
        for stream_id, now in _retentions(context.db):
            known = self._limits.setdefault((view.name, stream_id), [(0, Retention())])
            while known[-1][0] >= context.lsn:
                # Rolled back, or another leader's has taken its place.
                known.pop()
            if known[-1][1] != now:
                known.append((context.lsn, now))

    def _allowed(
        self, view: NodeView, command: TrimStream, limits: Retention
    ) -> tuple[list[Retention], int]:
        """By which limits a stream may be trimmed: those of before, too, where whoever asked for it
        could not know yet that others were to come. And when it was asked for, by the clock that
        the leader had then: that may have jumped back since."""
        _, committed_lsn, asked_ms = self._asked.pop(id(command), (command, view.committed_lsn, 0))
        known = self._limits.get((view.name, command.stream_id), [])
        ends = [lsn for lsn, _ in known[1:]]
        before = [each for (_, each), end in zip(known, ends, strict=False) if end > committed_lsn]
        return [limits, *before], asked_ms

    def _check_trim(
        self, view: NodeView, context: Context, command: TrimStream, before: list[Any]
    ) -> None:
        """D2: retention drops whole batches, the oldest, and only what is over a bound."""
        after = context.db.execute(_BATCHES, (command.stream_id,)).fetchall()
        dropped = before[: len(before) - len(after)]
        if before[len(dropped) :] != after:
            self._complaints.add(
                "D2 retention drops the oldest batches",
                f"{view.name} at entry {context.lsn}: of {len(before)} batches {len(after)} are "
                "left, and they are not the latest",
            )
            return
        row: Any = context.db.execute(
            "SELECT spec FROM hadron_schema_object WHERE id = ?", (command.stream_id,)
        ).fetchone()
        spec = spec_from_json("Stream", row[0]) if row is not None else None
        if not isinstance(spec, StreamSpec):
            return
        if view.controller is None or not view.controller.leads:
            # Its leader has answered for it.
            return
        allowed, asked_ms = self._allowed(view, command, spec.retention)
        left = sum(batch[3] for batch in before)
        for base, count, append_ms, size, _lsn in dropped:
            age_ms = max(context.now_ms, asked_ms) - append_ms
            is_old = any(0 < limits.max_age_ms < age_ms for limits in allowed)
            is_over = left > size and any(0 < limits.max_bytes < left for limits in allowed)
            if not is_old and not is_over:
                self._complaints.add(
                    "D2 retention drops what is due",
                    f"{view.name} at entry {context.lsn} drops offsets {base} to "
                    f"{base + count - 1}, {age_ms} ms old, of {left} bytes; the limits are "
                    f"{spec.retention.max_age_ms} ms and {spec.retention.max_bytes} bytes",
                )
                return
            left -= size

    def _check_attempts(
        self,
        view: NodeView,
        context: Context,
        command: FailStages | RetryInstances,
        before: dict[tuple[str, int], tuple[int, int, int]],
    ) -> None:
        """E3: a stage is given up with its last attempt, which is counted since the last retry, or
        with one that is said to be that; how many there are says the declaration of now, where that
        has the stage at its place (P6). With a retry nothing that was done is undone, no attempt's
        number is used again, and what is to run once more has all its attempts."""
        after = _runs(context, command)
        if isinstance(command, RetryInstances):
            wrong = {
                key: after.get(key)
                for key, (status, attempts, retried_at) in before.items()
                if (now := after.get(key)) is None
                or now[1] < attempts
                or now[0] == _FAILED
                or (status == _FAILED and now[2] < attempts)
                or (status == _READY and now[0] not in (_READY, _WAITING))
                or now[1] - now[2] > (attempts - retried_at if now[0] == status else 0)
            }
            expected: Any = "attempts that go on and begin anew, and no failed stage"
        else:
            expected = dict(before)
            most = _most_attempts(context, command)
            for instance_id, attempt in zip(command.instance_ids, command.attempts, strict=True):
                key = command.stage, instance_id
                status, attempts, retried_at = before.get(key, (0, 0, 0))
                if status == _READY and attempt == attempts + 1:
                    of = most[instance_id]
                    is_last = command.is_final or attempt - retried_at >= of.attempts
                    expected[key] = _FAILED if is_last else _READY, attempt, retried_at
                    told = of.on_failure, instance_id
                    status, *since = before.get(told, (_WAITING, 0, 0))
                    if is_last and of.on_failure not in ("", command.stage) and not status:
                        expected[told] = _READY, since[0], since[1]
            wrong = dict(after.items() - expected.items())
            expected = sorted(expected.items() - after.items())
        if wrong:
            self._complaints.add(
                "E3 a stage has all its attempts",
                f"{view.name} at entry {context.lsn}: {command} makes (status, attempts, of them "
                f"before the last retry) {sorted(wrong.items())}, expected {expected}",
            )

    def _check_completed(
        self,
        view: NodeView,
        context: Context,
        command: CompleteStages,
        before: dict[tuple[str, int], tuple[int, int, int]],
    ) -> None:
        """E3: only the attempt that is under way completes a stage, and no other one after it; and
        one of just that instance, not of another that had its number."""
        if command.created_ms:
            ids = json.dumps(command.instance_ids)
            rows: Any = context.db.execute(_MADE, (command.pipeline_id, ids))
            made = dict(rows)
            for instance_id, created_ms in zip(
                command.instance_ids, command.created_ms, strict=True
            ):
                if made.get(instance_id, created_ms) != created_ms:
                    self._complaints.add(
                        "E3 a completion is of the instance that was given",
                        f"{view.name} at entry {context.lsn} completes stage {command.stage} of "
                        f"instance {instance_id}, made at {made[instance_id]}; its runner had one "
                        f"of {created_ms}",
                    )
        for instance_id, attempt in zip(command.instance_ids, command.attempts, strict=True):
            status, attempts, _ = before.get((command.stage, instance_id), (0, 0, 0))
            if status != _READY or attempt != attempts + 1:
                self._complaints.add(
                    "E3 the latest attempt counts",
                    f"{view.name} at entry {context.lsn} takes attempt {attempt} of stage "
                    f"{command.stage} of instance {instance_id}, whose status was {status} after "
                    f"{attempts} that failed",
                )

    def stamped(self, view: NodeView, group: GroupCommit, members: int) -> None:
        """B8: the log's time is the world's, as far as clocks that agree can tell."""
        if not group.entries or not view.is_alive:
            return
        true_ms = wall_ms(view.volume.wall_s())
        off_ms = group.entries[-1].now_ms - true_ms
        limit_ms = _SKEW_MS if members > 1 else _SKEW_ALONE_MS
        if abs(off_ms) > limit_ms:
            self._complaints.add(
                "B8 stamps are the time",
                f"{view.name} stamps entry {group.entries[-1].lsn} with a time that is "
                f"{off_ms / 1000:+.1f} s off",
            )


class _Most(NamedTuple):
    """How often a stage of an instance is tried, and what runs when it is given up."""

    attempts: int
    on_failure: str


def _most_attempts(context: Context, command: FailStages) -> dict[int, _Most]:
    """By instance id, of this stage."""
    rows: Any = context.db.execute(_DEFINITIONS, (command.pipeline_id,)).fetchall()
    found = {}
    for instance_id, *specs in rows:
        begun, now = (spec_from_json("Pipeline", spec) for spec in specs)
        assert isinstance(begun, PipelineSpec)
        assert isinstance(now, PipelineSpec)
        for stage in as_declared(begun, now):
            if stage.name == command.stage:
                found[instance_id] = _Most(stage.retry.max_attempts, begun.on_failure)
    return found


def _runs(
    context: Context, command: CompleteStages | FailStages | RetryInstances
) -> dict[tuple[str, int], tuple[int, int, int]]:
    """(status, attempts, attempts before the last retry) by (stage, instance id)."""
    rows: Any = context.db.execute(_RUNS, (command.pipeline_id, json.dumps(command.instance_ids)))
    return {(stage, instance_id): tuple(run) for stage, instance_id, *run in rows}


def _schema_index(context: Context) -> int:
    row: Any = context.db.execute("SELECT metadata_index FROM hadron_schema_index").fetchone()
    return row[0] if row is not None else 0


def _retentions(db: Database) -> list[tuple[int, Retention]]:
    """What each stream is to keep, by its id."""
    found = []
    rows: Any = db.execute(_STREAMS)
    for stream_id, text in rows:
        spec = spec_from_json("Stream", text)
        assert isinstance(spec, StreamSpec)
        found.append((stream_id, spec.retention))
    return found


def tables_lsn(connection: apsw.Connection) -> int:
    """Where the tables of a database stand; 0 when they cannot be asked."""
    try:
        row: Any = connection.execute(
            "SELECT value FROM hadron_meta WHERE key = 'applied_lsn'"
        ).fetchone()
    except apsw.SQLError:
        raise
    except apsw.Error:
        return 0
    return row[0] if row is not None and isinstance(row[0], int) else 0
