"""A small good world to spoil: one log made by the real `apply`, and the history that led to it."""

from __future__ import annotations

import copy
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import apsw

from hadron.delivery import letters
from hadron.model.batch import read_head
from hadron.model.batch_building import BatchBuilder
from hadron.model.ids import Ballot
from hadron.model.pipelines import Output, PipelineSpec, StageSpec
from hadron.model.record import NewRecord
from hadron.model.schema import Retention, StreamSpec, spec_to_json
from hadron.sim.actors.group_plans import LETTERS
from hadron.sim.checks.checker import Verdict, check
from hadron.sim.evidence.evidence import Rules
from hadron.sim.evidence.history import (
    Acks,
    Assign,
    History,
    Join,
    Leave,
    Publish,
    Read,
    Serve,
    Settle,
)
from hadron.sim.evidence.node_files import LogRow, NodeFile, read_node
from hadron.state import machine
from hadron.state.features import MACHINE
from hadron.state.groups.changes import ResetGroup
from hadron.state.groups.endings import DeadLetterRecords
from hadron.state.groups.progress import AckRecords, CreateGroup
from hadron.state.leadership import BeginBallot
from hadron.state.machine import Command, Context
from hadron.state.pipelines.inputs import TriggerInstances
from hadron.state.pipelines.stage_runs import CompleteStages
from hadron.state.schema import ApplySchema, ObjectChange
from hadron.state.streams.partitions import AppendBatch
from hadron.storage import log

STREAM, PARTITION, GROUP = "events", "local/p0", "g"


