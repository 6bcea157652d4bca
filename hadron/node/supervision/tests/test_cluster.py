"""Local clusters of real processes: start, kill, pause, stop, and clear words on failure."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hadron
from hadron.model.errors import ConfigurationError, PeerError
from hadron.model.schema import SchemaObject, StreamSpec
from hadron.node.config import load_config
from hadron.node.supervision import cluster as supervised
from hadron.node.supervision import detached
from hadron.node.supervision.cluster import LocalCluster, free_ports, write_config
from hadron.node.supervision.detached import DetachedCluster, RememberedCluster, find_config
from hadron.node.supervision.processes import ClusterError, ProcessIdentity

CONFIG = Path(__file__).parents[4] / "config"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), durability="os") as cluster:
        yield cluster


def test_all_serve(cluster: LocalCluster) -> None:
    states = {name: cluster.status(name).state for name in cluster.names}
    assert states == {"n1": "serving", "n2": "following", "n3": "following"}
    assert cluster.leader == "n1"
    assert {cluster.status(name).pid for name in cluster.names} == {
        cluster.pid(name) for name in cluster.names
    }
    with hadron.connect_sync(cluster.url) as client:
        assert client.topology().cluster == "local"
    assert cluster.database("n2").is_file()


def test_a_killed_replica_comes_back(cluster: LocalCluster) -> None:
    before = cluster.pid("n3")
    cluster.kill("n3")
    assert not cluster.running("n3")
    with pytest.raises(ClusterError, match="n3 is not running"):
        cluster.pid("n3")
    cluster.start("n3")
    assert cluster.pid("n3") != before
    last = cluster.status("n1").last_lsn
    cluster.wait_for("n3", f"at lsn {last}", lambda status: status.applied_lsn >= last)


def test_a_paused_node_is_still_there(cluster: LocalCluster) -> None:
    cluster.pause("n2")
    try:
        assert cluster.running("n2")
    finally:
        cluster.resume("n2")
    cluster.wait_ready(["n2"])
    with pytest.raises(ClusterError, match="already"):
        cluster.spawn("n2")


def test_a_stopped_node_can_be_started_again(cluster: LocalCluster) -> None:
    cluster.stop("n2")
    assert not cluster.running("n2")
    cluster.start("n2")
    assert cluster.status("n2").state == "following"


@pytest.mark.long
def test_a_leader_that_is_away_is_named(cluster: LocalCluster) -> None:
    cluster.kill("n1")
    try:
        with (
            # As long as it takes until a replica has told where the leader is.
            hadron.connect_sync(cluster.url, request_timeout_s=3.0) as client,
            pytest.raises(PeerError) as caught,
        ):
            # What the schema is, replicas tell as well; changing it is for the leader alone.
            client.apply(
                [SchemaObject(kind="Stream", name="any", spec=StreamSpec(partitions=("local/p0",)))]
            )
    finally:
        cluster.start("n1")
    address = cluster.address("n1")
    assert caught.value.message.startswith(
        f"the leader n1 of local/p0 at {address} cannot be reached: "
    )
    assert caught.value.hint.startswith("bring it back")


@pytest.mark.long
def test_a_node_that_cannot_start_says_why(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = write_config(tmp_path / "cluster.yaml", 1, "os", [port])
        with pytest.raises(ClusterError) as caught, LocalCluster(tmp_path, config=config):
            pytest.fail("it should not have started")
    assert "n1" in caught.value.message
    assert f"cannot listen on 127.0.0.1:{port}" in caught.value.message


def test_another_cluster_on_the_same_ports_is_not_taken_for_ones_own(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Its nodes answer, with states that one waits for."""
    ports = [int(cluster.address(name).rpartition(":")[2]) for name in cluster.names]
    config = write_config(tmp_path / "cluster.yaml", 3, "os", ports)
    with pytest.raises(ClusterError, match=f"port {ports[0]}") as caught:
        DetachedCluster(config).up()
    assert "stop it" in caught.value.hint
    own = LocalCluster(tmp_path, config=config)
    own.pid = lambda _name: os.getpid()  # type: ignore[method-assign, assignment]
    try:
        with pytest.raises(ClusterError, match=f"process {cluster.pid('n1')} .*answers at"):
            own.wait_ready(["n1"])
    finally:
        own.stop_all()


