"""The whole demo as `make demo` runs it, and what is left of it when somebody ends it early."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from hadron.node.supervision.processes import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def start(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hadron", "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(directory), "PYTHONUNBUFFERED": "1"},
    )


def processes_of(directory: Path) -> list[psutil.Process]:
    """Nodes, and Spark's Java, whose files are in `directory`."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(str(directory) in part for part in process.info["cmdline"] or ())
    ]


@pytest.mark.long
@pytest.mark.parametrize("victim", ["n1", "n3"])
def test_every_flight_once_whichever_node_is_killed(tmp_path: Path, victim: str) -> None:
    with start(tmp_path, "--kill", victim) as demo:
        out, _ = demo.communicate(timeout=280)
    assert demo.returncode == 0, out
    assert f"killed {victim} with SIGKILL" in out
    assert "Southwest Airlines" in out
    assert re.fullmatch(
        r"verified: 27,004 flights, every one exactly once through 2 stages; 3 replicas hold the "
        r"same log \(chain [0-9a-f]{8}… at lsn \d+\)",
        out.splitlines()[-1],
    )
    assert processes_of(tmp_path) == []
    assert list(tmp_path.glob("hadron-demo-*")) == []


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -9)],
)
def test_ended_early_it_leaves_no_process_and_no_file(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    """Spark is starting then. A terminal that is closed says so twice."""
    with start(tmp_path) as demo:
        assert demo.stdout is not None
        assert any("nodes are up" in line for line in demo.stdout)
        assert len(processes_of(tmp_path)) >= 3
        demo.send_signal(number)
        if number == signal.SIGHUP:
            demo.send_signal(number)
        out, _ = demo.communicate(timeout=60)
    assert demo.returncode == status
    assert "Traceback" not in out
    if number == signal.SIGKILL:
        assert wait_until(lambda: processes_of(tmp_path) == [], 20)
    else:
        assert processes_of(tmp_path) == []
        assert list(tmp_path.iterdir()) == []


def test_killed_while_it_would_keep_its_cluster_that_can_be_stopped(tmp_path: Path) -> None:
    with start(tmp_path, "--keep") as demo:
        assert demo.stdout is not None
        first = next(demo.stdout)
        is_up = any("nodes are up" in line for line in demo.stdout)
        demo.kill()
    assert is_up
    directory = first.removeprefix("the cluster's files: ").strip()
    down = subprocess.run(
        [sys.executable, "-m", "hadron", "cluster", "down", "--config", directory],
        capture_output=True,
        text=True,
        check=True,
    )
    assert down.stdout == "stopped n3, n2, n1\n"
    assert wait_until(lambda: processes_of(tmp_path) == [], 20)
