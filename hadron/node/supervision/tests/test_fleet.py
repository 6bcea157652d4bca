"""A local cluster of several replica sets: which files belong to it, and that it runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hadron.model.errors import ConfigurationError
from hadron.node.config import load_config, render
from hadron.node.replica_set import ReplicaSetConfig
from hadron.node.supervision.fleet import Fleet, find_config_of, find_configs, wait_acquainted
from hadron.node.supervision.local_fleet import LocalFleet, write_configs

CONFIG = Path(__file__).resolve().parents[4] / "config"


def write(directory: Path, counts: dict[str, int]) -> dict[str, ReplicaSetConfig]:
    """A file for each set, with free ports; the first owns the schema."""
    paths = write_configs(directory, counts, "os")
    return {name: load_config(path, {}) for name, path in paths.items()}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hadron", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "several"
    write(path, {"meta/p0": 1, "eu/p0": 2, "us/p0": 1})
    yield path
    Fleet(find_configs(path)).down()


@pytest.mark.long
def test_a_cluster_of_several_sets_comes_up_and_goes_down(directory: Path) -> None:
    config = ("--config", str(directory))
    up = run("cluster", "up", *config)
    assert up.returncode == 0, up.stderr
    assert up.stdout.count(" started: ") == 4
    assert "eu/p0 n2 started: following at 127.0.0.1:" in up.stdout
    assert "all nodes know all 3 replica sets\n" in up.stdout
    again = run("cluster", "up", *config)
    assert again.stdout.count(" was running: ") == 4
    url = up.stdout.rpartition("HADRON_URL=")[2].strip()
    assert url.count(",") == 2
    # Any one address is enough to see all.
    for address in url.removeprefix("hadron://").split(","):
        status = run("status", "--server", f"hadron://{address}", "--output", "json")
        rows = json.loads(status.stdout)["nodes"]
        assert [(row["replica_set"], row["state"]) for row in rows] == [
            ("meta/p0", "serving"),
            ("eu/p0", "serving"),
            ("eu/p0", "following"),
            ("us/p0", "serving"),
        ]
    one = run("cluster", "down", *config, "--replica-set", "eu/p0")
    assert one.stdout == "stopped eu/p0 n2, eu/p0 n1\n"
    table = run("cluster", "status", *config, "--output", "json")
    assert [(row["replica_set"], row["state"]) for row in json.loads(table.stdout)] == [
        ("meta/p0", "running"),
        ("eu/p0", "stopped"),
        ("eu/p0", "stopped"),
        ("us/p0", "running"),
    ]
    back = run("cluster", "restart", *config, "--replica-set", "eu/p0")
    assert "eu/p0 n1 started: leads eu/p0 with epoch 1, serving after " in back.stdout
    down = run("cluster", "down", *config)
    assert down.stdout == "stopped us/p0 n1, eu/p0 n2, eu/p0 n1, meta/p0 n1\n"


@pytest.mark.long
def test_a_set_that_cannot_start_is_named_and_the_others_stay(directory: Path) -> None:
    bad = directory / "us-p0.yaml"
    # Its data directory is somebody's file.
    (directory / "var").mkdir()
    (directory / "var" / "us-p0-n1").write_text("not a directory")
    up = run("cluster", "up", "--config", str(directory))
    assert up.returncode == 1
    assert "error: node n1 is not running" in up.stderr
    assert "us-p0-n1" in up.stderr
    assert "Traceback" not in up.stderr
    assert up.stderr.count("(started with ") == 1
    assert f"(started with {bad})" in up.stderr
    fleet = Fleet(find_configs(directory))
    assert [node.process is not None for each in fleet.clusters for node in each.nodes()] == [
        True,
        True,
        True,
        False,
    ]


def test_the_example_with_two_regions_fits_together() -> None:
    fleet = Fleet(find_configs(CONFIG / "two-regions"))
    assert [each.config.name for each in fleet.clusters] == [
        "global/metadata",
        "aws.us-east-1/p0",
        "aws.us-east-1/p1",
        "gcp.us-east4/p0",
        "gcp.us-east4/p1",
    ]
    assert all(len(each.config.nodes) == 3 for each in fleet.clusters)
    known = {node.address for each in fleet.clusters for node in each.config.nodes}
    assert known.issuperset(fleet.clusters[0].config.discovery)
    assert fleet.url.startswith("hadron://127.0.0.1:7000,")


def test_schema_documents_beside_configurations_are_not_taken_for_one(tmp_path: Path) -> None:
    write(tmp_path, {"meta/p0": 1, "eu/p0": 1})
    (tmp_path / "schema.yaml").write_text("kind: Stream\nname: s\npartitions: [eu/p0]\n")
    assert [path.name for path in find_configs(tmp_path)] == ["eu-p0.yaml", "meta-p0.yaml"]
    (tmp_path / "notes.yml").write_text("some: thing\n")
    with pytest.raises(ConfigurationError, match=r"notes\.yml"):
        Fleet(find_configs(tmp_path))


def test_a_file_is_a_cluster_of_one_set_and_so_is_a_directory_made_before(tmp_path: Path) -> None:
    configs = write(tmp_path, {"meta/p0": 1, "eu/p0": 2})
    path = tmp_path / "eu-p0.yaml"
    fleet = Fleet(find_configs(path))
    assert not fleet.has_several
    assert fleet.url == "hadron://" + ",".join(node.address for node in configs["eu/p0"].nodes)
    path.rename(tmp_path / "cluster.yaml")
    assert find_configs(tmp_path) == [tmp_path / "cluster.yaml"]
    with pytest.raises(ConfigurationError, match="there is no cluster in"):
        find_configs(tmp_path / "elsewhere")


def test_only_sets_that_there_are_can_be_meant(tmp_path: Path) -> None:
    write(tmp_path, {"meta/p0": 1, "eu/p0": 1})
    fleet = Fleet(find_configs(tmp_path), ["eu/p0"])
    assert [each.config.name for each in fleet.clusters] == ["eu/p0"]
    assert fleet.has_several
    with pytest.raises(
        ConfigurationError, match=r"called 'eu/p1' \(did you mean 'eu/p0'\?\)"
    ) as caught:
        Fleet(find_configs(tmp_path), ["eu/p1"])
    assert caught.value.hint == "there are meta/p0, eu/p0"


def test_one_file_is_meant_where_one_can_be(tmp_path: Path) -> None:
    write(tmp_path, {"meta/p0": 1, "eu/p0": 1})
    assert find_config_of(tmp_path, "eu/p0") == tmp_path / "eu-p0.yaml"
    assert find_config_of(tmp_path / "meta-p0.yaml", "") == tmp_path / "meta-p0.yaml"
    with pytest.raises(ConfigurationError, match="has 2 replica sets: meta/p0, eu/p0"):
        find_config_of(tmp_path, "")


def test_files_that_do_not_fit_together_are_refused_with_all_that_is_wrong(tmp_path: Path) -> None:
    configs = write(tmp_path, {"meta/p0": 1, "eu/p0": 1})
    first, second = configs["meta/p0"], configs["eu/p0"]
    wrong = replace(
        second,
        cluster="other",
        name="meta/p0",
        metadata="elsewhere/p0",
        nodes=first.nodes,
        discovery=("127.0.0.1:1",),
    )
    (tmp_path / "eu-p0.yaml").write_text(render(wrong))
    with pytest.raises(ConfigurationError) as caught:
        Fleet(find_configs(tmp_path))
    told = caught.value.message
    assert told.startswith("5 problems between these files:")
    assert f"meta-p0.yaml: cluster 'local', expected 'other' as in {tmp_path}/eu-p0.yaml" in told
    assert "meta-p0.yaml: metadata 'meta/p0', expected 'elsewhere/p0' as in " in told
    assert "meta-p0.yaml: replica set name meta/p0 is in use already (" in told
    assert f"meta-p0.yaml: address of n1, {first.nodes[0].address} is in use already" in told
    assert "meta-p0.yaml: data directory of n1, " in told


@pytest.mark.long
def test_a_region_of_processes_is_killed_and_comes_back(tmp_path: Path) -> None:
    with LocalFleet(tmp_path, {"meta": 1, "eu/p0": 2}, durability="os") as fleet:
        assert list(fleet) == ["meta", "eu/p0"]
        assert fleet["meta"].config.metadata == fleet["eu/p0"].config.metadata == "meta"
        before = fleet["meta"].pid("n1")
        fleet.kill("eu/p0")
        assert not any(fleet["eu/p0"].running(name) for name in ("n1", "n2"))
        eu = fleet["eu/p0"].config.nodes[0]
        (stranger,) = wait_acquainted(
            fleet["meta"].url,
            ["meta", "nowhere"],
            [("meta", "n1", fleet["meta"].address("n1"))],
            0.0,
        )
        assert stranger == "n1 of meta does not know nowhere"
        (stranger,) = wait_acquainted(
            fleet["meta"].url, ["meta"], [("eu/p0", "n1", eu.address)], 0.0
        )
        assert stranger.startswith("n1 of eu/p0 does not answer: ")
        fleet.start()
        assert fleet["meta"].pid("n1") == before
    assert not fleet["meta"].running("n1")
