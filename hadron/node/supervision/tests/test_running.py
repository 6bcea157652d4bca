"""A file that cannot work is refused before any node is stopped; reasons are told early."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from hadron.model.errors import ConfigurationError
from hadron.node.replica_set import NodeConfig, ReplicaSetConfig
from hadron.node.supervision.cluster import LocalCluster, free_ports, write_config
from hadron.node.supervision.detached import DetachedCluster
from hadron.node.supervision.processes import ClusterError, last_words
from hadron.node.supervision.reasons import Reasons, reason_of
from hadron.node.supervision.running import RunningNode, check_fits
from hadron.wire.messages import cluster_pb2


def config(epoch: int, *names: str, leader: str = "n1", cluster: str = "c") -> ReplicaSetConfig:
    return ReplicaSetConfig(
        cluster=cluster,
        name="p0",
        epoch=epoch,
        metadata="p0",
        discovery=(),
        path=Path("c.yaml"),
        nodes=tuple(
            NodeConfig(
                name=name,
                role="leader" if name == leader else "replica",
                address="h:1",
                data=Path("/d"),
            )
            for name in names
        ),
    )


def running(
    promised: int, epoch: int, *names: str, leader: str = "n1", state: str = "serving"
) -> RunningNode:
    roles = {name: "leader" if name == leader else "replica" for name in names}
    return RunningNode(
        cluster_pb2.StatusResponse(
            cluster="c", replica_set="p0", state=state, ballot={"epoch": promised}
        ),
        cluster_pb2.ReplicaSet(
            name="p0",
            epoch=epoch,
            nodes=[cluster_pb2.Node(name=name, role=role) for name, role in roles.items()],
        ),
    )


THREE = ("n1", "n2", "n3")


@pytest.mark.parametrize(
    ("new", "node"),
    [
        (config(5, *THREE), running(5, 5, *THREE)),
        (config(6, *THREE, "n4"), running(5, 5, *THREE)),
        (config(6, "n2", "n3", leader="n2"), running(5, 5, *THREE)),
        # A file that nobody has led with may be taken back.
        (config(5, *THREE), running(5, 6, *THREE, leader="n2", state="following")),
        (config(6, *THREE, "n4"), running(5, 6, *THREE, leader="n2", state="following")),
        # Nobody serves, so nothing is lost by trying.
        (config(6, "n4", leader="n4"), running(5, 5, *THREE, state="waiting for a majority")),
    ],
)
def test_files_that_may_work(new: ReplicaSetConfig, node: RunningNode) -> None:
    check_fits(new, {"n1": node})


@pytest.mark.parametrize(
    ("new", "node", "says"),
    [
        (config(4, *THREE), running(5, 5, *THREE), "has epoch 4, node n1 has promised epoch 5"),
        (config(5, *THREE, "n4"), running(5, 5, *THREE), "same epoch 5: n4 is new"),
        (config(5, "n1", "n2"), running(5, 5, *THREE), "same epoch 5: n3 is missing"),
        (config(5, *THREE, leader="n2"), running(5, 5, *THREE), "n2 was replica, is leader"),
        (config(6, "n1"), running(5, 5, *THREE), r"keeps n1 of n1, n2, n3, which n1 leads .*: 2 "),
        (config(5, *THREE, cluster="d"), running(5, 5, *THREE), "is for replica set p0 of cluster"),
    ],
)
def test_files_that_cannot_work(new: ReplicaSetConfig, node: RunningNode, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        check_fits(new, {"n1": node})
    assert caught.value.hint.startswith("nothing was started or stopped; ")


def status(state: str, trouble: str = "", mismatch: str = "") -> cluster_pb2.StatusResponse:
    peers = [cluster_pb2.StatusResponse.Peer(name="n9", state="mismatch", trouble=mismatch)]
    return cluster_pb2.StatusResponse(state=state, trouble=trouble, peers=peers if mismatch else [])


def test_reasons_are_told_once_when_they_stay() -> None:
    told: list[str] = []
    now_s = [0.0]
    reasons = Reasons(told.append, lambda: now_s[0])
    for _ in range(100):
        reasons.note("n1", status("waiting for a majority", "n2 is away"))
        reasons.note("n2", status("waiting for the leader"))
        now_s[0] += 0.1
        if now_s[0] < 1.0:
            assert told == []
    assert told == ["n1: waiting for a majority: n2 is away"]
    assert reasons.last["n2"] == "waiting for the leader"
    assert reasons.has_answered("n2")
    assert not reasons.has_answered("n3")


@pytest.mark.parametrize(
    ("final", "says"),
    [
        (status("fenced", "raise `epoch`"), "n1 cannot be ready: fenced: raise `epoch`"),
        (status("starting", mismatch="members differ"), "starting: with n9: members differ"),
    ],
)
def test_what_no_waiting_changes_ends_the_waiting(
    final: cluster_pb2.StatusResponse, says: str
) -> None:
    now_s = [0.0]
    reasons = Reasons(lambda _: None, lambda: now_s[0])
    reasons.note("n1", final)
    now_s[0] = 1.0
    reasons.note("n1", status("reconciling", "for a moment"))
    now_s[0] = 10.0
    with pytest.raises(ClusterError, match=says):
        reasons.note("n1", final)


def test_the_same_words_are_not_said_twice() -> None:
    trouble = "its members differ"
    assert reason_of(status("waiting for the leader", trouble, trouble)) == (
        "waiting for the leader: its members differ"
    )


def test_a_file_is_looked_at_before_nodes_are_touched(tmp_path: Path) -> None:
    path = write_config(tmp_path / "cluster.yaml", 2, "os")
    good = path.read_text()
    cluster = DetachedCluster(path)
    try:
        cluster.up()
        before = [node.process for node in cluster.nodes()]
        assert {name: node.status.state for name, node in cluster.ask().items()} == {
            "n1": "serving",
            "n2": "following",
        }
        written = yaml.safe_load(good)
        nodes = written["replica_set"]["nodes"]
        extra = {
            "name": "n3",
            "role": "replica",
            "address": f"127.0.0.1:{free_ports(1)[0]}",
            "data": str(tmp_path / "n3"),
        }
        written["replica_set"]["nodes"] = [*nodes, extra]
        path.write_text(yaml.safe_dump(written))
        grown = DetachedCluster(path)
        with pytest.raises(ConfigurationError, match="the same epoch 1: n3 is new"):
            list(grown.restart())
        with pytest.raises(ConfigurationError, match="the same epoch 1: n3 is new"):
            grown.up()
        assert [node.process for node in DetachedCluster(path).nodes()] == [*before, None]
        written["replica_set"] |= {"nodes": nodes[:1], "epoch": 2}
        path.write_text(yaml.safe_dump(written))
        shrunk = DetachedCluster(path)
        with pytest.raises(ConfigurationError, match="keeps n1 of n1, n2"):
            list(shrunk.restart())
        # Not in the file any more, and yet it runs.
        assert [(node.name, node.role, node.process) for node in shrunk.nodes()] == [
            ("n1", "leader", before[0]),
            ("n2", "", before[1]),
        ]
    finally:
        DetachedCluster(path).down()


@pytest.mark.long
def test_nodes_that_are_not_ready_stay_up(tmp_path: Path) -> None:
    path = write_config(tmp_path / "cluster.yaml", 3, "os")
    cluster = DetachedCluster(path)

    def give_up(reason: str) -> None:
        # Its first reasons are those of any start.
        if "members that remember the log" in reason:
            raise ClusterError(f"not serving: {reason}")

    try:
        cluster.up()
        cluster.down()
        for name in ("n2", "n3"):
            shutil.rmtree(tmp_path / name)
        with pytest.raises(ClusterError, match="members that remember the log") as caught:
            cluster.up(timeout_s=1000, tell=give_up)
        lines = caught.value.hint.splitlines()
        assert lines[0].startswith("n1, n2, n3 still run: `hadron status` shows what is waited for")
        assert "hadron recover --help" in lines[1]
        assert all(node.process for node in cluster.nodes())
    finally:
        cluster.down()


def test_the_leader_is_asked_first_why_nobody_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = LocalCluster(tmp_path, nodes=2)
    said = {"n1": status("waiting for a majority", "n2 is away"), "n2": status("waiting")}
    monkeypatch.setattr(cluster, "pid", lambda _name: 0)
    monkeypatch.setattr(cluster, "status", said.__getitem__)
    with pytest.raises(ClusterError, match=r"n1 is not serving .* majority: n2 is away") as no:
        cluster.wait_ready(["n2", "n1"], timeout_s=0.1)
    assert no.value.hint == "n2 is not following: waiting"


@pytest.mark.long
def test_a_node_that_ends_is_heard(tmp_path: Path) -> None:
    path = write_config(tmp_path / "cluster.yaml", 2, "os")
    try:
        DetachedCluster(path).up()
        DetachedCluster(path).down()
        document = yaml.safe_load(path.read_text())
        first, second = document["replica_set"]["nodes"]
        first["role"], second["role"] = "replica", "leader"
        path.write_text(yaml.safe_dump(document))
        with pytest.raises(ClusterError, match="is not running: epoch 1 was promised to") as caught:
            DetachedCluster(path).up(timeout_s=1000)
        assert "raise `epoch` whenever node names or roles change" in caught.value.hint
    finally:
        DetachedCluster(path).down()


def test_the_last_words_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "n1.log"
    assert last_words(log) == ("", "")
    log.write_text("error: it broke\nhint: mend it\n  so\n")
    assert last_words(log) == ("it broke", "mend it so")
    with log.open("a") as file:
        file.write("2026-11-21T11:28:26.598Z CRITICAL n1 a: the node cannot go on: it broke (no)\n")
    assert last_words(log) == ("it broke (no)", "")
    with log.open("a") as file:
        file.write("2026-11-21T11:28:27.598Z INFO    n1 started again, and was killed\n")
    assert last_words(log) == ("", "")
