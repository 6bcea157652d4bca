"""What stands in a node's file, read without the node: the checker's other evidence.

Read-only and by hand, so that a defect of the code under test cannot hide itself: chains are
computed again, bodies are hashed again, tables are taken as rows. A file that does not make sense
gives a `NodeFile` that says so; judging it is the checker's. Open files of stopped nodes only, or
of other processes' nodes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

from hadron.model.batch import check_body
from hadron.model.errors import CorruptionError
from hadron.model.ids import Ballot
from hadron.storage.log import hash_body, next_chain

_NOT_FROM_THE_LOG: Final = frozenset({"hadron_log", "hadron_body", "hadron_meta", "hadron_anchor"})


@dataclass(frozen=True, slots=True)
class LogRow:
    """One entry as it stands in the file. `body` is None where there is none any more."""

    lsn: int
    ballot: Ballot
    now_ms: int
    command: bytes
    body: bytes | None
    body_hash: bytes
    chain: bytes


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A row of `hadron_stream_batch`; `body_lsn` and `start` are None where all of the body of its
    own entry is the batch."""

    stream_id: int
    base_offset: int
    count: int
    lsn: int
    size: int = 0
    append_ms: int = 0
    body_lsn: int | None = None
    start: int | None = None

    @property
    def bytes_of(self) -> int:
        """The entry whose body has its bytes."""
        return self.lsn if self.body_lsn is None else self.body_lsn

    def bytes_in(self, body: bytes) -> bytes:
        return body if self.start is None else body[self.start : self.start + self.size]


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A row of `hadron_group` with its acknowledged ranges above the floor."""

    group_id: int
    stream_id: int
    name: str
    floor: int
    ranges: tuple[tuple[int, int], ...]


class InputRow(NamedTuple):
    """What a pipeline has looked at of a partition, from `first_offset` on."""

    stream_id: int
    next_offset: int
    partition: str = ""
    first_offset: int = 0
    truncations: int = 0


class InstanceRow(NamedTuple):
    """An instance, and its trigger."""

    status: int
    stream_id: int
    offset: int
    partition: str = ""
    created_ms: int = 0
    version: int = 1


class RunRow(NamedTuple):
    """What an instance has of a stage; attempts are those since the last retry."""

    status: int
    attempts: int
    stream_id: int | None = None
    offset: int | None = None
    partition: str | None = None
    attempts_before: int = 0
    reason: str | None = None
    """Why it failed."""


class BackfillRow(NamedTuple):
    partition: str
    from_offset: int
    next_offset: int
    again: int
    status: int


@dataclass(slots=True)
class PipelineRows:
    """What the tables have of a pipeline.

    Attributes:
        instances: by instance id.
        runs: by (stage, instance id).
        definitions: as JSON, by version.
        counts: live, done, failed and cancelled instances, and the next one's id; none where it
            does not live.
        stage_counts: ready, done and failed, by stage.
        letters: instances whose dead letters are due.
    """

    inputs: list[InputRow] = field(default_factory=list)
    instances: dict[int, InstanceRow] = field(default_factory=dict)
    runs: dict[tuple[str, int], RunRow] = field(default_factory=dict)
    definitions: dict[int, str] = field(default_factory=dict)
    counts: tuple[int, ...] = ()
    stage_counts: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    backfills: list[BackfillRow] = field(default_factory=list)
    letters: set[int] = field(default_factory=set)


@dataclass(slots=True)
class NodeFile:
    """A node's log and tables.

    Attributes:
        damage: what does not match its own checksums, by lsn; lsn 0 is the file as a whole.
        bounds: (first offset, next offset) by stream id.
        objects: (kind, namespace, name) by id.
        specs: (specification as JSON, metadata index of the last change) by id.
        schema_index: where the schema stands.
        replica_sets: (uuid, epoch, metadata index) by name, as they are registered.
        bodies: of records whose log rows were trimmed, by lsn.
        digests: of the rows of every table that the log makes.
        pipelines: by id.
    """

    name: str
    log: dict[int, LogRow] = field(default_factory=dict)
    applied_lsn: int = 0
    committed_lsn: int = 0
    bodies: dict[int, bytes] = field(default_factory=dict)
    damage: dict[int, str] = field(default_factory=dict)
    batches: list[BatchRow] = field(default_factory=list)
    bounds: dict[int, tuple[int, int]] = field(default_factory=dict)
    groups: list[GroupRow] = field(default_factory=list)
    producers: dict[tuple[int, bytes], int] = field(default_factory=dict)
    objects: dict[int, tuple[str, str, str]] = field(default_factory=dict)
    specs: dict[int, tuple[str, int]] = field(default_factory=dict)
    schema_index: int = 0
    replica_sets: dict[str, tuple[bytes, int, int]] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    pipelines: dict[int, PipelineRows] = field(default_factory=dict)

    @property
    def first_lsn(self) -> int:
        return min(self.log, default=1)

    @property
    def last_lsn(self) -> int:
        return max(self.log, default=0)


def read_node(name: str, database: Path, *, vfs: str = "") -> NodeFile:
    """Read a node's `hadron.db`. A missing file is an empty node; damage is noted, not raised."""
    node = NodeFile(name)
    if not database.exists():
        return node
    try:
        flags = apsw.SQLITE_OPEN_READONLY
        with closing(apsw.Connection(str(database), flags=flags, vfs=vfs or None)) as db:
            tables = [
                row[0]
                for row in db.execute(
                    "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"
                )
            ]
            if "hadron_meta" not in tables:
                return node
            _read_log(node, db)
            _read_tables(node, db)
            for table in tables:
                if table not in _NOT_FROM_THE_LOG and not table.startswith("sqlite_"):
                    node.digests[table] = _digest(db, table)
    except (apsw.Error, CorruptionError, TypeError, ValueError) as error:
        node.damage[0] = f"{type(error).__name__}: {error}"
    return node


