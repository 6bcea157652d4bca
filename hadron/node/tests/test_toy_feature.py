"""The feature that CONTRIBUTING.md shows is added to a copy of the tree, and works there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hadron.node.tests import toy

_STORY = """
import subprocess, sys
from pathlib import Path
from hadron.node.supervision.cluster import LocalCluster

def hadron(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "hadron", *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()

def count(*arguments):
    return hadron("--server", cluster.url, "counter", "hits", *arguments)

with LocalCluster(Path(sys.argv[1]), durability="os") as cluster:
    assert count("--add", "3") == "3"
    assert count("--add", "5") == "8"
    cluster.kill("n1"), cluster.kill("n2")
    cluster.start_all()
    assert count() == "8"
    said = hadron("--server", cluster.url, "verify")
    assert "n1, n2, n3 have the same" in said and said.endswith("everything is right"), said
    cluster.stop_all()
    assert "everything is right" in hadron("verify", str(cluster.database("n3")))
    import apsw
    for name in cluster.names:
        rows = apsw.Connection(str(cluster.database(name))).execute(
            "SELECT name, total FROM hadron_counter ORDER BY total"
        ).fetchall()
        # Whoever only reads logs nothing.
        assert rows == [("hits", 3), ("hits", 5)], (name, rows)
"""


def test_the_feature_is_small() -> None:
    files, lines = toy.parts()
    assert len(files) == 5
    assert sum(text.count("\n") for text in files.values()) <= 150
    assert len(lines) <= 8


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_feature_works(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    toy.copy_with_counters(tree)
    modules = [tree / name for name in toy.parts()[0] if name.endswith(".py")]
    subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--config", toy.ROOT / "pyproject.toml", *modules],
        check=True,
    )
    done = subprocess.run(
        [sys.executable, "-c", _STORY, tmp_path / "cluster"],
        cwd=tmp_path,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
