"""Stages that wait for a record, or for a person.

A wait is armed when its instance is made, so that what comes before the stage's turn counts, too;
what came before the instance was made does not: nobody waited for it. Records are told by the hash
of their key, which the leader has from the head of a batch: to whatever nobody waits for, nothing
is done. Safety rule: the entry that tells of records says where the cursor of their partition was,
and each wait is for one: the first (PIPELINES P14).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from hadron.model.errors import NotFoundError, RequestError
from hadron.model.ids import NO_BALLOT, Ballot
from hadron.model.pipelines import StageSpec, branch_of
from hadron.model.ports import Database
from hadron.model.problems import did_you_mean
from hadron.model.units import format_duration
from hadron.state import schema
from hadron.state.machine import BatchShape, Command, Context, NoChange
from hadron.state.names import label_of
from hadron.state.pipelines import branches, definitions, retries, stage_runs, wait_inputs, waiting
from hadron.state.pipelines.events import InstancesChanged
from hadron.state.pipelines.tables import (
    INSTANCE,
    STAGE_RUN,
    STAGE_WAIT,
    StageStatus,
    WaitStatus,
    is_here,
)
from hadron.state.schema import SCHEMA_OBJECT
from hadron.state.streams import partitions as streams
from hadron.state.streams.keys import hashes_of, signed
from hadron.state.streams.producers import Appended

OVER: Final = 0
ARMED: Final = 1
CAME: Final = 2
"""Of a wait."""

SLICE: Final = 500
"""Waits that are over by one entry; each may begin another stage, or end its instance."""

NO_KEY: Final = (
    "the record that triggered it has no key, by which another is awaited: publish it with one, or "
    "wait for a signal"
)
NO_KEY_NOW: Final = (
    "the record that triggered it has no key, by which another is awaited, or was gone when the "
    "instance was retried: publish it with one, or wait for a signal"
)


class Signal(NamedTuple):
    """A record that an instance waits for."""

    instance_id: int
    stage: str
    offset: int


class SignalStages(Command["wait_inputs.Moved"], frozen=True, array_like=True, tag=53):
    """Move the cursor of one partition of an awaited stream, and tell those who wait. A wait that
    is over, or has had its record, is passed over."""

    pipeline_id: int
    stream_id: int
    partition: str
    from_offset: int
    to_offset: int
    signals: tuple[Signal, ...]
    ballot: Ballot = NO_BALLOT
    """Of the batch before `to_offset`; none where the partition is in this log."""
    is_truncated: bool = False
    """The partition had lost what was looked at."""


class SignalInstance(Command["Signalled"], frozen=True, array_like=True, tag=54):
    """Somebody signals a stage that waits for it; the entry's body has what was said, as a record,
    where the stage has an output. `NoChange` where that was done before."""

    pipeline_id: int
    instance_id: int
    stage: str
    out_stream_id: int
    """0 when the stage has no output."""
    size: int
    """Bytes of the body."""

    @property
    def batches(self) -> tuple[BatchShape, ...]:
        return (BatchShape(1, self.size),) if self.out_stream_id else ()


class ExpireWaits(Command["Expired"], frozen=True, array_like=True, tag=55):
    """End what was to wait until `before_ms` at most: one slice, the oldest; without any, a slice
    of what waits for records of a stream that was deleted. `NoChange` when there is neither."""

    pipeline_id: int
    before_ms: int


class Signalled(msgspec.Struct, frozen=True):
    """`again`: it had been signalled before; what was said now is dropped."""

    appended: Appended | None
    again: bool = False


class Expired(msgspec.Struct, frozen=True):
    count: int
    is_done: bool


# --- arming -------------------------------------------------------------------------------------


def lacks_keys(db: Database, pipeline_id: int, packed: bytes) -> bool:
    """Whether instances are to be made whose keys must be known, by who does not know that yet: it
    was declared a moment ago."""
    return (
        not packed
        and is_here(db, pipeline_id)
        and wait_inputs.awaits(definitions.present(db, pipeline_id))
    )


def without_keys(db: Database, pipeline_id: int, ids: Sequence[int]) -> list[int]:
    """Those of these instances of whose triggers' keys nothing is known: they have none, or nothing
    was awaited by them."""
    rows: Any = db.execute(
        f"SELECT j.value FROM json_each(?) j WHERE NOT EXISTS (SELECT 1 FROM {STAGE_WAIT} w"
        " WHERE w.pipeline_id = ? AND w.instance_id = j.value AND w.key_hash IS NOT NULL)"
        " ORDER BY j.key",
        (json.dumps(list(ids)), pipeline_id),
    )
    return [each for (each,) in rows]


def arm(
    context: Context,
    pipeline_id: int,
    stages: Sequence[StageSpec],
    ids: Sequence[int],
    packed: bytes,
) -> None:
    """Instances are made, whose triggers have keys with these hashes."""
    keys = [signed(each) or None for each in hashes_of(packed)]
    keys += [None] * (len(ids) - len(keys))
    for stage in stages:
        if stage.wait is not None:
            stream_id = _stream_of(context.db, pipeline_id, stage)
            context.db.executemany(
                f"INSERT INTO {STAGE_WAIT} VALUES(?, ?, ?, 1, ?, ?, NULL, NULL, NULL, NULL)",
                [
                    (pipeline_id, instance_id, stage.name, stream_id, key)
                    for instance_id, key in zip(ids, keys, strict=False)
                ],
            )


def rearm(
    context: Context,
    pipeline_id: int,
    stages: Sequence[StageSpec],
    ids: Sequence[int],
    keys: Mapping[int, int],
) -> None:
    """Failed instances run again, with these stages: what they still need is awaited again. What
    came stays: nobody sends it twice.

    Args:
        keys: by instance, hashes of the triggers' keys, for those of which none is known.
    """
    db, some = context.db, json.dumps(list(ids))
    which = "pipeline_id = ?1 AND instance_id IN (SELECT value FROM json_each(?2))"
    for stage in stages:
        if stage.wait is not None:
            db.execute(
                f"INSERT INTO {STAGE_WAIT} SELECT ?1, value, ?3, 1, ?4,"
                f" (SELECT max(w.key_hash) FROM {STAGE_WAIT} w WHERE w.pipeline_id = ?1"
                " AND w.instance_id = value), NULL, NULL, NULL, NULL"
                " FROM json_each(?2) WHERE true ON CONFLICT DO UPDATE"
                f" SET stream_id = excluded.stream_id WHERE status <> {WaitStatus.CAME}",
                (pipeline_id, some, stage.name, _stream_of(db, pipeline_id, stage)),
            )
    db.executemany(
        f"UPDATE {STAGE_WAIT} SET key_hash = ? WHERE pipeline_id = ? AND instance_id = ?"
        " AND key_hash IS NULL",
        [(signed(keys[each]), pipeline_id, each) for each in ids if keys.get(each)],
    )
    db.execute(
        f"UPDATE {STAGE_WAIT} SET due_ms = NULL WHERE {which} AND NOT EXISTS (SELECT 1"
        f" FROM {STAGE_RUN} r WHERE r.pipeline_id = ?1 AND r.stage = {STAGE_WAIT}.stage"
        f" AND r.instance_id = {STAGE_WAIT}.instance_id AND r.status = {StageStatus.READY})",
        (pipeline_id, some),
    )
    names = json.dumps([stage.name for stage in stages if stage.wait is not None])
    db.execute(
        f"DELETE FROM {STAGE_WAIT} WHERE {which}"
        " AND stage NOT IN (SELECT value FROM json_each(?3))",
        (pipeline_id, some, names),
    )
    db.execute(
        f"UPDATE {STAGE_WAIT} SET status = {WaitStatus.ARMED}, due_ms = NULL WHERE {which}"
        f" AND status = {WaitStatus.OVER}"
        f" AND NOT EXISTS (SELECT 1 FROM {STAGE_RUN} r WHERE r.pipeline_id = ?1"
        f" AND r.stage = {STAGE_WAIT}.stage AND r.instance_id = {STAGE_WAIT}.instance_id"
        f" AND r.status NOT IN ({StageStatus.WAITING}, {StageStatus.READY}))",
        (pipeline_id, some),
    )


def disarm(db: Database, pipeline_id: int, ids: Sequence[int]) -> None:
    """Instances were cancelled."""
    db.execute(
        f"UPDATE {STAGE_WAIT} SET status = {WaitStatus.OVER}, due_ms = NULL WHERE pipeline_id = ?"
        f" AND instance_id IN (SELECT value FROM json_each(?)) AND status = {WaitStatus.ARMED}",
        (pipeline_id, json.dumps(list(ids))),
    )


def drop(db: Database, pipeline_id: int, ids: str) -> None:
    """Instances are dropped; `ids` is JSON."""
    db.execute(
        f"DELETE FROM {STAGE_WAIT} WHERE pipeline_id = ?"
        " AND instance_id IN (SELECT value FROM json_each(?))",
        (pipeline_id, ids),
    )


def _stream_of(db: Database, pipeline_id: int, stage: StageSpec) -> int | None:
    """None for one that waits for people."""
    assert stage.wait is not None
    if not stage.wait.stream:
        return None
    row = db.execute(f"SELECT namespace FROM {SCHEMA_OBJECT} WHERE id = ?", (pipeline_id,))
    ((namespace,),) = row.fetchall()
    found = schema.find(db, "Stream", namespace, stage.wait.stream)
    # One that is gone: it is given up when its turn comes.
    return found.id if found is not None else 0


# --- their turn ---------------------------------------------------------------------------------


def begin(context: Context, pipeline_id: int, stage: StageSpec, ids: Sequence[int]) -> None:
    """It is a stage's turn to wait, in those of these instances that are not beyond it."""
    assert stage.wait is not None
    db = context.db
    rows: list[Any] = db.execute(
        "SELECT w.instance_id, w.status, w.key_hash, w.stream_id IS NOT NULL AND NOT EXISTS"
        f" (SELECT 1 FROM {SCHEMA_OBJECT} o WHERE o.id = w.stream_id)"
        f" FROM json_each(?) j CROSS JOIN {STAGE_WAIT} w"
        " ON w.pipeline_id = ? AND w.instance_id = j.value AND w.stage = ?"
        f" JOIN {STAGE_RUN} r USING (pipeline_id, stage, instance_id)"
        f" WHERE r.status = {StageStatus.READY} ORDER BY j.key",
        (json.dumps(list(ids)), pipeline_id, stage.name),
    ).fetchall()
    came = [each for each, status, _, _ in rows if status == CAME]
    gone = [each for each, status, _, is_gone in rows if is_gone and status != CAME]
    armed = [(each, key) for each, status, key, is_gone in rows if status == ARMED and not is_gone]
    lost = [each for each, key in armed if key is None and stage.wait.stream]
    if stage.wait.timeout_ms:
        db.execute(
            f"UPDATE {STAGE_WAIT} SET due_ms = ? WHERE pipeline_id = ? AND stage = ?"
            " AND instance_id IN (SELECT value FROM json_each(?)) AND due_ms IS NULL",
            (
                context.now_ms + stage.wait.timeout_ms,
                pipeline_id,
                stage.name,
                json.dumps([each for each, key in armed if each not in set(lost)]),
            ),
        )
    retried = retries.of_these(db, pipeline_id, lost)
    fresh = [each for each in lost if each not in retried]
    _give_up(context, pipeline_id, stage, gone, _deleted(stage))
    _give_up(context, pipeline_id, stage, fresh, NO_KEY)
    _give_up(context, pipeline_id, stage, sorted(retried), NO_KEY_NOW)
    finish(context, pipeline_id, stage.name, came)


