"""Promotion as people do it: real processes of a detached cluster, one command after the other."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hadron.node.supervision.cluster import write_config

SERVING_WITHIN_S = 5.0
"""The bar: from the members' restart with the new file to serving."""


class Shell:
    """Runs `hadron` with its cluster in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = write_config(directory / "hadron-cluster" / "cluster.yaml", 3, "fsync")
        names = re.findall(r"127\.0\.0\.1:\d+", self.config.read_text())
        self.url = "hadron://" + ",".join(dict.fromkeys(names))

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "hadron", *arguments],
            input=stdin,
            text=True,
            capture_output=True,
            check=False,
            timeout=120,
            cwd=self.directory,
            env={**os.environ, "HADRON_URL": self.url, "XDG_CONFIG_HOME": str(self.directory)},
        )

    def good(self, *arguments: str, stdin: str = "") -> str:
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        # A busy machine's nodes may have to wait for each other long enough to say so.
        assert not done.stderr or arguments[0] == "cluster", done.stderr
        return done.stdout

    def kill(self, name: str) -> None:
        nodes = json.loads(self.good("status", "--output", "json"))["nodes"]
        os.kill(next(node["pid"] for node in nodes if node["node"] == name), 9)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    shell.good("cluster", "up")
    yield shell
    shell.good("cluster", "down")


@pytest.mark.long
def test_promote_and_restart(shell: Shell) -> None:
    shell.good("apply", "-f", "-", stdin="kind: Stream\nname: s\npartitions: [local/p0]\n")
    shell.good("pub", "s", "before")
    tried = shell.good("promote", "n2", "--dry-run")
    assert "epoch 1 -> 2, leader n1 -> n2 (dry run: nothing was written)" in tried
    promoted = shell.good("promote", "n2")
    assert promoted.splitlines()[1] == "now:  hadron cluster restart"
    assert json.loads(shell.good("status", "--output", "json"))["pending"] == []
    assert "once a node was started with it" in " ".join(shell.good("promote", "--help").split())
    said = shell.good("cluster", "restart")
    print(said)
    first, *others = said.splitlines()
    found = re.fullmatch(
        r"n2 restarted: leads local/p0 with epoch 2, serving after (\d+\.\d\d) s", first
    )
    assert found is not None, said
    assert float(found[1]) <= SERVING_WITHIN_S
    assert [line.split(" after ")[0] for line in others] == [
        "n1 restarted: follows",
        "n3 restarted: follows",
    ]
    shell.good("pub", "s", "after")
    assert shell.good("read", "s").split() == ["before", "after"]
    nodes = json.loads(shell.good("status", "--output", "json"))["nodes"]
    assert [(node["node"], node["role"], node["trouble"]) for node in nodes] == [
        ("n1", "replica", []),
        ("n2", "leader", []),
        ("n3", "replica", []),
    ]


@pytest.mark.long
def test_the_old_leader_is_not_told_and_then_an_old_file_is_used(shell: Shell) -> None:
    old = shell.config.read_text()
    shell.good("promote", "n3")
    # One that starts early with the new file, for whatever reason, changes nothing yet.
    shell.kill("n2")
    up = shell.good("cluster", "up")
    assert "with epoch 1 (the file has 2)" in up
    report = json.loads(shell.good("status", "--output", "json"))
    assert [(node["role"], node["file_epoch"]) for node in report["nodes"]] == [
        ("leader", 1),
        ("replica", 2),
        ("replica", 1),
    ]
    assert report["pending"] == [
        "n2 was started with epoch 2 of local/p0: n3 leads once it is started with epoch 2; until "
        "then n1 leads with epoch 1"
    ]
    shell.kill("n3")
    assert "n3 started: serving" in shell.good("cluster", "up")
    status = shell.good("status")
    assert re.search(r"n3 +leader .* serving +2\.", status)
    assert re.search(
        r"trouble at n1(, n2)?: this node's configuration file is old: it has epoch 1", status
    )
    shell.config.write_text(old)
    refused = shell.run("cluster", "restart")
    assert refused.returncode == 1
    assert "cluster.yaml has epoch 1, node n1 has promised epoch 2" in refused.stderr
    assert "nothing was started or stopped" in refused.stderr
    assert "use the newest configuration file of the replica set" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["n9"], 1, "error: there is no node 'n9'"),
        (["n1"], 1, "error: n1 leads local/p0 already, with epoch 1"),
        ([], 2, "error: missing argument 'NODE'"),
        (["local/p0/n1"], 1, "error: n1 leads local/p0 already, with epoch 1"),
        (["local/p0/n2", "--replica-set", "local/p1"], 2, "error: local/p0/n2 is not of local/p1"),
        (["local/p1/n2"], 1, "error: no file is about a replica set called 'local/p1'"),
        (["n2", "--config", "elsewhere"], 1, "error: there is no cluster in ./elsewhere"),
    ],
)
def test_what_cannot_be_promoted(
    tmp_path: Path, arguments: list[str], status: int, message: str
) -> None:
    done = Shell(tmp_path).run("promote", *arguments)
    assert done.returncode == status
    assert done.stderr.startswith(message)
    assert "Traceback" not in done.stderr


def test_a_node_of_one_of_several_sets(tmp_path: Path) -> None:
    regions = Path(__file__).parents[3] / "config" / "two-regions"
    shell = Shell(tmp_path)
    for named in (["n2", "--replica-set", "gcp.us-east4/p0"], ["gcp.us-east4/p0/n2"]):
        tried = shell.good("promote", *named, "--config", str(regions), "--dry-run")
        assert "epoch 1 -> 2, leader n1 -> n2 (dry run: nothing was written)" in tried
