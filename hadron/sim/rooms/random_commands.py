"""Commands by chance, for one replica set's tables: those of leaders, and others that no leader
would submit, which are refused."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from hadron.fakes.tables import SET, Replicated
from hadron.model.batch import producer_id_of
from hadron.model.ids import NO_BALLOT, Ballot
from hadron.model.pipelines import Output, PipelineSpec, Retry, StageSpec, Wait
from hadron.model.schema import RegisteredSet, Spec, StreamSpec, Tombstone, spec_to_json
from hadron.model.transactions import DONE, Note, Participant, StatementResult, TransactionId
from hadron.state.adoption import SchemaAdopted, StoredObject
from hadron.state.backfills import ControlBackfill, StartBackfill, StepBackfill
from hadron.state.bodies import DropBodies
from hadron.state.cancellations import CancelInstances, StartInstances
from hadron.state.decisions import Decide, ForgetDecisions, NoteFinished
from hadron.state.digests import StateDigest
from hadron.state.dropping import DropObject
from hadron.state.features import MACHINE
from hadron.state.finished import DropInstances
from hadron.state.group_changes import CollectGroups, DeleteGroup, ResetGroup
from hadron.state.group_endings import DeadLetterRecords, EndDeliveries
from hadron.state.groups import AckRecords, CreateGroup, GroupOptions
from hadron.state.instance_letters import SendLetters
from hadron.state.intents import (
    AbortTransaction,
    FinishTransaction,
    ForgetTransactions,
    WriteIntents,
)
from hadron.state.joint_decisions import Appending, DecideAppends, DecideRun
from hadron.state.leadership import FollowRules, LeaderStarted
from hadron.state.machine import Command, encode
from hadron.state.pipeline_inputs import MoveInput, OpenInput, TriggerInstances
from hadron.state.producers import ClaimProducer, claim_of
from hadron.state.publishing import PublishStages
from hadron.state.registry import RegisterReplicaSet
from hadron.state.retention import TrimStream
from hadron.state.retries import RetryInstances
from hadron.state.schema import ApplySchema, DeleteObjects, ObjectChange
from hadron.state.stage_runs import CompleteStages, FailStages
from hadron.state.stream_keys import latest
from hadron.state.streams import AppendBatch, AppendGuarded
from hadron.state.together import DoTogether
from hadron.state.wait_inputs import OpenWait
from hadron.state.waits import ExpireWaits, Signal, SignalInstance, SignalStages

T = TypeVar("T")

_STREAMS: Final = ("a", "b", "letters")
_PIPELINES: Final = ("p", "q")
_STAGES: Final = ("one", "two", "three")
_NAMES: Final = ("billing", "import")
_PRODUCERS: Final = (bytes(16), b"\0" + bytes(range(15)), b"\7" * 16)


class Commands:
    """Commands for `tables`, one after the other; `adopts`: the schema is another set's."""

    def __init__(self, seed: int, tables: Replicated, *, adopts: bool) -> None:
        self._random = random.Random(seed)
        self._expecting = random.Random(f"{seed} expecting")
        self._joining = random.Random(f"{seed} joining")
        self._tables = tables
        self._adopts = adopts
        self._index = 0
        self._objects: dict[tuple[str, str], StoredObject] = {}
        self._deleted: list[Tombstone] = []
        self._source = b"m" * 16
        self._epoch = 1
        self._parts: list[SchemaAdopted] = []

    def following(self) -> Command:
        """The next one."""
        chance = self._random.random()
        self._tables.now_ms += self._random.choice((0, 1, 5, 1_000, 3_600_000))
        if self._parts:
            part = self._parts.pop(0)
            if chance < 0.2:
                self._parts.clear()  # It was cut short, and begins anew.
            return part
        if chance < 0.08:
            return self._push() if self._adopts else self._change()
        if chance < 0.12:
            return self._ballot_or_drop()
        if chance < 0.35:
            return self._append()
        if chance < 0.42:
            return self._together()
        if chance < 0.56:
            return self._of_transactions()
        if chance < 0.78:
            return self._of_groups()
        return self._of_pipelines()

    def _rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self._tables.rows(sql)

    def _one(self, sql: str, *others: int) -> int:
        """An id of those that there are, or, seldom, of `others`."""
        known = [row[0] for row in self._rows(sql)]
        if not known or self._random.random() < 0.05:
            known = list(others) or [999]
        found: int = self._random.choice(known)
        return found

    def _stream(self) -> int:
        return self._one("SELECT stream_id FROM hadron_stream_partition", 1, 2, 3, 999)

    def _end(self, stream_id: int) -> int:
        rows = self._tables.rows(
            "SELECT next_offset FROM hadron_stream_partition WHERE stream_id = ?", stream_id
        )
        return rows[0][0] if rows else 0

    def _stands_at(self) -> int:
        """The schema's index."""
        rows = self._rows("SELECT metadata_index FROM hadron_schema_index")
        return rows[0][0] if rows else 0

    # --- the schema ------------------------------------------------------------------------------

    def _spec(self, kind: str) -> Spec:
        rng = self._random
        if kind == "Stream":
            return StreamSpec(partitions=tuple(rng.sample((SET, SET, "eu/p0"), 2)))
        names = rng.sample(_STAGES, rng.randint(1, 3))
        stages = tuple(
            StageSpec(
                name=name,
                run="m:f",
                dependencies=tuple(names[:at][-rng.randint(0, 2) :] if at > 1 else ()),
                after=tuple(names[: rng.randint(0, at)]),
                delay_ms=rng.choice((0, 10)),
                retry=Retry(rng.randint(1, 3), 100),
                output=rng.choice((None, Output("b"))),
            )
            for at, name in enumerate(names)
        )
        start = rng.choice(("earliest", "latest", "2", "1970-01-01T00:20:00Z"))
        source = "a" if self._adopts else rng.choice("aaaaab")
        home = "eu/p0" if rng.random() < 0.1 else SET
        on_failure = names[-1] if len(names) > 1 and rng.random() < 0.3 else ""
        other_way = names[-1] if len(names) > 1 and not on_failure and rng.random() < 0.5 else ""
        return PipelineSpec(
            replica_set=home,
            input=source,
            stages=self._waiting(stages, other_way, on_failure),
            start=start,
            on_failure=on_failure,
            dead_letters=rng.choice(("", "letters")),
        )

    def _waiting(
        self, stages: tuple[StageSpec, ...], other_way: str, on_failure: str
    ) -> tuple[StageSpec, ...]:
        """Some wait, and one of these may have another way to go."""
        rng, made, is_taken = self._random, [], not other_way
        for stage in stages:
            if stage.name == other_way:
                made.append(replace(stage, dependencies=(), after=()))
                continue
            if stage.name == on_failure or rng.random() < 0.6:
                made.append(stage)
                continue
            stream = rng.choice(("", "b"))
            way = "fail" if is_taken or rng.random() < 0.4 else other_way
            is_taken = is_taken or way == other_way
            wait = Wait(stream, signal=not stream, timeout_ms=1_000, on_timeout=way)
            output = None if stream else stage.output
            made.append(replace(stage, wait=wait, run="", output=output))
        return tuple(made)

    def _name(self, streams: Collection[str]) -> tuple[str, str]:
        """Of an object to declare; pipelines come after what they may read, as leaders see to."""
        if not {"a", "b"} <= set(streams):
            return "Stream", "ba"["b" in streams]
        kind = self._random.choice(("Stream", "Pipeline"))
        return kind, self._random.choice(_STREAMS if kind == "Stream" else _PIPELINES)

    def _change(self) -> Command:
        rng = self._random
        index = self._one("SELECT metadata_index FROM hadron_schema_index", 0)
        if rng.random() < 0.1:
            return RegisterReplicaSet("eu/p0", rng.choice((b"u", b"v")) * 16, rng.randint(1, 3))
        if rng.random() < 0.1:
            free = "SELECT id FROM hadron_schema_object WHERE kind = 'Pipeline' OR name = 'letters'"
            return DeleteObjects(index, (self._one(free),))
        streams = {
            name
            for (name,) in self._rows("SELECT name FROM hadron_schema_object WHERE kind = 'Stream'")
        }
        changes = [
            ObjectChange(kind, "default", name, spec_to_json(self._spec(kind)).decode())
            for kind, name in (self._name(streams) for _ in range(rng.randint(1, 3)))
        ]
        return ApplySchema(index, tuple(changes))

    def _push(self) -> Command:
        """What has changed at the metadata set, in some parts."""
        rng = self._random
        begins = self._stands_at()
        for _ in range(rng.randint(1, 3)):
            self._index += 1
            key = self._name({name for kind, name in self._objects if kind == "Stream"})
            is_free = key[0] == "Pipeline" or key[1] == "letters"
            if key in self._objects and is_free and rng.random() < 0.2:
                gone = self._objects.pop(key)
                self._deleted.append(Tombstone(self._index, gone.id, key[0], "default", key[1]))
                continue
            object_id = self._objects[key].id if key in self._objects else self._index
            spec = spec_to_json(self._spec(key[0])).decode()
            self._objects[key] = StoredObject(
                object_id, key[0], "default", key[1], spec, self._index
            )
        is_whole = rng.random() < 0.1
        if rng.random() < 0.02:
            self._source, self._epoch = rng.randbytes(16), self._epoch + rng.randint(0, 1)
        after = 0 if is_whole else begins
        objects = [each for each in self._objects.values() if each.metadata_index > after]
        deleted = tuple(each for each in self._deleted if each.metadata_index > after)
        gone_here = [each for each in self._deleted if each.metadata_index <= begins]
        if gone_here and rng.random() < 0.1:
            # The metadata set has lost this deletion.
            back = rng.choice(gone_here)
            spec = spec_to_json(self._spec(back.kind)).decode()
            name = f"{back.name}-{back.id}"
            objects.append(StoredObject(back.id, back.kind, "default", name, spec, self._index))
        sets = (RegisteredSet("eu/p0", b"u" * 16, 1, self._index),)
        cuts = [objects[at : at + 1] for at in range(len(objects))] or [[]]
        self._parts = [
            SchemaAdopted(
                self._source,
                self._epoch,
                begins,
                self._index,
                number,
                number == len(cuts) - 1,
                is_whole,
                tuple(some),
                deleted if not number else (),
                sets if not number else (),
            )
            for number, some in enumerate(cuts)
        ]
        return self._parts.pop(0)

    def _ballot_or_drop(self) -> Command:
        rng = self._random
        if rng.random() < 0.6:
            lsn = len(self._tables.log)
            until = rng.choice((lsn, lsn, lsn // 2))
            return DropObject(self._one("SELECT id FROM hadron_dropped", 1, 2), until)
        if rng.random() < 0.2:
            return FollowRules(1)
        if rng.random() < 0.25:
            return DropBodies(len(self._tables.log))
        if rng.random() < 0.5:
            return StateDigest()
        before = self._rows("SELECT digest FROM hadron_configuration ORDER BY epoch DESC")
        epoch, incarnation = self._tables.ballot
        raised = rng.randint(0, 1)
        self._tables.ballot = type(self._tables.ballot)(epoch + raised, incarnation + 1)
        return LeaderStarted(
            "n1",
            rng.choice((b"u", b"u", b"v")) * 16,
            (("n1", "voter"), ("nö", "voter")),
            before[0][0] if before and not raised else rng.randbytes(16),
            MACHINE.version,
            before[0][0] if before else b"",
            0 if self._adopts or rng.random() < 0.5 else max(self._stands_at() + raised * 9 - 3, 0),
        )

    # --- records ---------------------------------------------------------------------------------

    def _append(self) -> Command:
        rng = self._random
        stream_id, count, size = self._stream(), rng.randint(1, 3), rng.choice((10, 100, 900))
        if rng.random() < 0.15:
            return TrimStream(stream_id, rng.randint(0, self._end(stream_id) + 1))
        if rng.random() < 0.2:
            return AppendBatch(stream_id, count, size, b"", 0, -1)
        producer_id = rng.choice(_PRODUCERS)
        known = self._tables.rows(
            "SELECT producer_epoch, next_sequence FROM hadron_producer WHERE stream_id = ?"
            " AND producer_id = ?",
            stream_id,
            producer_id,
        )
        epoch, sequence = known[0] if known else (0, 0)
        if rng.random() < 0.3:
            sequence -= rng.randint(0, min(sequence, 12))
        elif rng.random() < 0.1:
            epoch, sequence = epoch + rng.randint(-1, 1), 0
        if self._expecting.random() < 0.1:
            return self._claim(stream_id)
        appended = AppendBatch(stream_id, count, size, producer_id, max(epoch, 0), sequence)
        return self._guarded(appended) if self._expecting.random() < 0.3 else appended

    def _claim(self, stream_id: int) -> ClaimProducer:
        rng, name = self._expecting, self._expecting.choice(_NAMES)
        known = claim_of(self._tables.db, stream_id, name).claim
        after = known if rng.random() < 0.8 else max(known - 1, 0)
        return ClaimProducer(stream_id, name, after, rng.randbytes(1))

    def _guarded(self, batch: AppendBatch) -> AppendGuarded:
        """With keys, and conditions that hold or do not."""
        rng, stream_id = self._expecting, batch.stream_id
        hashes = [rng.choice((0, 1, 2, (1 << 64) - 1)) for _ in range(batch.count)]
        end = self._end(stream_id)
        last = -1
        name = rng.choice(_NAMES)
        if rng.random() < 0.4:
            # As the program of a named producer, which has the name, or had it.
            known = self._tables.rows(
                "SELECT p.producer_epoch, p.next_sequence, n.last_sequence FROM hadron_producer p"
                " JOIN hadron_producer_name n USING (stream_id, producer_id) WHERE stream_id = ?"
                " AND n.name = ?",
                stream_id,
                name,
            )
            epoch, sequence, before = known[0] if known else (0, 0, -1)
            last = before + rng.choice((1, 1, 5, 0))
            batch = msgspec.structs.replace(
                batch,
                producer_id=producer_id_of(name),
                producer_epoch=epoch if rng.random() < 0.8 else max(epoch - 1, 0),
                sequence=sequence,
            )
        return AppendGuarded(
            stream_id,
            batch.count,
            batch.size,
            batch.producer_id,
            batch.producer_epoch,
            batch.sequence,
            rng.choice((None, None, end, max(end - 1, 0))),
            rng.choice((None, None, -1, rng.randint(-1, end))),
            b"".join(each.to_bytes(8, "little") for each in hashes),
            last,
        )

    def _of_a_key(self, batch: AppendBatch) -> AppendGuarded:
        """As it may stand in a transaction: mostly with a condition that holds."""
        rng = self._expecting
        key = rng.choice((1, 2, (1 << 64) - 1))
        expected = latest(self._tables.db, batch.stream_id, key)
        return AppendGuarded(
            batch.stream_id,
            batch.count,
            batch.size,
            b"",
            0,
            -1,
            expect_key_offset=rng.choice((None, expected, expected, expected - 1)),
            key_hashes=b"".join(each.to_bytes(8, "little") for each in [key] * batch.count),
        )

    def _together(self) -> Command:
        """Several commands in one entry, some of which may not be there."""
        ways = (self._append, self._append, self._of_groups, self._of_pipelines)
        found = [self._random.choice(ways)() for _ in range(self._random.randint(0, 4))]
        if self._random.random() < 0.9:
            found = [each for each in found if each.is_joinable]
        if self._random.random() < 0.05:
            found.append(DoTogether(()))
        return DoTogether.of(*found)

    # --- transactions ----------------------------------------------------------------------------

    def _statements(self) -> tuple[bytes, ...]:
        """Some, mostly such as may stand in a transaction."""
        rng = self._random
        found: list[Command] = []
        for _ in range(rng.randint(0 if rng.random() < 0.1 else 1, 3)):
            made = rng.choice((self._append, self._of_groups, self._of_pipelines))()
            if not isinstance(made, AppendBatch | AckRecords | CompleteStages | FailStages):
                # What people do with instances stands in no transaction.
                made = made if rng.random() < 0.05 else self._append()
            if isinstance(made, AppendBatch) and rng.random() < 0.95:
                made = AppendBatch(made.stream_id, made.count, made.size, b"", 0, -1)
                if self._expecting.random() < 0.5:
                    made = self._of_a_key(made)
            found.append(made)
        found = found or [AppendBatch(self._stream(), 1, 40, b"", 0, -1)]
        return tuple(map(encode, found))

    def _some_of(self, known: Sequence[T]) -> list[T]:
        """Often none of them."""
        count = max(0, self._joining.randint(-2, 3))
        return self._joining.sample(known, min(count, len(known)))

    def _of_transactions(self) -> Command:
        rng = self._random
        if rng.random() < 0.35:
            return self._of_a_driver()
        known = self._rows(
            "SELECT replica_set, epoch, incarnation, number, prepared_lsn, statements"
            " FROM hadron_participation ORDER BY prepared_lsn"
        )
        new = "eu/p0" if rng.random() < 0.98 else SET
        tx, lsn, count = TransactionId(new, 1, rng.randint(1, 2), len(self._tables.log)), 1, 0
        if known and rng.random() < 0.7:
            *name, lsn, count = rng.choice(known)
            tx = TransactionId(*name)
        if count and rng.random() < 0.55:
            count += rng.random() < 0.05
            finish = FinishTransaction(tx, lsn - (rng.random() < 0.05), count)
            forget = ForgetTransactions(
                (tx, *self._some_of([TransactionId(*each[:4]) for each in known]))
            )
            return rng.choice((finish, finish, AbortTransaction(tx), forget))
        again = self._tables.rows(
            "SELECT first_number, statements FROM hadron_intent WHERE prepared_lsn = ?", lsn
        )
        if again and rng.random() < 0.2:
            first, packed = rng.choice(again)
            return WriteIntents(tx, first, tuple(msgspec.msgpack.decode(packed)))
        at = max(0, count + (rng.randint(-1, 2) if rng.random() < 0.2 else 0))
        return WriteIntents(tx, at, self._statements())

    def _of_a_driver(self) -> Command:
        rng = self._random
        known = self._rows(
            "SELECT d.epoch, d.incarnation, d.number, p.replica_set, p.count"
            " FROM hadron_decision d LEFT JOIN hadron_decision_part p USING (id) ORDER BY id"
        )
        number = (rng.randint(0, 3) << 20) + len(self._tables.log)
        tx = TransactionId.of(SET, self._tables.ballot, number)
        if rng.random() < 0.03:
            tx = tx._replace(incarnation=tx.incarnation - 1)
        if known and rng.random() < 0.5:
            epoch, incarnation, number, name, count = rng.choice(known)
            tx = TransactionId(SET, epoch, incarnation, number)
            if rng.random() < 0.3:
                before_ms = self._tables.now_ms - rng.choice((0, 1_000_000))
                bounds = rng.choice(((), (rng.randint(0, 9), 1_000), (99, rng.randint(0, 99))))
                return ForgetDecisions(before_ms, *bounds)
            if name is not None and rng.random() < 0.8:
                results = (StatementResult(4, 2, 9), DONE, DONE)[: count + (rng.random() < 0.1)]
                notes = [
                    Note(TransactionId(SET, *each[:3]), each[3], (DONE,) * each[4])
                    for each in known
                    if each[3] is not None
                ]
                return NoteFinished((Note(tx, name, results), *self._some_of(notes)))
        others = self._others(rng)
        if rng.random() < 0.3:
            appending = self._appending(tx)
            return appending if self._joining.random() < 0.6 else self._run(tx)
        statements = () if others and rng.random() < 0.3 else self._statements()
        if others and rng.random() < 0.5:
            made = self._of_pipelines()
            if isinstance(made, CompleteStages):
                statements += (encode(self._publication(made, others[0].replica_set)),)
        return Decide(tx, others, statements)

    def _others(self, rng: random.Random) -> tuple[Participant, ...]:
        return tuple(
            Participant(name, rng.randint(1, 99), rng.randint(1, 2))
            for name in rng.choice(((), (), ("eu/p0",), ("eu/p0", "us/p0")))
        )

    def _publication(self, made: CompleteStages, partition: str) -> PublishStages:
        """The same stages, with outputs elsewhere."""
        return PublishStages(
            made.pipeline_id,
            made.stage,
            made.instance_ids,
            made.attempts,
            made.created_ms,
            0,
            self._stream(),
            partition,
        )

    def _appending(self, tx: TransactionId) -> DecideAppends:
        """Some that wait at the same time, as the group commit makes one of them."""
        rng = self._random
        first, found = tx.number, []
        for each in range(rng.randint(1, 3)):
            number = first + (each if rng.random() < 0.95 else 0)
            appends = tuple(
                AppendBatch(self._stream(), rng.randint(1, 3), rng.randint(40, 99), b"", 0, -1)
                for _ in range(rng.randint(0 if rng.random() < 0.05 else 1, 2))
            )
            found.append(Appending(number, appends, self._others(self._joining)))
        return DecideAppends(tx.replica_set, tx.ballot, tuple(found))

    def _run(self, tx: TransactionId) -> DecideRun:
        """Some that a client has committed at the same time."""
        rng = self._joining
        records = tuple(rng.randint(rng.random() >= 0.05, 3) for _ in range(rng.randint(1, 3)))
        count = sum(records) + (rng.random() < 0.05)
        append = AppendBatch(self._stream(), count, rng.randint(40, 99), b"", 0, -1)
        return DecideRun(tx, records, encode(append))

    # --- groups and pipelines --------------------------------------------------------------------

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
            return RetryInstances(pipeline_id, again, rng.random() < 0.3)
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
            return OpenWait(pipeline_id, self._stream(), "eu/p0", rng.randint(0, 3))
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