def _deleted(stage: StageSpec) -> str:
    """Why it is given up."""
    assert stage.wait is not None
    return (
        f"stream {stage.wait.stream}, of which it waits for a record, was deleted: retried, it "
        "goes on with what is declared then"
    )


def finish(context: Context, pipeline_id: int, stage: str, ids: Sequence[int]) -> None:
    """What a stage of these instances waited for has come, and it is its turn."""
    if not ids:
        return
    db, some = context.db, json.dumps(list(ids))
    db.execute(
        f"UPDATE {STAGE_RUN} AS r SET status = {StageStatus.DONE}, reason = NULL,"
        " out_stream_id = w.out_stream_id,"
        " out_partition = w.out_partition, out_offset = w.out_offset"
        f" FROM {STAGE_WAIT} w WHERE r.pipeline_id = ?1 AND r.stage = ?2"
        " AND r.instance_id IN (SELECT value FROM json_each(?3)) AND w.pipeline_id = ?1"
        " AND w.instance_id = r.instance_id AND w.stage = ?2",
        (pipeline_id, stage, some),
    )
    db.execute(
        f"UPDATE {STAGE_WAIT} SET due_ms = NULL WHERE pipeline_id = ? AND stage = ?"
        " AND instance_id IN (SELECT value FROM json_each(?))",
        (pipeline_id, stage, some),
    )
    stage_runs.count(db, pipeline_id, stage, ready=-len(ids), done=len(ids))
    for version, stages, chosen in _by_version(db, pipeline_id, ids):
        (waiting,) = (each for each in stages if each.name == stage)
        for each in stages:
            if each.name == branch_of(waiting):
                branches.skip(context, pipeline_id, version, stages, each, chosen)
    stage_runs.advance(context, pipeline_id, stage, ids)