def _read_log(node: NodeFile, db: apsw.Connection) -> None:
    meta = dict(db.execute("SELECT key, value FROM hadron_meta"))
    node.applied_lsn = meta.get("applied_lsn", 0)
    node.committed_lsn = meta.get("committed_lsn", 0)
    rows = db.execute(
        "SELECT l.lsn, l.epoch, l.incarnation, l.now_ms, l.command, b.bytes, l.body_hash, l.chain"
        " FROM hadron_log l LEFT JOIN hadron_body b USING (lsn) ORDER BY l.lsn"
    )
    before: LogRow | None = None
    for lsn, epoch, incarnation, now_ms, command, body, body_hash, chain in rows:
        # Of a body that retention has dropped, an empty one is left (FORMAT.md).
        row = LogRow(
            lsn, Ballot(epoch, incarnation), now_ms, command, body or None, body_hash, chain
        )
        node.log[lsn] = row
        if trouble := _trouble(before, row):
            node.damage[lsn] = trouble
        before = row
    trimmed = "SELECT lsn, bytes FROM hadron_body WHERE lsn < ? ORDER BY lsn"
    for lsn, body in db.execute(trimmed, (node.first_lsn,)):
        try:
            check_body(body)
        except CorruptionError as error:
            # Its hash went with its row: only its own checksum is left to tell.
            node.damage[lsn] = f"the batch of entry {lsn}: {error}"
        else:
            node.bodies[lsn] = body


def _trouble(before: LogRow | None, row: LogRow) -> str:
    """What is wrong with a row beside its predecessor, "" when nothing is."""
    if row.body is not None and hash_body(row.body) != row.body_hash:
        return f"the body of entry {row.lsn} does not match its hash"
    if before is None:
        if row.lsn != 1:
            # The log was trimmed: what came before cannot be computed from the rows.
            return ""
        previous = bytes(16)
    elif row.lsn != before.lsn + 1:
        return f"entry {before.lsn + 1} is missing, the next one is {row.lsn}"
    elif row.ballot < before.ballot or row.now_ms < before.now_ms:
        return f"entry {row.lsn} is of an earlier ballot or time than the one before it"
    else:
        previous = before.chain
    chain = next_chain(previous, row.ballot, row.lsn, row.now_ms, row.command, row.body_hash)
    return "" if chain == row.chain else f"entry {row.lsn} does not continue the chain"


