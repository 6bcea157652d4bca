"""`hadron backup`, `restore` and `recover` as people type them, rightly and wrongly."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import hadron
from hadron.cli import main
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.node.supervision.cluster import LocalCluster
from hadron.node.supervision.fleet import Fleet
from hadron.node.supervision.local_fleet import write_configs
from hadron.node.supervision.processes import wait_until

Say = Callable[..., str]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Run a command, which must end with `status`, and return what it printed."""

    def run(*words: object, status: int = 0) -> str:
        assert main([str(word) for word in words]) == status
        captured = capsys.readouterr()
        return captured.err if status else captured.out

    return run


def values(cluster: LocalCluster) -> list[object]:
    with hadron.connect_sync(cluster.url) as client:
        return [record.value for record in client.read("events")]


def publish(cluster: LocalCluster, *items: str) -> None:
    with hadron.connect_sync(cluster.url) as client:
        client.apply(
            [SchemaObject(kind="Stream", name="events", spec=StreamSpec(partitions=("local/p0",)))]
        )
        with client.producer("events") as producer:
            for item in items:
                producer.send(item)


def raise_epoch(cluster: LocalCluster) -> None:
    text = cluster.config_path.read_text()
    assert "epoch: 1" in text
    cluster.config_path.write_text(text.replace("epoch: 1", "epoch: 2"))


@pytest.mark.long
def test_a_backup_and_back(tmp_path: Path, say: Say) -> None:
    backup, config = tmp_path / "monday", tmp_path / "cluster.yaml"
    with LocalCluster(tmp_path, nodes=1) as cluster:
        publish(cluster, "a", "b")
        found = json.loads(say("backup", backup, "--server", cluster.url, "--output", "json"))
        written = json.loads((backup / "manifest.json").read_bytes())
        del written["check"]
        assert found == {"path": str(backup), **written}
        publish(cluster, "c")
        told = say("backup", tmp_path / "tuesday", "--server", cluster.url)
        assert f"verified and complete in {tmp_path / 'tuesday'}" in told
        told = say("backup", tmp_path / "x", "--server", cluster.url, "--node", "n7", status=1)
        assert told == "error: there is no node 'n7'\nhint: name one of local/p0/n1 with --node\n"
        assert say("verify", backup, cluster.config.leader.data).endswith(
            "the backup of n1, n1 agree up to entry "
            f"{found['lsn']} (chain {found['chain'][:8]}…)\neverything is right\n"
        )
        told = say("restore", backup, "--config", config, "--all", "--accept-loss", status=1)
        assert "epoch 1, the backup knows epoch 1\nhint: raise `epoch` to 2" in told
        raise_epoch(cluster)
        told = say("restore", backup, "--config", config, "--all", "--accept-loss", status=1)
        assert "is in use by process" in told
    told = say("restore", backup, "--config", config, "--all", "--accept-loss", status=1)
    assert told.endswith("hint: move the directory away, or say --overwrite\n")
    told = say("restore", backup, "--config", config, "--all", "--accept-loss", "--overwrite")
    assert f"what was acknowledged after entry {found['lsn']} is lost" in told
    assert told.endswith(
        f"start every node with {config}, or a file with a higher epoch than its 2: "
        f"`hadron node --config {config} --name NODE`\n"
    )
    (tmp_path / "cluster.processes.lock").touch()
    # The directory will do, and the cluster is one that `hadron cluster` started.
    config.write_text(config.read_text().replace("epoch: 2", "epoch: 3"))
    told = say("restore", backup, "--config", tmp_path, "--all", "--accept-loss", "--overwrite")
    assert told.endswith(f"higher epoch than its 3: `hadron cluster up --config {config}`\n")
    with LocalCluster(tmp_path, config=config) as cluster:
        assert values(cluster) == ["a", "b"]
    stopped = tmp_path / "stopped"
    assert "complete" in say("backup", stopped, "--data", cluster.config.leader.data)
    assert say("verify", stopped).endswith("everything is right\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("restore monday", "say what to restore: --node NAME, --all, or --data DIR"),
        ("restore monday", "configuration file: --config FILE; and --accept-loss with --all"),
        ("restore monday --all --node n1", "--node and --all exclude each other"),
        ("restore monday --all --accept-loss", "configuration file: --config FILE"),
        ("restore monday --config c --all", "say --accept-loss"),
        ("restore monday --config c --all", "is lost; and there is no monday; and there is no c"),
        ("restore monday --config c --data d --accept-loss", "exclude each other"),
        ("recover --config c --node n1", "say --accept-loss"),
        ("recover --data d", "say --accept-loss"),
        ("recover --config c --accept-loss", "say whose disk"),
        ("recover --data d --node n1 --accept-loss", "say whose disk"),
        ("backup monday --node n1 --data d", "exclude each other"),
        ("backup monday --all --data d", "exclude each other"),
        ("backup monday --all --replica-set eu/p0", "exclude each other"),
        ("restore monday --config c --node n1 --raise-epoch", "goes with --all"),
        ("restore monday --config c --node eu/p0/n1 --replica-set us/p0", "is not of us/p0"),
        ("restore monday --data d --replica-set eu/p0 --accept-loss", "exclude each other"),
    ],
)
def test_what_is_not_said_is_asked_for(words: str, told: str, say: Say) -> None:
    assert told in say(*words.split(), status=2)


