"""What transactions come to, written a second time with sets and dicts; and a file with streams, a
group and a pipeline that both are played on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import apsw

from hadron.fakes.tables import Dump, dump
from hadron.model.errors import (
    ConflictError,
    HadronError,
    NotFoundError,
    OffsetMismatchError,
    RequestError,
    StaleCompletionError,
)
from hadron.model.pipelines import Output, PipelineSpec, Retry, StageSpec
from hadron.model.ranges import runs
from hadron.model.schema import StreamSpec, spec_to_json
from hadron.model.transactions import DELETED, DONE, StatementResult, TransactionId
from hadron.state import schema
from hadron.state.execute import execute_logged
from hadron.state.groups.progress import AckRecords, CreateGroup
from hadron.state.machine import Command, Context, encode
from hadron.state.pipelines.inputs import TriggerInstances
from hadron.state.pipelines.stage_runs import CompleteStages, FailStages
from hadron.state.schema import ApplySchema, ObjectChange
from hadron.state.streams.checks import BodiesCheck, StreamsCheck
from hadron.state.streams.partitions import AppendBatch, AppendGuarded
from hadron.state.tests.parted import BALLOT, MACHINE, SET, Parted, a_batch
from hadron.state.transactions.checks import TransactionsCheck
from hadron.storage import bodies
from hadron.storage.report import Report

RECORDS = 16
"""In stream 0 to begin with: a group acknowledges them, and each is an instance's trigger."""


class Transacting(Parted):
    """Three streams, a group of stream 0, and a pipeline with one stage, whose instances 1 to 16
    are ready and whose outputs go to stream 2. A fourth stream has an index of keys."""

    def __init__(self) -> None:
        super().__init__(3)
        keyed = spec_to_json(StreamSpec(partitions=(SET,), keys="indexed")).decode()
        declare = ObjectChange("Stream", "default", "keyed", keyed)
        (stream,) = self.result(ApplySchema(schema.current_index(self.db), (declare,)))
        self.streams.append(stream.id)
        data = a_batch("trigger", RECORDS)
        self.result(AppendBatch(self.streams[0], RECORDS, len(data), b"", 0, -1), data)
        self.group: int = self.result(CreateGroup(self.streams[0], "g", 0)).group_id
        stage = StageSpec(name="one", run="m:f", retry=Retry(2, 100), output=Output("s2"))
        spec = PipelineSpec(replica_set=SET, input="s0", stages=(stage,), start="earliest")
        change = ObjectChange("Pipeline", "default", "p", spec_to_json(spec).decode())
        (item,) = self.result(ApplySchema(schema.current_index(self.db), (change,)))
        self.pipeline: int = item.id
        offsets = tuple(range(RECORDS))
        self.result(TriggerInstances(self.pipeline, SET, 0, RECORDS, offsets))

    # --- statements, each with its batch ----------------------------------------------------------

    def publish(self, stream: int, text: str) -> tuple[AppendBatch, bytes]:
        data = a_batch(text)
        return AppendBatch(self.streams[stream], 1, len(data), b"", 0, -1), data

    def publish_keyed(
        self, key: int, text: str, after: int | None = None
    ) -> tuple[AppendGuarded, bytes]:
        data, packed = a_batch(text), key.to_bytes(8, "little")
        guarded = AppendGuarded(
            self.streams[3], 1, len(data), b"", 0, -1, expect_key_offset=after, key_hashes=packed
        )
        return guarded, data

    def ack(self, *offsets: int, group: int | None = None) -> tuple[AckRecords, bytes]:
        return AckRecords(group or self.group, tuple(runs(sorted(offsets)))), b""

    def complete(self, *ids: int, attempt: int = 1, out: int = 2) -> tuple[CompleteStages, bytes]:
        data = a_batch(f"out{ids}", len(ids))
        attempts, stream_id = (attempt,) * len(ids), self.streams[out]
        return CompleteStages(self.pipeline, "one", ids, attempts, stream_id, len(data)), data

    def fail(self, *ids: int, attempt: int = 1) -> tuple[FailStages, bytes]:
        return FailStages(self.pipeline, "one", ids, (attempt,) * len(ids), "why"), b""

    # --- what is seen -----------------------------------------------------------------------------

    def problems(self) -> list[str]:
        report = Report()
        for check in (StreamsCheck(report), BodiesCheck(report), TransactionsCheck(report)):
            while not check.step(self.db):
                pass
        return [problem.text for problem in report.problems]

    def replica(self) -> Dump:
        """The tables of whoever applies the same entries, and has the same bodies."""
        with closing(apsw.Connection("")) as db:
            db.execute(bodies.TABLES + MACHINE.tables)
            for lsn, command, body in self.log:
                context = Context(
                    machine=MACHINE,
                    db=db,
                    lsn=lsn,
                    now_ms=1_000 + lsn - 1,
                    drop_bodies=self.drop_bodies,
                    replica_set=SET,
                    ballot=BALLOT,
                    body=body,
                )
                execute_logged(context, encode(command))
                if body:
                    bodies.insert(db, lsn, body)
            return dump(db)


