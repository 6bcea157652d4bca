"""Files that a node wrote before its formats had a number: every command that reads files refuses
them in a sentence, and changes nothing."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from hadron.cli.tests.support import run_text
from hadron.node.supervision.cluster import free_ports
from hadron.node.world import SystemDisk
from hadron.storage.database import open_copy
from hadron.storage.snapshot import Manifest, measure

TOLD = " is a SQLite file that Hadron did not make, or did before its formats had a number"
WAY_OUT = "use the version of Hadron that wrote it; a node of this one needs a directory of its own"


def write_older(path: Path, *statements: str) -> None:
    path.parent.mkdir(exist_ok=True)
    with closing(open_copy(path)) as db:
        for statement in statements:
            db.execute(statement)
        db.pragma("user_version", 2)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory whose tables have no prefix."""
    write_older(tmp_path / "n1" / "hadron.db", "CREATE TABLE log(lsn INTEGER PRIMARY KEY, chain)")
    write_older(
        tmp_path / "n1" / "node.db",
        "CREATE TABLE identity(cluster, replica_set, node, uuid, epoch)",
        "INSERT INTO identity VALUES('flights', 'local/p0', 'n1', zeroblob(16), 1)",
    )
    return tmp_path / "n1"


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    path = tmp_path / "monday" / "hadron.db"
    write_older(path, "CREATE TABLE log(lsn INTEGER PRIMARY KEY, chain)")
    size, digest = measure(path, SystemDisk())
    manifest = Manifest(
        cluster="flights",
        replica_set="local/p0",
        node="n1",
        uuid="00" * 16,
        lsn=9,
        epoch=1,
        incarnation=1,
        chain="11" * 16,
        committed_lsn=9,
        size=size,
        hash=digest,
        created_ms=0,
        version="0.0.1",
    )
    (path.parent / "manifest.json").write_bytes(manifest.encode())
    return path.parent


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    address = f"127.0.0.1:{free_ports(1)[0]}"
    path.write_text(
        "cluster: flights\nmetadata: local/p0\nreplica_set:\n  name: local/p0\n  epoch: 1\n"
        f"  nodes:\n    - {{name: n1, role: leader, address: {address}, data: n1}}\n"
    )
    return path


def refused(*words: object) -> str:
    done = run_text(*map(str, words))
    assert done.returncode == 1, done.stdout
    return done.stdout + done.stderr


def test_a_directory_is_refused_by_all_that_read_it(
    data: Path, config: Path, tmp_path: Path
) -> None:
    for command, name in (
        (("sql", "--data", data, "SELECT 1"), "hadron.db"),
        (("backup", tmp_path / "copy", "--data", data), "node.db"),
        (("recover", "--config", config, "--node", "n1", "--accept-loss"), "node.db"),
        (("node", "--config", config, "--name", "n1"), "node.db"),
    ):
        assert refused(*command) == f"error: {data / name}{TOLD}\nhint: {WAY_OUT}\n"
    for path in (data, data / "hadron.db"):
        told = refused("verify", path)
        for name in ("hadron.db", "node.db"):
            assert f"problem at {data / 'hadron.db'}: {data / name}{TOLD}: {WAY_OUT}\n" in told
        assert "2 problems found" in told


def test_a_backup_is_refused_before_anything_is_written(
    backup: Path, config: Path, tmp_path: Path
) -> None:
    before = config.read_text(), sorted(tmp_path.rglob("*"))
    told = refused("verify", backup)
    assert f"problem at the backup of n1: {backup / 'hadron.db'}{TOLD}: {WAY_OUT}\n" in told
    assert "1 problem found" in told
    assert refused("sql", "--data", backup, "SELECT 1").startswith(
        f"error: {backup / 'hadron.db'}{TOLD}\n"
    )
    told = refused("restore", backup, "--config", config, "--all", "--accept-loss", "--raise-epoch")
    assert told == f"error: {backup / 'hadron.db'}{TOLD}\nhint: {WAY_OUT}\n"
    assert (config.read_text(), sorted(tmp_path.rglob("*"))) == before
