"""State without a cluster: in somebody's own SQLite file, beside their tables, with no log."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from hadron.model.batch_building import BatchBuilder
from hadron.model.errors import (
    DataDirectoryError,
    OffsetOutOfRangeError,
    OldMemberError,
    SequenceError,
)
from hadron.model.ids import Ballot
from hadron.model.record import NewRecord
from hadron.model.schema import StreamSpec, spec_to_json
from hadron.state import leadership
from hadron.state.events import BatchAppended
from hadron.state.execute import Outcome, execute
from hadron.state.features import FEATURES, MACHINE
from hadron.state.groups import progress as groups
from hadron.state.groups.progress import AckRecords, CreateGroup
from hadron.state.leadership import BeginBallot
from hadron.state.machine import Command, Context, Feature, StateMachine
from hadron.state.schema import ApplySchema, ObjectChange
from hadron.state.streams import partitions as streams
from hadron.state.streams import retention
from hadron.state.streams.partitions import AppendBatch
from hadron.state.streams.retention import TrimStream
from hadron.storage import bodies
from hadron.storage.tables import make_tables

PID = bytes(range(16))


class Alone:
    """A file that has the tables and bodies, and nothing that numbers entries but this."""

    def __init__(self, path: Path, machine: StateMachine = MACHINE) -> None:
        self.db = apsw.Connection(str(path))
        self.machine = machine
        # Without the prefix a name is the user's, whatever it is.
        self.db.execute("CREATE TABLE producer(mine)")
        make_tables(self.db, bodies.TABLES + machine.tables)
        self.number = 0

    def run(self, command: Command, body: bytes = b"", **more: Any) -> Outcome:
        context = Context(
            machine=self.machine,
            db=self.db,
            lsn=self.number + 1,
            now_ms=1_000 + self.number,
            drop_bodies=bodies.delete,
            body=body,
            **more,
        )
        self.db.execute("BEGIN")
        outcome = execute(context, command)
        if outcome.command is not None:
            self.number = context.lsn
            if body:
                bodies.insert(self.db, context.lsn, body)
        self.db.execute("COMMIT")
        return outcome

    def result(self, command: Command, body: bytes = b"") -> Any:
        outcome = self.run(command, body)
        if outcome.error is not None:
            raise outcome.error
        return outcome.result


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Alone]:
    alone = Alone(tmp_path / "app.db")
    with closing(alone.db):
        yield alone


@pytest.mark.parametrize(
    "mine",
    [
        "TABLE hadron_producer(mine)",
        "TABLE Hadron_Producer(mine)",
        "VIEW hadron_producer AS SELECT 1",
        "TABLE hadron_stream_key_by_offset(mine)",
        # The same columns, but not the same key.
        "TABLE hadron_apply_rules(only INTEGER, apply_version INTEGER NOT NULL) STRICT",
        "TABLE t(x); CREATE INDEX hadron_producer ON t(x)",
        "TABLE t(x); CREATE INDEX hadron_stream_key_by_offset ON t(x)",
    ],
)
def test_a_users_table_of_our_name_is_refused_and_left_alone(tmp_path: Path, mine: str) -> None:
    """Passed over, it would get our rows, or fail the first command that has any for it."""
    tables = bodies.TABLES + MACHINE.tables
    with closing(apsw.Connection(str(tmp_path / "app.db"))) as db:
        db.execute(f"CREATE {mine}")
        before = db.execute("SELECT * FROM sqlite_schema").fetchall()
        with pytest.raises(DataDirectoryError, match=r"app\.db has a \w+ hadron_\w+ that is made"):
            make_tables(db, tables)
        assert db.execute("SELECT * FROM sqlite_schema").fetchall() == before


def test_tables_that_are_there_are_ours(alone: Alone) -> None:
    a_stream(alone)
    make_tables(alone.db, bodies.TABLES + MACHINE.tables)
    assert alone.db.execute("SELECT count(*) FROM hadron_stream_partition").get == 1


def a_batch(*values: str) -> bytes:
    builder = BatchBuilder()
    for value in values:
        builder.add(NewRecord(value=value), 0)
    return builder.build()


def a_stream(alone: Alone) -> int:
    spec = spec_to_json(StreamSpec(partitions=("some/where",))).decode()
    (item,) = alone.result(ApplySchema(0, (ObjectChange("Stream", "default", "s", spec),)))
    return int(item.id)


def test_streams_groups_and_retention_work_in_a_file_of_ones_own(alone: Alone) -> None:
    stream = a_stream(alone)
    for sequence in range(3):
        data = a_batch(f"{sequence}", "more")
        append = AppendBatch(stream, 2, len(data), PID, 0, sequence * 2)
        outcome = alone.run(append, data)
        assert [type(event) for event in outcome.events] == [BatchAppended]
    assert alone.result(append, data).duplicate, "what was sent again is not there twice"
    with pytest.raises(SequenceError):
        alone.result(AppendBatch(stream, 2, len(data), PID, 0, 99), data)
    found = streams.read_batches(alone.db, stream, 2, below=6, max_bytes=1 << 20)
    assert [batch.base_offset for batch in found] == [2, 4]
    group = alone.result(CreateGroup(stream, "g", 0))
    assert alone.result(AckRecords(group.group_id, ((0, 1), (3, 3)))) is not None
    assert alone.result(TrimStream(stream, 2)).batches == 1
    with pytest.raises(OffsetOutOfRangeError):
        streams.read_batches(alone.db, stream, 0, below=6, max_bytes=1)
    left = alone.db.execute(f"SELECT lsn FROM {bodies.BODY} ORDER BY lsn").fetchall()
    assert left == [(3,), (4,)], "no empty rows: no log could miss a body"
    known = groups.find(alone.db, stream, "g")
    assert known is not None
    assert known.floor == 2
    assert retention.kept_bytes(alone.db, stream) == 2 * len(data)
    assert alone.db.execute("SELECT * FROM producer").fetchall() == []


class Newer(Command, frozen=True, array_like=True, tag=120):
    since = 2


def test_the_newest_rules_hold_where_no_ballot_ever_began(tmp_path: Path) -> None:
    feature = Feature(name="newer", commands={Newer: lambda _context, _command: "done"})
    machine = StateMachine((*FEATURES, feature), version=2)
    alone = Alone(tmp_path / "app.db", machine)
    with closing(alone.db):
        assert alone.result(Newer()) == "done"
        started = BeginBallot("n1", b"u" * 16, (("n1", "leader"),), b"d" * 16, 1)
        assert alone.run(started, ballot=Ballot(1, 1)).error is None
        assert isinstance(alone.run(Newer()).error, OldMemberError)
        assert leadership.apply_version(alone.db) == 1


def test_state_is_imported_without_a_log_a_loop_or_replication() -> None:
    code = (
        "import sys, pkgutil, importlib, hadron.state\n"
        "for each in pkgutil.walk_packages(hadron.state.__path__, 'hadron.state.'):\n"
        "    '.tests' in each.name or importlib.import_module(each.name)\n"
        "print(*sys.modules)"
    )
    loaded = set(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
    )
    assert "hadron.state.features" in loaded
    rooms = {name.split(".")[1] for name in loaded if name.startswith("hadron.")}
    assert rooms == {"model", "state", "storage"}
    assert {name for name in loaded if name.startswith("hadron.storage.")} == {
        "hadron.storage.bodies",
        "hadron.storage.checksums",
        "hadron.storage.database",
        "hadron.storage.report",
    }
    assert not loaded & {"trio", "anyio", "asyncio", "google.protobuf"}