@contextmanager
def transacting() -> Iterator[Transacting]:
    file = Transacting()
    with closing(file.db):
        yield file


def joined(parts: Sequence[tuple[Command, bytes]]) -> tuple[tuple[bytes, ...], bytes]:
    """Statements, as they are logged, and the body of all of them."""
    return tuple(encode(each) for each, _ in parts), b"".join(data for _, data in parts)


@dataclass(slots=True)
class Prepared:
    lsn: int
    intents: dict[int, list[tuple[Command, bytes]]] = field(default_factory=dict)
    results: tuple[StatementResult, ...] | None = None
    count: int = 0


class Refused(Exception):  # noqa: N818
    def __init__(self, kind: type[HadronError]) -> None:
        super().__init__(kind.__name__)
        self.kind = kind


class Known(Exception):  # noqa: N818
    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result


class Model:
    """What should be in the file."""

    def __init__(self, file: Transacting) -> None:
        self._file = file
        self.batches: dict[int, list[tuple[int, bytes]]] = {each: [] for each in file.streams}
        self.batches[file.streams[0]].append((RECORDS, file.read(0)[0]))
        self.first = dict.fromkeys(file.streams, 0)
        self.group = file.group
        self.acked: set[int] = set()
        self.attempts = dict.fromkeys(range(1, RECORDS + 1), 1)
        """Of each instance, the one that is waited for."""
        self.ended: set[int] = set()
        self.has_pipeline = True
        self.locks: dict[tuple[type, int, int], TransactionId] = {}
        self.keys: dict[int, int] = {}
        """Of the stream that has an index of them: the offset of each one's latest record."""
        self.key_locks: dict[tuple[int, TransactionId], bool] = {}
        """Who has which, and whether alone."""
        self.known: dict[TransactionId, Prepared] = {}

    def end(self, stream_id: int) -> int:
        return sum(count for count, _ in self.batches[stream_id])

    def latest(self, key: int) -> int:
        found = self.keys.get(key, -1)
        return found if found >= self.first[self._file.streams[3]] else -1

    # --- transactions -----------------------------------------------------------------------------

    def write(
        self, lsn: int, tx: TransactionId, first: int, parts: list[tuple[Command, bytes]]
    ) -> tuple[int, int]:
        known = self.known.get(tx)
        if known is not None:
            self._check_numbers(known, first, parts)
        locked, keys = dict(self.locks), dict(self.key_locks)
        for command, _ in parts:
            self.check(command)
            for key in _ends(command):
                if locked.setdefault(key, tx) != tx:
                    raise Refused(ConflictError)
                if key in self.locks | self._taken_in(parts, command) and key[0] is not AckRecords:
                    raise Refused(RequestError)
            if isinstance(command, AppendGuarded):
                own, alone = (_key(command), tx), command.expect_key_offset is not None
                others = [
                    theirs for each, theirs in keys.items() if each[0] == own[0] and each != own
                ]
                if any(others) or (alone and others):
                    raise Refused(ConflictError)
                keys[own] = keys.get(own, False) or alone
        self.locks, self.key_locks = locked, keys
        known = self.known.setdefault(tx, Prepared(lsn))
        known.intents[first] = parts
        known.count += len(parts)
        return known.lsn, known.count

    @staticmethod
    def _taken_in(parts: list[tuple[Command, bytes]], until: Command) -> dict[Any, None]:
        """What statements before this one of the same entry have taken."""
        taken: dict[Any, None] = {}
        for command, _ in parts:
            if command is until:
                break
            taken.update(dict.fromkeys(_ends(command)))
        return taken

    @staticmethod
    def _check_numbers(known: Prepared, first: int, parts: list[tuple[Command, bytes]]) -> None:
        numbers = set(range(first, first + len(parts)))
        if known.results is not None:
            if max(numbers) < known.count:
                raise Known((known.lsn, known.count))
            raise Refused(RequestError)
        same = known.intents.get(first)
        if same is not None and [each for each, _ in same] == [each for each, _ in parts]:
            raise Known((known.lsn, known.count))
        for at, there in known.intents.items():
            if numbers & set(range(at, at + len(there))):
                raise Refused(RequestError)

    def finish(
        self, now_ms: int, tx: TransactionId, lsn: int, count: int
    ) -> tuple[StatementResult, ...]:
        known = self.known.get(tx)
        if known is None:
            raise Refused(NotFoundError)
        if (lsn, count) != (known.lsn, known.count):
            raise Refused(RequestError)
        if known.results is not None:
            raise Known(known.results)
        numbers = [at + n for at, there in known.intents.items() for n in range(len(there))]
        if sorted(numbers) != list(range(count)):
            raise Refused(RequestError)
        self._free(tx)
        known.results = tuple(
            self.do(now_ms, *part) for at in sorted(known.intents) for part in known.intents[at]
        )
        return known.results

    def abort(self, tx: TransactionId) -> None:
        if tx not in self.known:
            raise Known(None)
        if self.known[tx].results is not None:
            raise Refused(RequestError)
        self._free(tx)
        del self.known[tx]

    def forget(self, tx: TransactionId) -> None:
        if tx not in self.known or self.known[tx].results is None:
            raise Known((tx,) if tx in self.known else ())
        del self.known[tx]

    def _free(self, tx: TransactionId) -> None:
        self.locks = {key: owner for key, owner in self.locks.items() if owner != tx}
        self.key_locks = {key: alone for key, alone in self.key_locks.items() if key[1] != tx}

    def decide(
        self, now_ms: int, parts: list[tuple[Command, bytes]]
    ) -> tuple[StatementResult, ...]:
        for command, _ in parts:
            self.check(command)
            self.check_free(command)
        ended = [key for command, _ in parts for key in _ends(command) if key[0] is not AckRecords]
        if len(ended) != len(set(ended)):
            raise Refused(RequestError)
        return tuple(self.do(now_ms, *part) for part in parts)

    # --- statements -------------------------------------------------------------------------------

    def check_free(self, command: Command) -> None:
        if any(key in self.locks for key in _ends(command)):
            raise Refused(ConflictError)
        if isinstance(command, AppendGuarded):
            key = _key(command)
            if any(alone for (held, _), alone in self.key_locks.items() if held == key):
                raise Refused(ConflictError)

    def check(self, command: Command) -> None:
        if isinstance(command, AppendBatch):
            if command.stream_id not in self.batches:
                raise Refused(NotFoundError)
            if isinstance(command, AppendGuarded):
                expected = command.expect_key_offset
                if expected not in (None, self.latest(_key(command))):
                    raise Refused(OffsetMismatchError)
        elif isinstance(command, AckRecords):
            if command.group_id != self.group:
                raise Refused(NotFoundError)
            offsets = {key[2] for key in _ends(command)}
            if max(offsets) >= self.end(self._file.streams[0]) or offsets & self.acked:
                raise Refused(RequestError)
        elif isinstance(command, CompleteStages | FailStages):
            if not self.has_pipeline:
                raise Refused(NotFoundError)
            if not self.waits_for(command):
                raise Refused(StaleCompletionError)
            if isinstance(command, CompleteStages) and command.out_stream_id not in self.batches:
                raise Refused(NotFoundError)

    def waits_for(self, command: CompleteStages | FailStages) -> bool:
        return all(
            each not in self.ended and self.attempts.get(each) == attempt
            for each, attempt in zip(command.instance_ids, command.attempts, strict=True)
        )

    def do(self, now_ms: int, command: Command, data: bytes) -> StatementResult:
        """What a statement comes to that was checked, whatever was deleted since."""
        if isinstance(command, AppendBatch):
            result = self._append(now_ms, command.stream_id, 1, data)
            if isinstance(command, AppendGuarded):
                self.keys[_key(command)] = result.base_offset
            return result
        if isinstance(command, AckRecords):
            if command.group_id != self.group:
                return DELETED
            self.acked |= {key[2] for key in _ends(command)}
            return DONE
        assert isinstance(command, CompleteStages | FailStages)
        if not self.has_pipeline:
            return DELETED
        result = DONE
        if isinstance(command, CompleteStages):
            count = len(command.instance_ids)
            result = self._append(now_ms, command.out_stream_id, count, data)
        if result != DELETED:
            for each in command.instance_ids:
                self.attempts[each] += isinstance(command, FailStages)
                if isinstance(command, CompleteStages) or self.attempts[each] > 2:
                    self.ended.add(each)
        return result

    def _append(self, now_ms: int, stream_id: int, count: int, data: bytes) -> StatementResult:
        if stream_id not in self.batches:
            return DELETED
        base = self.end(stream_id)
        self.batches[stream_id].append((count, data))
        return StatementResult(base, count, now_ms)

    # --- what else happens ------------------------------------------------------------------------

    def trim(self, stream_id: int, below: int) -> None:
        """Whole batches go, and the group is moved over them."""
        end = 0
        for count, _ in self.batches[stream_id]:
            if end + count > below:
                break
            end += count
        self.first[stream_id] = max(end, self.first[stream_id])
        if stream_id == self._file.streams[0]:
            self.acked |= set(range(end))

    def shown(self, stream_id: int) -> list[bytes]:
        found, base = [], 0
        for count, data in self.batches[stream_id]:
            if base >= self.first[stream_id]:
                found.append(data)
            base += count
        return found


def _key(command: AppendGuarded) -> int:
    return int.from_bytes(command.key_hashes, "little")


def _ends(command: Command) -> list[tuple[type, int, int]]:
    """What a transaction would lock for it."""
    if isinstance(command, AckRecords):
        return [
            (AckRecords, command.group_id, offset)
            for first, last in command.ranges
            for offset in range(first, last + 1)
        ]
    if isinstance(command, CompleteStages | FailStages):
        return [
            (CompleteStages, command.pipeline_id, each) for each in sorted(command.instance_ids)
        ]
    return []