def _by_version(
    db: Database, pipeline_id: int, ids: Sequence[int]
) -> list[tuple[int, list[StageSpec], list[int]]]:
    """(version, stages without the one for what is given up, instances)."""
    declared = definitions.all_stages(db, pipeline_id)
    on_failure = definitions.on_failure(db, pipeline_id)
    return [
        (version, [stage for stage in declared[version] if stage.name != on_failure[version]], some)
        for version, some in definitions.by_version(db, pipeline_id, ids).items()
    ]


def _give_up(
    context: Context, pipeline_id: int, stage: StageSpec, ids: Sequence[int], reason: str
) -> None:
    """Nothing will come."""
    if not ids:
        return
    _end(context, pipeline_id, stage.name, ids, 3, reason)
    stage_runs.give_up(context, pipeline_id, stage.name, ids)


def _end(
    context: Context, pipeline_id: int, stage: str, ids: Sequence[int], status: int, reason: str
) -> None:
    """A stage that was ready waits no more."""
    some = json.dumps(list(ids))
    context.db.execute(
        f"UPDATE {STAGE_RUN} SET status = ?, reason = ? WHERE pipeline_id = ? AND stage = ?"
        " AND instance_id IN (SELECT value FROM json_each(?))",
        (status, reason, pipeline_id, stage, some),
    )
    context.db.execute(
        f"UPDATE {STAGE_WAIT} SET status = {WaitStatus.OVER}, due_ms = NULL WHERE pipeline_id = ?"
        " AND instance_id IN (SELECT value FROM json_each(?)) AND stage = ?",
        (pipeline_id, some, stage),
    )


