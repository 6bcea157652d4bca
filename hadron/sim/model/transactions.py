"""Transactions: what others drive was prepared and finished, what was decided here (E1, E2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from hadron.model.errors import ConflictError, NotFoundError, RequestError, StaleCompletionError
from hadron.model.kinds import spec_from_json
from hadron.model.schema import StreamSpec
from hadron.model.transactions import Participant, TransactionId
from hadron.sim.model.entry import Entry, Known, Refused, Rows
from hadron.sim.model.groups import Groups, ranges_of
from hadron.sim.model.pipelines import Declared, Pipelines
from hadron.sim.model.staging import Staging
from hadron.sim.model.streams import Body, Streams
from hadron.state.features import MACHINE
from hadron.state.groups.endings import DeadLetterRecords, EndDeliveries
from hadron.state.groups.progress import AckRecords
from hadron.state.machine import Command
from hadron.state.pipelines.publishing import PublishStages
from hadron.state.pipelines.stage_runs import CompleteStages, FailStages
from hadron.state.sinks.progress import AdvanceSink
from hadron.state.sinks.staging import PublishStaged
from hadron.state.slices import SLICE_ROWS
from hadron.state.streams.partitions import AppendBatch, AppendGuarded
from hadron.state.transactions.decisions import (
    FORGOTTEN_BLOCKS,
    Decide,
    ForgetDecisions,
    NoteFinished,
)
from hadron.state.transactions.intents import (
    AbortTransaction,
    FinishTransaction,
    ForgetTransactions,
    WriteIntents,
)
from hadron.state.transactions.joint_decisions import DecideAppends, DecideRun

_Result = tuple[int, int, int, bool]
_DONE: Final = (-1, 0, 0, False)
_DELETED: Final = (-1, 0, 0, True)

_Key = tuple[str, int, str]
"""Of locks: group or stage, whose, and the stage's name; staged and a write; sink and its name."""


@dataclass(slots=True)
class Intent:
    """What one entry has prepared."""

    lsn: int
    statements: tuple[bytes, ...]

    @property
    def size(self) -> int:
        return sum(size_of(MACHINE.decode(each)) for each in self.statements)


@dataclass(slots=True)
class Part:
    """A transaction that another set drives: its intents by first number, then their results."""

    lsn: int
    since_ms: int
    intents: dict[int, Intent] = field(default_factory=dict)
    count: int = 0
    size: int = 0
    changes: int = 0
    results: list[_Result] | None = None


@dataclass(slots=True)
class Decision:
    lsn: int
    decided_ms: int
    results: list[_Result]
    participants: tuple[Participant, ...]
    finished_ms: int | None
    id: int
    total_bytes: int
    """Of all results up to these."""
    finished: dict[str, list[_Result]] = field(default_factory=dict)


