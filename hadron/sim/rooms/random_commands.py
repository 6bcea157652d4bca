"""Commands by chance, for one replica set's tables: those of leaders, and others that no leader
would submit, which are refused."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from hadron.fakes.tables import SET, Replicated
from hadron.model.batch import ONCE, producer_id_of
from hadron.model.ids import last_index
from hadron.model.pipelines import Output, PipelineSpec, Retry, StageSpec, Wait
from hadron.model.schema import LostRange, RegisteredSet, Spec, StreamSpec, Tombstone, spec_to_json
from hadron.model.transactions import DONE, Note, Participant, StatementResult, TransactionId
from hadron.sim.rooms.flow_commands import FlowCommands
from hadron.sim.rooms.staging_commands import StagingCommands
from hadron.state.adoption import AdoptObjects, StoredObject
from hadron.state.bodies import DropBodies
from hadron.state.digests import StateDigest
from hadron.state.dropping import DropObject
from hadron.state.features import MACHINE
from hadron.state.groups.progress import AckRecords
from hadron.state.leadership import BeginBallot, FollowRules
from hadron.state.machine import Command, encode
from hadron.state.pipelines.publishing import PublishStages
from hadron.state.pipelines.stage_runs import CompleteStages, FailStages
from hadron.state.registry import RegisterReplicaSet
from hadron.state.schema import ApplySchema, DeleteObjects, ObjectChange
from hadron.state.streams.keys import latest
from hadron.state.streams.partitions import AppendBatch, AppendGuarded
from hadron.state.streams.producers import ClaimProducer, claim_of
from hadron.state.streams.retention import TrimStream
from hadron.state.together import DoTogether
from hadron.state.transactions.decisions import Decide, ForgetDecisions, NoteFinished
from hadron.state.transactions.intents import (
    AbortTransaction,
    FinishTransaction,
    ForgetTransactions,
    WriteIntents,
)
from hadron.state.transactions.joint_decisions import Appending, DecideAppends, DecideRun

T = TypeVar("T")

_STREAMS: Final = ("a", "b", "letters")
_PIPELINES: Final = ("p", "q")
_STAGES: Final = ("one", "two", "three")
_NAMES: Final = ("billing", "import")
_PRODUCERS: Final = (bytes(16), b"\0" + bytes(range(15)), b"\7" * 16)
_KEYS: Final = tuple(ONCE + bytes([each]) * 12 for each in range(5))
"""Of what is sent once."""


class Commands(FlowCommands):
    """Commands for `tables`, one after the other; `adopts`: the schema is another set's."""

    def __init__(self, seed: int, tables: Replicated, *, adopts: bool) -> None:
        super().__init__(seed, tables)
        self._adopts = adopts
        self._index = 0
        self._objects: dict[tuple[str, str], StoredObject] = {}
        self._deleted: list[Tombstone] = []
        self._source = b"m" * 16
        self._epoch = 1
        self._bounds = random.Random(f"bounds/{seed}")
        self._parts: list[AdoptObjects] = []
        self._staging = StagingCommands(seed, tables, self._stream, self._statements)

    def following(self) -> Command:
        """The next one."""
        chance = self._random.random()
        self._tables.now_ms += self._random.choice((0, 1, 5, 1_000, 3_600_000))
        if self._parts:
            part = self._parts.pop(0)
            if chance < 0.2:
                self._parts.clear()  # It was cut short, and begins anew.
            return part
        if (staging := self._staging.following()) is not None:
            return staging
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

    def _is_here(self, object_id: int) -> bool:
        return bool(self._one(f"SELECT id FROM hadron_schema_object WHERE id = {object_id}", 0))

    def _push(self) -> Command:
        """What has changed at the metadata set, in some parts."""
        rng = self._random
        begins = self._stands_at()
        self._come_to_a_bound()
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
        gone_here = [
            each
            for each in self._deleted
            if each.metadata_index <= begins and not self._is_here(each.id)
        ]
        if gone_here and rng.random() < 0.1:
            # The metadata set has lost this deletion.
            back = rng.choice(gone_here)
            spec = spec_to_json(self._spec(back.kind)).decode()
            name = f"{back.name}-{back.id}"
            objects.append(StoredObject(back.id, back.kind, "default", name, spec, self._index))
        sets = (RegisteredSet("eu/p0", b"u" * 16, 1, self._index),)
        lost: tuple[LostRange, ...] = ()
        if is_whole and begins and rng.random() < 0.5:
            # Until everything is pushed once more: what stays has names that others may want.
            lost = (LostRange(*sorted(rng.choices(range(begins + 1), k=2))),)
        if begins and self._losing.random() < 0.4:
            objects, lost = self._without_changes(objects, begins, lost)
        cuts = [objects[at : at + 1] for at in range(len(objects))] or [[]]
        self._parts = [
            AdoptObjects(
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
                lost,
            )
            for number, some in enumerate(cuts)
        ]
        return self._parts.pop(0)

    def _come_to_a_bound(self) -> None:
        """Sometimes, to the last indexes of an epoch, and to what is beyond them."""
        last = last_index(self._epoch)
        if self._index >= last:
            if self._bounds.random() < 0.5:
                self._epoch += 1
        elif self._bounds.random() < 0.05:
            self._index = max(self._index, last - self._bounds.randint(0, 3))

    def _without_changes(
        self, objects: list[StoredObject], begins: int, lost: tuple[LostRange, ...]
    ) -> tuple[list[StoredObject], tuple[LostRange, ...]]:
        """The metadata set has lost latest changes, and knows what was before."""
        rng = self._losing
        end = rng.randint(0, begins)
        made = []
        for each in objects:
            if each.kind == "Stream" and rng.random() < 0.7:
                spec = StreamSpec(partitions=(rng.choice((SET, "eu/p0", "us/p0")),))
                each = replace(each, spec_json=spec_to_json(spec).decode())
            if each.metadata_index <= begins:
                each = replace(each, metadata_index=rng.randint(0, end))
            made.append(each)
        return made, (*lost, LostRange(end, rng.randint(end, begins)))

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
        return BeginBallot(
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
        if self._expecting.random() < 0.2:
            producer_id = self._expecting.choice(_KEYS)
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