def _read_tables(node: NodeFile, db: apsw.Connection) -> None:
    for row in db.execute(
        "SELECT stream_id, base_offset, count, lsn, bytes, append_ms, body_lsn, start"
        " FROM hadron_stream_batch ORDER BY stream_id, base_offset"
    ):
        node.batches.append(BatchRow(*row))
    for stream_id, first, following in db.execute(
        "SELECT stream_id, first_offset, next_offset FROM hadron_stream_partition"
    ):
        node.bounds[stream_id] = (first, following)
    groups: list[Any] = db.execute(
        "SELECT group_id, stream_id, name, floor FROM hadron_group ORDER BY group_id"
    ).fetchall()
    for group_id, stream_id, name, floor in groups:
        ranges: list[Any] = db.execute(
            "SELECT first, last FROM hadron_group_ack WHERE group_id = ? ORDER BY first",
            (group_id,),
        ).fetchall()
        node.groups.append(GroupRow(group_id, stream_id, name, floor, tuple(ranges)))
    for stream_id, producer_id, next_sequence in db.execute(
        "SELECT stream_id, producer_id, next_sequence FROM hadron_producer"
    ):
        node.producers[stream_id, producer_id] = next_sequence
    _read_pipelines(node, db)
    _read_schema(node, db)


def _read_pipelines(node: NodeFile, db: apsw.Connection) -> None:
    found = node.pipelines

    def rows(columns: str, table: str) -> Iterator[tuple[PipelineRows, Any]]:
        for pipeline_id, *row in db.execute(f"SELECT pipeline_id, {columns} FROM hadron_{table}"):
            yield found.setdefault(pipeline_id, PipelineRows()), row

    for known, row in rows(
        "stream_id, next_offset, partition, first_offset, truncations", "pipeline_input"
    ):
        known.inputs.append(InputRow(*row))
    for known, (instance_id, *row) in rows(
        "instance_id, status, stream_id, offset, partition, created_ms, version", "instance"
    ):
        known.instances[instance_id] = InstanceRow(*row)
    for known, (stage, instance_id, *row) in rows(
        "stage, instance_id, status, attempts - ifnull(attempts_before, 0), out_stream_id,"
        " out_offset, out_partition, ifnull(attempts_before, 0), reason",
        "stage_run LEFT JOIN hadron_stage_retry USING (pipeline_id, stage, instance_id)",
    ):
        known.runs[stage, instance_id] = RunRow(*row)
    for known, (version, spec) in rows("version, spec", "definition"):
        known.definitions[version] = spec
    for known, row in rows("live, done, failed, cancelled, next_instance", "pipeline"):
        known.counts = tuple(row)
    for known, (stage, *row) in rows("stage, ready, done, failed", "stage_count"):
        known.stage_counts[stage] = (row[0], row[1], row[2])
    for known, row in rows("partition, from_offset, next_offset, again, status", "backfill"):
        known.backfills.append(BackfillRow(*row))
    for known, (instance_id,) in rows("instance_id", "instance_letter"):
        known.letters.add(instance_id)


def _read_schema(node: NodeFile, db: apsw.Connection) -> None:
    for object_id, kind, namespace, name, spec, index in db.execute(
        "SELECT id, kind, namespace, name, spec, metadata_index FROM hadron_schema_object"
    ):
        node.objects[object_id] = (kind, namespace, name)
        node.specs[object_id] = (spec, index)
    for (index,) in db.execute("SELECT metadata_index FROM hadron_schema_index"):
        node.schema_index = index
    for name, uuid, epoch, index in db.execute(
        "SELECT name, uuid, epoch, metadata_index FROM hadron_replica_set"
    ):
        node.replica_sets[name] = (uuid, epoch, index)


def _digest(db: apsw.Connection, table: str) -> str:
    """Of a table's rows, whatever their order in the file."""
    rows = sorted(repr(row) for row in db.execute(f'SELECT * FROM "{table}"'))
    return hashlib.blake2b("\n".join(rows).encode(), digest_size=16).hexdigest()