# --- commands -----------------------------------------------------------------------------------


def apply_signal_stages(context: Context, command: SignalStages) -> wait_inputs.Moved:
    """Raises `NotFoundError` for a partition that is not looked at."""
    db, pipeline_id = context.db, command.pipeline_id
    wait_inputs.move(
        context,
        (pipeline_id, command.stream_id, command.partition),
        command.from_offset,
        command.to_offset,
        command.ballot,
        is_truncated=command.is_truncated,
    )
    came: dict[str, list[int]] = defaultdict(list)
    for signal in command.signals:
        db.execute(
            f"UPDATE {STAGE_WAIT} SET status = {WaitStatus.CAME}, due_ms = NULL,"
            " out_stream_id = ?5,"
            " out_partition = ?6, out_offset = ?4"
            " WHERE pipeline_id = ?1 AND instance_id = ?2 AND stage = ?3"
            f" AND status = {WaitStatus.ARMED} AND stream_id = ?5",
            (pipeline_id, *signal, command.stream_id, command.partition),
        )
        if db.changes():
            came[signal.stage].append(signal.instance_id)
    for stage, ids in came.items():
        finish(context, pipeline_id, stage, _whose_turn(db, pipeline_id, stage, ids))
    if came:
        context.emit(InstancesChanged(pipeline_id))
    return wait_inputs.Moved(command.to_offset)


