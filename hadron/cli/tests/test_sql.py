"""`hadron sql` on the files of a running cluster, of a backup, and into pipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hadron.cli.tests.support import run_bytes
from hadron.node.supervision.cluster import LocalCluster

QUERY = "SELECT offset, key, value FROM record WHERE stream = 'flights' ORDER BY offset"


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A real cluster with two records, one of them no text."""
    with LocalCluster(tmp_path_factory.mktemp("three"), nodes=3, durability="os") as cluster:
        for arguments, stdin in (
            (("create", "stream", "flights"), b""),
            (("pub", "flights", "--key", "UA", '{"n": 1.50}', "--format", "jsonl"), b""),
            (("pub", "flights", "--format", "raw"), b"\xff\n"),
        ):
            done = hadron(cluster, *arguments, stdin=stdin)
            assert (done.returncode, done.stderr) == (0, b"")
        yield cluster


def hadron(
    cluster: LocalCluster, *arguments: str, stdin: bytes = b"", url: str = ""
) -> subprocess.CompletedProcess[bytes]:
    return run_bytes(*arguments, stdin=stdin, HADRON_URL=url or cluster.url)


def data(cluster: LocalCluster, name: str) -> str:
    return str(cluster.config.node(name).data)


def test_the_leaders_file_of_a_running_cluster(three: LocalCluster) -> None:
    """It does not say what is committed; its node does."""
    done = hadron(three, "sql", "--data", data(three, "n1"), QUERY, "-o", "json")
    assert (done.returncode, done.stderr) == (0, b"")
    assert list(map(json.loads, done.stdout.splitlines())) == [
        {"offset": 0, "key": "UA", "value": '{"n": 1.50}'},
        {"offset": 1, "key": None, "value_base64": "/wo="},
    ]


def test_without_its_node_what_is_left_out_is_told(three: LocalCluster) -> None:
    done = hadron(three, "sql", "--data", data(three, "n1"), QUERY, url="hadron://127.0.0.1:1")
    assert done.returncode == 0
    assert done.stdout == b"offset  key  value\n"
    assert b"entries are left out: " in done.stderr
    assert b"does not say whether they are committed" in done.stderr


def test_a_backup(three: LocalCluster, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    assert hadron(three, "backup", str(copy)).returncode == 0
    done = hadron(three, "sql", "--data", str(copy), QUERY, url="hadron://127.0.0.1:1")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().splitlines() == [
        "offset  key  value",
        '0       UA   {"n": 1.50}',
        r"1       -    \xff\n",
    ]


def test_files_are_found_in_this_directory(
    three: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = hadron(three, "sql", QUERY).stderr
    assert b"hadron-data does not exist" in said
    Path("hadron-cluster").symlink_to(three.directory)
    assert hadron(three, "sql", QUERY).stdout.count(b"\n") == 3


def test_the_clusters_processes_as_json(three: LocalCluster) -> None:
    for letter in ("-o", "--output"):
        done = hadron(three, "cluster", "status", "--config", str(three.directory), letter, "json")
        assert (done.returncode, done.stderr) == (0, b"")
        assert [node["node"] for node in json.loads(done.stdout)] == ["n1", "n2", "n3"]


def test_statements_and_their_rows(three: LocalCluster) -> None:
    statements = b"SELECT 1 AS n, 2 AS n; CREATE TABLE t(x); SELECT x FROM t; SELECT 'a\nb' AS x"
    done = hadron(three, "sql", "--data", data(three, "n2"), "-", stdin=statements)
    assert done.stdout == b"n  n\n1  2\nx\nx\na\\nb\n"
    done = hadron(three, "sql", "--data", data(three, "n2"), "-", "-o", "json", stdin=statements)
    assert list(map(json.loads, done.stdout.splitlines())) == [{"n": 1, "n_2": 2}, {"x": "a\nb"}]


def test_what_json_has_no_number_for_is_null(three: LocalCluster) -> None:
    asked = "SELECT 9e999 AS x, -9e999 AS y, 0.5 AS z"
    done = hadron(three, "sql", "--data", data(three, "n2"), asked, "-o", "json")
    assert done.stdout == b'{"x": null, "y": null, "z": 0.5}\n'


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT nope FROM record", b"error: SQL: no such column: nope\n"),
        (
            "SELECT * FROM records",
            b"error: SQL: no such table: records\nhint: records are in the table record: see",
        ),
        ("SELEC 1", b'error: SQL: near "SELEC": syntax error\n'),
        ("DELETE FROM record", b"error: SQL: table record may not be modified\n"),
    ],
)
def test_mistakes_are_sentences(three: LocalCluster, query: str, said: bytes) -> None:
    done = hadron(three, "sql", "--data", data(three, "n2"), query)
    assert done.returncode == 1
    assert done.stderr.startswith(said)


def test_a_nodes_files_are_not_attached(three: LocalCluster, tmp_path: Path) -> None:
    """SQLite would open them for writing."""
    own = Path(data(three, "n2"))
    (tmp_path / "link.db").symlink_to(own / "hadron.db")
    (tmp_path / "same.db").hardlink_to(own / "hadron.db")
    for statement in (
        f"ATTACH '{own}/hadron.db' AS m; DELETE FROM m.hadron_body",
        f"ATTACH '{own}/node.db' AS m",
        f"ATTACH '{data(three, 'n1')}/hadron.db' AS m",
        f"ATTACH '{tmp_path}/link.db' AS m",
        f"ATTACH '{tmp_path}/same.db' AS m",
        f"VACUUM INTO '{own}/hadron.db-journal'",
    ):
        done = hadron(three, "sql", "--data", str(own), statement)
        assert (done.returncode, done.stdout) == (1, b""), statement
        assert b"is a node's file, which only its node may write" in done.stderr
    assert hadron(three, "sql", "--data", str(own), QUERY).stdout.count(b"\n") == 3


def test_a_file_that_was_never_a_nodes_is_not_damaged(three: LocalCluster, tmp_path: Path) -> None:
    other = tmp_path / "numbers"
    other.write_text("1\n2\n")
    done = hadron(three, "sql", "--data", str(other), QUERY)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {other} is not a hadron.db\n".encode())


def test_a_reader_that_goes_away(three: LocalCluster) -> None:
    many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
    with subprocess.Popen(
        [sys.executable, "-m", "hadron", "sql", "--data", data(three, "n2"), many, "-o", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "HADRON_URL": three.url},
    ) as endless:
        assert endless.stdout is not None
        assert endless.stderr is not None
        assert endless.stdout.readline() == b'{"i": 1}\n'
        endless.stdout.close()
        assert endless.wait(timeout=60) == 141
        assert endless.stderr.read() == b""