@pytest.mark.parametrize("command", ["restore b --all", "recover --node n1"])
def test_what_is_no_configuration_file(
    command: str, tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for config, told in (
        ("b/manifest.json", "error: b/manifest.json says what a backup is; it is not a replica"),
        (".", "error: there is no cluster in ./."),
    ):
        assert told in say(*command.split(), "--config", config, "--accept-loss", status=1)


def test_what_is_no_backup(tmp_path: Path, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dev = ("--data", "data", "--accept-loss")
    assert "b is not a complete backup\nhint: a backup is a directory with" in say(
        "restore", "b", *dev, status=1
    )
    told = say("backup", "b", "--data", "nothing", status=1)
    assert "nothing is not the data directory of a node" in told
    backup = tmp_path / "b"
    backup.mkdir()
    (backup / "hadron.db").touch()
    (backup / "manifest.json").write_text('{"format": 2}')
    told = say("restore", "b", *dev, status=1)
    assert "has format 2, this Hadron knows 1\nhint: use the version of Hadron that made" in told
    (backup / "manifest.json").write_text("{}")
    assert "hint: use another backup" in say("restore", "b", *dev, status=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b"]


@pytest.mark.long
def test_a_whole_cluster_and_back(tmp_path: Path, say: Say) -> None:
    files = write_configs(tmp_path / "cluster", {"meta": 1, "eu/p0": 2})
    backup = tmp_path / "monday"
    config = ("--config", tmp_path / "cluster")

    def started() -> contextlib.ExitStack:
        stack = contextlib.ExitStack()
        for path in files.values():
            stack.enter_context(LocalCluster(tmp_path / "cluster", config=path))
        return stack

    url = Fleet(list(files.values())).url
    with started():
        with hadron.connect_sync(url) as client:
            client.apply(
                [
                    SchemaObject(
                        kind="Stream", name="events", spec=StreamSpec(partitions=("eu/p0", "meta"))
                    )
                ]
            )
            with client.producer("events") as producer:
                for number in range(4):
                    producer.send(number)
        told = say("backup", backup, "--server", url, status=1)
        assert told.startswith("error: 2 replica sets could be meant\n")
        assert "name one of meta, eu/p0 with --replica-set, or a node" in told
        told = say("backup", backup, "--replica-set", "eu/p1", "--server", url, status=1)
        assert "there is no replica set 'eu/p1' (did you mean 'eu/p0'?)" in told
        told = say("backup", backup, "--all", "--server", url)
        assert told.endswith(f"2 replica sets, verified and complete in {backup}\n")
        told = say("verify", "--server", url)
        assert "eu/p0: n1, n2 agree up to entry" in told
        assert "eu/p0: n1, n2 have the same" in told
        assert say("backup", tmp_path / "eu", "--replica-set", "eu/p0", "--server", url)
        # Each node that is to be stopped first, at once.
        every = (*config, "--all", "--accept-loss", "--overwrite", "--raise-epoch")
        told = say("restore", backup, *every, status=1)
        assert told.startswith("error: 3 problems before it could begin:\n  meta: the data dir")
        assert told.count("is in use by process") == 3
        assert told.count("stop that node first") == 1
    assert sorted(each.name for each in backup.iterdir()) == ["cluster.json", "eu+p0", "meta"]
    assert say("verify", backup).endswith("everything is right\n")
    told = say("restore", backup, *config, "--all", "--accept-loss", "--overwrite", status=1)
    assert "error: 2 problems before it could begin:\n  meta: the configuration has epoch 1" in told
    told = say("restore", backup, *config, "--node", "n2", status=2)
    assert "say whose node it is with --replica-set" in told
    # One node, however its set is named: the backup says it as well.
    for words in (
        (backup, "--node", "eu/p0/n2"),
        (backup, "--node", "n2", "--replica-set", "eu/p0"),
        (tmp_path / "eu", "--node", "n2"),
    ):
        assert "n2 counts in no majority" in say("restore", *words, *config, "--overwrite")
    told = say("restore", backup, *config, "--all", "--accept-loss", "--overwrite", "--raise-epoch")
    assert f"{files['eu/p0']}: epoch 1 -> 2" in told
    assert told.endswith(
        "start every node with its set's file:\n"
        f"  hadron node --config {files['meta']} --name NODE\n"
        f"  hadron node --config {files['eu/p0']} --name NODE\n"
    )
    with started():
        with hadron.connect_sync(url) as client:
            assert sorted(int(each.value) for each in client.read("events")) == [0, 1, 2, 3]

        def is_quiet() -> bool:
            return main(["status", "--check", "--server", url]) == 0

        assert wait_until(is_quiet, 10)


@pytest.mark.long
def test_what_is_missing_from_a_clusters_backup(
    tmp_path: Path, say: Say, capsys: pytest.CaptureFixture[str]
) -> None:
    files = write_configs(tmp_path / "cluster", {"meta": 1, "eu/p0": 1})
    url = Fleet(list(files.values())).url
    backup = tmp_path / "monday"
    with LocalCluster(tmp_path / "cluster", config=files["meta"]) as meta:
        with LocalCluster(tmp_path / "cluster", config=files["eu/p0"]):
            main(["verify", "--server", url])
        told = say("backup", backup, "--all", "--server", url, status=1)
        assert "eu/p0: " in told
        assert f"what could be had is in {backup}.part; the same command goes on with it" in told
        assert not backup.exists()
        with LocalCluster(tmp_path / "cluster", config=files["eu/p0"]):
            assert "2 replica sets" in say("backup", backup, "--all", "--server", meta.url)
            shutil.rmtree(backup / "meta")
            backup.rename(f"{backup}.part")
            assert main(["backup", str(backup), "--all", "--server", meta.url]) == 0
            told = capsys.readouterr().err
            assert re.search(r"^eu/p0: kept from an earlier attempt, \d+(s|m) old$", told, re.M)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["cluster", "monday"]
    # What could be restored is looked at, and made only with all others.
    data = [each.config.leader.data for each in Fleet(list(files.values())).clusters]
    shutil.rmtree(data[0])
    every = ("restore", backup, "--config", tmp_path / "cluster", "--all", "--accept-loss")
    told = say(*every, "--raise-epoch", status=1)
    assert told.startswith(f"error: eu/p0: {data[1]} holds a node's hadron.db and node.db\n")
    shutil.rmtree(data[1])
    data[1].touch()
    told = say(*every, "--raise-epoch", "--overwrite", status=1)
    assert told.startswith(f"error: eu/p0: {data[1]}: Not a directory\n")
    assert not data[0].exists()
    shutil.rmtree(backup / "eu+p0")
    told = say(*every, status=1)
    assert told == (
        f"error: {backup}/eu+p0: {backup}/eu+p0 is missing: {backup} has no complete backup of "
        "eu/p0\nhint: use another backup, or choose a set that is whole with --replica-set\n"
    )
    assert main(["verify", str(backup)]) == 1
    assert f"{backup}/eu+p0 is missing" in capsys.readouterr().out