def _whose_turn(db: Database, pipeline_id: int, stage: str, ids: Sequence[int]) -> list[int]:
    rows: list[Any] = db.execute(
        f"SELECT r.instance_id FROM json_each(?) j CROSS JOIN {STAGE_RUN} r ON r.pipeline_id = ?"
        " AND r.stage = ? AND r.instance_id = j.value"
        f" WHERE r.status = {StageStatus.READY} ORDER BY j.key",
        (json.dumps(list(ids)), pipeline_id, stage),
    ).fetchall()
    return [each for (each,) in rows]


def apply_signal_instance(context: Context, command: SignalInstance) -> Signalled:
    """Raises what `awaited_signal` does, and `RequestError` for a stage that waits no more."""
    db, key = context.db, (command.pipeline_id, command.instance_id, command.stage)
    status, said = awaited_signal(db, *key)
    what = f"stage {command.stage!r} of instance {command.instance_id}"
    if status == CAME:
        raise NoChange(Signalled(said, again=True))
    if status == OVER:
        raise RequestError(
            f"{what} does not wait any more",
            "its time has passed, or the instance was cancelled, or goes another way",
        )
    appended = None
    place: tuple[int | None, str | None, int | None] = None, None, None
    if command.out_stream_id:
        appended = streams.append(context, command.out_stream_id, 1, command.size)
        place = command.out_stream_id, context.replica_set, appended.base_offset
    db.execute(
        f"UPDATE {STAGE_WAIT} SET status = {WaitStatus.CAME}, due_ms = NULL, out_stream_id = ?,"
        " out_partition = ?,"
        " out_offset = ? WHERE pipeline_id = ? AND instance_id = ? AND stage = ?",
        (*place, *key),
    )
    ids = [command.instance_id]
    finish(context, key[0], command.stage, _whose_turn(db, key[0], command.stage, ids))
    context.emit(InstancesChanged(command.pipeline_id))
    return Signalled(appended)


def awaited_signal(
    db: Database, pipeline_id: int, instance_id: int, stage: str
) -> tuple[int, Appended | None]:
    """Of a wait for a signal: its status, and where what was said with one is. Raises
    `NotFoundError` for an instance or a stage that is not here or waits for nothing, `RequestError`
    for one that waits for a record."""
    row: Any = db.execute(
        f"SELECT status, stream_id, out_stream_id, out_offset FROM {STAGE_WAIT}"
        " WHERE pipeline_id = ? AND instance_id = ? AND stage = ?",
        (pipeline_id, instance_id, stage),
    ).fetchone()
    if row is None or not is_here(db, pipeline_id):
        raise _missing(db, pipeline_id, instance_id, stage)
    status, stream_id, out_stream_id, out_offset = row
    if stream_id is not None:
        hint = "publish one to its stream, with the key of the instance's trigger"
        if not db.execute(f"SELECT 1 FROM {SCHEMA_OBJECT} WHERE id = ?", (stream_id,)).fetchall():
            hint = "its stream was deleted: retried, the instance goes on with what is declared"
        raise RequestError(
            f"stage {stage!r} of instance {instance_id} waits for a record, not for a signal", hint
        )
    return status, None if out_stream_id is None else Appended(out_offset, 1, 0, -1)


def _missing(db: Database, pipeline_id: int, instance_id: int, stage: str) -> NotFoundError:
    """What is told of a wait that is not there."""
    row = db.execute(
        f"SELECT version FROM {INSTANCE} WHERE pipeline_id = ? AND instance_id = ?",
        (pipeline_id, instance_id),
    ).fetchone()
    label = label_of(db, pipeline_id)
    if row is None:
        return NotFoundError(
            f"{label} has no instance {instance_id}: a signal is for one that is there already"
        )
    known = definitions.all_stages(db, pipeline_id).get(row[0], ())
    waiting = [each.name for each in known if each.wait is not None and each.wait.signal]
    hint = (
        f"of its stages these wait for a signal: {', '.join(waiting)}"
        if waiting
        else "none of its stages waits for a signal"
    )
    if any(each.name == stage for each in known):
        return NotFoundError(
            f"stage {stage!r} of instance {instance_id} of {label} waits for no signal", hint
        )
    close = did_you_mean(stage, waiting)
    return NotFoundError(f"instance {instance_id} of {label} has no stage {stage!r}{close}", hint)