class Scene:
    """A replica set of three that did everything right. `files` are what the tests spoil."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock_ms = 1_000
        self.history = History(lambda: 0)
        self.rules = Rules(members=3)
        self.files: list[NodeFile] = []
        self._db = apsw.Connection(str(path))
        self._db.execute(log.TABLES)
        self._db.execute(MACHINE.tables)
        self._log = log.Log(self._db)
        self._sequences: dict[str, int] = {}
        self.log(BeginBallot("n1", bytes(16), (("n1", "leader"),), bytes(16), 1))
        spec = spec_to_json(StreamSpec(partitions=(PARTITION,))).decode()
        self.log(ApplySchema(0, (ObjectChange("Stream", "default", STREAM, spec),)))
        applied = self.history.apply("c0", [("Stream", STREAM)])
        self.history.ok(applied)
        row = self._db.execute("SELECT stream_id FROM hadron_stream_partition").fetchone()
        assert row is not None
        self.stream_id: int = row[0]
        self.group_id = 0
        self._driver = 0
        self._number = 0
        self._letters_id = 0
        self.flow_id = 0

    def log(self, command: Command, body: bytes = b"") -> object:
        """Append and apply one command; returns its result."""
        lsn, now_ms = self._log.head.lsn + 1, self.clock_ms + self._log.head.lsn
        ballot = Ballot(1, 1)
        context = Context(
            machine=MACHINE,
            db=self._db,
            lsn=lsn,
            now_ms=now_ms,
            drop_bodies=log.drop_bodies,
            replica_set=PARTITION,
            ballot=ballot,
        )
        result = MACHINE.apply(context, command)
        self._log.append(ballot, now_ms, machine.encode(command), body)
        return result

    # --- what clients do ------------------------------------------------------------------------

    def append(self, values: list[str], producer: str = "") -> int:
        """Log a batch; returns its base offset. The history does not hear of it."""
        builder = BatchBuilder()
        for value in values:
            # "k=v" has the key k.
            key = value.partition("=")[0] if "=" in value else None
            builder.add(NewRecord(value=value, key=key), 1)
        sequence = self._sequences.get(producer, 0)
        self._sequences[producer] = sequence + len(values)
        body = builder.build(
            producer_id=producer.encode().ljust(16, b".") if producer else b"",
            sequence=sequence if producer else -1,
        )
        command = AppendBatch.of(self.stream_id, read_head(body), len(body))
        result = self.log(command, body)
        return result.base_offset  # type: ignore[attr-defined,no-any-return]

    def publish(
        self, *values: str, producer: str = "", acks: Acks = "majority", client: str = "c1"
    ) -> Publish:
        """An acknowledged publish."""
        operation = self.begin(*values, producer=producer, acks=acks, client=client)
        operation.runs = [(self.append(list(values), producer), len(values))]
        self.history.ok(operation)
        return operation

    def begin(
        self, *values: str, producer: str = "", acks: Acks = "majority", client: str = "c1"
    ) -> Publish:
        return self.history.publish(client, producer, STREAM, PARTITION, values, acks=acks)

    def read(self, offset: int, *values: str, end: int) -> Read:
        operation = self.history.read("r1", STREAM, PARTITION, offset)
        operation.values, operation.end = list(values), end
        self.history.ok(operation)
        return operation

    def group(self, floor: int = 0) -> None:
        self.log(CreateGroup(self.stream_id, GROUP, floor))
        self.group_id = self._log.head.lsn

    def reset(self, floor: int) -> None:
        self.log(ResetGroup(self.group_id, floor, self._number))
        self.group_id = self._log.head.lsn

    def deliver(self, offset: int, *values: str) -> None:
        self.history.deliver(
            "c2", GROUP, "c2/m1", STREAM, PARTITION, offset, list(values), attempt=1
        )

    def settle(
        self, *ranges: tuple[int, int], member: str = "c2/m1", how: Literal["ack", "nack"] = "ack"
    ) -> Settle:
        """An acknowledgement that is sent, and neither logged nor confirmed."""
        return self.history.settle("c2", GROUP, member, STREAM, PARTITION, ranges, how=how)

    def ack(self, *ranges: tuple[int, int], member: str = "c2/m1") -> Settle:
        """A confirmed acknowledgement."""
        operation = self.settle(*ranges, member=member)
        self.log(AckRecords(self.group_id, ranges))
        self.history.ok(operation)
        return operation

    def retain(self, limits: Retention) -> None:
        """The stream has bounds from here on."""
        self.rule(retention=True)
        spec = spec_to_json(StreamSpec(partitions=(PARTITION,), retention=limits)).decode()
        self.log(ApplySchema(1, (ObjectChange("Stream", "default", STREAM, spec),)))

    # --- what leaders do ------------------------------------------------------------------------

    def serve(
        self, *members: str, floor: int = 0, most: int = 10, incarnation: int = 1, **options: Any
    ) -> None:
        """A leader begins to serve the group, and these members join, 1 and so on."""
        self._driver += 1
        self.history.note(
            Serve(
                at=self.history.tick(),
                driver=self._driver,
                partition=PARTITION,
                group=GROUP,
                stream=STREAM,
                group_id=self.group_id,
                epoch=1,
                incarnation=incarnation,
                floor=floor,
                **options,
            )
        )
        for session, member in enumerate(members, 1):
            self.history.note(
                Join(
                    at=self.history.tick(),
                    driver=self._driver,
                    partition=PARTITION,
                    session=session,
                    member=member,
                    max_in_flight=most,
                )
            )

    def assign(self, session: int, first: int, last: int = -1, *, attempt: int = 1) -> None:
        self._number += 1
        self.history.note(
            Assign(
                at=self.history.tick(),
                driver=self._driver,
                partition=PARTITION,
                session=session,
                number=self._number,
                first=first,
                last=max(first, last),
                attempt=attempt,
            )
        )

    def leave(self, session: int = 0) -> None:
        self.history.note(
            Leave(at=self.history.tick(), driver=self._driver, partition=PARTITION, session=session)
        )

    def letter(self, offset: int, value: str, **headers: str) -> None:
        """A dead letter of a record of the group, acknowledged with it; `headers` may differ."""
        if not self._letters_id:
            spec = spec_to_json(StreamSpec(partitions=(PARTITION,))).decode()
            self.log(ApplySchema(1, (ObjectChange("Stream", "default", LETTERS, spec),)))
            row = self._db.execute("SELECT max(stream_id) FROM hadron_stream_partition").fetchone()
            assert row is not None
            self._letters_id = row[0]
        said = {
            letters.REASON: "refused",
            letters.ATTEMPTS: "2",
            letters.ORIGIN_STREAM: STREAM,
            letters.ORIGIN_PARTITION: PARTITION,
            letters.ORIGIN_OFFSET: str(offset),
            letters.GROUP: GROUP,
        }
        builder = BatchBuilder()
        builder.add(NewRecord(value=value, headers=said | headers), 1)
        body = builder.build()
        self.log(
            DeadLetterRecords(self.group_id, self._letters_id, ((offset, offset),), len(body)), body
        )

    # --- pipelines ------------------------------------------------------------------------------

    def pipeline(self, dead_letters: str = "") -> int:
        """A pipeline over the stream, whose one stage writes to `out`; returns its id."""
        flow = PipelineSpec(
            replica_set=PARTITION,
            input=STREAM,
            start="earliest",
            max_parallel=10,
            dead_letters=dead_letters,
            stages=(StageSpec(name="copy", engine="handler", output=Output("out")),),
        )
        out = spec_to_json(StreamSpec(partitions=(PARTITION,))).decode()
        row = self._db.execute("SELECT metadata_index FROM hadron_schema_index").fetchone()
        assert row is not None
        self.log(
            ApplySchema(
                row[0],
                (
                    ObjectChange("Stream", "default", "out", out),
                    ObjectChange("Pipeline", "default", "flow", spec_to_json(flow).decode()),
                ),
            )
        )
        found = self._db.execute("SELECT pipeline_id FROM hadron_pipeline").fetchone()
        assert found is not None
        self.flow_id = int(found[0])
        return self.flow_id

    def trigger(self, first: int, following: int) -> None:
        """Instances of the records from `first` on."""
        offsets = tuple(range(first, following))
        self.log(TriggerInstances(self.flow_id, PARTITION, first, following, offsets))

    def made_ms(self, instance_id: int) -> int:
        """When an instance was made."""
        found = self._db.execute(
            "SELECT created_ms FROM hadron_instance WHERE instance_id = ?", (instance_id,)
        ).get
        assert isinstance(found, int)
        return found

    def complete(self, instance_id: int, value: str = "") -> None:
        """An instance's stage is done, and its runner is told so."""
        row = self._db.execute(
            "SELECT id FROM hadron_schema_object WHERE name = 'out' AND kind = 'Stream'"
        ).fetchone()
        assert row is not None
        made = self.history.publish("w", "", "out", PARTITION, [value or f"out of {instance_id}"])
        noted = self.history.settle(
            "w",
            f"flow#{self.flow_id}",
            "copy",
            STREAM,
            PARTITION,
            [(instance_id, instance_id)],
            how="complete",
        )
        builder = BatchBuilder()
        builder.add(NewRecord(value=made.values[0]), 1)
        body = builder.build()
        result: Any = self.log(
            CompleteStages(self.flow_id, "copy", (instance_id,), (1,), row[0], len(body)), body
        )
        made.runs = [(result.appended.base_offset, 1)]
        self.history.ok(made)
        self.history.ok(noted)

    # --- the end --------------------------------------------------------------------------------

    def end(self) -> None:
        """Stop everything: from here on there are files."""
        head = self._log.head.lsn
        log.set_meta(self._db, "applied_lsn", head)
        log.set_meta(self._db, "committed_lsn", head)
        self._db.close()
        found = read_node("n1", self.path)
        self.files = [copy.deepcopy(found) for _ in range(3)]
        for number, node in enumerate(self.files, 1):
            node.name = f"n{number}"

    def verdict(self) -> Verdict:
        if not self.files:
            self.end()
        return check(self.history, self.files, self.rules)

    def broken(self) -> set[str]:
        """The names of the checks that find fault."""
        return {violation.invariant for violation in self.verdict().violations}

    def rule(self, **changes: object) -> None:
        self.rules = replace(self.rules, **changes)  # type: ignore[arg-type]


def cut_log(node: NodeFile, last_lsn: int) -> None:
    """The node never had anything after `last_lsn`, and says so."""
    node.log = {lsn: row for lsn, row in node.log.items() if lsn <= last_lsn}
    node.committed_lsn = min(node.committed_lsn, last_lsn)
    node.applied_lsn = min(node.applied_lsn, last_lsn)
    node.batches = [batch for batch in node.batches if batch.lsn <= last_lsn]
    node.digests = {}


def change(row: LogRow, **changes: object) -> LogRow:
    return replace(row, **changes)  # type: ignore[arg-type]


def rewrite(path: Path, *statements: str) -> None:
    """Change a closed file by hand."""
    with closing(apsw.Connection(str(path))) as db:
        for statement in statements:
            db.execute(statement)