def test_ports_are_free_and_different() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20


@pytest.mark.skipif(sys.platform != "linux", reason="promised on Linux only")
def test_no_port_is_given_out_twice_by_any_process(monkeypatch: pytest.MonkeyPatch) -> None:
    first = free_ports(1)[0] // 100 * 100
    monkeypatch.setattr(supervised, "_PORTS", range(first, first + 100))
    own = free_ports(40)
    other = subprocess.run(
        [
            sys.executable,
            "-c",
            "from hadron.node.supervision import cluster\n"
            f"cluster._PORTS = range({first}, {first + 100})\nprint(*cluster.free_ports(5))",
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert not set(own) & set(map(int, other.stdout.split()))
    assert not set(own) & set(free_ports(5))


def test_a_generated_configuration_is_its_own(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, nodes=5, durability="os")
    assert cluster.names == ["n1", "n2", "n3", "n4", "n5"]
    assert cluster.config.settings.durability == "os"
    assert cluster.database("n5") == tmp_path / "n5" / "hadron.db"


@pytest.mark.parametrize(
    "name", ["one-node.yaml", "three-nodes.yaml", "two-regions/global-metadata.yaml"]
)
def test_the_example_files_tell_how_grpc_is_served(tmp_path: Path, name: str) -> None:
    text = (CONFIG / name).read_text()
    told = re.search(r"`(grpc: \S+)`", text)
    assert told
    path = tmp_path / "cluster.yaml"
    path.write_text(text.replace(", data:", f", {told[1]}, data:", 1))
    assert f"grpc: {load_config(path, {}).leader.grpc}" == told[1]


@pytest.mark.parametrize("name", ["one-node.yaml", "three-nodes.yaml"])
def test_the_examples_are_valid(name: str) -> None:
    config = DetachedCluster(CONFIG / name).config
    assert config.name == "local/p0"
    assert config.leader.address == "127.0.0.1:7001"


# --- detached -----------------------------------------------------------------------------------


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hadron", "cluster", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Path]:
    path = write_config(tmp_path / "cluster.yaml", 3, "os", grpc_ports=free_ports(1))
    yield path
    DetachedCluster(path).down()


@pytest.mark.long
def test_up_is_idempotent_and_down_stops(config: Path) -> None:
    up = run("up", "--config", str(config))
    assert up.returncode == 0, up.stderr
    assert up.stdout.count(" started: ") == 3
    assert "export HADRON_URL=hadron://127.0.0.1:" in up.stdout
    assert f"or over gRPC:  {load_config(config, {}).leader.grpc} (docs/GRPC.md)" in up.stdout
    running = {node.name: node.process for node in DetachedCluster(config).nodes()}
    assert all(process is not None and process.alive for process in running.values())
    again = run("up", "--config", str(config.parent))
    assert again.stdout.count(" was running: ") == 3
    status = run("status", "--config", str(config), "--output", "json")
    assert {row["state"] for row in json.loads(status.stdout)} == {"running"}
    down = run("down", "--config", str(config))
    assert down.stdout == "stopped n3, n2, n1\n"
    assert not any(process.alive for process in running.values() if process)
    assert run("down", "--config", str(config)).stdout == "nothing was running\n"


@pytest.mark.long
def test_up_starts_only_what_is_missing(config: Path) -> None:
    cluster = DetachedCluster(config)
    assert run("up", "--config", str(config)).returncode == 0
    before = {node.name: node.process for node in cluster.nodes()}
    killed = before["n2"]
    assert killed is not None
    killed.stop(10)
    up = run("up", "--config", str(config))
    assert up.stdout.count(" was running: ") == 2
    assert "n2 started: " in up.stdout
    after = {node.name: node.process for node in cluster.nodes()}
    assert after["n1"] == before["n1"]
    assert after["n2"] != killed


def test_a_cluster_can_be_handed_over(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, nodes=1, durability="os", die_with_parent=False)
    try:
        cluster.start_all()
        process = cluster.identity("n1")
        detached = DetachedCluster(cluster.config_path)
        detached.adopt(cluster)
        assert not cluster.running("n1")
        assert [node.process for node in detached.nodes()] == [process]
    finally:
        cluster.stop_all()
        stopped = DetachedCluster(cluster.config_path).down()
    assert stopped == ["n1"]
    assert not process.alive


def test_who_is_going_to_leave_a_cluster_up_can_be_killed_before(tmp_path: Path) -> None:
    """Its nodes would run on, and no command would know of them."""
    cluster = RememberedCluster(tmp_path)
    detached = DetachedCluster(cluster.config_path)
    try:
        for name in ("n1", "n2"):
            cluster.spawn(name)
        cluster.kill("n2")
        cluster.spawn("n2")
        processes = {name: cluster.identity(name) for name in ("n1", "n2")}
        assert {each.name: each.process for each in detached.nodes()} == {**processes, "n3": None}
        cluster.disown()
        assert set(detached.down()) == {"n1", "n2"}
    finally:
        cluster.stop_all()
        detached.down()
    assert not any(process.alive for process in processes.values())


def test_a_reused_pid_is_left_alone(config: Path) -> None:
    """The state file names this very test's pid, with another start."""
    own = ProcessIdentity.of(os.getpid())
    other = dataclasses.replace(own, started_s=own.started_s - 1000)
    state = DetachedCluster(config).state_path
    state.write_text(json.dumps({"nodes": {"n1": dataclasses.asdict(other)}}))
    assert DetachedCluster(config).nodes()[0].process is None
    assert DetachedCluster(config).down() == []


def test_a_failed_up_leaves_nothing_running(config: Path) -> None:
    cluster = DetachedCluster(config)
    port = int(cluster.config.node("n2").address.rpartition(":")[2])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        up = run("up", "--config", str(config))
    assert up.returncode == 1
    assert f"error: node n2 cannot listen on port {port}" in up.stderr
    assert "Traceback" not in up.stderr
    assert all(node.process is None for node in cluster.nodes())


@pytest.mark.parametrize(
    "written",
    [
        b"{",
        b"\xff",
        b"[]",
        b'{"config": "c.yaml"}',
        b'{"config": "c.yaml", "nodes": {"n1": {"pid": "7", "started_s": 1.0}}}',
    ],
)
def test_a_malformed_state_file_is_named(config: Path, written: bytes) -> None:
    cluster = DetachedCluster(config)
    cluster.state_path.write_bytes(written)
    with pytest.raises(ConfigurationError, match=r"processes\.json is malformed"):
        cluster.nodes()
    cluster.state_path.unlink()


def test_where_the_configuration_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="there is no cluster in"):
        find_config(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    ports, http_ports = free_ports(3), free_ports(3)
    monkeypatch.setattr(detached, "_PORTS", ports)
    monkeypatch.setattr(detached, "_HTTP_PORTS", http_ports)
    found = find_config(tmp_path / "new", create=True)
    assert found == tmp_path / "new" / "cluster.yaml"
    addresses = [node.address for node in DetachedCluster(found).nodes()]
    assert addresses == [f"127.0.0.1:{port}" for port in ports]
    another = find_config(tmp_path / "another", create=True)
    assert load_config(found, {}).cluster != load_config(another, {}).cluster, (
        "by which clients tell them"
    )
    with pytest.raises(ConfigurationError, match="there is no file"):
        find_config(tmp_path / "absent.yaml")