def apply_expire_waits(context: Context, command: ExpireWaits) -> Expired:
    db, pipeline_id = context.db, command.pipeline_id
    rows: list[Any] = []
    if is_here(db, pipeline_id):
        rows = db.execute(
            f"SELECT stage, instance_id FROM {STAGE_WAIT} WHERE pipeline_id = ?"
            f" AND status = {WaitStatus.ARMED}"
            " AND due_ms IS NOT NULL AND due_ms <= ? ORDER BY due_ms, instance_id, stage LIMIT ?",
            (pipeline_id, command.before_ms, SLICE + 1),
        ).fetchall()
    if not rows:
        return _expire_deleted(context, pipeline_id)
    due: dict[str, list[int]] = defaultdict(list)
    for stage, instance_id in rows[:SLICE]:
        due[stage].append(instance_id)
    for name, ids in due.items():
        for version, stages, some in _by_version(db, pipeline_id, ids):
            (stage,) = (each for each in stages if each.name == name)
            _expire(context, pipeline_id, version, stages, stage, some)
    context.emit(InstancesChanged(pipeline_id))
    return Expired(min(len(rows), SLICE), is_done=len(rows) <= SLICE)


def _expire_deleted(context: Context, pipeline_id: int) -> Expired:
    """These wait for records of streams that were deleted: whose turn it is is given up; others are
    when their turn comes, if it does. Raises `NoChange` without any."""
    db = context.db
    rows: list[Any] = [
        row
        for stream_id in waiting.deleted_streams(db, pipeline_id)
        if is_here(db, pipeline_id)
        for row in db.execute(
            f"SELECT stage, instance_id FROM {STAGE_WAIT} INDEXED BY {STAGE_WAIT}_key"
            f" WHERE pipeline_id = ? AND stream_id = ? AND status = {WaitStatus.ARMED}"
            " AND key_hash IS NOT NULL ORDER BY key_hash, instance_id, stage LIMIT ?",
            (pipeline_id, stream_id, SLICE + 1),
        )
    ]
    if not rows:
        raise NoChange(Expired(0, is_done=True))
    chosen: dict[str, list[int]] = defaultdict(list)
    for name, instance_id in rows[:SLICE]:
        chosen[name].append(instance_id)
    for name, ids in chosen.items():
        db.execute(
            f"UPDATE {STAGE_WAIT} SET status = {WaitStatus.OVER}, due_ms = NULL"
            " WHERE pipeline_id = ? AND instance_id IN (SELECT value FROM json_each(?))"
            " AND stage = ?",
            (pipeline_id, json.dumps(ids), name),
        )
        turns = _whose_turn(db, pipeline_id, name, ids)
        for _, stages, some in _by_version(db, pipeline_id, turns):
            (stage,) = (each for each in stages if each.name == name)
            _give_up(context, pipeline_id, stage, some, _deleted(stage))
    context.emit(InstancesChanged(pipeline_id))
    return Expired(min(len(rows), SLICE), is_done=len(rows) <= SLICE)


def _expire(
    context: Context,
    pipeline_id: int,
    version: int,
    stages: Sequence[StageSpec],
    stage: StageSpec,
    ids: Sequence[int],
) -> None:
    """These have waited for too long."""
    assert stage.wait is not None
    what = f"no record of {stage.wait.stream} with the key of its trigger"
    reason = f"{what if stage.wait.stream else 'no signal'} came in time"
    if stage.wait.timeout_ms:
        reason = reason.replace("in time", f"within {format_duration(stage.wait.timeout_ms)}")
    name = branch_of(stage)
    if not name:
        _give_up(context, pipeline_id, stage, ids, reason)
        return
    _end(context, pipeline_id, stage.name, ids, 6, reason)
    stage_runs.count(context.db, pipeline_id, stage.name, ready=-len(ids))
    branches.pass_by(context, pipeline_id, version, stages, stage.name, ids)
    for each in stages:
        if each.name == name:
            stage_runs.make_ready(context, pipeline_id, version, each, ids)