@dataclass(slots=True)
class Transactions:
    """Attributes:
    locks: by what they are of, pieces: (first, last, the entry of whose first intent).
    forgotten: by (epoch, incarnation, block, or -1 for all up to there) the highest number.
    """

    replica_set: str
    streams: Streams
    groups: Groups
    pipelines: Pipelines
    staging: Staging
    objects: Mapping[int, Declared]
    parts: dict[TransactionId, Part] = field(default_factory=dict)
    locks: dict[_Key, list[tuple[int, int, int]]] = field(default_factory=dict)
    decisions: dict[TransactionId, Decision] = field(default_factory=dict)
    forgotten: dict[tuple[int, int, int], int] = field(default_factory=dict)

    # --- participants ----------------------------------------------------------------------------

    def write(self, entry: Entry, command: WriteIntents) -> tuple[int, int]:
        tx, first, count = command.transaction, command.first_number, len(command.statements)
        if not count:
            raise Refused(RequestError)
        part = self.parts.get(tx)
        if part is not None:
            known = part.lsn, part.count
            if part.results is not None:
                if first + count <= part.count:
                    raise Known(known)
                raise Refused(RequestError)
            same = part.intents.get(first)
            if same is not None and same.statements == command.statements:
                raise Known(known)
            taken = {n for at, each in part.intents.items() for n in _numbers(at, each)}
            if taken & set(range(first, first + count)):
                raise Refused(RequestError)
        part = self.parts.setdefault(tx, Part(entry.lsn, entry.now_ms))
        intent = Intent(entry.lsn, command.statements)
        for each in map(MACHINE.decode, command.statements):
            self._check(each)
            for key, ranges in ends(each):
                for wanted in ranges:
                    self._take(key, wanted, part.lsn)
            if isinstance(each, AppendGuarded):
                self.streams.take_keys(each, part.lsn)
        if intent.size:
            self.streams.bodies[entry.lsn] = Body(intent.size, entry.now_ms, entry.ballot, holds=1)
        part.intents[first] = intent
        part.count += count
        part.size += intent.size
        part.changes += sum(_changes(MACHINE.decode(each)) for each in command.statements)
        return part.lsn, part.count

    def finish(self, entry: Entry, command: FinishTransaction) -> list[dict[str, Any]]:
        part = self.parts.get(command.transaction)
        if part is None:
            raise Refused(NotFoundError)
        if (part.lsn, part.count) != (command.prepared_lsn, command.count):
            raise Refused(RequestError)
        if part.results is not None:
            raise Known(_told(part.results))
        numbers = [n for at, each in part.intents.items() for n in _numbers(at, each)]
        if max(numbers) + 1 != part.count:
            raise Refused(RequestError)
        self._free(part.lsn)
        part.results = []
        for _, intent in sorted(part.intents.items()):
            at = 0
            for each in map(MACHINE.decode, intent.statements):
                placed = replace(entry, command=each, start=at, body_lsn=intent.lsn)
                part.results.append(self._do(placed))
                at += size_of(each)
            if intent.size:
                self.streams.bodies[intent.lsn].holds -= 1
        part.intents.clear()
        part.since_ms = entry.now_ms
        return _told(part.results)

    def abort(self, _entry: Entry, command: AbortTransaction) -> None:
        part = self.parts.get(command.transaction)
        if part is None:
            raise Known(None)
        if part.results is not None:
            raise Refused(RequestError)
        self._free(part.lsn)
        for intent in part.intents.values():
            if intent.size:
                self.streams.bodies[intent.lsn].holds -= 1
        del self.parts[command.transaction]

    def forget(self, _entry: Entry, command: ForgetTransactions) -> list[TransactionId]:
        here = {each: part for each in command.transactions if (part := self.parts.get(each))}
        over = [each for each, part in here.items() if part.results is not None]
        left = [
            each for each in command.transactions if each in here and here[each].results is None
        ]
        if not over:
            raise Known(left)
        for each in over:
            del self.parts[each]
        return left

    # --- the driver ------------------------------------------------------------------------------

    def decide(self, entry: Entry, command: Decide) -> dict[str, Any]:
        tx = command.transaction
        if tx in self.decisions:
            raise Known(_decided(self.decisions[tx]))
        names = [each.replica_set for each in command.participants]
        is_own = tx.replica_set == self.replica_set and tx.ballot == entry.ballot
        if not is_own or len(set(names)) < len(names):
            raise Refused(RequestError)
        if command.statements and self.replica_set in names:
            raise Refused(RequestError)
        if not names and not command.statements:
            raise Refused(RequestError)
        commands = [MACHINE.decode(each) for each in command.statements]
        for each in commands:
            self._check(each)
            self.check_free(each)
            if isinstance(each, AppendGuarded):
                self.streams.check_keys_free(each)
        _check_once(commands)
        sizes = [size for each in commands if (size := size_of(each))]
        if len(sizes) > 1:
            self.streams.bodies[entry.lsn] = Body(sum(sizes), entry.now_ms, entry.ballot)
        results, at = [], 0
        for each in commands:
            start = at if len(sizes) > 1 else None
            results.append(self._do(replace(entry, command=each, start=start)))
            at += size_of(each)
        if _DELETED in results:
            raise Refused(RequestError)
        return _decided(self._keep(entry, tx, results, command.participants))

    def decide_appends(self, entry: Entry, command: DecideAppends) -> list[dict[str, Any]]:
        """As a `Decide` of each, whose batches are all in one body."""
        ids = [
            TransactionId.of(command.replica_set, command.ballot, number)
            for number, _, _ in command.transactions
        ]
        if command.replica_set != self.replica_set or command.ballot != entry.ballot:
            raise Refused(RequestError)
        for _, appends, others in command.transactions:
            names = [each.replica_set for each in others]
            if len(set(names)) < len(names) or not (appends or names):
                raise Refused(RequestError)
            if appends and self.replica_set in names:
                raise Refused(RequestError)
        sizes = [each.size for _, appends, _ in command.transactions for each in appends]
        for _, appends, _ in command.transactions:
            for each in appends:
                self._check(each)
        if len(set(ids)) < len(ids) or any(tx in self.decisions for tx in ids):
            raise Refused(RequestError)
        if sizes:
            self.streams.bodies[entry.lsn] = Body(sum(sizes), entry.now_ms, entry.ballot)
        decided, at = [], 0
        for tx, (_, appends, others) in zip(ids, command.transactions, strict=True):
            results = []
            for each in appends:
                results.append(self._do(replace(entry, command=each, start=at)))
                at += each.size
            decided.append(_decided(self._keep(entry, tx, results, others)))
        return decided

    def decide_run(self, entry: Entry, command: DecideRun) -> dict[str, Any]:
        """As a `Decide` of each, whose records are all in one batch."""
        first, append = command.transaction, MACHINE.decode(command.statement)
        ids = [
            first._replace(number=number) for number, _ in enumerate(command.records, first.number)
        ]
        if first.replica_set != self.replica_set or first.ballot != entry.ballot:
            raise Refused(RequestError)
        if type(append) is not AppendBatch or not all(command.records) or not ids:
            raise Refused(RequestError)
        if sum(command.records) != append.count:
            raise Refused(RequestError)
        self._check(append)
        if any(tx in self.decisions for tx in ids):
            raise Refused(RequestError)
        whole = self._do(replace(entry, command=append, start=None))
        base, _, stamp, _ = whole
        for tx, count in zip(ids, command.records, strict=True):
            self._keep(entry, tx, [(base, count, stamp, False)], ())
            base += count
        return _decided(Decision(entry.lsn, entry.now_ms, [whole], (), entry.now_ms, 0, 0))

    def _keep(
        self,
        entry: Entry,
        tx: TransactionId,
        results: list[_Result],
        participants: tuple[Participant, ...],
    ) -> Decision:
        latest = max(self.decisions.values(), key=lambda each: each.id, default=None)
        before, total = (latest.id, latest.total_bytes) if latest is not None else (0, 0)
        total += len(_packed(results)) + 24 * sum(each.statements for each in participants)
        finished_ms = None if participants else entry.now_ms
        decision = self.decisions[tx] = Decision(
            entry.lsn, entry.now_ms, results, participants, finished_ms, before + 1, total
        )
        return decision

    def note(self, entry: Entry, command: NoteFinished) -> list[bool]:
        """Each in turn; who is refused takes the others with it."""
        for note in command.notes:
            if (decision := self.decisions.get(note.transaction)) is None:
                raise Refused(NotFoundError)
            if _expected(decision).get(note.participant) != len(note.results):
                raise Refused(RequestError)
        told, is_new = [], False
        for tx, participant, results in command.notes:
            decision = self.decisions[tx]
            if participant not in decision.finished:
                is_new = True
                came = [
                    (each.base_offset, each.count, each.append_ms, each.is_deleted)
                    for each in results
                ]
                decision.finished[participant] = came
                self.pipelines.published(entry, decision.lsn, participant, came)
                if len(decision.finished) == len(_expected(decision)):
                    decision.finished_ms = entry.now_ms
            told.append(decision.finished_ms is not None)
        if not is_new:
            raise Known(told)
        return told

    def forget_decisions(self, _entry: Entry, command: ForgetDecisions) -> dict[str, Any]:
        latest = max(self.decisions.values(), key=lambda each: each.id, default=None)
        over = [
            (decision.id, tx)
            for tx, decision in self.decisions.items()
            if decision.finished_ms is not None
            and latest is not None
            and (
                decision.finished_ms < command.before_ms
                or latest.id - decision.id >= command.max_rows
                or latest.total_bytes - decision.total_bytes >= command.max_bytes
            )
        ]
        result = {"rows": min(len(over), SLICE_ROWS), "bytes": 0, "is_done": True}
        assert len(over) < SLICE_ROWS, "commands by chance make no more"
        if not over:
            raise Known(result)
        for _, tx in sorted(over):
            del self.decisions[tx]
            self._note_forgotten(tx.epoch, tx.incarnation, tx.number >> 20, tx.number)
        blocks = sorted(key for key in self.forgotten if key[2] >= 0)
        for key in blocks[: max(0, len(blocks) - FORGOTTEN_BLOCKS)]:
            del self.forgotten[key]
            self._note_forgotten(key[0], key[1], -1, ((key[2] + 1) << 20) - 1)
        return result

    def _note_forgotten(self, epoch: int, incarnation: int, block: int, number: int) -> None:
        key = epoch, incarnation, block
        self.forgotten[key] = max(number, self.forgotten.get(key, 0))

    # --- locks -----------------------------------------------------------------------------------

    def check_free(self, command: Command) -> None:
        """Nobody ends what a transaction holds."""
        for key, ranges in ends(command):
            for wanted in ranges:
                if self._pieces(key, wanted):
                    raise Refused(ConflictError)

    def check_stages_free(self, pipeline_id: int, instance_ids: Sequence[int]) -> None:
        """Of these instances none, whatever stage."""
        for (kind, owner_id, _), held in self.locks.items():
            if (kind, owner_id) == ("stage", pipeline_id) and any(
                first <= each <= last for first, last, _ in held for each in instance_ids
            ):
                raise Refused(ConflictError)

    def is_publishing(self, write: bytes) -> bool:
        """Whether one that is prepared here publishes what was staged of it."""
        return bool(self.locks.get(_of_write(write)))

    def _pieces(self, key: _Key, wanted: tuple[int, int]) -> list[tuple[int, int, int]]:
        held = self.locks.get(key, [])
        return sorted(each for each in held if each[0] <= wanted[1] and each[1] >= wanted[0])

    def _take(self, key: _Key, wanted: tuple[int, int], lsn: int) -> None:
        free = set(range(wanted[0], wanted[1] + 1))
        for first, last, owner in self._pieces(key, wanted):
            if owner != lsn:
                raise Refused(ConflictError)
            if key[0] != "group":
                raise Refused(RequestError)
            free -= set(range(first, last + 1))
        self.locks.setdefault(key, []).extend((*piece, lsn) for piece in ranges_of(sorted(free)))

    def _free(self, lsn: int) -> None:
        self.streams.free_keys(lsn)
        self.locks = {
            key: [each for each in held if each[2] != lsn] for key, held in self.locks.items()
        }

    # --- statements ------------------------------------------------------------------------------

    def _check(self, command: Command) -> None:
        """E2: what could refuse it later refuses it now."""
        if isinstance(command, AppendBatch):
            if command.producer_id:
                raise Refused(RequestError)
            if isinstance(command, AppendGuarded) and (
                command.expect_offset is not None or command.last_sequence != -1
            ):
                raise Refused(RequestError)
            self.streams.bounds(command.stream_id)
            if isinstance(command, AppendGuarded):
                self.streams.check_conditions(command)
            if type(command) is AppendBatch and self._is_indexed(command.stream_id):
                raise Refused(RequestError)
        elif isinstance(command, AckRecords):
            group = self.groups.find(command.group_id)
            _, following = self.streams.bounds(group.stream_id)
            for first, last in command.ranges:
                if not 0 <= first <= last < following:
                    raise Refused(RequestError)
                if any(group.is_done(offset) for offset in range(first, last + 1)):
                    raise Refused(RequestError)
        elif isinstance(command, CompleteStages | FailStages | PublishStages):
            if command.pipeline_id not in self.objects:
                raise Refused(NotFoundError)
            if self.pipelines.stale(command):
                raise Refused(StaleCompletionError)
            if isinstance(command, CompleteStages) and command.out_stream_id:
                self.streams.bounds(command.out_stream_id)
        elif isinstance(command, PublishStaged):
            self.staging.check_publication(command)
        elif isinstance(command, AdvanceSink):
            self.staging.check_advance(command)
        else:
            raise Refused(RequestError)

    def _is_indexed(self, stream_id: int) -> bool:
        spec = spec_from_json("Stream", self.objects[stream_id].spec)
        return isinstance(spec, StreamSpec) and spec.has_key_index

    def _do(self, entry: Entry) -> _Result:
        """What a statement comes to, whatever was deleted since it was checked."""
        command = entry.command
        if isinstance(command, AppendBatch):
            if command.stream_id not in self.streams.open:
                return _DELETED
            base = self.streams.append(entry, command.stream_id, command.count, command.size)
            if isinstance(command, AppendGuarded):
                self.streams.note_keys(command, base)
            return base, command.count, entry.now_ms, False
        if isinstance(command, AckRecords):
            group = self.groups.by_id.get(command.group_id)
            if group is None or group.stream_id not in self.streams.open:
                return _DELETED
            self.groups.acknowledge(entry, command)
            return _DONE
        if isinstance(command, AdvanceSink):
            self.staging.advance(entry, command)
            return _DONE
        if isinstance(command, PublishStaged):
            published = self.staging.publish(entry, command)
            return (*published, entry.now_ms, False) if published is not None else _DELETED
        assert isinstance(command, CompleteStages | FailStages | PublishStages)
        pipeline = self.pipelines.by_id.get(command.pipeline_id)
        if pipeline is None or not pipeline.is_here or self.pipelines.stale(command):
            return _DELETED
        if isinstance(command, PublishStages):
            self.pipelines.publish(entry, command)
            return _DONE
        if isinstance(command, FailStages):
            try:
                self.pipelines.fail(entry, command)
            except Known:
                return _DELETED
            return _DONE
        if command.out_stream_id and command.out_stream_id not in self.streams.open:
            return _DELETED
        done = self.pipelines.complete(entry, command)["appended"]
        return _DONE if done is None else (done["base_offset"], done["count"], entry.now_ms, False)

    def rows(self) -> Rows:
        return {
            "participation": [
                (
                    part.lsn,
                    *tx,
                    part.count,
                    part.size,
                    part.changes,
                    part.since_ms,
                    None if part.results is None else _packed(part.results),
                )
                for tx, part in self.parts.items()
            ],
            "intent": [
                (
                    intent.lsn,
                    part.lsn,
                    first,
                    len(intent.statements),
                    intent.size,
                    _packed(intent.statements),
                )
                for part in self.parts.values()
                for first, intent in part.intents.items()
            ],
            "lock": [(*key, *piece) for key, held in self.locks.items() for piece in held],
            "decision": [
                (
                    d.id,
                    d.lsn,
                    *tx[1:],
                    d.decided_ms,
                    d.finished_ms,
                    _packed(d.results),
                    d.total_bytes,
                )
                for tx, d in self.decisions.items()
            ],
            "decision_part": [
                (d.id, at, *each, _packed(done) if done is not None else None)
                for d in self.decisions.values()
                for at, each in enumerate(d.participants)
                for done in [d.finished.get(each.replica_set)]
            ],
            "decision_forgotten": [(*key, number) for key, number in self.forgotten.items()],
        }


