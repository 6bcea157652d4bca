"""The judge must find one flight or one output removed, doubled or altered, however well forged."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from hadron.cli.commands.demo import command
from hadron.demo.tests.node_files import NAMES, copy_nodes, forge, opened, write_node_file
from hadron.demo.verify import verify
from hadron.model.record import NewRecord
from hadron.node.supervision.cluster import write_config
from hadron.storage.database import open_writer
from hadron.storage.log import Log

Records = list[NewRecord]


def remove_one(records: Records) -> Records:
    return records[:7] + records[8:]


def double_one(records: Records) -> Records:
    return [*records[:7], records[7], *records[7:]]


def replace_one(records: Records) -> Records:
    """As many as before, but one twice and one not at all."""
    return [*records[:7], records[8], *records[8:]]


def alter_one(records: Records) -> Records:
    value: dict[str, Any] = dict(records[7].value)
    name = next(name for name in ("dep_delay", "weather") if name in value)
    value[name] = 99
    return [*records[:7], msgspec.structs.replace(records[7], value=value), *records[8:]]


def turn_into_floats(records: Records) -> Records:
    """To Python 2.0 is 2."""
    return [
        msgspec.structs.replace(
            record,
            value={
                name: float(value) if isinstance(value, int) and name != "id" else value
                for name, value in record.value.items()
            },
        )
        for record in records
    ]


def give_key(records: Records) -> Records:
    return [*records[:7], msgspec.structs.replace(records[7], key="XX"), *records[8:]]


def give_type(records: Records) -> Records:
    return [*records[:7], msgspec.structs.replace(records[7], type="a.stranger"), *records[8:]]


def give_headers(records: Records) -> Records:
    return [*records[:7], msgspec.structs.replace(records[7], headers={"a": "b"}), *records[8:]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demo") / "hadron.db"
    write_node_file(path)
    return path


@pytest.fixture
def nodes(finished: Path, tmp_path: Path) -> dict[str, Path]:
    write_config(tmp_path / "cluster.yaml", len(NAMES), "fsync")
    return copy_nodes(finished, tmp_path)


def exit_status(directory: Path) -> tuple[int, str]:
    result = CliRunner().invoke(command, ["--verify", str(directory)], standalone_mode=False)
    return result.return_value, result.output


@pytest.mark.long
def test_accepts_what_is_right(nodes: dict[str, Path], tmp_path: Path) -> None:
    report = verify(nodes)
    assert report.problems == []
    assert report.summary() == (
        "verified: 27,004 flights, every one exactly once through 2 stages; 3 replicas hold the "
        f"same log (chain {report.chain[:8]}… at lsn {report.lsn})"
    )
    assert exit_status(tmp_path) == (0, report.summary() + "\n")


@pytest.mark.long
@pytest.mark.parametrize("stream", ["flights", "flights-weather", "verdicts"])
@pytest.mark.parametrize("change", [remove_one, double_one, replace_one, alter_one])
def test_finds_a_forgery_in_every_file(
    nodes: dict[str, Path], tmp_path: Path, stream: str, change: Callable[[Records], Records]
) -> None:
    """The same forgery everywhere, with all hashes mended: chains are equal, contents are not."""
    first, *others = nodes.values()
    forge(first, stream, change, reseal=True)
    for path in others:
        shutil.copy(first, path)
    status, output = exit_status(tmp_path)
    assert status == 1
    assert "NOT verified" in output.splitlines()[-1]
    assert f"{stream}" in output
    assert "hash" not in output
    assert "differs" not in output


@pytest.mark.long
@pytest.mark.parametrize(
    ("stream", "change", "problem"),
    [
        ("flights", turn_into_floats, "year is 2013.0, not 2013"),
        ("verdicts", turn_into_floats, "dep_delay is -5.0, not -5"),
        ("flights", give_headers, "another key, type, time or headers than published"),
        ("flights-weather", give_headers, "has a key, a type or headers"),
        ("flights-weather", give_type, "has a key, a type or headers"),
        ("verdicts", give_key, "has a key, a type or headers"),
    ],
)
def test_finds_what_is_equal_to_python_and_what_is_beside_a_value(
    nodes: dict[str, Path], stream: str, change: Callable[[Records], Records], problem: str
) -> None:
    forge(nodes["n2"], stream, change, reseal=True)
    text = "\n".join(verify(nodes).problems)
    assert f" at {stream}/" in text
    assert problem in text


def trim(path: Path, until_lsn: int) -> None:
    """As a node does."""
    db = open_writer(path, sync="NORMAL")
    with db:
        Log(db).trim(until_lsn, max_rows=until_lsn)
    db.close()


@pytest.mark.long
def test_a_log_that_was_trimmed_begins_at_its_anchor(nodes: dict[str, Path]) -> None:
    """Each node trims its own by itself, when 64 MiB have come."""
    whole = verify(nodes)
    for name, until_lsn in {"n1": 5, "n2": 9}.items():
        trim(nodes[name], until_lsn)
    report = verify(nodes)
    assert report.problems == []
    assert (report.lsn, report.chain) == (whole.lsn, whole.chain)


@pytest.mark.long
def test_a_log_that_was_trimmed_is_judged_from_there_on(nodes: dict[str, Path]) -> None:
    for path in nodes.values():
        trim(path, 5)
    with opened(nodes["n1"]) as db:
        db.execute("DELETE FROM hadron_log WHERE lsn = 6")
    with opened(nodes["n2"]) as db:
        db.execute("UPDATE hadron_anchor SET chain = zeroblob(16)")
    trim(nodes["n3"], 20)
    with opened(nodes["n1"]) as db:
        db.execute("DELETE FROM hadron_log WHERE lsn > 15")
    problems = verify(nodes).problems
    assert "n1: log entry 6 is missing" in problems
    assert "n2: log entry 6 does not continue the hash chain" in problems
    assert "n1: its log ends at lsn 15, before that of n3 begins" in problems


@pytest.mark.long
@pytest.mark.parametrize("stream", ["flights", "verdicts"])
@pytest.mark.parametrize("change", [remove_one, double_one, alter_one])
def test_finds_a_change_in_one_file(
    nodes: dict[str, Path], tmp_path: Path, stream: str, change: Callable[[Records], Records]
) -> None:
    forge(nodes["n2"], stream, change, reseal=False)
    status, output = exit_status(tmp_path)
    assert status == 1
    assert "n2: the record bytes of log entry" in output
    assert not any(line.startswith(("problem: n1", "problem: n3")) for line in output.splitlines())


@pytest.mark.long
def test_names_the_flight(nodes: dict[str, Path]) -> None:
    forge(nodes["n3"], "verdicts", replace_one, reseal=True)
    text = "\n".join(verify(nodes).problems)
    assert "n3: flight 4007 (" in text
    assert ") is missing from stream verdicts" in text
    assert "n3: flight 4008 (" in text
    assert "is 2 times in stream verdicts" in text
    assert "n3: its log differs from n1's from lsn" in text


@pytest.mark.long
@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        ("DELETE FROM hadron_log WHERE lsn = 5", "log entry 5 is missing"),
        ("DELETE FROM hadron_log WHERE lsn = 23", "its log ends at lsn 22, before 23"),
        (
            "UPDATE hadron_log SET now_ms = now_ms + 1 WHERE lsn = 9",
            "log entry 9 does not continue",
        ),
        ("DELETE FROM hadron_body WHERE lsn = 3", "the record bytes of log entry 3 are missing"),
        ("DELETE FROM hadron_stream_batch WHERE base_offset = 4000", "has no offsets 4000 to 7999"),
        ("UPDATE hadron_instance SET status = 1 WHERE instance_id = 12", "instance 12 is not done"),
        (
            "DELETE FROM hadron_instance WHERE instance_id = 12",
            "the record at flights/11 made no instance",
        ),
        (
            "UPDATE hadron_stage_run SET out_offset = 13 WHERE instance_id = 12"
            " AND stage = 'verdict'",
            "stage verdict of instance 12 points at verdicts/13",
        ),
        (
            "DELETE FROM hadron_stage_run WHERE instance_id = 12 AND stage = 'weather'",
            "stage weather of instance 12 never ran",
        ),
        ("DELETE FROM hadron_schema_object WHERE name = 'verdicts'", "there is no stream verdicts"),
        (
            "DELETE FROM hadron_schema_object WHERE kind = 'Pipeline'",
            "there is no pipeline departures",
        ),
        ("DROP TABLE hadron_stage_run", "cannot be read: no such table: hadron_stage_run"),
    ],
)
def test_finds_what_is_wrong_with_tables(nodes: dict[str, Path], sql: str, problem: str) -> None:
    with opened(nodes["n2"]) as db:
        db.execute(sql)
    problems = verify(nodes, through_lsn=23).problems
    assert any(problem in text for text in problems), problems
    assert all(text.startswith("n2: ") for text in problems), problems


def test_a_file_that_is_none_is_a_problem(nodes: dict[str, Path], tmp_path: Path) -> None:
    nodes["n1"].unlink()
    nodes["n2"].write_bytes(b"this is not a database at all" * 100)
    status, output = exit_status(tmp_path)
    assert status == 1
    assert "n1's file" in output
    assert "cannot be read" in output
    assert "Traceback" not in output


def test_reads_a_write_ahead_log_and_leaves_it(nodes: dict[str, Path]) -> None:
    """The newest commits of a node that was killed are in its WAL, not in the main file."""
    path = nodes["n1"]
    live = sqlite3.connect(path)
    live.execute("PRAGMA wal_autocheckpoint = 0")
    live.execute("UPDATE hadron_instance SET status = 1 WHERE instance_id = 12")
    live.commit()
    killed = path.parent.with_name("killed")
    killed.mkdir()
    for name in ("hadron.db", "hadron.db-wal"):
        shutil.copy(path.with_name(name), killed)
    live.close()
    wal = (killed / "hadron.db-wal").read_bytes()
    report = verify({"n1": killed / "hadron.db"})
    assert report.problems == ["n1: instance 12 is not done"]
    assert (killed / "hadron.db-wal").read_bytes() == wal
