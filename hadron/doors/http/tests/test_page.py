"""docs/HTTP.md is true: its lines are run against a node, in their order."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from hadron.doors.http.table import OPERATIONS
from hadron.node.supervision.cluster import LocalCluster, free_ports, write_config

PAGE = (Path(__file__).parents[4] / "docs" / "HTTP.md").read_text()
README = (Path(__file__).parents[4] / "README.md").read_text()

LINES = re.findall(
    r"^    \$ (.*curl .+|hadron serve .+) *$", re.sub(r" \\\n +", " ", PAGE), re.MULTILINE
)
_TIMED_OUT = 28
"""Of curl: what has no end was watched for a while."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory = tmp_path_factory.mktemp("page")
    config = write_config(directory / "cluster.yaml", 1, "os", http_ports=free_ports(1))
    with LocalCluster(directory, config=config) as cluster:
        cluster.start_all()
        yield cluster


@pytest.fixture(scope="module")
def door(cluster: LocalCluster) -> str:
    address = cluster.config.leader.http
    assert address is not None
    return address


def run(line: str, door: str) -> subprocess.CompletedProcess[str]:
    seconds = 2 if "curl -N" in line else 30
    curl = f"command curl --fail-with-body --silent --show-error --max-time {seconds}"
    script = f'curl() {{ {curl} "$@"; }}; {line.replace("localhost:7200", door)}'
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)


@contextmanager
def serving(line: str, cluster: LocalCluster, door: str) -> Iterator[None]:
    """The program of a line that goes on in the background, once it is there."""
    _, _, name, *how = shlex.split(line.removesuffix("&"))
    command = [sys.executable, "-m", "hadron", "serve", name, *how]
    with subprocess.Popen(command, env={**os.environ, "HADRON_URL": cluster.url}) as process:
        try:
            deadline_s = time.monotonic() + 30
            while '"servers":[{' not in run(f"curl {door}/v1/endpoints/{name}", door).stdout:
                assert time.monotonic() < deadline_s, line
                assert process.poll() is None, line
                time.sleep(0.1)
            yield
        finally:
            process.terminate()


@pytest.mark.long
def test_its_lines_do_what_they_say(cluster: LocalCluster, door: str) -> None:
    with ExitStack() as background:
        found = {}
        for line in LINES:
            if line.startswith("hadron serve"):
                background.enter_context(serving(line, cluster, door))
            else:
                found[line] = checked(line, door)
    again = [answer for line, answer in found.items() if "order-17" in line]
    assert all('"duplicate":true' in answer for answer in again), "the same line, twice"


def checked(line: str, door: str) -> str:
    """What it has printed."""
    done = run(line, door)
    endless = "curl -N" in line
    assert done.returncode == (_TIMED_OUT if endless else 0), (line, done.stdout, done.stderr)
    if endless and "x-ndjson" not in line:
        assert "id: " in done.stdout, line
    return done.stdout


def test_every_operation_has_a_line() -> None:
    """By its method and path, as the line has them."""
    missing = []
    for each in OPERATIONS:
        path = re.sub(r"\{\w+(:int)?\}", r"[^/?' ]+", each.path)
        wanted = re.compile(rf"localhost:7200{path}(\?|'|$| )")
        of_path = [line for line in LINES if wanted.search(line)]
        if not any(_method(line) == each.method for line in of_path):
            missing.append((each.method, each.path))
    assert not missing


def _method(line: str) -> str:
    if match := re.search(r"-X (\w+)", line):
        return match[1]
    return "POST" if re.search(r" (-d|--json|--data-binary) ", line) else "GET"


def test_a_first_stream_needs_curl_alone(door: str) -> None:
    lines = re.findall(r"^    \$ (curl .+?)(?:  +#.*)?$", README, re.MULTILINE)
    assert lines
    for line in lines:
        assert run(line, door).returncode == 0, line


def test_a_node_without_a_door_imports_none_of_it() -> None:
    script = (
        "import sys, hadron.node.main, hadron.node.runtime, hadron.cli.root\n"
        "wanted = ('starlette', 'httptools', 'hypercorn', 'h2', 'hadron.doors')\n"
        "print([each for each in wanted if each in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