def ends(command: Command) -> list[tuple[_Key, list[tuple[int, int]]]]:
    """Which deliveries or stages a command ends, of whatever kind it is."""
    if isinstance(command, AckRecords | DeadLetterRecords):
        return [(("group", command.group_id, ""), list(command.ranges))]
    if isinstance(command, EndDeliveries):
        return [(("group", command.group_id, ""), list(command.acknowledged))]
    if isinstance(command, CompleteStages | FailStages | PublishStages):
        ids = ranges_of(sorted(set(command.instance_ids)))
        return [(("stage", command.pipeline_id, command.stage), ids)]
    if isinstance(command, PublishStaged):
        return [(_of_write(command.write_id), [(0, 0)])]
    if isinstance(command, AdvanceSink):
        return [(("sink", 0, command.name), [(0, 0)])]
    return []


def _of_write(write: bytes) -> _Key:
    return "staged", 0, write.hex()


def _check_once(commands: Sequence[Command]) -> None:
    """A write is published once, and a sink advanced once; what ends stages twice is refused when
    it is done."""
    once = [
        key
        for each in commands
        if isinstance(each, PublishStaged | AdvanceSink)
        for key, _ in ends(each)
    ]
    if len(set(once)) < len(once):
        raise Refused(RequestError)


def size_of(command: Command) -> int:
    """Bytes of the batch that a statement brings; 0 when it brings none."""
    has_batch = isinstance(command, AppendBatch) or (
        isinstance(command, CompleteStages) and command.out_stream_id
    )
    return int(command.size) if has_batch else 0  # type: ignore[attr-defined]


def _changes(command: Command) -> int:
    """How many rows of tables a statement changes, about."""
    if isinstance(command, AppendGuarded):
        return 1 + len(command.key_hashes) // 8
    if isinstance(command, PublishStaged):
        return sum(count for _, count in command.attempts)
    many = getattr(command, "ranges", getattr(command, "instance_ids", (0,)))
    return len(many)


def _numbers(first: int, intent: Intent) -> range:
    return range(first, first + len(intent.statements))


def _packed(values: Sequence[Any]) -> bytes:
    return msgspec.msgpack.encode(values)


def _told(results: list[_Result]) -> list[dict[str, Any]]:
    names = "base_offset", "count", "append_ms", "is_deleted"
    return [dict(zip(names, each, strict=True)) for each in results]


def _expected(decision: Decision) -> dict[str, int]:
    return {each.replica_set: each.statements for each in decision.participants}


def _decided(decision: Decision) -> dict[str, Any]:
    return {
        "lsn": decision.lsn,
        "decided_ms": decision.decided_ms,
        "results": _told(decision.results),
        "unfinished": [
            each for each in decision.participants if each.replica_set not in decision.finished
        ],
    }
