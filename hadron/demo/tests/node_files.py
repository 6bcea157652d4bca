"""Node files as a finished demo leaves them, made by the real log and state code, and forgers."""

from __future__ import annotations

import shutil
import sqlite3
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import xxhash

from hadron.demo.flights import flight_record, load_flights
from hadron.demo.verdicts import expected_verdicts, expected_weather
from hadron.model.batch import read_head
from hadron.model.batch_building import BatchBuilder
from hadron.model.documents.reading import parse_documents
from hadron.model.ids import Ballot
from hadron.model.record import NewRecord, Record
from hadron.model.record_batch import decode_batch
from hadron.model.schema import spec_to_json
from hadron.state import machine
from hadron.state.features import MACHINE
from hadron.state.pipelines.inputs import TriggerInstances
from hadron.state.pipelines.stage_runs import CompleteStages
from hadron.state.schema import ApplySchema, ObjectChange
from hadron.state.streams.partitions import AppendBatch
from hadron.storage.database import open_writer
from hadron.storage.log import TABLES, Log, drop_bodies

NAMES = ("n1", "n2", "n3")
CHUNK = 4_000
BALLOT = Ballot(1, 1)

Forge = Callable[[list[NewRecord]], list[NewRecord]]


class NodeWriter:
    """Applies and logs commands one after the other, as a leader does."""

    def __init__(self, path: Path) -> None:
        self.db = open_writer(path, sync="NORMAL")
        self.db.execute(TABLES + MACHINE.tables)
        self.log = Log(self.db)

    def do(self, command: machine.Command, body: bytes = b"") -> Any:
        now_ms = 1_700_000_000_000 + self.log.head.lsn
        context = machine.Context(
            machine=MACHINE,
            db=self.db,
            lsn=self.log.head.lsn + 1,
            now_ms=now_ms,
            drop_bodies=drop_bodies,
            replica_set="local/p0",
            ballot=BALLOT,
        )
        result = MACHINE.apply(context, command)
        self.log.append(BALLOT, now_ms, machine.encode(command), body)
        return result

    def publish(self, stream_id: int, records: Sequence[NewRecord]) -> None:
        data = batch_of(records)
        self.do(AppendBatch.of(stream_id, read_head(data), len(data)), data)


def batch_of(records: Sequence[NewRecord]) -> bytes:
    builder = BatchBuilder()
    for record in records:
        builder.add(record, 0)
    return builder.build()


def write_node_file(path: Path) -> None:
    """A whole demo, all flights through both stages."""
    path.parent.mkdir(parents=True, exist_ok=True)
    node = NodeWriter(path)
    with node.db:
        documents = parse_documents((files("hadron.demo") / "schema.yaml").read_text(), "demo")
        changes = tuple(
            ObjectChange(each.kind, each.namespace, each.name, spec_to_json(each.spec).decode())
            for each in documents
        )
        ids = {each.name: each.id for each in node.do(ApplySchema(0, changes))}
        flights = load_flights()
        for start in range(0, len(flights), CHUNK):
            node.publish(ids["flights"], [flight_record(f) for f in flights[start : start + CHUNK]])
        offsets = tuple(range(len(flights)))
        node.do(TriggerInstances(ids["departures"], "local/p0", 0, len(flights), offsets))
        outputs = {
            "weather": ("flights-weather", expected_weather()),
            "verdict": ("verdicts", expected_verdicts()),
        }
        for stage, (stream, values) in outputs.items():
            for start in range(0, len(values), CHUNK):
                chunk = values[start : start + CHUNK]
                data = batch_of([NewRecord(value=value) for value in chunk])
                done = tuple(start + 1 + index for index in range(len(chunk)))
                node.do(
                    CompleteStages(
                        ids["departures"], stage, done, (1,) * len(done), ids[stream], len(data)
                    ),
                    data,
                )
    node.db.close()


def copy_nodes(source: Path, directory: Path) -> dict[str, Path]:
    paths = {name: directory / name / "hadron.db" for name in NAMES}
    for path in paths.values():
        path.parent.mkdir(parents=True)
        shutil.copy(source, path)
    return paths


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path)) as db, db:
        yield db


def forge(path: Path, stream: str, change: Forge, *, reseal: bool) -> None:
    """Rewrite the second batch of a stream in one node's file.

    With `reseal` the forger also mends the body's hash and the whole chain, so that only the
    content can give the forgery away.
    """
    with opened(path) as db:
        base, count, lsn, data = db.execute(
            "SELECT base_offset, s.count, s.lsn, b.bytes"
            " FROM hadron_stream_batch s JOIN hadron_body b USING (lsn)"
            " JOIN hadron_schema_object o ON o.id = s.stream_id WHERE o.name = ?"
            " AND kind = 'Stream'"
            " ORDER BY base_offset LIMIT 1 OFFSET 1",
            (stream,),
        ).fetchone()
        records = change([_copy(record) for record in decode_batch(data).records()])
        forged = batch_of(records)
        db.execute("UPDATE hadron_body SET bytes = ? WHERE lsn = ?", (forged, lsn))
        shift = len(records) - count
        if shift:
            _shift(db, stream, base, shift)
        if reseal:
            db.execute(
                "UPDATE hadron_log SET body_hash = ? WHERE lsn = ?",
                (xxhash.xxh3_128_digest(forged), lsn),
            )
            _rechain(db)


def _copy(record: Record) -> NewRecord:
    return NewRecord(
        value=record.value, key=record.key, type=record.type, timestamp_ms=record.timestamp_ms
    )


def _shift(db: sqlite3.Connection, stream: str, base: int, shift: int) -> None:
    (stream_id,) = db.execute(
        "SELECT id FROM hadron_schema_object WHERE name = ? AND kind = 'Stream'", (stream,)
    ).fetchone()
    db.execute(
        "UPDATE hadron_stream_batch SET count = count + ? WHERE stream_id = ? AND base_offset = ?",
        (shift, stream_id, base),
    )
    later = db.execute(
        "SELECT base_offset FROM hadron_stream_batch WHERE stream_id = ? AND base_offset > ?"
        f" ORDER BY base_offset {'DESC' if shift > 0 else 'ASC'}",
        (stream_id, base),
    ).fetchall()
    for (offset,) in later:
        db.execute(
            "UPDATE hadron_stream_batch SET base_offset = ? WHERE stream_id = ?"
            " AND base_offset = ?",
            (offset + shift, stream_id, offset),
        )
    db.execute(
        "UPDATE hadron_stream_partition SET next_offset = next_offset + ? WHERE stream_id = ?",
        (shift, stream_id),
    )


def _rechain(db: sqlite3.Connection) -> None:
    chain = bytes(16)
    for lsn, epoch, incarnation, now_ms, command, body_hash in db.execute(
        "SELECT lsn, epoch, incarnation, now_ms, command, body_hash FROM hadron_log ORDER BY lsn"
    ).fetchall():
        numbers = struct.pack("<QQQQ", epoch, incarnation, lsn, now_ms)
        chain = xxhash.xxh3_128_digest(
            chain + numbers + xxhash.xxh3_128_digest(command) + body_hash
        )
        db.execute("UPDATE hadron_log SET chain = ? WHERE lsn = ?", (chain, lsn))
